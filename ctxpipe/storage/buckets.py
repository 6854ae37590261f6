"""Requests to an object store, made with obstore."""

from __future__ import annotations

import errno
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter, create_task_group

from .._threads.threads import PerLoop
from ..errors import StorageError
from ..settings import Requirement
from .folders import ignore_absent
from .waiting import PROMPT_SECONDS, Availability, Unavailable, note_progress

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

STORE = Requirement(
    lambda store: callable(getattr(store, "put_async", None)),
    "one of obstore, such as MemoryStore()",
)
_ERRNO = {
    "NotFoundError": errno.ENOENT,
    "FileNotFoundError": errno.ENOENT,
    "AlreadyExistsError": errno.EEXIST,
    "PreconditionError": errno.EEXIST,
    "FileExistsError": errno.EEXIST,
    "PermissionDeniedError": errno.EACCES,
    "UnauthenticatedError": errno.EACCES,
    "NotImplementedError": errno.ENOTSUP,
    "NotSupportedError": errno.ENOTSUP,
    "TimeoutError": errno.ETIMEDOUT,
}
_CHUNK = 1000  # objects listed or deleted by one request
_PIECE = 1 << 16  # bytes


class Bucket:
    """Requests to *store*, at most *connections* at the same time in an event loop.

    *name* is the name of the store in warnings. *timeout* is the number of seconds that a turn
    waits for it, by default STORE_SECONDS. A trial requests the object *absent*, which does not
    exist.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        name: str,
        absent: str,
        connections: int,
        timeout: float | None,
    ) -> None:
        self.store = store
        self._absent = absent
        self._availability = Availability(name, self._trial, seconds=timeout)
        self._limiter = PerLoop(partial(CapacityLimiter, connections))

    async def put(self, path: str, content: bytes, **options: Any) -> None:
        """Write an object, or overwrite it. Raises StorageError."""
        put = partial(self.store.put_async, path, content, **options)
        await self._request(put, size=len(content))

    async def create(self, path: str, content: bytes) -> bool:
        """Create the object at *path*; return False if it exists, which is then not changed.

        Raises StorageError.
        """
        try:
            await self.put(path, content, mode="create", use_multipart=False)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            return False
        return True

    async def get(self, path: str, *, until: bytes = b"") -> bytes | None:
        """Return the content of an object, None if it does not exist. Raises StorageError.

        With *until* the content may be cut off after the first occurrence of *until*.
        """
        with ignore_absent():
            return await self._request(partial(self._receive, path, until))
        note_progress()  # "not found" is an answer too
        return None

    async def _receive(self, path: str, until: bytes) -> bytes:
        """Return the content of the object at *path*, or its beginning up to the bytes *until*.

        Each received piece counts as progress, which starts the time limit of the call again. The
        result may contain bytes after *until*. Errors of the store are raised unchanged.
        """
        result = await self.store.get_async(path)
        content = bytearray()
        async for piece in result.stream(min_chunk_size=_PIECE):
            note_progress()
            content += piece
            if until and until in content:
                break
        return bytes(content)

    async def head(self, path: str) -> Mapping[str, Any] | None:
        """Return the metadata of an object, None if it does not exist. Raises StorageError."""
        with ignore_absent():
            return await self._request(partial(self.store.head_async, path))
        return None

    async def list(self, prefix: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the metadata of each object below *prefix*, in the order of the store.

        Raises StorageError.
        """
        with _translate_errors():
            stream = self.store.list(prefix, chunk_size=_CHUNK)

        async def next_chunk() -> Sequence[Mapping[str, Any]] | None:
            return await anext(stream, None)

        while True:
            chunk = await self._request(next_chunk)
            if chunk is None:
                return
            for item in chunk:
                yield item

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete objects. Raises StorageError."""
        for start in range(0, len(paths), _CHUNK):
            chunk = [*paths[start : start + _CHUNK]]
            await self._request(partial(self.store.delete_async, chunk))

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await *work* as one call, whose requests share a limit; return its result.

        Raises StorageError.
        """
        return await self._availability.call(work)

    async def call_for_each(self, work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
        """Await *work*, which sends small requests, for all *items* concurrently as one call.

        Many requests wait for a free connection. In one call this wait counts only while no other
        request is answered. Raises the first StorageError after all requests have ended.
        """

        async def work_on(item: T) -> None:
            """Call *work* with *item*, and count the result as progress."""
            await work(item)
            note_progress()

        await self.call(partial(at_once, work_on, items))

    async def close(self) -> None:
        """Cancel the background task of this event loop."""
        await self._availability.stop()

    async def _request(self, send: Callable[[], Awaitable[T]], *, size: int = 0) -> T:
        """Send one request of *size* bytes when a connection is free; return its result.

        Raises StorageError for every failure.
        """

        async def send_in_turn() -> T:
            """Wait for a free connection, then send the request; return its result.

            Raises StorageError for an error of the store, and its subclass Unavailable for a failed
            connection or an expired limit that took longer than PROMPT_SECONDS.
            """
            async with self._limiter.get():
                began = time.monotonic()
                try:
                    with _translate_errors():
                        return await send()
                except StorageError as error:
                    # An error that arrives at once does not delay the next turn.
                    has_waited = time.monotonic() - began > PROMPT_SECONDS
                    if has_waited and error.errno in (errno.EIO, errno.ETIMEDOUT):
                        raise Unavailable(*error.args) from error
                    raise

        return await self._availability.call(send_in_turn, size=size)

    async def _trial(self) -> None:
        """Request an object that does not exist."""
        with ignore_absent(), _translate_errors():
            await self.store.head_async(self._absent)


async def at_once(work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Call *work* with all *items* concurrently; then raise the first StorageError."""
    errors: list[StorageError] = []

    async def work_on(item: T) -> None:
        """Call *work* with *item*, and add its StorageError to *errors* instead of raising it."""
        try:
            await work(item)
        except StorageError as error:
            errors.append(error)

    async with create_task_group() as group:
        for item in items:
            group.start_soon(work_on, item)
    if errors:
        raise errors[0]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise StorageError for an error of a store, without its text, which may name the bucket."""
    from obstore import exceptions

    try:
        yield
    except StorageError:
        raise
    except (exceptions.BaseError, OSError, NotImplementedError) as error:
        name = type(error).__name__
        number = _ERRNO.get(name, errno.EIO)
        raise StorageError(number, f"the object store failed: {name}") from error
