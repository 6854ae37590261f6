"""Run the steps of one turn in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._logs import find_tracer, set_token_attributes, span_of
from ..stages.reports import Outcome
from .align import align
from .commit import commit
from .finish import finish
from .repair import repair_context
from .stages import ask_stages

if TYPE_CHECKING:
    from ..stages.reports import Result
    from .state import TurnRun


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
