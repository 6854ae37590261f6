"""Who may work on a session: one at a time, from one event loop after another."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

from ..errors import SettingsError
from ..messages import Message
from ..settings import excerpt

T = TypeVar("T")

_asked_by_a_stage: ContextVar[bool] = ContextVar("ctxpipe_asked_by_a_stage", default=False)
_exchanges: ContextVar[tuple[object, ...]] = ContextVar("ctxpipe_exchanges", default=())


class WaitingTasks:
    """The tasks of one event loop that wait at a gate, and the one that was let in."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.lock: asyncio.Lock = asyncio.Lock()  # anyio's costs four times as much, on every turn
        self.tasks: int = 0

    def leave(self) -> None:
        """End the work that was let in, and let the next in."""
        self.tasks -= 1
        self.lock.release()


class SessionGate:
    """Lets one piece of work on session *session_id* in at a time.

    The others of the same event loop wait, in order. Another loop is refused as long as one of the
    first works or waits, and changes nothing for these.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._pid = os.getpid()
        self._guard = threading.Lock()  # nobody waits for it longer than for a few instructions
        self._line = WaitingTasks(None)
        self.is_closed: bool = False  # its `async with` has ended

    @property
    def is_busy(self) -> bool:
        """Whether work is under way, or waits."""
        return self._line.tasks > 0

    def is_free_here(self) -> bool:
        """Whether an event loop runs that may enter at once, and no other loop is kept out."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        owner = self._line.loop
        return not self.is_busy and (owner is None or owner is loop or owner.is_closed())

    async def enter(self) -> WaitingTasks:
        """Wait for the work that is under way; `leave` ends one's own.

        Raises SettingsError where that is not possible.
        """
        line = self._join()
        try:
            await line.lock.acquire()
        except BaseException:
            line.tasks -= 1
            raise
        return line

    def ensure_open(self) -> None:
        """Raise SettingsError after the session's ``async with``."""
        if self.is_closed:
            raise SettingsError(
                f"session {excerpt(self._session_id)} is used after its `async with` has ended; "
                "do it inside, or ask the pipeline for the session again"
            )

    def _join(self) -> WaitingTasks:
        self.ensure_open()
        if self._pid != os.getpid():
            raise SettingsError(
                f"session {excerpt(self._session_id)} belongs to another process: "
                "make a new one after a fork"
            )
        loop = asyncio.get_running_loop()
        with self._guard:
            line = self._line
            if line.loop is not loop:  # an asyncio lock is of one loop
                if line.tasks and line.loop is not None and not line.loop.is_closed():
                    raise SettingsError(
                        f"session {excerpt(self._session_id)} is in use by another event loop; "
                        "for threads use ctxpipe.sync.Session, for several processes a journal"
                    )
                line = self._line = WaitingTasks(loop)
            line.tasks += 1
            return line


class Exchanges:
    """Requests of the history that session *session_id* owns: one at a time, until its reply.

    Each claims the message that it is to answer, so that those before it leave it to this one.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._gate = SessionGate(session_id)
        self._current: object | None = None  # the exchange that is under way
        self._claims: dict[object, Message | None] = {}  # of those that wait

    @property
    def is_busy(self) -> bool:
        """Whether an exchange is under way, or waits."""
        return self._gate.is_busy

    @asynccontextmanager
    async def enter(self, claim: Message | None) -> AsyncIterator[bool]:
        """One exchange, which answers *claim*; whether it has waited for another.

        Raises SettingsError where it would wait for itself.
        """
        if self._current is not None and self._current in _exchanges.get():
            raise SettingsError(
                f"session {excerpt(self._session_id)} would wait for itself: its history is in "
                "use by the create or stream inside which it is asked; wait until that has ended, "
                "or give messages="
            )
        has_waited = self.is_busy
        exchange = object()
        self._claims[exchange] = claim
        try:
            entered = await self._gate.enter()
        finally:
            del self._claims[exchange]
        self._current = exchange
        try:
            with self.inside():
                yield has_waited
        finally:
            self._current = None
            entered.leave()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What runs meanwhile, in whatever thread, is inside the exchange that is under way."""
        token = _exchanges.set((*_exchanges.get(), self._current))
        try:
            yield
        finally:
            with suppress(ValueError):  # it ends in another task than it began in
                _exchanges.reset(token)

    def before_claims(self, appended: Sequence[Message]) -> list[Message]:
        """Those of *appended* that come before what another exchange is to answer."""
        claims = set(map(id, self._claims.values()))
        for count, message in enumerate(appended):
            if id(message) in claims and count:
                return list(appended[:count])
        return list(appended)


def is_asked_by_a_stage() -> bool:
    """Whether a request is made by a stage, for a summary: its session would wait for itself."""
    return _asked_by_a_stage.get()


async def as_stages(work: Awaitable[T]) -> T:
    """What *work* returns, inside which `is_asked_by_a_stage`."""
    token = _asked_by_a_stage.set(True)
    try:
        return await work
    finally:
        _asked_by_a_stage.reset(token)
