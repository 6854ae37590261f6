"""Why the prompt cache missed in a recorded conversation, by the bills in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..cache_doctor import Bill, CacheDoctor, CacheMiss, Cause, Sent, Tally, as_bill
from ..cache_doctor.misses import most_tokens_first
from ..errors import SettingsError, TranscriptError
from ..prices import Prices, prices_of
from ..tokens import TokenCounter
from ..words import as_dollars, as_number, as_percent, count_phrase
from .transcripts import Transcript

__all__ = ["HEADINGS", "CacheReport", "cache_report", "rows", "total_report"]

HEADINGS = ("cause", "misses", "tokens", "cost", "the first time")
LEAST_KEPT = 0.7
"""Of the prompt before: a shorter one is not the recorded history, but what the client made of it.
"""


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What *requests* read from the cache, and why not more.

    *read*, *written* and *uncached* are billed tokens of all. *misses* are in the order of their
    requests, *tallies* by cause, those of most tokens first. *shortened* counts the requests that
    held far less than the recorded history: what the client left out is not known.
    """

    requests: int
    read: int
    written: int
    uncached: int
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

    def as_json(self) -> dict[str, Any]:
        """The same by name."""
        return {**asdict(self), "hits": self.hit_rate}

    def __str__(self) -> str:
        requests = count_phrase(self.requests, "request")
        hits, tokens = as_percent(self.hit_rate), as_number(self.tokens)
        return f"{requests}, {hits} of {tokens} tokens read from the cache"


def cache_report(
    transcript: Transcript, counter: TokenCounter, prices: Prices | None = None
) -> CacheReport:
    """Why the cache missed in *transcript*.

    Without *prices* those of its models count, where they are listed. A transcript does not tell
    where cache marks were, so each is taken to be where the bill says that the cache ended. Raises
    TranscriptError where the transcript holds no bills.
    """
    doctor = CacheDoctor(counter)
    misses: list[CacheMiss] = []
    bills: list[Bill] = []
    shortened = 0
    seconds = 0.0
    for index in transcript.replies:
        usage = transcript.usages.get(index)
        bill = None if usage is None else as_bill(usage)
        seconds = max(seconds, _seconds(transcript, index, seconds))
        if bill is None or not bill.total:
            continue
        if bills and bill.total < LEAST_KEPT * bills[-1].total:
            doctor = CacheDoctor(counter)
            shortened += 1
        bills.append(bill)
        sent = Sent(
            transcript.messages[:index],
            seconds,
            transcript.system,
            _tools(transcript),
            {"model": transcript.models.get(index, transcript.model)},
            are_marks_known=False,
        )
        doctor.send(sent)
        misses += doctor.observe(bill)
    if not bills:
        raise TranscriptError(f"{transcript.name} holds no bills that tell of the prompt cache")
    return CacheReport(
        len(bills),
        sum(bill.read for bill in bills),
        sum(bill.written for bill in bills),
        sum(bill.uncached for bill in bills),
        tuple(misses),
        tuple(_tally(misses, _price_list(prices))),
        shortened,
    )


def total_report(reports: Iterable[CacheReport]) -> CacheReport:
    """*reports* together: their sums, without the single misses."""
    known = list(reports)
    tallies: dict[Cause, Tally] = {}
    for one in (tally for report in known for tally in report.tallies):
        total = tallies.setdefault(one.cause, Tally(one.cause, detail=one.detail))
        total.misses += one.misses
        total.tokens += one.tokens
        if one.cost is not None:
            total.cost = (total.cost or 0.0) + one.cost
    return CacheReport(
        sum(report.requests for report in known),
        sum(report.read for report in known),
        sum(report.written for report in known),
        sum(report.uncached for report in known),
        tallies=tuple(most_tokens_first(tallies.values())),
        shortened=sum(report.shortened for report in known),
    )


def rows(tallies: Iterable[Tally]) -> list[tuple[str, ...]]:
    """A row of texts for each of *tallies*, under the `HEADINGS`."""
    found: list[tuple[str, ...]] = []
    for one in tallies:
        cost = "" if one.cost is None else as_dollars(one.cost)
        row = (str(one.cause), as_number(one.misses), as_number(one.tokens), cost, one.detail)
        found.append(row)
    return found


def _tally(
    misses: Iterable[CacheMiss], prices_for: Callable[[str | None], Prices | None]
) -> list[Tally]:
    tallies: dict[Cause, Tally] = {}
    for miss in misses:
        prices = prices_for(miss.model)
        cost = None if prices is None else miss.cost(prices)
        tallies.setdefault(miss.cause, Tally(miss.cause)).add(miss, cost)
    return most_tokens_first(tallies.values())


def _price_list(prices: Prices | None) -> Callable[[str | None], Prices | None]:
    """A function from a model to its prices: always *prices*, or those listed for it."""
    listed: dict[str, Prices | None] = {}

    def find(model: str | None) -> Prices | None:
        if prices is not None or not model:
            return prices
        if model not in listed:
            try:
                listed[model] = prices_of(model)
            except SettingsError:
                listed[model] = None
        return listed[model]

    return find


def _seconds(transcript: Transcript, index: int, otherwise: float) -> float:
    """When the request was sent that the reply at *index* answers."""
    for place in (index - 1, index):
        if place in transcript.seconds:
            return transcript.seconds[place]
    return otherwise


def _tools(transcript: Transcript) -> list[object] | None:
    return None if transcript.tools is None else list(transcript.tools)
