"""One conversation, without any SDK: its turns, its history, and what bills and refusals teach.

`Session` is what a user has of it; adapters, the gateway and tools use it as it is.
"""

from __future__ import annotations

import asyncio
import errno
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..diagnostics import Diagnostics
from ..diagnostics.observers import Observer, ShapedContext, create_observers
from ..errors import (
    CtxpipeError,
    SessionDeleted,
    SettingsError,
    StorageError,
    safe_text,
    storage_errors,
)
from ..journal.memory import DELETED, UNKNOWN, Memory
from ..messages import Message, check, ensure_messages, ensure_sendable_values, field, with_content
from ..messages.identity import says_the_same
from ..providers.prices import HOUR
from ..providers.refusals import FAR_BELOW, Refusal, read_refusal
from ..settings import FLAG, FUNCTION, NUMBER, POSITIVE, SESSION_ID
from ..stages.compact.background import PendingSummary
from ..stages.compact.stage import Compact
from ..stages.media.stage import MediaOffload
from ..stages.reports import Outcome, Result
from ..storage.generations import GONE
from ..storage.protocol import JOURNAL_STORAGE, TextReader, texts_of
from ..storage.sealed import KEYS, as_keys
from ..storage.waiting import store_allowance
from ..tokens import conservative
from ..tokens.billed import cached_tokens, check_usage, has_usage
from ..turn import walk
from ..turn.align import align
from ..turn.commit import commit
from ..turn.state import PipelineSettings, Request, learn_window, model_of
from .breakpoints import with_breakpoints, with_free_breakpoints, with_hour_marks
from .gate import Exchanges, SessionGate, as_stages
from .open_calls import add_appended
from .shared_decisions import SharedDecisions

if TYPE_CHECKING:
    from ..journal.timeline import Step, Timeline
    from ..stages.protocol import Stage
    from ..storage import JournalStorage
    from ..summarizers import AgentModel

CACHE_SECONDS = 300.0  # how long the provider keeps a prompt that nobody reads
NO_COMPACT = "there is nothing to compact with: the pipeline has no Compact stage"
NOTABLE_CHANGE = 0.1  # of the trigger: after that another attempt to shorten may help


