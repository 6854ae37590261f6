"""Texts and records in an object store: S3, GCS, Azure, a folder, or memory, with obstore.

```text
<session>/texts/<key>            text, after a line with its SHA-256
<session>/records/<name>.json    archive
<session>/notes/<owner>.<note>   empty object whose name is a note
<session>/used                   id of the session; written when the session is used
=deleted/<digest>                tombstone of a deleted session
```

Texts that development versions have stored in another way can be read too: `older_objects`.
"""

from __future__ import annotations

import errno
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from typing import TYPE_CHECKING

from .._text import short_repr
from .._threads.threads import in_thread, in_thread_if
from ..errors import SessionDeleted, StorageError
from ..placeholders.locations import key_parts, possible_keys, url_of
from ..placeholders.names import candidate_keys, content_hash, names_of, safe_name, session_folder
from ..settings import (
    COUNT,
    FUNCTION,
    NUMBER,
    POSITIVE,
    SESSION_ID,
    SIZE,
    check_extra,
    check_settings,
)
from .buckets import STORE, Bucket, at_once
from .cleanup import LIVE_SECONDS, Cleaned
from .generations import (
    DAY_SECONDS,
    TOMBSTONE_DAYS,
    TOUCH_SECONDS,
    ids_below,
    new_tombstone,
    remember,
    running_generation,
    tombstone_name,
)
from .notes import LoadedNotes, StoredNote, newest_notes, owner_of
from .older_objects import NAMES, OlderTexts, is_digest
from .protocol import Page
from .records import Record, Redact, encode_record, encode_text, record_stamp
from .references import check_reference

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_LONG = 100_000  # characters that are encoded in a worker thread
_PARTS = ("texts", "records", "notes", NAMES)
_USED = "used"
_TOMBSTONES = "=deleted"

_FOLDER = re.compile(r"[a-z0-9_-](?:[a-z0-9._-]{0,118}[a-z0-9_-])?")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")
_RECORD = re.compile(r".*-(\d+)\.json")


