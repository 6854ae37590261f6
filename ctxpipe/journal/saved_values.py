"""The values that a journal saves beside the messages: calibration, windows, failed attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..stages.compact.breaker import Attempts
from ..storage.sealed import Entry
from ..tokens import Ledger

NOTABLE_DRIFT = 0.01  # a smaller change of the ledger's factor is not written by itself


class JournaledState(Protocol):
    """The part of a session's state that is saved.

    The *ledger* has the calibration of token counts, *windows* the context windows that refusals
    have shown, by model, and *memories* the records of the stages, by the stage's place.
    """

    ledger: Ledger
    windows: dict[str | None, int]
    memories: dict[int, dict[object, Any]]

    def rewind(self, length: int) -> None:
        """Make totals and records describe only the first *length* messages of the context."""
        ...


class SavedValues(NamedTuple):
    """The values of a state at one time.

    *factor* is that of the ledger. *attempts* are the stages' records of failed attempts, by the
    stage's place, in the form in which a journal has them.
    """

    factor: float
    windows: dict[str | None, int]
    attempts: dict[str, Any]

    def has_learned_since(self, saved: SavedValues) -> bool:
        """Return True if the calibration or the windows differ notably from those *saved*."""
        drift = abs(self.factor - saved.factor)
        return drift > NOTABLE_DRIFT * saved.factor or self.windows != saved.windows


def values_of(state: JournaledState) -> SavedValues:
    """Return the present values of *state*."""
    attempts_by_place: dict[str, Any] = {}
    for place, memory in state.memories.items():
        attempts = memory.get(Attempts)
        if attempts and (values := attempts.saved()):
            attempts_by_place[str(place)] = values
    return SavedValues(state.ledger.factor, dict(state.windows), attempts_by_place)


def load_values(
    state: JournaledState, path: Sequence[Entry], saved_before: SavedValues
) -> SavedValues:
    """Load into *state* what the entries of *path*, oldest first, say last; return what is saved.

    If no entry says anything of attempts, those of *state* and of *saved_before* stay.
    """
    last = path[-1]
    state.ledger.load(last.samples)
    state.windows |= dict(last.windows)
    turns = [turn for entry in path for turn in entry.turns if "attempts" in turn]
    if not turns:
        return values_of(state)._replace(attempts=saved_before.attempts)
    saved: dict[str, Any] = turns[-1]["attempts"]
    for place in {*state.memories, *map(int, saved)}:
        memory = state.memories.setdefault(place, {})
        previous = memory.get(Attempts)
        attempts = Attempts.load(saved.get(str(place), {}))
        attempts.warned = bool(previous and previous.warned)
        memory[Attempts] = attempts
    return values_of(state)
