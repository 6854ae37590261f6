"""Atomic creation of files: each is written under a temporary name and then linked."""

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
STALE_SECONDS = 3600.0  # age at which a temporary file or an empty folder has no writer

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_NUMBERS = count()
_BUFFERED = 1 << 16  # bytes


def temporary_name() -> str:
    """Return a new name for an incomplete file; no other process uses the same name."""
    return f"{TEMPORARY}{os.getpid()}-{next(_NUMBERS)}-{time.time_ns():x}"


def is_temporary(name: str) -> bool:
    """Return True if *name* is the name of a temporary file."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


@contextmanager
def temporary_file(folder: int, chunks: Iterable[bytes], *, fsync: bool) -> Iterator[str]:
    """Write *chunks* to a new hidden file, yield its name, and remove that name afterwards.

    The caller links or renames the file in the block. With *fsync* the file is synced to disk
    before the block, and the *folder* after it.
    """
    name = temporary_name()
    file = os.open(name, _CREATE, 0o600, dir_fd=folder)
    try:
        try:
            with ignore_unsupported():
                os.fchmod(file, 0o600)
            with open(file, "wb", _BUFFERED, closefd=False) as stream:
                stream.writelines(chunks)
            if fsync:
                sync(file)
        finally:
            os.close(file)
        yield name
        if fsync:
            sync(folder)
    finally:
        discard(folder, name)


def write_all(file: int, data: bytes) -> None:
    """Write all of *data* to an open *file*; one system call may write only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def claim(folder: int, temporary: str, name: str) -> bool:
    """Give the temporary file the *name* too; return False if that name is in use."""
    try:
        # Unlike a rename, a link never replaces a file that another process has created meanwhile.
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in FAULTS:
            raise
        return _claim_without_links(folder, temporary, name)
    return True


def _claim_without_links(folder: int, temporary: str, name: str) -> bool:
    """Reserve the name with an empty file, then replace it; return False if it exists.

    For file systems without hard links. If the process is killed meanwhile, the empty file stays.
    """
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
    """Replace the file *name*, which is the open *file*, by a copy of itself.

    Other hard links to the file, such as those of a snapshot, keep the original. The caller holds a
    lock that prevents other processes from writing to *file*.
    """
    with temporary_file(folder, _pieces_of(file), fsync=True) as temporary:
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _pieces_of(file: int) -> Iterator[bytes]:
    """Yield the content of the open *file* from its start, in pieces. Raises OSError."""
    position = 0
    while piece := os.pread(file, _BUFFERED, position):
        yield piece
        position += len(piece)


def discard(folder: int, name: str) -> None:
    """Remove the file *name* if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def sweep(folder: int, before: float) -> None:
    """Remove temporary files last written *before* that time, left by killed processes."""
    for name, info in regular_files(folder, is_temporary):
        if info.st_mtime < before:
            discard(folder, name)


def sync(descriptor: int) -> None:
    """Wait until the file or folder is on the disk, if the file system supports it."""
    with ignore_unsupported():
        os.fsync(descriptor)


def read_bytes(folder: int, name: str, limit: int = 64_000_000) -> bytes | None:
    """Return the first *limit* bytes of the regular file *name*; None if it does not exist.

    *folder* is a descriptor of its folder. Raises OSError for other errors, and for a folder, pipe
    or device.
    """
    try:
        file = open_file(name, os.O_RDONLY, folder=folder)
    except FileNotFoundError:
        return None
    with open(file, "rb") as stream:
        # `read(limit)` would allocate *limit* bytes, however small the file is.
        return stream.read(min(limit, os.fstat(file).st_size))


def has_content(folder: int, name: str, chunks: Iterable[bytes]) -> bool | None:
    """Return True if the content of the regular file *name* is *chunks*, None if it is missing."""
    try:
        file = open_file(name, os.O_RDONLY, folder=folder)
    except FileNotFoundError:
        return None
    with open(file, "rb") as stream:
        for chunk in chunks:
            if stream.read(len(chunk)) != chunk:
                return False
        return stream.read(1) == b""


def exists(folder: int, name: str) -> bool:
    """Return True if *folder* has a file, folder or link called *name*."""
    with suppress(FileNotFoundError):
        file_info(folder, name)
        return True
    return False
