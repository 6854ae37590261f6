"""View of an object store for tests: its objects, and the requests to it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any


class Watched:
    """A store that counts the requests of each kind, and fails after so many."""

    def __init__(self, store: Any, operations: float = float("inf")):
        self.store = store
        self.left = operations
        self.calls: Counter[str] = Counter()
        self.paths: list[Any] = []
        self.most_at_once = self.at_once = 0
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)
        if name == "list":

            def listing(prefix: str | None = None, **options: Any) -> Any:
                self._count(name, prefix)
                return call(prefix, **options)

            return listing

        async def request(path: Any, *values: Any, **options: Any) -> Any:
            self._count(name, path)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await asyncio.sleep(self.seconds)
                return await call(path, *values, **options)
            finally:
                self.at_once -= 1

        return request

    def _count(self, name: str, path: Any):
        self.calls[name] += 1
        self.paths.append(path)
        if self.left <= 0:
            from obstore.exceptions import GenericError

            raise GenericError("503 SlowDown, in a bucket called secret")
        self.left -= 1


async def paths(store: Any) -> list[str]:
    return sorted([item["path"] async for batch in store.list() for item in batch])
