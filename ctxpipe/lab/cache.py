"""The prompt cache in a recorded conversation, by the usage that the API reported.

`cache_report` finds the causes of the misses; `calibration` compares a replay with the usage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache

from .._text import as_dollars, as_number, as_percent, as_ratio, count_phrase
from .._values import JsonDict
from ..diagnostics.cache_audit import CacheAudit
from ..diagnostics.misses import CacheMiss, Cause, Tally, cache_usage, most_tokens_first
from ..diagnostics.prompts import SentRequest
from ..errors import TranscriptError
from ..providers.prices import Prices, find_prices
from ..tokens import TokenCounter
from .records import Sums
from .replay import ReplayResult
from .transcripts import Transcript

HEADINGS = ("cause", "misses", "tokens", "cost", "the first time")
USAGE_FIELDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
MAX_TOKENS = 10**12
"""More tokens than any prompt has: a count from here on is not a usage."""
MAX_SHARE_DIFFERENCE = 0.05
"""Difference of two shares of a prompt below which these count as alike."""
MIN_PROMPT_RATIO = 0.7
"""Smallest ratio of a prompt to the one before it.

Below it the client has left out a part of the recorded history.
"""


@dataclass(frozen=True, slots=True)
class CacheReport(Sums):
    """The use of the prompt cache by *requests*, and the causes of its misses.

    *read*, *written* and *uncached* are tokens of all requests together, by their usage. *misses*
    are in the order of the requests; *tallies* have one row per cause, most tokens first.
    *shortened* counts the requests that held far less than the recorded history, because the client
    left out messages; their misses are not analyzed.
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
        """The share of the prompt tokens that were read from the cache."""
        return self.read / self.tokens if self.tokens else 0.0

    @property
    def tokens(self) -> int:
        """The tokens of all prompts."""
        return self.read + self.written + self.uncached

    def as_json(self) -> JsonDict:
        """Return the report as a JSON object."""
        return {**asdict(self), "hits": self.hit_rate}

    def __str__(self) -> str:
        """Return the number of requests, and the share of their tokens read from the cache."""
        requests = count_phrase(self.requests, "request")
        hits = as_percent(self.hit_rate)
        tokens = as_number(self.tokens)
        return f"{requests}, {hits} of {tokens} tokens read from the cache"


def cache_report(
    transcript: Transcript, counter: TokenCounter, prices: Prices | None = None
) -> CacheReport:
    """Return the cache misses in *transcript*, each with its cause.

    The costs are by *prices*, or by the listed prices of each reply's model. A transcript does not
    say where the cache marks were: a mark is assumed where, by the usage, the cached part ended.
    Raises TranscriptError if the transcript has no usage.
    """
    diagnostics = CacheAudit(counter)
    report = CacheReport()
    previous_tokens = 0.0
    seconds = 0.0
    for index in transcript.replies:
        usage = cache_usage(transcript.usages.get(index))
        times = transcript.seconds
        # A request is sent right after the message that it ends with. Where that message has no
        # time, the reply's own time is the nearest.
        seconds = max(seconds, times.get(index - 1, times.get(index, seconds)))
        if usage is None or not usage.total:
            continue
        is_shortened = usage.total < MIN_PROMPT_RATIO * previous_tokens
        if is_shortened:
            diagnostics = CacheAudit(counter)
        previous_tokens = usage.total
        request = SentRequest(
            transcript.messages[:index],
            seconds,
            transcript.system,
            None if transcript.tools is None else list(transcript.tools),
            {"model": transcript.models.get(index, transcript.model)},
            are_marks_known=False,
        )
        diagnostics.send(request)
        misses = tuple(diagnostics.observe(usage))
        report += CacheReport(
            requests=1,
            read=usage.read,
            written=usage.written,
            uncached=usage.uncached,
            misses=misses,
            shortened=int(is_shortened),
        )
    if not report.requests:
        raise TranscriptError(f"{transcript.name} has no usage that reports the prompt cache")
    return replace(report, tallies=tuple(_tally(report.misses, prices)))


def total_report(reports: Iterable[CacheReport], prices: Prices | None = None) -> CacheReport:
    """Return the sums of *reports*, without the single misses, at these *prices*."""
    total = sum(reports, CacheReport())
    return replace(total, misses=(), tallies=tuple(_tally(total.misses, prices)))


