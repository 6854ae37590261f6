"""A cache that is bounded in bytes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Remembers a value for a key, and forgets the half that was used least recently.

    There are two generations: the young one takes what is new or asked for again; when it has half
    of *limit* bytes it becomes the old one, and the old one before it is dropped. A look-up is a
    dict's. Threads may share it: at worst two of them compute the same value.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    @property
    def bytes(self) -> int:
        """The sizes given to `put`, of all that is remembered; never more than the limit."""
        return self._young_bytes + self._old_bytes

    def get(self, key: K) -> V | None:
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                return None
            self.put(key, *entry)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Remember *value*; what is larger than half the limit is not kept."""
        if size > self._half:
            return
        if key in self._young:
            _, old_size = self._young.pop(key)
            self._young_bytes -= old_size
        if self._young_bytes + size > self._half:
            self._old = self._young
            self._old_bytes = self._young_bytes
            self._young = {}
            self._young_bytes = 0
        self._young[key] = value, size
        self._young_bytes += size
