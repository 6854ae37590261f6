"""Text files below one folder."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from ..errors import SettingsError, StorageError
from ..messages import strings
from ..names import content_hash, safe_name, session_folder, suffixed
from ..placeholders import named_files
from .finishing import finished
from .protocol import Page
from .records import Record, encode_line, encode_record, redact_text

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["Cleaned", "LocalStorage"]

_DRAFT = ".draft-"
_STALE_SECONDS = 3600.0  # a draft or an empty folder this old has no writer any more
_CHUNK = 1 << 16
_PLAIN_KEY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*")  # nothing to normalise in it
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
    root may be shared by many sessions and processes. *redact* is applied to every string that goes to disk, before it
    is encoded; what it raises keeps the text from being written. Numbers, role, type and ids of a message, and names of
    files are not redacted.

    *taken* says what happens to a text whose key holds other bytes already: with "hash" it goes to the key with a
    hash of its content, with "number" to the key with the next free number, with "overwrite" it replaces them.
    *clock* tells the time of records and clean-ups, in seconds since 1970.

    Raises SettingsError for an empty root, or another *taken*.
    """

    root: str | os.PathLike[str]
    fsync: bool = False
    redact: Callable[[str], str] | None = None
    taken: Literal["hash", "number", "overwrite"] = "hash"
    clock: Callable[[], float] = time.time
    _swept: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.root, str | os.PathLike) or not os.fspath(self.root):
            raise SettingsError(f"root of a LocalStorage is {self.root!r}; give it a folder such as '.ctxpipe'")
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
            folders: dict[str, tuple[int, str, set[str]]] = {}  # each folder is opened once per batch
            for key, text in texts:
                *parents, name = _parts(key)
                folder = "/".join(parents)
                if folder not in folders:
                    fd = opened.enter_context(self._folder(folder, create=True))
                    folders[folder] = fd, os.path.join(self.root, folder, ""), set()
                fd, path, reserved = folders[folder]
                try:
                    name = self._write_one(fd, name, text, reserved)
                except (OSError, ValueError) as error:
                    raise _storage_error("cannot write", path + name, error) from error
                if self.taken == "number":  # a number is one result's own, even for the same bytes (BO-7)
                    reserved.add(name)
                locations.append(path + name)
        return locations

    def _write_one(self, fd: int, name: str, text: str, reserved: Collection[str]) -> str:
        data = _encoded(redact_text(text, self.redact) if self.redact else text)
        if name not in reserved and self._place(fd, name, data):
            return name
        others = (other for other in self._others(name, text) if other not in reserved)
        return next(other for other in others if self._place(fd, other, data))

    def _others(self, name: str, text: str) -> Iterator[str]:
        """The names that a text may go to when *name* is taken."""
        if self.taken == "hash":
            yield suffixed(name, content_hash(text))
        yield from (suffixed(name, str(number)) for number in count(1))

    def _place(self, fd: int, name: str, data: bytes) -> bool:
        """Put *data* under *name*; False when other bytes lie there that must stay."""
        # Asking first costs less than an open that fails.
        if self.taken != "overwrite" and os.access(name, os.F_OK, dir_fd=fd, follow_symlinks=False):
            held = _read_bytes(fd, name, len(data) + 1)
            if held is not None:
                return held == data
        draft = _drafted(fd, [data], sync=self.fsync)
        try:
            if self.taken == "overwrite":
                os.replace(draft, name, src_dir_fd=fd, dst_dir_fd=fd)
            elif not _claim(fd, draft, name):  # another process was faster
                return _read_bytes(fd, name, len(data) + 1) == data
            if self.fsync:
                os.fsync(fd)
        finally:
            _discard(fd, draft)
        return True

    # Reading --------------------------------------------------------------------------------------------------

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """*limit* characters (None: all) from *offset* on of the text at *location*: a key, or any path handed out.

        Raises StorageError when no such text lies below the root, SettingsError for a negative number.
        """
        _check_limits("a page", offset=offset, limit=limit)
        return await finished(self._read(location, offset, None if limit is None else offset + limit))

    async def _read(self, location: str, offset: int, end: int | None) -> Page:
        import aiofiles  # here and below: it takes as long to import as the rest of this package

        kept, position = io.StringIO(), 0
        with _translated("cannot read", location):
            key = await to_thread.run_sync(self.key, location, limiter=_limiter())
            async with (
                _limiter(),
                aiofiles.open(key, encoding="utf-8", newline="", errors="replace", opener=self._reader) as file,
            ):
                while chunk := await file.read(_CHUNK):
                    kept.write(chunk[max(0, offset - position) : None if end is None else max(0, end - position)])
                    position += len(chunk)
        return Page(kept.getvalue(), min(offset, position), position)

    def key(self, location: str) -> str:
        """The key that *location* (a key, an absolute path, or one relative to the root or the current folder) means.

        Raises StorageError when it lies outside the root, or nothing lies there.
        """
        trouble: StorageError | None = None
        for key in self._readings(location):
            try:
                with self._folder(os.path.dirname(key), create=False) as fd:
                    if _is_file(fd, os.path.basename(key)):
                        return key
            except StorageError as error:
                trouble = trouble or error
        raise StorageError(errno.ENOENT, f"there is no stored text {location!r} below {self.root}") from trouble

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

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write the session's next numbered record, synced to disk; return its absolute path. Raises StorageError."""
        return await to_thread.run_sync(
            self._save, session_folder(session_id), safe_name(stem), record, limiter=_limiter()
        )

    def _save(self, folder: str, stem: str, record: Record) -> str:
        where = os.path.join(self.root, folder)
        with self._folder(folder, create=True) as fd, _translated("cannot save a record below", where):
            stamp = datetime.fromtimestamp(self.clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
            numbered = re.compile(re.escape(stem) + r"-\d{8}T\d{6}Z-(\d+)\.json")
            used = [int(match[1]) for name in os.listdir(fd) if (match := numbered.fullmatch(name))]
            names = (f"{stem}-{stamp}-{number}.json" for number in count(max(used, default=0) + 1))
            draft = _drafted(fd, map(_encoded, encode_record(record, self.redact)), sync=True)
            try:
                name = next(name for name in names if _claim(fd, draft, name))
                os.fsync(fd)
            finally:
                _discard(fd, draft)
        return os.path.join(where, name)

    async def append(self, session_id: str, name: str, entry: Mapping[str, object], /) -> str:
        """Add *entry* as a line to the session's record *name*; return its absolute path. Raises StorageError."""
        return await finished(self._append(f"{session_folder(session_id)}/{safe_name(name)}", entry))

    async def _append(self, key: str, entry: Mapping[str, object]) -> str:
        import aiofiles

        path = self.location(key)
        with _translated("cannot append to", path):
            line = await to_thread.run_sync(encode_line, entry, self.redact, limiter=_limiter())
            async with _limiter(), aiofiles.open(key, "ab", opener=self._appender) as file:
                await file.write(_encoded(line))
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
        """The absolute paths of the session's records, oldest first. Raises StorageError."""
        return await to_thread.run_sync(self._records, session_folder(session_id), limiter=_limiter())

    def _records(self, folder: str) -> list[str]:
        found = [entry for entry in self._entries([folder]) if entry.kind == "record"]
        found.sort(key=lambda entry: (entry.info.st_mtime_ns, entry.name))
        return [os.path.join(self.root, folder, entry.name) for entry in found]

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
        _check_limits("a clean-up", max_bytes=max_bytes, max_age=max_age)
        texts = (text for history in live for message in history for text in strings(message))
        kept = {name for text in texts for name in named_files(text)}
        return await to_thread.run_sync(self._cleanup, max_bytes, max_age, kept, records, limiter=_limiter())

    def _cleanup(self, max_bytes: int | None, max_age: float | None, kept: set[str], records: bool) -> Cleaned:
        entries = sorted(self._entries(self._session_folders()), key=lambda entry: entry.info.st_mtime_ns)
        held, now, removed = sum(entry.info.st_size for entry in entries), self.clock(), list[_Entry]()
        for entry in entries:
            if entry.kind == "draft":
                goes = now - entry.info.st_mtime > _STALE_SECONDS
            elif entry.name in kept or (entry.kind == "record" and not records):
                goes = False
            else:
                over = max_bytes is not None and held > max_bytes
                goes = over or (max_age is not None and now - entry.info.st_mtime > max_age)
            if goes and self._removed(entry):
                held -= entry.info.st_size
                removed.append(entry)
        self._drop_empty(now - _STALE_SECONDS)
        paths = tuple(os.path.join(self.root, entry.folder, entry.name) for entry in removed)
        return Cleaned(paths, sum(entry.info.st_size for entry in removed))

    def _removed(self, entry: _Entry) -> bool:
        """Delete the file, unless another process was faster."""
        path = os.path.join(self.root, entry.folder, entry.name)
        try:
            with self._folder(entry.folder, create=False) as fd, _translated("cannot remove", path):
                os.unlink(entry.name, dir_fd=fd)
        except StorageError as error:
            _raise_unless_absent(error)
            return False
        return True

    def _session_folders(self) -> list[str]:
        """The folders that may hold files of ours: the root, and one for each session."""
        try:
            with self._folder("", create=False) as fd, os.scandir(fd) as found:
                return ["", *(entry.name for entry in found if entry.is_dir(follow_symlinks=False))]
        except StorageError as error:
            _raise_unless_absent(error)
            return []

    def _entries(self, folders: Iterable[str]) -> Iterator[_Entry]:
        """The files of ours in *folders*, reached through no link."""
        for folder in folders:
            try:
                with self._folder(folder, create=False) as fd:
                    yield from _files(fd, folder)
            except StorageError as error:
                _raise_unless_absent(error)

    def _drop_empty(self, before: float) -> None:
        """Remove the folders that have been empty since *before*: in a fresh one somebody may be about to write."""
        for folder in self._session_folders()[1:]:
            with suppress(OSError), self._folder("", create=False) as fd:  # not empty
                if os.stat(folder, dir_fd=fd, follow_symlinks=False).st_mtime < before:
                    os.rmdir(folder, dir_fd=fd)

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
            _make_folders(str(self.root))
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        for part in PurePosixPath(folder).parts:
            fd = _descend(fd, part, create=create)
        if create and folder not in self._swept:
            self._swept.add(folder)
            with suppress(OSError):  # a folder that cannot be swept can still be written to
                _sweep(fd, time.time() - _STALE_SECONDS)
        return fd


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file below the root, and what it is."""

    folder: str
    name: str
    info: os.stat_result

    @property
    def kind(self) -> Literal["text", "record", "draft", ""]:
        """What of ours the file is; "" for somebody else's."""
        if self.name.startswith("."):
            return "draft" if self.name.startswith(_DRAFT) else ""
        if not self.folder:  # `offload_tool_results` writes there, beside whatever else the user keeps
            return "text" if self.name.startswith("tool-result-") and self.name.endswith(".md") else ""
        return "text" if self.name.endswith(".md") else "record"


def _encoded(text: str) -> bytes:
    # A lone surrogate has no UTF-8 form; escaped, it stays readable and nothing dies of it.
    return text.encode("utf-8", "backslashreplace")


def _limiter() -> CapacityLimiter:
    try:
        return _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(8)
        _LIMITER.set(limiter)
        return limiter


def _check_limits(what: str, **limits: float | None) -> None:
    for name, limit in limits.items():
        if limit is not None and not limit >= 0:
            raise SettingsError(f"{name} of {what} is {limit}; it must be 0 or more, or None for no limit")


def _raise_unless_absent(error: StorageError) -> None:
    if error.errno != errno.ENOENT:
        raise error


def _files(fd: int, folder: str) -> Iterator[_Entry]:
    for name in os.listdir(fd):
        with suppress(FileNotFoundError):  # removed meanwhile
            entry = _Entry(folder, name, os.stat(name, dir_fd=fd, follow_symlinks=False))
            if entry.kind and stat.S_ISREG(entry.info.st_mode):
                yield entry


@contextmanager
def _translated(what: str, where: str) -> Iterator[None]:
    """Turn the operating system's errors into StorageError, once, with the cause."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _storage_error(what, where, error) from error


def _storage_error(what: str, where: str, error: OSError | ValueError) -> StorageError:
    """*error* as a StorageError; the same one when it is one already."""
    if isinstance(error, StorageError):
        return error
    reason = getattr(error, "strerror", None) or str(error)
    return StorageError(getattr(error, "errno", None) or errno.EIO, f"{what} {where}: {reason}")


def _parts(key: str) -> tuple[str, ...]:
    """The components of a key. Raises StorageError when it is empty or leads out of the root."""
    if _PLAIN_KEY.fullmatch(key):
        return tuple(key.split("/"))
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
                os.chmod(part, 0o700, dir_fd=fd)  # whatever the umask took away
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    finally:
        os.close(fd)


def _make_folders(path: str) -> None:
    """Make the folder *path*, and those above it that are missing."""
    if os.path.isdir(path):
        return
    _make_folders(os.path.dirname(path))
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)


def _sweep(fd: int, before: float) -> None:
    """Remove drafts last written *before* then: a killed process left them behind."""
    for name in os.listdir(fd):
        if name.startswith(_DRAFT):
            with suppress(FileNotFoundError):
                if os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime < before:
                    os.unlink(name, dir_fd=fd)


def _drafted(fd: int, chunks: Iterable[bytes], *, sync: bool) -> str:
    """The name of a new hidden file in folder *fd* that holds *chunks*; nothing is left of it when that fails."""
    name = f"{_DRAFT}{os.getpid()}-{next(_DRAFTS)}-{time.time_ns():x}"
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=fd)
    whole = False
    try:
        os.fchmod(file, 0o600)
        for chunk in chunks:
            written = os.write(file, chunk)
            while written < len(chunk):
                written += os.write(file, chunk[written:])
        if sync:
            os.fsync(file)
        whole = True
    finally:
        os.close(file)
        if not whole:
            _discard(fd, name)
    return name


def _discard(fd: int, draft: str) -> None:
    """Remove *draft*, unless it was moved into place."""
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=fd)


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
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no regular file")
    with open(file, "rb") as stream:
        return stream.read(limit)


def _exists(fd: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=fd, follow_symlinks=False)
        return True
    return False


def _is_file(fd: int, name: str) -> bool:
    with suppress(OSError, ValueError):  # a name with a lone surrogate is a ValueError
        return stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    return False
