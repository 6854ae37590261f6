"""Compare token counts with the context window and the budget of a turn."""

from __future__ import annotations

from bisect import bisect_right

from ..providers.refusals import FAR_BELOW
from ..tokens import conservative
from .protocol import Turn


def window_holds(turn: Turn, raw: int) -> bool:
    """Return True if the window holds *raw* tokens and a reply, as far as it was measured."""
    reserve = turn.budget.reserve_output or 0
    return turn.ledger.measured_estimate(raw) <= turn.budget.window - reserve


async def holds_context(turn: Turn, raw: int) -> bool:
    """Return True if the model will accept a context of *raw* tokens.

    A turn is forced because the model refused the context. So that context has filled the window at
    least, independent of its estimate, and a shorter one is measured by it.
    """
    if not turn.force:
        return window_holds(turn, raw)
    before = max(1, turn.ledger.estimate(await tokens_before_stages(turn)))
    likely = turn.ledger.estimate(raw) * max(before, turn.budget.window) // before
    return not turn.budget.reached(likely)


async def is_short(turn: Turn) -> bool:
    """Return True if the context is far too short for a model to refuse it for its length."""
    before = max(await turn.tokens(), conservative(await turn.raw_tokens()))
    return before < FAR_BELOW * turn.budget.trigger


async def was_shortened(turn: Turn) -> bool:
    """Return True if earlier stages have made a refused context short enough.

    Then no unanswered message has to be cut.
    """
    if not turn.force:
        return False
    raw = await turn.raw_tokens()
    return raw < await tokens_before_stages(turn) and await holds_context(turn, raw)


async def tokens_before_stages(turn: Turn) -> int:
    """Return the raw tokens that the context had before the first stage of a forced turn."""
    if turn.tracked is not None and turn.tracked.tokens_before:
        return turn.tracked.tokens_before
    return await turn.raw_tokens()


def raw_limit(turn: Turn, tokens: int) -> int:
    """Return the largest number of raw tokens whose estimate is at most *tokens*."""
    candidates = range(tokens + 1)  # an estimate is never below the raw count
    return max(0, bisect_right(candidates, tokens, key=turn.ledger.estimate) - 1)
