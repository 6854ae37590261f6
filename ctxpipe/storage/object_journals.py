"""Journals in an object store, written by conditional creation of objects.

```text
=journals/<digest of the session>/0000000007    entry, or end of a journal
=leases/<digest of the session>/0               token of the holder of a lease, and its end
```

The objects of a session are numbered. The store creates each number once, so only one of two
writers succeeds. An object that ends a journal has the number after the last entry, where a slower
writer finds it. It contains the number at which the next journal begins:

```text
number   0      1      2      3                4       5
         entry  entry  entry  end, next is 4   entry   entry
                                               current journal of two entries
```

A deletion creates such an end, which is the tombstone, and then overwrites all objects before it
with the end. They are not deleted: a process that has read the session up to any of these numbers
finds the end at the next one, and a writer with an old position cannot create an entry there.
`cleanup` deletes the tombstones.

A turn therefore requests only the next object to see the entries of other processes, and nothing is
listed to read a journal.
"""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._threads.threads import in_thread_if
from ..errors import StorageError
from ..placeholders.names import content_hash
from ..settings import COUNT, FUNCTION, NUMBER, POSITIVE, check_extra, check_settings
from .buckets import STORE, Bucket, at_once
from .generations import DAY_SECONDS, TOUCH_SECONDS, remember, tombstone_name
from .shared_journals import LEASE_SECONDS, Contents, NewEntry, SharedJournal

if TYPE_CHECKING:
    from obstore.store import ObjectStore

FORM = 1
_JOURNALS = "=journals"
_LEASES = "=leases"
_PATH = re.compile(rf"{_JOURNALS}/([0-9a-f]{{32}})/([0-9]{{10}})")
_LONG = 100_000  # characters that are encoded in a worker thread
_MOST_AT_ONCE = 32  # concurrent requests for objects that may not exist
_NO_CONDITIONS = (
    "the object store overwrites an object that it should only create (If-None-Match: *): use a "
    "store or a server that refuses this, or keep the journal in a database"
)


class StoredObject(NamedTuple):
    """Object of a journal: an entry, or the end of a journal if *next_number* is not 0."""

    token: str
    entry: str = ""
    name: str = ""
    next_number: int = 0
    tombstone: str = ""


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """Position up to which the objects of a session have been read.

    The journal begins at number *base*; *end* is the number of the next object. *journal* is the
    token of the first entry, *tombstone* that of the last deletion before it; "" if there is none.
    """

    base: int = 0
    end: int = 0
    journal: str = ""
    tombstone: str = ""

    @property
    def count(self) -> int:
        """Number of entries of the journal that were read."""
        return self.end - self.base

    def after(self, stored: StoredObject) -> JournalPosition:
        """Return the position after the object at `end`, which is *stored*."""
        if stored.next_number:
            number = max(stored.next_number, self.end + 1)
            return JournalPosition(number, number, "", stored.tombstone or self.tombstone)
        return replace(self, end=self.end + 1, journal=self.journal or stored.token)


