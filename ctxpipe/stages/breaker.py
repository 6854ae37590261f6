"""Whether an expensive attempt is made: a session's circuit breaker and refill guard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ..settings import FUNCTION, NUMBER, check_settings, instance_of
from ..summarizers import Retry

FAILURES_IN_A_ROW = 3
REFILLS_IN_A_ROW = 3
REFILL_TURNS = 3
_LAST = ", the last with: "
NOTABLE_CHANGE = 0.1  # of the tokens: after that the history is another one


@dataclass(frozen=True, slots=True)
class Breaker:
    """How often `Compact` tries to get a summary, and when it stops trying for a while.

    *retry* says how often, and for how long, one summary is asked for. After three compactions in a
    row have failed, and when compaction does not help or has to come back too often, none is tried
    for *cooldown_seconds* of *clock*.

    Raises SettingsError for settings that are invalid.
    """

    retry: Retry = field(default_factory=Retry)
    cooldown_seconds: float = 300.0
    clock: Callable[[], float] = time.time  # a journal hands the seconds to other processes

    def __post_init__(self) -> None:
        check_settings(
            self,
            retry=instance_of(Retry, "a Retry such as Retry(max_retries=2)"),
            cooldown_seconds=NUMBER,
            clock=FUNCTION,
        )

    def cooldown_end(self) -> float:
        """When a cooldown that begins now ends."""
        return self.clock() + self.cooldown_seconds


@dataclass(slots=True)
class Attempts:
    """What a session remembers about its compactions.

    It decides whether one is tried, never what its result is. For a cooldown the breaker is open,
    and no attempt is made: after three failures in a row (then one trial, and another cooldown if
    it fails), after a compaction that left the context too long, and after compactions that came
    back within three turns three times in a row (then one more, and another cooldown if that comes
    back as soon). Seconds are those of the caller's clock.
    """

    turns: int = 0
    failures: int = 0
    refills: int = 0
    on_trial: bool = False
    last_turn: int | None = None
    open_until: float = -math.inf
    open_at_tokens: int | None = None
    why: str = ""
    archive: str = ""  # where the messages are that were archived, and are not compacted yet
    archived: str = ""  # their digest
    warned: bool = False  # that there is no model to write the summaries

    def saved(self) -> dict[str, Any]:
        """What another process has to know, as JSON values: the fields that are not as at first."""
        changed = [own.name for own in _SAVED if getattr(self, own.name) != own.default]
        values = {name: getattr(self, name) for name in changed}
        if self.last_turn is not None and self.turns - self.last_turn <= REFILL_TURNS:
            values["last_turn"] = self.last_turn - self.turns
        if self.why:
            values["why"] = self.why.partition(_LAST)[0]  # an error may quote anything
        return values

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """The attempts of which *values* were saved."""
        names = {own.name for own in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    def refusal(self, now: float, tokens: int) -> str:
        """Why no attempt is made for a context of *tokens*; "" when one may be."""
        if now >= self.open_until:
            return ""
        opened_at = self.open_at_tokens
        if opened_at is not None and abs(tokens - opened_at) > NOTABLE_CHANGE * tokens:
            return ""
        return f"{self.why}; no attempt for {self.open_until - now:.0f} s"

    def record_failure(self, until: float, why: str) -> None:
        """An attempt failed, for whatever reason."""
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            self._open(until, f"{self.failures} attempts failed in a row{_LAST}{why}")

    def record_success(self, until: float) -> bool:
        """An attempt succeeded; return whether the next ones pause.

        They do when the context filled up again too soon, too often.
        """
        if self.last_turn is not None and self.turns - self.last_turn <= REFILL_TURNS:
            self.refills += 1
        elif not self.on_trial:
            self.refills = 0
        self.failures = 0
        self.archive = self.archived = ""
        self.last_turn = self.turns
        self.on_trial = False
        if self.refills < REFILLS_IN_A_ROW:
            return False
        self.refills = REFILLS_IN_A_ROW - 1
        self.on_trial = True
        self._open(
            until,
            f"the context filled up within {REFILL_TURNS} turns {REFILLS_IN_A_ROW} times in a row",
        )
        return True

    def record_no_progress(self, until: float, tokens: int) -> None:
        """An attempt left the context at *tokens*, still too long.

        Another is worth it only when that changes.
        """
        self._open(until, f"compaction cannot bring the context below {tokens:,} tokens", tokens)

    def _open(self, until: float, why: str, tokens: int | None = None) -> None:
        self.open_until = until
        self.why = why
        self.open_at_tokens = tokens


_SAVED = [own for own in fields(Attempts) if own.name not in ("turns", "last_turn", "warned")]
