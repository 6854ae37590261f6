"""Shorten the middle of a history without a model: tool calls filtered, then a block deleted from
the centre.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from ..messages import (
    THINKING,
    as_blocks,
    blocks,
    has_thinking,
    kind,
    split_system,
    texts,
    tool_calls,
    tool_results,
)
from ..messages import field as read
from ..placeholders import MAX_SHOWN, any_reference
from .compact import extract_commands
from .groups import groups, has_compaction, server_spans
from .offload import newest
from .thinking import open_loop
from .views import READING_TOOLS, ReadingTools, viewed_path

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = [
    "MIDDLE_END",
    "MIDDLE_START",
    "FileView",
    "Filtered",
    "Ground",
    "Part",
    "Window",
    "delete_centre",
    "file_views",
    "filter_calls",
    "ground",
    "has_command",
    "held",
    "joined",
    "last_turn",
    "middle",
    "middle_range",
    "truncate_conversation",
]

Window: TypeAlias = Literal["average", "covering"]
"""How much is deleted: ceil(excess / average) messages, or whole turns until the excess is covered
(A-62).
"""

MIDDLE_START, MIDDLE_END = Fraction(1, 6), Fraction(5, 6)

_FOLDED = re.compile(r"<system-reminder>\n## File Context: ")
_MOST_FOLDED = 50_000  # characters of a text that is taken for a folded file
_MOST_WIDENING = 64


# The middle ---------------------------------------------------------------------------------------


def middle_range(
    tokens: Sequence[int],
    start: Fraction | float = MIDDLE_START,
    end: Fraction | float = MIDDLE_END,
) -> range:
    """The messages that lie wholly between *start* and *end* of all *tokens*, given the tokens of
    each.

    Half-open; ``range(0, 0)`` when there are none. Source: ST-1 to ST-3, A-49.
    """
    return _between([0, *accumulate(tokens)], Fraction(start), Fraction(end))


def middle(
    messages: Sequence[Message],
    sums: Sequence[int],
    start: Fraction | float = MIDDLE_START,
    end: Fraction | float = MIDDLE_END,
) -> range:
    """The middle of what stands behind the head, given the tokens of the first 0, 1, 2, … messages.

    The first request and the last turn are never in it. Source: ST-18, A-49, A-63.
    """
    first = len(split_system(messages)[0])
    found = _between(sums[first:], Fraction(start), Fraction(end))
    inside = range(max(found.start, 1) + first, min(found.stop + first, last_turn(messages)))
    return inside if found and inside else range(0)


def _between(sums: Sequence[int], start: Fraction, end: Fraction) -> range:
    base, total = sums[0], sums[-1] - sums[0]
    found = range(
        bisect_left(sums, base + start * total), bisect_right(sums, base + end * total) - 1
    )
    return found if found and total else range(0)


def last_turn(messages: Sequence[Message]) -> int:
    """Where the last turn begins: what the model has not answered yet, with the calls that were
    answered in it.
    """
    start = newest(messages)
    answers = next(tool_results(messages, start), None) is not None
    return max(0, start - 1 if answers or start == len(messages) else start)


def has_command(message: Message) -> bool:
    """Whether the user's own text holds an active workflow, a ``<command>`` block.

    Source: ST-19, A-47.
    """
    return bool(extract_commands([message]))


# File views ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileView:
    """The result of a call that looked at a file: where it stands, the path, and the text that the
    model saw.
    """

    place: tuple[int, int]
    path: str
    text: str

    @property
    def foldable(self) -> bool:
        """Whether the text is a file's: no pointer to an offloaded one (A-17), and not folded
        already.
        """
        if not self.text or any_reference(self.text, MAX_SHOWN) is not None:
            return False
        return len(self.text) > _MOST_FOLDED or not _FOLDED.match(self.text)


def file_views(
    messages: Sequence[Message], tools: ReadingTools = READING_TOOLS, shell: bool = False
) -> list[FileView]:
    """Every file view that is answered, oldest first; *text* is "" for one with anything but text.
    Source: A-54.

    What a program has read is no view: it has not come before the model.
    """
    own = (call for call in tool_calls(messages) if call.program is None)
    calls = ((call, viewed_path(call, tools, shell)) for call in own)
    paths = {(call.message + 1, call.id): path for call, path in calls if path is not None}
    return [
        FileView(result.place, path, _text(result.content))
        for result in tool_results(messages)
        if (path := paths.get((result.message, result.tool_use_id))) is not None
    ]


def _text(content: str | Sequence[Block] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return (
        "\n".join(read(b, "text") or "" for b in content)
        if all(kind(b) == "text" for b in content)
        else ""
    )


# Parts --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A message on its way out: what is left of message *index*.

    The parts of a history are joined at the end.
    """

    index: int
    message: Message