@dataclass(eq=False, repr=False)
class ObjectJournal(SharedJournal):
    """Journals of sessions in *store*, one of obstore's: S3, GCS, Azure, a folder, or memory.

    Each entry is an object. The store must refuse to create an object that exists; the first entry
    raises StorageError if it does not. A turn requests one object and writes one. *texts* is the
    storage of the stages, which may be an `ObjectStorage` on the same store: texts in it are not
    repeated in the journal. *redact* hides secrets, by default that of *texts*.

    At most *connections* requests run at the same time in an event loop. *timeout* is the number of
    seconds that a turn waits for this store, by default STORE_SECONDS. A lease is an object with
    the time at which it ends, by *clock*.

    Needs the extra ``ctxpipe[object-store]``. Raises SettingsError for invalid settings.
    """

    store: ObjectStore
    _: KW_ONLY
    connections: int = 16
    timeout: float | None = None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        check_extra("ObjectJournal", "obstore", "object-store")
        check_settings(
            self,
            store=STORE,
            connections=COUNT,
            timeout=POSITIVE.optional,
            clock=FUNCTION,
        )
        super().__post_init__()
        self._bucket = Bucket(
            self.store,
            name="the journal's object store",
            absent=f"{_JOURNALS}/trial",
            connections=self.connections,
            timeout=self.timeout,
        )
        self._positions: dict[str, JournalPosition] = {}
        self._check_times: dict[str, float] = {}  # by folder: time of the last check
        self._has_conditions = False  # True once the store has refused to overwrite an object

    async def aclose(self) -> None:
        """Cancel the background task of this event loop; the journal can be used again."""
        await self._bucket.close()

    async def cleanup(self, *, max_age: float) -> int:
        """Delete journals without a new entry for *max_age* seconds; return the number of entries.

        All objects of journals are listed. Raises StorageError, and SettingsError for a negative
        age.
        """
        NUMBER.check("max_age", max_age)
        now = self.clock()
        deleted_count = 0
        for folder, (numbers, written) in (await self._list()).items():
            if written > now - max_age:
                continue
            last = await self._get(folder, numbers[-1])
            if last is None:
                continue
            if not last.next_number:
                deleted_count += await self._end_journal(folder, numbers[-1])
            elif written <= now - self.tombstone_days * DAY_SECONDS:
                await self._bucket.delete([_path(folder, number) for number in numbers])
        return deleted_count

    async def _end_journal(self, folder: str, last_number: int) -> int:
        """End the journal in *folder* and overwrite its entries; return their number.

        A journal with an entry after *last_number* is not changed.
        """
        position, _ = await self._read_on(folder, JournalPosition())
        is_in_use = position.end != last_number + 1
        if is_in_use or not await self._end(folder, position, position.tombstone):
            return 0
        await self._overwrite(folder, position.end, position.tombstone)
        return position.count

    # Operations of a database ---------------------------------------------------------------------

    async def _append(self, new: NewEntry) -> str | None:
        """Write *new*; return the name of the journal, or None if nothing was written.

        Nothing is written if another entry has its number, or if the journal was replaced or
        deleted since it was read. An entry that an earlier attempt has written is recognized.
        Raises StorageError.
        """
        folder = _folder(new.session)
        header = {"form": FORM, "token": new.token, "name": new.name}
        content = await in_thread_if(len(new.entry) > _LONG, _encode, header, new.entry)
        position = self._positions.get(folder, JournalPosition())
        if position.count != new.number:
            position, _ = await self._read_on(folder, position)
        while _may_write(new, position):
            if await self._create(folder, position.end, content):
                return self._note_written(folder, position, new)
            # Another writer was faster, or an earlier attempt succeeded and its answer was lost.
            existing = await self._get(folder, position.end)
            if existing is not None and existing.token == new.token:
                return self._note_written(folder, position, new)
            position, _ = await self._read_on(folder, position)
        return None

    def _note_written(self, folder: str, position: JournalPosition, new: NewEntry) -> str:
        """Record that the entry *new* is at *position*; return the name of the journal."""
        position = position.after(StoredObject(new.token))
        remember(self._positions, folder, position)
        return position.journal

    async def _entries(self, session: str, start: int) -> Contents:
        """Return the journal's name, its entries from *start* on, and the tombstone of the session.

        Objects that an earlier call has read are not requested again, except before *start*. If the
        journal was replaced since, the entries are all of the new one. The name is None without a
        journal. Raises StorageError.
        """
        folder = _folder(session)
        position = self._positions.get(folder, JournalPosition())
        known_end = position.end
        if start == 0 or await self._has_lost_first(folder, position):
            position = JournalPosition()
        elif start < position.count:
            position = replace(position, end=position.base + start)
        base = position.base
        first = position.count
        expected_count = max(0, known_end - position.end)
        position, entries = await self._read_on(folder, position, expected_count)
        remember(self._positions, folder, position)
        if position.base != base:
            first = 0
        return position.journal or None, entries[max(0, start - first) :], position.tombstone

    async def _set_aside(self, session: str, journal: str) -> bool:
        """End the journal if its name is *journal*; return False if another one has replaced it.

        Its objects stay in the bucket. Raises StorageError.
        """
        folder = _folder(session)
        position, _ = await self._read_on(folder, self._positions.get(folder, JournalPosition()))
        while position.journal == journal:
            if await self._end(folder, position, position.tombstone):
                return True
            position, _ = await self._read_on(folder, position)
        return False

    async def _delete(self, session: str, tombstone: str) -> None:
        """End the journal of the session with the *tombstone*, and overwrite all its objects.

        It does so even if other processes write to the journal meanwhile. Raises StorageError.
        """
        folder = _folder(session)
        position, _ = await self._read_on(folder, JournalPosition())
        while not await self._end(folder, position, tombstone):
            position, _ = await self._read_on(folder, position)
        await self._overwrite(folder, position.end, tombstone)

    async def _sessions(self) -> list[str]:
        """Return the id of each session with a journal, as JSON, in any order.

        Raises StorageError.
        """
        names: list[str] = []

        async def read(folder: str) -> None:
            """Add the id of the session in *folder* to *names*, from its last object."""
            last = await self._get(folder, folders[folder][0][-1], header_only=True)
            if last is not None and last.name:
                names.append(last.name)

        folders = await self._list()
        await self._bucket.call_for_each(read, folders)
        return names

    async def _lease(self, session: str, token: str) -> bool:
        """Acquire or renew the lease.

        An expired lease is not changed, and the next lease has the next number: of several
        processes that find an expired lease only one can create the next.
        """
        content = f"{token} {self.clock() + LEASE_SECONDS}".encode()
        number = 0
        while not await self._bucket.create(_lease_path(session, number), content):
            holder, expires = await self._holder(_lease_path(session, number))
            if holder == token:
                await self._bucket.put(_lease_path(session, number), content)
                return True
            if expires > self.clock():
                return False
            number += 1
        return True

    async def _release(self, session: str, token: str) -> None:
        """Release the lease of *session* if *token* holds it; otherwise do nothing.

        The objects of earlier holders are deleted with it. Raises StorageError.
        """
        paths: list[str] = []
        holder = None
        while holder not in (token, ""):
            paths.append(_lease_path(session, len(paths)))
            holder, _ = await self._holder(paths[-1])
        if holder == token:
            await self._bucket.delete(paths)

    async def _holder(self, path: str) -> tuple[str, float]:
        """Return the token in the lease at *path*, "" if there is none, and the time of its end."""
        content = await self._bucket.get(path)
        if not content:
            # It was released at this moment: the next attempt of the caller finds it free.
            return "", float("inf")
        token, _, expires = content.decode("utf-8", "replace").rpartition(" ")
        try:
            return token, float(expires)
        except ValueError:
            return token, 0.0

    # Objects --------------------------------------------------------------------------------------

    async def _read_on(
        self, folder: str, position: JournalPosition, expected_count: int = 0
    ) -> tuple[JournalPosition, list[str]]:
        """Read from *position* to the end; return the new position and the entries of the journal.

        The *expected_count* objects and the next one are requested at the same time, then more and
        more objects, until one does not exist.
        """
        work = partial(self._read_to_end, folder, position, expected_count + 1)
        return await self._bucket.call(work)

    async def _read_to_end(
        self, folder: str, position: JournalPosition, at_once_count: int
    ) -> tuple[JournalPosition, list[str]]:
        """Read the objects from *position* to the first that does not exist.

        Return the position after the last one, and the entries of the journal that is there. At
        first *at_once_count* objects are requested at the same time, then four times as many in
        each step, up to a limit. Where a journal ends, its entries are dropped and reading goes on
        with the next one. Raises StorageError.
        """
        entries: list[str] = []
        while True:
            numbers = range(position.end, position.end + at_once_count)
            for number, stored in zip(numbers, await self._get_all(folder, numbers), strict=True):
                if stored is None:
                    return position, entries
                if number != position.end:
                    break  # after the end of a journal another number is read next
                position = position.after(stored)
                entries.append(stored.entry)
                if stored.next_number:
                    entries.clear()
            at_once_count = min(4 * at_once_count, _MOST_AT_ONCE)

    async def _get_all(self, folder: str, numbers: Sequence[int]) -> list[StoredObject | None]:
        """Request the objects *numbers* of *folder* at the same time; return them in that order.

        An object that does not exist is None. Raises StorageError.
        """
        if len(numbers) == 1:
            return [await self._get(folder, numbers[0])]
        objects: dict[int, StoredObject | None] = {}

        async def get(number: int) -> None:
            objects[number] = await self._get(folder, number)

        await at_once(get, numbers)
        return [objects[number] for number in numbers]

    async def _get(
        self, folder: str, number: int, *, header_only: bool = False
    ) -> StoredObject | None:
        """Return object *number* of *folder*, or None if it does not exist. Raises StorageError.

        With *header_only* only its first line is needed, and the download may stop after it.
        """
        until = b"\n" if header_only else b""
        content = await self._bucket.get(_path(folder, number), until=until)
        if content is None:
            return None
        return await in_thread_if(len(content) > _LONG, _decode, content)

    async def _has_lost_first(self, folder: str, position: JournalPosition) -> bool:
        """Return True if the first entry was deleted since it was read, as by a rule of the bucket.

        The store is asked at most once in TOUCH_SECONDS.
        """
        now = time.monotonic()
        last_check = self._check_times.get(folder)
        if last_check is not None and now - last_check < TOUCH_SECONDS:
            return False
        remember(self._check_times, folder, now)
        if last_check is None or not position.journal:
            return False
        return await self._bucket.head(_path(folder, position.base)) is None

    async def _end(self, folder: str, position: JournalPosition, tombstone: str) -> bool:
        """End the journal at *position*; return False if another process has written to it."""
        return await self._create(folder, position.end, _encode_end(position.end + 1, tombstone))

    async def _overwrite(self, folder: str, end: int, tombstone: str) -> None:
        """Overwrite all objects before number *end* with an object that only says where to read on.

        It has the *tombstone* of the session. Raises StorageError.
        """
        content = _encode_end(end + 1, tombstone)

        async def write(number: int) -> None:
            await self._bucket.put(_path(folder, number), content, use_multipart=False)

        await self._bucket.call_for_each(write, range(end))

    async def _create(self, folder: str, number: int, content: bytes) -> bool:
        """Create an object; return False if it exists.

        The first object of this process is created twice, to check that the store refuses this.
        Raises StorageError if it does not refuse it, or fails.
        """
        path = _path(folder, number)
        try:
            is_created = await self._bucket.create(path, content)
            if not is_created or self._has_conditions:
                return is_created
            self._has_conditions = not await self._bucket.create(path, content)
        except StorageError as error:
            if error.errno != errno.ENOTSUP:
                raise
            raise StorageError(errno.ENOTSUP, _NO_CONDITIONS) from error
        if not self._has_conditions:
            await self._bucket.delete([path])
            raise StorageError(errno.ENOTSUP, _NO_CONDITIONS)
        return True

    async def _list(self) -> dict[str, tuple[list[int], float]]:
        """Return the sorted numbers of each session's objects, and the time of the last write."""
        folders: dict[str, tuple[list[int], float]] = {}
        async for item in self._bucket.list(f"{_JOURNALS}/"):
            match = _PATH.fullmatch(item["path"])
            if match is None:
                continue
            folder = match[1]
            numbers, written = folders.get(folder, ([], 0.0))
            numbers.append(int(match[2]))
            folders[folder] = numbers, max(written, item["last_modified"].timestamp())
        for numbers, _ in folders.values():
            numbers.sort()
        return folders


