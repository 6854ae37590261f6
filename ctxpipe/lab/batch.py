"""Replays of many recorded conversations in several processes.

Each process replays one conversation at a time, through all policies.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from dataclasses import dataclass, field, replace
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
from .orders import Order
from .policies import NONE
from .prefix import Prefix
from .replay import Moment, PipelineMaker, ReplayResult, ReplaySettings, Watch, replay_all
from .report import Report
from .survival import Surveys
from .transcripts import STDIN, Coverage, Transcript, read_bytes, read_transcripts

Reporter: TypeAlias = Callable[
    [Transcript, Mapping[str, tuple[ReplayResult, Sequence[Moment]]]], Report
]
"""Function that makes the report of one file for the HTML page.

It is called in the process that replays the file, because the contexts of a replay are not passed
to another process.
"""

OrdersOf: TypeAlias = Callable[[Transcript], Sequence[Order]]
"""Function that returns the texts to look for in the replays of a transcript."""

DASK_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True, repr=False)
class FileReplay:
    """Result for the file *path*: a replay for each policy by its name, or the text of an *error*.

    *format*, *model* and *calls* (the number of replies) are those of the transcript. *repaired* is
    the number of problems that were repaired, *coverage* how much of the file was read.
    *report* is what the *reporter* of `replay_files` returned for the HTML page. *calibration*
    compares the replay of the policy ``none`` with the usage in the file; None if that policy was
    not replayed or the file has no usage. *has_times* is True if messages in the file have times.
    *subagents* has the results for the conversations of subagents in the same file; their *path*
    is that of the file and a number, such as "events.jsonl#1".
    """

    path: str
    replays: Mapping[str, ReplayResult] = field(default_factory=dict)
    error: str = ""
    format: str | None = None
    model: str = ""
    calls: int = 0
    repaired: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    report: Report | None = None
    calibration: Calibration | None = None
    has_times: bool = False
    subagents: Sequence[FileReplay] = ()

    __repr__ = short_repr

    @property
    def prefix(self) -> Prefix | None:
        """The system prompt and the tools that every request of the replays begins with."""
        return next((replayed.prefix for replayed in self.replays.values()), None)

    def as_json(self) -> JsonDict:
        """Return the facts about the file as a JSON object."""
        return {
            "format": self.format,
            "model": self.model,
            "calls": self.calls,
            "repaired": self.repaired,
            "left_out": dict(self.coverage.omitted_counts),
            "recognized": self.coverage.recognized,
            "warning": self.coverage.warning,
            "prefix": self.prefix and {"tokens": self.prefix.tokens, "from": self.prefix.origin},
            "calibration": self.calibration.as_json() if self.calibration else None,
        }


def replay_file(
    path: str,
    makers: Mapping[str, PipelineMaker],
    settings: ReplaySettings | None = None,
    *,
    raw: bytes | None = None,
    reporter: Reporter | None = None,
    orders_of: OrdersOf | None = None,
) -> FileReplay:
    """Replay the conversation at *path* through the pipelines of *makers*; return the result.

    This is a pure function of the file's content and the arguments: it writes nothing, asks no
    model, keeps no state, and raises no Exception (the text of an error is the *error* of the
    result). Arguments and result can be pickled, so any system that maps a function over many files
    can call it: Ray, Spark, Dask, a process pool. Call it outside of a running event loop.

    *makers* come from `policies`. *settings* are those of `replay_all`. *raw* is the content of the
    file; with None the file is read here, and with content *path* is only the name. *reporter*, if
    set, creates the report of the result from the transcript, and the replay and the moments of
    each pipeline. *orders_of*, if set, returns the texts to look for.
    """
    try:
        transcript, *others = read_transcripts(path, raw)
    except Exception as error:  # noqa: BLE001  one file must not end the run of the others
        return FileReplay(path, error=_error_text(path, error))
    replay_each = partial(
        _replay_transcript,
        makers=makers,
        settings=settings,
        reporter=reporter,
        orders_of=orders_of,
    )
    subagents = [replay_each(subagent.name, subagent) for subagent in others]
    return replace(replay_each(path, transcript), subagents=subagents)


def _replay_transcript(
    path: str,
    transcript: Transcript,
    *,
    makers: Mapping[str, PipelineMaker],
    settings: ReplaySettings | None,
    reporter: Reporter | None,
    orders_of: OrdersOf | None,
) -> FileReplay:
    """Replay *transcript*, which is at *path*; return the result, or the text of an error.

    The other arguments are those of `replay_file`.
    """
    try:
        orders = orders_of(transcript) if orders_of else ()
        surveys = Surveys(orders, makers)
        moments: dict[str, list[Moment]] = {name: [] for name in makers}

        def watch(name: str, moment: Moment) -> None:
            surveys.watches[name](moment)
            if reporter:
                moments[name].append(moment)

        watches: dict[str, Watch] = {}
        if orders or reporter:
            watches = {name: partial(watch, name) for name in makers}
        context = copy_context()
        context.run(is_alone.set, True)
        replays = context.run(anyio.run, replay_all, transcript, surveys.makers, settings, watches)
        replays = {
            name: replace(result, looks=surveys.looks(name)) for name, result in replays.items()
        }
        report = None
        if reporter is not None:
            report = reporter(
                transcript, {name: (replay, moments[name]) for name, replay in replays.items()}
            )
        usage_calibration = None
        if NONE in replays:
            usage_calibration = calibration(transcript, replays[NONE])
        return FileReplay(
            path,
            replays,
            format=transcript.format,
            model=transcript.model,
            calls=transcript.calls,
            repaired=len(transcript.repaired),
            coverage=transcript.coverage,
            calibration=usage_calibration,
            report=report,
            has_times=bool(transcript.seconds),
        )
    except Exception as error:  # noqa: BLE001  one file must not end the run of the others
        return FileReplay(path, error=_error_text(path, error))


def with_subagents(files: Iterable[FileReplay]) -> list[FileReplay]:
    """Return the results of *files*, each followed by those of its subagents."""
    results: list[FileReplay] = []
    for file in files:
        results += [file, *file.subagents]
    return results


def replay_files(
    paths: Sequence[str],
    makers: Mapping[str, PipelineMaker],
    settings: ReplaySettings | None = None,
    *,
    executor: Workers | None = None,
    reporter: Reporter | None = None,
    orders_of: OrdersOf | None = None,
    progress: Callable[[FileReplay], object] | None = None,
) -> list[FileReplay]:
    """Replay each file through each maker; return the results in the order of *paths*.

    A file that cannot be replayed has an error in its result and does not stop the others.
    *executor* comes from `workers` or `cluster`; the makers must then be picklable, as `Policy` is.
    Without it all files are replayed in this process. *reporter* makes each file's report for the
    HTML page. *orders_of* returns the texts to look for in the contexts of a transcript; they are
    in ``looks`` of each replay. *progress* is called with each result when it is available, in any
    order.
    """
    # The largest files start first, so that no worker starts a long one at the end.
    distinct = sorted(set(paths), key=_size, reverse=True)
    job = partial(
        replay_file,
        makers=makers,
        settings=settings,
        reporter=reporter,
        orders_of=orders_of,
    )
    results: dict[str, FileReplay] = {}
    for result in _replay_in(distinct, job, executor or Workers()):
        results[result.path] = result
        if progress is not None:
            progress(result)
    return [results[path] for path in paths]


def _size(path: str) -> int:
    """Return the size of the file at *path* in bytes, 0 if it cannot be read."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


