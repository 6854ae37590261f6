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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..atoms import AtomIndex
from ..errors import CtxpipeError
from ..words import short_repr
from .calibration import Calibration, calibration
from .policies import NONE
from .replay import PipelineMaker, Replay, Settings, replay
from .replay_report import Pages
from .report import Report
from .story import Moment
from .transcripts import STDIN, Format, Transcript, read_bytes, read_transcript

__all__ = ["FileReplay", "Workers", "replay_file", "replay_files", "workers"]

_Makers: TypeAlias = Mapping[str, PipelineMaker]
_Settings: TypeAlias = Mapping[str, Settings] | Settings | None


@dataclass(frozen=True, slots=True, repr=False)
class FileReplay:
    """The result for one file: a replay for each policy, by its name, or the *error* to report.

    *calibration* sets the policy ``none``, where it was replayed, beside the bills in the file.
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

    def as_json(self) -> dict[str, Any]:
        """What was read of the file, by name."""
        return {
            "format": self.format,
            "model": self.model,
            "calls": self.calls,
            "repaired": self.repaired,
            "left_out": dict(self.dropped),
            "calibration": self.calibration.as_json() if self.calibration else None,
        }


def replay_file(
    path: str,
    makers: _Makers,
    settings: _Settings = None,
    raw: bytes | None = None,
    pages: Pages | None = None,
) -> FileReplay:
    """Replay the conversation at *path* through each of *makers*.

    *settings* may differ by the maker's name. *raw* is the file's content, where that has been
    read; *pages* asks for the report of a page. Whatever fails is in the result's error.
    """
    import anyio

    try:
        transcript = read_transcript(path, raw)
        return anyio.run(
            _replay_all,
            path,
            transcript,
            makers,
            settings,
            pages,
        )
    except Exception as error:  # noqa: BLE001  one file must not end the run of the others
        return FileReplay(path, error=_error_text(path, error))


async def _replay_all(
    path: str,
    transcript: Transcript,
    makers: _Makers,
    settings: _Settings,
    pages: Pages | None,
) -> FileReplay:
    index = AtomIndex()
    moments: dict[str, list[Moment]] = {}
    if pages:
        moments.update((name, []) for name in makers)
    replays: dict[str, Replay] = {}
    for name, make in makers.items():
        watch = None
        if name in moments:
            watch = moments[name].append
        own = _settings_of(name, settings)
        replays[name] = await replay(transcript, make, own, index, watch)
    compared = None
    if NONE in replays:
        compared = calibration(transcript, replays[NONE])
    report = None
    if pages:
        by_name = {name: _settings_of(name, settings) for name in makers}
        report = pages.report(transcript, replays, moments, by_name)
    return FileReplay(
        path,
        replays,
        format=transcript.format,
        model=transcript.model,
        calls=transcript.calls,
        repaired=len(transcript.repaired),
        dropped=transcript.dropped,
        calibration=compared,
        report=report,
    )


def _settings_of(name: str, settings: _Settings) -> Settings | None:
    if isinstance(settings, Mapping):
        return settings.get(name)
    return settings


def replay_files(
    paths: Sequence[str],
    makers: _Makers,
    settings: _Settings = None,
    *,
    processes: int | None = None,
    executor: Workers | None = None,
    pages: Pages | None = None,
    progress: Callable[[FileReplay], object] | None = None,
) -> list[FileReplay]:
    """Replay each file through each maker; the result has the order of *paths*.

    A file that cannot be replayed stops no other. With more than one of *processes* (default: one
    for each processor), or with workers that exist already (*executor*), the makers must be
    picklable, as `Policy` is. *pages* asks for the report of a page for each file.
    *progress* is called with each file that is finished, in any order.
    """
    distinct = sorted(set(paths), key=_size, reverse=True)
    job = _Job(makers, settings, pages)
    results: dict[str, FileReplay] = {}
    with ExitStack() as stack:
        if not executor:
            count = min(processes or os.cpu_count() or 1, len(distinct))
            executor = stack.enter_context(workers(count))
        for result in _run(distinct, job, executor):
            results[result.path] = result
            if progress is not None:
                progress(result)
    return [results[path] for path in paths]


def _size(path: str) -> int:
    """The file's size: the largest begin first, so that no worker is left with one at the end."""
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
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, _start_worker)
    is_complete = False
    try:
        yield Workers(pool, processes + 1)
        is_complete = True
    finally:
        if not is_complete:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave interruptions to the parent, and report in results only, not on the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("ctxpipe").addHandler(logging.NullHandler())


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


@dataclass(frozen=True, slots=True)
class _Job:
    """What is done with each file."""

    makers: _Makers
    settings: _Settings
    pages: Pages | None

    def __call__(self, path: str, raw: bytes | None = None) -> FileReplay:
        return replay_file(
            path,
            self.makers,
            self.settings,
            raw,
            self.pages,
        )


def _run(
    paths: Sequence[str],
    job: _Job,
    executor: Workers,
) -> Iterator[FileReplay]:
    if executor.pool is None:
        yield from map(job, paths)
        return
    waiting: dict[Future[FileReplay], str] = {}
    for path in paths:
        if len(waiting) >= executor.at_once:
            yield from _next_results(waiting)
        try:
            future = _submit(executor.pool, job, path, executor.far)
        except (CtxpipeError, BrokenExecutor) as error:
            yield FileReplay(path, error=_error_text(path, error))
        else:
            waiting[future] = path
    while waiting:
        yield from _next_results(waiting)


def _next_results(waiting: dict[Future[FileReplay], str]) -> Iterator[FileReplay]:
    """Wait for at least one of *waiting*, and remove what has finished from it."""
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        yield _result(waiting.pop(future), future)


def _submit(
    pool: Executor,
    job: _Job,
    path: str,
    far: bool,
) -> Future[FileReplay]:
    raw = None
    if far or path == STDIN:  # a worker has another standard input
        raw = read_bytes(path)
    with _block_interruptions():  # a pool starts its processes when they are needed
        return pool.submit(job, path, raw)


def _result(path: str, future: Future[FileReplay]) -> FileReplay:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001  a lost worker costs its file, not the others
        return FileReplay(path, error=_error_text(path, error))


def _error_text(path: str, error: Exception) -> str:
    if isinstance(error, CtxpipeError):
        return str(error)
    if isinstance(error, BrokenExecutor):
        return f"{path} could not be replayed: a worker process died, perhaps for lack of memory"
    return f"{path} could not be replayed: {type(error).__name__}: {error}"
