"""The usage that a recording has of its replies, read for the prompt cache.

Why the cache missed, and how far a replay is from the usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache

from .._text import as_dollars, as_number, as_percent, as_ratio, count_phrase
from .._values import JsonDict
from ..errors import TranscriptError
from ..prompt_cache import CacheDiagnostics, CacheMiss, Cause, SentRequest, Tally, cache_usage
from ..prompt_cache.misses import most_tokens_first
from ..providers.prices import Prices, find_prices
from ..tokens import TokenCounter
from .records import Sums
from .replay import Replay
from .transcripts import Transcript

HEADINGS = ("cause", "misses", "tokens", "cost", "the first time")
BILLED = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
LIMIT = 10**12
"""More tokens than any prompt has; what reports them is no usage."""
LEAST_KEPT = 0.7
"""Of the prompt before: a shorter one is not the recorded history, but what the client made of it.
"""


@dataclass(frozen=True, slots=True)
class CacheReport(Sums):
    """The use of the cache by *requests*, and the reasons for its misses.

    *read*, *written* and *uncached* are billed tokens of all. *misses* are in the order of their
    requests, *tallies* by cause, those of most tokens first. *shortened* counts the requests that
    held far less than the recorded history: what the client left out is not known.
    """

    requests: int = 0
    read: int = 0
    written: int = 0
    uncached: int = 0
    misses: tuple[CacheMiss, ...] = ()
    tallies: tuple[Tally, ...] = ()
    shortened: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of the prompts that came from the cache."""
        return self.read / self.tokens if self.tokens else 0.0

    @property
    def tokens(self) -> int:
        """All billed tokens of the prompts."""
        return self.read + self.written + self.uncached

    def as_json(self) -> JsonDict:
        """The same by name."""
        return {**asdict(self), "hits": self.hit_rate}

    def __str__(self) -> str:
        requests = count_phrase(self.requests, "request")
        hits, tokens = as_percent(self.hit_rate), as_number(self.tokens)
        return f"{requests}, {hits} of {tokens} tokens read from the cache"


def cache_report(
    transcript: Transcript, counter: TokenCounter, prices: Prices | None = None
) -> CacheReport:
    """The cache misses in *transcript*, each with its cause.

    Without *prices* those of its models count, where they are listed. A transcript has no cache
    marks, so one is assumed where the usage says that the cache ended. Raises TranscriptError where
    the transcript has no usage.
    """
    diagnostics = CacheDiagnostics(counter)
    found = CacheReport()
    before = seconds = 0.0
    for index in transcript.replies:
        bill = cache_usage(transcript.usages.get(index))
        times = transcript.seconds
        # The reply is sent for when what it answers is there; else its own time is the nearest.
        seconds = max(seconds, times.get(index - 1, times.get(index, seconds)))
        if bill is None or not bill.total:
            continue
        is_shortened = bill.total < LEAST_KEPT * before
        if is_shortened:
            diagnostics = CacheDiagnostics(counter)
        before = bill.total
        sent = SentRequest(
            transcript.messages[:index],
            seconds,
            transcript.system,
            None if transcript.tools is None else list(transcript.tools),
            {"model": transcript.models.get(index, transcript.model)},
            are_marks_known=False,
        )
        diagnostics.send(sent)
        misses = tuple(diagnostics.observe(bill))
        found += CacheReport(
            1, bill.read, bill.written, bill.uncached, misses, shortened=int(is_shortened)
        )
    if not found.requests:
        raise TranscriptError(f"{transcript.name} holds no bills that tell of the prompt cache")
    return replace(found, tallies=tuple(_tally(found.misses, prices)))


def total_report(reports: Iterable[CacheReport], prices: Prices | None = None) -> CacheReport:
    """*reports*, at these *prices*, together: their sums, without the single misses."""
    total = sum(reports, CacheReport())
    return replace(total, misses=(), tallies=tuple(_tally(total.misses, prices)))


def rows(tallies: Iterable[Tally]) -> list[tuple[str, ...]]:
    """A row of texts for each of *tallies*, under the `HEADINGS`."""
    found: list[tuple[str, ...]] = []
    for one in tallies:
        cost = "" if one.cost is None else as_dollars(one.cost)
        misses, tokens = as_number(one.misses), as_number(one.tokens)
        found.append((str(one.cause), misses, tokens, cost, one.detail))
    return found


def _tally(misses: Iterable[CacheMiss], prices: Prices | None) -> list[Tally]:
    """The *misses* by cause, at *prices*, or those listed for the model of each."""
    listed = cache(find_prices)
    tallies: dict[Cause, Tally] = {}
    for miss in misses:
        own = prices or listed(miss.model)
        tallies.setdefault(miss.cause, Tally(miss.cause)).add(miss, own)
    return most_tokens_first(tallies.values())


# Beside a replay ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calibration(Sums):
    """The prompts of *calls* whose usage is known, as reported and as simulated without management.

    All their tokens, and the cached ones.
    """

    calls: int = 0
    billed_tokens: float = 0
    simulated_tokens: float = 0
    billed_read: float = 0
    simulated_read: float = 0

    def as_json(self) -> dict[str, float]:
        """The tokens and shares by name."""
        return {
            **asdict(self),
            "billed_hits": self.billed_read / self.billed_tokens,
            "simulated_hits": self.simulated_read / self.simulated_tokens,
        }

    def __str__(self) -> str:
        # What the transcript does not hold is another reason for a ratio above 1.
        return (
            f"The bills of {count_phrase(self.calls, 'call')} hold "
            f"{as_ratio(self.billed_tokens / self.simulated_tokens)} times the prompt tokens that "
            "are simulated without management; from the cache came "
            f"{as_percent(self.billed_read / self.billed_tokens)}, "
            f"simulated {as_percent(self.simulated_read / self.simulated_tokens)}."
        )


def calibration(transcript: Transcript, replay: Replay) -> Calibration | None:
    """*replay* of *transcript*, with no management, beside the usage in it.

    None where it has none.
    """
    found = Calibration()
    for step in replay.steps:
        usage = transcript.usages.get(transcript.replies[step.call], {})
        counts = [usage.get(name) for name in BILLED]
        fresh, read, written = (n if isinstance(n, int) and 0 < n < LIMIT else 0 for n in counts)
        if fresh + read + written:
            use = step.requests[-1].use
            found += Calibration(1, fresh + read + written, use.prompt, read, use.read)
    return found if found.calls else None
