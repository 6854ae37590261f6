"""Choose which pieces of a history pass a compaction verbatim, within one budget.

A compaction replaces the answered part of a history by its summary. Some of it must not be
summarized: pinned messages, the request that is being worked on, blocks that ctxpipe does not know,
references to files. Each such piece is a `Candidate`, which the module `pieces` finds.

`select` returns the `Selection`: which candidates are carried over. It follows these rules.

- Words of the system and definitions of tools govern the model, and nothing else repeats them. They
  have a budget of their own, which is the target of the whole context. If they exceed it, the
  largest are left out.
- All other answered pieces share one budget. They get their part by importance: in the order of
  `CarryKind`, and within a kind the newest first.
- A piece that does not fit is left out, and smaller ones after it still get their part: one huge
  block does not cost a reference of a few bytes its place. If the piece can be shortened, it gets
  up to half of the free tokens instead; the request gets all of them.
- A piece that the model has not answered is always carried, and needs no part of the budget.

If the whole context is still too large, `Selection.lighter` removes more pieces. The module
`arrangement` makes valid messages of the chosen pieces. Those that are left out go to a file, which
the context names in one line (`omissions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ...messages import Message, blocks
from ..reading.carry_candidates import (
    BLOCK_KINDS,
    SYSTEM_KINDS,
    Candidate,
    CarryKind,
    kind_of_block,
)

_LEAST_REQUEST_CHARS = 1_000
"""Fewest characters to which the user's request is shortened."""
_LEAST_CUT_TOKENS = 200
"""Fewest tokens that a shortened piece may get; with less it is left out."""


def select(
    candidates: Sequence[Candidate],
    tokens: Sequence[int],
    max_tokens: int,
    max_system_tokens: int,
) -> Selection:
    """Return which of *candidates* are carried over; *tokens* are the raw tokens of each.

    Words of the system and definitions of tools share *max_system_tokens*, all other answered
    pieces share *max_tokens*.
    """
    sizes = dict(zip(candidates, tokens, strict=True))
    _demote_leading_blocks(sizes, max_tokens)
    choice = _Choice(sizes, max_tokens)
    choice.add_system_pieces(max_system_tokens)
    for candidate in _by_importance(sizes):
        if not _is_system_piece(candidate):
            choice.offer(candidate)
    return choice.selection()


def _demote_leading_blocks(sizes: dict[Candidate, int], max_tokens: int) -> None:
    """Give the blocks at the beginning the kind of other blocks if they exceed *max_tokens*.

    Otherwise they would take the whole budget: they are the most important kind.
    """
    leading_blocks = [
        candidate
        for candidate in sizes
        if candidate.kind == CarryKind.LEADING and candidate.is_answered
    ]
    if sum(sizes[candidate] for candidate in leading_blocks) <= max_tokens:
        return
    for candidate in leading_blocks:
        content = blocks(candidate.messages[0])
        kind = kind_of_block(content[0]) if content else CarryKind.BLOCK
        sizes[replace(candidate, kind=kind)] = sizes.pop(candidate)


