"""Recordings by what a command is given: files and folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .._text import count_phrase
from ..errors import CtxpipeError, TranscriptError
from .transcripts import read_transcript

SUFFIXES = (".json", ".jsonl")
MOST_REASONS = 5


@dataclass(slots=True)
class Recordings:
    """The *files* to read, and what was skipped in folders.

    *unreadable* has the reason by path; *others* are the files that are neither JSON nor JSONL.
    """

    files: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def describe_skipped(self) -> str:
        """The skipped files, for a reader; "" where there are none."""
        kinds = {
            "without a conversation that can be read": len(self.unreadable),
            "neither JSON nor JSONL": len(self.others),
        }
        parts = [f"{count_phrase(n, 'file')} {what}" for what, n in kinds.items() if n]
        if not parts:
            return ""
        lines = [f"skipped: {', '.join(parts)}", *self.unreadable.values()]
        more = len(lines) - 1 - MOST_REASONS
        if more > 0:
            lines[1 + MOST_REASONS :] = [f"and {more:,} more"]
        return "\n  ".join(lines)


def find_recordings(
    names: Iterable[str], track: Callable[[Sequence[str]], Iterable[str]] = iter
) -> Recordings:
    """The recordings that *names* stand for: files and folders.

    A folder is searched to the bottom, without what is hidden in it; each JSON and JSONL file in it
    that holds a conversation is a recording. *track* iterates over those files, and may show how
    far it is. Raises TranscriptError for a folder that holds no recording.
    """
    found = Recordings()
    for path in names:
        if os.path.isdir(path):
            found.files += _search(path, found, track)
        else:
            found.files.append(path)
    found.files = list(dict.fromkeys(found.files))
    return found


def _search(
    folder: str, found: Recordings, track: Callable[[Sequence[str]], Iterable[str]]
) -> list[str]:
    """The recordings in *folder*; what is none is noted in *found*."""
    candidates = []
    for path in _walk(folder, found):
        if path.lower().endswith(SUFFIXES):
            candidates.append(path)
        else:
            found.others.append(path)
    recordings = []
    for path in track(candidates):
        try:
            read_transcript(path)
        except CtxpipeError as error:
            found.unreadable[path] = str(error)
        else:
            recordings.append(path)
    if not recordings:
        rest = found.describe_skipped() or "it is empty"
        raise TranscriptError(f"{folder} holds no recording that can be read; {rest}")
    return recordings


def _walk(folder: str, found: Recordings) -> Iterator[str]:
    """The regular files below *folder*, in the order of their names."""

    def note(error: OSError) -> None:
        found.unreadable[str(error.filename)] = f"{error.filename}: {error.strerror}"

    for parent, folders, files in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path
