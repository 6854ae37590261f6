"""The program of a worker process: one job, with limits on time and memory.

It imports only the modules that the job needs.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO

READY = b"ready"

_START_SECONDS = 60  # to receive the texts from a slow parent
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class Job:
    """Job of a worker: call *function* of *module* with the *text_count* texts that follow.

    *seconds* and *memory_bytes* are its limits. *parent* is the id of the process that started the
    worker.
    """

    module: str
    function: str
    text_count: int
    seconds: float
    memory_bytes: int
    parent: int


def main() -> None:
    """Read a job from standard input, run it, and write its answers to standard output.

    Does nothing if the parent has ended already (not checked on Windows). If the parent ends later,
    Linux ends this process at once, also in the middle of the job. Other systems do not. Except on
    Windows, an alarm ends this process if the texts do not arrive within the time limit of the job
    plus 60 seconds, or if the job itself exceeds its time limit.
    """
    _ask_for_end_with_parent()
    job_input = sys.stdin.buffer
    job: Job = pickle.load(job_input)  # noqa: S301 - from the process that started this one
    if os.getppid() != job.parent and os.name == "posix":
        return
    _set_alarm(_START_SECONDS + job.seconds)
    serve(job, job_input, sys.stdout.buffer)


def serve(job: Job, job_input: IO[bytes], answers: IO[bytes]) -> None:
    """Read the texts of *job*, call its function with them, and write each answer.

    The line `READY` is written before the function is called, each answer as a line of JSON. If
    *job_input* is the standard input of this process, the limits of *job* on time and memory are
    set before the call. Errors of the function are raised unchanged.
    """
    # All texts are read before the first answer is written; otherwise each side could wait for the
    # other. None ends the pieces of a text.
    read_piece = partial(pickle.load, job_input)  # from the process that started this one
    texts = ["".join(iter(read_piece, None)) for _ in range(job.text_count)]
    work = getattr(importlib.import_module(job.module), job.function)
    _write(answers, READY + b"\n")
    if job_input is sys.stdin.buffer:
        _limit(job)
    for answer in work(texts):
        _write(answers, json.dumps(answer).encode() + b"\n")


def _write(answers: IO[bytes], line: bytes) -> None:
    """Write *line* to *answers* and send it at once."""
    answers.write(line)
    answers.flush()


# Limits -------------------------------------------------------------------------------------------


def _limit(job: Job) -> None:
    """Limit the time and memory of this process for *job*, and write no core dump.

    On systems without such limits only those that exist are set.
    """
    _set_alarm(job.seconds)
    with suppress(ImportError):
        import resource

        _lower(resource.RLIMIT_CPU, math.ceil(time.process_time() + job.seconds) + 1)
        _lower(resource.RLIMIT_AS, job.memory_bytes)
        _lower(resource.RLIMIT_CORE, 0)


def _set_alarm(seconds: float) -> None:
    """Set a timer after which the system ends this process, even while C code runs.

    A later call replaces the timer. Zero or less counts as a millisecond. SIGALRM gets its default
    action, which ends the process, and is unblocked. Does nothing on Windows, which has no such
    timer.
    """
    if not hasattr(signal, "setitimer"):
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))  # 0 would mean never


def _lower(limit: int, to: int) -> None:
    """Set the resource limit number *limit* to *to*, or to the hard limit if that is lower.

    Nothing is raised if the system has no such limit.
    """
    import resource

    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        to = min(to, hard)
    with suppress(OSError, ValueError):  # macOS has no limit on memory
        resource.setrlimit(limit, (to, to))


def _ask_for_end_with_parent() -> None:
    """Ask Linux to end this process when its parent dies.

    Other systems have no `prctl`; there the alarm ends the process some seconds later.
    """
    with suppress(ImportError, OSError, AttributeError, TypeError):
        import ctypes

        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
