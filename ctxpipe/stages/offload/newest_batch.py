"""Move the largest new results to files, before the model sees them, if they do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..._threads.bulk import weight
from ..._threads.threads import in_thread
from ...messages import Message, ToolResult, rewrite, split_system
from ...placeholders.placeholders import Preview
from ...placeholders.summaries import own_words
from ...settings import SUMMARY_MAX_WORDS
from ...tokens import TokenCounter
from ..moves import Move, Place, Pointers, worthwhile_moves
from ..protocol import Turn
from ..reading.candidates import OffloadCandidate, OffloadRules, long_results
from ..reading.pins import is_pinned_exchange
from ..reading.results import with_placeholder
from ..reading.unanswered import open_tail
from ..window import holds_context, is_short, window_holds

_TOKENS_PER_WORD = 2
_EVIDENCE_TOKENS = 6_000  # of the paths, commands and requests that follow a summary
_TARGET_DIVISOR = 4  # summary and evidence take at most a quarter of the budget's target


async def moves_to_fit_window(
    pointers: Pointers, turn: Turn, start: int, moves: Sequence[Move], rules: OffloadRules
) -> list[Move]:
    """Return further moves, beside *moves*, so that the unanswered results fit the window.

    *moves* are already decided. *start* is the index of the first message after the last reply.

    Old messages can be summarized, so they count only with an estimate of what a compaction would
    keep. To this are added the system prompt, the tools, and what the model has not answered. If
    the sum exceeds the window, results are moved to files, the largest first and below the usual
    minimum length too, until the sum is below the budget's trigger and the window holds it. Results
    that were read back from files, and those that govern the agent, such as skills, are moved only
    if moving all others is not enough. Each moved result keeps a preview, the default one if the
    stage has none. If that is not enough, the results are chosen again, all without a preview.
    """
    if turn.force:  # the model has refused the context, so its size is not known well
        fits = await is_short(turn)
    else:
        fits = _fits_by_characters(turn, moves)
    if fits:
        return []
    head, rest = split_system(turn.messages)
    tail = open_tail(rest)  # may be before *start*: results need their calls
    unanswered = _with_placeholders(turn, moves)[len(head) + tail :]
    fixed_tokens = turn.overhead + await turn.counter.count([*head, *unanswered])
    fixed_tokens += await _compaction_tokens(turn, rest[:tail])
    if await holds_context(turn, fixed_tokens):
        return []
    leaving_places = {move.item.place for move in moves}
    tiers = await in_thread(_candidates, turn.messages, start, rules, leaving_places)
    further_moves: list[Move] = []
    for preview in (pointers.preview or Preview(), None):
        further_moves = []
        tokens = fixed_tokens
        tier_pointers = replace(pointers, preview=preview)
        for candidates in tiers:
            possible_moves = await worthwhile_moves(tier_pointers, turn, candidates, rules)
            savings = await _savings(turn, possible_moves)
            for move, saved_tokens in zip(possible_moves, savings, strict=True):
                if await _is_low_enough(turn, tokens):
                    return further_moves
                if saved_tokens > 0:
                    further_moves.append(move)
                    tokens -= saved_tokens
        if await _is_low_enough(turn, tokens):
            return further_moves
    return further_moves


def _fits_by_characters(turn: Turn, moves: Sequence[Move]) -> bool:
    """Return True if the window holds the context with one token for each new character.

    This is true in most turns and costs almost nothing to check. It is a high estimate, since a
    token has several characters in most texts. It is no proof: the whole stored text of *moves* is
    subtracted, and their placeholders are not added.
    """
    ledger = turn.ledger
    moved_chars = sum(len(move.text) for move in moves)
    # More characters than these cannot fit, so they are not counted.
    max_counted_chars = turn.budget.window + moved_chars
    new_messages = turn.messages[ledger.unchanged_count :]
    new_chars = weight(new_messages, max_counted_chars) - moved_chars
    return window_holds(turn, ledger.prefix_total + turn.overhead + max(0, new_chars))


def _with_placeholders(turn: Turn, moves: Sequence[Move]) -> list[Message]:
    """Return the messages of *turn* as they will be after *moves* of results."""
    contents: dict[Place, object] = {}
    for move in moves:
        if isinstance(move.item, ToolResult):
            text = move.predict_placeholder(turn)
            contents[move.item.place] = with_placeholder(move.item.content, text)
    return rewrite(turn.messages, contents)


async def _compaction_tokens(turn: Turn, messages: Sequence[Message]) -> int:
    """Estimate the tokens that a compaction keeps of *messages*: summary, evidence, the request."""
    request: Sequence[Message] = ()
    for message in reversed(messages):
        if own_words(message):
            request = [message]
            break
    max_words = SUMMARY_MAX_WORDS()  # the value of the setting
    summary_tokens = max_words * _TOKENS_PER_WORD + _EVIDENCE_TOKENS
    summary_tokens = min(summary_tokens, turn.budget.target // _TARGET_DIVISOR)
    tokens = summary_tokens + await turn.counter.count(request)
    return await in_thread(_tokens_up_to, turn.counter, messages, tokens)


def _tokens_up_to(counter: TokenCounter, messages: Sequence[Message], limit: int) -> int:
    """Return the tokens of *messages*, at most *limit*; no text above it is encoded."""
    tokens = 0
    for message in messages:
        if counter.over([message], limit - tokens):
            return limit
        tokens += counter.message(message)
    return tokens


def _candidates(
    messages: Sequence[Message], start: int, rules: OffloadRules, leaving_places: set[Place]
) -> list[list[OffloadCandidate]]:
    """Return two lists of results that may leave, the longest first.

    The second list has the results that were read back from files, that govern the agent, and that
    are pinned.
    """
    ordinary: list[OffloadCandidate] = []
    last_resort: list[OffloadCandidate] = []
    for result, call, chars in long_results(messages, start, min_chars=1):
        if result.place in leaving_places or not rules.can_leave(result, call):
            continue
        is_pinned = is_pinned_exchange(messages, result.message, rules.pin)
        stays_if_possible = is_pinned or rules.stays_if_it_fits(result, call)
        tier = last_resort if stays_if_possible else ordinary
        tier.append(OffloadCandidate(result, chars))
    for tier in (ordinary, last_resort):
        tier.sort(key=lambda candidate: (-candidate.chars, candidate.item.place))
    return [ordinary, last_resort]


async def _savings(turn: Turn, moves: Sequence[Move]) -> list[int]:
    """Return the tokens that each of *moves* saves in the context.

    The text that a move stores is not what the context loses: the file of several text blocks is
    their JSON, which has more tokens than the blocks.
    """
    before: list[Message] = []
    after: list[Message] = []
    for move in moves:
        content: Any = move.item.content if isinstance(move.item, ToolResult) else move.text
        placeholder: Any = with_placeholder(content, move.predict_placeholder(turn))
        before.append({"role": "user", "content": content})
        after.append({"role": "user", "content": placeholder})
    counts_before = await turn.counter.counts(before)
    counts_after = await turn.counter.counts(after)
    return [old - new for old, new in zip(counts_before, counts_after, strict=True)]


async def _is_low_enough(turn: Turn, raw: int) -> bool:
    """Return True if a context of *raw* tokens needs no compaction, and the model accepts it."""
    if turn.budget.reached(turn.ledger.estimate(raw)):
        return False
    return await holds_context(turn, raw)
