"""A model of the provider's prompt cache, by its published rules.

A prompt is a chain of keys, one per block. Each key represents all blocks up to its own and the
settings that they depend on. The provider writes a prefix only where a request has a breakpoint
(a mark), and finds it only from a mark that is at most a few blocks after it. So a lookup needs the
key of each block and the places of the marks, and no text:

    keys    k0  k1  k2  k3  k4  k5
    marks           ^           ^       reads k5, k4, … back to LOOKBACK_BLOCKS, then from k2
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from .misses import Cause

LOOKBACK_BLOCKS = 20
"""Number of blocks, its own included, that a mark searches for a prefix that was written before."""

DEFAULT_MINIMUM = 1024
"""Tokens of the shortest prompt that most models cache."""
# By the beginning of a model's name; the longest match counts. Sources disagree about some.
_MINIMUMS: Mapping[str, int] = {
    "claude-3-5-haiku": 2048,
    "claude-3-haiku": 2048,
    "claude-haiku-4-5": 4096,
    "claude-opus-4-5": 4096,
    "claude-opus-4-6": 4096,
    "claude-opus-4-7": 4096,
    "claude-opus-4-8": 4096,
    "claude-sonnet-4-6": 2048,
    "claude-opus-5": 512,
    "claude-fable-5": 512,
}
LARGEST_MINIMUM = max(_MINIMUMS.values())
"""Tokens from which on every known model caches a prompt."""


def min_cached_tokens(model: str | None) -> int:
    """Return the tokens of the shortest prompt that *model* caches."""
    name = (model or "").rpartition("/")[2]
    beginnings = [beginning for beginning in _MINIMUMS if name.startswith(beginning)]
    if not beginnings:
        return DEFAULT_MINIMUM
    return _MINIMUMS[max(beginnings, key=len)]


@dataclass(frozen=True, slots=True)
class CacheMark:
    """A breakpoint on the block at *place*; its prefix lives *seconds* after its last use."""

    place: int
    seconds: float


@dataclass(slots=True)
class CachedPrefix:
    """A prefix up to the block at *place*; it lives *seconds* after its last use, at *used*."""

    place: int
    used: float
    seconds: float

    def is_expired(self, now: float) -> bool:
        """Return True if the prefix can no longer be read at *now*."""
        return now - self.used >= self.seconds

    def obstacle(self, marks: Sequence[CacheMark], now: float) -> Cause | None:
        """Return why a request that begins with this prefix cannot read it; None if it can.

        The request has *marks* and is sent at *now*.
        """
        if self.is_expired(now):
            return Cause.LIFETIME
        later_places = [mark.place for mark in marks if mark.place >= self.place]
        if not later_places:
            return Cause.NO_MARK
        if min(later_places) - self.place >= LOOKBACK_BLOCKS:
            return Cause.LOOKBACK
        return None


@dataclass(slots=True)
class PrefixCache:
    """Cached prefixes, by the key of their last block in the chain of the prompt.

    The methods take *marks* in the order of the prompt, and only those whose prefix is long enough
    to be cached. Times are in seconds of any clock.
    """

    entries: dict[Hashable, CachedPrefix] = field(default_factory=dict)

    def find(self, chain: Sequence[Hashable], marks: Sequence[CacheMark], now: float) -> int:
        """Return the place of the last block that is read from the cache; -1 if none is."""
        last_read = -1
        # From the last mark on: a mark before the place found so far cannot find a later one.
        for mark in reversed(marks):
            for place in range(mark.place, max(last_read, mark.place - LOOKBACK_BLOCKS), -1):
                entry = self.entries.get(chain[place])
                if entry is not None and not entry.is_expired(now):
                    last_read = place
                    break
        return last_read

    def keep(
        self, chain: Sequence[Hashable], marks: Sequence[CacheMark], read: int, now: float
    ) -> None:
        """Write the prefixes of *marks* and renew the one that ends at the block *read*.

        *read* is the result of `find`: -1 if nothing was read.
        """
        if read >= 0 and marks:
            self.entries[chain[read]].used = now
        for mark in marks:
            key = chain[mark.place]
            seconds = mark.seconds
            earlier = self.entries.get(key)
            # A mark for five minutes does not shorten the life of a prefix that lives for an hour.
            if earlier is not None and not earlier.is_expired(now):
                seconds = max(seconds, earlier.seconds)
            self.entries[key] = CachedPrefix(mark.place, now, seconds)
