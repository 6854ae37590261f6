"""Text files below one folder."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from anyio import CapacityLimiter, sleep, to_thread
from anyio.lowlevel import RunVar

from ..errors import SettingsError, StorageError
from ..messages import ensure_messages, strings
from ..names import content_hash, safe_name, session_folder, suffixed
from ..pieces import pieces
from ..placeholders import named_files
from ..settings import (
    FLAG,
    FUNCTION,
    NUMBER,
    PATH,
    SESSION_ID,
    SIZE,
    check_settings,
    excerpt,
    one_of,
)
from .atomic import STALE_SECONDS, claim, exists, read_bytes, sync, temporary_file
from .cleanup import (
    JOURNAL,
    Cleaned,
    Limits,
    choose_files,
    delete_files,
    delete_session,
    drop_empty_folders,
    file_kind,
    find_files,
)
from .finishing import finished
from .folders import (
    RootError,
    is_file,
    open_file,
    regular_files,
    translate_errors,
)
from .journals import JournalFile, Position, SessionLock
from .ownership import StorageRoot
from .protocol import Page
from .records import Record, Redact, encode_record, leave_alone, redact_text

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["Cleaned", "LocalStorage"]

_CHUNK = 1 << 16
_MOST_SEEN = 10_000  # journals whose length is remembered
_LEASE_POLL = 0.05  # seconds
_PLAIN_KEY = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*")  # nothing to normalise in it

# Eight batches at a time for all storages of an event loop: a thousand sessions must not exhaust
# the descriptors.
_LIMITER: RunVar[CapacityLimiter] = RunVar("ctxpipe_storage_writes")


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Text files below *root*: it writes, reads, keeps records and cleans up.

    A text is there whole or not at all, with *fsync* also after a power cut. Files are 0600 and
    folders 0700 whatever the umask, where the file system has modes. No name leads out of the root
    or through a symbolic link; the root is pinned when it is first used, and refused when another
    folder is in its place. It may be shared by many sessions and processes. *redact* is applied to
    every string that goes to disk, before it is encoded; what it raises keeps the text from being
    written. Numbers, role, type and ids of a message, and names of files are not redacted.

    *taken* says what happens to a text whose key holds other bytes already: with "hash" it goes to the key with a
    hash of its content, with "number" to the key with the next free number, with "overwrite" it
    replaces them. With "hash" the folders that the storage makes are marked as its own, and only
    what is in those is ever deleted; the other two leave the folder as the caller gave it. *clock*
    tells the time of records and clean-ups, in seconds since
    1970.

    Raises SettingsError for an empty root, another *taken*, and on Windows.
    """

    root: str | os.PathLike[str]
    fsync: bool = False
    redact: Callable[[str], str] | None = None
    taken: Literal["hash", "number", "overwrite"] = "hash"
    clock: Callable[[], float] = time.time
    _folders: StorageRoot = field(init=False, repr=False, compare=False)
    _seen: dict[str, Position] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not PATH.accepts(self.root):
            raise SettingsError(
                f"root of a LocalStorage is {excerpt(self.root)}; give it a folder such as '.ctxpipe'"
            )
        check_settings(
            self,
            fsync=FLAG,
            redact=FUNCTION.optional,
            taken=one_of("hash", "number", "overwrite"),
            clock=FUNCTION,
        )
        # Absolute from the start: a later chdir must not move the storage.
        path = os.path.abspath(self.root)
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "_folders", StorageRoot(path, marked=self.taken == "hash"))
        object.__setattr__(self, "_seen", {})

    # Writing whole texts --------------------------------------------------------------------------

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
            folders: dict[
                str, tuple[_Folder, set[str]]
            ] = {}  # each folder is opened once per batch
            for key, text in texts:
                *parents, name = _parts(key)
                folder = "/".join(parents)
                if folder not in folders:
                    fd = opened.enter_context(self._folders.folder(folder, create=True))
                    folders[folder] = _Folder(folder, fd), set()
                opened_folder, reserved = folders[folder]
                with translate_errors("cannot write", os.path.join(self.root, folder, name)):
                    name = self._write_one(opened_folder, name, text, reserved)
                if self.taken == "number":  # a number is one result's own, even for the same bytes
                    reserved.add(name)
                locations.append(os.path.join(self.root, folder, name))
        return locations

    def _write_one(self, folder: _Folder, name: str, text: str, reserved: Collection[str]) -> str:
        data = _encode(redact_text(text, self.redact) if self.redact else text)
        if self.taken == "overwrite":
            return self._overwrite(folder, name, data)
        if name not in reserved and self._place(folder, name, data):
            return name
        others = (other for other in self._others(name, text) if other not in reserved)
        return next(other for other in others if self._place(folder, other, data))

    def _others(self, name: str, text: str) -> Iterator[str]:
        """The names that a text may go to when *name* is in use."""
        if self.taken == "hash":
            yield suffixed(name, content_hash(text))
        yield from (suffixed(name, str(number)) for number in count(1))

    def _place(self, folder: _Folder, name: str, data: bytes) -> bool:
        """Put *data* under *name*; False when other bytes are there, which must stay."""
        fd = folder.descriptor
        if exists(fd, name):
            held = read_bytes(fd, name, len(data) + 1)
            if held is not None:
                return held == data
        with temporary_file(fd, [data], synced=self.fsync) as temporary:
            self._folders.list_file(folder.name, fd, name)
            if not claim(fd, temporary, name):  # another process was faster
                return read_bytes(fd, name, len(data) + 1) == data
            if self.fsync:
                sync(fd)
        return True

    def _overwrite(self, folder: _Folder, name: str, data: bytes) -> str:
        fd = folder.descriptor
        if exists(fd, name) and name not in os.listdir(fd):
            # The disk ignores case: the file is that of another id.
            name = suffixed(name, content_hash(name))
        with temporary_file(fd, [data], synced=self.fsync) as temporary:
            if not exists(fd, name):
                self._folders.list_file(folder.name, fd, name)
            os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
            if self.fsync:
                sync(fd)
        return name

    # Reading --------------------------------------------------------------------------------------

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """*limit* characters (None: all) from *offset* on of the text at *location*: a key, or any
        path handed out.

        Raises StorageError when no such text is below the root, SettingsError for a negative
        number.
        """
        SIZE.check("offset", offset)
        SIZE.optional.check("limit", limit)
        end = sys.maxsize if limit is None else offset + limit
        # One hop for all of it: with one for each step a file would take five times as long.
        return await to_thread.run_sync(self._read, location, offset, end, limiter=_limiter())

    def _read(self, location: str, offset: int, end: int) -> Page:
        kept, position = io.StringIO(), 0
        with (
            translate_errors("cannot read", location),
            open(
                self.key(location),
                encoding="utf-8",
                newline="",
                errors="replace",
                opener=self._open,
            ) as file,
        ):
            while chunk := file.read(_CHUNK):
                kept.write(chunk[max(0, offset - position) : max(0, end - position)])
                position += len(chunk)
        return Page(kept.getvalue(), min(offset, position), position)

    def key(self, location: str) -> str:
        """The key that *location* (a key, an absolute path, or one relative to the root or the
        current folder) means.

        Raises StorageError when it is outside the root, or nothing is there.
        """
        trouble: StorageError | None = None
        for key in self._readings(location):
            try:
                with self._folders.folder(os.path.dirname(key)) as fd:
                    if is_file(fd, os.path.basename(key)):
                        return key
            except RootError:
                raise
            except StorageError as error:
                trouble = trouble or error
        raise StorageError(
            errno.ENOENT, f"there is no stored text {location!r} below {self.root}"
        ) from trouble

    def _readings(self, location: str) -> Iterator[str]:
        for base in (self.root, self._folders.real or os.path.realpath(self.root), None):
            path = (
                os.path.abspath(location)
                if base is None
                else os.path.normpath(os.path.join(base, location))
            )
            inside = os.path.relpath(path, base or self.root)
            with suppress(StorageError):
                yield "/".join(_parts(inside))
        # A reference made from a template ends in the key; `check_reference` sees to it.
        with suppress(StorageError):
            yield "/".join(_parts("/".join(PurePosixPath(location.replace("\\", "/")).parts[-2:])))

    def _open(self, key: str, flags: int) -> int:
        with self._folders.folder(os.path.dirname(key)) as fd:
            return open_file(os.path.basename(key), flags, folder=fd)

    # Records --------------------------------------------------------------------------------------

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write the session's next numbered record, synced to disk; return its absolute path.

        Raises StorageError.
        """
        return await to_thread.run_sync(
            self._save, session_folder(session_id), safe_name(stem), record, limiter=_limiter()
        )

    def _save(self, folder: str, stem: str, record: Record) -> str:
        where = os.path.join(self.root, folder)
        with (
            self._folders.folder(folder, create=True) as fd,
            translate_errors("cannot save a record below", where),
        ):
            stamp = datetime.fromtimestamp(self.clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
            numbered = re.compile(re.escape(stem) + r"-\d{8}T\d{6}Z-(\d+)\.json")
            used = [int(match[1]) for name in os.listdir(fd) if (match := numbered.fullmatch(name))]
            names = (f"{stem}-{stamp}-{number}.json" for number in count(max(used, default=0) + 1))
            chunks = map(_encode, encode_record(record, self._redact_for(folder)))
            with temporary_file(fd, chunks, synced=True) as temporary:
                name = next(
                    name for name in names if self._claim_record(folder, fd, temporary, name)
                )
                sync(fd)
        return os.path.join(where, name)

    def _claim_record(self, folder: str, fd: int, temporary: str, name: str) -> bool:
        self._folders.list_file(folder, fd, name)
        return claim(fd, temporary, name)

    def _redact_for(self, folder: str) -> Redact | None:
        return leave_alone(folder, self.redact) if self.redact else None

    async def records(self, session_id: str, /) -> list[str]:
        """The absolute paths of the session's records, oldest first. Raises StorageError."""
        return await to_thread.run_sync(
            self._records, session_folder(session_id), limiter=_limiter()
        )

    def _records(self, folder: str) -> list[str]:
        try:
            with self._folders.folder(folder) as fd:
                files = [(info.st_mtime_ns, name) for name, info in regular_files(fd)]
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return []
        records = [
            name for _, name in sorted(files) if file_kind(name) == "record" and name[0] != "."
        ]
        return [os.path.join(self.root, folder, name) for name in records]

    # Journals ------------------------------------------------------------------------------------

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number* of the session's journal; False when there is one.

        Raises StorageError.
        """
        return await to_thread.run_sync(self._append, session_id, number, entry, limiter=_limiter())

    def _append(self, session_id: str, number: int, entry: str) -> bool:
        if "\n" in entry:
            raise StorageError(errno.EINVAL, "an entry of a journal is one line")
        journal = self._journal(session_id)
        seen = self._seen.get(journal.where, Position())
        written, now = journal.append(number, entry.encode(), seen, synced=self.fsync)
        self._remember(journal.where, now)
        return written

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        """The entries of the session's journal from number *start* on. Raises StorageError."""
        return await to_thread.run_sync(self._entries, session_id, start, limiter=_limiter())

    def _entries(self, session_id: str, start: int) -> list[str]:
        journal = self._journal(session_id)
        lines, now = journal.lines(start, self._seen.get(journal.where, Position()))
        self._remember(journal.where, now)
        return [line.decode("utf-8", "replace") for line in lines]

    async def set_aside(self, session_id: str, /) -> str:
        """Give the session's journal another name, under which nothing reads it; that name.

        Raises StorageError.
        """
        journal = self._journal(session_id)
        seen = self._seen.get(journal.where, Position())
        return await to_thread.run_sync(journal.set_aside, seen, limiter=_limiter())

    def _journal(self, session_id: str) -> JournalFile:
        return JournalFile(self._folders, session_folder(session_id), JOURNAL)

    def _remember(self, where: str, now: Position) -> None:
        self._seen.pop(where, None)
        self._seen[where] = now
        while len(self._seen) > _MOST_SEEN:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread was faster
                del self._seen[next(iter(self._seen))]

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        """Hold the session for yourself; False when somebody else has held it for *seconds*.

        Raises StorageError.
        """
        lock = SessionLock(self._folders, session_folder(session_id))
        deadline = time.monotonic() + seconds
        held = await to_thread.run_sync(lock.acquire, limiter=_limiter())
        while not held and time.monotonic() < deadline:
            await sleep(_LEASE_POLL)
            held = await to_thread.run_sync(lock.acquire, limiter=_limiter())
        try:
            yield held
        finally:
            lock.release()

    # Cleaning up ----------------------------------------------------------------------------------

    async def cleanup(
        self,
        *,
        max_bytes: int | None = None,
        max_age: float | None = None,
        live: Iterable[Sequence[Message]] = (),
        records: bool = False,
    ) -> Cleaned:
        """Delete the oldest texts until none is older than *max_age* seconds and all hold at most
        *max_bytes*.

        Only files of ctxpipe's in folders that carry its mark are deleted. A session whose journal
        is younger than
        *max_age*, or than an hour, stays whole; without *max_age* every session with a journal does. So does a file
        that a placeholder in one of the *live* histories names, but no list of histories protects
        what only a session remembers: keep a journal. Archives and journals go only with *records*.
        None switches a limit off.

        Raises StorageError, and SettingsError for a negative limit.
        """
        SIZE.optional.check("max_bytes", max_bytes)
        NUMBER.optional.check("max_age", max_age)
        histories = list(live)
        for history in histories:
            ensure_messages(history, sys.maxsize)  # that it is a list: `live` is a list of such
        return await to_thread.run_sync(
            self._cleanup, histories, max_bytes, max_age, records, limiter=_limiter()
        )

    def _cleanup(
        self,
        live: Sequence[Sequence[Message]],
        max_bytes: int | None,
        max_age: float | None,
        records: bool,
    ) -> Cleaned:
        texts = (text for history in live for message in history for text in strings(message))
        kept = {name for text in texts for name in named_files(text)}
        limits = Limits(max_bytes, max_age, records, kept)
        now = self.clock()
        cleaned = delete_files(self._folders, choose_files(find_files(self._folders), limits, now))
        drop_empty_folders(self._folders, now - STALE_SECONDS)
        return cleaned

    async def delete(self, session_id: str, /) -> Cleaned:
        """Delete all that is stored of one session: texts, archives, journal, and its folder;
        nothing else.

        Files in that folder that are not ctxpipe's stay. Raises StorageError, also for a folder
        that it has not made.
        """
        SESSION_ID.check("session_id", session_id)
        return await to_thread.run_sync(
            delete_session, self._folders, session_folder(session_id), limiter=_limiter()
        )


@dataclass(frozen=True, slots=True)
class _Folder:
    """An open folder below the root."""

    name: str
    descriptor: int


def _encode(text: str) -> bytes:
    # A lone surrogate has no UTF-8 form; escaped, it stays readable and nothing dies of it.
    # In pieces, because that takes a codec some 50 ms for 8 MB of them.
    return b"".join(piece.encode("utf-8", "backslashreplace") for piece in pieces(text))


def _limiter() -> CapacityLimiter:
    try:
        return _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(8)
        _LIMITER.set(limiter)
        return limiter


def _parts(key: str) -> tuple[str, ...]:
    """The components of a key. Raises StorageError when it is empty or leads out of the root."""
    if _PLAIN_KEY.fullmatch(key):
        return tuple(key.split("/"))
    path = PurePosixPath(key)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in key:
        raise StorageError(errno.EINVAL, f"{key!r} does not name a file below the storage's root")
    return path.parts