@dataclass(frozen=True, slots=True)
class Ground:
    """What may be touched, as indices of the history: the *middle*, and what must *stay* exactly as
    it is.

    Thinking may be taken out of messages in *movable*: in the middle, and in no tool loop that is
    still open (R8). What is *pinned* stays although it lies in the middle (R4c).
    """

    middle: range
    stay: AbstractSet[int]
    movable: range
    pinned: AbstractSet[int] = frozenset()


def ground(
    messages: Sequence[Message],
    middle: range,
    *,
    protected: int = 0,
    strict: bool = False,
    pinned: AbstractSet[int] = frozenset(),
) -> Ground:
    """The ground around *middle*, as far as it lies behind the first *protected* messages.

    The first request, the last turn and the messages *pinned* stay as they are; with *strict* so
    does every message outside the middle, which then is not even merged with.
    """
    middle = (
        range(max(middle.start, protected), middle.stop) if middle.stop > protected else range(0)
    )
    ends = {len(split_system(messages)[0]), *range(last_turn(messages), len(messages))}
    stay = frozenset(range(len(messages))) - frozenset(middle) if strict else frozenset(ends)
    return Ground(
        middle, stay | pinned, range(middle.start, min(middle.stop, open_loop(messages))), pinned
    )


def joined(parts: Sequence[Part]) -> list[Message]:
    """The messages that *parts* make: neighbours of the same role merged where messages between
    them are gone.

    Results come first, and of the second message no thinking is taken along, since it would move.
    Source: A-52, R8.
    """
    messages: list[Message] = []
    for before, part in zip([None, *parts], parts, strict=False):
        if before is not None and _meets(before, part):
            content = [
                *as_blocks(messages[-1]),
                *(b for b in as_blocks(part.message) if kind(b) not in THINKING),
            ]
            messages[-1] = _with(
                messages[-1], sorted(content, key=lambda block: kind(block) != "tool_result")
            )
        else:
            messages.append(part.message)
    return messages


def _meets(one: Part, other: Part) -> bool:
    """Whether two neighbouring parts have the same role, and had other messages between them."""
    return one.message["role"] == other.message["role"] and other.index > one.index + 1


# The API takes a system message only after the user's, and before the assistant's.
_MISPLACED = frozenset({("assistant", "system"), ("system", "user")})


def _fits(parts: Sequence[Part], ground: Ground, *, merging: bool = True) -> bool:
    """Whether *parts* can stand one behind the other.

    Without *merging*, whether their roles differ where they meet.
    """
    for one, other in pairwise(parts):
        if other.index == one.index + 1:
            continue
        if (one.message["role"], other.message["role"]) in _MISPLACED:
            return False
        if _meets(one, other) and not (merging and _joinable(one, other, ground)):
            return False
    return True


def _joinable(one: Part, other: Part, ground: Ground) -> bool:
    untouched = one.index not in ground.stay and other.index not in ground.stay
    return untouched and (other.index in ground.movable or not has_thinking(other.message))


def _with(message: Message, content: Sequence[Block]) -> Message:
    return cast("Message", {**message, "content": list(content)})


# Filtering ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filtered:
    """What is left of a history when *calls* tool calls are gone."""

    parts: list[Part]
    calls: int


def filter_calls(
    messages: Sequence[Message], ground: Ground, views: Collection[tuple[int, int]] = ()
) -> Filtered:
    """Delete every tool call whose call and result both lie in the middle, except the file views at
    *views*.

    All text stays. Thinking goes with its call when nothing else is left, and where a merge would
    move it. A call is spared where its removal would touch a message that must stay, or move
    thinking that may not move. Source: ST-4 to ST-8, A-50 to A-53, R8.
    """
    viewing = {
        (index - 1, str(read(blocks(messages[index])[place], "tool_use_id")))
        for index, place in views
    }
    parts: list[
        Part
    ] = []  # from the last to the first: whether a call may go depends on what follows it
    calls, index = 0, len(messages) - 1
    while index >= 0:
        free = all(
            place in ground.middle and place not in ground.pinned for place in (index - 1, index)
        )
        going = _going(messages, index - 1, viewing) if free else ()
        rest = _rest(messages, index - 1, going)
        before = [Part(index - 2, messages[index - 2])] if index >= 2 else []
        if going and _fits([*before, *rest, *parts[-1:]], ground):
            calls += len(going)
            index -= 2
        else:
            rest = [Part(index, messages[index])]
            index -= 1
        parts += reversed(rest)
    parts.reverse()
    return Filtered(_unmoved(parts) if calls else parts, calls)


