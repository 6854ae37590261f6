"""Pack turns for a journal, and rebuild a session from the turns in its journal."""

from __future__ import annotations

import asyncio
import errno
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any, cast

from .._threads.pieces import pieces
from .._threads.threads import in_thread
from .._values import copy_containers, find_texts, replace_text, value_at
from ..errors import StorageError, storage_errors
from ..messages import Message, ensure_messages, strings
from ..messages.diff import Edit
from ..messages.identity import digest_of, parse, says_the_same, without_marks
from ..placeholders.names import session_folder
from ..placeholders.summaries import summary_body
from ..stages.reports import Removal
from ..storage import JournalStorage, TextReader
from ..storage.protocol import texts_of
from ..storage.records import Redact, redact_except_folder, redact_message
from ..storage.sealed import Entry
from .earlier import EarlierContext, has_only_grown
from .step import Step
from .timeline import Timeline

_DIGEST = 16  # bytes
_AT_ONCE = 16  # files that are read side by side
_LONG = 1_000_000  # characters that are hashed in some milliseconds
_SHORT = 100_000  # characters that are hashed in one call


@dataclass(slots=True)
class Replay:
    """A session rebuilt from the entries of its journal.

    *raw* is the raw history. It differs from that of the *timeline* if the caller has adopted a
    context as the history. *files* has the texts that are in files, by index of the message in
    *raw*. *hidden* contains the ids of messages that are not as they were sent.

    The caller has the first *agreed* messages of the timeline's history as well. *fitting* is the
    number of entries up to the latest one after which the caller had the whole history, which had
    *fitted* messages then. *abandoned* has a pair for each place at which the history lost replies
    of the model: the number of entries before it, and the number of turns of the next entry.
    """

    timeline: Timeline
    raw: list[Message] = field(default_factory=list)
    files: dict[int, list[Any]] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    is_adopted: bool = False
    agreed: int = 0
    fitting: int = 0
    fitted: int = 0
    abandoned: list[tuple[int, int]] = field(default_factory=list)
    _spans: list[int] = field(default_factory=lambda: [0])  # history[:n] is raw[: spans[n]]

    @property
    def has_hidden(self) -> bool:
        """True if messages of the context are not as they were sent."""
        return any(id(message) in self.hidden for message in self.timeline.context)

    def apply(self, step: Step, files: Mapping[str, list[Any]], history: Sequence[Message]) -> None:
        """Repeat *step*; *files* has the texts of its messages that are in files."""
        if step.adopted:
            self.is_adopted = True
            self._spans = [self._spans[end] for end in (0, *self.timeline.alignment.ends)]
            # The journal may lack texts of messages that only an earlier context has.
            self.timeline.earlier = []
        self._extend_raw(step, files)
        self.timeline.apply(step)
        self._compare(step, history)

    def loses_replies(self, step: Step) -> bool:
        """Return True if *step* takes replies of the model out of the history.

        A last message that only grows is not lost.
        """
        lost = self.raw[self._spans[step.unchanged_count] :]
        if lost and step.messages and has_only_grown(lost[0], step.messages[0]):
            lost = lost[1:]
        return any(message["role"] == "assistant" for message in lost)

    def _extend_raw(self, step: Step, files: Mapping[str, list[Any]]) -> None:
        cut = self._spans[step.unchanged_count]
        if cut < len(self.raw):
            self.files = {index: texts for index, texts in self.files.items() if index < cut}
        self.raw[cut:] = step.messages
        new = range(cut, len(self.raw))
        for number, texts in files.items():
            self.files[new[int(number)]] = texts
        self._spans[step.unchanged_count + 1 :] = range(cut + 1, len(self.raw) + 1)

    def _compare(self, step: Step, history: Sequence[Message]) -> None:
        ours = self.timeline.history
        agreed = 0 if step.adopted else min(self.agreed, step.unchanged_count)
        most = min(len(ours), len(history))
        while agreed < most and says_the_same(ours[agreed], history[agreed]):
            agreed += 1
        self.agreed = agreed


