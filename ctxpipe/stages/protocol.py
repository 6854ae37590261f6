"""What a stage is: an async callable from a turn to a proposal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from .._threads.threads import in_thread_if
from ..messages import Columns, Message, is_bulky
from ..tokens import Budget, Ledger, TokenCounter

if TYPE_CHECKING:
    from ..summarizers import AgentModel
    from .reports import Detail

T = TypeVar("T")


class Tracked(NamedTuple):
    """Facts about a turn that the pipeline computes once for all stages.

    The messages before *start* are unchanged since the last turn. With *bulky* the others are so
    long that reading them would block the event loop. *columns* are sums over the facts of the
    messages that were read. With *can_search* the model's tools include `search_history`.
    *place_of* returns the index in the context of a message of the history, or of the message that
    replaces it. With *has_changing_end* the caller replaces messages at the end of the history, so
    a summary of them soon describes messages that are gone. *tokens_before* is the raw token count
    of the context before the first stage if the turn is forced, else 0.
    """

    start: int
    bulky: bool
    columns: Columns
    can_search: bool = False
    place_of: Callable[[int], int] = int  # as it is
    has_changing_end: bool = False
    tokens_before: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """The context as it is before a stage. Read it; never write to it.

    *overhead* is the raw token count of the system prompt and the tools. *memory* is a small record
    per session and stage, for things like a circuit breaker or running totals: it may decide
    whether an expensive attempt is made, never what its result is. The pipeline rewinds what has
    a ``rewind(known)`` in it, and the ledger, so that they always agree with *messages* as far as
    they reach (*tracked*).

    The messages before index *protected* must not be rewritten: the signatures of kept thinking
    after them cover their text. With *cache_expired* the provider's prompt cache is known to be
    gone, so that rewriting costs no more than reading. *agent_model*, where it is known, is the
    model that the agent itself asks: lent to a summarizer that has none of its own.

    *history* is the raw history that the messages were made from, where a session's caller hands it
    in. None in `ContextPipeline.run`, and once the caller goes on with the context itself: then
    *messages* is all that there is, and nobody knows which of its texts are ours.
    """

    # Not in the repr: that goes into logs, a conversation does not.
    messages: Sequence[Message] = field(repr=False)
    session_id: str = "default"
    force: bool = False
    budget: Budget = field(default_factory=Budget)
    ledger: Ledger = field(default_factory=lambda: Ledger(TokenCounter()), repr=False)
    overhead: int = 0
    memory: MutableMapping[object, Any] = field(default_factory=dict, repr=False)
    tracked: Tracked | None = field(default=None, repr=False)
    protected: int = 0
    cache_expired: bool = False
    agent_model: AgentModel | None = field(default=None, repr=False)
    history: Sequence[Message] | None = field(default=None, repr=False)

    @property
    def can_search(self) -> bool:
        """Whether the model has `search_history`, which finds what leaves the context."""
        return self.tracked is not None and self.tracked.can_search

    def is_bulky(self, start: int) -> bool:
        """Whether looking at the messages from *start* on would hold up the event loop."""
        if self.tracked is not None and start >= self.tracked.start:
            return self.tracked.bulky  # of all that is new in this turn
        return is_bulky(self.messages, start)

    @property
    def counter(self) -> TokenCounter:
        """The pipeline's one token counter (exact, uncalibrated)."""
        return self.ledger.counter

    async def columns(self) -> Columns:
        """Sums over the facts of the messages, each of which is read once."""
        columns = Columns() if self.tracked is None else self.tracked.columns
        if columns.message_count < len(self.messages):
            await in_thread_if(self.is_bulky(columns.message_count), columns.extend, self.messages)
        return columns

    async def raw_tokens(self) -> int:
        """Exact tiktoken tokens of the messages, the system prompt and the tools."""
        return (
            await self.ledger.total(self.messages, unchanged_count=self.ledger.unchanged_count)
            + self.overhead
        )

    async def tokens(self) -> int:
        """What the API will bill for this context, as far as is known: the calibrated estimate."""
        return self.ledger.estimate(await self.raw_tokens())

    async def prefix_sums(self) -> Sequence[int]:
        """Raw tokens of the first 0, 1, 2 … messages, without the overhead.

        Read it before the next turn.
        """
        return await self.ledger.prefix_sums(
            self.messages, unchanged_count=self.ledger.unchanged_count
        )

    def recall(self, kind: Callable[[], T]) -> T:
        """The stage's own record of the type *kind* in this session, made at first use."""
        if kind not in self.memory:
            self.memory[kind] = kind()
        record: T = self.memory[kind]
        return record


class Stored(NamedTuple):
    """Texts that a stage has written to *storage*, each with its location."""

    storage: object
    locations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A proposal for a new context; the pipeline checks it before it counts.

    It must be valid and, unless the stage says *may_grow*, hold fewer tokens than the turn.
    *stored* names the texts that are in files now: a journal in the same storage refers to them.
    If the change adds a summary, *described_count* is the number of messages of the history that
    the summary describes. Once the caller takes one of these back, the context before the change
    is used again. None means all of them for `Compact`, and no summary for other stages.
    """

    messages: list[Message] = field(repr=False)
    detail: Detail | None = None
    may_grow: bool = False
    stored: Stored | None = field(default=None, repr=False)
    described_count: int | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing to do, and why: "0.14 of the history is offloadable, below 0.2"."""

    reason: str
    detail: Detail | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """A plan's answer where the stage would act, but only acting can show the outcome."""

    reason: str


Proposal: TypeAlias = Change | Skip | None
"""What a stage answers; None is a Skip without a reason."""

Stage: TypeAlias = Callable[[Turn], Awaitable[Proposal]]
"""Any async callable that looks at a turn and makes a proposal."""


@runtime_checkable
class PlannedStage(Protocol):
    """A stage that can say what it would do."""

    async def plan(self, turn: Turn) -> Change | Skip | Intent | None:
        """The decision that the stage would take, with no write and no model call."""
        ...
