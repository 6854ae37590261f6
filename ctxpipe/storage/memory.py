"""Texts, records and journals in the memory of this process, for tests."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from .._text import short_repr
from ..errors import StorageError
from ..placeholders.locations import key_parts, possible_keys, url_of
from ..placeholders.names import candidate_keys, names_of, safe_name, session_folder
from ..settings import FUNCTION, SESSION_ID, SIZE, check_settings
from .generations import ids_below, new_tombstone, remember, running_generation, tombstone_name
from .notes import LoadedNotes, StoredNote, newest_notes, owner_of
from .protocol import Page
from .records import Record, Redact, encode_record, record_stamp, storable
from .waiting import acquire_within


@dataclass(eq=False, repr=False)
class MemoryStorage:
    """Texts, records and journals in memory, which are lost when the process ends.

    The methods behave like those of `LocalStorage`, except that `delete` returns None. Texts have
    URLs, so the model needs `offload_tools` to read them. *redact*, *clock* and *reference* are
    those of `LocalStorage`. *stored* has the texts and records by key. Only one thread may use the
    object.

    Raises SettingsError for invalid settings.
    """

    redact: Redact | None = None
    clock: Callable[[], float] = time.time
    reference: str = "absolute"
    stored: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(self, redact=FUNCTION.optional, clock=FUNCTION)
        self._journals: dict[str, list[str]] = {}
        self._leases: set[str] = set()
        self._ids: dict[str, str] = {}
        self._tombstones: dict[str, str] = {}
        self._notes: dict[str, list[StoredNote]] = {}

    # Texts ----------------------------------------------------------------------------------------

    def location(self, key: str, /) -> str:
        """Return the URL of *key*. Raises StorageError if the key leads out of the session."""
        return url_of(key)

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        """Store each (key, text) and return the URLs, in order. Raises StorageError."""
        redacted_texts: list[tuple[str, str]] = []
        for key, text in texts:
            parts = key_parts(key)
            self._check(parts[0])
            redacted_texts.append(("/".join(parts), storable(text, self.redact)))
        locations: list[str] = []
        for key, text in redacted_texts:
            for name in candidate_keys(key, text):
                if self.stored.setdefault(name, text) == text:
                    break
            folder = name.split("/")[0]
            generation = running_generation(folder)
            if generation is not None:
                self._ids[folder] = generation.session_id
            elif session_folder(folder) == folder:
                self._ids.setdefault(folder, folder)
            locations.append(url_of(name))
        return locations

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        """Return a page of the text at *location*, as `TextReader.read` describes it.

        Raises StorageError if there is no such text, and SettingsError for a negative number.
        """
        SIZE.check("offset", offset)
        SIZE.optional.check("limit", limit)
        for key in possible_keys(location):
            if key in self.stored:
                return Page.of(self.stored[key], offset, limit)
        raise StorageError(errno.ENOENT, f"there is no stored text {location!r}")

    async def missing(self, locations: Sequence[str], /) -> list[str]:
        """Return those of *locations* that have no text."""
        return [
            location
            for location in locations
            if not any(key in self.stored for key in possible_keys(location))
        ]

    # Records --------------------------------------------------------------------------------------

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        """Store the session's next numbered record; return its URL. Raises StorageError."""
        folder = self._enter(session_id)
        text = storable("".join(encode_record(record, self.redact, folder)))
        number = len(self._record_keys(folder)) + 1
        key = f"{folder}/{safe_name(stem)}-{record_stamp(self.clock())}-{number}.json"
        self.stored[key] = text
        return url_of(key)

    async def records(self, session_id: str, /) -> list[str]:
        """Return the URLs of the session's records, oldest first."""
        return [url_of(key) for key in self._record_keys(session_folder(session_id))]

    def _record_keys(self, folder: str) -> list[str]:
        """Return the keys of the records in *folder*, in the order in which they were written."""
        keys = [key for key in self.stored if key.endswith(".json")]
        return [key for key in keys if key.startswith(f"{folder}/")]

    async def contents(self, session_id: str, /) -> list[str]:
        """Return the names of the session's texts and records."""
        prefix = f"{session_folder(session_id)}/"
        return [key.removeprefix(prefix) for key in self.stored if key.startswith(prefix)]

    # Journals -------------------------------------------------------------------------------------

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        """Write *entry* as number *number* of the session's journal.

        Return False if that is not the next number. Raises StorageError if *entry* has a line
        break.
        """
        if "\n" in entry:
            raise StorageError(errno.EINVAL, "an entry of a journal is one line")
        journal = self._journals.setdefault(self._enter(session_id), [])
        if len(journal) != number:
            return False
        journal.append(entry)
        return True

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        """Return the entries of the session's journal from *start* on."""
        folder = session_folder(session_id)
        self._check(folder)
        return self._journals.get(folder, [])[start:]

    async def set_aside(self, session_id: str, /) -> str:
        """Rename the session's journal; return the new name, "" if there is no journal."""
        folder = session_folder(session_id)
        if not self._journals.get(folder):
            return ""
        names = (f"{folder}/journal-set-aside-{number}" for number in count(1))
        name = next(name for name in names if name not in self._journals)
        self._journals[name] = self._journals.pop(folder)
        return name

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        """Lease the session for the block; yield False if it is not free within *seconds*."""
        folder = session_folder(session_id)

        async def acquire() -> bool:
            """Lease the session if it is free; return False if it is not."""
            is_free = folder not in self._leases
            self._leases.add(folder)
            return is_free

        is_acquired = await acquire_within(seconds, acquire)
        try:
            yield is_acquired
        finally:
            if is_acquired:
                self._leases.remove(folder)

    # Notes ----------------------------------------------------------------------------------------

    async def add_notes(self, session_id: str, owner_id: str, notes: Sequence[str], /) -> None:
        """Store *notes* of the session *owner_id* for all conversations named *session_id*."""
        folder = self._enter(session_id)
        seconds = int(self.clock())
        new = [StoredNote(note, owner_of(owner_id), seconds) for note in notes]
        self._notes[folder] = newest_notes([*self._notes.get(folder, ()), *new])

    async def load_notes(self, session_id: str, version: str, /) -> LoadedNotes | None:
        """Return the newest version of the notes stored under the name *session_id*, and the notes.

        Returns None if *version* is the newest version already. Without notes the version is "".
        Raises SessionDeleted if the session was deleted during its current turn.
        """
        folder = session_folder(session_id)
        self._check(folder)
        notes = self._notes.get(folder, [])
        newest = str(hash(tuple(notes))) if notes else ""
        return None if newest == version else (newest, [note.text for note in notes])

    # Deleting -------------------------------------------------------------------------------------

    async def ensure_not_deleted(self, session_id: str, /) -> None:
        """Raise SessionDeleted if the current session was deleted."""
        self._check(session_folder(session_id))

    async def sessions(self, prefix: str | None = None, /) -> list[str]:
        """Return the ids of the stored sessions: with *prefix*, that session and those below it.

        Raises SettingsError for an empty prefix.
        """
        return ids_below(prefix, self._ids.values())

    def _enter(self, session_id: str) -> str:
        """Record the session's id and return its folder, for a write. Raises SessionDeleted."""
        folder = session_folder(session_id)
        self._check(folder)
        self._ids[folder] = session_id
        return folder

    def _check(self, folder: str) -> None:
        """Raise SessionDeleted if the session in *folder* was deleted during its current turn."""
        generation = running_generation(folder)
        if generation is not None:
            generation.check(self, self._tombstones.get(tombstone_name(folder), ""))

    async def delete(self, session_id: str, /) -> None:
        """Delete one session: its texts, records, journals and notes.

        Sessions in memory are dropped at their next turn.
        """
        SESSION_ID.check("session_id", session_id)
        folder = session_folder(session_id)
        remember(self._tombstones, tombstone_name(folder), new_tombstone())
        for name in names_of(session_id):
            notes_folder = session_folder(name)
            notes = self._notes.get(notes_folder, [])
            other_notes = [note for note in notes if note.owner != owner_of(session_id)]
            self._notes[notes_folder] = other_notes
        values: dict[str, Any]
        for values in (self.stored, self._journals, self._ids, self._notes):
            for key in list(values):
                if key.split("/")[0] == folder:
                    del values[key]
