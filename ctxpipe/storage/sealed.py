"""Journal of a session: numbered entries in a hash chain.

The seal of an entry is a keyed hash of session, number, seal of the previous entry, and text. The
first entry with a wrong seal and all entries after it are never used.
"""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from .._threads.pieces import join, pieces, take_out
from .._threads.threads import in_thread
from ..errors import StorageError, storage_errors
from ..messages import is_encodable, json_pieces
from ..settings import Requirement
from ..tokens.ledger import SavedSample
from .protocol import JournalStorage
from .waiting import Availability, availability_of

T = TypeVar("T")

FORM = 2
"""Version of the format of entries. A journal of a newer form is neither read nor written."""
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Errors that an invalid entry may raise when it is parsed."""
_CHECKSUM_KEY = b"ctxpipe"  # without a signing key
_SHORT = 100_000  # characters that are hashed in one call


class JournalRefused(StorageError):
    """The journal needs another version of ctxpipe or another key; it is not changed."""


class Entry(NamedTuple):
    """The *turns* of one *branch*, and the token calibration after them.

    The turns continue the first *base* entries of the journal. There may be more entries before
    this one, because a caller may go back, and because several processes write to one journal.
    *salt* is the key of the digests. *line* is the stored text of an entry that was read.
    """

    base: int
    branch: str
    turns: Sequence[dict[str, Any]]
    samples: Sequence[SavedSample]
    windows: Sequence[tuple[str | None, int]]
    salt: str
    line: str = ""

    @property
    def seal(self) -> str:
        """Seal of an entry that was read."""
        return _seal_of(self.line)


class Journal:
    """Journal of a session, of which the first *count* entries have been read or written.

    Entries are sealed with the first of *keys* and verified with all of them. Without keys the
    seals are checksums.
    """

    def __init__(
        self, storage: JournalStorage, session_id: str, keys: Sequence[bytes] = ()
    ) -> None:
        self.storage = storage
        self.count: int = 0
        self.seal: str = ""  # of the last entry
        self.unanswered: str = ""  # seal of an entry whose write has not been confirmed
        self._session_id = session_id
        self._keys = keys
        nothing = partial(storage.entries, session_id, sys.maxsize)
        self.availability: Availability | None = availability_of(storage, nothing)
        """State of a user's own storage, None for ctxpipe's storages."""

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await *work*, a call of the storage; return its result. Raises StorageError."""
        with storage_errors():
            if self.availability is None:
                return await work()
            return await self.availability.call(work)

    async def write(self, entry: Entry, *, is_bulk: bool) -> bool:
        """Append *entry*; return False if another writer has written an entry with that number.

        A large entry is encoded in a thread, with *is_bulk*. Raises StorageError.
        """
        if is_bulk:
            line = await in_thread(self._seal_entry, entry)
        else:
            line = self._seal_entry(entry)
        self.unanswered = _seal_of(line)
        append = partial(self.storage.append, self._session_id, self.count, line)
        is_written = await self._ask(append)
        if is_written:
            self.count += 1
            self.seal = self.unanswered
        self.unanswered = ""
        return is_written

    async def set_aside(self, entries: Sequence[Entry]) -> str:
        """Rename the journal and write its valid *entries* to a new one; return the new name.

        Return "" if another process has renamed the journal already. Raises StorageError.
        """
        name = await self._ask(partial(self.storage.set_aside, self._session_id))
        if name:
            for number, entry in enumerate(entries):
                append = partial(self.storage.append, self._session_id, number, entry.line)
                await self._ask(append)
        return name

    def restart(self) -> None:
        """Make the next entry the first one."""
        self.count = 0
        self.seal = ""

    async def read(self) -> tuple[list[Entry], bool]:
        """Return all valid entries, and True if an invalid one follows.

        Raises JournalRefused if an entry needs another version of ctxpipe or another key.
        """
        self.restart()
        return await self.read_news()

    async def read_news(self) -> tuple[list[Entry], bool]:
        """Return the valid entries from number `count` on, and True if an invalid one follows.

        Raises JournalRefused if an entry needs another version of ctxpipe or another key.
        """
        lines = await self._ask(partial(self.storage.entries, self._session_id, self.count))
        if not lines:
            return [], False
        return await in_thread(self._verify, lines)

    def _verify(self, lines: Sequence[str]) -> tuple[list[Entry], bool]:
        """Check *lines* and return their entries; True as second value if a line is damaged.

        A line is valid if its seal fits the line before it. The entries end before the first
        damaged line. The count and seal of the journal move on with each valid line. Raises
        JournalRefused if a line needs another version of ctxpipe or another key.
        """
        entries: list[Entry] = []
        for line in lines:
            seal, _, body = line.partition(" ")
            try:
                if not self._is_valid(seal, body):
                    raise ValueError("another seal")
                entries.append(_decode(line))
            except DAMAGED:
                self._refuse(line)
                return entries, True
            self.count += 1
            self.seal = seal
        return entries, False

    def _is_valid(self, seal: str, body: str) -> bool:
        """Return True if one of the keys gives *seal* for *body* as the next entry."""
        body_pieces = [body] if len(body) <= _SHORT else pieces(body)
        for valid_seal in self._seals(body_pieces):
            if hmac.compare_digest(seal.encode(), valid_seal.encode()):
                return True
        return False

    def _seal_entry(self, entry: Entry) -> str:
        """Return the line of *entry*: its seal, a space, and its values as JSON.

        Characters outside ASCII are escaped only if a text has a lone surrogate.
        """
        values = {"form": FORM, "signed": bool(self._keys), **entry._asdict()}
        del values["line"]
        body = list(json_pieces(values, ensure_ascii=False))
        if not all(is_encodable(piece) for piece in body):
            body = list(json_pieces(values))
        body.insert(0, f"{self._seals(body)[0]} ")
        return join(take_out(body))  # so that the entry is in memory only once

    def _seals(self, body: Iterable[str]) -> list[str]:
        """Return the seals of the pieces of *body* as the next entry, one for each key."""
        keys = self._keys or (_CHECKSUM_KEY,)
        start = "\0".join((self._session_id, str(self.count), self.seal, ""))
        if isinstance(body, list) and len(body) == 1:  # hashed in one call, in half the time
            text = (start + body[0]).encode("utf-8", "surrogatepass")
            return [hmac.digest(key, text, "sha256").hex()[:32] for key in keys]
        hashers = [hmac.new(key, None, "sha256") for key in keys]
        for piece in (start, *body):
            chunk = piece.encode("utf-8", "surrogatepass")
            for hasher in hashers:
                hasher.update(chunk)
        return [hasher.hexdigest()[:32] for hasher in hashers]

    def _refuse(self, line: str) -> None:
        """Raise JournalRefused if another version or another key can read the entry *line*.

        Returns if the line is only damaged.
        """
        try:
            values = json.loads(line[line.index("{") :])
            form = values["form"]
            is_signed = values.get("signed")
        except DAMAGED:
            return
        if isinstance(form, int) and form > FORM:
            raise JournalRefused(
                f"it was written by a newer ctxpipe, in form {form}; update ctxpipe to continue it"
            )
        if is_signed and not self._keys:
            raise JournalRefused("it is signed; give the signing_key with which it was written")


