"""Delete a run of messages around the center of a history, so that its beginning and end stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...messages import as_blocks, texts, with_content
from ..reading.groups import groups, server_spans
from ..reading.user_commands import extract_commands
from .parts import EditableRegion, Part, fits, without_moving_thinking
from .selection import Window

_MAX_WIDENING = 64  # units by which the run may grow or shrink until its edges fit


@dataclass(frozen=True, slots=True)
class _Unit:
    """Places of messages that are removed together or stay together.

    A unit is an assistant message with tool calls and the results of these, or a single message.
    *stays* is True if one of its messages is pinned or has a command of the user.
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
    """Delete one run of messages around the center of the part that may be edited.

    *sizes* are the tokens of each message, *excess* the tokens to save. A call is deleted with its
    results. *window* decides how long the run is:

    - "average": ceil(excess / average size of the messages that may be deleted) messages. That may
      save less than *excess*.
    - "covering": as many messages, and more until their sizes are at least *excess*.

    If the messages before and after the run cannot follow each other, the run becomes a little
    longer; then messages of one role at its edges may also be joined, and the run longer or shorter
    by up to 63 units. Pinned messages and messages with a user's ``<command>`` inside the run stay.
    *marker* is added to the last message of the user before the run.

    Returns the very same list if there is nothing to save, or nothing that can be deleted.
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
        if fits([parts[start - 1], *holes, parts[stop]], region, can_join=can_join):
            before = _add_marker(parts[:start], marker)
            return without_moving_thinking([*before, *holes, *parts[stop:]])
    return parts


def _units(parts: Sequence[Part], sizes: Sequence[int], region: EditableRegion) -> list[_Unit]:
    """Return the units that are completely inside the part that may be edited.

    *sizes* are the tokens of *parts*.
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

    Those of them that do not stay have at least *message_count* messages and at least *tokens*
    tokens. If all units together have fewer, the range has all units.
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
    """Yield *best_block* and other ranges of units near it, the best first.

    The second value is True if the messages at the edges of the range may be joined. First come
    *best_block* and ranges up to two units longer, without joining; then all of these and longer
    ones with joining; then shorter ones with joining.
    """
    tries = [(longer, False) for longer in range(3)]
    tries += [(longer, True) for longer in range(_MAX_WIDENING)]
    tries += [(-shorter, True) for shorter in range(1, min(len(best_block), _MAX_WIDENING))]
    for length_change, can_join in tries:
        # A longer range begins earlier than the best one, a shorter one later.
        direction = -1 if length_change > 0 else 1
        for shift in range(abs(length_change) + 1):
            start = best_block.start + direction * shift
            stop = start + len(best_block) + length_change
            if start >= 0 and stop <= unit_count:
                yield slice(start, stop), can_join


def _add_marker(parts: list[Part], marker: str) -> list[Part]:
    """Return *parts* with *marker* at the end of the last message of the user.

    A message between a call of a server's tool and its result cannot be changed and is skipped.

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
