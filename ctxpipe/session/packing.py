"""A turn as a journal holds it, and a session rebuilt from its turns."""

from __future__ import annotations

import errno
import hmac
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..edits.diff import Edit
from ..errors import StorageError
from ..messages import as_json, ensure_messages, is_encodable, strings
from ..messages.identity import digest_of, parse, says_the_same, unmarked
from ..names import session_folder
from ..storage.records import leave_alone, redact_message
from ..threads import in_thread_if
from ..timeline import Step, Timeline

if TYPE_CHECKING:
    from ..messages import Message
    from ..storage import JournalStorage
    from .journal import Entry

__all__ = ["Packing", "Replay"]

_DIGEST = 16  # bytes
_LONG = 1_000_000  # characters that are hashed in some milliseconds


@dataclass(slots=True)
class Replay:
    """A session as entries tell it: its *timeline*, and the *raw* history, also where a context was
    adopted as one.

    *agreed* messages of its history are the beginning of the one that it was asked for. The latest
    state of which all were lies behind *fitting* entries, and had *fitted* messages. *hidden* are
    the messages that are not as they were sent.
    """

    timeline: Timeline
    raw: list[Message] = field(default_factory=list)
    files: dict[int, list[Any]] = field(
        default_factory=dict
    )  # by message of *raw*: which of its texts lie in files
    hidden: set[int] = field(default_factory=set)  # by identity
    is_adopted: bool = False
    agreed: int = 0
    fitting: int = 0
    fitted: int = 0
    _spans: list[int] = field(default_factory=lambda: [0])  # history[:n] stands for raw[: spans[n]]

    @property
    def has_hidden(self) -> bool:
        """Whether messages of the context are not as they were sent."""
        return any(id(message) in self.hidden for message in self.timeline.context)

    def apply(self, step: Step, files: Mapping[str, list[Any]], now: Sequence[Message]) -> None:
        """Repeat *step*, of whose messages *files* says what lies in files."""
        if step.adopted:
            self.is_adopted = True
            self._spans = [self._spans[end] for end in (0, *self.timeline.ends)]
        cut = self._spans[step.known]
        self.raw[cut:] = step.messages
        self._spans[step.known + 1 :] = range(cut + 1, len(self.raw) + 1)
        self.files = {index: held for index, held in self.files.items() if index < cut}
        for name, held in files.items():
            self.files[range(cut, len(self.raw))[int(name)]] = held
        self.timeline.apply(step)
        history = self.timeline.history
        self.agreed = 0 if step.adopted else min(self.agreed, step.known)
        while self.agreed < min(len(history), len(now)) and says_the_same(
            history[self.agreed], now[self.agreed]
        ):
            self.agreed += 1


