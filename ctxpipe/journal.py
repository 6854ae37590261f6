"""What a session remembers, written down so that another process can go on: an append-only file of checked lines.

A line holds one change of the context: how much of the history it covers and that history's digest, the context
(messages of the history by their index, our own in full), and how to take the change back. It names the line that it
goes on from. What is torn or damaged is never used, nor what rests on it; and a context is used only if its digest
is the one that was written down.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol

from .edits.projection import Match, digest, unmarked
from .edits.thinking import Place
from .errors import StorageError
from .messages import as_json, rebuilt
from .settings import Wanted
from .storage.cleanup import JOURNAL
from .storage.protocol import Archive, TextReader
from .storage.records import parse_line
from .threads import in_thread
from .tokens.ledger import SavedBill
from .undo import Undo

if TYPE_CHECKING:
    from .edits.projection import Opening
    from .messages import Message

__all__ = ["JOURNAL_STORAGE", "Entry", "Found", "Journal", "JournalStorage", "State"]

NAME = JOURNAL
FORM = 1
"""The form of a line. A journal with a newer one is neither used nor written to."""
_DIGEST_BYTES = hashlib.sha256().digest_size
# What a line may lead to that somebody else has written, or another version of this module.
_OF_ANOTHER_FORM = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class JournalStorage(Archive, TextReader, Protocol):
    """A storage that keeps growing records and gives them back, such as `LocalStorage`."""


JOURNAL_STORAGE = Wanted(
    lambda value: isinstance(value, Archive) and isinstance(value, TextReader) and not isinstance(value, type),
    "a storage such as LocalStorage('.ctxpipe')",
)
"""What may be given as a journal, for those who check it."""


@dataclass(frozen=True, slots=True)
class State:
    """What a session knows: the *history* has become the *context*, by changes that *undos* take back, oldest first.

    *unbound* and *bills* are what the runner's record and the ledger remember beside it.
    """

    history: Sequence[Message]
    context: Sequence[Message]
    match: Match
    undos: Sequence[Undo] = ()
    unbound: tuple[Place, int] | None = None
    bills: Sequence[SavedBill] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A line: *covered* messages of the history, with its *digest*, have become a context of *size* with digest *sent*.

    The first *kept* messages of that context are those of the line with the id *previous*, the history between
    appended; *tail* holds the rest: ``[start, stop]`` messages of the history, ``{…}`` one of our own. *undos* come
    behind those of the previous line.
    """

    covered: int
    digest: str
    size: int
    sent: str
    match: tuple[int, int, int]
    previous: str
    kept: int
    tail: tuple[Any, ...]
    undos: tuple[Undo, ...] = ()
    unbound: tuple[Place, int] | None = None
    bills: Sequence[SavedBill] = ()


class Digests:
    """The digests of the messages of a list that grows at its end."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._held = bytearray()
        self.extend(messages)

    def __len__(self) -> int:
        return len(self._held) // _DIGEST_BYTES

    def cut(self, count: int) -> None:
        """Forget all but the first *count*."""
        del self._held[count * _DIGEST_BYTES :]

    def extend(self, messages: Sequence[Message]) -> None:
        """Take in the messages behind those that are known."""
        for index in range(len(self), len(messages)):
            self._held += digest(messages[index])

    def upto(self, count: int) -> str:
        """The digest of the first *count* messages, "" when there are fewer."""
        return hashlib.sha256(self._held[: count * _DIGEST_BYTES]).hexdigest() if count <= len(self) else ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a journal knows about a history: the latest *state*, None when there is none, and the line it is from.

    *is_whole* tells whether every change of it can be taken back, *damaged* whether there are lines that cannot be
    used, *redacted* whether there are some of this very history whose messages are not those that were sent, *lines*
    how many can be read.
    """

    state: State | None = None
    line: str = ""
    is_whole: bool = True
    damaged: bool = False
    redacted: bool = False
    lines: int = 0


