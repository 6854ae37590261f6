"""When old results leave the context: the gate of `BatchOffload`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from ..edits.offload import Candidate, Scan, passes
from ..errors import SettingsError
from ..settings import OFFLOAD_RATIO_THRESHOLD, setting
from ..stage import Turn

__all__ = ["Gate", "RatioGate"]


class Gate(Protocol):
    """Chooses which of the candidates leave the context now."""

    async def __call__(
        self, turn: Turn, scan: Scan, candidates: Callable[[], Sequence[Candidate]], /
    ) -> Sequence[Candidate] | str:
        """The candidates to offload at this turn, or one sentence why none."""
        ...


@dataclass(frozen=True, slots=True)
class RatioGate:
    """Opens when at least *ratio* of the history's characters may leave; everything goes then. Source: RG-7, PL-2.

    A ratio outside 0 … 1 is taken as it is (RG-20). Raises SettingsError when it is not a number.
    """

    ratio: float | Decimal = setting(OFFLOAD_RATIO_THRESHOLD)

    def __post_init__(self) -> None:
        if not Decimal(str(self.ratio)).is_finite():
            raise SettingsError(f"ratio of a RatioGate is {self.ratio}, which is not a finite number")

    async def __call__(
        self, _turn: Turn, scan: Scan, candidates: Callable[[], Sequence[Candidate]], /
    ) -> Sequence[Candidate] | str:
        if passes(scan, self.ratio):
            return candidates()
        if not scan.offloadable_chars:
            return "no old result is long enough to offload"
        share = scan.offloadable_chars / scan.total_chars
        return f"{share:.3f} of the history is offloadable, below {self.ratio}"
