"""Refusals of a context as too long: whether one can be true, and the window that it names."""

from __future__ import annotations

from ..providers.refusals import LEAST_SHARE, Refusal
from ..tokens import Budget
from ..tokens.ledger import is_possible
from .state import State


def can_be_about(refusal: Refusal, state: State, raw: int, model: str | None) -> bool:
    """Whether *refusal* can be about a prompt of *raw* tokens, and about *model*.

    Our count may be far too low, as for pictures, until a bill has shown that it is not. A prompt
    that was billed has fitted into the window.
    """
    if refusal.window is not None and refusal.window < last_bill(state, model):
        return False
    if refusal.tokens is None:
        return True
    if refusal.tokens < LEAST_SHARE * raw:
        return False
    return not state.ledger.samples or is_possible(raw, refusal.tokens)


def last_bill(state: State, model: str | None) -> int:
    """What the last request to *model* was billed, 0 before its first usage."""
    return max((sample[2] for sample in state.ledger.samples if sample[0] == model), default=0)


def learn_window(
    refusal: Refusal, state: State, budget: Budget, model: str | None, tokens: int
) -> str:
    """Have *state* remember the window that *refusal* names for *model*, if it is smaller than
    that of the *budget*; the notice of that, else "".

    Where only a code says that a prompt of *tokens* was too long, the window is not larger.
    """
    window = refusal.window
    is_named = window is not None
    if window is not None:
        reserved = budget.reserve_output or 0  # the budget keeps it free in any window
        window -= max(0, refusal.answer_tokens - reserved)
    elif refusal.has_code:
        window = max(tokens, last_bill(state, model))
    if window is None or window >= budget.window:
        return ""
    state.windows[model] = window
    return (
        f"the window of {model or 'the model'} is {'' if is_named else 'at most '}{window:,} "
        f"tokens, not {budget.window:,}: the budget of this session is lowered"
    )
