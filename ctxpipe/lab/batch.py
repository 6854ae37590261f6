"""Many recorded conversations through several policies, in several processes.

Each process replays one conversation at a time.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, TypeAlias

import anyio

from .._logs import logger
from .._text import short_repr
from .._threads.threads import is_alone
from .._values import JsonDict
from ..errors import CtxpipeError, SettingsError
from ..settings import check_extra
from .cache import Calibration, calibration
from .policies import NONE
from .records import Format
from .replay import Moment, PipelineMaker, Replay, Settings, replay_all
from .report import Report
from .transcripts import STDIN, Transcript, read_bytes, read_transcript

Reporter: TypeAlias = Callable[[Transcript, Mapping[str, tuple[Replay, Sequence[Moment]]]], Report]
"""Makes the report of a page, where the file is replayed: only that process has its contexts."""

SECONDS_TO_ANSWER = 10


@dataclass(frozen=True, slots=True, repr=False)
class FileReplay:
    """The result for one file: a replay for each policy, by its name, or the *error* to report.

    *calibration* sets the policy ``none``, where it was replayed, beside the usage in the file.
    """

    path: str
    replays: Mapping[str, Replay] = field(default_factory=dict)
    error: str = ""
    format: Format | None = None
    model: str = ""
    calls: int = 0
    repaired: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    report: Report | None = None
    calibration: Calibration | None = None

    __repr__ = short_repr

    def as_json(self) -> JsonDict:
        """The facts that were read from the file, by name."""
        return {
            "format": self.format,
            "model": self.model,
            "calls": self.calls,
            "repaired": self.repaired,
            "left_out": dict(self.dropped),
            "calibration": self.calibration.as_json() if self.calibration else None,
        }


def _replay_file(
    path: str,
    raw: bytes | None = None,
    *,
    makers: Mapping[str, PipelineMaker],
    settings: Settings | None,
    reporter: Reporter | None,
) -> FileReplay:
    """Replay the conversation at *path*, whose content is *raw*, where that has been read.

    Whatever fails is in the result's error.
    """
    try:
        transcript = read_transcript(path, raw)
        moments: dict[str, list[Moment]] = {name: [] for name in makers}
        watches = {name: seen.append for name, seen in moments.items() if reporter}
        context = copy_context()
        context.run(is_alone.set, True)
        done = context.run(anyio.run, replay_all, transcript, makers, settings, watches)
        watched = {name: (one, moments[name]) for name, one in done.items()}
        return FileReplay(
            path,
            done,
            format=transcript.format,
            model=transcript.model,
            calls=transcript.calls,
            repaired=len(transcript.repaired),
            dropped=transcript.dropped,
            calibration=calibration(transcript, done[NONE]) if NONE in done else None,
            report=reporter(transcript, watched) if reporter else None,
        )
    except Exception as error:  # noqa: BLE001  one file must not end the run of the others
        return FileReplay(path, error=_error_text(path, error))


def replay_files(
    paths: Sequence[str],
    makers: Mapping[str, PipelineMaker],
    settings: Settings | None = None,
    *,
    executor: Workers | None = None,
    reporter: Reporter | None = None,
    progress: Callable[[FileReplay], object] | None = None,
) -> list[FileReplay]:
    """Replay each file through each maker; the result has the order of *paths*.

    A file that cannot be replayed stops no other. Without the *executor* of `workers` or `cluster`
    it is done in this process; with one the makers must be picklable, as `Policy` is. *reporter*
    makes the report of a page for each file. *progress* is called with each file that is finished,
    in any order.
    """
    # The largest begin first, so that no worker is left with one at the end.
    distinct = sorted(set(paths), key=_size, reverse=True)
    job = partial(_replay_file, makers=makers, settings=settings, reporter=reporter)
    results: dict[str, FileReplay] = {}
    for result in _run(distinct, job, executor or Workers()):
        results[result.path] = result
        if progress is not None:
            progress(result)
    return [results[path] for path in paths]


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


# Workers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workers:
    """Where files are replayed: in *pool*, *at_once* of them, or without one in this process.

    Workers that may not see the caller's disk (*far*) are sent the files' contents.
    """

    pool: Executor | None = None
    at_once: int = 1
    far: bool = False


@contextmanager
def workers(processes: int) -> Iterator[Workers]:
    """This number of processes, for as long as the context lasts.

    Left early, for example by an interruption, they end at once.
    """
    if processes <= 1:
        yield Workers()
        return
    others = set(multiprocessing.active_children())
    # Not forked: the caller may have threads, for example one that draws a progress bar.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_worker)
    try:
        yield Workers(pool, processes + 1)
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave interruptions to the parent, and report in results only, not on the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logger.addHandler(logging.NullHandler())


@contextmanager
def _block_interruptions() -> Iterator[None]:
    """Processes started here ignore interruptions from the first moment on.

    They could do so themselves only later.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def cluster(address: str) -> Iterator[Workers]:
    """The workers of the Dask scheduler at *address*.

    They are sent the files' contents and need ctxpipe, not the caller's disk. Raises SettingsError
    when ``ctxpipe[dask]`` is not installed, nothing answers at *address*, or there are no workers.
    """
    check_extra("--scheduler", "distributed", "dask")
    distributed: Any = import_module("distributed")
    try:
        # First the address: a client with a wrong one waits long, and reports it only then.
        distributed.comm.get_address_host_port(address)
        client = distributed.Client(address, timeout=SECONDS_TO_ANSWER, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error) or type(error).__name__
        raise SettingsError(f"no Dask scheduler answers at {address}: {reason}") from error
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise SettingsError(f"the Dask scheduler at {address} has no workers")
        with client.get_executor(pure=False) as pool:
            yield Workers(pool, threads + 1, far=True)


def _run(
    paths: Sequence[str], job: Callable[..., FileReplay], executor: Workers
) -> Iterator[FileReplay]:
    if executor.pool is None:
        yield from map(job, paths)
        return
    rest = iter(paths)
    waiting: dict[Future[FileReplay], str] = {}
    while True:
        for path in islice(rest, executor.at_once - len(waiting)):
            waiting[_submit(path, job, executor, executor.pool)] = path
        if not waiting:
            return
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            path = waiting.pop(future)
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001  a lost worker costs its file, not the others
                yield FileReplay(path, error=_error_text(path, error))


def _submit(
    path: str, job: Callable[..., FileReplay], executor: Workers, pool: Executor
) -> Future[FileReplay]:
    try:
        # A worker has another standard input.
        raw = read_bytes(path) if executor.far or path == STDIN else None
        with _block_interruptions():  # a pool starts its processes when they are needed
            return pool.submit(job, path, raw)
    except (CtxpipeError, BrokenExecutor) as error:
        failed: Future[FileReplay] = Future()
        failed.set_exception(error)
        return failed


def _error_text(path: str, error: Exception) -> str:
    if isinstance(error, CtxpipeError):
        return str(error)
    if isinstance(error, BrokenExecutor):
        return f"{path} could not be replayed: a worker process died, perhaps for lack of memory"
    return f"{path} could not be replayed: {type(error).__name__}: {error}"
