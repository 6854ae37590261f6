"""The report of replays under some policies, which tables, JSON and page print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .._text import as_dollars, as_number, as_percent, as_ratio, short_repr
from ..prompt_cache import Tally
from ..providers.prices import HOUR, Prices
from ..tokens.spent import Kind
from .costs import Bill, bill, with_all_marks, with_hour_marks
from .references import Use
from .replay import Replay


@dataclass(frozen=True, slots=True, repr=False)
class Replaced:
    """A replacement in the context: the *original* and the *placeholder*, with their tokens.

    *placeholder* is "" where nothing is, *where* the file that has the whole.
    """

    name: str
    original: str = field(repr=False)
    placeholder: str = field(repr=False)
    where: str = ""
    tokens_before: float = 0.0
    tokens_after: float = 0.0

    __repr__ = short_repr


@dataclass(slots=True, repr=False)
class Action:
    """The action of a stage in a turn: *outcome* in one word, *reason* in a sentence."""

    stage: str
    outcome: str
    reason: str = ""
    tokens_saved: float | None = None
    replaced: list[Replaced] = field(default_factory=list)

    __repr__ = short_repr


@dataclass(slots=True, repr=False)
class PageTurn:
    """One model call: the tokens of its prompt by kind, its cost, and what the stages did."""

    tokens: Mapping[Kind, float] = field(default_factory=dict)
    cost: float = 0.0
    actions: list[Action] = field(default_factory=list)

    __repr__ = short_repr


@dataclass(slots=True)
class BlockFate:
    """One of the biggest blocks, seen from *turn* on, counted from 1, and what became of it.

    *until* is the turn in which it left, by the action with this index among those of that turn;
    None as long as it is in the context.
    """

    name: str
    kind: Kind
    tokens: float
    turn: int
    fate: str = "still in the context"
    until: int | None = None
    action: int | None = None


@dataclass(slots=True)
class CostShare:
    """The share of one tool, or one kind of text, in the cost.

    *calls* of the tool; *tokens* of its texts, each counted once; *sent* tokens, counted in every
    prompt that held them; and the part of the cost that they caused.
    """

    name: str
    calls: int = 0
    tokens: float = 0.0
    sent: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one conversation, or on all.

    `FIGURES` says what each figure means; costs are in the unit of the prices.
    """

    policy: str
    calls: int
    cost: float
    ratio: float
    marked: float
    hits: float
    peak: float
    fetched: int
    seen: float
    strict: float
    found: float
    hour: float


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """One conversation's way through one policy."""

    figures: Figures
    turns: Sequence[PageTurn] = ()
    shares: Sequence[CostShare] = ()
    blocks: Sequence[BlockFate] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """One conversation's way through some policies; the first is the baseline of the others.

    *labels* say in a few words what the model did in each turn. *cache* has a row for each cause
    for which the prompt cache missed, as really billed; None where no usage is known.
    """

    title: str
    runs: Sequence[Run]
    labels: Sequence[str] = ()
    cache: Sequence[Tally] | None = None

    __repr__ = short_repr


# Figures: on a terminal, in JSON and on the page --------------------------------------------------

FIGURES: Mapping[str, str] = {
    "ratio": "the cost divided by that of the first policy",
    "marked": "the ratio with cache marks before and after each change",
    "hour": "the cost with cache marks for an hour, divided by the cost",
    "hits": "the share of the prompts that came from the cache",
    "peak": "the largest prompt, in tokens as billed",
    "fetched": "requests made to read something back",
    "seen": "the share of what the replies used that the context showed",
    "strict": "the same without the lines that a stage has chosen to keep",
    "found": "the same with what the context named the place of",
}
"""The meaning of each figure of a replay. Tables, JSON and the page call it by this name."""

DOLLARS = "dollars"
"""A unit of costs; any other word stands for input tokens."""

HEADINGS: Sequence[str] = ("policy", "calls", "cost", *FIGURES)

_FORMATS: Mapping[str, Callable[[float], str]] = {
    **dict.fromkeys(FIGURES, as_percent),
    **dict.fromkeys(("ratio", "marked", "hour"), as_ratio),
    **dict.fromkeys(("peak", "fetched"), as_number),
}


def cost(amount: float, unit: str) -> str:
    """A cost in dollars, where that is the *unit*, or in whole input tokens."""
    return as_dollars(amount) if unit == DOLLARS else as_number(amount)


def cells(row: Figures, unit: str) -> tuple[str, ...]:
    """The texts of *row* under the `HEADINGS`."""
    found = (write(getattr(row, name)) for name, write in _FORMATS.items())
    return (row.policy, as_number(row.calls), cost(row.cost, unit), *found)


def figures(conversations: Iterable[Mapping[str, Replay]], prices: Prices) -> list[Figures]:
    """A row for each policy through which all *conversations* were replayed.

    *ratio* is its cost divided by that of the first. One that could not be replayed is empty.
    """
    groups: dict[str, list[Replay]] = {}
    for replays in conversations:
        for name, replay in replays.items():
            groups.setdefault(name, []).append(replay)
    rows: list[Figures] = []
    for name, group in groups.items():
        requests = [request for replay in group for request in replay.requests]
        own, marked = bill(requests, prices), bill(with_all_marks(requests), prices)
        hourly = bill(with_hour_marks(requests), replace(prices, ttl_seconds=HOUR))
        if not rows:
            first, first_marked = own, marked
        use = sum((replay.use for replay in group), Use())
        prompts = [step.prompt_tokens for replay in group for step in replay.steps]
        row = Figures(
            policy=name,
            calls=len(prompts),
            cost=own.total,
            ratio=_ratio(own, first),
            marked=_ratio(marked, first_marked),
            hits=own.hit_rate,
            peak=max(prompts, default=0.0),
            fetched=own.refetches,
            seen=use.recall,
            strict=use.strict_recall,
            found=use.with_reread,
            hour=_ratio(hourly, own),
        )
        rows.append(row)
    return rows


def _ratio(one: Bill, other: Bill) -> float:
    return one.total / other.total if other.total else 1.0
