"""Shorten the middle of a history without a model.

First the tool calls in the middle are removed with their results (`filter_calls`), then a block of
messages around its center (`delete_center`). In between, the history is a list of `Part`: what is
left of each message, with the index that it had.

    |head|first request|  …  |      middle      |  …  |last turn|
                             1/6              5/6     of all tokens after the head
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal, TypeAlias

from ...messages import (
    THINKING,
    Message,
    as_blocks,
    blocks,
    has_thinking,
    is_opaque,
    kind,
    result_text,
    texts,
    tool_calls,
    tool_results,
    with_content,
)
from ...messages import field as read
from ...messages.thinking import open_loop
from ...messages.vocabulary import head_length
from ...placeholders.placeholders import MAX_PREVIEW_CHARS, any_reference, is_folded
from ...providers.agent_tools import READING_TOOLS, ReadingTools
from ..reading.carry_candidates import blocks_to_carry
from ..reading.groups import groups, server_spans
from ..reading.pins import Pin
from ..reading.results import is_text
from ..reading.unanswered import index_after_last_reply
from ..reading.user_commands import extract_commands
from ..reading.views import viewed_path

Window: TypeAlias = Literal["average", "covering"]
"""Amount to delete: ceil(excess / average) messages, or whole turns until they cover the excess."""

MIDDLE_START = Fraction(1, 6)
MIDDLE_END = Fraction(5, 6)

_MAX_FOLDED_CHARS = 50_000  # a longer text is not taken for a folded file
_MAX_WIDENING = 64  # units by which a block may grow or shrink until its edges fit


@dataclass(frozen=True, slots=True)
class MiddleRules:
    """Rules for which part of a history may be shortened.

    The middle is between *start* and *end* of all tokens. *reading_tools* maps the name of each
    tool that reads a file to the input key with the path. If *shell* is True, command lines that
    only print a file count too. The messages that *pin* chooses stay.
    """

    start: Fraction | float = MIDDLE_START
    end: Fraction | float = MIDDLE_END
    reading_tools: ReadingTools = field(default_factory=lambda: READING_TOOLS)
    shell: bool = False
    pin: Pin | None = None


# The middle ---------------------------------------------------------------------------------------


def middle(
    messages: Sequence[Message],
    sums: Sequence[int],
    start: Fraction | float = MIDDLE_START,
    end: Fraction | float = MIDDLE_END,
    protected_count: int = 0,
) -> range:
    """Return the indices of the middle: the messages between *start* and *end* of the tokens.

    ``sums[n]`` are the tokens of the first n messages; those of the head do not count. The first
    request, the last turn and the first *protected_count* messages are never in the middle.
    """
    head = head_length(messages)
    by_tokens = middle_range(sums[head:], start, end)
    first = max(by_tokens.start + head, first_request(messages) + 1, protected_count)
    stop = min(by_tokens.stop + head, last_turn(messages))
    return range(first, stop) if first < stop else range(0)


def middle_range(sums: Sequence[int], start: Fraction | float, end: Fraction | float) -> range:
    """Return the indices of the messages that are wholly between *start* and *end* of all tokens.

    ``sums[n]`` are the tokens of the first n messages and of everything before them. Returns
    ``range(0, 0)`` if there are none.
    """
    base = sums[0]
    total = sums[-1] - base
    if not total:
        return range(0)
    first = bisect_left(sums, base + Fraction(start) * total)
    stop = bisect_right(sums, base + Fraction(end) * total) - 1
    return range(first, stop) if first < stop else range(0)


def first_request(messages: Sequence[Message]) -> int:
    """Return the index of the first request, after messages that have unknown blocks only."""
    first = head_length(messages)
    for index in range(first, len(messages)):
        content = blocks(messages[index])
        if messages[index]["role"] != "user" or not content:
            return index
        if not all(is_opaque(block) for block in content):
            return index
    return first


def indices_to_carry(messages: Sequence[Message]) -> set[int]:
    """Return the indices of the messages with unknown blocks, references, or loaded tools.

    A reference in a result counts as any other part of the result.
    """
    indices: set[int] = set()
    for candidate in blocks_to_carry(messages):
        content = blocks(messages[candidate.index])
        if candidate.origin is not None and kind(content[candidate.place]) == "tool_result":
            continue
        indices |= set(range(candidate.index, candidate.index + len(candidate.messages)))
    return indices


def last_turn(messages: Sequence[Message]) -> int:
    """Return the index where the last turn begins.

    The last turn has the unanswered messages, and the calls whose results are among them.
    """
    start = index_after_last_reply(messages)
    if any(tool_results(messages, start)) or start == len(messages):
        start -= 1
    return max(0, start)


# File views ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileView:
    """The result of a call that looked at a file.

    *place* is its message and block index, *text* what the model saw; "" if it was not only text.
    """

    place: tuple[int, int]
    path: str
    text: str

    @property
    def is_foldable(self) -> bool:
        """True if the text is a file's text that has not been offloaded or folded yet."""
        if not self.text or any_reference(self.text, MAX_PREVIEW_CHARS) is not None:
            return False
        return len(self.text) > _MAX_FOLDED_CHARS or not is_folded(self.text)


