"""A replay beside what the API billed, where the transcript has the bills.

It shows how far the simulation can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from .replay import Replay
from .transcripts import Transcript

__all__ = ["Calibration", "calibration"]

FRESH = "input_tokens"
READ = "cache_read_input_tokens"
WRITTEN = "cache_creation_input_tokens"
INVALID_TOKENS = 10**12
"""More tokens than any prompt has; what reports them is no bill."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The prompts of *calls* whose bill is known, as billed and as simulated.

    All their tokens, and the cached ones.
    """

    calls: int
    billed_tokens: float
    simulated_tokens: float
    billed_read: float
    simulated_read: float

    def __add__(self, other: Calibration) -> Calibration:
        sums = [getattr(self, name) + getattr(other, name) for name in self.__slots__]
        return Calibration(*sums)

    @property
    def factor(self) -> float:
        """Tokens billed for each that was simulated.

        What the transcript does not hold is another reason for a factor above 1.
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

    def as_json(self) -> dict[str, float]:
        """The tokens and shares by name."""
        return {
            **asdict(self),
            "billed_hits": self.billed_hit_rate,
            "simulated_hits": self.simulated_hit_rate,
        }


def calibration(transcript: Transcript, replay: Replay) -> Calibration | None:
    """*replay* of *transcript*, with no management, beside the bills in it.

    None where it has none.
    """
    simulated = {}
    for request in replay.requests:
        if request.purpose == "reply":
            simulated[request.call] = request.use
    usages = []
    uses = []
    for call, index in enumerate(transcript.replies):
        usage = transcript.usages.get(index, {})
        if _prompt(usage) and call in simulated:
            usages.append(usage)
            uses.append(simulated[call])
    if not usages:
        return None
    return Calibration(
        len(usages),
        billed_tokens=sum(_prompt(usage) for usage in usages),
        simulated_tokens=sum(use.prompt for use in uses),
        billed_read=sum(_tokens(usage, READ) for usage in usages),
        simulated_read=sum(use.read for use in uses),
    )


def _prompt(usage: Mapping[str, object]) -> float:
    return sum(_tokens(usage, name) for name in (FRESH, READ, WRITTEN))


def _tokens(usage: Mapping[str, object], name: str) -> float:
    tokens = usage.get(name)
    if isinstance(tokens, int | float) and 0 < tokens < INVALID_TOKENS:
        return tokens
    return 0
