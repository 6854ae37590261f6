"""Time limits for calls to stores, and the handling of a store that does not answer.

A turn has one allowance for all of its calls to stores: STORE_SECONDS. The allowance counts time in
which nothing arrives: waiting for a connection, for an answer or for a lock. It does not count time
in which a store delivers data, or in which a thread of this process works.

A store whose call has reached its limit is unavailable. Until it answers again, calls of turns fail
at once, and the turns go on without the store; the next entry of the journal contains the turns
that could not be written. A background task tries the store again, after pauses that grow to a
limit. The log has one warning when a store becomes unavailable, and one when it answers again.

A call outside a turn, such as a deletion, has its own allowance and is always made.
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
"""Share of the remaining allowance that one call may use: the rest is for other stores."""
LEAST_SECONDS = 0.25
"""Shortest limit of a call, also when other stores have used the whole allowance."""
PROMPT_SECONDS = 0.1
"""Limit below which an answer uses none of the allowance: a turn may read many texts."""
UPLOAD_BYTES = 1_000_000
"""Slowest accepted upload in bytes per second, for drivers that do not report progress."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
TRIAL_SECONDS = 10.0
"""Limit of a trial in the background: longer than a turn, for a server that starts slowly."""

_LEASE_POLL = 0.05
_RETRY_SECONDS = 0.2
_SHORTEST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1

# Concurrent thread calls of all storages of an event loop: a thousand sessions must not exhaust the
# file descriptors.
_AT_ONCE = 8

_allowance: ContextVar[Allowance | None] = ContextVar("ctxpipe_allowance", default=None)
_wait: ContextVar[Wait | None] = ContextVar("ctxpipe_wait", default=None)


class Unavailable(StorageError):
    """The store does not answer now; the same call may succeed later."""

    store: Availability | None = None
    """The `Availability` that has recorded this failure."""


class Locked(Unavailable):
    """Another process holds the lock *where* at this moment."""

    def __init__(self, where: str) -> None:
        super().__init__(errno.EAGAIN, f"cannot use {where}: another process holds its lock")


# A turn -------------------------------------------------------------------------------------------


class Allowance:
    """Seconds that a turn may wait for stores while nothing arrives.

    With *insists* also an unavailable store is called, because the caller needs the answer.
    """

    def __init__(self, seconds: float, *, insists: bool) -> None:
        self.insists = insists
        self._seconds = seconds
        self._spent = 0.0
        self._counted_until = 0.0  # concurrent calls are counted once

    def limit(self, seconds: float | None) -> float:
        """Return the limit of the next call in seconds; *seconds* is the limit of the store."""
        if seconds is not None:
            return max(LEAST_SECONDS, seconds - self._spent)
        remaining = self._seconds - self._spent
        if not self.insists:
            remaining *= STORE_SHARE
        return max(LEAST_SECONDS, remaining)

    def charge(self, start: float, end: float) -> None:
        """Count the time from *start* to *end*, in which nothing arrived."""
        start = max(start, self._counted_until)
        if end - start > PROMPT_SECONDS:
            self._spent += end - start
            self._counted_until = end


@contextmanager
def store_allowance(seconds: float | None = None, *, insists: bool = False) -> Iterator[None]:
    """Give all calls in the block one allowance of *seconds*, by default STORE_SECONDS.

    Inside another such block its allowance is used. With *insists* the calls in the block are made
    although their store is unavailable.
    """
    outer = _allowance.get()
    if outer is None:
        token = _allowance.set(Allowance(float(STORE_SECONDS(seconds)), insists=insists))
        try:
            yield
        finally:
            _allowance.reset(token)
        return
    outer_insists = outer.insists
    outer.insists = outer_insists or insists
    try:
        yield
    finally:
        outer.insists = outer_insists


# A call -------------------------------------------------------------------------------------------


