"""A turn as a journal holds it, and a session rebuilt from its turns."""

from __future__ import annotations

import asyncio
import errno
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from .._threads.pieces import pieces
from .._threads.threads import in_thread_if
from .._values import copy_containers, find_texts, replace_text, value_at
from ..errors import StorageError, storage_errors
from ..messages import Message, ensure_messages, strings
from ..messages.diff import Edit
from ..messages.identity import digest_of, parse, says_the_same, without_marks
from ..placeholders.names import session_folder
from ..placeholders.summaries import summary_body
from ..storage import JournalStorage, TextReader
from ..storage.protocol import texts_of
from ..storage.records import Redact, redact_except_folder, redact_message
from ..storage.sealed import Entry
from .earlier import EarlierContext
from .timeline import Step, Timeline

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
        return any(identity in self.hidden for identity in map(id, self.timeline.context))

    def apply(self, step: Step, files: Mapping[str, list[Any]], history: Sequence[Message]) -> None:
        """Repeat *step*; *files* says which texts of its messages are in files."""
        if step.adopted:
            self.is_adopted = True
            self._spans = [self._spans[end] for end in (0, *self.timeline.ends)]
            # The journal may lack texts of messages that only an earlier context has.
            self.timeline.earlier = []
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

    def __init__(self, storage: JournalStorage | None, session_id: str, *, texts: bool) -> None:
        self.texts = texts
        self.salt: str = secrets.token_hex(_DIGEST)
        self.text_reader: TextReader | None = texts_of(storage) if storage else None
        """Where the texts are that the entries refer to."""
        self.redact: Redact | None = getattr(storage, "redact", None)
        """What hides secrets in what is written, if anything does."""
        if self.redact:
            self.redact = redact_except_folder(session_folder(session_id), self.redact)

    # Packing --------------------------------------------------------------------------------------

    def pack(self, step: Step) -> dict[str, Any]:
        """*step* as JSON values. Raises StorageError when *redact* fails.

        A message that is not written whole has its digest beside it, any other has "".
        """
        turn: dict[str, Any] = {"known": step.known}
        if self.texts:
            turn |= self._pack_history(step)
        else:
            turn["digests"] = list(map(self._digest, map(parse, step.messages)))
        if step.adopted:
            turn["adopted"] = True
        if step.edits:
            turn["edits"] = self._pack_edits(step.edits)
        if step.stale:
            turn["stale"] = list(step.stale.items())
        if step.undone_count:
            turn["undone"] = step.undone_count
        if step.summaries:
            turn["summaries"] = list(step.summaries.items())
        if step.earlier:
            turn["earlier"] = [
                [described_count, replaced_count, self._pack_edits(edits)]
                for described_count, replaced_count, edits in step.earlier
            ]
        return turn

    def _pack_edits(self, edits: Sequence[Edit]) -> list[list[Any]]:
        return [[edit.start, edit.stop, *self._hide(edit.messages)] for edit in edits]

    def _pack_history(self, step: Step) -> dict[str, Any]:
        # Copies: the caller may empty a message while this is encoded and written.
        raw: list[Any] = [{**parse(message), "role": message["role"]} for message in step.messages]
        messages, digests = self._hide(raw)
        locations = self._locations(step)
        files: dict[int, list[Any]] = {}
        if locations:
            for index, message in enumerate(raw):
                if locations.keys().isdisjoint(strings(message)):
                    continue
                packed = copy_containers(messages[index])  # shares the texts, however long
                messages[index] = packed
                files[index] = self._move_texts(message, packed, locations)
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
            if storage == self.text_reader:
                locations |= stored
        return locations

    def _hide(self, messages: Sequence[Message]) -> tuple[list[Any], list[str]]:
        """*messages* without cache marks and secrets; and the digest of each that had a secret."""
        plain: list[Any] = list(map(without_marks, messages))
        digests = [""] * len(plain)
        if not self.redact:
            return plain, digests
        hidden: list[Any] = []
        for index, message in enumerate(plain):
            safe = redact_message(message, self.redact)
            hidden.append(safe)
            if not says_the_same(message, cast("Message", safe)):
                digests[index] = self._digest(message)
        return hidden, digests

    def _move_texts(self, raw: Any, packed: Any, locations: Mapping[str, str]) -> list[Any]:
        """Empty the texts of *packed* that *locations* has for *raw*; where each of them is."""
        files: list[Any] = []
        for place, where in find_texts(raw, locations):
            text = replace_text(packed, place, "")
            if text is not None:
                files.append([place, where, self._text_digest(text)])
        return files

    def _digest(self, message: Message) -> str:
        """A keyed digest of what *message* says, by which it is recognized."""
        digest = digest_of(message, partial(hmac.new, bytes.fromhex(self.salt), None, "sha256"))
        return digest[:_DIGEST].hex()

    def _text_digest(self, text: str) -> str:
        hasher = hmac.new(bytes.fromhex(self.salt), None, "sha256")
        for piece in pieces(text):
            hasher.update(piece.encode("utf-8", "replace"))
        return hasher.digest()[:_DIGEST].hex()

    # Replaying ------------------------------------------------------------------------------------

    def replay(
        self, entries: Sequence[Entry], history: Sequence[Message], make: Callable[[], Timeline]
    ) -> Replay:
        """The session as *entries* leave it; *make* makes its empty timeline.

        Messages of *history*, the caller's, replace those that have the same digest, and its texts
        those that are in files. Invalid entries raise one of `DAMAGED`.
        """
        if entries:
            self.salt = entries[0].salt
        turns = [turn for entry in entries for turn in entry.turns]
        known: dict[str, Message] = {}
        if any(map(_has_digests, turns)):
            for message in history:
                known[self._digest(message)] = message
        replay = Replay(make())
        texts: dict[str, str] = {}
        if any("files" in turn for turn in turns):
            texts = {self._text_digest(text): text for text in strings(history)}
        for number, entry in enumerate(entries, 1):
            for turn in entry.turns:
                files = turn.get("files", {})
                step = _unpack_step(_fill_texts(turn, files, texts), known, replay.hidden)
                replay.apply(step, files, history)
            if replay.agreed == len(replay.timeline.history):
                replay.fitting = number
                replay.fitted = replay.agreed
        return replay

    async def restore(self, replay: Replay) -> tuple[list[Message], list[str]]:
        """The raw history of *replay*, with the texts that are in files.

        A file that is gone leaves an empty text, and a sentence that names the message. Raises
        StorageError for one that cannot be read now, or was changed.
        """
        raw: list[Any] = list(replay.raw)
        references = []
        lost: list[str] = []
        for index, files in sorted(replay.files.items()):
            # A message that the caller has is whole already.
            message = raw[index]
            missing = [file for file in files if value_at(message, file[0]) == ""]
            if missing:
                raw[index] = copy_containers(message)
            references += [(index, *file) for file in missing]
        for start in range(0, len(references), _AT_ONCE):
            batch = references[start : start + _AT_ONCE]
            reads = [self._read(where, digest) for _, _, where, digest in batch]
            texts = await asyncio.gather(*reads, return_exceptions=True)
            for (index, place, *_), text in zip(batch, texts, strict=True):
                if isinstance(text, StorageError):
                    reason = f"message {index} of the history cannot be restored: {text}"
                    if text.errno != errno.ENOENT:
                        raise StorageError(text.errno, reason) from text
                    lost.append(f"message {index} of the history is incomplete: a text is gone")
                    continue
                if isinstance(text, BaseException):
                    raise text
                replace_text(raw[index], place, text)
        return raw, lost

    async def _read(self, where: str, digest: str) -> str:
        """The text in the file *where*. Raises StorageError unless it has the *digest*."""
        if self.text_reader is None:
            raise StorageError(f"{where} is in another storage: give it to the journal as texts=")
        with storage_errors():
            file = await self.text_reader.read(where)
        text = file.text
        if await in_thread_if(len(text) > _LONG, self._text_digest, text) != digest:
            raise StorageError(errno.EILSEQ, f"{where} was changed")
        return text