class Journal:
    """A session's journal in *storage*, and how much of what the session knows is in it."""

    def __init__(self, storage: JournalStorage, session_id: str) -> None:
        self.storage = storage
        self._session_id = session_id
        self._history, self._context = Digests(), Digests()
        self._is_newer = False
        self.forget()

    def forget(self) -> None:
        """The next line goes on from no other: the changes that can be taken back are no longer those of the lines."""
        self._previous = ""
        self._told = 0  # changes that the lines so far can take back
        self._kept = 0  # leading messages of the context that are still those of the last line

    def follow(self, opening: Opening, changes: Sequence[Undo], *, anew: bool) -> None:
        """Take in what *opening* and the *changes* behind it have made of what was written; nothing is written yet.

        With *anew* the changes that can be taken back are no longer those of the lines.
        """
        if anew:
            self.forget()
        if opening.adopted:
            self._history, self._context = self._context, Digests()
            self._kept = 0
        if opening.cut:
            self._history.cut(opening.known)
            self._stands(opening.kept)
        for change in changes:
            self._stands(change.start)

    def _stands(self, count: int) -> None:
        self._context.cut(count)
        self._kept = min(self._kept, count)

    async def write(self, state: State) -> None:
        """Add a line with what has changed; nothing to a journal of a newer form.

        Raises StorageError; what was written before stays readable.
        """
        if self._is_newer:
            return
        values = await in_thread(self._values, state)
        await self.storage.append(self._session_id, NAME, values)
        # Not reached when the write fails or the turn is cancelled: the next line then goes on from the one before.
        self._previous, self._told, self._kept = values["id"], len(state.undos), len(state.context)

    def _values(self, state: State) -> dict[str, Any]:
        self._history.extend(state.history)
        self._context.extend(state.context)
        entry = Entry(
            covered=len(state.history),
            digest=self._history.upto(len(state.history)),
            size=len(state.context),
            sent=self._context.upto(len(state.context)),
            match=(state.match.front, state.match.history, state.match.context),
            previous=self._previous,
            kept=self._kept,
            tail=packed(state, self._kept),
            undos=tuple(state.undos[self._told :]),
            unbound=state.unbound,
            bills=state.bills,
        )
        return _as_values(entry)

    async def find(self, history: Sequence[Message]) -> Found:
        """The latest state that *history* begins with, or that was sent and adopted as history. Raises StorageError."""
        location = next((r for r in await self.storage.records(self._session_id) if PurePath(r).name == NAME), None)
        if location is None:
            return Found()
        text = (await self.storage.read(location)).text
        try:
            found = await in_thread(_found, text, list(history))
        except StorageError:
            self._is_newer = True
            raise
        if found.state is not None:
            self._previous, self._told = found.line, len(found.state.undos)
            self._kept = 0 if found.state.context is found.state.history else len(found.state.context)
        return found


# A line -----------------------------------------------------------------------------------------------------------


def _as_values(entry: Entry) -> dict[str, Any]:
    """*entry* as plain JSON values, with the form and an id that later lines name.

    The storage may redact the messages among them, so the id is taken before.
    """
    values = {field.name: getattr(entry, field.name) for field in fields(entry)}
    values["undos"] = [{field.name: getattr(undo, field.name) for field in fields(undo)} for undo in entry.undos]
    values = rebuilt(values, lambda item: item)
    body = as_json(values)
    return {"form": FORM, "id": hashlib.sha256(body.encode()).hexdigest()[:16], **values}


def _parse(line: str) -> tuple[str, Entry] | None:
    """Id and entry of *line*, None when it is damaged or of another form. Raises StorageError for a newer form."""
    values = parse_line(line)
    if values is None:
        _refuse_newer(_unchecked(line))
        return None
    _refuse_newer(values)
    try:
        if values.pop("form") != FORM:
            return None
        return values.pop("id"), _entry(values)
    except _OF_ANOTHER_FORM:
        return None


def _unchecked(line: str) -> dict[str, Any]:
    """What *line* says, whatever its check sum: a newer form may have another one."""
    try:
        values = json.loads(line.partition(" ")[2])
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _refuse_newer(values: Mapping[str, Any]) -> None:
    form = values.get("form")
    if isinstance(form, int) and form > FORM:
        raise StorageError(f"it was written by a newer ctxpipe, in form {form}; update ctxpipe to go on with it")


