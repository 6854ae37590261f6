"""A turn as a journal holds it, and a session rebuilt from its turns."""

from __future__ import annotations

import asyncio
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
from ..messages.identity import digest_of, parse, says_the_same, without_marks
from ..names import session_folder
from ..storage.protocol import texts_of
from ..storage.records import redact_except_folder, redact_message
from ..timeline import Step, Timeline
from ..workers.threads import in_thread_if

if TYPE_CHECKING:
    from ..messages import Message
    from ..storage import JournalStorage
    from .journal import Entry

__all__ = ["Packing", "Replay"]

_DIGEST = 16  # bytes
_AT_ONCE = 16  # files that are read side by side
_LONG = 1_000_000  # characters that are hashed in some milliseconds


@dataclass(slots=True)
class Replay:
    """A session rebuilt from the entries of its journal.

    Beside its *timeline* this is the *raw* history, which differs from the timeline's where the
    caller has adopted a context as his history. *files* says, by message of *raw*, which of its
    texts are in files. *hidden* holds the identities of messages that are not as they were sent.

    *agreed* counts the first messages of the timeline's history that the caller has as well. The
    latest state that agreed as a whole followed entry *fitting* and had *fitted* messages.
    """

    timeline: Timeline
    raw: list[Message] = field(default_factory=list)
    files: dict[int, list[Any]] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    is_adopted: bool = False
    agreed: int = 0
    fitting: int = 0
    fitted: int = 0
    _spans: list[int] = field(default_factory=lambda: [0])  # history[:n] is raw[: spans[n]]

    @property
    def has_hidden(self) -> bool:
        """Whether messages of the context are not as they were sent."""
        return any(id(message) in self.hidden for message in self.timeline.context)

    def apply(self, step: Step, files: Mapping[str, list[Any]], history: Sequence[Message]) -> None:
        """Repeat *step*; *files* says which texts of its messages are in files."""
        if step.adopted:
            self.is_adopted = True
            self._spans = [self._spans[end] for end in (0, *self.timeline.ends)]
        self._extend_raw(step, files)
        self.timeline.apply(step)
        self._compare(step, history)

    def _extend_raw(self, step: Step, files: Mapping[str, list[Any]]) -> None:
        cut = self._spans[step.known]
        if cut < len(self.raw):
            self.files = {index: texts for index, texts in self.files.items() if index < cut}
        self.raw[cut:] = step.messages
        new = range(cut, len(self.raw))
        for number, texts in files.items():
            self.files[new[int(number)]] = texts
        self._spans[step.known + 1 :] = range(cut + 1, len(self.raw) + 1)

    def _compare(self, step: Step, history: Sequence[Message]) -> None:
        ours = self.timeline.history
        agreed = 0 if step.adopted else min(self.agreed, step.known)
        most = min(len(ours), len(history))
        while agreed < most and says_the_same(ours[agreed], history[agreed]):
            agreed += 1
        self.agreed = agreed


