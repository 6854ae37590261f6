"""Figures of replays in rows: what the command line prints, and writes as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from .batch import FileReplay
from .calibration import Calibration
from .tune import HeldOut, Score, Scored, Tuned, front

__all__ = [
    "calibration_json",
    "file_json",
    "total_calibration",
    "tuning_json",
]


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
