"""Shorten the middle of a history without a model.

First tool calls are filtered out, then a block is deleted from the centre.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, pairwise
from typing import Literal, TypeAlias

from ..messages import (
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
from ..messages import field as read
from ..messages.vocabulary import head_length
from ..placeholders.placeholders import MAX_SHOWN, any_reference, is_folded
from ..providers.agent_tools import READING_TOOLS, ReadingTools
from .carry import blocks_to_carry
from .compact import extract_commands
from .groups import groups, has_compaction, server_spans
from .offload import is_text, unanswered_start
from .thinking import open_loop
from .views import viewed_path

Window: TypeAlias = Literal["average", "covering"]
"""How much is deleted.

Either ceil(excess / average) messages, or whole turns until the excess is covered.
"""

MIDDLE_START = Fraction(1, 6)
MIDDLE_END = Fraction(5, 6)

_MOST_FOLDED = 50_000  # characters of a text that is taken for a folded file
_MOST_WIDENING = 64


# The middle ---------------------------------------------------------------------------------------


def middle(
    messages: Sequence[Message],
    sums: Sequence[int],
    start: Fraction | float = MIDDLE_START,
    end: Fraction | float = MIDDLE_END,
    protected: int = 0,
) -> range:
    """The middle of what follows the head, given the tokens of the first 0, 1, 2, … messages.

    The first request, the last turn and the first *protected* messages are never in it.
    """
    first = head_length(messages)
    found = middle_range(sums[first:], start, end)
    begin = max(found.start + first, first_request(messages) + 1, protected)
    stop = min(found.stop + first, last_turn(messages))
    return range(begin, stop) if begin < stop else range(0)


def middle_range(sums: Sequence[int], start: Fraction | float, end: Fraction | float) -> range:
    """The messages that lie wholly between *start* and *end* of all tokens.

    *sums* are the tokens of the first 0, 1, 2, … messages, and of what precedes them. Half-open;
    ``range(0, 0)`` when there are none.
    """
    base = sums[0]
    total = sums[-1] - base
    if not total:
        return range(0)
    first = bisect_left(sums, base + Fraction(start) * total)
    stop = bisect_right(sums, base + Fraction(end) * total) - 1
    return range(first, stop) if first < stop else range(0)


def first_request(messages: Sequence[Message]) -> int:
    """Return the index of the first request, behind the messages that hold unknown blocks alone."""
    first = head_length(messages)
    for index in range(first, len(messages)):
        content = blocks(messages[index])
        if messages[index]["role"] != "user" or not content:
            return index
        if not all(is_opaque(block) for block in content):
            return index
    return first


def indices_to_carry(messages: Sequence[Message]) -> set[int]:
    """Return the indices of the messages with unknown blocks, references, and loaded tools."""
    indices: set[int] = set()
    for candidate in blocks_to_carry(messages):
        indices |= set(range(candidate.index, candidate.index + len(candidate.messages)))
    return indices


def last_turn(messages: Sequence[Message]) -> int:
    """Where the last turn begins: unanswered messages, with the calls that were answered in it."""
    start = unanswered_start(messages)
    if any(tool_results(messages, start)) or start == len(messages):
        start -= 1
    return max(0, start)


# File views ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileView:
    """The result of a call that looked at a file.

    Its *place* (message and block index), the *path*, and the *text* that the model saw.
    """

    place: tuple[int, int]
    path: str
    text: str

    @property
    def foldable(self) -> bool:
        """Whether the text is a file's, neither a pointer to an offloaded one nor folded."""
        if not self.text or any_reference(self.text, MAX_SHOWN) is not None:
            return False
        return len(self.text) > _MOST_FOLDED or not is_folded(self.text)


def file_views(
    messages: Sequence[Message], tools: ReadingTools = READING_TOOLS, shell: bool = False
) -> list[FileView]:
    """Every file view that is answered, oldest first.

    *text* is "" for one with anything but text. What a program has read is no view: the model has
    not seen it.
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
    """What is left of message *index*, until the parts of a history are joined."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True)