def file_views(
    messages: Sequence[Message], tools: ReadingTools = READING_TOOLS, shell: bool = False
) -> list[FileView]:
    """Return every file view that has a result, oldest first.

    The result for a program is no view: the model has not seen it.
    """
    paths: dict[tuple[int, str], str] = {}
    for call in tool_calls(messages):
        if call.program is None:
            path = viewed_path(call, tools, shell)
            if path is not None:
                paths[call.message + 1, call.id] = path
    views: list[FileView] = []
    for result in tool_results(messages):
        path = paths.get((result.message, result.tool_use_id))
        if path is not None:
            text = result_text(result) if is_text(result.content) else ""
            views.append(FileView(result.place, path, text))
    return views


# Parts --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """The rest of the message that has this *index* in the history."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True)
class EditableRegion:
    """The messages of a history that may be edited, as indices.

    Messages in the *middle* may be edited, except those that are *pinned*. Messages in *stay* must
    not change at all, not even by being joined with another one. Thinking may be removed from
    messages in *movable*: those of the middle that are not in an open tool loop.
    """

    middle: range
    stay: AbstractSet[int]
    movable: range
    pinned: AbstractSet[int]


def editable_region(
    messages: Sequence[Message],
    middle: range,
    *,
    strict: bool = False,
    pinned: AbstractSet[int] = frozenset(),
) -> EditableRegion:
    """Return the region with the *middle*, where the messages *pinned* stay.

    The first request and the last turn stay unchanged. If *strict* is True, so does every message
    outside the middle: nothing is joined with it.
    """
    all_indices = range(len(messages))
    if strict:
        stay = frozenset(all_indices) - frozenset(middle)
    else:
        stay = frozenset({first_request(messages), *all_indices[last_turn(messages) :]})
    movable_end = min(middle.stop, open_loop(messages))
    return EditableRegion(middle, stay | pinned, range(middle.start, movable_end), pinned)


def join_parts(parts: Sequence[Part]) -> list[Message]:
    """Return the messages that *parts* make.

    Neighbors of one role are joined if messages between them were removed; results come first.
    Thinking that such a join would move must have been removed from the parts before.
    """
    messages: list[Message] = []
    for before, part in _with_previous(parts):
        if _meets(before, part):
            content = [*as_blocks(messages[-1]), *as_blocks(part.message)]
            content.sort(key=lambda block: kind(block) != "tool_result")
            messages[-1] = with_content(messages[-1], content)
        else:
            messages.append(part.message)
    return messages