def _going(
    messages: Sequence[Message], index: int, viewing: AbstractSet[tuple[int, str]]
) -> frozenset[str]:
    """The ids of the calls of message *index* that are no file views, and no part of a running
    program.
    """
    calls = tool_calls(messages, index, index + 1)
    return frozenset(
        call.id for call in calls if call.program is None and (index, call.id) not in viewing
    )


def _rest(messages: Sequence[Message], index: int, going: Collection[str]) -> list[Part]:
    """What is left of the calling message *index* and of its answer when the calls *going* go."""
    if not going:
        return []
    said = [
        b
        for b in blocks(messages[index])
        if kind(b) != "tool_use" or str(read(b, "id")) not in going
    ]
    while said and kind(said[-1]) in THINKING:
        said.pop()
    results = blocks(messages[index + 1])
    answered = [
        b for b in results if kind(b) != "tool_result" or str(read(b, "tool_use_id")) not in going
    ]
    contents = ((index, said), (index + 1, answered))
    return [Part(place, _with(messages[place], content)) for place, content in contents if content]


def _unmoved(parts: Sequence[Part]) -> list[Part]:
    """*parts* without the thinking that would move when they are joined, so that their sizes are
    what they will be.
    """
    return [
        Part(
            part.index,
            _with(part.message, [b for b in blocks(part.message) if kind(b) not in THINKING]),
        )
        if before is not None and _meets(before, part) and has_thinking(part.message)
        else part
        for before, part in zip([None, *parts], parts, strict=False)
    ]


# Deleting -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unit:
    """Places of parts that go together, or stay: a turn's call with its results, or a single
    message.
    """

    span: range
    tokens: int
    stays: bool