@dataclass(eq=False, repr=False)
class ObjectStorage:
    """Texts and archives in *store*, one of obstore's: S3, GCS, Azure, a folder, or memory.

    A text is stored completely or not at all. The store must support conditional creation, so that
    only one of two writers of a key succeeds. To read a page, the whole text is requested. Texts
    have URLs, so the model needs `offload_tools` to read them.

    *redact*, *clock*, *reference* and *tombstone_days* are those of `LocalStorage`. At most
    *connections* requests run at the same time in an event loop. *timeout* is the number of seconds
    that a turn waits for this store, including the store's own retries, by default STORE_SECONDS.
    Give the same object to the stages, to a journal as ``texts=``, and to `offload_tools`.

    Needs the extra ``ctxpipe[object-store]``. Raises SettingsError for invalid settings.
    """

    store: ObjectStore
    redact: Redact | None = None
    clock: Callable[[], float] = time.time
    connections: int = 16
    timeout: float | None = None
    reference: str = "absolute"
    tombstone_days: float = field(default=TOMBSTONE_DAYS, kw_only=True)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_extra("ObjectStorage", "obstore", "object-store")
        check_settings(
            self,
            store=STORE,
            redact=FUNCTION.optional,
            clock=FUNCTION,
            connections=COUNT,
            timeout=POSITIVE.optional,
            tombstone_days=POSITIVE,
        )
        check_reference(self.reference)
        self._bucket = Bucket(
            self.store,
            name="the object store",
            absent=_tombstone_path("trial"),
            connections=self.connections,
            timeout=self.timeout,
        )
        self._older_texts = OlderTexts(self._bucket)
        self._touch_times: dict[str, float] = {}

    # Writing whole texts --------------------------------------------------------------------------

    def location(self, key: str, /) -> str:
        """Return the URL of *key*. Raises StorageError if the key leads out of the session."""
        return url_of(key)

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """Store each (key, text) and return the URLs, in order. Raises StorageError."""
        by_key: dict[str, list[int]] = {}
        for index, (key, _) in enumerate(texts):
            by_key.setdefault("/".join(key_parts(key)), []).append(index)
        locations = [""] * len(texts)
        created_paths: list[str] = []

        async def write(key: str) -> None:
            """Write the texts with *key* one after another, and record their locations."""
            for index in by_key[key]:  # in order, so that the first text of a batch gets the key
                _, text = texts[index]
                locations[index] = url_of(await self._write(key, text, created_paths))

        names = {_split(key)[0] for key in by_key}
        for name in names:
            with suppress(StorageError):  # the new objects are a record of the use too
                await self._touch(name)
        await at_once(write, by_key)
        await self._undo_if_deleted(names, created_paths)
        return locations

    async def _write(self, key: str, text: str, created_paths: list[str]) -> str:
        """Store *text* under *key* or the next free key; return the key that was used.

        The path of a new object is added to *created_paths*.
        """
        content = await in_thread_if(len(text) > _LONG, self._encode, text)
        has_older_texts = await self._older_texts.exist(_object_folder(_split(key)[0]))
        for name in candidate_keys(key, text):
            path = _text_path(name)
            if has_older_texts:
                older_digest = await self._older_texts.digest(*_place(name))
                if older_digest not in (None, content[:64].decode()):
                    continue  # another text has this name
            if await self._bucket.create(path, content):
                created_paths.append(path)
                break
            if await self._bucket.get(path) == content:
                break
        return name

    def _encode(self, text: str) -> bytes:
        """Return the redacted *text* in UTF-8, after its SHA-256 on a line of its own."""
        content = b"".join(encode_text(text, self.redact))
        return f"{hashlib.sha256(content).hexdigest()}\n".encode() + content

    # Reading --------------------------------------------------------------------------------------

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """Return a page of the text at *location*, as `TextReader.read` describes it.

        Raises StorageError if there is no such text or if it was changed, and SettingsError for a
        negative number.
        """
        SIZE.check("offset", offset)
        SIZE.optional.check("limit", limit)
        for key in possible_keys(location):
            content = await self._bucket.get(_text_path(key))
            if content is not None:
                text = await in_thread_if(len(content) > _LONG, _decode, location, content)
                return Page.of(text, offset, limit)
            record = await self._bucket.get(_record_path(key)) if key.endswith(".json") else None
            if record is not None:
                return Page.of(record.decode("utf-8", "replace"), offset, limit)
            older_text = await self._older_texts.read(*_place(key))
            if older_text is not None:
                return Page.of(older_text, offset, limit)
        raise StorageError(errno.ENOENT, f"there is no stored text {location[:200]!r}")

    async def missing(self, locations: Sequence[str], /) -> list[str]:
        """Return those of *locations* that have no text. Raises StorageError."""
        missing_locations: list[str] = []

        async def check(location: str) -> None:
            """Add *location* to *missing_locations* if none of its possible keys has a text."""
            for key in possible_keys(location):
                if await self._bucket.head(_text_path(key)):
                    return
                if await self._older_texts.has(*_place(key)):
                    return
            missing_locations.append(location)

        await self._bucket.call_for_each(check, locations)
        return missing_locations

    # Records --------------------------------------------------------------------------------------

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write the session's next numbered record; return its URL. Raises StorageError."""
        folder = session_folder(session_id)
        texts = encode_record(record, self.redact, folder)
        chunks = chain.from_iterable(encode_text(text) for text in texts)
        content = await in_thread(b"".join, chunks)
        prefix = f"{folder}/{safe_name(stem)}-{record_stamp(self.clock())}"
        numbers = [_record_number(key) for key in await self._record_keys(folder)]
        last = max(numbers, default=0)
        for number in count(last + 1):
            key = f"{prefix}-{number}.json"
            path = _record_path(key)
            if await self._bucket.create(path, content):
                break
        await self._undo_if_deleted([folder], [path])
        return url_of(key)

    async def records(self, session_id: str, /) -> list[str]:
        """Return the URLs of the session's records, oldest first. Raises StorageError."""
        return [url_of(key) for key in await self._record_keys(session_folder(session_id))]

    async def _record_keys(self, folder: str) -> list[str]:
        """Return the keys of the records in *folder*, by their number. Raises StorageError."""
        objects = self._bucket.list(f"{_object_folder(folder)}/records/")
        keys = [f"{folder}/{item['path'].rpartition('/')[2]}" async for item in objects]
        return sorted(keys, key=lambda key: (_record_number(key), key))

    async def contents(self, session_id: str, /) -> list[str]:
        """Return the names of the session's texts and records. Raises StorageError."""
        objects = self._bucket.list(f"{_object_folder(session_folder(session_id))}/")
        paths = [item["path"].split("/") async for item in objects]
        names = [parts[-1] for parts in paths if parts[-2] != "notes"]
        return [
            name
            for name in names
            if _NAME.fullmatch(name) and name != _USED and not is_digest(name)
        ]

    # Notes ----------------------------------------------------------------------------------------

    async def add_notes(self, session_id: str, owner_id: str, notes: Sequence[str], /) -> None:
        """Store *notes* of the session *owner_id* for all conversations named *session_id*.

        Each is an empty object, whose name is the note. Raises StorageError.
        """
        folder = session_folder(session_id)
        owner = owner_of(owner_id)
        with suppress(StorageError):
            await self._touch(folder)
        paths = [_note_path(folder, owner, note) for note in notes]

        async def write(path: str) -> None:
            await self._bucket.put(path, b"", use_multipart=False)

        await self._bucket.call_for_each(write, paths)
        await self._undo_if_deleted([folder], paths)

    async def load_notes(self, session_id: str, version: str, /) -> LoadedNotes | None:
        """Return the newest version of the notes stored under the name *session_id*, and the notes.

        Returns None if *version* is the newest version already. Notes above the limit of
        `MAX_NOTES` are deleted. Raises StorageError, and SessionDeleted if the session was deleted
        during its current turn.
        """
        folder = session_folder(session_id)
        await self._check(folder)
        notes = await self._list_notes(folder)
        lines = [note.text for note in newest_notes(notes)]
        texts = set(lines)
        surplus = [note for note in notes if note.text not in texts]
        await self._bucket.delete([_note_path(folder, each.owner, each.text) for each in surplus])
        newest = content_hash("\n".join(lines), 32) if lines else ""
        return None if newest == version else (newest, lines)

    async def _list_notes(self, folder: str, owner: str = "") -> list[StoredNote]:
        """Return the notes in *folder*, oldest first; with *owner* only the notes of that one."""
        prefix = f"{_object_folder(folder)}/notes/"
        dated_notes: list[tuple[float, StoredNote]] = []
        async for item in self._bucket.list(prefix):
            note_owner, _, text = item["path"].removeprefix(prefix).partition(".")
            seconds = item["last_modified"].timestamp()
            if owner in ("", note_owner):
                dated_notes.append((seconds, StoredNote(text, note_owner, int(seconds))))
        return [note for _, note in sorted(dated_notes)]

    # Retention ------------------------------------------------------------------------------------

    async def touch(self, session_id: str, /) -> None:
        """Record that the session is in use, at most once in 900 seconds. Raises StorageError."""
        await self._touch(session_folder(session_id), session_id)

    async def _touch(self, name: str, session_id: str = "") -> None:
        """Record the time of use of the session in the bucket, at most once in TOUCH_SECONDS.

        *name* is the session's folder. The mark contains its id if it is known. Raises
        SessionDeleted if the session was deleted meanwhile, StorageError if the store fails.
        """
        folder = _object_folder(name)
        now = time.monotonic()
        if now - self._touch_times.get(folder, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        await self._check(name)
        generation = running_generation(name)
        if generation is not None:
            session_id = generation.session_id
        path = f"{folder}/{_USED}"
        content = session_id.encode("utf-8", "surrogatepass") or await self._bucket.get(path) or b""
        await self._bucket.put(path, content)
        remember(self._touch_times, folder, now)

    async def delete(self, session_id: str, /) -> Cleaned:
        """Delete one session: its texts, archives and notes.

        Every process that still has the session in memory drops it. Raises StorageError.
        """
        SESSION_ID.check("session_id", session_id)
        folder = session_folder(session_id)
        await self._bucket.put(_tombstone_path(folder), new_tombstone().encode())
        owner = owner_of(session_id)
        for name in names_of(session_id):
            notes_folder = session_folder(name)
            notes = await self._list_notes(notes_folder, owner)
            paths = [_note_path(notes_folder, owner, note.text) for note in notes]
            await self._bucket.delete(paths)
        return await self._delete(_object_folder(folder))

    async def ensure_not_deleted(self, session_id: str, /) -> None:
        """Raise SessionDeleted if the current session was deleted. Raises StorageError."""
        await self._check(session_folder(session_id))

    async def _check(self, name: str) -> None:
        """Raise SessionDeleted if the session in folder *name* was deleted during its current turn.

        Nothing is checked if no turn of this session is running in this task. Raises StorageError
        if the store fails.
        """
        generation = running_generation(name)
        if generation is not None:
            content = await self._bucket.get(_tombstone_path(name)) or b""
            generation.check(self, content.decode())

    async def _undo_if_deleted(self, names: Iterable[str], paths: Sequence[str]) -> None:
        """Delete the new objects at *paths* if the session was deleted meanwhile.

        There is no lock. A deletion that did not find these objects has written its tombstone
        before they were created, so this method finds the tombstone. Raises SessionDeleted then.
        """
        try:
            for name in names:
                await self._check(name)
        except SessionDeleted:
            await self._bucket.delete(paths)
            raise

    async def sessions(self, prefix: str | None = None, /) -> list[str]:
        """Return the ids of the stored sessions: with *prefix*, that session and those below it.

        All objects are listed. Raises StorageError, and SettingsError for an empty prefix.
        """
        session_ids = ids_below(prefix, ())  # raises for an invalid prefix
        folders: set[str] = set()
        async for item in self._bucket.list(None):
            folder = _session_prefix(item["path"])
            if folder is not None:
                folders.add(folder)

        async def read(folder: str) -> None:
            """Add the id of the session in *folder* to *session_ids*, if it is known."""
            content = await self._bucket.get(f"{folder}/{_USED}")
            if content:
                session_ids.append(content.decode("utf-8", "surrogatepass"))
            elif session_folder(folder) == folder:  # a plain name is its own folder
                session_ids.append(folder)

        await self._bucket.call_for_each(read, folders)
        return ids_below(prefix, session_ids)

    async def cleanup(self, *, max_age: float) -> Cleaned:
        """Delete the sessions that were not used for *max_age* seconds, at least for an hour.

        A session is used by a turn with a journal that names this storage as ``texts=``, and by a
        write. All objects are listed. Raises StorageError, and SettingsError for a negative age.
        """
        NUMBER.check("max_age", max_age)
        before = self.clock() - max(max_age, LIVE_SECONDS)
        last_uses: dict[str, float] = {}
        tombstones_before = self.clock() - self.tombstone_days * DAY_SECONDS
        old_tombstones: list[str] = []
        old_notes: list[str] = []
        async for item in self._bucket.list(None):
            folder = _session_prefix(item["path"])
            written_at = item["last_modified"].timestamp()
            is_tombstone = item["path"].startswith(f"{_TOMBSTONES}/")
            if is_tombstone and written_at < tombstones_before:
                old_tombstones.append(item["path"])
            if folder is None:
                continue
            if "/notes/" in item["path"] and written_at < before:
                old_notes.append(item["path"])
            last_uses[folder] = max(written_at, last_uses.get(folder, 0.0))
        await self._bucket.delete([*old_tombstones, *old_notes])
        paths: list[str] = []
        size = 0
        for folder, last_use in last_uses.items():
            if last_use >= before:
                continue
            # Checked again, because the session may have been used since it was listed.
            head = await self._bucket.head(f"{folder}/{_USED}")
            if head and head["last_modified"].timestamp() >= before:
                continue
            result = await self._delete(folder)
            paths += result.files
            size += result.bytes
        return Cleaned(tuple(paths), size)

    async def _delete(self, folder: str) -> Cleaned:
        """Delete the objects of ctxpipe below *folder*; return their paths and bytes.

        Other objects stay. Raises StorageError.
        """
        paths: list[str] = []
        size = 0
        async for item in self._bucket.list(f"{folder}/"):
            if _session_prefix(item["path"]) == folder:
                paths.append(item["path"])
                size += item["size"]
        await self._bucket.delete(paths)
        self._touch_times.pop(folder, None)
        return Cleaned(tuple(paths), size)


# Names of objects ---------------------------------------------------------------------------------


def _split(key: str) -> tuple[str, str]:
    """Split *key* into the folder of its session, "" for none, and its name in the folder."""
    folder, *names = key_parts(key)
    return (folder, "/".join(names)) if names else ("", folder)


def _object_folder(folder: str) -> str:
    """Return the prefix of the objects of the session in *folder*; it is unique."""
    if _FOLDER.fullmatch(folder):
        return folder
    return f"={content_hash(folder, 32)}"


def _text_path(key: str) -> str:
    """Return the path in the bucket of the text with the key *key*, ``<folder>/<name>``."""
    folder, name = _place(key)
    return f"{folder}/texts/{name}"


def _place(key: str) -> tuple[str, str]:
    """Return the prefix of the objects of the session of *key*, and the name of its object.

    A name with characters that a path must not have is replaced by its hash.
    """
    folder, name = _split(key)
    if not _NAME.fullmatch(name):
        name = f"={content_hash(name, 40)}"
    return _object_folder(folder), name


def _record_path(key: str) -> str:
    """Return the path in the bucket of the record with the key *key*, ``<folder>/<name>``."""
    folder, name = _split(key)
    return f"{_object_folder(folder)}/records/{name.rpartition('/')[2]}"


def _note_path(folder: str, owner: str, note: str) -> str:
    return f"{_object_folder(folder)}/notes/{owner}.{note}"


def _tombstone_path(folder: str) -> str:
    return f"{_TOMBSTONES}/{tombstone_name(folder)}"


def _record_number(key: str) -> int:
    """Return the number in the name of the record *key*; 0 if it is no record."""
    match = _RECORD.fullmatch(key)
    return int(match[1]) if match else 0


def _session_prefix(path: str) -> str | None:
    """Return the first folder of *path* if the object is one of ctxpipe, else None."""
    folder, _, rest = path.partition("/")
    part, _, name = rest.partition("/")
    if part == _USED:
        return folder if name == "" else None
    return folder if part in _PARTS and name != "" else None


def _decode(location: str, content: bytes) -> str:
    """Return the text in *content*. Raises StorageError if it was changed after it was written."""
    digest, _, text = content.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise StorageError(errno.EILSEQ, f"{location} was changed")
    return text.decode()
