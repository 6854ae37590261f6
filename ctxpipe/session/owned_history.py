"""The history that a session keeps: messages are appended, sent, and written to the journal."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

from .._logs import logger
from ..errors import CtxpipeError, InvalidHistory, SessionDeleted, StorageError, safe_text
from ..journal.memory import UNKNOWN
from ..messages import Message, check, ensure_messages, ensure_sendable_values, with_content
from ..messages.identity import says_the_same
from ..settings import TURN
from .open_calls import with_appended

if TYPE_CHECKING:
    from ..journal.step import Step
    from ..stages.reports import Removal
    from .access import Access
    from .memory import SessionMemory

ANSWERED = (
    "every appended message has a reply: another request, here or in another process, has answered "
    "the last of them, and its reply is in history()"
)


class OwnedHistory:
    """Keeps a history in the *memory* of a session, including messages that no turn has had yet.

    *access* lets one caller after another in.
    """

    def __init__(self, memory: SessionMemory, access: Access) -> None:
        self._memory = memory
        self._access = access
        # The newest reply that was added by itself: its content, and the message in the history.
        self._reply_content: object = object()
        self._reply: Message | None = None
        self._known_count = 0  # length of the history without appended messages, when read last
        self._flush_task: asyncio.Task[None] | None = None

    # Reading --------------------------------------------------------------------------------------

    @property
    def appended(self) -> Sequence[Message]:
        """Messages that were appended and are in no turn yet; they must not be changed."""
        return self._memory.journal.appended

    async def read(self, *, branch: str | None = None) -> list[Message]:
        """Return the complete history, as `Session.history` explains."""
        with suppress(SessionDeleted):
            async with self._access.alone(insists=True):
                return await self._memory.journal.history(branch)
        async with self._access.alone(insists=True):  # the history since the deletion
            return await self._memory.journal.history(branch)

    async def branches(self) -> list[str]:
        """Return the names of the journal's branches, as `Session.branches` explains."""
        with self._access.store_allowance(insists=True):
            return await self._memory.journal.branches()

    async def lines(self) -> list[str]:
        """Return the names of branches and abandoned lines, as `Session.branches` explains."""
        with self._access.store_allowance(insists=True):
            return await self._memory.journal.lines()

    async def removals(self) -> list[Removal]:
        """Return what the stages have removed so far, as `Session.removals` explains."""
        with self._access.store_allowance(insists=True):
            return await self._memory.journal.removals()

    async def for_request(self, *, was_outdated: bool = False) -> tuple[list[Message], int]:
        """Return the history to send, with messages of other processes and appended messages.

        The second value is the number of appended messages in it. *was_outdated* is True if the
        history of the call before lacked messages of other processes. Then appended messages that
        another process has written in the same place are not added again: a client that received no
        answer has sent them to both.
        """
        self._memory.is_owner = True
        insists = not self._memory.journal.is_read
        return await self._newest(insists=insists, drops_recorded=was_outdated)

    async def _newest(
        self, *, insists: bool = False, drops_recorded: bool = False
    ) -> tuple[list[Message], int]:
        """Return the values of `for_request`; *insists* is that of `Access.alone`."""
        async with self._access.alone(insists=insists):
            history = await self._memory.journal.newest_history()
            new_messages = self._access.before_claims(self.appended)
            if drops_recorded:
                await self._memory.journal.catch_up(history)
                recorded_count = _count_same(new_messages, history[self._known_count :])
                del self._memory.journal.appended[:recorded_count]
                del new_messages[:recorded_count]
            self._known_count = len(history)
            return with_appended(history, new_messages), len(new_messages)

    def is_answered(self, last: Message) -> bool:
        """Return True if the model has nothing to answer after *last*, the end of the history.

        A reply counts although it is not written yet, because the request that has waited for it
        may have been cancelled. A message of the assistant that the caller has appended is the
        beginning of an answer.
        """
        if last["role"] != "assistant":
            return False
        is_beginning = any(message is last for message in self.appended)
        return last is self._reply or not is_beginning

    # Adding ---------------------------------------------------------------------------------------

    def append(self, messages: Sequence[Message]) -> None:
        """Append *messages*, as `Session.append` explains."""
        self._access.ensure_open()
        ensure_messages(list(messages))
        ensure_sendable_values(check(messages))
        self._memory.is_owner = True
        new_messages = [
            _copy(message)
            for message in messages
            if message["content"] is not self._reply_content  # the reply is in the history
        ]
        self._memory.journal.appended.extend(new_messages)
        self._memory.note_change()

    async def add_reply(self, content: object) -> None:
        """Add a reply with *content*, and write it to the journal. Without content does nothing.

        Raises InvalidHistory if another process has answered the same message first. Then its reply
        counts, and this one is dropped.
        """
        if not content:
            return
        message = cast("Message", {"role": "assistant", "content": content})
        self._reply_content = content
        new_messages = self._memory.journal.appended
        # The caller may have appended the reply, or its beginning, while it was streamed.
        for index in reversed(range(len(new_messages))):
            other = new_messages[index]
            if other["role"] == "assistant" and says_the_same(other, message):
                del new_messages[index]
        # Messages that were appended since the request come after the reply. It is added before
        # anything is awaited, because the caller has paid for it, and this may be cancelled.
        self._reply = _copy(message)
        new_messages.insert(0, self._reply)
        async with self._access.alone():
            await self._write_reply(self._reply)

    async def _write_reply(self, reply: Message) -> None:
        """Write *reply*, the first appended message. Raises InvalidHistory as `add_reply` does.

        It stays appended if another process has added messages, but no reply to the same message.
        """
        journal = self._memory.journal
        answered_count = len(self._memory.history)
        if await self._write(with_appended(self._memory.history, [reply]), 1):
            return
        try:
            history = await journal.newest_history()
        except StorageError:
            return
        if _begins_with_other_reply(history[answered_count:], reply):
            del journal.appended[0]
            self._reply = None
            await journal.catch_up(history)
            raise InvalidHistory(ANSWERED)

    async def _write(self, history: list[Message], count: int) -> bool:
        """Make *history* the history of the timeline and the journal, without a turn.

        It contains the first *count* appended messages. Returns False, and they stay appended, if
        another process has written to the journal first.
        """
        memory = self._memory
        step = memory.timeline.begin(history)
        try:
            memory.journal.taken = count
            is_written = await memory.journal.write(step)
            if is_written:
                self.apply(step)
                memory.state.summed_count = min(memory.state.summed_count, step.same_count)
            return is_written
        finally:
            memory.journal.taken = 0

    def apply(self, step: Step) -> None:
        """Make *step* part of the timeline, after it was written to the journal.

        Steps that could not be written are written when the store answers again.
        """
        self._memory.journal.apply(step)
        self._memory.journal.flush_when_back(self)
        self._memory.note_change()

    # Going back -----------------------------------------------------------------------------------

    async def go_back(self, at: int) -> list[Message]:
        """Take back the messages after turn *at*, as `Session.go_back` explains; return them."""
        TURN.check("at", at)
        memory = self._memory
        memory.ensure_not_callers()
        memory.is_owner = True
        async with self._access.exchange(), self._access.lease(), self.caught_up():
            history, appended_count = self.newest()
            turn, length = memory.find_turn(at, history)
            while length < len(history):
                context = memory.sent
                step = memory.timeline.begin(history[:length])
                step.agreement.has_diverged = False  # the caller knows it
                memory.journal.taken = appended_count
                if await memory.journal.write(step):
                    self.apply(step)
                    self._note_going_back(turn, context)
                    break
                await memory.journal.catch_up(history)
                history, appended_count = self.newest()
                _, length = memory.find_turn(turn, history)
            return history[length:]

    def _note_going_back(self, turn: int, context: Sequence[Message]) -> None:
        """Note that the history ends after *turn* now; *context* is that of the last turn."""
        self._memory.note_going_back(context)
        # The caller may append the newest reply again.
        self._reply_content = object()
        self._reply = None
        logger.info("session %s: went back to turn %d", self._memory.session_id[:40], turn)

    @asynccontextmanager
    async def caught_up(self) -> AsyncIterator[None]:
        """Run a block alone, with the messages of other processes in the timeline.

        Raises StorageError if the journal cannot be read.
        """
        journal = self._memory.journal
        is_read = journal.is_read
        history, _ = await self._newest(insists=not is_read)
        async with self._access.alone(insists=not is_read):
            await journal.catch_up(history)
            if not journal.is_read:
                raise StorageError(errno.EAGAIN, UNKNOWN)
            try:
                yield
            finally:
                journal.taken = 0

    def newest(self) -> tuple[list[Message], int]:
        """Return the history with the appended messages at its end, and the number of these.

        Messages that a waiting request is to answer are left out.
        """
        new_messages = self._access.before_any_claim(self.appended)
        return with_appended(self._memory.history, new_messages), len(new_messages)

    # Unsaved messages -----------------------------------------------------------------------------

    @property
    def has_unsaved(self) -> bool:
        """True if the session holds something that is stored nowhere else.

        That is: appended messages, turns that could not be written, a requested compaction, and
        without a journal the history itself.
        """
        memory = self._memory
        if self.appended or memory.journal.unwritten or memory.next_focus is not None:
            return True
        return memory.journal.storage is None and memory.is_owner

    @property
    def is_running(self) -> bool:
        """True during a turn, an exchange, or a flush in the background."""
        is_flushing = self._flush_task is not None and not self._flush_task.done()
        return is_flushing or self._access.is_busy

    @property
    def is_stuck(self) -> bool:
        """True if something unsaved cannot be written, and the session is not in use."""
        journal = self._memory.journal
        can_be_written = self.appended and journal.storage and not journal.unwritten
        return self.has_unsaved and not (self.is_running or can_be_written)

    @property
    def can_flush(self) -> bool:
        """True if there is a journal, and messages that are not in it."""
        journal = self._memory.journal
        is_needed = bool(self.appended or journal.unwritten)
        return is_needed and journal.storage is not None

    async def flush(self) -> None:
        """Write the appended messages, and turns that could not be written, to the journal.

        Waits for the exchange that is running. If the journal cannot be written, the next result
        has a notice. Raises StorageError if the journal cannot be read.
        """
        async with self._access.exchange():
            with self._access.store_allowance():
                history, count = await self._newest()
                async with self._access.alone():
                    journal = self._memory.journal
                    journal.taken = count
                    await journal.catch_up(history)
                    count = journal.taken
                    # The timeline may now have messages of other processes, and lack some that
                    # could not be written.
                    if len(self._memory.history) >= len(history):
                        history = with_appended(self._memory.history, self.appended[:count])
                    await self._write(history, count)

    def flush_soon(self) -> None:
        """Start a `flush` on the running event loop, if it is needed and possible."""
        if self.can_flush and not self.is_running and self._access.is_free_here:
            task = asyncio.get_running_loop().create_task(self._flush_in_background())
            self._flush_task = task

    async def _flush_in_background(self) -> None:
        """Do the same as `flush`; an error becomes a notice of the next result."""
        try:
            await self.flush()
        except CtxpipeError as error:
            self._memory.journal.notices.add(
                f"appended messages cannot be written: {safe_text(error)}"
            )

    async def flush_missing(self) -> None:
        """Write turns that could not be written, unless the turn that is running does that."""
        self.flush_soon()
        if self._flush_task is not None:
            await asyncio.wait({self._flush_task})

    def give_up(self) -> None:
        """Report that the session is removed from memory with messages that no journal has."""
        self._memory.journal.notices.add(
            "removed from memory, which is full, with messages that are in no journal"
        )


def _copy(message: Message) -> Message:
    """Return a copy of *message*: a caller may use the same object for the next message."""
    content = message["content"]
    if isinstance(content, list):
        content = list(content)
    return with_content(message, content)


def _count_same(messages: Sequence[Message], others: Sequence[Message]) -> int:
    """Return the number of leading *messages* that say the same as those of *others*."""
    count = 0
    for message, other in zip(messages, others, strict=False):
        if not says_the_same(message, other):
            break
        count += 1
    return count


def _begins_with_other_reply(messages: Sequence[Message], reply: Message) -> bool:
    """Return True if *messages* begin with a reply that does not say the same as *reply*."""
    if not messages or messages[0]["role"] != "assistant":
        return False
    return not says_the_same(messages[0], reply)
