"""Texts and records in an object store: S3, GCS, Azure, a folder, or memory, over obstore.

```text
<session>/texts/<key>            a text, after a line with its SHA-256
<session>/records/<name>.json    an archive
<session>/notes/<owner>.<note>    a note of that name, which is all that it says
<session>/used                   when the session was used last, and what it is called
=deleted/<digest>                that a session was deleted
```
"""

from __future__ import annotations

import errno
import hashlib
import re
import time
from collections.abc import (
    Callable,
    Iterable,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING

from .._text import short_repr
from .._threads.threads import in_thread, in_thread_if
from ..errors import SessionDeleted, StorageError
from ..placeholders.locations import key_parts, possible_keys, url_of
from ..placeholders.names import (
    candidate_keys,
    content_hash,
    names_of,
    safe_name,
    session_folder,
)
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
    TOUCH_SECONDS,
    ids_below,
    new_tombstone,
    remember,
    running_generation,
    tombstone_name,
    tombstone_seconds,
)
from .notes import LoadedNotes, Note, newest_notes, owner_of
from .protocol import Page
from .records import Record, Redact, encode_record, encode_text, record_stamp
from .references import check_reference

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_LONG = 100_000  # characters that are encoded in a worker thread
_PARTS = ("texts", "records", "notes", "used")
_USED = "used"
_TOMBSTONES = "=deleted"

_FOLDER = re.compile(r"[a-z0-9_-](?:[a-z0-9._-]{0,118}[a-z0-9_-])?")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")
_RECORD = re.compile(r".*-(\d+)\.json")