class Packing:
    """Packs the turns of a session as JSON values for a journal, and unpacks them.

    Secrets are hidden as *storage* hides them. Without *texts* only the digest of each message of
    the history is written.
    """

    def __init__(self, storage: JournalStorage | None, session_id: str, *, texts: bool) -> None:
        self.texts = texts
        self.salt: str = secrets.token_hex(_DIGEST)
        self.text_reader: TextReader | None = texts_of(storage) if storage else None
        """Storage of the texts to which the entries refer."""
        self.redact: Redact | None = getattr(storage, "redact", None)
        """Function that hides secrets in the entries, if there is one."""
        if self.redact:
            self.redact = redact_except_folder(session_folder(session_id), self.redact)

    # Packing --------------------------------------------------------------------------------------

    def pack(self, step: Step) -> dict[str, Any]:
        """Return *step* as JSON values. Raises StorageError if *redact* fails.

        If a message is not written completely, its digest is beside it; other messages have "".
        """
        turn: dict[str, Any] = {"known": step.unchanged_count}
        if self.texts:
            turn |= self._pack_history(step)
        else:
            turn["digests"] = [self._digest(parse(message)) for message in step.messages]
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
        if step.turn:
            turn["turn"] = step.turn
        if step.ancestors:
            turn["ancestors"] = step.ancestors
        if step.turn_ends is not None:
            turn["turn_ends"] = step.turn_ends
        if step.removals:
            turn["removed"] = [astuple(removal) for removal in step.removals]
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
        """Return where the storage has the texts that the stages have written in *step*."""
        locations: dict[str, str] = {}
        for storage, stored in step.stored:
            if storage == self.text_reader:
                locations |= stored
        return locations

    def _hide(self, messages: Sequence[Message]) -> tuple[list[Any], list[str]]:
        """Return *messages* without cache marks and secrets, and the digests of those with secrets.

        Messages without a secret have the digest "".
        """
        plain: list[Any] = [without_marks(message) for message in messages]
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
        """Empty the texts of *packed* that are in files, and return where each of them is.

        *locations* has the files of the texts in *raw*, the message before packing.
        """
        files: list[Any] = []
        for place, where in find_texts(raw, locations):
            text = replace_text(packed, place, "")
            if text is not None:
                files.append([place, where, self._text_digest(text)])
        return files

    def _digest(self, message: Message) -> str:
        """Return a keyed digest of *message*, by which it is recognized."""
        digest = digest_of(message, partial(hmac.new, bytes.fromhex(self.salt), None, "sha256"))
        return digest[:_DIGEST].hex()

    def _text_digest(self, text: str) -> str:
        """Return a keyed digest of *text*."""
        key = bytes.fromhex(self.salt)
        if len(text) <= _SHORT:  # in one call, which takes a quarter of the time
            return hmac.digest(key, text.encode("utf-8", "replace"), "sha256")[:_DIGEST].hex()
        hasher = hmac.new(key, None, "sha256")
        for piece in pieces(text):
            hasher.update(piece.encode("utf-8", "replace"))
        return hasher.digest()[:_DIGEST].hex()

    # Replaying ------------------------------------------------------------------------------------

    def replay(
        self, entries: Sequence[Entry], history: Sequence[Message], make: Callable[[], Timeline]
    ) -> Replay:
        """Rebuild the session from *entries*; *make* returns its empty timeline.

        Messages of the caller's *history* replace those with the same digest, and its texts replace
        those in files. Invalid entries raise one of the errors in `DAMAGED`.
        """
        if entries:
            self.salt = entries[0].salt
        caller = CallerHistory(history, self._digest, self._text_digest)
        replay = Replay(make())
        for number, entry in enumerate(entries, 1):
            for turn_number, turn in enumerate(entry.turns):
                files = turn.get("files", {})
                step = _unpack_step(_fill_texts(turn, files, caller), caller, replay.hidden)
                if not step.adopted and replay.loses_replies(step):
                    replay.abandoned.append((number - 1, turn_number))
                replay.apply(step, files, history)
            if replay.agreed == len(replay.timeline.history):
                replay.fitting = number
                replay.fitted = replay.agreed
        return replay

    async def restore(self, replay: Replay) -> tuple[list[Message], list[str]]:
        """Return the raw history of *replay*, with the texts that are in files.

        If a file is missing, its text is empty, and the second value has a sentence that names the
        message. Raises StorageError if a file cannot be read now, or was changed.
        """
        raw: list[Any] = list(replay.raw)
        references = []
        lost: list[str] = []
        for index, files in sorted(replay.files.items()):
            # A message that the caller has is complete already.
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
        """Return the text in the file *where*. Raises StorageError unless it has the *digest*."""
        if self.text_reader is None:
            raise StorageError(f"{where} is in another storage: give it to the journal as texts=")
        with storage_errors():
            file = await self.text_reader.read(where)
        text = file.text
        if len(text) > _LONG:
            text_digest = await in_thread(self._text_digest, text)
        else:
            text_digest = self._text_digest(text)
        if text_digest != digest:
            raise StorageError(errno.EILSEQ, f"{where} was changed")
        return text


