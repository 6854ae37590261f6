"""Make room for results that the model has not seen: the largest of them go to files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .._threads.bulk import weight
from .._threads.threads import in_thread
from ..edits import offload
from ..edits.compact import open_tail
from ..edits.offload import OffloadCandidate, OffloadRules
from ..messages import Message, ToolResult, rewrite, split_system
from ..placeholders.placeholders import Preview
from ..placeholders.summaries import own_words
from ..settings import SUMMARY_MAX_WORDS
from .layout import holds_context, is_short, window_holds
from .moves import Move, Place, Pointers, worthwhile_moves
from .protocol import Turn

_TOKENS_PER_WORD = 2
_EVIDENCE_TOKENS = 6_000
_MOST_OF_TARGET = 4  # a quarter of the budget's target, for summary and evidence


async def moves_to_make_room(
    pointers: Pointers, turn: Turn, moves: Sequence[Move], rules: OffloadRules
) -> list[Move]:
    """Return the moves without which the results since the last reply do not fit into the window.

    Old messages can be summarized, so they count only with what a compaction would keep of them.
    What is left is the system prompt, the tools, and what the model has not answered. Where that
    alone exceeds the window, the largest results leave until it is below the budget's trigger,
    whatever their length; *moves* leave anyway. A result that was read back from a file leaves only
    if the others are not enough. A preview stays in sight, unless there is no room for it either.
    """
    fits = await is_short(turn) if turn.force else _fits_certainly(turn, moves)
    if fits:
        return []
    head, rest = split_system(turn.messages)
    tail = open_tail(rest)
    unanswered = _with_placeholders(turn, moves)[len(head) + tail :]
    fixed = turn.overhead + await turn.counter.count([*head, *unanswered])
    fixed += await _compaction_tokens(turn, rest[:tail])
    if await holds_context(turn, fixed):
        return []
    start = offload.unanswered_start(turn.messages)
    leaving = {move.item.place for move in moves}
    tiers = await in_thread(_candidates, turn.messages, start, rules, leaving)
    chosen: list[Move] = []
    for preview in (pointers.preview or Preview(), None):
        chosen = []
        left = fixed
        for candidates in tiers:
            own = replace(pointers, preview=preview)
            possible = await worthwhile_moves(own, turn, candidates, rules)
            for move, saved in zip(possible, await _savings(turn, possible), strict=True):
                if await _is_low_enough(turn, left):
                    return chosen
                if saved > 0:
                    chosen.append(move)
                    left -= saved
        if await _is_low_enough(turn, left):
            return chosen
    return chosen


def _fits_certainly(turn: Turn, moves: Sequence[Move]) -> bool:
    """Return True if the window holds the whole context even if each new character is a token.

    This is so in most turns, and costs next to nothing.
    """
    ledger = turn.ledger
    moved = sum(len(move.text) for move in moves)
    room = turn.budget.window + moved
    new = weight(turn.messages[ledger.known :], room) - moved
    return window_holds(turn, ledger.prefix_total + turn.overhead + max(0, new))


def _with_placeholders(turn: Turn, moves: Sequence[Move]) -> list[Message]:
    """Return the messages of *turn* as they will be without the results of *moves*."""
    contents: dict[Place, object] = {}
    for move in moves:
        if isinstance(move.item, ToolResult):
            text = move.predict_placeholder(turn)
            contents[move.item.place] = offload.with_placeholder(move.item.content, text)
    return rewrite(turn.messages, contents)


async def _compaction_tokens(turn: Turn, messages: Sequence[Message]) -> int:
    """Return the tokens that a compaction keeps of *messages*: summary, evidence, the request."""
    request: Sequence[Message] = ()
    for message in reversed(messages):
        if own_words(message):
            request = [message]
            break
    extras = SUMMARY_MAX_WORDS() * _TOKENS_PER_WORD + _EVIDENCE_TOKENS
    kept = min(extras, turn.budget.target // _MOST_OF_TARGET) + await turn.counter.count(request)
    return min(kept, await turn.counter.count(messages))


def _candidates(
    messages: Sequence[Message], start: int, rules: OffloadRules, leaving: set[Place]
) -> list[list[OffloadCandidate]]:
    """Return the results that may leave, the longest first, those read back from files apart."""
    others: list[OffloadCandidate] = []
    read_back: list[OffloadCandidate] = []
    for result, call in offload.results_with_calls(messages, start, 1):
        if result.place in leaving or not rules.can_leave(result, call):
            continue
        tier = read_back if rules.is_read_back(call) else others
        tier.append(offload.candidate_of(result))
    for tier in (others, read_back):
        tier.sort(key=lambda candidate: (-candidate.chars, candidate.item.place))
    return [others, read_back]


async def _savings(turn: Turn, moves: Sequence[Move]) -> list[int]:
    """Return the tokens that each of *moves* saves in the context.

    The text that a move stores is not what the context loses: the file of several text blocks is
    their JSON, which has more tokens than the blocks.
    """
    before: list[Message] = []
    after: list[Message] = []
    for move in moves:
        content: Any = move.item.content if isinstance(move.item, ToolResult) else move.text
        placeholder: Any = offload.with_placeholder(content, move.predict_placeholder(turn))
        before.append({"role": "user", "content": content})
        after.append({"role": "user", "content": placeholder})
    counts_before = await turn.counter.counts(before)
    counts_after = await turn.counter.counts(after)
    return [old - new for old, new in zip(counts_before, counts_after, strict=True)]


async def _is_low_enough(turn: Turn, raw: int) -> bool:
    """Return True if a context of *raw* tokens needs no compaction, and the model takes it."""
    if turn.budget.reached(turn.ledger.estimate(raw)):
        return False
    return await holds_context(turn, raw)