# Workers ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers that replay files; `workers` and `cluster` create them.

    *pool* is the executor of the workers, or None to replay in this process. At most *at_once*
    files are submitted at a time. If *far* is True, the workers may have no access to the caller's
    disk, so they get the contents of the files.
    """

    pool: Executor | None = None
    at_once: int = 1
    far: bool = False


@contextmanager
def workers(processes: int) -> Iterator[Workers]:
    """Start as many worker processes as *processes* says, for `replay_files`.

    They end with the ``with`` block, and at once if it ends with an exception, such as an
    interruption. With one process or fewer the files are replayed in this process.
    """
    if processes <= 1:
        yield Workers()
        return
    earlier_children = set(multiprocessing.active_children())
    # Not forked: the caller may have threads, for example one that draws a progress bar.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _start_worker)
    try:
        yield Workers(pool, processes + 1)
    except BaseException:
        for child in set(multiprocessing.active_children()) - earlier_children:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Ignore interruptions, which the parent handles, and keep log lines off the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logger.addHandler(logging.NullHandler())


@contextmanager
def _block_interruptions() -> Iterator[None]:
    """Block SIGINT, so that a process started inside ignores it from its first moment on.

    A process can ignore interruptions by itself only once it has started.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@contextmanager
def cluster(address: str) -> Iterator[Workers]:
    """Connect to the workers of the Dask scheduler at *address*.

    The workers need ctxpipe, but not the caller's disk: they get the files' contents. Raises
    SettingsError if ``ctxpipe[dask]`` is not installed, no scheduler answers at *address*, or the
    scheduler has no workers.
    """
    check_extra("--scheduler", "distributed", "dask")
    distributed: Any = import_module("distributed")
    try:
        # Check the address first: a client with a wrong one reports it only after a long wait.
        distributed.comm.get_address_host_port(address)
        client = distributed.Client(address, timeout=DASK_TIMEOUT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error) or type(error).__name__
        raise SettingsError(f"no Dask scheduler answers at {address}: {reason}") from error
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise SettingsError(f"the Dask scheduler at {address} has no workers")
        with client.get_executor(pure=False) as pool:
            yield Workers(pool, threads + 1, far=True)


def _replay_in(
    paths: Sequence[str], job: Callable[..., FileReplay], executor: Workers
) -> Iterator[FileReplay]:
    """Call *job* with each path, in the pool or here; yield the results as they complete.

    In a pool the error of a file is in its result; without one it is raised.
    """
    if executor.pool is None:
        for path in paths:
            yield job(path)
        return
    remaining_paths = iter(paths)
    pending: dict[Future[FileReplay], str] = {}
    while True:
        for path in islice(remaining_paths, executor.at_once - len(pending)):
            pending[_submit(path, job, executor, executor.pool)] = path
        if not pending:
            return
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            path = pending.pop(future)
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001  a lost worker must not end the other files
                yield FileReplay(path, error=_error_text(path, error))


def _submit(
    path: str, job: Callable[..., FileReplay], executor: Workers, pool: Executor
) -> Future[FileReplay]:
    """Submit *job* for *path* to *pool*; the future has the error if that fails."""
    try:
        # A worker process does not have the caller's standard input.
        raw = read_bytes(path) if executor.far or path == STDIN else None
        with _block_interruptions():  # the pool may start a process here
            return pool.submit(job, path, raw=raw)
    except (CtxpipeError, BrokenExecutor) as error:
        future: Future[FileReplay] = Future()
        future.set_exception(error)
        return future


def _error_text(path: str, error: Exception) -> str:
    """Return the text for the report if *error* prevented the replay of the file at *path*."""
    if isinstance(error, CtxpipeError):
        return str(error)
    if isinstance(error, BrokenExecutor):
        return f"{path} could not be replayed: a worker process died, perhaps for lack of memory"
    return f"{path} could not be replayed: {type(error).__name__}: {error}"
