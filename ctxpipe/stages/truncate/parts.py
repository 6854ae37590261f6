"""Join what is left of the messages of a history into messages that the API accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ...messages import THINKING, Message, as_blocks, blocks, has_thinking, kind, with_content


@dataclass(frozen=True, slots=True)
class Part:
    """The rest of the message that has this *index* in the history."""

    index: int
    message: Message


class Ends(NamedTuple):
    """The index of the first request of a history, and the index where its last turn begins."""

    first_request: int
    last_turn: int


@dataclass(frozen=True, slots=True)
class EditableRegion:
    """The messages of a history that may be edited, as indices.

    *ends* are the first request and the last turn, between which the *middle* is. Messages in the
    middle may be edited, except those that are *pinned*. Messages in *stay* must not change at all,
    not even by being joined with another one. Thinking may be removed from messages in *movable*:
    those of the middle that are not in an open tool loop.
    """

    ends: Ends
    middle: range
    stay: AbstractSet[int]
    movable: range
    pinned: AbstractSet[int]


def join_parts(parts: Sequence[Part]) -> list[Message]:
    """Return the messages that *parts* make.

    Neighbors of one role are joined if messages between them were removed; results come first.
    Thinking that such a join would move must have been removed from the parts before.
    """
    messages: list[Message] = []
    for before, part in with_previous(parts):
        if meets(before, part):
            content = [*as_blocks(messages[-1]), *as_blocks(part.message)]
            content.sort(key=lambda block: kind(block) != "tool_result")
            messages[-1] = with_content(messages[-1], content)
        else:
            messages.append(part.message)
    return messages


def with_previous(parts: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Yield each of *parts* after the one before it; the first one after itself."""
    return pairwise([*parts[:1], *parts])


def meets(one: Part, other: Part) -> bool:
    """Return True if two neighboring parts have the same role, and lost messages between them."""
    if other.index <= one.index + 1:
        return False
    return one.message["role"] == other.message["role"]


# The API takes a system message only after the user's, and before the assistant's.
_MISPLACED = frozenset({("assistant", "system"), ("system", "user")})


def fits(parts: Sequence[Part], region: EditableRegion, *, can_join: bool = True) -> bool:
    """Return True if *parts* can follow each other in a valid history.

    If *can_join* is False, parts of one role must not meet.
    """
    for part, next_part in pairwise(parts):
        roles = part.message["role"], next_part.message["role"]
        if next_part.index > part.index + 1 and roles in _MISPLACED:
            return False
        if not meets(part, next_part):
            continue
        if not can_join or not _can_be_joined(part, next_part, region):
            return False
    return True


def _can_be_joined(one: Part, other: Part, region: EditableRegion) -> bool:
    """Return True if neither part must stay, and no thinking would move that may not."""
    if one.index in region.stay or other.index in region.stay:
        return False
    if other.index in region.movable:
        return True
    return not has_thinking(other.message)


def without_moving_thinking(parts: Sequence[Part]) -> list[Part]:
    """Return *parts* without the thinking that would move when they are joined.

    So the tokens of a part are already those that it will have.
    """
    stripped: list[Part] = []
    for previous, part in with_previous(parts):
        if meets(previous, part) and has_thinking(part.message):
            content = [block for block in blocks(part.message) if kind(block) not in THINKING]
            stripped.append(replace(part, message=with_content(part.message, content)))
        else:
            stripped.append(part)
    return stripped