class EditableRegion:
    """What may be edited, as indices of the history.

    The *middle* may, and what is in *stay* must not be touched at all. Thinking may be taken out of
    messages in *movable*: in the middle, and in no tool loop that is still open. What is
    *pinned* stays although it lies in the middle.
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
    """What may be edited: the *middle*.

    The first request, the last turn and the messages *pinned* stay as they are; with *strict* so
    does every message outside the middle, which then is not even merged with.
    """
    every = range(len(messages))
    if strict:
        stay = frozenset(every) - frozenset(middle)
    else:
        stay = frozenset({first_request(messages), *every[last_turn(messages) :]})
    movable_end = min(middle.stop, open_loop(messages))
    return EditableRegion(middle, stay | pinned, range(middle.start, movable_end), pinned)


def join_parts(parts: Sequence[Part]) -> list[Message]:
    """The messages that *parts* make.

    Neighbours of the same role are merged where messages between them are gone; results come first.
    The thinking that would move has left the parts already.
    """
    messages: list[Message] = []
    for before, part in _with_neighbours(parts):
        if _meets(before, part):
            content = [*as_blocks(messages[-1]), *as_blocks(part.message)]
            content.sort(key=lambda block: kind(block) != "tool_result")
            messages[-1] = with_content(messages[-1], content)
        else:
            messages.append(part.message)
    return messages


def _with_neighbours(parts: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Each of *parts* after the one before it; the first one after itself."""
    return pairwise([*parts[:1], *parts])


def _meets(one: Part, other: Part) -> bool:
    """Whether two neighbouring parts have the same role, and had other messages between them."""
    if other.index <= one.index + 1:
        return False
    return one.message["role"] == other.message["role"]


# The API takes a system message only after the user's, and before the assistant's.
_MISPLACED = frozenset({("assistant", "system"), ("system", "user")})


def _fits(parts: Sequence[Part], ground: EditableRegion, *, merging: bool = True) -> bool:
    """Whether *parts* can follow each other.

    Without *merging*, whether their roles differ where they meet.
    """
    for one, other in pairwise(parts):
        roles = one.message["role"], other.message["role"]
        if other.index > one.index + 1 and roles in _MISPLACED:
            return False
        if _meets(one, other) and not (merging and _joinable(one, other, ground)):
            return False
    return True


def _joinable(one: Part, other: Part, ground: EditableRegion) -> bool:
    if one.index in ground.stay or other.index in ground.stay:
        return False
    if other.index in ground.movable:
        return True
    return not has_thinking(other.message)


# Filtering ----------------------------------------------------------------------------------------


def filter_calls(
    messages: Sequence[Message], ground: EditableRegion, views: AbstractSet[tuple[int, int]]
) -> tuple[list[Part], int]:
    """Delete each tool call that lies in the middle with its result, except file views.

    Those are the calls whose results are at the places *views*. All text stays. Thinking goes with
    its call when nothing else is left, and where a merge would move it. A call is spared where its
    removal would touch a message that must stay, or move thinking that may not move. Returns what
    is left, and how many calls went.
    """
    # From the last to the first: whether a call may go depends on what follows it.
    parts: list[Part] = []
    calls = 0
    index = len(messages) - 1
    while index >= 0:
        going = _removable_calls(messages, index - 1, ground, views)
        if going:
            rest = _without_calls(messages, index - 1, going)
            neighbours = [*rest, *parts[-1:]]
            if index >= 2:
                neighbours.insert(0, Part(index - 2, messages[index - 2]))
            if _fits(neighbours, ground):
                parts += reversed(rest)
                calls += len(going)
                index -= 2
                continue
        parts.append(Part(index, messages[index]))
        index -= 1
    parts.reverse()
    if calls:
        parts = _without_moving_thinking(parts)
    return parts, calls


