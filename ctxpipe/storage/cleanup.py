"""Selection and deletion of files: only files that ctxpipe wrote into folders that it created."""

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
"""A session whose journal is younger than this is in use, also with a smaller *max_age*."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Files that a clean-up or a deletion has removed.

    *files* has their absolute paths, *bytes* is their total size. *left* has the paths that remain
    in the folder of a deleted session: files that ctxpipe has not written.
    """

    files: tuple[str, ...] = ()
    bytes: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnFile:
    """File below a root that ctxpipe wrote. *written* is in nanoseconds since 1970."""

    folder: str
    name: str
    kind: Literal["text", "record", "temporary"]
    size: int
    written: int
    journal_time: float | None = None
    """Time of the session's last use, in seconds since 1970; None for one without a journal."""

    def age(self, now: float) -> float:
        """Return the seconds since the file was written."""
        return now - self.written / 1e9


@dataclass(frozen=True, slots=True)
class CleanupLimits:
    """Limits of a clean-up. Files called like one of *protected_names* are never deleted."""

    max_bytes: float | None = None
    max_age: float | None = None
    records: bool = False
    protected_names: Collection[str] = ()

    def protects(self, file: OwnFile, now: float) -> bool:
        """Return True if *file* is not deleted, however large the storage is."""
        if file.name in self.protected_names or (file.kind == "record" and not self.records):
            return True
        # A session with a journal, in any storage, may be continued.
        if file.journal_time is None or self.max_age is None:
            return file.journal_time is not None
        return now - file.journal_time <= max(self.max_age, LIVE_SECONDS)


def files_named_in(messages: Iterable[Message]) -> set[str]:
    """Return the names of the files that placeholders and notes in *messages* refer to."""
    names: set[str] = set()
    for message in messages:
        for text in strings(message):
            names.update(quoted_file_names(text))
            names.update(step_names_in(text))
    return names


# Finding ------------------------------------------------------------------------------------------


def has_marks(root: StorageRoot) -> bool:
    """Return True if the root, or a session folder in it, has a mark."""
    return any(True for _ in _folders_with_mark(root))


def find_files(root: StorageRoot) -> list[OwnFile]:
    """Return the files of ctxpipe in the marked folders below the root."""
    return [file for folder in _folders_with_mark(root) for file in _own_files(*folder)]


def _folders_with_mark(root: StorageRoot) -> Iterator[tuple[int, str, Mark]]:
    """Yield the descriptor, name and mark of each folder of ctxpipe, the root ("") first.

    Each descriptor is closed before the next folder. Folders that were removed meanwhile, or that
    this user may not read, are skipped. Raises StorageError for other errors.
    """
    for folder in ("", *root.session_folders()):
        try:
            with root.folder(folder) as descriptor:
                mark = root.read_mark(folder, descriptor)
                if mark is not None:
                    yield descriptor, folder, mark
        except StorageError as error:
            # It was removed, or belongs to another user and has no files of this process.
            if error.errno not in (errno.ENOENT, errno.EACCES):
                raise


def _own_files(descriptor: int, folder: str, mark: Mark) -> Iterator[OwnFile]:
    """Yield the files in the open folder that its *mark* lists, and temporary files.

    *folder* is the name of the folder, "" for the root; *descriptor* is the open folder. Each file
    gets the time of the last change of the session's journal, None without a journal. Files of
    other programs are skipped.
    """
    files = dict(regular_files(descriptor))
    use_times: list[float] = []
    if folder and JOURNAL in files:
        use_times.append(files[JOURNAL].st_mtime)
    if mark.has_journal and SESSION_MARK in files:
        use_times.append(files[SESSION_MARK].st_mtime)
    journal_time = max(use_times, default=None)
    for name, info in files.items():
        if name in mark.files or is_temporary(name):
            times = (info.st_mtime_ns, journal_time)
            yield OwnFile(folder, name, file_kind(name), info.st_size, *times)


def file_kind(name: str) -> Literal["text", "record", "temporary"]:
    """Return "temporary" for the name of a temporary file, "text" for ``*.md``, else "record"."""
    if is_temporary(name):
        return "temporary"
    if name.endswith(".md"):
        return "text"
    return "record"


# Choosing -----------------------------------------------------------------------------------------


def choose_files(files: Iterable[OwnFile], limits: CleanupLimits, now: float) -> list[OwnFile]:
    """Return the *files* to delete, oldest first, until the rest meets the *limits*."""
    oldest_first = sorted(files, key=lambda file: file.written)
    remaining_bytes = sum(file.size for file in oldest_first)
    old_files: list[OwnFile] = []
    for file in oldest_first:
        if _is_deletable(file, limits, now, remaining_bytes):
            remaining_bytes -= file.size
            old_files.append(file)
    return old_files


def _is_deletable(file: OwnFile, limits: CleanupLimits, now: float, remaining_bytes: int) -> bool:
    """Return True if a cleanup may delete *file*.

    *now* is in seconds since 1970; *remaining_bytes* is the size of the files that are not deleted
    so far. A temporary file is deletable after STALE_SECONDS, an index always, notes only by their
    age. Any other file is deletable if it is too old, or if the remaining files are too large
    together, unless *limits* protect it.
    """
    if file.kind == "temporary":
        return file.age(now) > STALE_SECONDS
    if file.name == INDEX:
        return True  # it may quote deleted texts; the next search builds it again
    if file.name == NOTES:  # written when the newest note was added
        return limits.max_age is not None and file.age(now) > limits.max_age
    if limits.protects(file, now):
        return False
    if limits.max_bytes is not None and remaining_bytes > limits.max_bytes:
        return True
    return limits.max_age is not None and file.age(now) > limits.max_age


# Deleting -----------------------------------------------------------------------------------------


def delete_files(root: StorageRoot, files: Iterable[OwnFile]) -> Cleaned:
    """Delete *files*, except those that have changed meanwhile; return their paths and bytes.

    Raises StorageError.
    """
    paths: list[str] = []
    size = 0
    for file in files:
        if _delete(root, file):
            paths.append(root.path_of(file.folder, file.name))
            size += file.size
    return Cleaned(tuple(paths), size)


def _delete(root: StorageRoot, file: OwnFile) -> bool:
    """Delete *file* if it was not written since it was listed; return True if it was deleted.

    Returns False for a file or folder that does not exist any more. Raises StorageError.
    """
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
    # Another process may be about to write into a newer folder.
    for folder in root.session_folders():
        with suppress(OSError), root.folder(folder) as descriptor:
            if os.fstat(descriptor).st_mtime < before:
                root.drop(folder)


def session_files(root: StorageRoot, folder: str) -> list[OwnFile]:
    """Return the files of ctxpipe in the session's *folder*; none if it does not exist.

    Raises StorageError for a folder that ctxpipe has not created.
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
    session_files(root, folder)  # raises for a folder without a mark
    with ignore_absent(), root.deletion(folder) as descriptor:
        result = delete_files(root, session_files(root, folder))
        remaining_names = sorted(set(os.listdir(descriptor)) - {SESSION_MARK})
        paths = tuple(root.path_of(folder, name) for name in remaining_names)
        return replace(result, left=paths)
    return Cleaned()
