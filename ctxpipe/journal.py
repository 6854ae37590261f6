"""What a session remembers, written down so that another process can go on: an append-only file of checked lines.

A line holds one change of the projection: how much of the history it covers and that history's digest, the context
(messages of the history by their index, our own in full), and how to undo the change. A line that is torn or damaged
is never used, nor any behind it until the next full one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .edits.projection import digest, unmarked
from .errors import StorageError
from .messages import compact_json
from .storage.protocol import Archive, TextReader

if TYPE_CHECKING:
    from .messages import Message

__all__ = ["Entry", "Journal", "JournalStorage", "Undo", "rolling"]

NAME = "journal.jsonl"


class JournalStorage(Archive, TextReader, Protocol):
    """A storage that keeps growing records and gives them back, such as `LocalStorage`."""


@dataclass(frozen=True, slots=True)
class Undo:
    """How to get from the context after a change, of *after* messages, back to the one of *before* messages.

    From message *start* on, an item is ``[i, j]`` for the messages i … j of the context after the change,
    ``{"files": i, …}`` for message i with its texts read back from their files, ``{"archived": digest}`` for a message
    in *archive*, or the message itself.
    """

    start: int
    before: int
    after: int
    items: tuple[Any, ...]
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One change: *covered* messages of the history, with its *digest*, have become a context.

    Of the former context the first *kept* messages stay; *tail* holds the rest: ``[start, stop]`` messages of the
    history, ``{…}`` one of our own. The whole context has *size* messages with the digest *adopted*. A *full* entry
    rests on no earlier one. *undone* earlier changes can still be taken back, this one by *undo*.
    """

    covered: int
    digest: str
    size: int
    adopted: str
    base: tuple[int, int]
    kept: int
    tail: tuple[Any, ...]
    undo: tuple[Undo, ...] = ()
    undone: int = 0
    full: bool = False


@dataclass(slots=True)
class Journal:
    """A session's journal in *storage*."""

    storage: JournalStorage
    session_id: str
    damaged: bool = field(default=False, init=False)

    async def append(self, entry: Entry) -> None:
        """Add *entry*. Raises StorageError; what was written before stays readable."""
        line = compact_json(asdict(entry))
        # The line break comes first: a line torn by a crash must not swallow this one.
        await self.storage.append(self.session_id, NAME, f"\n{_sum(line)} {line}")
        self.damaged = False

    async def entries(self) -> list[Entry]:
        """Every usable entry; *damaged* tells whether there were others. Raises StorageError."""
        location = next((r for r in await self.storage.records(self.session_id) if r.endswith(NAME)), None)
        if location is None:
            return []
        text = (await self.storage.read(location)).text
        return list(self._usable(line for line in text.split("\n") if line))

    def _usable(self, lines: Iterator[str]) -> Iterator[Entry]:
        broken = False
        for line in lines:
            entry = _parsed(line)
            broken = entry is None or (broken and not entry.full)
            self.damaged = self.damaged or broken
            if entry is not None and not broken:
                yield entry


def _sum(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def _parsed(line: str) -> Entry | None:
    """The entry on *line*, None when it is damaged or of another form."""
    check, _, body = line.partition(" ")
    if check != _sum(body):
        return None
    try:
        values = json.loads(body)
        undo = tuple(Undo(**{**item, "items": tuple(item["items"])}) for item in values.pop("undo"))
        return Entry(**{**values, "base": tuple(values["base"]), "tail": tuple(values["tail"])}, undo=undo)
    except (ValueError, TypeError, KeyError):
        return None


class rolling:  # noqa: N801  named like hashlib's
    """The digest of a growing history."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def update(self, messages: Sequence[Message]) -> None:
        """Take in *messages*, the next ones."""
        for message in messages:
            self._hash.update(digest(message))
        self.count += len(messages)

    def hexdigest(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()


def packed(context: Sequence[Message], start: int, history: Sequence[Message]) -> tuple[Any, ...]:
    """The messages of *context* from *start* on, those that are objects of *history* as ranges of it."""
    indices = {id(message): index for index, message in enumerate(history)}
    items: list[Any] = []
    for message in context[start:]:
        index = indices.get(id(message))
        if index is None:
            items.append(unmarked(message))
        elif items and isinstance(items[-1], list) and items[-1][1] == index:
            items[-1][1] += 1
        else:
            items.append([index, index + 1])
    return tuple(items)


def unpacked(items: Sequence[Any], history: Sequence[Message]) -> list[Message]:
    """The messages that `packed` stood for. Raises StorageError when one is not in *history*."""
    found: list[Message] = []
    for item in items:
        if isinstance(item, Mapping):
            found.append(item)  # type: ignore[arg-type]  # a message, as it was written
        elif 0 <= item[0] < item[1] <= len(history):
            found += history[item[0] : item[1]]
        else:
            raise StorageError(f"the journal speaks of messages {item}, the history has {len(history)}")
    return found


def chained(entries: Sequence[Entry]) -> list[list[Entry]]:
    """*entries* in runs that begin with a full one."""
    chains: list[list[Entry]] = []
    for entry in entries:
        if entry.full or not chains:
            chains.append([])
        chains[-1].append(entry)
    return chains


def digests_at(messages: Sequence[Message], counts: AbstractSet[int]) -> dict[int, str]:
    """The digest of the first n *messages*, for each n of *counts* that is not beyond their number."""
    reached, found = rolling(), {}
    for count in sorted(counts):
        if count <= len(messages):
            reached.update(messages[reached.count : count])
            found[count] = reached.hexdigest()
    return found


def replayed(entries: Sequence[Entry], history: list[Message]) -> list[Message]:
    """The context that *entries*, the first of them full, have made of *history*. Raises StorageError."""
    context: list[Message] = []
    covered = 0
    for entry in entries:
        grown = [*context, *history[covered : entry.covered]]  # what was appended since changed nothing
        context = [*grown[: entry.kept], *unpacked(entry.tail, history)]
        covered = entry.covered
    return context
