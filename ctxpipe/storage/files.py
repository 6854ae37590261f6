"""Files of the user's project, read for the model: confined to one folder, and never anything but
plain text files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from ..errors import SettingsError, StorageError
from ..settings import FUNCTION, PATH, excerpt
from .finishing import finished
from .folders import PinnedFolder, check_platform, enter_folder, open_file

__all__ = ["FileReader", "FileText", "LocalFiles", "name_below"]


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file, and where it really lies: two spellings of one file have the same *real*
    path.
    """

    real: str
    text: str = field(repr=False)


@runtime_checkable
class FileReader(Protocol):
    """Reads files of the user's project for the model."""

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        """The current text of the file that the conversation calls *path*.

        Raises StorageError, in words that may be shown, for whatever should not or cannot be read:
        also for a file of more than *max_bytes*, which is found out before it is read. No path
        makes it hang.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """The text files below *root* (default: the current folder), and nothing outside it. Source:
    CR-21 to CR-23, A-41.

    A path is taken relative to the root, or absolute. Its real place, links resolved, must lie in
    the root; from there each component is opened without following links, so that nothing can be
    swapped in between; the root itself is pinned when it is first used, and refused when another
    folder is in its place. Folders, pipes, devices, sockets, binary files and files that are not
    UTF-8 are refused. *deny* refuses further paths: give `is_secret`. Raises SettingsError for an
    empty root, and on Windows.
    """

    root: str | os.PathLike[str] = "."
    deny: Callable[[str], bool] | None = None
    _folder: PinnedFolder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not PATH.accepts(self.root):
            raise SettingsError(
                f"root of a LocalFiles is {excerpt(self.root)}; give it a folder such as '.'"
            )
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
        return await finished(self._read(path, max_bytes))

    async def _read(self, path: str, max_bytes: int) -> FileText:
        import aiofiles  # here: it takes as long to import as the rest of this package

        real: list[str] = []

        def opener(given: str, _flags: int) -> int:
            real.append(self._real(given))
            return self._open(real[0], max_bytes)

        try:
            async with aiofiles.open(path, "rb", opener=opener) as file:
                content = await file.read(
                    max_bytes + 1
                )  # it may have grown, or have no size at all
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise StorageError(
                getattr(error, "errno", None) or errno.EINVAL, f"{path!r}: {reason}"
            ) from error
        return FileText(real[0], _text(path, content, max_bytes))

    def _real(self, path: str) -> str:
        root = os.path.realpath(self.root)
        real = os.path.realpath(os.path.join(root, path))
        if os.path.commonpath([root, real]) != root:
            raise PermissionError(errno.EACCES, f"it lies outside {self.root}")
        if self.deny is not None and (
            self.deny(name_below(self.root, path)) or self.deny(name_below(root, real))
        ):
            raise PermissionError(
                errno.EACCES, "it is on the list of files that are not to be shown"
            )
        return real

    def _open(self, real: str, max_bytes: int) -> int:
        *folders, name = PurePath(os.path.relpath(real, os.path.realpath(self.root))).parts or (
            ".",
        )
        folder = self._folder.open()
        try:
            for part in folders:
                inner, _ = enter_folder(part, folder)
                os.close(folder)
                folder = inner
            file = open_file(name, os.O_RDONLY, folder=folder)
        finally:
            os.close(folder)
        try:
            _refuse_large(os.fstat(file).st_size, max_bytes)
        except OSError:
            os.close(file)
            raise
        return file


def name_below(root: str | os.PathLike[str], path: str) -> str:
    """What *path* is called below *root*: what the folders above it are called says nothing about
    the file.

    Below the root of the disk names stay absolute: there ``/proc`` is what it is called.
    """
    root = os.path.abspath(root)
    name = os.path.relpath(os.path.join(root, path), root)
    return f"/{name}" if os.path.dirname(root) == root else name


def _refuse_large(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise OSError(
            errno.EFBIG, f"it holds {size} bytes, more than the {max_bytes} that are read at most"
        )


def _text(path: str, content: bytes, max_bytes: int) -> str:
    if len(content) > max_bytes:
        raise StorageError(
            errno.EFBIG, f"{path!r}: it holds more than the {max_bytes} bytes that are read at most"
        )
    if b"\0" in content:
        raise StorageError(errno.EILSEQ, f"{path!r}: it is a binary file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise StorageError(errno.EILSEQ, f"{path!r}: it is not UTF-8 text") from error
