"""Find the pieces of a history that a compaction may carry over verbatim.

Each kind of content has a function from the messages to its candidates: `pins` for messages that
the caller has pinned, `system_messages_in_force`, `governing_pieces` for what still applies, and
`blocks_to_carry` for unknown blocks and references. `pieces_to_carry` collects those that share the
carry budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...messages import Message, blocks, has_calls
from ..reading.carry_candidates import Candidate, CarryKind, blocks_to_carry, with_only
from ..reading.pins import Pin, pinned_indices
from .governing import without_pinned


class CarryRules(NamedTuple):
    """Carried content other than blocks: messages that *pin* chooses, and what still applies.

    *governing* are the candidates for the latter.
    """

    pin: Pin | None = None
    governing: Sequence[Candidate] = ()


BLOCKS_ALONE = CarryRules()


def pieces_to_carry(messages: Sequence[Message], rules: CarryRules) -> list[Candidate]:
    """Return the pieces of *messages* that may be carried on, by *rules* and by their kinds.

    Candidates for what still applies that are pinned, or come after *messages*, are left out.
    """
    block_candidates = blocks_to_carry(messages)
    pinned_pieces = pins(messages, rules.pin)
    governing_before = [piece for piece in rules.governing if piece.index < len(messages)]
    return [
        *without_leading_blocks(pinned_pieces, block_candidates),
        *without_pinned(governing_before, pinned_pieces),
        *block_candidates,
    ]


def pins(rest: Sequence[Message], pin: Pin | None) -> list[Candidate]:
    """Return the messages that *pin* chooses; a call and its results are one piece."""
    candidates: list[Candidate] = []
    indices = sorted(pinned_indices(rest, pin))
    index = -1
    for start in indices:
        if start <= index:
            continue  # the results of the call before them
        index = start
        messages = [rest[start]]
        if has_calls(rest[start]) and start + 1 in indices:
            index = start + 1
            messages.append(rest[index])
        candidates.append(Candidate(CarryKind.PIN, start, 0, messages, "pinned message"))
    return candidates


def without_leading_blocks(
    pinned_pieces: Iterable[Candidate], candidates: Iterable[Candidate]
) -> list[Candidate]:
    """Return *pinned_pieces* without the blocks among *candidates* that are before the summary.

    Such a block would be in the context twice. A pinned message of nothing else is left out.
    """
    leading_counts: Counter[int] = Counter()
    for candidate in candidates:
        if candidate.kind == CarryKind.LEADING:
            leading_counts[candidate.index] += 1
    pieces: list[Candidate] = []
    for piece in pinned_pieces:
        count = leading_counts[piece.index]
        if count == 0:
            pieces.append(piece)
            continue
        message, *results = piece.messages
        other_blocks = blocks(message)[count:]
        if other_blocks:
            messages = [with_only(message, other_blocks), *results]
            pieces.append(replace(piece, place=count, messages=messages))
    return pieces


def attach(candidates: Iterable[Candidate], index: int) -> list[Candidate]:
    """Return *candidates*; blocks of message *index* become attachments of the request in it."""
    pieces: list[Candidate] = []
    for candidate in candidates:
        is_block = candidate.kind == CarryKind.BLOCK and candidate.origin is not None
        if is_block and candidate.index == index:
            pieces.append(replace(candidate, kind=CarryKind.ATTACHMENT))
        else:
            pieces.append(candidate)
    return pieces
