"""A replay beside what the API billed, where the transcript tells it: how far the simulation can be
trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .replay import Replay
from .transcripts import Transcript

__all__ = ["Calibration", "calibration"]

FRESH, READ, WRITTEN = "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
NONSENSE = 10**12
"""Tokens that no prompt has; what claims them is no bill."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The prompts of *calls* whose bill is known, as billed and as simulated: all their tokens, and
    the cached ones.
    """

    calls: int
    billed_tokens: float
    simulated_tokens: float
    billed_read: float
    simulated_read: float

    def __add__(self, other: Calibration) -> Calibration:
        return Calibration(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def factor(self) -> float:
        """Tokens billed for each that was simulated.

        Above 1 also by what the transcript does not hold.
        """
        return self.billed_tokens / self.simulated_tokens

    @property
    def billed_hit_rate(self) -> float:
        """The share of the prompts that really came from the cache."""
        return self.billed_read / self.billed_tokens

    @property
    def simulated_hit_rate(self) -> float:
        """The share of the same prompts that came from the simulated cache."""
        return self.simulated_read / self.simulated_tokens


def calibration(transcript: Transcript, replay: Replay) -> Calibration | None:
    """*replay* of *transcript*, with no management, beside the bills in it.

    None where it tells none.
    """
    simulated = {
        request.call: request.use for request in replay.requests if request.purpose == "reply"
    }
    known = [
        (transcript.usages[index], simulated[call])
        for call, index in enumerate(transcript.replies)
        if _prompt(transcript.usages.get(index, {})) and call in simulated
    ]
    if not known:
        return None
    return Calibration(
        len(known),
        sum(_prompt(usage) for usage, _ in known),
        sum(use.prompt for _, use in known),
        sum(_tokens(usage, READ) for usage, _ in known),
        sum(use.read for _, use in known),
    )


def _prompt(usage: Mapping[str, object]) -> float:
    return sum(_tokens(usage, name) for name in (FRESH, READ, WRITTEN))


def _tokens(usage: Mapping[str, object], name: str) -> float:
    tokens = usage.get(name)
    return tokens if isinstance(tokens, int | float) and 0 < tokens < NONSENSE else 0