def _with_previous(parts: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Yield each of *parts* after the one before it; the first one after itself."""
    return pairwise([*parts[:1], *parts])


def _meets(one: Part, other: Part) -> bool:
    """Return True if two neighboring parts have the same role, and lost messages between them."""
    if other.index <= one.index + 1:
        return False
    return one.message["role"] == other.message["role"]


# The API takes a system message only after the user's, and before the assistant's.
_MISPLACED = frozenset({("assistant", "system"), ("system", "user")})


def _fits(parts: Sequence[Part], region: EditableRegion, *, can_join: bool = True) -> bool:
    """Return True if *parts* can follow each other in a valid history.

    If *can_join* is False, parts of one role must not meet.
    """
    for part, next_part in pairwise(parts):
        roles = part.message["role"], next_part.message["role"]
        if next_part.index > part.index + 1 and roles in _MISPLACED:
            return False
        if not _meets(part, next_part):
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


# Filtering ----------------------------------------------------------------------------------------


def filter_calls(
    messages: Sequence[Message], region: EditableRegion, views: AbstractSet[tuple[int, int]]
) -> tuple[list[Part], int]:
    """Remove each tool call in the middle with its result, except file views.

    *views* are the places of the results of file views. All text stays. Thinking is removed with
    its call if nothing else is left of the message, or if a join would move it. A call stays if its
    removal would change a message that must stay, or move thinking that may not move. Returns what
    is left, and the number of calls removed.
    """
    # From the last to the first: whether a call can go depends on what is left after it.
    parts: list[Part] = []
    removed_count = 0
    index = len(messages) - 1
    while index >= 0:
        call_ids = _removable_calls(messages, index - 1, region, views)
        if call_ids:
            rest = _without_calls(messages, index - 1, call_ids)
            neighbors = [*rest, *parts[-1:]]
            if index >= 2:
                neighbors.insert(0, Part(index - 2, messages[index - 2]))
            if _fits(neighbors, region):
                parts += reversed(rest)
                removed_count += len(call_ids)
                index -= 2
                continue
        parts.append(Part(index, messages[index]))
        index -= 1
    parts.reverse()
    if removed_count:
        parts = _without_moving_thinking(parts)
    return parts, removed_count


def _removable_calls(
    messages: Sequence[Message],
    index: int,
    region: EditableRegion,
    views: AbstractSet[tuple[int, int]],
) -> AbstractSet[str]:
    """Return the ids of the calls of message *index*, without file views and programs' calls.

    Returns none if the message or the one with the results must not be edited.
    """
    for place in (index, index + 1):
        if place not in region.middle or place in region.pinned:
            return frozenset()
    results = tool_results(messages, index + 1, index + 2)
    viewing = {result.tool_use_id for result in results if result.place in views}
    own_calls = {call.id for call in tool_calls(messages, index, index + 1) if call.program is None}
    return own_calls - viewing


def _without_calls(
    messages: Sequence[Message], index: int, call_ids: Collection[str]
) -> list[Part]:
    """Return what is left of the message *index* and of its results without *call_ids*."""
    parts: list[Part] = []
    for place, name, key in ((index, "tool_use", "id"), (index + 1, "tool_result", "tool_use_id")):
        remaining = [
            block
            for block in blocks(messages[place])
            if kind(block) != name or str(read(block, key)) not in call_ids
        ]
        while remaining and kind(remaining[-1]) in THINKING:
            remaining.pop()
        if remaining:
            parts.append(Part(place, with_content(messages[place], remaining)))
    return parts


def _without_moving_thinking(parts: Sequence[Part]) -> list[Part]:
    """Return *parts* without the thinking that would move when they are joined.

    So the tokens of a part are already those that it will have.
    """
    stripped: list[Part] = []
    for previous, part in _with_previous(parts):
        if _meets(previous, part) and has_thinking(part.message):
            content = [block for block in blocks(part.message) if kind(block) not in THINKING]
            stripped.append(replace(part, message=with_content(part.message, content)))
        else:
            stripped.append(part)
    return stripped


# Deleting -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unit:
    """Places of parts that are removed together, or stay.

    A unit is a turn's call with its results, or a single message. *stays* is True if it is pinned
    or has a command of the user.
    """

    span: range
    tokens: int
    stays: bool


def delete_center(
    parts: list[Part],
    sizes: Sequence[int],
    region: EditableRegion,
    excess: int,
    window: Window = "average",
    marker: str = "",
) -> list[Part]:
    """Delete one block of whole turns around the center of the middle.

    *sizes* are the tokens of each part, *excess* the tokens to save. With the window "average" the
    block has ceil(excess / average size in the middle) messages. With "covering" it has at least as
    many, and also whole turns until their sizes cover the excess. The block is widened until roles
    alternate at its edges; if no width fits, the neighbors are joined. A message with a user's
    ``<command>`` stays as a hole in the block. *marker* is put after the user's words before it.

    Returns the very same list if nothing can be deleted.
    """
    units = _units(parts, sizes, region)
    deletable = [unit for unit in units if not unit.stays]
    tokens = sum(unit.tokens for unit in deletable)
    if excess <= 0 or not tokens:
        return parts
    total = excess * sum(len(unit.span) for unit in deletable)
    message_count = -(-total // tokens)  # rounded up
    covered_tokens = excess if window == "covering" else 0
    best_block = _around_center(units, message_count, covered_tokens)
    for block, can_join in _blocks_to_try(best_block, len(units)):
        block_units = units[block]
        start = block_units[0].span.start
        stop = block_units[-1].span.stop
        holes: list[Part] = []
        for unit in block_units:
            if unit.stays:
                holes += parts[unit.span.start : unit.span.stop]
        if _fits([parts[start - 1], *holes, parts[stop]], region, can_join=can_join):
            before = _add_marker(parts[:start], marker)
            return _without_moving_thinking([*before, *holes, *parts[stop:]])
    return parts


def _units(parts: Sequence[Part], sizes: Sequence[int], region: EditableRegion) -> list[_Unit]:
    """Return the groups of messages that leave together, if they are wholly in the middle.

    *sizes* are the tokens of *parts*. A group with a pinned message or a command is marked to stay.
    """
    units: list[_Unit] = []
    for span in groups([part.message for part in parts]):
        unit_parts = parts[span.start : span.stop]
        if not all(part.index in region.middle for part in unit_parts):
            continue
        tokens = sum(sizes[span.start : span.stop])
        stays = any(
            part.index in region.pinned or extract_commands([part.message]) for part in unit_parts
        )
        units.append(_Unit(span, tokens, stays))
    return units


def _around_center(units: Sequence[_Unit], message_count: int, tokens: int) -> range:
    """Return the range of units around the center to delete.

    They have *message_count* messages and *tokens* tokens or more; all units if they have fewer.
    """
    edges = [unit.span.start for unit in units]
    edges.append(units[-1].span.stop)
    center = (edges[0] + edges[-1]) / 2
    low = min(range(len(edges)), key=lambda place: abs(edges[place] - center))
    high = low
    while (message_count > 0 or tokens > 0) and high - low < len(units):
        is_left_nearer = center - edges[low] <= edges[high] - center
        if low > 0 and (is_left_nearer or high == len(units)):
            low -= 1
            unit = units[low]
        else:
            unit = units[high]
            high += 1
        if not unit.stays:
            message_count -= len(unit.span)
            tokens -= unit.tokens
    return range(low, high)


def _blocks_to_try(best_block: range, unit_count: int) -> Iterator[tuple[slice, bool]]:
    """Yield blocks of units near *best_block*, the best first.

    The second value is True if the messages at the edges of the block may be joined. First come
    blocks up to two units longer without joining, then longer ones and shorter ones with joining.
    """
    tries = [(longer, False) for longer in range(3)]
    tries += [(longer, True) for longer in range(_MAX_WIDENING)]
    tries += [(-shorter, True) for shorter in range(1, min(len(best_block), _MAX_WIDENING))]
    for length_change, can_join in tries:
        # A longer block begins earlier, a shorter one later.
        direction = -1 if length_change > 0 else 1
        for shift in range(abs(length_change) + 1):
            start = best_block.start + direction * shift
            stop = start + len(best_block) + length_change
            if start >= 0 and stop <= unit_count:
                yield slice(start, stop), can_join


def _add_marker(parts: list[Part], marker: str) -> list[Part]:
    """Return *parts* with *marker* after the last words or results of the user.

    Returns the very same list if *marker* is "".
    """
    if not marker:
        return parts
    spans, _ = server_spans([part.message for part in parts])
    inside_server_calls = {place for span in spans for place in span}
    last_place = None
    for place, part in enumerate(parts):
        if part.message["role"] == "user" and place not in inside_server_calls:
            last_place = place
    if last_place is None or marker in texts(parts[last_place].message):
        return parts
    message = parts[last_place].message
    content = [*as_blocks(message), {"type": "text", "text": marker}]
    marked = replace(parts[last_place], message=with_content(message, content))
    return [*parts[:last_place], marked, *parts[last_place + 1 :]]


# Reports ------------------------------------------------------------------------------------------


def breakdown_by_source(
    messages: Sequence[Message],
    parts: Sequence[Part],
    sizes: Sequence[int],
    region: EditableRegion,
    overhead: int,
) -> str:
    """Return a text that says where the remaining tokens are, the largest share first.

    *parts* are what is left of *messages*, *sizes* their tokens, *overhead* those of the system
    prompt and the tools.
    """
    first = first_request(messages)
    last = last_turn(messages)
    shares = Counter({"the system prompt and the tools": overhead})
    for part, tokens in zip(parts, sizes, strict=True):
        shares[_region_name(part.index, first, last, region.middle)] += tokens
    largest = shares.most_common()
    return ", ".join(f"{tokens:,} tokens in {name}" for name, tokens in largest if tokens)


def _region_name(index: int, first: int, last: int, middle: range) -> str:
    """Return the name of the part of a history that message *index* is in, for a report.

    *first* is the index of the first request, *last* that of the last turn.
    """
    if index < first:
        return "the system messages"
    if index >= last:
        return "the last turn"
    if index == first:
        return "the first request"
    if index in middle:
        return "file views, commands, references and texts of the middle"
    if index >= middle.stop:
        return "what follows the middle"
    return "what precedes the middle"
