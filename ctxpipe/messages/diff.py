"""Compare two lists of messages: the edits that turn one context into another.

before      a  b  c  d  e
after       a  X     d  Y  Z       (d is the very same object)
edits       [4:5] → Y, Z    and    [1:3] → X
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import Message, as_blocks, blocks, common_prefix, is_equal


class Edit(NamedTuple):
    """A replacement of ``before[start:stop]`` by *messages*."""

    start: int
    stop: int
    messages: list[Message]


def diff(
    before: Sequence[Message],
    after: Sequence[Message],
    *,
    equal_count: int = 0,
    paired: bool = True,
) -> list[Edit]:
    """Return the edits that turn *before* into *after*, the last one first.

    In that order each index is still right when the edit is applied. Messages that are the very
    same object in both lists are anchors. The messages between two anchors are paired one by one if
    their number, roles and numbers of blocks agree; otherwise they are one edit. If *paired* is
    False they are always one edit. A summary needs that if it has as many messages as it replaces.
    The first *equal_count* messages are not compared: the caller knows that they are equal.
    """
    edits: list[Edit] = []
    start = common_prefix(before, after, equal_count)
    for old, new in _between_anchors(before, after, start):
        edits += _edits(before, after, old, new, paired=paired)
    return edits[::-1]


def _between_anchors(
    before: Sequence[Message], after: Sequence[Message], start: int
) -> Iterator[tuple[range, range]]:
    """Yield the index ranges of both lists between their common messages, from *start* on."""
    places: dict[int, int] = {}
    for index in range(start, len(before)):
        places.setdefault(id(before[index]), index)
    old = start
    new = start
    for index in range(start, len(after)):
        place = places.get(id(after[index]), -1)
        if place < old:
            continue
        yield range(old, place), range(new, index)
        old = place + 1
        new = index + 1
    yield range(old, len(before)), range(new, len(after))


def _edits(
    before: Sequence[Message], after: Sequence[Message], old: range, new: range, *, paired: bool
) -> list[Edit]:
    """Return the edits that turn the messages *old* of *before* into the messages *new*."""
    if not old and not new:
        return []
    removed = before[old.start : old.stop]
    added = after[new.start : new.stop]
    if not paired or not _have_same_shape(removed, added):
        return [Edit(old.start, old.stop, list(added))]
    return [
        Edit(index, index + 1, [new_message])
        for index, old_message, new_message in zip(old, removed, added, strict=True)
        if not is_equal(old_message, new_message)
    ]


def _have_same_shape(some: Sequence[Message], others: Sequence[Message]) -> bool:
    """Return True if both have as many messages, with the same roles and numbers of blocks."""
    if len(some) != len(others):
        return False
    for one, other in zip(some, others, strict=True):
        if one["role"] != other["role"] or len(blocks(one)) != len(blocks(other)):
            return False
    return True


def apply_edits(messages: Sequence[Message], edits: Sequence[Edit]) -> list[Message]:
    """Return *messages* after *edits*, which are applied in order."""
    edited = list(messages)
    for edit in edits:
        edited[edit.start : edit.stop] = edit.messages
    return edited


def place_after(edits: Sequence[Edit], place: int) -> int:
    """Return the index after *edits* of the message at index *place*.

    If the message was replaced, it is an index up to the end of its replacement.
    """
    for start, stop, messages in edits:
        if place >= stop:
            place += len(messages) - (stop - start)
        elif place > start:
            place = min(place, start + len(messages))
    return place


def first_changed_block(before: Sequence[Message], edit: Edit) -> int:
    """Return the index of the first block that *edit* has changed in its first message.

    A string counts as one block.
    """
    if edit.start == edit.stop or not edit.messages:
        return 0
    old = before[edit.start]
    new = edit.messages[0]
    if old["role"] != new["role"]:
        return 0
    return common_prefix(list(as_blocks(old)), list(as_blocks(new)))
