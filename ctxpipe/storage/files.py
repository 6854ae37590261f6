"""Files of the user's project, read for the model: plain text files below one folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from ..errors import StorageError
from ..settings import FUNCTION, PATH
from .folders import PinnedFolder, check_platform, enter_folder, open_file
from .waiting import run_in_thread


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file, and its *real* path, which is the same for two spellings of one file.

    *is_view* says that it is what a result has shown, so that nothing can be hidden in it.
    """

    real: str
    text: str = field(repr=False)
    is_view: bool = False


@runtime_checkable
class FileReader(Protocol):
    """Reads files of the user's project for the model."""

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        """The current text of the file that the conversation calls *path*.

        Raises StorageError, in words that may be shown, for whatever should not or cannot be read:
        also for a file of more than *max_bytes*, of which no more than that is kept in memory. No
        path makes it hang.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The text files below *root* (default: the current folder), and nothing outside it.

    A path is absolute, or relative to the root. Its real path, links resolved, must be in the root;
    from there each component is opened without following links, so that nothing can be swapped in
    between; the root itself is pinned when it is first used, and refused when another folder is in
    its place. Folders, pipes, devices, sockets, binary files and files that are not UTF-8 are
    refused. *deny* refuses further paths: give `is_secret`. Raises SettingsError for an empty root,
    and on Windows.
    """

    root: str | os.PathLike[str] = "."
    deny: Callable[[str], bool] | None = None
    _folder: PinnedFolder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        PATH.check("root of a LocalFiles", self.root)
        FUNCTION.optional.check("deny", self.deny)
        check_platform("LocalFiles")
        # Absolute from the start: a later chdir must not move it.
        path = os.path.abspath(self.root)
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "_folder", PinnedFolder(path))

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        """The text of the file at *path*, of at most *max_bytes*.

        Raises StorageError for whatever is refused.
        """
        return await run_in_thread(self._read, path, max_bytes)

    def _read(self, path: str, max_bytes: int) -> FileText:
        try:
            real = self._real_path(path)
            with open(self._open(real), "rb") as file:
                # One byte more shows that it is too long, whatever size it says that it has.
                content = file.read(max_bytes + 1)
            return FileText(real, _decode(content, max_bytes))
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            reason = getattr(error, "strerror", None) or error
            raise StorageError(number, f"{path!r}: {reason}") from error

    def _real_path(self, path: str) -> str:
        root = os.path.realpath(self.root)
        real = os.path.realpath(os.path.join(root, path))
        if os.path.commonpath([root, real]) != root:
            raise PermissionError(errno.EACCES, f"it is outside {self.root}")
        names = (name_below(self.root, path), name_below(root, real))
        if self.deny is not None and any(map(self.deny, names)):
            raise PermissionError(
                errno.EACCES, "it is on the list of files that are not to be shown"
            )
        return real

    def _open(self, real: str) -> int:
        path = os.path.relpath(real, os.path.realpath(self.root))
        *folders, name = PurePath(path).parts or (".",)
        folder = self._folder.open()
        try:
            for part in folders:
                inner, _ = enter_folder(part, folder)
                os.close(folder)
                folder = inner
            return open_file(name, os.O_RDONLY, folder=folder)
        finally:
            os.close(folder)


def name_below(root: str | os.PathLike[str], path: str) -> str:
    """The name of *path* relative to *root*.

    The names of the folders above the root say nothing about the file. Below the root of the disk
    names stay absolute, such as ``/proc``.
    """
    root = os.path.abspath(root)
    path = os.path.join(root, path)
    name = os.path.relpath(path, root)
    if os.path.dirname(root) == root:
        return f"/{name}"
    return name


def _decode(content: bytes, max_bytes: int) -> str:
    if len(content) > max_bytes:
        reason = f"it holds more than the {max_bytes} bytes that are read at most"
        raise OSError(errno.EFBIG, reason)
    if b"\0" in content:
        raise OSError(errno.EILSEQ, "it is a binary file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text") from error
