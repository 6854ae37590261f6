"""What a session writes down: numbered, sealed entries, from which another process rebuilds it.

An entry holds the turns since the one before: the messages that were new, then what the stages have
made of them. It says on how many entries it rests (*base*), since a caller may go back to an earlier
state. Its seal covers session, branch, number, the seal before it and its text; the first entry
whose seal is wrong, and all after it, are never used.
"""

from __future__ import annotations

import errno
import hmac
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..edits.diff import Edit
from ..errors import StorageError
from ..messages import as_json, ensure_messages, is_bulky, is_encodable, strings
from ..messages.identity import digest_of, parse, unmarked
from ..names import session_folder
from ..storage.records import leave_alone, redact_message
from ..threads import in_thread, in_thread_if
from ..timeline import Step, Timeline

if TYPE_CHECKING:
    from ..messages import Message
    from ..storage import JournalStorage
    from ..tokens.ledger import SavedBill

__all__ = ["DAMAGED", "Entry", "Journal", "Replay", "chain"]

FORM = 2
"""The form of an entry. A journal with a newer one is neither used nor written to."""
_DIGEST = 16  # bytes of a message's digest
_LONG = 1_000_000  # characters that are hashed in some milliseconds
DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


class Entry(NamedTuple):
    """One line: *turns* on top of the first *base* entries (of *parent*, in the first entry of a branch)."""

    base: int
    turns: list[dict[str, Any]]
    bills: list[SavedBill]
    windows: list[tuple[str | None, int]]
    writer: str = ""
    parent: str | None = None
    salt: str = ""
    seal: str = ""


@dataclass(slots=True)
class Replay:
    """A session as entries tell it: its *timeline*, and the *raw* history where a context was adopted as one.

    *base* entries lie behind it, and *last* is the last of them. *agreed* messages of the
    history that it was asked for are in it; with *is_shared* that is the beginning of its context.
    *redacted* says that messages of ours are not as they were, *is_adopted* that a context was ever
    adopted.
    """

    timeline: Timeline
    raw: list[Message] = field(default_factory=list)
    spans: list[int] = field(default_factory=lambda: [0])  # history[:n] stands for raw[: spans[n]]
    digests: list[str] = field(default_factory=list)  # of the history
    places: dict[int, list[Any]] = field(default_factory=dict)  # files by message of the raw history
    base: int = 0
    agreed: int = 0
    redacted: bool = False
    is_shared: bool = False
    is_adopted: bool = False
    last: Entry | None = None


