"""The requests that ctxpipe makes of an object store, over obstore."""

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
_CHUNK = 1000  # objects that are listed or deleted at once
_PIECE = 1 << 16  # bytes of an object that are received at once


class Bucket:
    """The requests to *store*, at most *connections* at the same time in an event loop.

    *name* is what warnings call the store. *timeout* is how many seconds a turn waits for it, by
    default STORE_SECONDS. A trial asks for the object *absent*, which does not exist.
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
        """Write an object, also in place of another. Raises StorageError."""
        put = partial(self.store.put_async, path, content, **options)
        await self._request(put, size=len(content))

    async def create(self, path: str, content: bytes) -> bool:
        """Write an object; False when there is one. Raises StorageError."""
        try:
            await self.put(path, content, mode="create", use_multipart=False)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            return False
        return True

    async def get(self, path: str, *, until: bytes = b"") -> bytes | None:
        """Return the content of an object, None where there is none. Raises StorageError.

        With *until* the end may be missing: what follows the first *until*.
        """
        with ignore_absent():
            return await self._request(partial(self._receive, path, until))
        note_progress()  # that there is none is an answer
        return None

    async def _receive(self, path: str, until: bytes) -> bytes:
        found = await self.store.get_async(path)
        content = bytearray()
        async for piece in found.stream(min_chunk_size=_PIECE):
            note_progress()
            content += piece
            if until and until in content:
                break
        return bytes(content)

    async def head(self, path: str) -> Mapping[str, Any] | None:
        """Return what the store knows of an object, None where there is none.

        Raises StorageError.
        """
        with ignore_absent():
            return await self._request(partial(self.store.head_async, path))
        return None

    async def list(self, prefix: str | None) -> AsyncIterator[Mapping[str, Any]]:
        """Yield what the store knows of each object below *prefix*, in the order of the store.

        Raises StorageError.
        """
        with _translate_errors():
            stream = self.store.list(prefix, chunk_size=_CHUNK)

        async def next_chunk() -> Sequence[Mapping[str, Any]] | None:
            return await anext(stream, None)

        while True:
            found = await self._request(next_chunk)
            if found is None:
                return
            for item in found:
                yield item

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete objects. Raises StorageError."""
        for start in range(0, len(paths), _CHUNK):
            some = [*paths[start : start + _CHUNK]]
            await self._request(partial(self.store.delete_async, some))

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what *work* returns, whose requests count as one that delivers piece by piece.

        Raises StorageError.
        """
        return await self._availability.call(work)

    async def close(self) -> None:
        """End what runs in the background of this event loop."""
        await self._availability.stop()

    async def _request(self, send: Callable[[], Awaitable[T]], *, size: int = 0) -> T:
        """What *send* returns, which is one request of *size* bytes, a few of them at a time.

        Raises StorageError for whatever fails.
        """

        async def send_in_turn() -> T:
            async with self._limiter.get():
                began = time.monotonic()
                try:
                    with _translate_errors():
                        return await send()
                except StorageError as error:
                    # An error that comes at once costs the next turn nothing.
                    has_waited = time.monotonic() - began > PROMPT_SECONDS
                    if has_waited and error.errno in (errno.EIO, errno.ETIMEDOUT):
                        raise Unavailable(*error.args) from error
                    raise

        return await self._availability.call(send_in_turn, size=size)

    async def _trial(self) -> None:
        """Ask for an object that does not exist."""
        with ignore_absent(), _translate_errors():
            await self.store.head_async(self._absent)


async def at_once(work: Callable[[str], Awaitable[None]], names: Iterable[str]) -> None:
    """Do *work* on all of *names* side by side; then raise the first StorageError."""
    errors: list[StorageError] = []

    async def work_on(name: str) -> None:
        try:
            await work(name)
        except StorageError as error:
            errors.append(error)

    async with create_task_group() as group:
        for name in names:
            group.start_soon(work_on, name)
    if errors:
        raise errors[0]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise StorageError for what a store raises, without its text, which may name the bucket."""
    from obstore import exceptions

    try:
        yield
    except StorageError:
        raise
    except (exceptions.BaseError, OSError, NotImplementedError) as error:
        name = type(error).__name__
        number = _ERRNO.get(name, errno.EIO)
        raise StorageError(number, f"the object store failed: {name}") from error
