"""History to context, remembered: which context a known history has become, and where the two correspond."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any, cast

from ..messages import as_blocks, as_dict, as_json, blocks, common_prefix, ensure_messages, is_equal, same_at_end
from ..messages import field as read
from ..pieces import pieces

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = ["Match", "Opening", "Projection", "as_json", "digest", "unmarked", "with_marks"]

MARK = "cache_control"
RECENT = 64  # messages from the end in which a caller moves cache marks in place


@dataclass(frozen=True, slots=True)
class Match:
    """Which messages of a history and of its context stand for each other, one by one.

    The first *front*, and all from index *history* and *context* on. Between them a change has taken messages out.
    """

    front: int = 0
    history: int = 0
    context: int = 0

    def place(self, index: int) -> int | None:
        """Where message *index* of the history stands in the context, None where nothing does."""
        if index >= self.history:
            return index - self.history + self.context
        return index if index < self.front else None

    def behind(self, before: Sequence[Message], after: Sequence[Message], covered: int) -> Match:
        """The match once the context *before*, of *covered* messages of the history, has become *after*."""
        first = common_prefix(before, after)
        most = min(covered - self.history, len(before) - first, len(after) - first)
        same = same_at_end(before, after, most)
        front = min(first, self.front) if self.history or self.context else first
        return Match(front, covered - same, len(after) - same)


@dataclass(frozen=True, slots=True)
class Opening:
    """What a projection makes of a *history*; nothing is remembered of it before `Projection.end`.

    *context* ends with the new messages as they came; the first *same* of it are those of the last turn. *known*
    messages of the history are known, and the first *kept* messages of the last context remain: fewer than all when
    the history was *cut*. Behind them stands the history from message *fresh* on; that is before *known* where the cut
    went into what a change had taken out. The caller should hear of it when the history has *diverged*. He may have
    *adopted* the last context as his history.
    """

    history: list[Message]
    known: int
    context: list[Message]
    kept: int
    same: int
    match: Match
    fresh: int
    cut: bool
    diverged: bool
    adopted: bool
    moved: Sequence[int]  # messages of the history that differ in form alone, such as cache marks
    marked: Mapping[int, Message]  # messages of the context with other cache marks


class Projection:
    """What a conversation's *history* has become: its *context*, the same list as long as nothing was changed.

    With *verify* edits inside known messages are noticed, at the price of reading them all; without, only one that
    exchanges the last message's content or its list of blocks.
    """

    __slots__ = ("_digests", "_last", "_verify", "context", "history", "match")

    def __init__(self, *, verify: bool = False) -> None:
        self._verify = verify
        self.resume([], [], Match())

    @property
    def reads_all(self) -> bool:
        """Whether each turn reads every message, however old."""
        return self._verify

    def resume(self, history: Sequence[Message], context: Sequence[Message], match: Match) -> None:
        """Begin with what another process has remembered; form and cache marks are those of *history*."""
        self.history, self.context = list(history), list(context)
        for index, message in enumerate(self.history):
            place = match.place(index)
            if place is not None and self.context[place] is not message:
                held = self.context[place]
                self.context[place] = message if is_equal(_said(held), _said(message)) else with_marks(held, message)
        if match == Match() and _are_same(self.history, self.context):
            self.context = self.history
        self.match = match
        self._digests: tuple[list[bytes], list[bytes]] = ([], [])
        self._look([], [])

    def begin(self, history: list[Message]) -> Opening:
        """The context for *history* as far as it is known, and what is new.

        A history that was shortened, branched or rebuilt is cut back to the common beginning. A caller who goes on
        with the context itself is recognised. Cache marks are taken from *history*. Raises InvalidHistory.
        """
        ensure_messages(history, sys.maxsize)  # of the new messages the runner will take a closer look
        now = list(history)  # what is appended while the turn runs belongs to the next one
        agreed, moved = _agreeing(self.history, now)
        adopted = False
        if agreed < len(self.history) and self.context:
            taken, moved_there = _agreeing(self.context, now)
            if taken > agreed:  # whether he goes on with all of the context, or has cut it back already
                agreed, moved, adopted = taken, moved_there, True
        known = self._unedited(now, agreed, adopted)
        return self._opening(now, agreed, known, [index for index in moved if index < known], adopted)

    def end(self, opening: Opening, context: list[Message], match: Match) -> None:
        """Remember that the history of *opening* has become *context*, and how the two *match* now."""
        ours = self.context if opening.adopted else self.history
        digests = self._digests[opening.adopted][: opening.known]
        del ours[opening.known :]
        ours += opening.history[opening.known :]
        for index in opening.moved:
            ours[index] = opening.history[index]
        kept = opening.kept
        if context is not opening.context:
            kept, gap = 0, range(match.front, match.context)  # in the gap there is nothing to take marks from
            self.context = [unmarked(message) if index in gap else message for index, message in enumerate(context)]
        elif context is opening.history:
            self.context = ours
        else:
            self._extend(opening)
        self.history, self.match = ours, match
        self._look(digests, self._digests[1][:kept])

    def _extend(self, opening: Opening) -> None:
        del self.context[opening.kept :]
        for index, message in opening.marked.items():
            self.context[index] = message
        self.context += opening.context[opening.kept :]

    # What is known ------------------------------------------------------------------------------------------------

    def _look(self, history: list[bytes], context: list[bytes]) -> None:
        """Keep what an edit in place is told by; with the digests as far as they are known."""
        self._last = [_copied(messages[-1]) if messages else None for messages in (self.history, self.context)]
        if self._verify:
            history = [*history, *map(digest, self.history[len(history) :])]
            plain = self.context is self.history
            self._digests = history, history if plain else [*context, *map(digest, self.context[len(context) :])]

    def _unedited(self, now: Sequence[Message], agreed: int, adopted: bool) -> int:
        """How many of the *agreed* messages are word for word as they were."""
        if self._verify:
            pairs = zip(self._digests[adopted], map(digest, now[:agreed]), strict=False)
            return next((index for index, (old, new) in enumerate(pairs) if old != new), agreed)
        last = self._last[adopted]
        whole = len(self.context if adopted else self.history)
        if last is None or agreed < whole or is_equal(now[agreed - 1]["content"], last["content"]):
            return agreed
        ensure_messages(now[agreed - 1 : agreed])
        # Results were appended to the last message in place, or it was only given another form.
        return agreed - (not is_equal(_said(now[agreed - 1]), _said(last)))

    def _opening(self, now: list[Message], agreed: int, known: int, moved: list[int], adopted: bool) -> Opening:
        ours, match = (self.context, Match()) if adopted else (self.history, self.match)
        kept, fresh = len(self.context), known  # what remains of the context, and where the history goes on behind it
        if known < len(ours):
            place = match.place(known)
            # Without a place, a change speaks of messages that are no longer there: begin anew in front of it.
            kept, fresh = (match.front, match.front) if place is None else (place, known)
            match = match if known >= match.history else Match()
        is_plain = adopted or self.context is self.history or not fresh
        marked = {} if is_plain else dict(self._marks(now, match, kept, moved))
        context = now if is_plain else [*self.context[:kept], *now[fresh:]]
        for index, message in marked.items():
            context[index] = message
        return Opening(
            history=now,
            known=known,
            context=context,
            kept=kept,
            same=min([kept, *marked, *(moved[:1] if is_plain else ())]),
            match=match,
            fresh=fresh,
            cut=known < len(ours),
            # One message may grow in place; anything more, such as a summary taken back for it, the caller is told.
            diverged=agreed < len(ours) or known < len(ours) - 1 or kept < len(self.context) - 1 or fresh < known,
            adopted=adopted,
            moved=moved,
            marked=marked,
        )

    def _marks(
        self, now: Sequence[Message], match: Match, kept: int, moved: Sequence[int]
    ) -> Iterator[tuple[int, Message]]:
        """The messages of the context whose cache marks are no longer those of the history, as they are to be."""
        known = min(len(now), len(self.history))
        for index in {*moved, *range(max(0, known - RECENT), known)}:
            place = match.place(index)
            if place is None or place >= kept:
                continue
            held = self.context[place]
            if held is not self.history[index]:
                updated = with_marks(held, now[index])
                if updated is not held:
                    yield place, updated
            elif index in moved:
                yield place, now[index]


def _agreeing(ours: Sequence[Message], now: list[Message]) -> tuple[int, list[int]]:
    """How many leading messages say the same, and which of them differ in form. Raises InvalidHistory."""
    moved: list[int] = []
    # Compared in place: at 20,000 messages a slice of them would take five times as long as the comparison.
    rest = now[len(ours) :]
    del now[len(ours) :]
    are_equal = is_equal(now, ours)
    now += rest
    if are_equal:
        return len(ours), moved
    agreed = common_prefix(ours, now)
    ensure_messages(now, agreed)
    for index in range(agreed, min(len(ours), len(now))):
        if not is_equal(ours[index], now[index]):
            if not is_equal(_said(ours[index]), _said(now[index])):
                return index, moved
            moved.append(index)
    return min(len(ours), len(now)), moved


def _copied(message: Message) -> Message:
    """*message* with a list of its own: what is exchanged in, or appended to, the original one shows."""
    content = message["content"]
    return cast("Message", {**message, "content": content if isinstance(content, str) else list(blocks(message))})


def _are_same(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))


# What a message says, whatever its form -----------------------------------------------------------------------------


def digest(message: Message) -> bytes:
    """A hash of what *message* says. Cache marks and keys that are None make no difference, nor text as one block."""
    whole = hashlib.sha256()
    for piece in pieces(as_json(_said(message))):
        whole.update(piece.encode())
    return whole.digest()


def _said(message: Message) -> list[Any]:
    return [message["role"], *map(_told, as_blocks(message))]


def _told(block: Block) -> dict[str, Any]:
    told: dict[str, Any] = _own(block)
    if isinstance(told.get("content"), list | tuple):
        told["content"] = [_own(held) for held in told["content"]]
    return told


def _own(block: Block) -> Any:
    """What *block* says beside a cache mark; text and the like, which only an unknown block holds, as it is."""
    if not isinstance(block, Mapping) and not hasattr(block, "model_dump"):
        return block
    return {key: value for key, value in as_dict(block).items() if key != MARK and value is not None}


# Cache marks --------------------------------------------------------------------------------------------------------


def with_marks(message: Message, source: Message) -> Message:
    """*message* with the cache marks that *source*, the message it was made from, has at the same blocks."""
    ours, theirs = as_blocks(message), as_blocks(source)
    if len(ours) != len(theirs):
        return unmarked(message)
    return _with(message, ours, [_marked(own, other) for own, other in zip(ours, theirs, strict=True)])


def unmarked(message: Message) -> Message:
    """*message* without cache marks; the same object when it has none."""
    ours = blocks(message)
    return _with(message, ours, [_marked(block, {}) for block in ours])


def _with(message: Message, ours: Sequence[Block], content: Sequence[Block]) -> Message:
    return message if _are_same(ours, content) else cast("Message", {**message, "content": content})


def _marked(block: Block, source: Block) -> Block:
    held, given = read(block, "content"), read(source, "content")
    inner = held
    if isinstance(held, list | tuple):
        sources = given if isinstance(given, list | tuple) and len(given) == len(held) else [{}] * len(held)
        inner = [_own_mark(one, other) for one, other in zip(held, sources, strict=True)]
    same = held if inner is held or _are_same(inner, held) else inner
    return _own_mark(block if same is held else {**as_dict(block), "content": same}, source)


def _own_mark(block: Block, source: Block) -> Block:
    """*block* with the mark of *source*; the same object where it has that already."""
    mark = read(source, MARK)
    if read(block, MARK) == mark:
        return block
    plain = {key: value for key, value in as_dict(block).items() if key != MARK}
    return {**plain, MARK: mark} if mark else plain
