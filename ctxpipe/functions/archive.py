"""Read the messages that a compaction or truncation has archived."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._threads.threads import run_to_completion
from ..errors import StorageError
from ..messages import Message
from ..storage import TextReader
from ..storage.folders import open_file

if TYPE_CHECKING:
    import os
from ..stages.archive import parse_archive


async def load_archive(
    path: str | os.PathLike[str], storage: TextReader | None = None
) -> list[Message]:
    """Return the messages that a compaction or truncation saved at *path*.

    Messages that were plain dicts are equal to the saved ones; model objects of the SDK come back
    as the dicts that the SDK would send. *storage* is the storage that the archive was saved to,
    for archives that are not files of this machine: *path* is then the location in the report, such
    as a URL. Without *storage* the file at *path* is opened, wherever it is: do not pass a path
    that a model or a tool has named.

    Raises StorageError if there is no such file, if it is a pipe or device, or if a newer ctxpipe
    wrote it; InvalidHistory if it has other content.
    """
    if storage is not None:
        return parse_archive((await storage.read(str(path))).text, path)
    try:
        text = await run_to_completion(_read(path))
    except OSError as error:
        raise StorageError(
            error.errno, f"cannot read the archive {path}: {error.strerror}"
        ) from error
    return parse_archive(text, path)


async def _read(path: str | os.PathLike[str]) -> str:
    """Return the text of the file at *path*. Raises OSError and UnicodeDecodeError."""
    # Imported here because it takes as long as importing the rest of this package.
    import aiofiles

    async with aiofiles.open(path, encoding="utf-8", opener=open_file) as file:
        return await file.read()
