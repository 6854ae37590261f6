"""One turn of a conversation: the object that carries it, and its steps in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from .._logs import find_tracer, logger, set_token_attributes, span_of
from .._threads.threads import in_thread
from ..errors import safe_text
from ..stages.reports import Outcome
from .align import align
from .commit import commit
from .finish import finish
from .repair import repair_context
from .stages import ask_stages

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from ..journal.memory import Memory
    from ..journal.step import Step
    from ..messages import Message, Problem
    from ..stages.offload.shared_decisions import SharedDecisions
    from ..stages.protocol import Stage
    from ..stages.reports import Result, StageReport
    from .state import Request, State

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


@dataclass(slots=True)
class TurnRun:
    """One turn: what it needs, and what its steps have made so far.

    The caller gives the first group of fields. *memory* has the timeline that the turn continues,
    *state* the running totals and the records of the stages. *stages* are those that take part, by
    their places in the pipeline; with None all stages do. *decisions* says which texts other
    conversations have moved to files; this one replaces the same texts by the same placeholders. A
    plan writes nothing and calls no model.

    The steps of the turn set the other fields. `align` sets the *step* of the timeline and
    *repeated_stages*, which come first and repeat what the model has seen before, and empties
    *changes* and *reports*. *messages* is the context so far, *problems* says what was broken in
    it. *changes* has an item for each part of the turn that changed something: the index of the
    first changed message, and that of the block in it. *reports* are those of the stages.
    """

    session_id: str
    history: list[Message]
    request: Request
    state: State
    memory: Memory
    stages: Mapping[int, Stage] | None = None
    decisions: SharedDecisions | None = None
    is_plan: bool = False

    tracer: Tracer | None = None
    is_thorough: bool = False
    """Whether every message of the history is compared with what is remembered of it."""
    step: Step = field(init=False)
    turn: int = 0
    """Number of the turn in its session: 1 for the first, 0 until `align` sets it."""
    repeated_stages: Mapping[int, Stage] = field(default_factory=dict)
    messages: list[Message] = field(init=False)
    problems: tuple[Problem, ...] = ()
    changes: list[tuple[int, int]] = field(default_factory=list)
    reports: list[StageReport] = field(default_factory=list)
    result: Result = field(init=False)

    async def call(self, work: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Call *work* and return its result, in a worker thread if the turn has much to read."""
        if self.step.exceeds_inline_limit:
            return await in_thread(work, *arguments)
        return work(*arguments)

    def edit(self, messages: list[Message], *, first: int = 0, paired: bool = True) -> None:
        """Make *messages* the context, and drop what the totals say from the first change on.

        The caller knows that the first *first* messages stay. *paired* is that of
        `ctxpipe.messages.diff.diff`, which compares both contexts.
        """
        if messages is self.messages:
            return
        edits = self.step.edit(self.messages, messages, equal_count=first, paired=paired)
        first_changed = len(self.messages)
        if edits:
            first_changed = edits[-1].start  # the edits are in the order last to first
        self.state.rewind(first_changed)
        self.messages = messages

    def end_part(self) -> None:
        """Note the first place that this part of the turn has changed; the next part begins."""
        touched = self.step.touched
        if touched.first is not None:
            self.changes.append(touched.first)
        touched.first = None

    async def count(self, messages: Sequence[Message]) -> int:
        """Return the raw tokens of the context *messages*, with system prompt and tools.

        Only new messages are counted. If the counter fails, the result is 0, unless errors are to
        be raised.
        """
        ledger = self.state.ledger
        try:
            tokens = await ledger.total(messages, unchanged_count=ledger.unchanged_count)
        except Exception as error:
            if self.state.settings.on_error == "raise":
                raise
            name = self.session_id[:40]
            reason = safe_text(error)
            logger.warning("the context of session %r cannot be counted: %s", name, reason)
            logger.debug("the counter failed with", exc_info=error)
            return 0
        return tokens + self.state.overhead.tokens


async def run_turn(run: TurnRun) -> Result:
    """Run one turn, and return the context to send with the reports on how it was made.

    The turn begins again, with `align`, if a message that it has rewritten was edited in place
    meanwhile, and if another process has written to the journal first. `commit` writes no plan.
    """
    with _span(run):
        while True:
            await align(run)
            await repair_context(run)
            await ask_stages(run)
            await finish(run)
            if await commit(run):
                _note_compaction(run)
                return run.result
            await run.memory.catch_up(run.history)


def _note_compaction(run: TurnRun) -> None:
    """Record in the state that a stage has taken something out of the context, now or earlier."""
    if any(report.outcome is Outcome.CHANGED for report in run.reports):
        run.state.is_compacted = True
        return
    if run.state.is_compacted is None:  # unknown: the conversation comes from a journal
        run.state.is_compacted = not run.memory.timeline.is_untouched


def _is_compacted(run: TurnRun) -> bool:
    """Return True if the context is a shortened view of the conversation.

    It is not if the caller has gone back to before the first change, so that the context is the
    history again.
    """
    if not run.state.is_compacted:
        return False
    messages = run.result.messages
    if run.memory.timeline.adopts:  # the caller keeps the context as its history
        return True
    if len(messages) != len(run.history):
        return True
    return any(sent is not original for sent, original in zip(messages, run.history, strict=True))


@contextmanager
def _span(run: TurnRun) -> Iterator[None]:
    """Record the turn as a span of OpenTelemetry, if its SDK is in use and this is no plan."""
    run.tracer = None if run.is_plan else find_tracer()
    if run.tracer is None:
        yield
        return
    with span_of(run.tracer, "run", run.session_id) as span:
        yield
        set_token_attributes(span, run.result)
        span.set_attribute("ctxpipe.messages", len(run.result.messages))
        span.set_attribute("ctxpipe.repaired", len(run.result.repaired))
        if _is_compacted(run):  # by the convention the attribute is never false
            span.set_attribute("gen_ai.conversation.compacted", True)