def rows(tallies: Iterable[Tally]) -> list[tuple[str, ...]]:
    """Return a table row for each of *tallies*, with a text for each of the `HEADINGS`."""
    table: list[tuple[str, ...]] = []
    for tally in tallies:
        cost = "" if tally.cost is None else as_dollars(tally.cost)
        misses = as_number(tally.misses)
        tokens = as_number(tally.tokens)
        table.append((str(tally.cause), misses, tokens, cost, tally.detail))
    return table


def _tally(misses: Iterable[CacheMiss], prices: Prices | None) -> list[Tally]:
    """Return a tally of *misses* for each cause, most tokens first.

    The costs are by *prices*, or by the listed prices of each miss's model.
    """
    prices_of = cache(find_prices)
    tallies: dict[Cause, Tally] = {}
    for miss in misses:
        model_prices = prices or prices_of(miss.model)
        tallies.setdefault(miss.cause, Tally(miss.cause)).add(miss, model_prices)
    return most_tokens_first(tallies.values())


# Comparison with a replay -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calibration(Sums):
    """Comparison of the prompt tokens that the API reported with those of a simulation.

    The simulation is the replay of the unchanged history. *calls* is the number of recorded calls
    that have a usage; the other fields are sums over these calls. *billed_tokens* are the reported
    prompt tokens, *simulated_tokens* those of the simulation. *billed_read* and *simulated_read*
    are the parts of them that were read from the cache. *alike* is the number of calls for which
    the two shares read from the cache differ by less than `MAX_SHARE_DIFFERENCE`.
    """

    calls: int = 0
    billed_tokens: float = 0
    simulated_tokens: float = 0
    billed_read: float = 0
    simulated_read: float = 0
    alike: int = 0

    @property
    def usage_hits(self) -> float:
        """The share of the reported prompt tokens that was read from the cache."""
        return self.billed_read / self.billed_tokens

    @property
    def simulation_hits(self) -> float:
        """The share of the simulated prompt tokens that was read from the cache."""
        return self.simulated_read / self.simulated_tokens

    @property
    def token_ratio(self) -> float:
        """The reported prompt tokens divided by the simulated ones."""
        return self.billed_tokens / self.simulated_tokens

    def as_json(self) -> dict[str, float]:
        """Return the tokens, and the shares read from the cache, as a JSON object."""
        return {
            **asdict(self),
            "billed_hits": self.usage_hits,
            "simulated_hits": self.simulation_hits,
        }

    def __str__(self) -> str:
        """Return a sentence that compares the reported usage with the simulated one."""
        # The ratio is also above 1 if the transcript lacks a part of the prompts.
        return (
            f"The usage of {count_phrase(self.calls, 'call')} reports "
            f"{as_ratio(self.token_ratio)} times the prompt tokens that "
            "are simulated for the unchanged history; read from the cache were "
            f"{as_percent(self.usage_hits)}, simulated {as_percent(self.simulation_hits)}."
        )


def calibration(transcript: Transcript, replay: ReplayResult) -> Calibration | None:
    """Compare *replay*, in which nothing was changed, with the usage in *transcript*.

    Returns None if the transcript has no usage.
    """
    total = Calibration()
    for step in replay.steps:
        usage = transcript.usages.get(transcript.replies[step.call], {})
        fresh, read, written = (_token_count(usage.get(name)) for name in USAGE_FIELDS)
        if fresh + read + written:
            use = step.requests[-1].use
            billed_tokens = fresh + read + written
            # Shares, because the API's tokens are not those of the counter.
            difference = abs(read / billed_tokens - use.read / use.prompt)
            total += Calibration(
                calls=1,
                billed_tokens=billed_tokens,
                simulated_tokens=use.prompt,
                billed_read=read,
                simulated_read=use.read,
                alike=int(difference < MAX_SHARE_DIFFERENCE),
            )
    return total if total.calls else None


def _token_count(value: object) -> int:
    """Return *value* if it is a possible number of tokens, else 0."""
    return value if isinstance(value, int) and 0 < value < MAX_TOKENS else 0
