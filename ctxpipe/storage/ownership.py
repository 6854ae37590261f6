"""Marks in folders that ctxpipe has created, and deletions of sessions.

A mark is a file with the session's id and the names of the files that ctxpipe wrote into the
folder. Files outside a marked folder, or without their name in the mark, are never deleted.

A deleted session leaves a tombstone outside its folder. A writer holds a shared lock on the folder
while it checks the tombstone and writes; a deletion holds the lock exclusively. Therefore no writer
that has passed the check can write after a deletion.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import StorageError
from ..placeholders.names import session_folder
from .atomic import (
    STALE_SECONDS,
    claim,
    discard,
    exists,
    is_temporary,
    read_bytes,
    replace_by_copy,
    sweep,
    temporary_file,
    temporary_name,
)
from .folders import (
    PinnedFolder,
    RootError,
    check_platform,
    has_name,
    ignore_absent,
    ignore_unsupported,
    open_file,
    open_folder,
    regular_files,
    translate_errors,
    try_lock,
)
from .generations import (
    DAY_SECONDS,
    TOMBSTONE_DAYS,
    new_tombstone,
    running_generation,
    tombstone_name,
)
from .waiting import Locked

ROOT_MARK = ".ctxpipe-root"
SESSION_MARK = ".ctxpipe-session"
TOMBSTONES = ".ctxpipe-deleted"
JOURNAL = "journal.jsonl"
INDEX = ".ctxpipe-index"
NOTES = ".ctxpipe-notes"
FORM = 1

_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of a folder that ctxpipe has created, with the names of its *files*.

    *session_id* is the session of the folder, None if it is unknown. With *has_journal* the session
    has a journal, in this or another storage, and the modification time of the mark is the time of
    the session's last use.
    """

    files: frozenset[str] = frozenset()
    session_id: str | None = None
    has_journal: bool = False


def _parse_mark(lines: Iterable[bytes]) -> Mark:
    """Parse the *lines* of a mark after the first one; skip lines that a crash has cut off."""
    files: set[str] = set()
    session_id = None
    has_journal = False
    for line in lines:
        try:
            value = json.loads(line)
        except _DAMAGED:
            continue
        if isinstance(value, str):
            files.add(value)
        elif isinstance(value, dict):
            if isinstance(value.get("session"), str):
                session_id = value["session"]
            has_journal = has_journal or value.get("journal") is True
    return Mark(frozenset(files), session_id, has_journal)


def write_mark(folder: int, name: str, mark: Mark) -> None:
    """Write *mark* into an open *folder*; do not change an existing mark."""
    from .. import __version__  # not at the top: the package is still being imported then

    lines: list[object] = [{"form": FORM, "version": __version__}, *sorted(mark.files)]
    if mark.session_id is not None:
        lines.append(_session_line(mark.session_id, has_journal=mark.has_journal))
    _create_file(folder, name, "\n".join(json.dumps(line) for line in lines))


def _session_line(session_id: str, *, has_journal: bool) -> dict[str, object]:
    return {"session": session_id, "journal": has_journal}


def _create_file(folder: int, name: str, text: str) -> None:
    """Create a small file in an open *folder*, unless the name is in use."""
    with temporary_file(folder, [text.encode()], fsync=False) as temporary:
        claim(folder, temporary, name)


