"""Publish the report of a stage: write it to the log, and pass it to the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._logs import logger
from ..errors import safe_text
from ..stages.reports import Offloaded, Outcome, StageReport

if TYPE_CHECKING:
    from .state import PipelineSettings

_LEVELS = {
    Outcome.FAILED: logging.WARNING,
    Outcome.REFUSED: logging.WARNING,
    Outcome.SKIPPED: logging.DEBUG,
}


def publish(report: StageReport, settings: PipelineSettings) -> None:
    """Log *report*, and pass it to ``on_report`` of *settings*."""
    # A stage that had nothing to do is logged only for debugging. This is asked here, because most
    # reports of most turns are of this kind.
    has_acted = report.detail is not None or report.outcome is not Outcome.SKIPPED
    if has_acted or logger.isEnabledFor(logging.DEBUG):
        _log(report, settings.logged_failures)
    if settings.on_report is not None:
        _hand_over(report, settings.on_report)


def _log(report: StageReport, logged_failures: dict[str, str]) -> None:
    """Log *report*. Texts of errors and paths of files are logged only for debugging.

    A failure of the storage, such as a full disk, is logged as a warning only once for each stage
    of the pipeline, until the stage succeeds. *logged_failures* has the cause of the last one, by
    the name of the stage.
    """
    offloaded = report.detail if isinstance(report.detail, Offloaded) else None
    level = _LEVELS.get(report.outcome, logging.INFO)
    if offloaded is not None and offloaded.failed:
        level = logging.WARNING
    cause = _storage_failure(report)
    if cause and logged_failures.get(report.stage) == cause:
        level = logging.DEBUG
    elif cause:
        logged_failures[report.stage] = cause
    elif report.outcome is Outcome.CHANGED:
        logged_failures.pop(report.stage, None)
    logger.log(level, "%s", report)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    if report.error is not None:
        logger.debug("%s failed with", report.stage, exc_info=report.error)
    elif offloaded is not None and (offloaded.files or offloaded.failed):
        files = offloaded.files
        logger.debug("%s wrote %s; failed: %s", report.stage, files, offloaded.failed)


def _storage_failure(report: StageReport) -> str:
    """Return why the storage failed in *report*, without the name of the file; "" if it did not."""
    if isinstance(report.error, OSError):
        return str(report.error.errno)
    if isinstance(report.detail, Offloaded) and report.detail.failed:
        return report.detail.failed[-1].rpartition(": ")[2]
    return ""


def _hand_over(report: StageReport, on_report: Callable[[StageReport], object]) -> None:
    """Pass *report* to the caller's *on_report*; an error in it is logged."""
    try:
        on_report(report)
    except Exception as error:
        # No traceback: its text may quote anything.
        logger.error("on_report failed, and the turn goes on: %s", safe_text(error))  # noqa: TRY400
        logger.debug("on_report failed with", exc_info=error)
