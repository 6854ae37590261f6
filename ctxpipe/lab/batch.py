"""Many recorded conversations through several policies, in several processes, one conversation at a time in each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from ..errors import CtxpipeError
from .atoms import AtomIndex
from .replay import PipelineMaker, Replay, Settings, replay
from .transcripts import Format, read_transcript

__all__ = ["FileReplay", "replay_file", "replay_files"]


@dataclass(frozen=True, slots=True)
class FileReplay:
    """What became of one file: a replay for each policy, by its name, or the *error* that its reader must know."""

    path: str
    replays: Mapping[str, Replay] = field(default_factory=dict)
    error: str = ""
    format: Format | None = None
    model: str = ""
    calls: int = 0
    repaired: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)


def replay_file(
    path: str, makers: Mapping[str, PipelineMaker], settings: Mapping[str, Settings] | Settings | None = None
) -> FileReplay:
    """Replay the conversation at *path* through each of *makers*; *settings* may differ by the maker's name."""
    import anyio

    try:
        transcript = read_transcript(path)
    except CtxpipeError as error:
        return FileReplay(path, error=str(error))
    index = AtomIndex()
    replays = {}
    for name, make in makers.items():
        chosen = settings.get(name) if isinstance(settings, Mapping) else settings
        replays[name] = anyio.run(replay, transcript, make, chosen, index)
    return FileReplay(
        path,
        replays,
        format=transcript.format,
        model=transcript.model,
        calls=transcript.calls,
        repaired=len(transcript.repaired),
        dropped=transcript.dropped,
    )


def replay_files(
    paths: Sequence[str],
    makers: Mapping[str, PipelineMaker],
    settings: Mapping[str, Settings] | Settings | None = None,
    *,
    processes: int | None = None,
    progress: Callable[[FileReplay], object] | None = None,
) -> list[FileReplay]:
    """Replay each file through each maker, in the order of *paths*. A file that cannot be read stops no other.

    With more than one of *processes* (default: one for each processor) the makers must be picklable, as `Policy` is.
    *progress* is called with each file that is done, in whatever order.
    """
    processes = min(processes or os.cpu_count() or 1, len(paths))
    done: dict[str, FileReplay] = {}
    for found in _replayed(sorted(set(paths), key=_size, reverse=True), makers, settings, processes):
        done[found.path] = found
        if progress is not None:
            progress(found)
    return [done[path] for path in paths]


def _replayed(
    paths: Sequence[str],
    makers: Mapping[str, PipelineMaker],
    settings: Mapping[str, Settings] | Settings | None,
    processes: int,
) -> Iterator[FileReplay]:
    if processes <= 1:
        yield from (replay_file(path, makers, settings) for path in paths)
        return
    with ProcessPoolExecutor(processes) as pool:
        waiting: list[Future[FileReplay]] = [pool.submit(replay_file, path, makers, settings) for path in paths]
        for future in as_completed(waiting):
            yield future.result()


def _size(path: str) -> int:
    """The largest files are begun first, so that no worker is left with one at the end."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