class Conversation:
    """What must be remembered about one conversation; a `Session` says what for.

    *turns* is how many contexts `run` has returned. *on_change* is called with the id and the
    conversation, in any thread, when it has grown.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        session_id: str,
        *,
        journal: JournalStorage | None = None,
        verify: bool = False,
        cache_seconds: float = CACHE_SECONDS,
        clock: Callable[[], float] = time.time,
        history: bool = True,
        signing_key: bytes | Sequence[bytes] | None = None,
        lease_seconds: float | None = None,
        store_seconds: float | None = None,
    ) -> None:
        SESSION_ID.check("session_id", session_id)
        JOURNAL_STORAGE.optional.check("journal", journal)
        FLAG.check("verify", verify)
        NUMBER.check("cache_seconds", cache_seconds)
        FUNCTION.check("clock", clock)
        FLAG.check("history", history)
        KEYS.optional.check("signing_key", signing_key)
        NUMBER.optional.check("lease_seconds", lease_seconds)
        POSITIVE.optional.check("store_seconds", store_seconds)
        self.session_id = session_id
        self.turns: int = 0
        self.on_change: Callable[[str, Conversation], object] | None = None
        self._settings = settings
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._store_seconds = store_seconds
        keys = as_keys(signing_key)
        self._new_memory = partial(
            Memory, session_id, journal=journal, keys=keys, texts=history, verify=verify
        )
        self._gate = SessionGate(session_id)  # for one turn
        self._exchanges = Exchanges(session_id)
        self._agent_model: AgentModel | None = None  # lent by the newest request that lends one
        self._decisions: SharedDecisions | None = None
        self._reply: object = object()  # the content of the newest that was added by itself
        self._reply_message: Message | None = None  # that reply, as it is kept
        self._bodies = 0  # of `async with` that have not ended
        self._flushing: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        """Know nothing of the conversation yet."""
        self._state = self._settings.new_state()
        self._memory = self._new_memory(self._state)
        self.observers: list[Observer] = create_observers(
            self.session_id,
            self._settings.stages,
            self._settings.counter,
            self._settings.prices,
            self._clock,
        )
        """What follows the requests; none is needed for a turn."""
        self._cached_at: float | None = None
        self._recovered_at: int | None = None  # tokens of the context that was refused last
        self._next_focus: str | None = None  # of the compaction that is due
        self._is_owner = False  # of the history
        self._rewritten = (-1, 0, 0)  # how much history the turn covered; where it changed
        # Of the newest turn: the raw tokens of its context, and the options of its request.
        self._tokens = 0
        self._options: Mapping[str, object] = {}

    def _begin_anew(self) -> None:
        """Drop what is known of a conversation that was deleted."""
        self.cancel_summaries()
        if self._decisions is not None:
            self._decisions.forget(self.session_id)
        self._begin()
        self._memory.notify(DELETED)
        self._note_change()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change(self.session_id, self)

    def fork(self) -> Conversation:
        """Another conversation under the same id and into the same files that begins with what this
        one knows, for a history that goes on in two ways. It keeps no journal.
        """
        fork = Conversation(
            self._settings,
            self.session_id,
            verify=self._memory.timeline.verify,
            cache_seconds=self._cache_seconds,
            clock=self._clock,
            store_seconds=self._store_seconds,
        )
        fork._decisions = self._decisions
        fork._memory.timeline.apply(self._memory.timeline.snapshot())
        fork._memory.timeline.has_changing_end = self._memory.timeline.has_changing_end
        fork._memory.timeline.placeholders.update(self._memory.timeline.placeholders)
        fork._state.ledger.load(self._state.ledger.samples)
        fork._state.windows |= self._state.windows
        return fork

    def share(self, decisions: SharedDecisions) -> None:
        """Share *decisions* to move texts to files with other conversations of the same name."""
        self._decisions = decisions

    # What is known --------------------------------------------------------------------------------

    @property
    def journal(self) -> JournalStorage | None:
        """Where the conversation is written down, None when it is not."""
        return self._memory.storage

    @property
    def storages(self) -> list[object]:
        """All that something of it is written to: the journal, or None, comes first."""
        used: list[object] = []
        for stage in self._settings.stages:
            used += (getattr(stage, "storage", None), getattr(stage, "archive", None))
        if self.journal is not None:
            used.append(texts_of(self.journal))
        distinct = {id(storage): storage for storage in used if storage is not None}
        return [self.journal, *distinct.values()]

    @property
    def text_reader(self) -> TextReader | None:
        """Where the stages and the journal keep their texts, if these can be read from there."""
        return next((one for one in self.storages[1:] if isinstance(one, TextReader)), None)

    @property
    def fill(self) -> float:
        """The estimated tokens of the last context, as a share of the budget's trigger."""
        model = model_of(self._state, self._options)
        tokens = self._state.ledger.estimate(self._tokens)
        return tokens / self._settings.budget_for(self._state, model).trigger

    @property
    def known(self) -> Sequence[Message]:
        """The history as far as it was handed in; read it only."""
        return self._memory.timeline.history

    @property
    def sent(self) -> Sequence[Message]:
        """The context of the last turn; read it only."""
        return self._memory.timeline.sent

    @property
    def appended(self) -> Sequence[Message]:
        """What was appended and is in no turn yet; read it only."""
        return self._memory.appended

    @property
    def diagnostics(self) -> Diagnostics:
        """As `Session.diagnostics`."""
        found: dict[str, Any] = {}
        for observer in self.observers:
            found.update(observer.findings())
        return Diagnostics(**found)

    # Who may work on it ---------------------------------------------------------------------------

    def reopen(self) -> None:
        """Allow the conversation to be used again, as who asks for it anew may."""
        self._gate.is_closed = False

    def enter(self) -> None:
        """Begin an ``async with``."""
        self.reopen()
        self._bodies += 1

    async def leave(self) -> None:
        """End an ``async with``: write what was appended; after the last, it is closed, and nothing
        runs in the background.

        Every turn is in the journal already.
        """
        try:
            if self._can_flush:
                await self.flush()
        finally:
            self._bodies -= 1
            self._gate.is_closed = self._bodies == 0
            if self._gate.is_closed:
                for pending in self.cancel_summaries():
                    await pending.wait()

    def cancel_summaries(self) -> list[PendingSummary]:
        """Cancel the summaries in the background, from any thread, and return them."""
        memories = self._state.memories.values()
        found = [memory.pop(PendingSummary) for memory in memories if PendingSummary in memory]
        for pending in found:
            pending.cancel()
        return found

    @property
    def is_running(self) -> bool:
        """Whether a turn is under way, an exchange of the history that it owns, or a flush."""
        is_flushing = self._flushing is not None and not self._flushing.done()
        return is_flushing or self._gate.is_busy or self._exchanges.is_busy

    @asynccontextmanager
    async def _alone(self, *, insists: bool = False) -> AsyncIterator[None]:
        """The conversation for one piece of work, which *insists* if it needs what stores hold.

        A turn does without, since it takes ten times as long.
        """
        with self.store_allowance(insists=insists):
            entered = await self._gate.enter()
            try:
                with self._memory.generation.running():
                    await self._ensure_not_deleted()
                    yield
            except SessionDeleted:
                self._begin_anew()
                raise
            finally:
                entered.leave()

    def store_allowance(self, *, insists: bool = False) -> AbstractContextManager[None]:
        """What one turn may wait for its stores; see `ctxpipe.storage.waiting`."""
        return store_allowance(self._store_seconds, insists=insists)

    async def _ensure_not_deleted(self, *, begins_turn: bool = False) -> None:
        """Ask the storages of which a journal does not say it. Raises SessionDeleted.

        Without a journal, and as long as nothing has left the context, all of it is the caller's,
        and nothing can come back: after the first turn, whose answer is what a later deletion is
        noticed by, no other turn asks when it begins.
        """
        timeline = self._memory.timeline
        is_known = self._memory.is_read
        if self.journal is None:
            is_own = timeline.is_untouched and not (self._is_owner or timeline.placeholders)
            is_known = is_own and begins_turn and self.turns > 0
        if is_known:
            return
        for storage in self.storages:
            ensure = getattr(storage, "ensure_not_deleted", None)
            if ensure is not None and storage is not self.journal:
                with suppress(StorageError), storage_errors():  # whoever uses it finds out
                    await ensure(self.session_id)

    # The turn -------------------------------------------------------------------------------------

    async def run(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
        agent_model: AgentModel | None = None,
        taken: int = 0,
    ) -> Result:
        """As `Session.run`; the first *taken* of the appended messages are in *history*."""
        with self.store_allowance():
            entered = await self._gate.enter()
            try:
                self._memory.taken = taken
                self._agent_model = agent_model or self._agent_model
                expired = self._is_cache_expired()
                asked = Request(system, tools, request or {}, force, expired, self._agent_model)
                result = await self._shape(history, asked)
                self.turns += 1
                self._tokens = result.tokens_after
                self._options = asked.options
                return result
            finally:
                self._memory.taken = 0
                entered.leave()

    def stop_lending(self, agent_model: AgentModel | None) -> None:
        """Forget *agent_model*, which a request has lent, and the credentials in it."""
        if self._agent_model is agent_model:
            self._agent_model = None

    async def _shape(self, history: list[Message], asked: Request) -> Result:
        """The turn, after the compaction that is due, if one is."""
        if self._next_focus is None:
            return await self._run(history, asked)
        stages = self._compact_stages(self._next_focus)
        compacted = await self._run(history, replace(asked, force=True), stages)
        self._next_focus = None
        if not compacted.changed:
            why = "; ".join(report.reason for report in compacted.reports if report.reason)
            self._memory.notify(f"the compaction that was asked for changed nothing: {why}")
        return _join(compacted, await self._run(history, asked))

    async def _run(
        self, history: list[Message], asked: Request, stages: Mapping[int, Stage] | None = None
    ) -> Result:
        """The turn, for this process alone where the session is leased."""
        ensure_messages(history, sys.maxsize)  # only that it is a list
        try:
            if self._lease_seconds is None:
                return await self._run_held(history, asked, stages)
            async with self._memory.lease(self._lease_seconds):
                return await self._run_held(history, asked, stages)
        except (LookupError, TypeError, AttributeError):
            ensure_messages(history)  # the caller may have emptied a message meanwhile
            raise

    async def _run_held(
        self, history: list[Message], asked: Request, stages: Mapping[int, Stage] | None
    ) -> Result:
        """The turn, begun anew when the history was edited or others were faster meanwhile."""
        has_begun = False
        try:
            with self._memory.generation.running():
                await self._ensure_not_deleted(begins_turn=True)
                await self._memory.catch_up(history)
                if self._is_owner and not self._memory.is_read:
                    raise StorageError(errno.EAGAIN, UNKNOWN)
                has_begun = True
                return await self._run_stages(history, asked, stages)
        except SessionDeleted:
            is_own = self._is_owner or history is self._memory.timeline.history
            self._begin_anew()
            if has_begun or is_own:
                raise
        # What a caller hands in after a deletion is his to begin anew with.
        return await self._run_held(history, asked, stages)

    async def _run_stages(
        self, history: list[Message], asked: Request, stages: Mapping[int, Stage] | None
    ) -> Result:
        memory = self._memory
        thorough = False
        while True:
            step = await align(memory, history, thorough=thorough)
            again = await self._stages_again(step)
            result = await as_stages(
                walk.run(step, self.session_id, self._state, asked, stages, again)
            )
            if step.edits and not thorough and memory.timeline.is_edited(step):
                thorough = True  # a rewritten message is no longer the one the caller has
            elif await commit(memory, step):
                # Else a deletion came after the turn: a storage that writes has looked for one.
                if step.edits and not step.touched.is_stored:
                    await self._ensure_not_deleted()
                if self._decisions is not None and step.edits:
                    await self._decisions.note(step, self.session_id, self._settings.stages)
                return await self._finish(step, asked, result)
            await memory.catch_up(history)

    async def _stages_again(self, step: Step) -> Mapping[int, Stage] | None:
        """The stages that move what *step* brings and other conversations have moved before."""
        if self._decisions is None:
            return None
        is_first_sight = step.kept == 0 or step.agreement.has_diverged or self._memory.is_behind
        return await self._decisions.stages_for(
            step, self._settings.stages, is_first_sight=is_first_sight
        )

    async def _finish(self, step: Step, asked: Request, result: Result) -> Result:
        """Remember *step*; the *result* for the caller."""
        memory = self._memory
        first = result.first_changed_index
        if memory.unreported is not None:
            end = len(result.messages)
            first = min(memory.unreported, end if first is None else first, end)
        context = _context_for_observers(memory.timeline, step, asked, result, first)
        for observer in self.observers:
            for sentence in await observer.shaped(context):
                memory.notify(sentence)
        self._apply(step)
        self._state.agreed = len(memory.timeline.context)
        self._state.end_turn()
        notices, memory.notices = tuple(memory.notices), []
        if not notices and first == result.first_changed_index:
            return result
        return replace(result, notices=notices, first_changed_index=first)

    def _apply(self, step: Step) -> None:
        self._memory.apply(step)
        self._memory.flush_when_back(self)
        self._note_change()

    def mark(
        self, context: Result, body: Mapping[str, Any], breakpoints: int | None
    ) -> dict[str, Any]:
        """The request *body*, which sends *context*, with cache breakpoints placed.

        These are at most *breakpoints* more, or with None those that cost nothing. Where the cache
        keeps for an hour, all marks of the request are for an hour.

        A turn that is run a second time, since its request had to be sent again, changes nothing
        any more: what it has rewritten is what the first run did.
        """
        start = context.first_changed_index
        end = context.changed_end
        if start is not None and end is not None:
            self._rewritten = (context.covered, start, end)
        covered, start, end = self._rewritten
        rewritten = (start, end) if covered == context.covered else None
        if breakpoints is None:
            marked = with_free_breakpoints(body, rewritten)
        else:
            marked = with_breakpoints(body, breakpoints, rewritten)
        return with_hour_marks(marked) if self._cache_seconds >= HOUR else marked

    # Compaction -----------------------------------------------------------------------------------

    async def compact(self, history: list[Message] | None = None, *, focus: str = "") -> Result:
        """As `Session.compact`."""
        stages = self._compact_stages(focus)
        if history is None and not self.known:
            raise SettingsError(
                "there is nothing to compact yet: run the session first, or give the history"
            )
        async with self._alone():
            last = self._state.overhead
            asked = Request(
                last.system,
                last.tools,
                force=True,
                cache_expired=self._is_cache_expired(),
                agent_model=self._agent_model,
            )
            if history is None:
                history = self._memory.timeline.history
            return await self._run(history, asked, stages)

    def compact_next(self, focus: str = "") -> None:
        """As `Session.compact_next`."""
        self._gate.ensure_open()
        self._compact_stages(focus)  # raises without any
        self._next_focus = focus

    def _compact_stages(self, focus: str) -> dict[int, Stage]:
        """The `Compact` stages by their places, with *focus*. Raises SettingsError without any."""
        stages: dict[int, Stage] = {}
        for place, stage in enumerate(self._settings.stages):
            if isinstance(stage, Compact):
                stages[place] = stage.with_focus(focus) if focus else stage
        if not stages:
            raise SettingsError(NO_COMPACT)
        return stages

    @property
    def can_compact(self) -> bool:
        """Whether the pipeline has a `Compact` stage."""
        return any(isinstance(stage, Compact) for stage in self._settings.stages)

    @property
    def is_compaction_due(self) -> bool:
        """Whether the next turn begins with a compaction."""
        return self._next_focus is not None

    # The history ----------------------------------------------------------------------------------

    async def history(self, *, branch: str | None = None) -> list[Message]:
        """As `Session.history`."""
        with suppress(SessionDeleted):
            async with self._alone(insists=True):
                return await self._memory.history(branch)
        async with self._alone(insists=True):  # what there is since the deletion
            return await self._memory.history(branch)

    async def branches(self) -> list[str]:
        """As `Session.branches`."""
        with self.store_allowance(insists=True):
            return await self._memory.branches()

    def append(self, messages: Sequence[Message]) -> None:
        """As `Session.append`."""
        self._gate.ensure_open()
        ensure_messages(list(messages))
        ensure_sendable_values(check(messages))
        self._is_owner = True
        new = [message for message in messages if message["content"] is not self._reply]
        self._memory.appended.extend(map(_own, new))
        self._note_change()

    @asynccontextmanager
    async def exchange(self, claim: Message | None = None) -> AsyncIterator[bool]:
        """The history that the session owns, from what was appended until the reply.

        *claim* is the message that its request answers: those before leave it to this one. The
        value is whether it has waited for another. Raises SettingsError where it would wait for
        itself.
        """
        generation = self._memory.generation
        async with self._exchanges.enter(claim) as has_waited:
            if generation is not self._memory.generation:
                raise SessionDeleted(GONE)  # while this waited, with what was appended for it
            yield has_waited

    def inside_exchange(self) -> AbstractContextManager[None]:
        """For a body in another thread: it is inside the exchange that is under way, if one is."""
        return self._exchanges.inside()

    async def own_history(self) -> tuple[list[Message], int]:
        """The history that the session owns, with what other processes have added.

        And how many of the appended messages are in it.
        """
        self._is_owner = True
        return await self._newest_history(insists=not self._memory.is_read)

    async def _newest_history(self, *, insists: bool = False) -> tuple[list[Message], int]:
        async with self._alone(insists=insists):
            history = await self._memory.newest_history()
            appended = self._exchanges.before_claims(self.appended)
            return add_appended(history, appended), len(appended)

    def is_answered(self, last: Message) -> bool:
        """Return True if nothing is left to ask once *last* ends the history that it owns.

        A reply that is not written yet counts as any other: the request that has waited for it may
        have been cancelled. What the caller has appended for the assistant begins an answer.
        """
        if last["role"] != "assistant":
            return False
        is_begun = any(message is last for message in self.appended)
        return last is self._reply_message or not is_begun

    async def add_reply(self, content: object) -> None:
        """Add a reply of *content* to the history that the session owns, and write it down."""
        if not content:
            return
        message = cast("Message", {"role": "assistant", "content": content})
        self._reply = content
        appended = self._memory.appended
        for index in reversed(range(len(appended))):  # by hand, while it was streamed
            own = appended[index]
            if own["role"] == "assistant" and says_the_same(own, message):
                del appended[index]
        # Whatever was appended since the request comes after it. It is there before anything is
        # awaited: a reply is paid for, and this may be cancelled.
        self._reply_message = _own(message)
        appended.insert(0, self._reply_message)
        async with self._alone():
            await self._write_appended(1)

    async def _write_appended(self, count: int) -> None:
        """Add the first *count* appended messages to what is known, and to the journal."""
        await self._write(add_appended(self.known, self.appended[:count]), count)

    async def _write(self, history: list[Message], count: int) -> None:
        """Add *history* to the timeline and the journal, without a turn.

        The first *count* appended messages are in it. They stay appended where others have written
        to the journal first.
        """
        memory = self._memory
        step = memory.timeline.begin(history)
        try:
            memory.taken = count
            if await memory.write(step):
                self._apply(step)
                self._state.agreed = min(self._state.agreed, step.same)
        finally:
            memory.taken = 0

    # What is not written yet ----------------------------------------------------------------------

    async def flush(self) -> None:
        """Write to the journal what was appended, and what could not be written before.

        Waits for the exchange that is under way. A journal that cannot be written becomes a notice
        of the next result. Raises StorageError when it cannot be read.
        """
        async with self.exchange():
            with self.store_allowance():
                history, taken = await self._newest_history()
                async with self._alone():
                    self._memory.taken = taken
                    await self._memory.catch_up(history)
                    taken = self._memory.taken
                    # What could not be written may be missing in what was taken over, and others
                    # may have written more meanwhile.
                    if len(self.known) >= len(history):
                        history = add_appended(self.known, self.appended[:taken])
                    await self._write(history, taken)

    @property
    def _can_flush(self) -> bool:
        is_needed = bool(self.appended or self._memory.unwritten)
        return is_needed and self.journal is not None

    def flush_soon(self) -> None:
        """Begin to `flush` on the running event loop, if that is needed and possible."""
        if self._can_flush and not self.is_running and self._gate.is_free_here():
            self._flushing = asyncio.get_running_loop().create_task(self._flush_in_background())

    async def _flush_in_background(self) -> None:
        try:
            await self.flush()
        except CtxpipeError as error:
            self._memory.notify(f"what was appended cannot be written: {safe_text(error)}")

    async def flush_missing(self) -> None:
        """Write what could not be written before, unless a turn is about to do that."""
        self.flush_soon()
        if self._flushing is not None:
            await asyncio.wait({self._flushing})

    @property
    def has_unsaved(self) -> bool:
        """Whether the conversation holds what is nowhere else.

        That is what was appended, what the journal could not take, a compaction that is due, and
        without a journal the history that the session owns.
        """
        if self.appended or self._memory.unwritten or self.is_compaction_due:
            return True
        return self.journal is None and self._is_owner

    @property
    def is_stuck(self) -> bool:
        """Whether it holds what cannot be written, and is not in use."""
        can_be_written = self.appended and self.journal and not self._memory.unwritten
        return self.has_unsaved and not (self.is_running or can_be_written)

    def give_up(self) -> None:
        """Say what is lost when it is let go now."""
        self._memory.notify("let go, since memory is short, with what is in no journal")

    # Bills and refusals ---------------------------------------------------------------------------

    def announce(self, context: Result, body: Mapping[str, object]) -> None:
        """Tell what the request with *context* really says, just before it is sent.

        For who places cache marks after `run`: what the cache diagnostics know of a request is
        otherwise what `run` was given. *body* holds the arguments of ``messages.create``.
        """
        for observer in self.observers:
            observer.sent(context.messages, body)

    def forget(self, context: Result) -> None:
        """Tell that the request with *context* has failed."""
        for observer in self.observers:
            observer.refused(context.messages)

    def learn(self, reply: object, sent: Result) -> None:
        """Observe *reply*, the answer to *sent*.

        Gateways leave the usage out, or answer with no message at all: that teaches nothing, and
        the reply, which is paid, is the caller's all the same.
        """
        if has_usage(reply):
            self.observe(reply, sent.messages)

    def observe(
        self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None
    ) -> None:
        """As `Session.observe`."""
        check_usage(usage)
        if model is None:
            model = field(usage, "model")
        if not isinstance(model, str):
            model = None
        self._recovered_at = None
        billed = self.sent if sent is None else sent
        overhead = self._state.overhead.tokens
        self._state.ledger.observe(usage, billed, overhead=overhead, model=model)
        self._cached_at = self._clock() if cached_tokens(usage) else None
        for observer in self.observers:
            observer.billed(usage, sent, model)

    def _is_cache_expired(self) -> bool:
        """Whether the provider's prompt cache is known to have lapsed."""
        if self._cached_at is None:
            return False
        return self._clock() - self._cached_at > self._cache_seconds

    async def recover(
        self,
        refusal: Refusal | str,
        history: list[Message],
        sent: Result,
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        request: Mapping[str, object] | None = None,
    ) -> Result | None:
        """As `Session.recover`."""
        if isinstance(refusal, str):
            refusal = read_refusal(None, refusal) or Refusal("an unknown provider")
        self.forget(sent)
        options = request or {}
        if refusal.is_media:
            asked = Request(system, tools, options, force=True, agent_model=self._agent_model)
            lighter = await self._without_media(history, asked)
            if lighter is not None:
                return lighter
        state = self._state
        tokens = state.ledger.estimate(sent.tokens_after)
        model = model_of(state, options)
        if not state.ledger.can_be_about(refusal, sent.tokens_after, model):
            refusal = Refusal(refusal.provider)
        likely = tokens if state.ledger.last_bill(model) else conservative(sent.tokens_after)
        budget = self._settings.budget_for(state, model)
        if notice := learn_window(refusal, state, budget, model, likely):
            self._memory.notify(notice)
        trigger = self._settings.budget_for(state, model).trigger
        if likely < FAR_BELOW * trigger and not (refusal.has_numbers or refusal.has_code):
            return None
        last = self._recovered_at
        if last is not None and abs(tokens - last) < NOTABLE_CHANGE * trigger:
            return None
        self._recovered_at = tokens
        if refusal.tokens is not None:
            state.ledger.observe(
                {"input_tokens": refusal.tokens},
                sent.messages,
                overhead=state.overhead.tokens,
                model=model,
                is_certain=True,
            )
        shorter = await self.run(history, system=system, tools=tools, force=True, request=request)
        # The messages alone: the caller may have named the system prompt and tools only once.
        before = await self._settings.counter.count(sent.messages)
        after = await self._settings.counter.count(shorter.messages)
        return shorter if after < before else None

    async def _without_media(self, history: list[Message], asked: Request) -> Result | None:
        """The context with images and documents in files; None where none can leave.

        No other stage takes part: tokens are not what is too many.
        """
        stages = {
            place: stage
            for place, stage in enumerate(self._settings.stages)
            if isinstance(stage, MediaOffload)
        }
        if not stages:
            return None
        async with self._alone():
            lighter = await self._run(history, asked, stages)
        has_changed = any(report.outcome is Outcome.CHANGED for report in lighter.reports)
        return lighter if has_changed else None


def _own(message: Message) -> Message:
    """*message* as it is kept: a caller may use the same object for his next one."""
    content = message["content"]
    if isinstance(content, list):
        content = list(content)
    return with_content(message, content)


def _join(first: Result, second: Result) -> Result:
    """The outcome of two runs over the same history, one after the other."""
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


def _context_for_observers(
    timeline: Timeline, step: Step, request: Request, result: Result, rewritten_from: int | None
) -> ShapedContext:
    """Return what observers see of a turn before it is applied to *timeline*."""
    return ShapedContext(
        result=result,
        system=request.system,
        tools=request.tools,
        options=request.options,
        earlier=timeline,
        known_count=step.known,
        new_messages=step.messages,
        is_rewound=step.agreement.is_rewound,
        is_bulk=step.agreement.is_bulk is not False,
        stored=step.stored,
        rewritten_from=rewritten_from,
        edited_from=step.kept if step.agreement.has_diverged else None,
    )
