"""What may be deleted: files that ctxpipe wrote into folders that it made, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import StorageError
from ..messages import Message, strings
from ..placeholders.notes import step_names_in
from ..placeholders.placeholders import quoted_file_names
from .atomic import STALE_SECONDS, is_temporary
from .folders import file_info, ignore_absent, regular_files, translate_errors
from .ownership import INDEX, JOURNAL, NOTES, SESSION_MARK, Mark, StorageRoot

LIVE_SECONDS = 3600.0
"""A session whose journal was written less than this ago is in use, whatever the age asked for."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed: absolute paths, and their size in bytes.

    *left* are the paths of what is still in the folder of a session that was deleted: files that
    ctxpipe has not written.
    """

    files: tuple[str, ...] = ()
    bytes: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A file below a root that ctxpipe wrote. *written* is in nanoseconds since 1970."""

    folder: str
    name: str
    kind: Literal["text", "record", "temporary"]
    size: int
    written: int
    journal_time: float | None = None
    """When the session was used last, in seconds since 1970; None for one without a journal."""

    def age(self, now: float) -> float:
        """Seconds since it was written."""
        return now - self.written / 1e9


@dataclass(frozen=True, slots=True)
class Limits:
    """What a clean-up keeps. *kept* are names of files that stay whatever their age."""

    max_bytes: float | None = None
    max_age: float | None = None
    records: bool = False
    kept: Collection[str] = ()

    def keeps(self, file: OwnFile, now: float) -> bool:
        """Whether *file* stays, however much there is."""
        if file.name in self.kept or (file.kind == "record" and not self.records):
            return True
        # A journal, wherever it is, shows that the conversation may go on.
        if file.journal_time is None or self.max_age is None:
            return file.journal_time is not None
        return now - file.journal_time <= max(self.max_age, LIVE_SECONDS)


def files_named_in(messages: Iterable[Message]) -> set[str]:
    """The names of the files that placeholders and notes in *messages* lead to."""
    names: set[str] = set()
    for message in messages:
        for text in strings(message):
            names.update(quoted_file_names(text))
            names.update(step_names_in(text))
    return names


# Finding ------------------------------------------------------------------------------------------


def is_owned(root: StorageRoot) -> bool:
    """Whether the root, or a session folder in it, carries a mark."""
    return any(True for _ in _folders_with_mark(root))


def find_files(root: StorageRoot) -> list[OwnFile]:
    """The files of ctxpipe below the root, in folders that are marked."""
    return [file for folder in _folders_with_mark(root) for file in _own_files(*folder)]


def _folders_with_mark(root: StorageRoot) -> Iterator[tuple[int, str, Mark]]:
    """Each folder with a mark, open: its descriptor, name and mark."""
    for folder in ("", *root.session_folders()):
        try:
            with root.folder(folder) as descriptor:
                mark = root.read_mark(folder, descriptor)
                if mark is not None:
                    yield descriptor, folder, mark
        except StorageError as error:
            # One that is gone, or belongs to another user: nothing in it is ours.
            if error.errno not in (errno.ENOENT, errno.EACCES):
                raise


def _own_files(descriptor: int, folder: str, mark: Mark) -> Iterator[OwnFile]:
    files = dict(regular_files(descriptor))
    uses = [files[JOURNAL].st_mtime] if folder and JOURNAL in files else []
    if mark.has_journal and SESSION_MARK in files:
        uses.append(files[SESSION_MARK].st_mtime)
    journal_time = max(uses, default=None)
    for name, info in files.items():
        if name in mark.files or is_temporary(name):
            times = (info.st_mtime_ns, journal_time)
            yield OwnFile(folder, name, file_kind(name), info.st_size, *times)


def file_kind(name: str) -> Literal["text", "record", "temporary"]:
    """What a file of that name is, when ctxpipe has written it."""
    if is_temporary(name):
        return "temporary"
    if name.endswith(".md"):
        return "text"
    return "record"


# Choosing -----------------------------------------------------------------------------------------


def choose_files(files: Iterable[OwnFile], limits: Limits, now: float) -> list[OwnFile]:
    """The *files* to delete, oldest first, until the rest meets the *limits*."""
    ordered = sorted(files, key=lambda file: file.written)
    remaining_bytes = sum(file.size for file in ordered)
    chosen: list[OwnFile] = []
    for file in ordered:
        if _is_deletable(file, limits, now, remaining_bytes):
            remaining_bytes -= file.size
            chosen.append(file)
    return chosen


def _is_deletable(file: OwnFile, limits: Limits, now: float, remaining_bytes: int) -> bool:
    if file.kind == "temporary":
        return file.age(now) > STALE_SECONDS
    if file.name == INDEX:
        return True  # it may quote what goes; the next question builds it anew
    if file.name == NOTES:  # its time is that of the newest note
        return limits.max_age is not None and file.age(now) > limits.max_age
    if limits.keeps(file, now):
        return False
    if limits.max_bytes is not None and remaining_bytes > limits.max_bytes:
        return True
    return limits.max_age is not None and file.age(now) > limits.max_age


# Deleting -----------------------------------------------------------------------------------------


def delete_files(root: StorageRoot, files: Iterable[OwnFile]) -> Cleaned:
    """Delete *files*, except those that were written again meanwhile. Raises StorageError."""
    paths: list[str] = []
    size = 0
    for file in files:
        if _delete(root, file):
            paths.append(root.path_of(file.folder, file.name))
            size += file.size
    return Cleaned(tuple(paths), size)


def _delete(root: StorageRoot, file: OwnFile) -> bool:
    with (
        ignore_absent(),
        root.folder(file.folder) as descriptor,
        translate_errors(f"cannot remove {root.path_of(file.folder, file.name)}"),
    ):
        info = file_info(descriptor, file.name)
        if info.st_mtime_ns == file.written and stat.S_ISREG(info.st_mode):
            os.unlink(file.name, dir_fd=descriptor)
            return True
    return False


def drop_empty_folders(root: StorageRoot, before: float) -> None:
    """Remove the session folders of ctxpipe that have been empty since *before*."""
    # Somebody may be about to write into a newer one.
    for folder in root.session_folders():
        with suppress(OSError), root.folder(folder) as descriptor:
            if os.fstat(descriptor).st_mtime < before:
                root.drop(folder)
    root.sweep_tombstones()  # by which remainders of deletions are recognized


def session_files(root: StorageRoot, folder: str) -> list[OwnFile]:
    """All that ctxpipe has written into the session's *folder*; nothing when there is none.

    Raises StorageError for a folder that ctxpipe has not made.
    """
    with ignore_absent(), root.folder(folder) as descriptor:
        mark = root.read_mark(folder, descriptor)
        if mark is None:
            raise StorageError(
                errno.EPERM,
                f"{root.path_of(folder)} carries no mark of ctxpipe, so nothing in it is deleted",
            )
        return list(_own_files(descriptor, folder, mark))
    return []


def delete_session(root: StorageRoot, folder: str) -> Cleaned:
    """End the session: delete its files, and its *folder* if nothing else is in it.

    Raises StorageError.
    """
    session_files(root, folder)  # raises for a folder that is not ours
    with ignore_absent(), root.deletion(folder) as descriptor:
        cleaned = delete_files(root, session_files(root, folder))
        left = sorted(set(os.listdir(descriptor)) - {SESSION_MARK})
        return replace(cleaned, left=tuple(root.path_of(folder, name) for name in left))
    return Cleaned()
