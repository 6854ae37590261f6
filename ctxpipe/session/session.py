"""One conversation: the loop keeps its history, or the session does.

The session keeps the context.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from ..edits.breakpoints import MARKS, with_breakpoints, with_free_breakpoints
from ..edits.thinking import mark_stale
from ..errors import (
    CtxpipeError,
    InvalidHistory,
    SessionDeleted,
    SettingsError,
    StorageError,
    safe_text,
    storage_errors,
)
from ..markers.notes import note_of
from ..messages import ensure_messages, field, is_bulky
from ..messages.identity import says_the_same
from ..refusals import FAR_BELOW, LEAST_SHARE, Refusal, as_refusal, read_refusal
from ..reports import Collapsed, Outcome, Result
from ..runner import Request, Runner, model_of
from ..settings import FLAG, FUNCTION, NUMBER, SESSION_ID, check_client, excerpt
from ..stages.collapse import Collapse
from ..stages.compact import Compact
from ..storage.generations import GONE
from ..storage.protocol import JOURNAL_STORAGE, TextReader, texts_of
from ..storage.waiting import lock_deadline
from ..tokens import conservative
from ..tokens.billed import cached_tokens
from ..tokens.ledger import is_possible
from ..words import count_phrase
from ..workers.threads import in_thread_if
from .cache_watch import CacheWatch
from .client import (
    check_usage,
    has_usage,
    lendable,
    observe_stream,
    request_arguments,
    stages_are_asking,
)
from .gate import Gate, Pass
from .journal import KEYS, as_keys
from .memory import DELETED, Memory
from .open_calls import (
    OPEN_CALLS,
    OpenCalls,
    add_appended,
    close_calls,
    close_own_calls,
)
from .signals import Signals, Watch

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.lib.streaming import AsyncMessageStream, BetaAsyncMessageStream
    from anthropic.types import Message as Reply
    from anthropic.types import RawMessageStreamEvent
    from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent

    from ..cache_doctor import CacheMiss, Tally
    from ..messages import Message
    from ..stage import Stage
    from ..storage import JournalStorage
    from ..timeline import Step
    from .parameters import BetaClient, BetaParameters, MessagesClient, Parameters

__all__ = ["Session"]

T = TypeVar("T")

CACHE_SECONDS = 300.0  # how long the provider keeps a prompt that nobody reads
NO_COMPACT = "there is nothing to compact with: the pipeline has no Compact stage"
NOTABLE_CHANGE = 0.1  # of the trigger: after that another attempt to shorten may help


class Session:
    """What must be remembered about one conversation; made by `ContextPipeline.session`.

    The caller keeps its full history and hands it in each turn; the session remembers which context
    its beginning has become. So a turn costs what is new, the context's beginning stays byte for
    byte the same, and no summary is made twice. Runs of one session wait for each other. A session
    without its memory is still correct.
    """

    def __init__(
        self,
        runner: Runner,
        session_id: str,
        *,
        journal: JournalStorage | None = None,
        verify: bool = False,
        cache_seconds: float = CACHE_SECONDS,
        clock: Callable[[], float] = time.time,
        history: bool = True,
        signing_key: bytes | Sequence[bytes] | None = None,
        lease_seconds: float | None = None,
    ) -> None:
        SESSION_ID.check("session_id", session_id)
        JOURNAL_STORAGE.optional.check("journal", journal)
        FLAG.check("verify", verify)
        NUMBER.check("cache_seconds", cache_seconds)
        FUNCTION.check("clock", clock)
        FLAG.check("history", history)
        KEYS.optional.check("signing_key", signing_key)
        NUMBER.optional.check("lease_seconds", lease_seconds)
        self.session_id = session_id
        self._runner = runner
        self._record = runner.new_record()
        self._verify = verify
        self._new_memory = partial(
            Memory,
            session_id,
            journal=journal,
            keys=as_keys(signing_key),
            texts=history,
            verify=verify,
        )
        self._memory = self._new_memory(self._record)
        self._lease_seconds = lease_seconds
        self._gate = Gate(session_id)  # for one turn
        self._exchanges = Gate(session_id)  # for a request of the owned history, until its reply
        self._exchange: Pass | None = None
        self._has_waited = False  # the exchange that is under way, for another
        self._claims: dict[object, Message | None] = {}  # what those that wait are to answer
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._cached_at: float | None = None
        self._cache = CacheWatch(runner.counter, runner.prices, clock)
        self._client: AsyncAnthropic | None = None  # what a summarizer without a client asks with
        self._recovered_at: int | None = None  # tokens of the context that was refused last
        self._next_focus: str | None = None  # of the compaction that is due
        self._turns = 0
        self._fill = 0.0
        # By `append`, since the last turn. Any thread adds at its end; what is taken from its
        # beginning is taken by the one exchange that is under way.
        self._appended: list[Message] = []
        self._taken = 0  # appended messages that are in the turn under way
        self._doubtful = 0  # that are in the entry that was given to the journal last
        self._reply: object = object()  # the content of the newest that was added by itself
        self._is_owner = False  # of the history
        self._bodies = 0  # of `async with` that have not ended
        self._flushing: asyncio.Task[None] | None = None
        self.on_change: Callable[[str, Session], object] | None = None  # called in any thread
        self._rewritten = (-1, 0, 0)  # how much history the turn covered; where it changed
        self._watch: Watch | None = None
        if any(isinstance(stage, Collapse) for stage in runner.stages):
            self._watch = Watch(session_id)
        self._is_watching = False  # the history before the first turn has been read

    def __repr__(self) -> str:
        known = count_phrase(len(self._memory.timeline.history), "message")
        return f"<Session {excerpt(self.session_id)}: {known} known>"

    async def __aenter__(self) -> Self:
        self.reopen()
        self._bodies += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write down what was appended; after the last such body the session is not used any more.

        Every turn is in the journal already.
        """
        try:
            if self.journal is not None and (self._appended or self._memory.has_unwritten):
                await self.flush()
        finally:
            self._bodies -= 1
            self._gate.is_closed = self._bodies == 0

    def reopen(self) -> None:
        """Allow the session to be used again, as who asks for it anew may."""
        self._gate.is_closed = False

    @property
    def journal(self) -> JournalStorage | None:
        """Where the session writes down what it knows, None when it does not."""
        return self._memory.storage

    def sibling(self) -> Session:
        """Another conversation under the same id and into the same files, which knows nothing of
        this one.

        For the side questions and sub-agents of a loop. It keeps no journal.
        """
        return Session(
            self._runner,
            self.session_id,
            verify=self._verify,
            cache_seconds=self._cache_seconds,
            clock=self._clock,
        )

    @property
    def known(self) -> Sequence[Message]:
        """The history as far as it was handed in; read it only."""
        return self._memory.timeline.history

    @property
    def signals(self) -> Signals:
        """What to watch where old exchanges collapse: what was read back, repeated or imitated.

        Counted since the session was opened, in a pipeline with a `Collapse` stage; a notice and a
        warning say once when a count is too high.
        """
        if self._watch is None:
            return Signals()
        return self._watch.signals

    @property
    def is_running(self) -> bool:
        """Whether a turn is under way, or an exchange of the history that the session owns."""
        return self._gate.is_busy or self._exchanges.is_busy

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """The session for one piece of work.

        A turn does without, since it takes ten times as long.
        """
        with lock_deadline():
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

    # Deletion -------------------------------------------------------------------------------------

    async def _ensure_not_deleted(self) -> None:
        """Ask the storages of which a journal does not say it. Raises SessionDeleted."""
        if self.journal is not None and self._memory.is_read:
            return
        for storage in self.storages:
            ensure = getattr(storage, "ensure_not_deleted", None)
            if ensure is not None and storage is not self.journal:
                with suppress(StorageError), storage_errors():  # whoever uses it finds out
                    await ensure(self.session_id)

    def _begin_anew(self) -> None:
        """Drop what is known of a conversation that was deleted."""
        self._record = self._runner.new_record()
        self._memory = self._new_memory(self._record)
        self._memory.notify(DELETED)
        self._cache = CacheWatch(self._runner.counter, self._runner.prices, self._clock)
        self._cached_at = None
        self._recovered_at = None
        self._next_focus = None
        self._fill = 0.0
        del self._appended[:]
        self._taken = self._doubtful = 0
        self._is_owner = False
        self._rewritten = (-1, 0, 0)
        self._is_watching = False
        if self._watch is not None:
            self._watch = Watch(self.session_id)
        if self.on_change is not None:
            self.on_change(self.session_id, self)

    # The turn -------------------------------------------------------------------------------------

    async def run(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
        client: MessagesClient | BetaClient | None = None,
    ) -> Result:
        """The context for *history*: the remembered one, and what was appended since.

        Messages that are appended while this runs belong to the next turn: ``result.covered`` is
        how many are in this one. ``result.notices`` says when the history was shortened, branched
        or rebuilt; it is never modified. *client*, the one that the context is sent with, is lent
        to a summarizer that has none, now and in later turns. The other arguments are those of
        `ContextPipeline.run`.

        Raises InvalidHistory when *history* is not a valid list of messages, SettingsError for
        other invalid arguments.
        """
        with lock_deadline():
            return await self._turn(
                history,
                system=system,
                tools=tools,
                force=force,
                request=request,
                client=client,
            )

    async def _turn(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
        client: MessagesClient | BetaClient | None = None,
        taken: int = 0,
    ) -> Result:
        """As `run`; the first *taken* of the appended messages are in *history*."""
        if client is not None:
            check_client(client)
        entered = await self._gate.enter()
        try:
            self._taken = taken
            self._client = lendable(client) or self._client
            expired = self._is_cache_expired()
            asked = Request(
                system,
                tools,
                request or {},
                force,
                expired,
                self._client,
            )
            for sentence in await self._cache.news():
                self._memory.notify(sentence)
            result = await self._shape(history, asked)
            self._turns += 1
            self._fill = self._share_of_trigger(result, asked)
            self._cache.send(result, asked)
            return result
        finally:
            self._taken = 0
            entered.leave()

    async def compact(
        self,
        history: list[Message] | None = None,
        *,
        focus: str = "",
    ) -> Result:
        """Compact now, whatever the budget says: the `Compact` stage of the pipeline alone.

        *history* defaults to the one of the last turn. *focus* says what the summary should attend
        to, where the summarizer takes it. When nothing was done, the reports say why.

        Raises SettingsError when the pipeline has no `Compact` stage, InvalidHistory as `run` does.
        """
        stages = self._compact_stages(focus)
        if history is None and not self.known:
            raise SettingsError(
                "there is nothing to compact yet: run the session first, or give the history"
            )
        async with self._alone():
            last = self._record.overhead
            asked = Request(
                last.system,
                last.tools,
                force=True,
                cache_expired=self._is_cache_expired(),
                client=self._client,
            )
            if history is None:
                history = self._memory.timeline.history
            return await self._run(history, asked, stages)

    def _compact_stages(self, focus: str) -> dict[int, Stage]:
        """The `Compact` stages by their places, with *focus*. Raises SettingsError without any."""
        stages: dict[int, Stage] = {}
        for place, stage in enumerate(self._runner.stages):
            if not isinstance(stage, Compact):
                continue
            stages[place] = stage
            if focus:
                stages[place] = stage.with_focus(focus)
        if not stages:
            raise SettingsError(NO_COMPACT)
        return stages

    # What the model asks for ----------------------------------------------------------------------

    def compact_next(self, focus: str = "") -> None:
        """Compact at the beginning of the next turn, whatever the budget says.

        For a tool by which the model asks for it: in the middle of a turn its calls still wait for
        their results. Of several *focus* the last counts. Raises SettingsError when the pipeline
        has no `Compact` stage.
        """
        self._gate.ensure_open()
        if not self.can_compact:
            raise SettingsError(NO_COMPACT)
        self._next_focus = focus

    @property
    def can_compact(self) -> bool:
        """Whether the pipeline has a `Compact` stage."""
        return any(isinstance(stage, Compact) for stage in self._runner.stages)

    @property
    def is_compaction_due(self) -> bool:
        """Whether the next turn begins with a compaction."""
        return self._next_focus is not None

    @property
    def turns(self) -> int:
        """How many contexts `run` has returned."""
        return self._turns

    @property
    def fill(self) -> float:
        """The last context's estimated tokens, as a share of the budget's trigger; at first 0."""
        return self._fill

    @property
    def text_reader(self) -> TextReader | None:
        """Where the stages and the journal keep their texts, if these can be read from there."""
        for storage in self.storages[1:]:
            if isinstance(storage, TextReader):
                return storage
        return None

    @property
    def storages(self) -> list[object]:
        """All that something of the session is written to: the journal, or None, comes first."""
        used: list[object] = []
        for stage in self._runner.stages:
            used += (getattr(stage, "storage", None), getattr(stage, "archive", None))
        if self.journal is not None:
            used.append(texts_of(self.journal))
        distinct = {id(storage): storage for storage in used if storage is not None}
        return [self.journal, *distinct.values()]

    def _share_of_trigger(self, result: Result, asked: Request) -> float:
        tokens = self._record.ledger.estimate(
            result.tokens_after,
            result.messages,
        )
        budget = self._runner.budget_for(self._record, asked.options)
        return tokens / budget.trigger

    async def _shape(self, history: list[Message], asked: Request) -> Result:
        """The turn, after the compaction that is due, if one is."""
        if self._next_focus is None:
            return await self._run(history, asked)
        stages = self._compact_stages(self._next_focus)
        forced = replace(asked, force=True)
        compacted = await self._run(history, forced, stages)
        self._next_focus = None
        if not compacted.changed:
            reasons = [report.reason for report in compacted.reports if report.reason]
            why = "; ".join(reasons)
            self._memory.notify(f"the compaction that was asked for changed nothing: {why}")
        result = await self._run(history, asked)
        return _join(compacted, result)

    async def _run(
        self,
        history: list[Message],
        asked: Request,
        stages: Mapping[int, Stage] | None = None,
    ) -> Result:
        """The turn, begun anew when the history was edited or others were faster meanwhile."""
        ensure_messages(history, sys.maxsize)  # only that it is a list
        try:
            async with self._memory.lease(self._lease_seconds):
                try:
                    await self._catch_up(history)
                except SessionDeleted:
                    # What a caller hands in after a deletion is his to begin anew with.
                    is_own = self._is_owner or history is self._memory.timeline.history
                    self._begin_anew()
                    if is_own:
                        raise
                    await self._catch_up(history)
                try:
                    with self._memory.generation.running():
                        return await self._run_stages(history, asked, stages)
                except SessionDeleted:
                    self._begin_anew()
                    raise
        except (LookupError, TypeError, AttributeError):
            ensure_messages(history)  # the caller may have emptied a message meanwhile
            raise

    async def _catch_up(self, history: list[Message]) -> None:
        with self._memory.generation.running():
            await self._ensure_not_deleted()
            await self._memory.catch_up(history)

    async def _run_stages(
        self,
        history: list[Message],
        asked: Request,
        stages: Mapping[int, Stage] | None,
    ) -> Result:
        memory = self._memory
        thorough = False
        while True:
            step = await self._begin(history, thorough=thorough)
            with stages_are_asking():
                result = await self._runner.run(
                    step,
                    self.session_id,
                    self._record,
                    asked,
                    stages,
                )
            if step.edits and not thorough and memory.timeline.is_edited(step):
                thorough = True  # a rewritten message is no longer the one the caller has
            else:
                if self._verify:
                    is_bulk = is_bulky(step.agreement.history)
                    await in_thread_if(is_bulk, memory.timeline.compute_digests, step)
                if await self._write(step):
                    if step.is_idle:
                        await memory.ensure_not_deleted()
                    await self._ensure_not_deleted()
                    await self._watch_for_signals(step, result)
                    return self._finish(step, result)
            await memory.catch_up(history)

    async def _watch_for_signals(self, step: Step, result: Result) -> None:
        watch = self._watch
        if watch is None:
            return
        if not self._is_watching:
            self._is_watching = True
            timeline = self._memory.timeline
            has_notes = any(map(note_of, timeline.context))
            known = timeline.history[: step.known]
            resume = partial(watch.resume, known, has_notes=has_notes)
            await in_thread_if(is_bulky(known), resume)
        if not step.agreement.is_cut:  # on another branch the same calls come again
            may_be_bulk = step.agreement.is_bulk is not False
            await in_thread_if(may_be_bulk, watch.learn, step.messages)
        for report in result.reports:
            is_changed = report.outcome is Outcome.CHANGED
            if is_changed and isinstance(report.detail, Collapsed):
                watch.note_rewrite()
        for warning in watch.new_warnings():
            self._memory.notify(warning)

    async def _begin(self, history: list[Message], *, thorough: bool) -> Step:
        memory = self._memory
        known = 0
        if not self._verify and not thorough:
            known = len(memory.timeline.history)
        is_bulk = is_bulky(history, max(0, known - 1))
        step = await in_thread_if(
            is_bulk,
            lambda: memory.timeline.begin(history, thorough=thorough),
        )
        if not step.agreement.is_cut and step.same == step.kept:
            step.agreement.is_bulk = is_bulk
        if not memory.is_adopted and not step.adopted:
            step.agreement.raw = step.agreement.history
        if memory.unreported is not None:
            # The caller may have sent what was there before the change of another process.
            first_stale = max(memory.unreported, step.kept)
            mark_stale(step.stale, step.context, (first_stale, 0))
        return step

    def _finish(self, step: Step, result: Result) -> Result:
        """Remember *step*; the *result* for the caller."""
        first = result.first_changed_index
        unreported = self._memory.unreported
        if unreported is not None:
            first = unreported if first is None else min(unreported, first)
            first = min(first, len(result.messages))
        self._cache.note(step, first)
        self._apply(step)
        self._record.keep(len(self._memory.timeline.context))
        notices = tuple(self._memory.notices)
        self._memory.notices = []
        return Result(  # dataclasses.replace takes four times as long, on every turn
            result.messages,
            result.reports,
            result.repaired,
            result.request_options,
            len(step.agreement.history),
            notices,
            first,
            result.changed_end,
            result.tokens_before,
            result.tokens_after,
        )

    def _apply(self, step: Step) -> None:
        if step.agreement.has_diverged:
            new = f"message {step.agreement.fresh} and those after it are new"
            self._memory.notices.append(f"the history differs from the known one; {new}")
        self._memory.apply(step)
        del self._appended[: self._taken]
        self._taken = self._doubtful = 0
        if self.on_change is not None:
            self.on_change(self.session_id, self)

    # The history ----------------------------------------------------------------------------------

    async def history(self, *, branch: str | None = None) -> list[Message]:
        """The whole history, as it was handed in last; from the journal where there is one, without
        cache marks.

        In a new process that is the longest of the journal's lines, or that of *branch* (the first
        line is ""). With ``redact=`` of the storage the messages are redacted, and a warning says
        so. Raises StorageError, naming the message, when something is missing; SettingsError when
        the journal holds no texts.
        """
        with suppress(SessionDeleted):
            async with self._alone():
                return await self._memory.history(branch)
        async with self._alone():  # what there is since the deletion
            return await self._memory.history(branch)

    async def branches(self) -> list[str]:
        """The names of the lines that other processes have begun, for `history`.

        Raises StorageError.
        """
        with lock_deadline():
            return await self._memory.branches()

    def append(self, *messages: Message) -> None:
        """Add to the history that this session owns, from any thread.

        `create` and `stream` without ``messages=`` send it: what comes while one of them is under
        way is in the next request, after the reply; results go right after the calls that wait for
        them. Replies are added by themselves; adding one again changes nothing. What is added is
        written to the journal in the next turn, or with `flush`. Raises InvalidHistory.
        """
        self._gate.ensure_open()
        ensure_messages(list(messages))
        self._is_owner = True
        new = [message for message in messages if message["content"] is not self._reply]
        self._appended += map(_own, new)
        if self.on_change is not None:
            self.on_change(self.session_id, self)

    @property
    def appended(self) -> Sequence[Message]:
        """What was appended and is in no turn yet; read it only."""
        return self._appended

    async def flush(self) -> None:
        """Write to the journal what was appended, and what could not be written before.

        Waits for the exchange that is under way. A journal that cannot be written becomes a notice
        of the next result. Raises StorageError when it cannot be read.
        """
        async with self._own_exchange():
            with lock_deadline():
                history, taken = await self._own_history()
                async with self._alone():
                    self._taken = taken
                    await self._memory.catch_up(history)
                    self._settle()
                    await self._write_appended(self._taken)

    def flush_soon(self) -> None:
        """Begin to `flush` on the running event loop, if that is needed and possible."""
        is_needed = bool(self._appended) or self._memory.has_unwritten
        if is_needed and self.journal is not None and self._gate.is_free_here():
            loop = asyncio.get_running_loop()
            self._flushing = loop.create_task(self._flush_in_background())

    async def _flush_in_background(self) -> None:
        try:
            await self.flush()
        except CtxpipeError as error:
            self._memory.notify(f"what was appended cannot be written: {safe_text(error)}")

    def give_up(self) -> bool:
        """Say what is lost when the session is let go now; False when it can still be written."""
        can_be_written = self.journal is not None and not self._memory.has_unwritten
        if self.is_running or (self._appended and can_be_written):
            return False
        self._memory.notify("let go, since memory is short, with what is in no journal")
        return True

    @property
    def has_unsaved(self) -> bool:
        """Whether the session holds what is nowhere else.

        That is what was appended, what the journal could not take, a compaction that is due, and
        without a journal the history that the session owns.
        """
        if self._appended or self._memory.has_unwritten or self.is_compaction_due:
            return True
        return self.journal is None and self._is_owner

    @asynccontextmanager
    async def _own_exchange(self, claim: Message | None = None) -> AsyncIterator[None]:
        """The history that this session owns, from what was appended until the reply.

        *claim* is the message that its request answers: those before leave it to this one. Raises
        SettingsError where it would wait for itself.
        """
        if self._exchange is not None and self._exchange.is_held_here():
            session = excerpt(self.session_id)
            raise SettingsError(
                f"session {session} would wait for itself: its history is in use by the create or "
                "stream inside which it is asked; wait until that has ended, or give messages="
            )
        generation = self._memory.generation
        has_waited = self._exchanges.is_busy
        ticket = object()
        self._claims[ticket] = claim
        try:
            entered = await self._exchanges.enter()
        finally:
            del self._claims[ticket]
        self._exchange = entered
        self._has_waited = has_waited
        try:
            if generation is not self._memory.generation:
                raise SessionDeleted(GONE)  # while this waited, with what was appended for it
            with entered.inside():
                yield
        finally:
            self._exchange = None
            entered.leave()

    def _exchange_of(self, messages: list[Message] | None) -> AbstractAsyncContextManager[None]:
        """Other exchanges wait, where *messages* are not the caller's."""
        if messages is not None:
            return nullcontext()
        return self._own_exchange(self._appended[-1] if self._appended else None)

    def inside_exchange(self) -> AbstractContextManager[None]:
        """For a body in another thread: it is inside the exchange that is under way, if one is."""
        return nullcontext() if self._exchange is None else self._exchange.inside()

    async def _own_history(self) -> tuple[list[Message], int]:
        """The history that this session owns, with what other processes have added.

        And how many of the appended messages are in it.
        """
        async with self._alone():
            self._is_owner = True
            history = await self._memory.newest_history()
            self._settle()
            appended = self._appended[: self._count_unclaimed()]
            return add_appended(history, appended), len(appended)

    def _count_unclaimed(self) -> int:
        """How many of the appended messages no exchange that waits will answer."""
        claims = set(map(id, self._claims.values()))
        for count, message in enumerate(self._appended):
            if id(message) in claims and count:
                return count
        return len(self._appended)

    async def _write(self, step: Step) -> bool:
        """Write *step*; if that is cancelled, what it has taken may be in the journal all the same.

        It is, once the entry is found there.
        """
        self._settle()
        self._doubtful = self._taken
        return await self._memory.write(step)

    def _settle(self) -> None:
        """Take what a cancelled turn has written from the appended messages."""
        if self._memory.has_found_own:
            del self._appended[: self._doubtful]
            self._taken = max(0, self._taken - self._doubtful)
            self._doubtful = 0
            self._memory.has_found_own = False

    async def _keep_reply(self, reply: object) -> None:
        """Add *reply* to the history that this session owns, and write it down."""
        content = field(reply, "content")
        if not content:
            return
        message = cast("Message", {"role": "assistant", "content": content})
        self._reply = content
        for index in reversed(range(len(self._appended))):  # by hand, while it was streamed
            own = self._appended[index]
            if own["role"] == "assistant" and says_the_same(own, message):
                del self._appended[index]
        # Whatever was appended since the request comes after it. It is there before anything is
        # awaited: a reply is paid for, and this may be cancelled.
        self._appended.insert(0, _own(message))
        async with self._alone():
            await self._write_appended(1)

    async def _write_appended(self, count: int) -> None:
        """Add the first *count* appended messages to the timeline and the journal, without a turn.

        They stay appended where others have written to the journal first.
        """
        memory = self._memory
        known = memory.timeline.history
        history = add_appended(known, self._appended[:count])
        step = memory.timeline.begin(history)
        try:
            self._taken = count
            if not await self._write(step):
                return
            self._apply(step)
            self._record.keep(min(self._record.agreed, step.same))
        finally:
            self._taken = 0

    # Reading the bill -----------------------------------------------------------------------------

    def observe(
        self,
        usage: object,
        sent: Sequence[Message] | None = None,
        *,
        model: str | None = None,
    ) -> None:
        """Learn the real token count, and the state of the cache, from a reply's *usage*.

        That is an SDK object or a mapping. The whole reply says more when the server has run tools
        or cleared results. *sent* are the messages that it bills, by default the context of the
        last run. Raises SettingsError for an object without usage.
        """
        check_usage(usage)
        if model is None:
            model = field(usage, "model")
        if not isinstance(model, str):
            model = None
        self._recovered_at = None
        billed = sent
        if billed is None:
            billed = self._memory.timeline.sent
        self._record.ledger.observe(
            usage,
            billed,
            overhead=self._record.overhead.tokens,
            model=model,
        )
        self._cached_at = None
        if cached_tokens(usage):
            self._cached_at = self._clock()
        self._cache.observe(usage, sent, model)

    def announce(self, context: Result, body: Mapping[str, object]) -> None:
        """Tell what the request with *context* really says, just before it is sent.

        For mounts that place cache marks after `run`: what the cache doctor knows of a request is
        otherwise what `run` was given. *body* holds the arguments of ``messages.create``.
        """
        self._cache.send_as(context, body)

    @property
    def cache_misses(self) -> Sequence[CacheMiss]:
        """The newest misses of the provider's prompt cache, by what `observe` was shown."""
        return tuple(self._cache.misses)

    def cache_tally(self) -> list[Tally]:
        """All misses of the prompt cache by cause, those of most tokens first.

        Costs are in dollars, and None where nobody knows the prices of the model: give the pipeline
        ``prices=``. They are looked up with the next turn.
        """
        return self._cache.tallies()

    def _is_cache_expired(self) -> bool:
        """Whether the provider's prompt cache is known to have lapsed."""
        if self._cached_at is None:
            return False
        age_seconds = self._clock() - self._cached_at
        return age_seconds > self._cache_seconds

    # The loop's body ------------------------------------------------------------------------------

    @overload
    async def create(
        self,
        client: MessagesClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        stream: Literal[False] = False,
        **request: Unpack[Parameters],
    ) -> Reply: ...

    @overload
    async def create(
        self,
        client: MessagesClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        stream: Literal[True],
        **request: Unpack[Parameters],
    ) -> AsyncStream[RawMessageStreamEvent]: ...

    @overload
    async def create(
        self,
        client: BetaClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        stream: Literal[False] = False,
        **request: Unpack[BetaParameters],
    ) -> BetaMessage: ...

    @overload
    async def create(
        self,
        client: BetaClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        stream: Literal[True],
        **request: Unpack[BetaParameters],
    ) -> AsyncStream[BetaRawMessageStreamEvent]: ...

    async def create(
        self,
        client: MessagesClient | BetaClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        **request: Any,
    ) -> Any:
        """Run the pipeline, call the model with the context, and observe the reply.

        After "prompt is too long" the context is shortened by force and sent once more, if it got
        smaller.

        *client* is an ``AsyncAnthropic``, a client of another cloud such as
        ``AsyncAnthropicBedrock``, or the ``beta`` of one for requests with ``betas=``. *messages*
        is the whole history, by default the one that this session owns, to which the reply is
        added. The other arguments are those of ``client.messages.create``, and its answer is
        returned, a stream included.

        *cache_breakpoints* is how many cache breakpoints, of those that the request leaves free,
        are placed where they pay off; with four, a turn that rewrites old messages still reads all
        before them from the cache, and the next rewriting all before its own. By default a turn
        that rewrites gets those that cost nothing: before and after what changed, where the request
        has one behind them, or asks for automatic caching.

        Raises what the client raises; SettingsError, before anything is sent, for a client that is
        not async or an invalid number of breakpoints; InvalidHistory, naming the calls, for a
        history that ends with calls without results. ``open_calls="interrupted"`` answers these
        with an error result.
        """
        MARKS.optional.check("cache_breakpoints", cache_breakpoints)

        async def send(context: Result) -> Any:
            body = self._body(request, context, cache_breakpoints)
            self.announce(context, body)
            create: Callable[..., Awaitable[Any]] = client.messages.create
            return await create(**body)

        async with self._exchange_of(messages):
            reply, sent = await self._send(
                send,
                client,
                messages,
                open_calls,
                request,
            )
            if request.get("stream"):
                observe_stream(reply, lambda begun: learn(self, begun, sent))
            else:
                learn(self, reply, sent)
                if messages is None:
                    await self._keep_reply(reply)
            return reply

    @overload
    def stream(
        self,
        client: MessagesClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        output_format: Any = None,
        **request: Unpack[Parameters],
    ) -> AbstractAsyncContextManager[AsyncMessageStream[Any]]: ...

    @overload
    def stream(
        self,
        client: BetaClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        output_format: Any = None,
        **request: Unpack[BetaParameters],
    ) -> AbstractAsyncContextManager[BetaAsyncMessageStream[Any]]: ...

    @asynccontextmanager
    async def stream(
        self,
        client: MessagesClient | BetaClient,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        cache_breakpoints: int | None = None,
        **request: Any,
    ) -> AsyncIterator[Any]:
        """As `create`, with the client's stream helper, as ``async with``."""
        MARKS.optional.check("cache_breakpoints", cache_breakpoints)
        async with self._exchange_of(messages), AsyncExitStack() as opened:

            async def send(context: Result) -> Any:
                body = self._body(request, context, cache_breakpoints)
                self.announce(context, body)
                stream: Callable[..., AbstractAsyncContextManager[Any]] = client.messages.stream
                return await opened.enter_async_context(stream(**body))

            stream, sent = await self._send(
                send,
                client,
                messages,
                open_calls,
                request,
            )
            try:
                yield stream
            finally:
                with suppress(AssertionError):  # the SDK's, for a stream that nobody has read
                    reply = stream.current_message_snapshot
                    learn(self, reply, sent)
                    if messages is None and reply.stop_reason:
                        await self._keep_reply(reply)

    def _body(
        self,
        request: Mapping[str, Any],
        context: Result,
        cache_breakpoints: int | None,
    ) -> dict[str, Any]:
        """The *request* with *context*, and with the cache breakpoints that are ours to place."""
        body = {
            **request,
            **context.request_options,
            "messages": context.messages,
        }
        rewritten = self.rewrite_range(context)
        if cache_breakpoints is None:
            return with_free_breakpoints(body, rewritten)
        return with_breakpoints(body, cache_breakpoints, rewritten)

    def rewrite_range(self, context: Result) -> tuple[int, int] | None:
        """The messages of *context*, from the one index up to the other, that its turn has
        rewritten; None where it has rewritten none.

        A turn that is run a second time, since its request had to be sent again, changes nothing
        any more: its range is that of the first run.
        """
        start = context.first_changed_index
        end = context.changed_end
        if start is not None and end is not None:
            self._rewritten = (context.covered, start, end)
        covered, start, end = self._rewritten
        if covered != context.covered:
            return None
        return start, end

    async def _send(
        self,
        send: Callable[[Result], Awaitable[T]],
        client: MessagesClient | BetaClient,
        messages: list[Message] | None,
        open_calls: OpenCalls,
        request: dict[str, Any],
    ) -> tuple[T, Result]:
        """Shape the context and *send* it, a shorter one if it is refused.

        The answer, and the context that was sent last.
        """
        check_client(client)
        OPEN_CALLS.check("open_calls", open_calls)
        taken = 0
        with lock_deadline():  # the request itself may take minutes
            if messages is None:
                own, taken = await self._own_history()
                if self._has_waited and not taken and own and own[-1]["role"] == "assistant":
                    raise InvalidHistory(
                        "nothing was appended that has no reply: it was answered by the request "
                        "that this one has waited for"
                    )
                history = close_own_calls(own, open_calls)
            else:
                history = close_calls(messages, open_calls)
            arguments = request_arguments(client, request)
            context = await self._turn(history, **arguments, client=client, taken=taken)
        try:
            return await send(context), context
        except Exception as error:
            self._cache.forget(context.messages)
            refusal = as_refusal(error)
            if refusal is None:
                raise
            shorter = await self.recover(refusal, history, context, **arguments)
            if shorter is None:
                raise
        return await send(shorter), shorter

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
        """A shorter context than *sent*, which a model has refused as too long.

        *refusal* is what it answered. The other arguments are those of `run`. None when asking
        again would not help: no stage took anything out, the context is far below its budget and
        the refusal names no numbers, or the last attempt has not helped and the context is as long
        as it was.

        The ledger learns the number of tokens that the refusal names, unless it cannot be that of
        *sent*. A window that is smaller than the budget's lowers the budget of this session for
        that model, and a notice says so.
        """
        if isinstance(refusal, str):
            known = read_refusal(None, refusal)
            refusal = known or Refusal("an unknown provider")
        self._cache.forget(sent.messages)
        options = request or {}
        ledger = self._record.ledger
        tokens = ledger.estimate(sent.tokens_after, sent.messages)
        model = model_of(self._record, options)
        if not self._can_be_about(refusal, sent.tokens_after, model):
            refusal = Refusal(refusal.provider)
        self._lower_budget(refusal, model)
        trigger = self._runner.budget_for(self._record, options).trigger
        likely = tokens if self._last_bill(model) else conservative(sent.tokens_after)
        is_far_below = likely < FAR_BELOW * trigger
        if is_far_below and not refusal.has_numbers:
            return None
        if self._recovered_at is not None:
            change = abs(tokens - self._recovered_at)
            if change < NOTABLE_CHANGE * trigger:
                return None
        self._recovered_at = tokens
        if refusal.tokens is not None:
            ledger.observe(
                {"input_tokens": refusal.tokens},
                sent.messages,
                overhead=self._record.overhead.tokens,
                model=model,
                is_certain=True,
            )
        shorter = await self.run(
            history,
            system=system,
            tools=tools,
            force=True,
            request=request,
        )
        # The messages alone: the caller may have named the system prompt and tools only once.
        before = await self._runner.counter.count(sent.messages)
        after = await self._runner.counter.count(shorter.messages)
        if after >= before:
            return None
        return shorter

    def _can_be_about(self, refusal: Refusal, raw: int, model: str | None) -> bool:
        """Whether *refusal* can be about a prompt of *raw* tokens, and about *model*.

        Our count may be far too low, as for pictures, until a bill has shown that it is not. A
        prompt that was billed has fitted into the window.
        """
        if refusal.window is not None and refusal.window < self._last_bill(model):
            return False
        if refusal.tokens is None:
            return True
        if refusal.tokens < LEAST_SHARE * raw:
            return False
        if not self._record.ledger.samples:
            return True
        return is_possible(raw, refusal.tokens)

    def _last_bill(self, model: str | None) -> int:
        """What the last request to *model* was billed, 0 before its first usage."""
        samples = self._record.ledger.samples
        return max((sample[2] for sample in samples if sample[0] == model), default=0)

    def _lower_budget(self, refusal: Refusal, model: str | None) -> None:
        """Remember the window that *refusal* names for *model*, if it is smaller than known."""
        if refusal.window is None:
            return
        budget = self._runner.budget
        known = self._record.windows.get(model, budget.window)
        reserved = budget.reserve_output or 0  # the budget keeps it free in any window
        unreserved = max(0, refusal.answer_tokens - reserved)
        window = refusal.window - unreserved
        if window >= known:
            return
        self._record.windows[model] = window
        name = model or "the model"
        self._memory.notify(
            f"the window of {name} is {window:,} tokens, not {known:,}: "
            "the budget of this session is lowered"
        )


def _own(message: Message) -> Message:
    """*message* as the session keeps it: a caller may use the same object for his next one."""
    content = message["content"]
    if isinstance(content, list):
        content = list(content)
    return cast("Message", {**message, "content": content})


def _join(first: Result, second: Result) -> Result:
    """The outcome of two runs over the same history, one after the other."""
    first_changed = second.first_changed_index
    changed_end = second.changed_end
    if first.first_changed_index is not None:
        if first_changed is None:
            first_changed = first.first_changed_index
            changed_end = first.changed_end
        else:
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


def learn(session: Session, reply: object, sent: Result) -> None:
    """Have *session* observe *reply*, the answer to *sent*.

    Gateways leave the usage out, or answer with no message at all: that teaches nothing, and the
    reply, which is paid, is the caller's all the same.
    """
    if has_usage(reply):
        session.observe(reply, sent.messages)