def _has_digests(turn: Mapping[str, Any]) -> bool:
    if any(turn.get("digests", ())):
        return True
    edits = list(turn.get("edits", ()))
    for *_, earlier_edits in turn.get("earlier", ()):
        edits += earlier_edits
    return any(any(digests) for *_, digests in edits)


def _fill_texts(
    turn: Mapping[str, Any], files: Mapping[str, list[Any]], texts: Mapping[str, str]
) -> Mapping[str, Any]:
    """*turn* with the *texts*, by their digests, that are in *files*."""
    if not texts or not files:
        return turn
    messages = list(turn["messages"])
    for number, moved in files.items():
        messages[int(number)] = copy_containers(messages[int(number)])
        for place, _, digest in moved:
            if digest in texts:
                replace_text(messages[int(number)], place, texts[digest])
    return {**turn, "messages": messages}


def _unpack_step(turn: Mapping[str, Any], known: Mapping[str, Message], hidden: set[int]) -> Step:
    """*turn* as it was; messages of edits that are not as they were sent are added to *hidden*."""
    digests = turn.get("digests", [])
    packed = turn.get("messages")
    if packed is None:
        packed = [{"role": "user", "content": digest} for digest in digests]
    step = Step(
        known=turn["known"],
        adopted=turn.get("adopted", False),
        messages=_unpack(packed, digests, known),
        edits=_unpack_edits(turn.get("edits", ()), known, hidden),
        stale=dict(turn.get("stale", ())),
        undone_count=turn.get("undone", 0),
        summaries=dict(turn.get("summaries", ())),
    )
    if "earlier" in turn:
        step.earlier = [
            EarlierContext(described_count, replaced_count, _unpack_edits(edits, known, hidden))
            for described_count, replaced_count, edits in turn["earlier"]
        ]
    elif not (step.undone_count or step.summaries):
        step.summaries = _summaries_without_mark(step)
    return step


def _summaries_without_mark(step: Step) -> dict[int, int]:
    """Return the summaries in *step*, for journals of older versions, which do not list them.

    Each describes the whole history of its turn. The edits of one stage go from the end to the
    beginning, so the first edit of a summary comes before the one with the text of the summary.
    """
    summaries: dict[int, int] = {}
    first = 0
    for number, edit in enumerate(step.edits):
        if number and edit.stop > step.edits[number - 1].start:
            first = number
        if len(edit.messages) > 1 and summary_body(edit.messages[0]) is not None:
            summaries[first] = step.known + len(step.messages)
    return summaries


def _unpack_edits(
    packed: Sequence[Sequence[Any]], known: Mapping[str, Message], hidden: set[int]
) -> list[Edit]:
    """Return the *packed* edits, and add the ids of redacted messages to *hidden*."""
    edits: list[Edit] = []
    for start, stop, messages, names in packed:
        edits.append(Edit(start, stop, _unpack(messages, names, known)))
        for message, digest in zip(messages, names, strict=True):
            if digest and digest not in known:
                hidden.add(id(message))
    return edits


def _unpack(
    packed: list[Message], digests: Sequence[str], known: Mapping[str, Message]
) -> list[Message]:
    """The messages *packed*, or those of the caller that are *known* by their *digests*."""
    ensure_messages(packed)
    if not digests:
        return packed
    return [known.get(digest, message) for message, digest in zip(packed, digests, strict=True)]