class StorageRoot:
    """Root folder of a storage: opens folders without following links, and marks new ones.

    A root that is new or empty is marked too, and gets a ``.gitignore``. With *writes_marks* False
    no mark is written. Raises SettingsError on Windows.
    """

    def __init__(self, path: str, *, writes_marks: bool = True) -> None:
        check_platform("LocalStorage")
        self.path = path
        self._writes_marks = writes_marks
        self._pinned = PinnedFolder(path)
        self._is_checked = False
        self._is_prepared = False
        self._has_mark: dict[str, bool] = {}  # by folder that this object has written to

    @property
    def real(self) -> str:
        """Path of the root without links; "" until the root was opened first."""
        return self._pinned.real

    def path_of(self, *names: str) -> str:
        """Return the path of a folder below the root, or of a file in it."""
        return os.path.join(self.path, *names)

    @contextmanager
    def folder(self, name: str, *, create: bool = False) -> Iterator[int]:
        """Open the folder *name* below the root, "" for the root; yield its descriptor.

        With *create* the folder is opened for a writer: it is created if it is missing, locked so
        that it is not deleted meanwhile, and SessionDeleted is raised if the current session was
        deleted. Raises StorageError.
        """
        with translate_errors(f"cannot open the folder {self.path_of(name)}"):
            descriptor = self._open_for_writing(name) if create else self._open(name, create=False)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    # Deletions ------------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """Raise SessionDeleted if the current session, in the folder *name*, was deleted.

        Raises StorageError.
        """
        generation = running_generation(name)
        if generation is not None:
            generation.check(self, self._tombstone(name))

    @contextmanager
    def deletion(self, name: str) -> Iterator[int]:
        """Delete the session folder *name* after the block; yield its descriptor.

        There are no other writers in the block, and earlier writers find a tombstone afterwards.
        Raises StorageError, with ENOENT if the folder does not exist and must not be created.
        """
        with translate_errors(f"cannot delete the session in {self.path_of(name)}"):
            descriptor = self._open_locked(name, create=self._writes_marks)
        try:
            with (
                self.folder(TOMBSTONES, create=True) as folder,
                temporary_file(folder, [new_tombstone().encode()], fsync=True) as temporary,
            ):
                os.replace(temporary, tombstone_name(name), src_dir_fd=folder, dst_dir_fd=folder)
            yield descriptor
            self._drop(name, descriptor)
        finally:
            os.close(descriptor)

    def sweep_tombstones(self, days: float = TOMBSTONE_DAYS) -> None:
        """Remove the tombstones that are older than *days*."""
        before = time.time() - days * DAY_SECONDS
        with suppress(OSError), self.folder(TOMBSTONES) as folder:
            for file, info in regular_files(folder):
                if file != SESSION_MARK and info.st_mtime < before:
                    discard(folder, file)

    def _tombstone(self, name: str) -> str:
        """Return the tombstone of the session in the folder *name*, "" if there is none."""
        file = tombstone_name(name)
        path = self.path_of(TOMBSTONES, file)
        with ignore_absent(), translate_errors(f"cannot read {path}"):
            os.lstat(path)  # faster than opening the folder, and mostly there is no tombstone
            with self.folder(TOMBSTONES) as folder:
                return (read_bytes(folder, file) or b"").decode("ascii", "replace")
        return ""

    def _open_for_writing(self, name: str) -> int:
        """Open the folder for a writer; the folder of a session is not deleted while it is open."""
        is_of_session = name != "" and "/" not in name
        if is_of_session:
            descriptor = self._open_locked(name, create=True, shared=True)
        else:
            descriptor = self._open(name, create=True)
        try:
            self.check(name)
            # A folder without a mark is checked again, because it may have one by now.
            if not self._has_mark.get(name):
                self._has_mark[name] = self.read_mark(name, descriptor) is not None
                if self._has_mark[name]:
                    with suppress(OSError):  # the folder can be written to without being swept
                        sweep(descriptor, time.time() - STALE_SECONDS)
        except BaseException:
            os.close(descriptor)
            if is_of_session:
                self.drop(name)
            raise
        return descriptor

    def _open_locked(self, name: str, *, create: bool, shared: bool = False) -> int:
        """Open and lock the folder; return its descriptor. Raises Locked, and OSError."""
        while True:
            descriptor = self._open(name, create=create)
            is_current = False
            try:
                if not _lock(descriptor, shared=shared):
                    raise Locked(self.path_of(name))
                # A deletion may have removed the folder before it was locked.
                is_current = has_name(descriptor, self.path_of(name))
            finally:
                if not is_current:
                    os.close(descriptor)
            if is_current:
                return descriptor

    def ensure_free(self, name: str) -> None:
        """Raise Locked if the session folder *name* is being deleted. Raises StorageError."""
        with ignore_absent(), self.folder(name) as descriptor:
            if not _lock(descriptor, shared=True):
                raise Locked(self.path_of(name))

    def touch(self, name: str, session_id: str) -> None:
        """Record that the session in the folder *name*, which has a journal, is in use.

        Does nothing if the folder has no mark. Raises StorageError.
        """
        with (
            ignore_absent(),
            self.folder(name) as folder,
            translate_errors(f"cannot touch {self.path_of(name)}"),
        ):
            mark = self.read_mark(name, folder)
            if mark is not None and mark.has_journal and mark.session_id == session_id:
                os.utime(SESSION_MARK, dir_fd=folder, follow_symlinks=False)
            elif mark is not None:
                self._add_line(name, folder, _session_line(session_id, has_journal=True))

    def has_journal_elsewhere(self, name: str) -> bool:
        """Return True if the session in the folder *name* has its journal in another storage."""
        with suppress(StorageError), self.folder(name) as folder:
            mark = self.read_mark(name, folder)
            return mark is not None and mark.has_journal and JOURNAL not in mark.files
        return False

    def session_ids(self) -> list[str]:
        """Return the ids of the sessions with a marked folder, as far as they are known."""
        session_ids: list[str] = []
        for name in self.session_folders():
            with suppress(StorageError), self.folder(name) as descriptor:
                mark = self.read_mark(name, descriptor)
                if mark is None or name == TOMBSTONES or is_temporary(name):
                    continue
                if mark.session_id is not None:
                    session_ids.append(mark.session_id)
                elif session_folder(name) == name:  # a plain name is its own folder
                    session_ids.append(name)
        return session_ids

    def session_folders(self) -> list[str]:
        """Return the folders directly below the root without links; none if the root is missing."""
        with ignore_absent(), self.folder("") as root, os.scandir(root) as entries:
            return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        return []

    def read_mark(self, name: str, folder: int) -> Mark | None:
        """Return the mark in the open *folder*, called *name* below the root; "" is the root.

        Return None without a valid mark. Raises RootError if a newer version has written it.
        """
        try:
            content = read_bytes(folder, _mark_name(name)) or b""
            header, *lines = content.split(b"\n")
            form = json.loads(header)["form"]
        except (OSError, *_DAMAGED):
            return None
        if type(form) is not int or form < FORM:
            return None
        if form > FORM:
            raise RootError(
                errno.ENOTSUP,
                f"{self.path_of(name)} was made by a newer ctxpipe (form {form}, this one knows "
                f"{FORM}); update ctxpipe",
            )
        return _parse_mark(lines)

    def drop(self, name: str) -> bool:
        """Remove the session folder *name* if it has only a mark and no writer; True if removed."""
        with suppress(OSError), self.folder(name) as descriptor:
            return _lock(descriptor) and self._drop(name, descriptor)
        return False

    def _drop(self, name: str, descriptor: int) -> bool:
        """Remove the open folder *name* if it is empty except for its mark; return True if removed.

        A temporary folder, and a folder without files whose session was deleted, is emptied first.
        If another process writes into the folder meanwhile, it stays, with its mark. Raises
        OSError.
        """
        files = os.listdir(descriptor)
        mark = self.read_mark(name, descriptor)
        # Left by a process that was killed while it created, or deleted, the folder.
        if is_temporary(name) or (not files and self._tombstone(name)):
            sweep(descriptor, time.time())
        elif mark is None or files != [SESSION_MARK]:
            return False
        discard(descriptor, SESSION_MARK)
        try:
            with self.folder("") as root:
                os.rmdir(name, dir_fd=root)
        except OSError:  # another process has written into it meanwhile
            if mark is not None:
                write_mark(descriptor, SESSION_MARK, mark)
            return False
        return True

    def list_file(self, name: str, folder: int, file: str) -> None:
        """Add *file*, which is created next, to the mark of the open *folder* called *name*.

        Files that are not in the mark are never deleted.
        """
        if self._has_mark.get(name):
            self._add_line(name, folder, file)

    def _add_line(self, name: str, folder: int, value: str | dict[str, object]) -> None:
        """Add a line to the mark of the open *folder*. Raises Locked, and OSError.

        A mark with a second hard link, such as that of a snapshot, is replaced by a copy first.
        This needs an exclusive lock: lines that are added meanwhile would not be in the copy.
        """
        file = _mark_name(name)
        is_written = False
        while not is_written:
            try:
                mark = open_file(file, os.O_RDWR | os.O_APPEND, folder=folder)
            except FileNotFoundError:
                return
            try:
                is_linked = os.fstat(mark).st_nlink > 1
                if not _lock(mark, shared=not is_linked):
                    raise Locked(self.path_of(name, file))
                if not has_name(mark, file, folder=folder):
                    continue  # it was replaced
                if is_linked:
                    replace_by_copy(folder, file, mark)
                    continue
                # The line break is written first, so that the line does not continue one that a
                # crash has cut off.
                os.write(mark, f"\n{json.dumps(value)}".encode())
                is_written = True
            finally:
                os.close(mark)

    # Opening --------------------------------------------------------------------------------------

    def _open(self, name: str, *, create: bool) -> int:
        """Open the folder *name* below the root, "" for the root itself; return its descriptor.

        With *create* missing folders are created, those directly below the root with a mark. No
        link is followed. Raises OSError, and RootError if the root was replaced.
        """
        descriptor = self._open_root(create=create)
        parts = [part for part in name.split("/") if part]
        for depth, part in enumerate(parts):
            parent = descriptor
            try:
                if create and depth == 0 and self._writes_marks:
                    descriptor = self._open_marked(part, parent)
                else:
                    descriptor, _ = open_folder(part, parent, create=create)
            finally:
                os.close(parent)
        return descriptor

    def _open_marked(self, name: str, root: int) -> int:
        """Return a descriptor of the folder *name*, created with a mark if it does not exist.

        What a killed deletion has left in it is removed first. Raises OSError.
        """
        while True:
            if not exists(root, f"{name}/{SESSION_MARK}"):
                self.drop(name)  # left by a killed deletion: no mark lists its files
            try:
                return open_folder(name, root)[0]
            except FileNotFoundError:
                self._create_marked(name, root)

    def _create_marked(self, name: str, root: int) -> None:
        """Create the folder *name* together with its mark, by a rename.

        If the folder existed before its mark, another writer could create files that are not in the
        mark, and they would never be deleted.
        """
        temporary = temporary_name()
        folder, _ = open_folder(temporary, root, create=True)
        try:
            generation = running_generation(name)
            mark = Mark()
            if generation is not None:
                mark = Mark(frozenset(), generation.session_id, generation.has_journal)
            write_mark(folder, SESSION_MARK, mark)
            os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)
            self._has_mark[name] = True
        except OSError as error:
            with suppress(OSError):
                discard(folder, SESSION_MARK)
                os.rmdir(temporary, dir_fd=root)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise  # otherwise the name is in use by now
        finally:
            os.close(folder)

    def _open_root(self, *, create: bool) -> int:
        """Open the root and return its descriptor; with *create*, create it if it is missing.

        The first call checks the root. A new or empty root gets a mark and a ``.gitignore``, if
        this storage writes marks. Raises OSError, and RootError if the root was replaced.
        """
        if create:
            root, is_new = self._pinned.create()
        else:
            root = self._pinned.open()
            is_new = False
        try:
            if not self._is_checked:
                self._check_root(root)
            if is_new or (create and not self._is_prepared):
                if self._writes_marks and _is_empty(root):
                    write_mark(root, ROOT_MARK, Mark())
                    _create_file(root, ".gitignore", "*\n")
                self._is_prepared = True
        except OSError:
            os.close(root)
            raise
        return root

    def _check_root(self, root: int) -> None:
        """Raise RootError for a root of a newer form, and for a link to a folder of other files."""
        mark = self.read_mark("", root)
        is_link = self._writes_marks and os.path.islink(self.path)
        if is_link and mark is None and not _is_empty(root):
            raise RootError(
                errno.ELOOP,
                f"{self.path} is a link to {self.real}, which has files that are not ctxpipe's: "
                "another user may have placed the link. If the folder is the right one, give "
                f"{self.real} as the root",
            )
        self._is_checked = True


def _lock(folder: int, *, shared: bool = False) -> bool:
    """Lock an open *folder*; return False if another process has the lock.

    Return True on a file system without locks.
    """
    is_locked = True
    with ignore_unsupported():
        is_locked = try_lock(folder, shared=shared)
    return is_locked  # noqa: RET504  still True if the error was ignored


def _mark_name(folder: str) -> str:
    """Return the name of the mark in *folder*, "" for the root."""
    return SESSION_MARK if folder else ROOT_MARK


def _is_empty(folder: int) -> bool:
    """Return True if *folder* has only files of a process that is writing the mark."""
    return all(is_temporary(name) or name == ROOT_MARK for name in os.listdir(folder))