class CallerHistory:
    """The caller's history, in which messages and texts that a journal lacks are found by digest.

    *message_digest* and *text_digest* are the functions that made the digests of the journal. A
    digest is computed when it is first needed: usually the caller has each message at its old
    index, and then those of the other messages, and of their texts, are not needed.
    """

    def __init__(
        self,
        history: Sequence[Message],
        message_digest: Callable[[Message], str],
        text_digest: Callable[[str], str],
    ) -> None:
        self._history = history
        self._message_digest = message_digest
        self._text_digest = text_digest
        self._digests: dict[int, str] = {}  # by index
        self._messages: dict[str, Message] | None = None  # by digest
        self._texts: dict[str, str] | None = None  # by digest

    def message(self, digest: str, index: int | None = None) -> Message | None:
        """Return the message with *digest*, probably at *index*; None if there is none."""
        if index is not None and index < len(self._history) and self._digest_at(index) == digest:
            return self._history[index]
        if self._messages is None:
            self._messages = {}
            for place, message in enumerate(self._history):
                self._messages[self._digest_at(place)] = message
        return self._messages.get(digest)

    def text(self, digest: str) -> str | None:
        """Return the text with *digest*, or None if there is none."""
        if self._texts is None:
            self._texts = {self._text_digest(text): text for text in strings(self._history)}
        return self._texts.get(digest)

    def _digest_at(self, index: int) -> str:
        """Return the digest of the message at *index*."""
        if index not in self._digests:
            self._digests[index] = self._message_digest(self._history[index])
        return self._digests[index]


def _fill_texts(
    turn: Mapping[str, Any], files: Mapping[str, list[Any]], caller: CallerHistory
) -> Mapping[str, Any]:
    """Return *turn* with the texts in *files* that the caller has.

    A message that the caller has is left as it is: `_unpack` replaces it.
    """
    if not files:
        return turn
    messages = list(turn["messages"])
    digests = turn.get("digests", ())
    for key, moved in files.items():
        number = int(key)
        if digests and caller.message(digests[number], turn["known"] + number) is not None:
            continue
        messages[number] = copy_containers(messages[number])
        for place, _, digest in moved:
            text = caller.text(digest)
            if text is not None:
                replace_text(messages[number], place, text)
    return {**turn, "messages": messages}


def _unpack_step(turn: Mapping[str, Any], caller: CallerHistory, hidden: set[int]) -> Step:
    """Return the step in *turn*; add the ids of redacted messages in its edits to *hidden*."""
    digests = turn.get("digests", [])
    packed = turn.get("messages")
    if packed is None:
        packed = [{"role": "user", "content": digest} for digest in digests]
    step = Step(
        unchanged_count=turn["known"],
        adopted=turn.get("adopted", False),
        messages=_unpack(packed, digests, caller, turn["known"]),
        edits=_unpack_edits(turn.get("edits", ()), caller, hidden),
        stale=dict(turn.get("stale", ())),
        undone_count=turn.get("undone", 0),
        summaries=dict(turn.get("summaries", ())),
        turn=turn.get("turn", 0),
        ancestors=tuple(turn.get("ancestors", ())),
        removals=_unpack_removals(turn.get("removed", ())),
    )
    if "turn_ends" in turn:
        step.turn_ends = [(number, length) for number, length in turn["turn_ends"]]
    if "earlier" in turn:
        step.earlier = [
            EarlierContext(described_count, replaced_count, _unpack_edits(edits, caller, hidden))
            for described_count, replaced_count, edits in turn["earlier"]
        ]
    elif not (step.undone_count or step.summaries):
        step.summaries = _summaries_without_mark(step)
    return step


def _unpack_removals(packed: Sequence[Sequence[Any]]) -> list[Removal]:
    """Return the *packed* removals."""
    removals = []
    for turn, stage, what, files, time in packed:
        removals.append(Removal(turn, stage, what, tuple(files), time))
    return removals


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
            summaries[first] = step.unchanged_count + len(step.messages)
    return summaries


def _unpack_edits(
    packed: Sequence[Sequence[Any]], caller: CallerHistory, hidden: set[int]
) -> list[Edit]:
    """Return the *packed* edits, and add the ids of redacted messages to *hidden*."""
    edits: list[Edit] = []
    for start, stop, messages, names in packed:
        edits.append(Edit(start, stop, _unpack(messages, names, caller)))
        for message, digest in zip(messages, names, strict=True):
            if digest and caller.message(digest) is None:
                hidden.add(id(message))
    return edits


def _unpack(
    packed: list[Message],
    digests: Sequence[str],
    caller: CallerHistory,
    start: int | None = None,
) -> list[Message]:
    """Return the messages *packed*, or those of the *caller* that have one of the *digests*.

    The first message was message *start* of the history, if it was in the history.
    """
    ensure_messages(packed)
    if not digests:
        return packed
    messages: list[Message] = []
    for place, (message, digest) in enumerate(zip(packed, digests, strict=True)):
        own = None
        if digest:
            own = caller.message(digest, None if start is None else start + place)
        messages.append(message if own is None else own)
    return messages
