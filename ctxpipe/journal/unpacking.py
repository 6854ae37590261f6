"""Unpack the turns of a journal, with the help of the history that the caller has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._values import copy_containers, replace_text
from ..messages import Message, ensure_messages, strings
from ..messages.diff import Edit
from ..placeholders.summaries import summary_body
from ..stages.reports import Removal
from .earlier import EarlierContext
from .step import Step


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


def unpack_step(turn: Mapping[str, Any], caller: CallerHistory, hidden: set[int]) -> Step:
    """Return the step in *turn*; add the ids of redacted messages in its edits to *hidden*."""
    turn = _fill_texts(turn, caller)
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


def _fill_texts(turn: Mapping[str, Any], caller: CallerHistory) -> Mapping[str, Any]:
    """Return *turn* with those of its texts in files that the caller has.

    A message that the caller has is left as it is: `_unpack` replaces it.
    """
    files = turn.get("files")
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
        if not any(names):  # no message was redacted
            continue
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
    if not any(digests):
        return packed
    messages: list[Message] = []
    for place, (message, digest) in enumerate(zip(packed, digests, strict=True)):
        own = None
        if digest:
            own = caller.message(digest, None if start is None else start + place)
        messages.append(message if own is None else own)
    return messages