def delete_centre(
    parts: list[Part],
    sizes: Sequence[int],
    ground: Ground,
    excess: int,
    *,
    window: Window = "average",
    marker: str = "",
) -> list[Part]:
    """Delete one block from the centre of the middle outwards, in one pass: whole turns and pairs.

    *sizes* are the tokens of each part. With "average" the block has ceil(excess / average of the middle) messages,
    with "covering" at least as many, and whole turns whose sizes cover the excess. It is widened
    until roles alternate at its edges; where that is not possible the neighbours are merged. A
    message with a user's ``<command>`` stays as a hole in it. *marker* is put behind the user's
    words before it (A-67).

    The very same list comes back when nothing can go. Source: ST-13 to ST-19, A-62, A-63.
    """
    units = _units(parts, sizes, ground)
    free = [unit for unit in units if not unit.stays]
    tokens, count = sum(unit.tokens for unit in free), sum(len(unit.span) for unit in free)
    if excess <= 0 or not tokens:
        return parts
    wanted = _centred(units, -(-excess * count // tokens), excess if window == "covering" else 0)
    for block, merging in _candidates(wanted, len(units)):
        span = range(units[block.start].span.start, units[block.stop - 1].span.stop)
        holes = [
            parts[i] for unit in units[block.start : block.stop] if unit.stays for i in unit.span
        ]
        if _fits([parts[span.start - 1], *holes, parts[span.stop]], ground, merging=merging):
            return _unmoved(
                [*_marked(parts[: span.start], marker, ground), *holes, *parts[span.stop :]]
            )
    return parts


def _units(parts: Sequence[Part], sizes: Sequence[int], ground: Ground) -> list[_Unit]:
    """The middle as turns that can go; what began before it or ends behind it is left out."""
    inside = [place for place, part in enumerate(parts) if part.index in ground.middle]
    first, end = (inside[0], inside[-1] + 1) if inside else (0, 0)
    units: list[_Unit] = []
    for span in groups([part.message for part in parts]):
        if span.start >= first and span.stop <= end:
            stays = any(
                parts[i].index in ground.pinned or has_command(parts[i].message) for i in span
            )
            units.append(_Unit(span, sum(sizes[span.start : span.stop]), stays))
    return units


def _centred(units: Sequence[_Unit], messages: int, tokens: int) -> range:
    """Units around the centre: enough to hold that many *messages* and *tokens* that can go, or
    all.
    """
    edges = [unit.span.start for unit in units] + [units[-1].span.stop]
    centre = (edges[0] + edges[-1]) / 2
    low = high = min(range(len(edges)), key=lambda place: abs(edges[place] - centre))
    while (messages > 0 or tokens > 0) and high - low < len(units):
        leftwards = low > 0 and (high == len(units) or centre - edges[low] <= edges[high] - centre)
        low, high = (low - 1, high) if leftwards else (low, high + 1)
        unit = units[low if leftwards else high - 1]
        if not unit.stays:
            messages -= len(unit.span)
            tokens -= unit.tokens
    return range(low, high)


def _candidates(wanted: range, units: int) -> Iterator[tuple[range, bool]]:
    """Blocks near the one *wanted*, the best first, each with whether neighbours may be merged at
    it.
    """
    for more in range(3):
        yield from ((block, False) for block in _widened(wanted, more, units))
    for more in range(_MOST_WIDENING):
        yield from ((block, True) for block in _widened(wanted, more, units))
    for less in range(1, min(len(wanted), _MOST_WIDENING)):
        yield from (
            (range(wanted.start + left, wanted.stop - less + left), True)
            for left in range(less + 1)
        )


def _widened(wanted: range, more: int, units: int) -> Iterator[range]:
    for left in range(more + 1):
        if left <= wanted.start and wanted.stop + more - left <= units:
            yield range(wanted.start - left, wanted.stop + more - left)


def _marked(parts: list[Part], marker: str, ground: Ground) -> list[Part]:
    """*parts* with *marker* behind the last words or results of the user that are not pinned.

    As they are for "".
    """
    at_work = {place for span in server_spans([part.message for part in parts]) for place in span}
    users = (
        i
        for i in range(len(parts) - 1, -1, -1)
        if parts[i].message["role"] == "user" and i not in at_work
    )
    place = next((i for i in users if parts[i].index not in ground.pinned), None)
    if not marker or place is None or marker in texts(parts[place].message):
        return parts
    index, message = parts[place].index, parts[place].message
    part = Part(index, _with(message, [*as_blocks(message), {"type": "text", "text": marker}]))
    return [*parts[:place], part, *parts[place + 1 :]]


# Reports ------------------------------------------------------------------------------------------


def held(
    messages: Sequence[Message],
    parts: Sequence[Part],
    sizes: Sequence[int],
    ground: Ground,
    overhead: int,
) -> str:
    """What holds the tokens that could not be removed, the largest share first.

    *parts* are what is left of *messages*, *sizes* their tokens.
    """
    first, last = len(split_system(messages)[0]), last_turn(messages)
    shares = {"the system prompt and the tools": overhead}
    for part, tokens in zip(parts, sizes, strict=True):
        name = _place(part.index, first, last, ground.middle)
        shares[name] = shares.get(name, 0) + tokens
    largest = sorted(shares.items(), key=lambda share: -share[1])
    return ", ".join(f"{tokens:,} tokens in {name}" for name, tokens in largest if tokens)


def _place(index: int, first: int, last: int, middle: range) -> str:
    if index < first:
        return "the system messages"
    if index >= last:
        return "the last turn"
    if index == first:
        return "the first request"
    if index in middle:
        return "file views, commands and texts of the middle"
    return (
        "what stands behind the middle" if index >= middle.stop else "what stands before the middle"
    )


# Without counting ---------------------------------------------------------------------------------


def truncate_conversation(messages: list[Message], fraction: float | Fraction) -> list[Message]:
    """*messages* without that *fraction* of those behind the first request: the oldest, an even
    number of them.

    The head, the first request and all from a summary of the server's on stay. A cut between a call
    and its result moves back, so that fewer go. The very same list comes back when none goes.
    Source: CM-4, UP-21, A-66.
    """
    first = len(split_system(messages)[0]) + 1
    going = int((len(messages) - first) * Fraction(str(fraction))) // 2 * 2
    # What the server has summarized, and what it reads of that, stays.
    summary = next(
        (i for i in range(first, len(messages)) if has_compaction(messages[i])), len(messages)
    )
    wanted = min(first + max(0, going), summary)
    edges = [*(span.start for span in groups(messages)), len(messages)]
    stop = max((edge for edge in edges if edge <= wanted), default=first)
    return [*messages[:first], *messages[stop:]] if stop > first else messages