class Packing:
    """How the turns of a session are written: as *storage* hides secrets.

    Without *texts* the history as digests.
    """

    def __init__(
        self, storage: JournalStorage | None, session_id: str, *, texts: bool = True
    ) -> None:
        self.texts = texts
        self.salt = secrets.token_hex(_DIGEST)
        self._storage = storage
        redact = getattr(storage, "redact", None)
        self._redact = leave_alone(session_folder(session_id), redact) if redact else None

    @property
    def redacts(self) -> bool:
        """Whether secrets are hidden in what is written."""
        return self._redact is not None

    # Packing ------------------------------------------------------------------------------------

    def pack(self, step: Step) -> dict[str, Any]:
        """*step* as it is written down. Raises StorageError when *redact* fails.

        Beside a message that is not written whole stands its digest, else "".
        """
        turn: dict[str, Any] = {"known": step.known, **self._pack_history(step)}
        if step.adopted:
            turn["adopted"] = True
        if step.edits:
            turn["edits"] = [
                [start, stop, *self._hide(messages)] for start, stop, messages in step.edits
            ]
        if step.stale:
            turn["stale"] = list(step.stale.items())
        return turn

    def _pack_history(self, step: Step) -> dict[str, Any]:
        raw: list[Any] = list(map(parse, step.messages))
        if not self.texts:
            return {"digests": list(map(self._digest, raw))}
        messages, digests = self._hide(raw)
        files: dict[int, list[Any]] = {}
        locations: dict[str, str] = {}
        for storage, stored in step.stored:
            locations |= stored if storage == self._storage else {}
        for index, message in enumerate(raw):
            if locations and not locations.keys().isdisjoint(strings(message)):
                messages[index], files[index] = self._without_texts(
                    message, messages[index], locations
                )
                digests[index] = self._digest(message)
        turn = {"messages": messages, "digests": digests if any(digests) else [], "files": files}
        return {name: held for name, held in turn.items() if held}

    def _hide(self, messages: Sequence[Message]) -> tuple[list[Any], list[str]]:
        """*messages* without cache marks and secrets, and the digests of those in which secrets
        were.
        """
        plain: list[Any] = list(map(unmarked, messages))
        if self._redact is None:
            return plain, [""] * len(plain)
        hidden: list[Any] = [redact_message(message, self._redact) for message in plain]
        pairs = zip(plain, hidden, strict=True)
        return hidden, [
            "" if message == other else self._digest(message) for message, other in pairs
        ]

    def _without_texts(
        self, raw: Any, packed: Any, locations: Mapping[str, str]
    ) -> tuple[Any, list[Any]]:
        """*packed* without those texts of the *raw* message that *locations* names, and where each
        of them lies.
        """
        packed = json.loads(as_json(packed))
        files: list[Any] = []
        for place, where in _found(raw, locations):
            text = _at(packed, place)
            if isinstance(text, str) and _put(packed, place, ""):
                files.append([place, where, self._keyed(text)])
        return packed, files

    def _digest(self, message: Message) -> str:
        """A keyed digest of what *message* says, by which it is recognized."""
        return digest_of(message, partial(hmac.new, bytes.fromhex(self.salt), None, "sha256"))[
            :_DIGEST
        ].hex()

    def _keyed(self, text: str) -> str:
        key = bytes.fromhex(self.salt)
        return hmac.new(key, text.encode("utf-8", "replace"), "sha256").digest()[:_DIGEST].hex()

    # Replaying ----------------------------------------------------------------------------------

    def replay(
        self, entries: Sequence[Entry], now: Sequence[Message], make: Callable[[], Timeline]
    ) -> Replay:
        """The session as *entries* leave it; messages of *now* take the place of those whose digest
        is theirs.

        What it raises for entries that make no sense is in `DAMAGED`.
        """
        self.salt = entries[0].salt if entries else self.salt
        names = {name for entry in entries for turn in entry.turns for name in _digests(turn)}
        pool = {self._digest(message): message for message in now} if names - {""} else {}
        replay = Replay(make())
        for number, entry in enumerate(entries, 1):
            for turn in entry.turns:
                replay.apply(_step(turn, pool, replay.hidden), turn.get("files", {}), now)
            if replay.agreed == len(replay.timeline.history):
                replay.fitting, replay.fitted = number, replay.agreed
        return replay

    async def restored(self, replay: Replay, storage: JournalStorage) -> list[Message]:
        """The raw history of *replay*, with the texts that lie in files of *storage*.

        Raises StorageError, naming the message, for one that is gone or was changed.
        """
        raw = list(replay.raw)
        for index, files in sorted(replay.files.items()):
            message: Any = json.loads(as_json(raw[index]))
            for place, where, digest in files:
                told = f"message {index} of the history cannot be restored"
                try:
                    text = (await storage.read(where)).text
                except StorageError as error:
                    raise StorageError(error.errno, f"{told}: {error}") from error
                if await in_thread_if(len(text) > _LONG, self._keyed, text) != digest:
                    raise StorageError(errno.EILSEQ, f"{told}: {where} was changed")
                _put(message, place, text)
            raw[index] = message
        return raw


def _digests(turn: Mapping[str, Any]) -> Iterator[str]:
    yield from turn.get("digests", ())
    for *_, names in turn.get("edits", ()):
        yield from names


def _step(turn: Mapping[str, Any], pool: Mapping[str, Message], hidden: set[int]) -> Step:
    """*turn* as it was; the messages that its edits do not give as they were go into *hidden*."""
    names = turn.get("digests", [])
    texts = turn.get("messages", [{"role": "user", "content": name} for name in names])
    edits: list[Edit] = []
    for start, stop, held, own in turn.get("edits", ()):
        edits.append(Edit(start, stop, _unpack(held, own, pool)))
        hidden |= {
            id(message)
            for message, name in zip(held, own, strict=True)
            if name and name not in pool
        }
    messages = _unpack(texts, names, pool)
    return Step(
        turn["known"], turn.get("adopted", False), messages, edits, dict(turn.get("stale", ()))
    )


def _unpack(
    packed: list[Message], names: Sequence[str], pool: Mapping[str, Message]
) -> list[Message]:
    """The messages *packed*.

    The caller's own, from *pool*, for those that have the digests *names*.
    """
    ensure_messages(packed)
    return (
        [pool.get(name, message) for message, name in zip(packed, names, strict=True)]
        if names
        else packed
    )


# Texts that lie in files ------------------------------------------------------------------------


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
