"""Text files of the user's project below one folder, which are read for the model."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from ..errors import StorageError
from ..settings import FUNCTION, PATH
from .folders import PinnedFolder, check_platform, open_file, open_folder
from .waiting import run_in_thread


@dataclass(frozen=True, slots=True)
class FileText:
    """Text of a file, and its *real* path, which is the same for two spellings of one file.

    With *is_view* the text is what a tool result has shown, so nothing in it is hidden.
    """

    real: str
    text: str = field(repr=False)
    is_view: bool = False


@runtime_checkable
class FileReader(Protocol):
    """Reads files of the user's project for the model."""

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        """Return the current text of the file that the conversation calls *path*.

        Raises StorageError, with a message that may be shown, for a file that must not or cannot be
        read, and for one of more than *max_bytes*. No more than that is read into memory, and no
        path makes the call hang.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Text files below *root* (default: the current folder), and no others.

    A path is absolute, or relative to the root. Its real path without links must be below the root.
    Each component of the real path is then opened without following links, so that no link can be
    inserted meanwhile. The root must stay the same folder after its first use. Folders, pipes,
    devices, sockets, binary files and files that are not UTF-8 are refused. *deny* is a function
    that returns True for further paths to refuse, such as `is_secret`.

    Raises SettingsError for an empty root, and on Windows.
    """

    root: str | os.PathLike[str] = "."
    deny: Callable[[str], bool] | None = None
    _folder: PinnedFolder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        PATH.check("root of a LocalFiles", self.root)
        FUNCTION.optional.check("deny", self.deny)
        check_platform("LocalFiles")
        # Absolute, so that a later chdir does not change it.
        path = os.path.abspath(self.root)
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "_folder", PinnedFolder(path))

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        """Return the text of the file at *path*, which has at most *max_bytes*.

        Raises StorageError for a file that is refused or cannot be read.
        """
        return await run_in_thread(self._read, path, max_bytes)

    def _read(self, path: str, max_bytes: int) -> FileText:
        """Read the file *path* below the root, as UTF-8 text; return it with its real path.

        Raises StorageError if the file is outside the root or denied, has more than *max_bytes*
        bytes, is not UTF-8 text, or cannot be read.
        """
        try:
            real = self._real_path(path)
            with open(self._open(real), "rb") as file:
                # One more byte shows that the file is too long, also if its reported size is wrong.
                content = file.read(max_bytes + 1)
            return FileText(real, _decode(content, max_bytes))
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            reason = getattr(error, "strerror", None) or error
            raise StorageError(number, f"{path!r}: {reason}") from error

    def _real_path(self, path: str) -> str:
        """Return the absolute path of the file *path*, relative to the root, without links.

        Raises PermissionError, which the caller turns into StorageError, if the file is outside the
        root, or if *deny* returns True for its path below the root, as spelled or without links.
        """
        root = os.path.realpath(self.root)
        real = os.path.realpath(os.path.join(root, path))
        if os.path.commonpath([root, real]) != root:
            raise PermissionError(errno.EACCES, f"it is outside {self.root}")
        if self.deny is not None:
            for name in (name_below(self.root, path), name_below(root, real)):
                if self.deny(name):
                    raise PermissionError(
                        errno.EACCES, "it is on the list of files that are not to be shown"
                    )
        return real

    def _open(self, real: str) -> int:
        """Open the file *real*, an absolute path below the root, and return its descriptor.

        Each folder is opened in the one before, without following links: a link that replaced a
        folder meanwhile leads nowhere. Raises OSError, also for a folder, pipe or device.
        """
        path = os.path.relpath(real, os.path.realpath(self.root))
        *folders, name = PurePath(path).parts or (".",)
        folder = self._folder.open()
        try:
            for part in folders:
                inner, _ = open_folder(part, folder)
                os.close(folder)
                folder = inner
            return open_file(name, os.O_RDONLY, folder=folder)
        finally:
            os.close(folder)


def name_below(root: str | os.PathLike[str], path: str) -> str:
    """Return the name of *path* relative to *root*, in which patterns for names are searched.

    The folders above the root do not matter for such patterns. If *root* is the root of the disk,
    the name stays absolute, such as ``/proc``.
    """
    root = os.path.abspath(root)
    path = os.path.join(root, path)
    name = os.path.relpath(path, root)
    if os.path.dirname(root) == root:
        return f"/{name}"
    return name


def _decode(content: bytes, max_bytes: int) -> str:
    """Return *content* as text. Raises OSError if it is too long, binary or no UTF-8 text.

    It is too long with more than *max_bytes* bytes, and binary if it contains a NUL byte.
    """
    if len(content) > max_bytes:
        reason = f"it holds more than the {max_bytes} bytes that are read at most"
        raise OSError(errno.EFBIG, reason)
    if b"\0" in content:
        raise OSError(errno.EILSEQ, "it is a binary file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, "it is not UTF-8 text") from error
