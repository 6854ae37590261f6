"""Share one budget among the answered content that passes a compaction verbatim.

A compaction replaces the answered part of a history by its summary. Some of it must not be
summarized: pinned messages, the request that is being worked on, blocks that ctxpipe does not know,
references to files. Each such piece is a `Candidate`, which the module `pieces` finds.

`select` gives the candidates their share of the budget, in the order of `CarryKind`; within a kind
the newest come first. Restored files and the evidence get the rest. Words of the system and
definitions of tools govern the model and come from nobody else, so they do not share that budget:
they stay as long as the whole context is within its target. `arrange` makes valid messages
of those that were chosen. Candidates that are left out go to a file, which the context names in
one line (`omissions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import cast

from ...messages import Message, as_blocks, blocks
from ...placeholders.summaries import CARRIED_LINE, SHORT_REPLY
from ..reading.carry_candidates import (
    BLOCK_KINDS,
    GOVERNING_KINDS,
    SYSTEM_KINDS,
    TEXT_KINDS,
    Candidate,
    CarryKind,
    kind_of_block,
    with_only,
)


def _block_ids(messages: Iterable[Message]) -> set[int]:
    return {id(block) for message in messages for block in blocks(message)}


def _blocks_within(candidates: Iterable[Candidate], block_ids: AbstractSet[int]) -> list[Candidate]:
    """Return those of *candidates* that have only blocks whose ids are among *block_ids*."""
    pieces: list[Candidate] = []
    for candidate in candidates:
        ids = _block_ids(candidate.messages)
        if candidate.kind in BLOCK_KINDS and ids and ids <= block_ids:
            pieces.append(candidate)
    return pieces


def _kind_elsewhere(candidate: Candidate) -> CarryKind:
    """Return the kind that the unknown block of *candidate* has if it is not at the beginning."""
    content = blocks(candidate.messages[0])
    return kind_of_block(content[0]) if content else CarryKind.BLOCK


# The choice ---------------------------------------------------------------------------------------

_LEAST_REQUEST_CHARS = 1_000
_LEAST_CUT_TOKENS = 200
"""Fewest tokens that a shortened piece may get; with less it is left out."""


def _cut_line(piece: Candidate) -> str:
    """Return the remark that *piece* is shortened."""
    if piece.kind == CarryKind.REQUEST:
        return f"of the newest request {piece.chars} characters are in the context"
    return f"of {piece} {piece.chars} of {piece.whole_chars} characters are in the context"


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates that a context carries, in their order, and those left out.

    *used* are the raw *tokens* of the former.
    """

    chosen: Sequence[Candidate]
    left_out: Sequence[Candidate]
    tokens: Mapping[Candidate, int] = field(repr=False)
    used: int = 0

    @property
    def budget_tokens(self) -> int:
        """The used tokens of the pieces that share the budget."""
        system_pieces = [piece for piece in self.chosen if _is_of_system(piece)]
        return self.used - sum(self.tokens[piece] for piece in system_pieces)

    @property
    def cuts(self) -> list[str]:
        """Remarks on the pieces that are shortened."""
        return [_cut_line(piece) for piece in self.chosen if piece.is_cut]

    def lighter(self, tokens: int) -> Selection | None:
        """Return a selection with at least *tokens* tokens less.

        The least important pieces are left out first; the request is shortened last. If a large
        piece has to go, smaller ones stay as far as its tokens suffice. Returns None if nothing can
        be left out or shortened any more.
        """
        freed_tokens = 0
        removed_pieces: list[Candidate] = []
        retained_pieces: list[Candidate] = []
        for candidate in reversed(_by_importance(self.chosen)):
            can_go = candidate.is_answered and candidate.kind != CarryKind.REQUEST
            if can_go and freed_tokens < tokens:
                freed_tokens += self.tokens[candidate]
                removed_pieces.append(candidate)
            else:
                retained_pieces.append(candidate)
        if not removed_pieces:
            return self._with_short_request()
        left_out = [*self.left_out]
        blocks_of_pins = self._blocks_of_pins(removed_pieces)
        returned_blocks: set[int] = set()
        for candidate in _by_importance([*removed_pieces, *blocks_of_pins]):
            block_ids = _block_ids(candidate.messages)
            is_small = freed_tokens - self.tokens[candidate] >= tokens and not candidate.is_cut
            if is_small and returned_blocks.isdisjoint(block_ids):
                freed_tokens -= self.tokens[candidate]
                retained_pieces.append(candidate)
                returned_blocks |= block_ids
            elif candidate not in blocks_of_pins:
                left_out.append(candidate.whole())
        retained_pieces.sort(key=_key)
        left_out.sort(key=_key)
        used = self.used - freed_tokens
        return replace(self, chosen=retained_pieces, left_out=left_out, used=used)

    def _blocks_of_pins(self, pieces: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that are blocks of the pinned messages among *pieces*."""
        pinned_messages: list[Message] = []
        for piece in pieces:
            if piece.kind == CarryKind.PIN:
                pinned_messages += piece.messages
        return _blocks_within(self.tokens, _block_ids(pinned_messages))

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


def select(
    candidates: Sequence[Candidate],
    tokens: Sequence[int],
    max_tokens: int,
    max_system_tokens: int,
) -> Selection:
    """Return the *candidates* that get a part of *max_tokens*; *tokens* are those of each.

    Those of the `SYSTEM_KINDS` get a part of *max_system_tokens* instead, the smallest first.
    A piece that does not fit is left out, and smaller ones after it still get their part: one huge
    block does not cost a reference of a few bytes its place. A piece that can be shortened gets up
    to half of what is left instead, the request all of it. Unknown blocks at the beginning count
    as blocks at other places if they do not fit together. Blocks of a pinned message come with the
    message.
    """
    sizes = dict(zip(candidates, tokens, strict=True))
    leading = [
        candidate
        for candidate in candidates
        if candidate.kind == CarryKind.LEADING and candidate.is_answered
    ]
    if sum(sizes[candidate] for candidate in leading) > max_tokens:
        for candidate in leading:
            sizes[replace(candidate, kind=_kind_elsewhere(candidate))] = sizes.pop(candidate)
    chosen, left_out = _choose_system_pieces(sizes, max_system_tokens)
    pinned_blocks: set[int] = set()
    used = 0
    for candidate in _by_importance(sizes):
        size = sizes[candidate]
        if _is_of_system(candidate):
            continue
        if not candidate.is_answered:
            chosen.append(candidate)
            continue
        if _blocks_within([candidate], pinned_blocks):
            continue
        if candidate.kind == CarryKind.PIN:
            block_ids = _block_ids(candidate.messages)
            blocks_within = _blocks_within(chosen, block_ids)
            freed_tokens = sum(sizes[piece] for piece in blocks_within if not _is_of_system(piece))
            if used - freed_tokens + size <= max_tokens:
                chosen = [piece for piece in chosen if piece not in blocks_within]
                used -= freed_tokens
                pinned_blocks |= block_ids
        if used + size <= max_tokens:
            chosen.append(candidate)
            used += size
        elif candidate.kind == CarryKind.REQUEST and candidate.shorten is not None:
            share = max(0, max_tokens - used) * 9 // 10  # the rest is for the remark on the cut
            chars = max(_LEAST_REQUEST_CHARS, candidate.chars * share // size)
            chosen.append(candidate.shorter(chars))
            used = max(used, max_tokens)
        elif candidate.shorten is not None and (max_tokens - used) // 2 >= _LEAST_CUT_TOKENS:
            share = (max_tokens - used) // 2
            shorter = candidate.shorter(candidate.chars * share * 9 // 10 // size)
            sizes[shorter] = share
            chosen.append(shorter)
            used += share
        else:
            left_out.append(candidate.whole())
    chosen.sort(key=_key)
    left_out.sort(key=_key)
    used += sum(sizes[candidate] for candidate in chosen if _is_of_system(candidate))
    return Selection(chosen, left_out, sizes, used)


def _choose_system_pieces(
    sizes: Mapping[Candidate, int], max_tokens: int
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates of the `SYSTEM_KINDS` that fit in *max_tokens*, and the others of them.

    The largest do not fit. *sizes* are the tokens of all candidates.
    """
    pieces = [piece for piece in sizes if _is_of_system(piece)]
    pieces.sort(key=lambda piece: sizes[piece])
    chosen: list[Candidate] = []
    used = 0
    for piece in pieces:
        used += sizes[piece]
        if used > max_tokens:
            break
        chosen.append(piece)
    return chosen, pieces[len(chosen) :]


def _is_of_system(piece: Candidate) -> bool:
    """Return True if *piece* does not share the budget."""
    return piece.kind in SYSTEM_KINDS and piece.is_answered


def _key(candidate: Candidate) -> tuple[int, int]:
    return candidate.key


def _by_importance(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return *candidates* by kind, as in `CarryKind`; within a kind and tier the newest first."""

    def rank(candidate: Candidate) -> tuple[int, int, int, int]:
        return candidate.kind, candidate.tier, -candidate.index, -candidate.place

    return sorted(candidates, key=rank)


def with_frame(candidate: Candidate) -> list[Message]:
    """Return the messages of *candidate* with the lines that may be needed before and after it."""
    first = [_user_line()] if candidate.messages[0]["role"] == "assistant" else []
    last = [_assistant_reply()] if candidate.messages[-1]["role"] == "user" else []
    if _is_text(candidate):
        return list(candidate.messages)
    if candidate.kind in (CarryKind.LEADING, CarryKind.SYSTEM, CarryKind.REQUEST):
        return list(candidate.messages)
    return [*first, *candidate.messages, *last]


def _is_text(candidate: Candidate) -> bool:
    """Return True if *candidate* still applies and is a text: words, a skill, or a plan.

    A step in a note is none: in a message with other texts it would pass for the user's words.
    """
    return candidate.kind in TEXT_KINDS and len(candidate.messages) == 1


def arrange(candidates: Iterable[Candidate]) -> list[Message]:
    """Return the messages of *candidates*, in order, as a valid piece that begins with the user.

    Blocks and words that follow each other, and the request, become one message; if the blocks are
    a whole message, it is the very same object. Between two messages of the same role, a short
    reply of the assistant, or a line of the user, is added.
    """
    message_groups: list[list[Message]] = []  # those of a list become one message
    is_open = False  # blocks may be added to the last message
    last_role = "assistant"
    for group in _groups(candidates):
        pieces = _messages_of(group)
        first = group[0]
        can_join = _is_text(first) or first.origin is not None or first.kind == CarryKind.REQUEST
        if can_join and is_open and pieces[0]["role"] == last_role:
            message_groups[-1] += pieces
            continue
        for message in pieces:
            role = message["role"]
            if role == last_role:
                message_groups.append([_user_line() if role == "assistant" else _assistant_reply()])
            message_groups.append([message])
            last_role = role
        is_alone = first.kind in GOVERNING_KINDS and not _is_text(first)
        is_open = last_role == "user" and first.kind != CarryKind.PIN and not is_alone
    return [_as_one(messages) for messages in message_groups]


def _as_one(messages: Sequence[Message]) -> Message:
    """Return one message with the blocks of all *messages*; the same object if it is only one."""
    if len(messages) == 1:
        return messages[0]
    content = [block for message in messages for block in as_blocks(message)]
    return cast("Message", {"role": messages[0]["role"], "content": content})


def _groups(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return the candidates in groups: neighboring blocks of one message are one group."""
    groups: list[list[Candidate]] = []
    for candidate in candidates:
        origin = candidate.origin
        if groups and origin is not None and groups[-1][0].origin is origin:
            groups[-1].append(candidate)
        else:
            groups.append([candidate])
    return groups


def _messages_of(group: Sequence[Candidate]) -> Sequence[Message]:
    """Return the messages of *group*, the chosen candidates of one message.

    Blocks of one message become one message that has only them.
    """
    origin = group[0].origin
    if origin is None:
        return group[0].messages
    return [with_only(origin, [block for one in group for block in blocks(one.messages[0])])]


def _user_line() -> Message:
    return {"role": "user", "content": CARRIED_LINE}


def _assistant_reply() -> Message:
    return {"role": "assistant", "content": SHORT_REPLY}


def with_reply(messages: Sequence[Message]) -> list[Message]:
    """Return *messages* with a short fixed reply at the end, if the last one is the user's."""
    if messages and messages[-1]["role"] == "user":
        return [*messages, _assistant_reply()]
    return list(messages)
