"""The contract of storages in object stores: in memory, in a folder, and in an S3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from tempfile import mkdtemp
from typing import Any

from object_stores import Watched
from services import S3, CuttingProxy
from session_checks import session_checks

from ctxpipe.testing import StorageCheck, storage_conformance


class ObjectStoreContract:
    """The checks of a storage, such as ObjectStorage, that *new_storage* makes of a store.

    *timeout* is for storages whose S3 cannot be reached. A test of the checks on S3 sets `server`
    before.
    """

    def __init__(
        self,
        new_storage: Callable[..., Any],
        *,
        protocols: Sequence[type],
        extras: Sequence[str],
        timeout: float | None = None,
    ):
        self.server: S3 | None = None
        self._new_storage = new_storage
        self._options: dict[str, Any] = {"protocols": protocols, "extras": extras}
        self._timeout = timeout
        self._memory: dict[str, Any] = {}  # by place
        self._folder = mkdtemp(prefix="ctxpipe-object-store-")

    def checks_in_memory(self) -> list[StorageCheck]:
        from obstore.store import MemoryStore

        return self._checks_in(lambda place: self._memory.setdefault(place, MemoryStore()))

    def checks_in_a_folder(self) -> list[StorageCheck]:
        from obstore.store import LocalStore

        return self._checks_in(lambda place: LocalStore(f"{self._folder}/{place}", mkdir=True))

    def checks_on_s3(self) -> list[StorageCheck]:
        @asynccontextmanager
        async def cut_off(place: str, operations: int) -> AsyncIterator[Any]:
            assert self.server is not None
            async with CuttingProxy(self.server.port, operations) as proxy:
                retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
                store = self.server.store(place, proxy.port, retry_config=retry)
                yield self._new_storage(store, timeout=self._timeout)

        # Much time for each call: on a busy machine moto's server is slow.
        return self._checks(self._s3_store, cut_off, timeout=60)

    def _s3_store(self, place: str) -> Any:
        assert self.server is not None
        return self.server.store(place)

    def _checks_in(self, open_store: Callable[[str], Any]) -> list[StorageCheck]:
        @asynccontextmanager
        async def failing(place: str, operations: int) -> AsyncIterator[Any]:
            yield self._new_storage(Watched(open_store(place), operations))

        return self._checks(open_store, failing)

    def _checks(
        self, open_store: Callable[[str], Any], failing: Any, **settings: Any
    ) -> list[StorageCheck]:
        def storage(place: str, redact: Callable[[str], str] | None = None) -> Any:
            return self._new_storage(open_store(place), redact=redact, **settings)

        checks = storage_conformance(storage, redacting=storage, failing=failing, **self._options)
        return [*checks, *session_checks(storage)]