def _removable_calls(
    messages: Sequence[Message],
    index: int,
    ground: EditableRegion,
    views: AbstractSet[tuple[int, int]],
) -> AbstractSet[str]:
    """The ids of the calls of message *index* that are no file views, nor part of a program.

    None where the message or the one with the results must not be edited.
    """
    for place in (index, index + 1):
        if place not in ground.middle or place in ground.pinned:
            return frozenset()
    results = tool_results(messages, index + 1, index + 2)
    viewing = {result.tool_use_id for result in results if result.place in views}
    own_calls = {call.id for call in tool_calls(messages, index, index + 1) if call.program is None}
    return own_calls - viewing


def _without_calls(messages: Sequence[Message], index: int, going: Collection[str]) -> list[Part]:
    """What is left of the calling message *index* and of its answer when the calls *going* go."""
    parts: list[Part] = []
    for place, name, key in ((index, "tool_use", "id"), (index + 1, "tool_result", "tool_use_id")):
        given = blocks(messages[place])
        kept = [one for one in given if kind(one) != name or str(read(one, key)) not in going]
        while kept and kind(kept[-1]) in THINKING:
            kept.pop()
        if kept:
            parts.append(Part(place, with_content(messages[place], kept)))
    return parts


def _without_moving_thinking(parts: Sequence[Part]) -> list[Part]:
    """*parts* without the thinking that would move when they are joined.

    So their sizes are already what they will be.
    """
    stripped: list[Part] = []
    for one, part in _with_neighbours(parts):
        if _meets(one, part) and has_thinking(part.message):
            kept = [block for block in blocks(part.message) if kind(block) not in THINKING]
            stripped.append(replace(part, message=with_content(part.message, kept)))
        else:
            stripped.append(part)
    return stripped


# Deleting -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unit:
    """Places of parts that go together, or stay.

    A turn's call with its results, or a single message.
    """

    span: range
    tokens: int
    stays: bool


