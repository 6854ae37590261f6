"""A cache with a limit in bytes."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """A cache of values by key that drops the entries used least recently, many at a time.

    There are two generations of entries. New entries, and old ones that are looked up, go into the
    young generation. When that has half of *limit* bytes, it becomes the old one, and the previous
    old one is dropped. A look-up costs as much as in a dict. Threads may share a memo: at worst two
    of them compute the same value.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    @property
    def bytes(self) -> int:
        """The sum of the sizes of all entries, as passed to `put`; never more than the limit."""
        return self._young_bytes + self._old_bytes

    def get(self, key: K) -> V | None:
        """Return the value of *key*, or None if the memo has none; it then counts as used."""
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                return None
            self.put(key, *entry)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Store *value*, of *size* bytes, unless it is larger than half of the limit."""
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
        self._young[key] = (value, size)
        self._young_bytes += size
