"""One conversation: the loop keeps its history, or the session does; the session keeps the context."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from ..clients import check_client
from ..edits.thinking import mark_stale
from ..errors import SettingsError, StorageError, safe_text
from ..messages import common_prefix, ensure_messages, field, is_bulky
from ..messages.identity import says_the_same
from ..refusals import LEAST_SHARE, Refusal, as_refusal, read_refusal
from ..reports import Result
from ..runner import Request, Runner, model_of
from ..settings import FLAG, FUNCTION, NUMBER, SESSION_ID, excerpt
from ..stages.compact import Compact
from ..storage.protocol import JOURNAL_STORAGE
from ..threads import in_thread, in_thread_if
from ..timeline import Step, Timeline
from ..tokens.billed import cached_tokens
from ..tokens.ledger import is_possible
from ..words import counted
from .client import check_usage, has_usage, lendable, observe_stream, request_arguments, stages_are_asking
from .journal import DAMAGED, Entry, Journal, Replay, chain
from .keys import KEYS, as_keys
from .lost_files import write_lost_files
from .open_calls import OPEN_CALLS, OpenCalls, answered, ensure_answered

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.lib.streaming import AsyncMessageStream
    from anthropic.types import Message as Reply

    from ..messages import Message
    from ..stage import Stage
    from ..storage import JournalStorage

__all__ = ["Session"]

logger = logging.getLogger("ctxpipe")

T = TypeVar("T")

CACHE_SECONDS = 300.0  # how long the provider keeps a prompt that nobody reads
REDACTED = "messages in the journal are redacted, so a context that was sent is not known again word for word"
NOT_RESTORABLE = (
    "the context is adopted as the history and there is no journal: give the session journal=, or hand in the full "
    "history, else restore_history cannot give the raw messages back"
)
NOTABLE_DRIFT = 0.01  # of the factor that bills have shown: then the journal is told
FAR_BELOW = 0.5  # of the trigger: a context this short is not what an API finds too long
NOTABLE_CHANGE = 0.1  # of the trigger: after that another attempt to shorten may help


class Session:
    """What must be remembered about one conversation; made by `ContextPipeline.session`.

    The caller keeps its full history and hands it in each turn; the session remembers which context its beginning has
    become. So a turn costs what is new, the context's beginning stays byte for byte the same, and no summary is made
    twice. Runs of one session wait for each other. A session without its memory is still correct.
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
        self._timeline = self._new_timeline()
        self._is_adopted = False  # whether the caller has ever gone on with our context as his history
        self._journal = Journal(journal, session_id, as_keys(signing_key), texts=history) if journal else None
        self._is_taken_up = journal is None
        self._base = 0  # entries of the journal that the timeline rests on
        self._seal = ""  # of the last of them
        self._must_read = False
        self._lost_at: int | None = None  # the entry that somebody else was faster with
        self._unwritten: list[dict[str, Any]] = []  # turns that could not be written
        self._writer = secrets.token_hex(8)
        self._has_company = False  # whether anybody else writes to the journal
        self._lease_seconds = lease_seconds
        self._saved_factor = self._record.ledger.factor
        self._saved_windows: dict[str | None, int] = {}
        self._lock = asyncio.Lock()  # anyio's costs four times as much, on every turn
        self._entered = self._lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = threading.Lock()  # never waited for
        self._pid = os.getpid()
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._cached_at: float | None = None
        self._client: AsyncAnthropic | None = None  # what a summarizer without a client asks with
        self._recovered_at: int | None = None  # tokens of the context refused last, while no answer has come since
        self._notices: list[str] = []  # for the next result
        self._appended: list[Message] = []  # by `append`, since the last turn
        self._unreported: int | None = None  # from where on another's turns have changed the context

    def __repr__(self) -> str:
        known = counted(len(self._timeline.history), "message")
        return f"<Session {excerpt(self.session_id)}: {known} known>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held open: every turn is in the journal once `run` has returned."""

    @property
    def journal(self) -> JournalStorage | None:
        """Where the session writes down what it knows, None when it does not."""
        return self._journal.storage if self._journal else None

    def sibling(self) -> Session:
        """Another conversation under the same id and into the same files, which knows nothing of this one.

        For the side questions and sub-agents of a loop. It keeps no journal.
        """
        return Session(
            self._runner,
            self.session_id,
            verify=self._verify,
            cache_seconds=self._cache_seconds,
            clock=self._clock,
        )

    def _new_timeline(self) -> Timeline:
        return Timeline(verify=self._verify)

    @property
    def known(self) -> Sequence[Message]:
        """The history as far as it was handed in; read it only."""
        return self._timeline.history

    @property
    def is_running(self) -> bool:
        """Whether a turn is under way."""
        return self._running.locked()

    async def _enter(self) -> None:
        """Wait for the turn that is under way. Raises SettingsError where that is not possible."""
        if self._pid != os.getpid():
            raise SettingsError(
                f"session {excerpt(self.session_id)} is of another process: make a new one after a fork"
            )
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # an asyncio lock is of one loop
            self._loop, self._lock = loop, asyncio.Lock()
        lock = self._lock
        await lock.acquire()
        if not self._running.acquire(blocking=False):
            lock.release()
            raise SettingsError(
                f"session {excerpt(self.session_id)} is in use by another event loop; for threads use "
                "ctxpipe.sync.Session, for several processes a journal"
            )
        self._entered = lock

    def _leave(self) -> None:
        self._running.release()
        self._entered.release()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """The session for one piece of work; a turn does without, since it takes ten times as long."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    # The turn -----------------------------------------------------------------------------------------------------

    async def run(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
        client: AsyncAnthropic | None = None,
    ) -> Result:
        """The context for *history*: the remembered one, and what was appended since.

        Messages that are appended while this runs belong to the next turn (``result.covered`` says how many are in
        this one). A history that was shortened, branched or rebuilt is noticed and told in ``result.notices``. The
        arguments are those of `ContextPipeline.run`; nothing of *history* is modified. *client*, the one that the
        context is sent with, is lent to a summarizer that has none of its own, now and in later turns.

        Raises InvalidHistory when *history* has not the shape of messages, SettingsError for other arguments that make
        no sense.
        """
        if client is not None:
            check_client(client)
        await self._enter()
        try:
            self._client = lendable(client) or self._client
            asked = Request(system, tools, request or {}, force, self._is_cold(), self._client)
            return await self._run(history, asked)
        finally:
            self._leave()

    async def compact(self, history: list[Message] | None = None, *, focus: str = "") -> Result:
        """Compact now, whatever the budget says: the `Compact` stage of the pipeline alone.

        *history* defaults to what was handed in last. The summary attends to *focus* where its summariser can be told
        so. Why nothing was done, if so, is in the reports.

        Raises SettingsError when the pipeline has no `Compact` stage, InvalidHistory as `run` does.
        """
        found = [(place, stage) for place, stage in enumerate(self._runner.stages) if isinstance(stage, Compact)]
        if not found:
            raise SettingsError("there is nothing to compact with: the pipeline has no Compact stage")
        if history is None and not self._timeline.history:
            raise SettingsError("there is nothing to compact yet: run the session first, or give the history")
        stages = {place: stage.focused(focus) if focus else stage for place, stage in found}
        async with self._alone():
            last = self._record.overhead
            asked = Request(last.system, last.tools, force=True, cold=self._is_cold(), client=self._client)
            return await self._run(self._timeline.history if history is None else history, asked, stages)

    async def _run(self, history: list[Message], asked: Request, stages: Mapping[int, Stage] | None = None) -> Result:
        ensure_messages(history, sys.maxsize)  # that it is a list; each message is looked at once, later
        notices, self._notices = self._notices, []
        lease = self._lease()
        if lease is None:
            return await self._settled(history, asked, stages, notices)
        async with lease:
            return await self._settled(history, asked, stages, notices)

    async def _settled(
        self, history: list[Message], asked: Request, stages: Mapping[int, Stage] | None, notices: list[str]
    ) -> Result:
        """The turn, once nobody else has been faster and nothing was edited meanwhile."""
        thorough = False
        while True:
            notices += await self._catch_up(history)
            step = await self._begun(history, thorough=thorough)
            step.raw = None if self._is_adopted or step.adopted else step.history
            with stages_are_asking():
                result = await self._runner.run(step, self.session_id, self._record, asked, stages)
            if step.edits and not thorough and self._timeline.is_edited(step):
                thorough = True  # what was rewritten is no longer what the caller has
                continue
            if self._verify:
                await in_thread_if(is_bulky(step.history), self._timeline.look, step)
            if await self._write(step, notices):
                return self._taken(step, result, notices)

    async def _begun(self, history: list[Message], *, thorough: bool) -> Step:
        known = 0 if self._verify or thorough else len(self._timeline.history)
        begin = self._timeline.begin
        step = await in_thread_if(is_bulky(history, max(0, known - 1)), lambda: begin(history, thorough=thorough))
        if self._unreported is not None:
            # Whoever was not told of a change may have asked the model with what was there before.
            mark_stale(step.stale, step.context, (max(self._unreported, step.kept), 0))
        return step

    def _taken(self, step: Step, result: Result, notices: list[str]) -> Result:
        """The *result* for the caller, once *step* is remembered."""
        first = result.first_changed_index
        if self._unreported is not None:
            first = min(self._unreported, len(result.messages) if first is None else first)
        notices += _divergence(step)
        if step.adopted and not self._is_adopted and self._journal is None:
            notices.append(self._warned(NOT_RESTORABLE))
        self._is_adopted = self._is_adopted or step.adopted
        self._timeline.apply(step)
        self._record.keep(len(self._timeline.context))
        self._unreported = None
        return Result(  # dataclasses.replace takes four times as long, on every turn
            result.messages,
            result.reports,
            result.repaired,
            result.request_options,
            len(step.history),
            tuple(notices),
            first,
            result.changed_end,
            result.tokens_before,
            result.tokens_after,
        )

    # The journal --------------------------------------------------------------------------------------------------

    def _lease(self) -> AbstractAsyncContextManager[bool] | None:
        """What holds the session for this process alone, where that was asked for and the storage can."""
        lease = getattr(self.journal, "lease", None)
        if self._lease_seconds is None or lease is None:
            return None
        return cast("AbstractAsyncContextManager[bool]", lease(self.session_id, self._lease_seconds))

    async def _catch_up(self, history: list[Message]) -> list[str]:
        """Take in what the journal knows and this session does not; what a user should know about it."""
        journal = self._journal
        if journal is None:
            return []
        try:
            is_behind = self._must_read or self._base < journal.offset + journal.count
            if self._is_taken_up and not is_behind and not await journal.news():
                return []
            self._must_read = False
            ensure_messages(history)
            return await self._read(journal, history)
        except StorageError as error:
            self._must_read = True
            is_new, self._is_taken_up = not self._is_taken_up, True
            self._journal = None if is_new else journal
            told = "; the session begins anew, and without a journal" if is_new else ""
            return [self._warned(f"the journal cannot be read{told}: {safe_text(error)}")]

    async def _read(self, journal: Journal, history: list[Message]) -> list[str]:
        """Take in what *journal* holds, and its branches when this session is new."""
        seen = journal.offset + journal.count
        entries, found, is_damaged = await self._replayed(journal, history)
        notices = []
        if self._is_taken_up:
            self._has_company = self._has_company or any(entry.writer != self._writer for entry in entries[seen:])
            if self._base and (len(entries) < self._base or entries[self._base - 1].seal != self._seal):
                # It was deleted, or set aside by somebody else: what this session knows is no longer in it.
                self._base, self._unwritten = 0, [await journal.pack(self._timeline.snapshot())]
                notices.append(self._warned("the journal was replaced; this session goes on from what it knows"))
        else:
            for name in await journal.storage.branches(self.session_id):
                branch = journal.sibling(name)
                line, other, is_torn = await self._replayed(branch, history)
                if other.agreed > found.agreed:
                    journal, entries, found, is_damaged = branch, line, other, is_torn
            self._journal = journal
        if is_damaged:
            notices += await self._set_aside(journal, entries, found)
        if self._take_up(found, len(entries), notices) and not is_damaged:
            self._base, self._seal = found.base, entries[found.base - 1].seal if found.base else ""
            self._unwritten = []
        if not self._is_taken_up and found.base:
            notices += await self._write_lost_files(journal)
        self._is_taken_up = True
        return notices

    async def _replayed(self, journal: Journal, history: list[Message]) -> tuple[list[Entry], Replay, bool]:
        """The entries of *journal*, what they come to for *history*, and whether there are others."""
        entries, is_damaged = await journal.read()
        try:
            return entries, await in_thread(journal.replay, entries, history, self._new_timeline), is_damaged
        except DAMAGED:  # they were sealed by somebody who has written nonsense
            return [], Replay(self._new_timeline()), True

    async def _set_aside(self, journal: Journal, entries: list[Entry], found: Replay) -> list[str]:
        """Begin *journal* anew, with the turns of the state that was *found*."""
        name = await journal.set_aside()
        self._base, self._seal = 0, ""
        if not self._is_taken_up:
            self._unwritten = [turn for number in chain(entries, found.base) for turn in entries[number].turns]
        else:
            self._unwritten = [await journal.pack(self._timeline.snapshot())]
        kept = f"it is kept as {name}, and a new one begins" if name else "somebody else has set it aside"
        told = f"the journal was damaged from entry {len(entries)} on, or is of another version; {kept}"
        return [self._warned(told)]

    async def _write_lost_files(self, journal: Journal) -> list[str]:
        """Write files again that the context points to and somebody has deleted; what to say about it."""
        try:
            count = await write_lost_files(self._timeline, journal.storage)
        except StorageError as error:
            return [self._warned(f"files that the context points to cannot be looked after: {safe_text(error)}")]
        were = "was" if count == 1 else "were"
        told = f"{counted(count, 'file')} that the context points to {were} gone, and written again from the history"
        return [self._warned(told)] if count else []

    def _take_up(self, found: Replay, count: int, notices: list[str]) -> bool:
        """Go on from *found*, unless this session knows better; whether it does."""
        is_new = not self._is_taken_up
        wanted = max(len(self._timeline.history), len(found.timeline.history))
        if not is_new and not found.is_shared and found.agreed < wanted:
            return False
        if is_new and count and not found.is_shared and not found.agreed:
            notices.append(self._warned("the journal tells of another history; the session begins anew"))
            self._unwritten = []
            return False
        if not is_new:
            self._note_unreported(found.timeline)
        elif found.redacted:
            notices.append(self._warned(REDACTED))
        self._timeline, self._is_adopted = found.timeline, found.is_adopted
        self._record.keep(0)
        if found.last is not None:
            self._record.ledger.learn(found.last.bills)
            self._record.windows |= dict(found.last.windows)
            self._saved_windows = dict(self._record.windows)
            self._saved_factor = self._record.ledger.factor
        return True

    def _note_unreported(self, other: Timeline) -> None:
        """The first message of the context that is no longer the one this session has sent."""
        ours, theirs = self._timeline.sent, other.sent
        same = common_prefix(ours, theirs)
        while same < min(len(ours), len(theirs)) and says_the_same(ours[same], theirs[same]):
            same += 1
        if same < len(ours):
            self._unreported = same

    async def _write(self, step: Step, notices: list[str]) -> bool:
        """Write *step* down; False when somebody else was faster. What goes wrong becomes a notice."""
        journal = self._journal
        drifted = abs(self._record.ledger.factor - self._saved_factor) > NOTABLE_DRIFT * self._saved_factor
        if journal is None or not (
            drifted or self._unwritten or not step.is_idle or self._record.windows != self._saved_windows
        ):
            return True
        factor, windows = self._record.ledger.factor, dict(self._record.windows)
        try:
            turns = [*self._unwritten, *([] if step.is_idle else [await journal.pack(step)])]
            entry = Entry(self._base, turns, self._record.ledger.bills, list(windows.items()), self._writer)
            if self._has_company and self._base < journal.offset + journal.count:
                if not turns:
                    return True
                journal = await self._branched(entry)
                told = f"another process goes on with another history; this one is branch {journal.branch!r}"
                notices.append(self._warned(told))
            elif not await journal.write(entry):
                count = journal.offset + journal.count
                self._must_read, lost_before, self._lost_at = True, self._lost_at, count
                if lost_before != count:
                    return False
                told = f"entry {count} is refused, though nobody is seen to have written it"
                raise StorageError(errno.EAGAIN, told)  # noqa: TRY301
        except StorageError as error:
            self._lost_at = None
            if not step.is_idle:
                with suppress(StorageError):
                    self._unwritten.append(await journal.pack(step))
            notices.append(self._warned(f"the journal cannot be written: {safe_text(error)}"))
            return True
        self._unwritten, self._base, self._seal = [], journal.offset + journal.count, journal.seal
        self._lost_at = None
        self._saved_factor, self._saved_windows = factor, windows
        return True

    async def _branched(self, entry: Entry) -> Journal:
        """The branch with the first free name, *entry* written. Raises StorageError."""
        assert self._journal is not None  # noqa: S101  who writes has one
        number = 1
        while True:
            branch = self._journal.sibling(str(number))
            branch.begin(self._base, self._seal)
            if await branch.write(entry._replace(parent=self._journal.branch)):
                self._journal, self._has_company = branch, False
                return branch
            number += 1

    def _warned(self, text: str) -> str:
        logger.warning("session %s: %s", self.session_id, text)
        return text

    # The history --------------------------------------------------------------------------------------------------

    async def history(self, *, branch: str | None = None) -> list[Message]:
        """The whole history, as it was handed in last; from the journal where there is one, without cache marks.

        In a new process that is the longest of the journal's lines, or that of *branch* (the first
        line is ""). With ``redact=`` of the storage the messages are redacted, and a warning says
        so. Raises StorageError, naming the message, when something is missing; SettingsError when
        the journal holds no texts.
        """
        async with self._alone():
            return await self._history(branch)

    async def _history(self, branch: str | None) -> list[Message]:
        journal = self._journal
        if journal is None:
            if self._is_adopted:
                raise StorageError(NOT_RESTORABLE)
            return list(self._timeline.history)
        if not journal.texts:
            raise SettingsError("the journal holds no texts: it was kept with history=False")
        lines = [journal if branch is None else journal.sibling(branch)]
        if branch is None and not self._is_taken_up:
            lines += [journal.sibling(name) for name in await journal.storage.branches(self.session_id)]
        found: list[tuple[Journal, Replay]] = []
        for seen in lines:
            line = seen.sibling(seen.branch)  # what is read here is not what this session has taken up
            entries, _ = await line.read()
            if self._is_taken_up and branch is None:
                last = Entry(self._base, self._unwritten, [], [])
                entries = [*entries[: self._base], *([last] if self._unwritten else [])]
            if branch and not entries:
                raise SettingsError(f"there is no branch {excerpt(branch)} of session {excerpt(self.session_id)}")
            try:
                found.append((line, await in_thread(line.replay, entries, [], Timeline)))
            except DAMAGED as error:
                raise StorageError(errno.EILSEQ, "the journal holds entries that make no sense") from error
        line, longest = max(found, key=lambda pair: len(pair[1].raw))
        if line.redacts and longest.raw:
            self._notices.append(self._warned("the history was redacted when it was written down"))
        return await line.restored(longest)

    async def branches(self) -> list[str]:
        """The names of the lines that other processes have begun, for `history`. Raises StorageError."""
        return list(await self.journal.branches(self.session_id)) if self.journal else []

    async def restore_history(self) -> list[Message]:
        """The raw history: from the journal, or as it was handed in.

        Raises StorageError when the context was adopted as history and there is no journal, and as `history` does.
        """
        return await self.history()

    def append(self, *messages: Message) -> None:
        """Add to the history that this session owns: `create` and `stream` without ``messages=`` go on with it.

        The reply of such a call is added by itself; to add it again changes nothing. What is added
        is in the journal when the next turn is. Raises InvalidHistory.
        """
        ensure_messages(list(messages))
        for message in messages:
            last = [*self._timeline.history[-1:], *self._appended][-1:]
            if message["role"] != "assistant" or not last or not says_the_same(last[0], message):
                self._appended.append(message)

    async def _owned(self) -> list[Message]:
        """The history that this session owns."""
        known = self._timeline.history if self._is_taken_up else await self.history()
        return [*known, *self._appended]

    async def _keep_reply(self, reply: object) -> None:
        """Add *reply* to the history that this session owns, and write it down."""
        if not field(reply, "content"):
            return
        message = cast("Message", {"role": "assistant", "content": field(reply, "content")})
        async with self._alone():
            step = self._timeline.begin([*self._timeline.history, message])
            notices: list[str] = []
            if await self._write(step, notices):
                self._timeline.apply(step)
                self._record.keep(min(self._record.agreed, step.same))
            else:
                self._appended.append(message)
            self._notices += [*notices, *_divergence(step)]

    # Reading the bill ---------------------------------------------------------------------------------------------

    def observe(self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None) -> None:
        """Learn from a reply's *usage* (an SDK object or a mapping): the real token count, and the cache's state.

        The whole reply may be given instead; it says more where the server has run tools or cleared results. *sent*
        are the messages that it bills, by default the context of the last run. Raises SettingsError for what holds no
        usage.
        """
        check_usage(usage)
        model = field(usage, "model") if model is None else model
        model = model if isinstance(model, str) else None
        self._recovered_at = None
        billed = self._timeline.sent if sent is None else sent
        self._record.ledger.observe(usage, billed, overhead=self._record.overhead.tokens, model=model)
        self._cached_at = self._clock() if cached_tokens(usage) else None

    def _is_cold(self) -> bool:
        """Whether the provider's prompt cache is known to hold nothing of this conversation any more."""
        return self._cached_at is not None and self._clock() - self._cached_at > self._cache_seconds

    # The loop's body ----------------------------------------------------------------------------------------------

    async def create(
        self,
        client: AsyncAnthropic,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        **request: Any,
    ) -> Reply:
        """Run, call the model with the context, observe; after "prompt is too long" once more, shortened by force.

        *client* is an ``AsyncAnthropic``, or its ``beta`` for requests with ``betas=``. *messages* is the whole
        history, by default the one that this session owns, to which the reply is added. The other arguments are those
        of ``client.messages.create``, whose answer comes back, a stream included.

        Raises what the client raises; SettingsError, before anything is sent, for a client that is not async;
        InvalidHistory, naming the calls, when the history ends with calls that have no result. With
        ``open_calls="interrupted"`` these are answered so. A request that did not get smaller is never sent again.
        """

        async def send(context: Result) -> Any:
            return await client.messages.create(messages=context.messages, **{**request, **context.request_options})

        reply, sent = await self._answered(send, client, messages, open_calls, request)
        if request.get("stream"):
            observe_stream(reply, lambda begun: learn(self, begun, sent))
        else:
            learn(self, reply, sent)
            if messages is None:
                await self._keep_reply(reply)
        return cast("Reply", reply)

    @asynccontextmanager
    async def stream(
        self,
        client: AsyncAnthropic,
        *,
        messages: list[Message] | None = None,
        open_calls: OpenCalls = "raise",
        **request: Any,
    ) -> AsyncIterator[AsyncMessageStream[Any]]:
        """As `create`, with the client's stream helper: ``async with session.stream(client, …) as stream``."""
        async with AsyncExitStack() as opened:

            async def send(context: Result) -> Any:
                arguments = {**request, **context.request_options}
                return await opened.enter_async_context(client.messages.stream(messages=context.messages, **arguments))

            stream, sent = await self._answered(send, client, messages, open_calls, request)
            try:
                yield stream
            finally:
                with suppress(AssertionError):  # so the SDK says that nothing of the stream was read
                    reply = stream.current_message_snapshot
                    learn(self, reply, sent)
                    if messages is None and reply.stop_reason:
                        await self._keep_reply(reply)

    async def _answered(
        self,
        send: Callable[[Result], Awaitable[T]],
        client: AsyncAnthropic,
        messages: list[Message] | None,
        open_calls: OpenCalls,
        request: dict[str, Any],
    ) -> tuple[T, Result]:
        """What *send* answers, and the context that it was given last."""
        check_client(client)
        OPEN_CALLS.check("open_calls", open_calls)
        history = await self._owned() if messages is None else messages
        ensure_messages(history, len(history) - 1 if isinstance(history, list) and open_calls == "raise" else 0)
        if open_calls == "raise":
            ensure_answered(history)
        else:
            history = answered(history)
        arguments = request_arguments(client, request)
        context = await self.run(history, **arguments, client=client)
        if messages is None:
            self._appended = []
        try:
            return await send(context), context
        except Exception as error:
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
        """A shorter context than *sent*, which a model has refused as too long, in the words *refusal*.

        None when asking again would be of no use: no stage found anything to take out, the context is far below its
        budget and the refusal names no numbers that say otherwise, or the last attempt has not helped and the context
        is still as long. Numbers that cannot be those of *sent*, as in words that an error quotes, are not believed.
        What the refusal tells of the real number of tokens is learnt. A window that is smaller than
        the budget's lowers the budget of this session for that model, which the result's notices tell. The other
        arguments are those of `run`.
        """
        if isinstance(refusal, str):
            refusal = read_refusal(None, refusal) or Refusal("an unknown provider")
        options = request or {}
        tokens = self._record.ledger.estimate(sent.tokens_after, sent.messages)
        model = model_of(self._record, options)
        if not self._can_be_about(refusal, sent.tokens_after, model):
            refusal = Refusal(refusal.provider)
        self._lower_budget(refusal, model)
        trigger = self._runner.budget_for(self._record, options).trigger
        if not refusal.has_numbers and tokens < FAR_BELOW * trigger:
            return None
        if self._recovered_at is not None and abs(tokens - self._recovered_at) < NOTABLE_CHANGE * trigger:
            return None
        self._recovered_at = tokens
        overhead = self._record.overhead.tokens
        if refusal.tokens is not None:
            told = {"input_tokens": refusal.tokens}
            self._record.ledger.observe(told, sent.messages, overhead=overhead, model=model)
        result = await self.run(history, system=system, tools=tools, force=True, request=request)
        # Compare the messages alone: the caller may have named the system prompt and tools only once.
        shorter = result.tokens_after - self._record.overhead.tokens < sent.tokens_after - overhead
        return result if shorter else None

    def _can_be_about(self, refusal: Refusal, raw: int, model: str | None) -> bool:
        """Whether the prompt that *refusal* speaks of can be one of *raw* tokens, and its window that of *model*.

        Our count may be far too low, as for pictures, until a bill has shown that it is not. What *model* has been
        paid to read is not more than its window.
        """
        billed = max((bill[2] for bill in self._record.ledger.bills if bill[0] == model), default=0)
        if refusal.window is not None and refusal.window < billed:
            return False
        tokens = refusal.tokens
        if tokens is None:
            return True
        return tokens >= LEAST_SHARE * raw and (is_possible(raw, tokens) or not self._record.ledger.bills)

    def _lower_budget(self, refusal: Refusal, model: str | None) -> None:
        """Remember the window that *refusal* names for *model*, where it is smaller than what the budget counts on."""
        known = self._record.windows.get(model, self._runner.budget.window)
        if refusal.window is None:
            return
        reserved = self._runner.budget.reserve_output or 0  # which the budget keeps free in any window
        window = refusal.window - max(0, refusal.answer_tokens - reserved)
        if window >= known:
            return
        self._record.windows[model] = window
        named = f"the window of {model or 'the model'} is {window} tokens, not {known}"
        self._notices.append(self._warned(f"{named}: the budget of this session is lowered"))


def _divergence(step: Step) -> list[str]:
    """What the caller should know about a history that is not the known one, and more."""
    told = f"the history differs from the known one; message {step.fresh} and those after it are new"
    return [told] if step.has_diverged else []


def learn(session: Session, reply: object, sent: Result) -> None:
    """Have *session* observe *reply*, the answer to *sent*.

    Gateways leave the usage out, or answer with no message at all: that teaches nothing, and the reply, which is paid,
    is the caller's all the same.
    """
    if has_usage(reply):
        session.observe(reply, sent.messages)
