"""Recognize jobs and sub-agents that go on running: where one is started, and where it is over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..._values import leaves
from ...messages import ToolCall
from ...providers.agent_tools import (
    BACKGROUND_KEYS,
    FINISHED,
    JOB_ID,
    JOB_OVER,
    JOB_STATE,
    STARTED_JOBS,
    STOPPING_NAME,
)

_MAX_CHARS = 2_000
"""Characters that are read of the beginning of a result, and of a report."""


def job_started_by(call: ToolCall, text: str) -> str:
    """Return the id of the job that *call* has started, by the *text* of its result; "" if none.

    It has started one if the text has the form of a known agent, or if the call says that it is not
    waited for and the result names an id.
    """
    beginning = text[:_MAX_CHARS]
    for form in STARTED_JOBS:
        match = form.search(beginning)
        if match is not None and match.start() <= _MAX_LEAD:
            return match["id"]
    is_background = any(call.input.get(key) in (True, "true") for key in BACKGROUND_KEYS)
    match = JOB_ID.search(beginning) if is_background else None
    if match is None or _is_over(beginning):
        return ""
    return match["id"] or match["pid"]


_MAX_LEAD = 300
"""Characters before the form of a known agent: a file that quotes such a form starts no job."""


def jobs_ended_by(call: ToolCall, text: str, *, failed: bool, jobs: Iterable[str]) -> Iterator[str]:
    """Yield those of the running *jobs* that *call* has ended, or found to be over.

    *text* is that of its result, *failed* is True if the result reports a failure. Only a job that
    the input of the call names can be over.
    """
    values = {str(value) for _, value in leaves(call.input)}
    jobs_named = [job for job in jobs if job in values]
    if not jobs_named:
        return
    is_stopping = STOPPING_NAME.search(call.name) is not None and not failed
    is_over = is_stopping or _is_over(text[:_MAX_CHARS])
    if is_over:
        yield from jobs_named


def jobs_over_in(report: str, jobs: Iterable[str]) -> Iterator[str]:
    """Yield those of the running *jobs* that the *report* of a harness names and calls over."""
    if not _is_over(report[:_MAX_CHARS]):
        return
    for job in jobs:
        if re.search(rf"(?<![\w-]){re.escape(job)}(?![\w-])", report[:_MAX_CHARS]):
            yield job


def _is_over(text: str) -> bool:
    """Return True if *text* says that the job it is about has ended, or is unknown."""
    state = JOB_STATE.search(text)
    if state is not None:
        return (state["tag"] or state["value"]).lower() in FINISHED
    return JOB_OVER.search(text) is not None
