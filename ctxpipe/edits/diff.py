"""How one list of messages became another: the one place where two contexts are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..messages import Message, as_blocks, blocks, common_prefix, is_equal


class Edit(NamedTuple):
    """*messages* replace ``before[start:stop]``."""

    start: int
    stop: int
    messages: list[Message]


def diff(before: Sequence[Message], after: Sequence[Message], *, paired: bool = True) -> list[Edit]:
    """The edits that turn *before* into *after*.

    The last comes first, so that each index is still right when it is used. Messages that are the
    very same object are anchors. Between two anchors the messages are paired one by one where their
    number, roles and numbers of blocks agree; otherwise they are one edit. Without *paired* they
    always are, which a summary needs that has as many messages as it replaces.
    """
    edits: list[Edit] = []
    for old, new in _between_anchors(before, after, common_prefix(before, after)):
        edits += _edits(before, after, old, new, paired=paired)
    return edits[::-1]


def _between_anchors(
    before: Sequence[Message], after: Sequence[Message], start: int
) -> Iterator[tuple[range, range]]:
    """The parts of both lists, from *start* on, that are between messages which both share."""
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
    if not old and not new:
        return []
    removed = before[old.start : old.stop]
    added = after[new.start : new.stop]
    if not paired or len(old) != len(new) or not all(map(_has_same_shape, removed, added)):
        return [Edit(old.start, old.stop, list(added))]
    return [
        Edit(index, index + 1, [other])
        for index, one, other in zip(old, removed, added, strict=True)
        if not is_equal(one, other)
    ]


def _has_same_shape(one: Message, other: Message) -> bool:
    return one["role"] == other["role"] and len(blocks(one)) == len(blocks(other))


def apply_edits(messages: Sequence[Message], edits: Sequence[Edit]) -> list[Message]:
    """*messages* after *edits*, which are applied in order."""
    changed = list(messages)
    for edit in edits:
        changed[edit.start : edit.stop] = edit.messages
    return changed


def place_after(edits: Sequence[Edit], place: int) -> int:
    """Where what was at *place* is after *edits*; at the end of what has replaced it, at most."""
    for start, stop, messages in edits:
        if place >= stop:
            place += len(messages) - (stop - start)
        elif place > start:
            place = min(place, start + len(messages))
    return place


def first_changed_block(before: Sequence[Message], edit: Edit) -> int:
    """The first block that *edit* has changed in its first message.

    Bare text counts as one block.
    """
    if edit.start == edit.stop or not edit.messages:
        return 0
    old = before[edit.start]
    new = edit.messages[0]
    if old["role"] != new["role"]:
        return 0
    return common_prefix(list(as_blocks(old)), list(as_blocks(new)))
