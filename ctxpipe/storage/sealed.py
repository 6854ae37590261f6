"""The journal of a session: numbered entries, each sealed together with the one before it.

The seal of an entry covers session, number, the seal before it and its text. The first entry whose
seal is wrong, and all after it, are never used.
"""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from .._threads.pieces import join, pieces
from .._threads.threads import in_thread, in_thread_if
from ..errors import StorageError, storage_errors
from ..messages import is_encodable, json_pieces
from ..settings import Requirement
from ..tokens.ledger import SavedSample
from .protocol import JournalStorage
from .waiting import Availability, availability_of

T = TypeVar("T")

FORM = 2
"""The form of an entry. A journal with a newer one is neither read nor written."""
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What an invalid entry may raise when it is read."""
_CHECKSUM_KEY = b"ctxpipe"  # where nothing is signed


class JournalRefused(StorageError):
    """A journal that another version of ctxpipe, or another key, can read: it is left as it is."""


class Entry(NamedTuple):
    """The *turns* of one *branch*, and what the ledger has learned in them.

    They follow the first *base* entries of the journal, which need not be all that come before it:
    a caller may have gone back, and several processes write to one journal. *salt* is the key of
    the digests. *line* is the entry as it was read.
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
        """The seal of an entry that was read."""
        return _seal_of(self.line)


class Journal:
    """The journal of a session, of which the first *count* entries are known.

    The first of *keys* seals, each of them verifies; without keys the seals are check sums.
    """

    def __init__(
        self, storage: JournalStorage, session_id: str, keys: Sequence[bytes] = ()
    ) -> None:
        self.storage = storage
        self.count: int = 0
        self.seal: str = ""  # of the last entry
        self.unanswered: str = ""  # seal of one that the storage was given; it may have it
        self._session_id = session_id
        self._keys = keys
        nothing = partial(storage.entries, session_id, sys.maxsize)
        self.availability: Availability | None = availability_of(storage, nothing)
        """That of a storage which is not one of ctxpipe's own."""

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """What *work*, a call of the storage, returns. Raises StorageError."""
        with storage_errors():
            if self.availability is None:
                return await work()
            return await self.availability.call(work)

    async def write(self, entry: Entry, *, is_bulk: bool) -> bool:
        """Append *entry*; False when somebody else has written an entry of that number.

        A thread encodes it if it *is_bulk*. Raises StorageError.
        """
        line = await in_thread_if(is_bulk, self._seal_entry, entry)
        self.unanswered = _seal_of(line)
        append = partial(self.storage.append, self._session_id, self.count, line)
        is_written = await self._ask(append)
        if is_written:
            self.count, self.seal = self.count + 1, self.unanswered
        self.unanswered = ""
        return is_written

    async def set_aside(self, entries: Sequence[Entry]) -> str:
        """Keep the journal under another name, and begin a new one with its valid *entries*.

        The name, "" when somebody else has set it aside already. Raises StorageError.
        """
        name = await self._ask(partial(self.storage.set_aside, self._session_id))
        if name:
            for number, entry in enumerate(entries):
                append = partial(self.storage.append, self._session_id, number, entry.line)
                await self._ask(append)
        return name

    def restart(self) -> None:
        """Write the next entry as the first."""
        self.count, self.seal = 0, ""

    async def read(self) -> tuple[list[Entry], bool]:
        """All valid entries, and whether an invalid one follows.

        Raises JournalRefused for an entry that another version or another key can read.
        """
        self.restart()
        return await self.read_news()

    async def read_news(self) -> tuple[list[Entry], bool]:
        """As `read`, for the entries after the last one that is known."""
        lines = await self._ask(partial(self.storage.entries, self._session_id, self.count))
        if not lines:
            return [], False
        return await in_thread(self._verify, lines)

    def _verify(self, lines: Sequence[str]) -> tuple[list[Entry], bool]:
        entries: list[Entry] = []
        for line in lines:
            seal, _, body = line.partition(" ")
            try:
                own = self._seals(pieces(body))
                if not any(hmac.compare_digest(seal.encode(), other.encode()) for other in own):
                    raise ValueError("another seal")
                entries.append(_decode(line))
            except DAMAGED:
                self._refuse(line)
                return entries, True
            self.count, self.seal = self.count + 1, seal
        return entries, False

    def _seal_entry(self, entry: Entry) -> str:
        values = {"form": FORM, "signed": bool(self._keys), **entry._asdict()}
        del values["line"]
        body = list(json_pieces(values, ensure_ascii=False))
        if not all(map(is_encodable, body)):
            body = list(json_pieces(values))
        body = [f"{self._seals(body)[0]} ", *body][::-1]
        return join(body.pop() for _ in range(len(body)))  # no piece is kept beside the line

    def _seals(self, body: Iterable[str]) -> list[str]:
        """The seals that the pieces of *body* may have as the next entry, one for each key."""
        keys = self._keys or (_CHECKSUM_KEY,)
        hashers = [hmac.new(key, None, "sha256") for key in keys]
        start = "\0".join((self._session_id, str(self.count), self.seal, ""))
        for piece in (start, *body):
            encoded = piece.encode("utf-8", "surrogatepass")
            for hasher in hashers:
                hasher.update(encoded)
        return [hasher.hexdigest()[:32] for hasher in hashers]

    def _refuse(self, line: str) -> None:
        """Raise JournalRefused for a journal that others can read."""
        try:
            values = json.loads(line[line.index("{") :])
            form, signed = values["form"], values.get("signed")
        except DAMAGED:
            return
        if isinstance(form, int) and form > FORM:
            raise JournalRefused(
                f"it was written by a newer ctxpipe, in form {form}; "
                "update ctxpipe to go on with it"
            )
        if signed and not self._keys:
            raise JournalRefused("it is signed; give the signing_key with which it was written")


def _seal_of(line: str) -> str:
    return line[: line.find(" ")]  # no copy of the rest, as `partition` makes it


def _decode(line: str) -> Entry:
    values = json.loads(line.partition(" ")[2])
    if values.pop("form") != FORM:
        raise ValueError("another form")
    del values["signed"]
    bytes.fromhex(values["salt"])
    values["samples"] = [tuple(sample) for sample in values["samples"]]
    values["windows"] = [(model, window) for model, window in values["windows"]]
    return Entry(**values, line=line)


def chain(entries: Sequence[Entry], count: int) -> list[int]:
    """The numbers of the entries that the first *count* rest on, oldest first.

    Raises ValueError.
    """
    numbers: list[int] = []
    while count:
        numbers.append(count - 1)
        base = entries[count - 1].base
        if not 0 <= base < count:
            raise ValueError(f"entry {count - 1} rests on {base} entries")
        count = base
    return numbers[::-1]


LEAST_BYTES = 16


def _is_key(value: object) -> bool:
    return isinstance(value, bytes) and len(value) >= LEAST_BYTES


def _are_keys(value: object) -> bool:
    return _is_key(value) or (
        isinstance(value, list | tuple) and bool(value) and all(map(_is_key, value))
    )


KEYS = Requirement(
    _are_keys, f"{LEAST_BYTES} bytes or more, or a list of such keys of which the first one signs"
)


def as_keys(given: bytes | Sequence[bytes] | None) -> Sequence[bytes]:
    """*given* as a sequence of keys, the signing one first; empty without one."""
    if given is None:
        return ()
    return (given,) if isinstance(given, bytes) else tuple(given)
