"""Cache marks in messages: find them, change them, and keep to the limits of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._values import as_dict
from .rules import MarkPlace, OtherMarks, available_marks, cache_marks, late_hour_marks
from .vocabulary import Block, Message, blocks, field, with_content, without_key


def limit_marks(messages: list[Message], other_marks: OtherMarks) -> list[Message]:
    """Return *messages* with only as many cache marks as *other_marks* leaves.

    The last marks stay, since they cover most of the prompt. A mark with a lifetime of an hour
    after a shorter one is shortened too.
    """
    marks = mark_places(messages)
    surplus = max(0, len(marks) - available_marks(other_marks))
    messages = change_marked(messages, marks[:surplus], _without_mark)
    late = late_hour_marks(messages, range(len(messages)), other_marks)
    return change_marked(messages, late, _without_hour)


def mark_places(messages: Iterable[Message]) -> list[tuple[int, MarkPlace]]:
    """Return the message index and the place of each cache mark in *messages*, in order."""
    places: list[tuple[int, MarkPlace]] = []
    for index, message in enumerate(messages):
        places += [(index, place) for place, _ in cache_marks(message)]
    return places


def change_marked(
    messages: Sequence[Message],
    marks: Iterable[tuple[int, MarkPlace]],
    change: Callable[[Block], dict[str, Any]],
) -> list[Message]:
    """Return *messages* with *change* applied to each block that has one of these *marks*.

    A mark's place is the index of its block; for a block within a result also the index in it.
    """
    contents: dict[int, list[Any]] = {}
    inner_contents: dict[tuple[int, int], list[Any]] = {}
    for index, (place, inner) in marks:
        if index not in contents:
            contents[index] = list(blocks(messages[index]))
        content = contents[index]
        if inner is None:
            content[place] = change(content[place])
            continue
        if (index, place) not in inner_contents:
            block = as_dict(content[place])
            parts = list(block["content"])
            content[place] = {**block, "content": parts}
            inner_contents[index, place] = parts
        parts = inner_contents[index, place]
        parts[inner] = change(parts[inner])
    edited = list(messages)
    for index, content in contents.items():
        edited[index] = with_content(edited[index], content)
    return edited


def _without_mark(block: Block) -> dict[str, Any]:
    return without_key(block, "cache_control")


def _without_hour(block: Block) -> dict[str, Any]:
    return {**as_dict(block), "cache_control": without_key(field(block, "cache_control"), "ttl")}
