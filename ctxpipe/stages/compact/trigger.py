"""Decide whether a context is compacted in this turn, and whether a summary is started early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...messages import Message, has_thinking, split_system
from ...summarizers import ExtractiveSummarizer, Summarizer
from ..protocol import Skip, Turn
from ..reading.unanswered import open_tail
from ..reports import Compacted
from ..window import window_holds
from .background import BACKGROUND_SHARE, PendingSummary
from .breaker import Attempts, Breaker
from .partition import reason_to_postpone
from .summary import summarizer_for


async def reason_to_skip(turn: Turn, breaker: Breaker) -> Skip | None:
    """Return a Skip if the context need not or must not be compacted now, else None.

    It need not below its trigger. It must not in the middle of an exchange, if its fixed part alone
    exceeds the budget, or while the circuit breaker is open.
    """
    tokens = await turn.tokens()
    is_over = turn.budget.reached(tokens)
    if not turn.force and not is_over:
        return Skip(f"{tokens:,} tokens, below the trigger of {turn.budget.trigger:,}")
    head, rest = split_system(turn.messages)
    reason = reason_to_postpone(rest)
    if reason:
        return Skip(reason)
    fixed_tokens = turn.overhead + await turn.counter.count(head)
    raw = await turn.raw_tokens()
    tail = open_tail(rest)
    must_cut = not tail or has_protected_thinking(turn, rest[tail:])
    if must_cut and not turn.force and window_holds(turn, raw):
        return Skip("postponed: only what the model has not answered could go")
    if turn.budget.reached(turn.ledger.estimate(fixed_tokens)):
        reason = (
            f"over budget: system prompt, tools and system messages have {fixed_tokens:,} tokens"
        )
    else:
        attempts = turn.recall(Attempts)
        # The clock of another process may be ahead.
        attempts.open_until = min(attempts.open_until, breaker.cooldown_end())
        reason = attempts.refusal(breaker.clock(), tokens)
    if not reason:
        return None
    raw -= turn.overhead
    return Skip(reason, Compacted(raw, raw, 0, attempts=0, over_budget=is_over, holds=reason))


async def may_begin_early(turn: Turn, configured: Summarizer | None, breaker: Breaker) -> bool:
    """Return True if the next summary should be started in the background.

    That is not so if protected thinking may forbid to keep the messages after it, or if the
    summarizer costs no time to wait for. *configured* is the summarizer in the settings.
    """
    if turn.protected or await turn.tokens() < BACKGROUND_SHARE * turn.budget.trigger:
        return False
    if isinstance(summarizer_for(turn, configured), ExtractiveSummarizer):
        return False
    pending = turn.memory.get(PendingSummary)
    if pending:
        if pending.place(turn):
            return False
        pending.cancel()
    return not await reason_to_skip(replace(turn, force=True), breaker)


def has_protected_thinking(turn: Turn, unanswered: Sequence[Message]) -> bool:
    """Return True if *unanswered* has thinking that must not follow a rewritten message."""
    return turn.protected > 0 and any(has_thinking(message) for message in unanswered)
