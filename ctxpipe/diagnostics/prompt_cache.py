"""A model of the provider's prompt cache, by the published rules.

A prompt is a chain of keys, one per block. Each key represents all blocks up to its own and the
settings that they depend on. `CacheRules` says where a provider writes entries, and where it finds
them. So a lookup needs the key of each block and the places of the marks, and no text. With the
rules of Anthropic, where a mark looks back 20 blocks:

    keys    k0  k1  k2  k3  k4  k5
    marks           ^           ^       reads k5, k4, … back to 20 blocks, then from k2
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from ..messages import common_prefix
from ..providers.cache_rules import ANTHROPIC, CacheRules
from .misses import Cause


@dataclass(frozen=True, slots=True)
class CacheMark:
    """A breakpoint on the block at *place*; its prefix lives *seconds* after its last use."""

    place: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The tokens of a prompt: *read* from the cache, *written* to it, or *fresh* (neither)."""

    read: float
    written: float
    fresh: float = 0.0

    @property
    def prompt(self) -> float:
        """The tokens of the whole prompt."""
        return self.read + self.written + self.fresh


@dataclass(slots=True)
class CachedPrefix:
    """A prefix up to the block at *place*; it lives *seconds* after its last use, at *used*."""

    place: int
    used: float
    seconds: float

    def is_expired(self, now: float) -> bool:
        """Return True if the prefix can no longer be read at *now*."""
        return now - self.used >= self.seconds

    def obstacle(
        self, marks: Sequence[CacheMark], now: float, rules: CacheRules = ANTHROPIC
    ) -> Cause | None:
        """Return why a request that begins with this prefix cannot read it; None if it can.

        The request has *marks* and is sent at *now*.
        """
        if self.is_expired(now):
            return Cause.LIFETIME
        if not rules.needs_mark:
            return None
        later_places = [mark.place for mark in marks if mark.place >= self.place]
        if not later_places:
            return Cause.NO_MARK
        if rules.lookback_blocks and min(later_places) - self.place >= rules.lookback_blocks:
            return Cause.LOOKBACK
        return None


@dataclass(slots=True)
class PrefixCache:
    """Cached prefixes, by the key of their last block in the chain of the prompt.

    The methods take *marks* in the order of the prompt, and only those whose prefix is long enough
    to be cached. Times are in seconds of any clock.
    """

    entries: dict[Hashable, CachedPrefix] = field(default_factory=dict)
    rules: CacheRules = ANTHROPIC
    _last_chain: Sequence[Hashable] = ()

    def find(self, chain: Sequence[Hashable], marks: Sequence[CacheMark], now: float) -> int:
        """Return the place of the last block that is read from the cache; -1 if none is."""
        lookback = self.rules.lookback_blocks
        if not lookback:
            return self._find_anywhere(chain, now) if marks else -1
        last_read = -1
        # From the last mark on: a mark before the place found so far cannot find a later one.
        for mark in reversed(marks):
            for place in range(mark.place, max(last_read, mark.place - lookback), -1):
                entry = self.entries.get(chain[place])
                if entry is not None and not entry.is_expired(now):
                    last_read = place
                    break
        return last_read

    def _find_anywhere(self, chain: Sequence[Hashable], now: float) -> int:
        """Return the place of the last block of the longest entry in *chain*; -1 without one."""
        count = 0
        for place in range(len(chain) - 1, -1, -1):
            entry = self.entries.get(chain[place])
            if entry is None:
                continue
            if not entry.is_expired(now):
                return place
            count += 1
            if count == self.rules.max_candidates:
                break
        return -1

    def keep(
        self, chain: Sequence[Hashable], marks: Sequence[CacheMark], read: int, now: float
    ) -> None:
        """Write the prefixes of *marks* and renew the one that ends at the block *read*.

        *read* is the result of `find`: -1 if nothing was read.
        """
        if read >= 0 and marks and self.rules.is_renewed:
            self.entries[chain[read]].used = now
        for mark in marks:
            key = chain[mark.place]
            seconds = mark.seconds
            earlier = self.entries.get(key)
            if earlier is not None and not earlier.is_expired(now):
                if not self.rules.is_renewed:
                    continue
                # A mark for five minutes does not shorten the life of a prefix that lives an hour.
                seconds = max(seconds, earlier.seconds)
            self.entries[key] = CachedPrefix(mark.place, now, seconds)
        if self.rules.keeps_common_prefix and marks:
            self._keep_common_prefix(chain, marks[-1].seconds, now)

    def _keep_common_prefix(self, chain: Sequence[Hashable], seconds: float, now: float) -> None:
        """Write the prefix that *chain* shares with the chain of the request before."""
        place = common_prefix(self._last_chain, chain) - 1
        self._last_chain = list(chain)
        if place >= 0:
            self.entries[chain[place]] = CachedPrefix(place, now, seconds)

    def request(
        self,
        chain: Sequence[Hashable],
        tokens_up_to: Callable[[int], float],
        places: Sequence[int],
        now: float,
        *,
        head: int = -1,
        min_tokens: int | None = None,
        seconds: float | None = None,
        is_sent: bool = True,
    ) -> CacheUse:
        """Return the cache use of a request with cache marks at *places*, sent at *now*.

        *tokens_up_to* returns the tokens up to and including the block at a place; *head* is the
        place of the last block of the system prompt and the tools, -1 without one. *min_tokens* is
        the smallest prefix that the model caches, *seconds* the lifetime of the entries; both are
        those of the rules by default. If *is_sent* is False the cache is not changed.
        """
        rules = self.rules
        if min_tokens is None:
            min_tokens = rules.min_tokens
        if seconds is None:
            seconds = rules.lifetime_seconds
        marks = [
            CacheMark(place, seconds)
            for place in _entry_places(rules, places, head, last=len(chain) - 1)
            if tokens_up_to(place) >= min_tokens
        ]
        total = tokens_up_to(len(chain) - 1)
        if not marks:
            return CacheUse(read=0.0, written=0.0, fresh=total)
        last_read = self.find(chain, marks, now)
        if is_sent:
            self.keep(chain, marks, last_read, now)
        read = rules.round_down(tokens_up_to(last_read)) if last_read >= 0 else 0.0
        if read < min_tokens:
            read = 0.0
        # In expectation: a hit that does not happen is charged like new tokens.
        read *= rules.hit_rate
        if not rules.reports_writes and not rules.storage_per_hour:
            return CacheUse(read, written=0.0, fresh=total - read)
        written_up_to = max(read, tokens_up_to(marks[-1].place))
        return CacheUse(read, written=written_up_to - read, fresh=total - written_up_to)


def _entry_places(rules: CacheRules, places: Sequence[int], head: int, last: int) -> Sequence[int]:
    """Return the places at which entries are written, in their order."""
    if rules.written == "everywhere":
        return range(last + 1)
    if rules.written == "head":
        return [head] if head >= 0 else []
    if not rules.has_own_mark:
        return sorted(set(places))
    own_places = sorted(set(places) - {last})
    callers_count = max(0, rules.max_marks - 1)
    return [*own_places[max(0, len(own_places) - callers_count) :], last]
