"""The turns of a session: a history becomes the context to send."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import SessionDeleted, SettingsError, StorageError
from ..journal.memory import UNKNOWN
from ..messages import Message, ensure_messages
from ..providers.refusals import Refusal, read_refusal
from ..stages.compact.stage import Compact
from ..stages.media.stage import MediaOffload
from ..stages.reports import Outcome, Result
from ..tokens.spent import TokensByKind
from ..turn.run import run_turn
from ..turn.state import Request, TurnRun
from .gate import mark_stage_requests

if TYPE_CHECKING:
    from ..stages.protocol import Stage
    from ..summarizers import AgentModel
    from .access import Access
    from .memory import SessionMemory
    from .owned_history import OwnedHistory
    from .usage import SessionUsage

NO_COMPACT = "there is nothing to compact with: the pipeline has no Compact stage"


class Turns:
    """Runs the turns of a session, one after another, and remembers their contexts in *memory*.

    *count* is the number of contexts that `run` has returned.
    """

    def __init__(
        self,
        memory: SessionMemory,
        access: Access,
        usage: SessionUsage,
        owned_history: OwnedHistory,
    ) -> None:
        self.count: int = 0
        self._memory = memory
        self._access = access
        self._usage = usage
        self._owned_history = owned_history
        self._agent_model: AgentModel | None = None  # of the newest request that has one

    # A turn ---------------------------------------------------------------------------------------

    async def run(
        self,
        history: list[Message],
        request: Request,
        *,
        appended_count: int = 0,
        must_continue: bool = False,
    ) -> Result:
        """Run one turn, as `Session.run` explains, after the compaction that was requested.

        *history* contains the first *appended_count* of the appended messages. With *must_continue*
        raises Outdated if it lacks messages that other processes have written.
        """
        memory = self._memory
        async with self._access.turn():
            memory.journal.taken = appended_count
            memory.journal.must_continue = must_continue
            try:
                self._agent_model = request.agent_model or self._agent_model
                request = self._complete(request)
                focus = memory.next_focus
                if focus is None:
                    result = await self._shape(history, request)
                else:
                    compaction = await self._compact_first(history, request, focus)
                    result = _join(compaction, await self._shape(history, request))
                self.count += 1
                memory.last_result = _without_copies(result, memory)
                self._usage.note_turn(result, request.options)
                return result
            finally:
                memory.journal.taken = 0
                memory.journal.must_continue = False

    def _complete(self, request: Request) -> Request:
        """Return *request* with the agent's model, and with the state of the prompt cache."""
        return replace(
            request,
            cache_expired=self._usage.is_cache_expired,
            agent_model=self._agent_model,
        )

    def forget_agent_model(self, agent_model: AgentModel | None) -> None:
        """Forget *agent_model*, which came with a request, and the credentials in it."""
        if self._agent_model is agent_model:
            self._agent_model = None

    async def _shape(
        self,
        history: list[Message],
        request: Request,
        stages: Mapping[int, Stage] | None = None,
    ) -> Result:
        """Shape *history* and return its context. Only *stages*, by place, run; None means all.

        If the conversation was deleted before this, the caller's *history* begins a new one. Raises
        SessionDeleted if it is deleted meanwhile, or if the session keeps the history.
        """
        memory = self._memory
        async with self._access.lease():
            while True:
                is_begun = False
                try:
                    with memory.journal.generation.running():
                        await self._access.ensure_not_deleted(is_later_turn=self.count > 0)
                        await memory.journal.catch_up(history)
                        if memory.is_owner and not memory.journal.is_read:
                            raise StorageError(errno.EAGAIN, UNKNOWN)
                        is_begun = True
                        run = self._new_run(history, request, stages)
                        with mark_stage_requests():
                            result = await run_turn(run)
                        return await self._finish(run, result)
                except SessionDeleted:
                    is_own = memory.is_owner or history is memory.timeline.history
                    memory.forget_deleted()
                    if is_begun or is_own:
                        raise
                except (LookupError, TypeError, AttributeError):
                    ensure_messages(history)  # the caller may have emptied a message meanwhile
                    raise

    def _new_run(
        self, history: list[Message], request: Request, stages: Mapping[int, Stage] | None
    ) -> TurnRun:
        """Return the turn that takes the timeline to *history*."""
        memory = self._memory
        return TurnRun(
            memory.session_id,
            history,
            request,
            memory.state,
            memory.journal,
            stages,
            memory.decisions,
        )

    async def _finish(self, run: TurnRun, result: Result) -> Result:
        """Remember the turn; return *result* with its notices."""
        memory = self._memory
        journal = memory.journal
        step = run.step
        if step.edits and not step.touched.is_stored:
            # A storage that has written looked for a deletion; here none has.
            await self._access.ensure_not_deleted()
        if memory.decisions is not None and step.edits:
            await memory.decisions.note(step, memory.session_id, memory.pipeline.stages)
        first_changed = result.first_changed_index
        if journal.unreported is not None:
            end = len(result.messages)
            first_changed = min(
                journal.unreported, end if first_changed is None else first_changed, end
            )
        await self._usage.note_context(step, run.request, result, first_changed)
        self._owned_history.apply(step)
        memory.state.end_turn(len(journal.timeline.context))
        notices = journal.notices.take()
        if not notices and first_changed == result.first_changed_index:
            return result
        return replace(result, notices=notices, first_changed_index=first_changed)

    # Compaction on request ------------------------------------------------------------------------

    async def compact(self, history: list[Message] | None = None, *, focus: str = "") -> Result:
        """Compact the conversation now, as `Session.compact` explains."""
        stages = self._compact_stages(focus)
        if history is None and not self._memory.history:
            raise SettingsError(
                "there is nothing to compact yet: run the session first, or give the history"
            )
        async with self._access.alone():
            overhead = self._memory.state.overhead
            request = self._complete(Request(overhead.system, overhead.tools, force=True))
            if history is None:
                history = self._memory.timeline.history
            return await self._shape(history, request, stages)

    def compact_next(self, focus: str = "") -> None:
        """Compact the conversation at the beginning of the next turn; see `Session`."""
        self._access.ensure_open()
        self._compact_stages(focus)  # raises an error without one
        self._memory.next_focus = focus

    @property
    def is_compaction_due(self) -> bool:
        """True if the next turn begins with a compaction."""
        return self._memory.next_focus is not None

    @property
    def can_compact(self) -> bool:
        """True if the pipeline has a `Compact` stage."""
        return any(isinstance(stage, Compact) for stage in self._memory.pipeline.stages)

    def _compact_stages(self, focus: str) -> dict[int, Stage]:
        """Return the `Compact` stages by place, with *focus*. Raises SettingsError without any."""
        stages: dict[int, Stage] = {}
        for place, stage in enumerate(self._memory.pipeline.stages):
            if isinstance(stage, Compact):
                stages[place] = stage.with_focus(focus) if focus else stage
        if not stages:
            raise SettingsError(NO_COMPACT)
        return stages

    async def _compact_first(self, history: list[Message], request: Request, focus: str) -> Result:
        """Run the compaction that was requested with *focus*; a notice says if it had no effect."""
        stages = self._compact_stages(focus)
        result = await self._shape(history, replace(request, force=True), stages)
        # A turn that is cancelled before this leaves the compaction to the next one.
        self._memory.next_focus = None
        if not result.changed:
            reasons = "; ".join(report.reason for report in result.reports if report.reason)
            self._memory.journal.notices.add(
                f"the compaction that was asked for changed nothing: {reasons}"
            )
        return result

    # After a refusal ------------------------------------------------------------------------------

    async def recover(
        self, refusal: Refusal | str, history: list[Message], sent: Result, request: Request
    ) -> Result | None:
        """Return a shorter context than *sent* after its *refusal*, or None; see `Session.recover`.

        *request* is the request that was refused.
        """
        if isinstance(refusal, str):
            refusal = read_refusal(None, refusal) or Refusal("an unknown provider")
        self._usage.note_failure(sent)
        request = replace(request, force=True)
        if refusal.is_media:
            lighter = await self._without_media(history, request)
            if lighter is not None:
                return lighter
        if not self._usage.learn_refusal(refusal, sent, request.options):
            return None
        shorter = await self.run(history, request)
        # Only the messages are compared: some callers pass the system prompt and the tools once.
        counter = self._memory.pipeline.counter
        tokens_before = await counter.count(sent.messages)
        tokens_after = await counter.count(shorter.messages)
        return shorter if tokens_after < tokens_before else None

    async def _without_media(self, history: list[Message], request: Request) -> Result | None:
        """Return the context with images and documents moved to files; None if none can be moved.

        No other stage runs, because the number of tokens is not the reason of the refusal.
        """
        stages = {
            place: stage
            for place, stage in enumerate(self._memory.pipeline.stages)
            if isinstance(stage, MediaOffload)
        }
        if not stages:
            return None
        async with self._access.alone():
            if request.agent_model is None:
                request = replace(request, agent_model=self._agent_model)
            lighter = await self._shape(history, request, stages)
        has_changed = any(report.outcome is Outcome.CHANGED for report in lighter.reports)
        return lighter if has_changed else None


def _join(first: Result, second: Result) -> Result:
    """Return the result of two runs over the same history, one after the other."""
    first_changed = second.first_changed_index
    changed_end = second.changed_end
    if first_changed is None:
        first_changed = first.first_changed_index
        changed_end = first.changed_end
    elif first.first_changed_index is not None:
        first_changed = min(first_changed, first.first_changed_index)
        changed_end = len(second.messages)
    return replace(
        second,
        reports=(*first.reports, *second.reports),
        repaired=(*first.repaired, *second.repaired),
        notices=(*first.notices, *second.notices),
        first_changed_index=first_changed,
        changed_end=changed_end,
        tokens_before=first.tokens_before,
    )


def _without_copies(result: Result, memory: SessionMemory) -> Result:
    """Return *result* with the messages that *memory* has, instead of equal ones of the caller.

    A service that reads the history again for each turn would hold it twice otherwise.
    """
    sent = memory.sent
    if not sent or len(sent) != len(result.messages) or sent[0] is result.messages[0]:
        return result
    messages = list(sent)
    overhead = memory.state.overhead
    count_by_kind = TokensByKind(memory.pipeline.counter, messages, overhead.system, overhead.tools)
    return replace(result, messages=messages, count_by_kind=count_by_kind)
