"""Figures of replays in rows: what the command line prints, and writes as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..prices import Prices
from .batch import FileReplay
from .calibration import Calibration
from .costs import Bill, bill, with_all_marks
from .references import Use
from .replay import Replay
from .tune import HeldOut, Score, Scored, Tuned, front

__all__ = [
    "Figures",
    "calibration_json",
    "figures",
    "file_json",
    "total_calibration",
    "total_figures",
    "tuning_json",
]


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one conversation, or on all.

    `FIGURES` tells what each figure means; costs are in the unit of the prices.
    """

    policy: str
    calls: int
    cost: float
    ratio: float
    marked: float
    hits: float
    peak: float
    fetched: int
    seen: float
    strict: float
    found: float

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def figures(
    replays: Mapping[str, Replay],
    prices: Prices,
    baseline: str,
) -> list[Figures]:
    """A row for each policy; *ratio* is its cost divided by that of *baseline*."""
    groups = {name: [replay] for name, replay in replays.items()}
    return _rows(groups, prices, baseline)


def total_figures(
    files: Iterable[FileReplay],
    prices: Prices,
    baseline: str,
) -> list[Figures]:
    """The same over all *files* that could be read."""
    read = [file.replays for file in files if file.replays]
    if not read:
        return []
    groups = {name: [replays[name] for replays in read] for name in read[0]}
    return _rows(groups, prices, baseline)


def total_calibration(files: Iterable[FileReplay]) -> Calibration | None:
    """The bills in all *files*, beside what was simulated; None where there is no bill."""
    known = [file.calibration for file in files if file.calibration]
    if not known:
        return None
    return sum(known[1:], known[0])


def calibration_json(one: Calibration) -> dict[str, float]:
    """The same by name, for JSON."""
    return {
        **asdict(one),
        "billed_hits": one.billed_hit_rate,
        "simulated_hits": one.simulated_hit_rate,
    }


def file_json(file: FileReplay) -> dict[str, Any]:
    """What was read of a file, for JSON."""
    calibration = None
    if file.calibration:
        calibration = calibration_json(file.calibration)
    return {
        "format": file.format,
        "model": file.model,
        "calls": file.calls,
        "repaired": file.repaired,
        "left_out": dict(file.dropped),
        "calibration": calibration,
    }


@dataclass(frozen=True, slots=True)
class _Bills:
    """What one policy costs in all, with the marks of the replay and with all four."""

    own: Bill
    marked: Bill

    @classmethod
    def of(cls, replays: Iterable[Replay], prices: Prices) -> _Bills:
        own = Bill()
        marked = Bill()
        for replay in replays:
            own += bill(replay.requests, prices)
            marked += bill(with_all_marks(replay.requests), prices)
        return cls(own, marked)


def _rows(
    groups: Mapping[str, Sequence[Replay]],
    prices: Prices,
    baseline: str,
) -> list[Figures]:
    bills = {name: _Bills.of(replays, prices) for name, replays in groups.items()}
    rows = []
    for name, replays in groups.items():
        row = _row(name, replays, bills[name], bills[baseline])
        rows.append(row)
    return rows


def _row(
    name: str,
    replays: Sequence[Replay],
    bills: _Bills,
    baseline: _Bills,
) -> Figures:
    total = bills.own
    use = sum((replay.use for replay in replays), Use())
    prompts = [step.prompt_tokens for replay in replays for step in replay.steps]
    return Figures(
        policy=name,
        calls=len(prompts),
        cost=total.total,
        ratio=_ratio(total, baseline.own),
        marked=_ratio(bills.marked, baseline.marked),
        hits=total.hit_rate,
        peak=max(prompts, default=0.0),
        fetched=total.refetches,
        seen=use.recall,
        strict=use.strict_recall,
        found=use.with_reread,
    )


def _ratio(one: Bill, other: Bill) -> float:
    return one.total / other.total if other.total else 1.0


# Tuning -------------------------------------------------------------------------------------------


def tuning_json(tuned: Tuned) -> dict[str, Any]:
    """What tuning found, for JSON."""
    chosen = tuned.chosen.candidate
    return {
        "chosen": _candidate_json(tuned.chosen),
        "toml": chosen.toml() if chosen else "",
        "reached": tuned.reached,
        "front": [_candidate_json(one) for one in front(tuned.tried)],
        "tried": [_candidate_json(one) for one in tuned.tried],
        "held_out": [_fold_json(fold) for fold in tuned.folds],
        "replays": tuned.replays,
        "errors": list(tuned.errors),
    }


def _fold_json(fold: HeldOut) -> dict[str, Any]:
    return {
        "settings": asdict(fold.chosen),
        **_score_json(fold.score),
        "cost_without": fold.without.cost,
    }


def _candidate_json(one: Scored) -> dict[str, Any]:
    settings = None
    if one.candidate:
        settings = asdict(one.candidate)
    return {"settings": settings, **_score_json(one.score)}


def _score_json(score: Score) -> dict[str, float]:
    return {
        "cost": score.cost,
        "seen": score.recall,
        "strict": score.strict_recall,
        "found": score.reachable,
    }
