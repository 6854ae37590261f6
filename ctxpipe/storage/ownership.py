"""Marks, which show what folders and files are ctxpipe's: without one nothing is deleted."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..errors import StorageError
from .atomic import (
    STALE_SECONDS,
    claim,
    discard,
    is_temporary,
    read_bytes,
    sweep,
    temporary_file,
)
from .folders import (
    PinnedFolder,
    RootError,
    check_platform,
    enter_folder,
    open_file,
    translate_errors,
)

__all__ = ["FORM", "ROOT_MARK", "SESSION_MARK", "Mark", "StorageRoot", "write_mark"]

ROOT_MARK = ".ctxpipe-root"
SESSION_MARK = ".ctxpipe-session"
FORM = 1

_MARK_BYTES = 1 << 26
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Mark:
    """What shows that a folder is ctxpipe's, and which *files* in it ctxpipe has written."""

    files: frozenset[str] = frozenset()

    def owns(self, name: str) -> bool:
        """Whether ctxpipe has written the file of that name."""
        return name in self.files or is_temporary(name)


def _read_mark(folder: int, name: str, where: str) -> Mark | None:
    """The mark *name* in an open *folder*, which is at *where*; None when there is no valid one.

    Raises RootError when it was written by a newer version.
    """
    try:
        content = read_bytes(folder, name, _MARK_BYTES) or b""
        header, *lines = content.split(b"\n")
        form = json.loads(header)["form"]
    except (OSError, *_DAMAGED):
        return None
    if type(form) is not int:
        return None
    if form > FORM:
        forms = f"form {form}, this one knows {FORM}"
        reason = f"{where} was made by a newer ctxpipe ({forms}); update ctxpipe"
        raise RootError(errno.ENOTSUP, reason)
    if form < FORM:
        return None
    return Mark(frozenset(_parse_names(lines)))


def _parse_names(lines: Iterable[bytes]) -> Iterator[str]:
    for line in lines:
        with suppress(*_DAMAGED):  # torn by a crash
            name = json.loads(line)
            if isinstance(name, str):
                yield name


def write_mark(folder: int, name: str, files: Iterable[str] = ()) -> None:
    """Mark an open *folder* in which ctxpipe has written *files*; a mark that is there stays."""
    from .. import __version__  # here: the package itself is imported last

    header = json.dumps({"form": FORM, "version": __version__})
    lines = map(_name_line, sorted(files))
    _create_file(folder, name, header + "".join(lines))


def _name_line(file: str) -> str:
    # The line break comes first: a line that a crash has torn must not swallow the next one.
    return f"\n{json.dumps(file)}"


def _create_file(folder: int, name: str, text: str) -> None:
    """Write a small file into an open *folder*, whole, unless something has its name."""
    with temporary_file(folder, [text.encode()], synced=False) as temporary:
        claim(folder, temporary, name)


