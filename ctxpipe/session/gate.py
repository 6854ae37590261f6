"""Locks of a session: one piece of work at a time, from one event loop after another."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar

from ..errors import SettingsError
from ..messages import Message
from ..settings import excerpt

_is_in_stage: ContextVar[bool] = ContextVar("ctxpipe_asked_by_a_stage", default=False)
_exchanges: ContextVar[tuple[object, ...]] = ContextVar("ctxpipe_exchanges", default=())


class WaitingTasks:
    """Queue of a gate: the task of the event loop *loop* that has entered, and those that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        # A lock of anyio costs four times as much, in every turn.
        self.lock: asyncio.Lock = asyncio.Lock()
        self.count: int = 0
        """Number of tasks that have entered or wait. Only the thread of the loop changes it."""

    def leave(self) -> None:
        """End the work of the task that has entered, and let the next task enter."""
        self.count -= 1
        self.lock.release()


class SessionGate:
    """Lets one piece of work on the session *session_id* enter at a time.

    Other work of the same event loop waits, in order. Work of another loop is refused as long as
    work of the first one runs or waits. The session sets *is_closed* at the end of its ``async
    with``; then all work is refused.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._pid = os.getpid()
        self._guard = threading.Lock()  # it is held for a few instructions only
        self._tasks = WaitingTasks(None)
        self.is_closed: bool = False

    @property
    def is_busy(self) -> bool:
        """True if work is running or waits."""
        return self._tasks.count > 0

    @property
    def is_free_here(self) -> bool:
        """True if the running event loop may enter at once, and no other open loop used it last."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        owner = self._tasks.loop
        return not self.is_busy and (owner is None or owner is loop or owner.is_closed())

    async def enter(self) -> WaitingTasks:
        """Wait for the work before, and enter. Call `leave` of the result at the end of the work.

        Raises SettingsError if the gate is closed, in another process, and while another event loop
        uses the session.
        """
        tasks = self._join()
        try:
            await tasks.lock.acquire()
        except BaseException:
            tasks.count -= 1
            raise
        return tasks

    def ensure_open(self) -> None:
        """Raise SettingsError if the gate is closed."""
        if self.is_closed:
            raise SettingsError(
                f"session {excerpt(self._session_id)} is used after its `async with` has ended; "
                "do it inside, or ask the pipeline for the session again"
            )

    def _join(self) -> WaitingTasks:
        """Add the current task to those that wait. Raises SettingsError as `enter` does."""
        self.ensure_open()
        if self._pid != os.getpid():
            raise SettingsError(
                f"session {excerpt(self._session_id)} belongs to another process: "
                "make a new one after a fork"
            )
        loop = asyncio.get_running_loop()
        with self._guard:
            tasks = self._tasks
            if tasks.loop is not loop:  # an asyncio lock belongs to one loop
                if tasks.count and tasks.loop is not None and not tasks.loop.is_closed():
                    raise SettingsError(
                        f"session {excerpt(self._session_id)} is in use by another event loop; "
                        "for threads use ctxpipe.sync.Session, for several processes a journal"
                    )
                tasks = self._tasks = WaitingTasks(loop)
            tasks.count += 1
            return tasks


class Exchanges:
    """Requests that use the history that the session *session_id* owns, one at a time.

    An exchange ends with the reply. Each one *claims* the message that its request is to answer:
    the last one that was appended when it was asked for. As long as it waits, other exchanges do
    not send this message and later ones (see `before_claims`).
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._gate = SessionGate(session_id)
        self._current: object | None = None  # the exchange that is running
        self._claims: dict[object, Message | None] = {}  # by exchange that waits

    @property
    def is_busy(self) -> bool:
        """True if an exchange is running or waits."""
        return self._gate.is_busy

    @asynccontextmanager
    async def enter(self, claim: Message | None) -> AsyncIterator[bool]:
        """Run the block as an exchange that answers *claim*; the value is True if it has waited.

        Raises SettingsError if it would wait for itself.
        """
        if self._current is not None and self._current in _exchanges.get():
            raise SettingsError(
                f"session {excerpt(self._session_id)} would wait for itself: its history is in "
                "use by the create or stream inside which it is asked; wait until that has ended, "
                "or give messages="
            )
        has_waited = self.is_busy  # then it has to wait, in the next lines
        exchange = object()
        self._claims[exchange] = claim
        try:
            tasks = await self._gate.enter()
        finally:
            del self._claims[exchange]
        self._current = exchange
        try:
            with self.inside():
                yield has_waited
        finally:
            self._current = None
            tasks.leave()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Mark the block as part of the exchange that is running.

        The block may run in another thread, such as the caller's code inside a stream of
        `ctxpipe.sync`.
        """
        token = _exchanges.set((*_exchanges.get(), self._current))
        try:
            yield
        finally:
            with suppress(ValueError):  # the block may end in another task
                _exchanges.reset(token)

    def before_claims(self, messages: Sequence[Message]) -> list[Message]:
        """Return the *messages* before the first one that a waiting exchange claims, else all.

        A claim on the first of *messages* does not count: a request needs a message to answer.
        """
        return list(messages[: max(1, self.count_unclaimed(messages))])

    def count_unclaimed(self, messages: Sequence[Message]) -> int:
        """Return the number of *messages* before the first one that a waiting exchange claims."""
        claim_ids = {id(message) for message in self._claims.values()}
        for index, message in enumerate(messages):
            if id(message) in claim_ids:
                return index
        return len(messages)


def is_asked_by_a_stage() -> bool:
    """Return True inside `mark_stage_requests`.

    Such a request is for a summary. If a session shaped it, the session would wait for itself.
    """
    return _is_in_stage.get()


@contextmanager
def mark_stage_requests() -> Iterator[None]:
    """Mark the requests that are made in the block as requests of a stage."""
    token = _is_in_stage.set(True)
    try:
        yield
    finally:
        _is_in_stage.reset(token)
