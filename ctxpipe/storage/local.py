"""Text files below one folder."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from ..errors import SettingsError, StorageError
from ..messages import tool_results
from ..names import content_hash, safe_name, suffixed
from ..placeholders import previewed_reference, reference
from .protocol import Page

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["Cleaned", "LocalStorage"]

_DRAFT = ".draft-"
_STALE_SECONDS = 3600.0  # a draft this old has no writer any more
_CHUNK = 1 << 16
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EMLINK}  # a file system without hard links

# Eight batches at a time for all storages of an event loop: a thousand sessions must not exhaust the descriptors.
_LIMITER: RunVar[CapacityLimiter] = RunVar("ctxpipe_storage_writes")
_DRAFTS = count()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed: absolute paths, and the bytes they held."""

    files: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Text files below *root*: it writes, reads, keeps records and cleans up.

    A text is there whole or not at all (draft, then moved into place), with *fsync* also after a power cut. Files
    are 0600 and folders 0700 whatever the umask; no name leads out of the root or through a symbolic link. The
    root may be shared by many sessions and processes. *redact* is applied to everything that goes to disk.

    *taken* says what happens to a text whose key holds other bytes already: with "hash" it goes to the key with a
    hash of its content, with "number" to the key with the next free number, with "overwrite" it replaces them.
    """

    root: str | os.PathLike[str]
    fsync: bool = False
    redact: Callable[[str], str] | None = None
    taken: Literal["hash", "number", "overwrite"] = "hash"
    clock: Callable[[], float] = time.time
    _swept: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not os.fspath(self.root):
            raise SettingsError("root of a LocalStorage is empty; give it a folder such as '.ctxpipe'")
        if self.taken not in ("hash", "number", "overwrite"):
            raise SettingsError(f"taken of a LocalStorage is {self.taken!r}, not 'hash', 'number' or 'overwrite'")
        # Absolute from the start: a later chdir must not move the storage. Links are not resolved.
        object.__setattr__(self, "root", os.path.abspath(self.root))

    # Writing whole texts --------------------------------------------------------------------------------------

    def location(self, key: str, /) -> str:
        """The absolute path of *key*. Raises StorageError when the key leads out of the root."""
        return os.path.join(self.root, *_parts(key))

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """Store each (key, text) and return the absolute paths, in order. Raises StorageError."""
        # One thread hop for the whole batch: a hop per file costs more than the file.
        return await to_thread.run_sync(self._write, texts, limiter=_limiter())

    def _write(self, texts: Sequence[tuple[str, str]]) -> list[str]:
        locations: list[str] = []
        with ExitStack() as opened:
            folders: dict[str, tuple[int, set[str]]] = {}  # each folder is opened once per batch
            for key, text in texts:
                folder, name = os.path.split("/".join(_parts(key)))
                if folder not in folders:
                    folders[folder] = opened.enter_context(self._folder(folder, create=True)), set()
                fd, reserved = folders[folder]
                with _translated("cannot write", os.path.join(self.root, folder, name)):
                    name = self._write_one(fd, name, text, reserved)
                if self.taken == "number":  # a number is one result's own, even for the same bytes (BO-7)
                    reserved.add(name)
                locations.append(os.path.join(self.root, folder, name))
        return locations

    def _write_one(self, fd: int, name: str, text: str, reserved: Collection[str]) -> str:
        data = self._bytes(text)
        free = (candidate for candidate in self._candidates(name, text) if candidate not in reserved)
        return next(candidate for candidate in free if self._place(fd, candidate, data))

    def _candidates(self, name: str, text: str) -> Iterator[str]:
        yield name
        if self.taken == "hash":
            yield suffixed(name, content_hash(text))
        yield from (suffixed(name, str(number)) for number in count(1))

    def _place(self, fd: int, name: str, data: bytes) -> bool:
        """Put *data* under *name*; False when other bytes lie there that must stay."""
        if self.taken != "overwrite":
            held = _read_bytes(fd, name, len(data) + 1)
            if held is not None:
                return held == data
        with _draft(fd, [data], sync=self.fsync) as draft:
            if self.taken == "overwrite":
                os.replace(draft, name, src_dir_fd=fd, dst_dir_fd=fd)
            elif not _claim(fd, draft, name):  # another process was faster
                return _read_bytes(fd, name, len(data) + 1) == data
            if self.fsync:
                os.fsync(fd)
        return True

    def _bytes(self, text: str) -> bytes:
        # A lone surrogate has no UTF-8 form; escaped, it stays readable and nothing dies of it.
        return (self.redact(text) if self.redact else text).encode("utf-8", "backslashreplace")

    # Reading --------------------------------------------------------------------------------------------------

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """A page of the text at *location*: a key, or a path in any form that was handed out."""
        import aiofiles  # here and below: it takes as long to import as the rest of this package

        end = None if limit is None else offset + limit
        kept, position = io.StringIO(), 0
        with _translated("cannot read", location):
            key = await to_thread.run_sync(self.key, location, limiter=_limiter())
            async with aiofiles.open(key, encoding="utf-8", newline="", errors="replace", opener=self._reader) as file:
                while chunk := await file.read(_CHUNK):
                    kept.write(chunk[max(0, offset - position) : None if end is None else max(0, end - position)])
                    position += len(chunk)
        return Page(kept.getvalue(), min(offset, position), position)

    def key(self, location: str) -> str:
        """The key that *location* (a key, an absolute path, or one relative to the root or the current folder) means.

        Raises StorageError when it lies outside the root, or nothing lies there.
        """
        for key in self._readings(location):
            with suppress(StorageError), self._folder(os.path.dirname(key), create=False) as fd:
                if _is_file(fd, os.path.basename(key)):
                    return key
        raise StorageError(errno.ENOENT, f"there is no stored text {location!r} below {self.root}")

    def _readings(self, location: str) -> Iterator[str]:
        for base in (self.root, os.path.realpath(self.root), None):
            path = os.path.abspath(location) if base is None else os.path.normpath(os.path.join(base, location))
            inside = os.path.relpath(path, base or self.root)
            with suppress(StorageError):
                yield "/".join(_parts(inside))
        # A reference made from a template ends in the key.
        with suppress(StorageError):
            yield "/".join(_parts("/".join(PurePosixPath(location.replace("\\", "/")).parts[-2:])))

    def _reader(self, key: str, flags: int) -> int:
        with self._folder(os.path.dirname(key), create=False) as fd:
            return os.open(os.path.basename(key), flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)

    # Records --------------------------------------------------------------------------------------------------

    async def save(self, session_id: str, stem: str, chunks: Iterable[str], /) -> str:
        """Write the session's next numbered record, synced to disk; return its absolute path."""
        return await to_thread.run_sync(self._save, safe_name(session_id), safe_name(stem), chunks, limiter=_limiter())

    def _save(self, folder: str, stem: str, chunks: Iterable[str]) -> str:
        where = os.path.join(self.root, folder)
        with self._folder(folder, create=True) as fd, _translated("cannot save a record below", where):
            stamp = datetime.fromtimestamp(self.clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
            numbered = re.compile(re.escape(stem) + r"-\d{8}T\d{6}Z-(\d+)\.json")
            used = [int(match[1]) for name in os.listdir(fd) if (match := numbered.fullmatch(name))]
            names = (f"{stem}-{stamp}-{number}.json" for number in count(max(used, default=0) + 1))
            with _draft(fd, map(self._bytes, chunks), sync=True) as draft:
                name = next(name for name in names if _claim(fd, draft, name))
                os.fsync(fd)
        return os.path.join(where, name)

    async def append(self, session_id: str, name: str, text: str, /) -> str:
        """Add *text* to the session's record *name*; return its absolute path."""
        import aiofiles

        key = f"{safe_name(session_id)}/{safe_name(name)}"
        path = self.location(key)
        with _translated("cannot append to", path):
            async with aiofiles.open(key, "ab", opener=self._appender) as file:
                await file.write(self._bytes(text))
                await file.flush()
                if self.fsync:
                    await to_thread.run_sync(os.fsync, file.fileno())
        return path

    def _appender(self, key: str, flags: int) -> int:
        with self._folder(os.path.dirname(key), create=True) as fd:
            file = os.open(os.path.basename(key), flags | os.O_NOFOLLOW, 0o600, dir_fd=fd)
        os.fchmod(file, 0o600)
        return file

    async def records(self, session_id: str, /) -> list[str]:
        """The absolute paths of the session's records, oldest first."""
        return await to_thread.run_sync(self._records, safe_name(session_id), limiter=_limiter())

    def _records(self, folder: str) -> list[str]:
        where = os.path.join(self.root, folder)
        with _translated("cannot list", where), suppress(FileNotFoundError):
            found = [entry for entry in os.scandir(where) if _is_record(entry.name)]
            return [entry.path for entry in sorted(found, key=lambda e: (e.stat().st_mtime_ns, e.name))]
        return []

    # Cleaning up ----------------------------------------------------------------------------------------------

    async def cleanup(
        self,
        *,
        max_bytes: int | None = None,
        max_age: float | None = None,
        live: Iterable[Sequence[Message]] = (),
        records: bool = False,
    ) -> Cleaned:
        """Delete the oldest texts until none is older than *max_age* seconds and all hold at most *max_bytes*.

        A file that a placeholder in one of the *live* histories names is never deleted; archives and journals only
        with *records*. None switches a limit off. Raises StorageError, and SettingsError for a negative limit.
        """
        for name, limit in (("max_bytes", max_bytes), ("max_age", max_age)):
            if limit is not None and limit < 0:
                raise SettingsError(f"{name} of a clean-up is {limit}; it must be 0 or more, or None for no limit")
        named = {name for history in live for name in _named_files(history)}
        return await to_thread.run_sync(self._cleanup, max_bytes, max_age, named, records, limiter=_limiter())

    def _cleanup(self, max_bytes: int | None, max_age: float | None, named: set[str], records: bool) -> Cleaned:
        with _translated("cannot clean up", str(self.root)):
            entries = sorted(self._entries(), key=lambda entry: entry[1].st_mtime_ns)
            held = sum(info.st_size for _, info in entries)
            removed: list[str] = []
            freed = 0
            for path, info in entries:
                name, age = os.path.basename(path), self.clock() - info.st_mtime
                stale = name.startswith(_DRAFT) and age > _STALE_SECONDS
                over = max_bytes is not None and held - freed > max_bytes
                old = max_age is not None and age > max_age
                kept = name in named or name.startswith(_DRAFT) or (_is_record(name) and not records)
                if stale or ((over or old) and not kept):
                    os.unlink(path)
                    removed.append(path)
                    freed += info.st_size
            self._drop_empty_folders()
        return Cleaned(tuple(removed), freed)

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        for folder in self._session_folders():
            for entry in os.scandir(folder):
                if entry.is_file(follow_symlinks=False):
                    yield entry.path, entry.stat(follow_symlinks=False)

    def _session_folders(self) -> list[str]:
        if not os.path.isdir(self.root):
            return []
        return [str(self.root), *(e.path for e in os.scandir(self.root) if e.is_dir(follow_symlinks=False))]

    def _drop_empty_folders(self) -> None:
        for folder in self._session_folders()[1:]:
            with suppress(OSError):  # not empty, or in use again
                os.rmdir(folder)

    # Folders --------------------------------------------------------------------------------------------------

    @contextmanager
    def _folder(self, folder: str, *, create: bool) -> Iterator[int]:
        """A descriptor of the folder below the root, reached without following a link on the way."""
        with _translated("cannot open the folder", os.path.join(self.root, folder)):
            fd = self._open_folder(folder, create=create)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_folder(self, folder: str, *, create: bool) -> int:
        if create:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        for part in PurePosixPath(folder).parts:
            fd = _descend(fd, part, create=create)
        if create and folder not in self._swept:
            self._sweep(fd, folder)
        return fd

    def _sweep(self, fd: int, folder: str) -> None:
        """Remove drafts that a killed process left behind, once per folder and storage."""
        self._swept.add(folder)
        for name in os.listdir(fd):
            if name.startswith(_DRAFT):
                with suppress(FileNotFoundError):
                    if time.time() - os.stat(name, dir_fd=fd).st_mtime > _STALE_SECONDS:
                        os.unlink(name, dir_fd=fd)


def _limiter() -> CapacityLimiter:
    try:
        return _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(8)
        _LIMITER.set(limiter)
        return limiter


@contextmanager
def _translated(what: str, where: str) -> Iterator[None]:
    """Turn the operating system's errors into StorageError, once, with the cause."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(getattr(error, "errno", None) or errno.EIO, f"{what} {where}: {reason}") from error


def _parts(key: str) -> tuple[str, ...]:
    """The components of a key. Raises StorageError when it is empty or leads out of the root."""
    path = PurePosixPath(key)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in key:
        raise StorageError(errno.EINVAL, f"{key!r} does not name a file below the storage's root")
    return path.parts


def _descend(fd: int, part: str, *, create: bool) -> int:
    """The descriptor of folder *part* in *fd*, which is closed."""
    try:
        if create:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=fd)
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    finally:
        os.close(fd)


@contextmanager
def _draft(fd: int, chunks: Iterable[bytes], *, sync: bool) -> Iterator[str]:
    """The name of a new hidden file in folder *fd* that holds *chunks*; it is gone at the end, whatever happened."""
    name = f"{_DRAFT}{os.getpid()}-{next(_DRAFTS)}-{time.time_ns():x}"
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=fd)
    try:
        try:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(file, view) :]
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
        yield name
    finally:
        with suppress(FileNotFoundError):  # moved into place
            os.unlink(name, dir_fd=fd)


def _claim(fd: int, draft: str, name: str) -> bool:
    """Give the draft the *name* too, unless that is taken."""
    try:
        # Unlike a rename, a link never replaces what another process has put there meanwhile.
        os.link(draft, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if _exists(fd, name):
            return False
        os.rename(draft, name, src_dir_fd=fd, dst_dir_fd=fd)
    return True


def _read_bytes(fd: int, name: str, limit: int) -> bytes | None:
    """At most *limit* bytes of the regular file *name* in folder *fd*; None when there is nothing of that name."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
    except FileNotFoundError:
        return None
    with open(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return stream.read(limit)


def _exists(fd: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=fd, follow_symlinks=False)
        return True
    return False


def _is_file(fd: int, name: str) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    return False


def _is_record(name: str) -> bool:
    """Whether a file of ours is an archive, an index beside one, or a journal: all that is not an offloaded text."""
    return not name.startswith(".") and not name.endswith(".md")


def _named_files(history: Sequence[Message]) -> Iterator[str]:
    """The file names that placeholders in *history* mention, whatever form the path in front of them has."""
    for result in tool_results(history):
        where = reference(result.content) or previewed_reference(result.content)
        if where is not None:
            yield Path(where.replace("\\", "/")).name
