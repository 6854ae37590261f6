"""Whether a dear attempt is made: the breaker and the refill guard of a session. Source: R2."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Attempts"]

FAILURES_IN_A_ROW = 3
REFILLS_IN_A_ROW = 3
REFILL_TURNS = 3
NOTABLE_CHANGE = 0.1  # of the tokens: after that the history is another one


@dataclass(slots=True)
class Attempts:
    """What a session remembers about its compactions. It decides whether one is tried, never what
    comes out of it.

    Closed for a cooldown: after three failures in a row (then one trial, and closed again if it
    fails), after a compaction that left the context too long, and after compactions that came back
    within three turns three times in a row (then one more, and closed again if that comes back as
    soon). Seconds are those of the caller's clock.
    """

    turns: int = 0
    failures: int = 0
    refills: int = 0
    on_trial: bool = False
    last_turn: int | None = None
    closed_until: float = -math.inf
    closed_at_tokens: int | None = None
    why: str = ""
    warned: bool = False  # that there is no model to write the summaries

    def refusal(self, now: float, tokens: int) -> str:
        """Why no attempt is made for a context of *tokens*; "" when one may be."""
        if now >= self.closed_until:
            return ""
        if (
            self.closed_at_tokens is not None
            and abs(tokens - self.closed_at_tokens) > NOTABLE_CHANGE * tokens
        ):
            return ""
        return f"{self.why}; no attempt for {self.closed_until - now:.0f} s"

    def failed(self, until: float, why: str) -> None:
        """An attempt failed, for whatever reason."""
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            self._close(until, f"{self.failures} attempts failed in a row, the last with: {why}")

    def succeeded(self, until: float) -> bool:
        """An attempt succeeded.

        Whether it closes because the context filled up again too soon, too often.
        """
        soon = self.last_turn is not None and self.turns - self.last_turn <= REFILL_TURNS
        self.refills = self.refills + 1 if soon else self.refills if self.on_trial else 0
        self.failures, self.last_turn, self.on_trial = 0, self.turns, False
        if self.refills < REFILLS_IN_A_ROW:
            return False
        self.refills, self.on_trial = REFILLS_IN_A_ROW - 1, True
        self._close(
            until,
            f"the context filled up within {REFILL_TURNS} turns {REFILLS_IN_A_ROW} times in a row",
        )
        return True

    def stuck(self, until: float, tokens: int) -> None:
        """An attempt left the context at *tokens*, still too long: another is worth it only when
        that changes.
        """
        self._close(until, f"compaction cannot bring the context below {tokens} tokens", tokens)

    def _close(self, until: float, why: str, tokens: int | None = None) -> None:
        self.closed_until, self.why, self.closed_at_tokens = until, why, tokens
