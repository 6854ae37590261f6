"""Which folders are ctxpipe's own: marks, without which nothing is ever deleted."""

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
    TEMPORARY,
    claim,
    discard,
    read_bytes,
    sweep,
    temporary_file,
)
from .folders import PinnedFolder, RootError, enter_folder, translate_errors

__all__ = ["FORM", "ROOT_MARK", "SESSION_MARK", "Mark", "StorageRoot", "write_mark"]

ROOT_MARK = ".ctxpipe-root"
SESSION_MARK = ".ctxpipe-session"
FORM = 1

_MARK_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """What says that a folder is ctxpipe's. *files*: the only names that are, in a folder made by somebody else."""

    files: frozenset[str] | None = None

    def owns(self, name: str) -> bool:
        """Whether a file of that name is ctxpipe's, as far as the mark can tell."""
        return self.files is None or name in self.files


def _mark_in(folder: int, name: str, where: str) -> Mark | None:
    """The mark *name* in an open *folder*, which is at *where*; None when there is no valid one.

    Raises RootError when it was written by a newer version.
    """
    try:
        values = json.loads(read_bytes(folder, name, _MARK_BYTES) or b"")
        form, files = values["form"], values.get("files")
        if isinstance(form, int) and form > FORM:
            raise _newer(form, where)
        if type(form) is not int or form != FORM:
            return None
        return Mark(None if files is None else frozenset(map(str, files)))
    except RootError:
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _newer(form: int, where: str) -> RootError:
    told = f"{where} was made by a newer ctxpipe (form {form}, this one knows {FORM}); update ctxpipe"
    return RootError(errno.ENOTSUP, told)


def write_mark(folder: int, name: str, files: Iterable[str] | None = None) -> None:
    """Mark an open *folder*; a mark that is there stays."""
    from .. import __version__  # here: the package itself is imported last

    values = {"form": FORM, "version": __version__}
    listed = {} if files is None else {"files": sorted(files)}
    _put(folder, name, json.dumps({**values, **listed}) + "\n")


def _put(folder: int, name: str, text: str) -> None:
    """Write a small file into an open *folder*, whole, unless something has its name."""
    with temporary_file(folder, [text.encode()], synced=False) as temporary:
        claim(folder, temporary, name)


class StorageRoot:
    """The root of a storage: folders in it are opened through no link, and those that it makes are marked.

    A root that is made, or was empty, is marked itself and kept out of git. With *marked* False no mark is written.
    """

    def __init__(self, path: str, *, marked: bool = True) -> None:
        self.path = path
        self._marked = marked
        self._pinned = PinnedFolder(path)
        self._admitted = self._prepared = False
        self._swept: set[str] = set()

    @property
    def real(self) -> str:
        """Where the root really is, links resolved; "" until it has been opened."""
        return self._pinned.real

    @contextmanager
    def folder(self, name: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder *name* below the root ("": the root itself). Raises StorageError."""
        with translate_errors("cannot open the folder", os.path.join(self.path, name)):
            descriptor = self._open(name, create=create)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def session_folders(self) -> list[str]:
        """The folders right below the root, links left out; none when there is no root."""
        try:
            with self.folder("") as root, os.scandir(root) as found:
                return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return []

    def read_mark(self, name: str, folder: int) -> Mark | None:
        """The mark in the open *folder*, which has this *name* below the root ("": the root itself)."""
        return _mark_in(folder, SESSION_MARK if name else ROOT_MARK, os.path.join(self.path, name))

    def drop(self, name: str) -> bool:
        """Remove the session folder *name* if nothing but its mark is in it."""
        with suppress(OSError), self.folder(name) as descriptor:
            if os.listdir(descriptor) != [SESSION_MARK]:
                return False
            mark = self.read_mark(name, descriptor)
            discard(descriptor, SESSION_MARK)
            try:
                with self.folder("") as root:
                    os.rmdir(name, dir_fd=root)
            except OSError:  # somebody has written into it meanwhile
                write_mark(descriptor, SESSION_MARK, mark.files if mark else None)
                return False
            return True
        return False

    # Opening --------------------------------------------------------------------------------------

    def _open(self, name: str, *, create: bool) -> int:
        descriptor = self._open_root(create=create)
        for depth, part in enumerate(PurePosixPath(name).parts):
            above = descriptor
            try:
                descriptor, made = enter_folder(part, above, create=create)
                if made and depth == 0:
                    self._mark_session(part, above, descriptor)
            finally:
                os.close(above)
        if create and name not in self._swept:
            try:
                self._sweep(name, descriptor)
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
            with suppress(OSError):  # without a mark it would never be cleaned up: the next writer makes it anew
                os.rmdir(name, dir_fd=root)
            os.close(folder)
            raise

    def _sweep(self, name: str, folder: int) -> None:
        """Remove, once, what killed writers have left in a folder of ours."""
        if self.read_mark(name, folder) is not None:
            with suppress(OSError):  # a folder that cannot be swept can still be written to
                sweep(folder, time.time() - STALE_SECONDS)
        self._swept.add(name)

    def _open_root(self, *, create: bool) -> int:
        if create:
            root, made = self._pinned.create()
        else:
            root, made = self._pinned.open(), False
        try:
            if made or not self._admitted:
                self._admit(root)
            if made or (create and not self._prepared):
                self._prepare(root, made=made)
        except OSError:
            os.close(root)
            raise
        return root

    def _admit(self, root: int) -> None:
        """Refuse a root of a newer version, and a link to a folder that is in use for something else."""
        mark = self.read_mark("", root)
        if self._marked and mark is None and os.path.islink(self.path) and not _is_empty(root):
            raise RootError(
                errno.ELOOP,
                f"{self.path} is a link to {self.real}, which holds files that are not ctxpipe's: the link "
                f"may be somebody's trap. If it is yours, name {self.real} itself",
            )
        self._admitted = True

    def _prepare(self, root: int, *, made: bool) -> None:
        if self._marked and (made or _is_empty(root)):
            write_mark(root, ROOT_MARK)
            _put(root, ".gitignore", "*\n")
        self._prepared = True


def _is_empty(folder: int) -> bool:
    """Whether nobody has put anything there, but for a process that is marking it at this moment."""
    return all(name.startswith(TEMPORARY) or name == ROOT_MARK for name in os.listdir(folder))
