"""What the page shows, as plain numbers and texts, from a replay or a running agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from ..cache_doctor import Tally
from ..words import as_dollars, as_number, as_percent, as_ratio, short_repr

__all__ = [
    "FIGURES",
    "KINDS",
    "Action",
    "BlockFate",
    "CostShare",
    "Fact",
    "Figures",
    "Kind",
    "PageTurn",
    "Replaced",
    "Report",
    "Run",
    "cost",
    "figure",
]

Kind: TypeAlias = Literal[
    "system",
    "tools",
    "user",
    "assistant",
    "thinking",
    "calls",
    "results",
    "placeholders",
    "summary",
]
"""What tokens of a context are spent on."""

KINDS: Mapping[Kind, str] = {
    "system": "system prompt",
    "tools": "tool definitions",
    "user": "user text",
    "assistant": "assistant text",
    "thinking": "thinking",
    "calls": "tool calls",
    "results": "tool results",
    "placeholders": "placeholders",
    "summary": "summaries, notes and restored files",
}
"""Each kind's name for a reader, from the bottom of the stack to its top."""


@dataclass(frozen=True, slots=True, repr=False)
class Replaced:
    """What was in the context (*original*) and what is there now (*placeholder*), in tokens.

    *placeholder* is "" where nothing is.
    """

    name: str
    original: str = field(repr=False)
    placeholder: str = field(repr=False)
    where: str = ""
    tokens_before: float = 0.0
    tokens_after: float = 0.0

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, repr=False)
class Action:
    """What a stage did in a turn, or tried to: *outcome* in one word, *told* in a sentence."""

    stage: str
    outcome: str
    told: str = ""
    tokens_saved: float | None = None
    replaced: tuple[Replaced, ...] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, repr=False)
class PageTurn:
    """One model call: the tokens of its prompt by kind, its cost, and what the stages did."""

    tokens: Mapping[Kind, float]
    cost: float = 0.0
    actions: tuple[Action, ...] = ()

    __repr__ = short_repr

    @property
    def total(self) -> float:
        """The tokens of the prompt."""
        return sum(self.tokens.values())


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class CostShare:
    """What one tool, or one kind of text, is responsible for.

    *calls* of the tool; *tokens* of its texts, each counted once; *sent* tokens, counted in every
    prompt that held them; and the part of the cost that they caused.
    """

    name: str
    calls: int = 0
    tokens: float = 0.0
    sent: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the page's first table, in words: its name, and a value for each run."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one conversation, or on all.

    `FIGURES` tells what each figure means; costs are in the unit of the prices.
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

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """One conversation's way through one policy; *figures* are known of a replay only."""

    policy: str
    turns: tuple[PageTurn, ...]
    figures: Figures | None = None
    shares: tuple[CostShare, ...] = ()
    blocks: tuple[BlockFate, ...] = ()

    __repr__ = short_repr

    @property
    def cost(self) -> float:
        """What all turns cost."""
        if self.figures:
            return self.figures.cost
        return sum(turn.cost for turn in self.turns)

    @property
    def peak(self) -> float:
        """The tokens of the largest prompt."""
        if self.figures:
            return self.figures.peak
        return max((turn.total for turn in self.turns), default=0.0)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """One conversation's way through some policies; the first is the baseline of the others.

    *labels* say in a few words what the model did in each turn. Costs are in *unit*: "dollars", or
    any other word for it. *cache* has a row for each cause for which the prompt cache missed, as
    really billed; None where no bill is known.
    """

    title: str
    runs: tuple[Run, ...]
    labels: tuple[str, ...] = ()
    subtitle: str = ""
    unit: str = "input tokens"
    facts: tuple[Fact, ...] = ()
    cache: tuple[Tally, ...] | None = None

    __repr__ = short_repr


# Figures as a reader is shown them: on a terminal, in JSON and on the page ------------------------

FIGURES: Mapping[str, str] = {
    "ratio": "the cost divided by that of the first policy",
    "marked": "the ratio with cache marks before and after each change",
    "hits": "the share of the prompts that came from the cache",
    "peak": "the largest prompt, in tokens as billed",
    "fetched": "requests made to read something back",
    "seen": "the share of what the replies used that the context showed",
    "strict": "the same without the lines that a stage has chosen to keep",
    "found": "the same with what the context named the place of",
}
"""What each figure of a replay means. Tables, JSON and the page call it by this name."""


def cost(amount: float, *, dollars: bool) -> str:
    """A cost in dollars, or in whole input tokens."""
    return as_dollars(amount) if dollars else as_number(amount)


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "ratio": as_ratio,
    "marked": as_ratio,
    "peak": as_number,
    "fetched": as_number,
}


def figure(row: Figures, name: str) -> str:
    """The figure of this *name* in *row*, as it is written; whatever is no more is a share."""
    write = _FORMATS.get(name, as_percent)
    return write(getattr(row, name))
