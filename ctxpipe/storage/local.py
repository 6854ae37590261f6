"""Text files below one folder."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
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
    POSITIVE,
    SESSION_ID,
    SIZE,
    check_settings,
    one_of,
)
from .atomic import STALE_SECONDS, claim, exists, has_content, temporary_file
from .cleanup import (
    Cleaned,
    CleanupLimits,
    choose_files,
    delete_files,
    delete_session,
    drop_empty_folders,
    file_kind,
    files_named_in,
    find_files,
)
from .folders import (
    RootError,
    check_root,
    file_info,
    ignore_absent,
    is_file,
    open_file,
    regular_files,
    translate_errors,
)
from .generations import TOMBSTONE_DAYS, TOUCH_SECONDS, ids_below, remember
from .journals import JournalFiles, SessionLock
from .notes import LoadedNotes, add_notes, delete_notes, expire_notes, load_notes, owner_of
from .ownership import INDEX, StorageRoot
from .protocol import Page
from .records import Record, encode_record, encode_text, record_stamp
from .references import check_reference
from .waiting import Availability, acquire_within, run_in_thread

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, repr=False)
class LocalStorage:
    """Texts, records and journals in files below *root*.

    A text is stored completely or not at all, with *fsync* also if the power fails. Files have mode
    0600 and folders 0700, if the file system has modes. No name leads out of the root or through a
    symbolic link. The root must stay the same folder after its first use. Several sessions and
    processes may share it. *redact* is applied to every string before it is encoded and written; if
    *redact* raises, the text is not written. Numbers, role, type and ids of a message, and names of
    files are not redacted.

    *on_conflict* selects what happens if the key of a text has another text already: "hash" adds a
    hash of the text to the key, "number" the next free number, and "overwrite" replaces the other
    text. With "hash" the folders that the storage creates are marked, and only files in marked
    folders are ever deleted. With "number" and "overwrite" no folder is marked: `cleanup` then
    deletes no file, and `delete` raises StorageError. *clock* returns the time for records and
    clean-ups, in seconds since 1970.

    *reference* selects the path that the model sees: "absolute", "relative" (to the current
    folder), "storage" (relative to the root), or a template that ends in /{key} or in {path}, from
    which the file can be found again. A deleted session leaves a tombstone, a small file by which
    other processes notice the deletion; a clean-up deletes it after *tombstone_days* (90 days).

    A root that is a file, or that this process may not write to, is refused. With
    ``must_be_writable=False`` it is not looked at before it is used; then a storage can read from a
    root that others have written.

    Raises SettingsError for invalid settings, and on Windows.
    """

    root: str | os.PathLike[str]
    fsync: bool = False
    redact: Callable[[str], str] | None = None
    on_conflict: Literal["hash", "number", "overwrite"] = "hash"
    clock: Callable[[], float] = time.time
    reference: str = "absolute"
    tombstone_days: float = field(default=TOMBSTONE_DAYS, kw_only=True)
    must_be_writable: bool = field(default=True, kw_only=True)
    _folders: StorageRoot = field(init=False, repr=False, compare=False)
    _journals: JournalFiles = field(init=False, repr=False, compare=False)
    _touch_times: dict[str, float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
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
            tombstone_days=POSITIVE,
            must_be_writable=FLAG,
        )
        check_reference(self.reference)
        # Absolute, so that a later chdir does not change it.
        path = os.path.abspath(self.root)
        if self.must_be_writable:
            check_root(path)
        folders = StorageRoot(path, writes_marks=self.on_conflict == "hash")
        object.__setattr__(self, "root", path)
        object.__setattr__(self, "_folders", folders)
        object.__setattr__(self, "_journals", JournalFiles(folders))

    # Writing whole texts --------------------------------------------------------------------------

    def location(self, key: str, /) -> str:
        """Return the absolute path of *key*. Raises StorageError if it is outside the root."""
        return os.path.join(self.root, *key_parts(key))

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """Store each (key, text) and return the absolute paths, in order. Raises StorageError."""
        # One call in a thread for the whole batch: a call for each file costs more than the file.
        folder = key_parts(texts[0][0])[0] if texts else ""
        return await self._folder_lock(folder).call_locked(self.write_blocking, texts)

    def write_blocking(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """Store each (key, text) in the calling thread; return the absolute paths, in order.

        For a program without an event loop: `write` does the same in a worker thread and with the
        lock of the session's folder. Raises StorageError.
        """
        locations: list[str] = []
        folders: dict[str, _OpenFolder] = {}  # each folder is opened once per batch
        with ExitStack() as stack:
            for key, text in texts:
                *parents, name = key_parts(key)
                path = "/".join(parents)
                if path not in folders:
                    folder = self._folders.folder(path, create=True)
                    folders[path] = _OpenFolder(path, stack.enter_context(folder))
                where = os.path.join(self.root, path)
                with translate_errors(f"cannot write {os.path.join(where, name)}"):
                    name = self._write_one(folders[path], name, text)
                locations.append(os.path.join(where, name))
        return locations

    def _write_one(self, folder: _OpenFolder, name: str, text: str) -> str:
        """Write *text* into *folder*; return its name, which may differ from *name*."""
        data = encode_text(text, self.redact)
        if self.on_conflict == "overwrite":
            return self._overwrite(folder, name, data)
        names = candidate_keys(name, text)
        if self.on_conflict == "number":
            names = chain([name], (with_suffix(name, str(number)) for number in count(1)))
        for candidate in names:
            if candidate not in folder.reserved_names and self._place(folder, candidate, data):
                break
        if self.on_conflict == "number":  # two results with the same text get two numbers
            folder.reserved_names.add(candidate)
        return candidate

    def _place(self, folder: _OpenFolder, name: str, data: Sequence[bytes]) -> bool:
        """Write *data* to a new file *name*; return False if the file exists with other content.

        An existing file is never changed. Raises OSError.
        """
        fd = folder.descriptor
        is_stored = has_content(fd, name, data)
        if is_stored is not None:
            return is_stored
        with temporary_file(fd, data, fsync=self.fsync) as temporary:
            self._folders.list_file(folder.name, fd, name)
            # If the name cannot be claimed, another process was faster.
            return claim(fd, temporary, name) or bool(has_content(fd, name, data))

    def _overwrite(self, folder: _OpenFolder, name: str, data: Sequence[bytes]) -> str:
        """Write *data* to the file *name* in *folder*, replacing an older one; return its name.

        The name differs from *name* if the file system ignores case and has a file whose name
        differs only in case: that file stays. The file is complete at every moment. Raises OSError.
        """
        fd = folder.descriptor
        if exists(fd, name) and name not in os.listdir(fd):
            # The file system ignores case, and the file is that of another id.
            name = with_suffix(name, content_hash(name))
        with temporary_file(fd, data, fsync=self.fsync) as temporary:
            if not exists(fd, name):
                self._folders.list_file(folder.name, fd, name)
            os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        return name

    # Reading --------------------------------------------------------------------------------------

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """Return a page of the text at *location*: *limit* characters from *offset* on.

        With *limit* None the page has the rest of the text. The location is a key, or a path that a
        method of this storage has returned. Raises StorageError if there is no such text below the
        root, and SettingsError for a negative number.
        """
        SIZE.check("offset", offset)
        SIZE.optional.check("limit", limit)
        end = sys.maxsize if limit is None else offset + limit
        # One call in a thread for the whole file: a call for each step takes five times as long.
        return await run_in_thread(self._read, location, offset, end)

    def _read(self, location: str, offset: int, end: int) -> Page:
        """Return the characters from *offset* to *end* of the text at *location*, and its length.

        The offset of the page is at most the length. Bytes that are not UTF-8 become replacement
        characters. Raises StorageError if the text cannot be read.
        """
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

    async def missing(self, locations: Sequence[str], /) -> list[str]:
        """Return those of *locations* that have no text. Raises StorageError.

        The folders are listed, and no text is read.
        """
        return await run_in_thread(self._missing, locations)

    def _missing(self, locations: Sequence[str]) -> list[str]:
        """Return those of *locations* that have no text; for `missing`, in a worker thread."""
        names_by_folder: dict[str, frozenset[str]] = {}
        missing_locations: list[str] = []
        for location in locations:
            is_listed = False
            for key in self._possible_keys(location):
                folder, name = os.path.split(key)
                if folder not in names_by_folder:
                    names_by_folder[folder] = self._file_names(folder)
                if name in names_by_folder[folder]:
                    is_listed = True
                    break
            # A file system that ignores case may list the file under another name.
            if not is_listed and not self._has_text(location):
                missing_locations.append(location)
        return missing_locations

    def _file_names(self, folder: str) -> frozenset[str]:
        """Return the names of the regular files in *folder*, none if it cannot be opened."""
        try:
            with self._folders.folder(folder) as fd, os.scandir(fd) as entries:
                return frozenset(
                    entry.name for entry in entries if entry.is_file(follow_symlinks=False)
                )
        except RootError:
            raise
        except (StorageError, OSError):
            return frozenset()

    def _has_text(self, location: str) -> bool:
        """Return True if there is a text at *location*."""
        try:
            self.key(location)
        except RootError:
            raise
        except StorageError:
            return False
        return True

    def key(self, location: str) -> str:
        """Return the key of the text at *location*.

        The location is a key, an absolute path, or a path relative to the root or the current
        folder. Raises StorageError if it is outside the root or does not exist.
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
        """Yield the keys that *location* may mean, the most likely first.

        *location* may be a path below the root, a path relative to the current folder, or a path
        from a template, whose last two parts are the key. Paths that make no valid key are skipped.
        """
        for path in self._possible_paths(location):
            with suppress(StorageError):
                yield "/".join(key_parts(path))

    def _possible_paths(self, location: str) -> Iterator[str]:
        """Yield the paths below the root that *location* may mean, the most likely first."""
        yield os.path.relpath(os.path.join(self.root, location), self.root)
        base = self._folders.real or os.path.realpath(self.root)
        yield os.path.relpath(os.path.join(base, location), base)
        # A path relative to the current folder, and a path from a template, end in the key.
        yield "/".join(PurePosixPath(location.replace("\\", "/")).parts[-2:])

    def _open(self, key: str, flags: int) -> int:
        """Open the file with the storage *key*; return its descriptor. Raises OSError."""
        folder, name = os.path.split(key)
        with self._folders.folder(folder) as fd:
            return open_file(name, flags, folder=fd)

    # Records --------------------------------------------------------------------------------------

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write *record* as the session's next numbered record; return its absolute path.

        It is synced to disk, and its name is ``<stem>-<UTC seconds>-<n>.json``. Raises
        StorageError.
        """
        folder = session_folder(session_id)
        lock = self._folder_lock(folder)
        return await lock.call_locked(self._save, folder, safe_name(stem), record)

    def _save(self, folder: str, stem: str, record: Record) -> str:
        """Write *record* to a new file in *folder*; return its path.

        The name begins with *stem* and has the time; an existing file is never replaced. The record
        is redacted and always written to the disk. Raises StorageError.
        """
        where = os.path.join(self.root, folder)
        with (
            self._folders.folder(folder, create=True) as fd,
            translate_errors(f"cannot save a record below {where}"),
        ):
            names = _record_names(fd, stem, self.clock())
            texts = encode_record(record, self.redact, folder)
            chunks = chain.from_iterable(encode_text(text) for text in texts)
            with temporary_file(fd, chunks, fsync=True) as temporary:
                for name in names:
                    self._folders.list_file(folder, fd, name)
                    if claim(fd, temporary, name):
                        break
        return os.path.join(where, name)

    async def records(self, session_id: str, /) -> list[str]:
        """Return the absolute paths of the session's records, oldest first. Raises StorageError."""
        return await run_in_thread(self._records, session_folder(session_id))

    def _records(self, folder: str) -> list[str]:
        """Return the absolute paths of the records in *folder*."""
        names = self._names(folder, _is_record)
        return [os.path.join(self.root, folder, name) for name in names]

    def _names(self, folder: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """Return the names of the files in *folder* whose names are wanted, oldest first."""
        with ignore_absent(), self._folders.folder(folder) as fd:
            files = regular_files(fd, is_wanted)
            return [name for _, name in sorted((info.st_mtime_ns, name) for name, info in files)]
        return []

    # Search ---------------------------------------------------------------------------------------

    async def contents(self, session_id: str, /) -> list[str]:
        """Return the names of the session's texts and records. Raises StorageError."""
        return await run_in_thread(self._content_names, session_folder(session_id))

    def _content_names(self, folder: str) -> list[str]:
        """Return the names of the texts and records in *folder*, in no particular order."""
        with ignore_absent(), self._folders.folder(folder) as fd:
            names = os.listdir(fd)
            return [name for name in names if name.endswith((".md", ".json")) and name[0] != "."]
        return []

    async def index_path(self, session_id: str, /, *, is_new: bool) -> str:
        """Return the path of the file with the session's search index, "" if it cannot be used.

        With *is_new* an empty file replaces an older one. Raises StorageError.
        """
        folder = session_folder(session_id)
        if is_new:
            await self._folder_lock(folder).call_locked(self._create_index, folder)
        return await run_in_thread(self._index_path, folder)

    def _create_index(self, folder: str) -> None:
        """Put an empty file in the place of the search index of *folder*. Raises StorageError."""
        with (
            self._folders.folder(folder, create=True) as fd,
            translate_errors(f"cannot create the index below {os.path.join(self.root, folder)}"),
        ):
            self._overwrite(_OpenFolder(folder, fd), INDEX, [])

    def _index_path(self, folder: str) -> str:
        """Return the path of the search index of *folder*, "" without one. Raises StorageError.

        A file with a second hard link, such as that of a snapshot, must not grow and is not used.
        """
        with ignore_absent(), self._folders.folder(folder) as fd:
            info = file_info(fd, INDEX)
            if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
                return os.path.join(self._folders.real, folder, INDEX)
        return ""

    # Notes ----------------------------------------------------------------------------------------

    async def add_notes(self, session_id: str, owner_id: str, notes: Sequence[str], /) -> None:
        """Store *notes* of the session *owner_id* for all conversations named *session_id*.

        Raises StorageError.
        """
        folder = session_folder(session_id)
        arguments = (folder, owner_of(owner_id), notes, self.clock())
        await self._folder_lock(folder).call_locked(add_notes, self._folders, *arguments)

    async def load_notes(self, session_id: str, version: str, /) -> LoadedNotes | None:
        """Return the newest version of the notes stored under the name *session_id*, and the notes.

        Returns None if *version* is the newest version already. Raises StorageError, and
        SessionDeleted if the session was deleted during its current turn.
        """
        return await run_in_thread(load_notes, self._folders, session_folder(session_id), version)

    # Journals ------------------------------------------------------------------------------------

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number* of the session's journal.

        Return False if that is not the next number, or if another process has replaced the journal.
        Raises StorageError.
        """
        folder = session_folder(session_id)
        append = partial(self._journals.append, fsync=self.fsync)
        return await self._journal_lock(folder).call_locked(append, folder, number, entry)

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        """Return the entries of the session's journal from *start* on. Raises StorageError."""
        return await run_in_thread(self._journals.entries, session_folder(session_id), start)

    async def set_aside(self, session_id: str, /) -> str:
        """Rename the session's journal, so that it is not read again; return the new name.

        Returns "" without a journal, or if another process has replaced the one that was read.
        Raises StorageError.
        """
        return await run_in_thread(self._journals.set_aside, session_folder(session_id))

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        """Lease the session for the block; yield False if it is not free within *seconds*.

        While one process has the lease, no other gets it. Raises StorageError.
        """
        lock = SessionLock(self._folders, session_folder(session_id))
        try:
            yield await acquire_within(seconds, partial(run_in_thread, lock.acquire))
        finally:
            lock.release()

    # Use and clean-up -----------------------------------------------------------------------------

    async def touch(self, session_id: str, /) -> None:
        """Record that the session, which has a journal, is in use. Raises StorageError.

        Does nothing if this storage object has done so less than TOUCH_SECONDS (900 seconds) ago.
        Records of other objects and processes do not count.
        """
        folder = session_folder(session_id)
        now = time.monotonic()
        if now - self._touch_times.get(folder, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        await run_in_thread(self._folders.touch, folder, session_id)
        remember(self._touch_times, folder, now)

    async def ensure_not_deleted(self, session_id: str, /) -> None:
        """Raise SessionDeleted if the current session was deleted. Raises StorageError."""
        await run_in_thread(self._folders.check, session_folder(session_id))

    async def sessions(self, prefix: str | None = None, /) -> list[str]:
        """Return the ids of the stored sessions: with *prefix*, that session and those below it.

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

        Texts that are older than *max_age* seconds are deleted, and then the oldest ones until all
        files together have at most *max_bytes*. None disables a limit. Only files that ctxpipe
        wrote, in folders with its mark, are deleted.

        The files of some sessions stay, however large and old they are. A session with a journal,
        in this or any other storage, keeps its files if it was used within *max_age* or within the
        last hour; without *max_age* every session with a journal keeps them. A file also stays if a
        placeholder in one of the *live* histories names it. A session without a journal may refer
        to files that no history names, which are not protected. Archives and journals are deleted
        only with *records*.

        Raises StorageError, and SettingsError for a negative limit.
        """
        SIZE.optional.check("max_bytes", max_bytes)
        NUMBER.optional.check("max_age", max_age)
        histories = list(live)
        for history in histories:
            ensure_messages(
                history, sys.maxsize
            )  # raises if *live* is one history instead of a list
        names = await run_in_thread(files_named_in, chain.from_iterable(histories))
        limits = CleanupLimits(max_bytes, max_age, records, names)
        return await self._folder_lock("").call_locked(self._cleanup, limits)

    def _cleanup(self, limits: CleanupLimits) -> Cleaned:
        """Delete files, notes, empty folders and tombstones by *limits*; return the deleted files.

        Raises StorageError if a file cannot be deleted.
        """
        now = self.clock()
        files = choose_files(find_files(self._folders), limits, now)
        result = delete_files(self._folders, files)
        if limits.max_age is not None:
            expire_notes(self._folders, now - limits.max_age)
        drop_empty_folders(self._folders, now - STALE_SECONDS)
        # Last, because remainders of deletions are recognized by their tombstones.
        self._folders.sweep_tombstones(self.tombstone_days)
        return result

    async def delete(self, session_id: str, /) -> Cleaned:
        """Delete one session: its texts, archives, journals and folder.

        Every process that still has the session in memory drops it. Files in the folder that are
        not ctxpipe's are not deleted; their paths are `Cleaned.left`. Raises StorageError, also for
        a folder that ctxpipe has not created.
        """
        SESSION_ID.check("session_id", session_id)
        folder = session_folder(session_id)
        lock = self._folder_lock(folder)
        result = await lock.call_locked(delete_session, self._folders, folder)
        for name in names_of(session_id):
            notes = session_folder(name)
            lock = self._folder_lock(notes)
            await lock.call_locked(self._delete_notes, notes, owner_of(session_id))
        return result

    def _delete_notes(self, folder: str, owner: str) -> None:
        delete_notes(self._folders, folder, lambda note: note.owner == owner)

    # Locks ----------------------------------------------------------------------------------------

    def _folder_lock(self, folder: str) -> Availability:
        """Return the lock on the *folder* of a session, which a deletion holds exclusively."""
        return self._lock(f"the folder {folder}", partial(self._folders.ensure_free, folder))

    def _journal_lock(self, folder: str) -> Availability:
        """Return the lock on the journal in *folder*, which another process may hold."""
        return self._lock(f"the journal in {folder}", partial(self._journals.ensure_free, folder))

    def _lock(self, name: str, ensure_free: Callable[[], None]) -> Availability:
        """Return the `Availability` of the lock file *name*; create it at the first call.

        *ensure_free* raises an error while another process holds the lock; it is tried in a worker
        thread.
        """
        lock = self._locks.get(name)
        if lock is None:
            lock = Availability(name, partial(run_in_thread, ensure_free))
            remember(self._locks, name, lock)
        return lock


@dataclass(frozen=True, slots=True)
class _OpenFolder:
    """Open folder below the root, with the names that the batch must not use again."""

    name: str
    descriptor: int
    reserved_names: set[str] = field(default_factory=set)


def _is_record(name: str) -> bool:
    """Return True if *name* is the name of a record."""
    return not name.startswith(".") and file_kind(name) == "record"


def _record_names(folder: int, stem: str, seconds: float) -> Iterator[str]:
    """Yield the names for the next record, with numbers above the highest one in *folder*."""
    pattern = re.compile(re.escape(stem) + r"-\d{8}T\d{6}Z-(\d+)\.json")
    last = 0
    for name in os.listdir(folder):
        match = pattern.fullmatch(name)
        if match:
            last = max(last, int(match[1]))
    return (f"{stem}-{record_stamp(seconds)}-{number}.json" for number in count(last + 1))
