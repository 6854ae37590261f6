"""Find the recordings in the files and folders that a command names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.progress import Progress

from .._text import count_phrase
from ..errors import CtxpipeError, TranscriptError
from .terminal import print_notice, progress_bar
from .transcripts import read_transcript

SUFFIXES = (".json", ".jsonl")
NOTES = (".meta.json",)
"""Suffixes of files that agents write beside recordings, about a subagent or a job."""
MAX_REASONS = 5


@dataclass(slots=True)
class Recordings:
    """The *files* to read, and the files that were skipped in folders.

    *unreadable* has the reason by path; *others* are the files that are neither JSON nor JSONL.
    """

    files: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def describe_skipped(self) -> str:
        """Return the counts and reasons of the skipped files as a text, or "" without any."""
        kinds = {
            "without a conversation that can be read": len(self.unreadable),
            "neither JSON nor JSONL": len(self.others),
        }
        parts = [f"{count_phrase(n, 'file')} {what}" for what, n in kinds.items() if n]
        if not parts:
            return ""
        lines = [f"skipped: {', '.join(parts)}", *self.unreadable.values()]
        more = len(lines) - 1 - MAX_REASONS
        if more > 0:
            lines = [*lines[: 1 + MAX_REASONS], f"and {more:,} more"]
        return "\n  ".join(lines)


def recordings(names: Iterable[str]) -> Recordings:
    """Return the recordings at *names*, the paths of files and folders.

    In a folder and its subfolders, each JSON or JSONL file with a conversation is a recording;
    hidden files and folders are left out. Prints the skipped files on standard error. Raises
    TranscriptError if a folder has no recording.
    """
    result = Recordings()
    with progress_bar() as progress:
        for path in names:
            if os.path.isdir(path):
                result.files += _search(path, result, progress)
            else:
                result.files.append(path)
    result.files = list(dict.fromkeys(result.files))
    skipped_files = result.describe_skipped()
    if skipped_files:
        print_notice(skipped_files)
    return result


def _search(folder: str, result: Recordings, progress: Progress) -> list[str]:
    """Return the paths in *folder* that can be read as recordings.

    Other files are added to *result*. Raises TranscriptError if there is no recording.
    """
    candidates = []
    for path in _walk(folder, result):
        if path.endswith(NOTES):
            continue
        if path.lower().endswith(SUFFIXES):
            candidates.append(path)
        else:
            result.others.append(path)
    recordings = []
    for path in progress.track(candidates, description="looking"):
        try:
            read_transcript(path)
        except CtxpipeError as error:
            result.unreadable[path] = str(error)
        else:
            recordings.append(path)
    if not recordings:
        reason = result.describe_skipped() or "it is empty"
        raise TranscriptError(f"{folder} holds no recording that can be read; {reason}")
    return recordings


def _walk(folder: str, result: Recordings) -> Iterator[str]:
    """Yield the regular files below *folder* in the order of their names, but no hidden ones.

    Adds the folders that cannot be read to *result*.
    """

    def record_error(error: OSError) -> None:
        result.unreadable[str(error.filename)] = f"{error.filename}: {error.strerror}"

    for parent, folders, files in os.walk(folder, onerror=record_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path
