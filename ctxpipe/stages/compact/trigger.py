"""Decide whether a context is compacted in this turn, and whether a summary is started early."""

from __future__ import annotations

from dataclasses import replace

from ...summarizers import ExtractiveSummarizer, Summarizer
from ..protocol import Skip, Turn
from ..reports import Compacted
from ..window import window_holds
from .background import BACKGROUND_SHARE, PendingSummary
from .breaker import Attempts, Breaker
from .partition import reason_to_postpone
from .split_context import SplitContext
from .summary import summarizer_for


async def reason_to_skip(turn: Turn, context: SplitContext, breaker: Breaker) -> Skip | None:
    """Return a Skip if the *context* of *turn* need not or must not be compacted now, else None.

    It need not below its trigger. It must not in the middle of an exchange, if its fixed part alone
    exceeds the budget, or while the circuit breaker is open.
    """
    tokens = await turn.tokens()
    is_over = turn.budget.reached(tokens)
    if not turn.force and not is_over:
        return Skip(f"{tokens:,} tokens, below the trigger of {turn.budget.trigger:,}")
    reason = reason_to_postpone(context.rest)
    if reason:
        return Skip(reason)
    fixed_tokens = turn.overhead + await turn.counter.count(context.head)
    raw = await turn.raw_tokens()
    must_cut = not context.tail or context.has_protected_thinking(context.tail)
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


async def may_begin_early(
    turn: Turn, context: SplitContext, configured: Summarizer | None, breaker: Breaker
) -> bool:
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
        if pending.place(turn, context):
            return False
        pending.cancel()
    return not await reason_to_skip(replace(turn, force=True), context, breaker)