def _entry(values: dict[str, Any]) -> Entry:
    front, history, context = values["match"]
    unbound = values["unbound"]
    return Entry(
        **{
            **values,
            "match": (front, history, context),
            "tail": tuple(values["tail"]),
            "undos": tuple(Undo(**{**undo, "items": tuple(undo["items"])}) for undo in values["undos"]),
            "unbound": ((unbound[0][0], unbound[0][1]), unbound[1]) if unbound else None,
            "bills": tuple(map(tuple, values["bills"])),
        }
    )


def packed(state: State, start: int) -> tuple[Any, ...]:
    """The messages of the context from *start* on, those that are objects of the history as ranges of it."""
    indices: dict[int, int] = {}
    items: list[Any] = []
    for place in range(start, len(state.context)):
        message = state.context[place]
        index = place - state.match.context + state.match.history
        if not (state.match.context <= place and state.history[index] is message):
            indices = indices or {id(message): index for index, message in enumerate(state.history)}
            found = indices.get(id(message))
            if found is None:
                items.append(unmarked(message))
                continue
            index = found
        if items and isinstance(items[-1], list) and items[-1][1] == index:
            items[-1][1] += 1
        else:
            items.append([index, index + 1])
    return tuple(items)


def _unpacked(items: Sequence[Any], history: Sequence[Message]) -> Iterator[Message]:
    for item in items:
        if isinstance(item, Mapping):
            yield item  # type: ignore[misc]  # a message, as it was written
        else:
            yield from history[item[0] : item[1]]


# What a journal knows about a history -------------------------------------------------------------------------------


def _found(text: str, history: list[Message]) -> Found:
    parsed = [_parse(line) for line in text.split("\n") if line]
    entries = dict(filter(None, parsed))
    damaged, redacted = None in parsed, False
    known = Digests(history)
    for name, entry in reversed(entries.items()):
        try:
            state = _state(entries, entry, history, known)
        except _OF_ANOTHER_FORM:
            damaged = True
            continue
        if state is not None:
            undos, is_whole = _undos(entries, name)
            return Found(replace(state, undos=undos), name, is_whole, damaged, redacted, len(entries))
        redacted = redacted or _is_redacted(entries, entry, history, known)
    return Found(damaged=damaged, redacted=redacted, lines=len(entries))


def _state(entries: Mapping[str, Entry], entry: Entry, history: list[Message], known: Digests) -> State | None:
    """The state of *entry* as far as *history* goes along with it."""
    if known.upto(entry.covered) == entry.digest:
        context = _replayed(entries, entry, history)
        if context is not None and Digests(context).upto(entry.size) == entry.sent:
            return State(history[: entry.covered], context, Match(*entry.match), (), entry.unbound, entry.bills)
    if known.upto(entry.size) == entry.sent:
        adopted = history[: entry.size]
        return State(adopted, adopted, Match(), (), entry.unbound, entry.bills)
    return None


def _is_redacted(entries: Mapping[str, Entry], entry: Entry, history: list[Message], known: Digests) -> bool:
    """Whether *entry*, which gives no state, is of this very history and lacks no line."""
    return known.upto(entry.covered) == entry.digest and _replayed(entries, entry, history) is not None


def _replayed(entries: Mapping[str, Entry], entry: Entry, history: list[Message]) -> list[Message] | None:
    """The context that the lines up to *entry* have made of *history*; None when one of them is missing."""
    chain = [entry]
    while chain[-1].kept:
        before = entries.get(chain[-1].previous)
        if before is None:
            return None
        chain.append(before)
    context: list[Message] = []
    covered = 0
    for line in reversed(chain):
        grown = [*context, *history[covered : line.covered]]  # what was appended since changed nothing
        context = [*grown[: line.kept], *_unpacked(line.tail, history)]
        covered = line.covered
    return context


def _undos(entries: Mapping[str, Entry], check: str) -> tuple[list[Undo], bool]:
    """The changes up to the line *check*, oldest first, and whether none is missing."""
    undos: list[Undo] = []
    while check in entries:
        undos[:0] = entries[check].undos
        check = entries[check].previous
    return undos, not check
