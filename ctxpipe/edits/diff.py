"""How one list of messages became another: the one place where two contexts are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..messages import as_blocks, blocks, common_prefix, is_equal

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["Edit", "apply_edits", "diff", "first_changed_block"]


class Edit(NamedTuple):
    """*messages* stand where ``before[start:stop]`` stood."""

    start: int
    stop: int
    messages: list[Message]


def diff(before: Sequence[Message], after: Sequence[Message], *, paired: bool = True) -> list[Edit]:
    """What turns *before* into *after*, the last edit first, so that each index is still right when
    it is used.

    Messages that are the very same object are anchors. Between two anchors the messages are
    paired one by one where their number, roles and numbers of blocks agree; else they are one edit.
    Without *paired* they always are, as a summary has to be that is as long as what it stands for.
    """
    start = common_prefix(before, after)
    if start == len(before) == len(after):
        return []
    edits: list[Edit] = []
    for old, new in _between_anchors(before, after, start):
        edits += _edits(before, after, old, new, paired=paired)
    return edits[::-1]


def _between_anchors(
    before: Sequence[Message], after: Sequence[Message], start: int
) -> Iterator[tuple[range, range]]:
    """The parts of both lists, from *start* on, that lie between messages which both share."""
    places = {id(before[index]): index for index in range(len(before) - 1, start - 1, -1)}
    old, new = start, start
    for index in range(start, len(after)):
        place = places.get(id(after[index]), -1)
        if place < old:
            continue
        yield range(old, place), range(new, index)
        old, new = place + 1, index + 1
    yield range(old, len(before)), range(new, len(after))


def _edits(
    before: Sequence[Message], after: Sequence[Message], old: range, new: range, *, paired: bool
) -> list[Edit]:
    pairs = [(before[i], after[j]) for i, j in zip(old, new, strict=False)]
    if paired and len(old) == len(new) and all(_has_same_shape(one, other) for one, other in pairs):
        numbered = zip(old, pairs, strict=True)
        return [Edit(i, i + 1, [other]) for i, (one, other) in numbered if not is_equal(one, other)]
    if not old and not new:
        return []
    return [Edit(old.start, old.stop, [after[j] for j in new])]


def _has_same_shape(one: Message, other: Message) -> bool:
    return one["role"] == other["role"] and len(blocks(one)) == len(blocks(other))


def apply_edits(messages: Sequence[Message], edits: Sequence[Edit]) -> list[Message]:
    """*messages* after *edits*, one after the other."""
    changed = list(messages)
    for edit in edits:
        changed[edit.start : edit.stop] = edit.messages
    return changed


def first_changed_block(before: Sequence[Message], edit: Edit) -> int:
    """The first block that *edit* has changed in its first message.

    Bare text counts as one block.
    """
    if edit.start == edit.stop or not edit.messages:
        return 0
    old, new = before[edit.start], edit.messages[0]
    if old["role"] != new["role"]:
        return 0
    pairs = list(zip(as_blocks(old), as_blocks(new), strict=False))
    different = (
        i for i, (one, other) in enumerate(pairs) if one is not other and not is_equal(one, other)
    )
    return next(different, len(pairs))