class Wait:
    """Timer of one call to a store, which is cancelled after *limit* seconds without progress.

    *outer* is the timer of the call that this call is a part of, if a store uses another one.
    Progress of this call counts for the outer call too.
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
        self.since: float = self.began  # time of the last progress
        self.last_error: Exception | None = None
        self.scope: CancelScope = CancelScope(deadline=self.since + limit)
        self._allowance = allowance
        self._has_answer = False

    def restart(self) -> None:
        """Start the limit again: the store has accepted a part of the request."""
        self.since = time.monotonic()
        self.scope.deadline = self.since + self.limit
        if self.outer is not None:
            self.outer.restart()

    def note_progress(self) -> None:
        """Start the limit again: a part of the answer has arrived. Charge the wait before it."""
        if not self._has_answer:
            self._has_answer = True
            self._allowance.charge(self.since, time.monotonic())
        self.restart()

    def end(self, *, has_failed: bool) -> None:
        """Charge the waiting time that was not charged yet."""
        if has_failed or not self._has_answer:
            self._allowance.charge(self.since, time.monotonic())

    @property
    def is_over(self) -> bool:
        """True if the limit was reached."""
        return time.monotonic() - self.since >= self.limit

    @contextmanager
    def stop_clock(self) -> Iterator[None]:
        """Exclude the time in the block, in which this process works."""
        if self.outer is not None:
            with self.outer.stop_clock(), self._stop_own_clock():
                yield
            return
        with self._stop_own_clock():
            yield

    @contextmanager
    def _stop_own_clock(self) -> Iterator[None]:
        """Exclude the time in the block from this timer, which cannot expire meanwhile."""
        self.scope.deadline = float("inf")
        began = time.monotonic()
        try:
            yield
        finally:
            self.since += time.monotonic() - began
            self.scope.deadline = self.since + self.limit


def note_progress() -> None:
    """Report that a part of the answer has arrived."""
    wait = _wait.get()
    if wait is not None:
        wait.note_progress()


def note_sent() -> None:
    """Report that the store has accepted a part of the request."""
    wait = _wait.get()
    if wait is not None:
        wait.restart()


async def may_try_again(error: Exception) -> bool:
    """Return True, after a short pause, if a call that has failed with *error* should be repeated.

    A call is repeated within its limit if its caller needs the answer.
    """
    from anyio import sleep

    wait = _wait.get()
    # An error that arrives is no progress: the limit counts from the start of the call.
    if wait is None or not wait.insists or time.monotonic() - wait.began >= wait.limit:
        return False
    wait.last_error = error
    await sleep(_RETRY_SECONDS)
    return True


# A store ------------------------------------------------------------------------------------------


class Availability:
    """State of one store: all calls to the store go through this object.

    *name* is the name of the store in warnings. *seconds* is the limit of a turn for this store, if
    it is not STORE_SECONDS. *trial* is a harmless request to the store that does not use this
    object.

    Several threads and event loops may use one object.
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
        self._guard = threading.Lock()  # held for a few instructions only
        self._unavailable_since: float | None = None
        self._reason = ""  # of being unavailable
        self._available_since = 0.0
        self._pause = 0.0
        self._paused_until = 0.0
        self._answered_at = 0.0  # time of the last answer
        self._task: asyncio.Task[None] | None = None  # the trials in the background
        self._unwritten: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def is_unavailable(self) -> bool:
        """True if a call has reached its limit and the store has not answered since."""
        return self._unavailable_since is not None

    def call_when_back(self, holder: object) -> None:
        """Await ``holder.flush_missing()`` when the store answers again; holds a weak reference."""
        self._unwritten.add(holder)

    def refuse_while_unavailable(self) -> None:
        """Raise Unavailable if a call would fail at once, without making a call."""
        allowance = _allowance.get()
        if self.is_unavailable and allowance is not None and not allowance.insists:
            self._refuse_meanwhile()

    async def call(self, work: Callable[[], Awaitable[T]], *, size: int = 0) -> T:
        """Await *work*, a call to the store that sends *size* bytes, and return its result.

        Raises Unavailable if nothing arrives within the limit, and at once if the store is
        unavailable; and every error of *work*.
        """
        outer = _wait.get()
        if outer is not None and outer.store is self:
            return await work()
        allowance = _allowance.get()
        if allowance is None:
            allowance = Allowance(float(STORE_SECONDS()), insists=True)
        if self.is_unavailable and not allowance.insists:
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
            self._note_answer()  # an error of the request: the store has answered
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
        """Call *function* in a thread and return its result; repeat it while it raises Locked.

        Raises Locked if another process holds the lock until the limit.
        """
        return await self.call(partial(wait_for_lock, partial(run_in_thread, function, *arguments)))

    def _too_late(self, wait: Wait) -> Unavailable:
        """Return the error of a call whose time limit is reached.

        It has the number and the text of the last error of the store, if there was one.
        """
        if wait.last_error is not None:
            number = getattr(wait.last_error, "errno", None) or errno.ETIMEDOUT
            return Unavailable(number, getattr(wait.last_error, "strerror", str(wait.last_error)))
        return Unavailable(
            errno.ETIMEDOUT, f"{self.name} has not answered for {wait.limit:.3g} seconds"
        )

    # Unavailable stores ---------------------------------------------------------------------------

    def _refuse_meanwhile(self) -> None:
        """Raise Unavailable during a pause, and while a background task tries the store."""
        now = time.monotonic()
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_closed():
            is_refused = True
        else:
            # The background task has ended with its event loop: this call is the trial.
            is_refused = now < self._paused_until
        if is_refused:
            seconds = now - (self._unavailable_since or now)
            reason = f"{self.name} has been unavailable for {seconds:.1f} s: {self._reason}"
            refusal = Unavailable(errno.EAGAIN, reason)
            refusal.store = self
            raise refusal

    def _note_failure(self, error: Unavailable, wait: Wait) -> None:
        """Record that a call has failed: the store is unavailable, and calls pause.

        A failure that another store has recorded is ignored; so is one of a call during which the
        store has answered another. The first failure is logged as a warning. In the background the
        store is tried until it answers.
        """
        if error.store is not None:
            return  # recorded by a store that this store uses
        error.store = self
        with self._guard:
            if self._answered_at > wait.began:
                return  # the store is busy: it has answered another call meanwhile
            is_first_failure = self._unavailable_since is None
            now = time.monotonic()
            if is_first_failure:
                self._unavailable_since = now
                self._reason = safe_text(error)
                if now - self._available_since > LONGEST_PAUSE_SECONDS:
                    self._pause = 0.0
            if is_first_failure or now >= self._paused_until:
                self._begin_pause(now)
        if is_first_failure:
            logger.warning(
                "%s is unavailable (%s): turns go on without it, and missing entries are written "
                "when it answers again",
                self.name,
                self._reason,
            )
        self._begin_trials()

    def _begin_pause(self, now: float) -> None:
        """Begin a pause, twice as long as the previous one up to the limit."""
        self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        self._paused_until = now + self._pause

    def _note_answer(self) -> None:
        """Record that the store has answered; end its unavailability, if it was unavailable.

        That is logged as a warning. Entries that were not written meanwhile are written in the
        background.
        """
        self._answered_at = time.monotonic()
        if not self.is_unavailable:
            return
        with self._guard:
            since = self._unavailable_since
            self._unavailable_since = None
            self._available_since = time.monotonic()
        if since is None:
            return  # another thread was faster
        logger.warning("%s answers again after %.1f s", self.name, time.monotonic() - since)
        if self._unwritten:
            import asyncio

            loop = asyncio.get_running_loop()
            _keep(loop.create_task(self._flush_missing(), context=Context()))

    def _begin_trials(self) -> None:
        """Start the task that tries the store until it answers, unless it is running."""
        import asyncio

        task = self._task
        loop = asyncio.get_running_loop()
        if task is not None and not task.done() and not task.get_loop().is_closed():
            return
        # An empty context: the task belongs to no turn.
        self._task = loop.create_task(self._try_again(self._trial), context=Context())

    async def _try_again(self, trial: Callable[[], Awaitable[object]]) -> None:
        """Call *trial* until it succeeds or another call does, with growing pauses between."""
        from anyio import fail_after, sleep

        while True:
            await sleep(max(0.0, self._paused_until - time.monotonic()))
            if not self.is_unavailable:
                return  # the store has answered a call that insists
            try:
                with fail_after(max(TRIAL_SECONDS, self._seconds or 0.0)):
                    await trial()
            except Exception as error:  # noqa: BLE001  whatever a driver raises
                logger.debug("%s is still unavailable: %s", self.name, safe_text(error))
                with self._guard:
                    self._begin_pause(time.monotonic())
            else:
                self._note_answer()
                return

    async def _flush_missing(self) -> None:
        """Have each session with unwritten turns write them, one session after the other."""
        while self._unwritten and not self.is_unavailable:
            await self._unwritten.pop().flush_missing()

    async def stop(self) -> None:
        """Cancel the task that tries the store, and wait for its end.

        Nothing happens in another event loop, or in that task itself.
        """
        import asyncio

        task = self._task
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            return
        if task is asyncio.current_task():
            return
        task.cancel()
        await asyncio.wait({task})


