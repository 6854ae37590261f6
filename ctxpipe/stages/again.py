"""Move to files again what other conversations of the same name have moved to files before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .._text import short_repr
from .._threads.threads import in_thread_if
from ..edits.decisions import Decision, DecisionMatches, long_message_texts, replace_passages
from ..edits.offload import (
    Placeholders,
    lookup_key,
    offload_again,
    stored_text,
    text_of,
)
from ..messages import strings, tool_calls, tool_results
from ..placeholders.names import content_hash
from ..tokens import TokenCounter
from .moves import Pointers, pair_written, write_texts
from .offload import BatchOffload, DirectOffload
from .protocol import Change, Skip, Stage, Stored, Turn
from .reports import Offloaded

_LONG = 200_000  # characters whose tokens are counted in a worker thread


def pointers_of(stages: Sequence[Stage]) -> dict[bool, Pointers]:
    """Return how *stages* name files and point to them: by whether batch offloading does it."""
    pointers: dict[bool, Pointers] = {}
    for stage in stages:
        if isinstance(stage, DirectOffload | BatchOffload):
            pointers.setdefault(isinstance(stage, BatchOffload), stage.file_pointers)
    return pointers


def stages_again(
    matches: DecisionMatches, start: int, pointers: Mapping[bool, Pointers]
) -> dict[int, OffloadAgain]:
    """Return a stage for each storage of *pointers*, by places before those of the pipeline."""
    stages: dict[int, OffloadAgain] = {}
    storages = {id(each.storage): each.storage for each in pointers.values()}
    for place, storage in enumerate(storages.values(), -len(storages)):
        own = {form: each for form, each in pointers.items() if each.storage is storage}
        stages[place] = OffloadAgain(matches, start, own)
    return stages


class _Text(NamedTuple):
    """A text on its way to a file: under which key, by which decision, and what replaces it."""

    key: str
    stored: str
    decision: Decision
    pointers: Pointers

    def placeholder(self, location: str) -> str:
        path = self.pointers.visible_path(self.key, location)
        return self.decision.placeholder(path, self.stored)


@dataclass(frozen=True, slots=True, repr=False)
class OffloadAgain:
    """Move the texts in *matches* into files of this conversation.

    The messages before *start* stay. *pointers* say where the files are, by whether the decision is
    one of batch offloading. What cannot be written stays inline.
    """

    matches: DecisionMatches = field(repr=False)
    start: int
    pointers: Mapping[bool, Pointers] = field(repr=False)

    __repr__ = short_repr

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Write first, then replace. Raises StorageError when nothing can be written."""
        start = max(self.start, turn.protected)
        texts = self._texts(turn, start)
        if not texts:
            return Skip("nothing that has left before is in the messages that are new")
        await turn.counter.warm()
        is_long = sum(len(text.stored) for text in texts.values()) > _LONG
        texts = await in_thread_if(is_long, _worthwhile, texts, turn.counter)
        if not texts:
            return Skip("no placeholder would be cheaper than what it replaces")
        moving = list(texts.items())
        storage = moving[0][1].pointers.storage
        files = await write_texts(storage, [(text.key, text.stored) for _, text in moving])
        pairs, failed = pair_written(moving, files)
        placeholders: Placeholders = {
            lookup: text.placeholder(file) for (lookup, text), file in pairs
        }
        placeholders |= self._messages_with(turn, start, placeholders)
        messages = offload_again(
            placeholders, list(turn.messages), start, turn.messages[:start], start
        )
        chars = sum(len(text.stored) for (_, text), _ in pairs)
        saved = chars - sum(len(placeholders[lookup]) for (lookup, _), _ in pairs)
        written = tuple(file for _, file in pairs)
        detail = Offloaded(written, chars, saved, results=len(pairs), failed=failed)
        locations = {text.stored: file for (_, text), file in pairs}
        return Change(messages, detail, stored=Stored(storage, locations))

    def _texts(self, turn: Turn, start: int) -> dict[int, _Text]:
        """Return the texts that may go, by `lookup_key`."""
        texts: dict[int, _Text] = {}
        for result in tool_results(turn.messages, start):
            lookup = lookup_key(result.tool_use_id, text_of(result.content))
            pointers = self._pointers(lookup)
            if pointers is not None:
                stored = stored_text(result.content, indent=pointers.indent)
                texts[lookup] = self._text(turn, result.tool_use_id, stored, lookup, pointers)
        for call in tool_calls(turn.messages, start):
            inputs = dict.fromkeys(strings(call.input)) if self.matches.texts else {}
            for number, text in enumerate(inputs, 1):
                lookup = lookup_key(call.id, text)
                pointers = self._pointers(lookup)
                if pointers is not None:
                    name = f"{call.id}-input-{number}"
                    texts[lookup] = self._text(turn, name, text, lookup, pointers)
        for text in self._messages(turn, start):

            def note(passage: str, decision: Decision) -> str:
                pointers = self.pointers.get(decision.is_batch)
                if pointers is not None:
                    key = pointers.key(turn.session_id, f"repeated-{content_hash(passage, 16)}")
                    texts[lookup_key("", passage)] = _Text(key, passage, decision, pointers)
                return ""

            replace_passages(text, self.matches.passages[lookup_key("", text)], note)
        return texts

    def _pointers(self, lookup: int) -> Pointers | None:
        decision = self.matches.texts.get(lookup)
        return None if decision is None else self.pointers.get(decision.is_batch)

    def _text(self, turn: Turn, name: str, stored: str, lookup: int, pointers: Pointers) -> _Text:
        key = pointers.key(turn.session_id, name)
        return _Text(key, stored, self.matches.texts[lookup], pointers)

    def _messages(self, turn: Turn, start: int) -> list[str]:
        """Return the texts of messages that repeat what has left."""
        if not self.matches.passages:
            return []
        texts = long_message_texts(turn.messages, start, in_replies=True)
        return [text for text in texts if lookup_key("", text) in self.matches.passages]

    def _messages_with(self, turn: Turn, start: int, placeholders: Placeholders) -> Placeholders:
        """Return the texts of messages with the *placeholders* of their passages."""

        def replacement(passage: str, _: Decision) -> str:
            return placeholders.get(lookup_key("", passage), passage)

        return {
            lookup_key("", text): replace_passages(
                text, self.matches.passages[lookup_key("", text)], replacement
            )
            for text in self._messages(turn, start)
        }


def _worthwhile(texts: Mapping[int, _Text], counter: TokenCounter) -> dict[int, _Text]:
    """Return those of *texts* whose placeholder is cheaper, as long as their keys are free."""
    return {
        lookup: text
        for lookup, text in texts.items()
        if counter.over(
            text.stored,
            counter.text(text.placeholder(text.pointers.storage.location(text.key))),
        )
    }
