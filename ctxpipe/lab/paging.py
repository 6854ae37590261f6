"""The page of one file's replays: made where the file is replayed, since only that process holds its contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..prices import Prices
from .atoms import AtomIndex
from .moments import Moment
from .policies import BudgetedPolicy
from .recall import ORACLES, Cut, Scored, cuts, mean_recall, shaped
from .replay import Replay, Settings
from .report import RecallPoint, Report
from .reporting import report_of
from .transcripts import Transcript

__all__ = ["Pages", "page_paths", "recall_points"]

SHARES = (0.1, 0.2, 0.35, 0.5, 0.75)
WAYS = ("keep last", "clear old results", "offload oldest", "offload, 450 characters shown")
ORACLE = "oracle blocks"


@dataclass(frozen=True, slots=True)
class Pages:
    """Which pages are wanted: of the policy *ours* beside *baseline*. Costs are in dollars where *prices* are given."""

    ours: str
    baseline: str
    prices: Prices | None = None

    async def report(
        self,
        transcript: Transcript,
        replays: Mapping[str, Replay],
        moments: Iterable[Moment],
        settings: Settings | None,
        index: AtomIndex,
    ) -> Report:
        """The report of *transcript*; *moments* are those of the replay through *ours*."""
        return report_of(
            transcript,
            replays[self.ours],
            replays[self.baseline],
            moments,
            settings=settings,
            prices=self.prices,
            recall=await recall_points(transcript, index),
            names=(self.ours, self.baseline),
        )


async def recall_points(transcript: Transcript, index: AtomIndex | None = None) -> list[RecallPoint]:
    """What simple ways to keep to a budget still show of what is used later, and what could be shown at best.

    Empty where the conversation is too short to be cut anywhere.
    """
    found = list(cuts(transcript, index=index or AtomIndex()))
    if not found:
        return []
    points = list[RecallPoint]()
    for share in SHARES:
        tokens = sum(share * cut.tokens for cut in found) / len(found)
        points += [_point(way, tokens, [await _kept(cut, way, share) for cut in found]) for way in WAYS]
        best = [ORACLES[ORACLE](cut, int(share * cut.tokens)) for cut in found]
        points.append(_point(ORACLE, tokens, best, oracle=True))
    return points


async def _kept(cut: Cut, way: str, share: float) -> Scored:
    return await shaped(cut, BudgetedPolicy(way, int(share * cut.tokens)))


def _point(way: str, tokens: float, scored: Iterable[Scored], *, oracle: bool = False) -> RecallPoint:
    return RecallPoint(way, tokens, mean_recall(scored).visible, oracle)


def page_paths(path: Path, files: Iterable[str]) -> dict[str, Path]:
    """Where the page of each of *files* goes: *path* for a single one, else a file beside it named after both."""
    distinct = list(dict.fromkeys(files))
    if len(distinct) == 1:
        return {distinct[0]: path}
    found: dict[str, Path] = {}
    for file in distinct:
        stem = "stdin" if file == "-" else Path(file).stem
        names = (f"{path.stem}-{stem}{'' if n == 1 else f'-{n}'}{path.suffix}" for n in range(1, len(distinct) + 1))
        found[file] = next(p for p in map(path.with_name, names) if p not in found.values())
    return found
