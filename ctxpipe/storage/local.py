"""Text files below one folder."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import PurePosixPath
from typing import Literal

from .._text import short_repr
from ..errors import StorageError
from ..messages import Message, ensure_messages
from ..placeholders.locations import key_parts
from ..placeholders.names import (
    candidate_keys,
    content_hash,
    names_of,
    safe_name,
    session_folder,
    with_suffix,
)
from ..settings import (
    FLAG,
    FUNCTION,
    NUMBER,
    PATH,
    SESSION_ID,
    SIZE,
    check_settings,
    one_of,
)
from .atomic import STALE_SECONDS, claim, exists, holds, read_bytes, temporary_file
from .cleanup import (
    Cleaned,
    Limits,
    choose_files,
    delete_files,
    delete_session,
    drop_empty_folders,
    file_kind,
    files_named_in,
    find_files,
)
from .folders import RootError, ignore_absent, is_file, open_file, regular_files, translate_errors
from .generations import TOUCH_SECONDS, ids_below, remember
from .journals import Journals, SessionLock
from .notes import LoadedNotes, add_notes, expire_notes, forget_notes, load_notes, owner_of
from .ownership import INDEX, StorageRoot
from .protocol import Page
from .records import Record, encode_record, encode_text, record_stamp
from .references import check_reference
from .waiting import Availability, acquire_within, run_in_thread

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, repr=False)
class LocalStorage:
    """Text files below *root*: it writes, reads, keeps records and cleans up.

    A text is there whole or not at all, with *fsync* also after a power cut. Files are 0600 and
    folders 0700 whatever the umask, where the file system has modes. No name leads out of the root
    or through a symbolic link; the root is pinned when it is first used, and refused when another
    folder is in its place. It may be shared by many sessions and processes. *redact* is applied to
    every string that goes to disk, before it is encoded; if it raises, the text is not written.
    Numbers, role, type and ids of a message, and names of files are not redacted.

    *on_conflict* says what happens to a text whose key has other bytes already: with "hash" it goes
    to the key with a hash of its content, with "number" to the key with the next free number, with
    "overwrite" it replaces them. With "hash" the folders that the storage makes are marked as its
    own, and only what is in those is ever deleted; the other two leave the folder as the caller
    gave it. *clock* gives the time of records and clean-ups, in seconds since 1970.

    *reference* is the path that the model sees: "absolute", "relative" (to the current folder),
    "storage" (to the root), or a template that ends in /{key} or in {path}, from which the file is
    found again.

    Raises SettingsError for an empty root, another *on_conflict* or *reference*, and on Windows.
    """

    root: str | os.PathLike[str]
    fsync: bool = False
    redact: Callable[[str], str] | None = None
    on_conflict: Literal["hash", "number", "overwrite"] = "hash"
    clock: Callable[[], float] = time.time
    reference: str = "absolute"
    _folders: StorageRoot = field(init=False, repr=False, compare=False)
    _journals: Journals = field(init=False, repr=False, compare=False)
    _touched: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _locks: dict[str, Availability] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        PATH.check("root of a LocalStorage", self.root)
        check_settings(
            self,
            fsync=FLAG,
            redact=FUNCTION.optional,
            on_conflict=one_of("hash", "number", "overwrite"),
            clock=FUNCTION,
        )
        check_reference(self.reference)
        # Absolute from the start: a later chdir must not move the storage.
        path = os.path.abspath(self.root)
        folders = StorageRoot(path, marked=self.on_conflict == "hash")
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "_folders", folders)
        object.__setattr__(self, "_journals", Journals(folders))

    # Writing whole texts --------------------------------------------------------------------------

    def location(self, key: str, /) -> str:
        """The absolute path of *key*. Raises StorageError when the key leads out of the root."""
        return os.path.join(self.root, *key_parts(key))

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """Store each (key, text) and return the absolute paths, in order. Raises StorageError."""
        # One thread hop for the whole batch: a hop per file costs more than the file.
        folder = key_parts(texts[0][0])[0] if texts else ""
        return await self._folder_lock(folder).call_locked(self.write_blocking, texts)

    def write_blocking(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """What `write` does, in the calling thread: for a program that has no event loop."""
        locations: list[str] = []
        folders: dict[str, _Folder] = {}  # each folder is opened once per batch
        with ExitStack() as stack:
            for key, text in texts:
                *parents, name = key_parts(key)
                path = "/".join(parents)
                if path not in folders:
                    folder = self._folders.folder(path, create=True)
                    folders[path] = _Folder(path, stack.enter_context(folder))
                where = os.path.join(self.root, path)
                with translate_errors(f"cannot write {os.path.join(where, name)}"):
                    name = self._write_one(folders[path], name, text)
                locations.append(os.path.join(where, name))
        return locations

    def _write_one(self, folder: _Folder, name: str, text: str) -> str:
        """Write *text* into *folder*; return the name that it got."""
        data = encode_text(text, self.redact)
        if self.on_conflict == "overwrite":
            return self._overwrite(folder, name, data)
        names = candidate_keys(name, text)
        if self.on_conflict == "number":
            names = chain([name], (with_suffix(name, str(number)) for number in count(1)))
        for candidate in names:
            if candidate not in folder.reserved and self._place(folder, candidate, data):
                break
        if self.on_conflict == "number":  # a number is one result's own, even for the same bytes
            folder.reserved.add(candidate)
        return candidate

    def _place(self, folder: _Folder, name: str, data: Sequence[bytes]) -> bool:
        """Put *data* under *name*; False when other bytes are there, which must stay."""
        fd = folder.descriptor
        is_there = holds(fd, name, data)
        if is_there is not None:
            return is_there
        with temporary_file(fd, data, synced=self.fsync) as temporary:
            self._folders.list_file(folder.name, fd, name)
            # Where it cannot be claimed another process was faster.
            return claim(fd, temporary, name) or bool(holds(fd, name, data))

    def _overwrite(self, folder: _Folder, name: str, data: Sequence[bytes]) -> str:
        fd = folder.descriptor
        if exists(fd, name) and name not in os.listdir(fd):
            # The disk ignores case: the file is that of another id.
            name = with_suffix(name, content_hash(name))
        with temporary_file(fd, data, synced=self.fsync) as temporary:
            if not exists(fd, name):
                self._folders.list_file(folder.name, fd, name)
            os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        return name

    # Reading --------------------------------------------------------------------------------------

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """A page of the text at *location*: *limit* characters (None: all) from *offset* on.

        The location is a key, or any path that was returned. Raises StorageError when no such text
        is below the root, SettingsError for a negative number.
        """
        SIZE.check("offset", offset)
        SIZE.optional.check("limit", limit)
        end = sys.maxsize if limit is None else offset + limit
        # One hop for the whole file: with a hop for each step it would take five times as long.
        return await run_in_thread(self._read, location, offset, end)

    def _read(self, location: str, offset: int, end: int) -> Page:
        text = io.StringIO()
        position = 0
        with translate_errors(f"cannot read {location}"):
            key = self.key(location)
            with open(
                key, encoding="utf-8", newline="", errors="replace", opener=self._open
            ) as file:
                while chunk := file.read(_CHUNK):
                    text.write(chunk[max(0, offset - position) : max(0, end - position)])
                    position += len(chunk)
        return Page(text.getvalue(), offset=min(offset, position), total=position)

    def key(self, location: str) -> str:
        """The key that *location* means.

        It may be a key, an absolute path, or a path relative to the root or the current folder.
        Raises StorageError when it is outside the root, or nothing is there.
        """
        first_error: StorageError | None = None
        for key in self._possible_keys(location):
            folder, name = os.path.split(key)
            try:
                with self._folders.folder(folder) as fd:
                    if is_file(fd, name):
                        return key
            except RootError:
                raise
            except StorageError as error:
                first_error = first_error or error
        raise StorageError(
            errno.ENOENT, f"there is no stored text {location!r} below {self.root}"
        ) from first_error

    def _possible_keys(self, location: str) -> Iterator[str]:
        bases = (self.root, self._folders.real or os.path.realpath(self.root))
        paths = [os.path.relpath(os.path.join(base, location), base) for base in bases]
        # A path relative to the current folder, or made from a template, ends in the key.
        paths.append("/".join(PurePosixPath(location.replace("\\", "/")).parts[-2:]))
        for path in paths:
            with suppress(StorageError):
                yield "/".join(key_parts(path))

    def _open(self, key: str, flags: int) -> int:
        folder, name = os.path.split(key)
        with self._folders.folder(folder) as fd:
            return open_file(name, flags, folder=fd)

    # Records --------------------------------------------------------------------------------------

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write the session's next numbered record, synced to disk; return its absolute path.

        Raises StorageError.
        """
        folder = session_folder(session_id)
        lock = self._folder_lock(folder)
        return await lock.call_locked(self._save, folder, safe_name(stem), record)

    def _save(self, folder: str, stem: str, record: Record) -> str:
        where = os.path.join(self.root, folder)
        with (
            self._folders.folder(folder, create=True) as fd,
            translate_errors(f"cannot save a record below {where}"),
        ):
            names = _record_names(fd, stem, self.clock())
            chunks = chain.from_iterable(
                map(encode_text, encode_record(record, self.redact, folder))
            )
            with temporary_file(fd, chunks, synced=True) as temporary:
                for name in names:
                    self._folders.list_file(folder, fd, name)
                    if claim(fd, temporary, name):
                        break
        return os.path.join(where, name)

    async def records(self, session_id: str, /) -> list[str]:
        """The absolute paths of the session's records, oldest first. Raises StorageError."""
        return await run_in_thread(self._records, session_folder(session_id))

    def _records(self, folder: str) -> list[str]:
        names = self._names(folder, _is_record)
        return [os.path.join(self.root, folder, name) for name in names]

    def _names(self, folder: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """The names of the files that are wanted, oldest first."""
        with ignore_absent(), self._folders.folder(folder) as fd:
            files = regular_files(fd, is_wanted)
            return [name for _, name in sorted((info.st_mtime_ns, name) for name, info in files)]
        return []

    # Search ---------------------------------------------------------------------------------------

    async def contents(self, session_id: str, /) -> list[str]:
        """The names of the session's texts and records. Raises StorageError."""
        return await run_in_thread(self._names, session_folder(session_id), _is_content)

    async def load_index(self, session_id: str, /) -> bytes:
        """The index that was saved of the session, b"" where none can be read."""
        return await run_in_thread(self._load_index, session_folder(session_id))

    def _load_index(self, folder: str) -> bytes:
        with suppress(OSError), self._folders.folder(folder) as fd:
            return read_bytes(fd, INDEX, 500_000_000) or b""  # no index is as large
        return b""

    async def save_index(self, session_id: str, content: bytes, /) -> None:
        """Keep the index of the session beside its texts, until they are deleted.

        Raises StorageError.
        """
        folder = session_folder(session_id)
        await self._folder_lock(folder).call_locked(self._save_index, folder, content)

    def _save_index(self, folder: str, content: bytes) -> None:
        with (
            self._folders.folder(folder, create=True) as fd,
            translate_errors(f"cannot save the index below {os.path.join(self.root, folder)}"),
        ):
            self._overwrite(_Folder(folder, fd), INDEX, [content])

    # Notes ----------------------------------------------------------------------------------------

    async def add_notes(self, session_id: str, owner_id: str, notes: Sequence[str], /) -> None:
        """Keep *notes* of the name *session_id*, made by the session *owner_id*.

        Raises StorageError.
        """
        folder = session_folder(session_id)
        arguments = (folder, owner_of(owner_id), notes, self.clock())
        await self._folder_lock(folder).call_locked(add_notes, self._folders, *arguments)

    async def load_notes(self, session_id: str, version: str, /) -> LoadedNotes | None:
        """Return the notes of the name *session_id*, None where *version* is the newest.

        Raises StorageError.
        """
        return await run_in_thread(load_notes, self._folders, session_folder(session_id), version)

    # Journals ------------------------------------------------------------------------------------

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number* of the session's journal; False when there is one.

        Raises StorageError.
        """
        folder = session_folder(session_id)
        append = partial(self._journals.append, synced=self.fsync)
        return await self._journal_lock(folder).call_locked(append, folder, number, entry)

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        """The entries of the session's journal from number *start* on. Raises StorageError."""
        return await run_in_thread(self._journals.entries, session_folder(session_id), start)

    async def set_aside(self, session_id: str, /) -> str:
        """Give the session's journal another name, which nothing reads; return that name.

        Raises StorageError.
        """
        return await run_in_thread(self._journals.set_aside, session_folder(session_id))

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        """Hold the session for yourself; False when somebody else has held it for *seconds*.

        Raises StorageError.
        """
        lock = SessionLock(self._folders, session_folder(session_id))
        try:
            yield await acquire_within(seconds, partial(run_in_thread, lock.acquire))
        finally:
            lock.release()

    # Use and clean-up -----------------------------------------------------------------------------

    async def touch(self, session_id: str, /) -> None:
        """Note that the session, which has a journal, is in use; most calls do nothing.

        Raises StorageError.
        """
        folder = session_folder(session_id)
        now = time.monotonic()
        if now - self._touched.get(folder, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        await run_in_thread(self._folders.touch, folder, session_id)
        remember(self._touched, folder, now)

    async def ensure_not_deleted(self, session_id: str, /) -> None:
        """Raise SessionDeleted when the session that runs here was deleted; or StorageError."""
        await run_in_thread(self._folders.check, session_folder(session_id))

    async def sessions(self, prefix: str | None = None, /) -> list[str]:
        """The ids of the sessions that something is kept of: with *prefix*, it and those below it.

        Raises StorageError, and SettingsError for an empty prefix.
        """
        return ids_below(prefix, await run_in_thread(self._folders.session_ids))

    async def cleanup(
        self,
        *,
        max_bytes: int | None = None,
        max_age: float | None = None,
        live: Iterable[Sequence[Message]] = (),
        records: bool = False,
    ) -> Cleaned:
        """Delete the oldest texts, until the rest meets the limits.

        Then none is older than *max_age* seconds, and all together have at most *max_bytes*. None
        switches a limit off. Only files that ctxpipe wrote, in folders with its mark, are deleted.

        A session with a journal, wherever that is, stays whole when it was used within *max_age*,
        or the last hour; without *max_age* every session with a journal does. A file that a
        placeholder in one of the *live* histories names also stays, but no list of histories
        protects what only a session remembers: keep a journal. Archives and journals are deleted
        only with *records*.

        Raises StorageError, and SettingsError for a negative limit.
        """
        SIZE.optional.check("max_bytes", max_bytes)
        NUMBER.optional.check("max_age", max_age)
        histories = list(live)
        for history in histories:
            ensure_messages(history, sys.maxsize)  # that it is a list: `live` is a list of such
        kept = await run_in_thread(files_named_in, chain.from_iterable(histories))
        limits = Limits(max_bytes, max_age, records, kept)
        return await self._folder_lock("").call_locked(self._cleanup, limits)

    def _cleanup(self, limits: Limits) -> Cleaned:
        now = self.clock()
        cleaned = delete_files(self._folders, choose_files(find_files(self._folders), limits, now))
        if limits.max_age is not None:
            expire_notes(self._folders, now - limits.max_age)
        drop_empty_folders(self._folders, now - STALE_SECONDS)
        return cleaned

    async def delete(self, session_id: str, /) -> Cleaned:
        """Delete all that is stored of one session: texts, archives, journal, and its folder.

        Whoever still holds it, in any process, drops it. Files in that folder that are not
        ctxpipe's stay, and are named. Raises StorageError, also for a folder that ctxpipe has not
        made.
        """
        SESSION_ID.check("session_id", session_id)
        folder = session_folder(session_id)
        lock = self._folder_lock(folder)
        cleaned = await lock.call_locked(delete_session, self._folders, folder)
        for name in names_of(session_id):
            notes = session_folder(name)
            lock = self._folder_lock(notes)
            await lock.call_locked(self._forget_notes, notes, owner_of(session_id))
        return cleaned

    def _forget_notes(self, folder: str, owner: str) -> None:
        forget_notes(self._folders, folder, lambda note: note.owner == owner)

    # Locks ----------------------------------------------------------------------------------------

    def _folder_lock(self, folder: str) -> Availability:
        """Whether the *folder* of a session is free: a deletion has it for itself."""
        return self._lock(f"the folder {folder}", partial(self._folders.ensure_free, folder))

    def _journal_lock(self, folder: str) -> Availability:
        """Whether the journal in *folder* is free: another process may be writing to it."""
        return self._lock(f"the journal in {folder}", partial(self._journals.ensure_free, folder))

    def _lock(self, name: str, ensure_free: Callable[[], None]) -> Availability:
        lock = self._locks.get(name)
        if lock is None:
            lock = Availability(name, partial(run_in_thread, ensure_free))
            remember(self._locks, name, lock)
        return lock


@dataclass(frozen=True, slots=True)
class _Folder:
    """An open folder below the root; *reserved* are names that this batch must not use again."""

    name: str
    descriptor: int
    reserved: set[str] = field(default_factory=set)


def _is_record(name: str) -> bool:
    """Whether a file of this *name* is a record: a long session has thousands that are not."""
    return not name.startswith(".") and file_kind(name) == "record"


def _is_content(name: str) -> bool:
    """Whether a file of this *name* is a text or a record."""
    return not name.startswith(".") and name.endswith((".md", ".json"))


def _record_names(folder: int, stem: str, seconds: float) -> Iterator[str]:
    """The names that the next record may have, after the highest number in *folder*."""
    pattern = re.compile(re.escape(stem) + r"-\d{8}T\d{6}Z-(\d+)\.json")
    matches = map(pattern.fullmatch, os.listdir(folder))
    last = max([int(match[1]) for match in matches if match], default=0)
    return (f"{stem}-{record_stamp(seconds)}-{number}.json" for number in count(last + 1))
