"""What the page shows, as plain numbers and texts, from a replay or a running agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..cache_doctor import Tally

__all__ = [
    "KINDS",
    "Action",
    "BlockFate",
    "Fact",
    "Kind",
    "PageTurn",
    "RecallPoint",
    "Replaced",
    "Report",
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
    "summary": "summary and restored files",
}
"""Each kind's name for a reader, from the bottom of the stack to its top."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What was in the context (*original*) and what is there now (*placeholder*), in tokens.

    *placeholder* is "" where nothing is.
    """

    name: str
    original: str
    placeholder: str
    where: str = ""
    tokens_before: float = 0.0
    tokens_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Action:
    """What a stage did in a turn, or tried to: *outcome* in one word, *told* in a sentence."""

    stage: str
    outcome: str
    told: str = ""
    tokens_saved: float | None = None
    replaced: tuple[Replaced, ...] = ()


@dataclass(frozen=True, slots=True)
class PageTurn:
    """One model call: the tokens of its prompt by kind, and its cost, with and without ctxpipe.

    *label* says in a few words what the model did.
    """

    tokens: Mapping[Kind, float]
    tokens_without: float
    cost: float = 0.0
    cost_without: float = 0.0
    label: str = ""
    actions: tuple[Action, ...] = ()

    @property
    def total(self) -> float:
        """The tokens of the prompt."""
        return sum(self.tokens.values())


@dataclass(frozen=True, slots=True)
class BlockFate:
    """One of the biggest blocks, seen from *turn* on, counted from 1, and what became of it.

    *until* is the turn in which *stage* removed it, None as long as it is in the context.
    """

    name: str
    kind: Kind
    tokens: float
    turn: int
    fate: str = "still in the context"
    until: int | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True)
class RecallPoint:
    """The share of what is used later that a policy still shows, in contexts of *budget_tokens*.

    *recall* is from 0 to 1.
    """

    policy: str
    budget_tokens: float
    recall: float
    oracle: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of the page's first table, in words."""

    name: str
    with_it: str
    without: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """One conversation's way through a pipeline.

    Costs are in *unit*: "dollars", or any other word for it. *cache* has a row for each cause for
    which the prompt cache missed, as really billed; None where no bill is known.
    """

    title: str
    turns: tuple[PageTurn, ...]
    subtitle: str = ""
    unit: str = "input tokens"
    policy: str = "with ctxpipe"
    baseline: str = "without ctxpipe"
    facts: tuple[Fact, ...] = ()
    recall: tuple[RecallPoint, ...] = ()
    blocks: tuple[BlockFate, ...] = ()
    cache: tuple[Tally, ...] | None = None
