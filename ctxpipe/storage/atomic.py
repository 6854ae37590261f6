"""Files that are there whole or not at all: written under a temporary name, then linked."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

from .folders import FAULTS, file_info, ignore_unsupported, open_file, regular_files

TEMPORARY = ".ctxpipe-tmp-"
_TEMPORARY_NAME = re.compile(re.escape(TEMPORARY) + r"\d+-\d+-[0-9a-f]+")
STALE_SECONDS = 3600.0  # a temporary file or an empty folder this old has no writer any more

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NUMBERS = count()
_BUFFERED = 1 << 16  # bytes


def temporary_name() -> str:
    """A name that nobody else uses, of what another name is given to once it is whole."""
    return f"{TEMPORARY}{os.getpid()}-{next(_NUMBERS)}-{time.time_ns():x}"


def is_temporary(name: str) -> bool:
    """Whether *name* is the name of a temporary file."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


@contextmanager
def temporary_file(folder: int, chunks: Iterable[bytes], *, synced: bool) -> Iterator[str]:
    """The name of a new hidden file with *chunks* in it; afterwards that name is removed.

    The file, and then the *folder* in which it has got its own name, are *synced* if wanted.
    """
    name = temporary_name()
    file = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        try:
            with ignore_unsupported():
                os.fchmod(file, 0o600)
            with open(file, "wb", _BUFFERED, closefd=False) as stream:
                stream.writelines(chunks)
            if synced:
                sync(file)
        finally:
            os.close(file)
        yield name
        if synced:
            sync(folder)
    finally:
        discard(folder, name)


def write_all(file: int, data: bytes) -> None:
    """Write *data* to an open *file*: one call of the system may write a part only."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def claim(folder: int, temporary: str, name: str) -> bool:
    """Give the temporary file the *name* too; False when that name is in use."""
    try:
        # Unlike a rename, a link never replaces what another process has put there meanwhile.
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in FAULTS:
            raise
        return _claim_without_links(folder, temporary, name)
    return True


def _claim_without_links(folder: int, temporary: str, name: str) -> bool:
    """The same with an empty file that reserves the name; a kill in that moment leaves it."""
    try:
        os.close(open_file(name, _CREATE, folder=folder))
    except OSError:
        if exists(folder, name):
            return False
        raise
    try:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        discard(folder, name)
        raise
    return True


def replace_by_copy(folder: int, name: str, file: int) -> None:
    """Put a copy of the open *file* in place of the file *name*, which is that file.

    Its other names, such as that in a snapshot by hard links, keep what they have. Whoever writes
    to *file* must be kept out by a lock.
    """
    with temporary_file(folder, _pieces_of(file), synced=True) as temporary:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _pieces_of(file: int) -> Iterator[bytes]:
    position = 0
    while piece := os.pread(file, _BUFFERED, position):
        yield piece
        position += len(piece)


def discard(folder: int, name: str) -> None:
    """Remove the file *name*, unless it is gone."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def sweep(folder: int, before: float) -> None:
    """Remove temporary files last written *before* that time: a killed process left them."""
    for name, info in regular_files(folder, is_temporary):
        if info.st_mtime < before:
            discard(folder, name)


def sync(descriptor: int) -> None:
    """Wait until the file or folder is on the disk, where the file system can do that."""
    with ignore_unsupported():
        os.fsync(descriptor)


def read_bytes(folder: int, name: str, limit: int = 64_000_000) -> bytes | None:
    """At most *limit* bytes of the regular file *name*; None when there is nothing of that name."""
    try:
        file = open_file(name, os.O_RDONLY, folder=folder)
    except FileNotFoundError:
        return None
    with open(file, "rb") as stream:
        # Not the limit itself: `read` allocates as much as it is asked for.
        return stream.read(min(limit, os.fstat(file).st_size))


def holds(folder: int, name: str, chunks: Iterable[bytes]) -> bool | None:
    """Whether the regular file *name* holds *chunks* and no more; None where there is none."""
    try:
        file = open_file(name, os.O_RDONLY, folder=folder)
    except FileNotFoundError:
        return None
    with open(file, "rb") as stream:
        return all(stream.read(len(chunk)) == chunk for chunk in chunks) and not stream.read(1)


def exists(folder: int, name: str) -> bool:
    """Whether anything in *folder* has that name."""
    with suppress(FileNotFoundError):
        file_info(folder, name)
        return True
    return False
