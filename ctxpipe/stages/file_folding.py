"""Reduce source files to the names that they define, in a worker thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from .._threads.threads import in_thread
from ..settings import instance_of
from ..tokens import TokenCounter


@runtime_checkable
class FileFolder(Protocol):
    """Something that reduces source files to the names that they define."""

    async def fold(self, files: Sequence[tuple[str, str]], /) -> Sequence[str | None]:
        """Return the reduced text of each (path, source text), as a text that follows a summary.

        The text is None for a file that cannot be reduced.
        """
        ...


FOLDER = instance_of(FileFolder, "something that can fold, such as a Folder")


async def fold_files(
    folder: FileFolder | None, files: Sequence[tuple[str, str]], counter: TokenCounter
) -> Sequence[str | None]:
    """Return *files* reduced by *folder*; the default one keeps the names that they define."""
    if folder is None:
        folder = await in_thread(_new_folder, counter)
    return await folder.fold(files)


def _new_folder(counter: TokenCounter) -> FileFolder:
    """Return an object that folds files and counts tokens with *counter*."""
    # Imported here, in a thread: it imports the parser, which takes 200 ms.
    from ..folding.folder import Folder

    return Folder(counter=counter)