def delete_centre(
    parts: list[Part],
    sizes: Sequence[int],
    ground: EditableRegion,
    excess: int,
    window: Window = "average",
    marker: str = "",
) -> list[Part]:
    """Delete one block from the centre of the middle outwards, in one pass: whole turns and pairs.

    *sizes* are the tokens of each part. With "average" the block has ceil(excess / average of the
    middle) messages, with "covering" at least as many, and whole turns whose sizes cover the
    excess. It is widened until roles alternate at its edges; where that is not possible the
    neighbours are merged. A message with a user's ``<command>`` stays as a hole in it. *marker* is
    put after the user's words before it.

    The very same list comes back when nothing can go.
    """
    units = _units(parts, sizes, ground)
    free = [unit for unit in units if not unit.stays]
    tokens = sum(unit.tokens for unit in free)
    if excess <= 0 or not tokens:
        return parts
    total = excess * sum(len(unit.span) for unit in free)
    messages = -(-total // tokens)  # rounded up
    covering = excess if window == "covering" else 0
    wanted = _around_centre(units, messages, covering)
    for block, merging in _candidates(wanted, len(units)):
        chosen = units[block]
        start = chosen[0].span.start
        stop = chosen[-1].span.stop
        holes: list[Part] = []
        for unit in chosen:
            if unit.stays:
                holes += parts[unit.span.start : unit.span.stop]
        if _fits([parts[start - 1], *holes, parts[stop]], ground, merging=merging):
            before = _add_marker(parts[:start], marker)
            return _without_moving_thinking([*before, *holes, *parts[stop:]])
    return parts


def _units(parts: Sequence[Part], sizes: Sequence[int], ground: EditableRegion) -> list[_Unit]:
    """The middle as units; what begins before it or ends after it is left out."""
    units: list[_Unit] = []
    for span in groups([part.message for part in parts]):
        own = parts[span.start : span.stop]
        if not all(part.index in ground.middle for part in own):
            continue
        tokens = sum(sizes[span.start : span.stop])
        stays = any(part.index in ground.pinned or extract_commands([part.message]) for part in own)
        units.append(_Unit(span, tokens, stays))
    return units


def _around_centre(units: Sequence[_Unit], messages: int, tokens: int) -> range:
    """Units around the centre: enough to delete that many *messages* and *tokens*, or all."""
    edges = [unit.span.start for unit in units]
    edges.append(units[-1].span.stop)
    centre = (edges[0] + edges[-1]) / 2
    low = high = min(range(len(edges)), key=lambda place: abs(edges[place] - centre))
    while (messages > 0 or tokens > 0) and high - low < len(units):
        is_left_nearer = centre - edges[low] <= edges[high] - centre
        if low > 0 and (is_left_nearer or high == len(units)):
            low -= 1
            unit = units[low]
        else:
            unit = units[high]
            high += 1
        if not unit.stays:
            messages -= len(unit.span)
            tokens -= unit.tokens
    return range(low, high)


def _candidates(wanted: range, units: int) -> Iterator[tuple[slice, bool]]:
    """Blocks near the one *wanted*, the best first, each with whether its edges may be merged."""
    steps = [(more, False) for more in range(3)]
    steps += [(more, True) for more in range(_MOST_WIDENING)]
    steps += [(-less, True) for less in range(1, min(len(wanted), _MOST_WIDENING))]
    for change, merging in steps:
        for moved in range(abs(change) + 1):
            start = wanted.start - moved if change > 0 else wanted.start + moved
            stop = start + len(wanted) + change
            if start >= 0 and stop <= units:
                yield slice(start, stop), merging


def _add_marker(parts: list[Part], marker: str) -> list[Part]:
    """*parts* with *marker* after the last words or results of the user.

    The very same list for "".
    """
    if not marker:
        return parts
    spans, _ = server_spans([part.message for part in parts])
    at_work = set(chain.from_iterable(spans))
    users = (place for place, part in enumerate(parts) if part.message["role"] == "user")
    place = max(set(users) - at_work, default=None)
    if place is None or marker in texts(parts[place].message):
        return parts
    message = parts[place].message
    content = [*as_blocks(message), {"type": "text", "text": marker}]
    marked = replace(parts[place], message=with_content(message, content))
    return [*parts[:place], marked, *parts[place + 1 :]]


# Reports ------------------------------------------------------------------------------------------


def breakdown_by_source(
    messages: Sequence[Message],
    parts: Sequence[Part],
    sizes: Sequence[int],
    ground: EditableRegion,
    overhead: int,
) -> str:
    """What takes the tokens that could not be removed, the largest share first.

    *parts* are what is left of *messages*, *sizes* their tokens.
    """
    first = first_request(messages)
    last = last_turn(messages)
    shares = Counter({"the system prompt and the tools": overhead})
    for part, tokens in zip(parts, sizes, strict=True):
        shares[_region(part.index, first, last, ground.middle)] += tokens
    largest = shares.most_common()
    return ", ".join(f"{tokens:,} tokens in {name}" for name, tokens in largest if tokens)


def _region(index: int, first: int, last: int, middle: range) -> str:
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


# Without counting ---------------------------------------------------------------------------------


def truncate_conversation(messages: list[Message], fraction: float | Fraction) -> list[Message]:
    """*messages* without the oldest after the first request: that *fraction*, an even number.

    The head, the first request and all from a summary of the server's on stay. A cut between a call
    and its result moves back, so that fewer go. The very same list comes back when none goes.
    """
    first = head_length(messages) + 1
    going = int((len(messages) - first) * Fraction(str(fraction)))
    going = max(0, going // 2 * 2)
    # What the server has summarized, and what it reads of that, stays.
    summaries = (index for index in range(first, len(messages)) if has_compaction(messages[index]))
    wanted = min(first + going, next(summaries, len(messages)))
    stops = [span.stop for span in groups(messages) if span.stop <= wanted]
    stop = max([first, *stops])
    if stop == first:
        return messages
    return [*messages[:first], *messages[stop:]]