class Journal:
    """The journal of the session *session_id* in *storage*, or a *branch* of it.

    The first of *keys* seals, each of them verifies; without keys the seals are check sums. Without
    *texts* the history is written as digests only.
    """

    def __init__(
        self,
        storage: JournalStorage,
        session_id: str,
        keys: Sequence[bytes] = (),
        *,
        texts: bool = True,
        branch: str = "",
    ) -> None:
        self.storage = storage
        self.session_id = session_id
        self.branch = branch
        self.count = 0
        self._keys = keys
        self.texts = texts
        self.offset = 0  # entries of the parent that a branch rests on
        self._seal = ""
        self._salt = ""
        redact = getattr(storage, "redact", None)
        self._redact = leave_alone(session_folder(session_id), redact) if redact else None

    def sibling(self, branch: str) -> Journal:
        """Another branch of the same journal, unread."""
        journal = Journal(self.storage, self.session_id, self._keys, texts=self.texts, branch=branch)
        journal._salt = self._salt
        return journal

    @property
    def redacts(self) -> bool:
        """Whether secrets are hidden in what is written."""
        return self._redact is not None

    # Writing ----------------------------------------------------------------------------------------

    async def write(self, entry: Entry) -> bool:
        """Add *entry*; False when somebody else has written one since. Raises StorageError."""
        line, seal = await in_thread_if(is_bulky(entry.turns), self._sealed, entry)
        if not await self.storage.append(self.session_id, self.count, line, branch=self.branch):
            return False
        self.count, self._seal = self.count + 1, seal
        return True

    async def pack(self, step: Step) -> dict[str, Any]:
        """*step* as it is written down. Raises StorageError when *redact* fails."""
        changed = [message for edit in step.edits for message in edit.messages]
        return await in_thread_if(is_bulky([*step.messages, *changed]), self._pack, step)

    def _pack(self, step: Step) -> dict[str, Any]:
        locations: dict[str, str] = {}
        for storage, stored in step.stored:
            locations |= stored if storage == self.storage else {}
        packed = [self._pack_message(message, locations) for message in step.messages]
        turn: dict[str, Any] = {"known": step.known, "digests": list(map(self.digest, step.messages))}
        if self.texts:
            turn["messages"] = [message for message, _ in packed]
            turn["files"] = {index: files for index, (_, files) in enumerate(packed) if files}
        if step.adopted:
            turn["adopted"] = True
        if step.edits:
            turn["edits"] = [self._pack_edit(edit) for edit in step.edits]
        if step.stale:
            turn["stale"] = list(step.stale.items())
        return turn

    def _pack_message(self, message: Message, locations: Mapping[str, str]) -> tuple[Any, list[Any]]:
        """*message* without marks, with the texts left out that *locations* names; and where these go."""
        plain: Any = unmarked(parse(message))
        files = list(_found(plain, locations)) if locations and not locations.keys().isdisjoint(strings(plain)) else []
        if self._redact:
            plain = redact_message(plain, self._redact)
        if files:
            plain = json.loads(as_json(plain))
        packed = [[place, where, self._text_digest(plain, place)] for place, where in files]
        return plain, [file for file in packed if file[2] and _put(plain, file[0], "")]

    def _text_digest(self, message: Any, place: Sequence[Any]) -> str:
        """A keyed digest of the text at *place*, as its file holds it; "" where there is none."""
        text = _at(message, place)
        return self._keyed(text.encode()) if isinstance(text, str) else ""

    def _keyed(self, data: bytes) -> str:
        return hmac.new(self._key, data, "sha256").digest()[:_DIGEST].hex()

    @property
    def _key(self) -> bytes:
        self._salt = self._salt or secrets.token_hex(_DIGEST)
        return bytes.fromhex(self._salt)

    def _pack_edit(self, edit: Edit) -> list[Any]:
        messages = [unmarked(message) for message in edit.messages]
        digests = list(map(self.digest, messages))
        if not self._redact:
            return [edit.start, edit.stop, messages, digests]
        redacted: Any = [redact_message(message, self._redact) for message in messages]
        return [edit.start, edit.stop, redacted, digests]

    def digest(self, message: Message) -> str:
        """A keyed digest of what *message* says, by which it is recognized."""
        return digest_of(message, partial(hmac.new, self._key, None, "sha256"))[:_DIGEST].hex()

    def _sealed(self, entry: Entry) -> tuple[str, str]:
        """*entry* as a line, and its seal."""
        body = self._encode(entry)
        seal = self._seals(self._seal, self.count, body)[0]
        return f"{seal} {body}", seal

    def _encode(self, entry: Entry) -> str:
        values = {"form": FORM, "signed": bool(self._keys), **entry._replace(salt=self._salt)._asdict()}
        del values["seal"]
        body = as_json(values, ensure_ascii=False)
        return body if is_encodable(body) else as_json(values)

    def _seals(self, before: str, number: int, body: str) -> list[str]:
        """The seals that *body* may have as entry *number* behind the seal *before*, one for each key."""
        parts = (self.session_id, self.branch, str(number), before, body)
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return [hmac.new(key, text, "sha256").hexdigest()[:32] for key in self._keys or (b"ctxpipe",)]

    # Reading ----------------------------------------------------------------------------------------

    async def news(self) -> bool:
        """Whether somebody has written entries since. Raises StorageError."""
        return bool(await self.storage.entries(self.session_id, self.count, branch=self.branch))

    async def read(self) -> tuple[list[Entry], bool]:
        """The entries that can be believed, those that a branch rests on included, and whether there are others.

        A branch whose parent has gone has none. Raises StorageError for a newer form.
        """
        lines = await self.storage.entries(self.session_id, 0, branch=self.branch)
        older: list[Entry] = []
        if self.branch and lines:
            parent, self.offset = _parent(lines[0])
            older = (await self.sibling(parent).read())[0][: self.offset] if parent is not None else []
            if len(older) < self.offset:
                self.count = 0
                return [], True
        entries, is_damaged = await in_thread(self._read, list(lines), older[-1].seal if older else "")
        return [*older, *entries] if entries else [], is_damaged

    def _read(self, lines: Sequence[str], seal_before: str) -> tuple[list[Entry], bool]:
        entries: list[Entry] = []
        self.count, self._seal = 0, seal_before
        for number, line in enumerate(lines):
            seal, _, body = line.partition(" ")
            own = self._seals(self._seal, number, body)
            if not any(hmac.compare_digest(seal.encode(), other.encode()) for other in own):
                self._refuse(line)
                return entries, True
            try:
                entries.append(_decode(body)._replace(seal=seal))
            except DAMAGED:
                self._refuse(line)
                return entries, True
            self.count, self._seal, self._salt = number + 1, seal, entries[0].salt
        return entries, False

    def _refuse(self, line: str) -> None:
        """Raise StorageError for an entry that others can read: neither to be used nor to be written to."""
        try:
            values = json.loads(line[line.index("{") :])
            form, signed = values["form"], values.get("signed")
        except DAMAGED:
            return
        if isinstance(form, int) and form > FORM:
            raise StorageError(f"it was written by a newer ctxpipe, in form {form}; update ctxpipe to go on with it")
        if signed and not self._keys:
            raise StorageError("it is signed; give the signing_key with which it was written")

    async def set_aside(self) -> str:
        """Keep this journal under another name, and begin anew; that name, "" where somebody else did so."""
        name = await self.storage.set_aside(self.session_id, branch=self.branch)
        self.count, self.offset, self._seal = 0, 0, ""
        return name

    def begin(self, offset: int, seal: str) -> None:
        """Begin, as a new branch, after *offset* entries of another, of which the last one has the *seal*."""
        self.offset, self._seal = offset, seal

    @property
    def seal(self) -> str:
        """The seal of the last entry."""
        return self._seal

    # Replaying --------------------------------------------------------------------------------------

    def replay(self, entries: Sequence[Entry], now: Sequence[Message], make: Callable[[], Timeline]) -> Replay:
        """The session as *entries* leave it, or as it was when *now* went as far.

        That is the latest entry whose history is the beginning of *now*; the last one, where *now*
        shares more with its context, or shares nothing.
        """
        digests = list(map(self.digest, now))
        pool = dict(zip(digests, now, strict=True))
        numbers = chain(entries, len(entries))
        head, best, agreed = self._replayed(entries, numbers, now, digests, pool, make)
        is_whole = best == len(entries)
        shared = 0 if is_whole else _common(list(map(self.digest, head.timeline.sent)), digests)
        head.is_shared = shared > max(agreed, head.agreed)
        if is_whole or not best or head.is_shared or head.agreed > agreed:
            return head
        found, _, _ = self._replayed(entries, chain(entries, best), now, digests, pool, make)
        return found

    def _replayed(
        self,
        entries: Sequence[Entry],
        numbers: Sequence[int],
        now: Sequence[Message],
        digests: Sequence[str],
        pool: Mapping[str, Message],
        make: Callable[[], Timeline],
    ) -> tuple[Replay, int, int]:
        """What the entries *numbers* come to; and how many of them have all of their history in *now*, how much."""
        replay, best, agreed = Replay(make()), 0, 0
        unlike: set[int] = set()
        for number in numbers:
            for turn in entries[number].turns:
                step = self._step(turn, now, digests, pool, unlike)
                self._advance(replay, step, turn)
            replay.last, replay.base = entries[number], number + 1
            replay.agreed = _common(replay.digests, digests)
            if replay.agreed == len(replay.digests):
                best, agreed = number + 1, replay.agreed
        replay.redacted = any(id(message) in unlike for message in replay.timeline.context)
        return replay, best, agreed

    def _step(
        self,
        turn: Mapping[str, Any],
        now: Sequence[Message],
        digests: Sequence[str],
        pool: Mapping[str, Message],
        unlike: set[int],
    ) -> Step:
        """*turn* as a step, in which messages of the caller's own take the place of those that say the same."""

        def ours(message: Message, digest: str) -> Message:
            if digest in pool:
                return pool[digest]
            if self._redact and self.digest(message) != digest:
                unlike.add(id(message))
            return message

        known = turn["known"]
        messages: list[Message] = []
        texts = turn.get("messages") or [{"role": "user", "content": ""}] * len(turn["digests"])
        ensure_messages(texts)
        for index, (message, digest) in enumerate(zip(texts, turn["digests"], strict=True), known):
            is_now = index < len(digests) and digests[index] == digest
            messages.append(now[index] if is_now else pool.get(digest, message))
        edits = [
            Edit(start, stop, [ours(message, name) for message, name in zip(new, names, strict=True)])
            for start, stop, new, names in turn.get("edits", ())
        ]
        for edit in edits:
            ensure_messages(edit.messages)
        return Step(known, turn.get("adopted", False), messages, edits, dict(turn.get("stale", ())))

    def _advance(self, replay: Replay, step: Step, turn: Mapping[str, Any]) -> None:
        timeline, known = replay.timeline, step.known
        if step.adopted:
            replay.is_adopted = True
            replay.spans = [replay.spans[end] for end in (0, *timeline.ends)]
            replay.digests = list(map(self.digest, timeline.sent))
        cut = replay.spans[known]
        replay.raw[cut:] = step.messages
        replay.places = {place: files for place, files in replay.places.items() if place < cut}
        files = {int(index): held for index, held in turn.get("files", {}).items()}
        if not all(0 <= index < len(step.messages) for index in files):
            raise ValueError("a file for a message that is not there")
        replay.places |= {cut + index: held for index, held in files.items()}
        replay.spans[known + 1 :] = range(cut + 1, cut + 1 + len(step.messages))
        replay.digests[known:] = turn["digests"]
        timeline.apply(step)

    async def restored(self, replay: Replay) -> list[Message]:
        """The raw history of *replay*, with the texts that lie in files. Raises StorageError, naming the message."""
        raw = list(replay.raw)
        for index, files in sorted(replay.places.items()):
            message: Any = json.loads(as_json(raw[index]))
            for place, where, digest in files:
                try:
                    text = (await self.storage.read(where)).text
                except StorageError as error:
                    told = f"message {index} of the history cannot be restored: {error}"
                    raise StorageError(error.errno, told) from error
                if await in_thread_if(len(text) > _LONG, self._keyed, text.encode("utf-8", "replace")) != digest:
                    told = f"message {index} of the history cannot be restored: {where} was changed"
                    raise StorageError(errno.EILSEQ, told)
                _put(message, place, text)
            raw[index] = message
        return raw