# The event loop itself keeps only weak references to tasks.
_RUNNING: set[asyncio.Task[Any]] = set()


def _keep(task: asyncio.Task[Any]) -> None:
    """Keep a reference to *task* until it ends, since asyncio keeps none."""
    _RUNNING.add(task)
    task.add_done_callback(_RUNNING.discard)


_FOREIGN: dict[int, tuple[weakref.ref[Any], Availability]] = {}


def availability_of(storage: object, trial: Callable[[], Awaitable[object]]) -> Availability | None:
    """Return the state of a user's own journal storage; None for ctxpipe's, which have their own.

    *trial* is a harmless request to the storage.
    """
    if _is_own(storage):
        return None
    key = id(storage)
    entry = _FOREIGN.get(key)
    if entry is not None and entry[0]() is storage:
        return entry[1]
    availability = Availability(f"the journal in a {type(storage).__name__}", trial)
    try:
        # The callback gets the dictionary: at exit the names of this module may be None already.
        reference = weakref.ref(storage, partial(_remove_entry, _FOREIGN, key))
    except TypeError:  # the class allows no weak references
        return availability
    _FOREIGN[key] = reference, availability
    return availability


def _remove_entry(entries: dict[int, Any], key: int, _: object) -> None:
    entries.pop(key, None)