class Packing:
    """How the turns of a session are written to a journal.

    Secrets are hidden as *storage* does. Without *texts* a message of the history is written as a
    digest only.
    """

    def __init__(
        self, storage: JournalStorage | None, session_id: str, *, texts: bool = True
    ) -> None:
        self.texts = texts
        self.salt: str = secrets.token_hex(_DIGEST)
        self._text_reader = texts_of(storage) if storage else None
        redact = getattr(storage, "redact", None)
        self._redact = redact_except_folder(session_folder(session_id), redact) if redact else None

    @property
    def redacts(self) -> bool:
        """Whether secrets are hidden in what is written."""
        return self._redact is not None

    # Packing --------------------------------------------------------------------------------------

    def pack(self, step: Step) -> dict[str, Any]:
        """*step* as JSON values. Raises StorageError when *redact* fails.

        A message that is not written whole has its digest beside it, any other has "".
        """
        turn: dict[str, Any] = {"known": step.known}
        if self.texts:
            turn |= self._pack_history(step)
        else:
            turn["digests"] = [self._digest(parse(message)) for message in step.messages]
        if step.adopted:
            turn["adopted"] = True
        if step.edits:
            turn["edits"] = [self._pack_edit(edit) for edit in step.edits]
        if step.stale:
            turn["stale"] = list(step.stale.items())
        return turn

    def _pack_edit(self, edit: Edit) -> list[Any]:
        messages, digests = self._hide(edit.messages)
        return [edit.start, edit.stop, messages, digests]

    def _pack_history(self, step: Step) -> dict[str, Any]:
        raw: list[Any] = list(map(parse, step.messages))
        messages, digests = self._hide(raw)
        locations = self._locations(step)
        files: dict[int, list[Any]] = {}
        for index, message in enumerate(raw):
            if locations and not locations.keys().isdisjoint(strings(message)):
                messages[index] = json.loads(as_json(messages[index]))
                files[index] = self._move_texts(message, messages[index], locations)
                digests[index] = self._digest(message)
        turn: dict[str, Any] = {"messages": messages}
        if any(digests):
            turn["digests"] = digests
        if files:
            turn["files"] = files
        return turn

    def _locations(self, step: Step) -> dict[str, str]:
        """Where the storage of our texts keeps those that the stages have written in *step*."""
        locations: dict[str, str] = {}
        for storage, stored in step.stored:
            if storage == self._text_reader:
                locations |= stored
        return locations

    def _hide(self, messages: Sequence[Message]) -> tuple[list[Any], list[str]]:
        """*messages* without cache marks and secrets; and the digest of each that had a secret."""
        plain: list[Any] = list(map(without_marks, messages))
        digests = [""] * len(plain)
        if self._redact is None:
            return plain, digests
        hidden: list[Any] = [redact_message(message, self._redact) for message in plain]
        for index, message in enumerate(plain):
            if message != hidden[index]:
                digests[index] = self._digest(message)
        return hidden, digests

    def _move_texts(self, raw: Any, packed: Any, locations: Mapping[str, str]) -> list[Any]:
        """Empty the texts of *packed* that *locations* has for *raw*; where each of them is."""
        files: list[Any] = []
        for place, where in _find_texts(raw, locations):
            text = _value_at(packed, place)
            if isinstance(text, str) and _replace_text(packed, place, ""):
                files.append([place, where, self._text_digest(text)])
        return files

    def _digest(self, message: Message) -> str:
        """A keyed digest of what *message* says, by which it is recognized."""
        key = bytes.fromhex(self.salt)
        digest = digest_of(message, partial(hmac.new, key, None, "sha256"))
        return digest[:_DIGEST].hex()

    def _text_digest(self, text: str) -> str:
        key = bytes.fromhex(self.salt)
        digest = hmac.new(key, text.encode("utf-8", "replace"), "sha256").digest()
        return digest[:_DIGEST].hex()

    # Replaying ------------------------------------------------------------------------------------

    def replay(
        self, entries: Sequence[Entry], history: Sequence[Message], make: Callable[[], Timeline]
    ) -> Replay:
        """The session as *entries* leave it; *make* makes its empty timeline.

        Messages of *history*, the caller's, replace those that have the same digest. Invalid
        entries raise one of `DAMAGED`.
        """
        if entries:
            self.salt = entries[0].salt
        turns = [turn for entry in entries for turn in entry.turns]
        known: Mapping[str, Message] = {}
        if any(map(_has_digests, turns)):
            known = {self._digest(message): message for message in history}
        replay = Replay(make())
        for number, entry in enumerate(entries, 1):
            for turn in entry.turns:
                step = _unpack_step(turn, known, replay.hidden)
                replay.apply(step, turn.get("files", {}), history)
            if replay.agreed == len(replay.timeline.history):
                replay.fitting, replay.fitted = number, replay.agreed
        return replay

    async def restore(self, replay: Replay) -> list[Message]:
        """The raw history of *replay*, with the texts that are in files.

        Raises StorageError, naming the message, for a file that is gone or was changed.
        """
        raw: list[Any] = list(replay.raw)
        references = []
        for index, files in sorted(replay.files.items()):
            # A message that the caller has is whole already.
            missing = [file for file in files if _value_at(raw[index], file[0]) == ""]
            if missing:
                raw[index] = json.loads(as_json(raw[index]))
            references += [(index, place, where, digest) for place, where, digest in missing]
        for start in range(0, len(references), _AT_ONCE):
            batch = references[start : start + _AT_ONCE]
            reads = [self._read(where, digest) for _, _, where, digest in batch]
            texts = await asyncio.gather(*reads, return_exceptions=True)
            for (index, place, _, _), text in zip(batch, texts, strict=True):
                if isinstance(text, StorageError):
                    lost = f"message {index} of the history cannot be restored: {text}"
                    raise StorageError(text.errno, lost) from text
                if isinstance(text, BaseException):
                    raise text
                _replace_text(raw[index], place, text)
        return raw

    async def _read(self, where: str, digest: str) -> str:
        """The text in the file *where*. Raises StorageError unless it has the *digest*."""
        if self._text_reader is None:
            raise StorageError(f"{where} is in another storage: give it to the journal as texts=")
        text = (await self._text_reader.read(where)).text
        if await in_thread_if(len(text) > _LONG, self._text_digest, text) != digest:
            raise StorageError(errno.EILSEQ, f"{where} was changed")
        return text


def _has_digests(turn: Mapping[str, Any]) -> bool:
    if any(turn.get("digests", ())):
        return True
    return any(any(digests) for *_, digests in turn.get("edits", ()))


def _unpack_step(turn: Mapping[str, Any], known: Mapping[str, Message], hidden: set[int]) -> Step:
    """*turn* as it was; messages of edits that are not as they were sent are added to *hidden*."""
    digests = turn.get("digests", [])
    packed = turn.get("messages")
    if packed is None:
        packed = [{"role": "user", "content": digest} for digest in digests]
    step = Step(turn["known"], turn.get("adopted", False), _unpack(packed, digests, known))
    step.stale = dict(turn.get("stale", ()))
    for start, stop, messages, names in turn.get("edits", ()):
        step.edits.append(Edit(start, stop, _unpack(messages, names, known)))
        for message, digest in zip(messages, names, strict=True):
            if digest and digest not in known:
                hidden.add(id(message))
    return step


def _unpack(
    packed: list[Message], digests: Sequence[str], known: Mapping[str, Message]
) -> list[Message]:
    """The messages *packed*, or those of the caller that are *known* by their *digests*."""
    ensure_messages(packed)
    if not digests:
        return packed
    pairs = zip(packed, digests, strict=True)
    return [known.get(digest, message) for message, digest in pairs]


# Texts that are in files ------------------------------------------------------------------------


def _find_texts(value: Any, locations: Mapping[str, str]) -> Iterator[tuple[list[Any], str]]:
    """Where in *value* the texts are that *locations* names, and where each is."""
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


def _value_at(value: Any, place: Sequence[Any]) -> Any:
    """What is at *place* in *value*; None when there is no such place."""
    try:
        for part in place:
            value = value[part]
    except (LookupError, TypeError):
        return None
    return value


def _replace_text(value: Any, place: Sequence[Any], text: str) -> bool:
    """Replace the text at *place* in *value* by *text*; False when there is no text."""
    if not isinstance(_value_at(value, place), str):
        return False
    _value_at(value, place[:-1])[place[-1]] = text
    return True
