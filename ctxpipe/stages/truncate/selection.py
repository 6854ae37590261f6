"""Choose the part of a history that truncation may shorten: the middle, without what must stay.

    |head|first request|  …  |      middle      |  …  |last turn|
                             1/6              5/6     of all tokens after the head

First the tool calls in the middle are removed with their results (`calls`), then a block of
messages around its center (`deletion`). In between, the history is a list of `Part`: what is left
of each message, with the index that it had.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeAlias

from ...messages import Message, as_blocks, blocks, is_opaque, kind, tool_results
from ...messages.identity import digest
from ...messages.thinking import open_loop
from ...messages.vocabulary import head_length
from ...providers.agent_tools import READING_TOOLS, ReadingTools
from ..reading.carry_candidates import (
    SYSTEM_KINDS,
    Candidate,
    CarryKind,
    blocks_to_carry,
    system_messages_in_force,
)
from ..reading.pins import Pin
from ..reading.unanswered import index_after_last_reply
from ..reading.what_applies import ApplicableKind, what_applies
from .parts import EditableRegion, Ends, Part

Window: TypeAlias = Literal["average", "covering"]
"""Amount to delete: ceil(excess / average) messages, or whole turns until they cover the excess."""

MIDDLE_START = Fraction(1, 6)
MIDDLE_END = Fraction(5, 6)


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


def find_ends(messages: Sequence[Message]) -> Ends:
    """Return the indices of the first request and of the last turn, both of which stay."""
    return Ends(_first_request(messages), _last_turn(messages))


def middle(
    messages: Sequence[Message],
    sums: Sequence[int],
    ends: Ends,
    start: Fraction | float = MIDDLE_START,
    end: Fraction | float = MIDDLE_END,
    protected_count: int = 0,
) -> range:
    """Return the indices of the middle: the messages between *start* and *end* of the tokens.

    ``sums[n]`` are the tokens of the first n messages; those of the head do not count. What is not
    between the *ends*, and the first *protected_count* messages, are never in the middle.
    """
    head = head_length(messages)
    by_tokens = middle_range(sums[head:], start, end)
    first = max(by_tokens.start + head, ends.first_request + 1, protected_count)
    stop = min(by_tokens.stop + head, ends.last_turn)
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


def _first_request(messages: Sequence[Message]) -> int:
    """Return the index of the first request, after messages that have unknown blocks only."""
    first = head_length(messages)
    for index in range(first, len(messages)):
        content = blocks(messages[index])
        if messages[index]["role"] != "user" or not content:
            return index
        if not all(is_opaque(block) for block in content):
            return index
    return first


def indices_to_carry(messages: Sequence[Message]) -> tuple[set[int], set[int]]:
    """Return the indices of the messages that are removed last, in two sets.

    Those of the second set are removed after those of the first one: they have words of the system
    or define tools. The others have unknown blocks or references, or something that still applies
    (see `what_applies`). A reference in a result counts as any other part of the result.
    """
    indices: set[int] = set()
    system_indices: set[int] = set()
    for piece in what_applies(messages):
        if piece.kind is ApplicableKind.INSTRUCTIONS:
            continue
        indices |= {piece.first_message, piece.message}
        if piece.call is not None:
            indices.add(piece.call.message + 1)
    for candidate in [*system_messages_in_force(messages), *blocks_to_carry(messages)]:
        if candidate.kind is not CarryKind.SYSTEM and candidate.origin is not None:
            content = blocks(messages[candidate.index])
            if kind(content[candidate.place]) == "tool_result":
                continue
        places = range(candidate.index, candidate.index + len(candidate.messages))
        if candidate.kind in SYSTEM_KINDS:
            system_indices.update(places)
        else:
            indices.update(places)
    return indices - system_indices, system_indices


def _system_pieces(messages: Sequence[Message]) -> list[Candidate]:
    """Return the words of the system and the definitions of tools in *messages*."""
    candidates = [*system_messages_in_force(messages), *blocks_to_carry(messages)]
    return [candidate for candidate in candidates if candidate.kind in SYSTEM_KINDS]


def _digests(candidate: Candidate) -> tuple[bytes, ...]:
    return tuple(digest(message) for message in candidate.messages)


def joinable_indices(messages: Sequence[Message]) -> set[int]:
    """Return the indices of the messages that have only texts, among them words of the user.

    Others may be joined with them: the texts stay the same in a longer message.
    """
    indices: set[int] = set()
    for piece in what_applies(messages):
        if piece.kind is ApplicableKind.WORDS and piece.call is None:
            content = as_blocks(messages[piece.message])
            if all(kind(block) == "text" for block in content):
                indices.add(piece.message)
    return indices


def warnings_of_loss(before: Sequence[Message], after: Sequence[Message]) -> list[str]:
    """Return a sentence on what applied in *before* and is not in *after*; none if all is there."""
    remaining = {(piece.kind, piece.text) for piece in what_applies(after)}
    counts: Counter[str] = Counter()
    for piece in what_applies(before):
        if (piece.kind, piece.text) not in remaining:
            counts[piece.kind.value] += 1
    remaining_digests = {_digests(piece) for piece in _system_pieces(after)}
    for candidate in _system_pieces(before):
        if _digests(candidate) not in remaining_digests:
            is_tools = candidate.kind is CarryKind.TOOLS
            counts["definition of tools" if is_tools else "words of the system"] += 1
    if not counts:
        return []
    names = ", ".join(f"{count} {name}" for name, count in counts.items())
    return [f"the window did not hold what still applies; removed: {names}"]


def _last_turn(messages: Sequence[Message]) -> int:
    """Return the index where the last turn begins.

    The last turn has the unanswered messages, and the calls whose results are among them.
    """
    start = index_after_last_reply(messages)
    if any(tool_results(messages, start)) or start == len(messages):
        start -= 1
    return max(0, start)


def editable_region(
    messages: Sequence[Message],
    ends: Ends,
    middle: range,
    *,
    strict: bool = False,
    pinned: AbstractSet[int] = frozenset(),
    joinable: AbstractSet[int] = frozenset(),
) -> EditableRegion:
    """Return the region with the *middle* between the *ends*; the messages *pinned* stay.

    Pinned messages that are *joinable* may be joined with others. The first request and the last
    turn stay unchanged. If *strict* is True, so does every message outside the middle: nothing is
    joined with it.
    """
    all_indices = range(len(messages))
    if strict:
        stay = frozenset(all_indices) - frozenset(middle)
    else:
        stay = frozenset({ends.first_request, *all_indices[ends.last_turn :]})
    movable_end = min(middle.stop, open_loop(messages))
    stay |= pinned - joinable
    return EditableRegion(ends, middle, stay, range(middle.start, movable_end), pinned)


# Reports ------------------------------------------------------------------------------------------


def breakdown_by_source(
    parts: Sequence[Part], sizes: Sequence[int], region: EditableRegion, overhead: int
) -> str:
    """Return a text that says where the remaining tokens are, the largest share first.

    *parts* are what is left of the messages, *sizes* their tokens, *overhead* those of the system
    prompt and the tools.
    """
    shares = Counter({"the system prompt and the tools": overhead})
    for part, tokens in zip(parts, sizes, strict=True):
        shares[_region_name(part.index, region)] += tokens
    largest = shares.most_common()
    return ", ".join(f"{tokens:,} tokens in {name}" for name, tokens in largest if tokens)


def _region_name(index: int, region: EditableRegion) -> str:
    """Return the name of the part of a history that message *index* is in, for a report."""
    ends = region.ends
    middle = region.middle
    if index < ends.first_request:
        return "the system messages"
    if index >= ends.last_turn:
        return "the last turn"
    if index == ends.first_request:
        return "the first request"
    if index in middle:
        return "file views, commands, references and texts of the middle"
    if index >= middle.stop:
        return "what follows the middle"
    return "what precedes the middle"
