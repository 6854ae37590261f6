"""The protocol of a stage: an async callable that takes a turn and returns a proposal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    runtime_checkable,
)

from .._threads.threads import in_thread
from ..messages import FactSums, Message, is_bulky
from ..tokens import Budget, Ledger, TokenCounter

if TYPE_CHECKING:
    from ..summarizers import AgentModel
    from .reports import Detail

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class Tracked(NamedTuple):
    """Facts about a turn that the pipeline computes once for all stages.

    The messages before *start* are unchanged since the last turn. *exceeds_inline_limit* is True if
    reading the others would block the event loop. *fact_sums* are sums over the facts of the
    messages that were read. *can_search* is True if the model's tools include `search_history`.
    *place_of* returns the index in the context of a message of the history, or of the message that
    replaces it. *has_changing_end* is True if the caller replaces messages at the end of the
    history, so that a summary of them soon describes messages that are gone. *tokens_before* is the
    raw token count of the context before the first stage if the turn is forced, otherwise 0.
    """

    start: int
    exceeds_inline_limit: bool
    fact_sums: FactSums
    can_search: bool = False
    place_of: Callable[[int], int] = int  # the context is the history
    has_changing_end: bool = False
    tokens_before: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """The context before a stage, and all that a stage may know; only *memory* may be changed.

    *messages* are the context as the stages before have left it. *budget* has the limits of the
    context in estimated tokens, and *ledger* counts and estimates tokens. *overhead* is the raw
    token count of the system prompt and the tools. *force* is True if the caller wants a shorter
    context also below the thresholds, as after a refusal.

    *memory* has the stage's own records of this session, by type (see `recall`), for things like a
    circuit breaker or running totals. A stage may use a record to decide whether it tries something
    expensive, such as a summary. The new messages must not depend on it, because a record can be
    lost. If a record has a method ``rewind(length)``, the pipeline calls it whenever messages from
    index *length* on may differ from those that the record describes, and does the same for the
    *ledger*. *tracked* is for ctxpipe's own stages.

    The messages before index *protected* must not be rewritten, because the signatures of later
    thinking cover their text. *cache_expired* is True if the provider's prompt cache is known to
    have expired, so that rewriting costs no more than reading. *agent_model* is the model that the
    agent itself uses, None if unknown; a summarizer without a model of its own may use it.

    *history* is the unshortened history that *messages* were made from, if the caller of a session
    passes it. It is None in ``ContextPipeline.run``, and if the caller continues with the context
    itself. Then it is unknown which texts in *messages* come from ctxpipe.
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
        """True if the model has the tool `search_history`, which finds what left the context."""
        return self.tracked is not None and self.tracked.can_search

    def exceeds_inline_limit(self, start: int) -> bool:
        """Return True if reading the messages from *start* on would block the event loop too long.

        The caller then reads them in a worker thread.
        """
        if self.tracked is not None and start >= self.tracked.start:
            return self.tracked.exceeds_inline_limit  # for all messages that are new in this turn
        return is_bulky(self.messages, start)

    async def call_from(
        self, start: int, work: Callable[[*Arguments], T], *arguments: *Arguments
    ) -> T:
        """Call *work*, which reads the messages from *start* on, and return its result.

        It is called in a worker thread if reading them would block the event loop too long.
        """
        if self.exceeds_inline_limit(start):
            return await in_thread(work, *arguments)
        return work(*arguments)

    @property
    def counter(self) -> TokenCounter:
        """The pipeline's only token counter (exact, not calibrated)."""
        return self.ledger.counter

    async def fact_sums(self) -> FactSums:
        """Return running sums over the messages, such as replies; each message is read once."""
        fact_sums = FactSums() if self.tracked is None else self.tracked.fact_sums
        start = fact_sums.message_count
        if start < len(self.messages):
            await self.call_from(start, fact_sums.extend, self.messages)
        return fact_sums

    async def raw_tokens(self) -> int:
        """Return the tiktoken tokens of the messages, the system prompt and the tools.

        They are exact, with one exception. In the first turn of a conversation that begins with a
        long history, a number that is more than a tenth above the window may be an estimate. So it
        is exact wherever a comparison with a limit of the budget could depend on it.
        """
        unchanged_count = self.ledger.unchanged_count
        tokens = await self.ledger.total(self.messages, unchanged_count=unchanged_count)
        return tokens + self.overhead

    async def tokens(self) -> int:
        """Return the calibrated estimate of the tokens that the API will report."""
        return self.ledger.estimate(await self.raw_tokens())

    async def prefix_sums(self) -> Sequence[int]:
        """Return the raw tokens of the first 0, 1, 2 … messages, without the overhead.

        They are estimates if `raw_tokens` is one. The returned sequence is valid until the next
        turn.
        """
        unchanged_count = self.ledger.unchanged_count
        return await self.ledger.prefix_sums(self.messages, unchanged_count=unchanged_count)

    def count_exactly(self) -> None:
        """Make all token counts of this turn exact from now on.

        For a stage whose decision depends on less than a tenth of the tokens.
        """
        self.ledger.count_exactly()

    def recall(self, kind: Callable[[], T]) -> T:
        """Return the stage's record of type *kind* in this session; the first call creates it."""
        if kind not in self.memory:
            self.memory[kind] = kind()
        record: T = self.memory[kind]
        return record


class Stored(NamedTuple):
    """Texts that a stage has written to *storage*.

    *locations* has the location of each text, as the storage returned it, by the text.
    """

    storage: object
    locations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Change:
    """A proposal for a new context, which the pipeline checks before it is used.

    The new *messages* must be valid, and have fewer tokens than those of the turn unless the stage
    sets *may_grow*. *stored* has the texts that were written to files, so that a journal in the
    same storage can refer to them instead of storing them twice.

    *described_count* is for a change that adds a summary: the number of messages of the history,
    from the first on, that the summary describes. If the caller later removes one of these from the
    history (a rewind), the summary is dropped, and the context before the change is used again.
    None in a change of `Compact` means that the summary describes all messages. None in a change of
    any other stage means that the change has no summary.
    """

    messages: list[Message] = field(repr=False)
    detail: Detail | None = None
    may_grow: bool = False
    stored: Stored | None = field(default=None, repr=False)
    described_count: int | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """A decision to change nothing, with the reason: "0.14 of the history is offloadable"."""

    reason: str
    detail: Detail | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """Answer of a stage's ``plan`` if it would act, but only acting can show the outcome."""

    reason: str


Proposal: TypeAlias = Change | Skip | None
"""The answer of a stage; None is a Skip without a reason."""

Stage: TypeAlias = Callable[[Turn], Awaitable[Proposal]]
"""An async callable that reads a turn and returns a proposal."""


def stage_name(stage: object) -> str:
    """Return the name of a stage in reports: that of the function, or of the object's class."""
    return getattr(stage, "__name__", None) or type(stage).__name__


@runtime_checkable
class PlannedStage(Protocol):
    """A stage that can report what it would do."""

    async def plan(self, turn: Turn) -> Change | Skip | Intent | None:
        """Return what the stage would decide, without writing anything or calling a model."""
        ...
