"""One conversation: the loop keeps its history, the session keeps the context."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from anyio import Lock

from .edits.projection import Opening, Projection
from .errors import StorageError
from .journal import Entry, Journal, JournalStorage, Undo, chained, digests_at, packed, replayed, rolling
from .messages import ensure_messages, field
from .reports import Result
from .runner import Request, Runner
from .undo import undo_of, undone

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.lib.streaming import AsyncMessageStream
    from anthropic.types import Message as Reply

    from .messages import Message
    from .storage import TextReader

__all__ = ["Session"]

logger = logging.getLogger("ctxpipe")

CACHE_SECONDS = 300.0  # how long the provider keeps a prompt that nobody reads


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
    ) -> None:
        self.session_id = session_id
        self._runner = runner
        self._record = runner.new_record()
        self._projection = Projection(verify=verify)
        self._journal = Journal(journal, session_id) if journal is not None else None
        self._resumed = journal is None
        self._digest = rolling()
        self._undo: list[Undo] = []
        self._undo_is_whole = True
        self._journal_rests = False  # whether the next entry may build on the last one
        self._lock = Lock()
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._cached_at: float | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held open: every change is in the journal once `run` has returned."""

    # The turn -----------------------------------------------------------------------------------------------------

    async def run(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
    ) -> Result:
        """The context for *history*: the remembered one, and what was appended since.

        Messages that are appended while this runs belong to the next turn (``result.covered`` says how many are in
        this one). A history that was shortened, branched or rebuilt is noticed and told in ``result.notices``. The
        arguments are those of `ContextPipeline.run`; nothing of *history* is modified.

        Raises InvalidHistory when *history* has not the shape of messages.
        """
        async with self._lock:
            asked = Request(system, tools, request or {}, force, self._is_cold())
            return await self._run(history, asked)

    async def _run(self, history: list[Message], asked: Request) -> Result:
        ensure_messages(history, min(len(history), len(self._projection.history)))
        notices = await self._resume(history)
        opening = self._projection.begin(history)
        covered = len(self._projection.history)
        if opening.diverged:
            notices = (*notices, f"the history differs from the known one behind message {opening.known}")
        if opening.restarted:
            self._undo.clear()
        if opening.adopted or opening.diverged:
            self._journal_rests = False
        result = await self._runner.run(
            opening.context, self.session_id, self._record, asked, None if opening.adopted else opening.same
        )
        await self._remember(opening, result.messages)
        return replace(result, covered=covered, notices=notices)

    async def _remember(self, opening: Opening, context: list[Message]) -> None:
        steps = self._record.steps
        undo = tuple(undo_of(step) for step in steps)
        kept = min([len(self._projection.context), *(change.start for change in undo)])
        self._projection.end(opening.context, context)
        before = len(self._undo)
        self._undo += undo
        if self._journal is None or not (steps or opening.diverged):
            return
        try:
            await self._journal.append(self._entry(kept, undo, before))
            self._journal_rests = True
        except StorageError:
            logger.warning("the journal of session %s cannot be written", self.session_id, exc_info=True)
            self._journal_rests = False

    # Reading the bill ---------------------------------------------------------------------------------------------

    def observe(self, usage: object, *, model: str | None = None) -> None:
        """Learn from a reply's *usage* (an SDK object or a mapping): the real token count, and the cache's state."""
        self._record.ledger.observe(usage, self._projection.context, overhead=self._record.overhead[2], model=model)
        cached = (field(usage, "cache_read_input_tokens") or 0) + (field(usage, "cache_creation_input_tokens") or 0)
        self._cached_at = self._clock() if cached else None

    def _is_cold(self) -> bool:
        """Whether the provider's prompt cache is known to hold nothing of this conversation any more."""
        return self._cached_at is not None and self._clock() - self._cached_at > self._cache_seconds

    # The loop's body ----------------------------------------------------------------------------------------------

    async def create(self, client: AsyncAnthropic, *, messages: list[Message], **request: Any) -> Reply:
        """Run, call the model with the context, observe; after "prompt is too long" once more, shortened by force.

        *messages* is the whole history, the other arguments are those of ``client.messages.create``. Raises what the
        client raises. A request that did not get smaller is never sent again.
        """
        result = await self._asked(messages, request)
        reply: Any
        try:
            reply = await client.messages.create(messages=result.messages, **{**request, **result.request_options})
        except Exception as error:
            if not is_too_long(error):
                raise
            shorter = await self._shorter(messages, request, result)
            if shorter is None:
                raise
            reply = await client.messages.create(messages=shorter.messages, **{**request, **shorter.request_options})
        if request.get("stream"):
            return cast("Reply", _Observed(reply, self))  # a stream, as was asked for
        self.observe(reply.usage, model=reply.model)
        return cast("Reply", reply)

    @asynccontextmanager
    async def stream(
        self, client: AsyncAnthropic, *, messages: list[Message], **request: Any
    ) -> AsyncIterator[AsyncMessageStream[Any]]:
        """As `create`, with the client's stream helper: ``async with session.stream(client, …) as stream``."""
        result = await self._asked(messages, request)
        opened = client.messages.stream(messages=result.messages, **{**request, **result.request_options})
        try:
            stream = await opened.__aenter__()
        except Exception as error:
            shorter = await self._shorter(messages, request, result) if is_too_long(error) else None
            if shorter is None:
                raise
            opened = client.messages.stream(messages=shorter.messages, **{**request, **shorter.request_options})
            stream = await opened.__aenter__()
        try:
            yield stream
            reply = await stream.get_final_message()
            self.observe(reply.usage, model=reply.model)
        finally:
            await stream.close()

    async def _asked(self, messages: list[Message], request: Mapping[str, Any], *, force: bool = False) -> Result:
        return await self.run(
            messages, system=request.get("system"), tools=request.get("tools"), force=force, request=request
        )

    async def _shorter(self, messages: list[Message], request: Mapping[str, Any], sent: Result) -> Result | None:
        """The context made shorter by force; None when no stage found anything to take out."""
        result = await self._asked(messages, request, force=True)
        counter = self._runner.counter
        return result if await counter.count(result.messages) < await counter.count(sent.messages) else None

    # Going on in another process ----------------------------------------------------------------------------------

    async def _resume(self, history: list[Message]) -> tuple[str, ...]:
        """Take up what the journal knows about *history*, once; what had to be left out is told."""
        if self._resumed or self._journal is None:
            return ()
        self._resumed = True
        try:
            entries = await self._journal.entries()
        except StorageError as error:
            return (self._warned(f"the journal cannot be read, the session begins anew: {error}"),)
        notices = []
        if self._journal.damaged:
            notices.append(self._warned("the journal is damaged; what cannot be trusted was left out"))
        if entries and not self._taken_up(entries, history):
            notices.append(self._warned("the journal tells of another history; the session begins anew"))
        return tuple(notices)

    def _warned(self, text: str) -> str:
        logger.warning("session %s: %s", self.session_id, text)
        return text

    def _taken_up(self, entries: Sequence[Entry], history: list[Message]) -> bool:
        """Become what the latest entries that speak of *history* say; False when none does."""
        for state in reversed(chained(entries)):
            digests = digests_at(history, {entry.covered for entry in state} | {entry.size for entry in state})
            usable = list(takewhile(partial(_speaks_of, digests), state))
            if usable:
                self._projection.resume(history[: usable[-1].covered], replayed(usable, history), usable[-1].base)
            elif digests.get(state[-1].size) == state[-1].adopted:
                usable = list(state)
                self._projection.resume(history[: state[-1].size], history[: state[-1].size], (0, 0))
            else:
                continue
            # A change of the former state can be taken back as long as no line with one was lost.
            before = [change for entry in entries[: entries.index(usable[0])] for change in entry.undo]
            self._undo_is_whole = len(before) >= usable[0].undone
            kept = before[len(before) - usable[0].undone :] if usable[0].undone else []
            self._undo = [*kept, *(change for entry in usable for change in entry.undo)]
            return True
        return False

    def _entry(self, kept: int, undo: tuple[Undo, ...], undone: int) -> Entry:
        history, context = self._projection.history, self._projection.context
        kept = kept if self._journal_rests else 0
        if self._digest.count > len(history) or not self._journal_rests:
            self._digest = rolling()
        self._digest.update(history[self._digest.count :])
        return Entry(
            covered=len(history),
            digest=self._digest.hexdigest(),
            size=len(context),
            adopted=digests_at(context, {len(context)})[len(context)],
            base=self._projection.base,
            kept=kept,
            tail=packed(context, kept, history),
            undo=undo,
            undone=undone,
            full=not self._journal_rests,
        )

    async def restore_history(self, storage: TextReader) -> list[Message]:
        """The raw history, rebuilt from the context, the files in *storage* and the archives, and checked by hash.

        Raises StorageError, naming the message, where a file or an archive is missing or was changed.
        """
        if not self._undo_is_whole:
            raise StorageError("the journal is damaged: not every change of this session can be taken back")
        async with self._lock:
            messages: list[Message] = list(self._projection.context)
            for undo in reversed(self._undo):
                messages = await undone(messages, undo, storage)
            return messages


def _speaks_of(digests: Mapping[int, str], entry: Entry) -> bool:
    return digests.get(entry.covered) == entry.digest


class _Observed:
    """A stream of events that tells its session what the reply was billed."""

    def __init__(self, stream: Any, session: Session) -> None:
        self._stream = stream
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._stream.__aexit__(*details)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for event in self._stream:
            if event.type == "message_start":
                self._session.observe(event.message.usage, model=event.message.model)
            yield event


def is_too_long(error: Exception) -> bool:
    """Whether the API has refused a request because its prompt is longer than the model's window."""
    return is_too_long_text(getattr(error, "status_code", None), str(error))


def is_too_long_text(status: int | None, text: str) -> bool:
    """Whether an answer with this *status* and *text* says that the prompt is too long."""
    return status == 413 or (status == 400 and "too long" in text)
