"""Many recorded conversations through several policies, in several processes, one conversation at a
time in each.
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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

from ..errors import CtxpipeError
from .atoms import AtomIndex
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


@dataclass(frozen=True, slots=True)
class FileReplay:
    """What became of one file: a replay for each policy, by its name, or the *error* that its
    reader must know.

    *calibration* sets the policy ``none``, where it was replayed, beside the bills that the file tells.
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


def replay_file(
    path: str,
    makers: _Makers,
    settings: _Settings = None,
    raw: bytes | None = None,
    pages: Pages | None = None,
) -> FileReplay:
    """Replay the conversation at *path* through each of *makers*; *settings* may differ by the
    maker's name.

    *raw* is what the file holds, where that has been read; *pages* asks for the report of a page. Whatever goes wrong
    is told in the result's error.
    """
    import anyio

    try:
        return anyio.run(_replays, path, read_transcript(path, raw), makers, settings, pages)
    except Exception as error:  # noqa: BLE001  one file must not end the run of the others
        return FileReplay(path, error=_told(path, error))


async def _replays(
    path: str, transcript: Transcript, makers: _Makers, settings: _Settings, pages: Pages | None
) -> FileReplay:
    index, moments, replays = AtomIndex(), list[Moment](), dict[str, Replay]()
    chosen = {
        name: settings.get(name) if isinstance(settings, Mapping) else settings for name in makers
    }
    for name, make in makers.items():
        watch = moments.append if pages and name == pages.ours else None
        replays[name] = await replay(transcript, make, chosen[name], index, watch)
    return FileReplay(
        path,
        replays,
        format=transcript.format,
        model=transcript.model,
        calls=transcript.calls,
        repaired=len(transcript.repaired),
        dropped=transcript.dropped,
        calibration=calibration(transcript, replays[NONE]) if NONE in replays else None,
        report=await pages.report(transcript, replays, moments, chosen[pages.ours], index)
        if pages
        else None,
    )


def replay_files(
    paths: Sequence[str],
    makers: _Makers,
    settings: _Settings = None,
    *,
    processes: int | None = None,
    hands: Workers | None = None,
    pages: Pages | None = None,
    progress: Callable[[FileReplay], object] | None = None,
) -> list[FileReplay]:
    """Replay each file through each maker, in the order of *paths*. A file that cannot be replayed
    stops no other.

    With more than one of *processes* (default: one for each processor), or with *hands* that are
    there already, the makers must be picklable, as `Policy` is. *pages* asks for the report of a
    page for each file. *progress* is called with each file that is done, in whatever order.
    """
    distinct = sorted(set(paths), key=_size, reverse=True)
    done: dict[str, FileReplay] = {}
    with (
        nullcontext(hands)
        if hands
        else workers(min(processes or os.cpu_count() or 1, len(distinct))) as chosen
    ):
        for found in _replayed(distinct, _Job(makers, settings, pages), chosen):
            done[found.path] = found
            if progress is not None:
                progress(found)
    return [done[path] for path in paths]


def _size(path: str) -> int:
    """The largest files are begun first, so that no worker is left with one at the end."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


# Who does the work --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workers:
    """Where files are replayed: in *pool*, so many *at_once*, or without one right here.

    Workers that may not see the caller's disk are sent what a file holds (*far*).
    """

    pool: Executor | None = None
    at_once: int = 1
    far: bool = False


@contextmanager
def workers(processes: int) -> Iterator[Workers]:
    """So many processes, for as long as the context lasts.

    Left early, by an interruption say, they end at once.
    """
    if processes <= 1:
        yield Workers()
        return
    others = set(multiprocessing.active_children())
    # Not forked: the caller may have threads, one that draws a progress bar say.
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawning, _begin)
    finished = False
    try:
        yield Workers(pool, processes + 1)
        finished = True
    finally:
        for child in [] if finished else set(multiprocessing.active_children()) - others:
            child.terminate()
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """A worker leaves interruptions to its parent, and tells in its results what happened, not on
    the terminal.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("ctxpipe").addHandler(logging.NullHandler())


@contextmanager
def _interruptions_waiting() -> Iterator[None]:
    """A process that is started here is deaf to them from its first moment on, before it could say
    so itself.
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
        return replay_file(path, self.makers, self.settings, raw, self.pages)


def _replayed(paths: Sequence[str], job: _Job, hands: Workers) -> Iterator[FileReplay]:
    if hands.pool is None:
        yield from map(job, paths)
        return
    waiting: dict[Future[FileReplay], str] = {}
    for path in paths:
        if len(waiting) >= hands.at_once:
            yield from _finished(waiting)
        try:
            waiting[_submitted(hands.pool, job, path, hands.far)] = path
        except (CtxpipeError, BrokenExecutor) as error:
            yield FileReplay(path, error=_told(path, error))
    while waiting:
        yield from _finished(waiting)


def _finished(waiting: dict[Future[FileReplay], str]) -> Iterator[FileReplay]:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        yield _outcome(waiting.pop(future), future)


def _submitted(pool: Executor, job: _Job, path: str, far: bool) -> Future[FileReplay]:
    raw = read_bytes(path) if far or path == STDIN else None  # a worker has another standard input
    with _interruptions_waiting():  # a pool starts its processes when they are needed
        return pool.submit(job, path, raw)


def _outcome(path: str, future: Future[FileReplay]) -> FileReplay:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001  a worker that was lost costs its file, not the others
        return FileReplay(path, error=_told(path, error))


def _told(path: str, error: Exception) -> str:
    if isinstance(error, CtxpipeError):
        return str(error)
    if isinstance(error, BrokenExecutor):
        return f"{path} could not be replayed: a worker process died, for want of memory perhaps"
    return f"{path} could not be replayed: {type(error).__name__}: {error}"
