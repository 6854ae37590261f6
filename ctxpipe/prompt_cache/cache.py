"""What a provider keeps of prompts, by its published rules, which are here as numbers.

A prompt is a chain: for each of its blocks one key, which stands for all blocks up to it and for
the settings that they depend on. The provider writes a prefix only where a request has a mark, and
finds it only from a mark that is at most a few blocks after it: so a lookup needs the key of each
block and the places of the marks, and no text.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from .misses import Cause

LOOKBACK_BLOCKS = 20
"""How many blocks, its own included, a mark looks back for a prefix that was written before."""

DEFAULT_MINIMUM = 1024
"""The billed tokens of the shortest prompt that most models cache."""
# By the beginning of a model's name; the longest that fits counts. Sources disagree about some.
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
MOST_MINIMUM = max(_MINIMUMS.values())
"""No model is known that caches nothing of a longer prompt."""


def min_cached_tokens(model: str | None) -> int:
    """The billed tokens of the shortest prompt that *model* caches."""
    name = (model or "").rpartition("/")[2]
    fitting = [beginning for beginning in _MINIMUMS if name.startswith(beginning)]
    return _MINIMUMS[max(fitting, key=len)] if fitting else DEFAULT_MINIMUM


@dataclass(frozen=True, slots=True)
class Mark:
    """A cache mark on the block at *place*; what it writes lives *seconds* after its last use."""

    place: int
    seconds: float


@dataclass(slots=True)
class Entry:
    """A prefix up to the block at *place*: it lives *seconds* after its last use, at *used*."""

    place: int
    used: float
    seconds: float

    def is_expired(self, now: float) -> bool:
        """Whether it can no longer be read at *now*."""
        return now - self.used >= self.seconds

    def obstacle(self, marks: Sequence[Mark], now: float) -> Cause | None:
        """Why a request with *marks* that begins with this prefix cannot read it at *now*."""
        if self.is_expired(now):
            return Cause.LIFETIME
        later = [mark.place for mark in marks if mark.place >= self.place]
        if not later:
            return Cause.NO_MARK
        return None if min(later) - self.place < LOOKBACK_BLOCKS else Cause.LOOKBACK


@dataclass(slots=True)
class PrefixCache:
    """The cached prefixes, by the key of each in the chain of its prompt.

    *marks* are in the order of the prompt, and only those up to which it is long enough to be
    cached. Times are in seconds of any clock.
    """

    entries: dict[Hashable, Entry] = field(default_factory=dict)

    def find(self, chain: Sequence[Hashable], marks: Sequence[Mark], now: float) -> int:
        """The place of the last block that is read from the cache; -1 where none is."""
        found = -1
        # From the last mark on: one before the place that it has found can find no later one.
        for mark in reversed(marks):
            for place in range(mark.place, max(found, mark.place - LOOKBACK_BLOCKS), -1):
                entry = self.entries.get(chain[place])
                if entry is not None and not entry.is_expired(now):
                    found = place
                    break
        return found

    def keep(self, chain: Sequence[Hashable], marks: Sequence[Mark], read: int, now: float) -> None:
        """Write what *marks* say, and renew the prefix up to the block at *read*, if one is."""
        if read >= 0 and marks:
            self.entries[chain[read]].used = now
        for mark in marks:
            known = self.entries.get(chain[mark.place])
            seconds = mark.seconds
            # What lives for an hour is not shortened by a mark for five minutes.
            if known is not None and not known.is_expired(now):
                seconds = max(seconds, known.seconds)
            self.entries[chain[mark.place]] = Entry(mark.place, now, seconds)