@dataclass(eq=False, repr=False)
class ObjectStorage:
    """Texts and archives in *store*, one of obstore's: S3, GCS, Azure, a folder, or memory.

    A text is there whole or not at all, and who was first is decided by conditional creation, which
    the store must have. A page is cut out of the whole text. Texts have URLs: the model needs
    `offload_tools` to read them.

    *redact*, *clock* and *reference* are those of `LocalStorage`. At most *connections* requests
    are made at the same time in an event loop. *timeout* is how many seconds a turn waits for this
    store, what it tries again itself included, by default STORE_SECONDS. Give the same object to
    the stages, to a journal as ``texts=``, and to `offload_tools`.

    Needs the extra ``ctxpipe[object-store]``. Raises SettingsError for invalid settings.
    """

    store: ObjectStore
    redact: Redact | None = None
    clock: Callable[[], float] = time.time
    connections: int = 16
    timeout: float | None = None
    reference: str = "absolute"

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
        )
        check_reference(self.reference)
        self._bucket = Bucket(
            self.store,
            name="the object store",
            absent=_tombstone_path("trial"),
            connections=self.connections,
            timeout=self.timeout,
        )
        self._touched: dict[str, float] = {}

    # Writing whole texts --------------------------------------------------------------------------

    def location(self, key: str, /) -> str:
        """The URL of *key*. Raises StorageError when the key leads out."""
        return url_of(key)

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """Store each (key, text) and return the URLs, in order. Raises StorageError."""
        by_key: dict[str, list[int]] = {}
        for index, (key, _) in enumerate(texts):
            by_key.setdefault("/".join(key_parts(key)), []).append(index)
        locations = [""] * len(texts)
        made: list[str] = []

        async def write(key: str) -> None:
            for index in by_key[key]:  # in order: the first of a batch gets the key
                _, text = texts[index]
                locations[index] = url_of(await self._write(key, text, made))

        names = {_split(key)[0] for key in by_key}
        for name in names:
            with suppress(StorageError):  # the new objects show that the session is in use
                await self._touch(name)
        await at_once(write, by_key)
        await self._undo_if_deleted(names, made)
        return locations

    async def _write(self, key: str, text: str, made: list[str]) -> str:
        """Store *text* under *key* or the next free one; return that.

        The object is added to those *made*.
        """
        content = await in_thread_if(len(text) > _LONG, self._encode, text)
        for name in candidate_keys(key, text):
            path = _text_path(name)
            if await self._bucket.create(path, content):
                made.append(path)
                break
            if await self._bucket.get(path) == content:
                break
        return name

    def _encode(self, text: str) -> bytes:
        content = b"".join(encode_text(text, self.redact))
        return f"{hashlib.sha256(content).hexdigest()}\n".encode() + content

    # Reading --------------------------------------------------------------------------------------

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """A page of the text at *location*, as `TextReader.read` describes it.

        Raises StorageError when there is no such text, and when it was changed; SettingsError for a
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
        raise StorageError(errno.ENOENT, f"there is no stored text {location[:200]!r}")

    async def missing(self, locations: Sequence[str], /) -> list[str]:
        """Those of *locations* at which there is no text. Raises StorageError."""
        gone: list[str] = []

        async def ask(location: str) -> None:
            for key in possible_keys(location):
                if await self._bucket.head(_text_path(key)):
                    return
            gone.append(location)

        await at_once(ask, locations)
        return gone

    # Records --------------------------------------------------------------------------------------

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Write the session's next numbered record; return its URL. Raises StorageError."""
        folder = session_folder(session_id)
        texts = encode_record(record, self.redact, folder)
        content = await in_thread(b"".join, chain.from_iterable(map(encode_text, texts)))
        prefix = f"{folder}/{safe_name(stem)}-{record_stamp(self.clock())}"
        last = max(map(_record_number, await self._record_keys(folder)), default=0)
        for number in count(last + 1):
            key = f"{prefix}-{number}.json"
            path = _record_path(key)
            if await self._bucket.create(path, content):
                break
        await self._undo_if_deleted([folder], [path])
        return url_of(key)

    async def records(self, session_id: str, /) -> list[str]:
        """The URLs of the session's records, oldest first. Raises StorageError."""
        return list(map(url_of, await self._record_keys(session_folder(session_id))))

    async def _record_keys(self, folder: str) -> list[str]:
        listed = self._bucket.list(f"{_object_folder(folder)}/records/")
        keys = [f"{folder}/{item['path'].rpartition('/')[2]}" async for item in listed]
        return sorted(keys, key=lambda key: (_record_number(key), key))

    async def contents(self, session_id: str, /) -> list[str]:
        """The names of the session's texts and records. Raises StorageError."""
        listed = self._bucket.list(f"{_object_folder(session_folder(session_id))}/")
        paths = [item["path"].split("/") async for item in listed]
        names = [parts[-1] for parts in paths if parts[-2] != "notes"]
        return [name for name in names if _NAME.fullmatch(name) and name != _USED]

    # Notes ----------------------------------------------------------------------------------------

    async def add_notes(self, session_id: str, owner_id: str, notes: Sequence[str], /) -> None:
        """Keep *notes* of the name *session_id*, made by the session *owner_id*.

        Each is an empty object, whose name is the note. Raises StorageError.
        """
        folder = session_folder(session_id)
        owner = owner_of(owner_id)
        with suppress(StorageError):
            await self._touch(folder)
        paths = [_note_path(folder, owner, note) for note in notes]

        async def write(path: str) -> None:
            await self._bucket.put(path, b"", use_multipart=False)

        await at_once(write, paths)
        await self._undo_if_deleted([folder], paths)

    async def load_notes(self, session_id: str, version: str, /) -> LoadedNotes | None:
        """Return the notes of the name *session_id*, None where *version* is the newest.

        Those that are too many are deleted. Raises StorageError.
        """
        folder = session_folder(session_id)
        await self._check(folder)
        notes = await self._list_notes(folder)
        retained = newest_notes(notes)
        lines = [note.text for note in retained]
        texts = set(lines)
        surplus = [note for note in notes if note.text not in texts]
        await self._bucket.delete([_note_path(folder, each.owner, each.text) for each in surplus])
        newest = content_hash("\n".join(lines), 32) if lines else ""
        return None if newest == version else (newest, lines)

    async def _list_notes(self, folder: str, owner: str = "") -> list[Note]:
        """Return the notes in *folder*, those of *owner* only if it is given, oldest first."""
        prefix = f"{_object_folder(folder)}/notes/"
        listed: list[tuple[float, Note]] = []
        async for item in self._bucket.list(prefix):
            note_owner, _, text = item["path"].removeprefix(prefix).partition(".")
            seconds = item["last_modified"].timestamp()
            if owner in ("", note_owner):
                listed.append((seconds, Note(text, note_owner, int(seconds))))
        return [note for _, note in sorted(listed)]

    # Retention ------------------------------------------------------------------------------------

    async def touch(self, session_id: str, /) -> None:
        """Note that the session is in use; most calls do nothing. Raises StorageError."""
        await self._touch(session_folder(session_id), session_id)

    async def _touch(self, name: str, session_id: str = "") -> None:
        folder = _object_folder(name)
        now = time.monotonic()
        if now - self._touched.get(folder, -TOUCH_SECONDS) < TOUCH_SECONDS:
            return
        await self._check(name)
        generation = running_generation(name)
        if generation is not None:
            session_id = generation.session_id
        path = f"{folder}/{_USED}"
        content = session_id.encode("utf-8", "surrogatepass") or await self._bucket.get(path) or b""
        await self._bucket.put(path, content)
        remember(self._touched, folder, now)

    async def delete(self, session_id: str, /) -> Cleaned:
        """Delete all that is stored of one session: texts and archives.

        Whoever still holds it, in any process, drops it. Raises StorageError.
        """
        SESSION_ID.check("session_id", session_id)
        folder = session_folder(session_id)
        await self._bucket.put(_tombstone_path(folder), new_tombstone().encode())
        owner = owner_of(session_id)
        for name in map(session_folder, names_of(session_id)):
            notes = await self._list_notes(name, owner)
            await self._bucket.delete([_note_path(name, owner, note.text) for note in notes])
        return await self._delete(_object_folder(folder))

    async def ensure_not_deleted(self, session_id: str, /) -> None:
        """Raise SessionDeleted when the session that runs here was deleted; or StorageError."""
        await self._check(session_folder(session_id))

    async def _check(self, name: str) -> None:
        generation = running_generation(name)
        if generation is not None:
            content = await self._bucket.get(_tombstone_path(name)) or b""
            generation.check(self, content.decode())

    async def _undo_if_deleted(self, names: Iterable[str], paths: Sequence[str]) -> None:
        """If the session was deleted meanwhile, delete the objects at *paths*, which were made.

        There is no lock: a deletion that has not seen them has left its tombstone before. Raises
        SessionDeleted then.
        """
        try:
            for name in names:
                await self._check(name)
        except SessionDeleted:
            await self._bucket.delete(paths)
            raise

    async def sessions(self, prefix: str | None = None, /) -> list[str]:
        """The ids of the sessions that something is kept of: with *prefix*, it and those below it.

        All objects are listed. Raises StorageError, and SettingsError for an empty prefix.
        """
        found = ids_below(prefix, ())
        folders = {_owner(item["path"]) async for item in self._bucket.list(None)}

        async def read(folder: str) -> None:
            content = await self._bucket.get(f"{folder}/{_USED}")
            if content:
                found.append(content.decode("utf-8", "surrogatepass"))
            elif session_folder(folder) == folder:  # a plain name is its own folder
                found.append(folder)

        await at_once(read, filter(None, folders))
        return ids_below(prefix, found)

    async def cleanup(self, *, max_age: float) -> Cleaned:
        """Delete the sessions that nobody has used for *max_age* seconds, and at least an hour.

        A session is used when it runs with a journal that names this storage as ``texts=``, and
        when something of it is written. All sessions are listed. Raises StorageError, and
        SettingsError for a negative age.
        """
        NUMBER.check("max_age", max_age)
        before = self.clock() - max(max_age, LIVE_SECONDS)
        used: dict[str, float] = {}
        old_tombstones: list[str] = []
        old_notes: list[str] = []
        async for item in self._bucket.list(None):
            folder = _owner(item["path"])
            modified = item["last_modified"].timestamp()
            is_tombstone = item["path"].startswith(f"{_TOMBSTONES}/")
            if is_tombstone and modified < self.clock() - tombstone_seconds():
                old_tombstones.append(item["path"])
            if folder is not None and "/notes/" in item["path"] and modified < before:
                old_notes.append(item["path"])
            if folder is not None:
                used[folder] = max(modified, used.get(folder, 0.0))
        await self._bucket.delete([*old_tombstones, *old_notes])
        paths: list[str] = []
        size = 0
        for folder, last in used.items():
            if last >= before:
                continue
            # Asked once more: it may have been used since it was listed.
            head = await self._bucket.head(f"{folder}/{_USED}")
            if head and head["last_modified"].timestamp() >= before:
                continue
            cleaned = await self._delete(folder)
            paths += cleaned.files
            size += cleaned.bytes
        return Cleaned(tuple(paths), size)

    async def _delete(self, folder: str) -> Cleaned:
        listed = self._bucket.list(f"{folder}/")
        own = [item async for item in listed if _owner(item["path"]) == folder]
        paths = [item["path"] for item in own]
        await self._bucket.delete(paths)
        self._touched.pop(folder, None)
        return Cleaned(tuple(paths), sum(item["size"] for item in own))