def _may_write(new: NewEntry, position: JournalPosition) -> bool:
    """Return True if *new* is the next entry of the journal at *position*."""
    is_other_journal = bool(new.last_journal) and new.last_journal != position.journal
    is_deleted = new.tombstone is not None and position.tombstone not in ("", new.tombstone)
    return new.number == position.count and not is_other_journal and not is_deleted


# Names and contents of objects --------------------------------------------------------------------


def _folder(session: str) -> str:
    return tombstone_name(session)


def _path(folder: str, number: int) -> str:
    return f"{_JOURNALS}/{folder}/{number:010d}"


def _lease_path(session: str, number: int) -> str:
    return f"{_LEASES}/{_folder(session)}/{number}"


def _encode(header: dict[str, Any], entry: str) -> bytes:
    return f"{json.dumps(header)}\n{entry}".encode("utf-8", "surrogatepass")


def _encode_end(next_number: int, tombstone: str) -> bytes:
    return _encode({"form": FORM, "next": next_number, "tombstone": tombstone}, "")


def _decode(content: bytes) -> StoredObject:
    """Parse an object of a journal; invalid content becomes an entry without a valid seal.

    Raises StorageError for an object of a newer form.
    """
    first_line, _, entry = content.partition(b"\n")
    try:
        header = json.loads(first_line)
        form = header["form"]
        if "next" in header:
            stored = StoredObject("", "", "", int(header["next"]), str(header["tombstone"]))
        else:
            text = entry.decode("utf-8", "surrogatepass")
            stored = StoredObject(str(header["token"]), text, str(header["name"]))
    except (ValueError, TypeError, LookupError, RecursionError):
        text = content.decode("utf-8", "replace")
        return StoredObject(content_hash(text, 16), text)
    if isinstance(form, int) and form > FORM:
        raise StorageError(
            errno.ENOTSUP, f"the journal was written by a newer ctxpipe, in form {form}; update it"
        )
    return stored
