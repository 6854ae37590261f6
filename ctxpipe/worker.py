"""What runs in a worker process: one job, under limits of its own.

It imports no more than the job needs.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

__all__ = ["READY", "Job", "main", "serve"]

READY = b"ready"

_START_SECONDS = 60  # to receive the texts from a slow parent
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to do: call *function* of *module* with *texts* texts, which follow the job."""

    module: str
    function: str
    texts: int
    seconds: float
    memory_bytes: int
    parent: int


def main() -> None:
    """Serve standard input and output, and end with the parent, whatever the job is doing then."""
    _ask_for_end_with_parent()
    given = sys.stdin.buffer
    job: Job = pickle.load(given)  # noqa: S301 - from the process that started this one
    if os.getppid() != job.parent and os.name == "posix":
        return
    _set_alarm(_START_SECONDS + job.seconds)
    serve(job, given, sys.stdout.buffer)


def serve(job: Job, given: IO[bytes], answers: IO[bytes]) -> None:
    """Read the texts of *job*, then write `READY` and a line of JSON for each answer, as soon as it
    is there.
    """
    texts = [
        _text(given) for _ in range(job.texts)
    ]  # all before the first answer, or each side waits for the other
    work = getattr(importlib.import_module(job.module), job.function)
    _write(answers, READY + b"\n")
    if given is sys.stdin.buffer:
        _limit(job)
        threading.Thread(target=_end_at_end_of_input, daemon=True).start()
    for answer in work(texts):
        _write(answers, json.dumps(answer).encode() + b"\n")


def _text(given: IO[bytes]) -> str:
    return "".join(_pieces(given))


def _pieces(given: IO[bytes]) -> Iterator[str]:
    while (piece := pickle.load(given)) is not None:  # noqa: S301 - from the process that started this one
        yield piece


def _write(answers: IO[bytes], line: bytes) -> None:
    answers.write(line)
    answers.flush()


# Limits -------------------------------------------------------------------------------------------


def _limit(job: Job) -> None:
    _set_alarm(job.seconds)
    with suppress(ImportError):
        import resource

        spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        _lower(resource.RLIMIT_CPU, math.ceil(spent + job.seconds) + 1)
        _lower(resource.RLIMIT_AS, job.memory_bytes)
        _lower(resource.RLIMIT_CORE, 0)


def _set_alarm(seconds: float) -> None:
    """Have the system end this process after *seconds*, also while C code runs that Python cannot
    interrupt.
    """
    if not hasattr(signal, "setitimer"):
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))  # 0 would mean never


def _lower(limit: int, to: int) -> None:
    import resource

    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        to = min(to, hard)
    with suppress(OSError, ValueError):  # macOS has no limit on memory
        resource.setrlimit(limit, (to, to))


def _ask_for_end_with_parent() -> None:
    """Linux ends this process when its parent dies.

    Elsewhere the end of the input does, or the alarm.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)


def _end_at_end_of_input() -> None:
    # Not by the buffered reader: its lock would be held when the interpreter ends.
    while os.read(0, 4096):
        pass
    os._exit(1)