# Names of objects ---------------------------------------------------------------------------------


def _split(key: str) -> tuple[str, str]:
    """The folder of the session that *key* belongs to, "" for none, and its name in there."""
    folder, *names = key_parts(key)
    return (folder, "/".join(names)) if names else ("", folder)


def _object_folder(folder: str) -> str:
    """The prefix of the session with that *folder*; no two of them share one."""
    if _FOLDER.fullmatch(folder):
        return folder
    return f"={content_hash(folder, 32)}"


def _text_path(key: str) -> str:
    folder, name = _split(key)
    if not _NAME.fullmatch(name):
        name = f"={content_hash(name, 40)}"
    return f"{_object_folder(folder)}/texts/{name}"


def _record_path(key: str) -> str:
    folder, name = _split(key)
    return f"{_object_folder(folder)}/records/{name.rpartition('/')[2]}"


def _note_path(folder: str, owner: str, note: str) -> str:
    return f"{_object_folder(folder)}/notes/{owner}.{note}"


def _tombstone_path(folder: str) -> str:
    return f"{_TOMBSTONES}/{tombstone_name(folder)}"


def _record_number(key: str) -> int:
    found = _RECORD.fullmatch(key)
    return int(found[1]) if found else 0


def _owner(path: str) -> str | None:
    """The session's prefix of an object that we wrote; None for any other."""
    folder, _, rest = path.partition("/")
    part, _, name = rest.partition("/")
    return folder if part in _PARTS and (name != "") == (part != _USED) else None


def _decode(location: str, content: bytes) -> str:
    """The text in *content*. Raises StorageError unless it is what was written."""
    digest, _, text = content.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise StorageError(errno.EILSEQ, f"{location} was changed")
    return text.decode()