def _seal_of(line: str) -> str:
    return line[: line.find(" ")]  # `partition` would copy the rest of the line


def _decode(line: str) -> Entry:
    """Return the entry in *line*, which is ``<seal> <JSON>``; the seal is not checked.

    Raises one of the errors in `DAMAGED` for a damaged line, or one in another form.
    """
    values = json.loads(line.partition(" ")[2])
    if values.pop("form") != FORM:
        raise ValueError("another form")
    del values["signed"]
    bytes.fromhex(values["salt"])
    values["samples"] = [tuple(sample) for sample in values["samples"]]
    values["windows"] = [(model, window) for model, window in values["windows"]]
    return Entry(**values, line=line)


def chain(entries: Sequence[Entry], count: int) -> list[int]:
    """Return the numbers of the entries that lead to entry *count* - 1, oldest first.

    Raises ValueError for an invalid base.
    """
    numbers: list[int] = []
    while count:
        numbers.append(count - 1)
        base = entries[count - 1].base
        if not 0 <= base < count:
            raise ValueError(f"entry {count - 1} continues {base} entries")
        count = base
    return numbers[::-1]


LEAST_BYTES = 16


def _is_key(value: object) -> bool:
    return isinstance(value, bytes) and len(value) >= LEAST_BYTES


def _are_keys(value: object) -> bool:
    """Return True if *value* is a signing key, or a list of at least one."""
    if _is_key(value):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(_is_key(key) for key in value)


KEYS = Requirement(
    _are_keys, f"{LEAST_BYTES} bytes or more, or a list of such keys of which the first one signs"
)


def as_keys(keys: bytes | Sequence[bytes] | None) -> Sequence[bytes]:
    """Return *keys* as a sequence, the signing key first; empty for None."""
    if keys is None:
        return ()
    return (keys,) if isinstance(keys, bytes) else tuple(keys)