def _is_own(storage: object) -> bool:
    """Return True unless a class outside ctxpipe defines how the journal is read and written."""
    package = __name__.partition(".")[0]
    for name in ("append", "entries"):
        method = getattr(type(storage), name, None)
        if not str(getattr(method, "__module__", "")).startswith(f"{package}."):
            return False
    return True


# Locks and threads --------------------------------------------------------------------------------


async def acquire_within(seconds: float, acquire: Callable[[], Awaitable[bool]]) -> bool:
    """Call *acquire* until it returns True, for up to *seconds*; return False after that."""
    from anyio import sleep

    deadline = time.monotonic() + seconds
    while not await acquire():
        if time.monotonic() >= deadline:
            return False
        await sleep(_LEASE_POLL)
    return True


async def wait_for_lock(attempt: Callable[[], Awaitable[T]]) -> T:
    """Call *attempt* until it does not raise Locked, within the limit; return its result."""
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
    """Call *function* in one of the threads that all storages share; return its result."""
    from anyio.to_thread import run_sync

    limiter = thread_limiters("storage", _AT_ONCE).get()
    wait = _wait.get()
    if wait is None:
        return await run_sync(function, *arguments, limiter=limiter)
    with wait.stop_clock():
        return await run_sync(function, *arguments, limiter=limiter)
