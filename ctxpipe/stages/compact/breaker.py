"""Decide whether a compaction is tried: a session's circuit breaker and refill guard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ...settings import FUNCTION, NUMBER, check_settings, instance_of
from ...summarizers import Retry

FAILURES_IN_A_ROW = 3
REFILLS_IN_A_ROW = 3
REFILL_TURNS = 3
_LAST_ERROR = ", the last with: "
NOTABLE_CHANGE = 0.1
"""Share of the tokens that must change before a context that stayed too long is tried again."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Limits for `Compact`: how often it tries to get a summary, and when it pauses.

    *retry* limits the attempts for one summary. `Compact` pauses for *cooldown_seconds* in three
    cases: after three failed compactions in a row; after a compaction that left the context too
    long (then only until its tokens change by more than a tenth); and if the context has filled up
    again within three turns after a compaction, three times in a row. *clock* returns the time in
    seconds. The default is the wall clock, because a journal passes the end of a pause to other
    processes.

    Raises SettingsError if a setting is invalid.
    """

    retry: Retry = field(default_factory=Retry)
    cooldown_seconds: float = 300.0
    clock: Callable[[], float] = time.time  # wall clock: a journal passes it to other processes

    def __post_init__(self) -> None:
        check_settings(
            self,
            retry=instance_of(Retry, "a Retry such as Retry(max_retries=2)"),
            cooldown_seconds=NUMBER,
            clock=FUNCTION,
        )

    def cooldown_end(self) -> float:
        """Return the time at which a cooldown that begins now ends."""
        return self.clock() + self.cooldown_seconds


@dataclass(slots=True)
class Attempts:
    """The record of a session's compactions.

    It decides whether a compaction is tried, never what its result is. No attempt is made during a
    cooldown, which begins

    - after three failures in a row (then one trial, and another cooldown if it fails),
    - after a compaction that left the context too long,
    - after compactions were needed again within three turns, three times in a row (then one more
      trial, and another cooldown if compaction is needed again as soon).

    Seconds are those of the caller's clock. The names of the fields are those in a journal.
    """

    turns: int = 0
    failures: int = 0
    refills: int = 0
    on_trial: bool = False
    last_turn: int | None = None
    open_until: float = -math.inf
    open_at_tokens: int | None = None
    why: str = ""  # the reason of the cooldown
    archive: str = ""  # path of messages that were archived but are not compacted yet
    archived: str = ""  # digest of these messages
    warned: bool = False  # True once the log has said that no model writes the summaries

    def saved(self) -> dict[str, Any]:
        """Return the fields that another process needs, as JSON values, without default values."""
        values: dict[str, Any] = {}
        for own_field in _SAVED_FIELDS:
            value = getattr(self, own_field.name)
            if value != own_field.default:
                values[own_field.name] = value
        if self.last_turn is not None and self.turns - self.last_turn <= REFILL_TURNS:
            values["last_turn"] = self.last_turn - self.turns
        if self.why:
            values["why"] = self.why.partition(_LAST_ERROR)[0]  # an error may quote anything
        return values

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Self:
        """Return the attempts from *values* that `saved` returned."""
        names = {own_field.name for own_field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    def refusal(self, now: float, tokens: int) -> str:
        """Return the reason why a context of *tokens* is not compacted; "" if it may be."""
        if now >= self.open_until:
            return ""
        opened_at = self.open_at_tokens
        if opened_at is not None and abs(tokens - opened_at) > NOTABLE_CHANGE * tokens:
            return ""
        return f"{self.why}; no attempt for {self.open_until - now:.0f} s"

    def record_failure(self, until: float, why: str) -> None:
        """Record a failed attempt; after too many of them, open the breaker *until* a time."""
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            self._open(until, f"{self.failures} attempts failed in a row{_LAST_ERROR}{why}")

    def record_success(self, until: float) -> bool:
        """Record that an attempt succeeded.

        Returns True if the next attempts pause *until* a time, because the context filled up again
        too soon, too often.
        """
        if self.last_turn is not None and self.turns - self.last_turn <= REFILL_TURNS:
            self.refills += 1
        elif not self.on_trial:
            self.refills = 0
        self.failures = 0
        self.archive = ""
        self.archived = ""
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
        """Record that an attempt left the context at *tokens*, still too long.

        No further attempt is made until the number of tokens changes.
        """
        self._open(until, f"compaction cannot bring the context below {tokens:,} tokens", tokens)

    def _open(self, until: float, why: str, tokens: int | None = None) -> None:
        """Refuse further attempts until the time *until*, for the reason *why*."""
        self.open_until = until
        self.why = why
        self.open_at_tokens = tokens


_SAVED_FIELDS = [
    own_field
    for own_field in fields(Attempts)
    if own_field.name not in ("turns", "last_turn", "warned")
]
