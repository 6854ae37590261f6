"""What a stage is: an async callable from a turn to a proposal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from .tokens import Budget, Ledger, TokenCounter

if TYPE_CHECKING:
    from .messages import Message
    from .reports import Detail

__all__ = ["Change", "PlannedStage", "Proposal", "Skip", "Stage", "Turn"]


def _ledger() -> Ledger:
    return Ledger(TokenCounter())


@dataclass(frozen=True, slots=True)
class Turn:
    """The context as it stands before a stage. Read it; never write to it.

    The first *known* messages are equal to those this stage saw at its last turn of the session, so whatever it
    summed up about them still holds. *overhead* is the raw token count of the system prompt and the tools.
    *memory* is a small record per session, for things like a failure breaker or running totals: it may decide
    whether a dear attempt is made, never what an attempt yields.
    """

    messages: Sequence[Message]
    session_id: str = "default"
    force: bool = False
    budget: Budget = field(default_factory=Budget)
    ledger: Ledger = field(default_factory=_ledger)
    overhead: int = 0
    known: int = 0
    memory: MutableMapping[object, object] = field(default_factory=dict)

    @property
    def counter(self) -> TokenCounter:
        """The pipeline's one token counter (exact, uncalibrated)."""
        return self.ledger.counter

    async def raw_tokens(self) -> int:
        """Exact tiktoken tokens of the messages, the system prompt and the tools."""
        return await self.ledger.total(self.messages, known=self.known) + self.overhead

    async def tokens(self) -> int:
        """What the API will bill for this context, as far as is known: the calibrated estimate."""
        return self.ledger.estimate(await self.raw_tokens(), self.messages)


@dataclass(frozen=True, slots=True)
class Change:
    """A proposal for a new context; the pipeline checks it before it counts.

    It must be valid and, unless the stage says *may_grow*, hold fewer tokens than the turn. *tokens_saved* is the
    exact saving where the stage has counted it already; left out, the pipeline counts.
    """

    messages: list[Message]
    detail: Detail | None = None
    may_grow: bool = False
    tokens_saved: int | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to do, and why: "0.14 of the history is offloadable, below 0.2"."""

    reason: str
    detail: Detail | None = None


Proposal: TypeAlias = Change | Skip | None
"""What a stage answers; None is a Skip without a reason."""

Stage: TypeAlias = Callable[[Turn], Awaitable[Proposal]]
"""Any async callable that looks at a turn and makes a proposal."""


@runtime_checkable
class PlannedStage(Protocol):
    async def plan(self, turn: Turn) -> Proposal:
        """The decision that the stage would take, with no write and no model call."""
        ...
