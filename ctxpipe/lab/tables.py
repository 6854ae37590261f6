"""Figures of replays in rows: what the command line prints, and writes as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from .batch import FileReplay
from .calibration import Calibration

__all__ = [
    "calibration_json",
    "file_json",
    "total_calibration",
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