class _Choice:
    """The candidates chosen so far, and the tokens of the budget that they use.

    *sizes* has the raw tokens of each candidate, and gets those of the shortened ones.
    """

    def __init__(self, sizes: dict[Candidate, int], max_tokens: int) -> None:
        self.sizes = sizes
        self.max_tokens = max_tokens
        self.used_tokens = 0
        self.chosen: list[Candidate] = []
        self.left_out: list[Candidate] = []
        self._pinned_block_ids: set[int] = set()

    def add_system_pieces(self, max_tokens: int) -> None:
        """Choose the smallest of the system pieces, as many as *max_tokens* hold."""
        pieces = [piece for piece in self.sizes if _is_system_piece(piece)]
        pieces.sort(key=lambda piece: self.sizes[piece])
        tokens = 0
        for piece in pieces:
            tokens += self.sizes[piece]
            if tokens <= max_tokens:
                self.chosen.append(piece)
            else:
                self.left_out.append(piece)

    def offer(self, candidate: Candidate) -> None:
        """Choose *candidate*, shorten it, or leave it out."""
        if not candidate.is_answered:
            self.chosen.append(candidate)
            return
        if _is_within(candidate, self._pinned_block_ids):
            return  # its pinned message is chosen
        if candidate.kind == CarryKind.PIN:
            self._make_room_for_pin(candidate)
        size = self.sizes[candidate]
        free_tokens = self.max_tokens - self.used_tokens
        if size <= free_tokens:
            self.chosen.append(candidate)
            self.used_tokens += size
        elif candidate.shorten is not None and candidate.kind == CarryKind.REQUEST:
            self._add_shortened_request(candidate, max(0, free_tokens))
        elif candidate.shorten is not None and free_tokens // 2 >= _LEAST_CUT_TOKENS:
            self._add_shortened(candidate, free_tokens // 2)
        else:
            self.left_out.append(candidate.whole())

    def _make_room_for_pin(self, pin: Candidate) -> None:
        """If *pin* fits in the place of its own blocks, remove those that are chosen already.

        They come with the pinned message.
        """
        block_ids = _block_ids(pin.messages)
        own_blocks = {piece for piece in self.chosen if _is_within(piece, block_ids)}
        freed_tokens = sum(self.sizes[piece] for piece in own_blocks if not _is_system_piece(piece))
        if self.used_tokens - freed_tokens + self.sizes[pin] <= self.max_tokens:
            self.chosen = [piece for piece in self.chosen if piece not in own_blocks]
            self.used_tokens -= freed_tokens
            self._pinned_block_ids |= block_ids

    def _add_shortened_request(self, request: Candidate, free_tokens: int) -> None:
        """Choose *request* with as many characters as *free_tokens* hold; the budget is used up."""
        share = free_tokens * 9 // 10  # the rest is for the remark that it is shortened
        chars = request.chars * share // self.sizes[request]
        self.chosen.append(request.shorter(max(_LEAST_REQUEST_CHARS, chars)))
        self.used_tokens = max(self.used_tokens, self.max_tokens)

    def _add_shortened(self, candidate: Candidate, share: int) -> None:
        """Choose *candidate* with as many characters as *share* tokens hold."""
        chars = candidate.chars * share * 9 // 10 // self.sizes[candidate]
        shorter = candidate.shorter(chars)
        self.sizes[shorter] = share
        self.chosen.append(shorter)
        self.used_tokens += share

    def selection(self) -> Selection:
        """Return what is chosen and left out, in the order of the history."""
        system_tokens = sum(self.sizes[piece] for piece in self.chosen if _is_system_piece(piece))
        return Selection(
            sorted(self.chosen, key=_place),
            sorted(self.left_out, key=_place),
            self.sizes,
            self.used_tokens + system_tokens,
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The pieces that a context carries (*chosen*), and those *left_out*, in their order.

    *sizes* are the raw tokens of the candidates, whole and shortened. *used_tokens* are those of
    the chosen ones.
    """

    chosen: Sequence[Candidate]
    left_out: Sequence[Candidate]
    sizes: Mapping[Candidate, int] = field(repr=False)
    used_tokens: int = 0

    @property
    def budget_tokens(self) -> int:
        """The used tokens of the pieces that share the budget."""
        system_pieces = [piece for piece in self.chosen if _is_system_piece(piece)]
        return self.used_tokens - sum(self.sizes[piece] for piece in system_pieces)

    @property
    def cuts(self) -> list[str]:
        """Remarks on the pieces that are shortened."""
        return [_cut_line(piece) for piece in self.chosen if piece.is_cut]

    def lighter(self, tokens: int) -> Selection | None:
        """Return a selection with at least *tokens* tokens less.

        The least important pieces are left out first; the request is shortened last. Returns None
        if nothing can be left out or shortened any more.
        """
        removed_pieces = self._least_important(tokens)
        if not removed_pieces:
            return self._with_short_request()
        # The last of them may have been much larger than needed. So the others come back as far as
        # they fit, the most important first. A pinned message that goes leaves its blocks, which
        # are candidates of their own.
        freed_tokens = sum(self.sizes[piece] for piece in removed_pieces)
        blocks_of_pins = self._blocks_of_pins(removed_pieces)
        returned_pieces: set[Candidate] = set()
        returned_block_ids: set[int] = set()
        left_out = list(self.left_out)
        for candidate in _by_importance([*removed_pieces, *blocks_of_pins]):
            block_ids = _block_ids(candidate.messages)
            fits = freed_tokens - self.sizes[candidate] >= tokens and not candidate.is_cut
            if fits and returned_block_ids.isdisjoint(block_ids):
                freed_tokens -= self.sizes[candidate]
                returned_pieces.add(candidate)
                returned_block_ids |= block_ids
            elif candidate not in blocks_of_pins:
                left_out.append(candidate.whole())
        gone_pieces = {*removed_pieces, *blocks_of_pins} - returned_pieces
        chosen = [piece for piece in [*self.chosen, *blocks_of_pins] if piece not in gone_pieces]
        return replace(
            self,
            chosen=sorted(chosen, key=_place),
            left_out=sorted(left_out, key=_place),
            used_tokens=self.used_tokens - freed_tokens,
        )

    def _least_important(self, tokens: int) -> list[Candidate]:
        """Return the least important of the chosen pieces, as many as have *tokens* tokens.

        The user's request and what the model has not answered are never among them.
        """
        pieces: list[Candidate] = []
        freed_tokens = 0
        for candidate in reversed(_by_importance(self.chosen)):
            if freed_tokens >= tokens:
                break
            if candidate.is_answered and candidate.kind != CarryKind.REQUEST:
                pieces.append(candidate)
                freed_tokens += self.sizes[candidate]
        return pieces

    def _blocks_of_pins(self, pieces: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that are blocks of the pinned messages among *pieces*."""
        pinned_messages: list[Message] = []
        for piece in pieces:
            if piece.kind == CarryKind.PIN:
                pinned_messages += piece.messages
        block_ids = _block_ids(pinned_messages)
        return [candidate for candidate in self.sizes if _is_within(candidate, block_ids)]

    def _with_short_request(self) -> Selection | None:
        """Return the selection with its user's request shortened; None if it is short already."""
        chosen = list(self.chosen)
        for place, candidate in enumerate(chosen):
            is_request = candidate.kind == CarryKind.REQUEST and candidate.shorten is not None
            if is_request and candidate.chars > _LEAST_REQUEST_CHARS:
                chosen[place] = candidate.shorter(_LEAST_REQUEST_CHARS)
                return replace(self, chosen=chosen)
        return None


NOTHING_CARRIED = Selection((), (), {})


def _cut_line(piece: Candidate) -> str:
    """Return the remark that *piece* is shortened."""
    if piece.kind == CarryKind.REQUEST:
        return f"of the newest request {piece.chars} characters are in the context"
    return f"of {piece} {piece.chars} of {piece.whole_chars} characters are in the context"


def _is_system_piece(piece: Candidate) -> bool:
    """Return True if *piece* governs the model, and so does not share the budget."""
    return piece.kind in SYSTEM_KINDS and piece.is_answered


def _is_within(candidate: Candidate, block_ids: AbstractSet[int]) -> bool:
    """Return True if *candidate* consists of blocks, and their ids are all among *block_ids*."""
    ids = _block_ids(candidate.messages)
    return candidate.kind in BLOCK_KINDS and bool(ids) and ids <= block_ids


def _block_ids(messages: Iterable[Message]) -> set[int]:
    """Return the identities of the blocks of *messages*."""
    return {id(block) for message in messages for block in blocks(message)}


def _by_importance(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return *candidates* by kind, as in `CarryKind`; within a kind and tier the newest first."""

    def rank(candidate: Candidate) -> tuple[int, int, int, int]:
        return candidate.kind, candidate.tier, -candidate.index, -candidate.place

    return sorted(candidates, key=rank)


def _place(candidate: Candidate) -> tuple[int, int]:
    return candidate.key
