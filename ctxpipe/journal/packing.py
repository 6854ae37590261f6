"""Pack turns for a journal, and rebuild a session from the turns in its journal."""

from __future__ import annotations

import asyncio
import errno
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any, cast

from .._threads.pieces import pieces
from .._threads.threads import in_thread
from .._values import copy_containers, find_texts, replace_text, value_at
from ..errors import StorageError, storage_errors
from ..messages import Message, strings
from ..messages.diff import Edit
from ..messages.identity import digest_of, parse, says_the_same, without_marks
from ..placeholders.names import session_folder
from ..storage import JournalStorage, TextReader
from ..storage.protocol import texts_of
from ..storage.records import Redact, redact_except_folder, redact_message
from ..storage.sealed import Entry
from .replay import Replay
from .step import Step
from .timeline import Timeline
from .unpacking import CallerHistory, unpack_step

_DIGEST = 16  # bytes
_AT_ONCE = 16  # files that are read side by side
_LONG = 1_000_000  # characters that are hashed in some milliseconds
_SHORT = 100_000  # characters that are hashed in one call


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
        replay = Replay(make(), history)
        for number, entry in enumerate(entries, 1):
            for turn_number, turn in enumerate(entry.turns):
                step = unpack_step(turn, caller, replay.hidden)
                if not step.adopted and replay.loses_replies(step):
                    replay.abandoned.append((number - 1, turn_number))
                replay.add(step, turn.get("files", {}))
            replay.end_entry(number)
        replay.finish()
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
