"""Whether an expensive attempt is made: a session's circuit breaker and refill guard."""

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
    """What a session remembers about its compactions.

    It decides whether one is tried, never what its result is. No attempt is made for a cooldown:
    after three failures in a row (then one trial, and another cooldown if it fails), after a
    compaction that left the context too long, and after compactions that came back within three
    turns three times in a row (then one more, and another cooldown if that comes back as soon).
    Seconds are those of the caller's clock.
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
        if self.closed_at_tokens is not None:
            change = abs(tokens - self.closed_at_tokens)
            if change > NOTABLE_CHANGE * tokens:
                return ""
        return f"{self.why}; no attempt for {self.closed_until - now:.0f} s"

    def record_failure(self, until: float, why: str) -> None:
        """An attempt failed, for whatever reason."""
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            self._pause(until, f"{self.failures} attempts failed in a row, the last with: {why}")

    def record_success(self, until: float) -> bool:
        """An attempt succeeded; return whether the next ones pause.

        They do when the context filled up again too soon, too often.
        """
        if self.last_turn is not None and self.turns - self.last_turn <= REFILL_TURNS:
            self.refills += 1
        elif not self.on_trial:
            self.refills = 0
        self.failures = 0
        self.last_turn = self.turns
        self.on_trial = False
        if self.refills < REFILLS_IN_A_ROW:
            return False
        self.refills = REFILLS_IN_A_ROW - 1
        self.on_trial = True
        self._pause(
            until,
            f"the context filled up within {REFILL_TURNS} turns {REFILLS_IN_A_ROW} times in a row",
        )
        return True

    def record_no_progress(self, until: float, tokens: int) -> None:
        """An attempt left the context at *tokens*, still too long.

        Another is worth it only when that changes.
        """
        self._pause(until, f"compaction cannot bring the context below {tokens} tokens", tokens)

    def _pause(self, until: float, why: str, tokens: int | None = None) -> None:
        self.closed_until = until
        self.why = why
        self.closed_at_tokens = tokens
