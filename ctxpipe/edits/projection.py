"""History to context, remembered: which context a known history has become, and where the two correspond."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..messages import as_dict, blocks, common_prefix, compact_json, field

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = ["Opening", "Projection", "digest", "unmarked", "with_marks"]

MARK = "cache_control"
RECENT = 64  # messages from the end in which a caller moves cache marks


@dataclass(frozen=True, slots=True)
class Opening:
    """What a projection makes of a history before any stage has run.

    *context* ends with the new messages as they came; its first *same* messages are those of the last turn, as far as
    that is known (None: compare). *known* messages of the history had been projected before. The caller has *adopted*
    the context as his history; the history has *diverged* from the known one; then what was known may be of no use
    any more, and the projection has *restarted*.
    """

    context: list[Message]
    known: int
    same: int | None = None
    adopted: bool = False
    diverged: bool = False
    restarted: bool = False


class Projection:
    """What a conversation's *history* has become: its *context*.

    Behind ``base`` = (history index, context index) the two correspond message by message; before it a stage has
    changed their number. With *verify* edits inside known messages are noticed, at the price of reading them all.
    """

    __slots__ = ("_digests", "_last", "_verify", "base", "context", "history")

    def __init__(self, *, verify: bool = False) -> None:
        self.history: list[Message] = []
        self.context: list[Message] = []
        self.base = (0, 0)
        self._verify = verify
        self._digests: list[bytes] = []
        self._last: object = None  # the content of the last known message, as it was

    def begin(self, history: list[Message]) -> Opening:
        """The context for *history* as far as it is known, and what is new.

        A history that was shortened, branched or rebuilt is cut back to the common beginning. A caller who goes on
        with the context itself is recognised. Cache marks are taken from *history*.
        """
        moved: list[int] = []
        known = self._agreeing(self.history, history, moved)
        adopted = known < len(self.history) and self._is_adopted(history)
        if adopted:
            self.history, self.base, known = list(self.context), (0, 0), len(self.context)
        known = self._unedited(history, known)
        diverged = known < len(self.history)
        if known and not diverged and _content(self.history[-1]) != self._last:
            known -= 1  # results were appended to the last message in place
        restarted = known < len(self.history) and self._cut(known)
        same = self._take_marks(history, moved)
        self.history += history[known:]
        self._last = _content(self.history[-1]) if self.history else None
        context = [*self.context, *history[known:]]
        return Opening(context, known, None if diverged else same, adopted, diverged, restarted)

    def end(self, given: Sequence[Message], context: Sequence[Message]) -> None:
        """Remember that *given*, the context that `begin` returned, has become *context*."""
        if len(given) != len(context):
            self.base = len(self.history), len(context)
            self.context = [unmarked(message) for message in context]
        elif given is context:
            self.context += context[len(self.context) :]
        else:
            self.context = list(context)

    def resume(self, history: list[Message], context: list[Message], base: tuple[int, int]) -> None:
        """Begin with what another process has remembered."""
        self.history, self.context, self.base = list(history), list(context), base
        self._digests = [digest(message) for message in history] if self._verify else []
        self._last = _content(history[-1]) if history else None

    def _is_adopted(self, history: Sequence[Message]) -> bool:
        return bool(self.context) and self._agreeing(self.context, history, []) == len(self.context)

    def _cut(self, known: int) -> bool:
        """Keep what belongs to the first *known* messages; True when that is nothing and the projection restarts."""
        in_history, in_context = self.base
        restarts = known < in_history
        if restarts:
            # The summary speaks of messages that are no longer there: begin anew from those that are.
            self.context, self.base = self.history[:known], (0, 0)
        else:
            del self.context[in_context + known - in_history :]
        del self.history[known:], self._digests[known:]
        return restarts

    def _agreeing(self, ours: Sequence[Message], theirs: Sequence[Message], moved: list[int]) -> int:
        """How many leading messages are the same but for cache marks; *moved* gets those that differ in them."""
        agreed = common_prefix(ours, theirs)
        while agreed < min(len(ours), len(theirs)) and unmarked(ours[agreed]) == unmarked(theirs[agreed]):
            moved.append(agreed)
            agreed += 1
            agreed += common_prefix(ours[agreed:], theirs[agreed:])
        return agreed

    def _unedited(self, history: Sequence[Message], known: int) -> int:
        """How many of the *known* messages are word for word as they were, all of them without *verify*."""
        if not self._verify:
            return known
        digests = [digest(message) for message in history]
        pairs = enumerate(zip(self._digests[:known], digests, strict=False))
        same = next((index for index, (old, new) in pairs if old != new), known)
        self._digests = digests
        return same

    def _take_marks(self, history: Sequence[Message], moved: Sequence[int]) -> int:
        """Bring the context's cache marks up to date; return the first index at which the context changed."""
        shift = self.base[1] - self.base[0]
        first = len(self.history) - RECENT if not self._verify else 0
        recent = range(max(self.base[0], first, 0), len(self.history))
        same = len(self.context)
        for index in {*recent, *(index for index in moved if self.base[0] <= index < len(self.history))}:
            held, given = self.context[index + shift], history[index]
            updated = given if held is self.history[index] else with_marks(held, given)
            if updated is not held and updated != held:
                same = min(same, index + shift)
            self.context[index + shift], self.history[index] = updated, given
        return same


def digest(message: Message) -> bytes:
    """A hash of what *message* says: cache marks, and keys that are None, make no difference."""
    content = message["content"]
    told = content if isinstance(content, str) else [_told(block) for block in blocks(message)]
    text = compact_json([message["role"], told])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()


def _told(block: Block) -> dict[str, Any]:
    return {key: value for key, value in as_dict(block).items() if key != MARK and value is not None}


def with_marks(message: Message, source: Message) -> Message:
    """*message* with the cache marks that *source*, the message it was made from, has at the same blocks."""
    ours, theirs = blocks(message), blocks(source)
    if len(ours) != len(theirs):
        return unmarked(message)
    if all(field(own, MARK) == field(other, MARK) for own, other in zip(ours, theirs, strict=True)):
        return message
    marked = [_marked(own, field(other, MARK)) for own, other in zip(ours, theirs, strict=True)]
    return cast("Message", {**message, "content": marked})


def unmarked(message: Message) -> Message:
    """*message* without cache marks; the same object when it has none."""
    if not any(field(block, MARK) for block in blocks(message)):
        return message
    return cast("Message", {**message, "content": [_marked(block, None) for block in blocks(message)]})


def _marked(block: Block, mark: Any) -> Block:
    if field(block, MARK) == mark:
        return block
    plain = {key: value for key, value in as_dict(block).items() if key != MARK}
    return {**plain, MARK: mark} if mark else plain


def _content(message: Message) -> object:
    content = message["content"]
    return content if isinstance(content, str) else list(content)