class StorageRoot:
    """The root of a storage: it opens folders without following links, and marks new ones.

    A root that is new or empty is marked itself, and kept out of git. With *marked* False no mark
    is written. Raises SettingsError on Windows.
    """

    def __init__(self, path: str, *, marked: bool = True) -> None:
        check_platform("LocalStorage")
        self.path = path
        self._marked = marked
        self._pinned = PinnedFolder(path)
        self._admitted = False
        self._prepared = False
        self._known: dict[str, bool] = {}  # folders written to, and whether they are marked

    @property
    def real(self) -> str:
        """Where the root really is, links resolved; "" until it has been opened."""
        return self._pinned.real

    def path_of(self, *names: str) -> str:
        """The path of a folder below the root, or of a file in it."""
        return os.path.join(self.path, *names)

    @contextmanager
    def folder(self, name: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder *name* below the root, which is "". Raises StorageError."""
        with translate_errors("cannot open the folder", self.path_of(name)):
            descriptor = self._open(name, create=create)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def session_folders(self) -> list[str]:
        """The folders directly below the root, links left out; none when there is no root."""
        try:
            with self.folder("") as root, os.scandir(root) as entries:
                folders = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
                return sorted(folder.name for folder in folders)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return []

    def read_mark(self, name: str, folder: int) -> Mark | None:
        """The mark in the open *folder*, which has this *name* below the root, itself ""."""
        return _read_mark(folder, _mark_name(name), self.path_of(name))

    def drop(self, name: str) -> bool:
        """Remove the session folder *name* if nothing but its mark is in it."""
        with suppress(OSError), self.folder(name) as descriptor:
            mark = self.read_mark(name, descriptor)
            if mark is None or os.listdir(descriptor) != [SESSION_MARK]:
                return False
            discard(descriptor, SESSION_MARK)
            try:
                with self.folder("") as root:
                    os.rmdir(name, dir_fd=root)
            except OSError:  # somebody has written into it meanwhile
                write_mark(descriptor, SESSION_MARK, mark.files)
                return False
            return True
        return False

    def list_file(self, name: str, folder: int, file: str) -> None:
        """Add *file*, which is about to be made, to the mark of the open *folder* called *name*.

        What is not in the mark is never deleted.
        """
        if not self._known.get(name):
            return
        try:
            mark = open_file(_mark_name(name), os.O_WRONLY | os.O_APPEND, folder=folder)
        except FileNotFoundError:
            return
        try:
            # With a second name it may be somebody else's file, linked here.
            if os.fstat(mark).st_nlink == 1:
                os.write(mark, _name_line(file).encode())
        finally:
            os.close(mark)

    # Opening --------------------------------------------------------------------------------------

    def _open(self, name: str, *, create: bool) -> int:
        descriptor, is_new = self._open_root(create=create)
        for depth, part in enumerate(PurePosixPath(name).parts):
            parent = descriptor
            try:
                descriptor, is_new = enter_folder(part, parent, create=create)
                if is_new and depth == 0:
                    self._mark_session(part, parent, descriptor)
            finally:
                os.close(parent)
        # A folder without a mark is read again: another process may have marked it since.
        is_marked = self._known.get(name, False)
        if create and (is_new or not is_marked):
            try:
                self._inspect(name, descriptor)
            except OSError:
                os.close(descriptor)
                raise
        return descriptor

    def _mark_session(self, name: str, root: int, folder: int) -> None:
        if not self._marked:
            return
        try:
            write_mark(folder, SESSION_MARK)
        except OSError:
            # Without a mark it would never be cleaned up; the next writer makes it again.
            with suppress(OSError):
                os.rmdir(name, dir_fd=root)
            os.close(folder)
            raise

    def _inspect(self, name: str, folder: int) -> None:
        """Remember whether the folder is marked; if so, remove what killed writers have left."""
        is_marked = self.read_mark(name, folder) is not None
        if is_marked:
            with suppress(OSError):  # a folder that cannot be swept can still be written to
                sweep(folder, time.time() - STALE_SECONDS)
        self._known[name] = is_marked

    def _open_root(self, *, create: bool) -> tuple[int, bool]:
        if create:
            root, is_new = self._pinned.create()
        else:
            root, is_new = self._pinned.open(), False
        try:
            if is_new or not self._admitted:
                self._admit(root)
            if is_new or (create and not self._prepared):
                self._prepare(root, is_new=is_new)
        except OSError:
            os.close(root)
            raise
        return root, is_new

    def _admit(self, root: int) -> None:
        """Refuse a root whose form is too new, and a link to a folder that somebody else uses."""
        mark = self.read_mark("", root)
        if self._marked and mark is None and os.path.islink(self.path) and not _is_empty(root):
            raise RootError(
                errno.ELOOP,
                f"{self.path} is a link to {self.real}, which holds files that are not ctxpipe's: "
                f"the link may be somebody's trap. If it is yours, name {self.real} itself",
            )
        self._admitted = True

    def _prepare(self, root: int, *, is_new: bool) -> None:
        if self._marked and (is_new or _is_empty(root)):
            write_mark(root, ROOT_MARK)
            _create_file(root, ".gitignore", "*\n")
        self._prepared = True


def _mark_name(folder: str) -> str:
    """The name of the mark in *folder*, which is "" for the root."""
    if folder:
        return SESSION_MARK
    return ROOT_MARK


def _is_empty(folder: int) -> bool:
    """Whether nothing is there, except what a process that is marking it has written."""
    return all(is_temporary(name) or name == ROOT_MARK for name in os.listdir(folder))
