"""How long a turn waits for its stores, and what becomes of a store that has made one wait.

A turn has one allowance for all stores that it asks: STORE_SECONDS. It pays for waiting in which
nothing arrives, be it for a connection, an answer or a lock. A store that delivers may take longer,
and so may work in a thread of this process.

A store that has made a call wait without effect is away, and gets a pause. Meanwhile a turn that
asks it is refused at once, and goes on without it; the journal's next entry holds what is missing.
In the background the store is tried again, after pauses that grow to a limit. The log has one
warning when a store goes away, and one when it is back.

A call outside of a turn, such as a deletion, has an allowance of its own, and no pause refuses it.
"""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from .._logs import logger
from .._threads.threads import thread_limiters
from ..errors import StorageError, safe_text
from ..settings import STORE_SECONDS

if TYPE_CHECKING:  # a hook that writes one file needs no event loop, and starts faster without
    import asyncio

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

STORE_SHARE = 0.75
"""What one store may take of the allowance that is left: the rest is for the others."""
LEAST_SECONDS = 0.25
"""How long a call may wait at least: another store may have used the whole allowance."""
PROMPT_SECONDS = 0.1
"""An answer that comes sooner uses none of the allowance: a turn may read many texts."""
UPLOAD_BYTES = 1_000_000
"""Bytes a second that a store must take at least, where nothing shows that it takes them."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
TRIAL_SECONDS = 10.0
"""How long a trial in the background waits: longer than a turn, for a server that starts slowly."""

_LEASE_POLL = 0.05
_RETRY_SECONDS = 0.2
_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1

# Batches at a time for all storages of an event loop: a thousand sessions must not exhaust the
# descriptors.
_AT_ONCE = 8

_allowance: ContextVar[Allowance | None] = ContextVar("ctxpipe_allowance", default=None)
_wait: ContextVar[Wait | None] = ContextVar("ctxpipe_wait", default=None)


class Unavailable(StorageError):
    """A store does not answer now; the same call may succeed later."""

    store: Availability | None = None
    """The store's `Availability`, once it knows of this."""


class Locked(Unavailable):
    """Another process holds the lock *where* at this moment."""

    def __init__(self, where: str) -> None:
        super().__init__(errno.EAGAIN, f"cannot use {where}: another process holds its lock")


# A turn -------------------------------------------------------------------------------------------


class Allowance:
    """The seconds that a turn may wait for stores while nothing arrives.

    One that *insists* asks also a store that is away: it cannot go on without the answer.
    """

    def __init__(self, seconds: float, *, insists: bool) -> None:
        self.insists = insists
        self._seconds = seconds
        self._spent = 0.0
        self._counted_until = 0.0  # calls that wait side by side count once

    def limit(self, seconds: float | None) -> float:
        """How long the next call may wait; *seconds* are the store's own, if it has any."""
        if seconds is not None:
            return max(LEAST_SECONDS, seconds - self._spent)
        left = self._seconds - self._spent
        return max(LEAST_SECONDS, left if self.insists else left * STORE_SHARE)

    def charge(self, start: float, end: float) -> None:
        """Count the time from *start* to *end*, in which nothing arrived."""
        start = max(start, self._counted_until)
        if end - start > PROMPT_SECONDS:
            self._spent += end - start
            self._counted_until = end


@contextmanager
def store_allowance(seconds: float | None = None, *, insists: bool = False) -> Iterator[None]:
    """Let all calls inside share one allowance: that of the turn around it, if there is one.

    It has *seconds*, by default STORE_SECONDS. With *insists* the calls inside are made although
    their store is away.
    """
    outer = _allowance.get()
    if outer is None:
        token = _allowance.set(Allowance(float(STORE_SECONDS(seconds)), insists=insists))
        try:
            yield
        finally:
            _allowance.reset(token)
        return
    before = outer.insists
    outer.insists = before or insists
    try:
        yield
    finally:
        outer.insists = before


# A call -------------------------------------------------------------------------------------------