# Entries as text --------------------------------------------------------------------------------------


def _decode(body: str) -> Entry:
    values = json.loads(body)
    if values.pop("form") != FORM:
        raise ValueError("another form")
    del values["signed"]
    bytes.fromhex(values["salt"])
    values["bills"] = [tuple(bill) for bill in values["bills"]]
    values["windows"] = [(model, window) for model, window in values["windows"]]
    return Entry(**values)


def _parent(line: str) -> tuple[str | None, int]:
    """The branch that the first *line* of another names, and on how many of its entries it rests."""
    try:
        entry = _decode(line.partition(" ")[2])
    except DAMAGED:
        return None, 0
    return entry.parent, entry.base if entry.parent is not None else 0


def chain(entries: Sequence[Entry], count: int) -> list[int]:
    """The numbers of the entries that the first *count* rest on, oldest first. Raises ValueError."""
    numbers: list[int] = []
    while count:
        numbers.append(count - 1)
        base = entries[count - 1].base
        if not 0 <= base < count:
            raise ValueError(f"entry {count - 1} rests on {base} entries")
        count = base
    return numbers[::-1]


def _common(ours: Sequence[str], theirs: Sequence[str]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


# Texts that lie in files ------------------------------------------------------------------------------


def _found(value: Any, locations: Mapping[str, str]) -> Iterator[tuple[list[Any], str]]:
    """Where in *value* the texts are that *locations* names, and where each lies."""
    pending: list[tuple[Any, list[Any]]] = [(value, [])]
    while pending:
        item, place = pending.pop()
        if isinstance(item, str):
            if item in locations and is_encodable(item):
                yield place, locations[item]
        elif isinstance(item, Mapping):
            pending += [(held, [*place, key]) for key, held in item.items()]
        elif isinstance(item, list | tuple):
            pending += [(held, [*place, index]) for index, held in enumerate(item)]


def _at(value: Any, place: Sequence[Any]) -> Any:
    """What is at *place* in *value*; None where it leads nowhere."""
    try:
        for part in place:
            value = value[part]
    except (LookupError, TypeError):
        return None
    return value


def _put(value: Any, place: Sequence[Any], text: str) -> bool:
    """Put *text* in the place of the text at *place* in *value*; False when there is none."""
    if not isinstance(_at(value, place), str):
        return False
    _at(value, place[:-1])[place[-1]] = text
    return True