class Wait:
    """One call on a store: it is given up when nothing has arrived for *limit* seconds.

    It may be made inside another call, *outer*, on a store that uses this one: what arrives here
    arrives there.
    """

    def __init__(
        self, store: Availability, allowance: Allowance, limit: float, outer: Wait | None
    ) -> None:
        from anyio import CancelScope

        self.store = store
        self.outer = outer
        self.limit = limit
        self.insists: bool = allowance.insists
        self.began: float = time.monotonic()
        self.since: float = self.began  # when something arrived last
        self.last_error: Exception | None = None
        self.scope: CancelScope = CancelScope(deadline=self.since + limit)
        self._allowance = allowance
        self._has_answer = False

    def restart(self) -> None:
        """Count from now on, since the other side has taken something."""
        self.since = time.monotonic()
        self.scope.deadline = self.since + self.limit
        if self.outer is not None:
            self.outer.restart()

    def note_progress(self) -> None:
        """Count from now on, since something has arrived; the wait for it is paid for."""
        if not self._has_answer:
            self._has_answer = True
            self._allowance.charge(self.since, time.monotonic())
        self.restart()

    def end(self, *, has_failed: bool) -> None:
        """Pay for what was not paid for yet."""
        if has_failed or not self._has_answer:
            self._allowance.charge(self.since, time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the call has waited long enough."""
        return time.monotonic() - self.since >= self.limit

    @contextmanager
    def stop_clock(self) -> Iterator[None]:
        """Count nothing meanwhile: it is this process that works."""
        if self.outer is not None:
            with self.outer.stop_clock(), self._stop_own_clock():
                yield
            return
        with self._stop_own_clock():
            yield

    @contextmanager
    def _stop_own_clock(self) -> Iterator[None]:
        self.scope.deadline = float("inf")
        began = time.monotonic()
        try:
            yield
        finally:
            self.since += time.monotonic() - began
            self.scope.deadline = self.since + self.limit


def note_progress() -> None:
    """Report that a part of an answer has arrived, or that a part of a request was answered."""
    wait = _wait.get()
    if wait is not None:
        wait.note_progress()


def note_sent() -> None:
    """Report that the store has taken a part of what it is sent."""
    wait = _wait.get()
    if wait is not None:
        wait.restart()


async def may_try_again(error: Exception) -> bool:
    """Whether a call that has failed with *error* is to be tried again; first it pauses a little.

    Only a call whose caller cannot go on without the answer is.
    """
    from anyio import sleep

    wait = _wait.get()
    # What arrives in tries that fail is no answer: the limit counts from the call's beginning.
    if wait is None or not wait.insists or time.monotonic() - wait.began >= wait.limit:
        return False
    wait.last_error = error
    await sleep(_RETRY_SECONDS)
    return True


# A store ------------------------------------------------------------------------------------------


class Availability:
    """Whether a store answers: one for each store, for all of its calls.

    *name* is what warnings call it. *seconds* are how long a turn waits for this store, where that
    is not STORE_SECONDS. *trial* asks the store something harmless, without this object.

    Several threads and event loops may use it.
    """

    def __init__(
        self,
        name: str,
        trial: Callable[[], Awaitable[object]],
        *,
        seconds: float | None = None,
    ) -> None:
        self.name = name
        self._seconds = seconds
        self._trial = trial
        self._guard = threading.Lock()  # nobody waits for it longer than for a few instructions
        self._away_since: float | None = None
        self._reason = ""  # for which it is away
        self._back_since = 0.0
        self._pause = 0.0
        self._paused_until = 0.0
        self._answered_at = 0.0  # when a call was answered last
        self._task: asyncio.Task[None] | None = None  # which tries the store in the background
        self._unwritten: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def is_away(self) -> bool:
        """Whether the store has made a call wait without effect, and has not answered since."""
        return self._away_since is not None

    def call_when_back(self, holder: object) -> None:
        """Await ``holder.flush_missing()`` when the store is back, unless *holder* is gone."""
        self._unwritten.add(holder)

    def refuse_while_away(self) -> None:
        """Raise Unavailable at once where a turn's call would be refused."""
        allowance = _allowance.get()
        if self.is_away and allowance is not None and not allowance.insists:
            self._refuse_meanwhile()

    async def call(self, work: Callable[[], Awaitable[T]], *, size: int = 0) -> T:
        """What *work* returns, which asks the store and sends it *size* bytes.

        Raises Unavailable when nothing has arrived for too long, and at once when the store is
        away; whatever *work* raises.
        """
        outer = _wait.get()
        if outer is not None and outer.store is self:
            return await work()
        allowance = _allowance.get()
        if allowance is None:
            allowance = Allowance(float(STORE_SECONDS()), insists=True)
        if self.is_away and not allowance.insists:
            self._refuse_meanwhile()
        limit = allowance.limit(self._seconds) + size / UPLOAD_BYTES
        wait = Wait(self, allowance, limit, outer)
        token = _wait.set(wait)
        has_failed = True
        try:
            with wait.scope:
                answer = await work()
                has_failed = False
        except Unavailable as error:
            self._note_failure(error, wait)
            raise
        except StorageError:
            self._note_answer()  # it has refused what was asked
            raise
        finally:
            wait.end(has_failed=has_failed)
            _wait.reset(token)
        if has_failed:
            try:
                raise self._too_late(wait) from wait.last_error
            except Unavailable as error:
                self._note_failure(error, wait)
                raise
        self._note_answer()
        return answer

    async def call_locked(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """What *function* returns, called in a thread, again while another process has the lock.

        Raises Locked when that has taken too long.
        """
        return await self.call(partial(wait_for_lock, partial(run_in_thread, function, *arguments)))

    def _too_late(self, wait: Wait) -> Unavailable:
        if wait.last_error is not None:
            number = getattr(wait.last_error, "errno", None) or errno.ETIMEDOUT
            return Unavailable(number, getattr(wait.last_error, "strerror", str(wait.last_error)))
        return Unavailable(
            errno.ETIMEDOUT, f"{self.name} has not answered for {wait.limit:.3g} seconds"
        )

    # Away and back --------------------------------------------------------------------------------

    def _refuse_meanwhile(self) -> None:
        """Raise Unavailable in a pause, and while the store is tried in the background."""
        now = time.monotonic()
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            is_refused = True
        else:
            # A trial that ended with its event loop: this call takes its place.
            is_refused = now < self._paused_until
        if is_refused:
            away = now - (self._away_since or now)
            reason = f"{self.name} has been away for {away:.1f} s: {self._reason}"
            refusal = Unavailable(errno.EAGAIN, reason)
            refusal.store = self
            raise refusal

    def _note_failure(self, error: Unavailable, wait: Wait) -> None:
        if error.store is not None:
            return  # one that this one uses
        error.store = self
        with self._guard:
            if self._answered_at > wait.began:
                return  # it is busy: others had an answer meanwhile
            is_news = self._away_since is None
            now = time.monotonic()
            if is_news:
                self._away_since = now
                self._reason = safe_text(error)
                if now - self._back_since > LONGEST_PAUSE_SECONDS:
                    self._pause = 0.0
            if is_news or now >= self._paused_until:
                self._begin_pause(now)
        if is_news:
            logger.warning(
                "%s is away (%s): turns go on without it, and what it misses is written once it is "
                "back",
                self.name,
                self._reason,
            )
        self._begin_trials()

    def _begin_pause(self, now: float) -> None:
        """Begin a pause, twice as long as the last one."""
        self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        self._paused_until = now + self._pause

    def _note_answer(self) -> None:
        self._answered_at = time.monotonic()
        if not self.is_away:
            return
        with self._guard:
            since = self._away_since
            self._away_since = None
            self._back_since = time.monotonic()
        if since is None:
            return  # another thread has noted it
        logger.warning("%s is back after %.1f s", self.name, time.monotonic() - since)
        if self._unwritten:
            import asyncio

            loop = asyncio.get_running_loop()
            _keep(loop.create_task(self._flush_missing(), context=Context()))

    def _begin_trials(self) -> None:
        import asyncio

        task = self._task
        loop = asyncio.get_running_loop()
        if task is not None and not task.done() and not task.get_loop().is_closed():
            return
        # In a context of its own: it belongs to no turn.
        self._task = loop.create_task(self._try_again(self._trial), context=Context())

    async def _try_again(self, trial: Callable[[], Awaitable[object]]) -> None:
        """Try the store until it answers, with pauses that grow."""
        from anyio import fail_after, sleep

        while True:
            await sleep(max(0.0, self._paused_until - time.monotonic()))
            if not self.is_away:
                return  # a call that insisted had an answer
            try:
                with fail_after(max(TRIAL_SECONDS, self._seconds or 0.0)):
                    await trial()
            except Exception as error:  # noqa: BLE001  whatever a driver raises
                logger.debug("%s is still away: %s", self.name, safe_text(error))
                with self._guard:
                    self._begin_pause(time.monotonic())
            else:
                self._note_answer()
                return

    async def _flush_missing(self) -> None:
        """Have those that hold what is not written write it, one after the other."""
        while self._unwritten and not self.is_away:
            await self._unwritten.pop().flush_missing()

    async def stop(self) -> None:
        """End the trial in the background, if this event loop runs one."""
        import asyncio

        task = self._task
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            return
        if task is asyncio.current_task():
            return
        task.cancel()
        await asyncio.wait({task})


# The event loop itself keeps no more than a weak reference.
_RUNNING: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)


_FOREIGN: dict[int, tuple[weakref.ref[Any], Availability]] = {}


def availability_of(storage: object, trial: Callable[[], Awaitable[object]]) -> Availability | None:
    """The availability of a journal that is not one of ctxpipe's; None for these, which have one.

    *trial* asks it something harmless.
    """
    if _is_own(storage):
        return None
    key = id(storage)
    held = _FOREIGN.get(key)
    if held is not None and held[0]() is storage:
        return held[1]
    made = Availability(f"the journal in a {type(storage).__name__}", trial)
    try:
        reference = weakref.ref(storage, partial(_forget, _FOREIGN, key))
    except TypeError:  # it allows no weak references
        return made
    _FOREIGN[key] = reference, made
    return made


def _forget(held: dict[int, Any], key: int, _: object) -> None:
    held.pop(key, None)


def _is_own(storage: object) -> bool:
    """Whether ctxpipe's own methods read and write the journal: a subclass may have others."""
    package = __name__.partition(".")[0]
    for name in ("append", "entries"):
        method = getattr(type(storage), name, None)
        if not str(getattr(method, "__module__", "")).startswith(f"{package}."):
            return False
    return True


# Locks and threads --------------------------------------------------------------------------------


async def acquire_within(seconds: float, acquire: Callable[[], Awaitable[bool]]) -> bool:
    """Whether *acquire* has succeeded, tried again for up to *seconds*."""
    from anyio import sleep

    deadline = time.monotonic() + seconds
    while not await acquire():
        if time.monotonic() >= deadline:
            return False
        await sleep(_LEASE_POLL)
    return True


async def wait_for_lock(attempt: Callable[[], Awaitable[T]]) -> T:
    """What *attempt* returns, tried again while it raises Locked, as long as the call may wait."""
    from anyio import sleep

    wait = _wait.get()
    pause = _SHORTEST_PAUSE
    while True:
        try:
            return await attempt()
        except Locked as error:
            if wait is None or wait.is_over:
                raise
            wait.last_error = error
        await sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def run_in_thread(function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """What *function* returns, called in one of the threads that all storages share."""
    from anyio.to_thread import run_sync

    limiter = thread_limiters("storage", _AT_ONCE).get()
    wait = _wait.get()
    if wait is None:
        return await run_sync(function, *arguments, limiter=limiter)
    with wait.stop_clock():
        return await run_sync(function, *arguments, limiter=limiter)
