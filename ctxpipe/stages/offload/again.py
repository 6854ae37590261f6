"""Move texts to files again that other conversations of the same name moved to files before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..._text import short_repr
from ..._threads.threads import in_thread_if
from ...messages import strings, tool_calls, tool_results
from ...placeholders.names import content_hash
from ...tokens import TokenCounter
from ..moves import Pointers, pair_written, write_texts
from ..protocol import Change, Skip, Stage, Stored, Turn
from ..reading.moved_texts import Placeholders, lookup_key, offload_again
from ..reading.results import stored_text, text_of
from ..reports import Offloaded
from .decisions import Decision, DecisionMatches, long_message_texts, replace_passages
from .stage import BatchOffload, DirectOffload

_LONG = 200_000  # characters; the tokens of more are counted in a worker thread


def pointers_of(stages: Sequence[Stage]) -> dict[bool, Pointers]:
    """Return the file names and placeholders of the offloading *stages*.

    The key is True for batch offloading, False for direct offloading.
    """
    pointers: dict[bool, Pointers] = {}
    for stage in stages:
        if isinstance(stage, DirectOffload | BatchOffload):
            pointers.setdefault(isinstance(stage, BatchOffload), stage.file_pointers)
    return pointers


def stages_again(
    matches: DecisionMatches, start: int, pointers: Mapping[bool, Pointers]
) -> dict[int, OffloadAgain]:
    """Return a stage for each storage object of *pointers*, by its place in the pipeline.

    The places are negative, -1 for the last of them, so these stages run before all others.
    *pointers* has the file names and placeholders of batch offloading (True) and direct offloading
    (False). *matches* are the texts that other conversations of the same name moved to files. The
    stages leave the messages before index *start* unchanged.
    """
    stages: dict[int, OffloadAgain] = {}
    storages = {id(each.storage): each.storage for each in pointers.values()}
    for place, storage in enumerate(storages.values(), -len(storages)):
        pointers_here = {
            is_batch: each for is_batch, each in pointers.items() if each.storage is storage
        }
        stages[place] = OffloadAgain(matches, start, pointers_here)
    return stages


class _MovingText(NamedTuple):
    """A text to move: its storage key, its *stored* form, and the decision to move it."""

    key: str
    stored: str
    decision: Decision
    pointers: Pointers

    def placeholder(self, location: str) -> str:
        """Return the placeholder for the text in the file at *location*."""
        path = self.pointers.visible_path(self.key, location)
        return self.decision.placeholder(path, self.stored)


@dataclass(frozen=True, slots=True, repr=False)
class OffloadAgain:
    """Move the texts in *matches* into files of this conversation.

    The messages before *start* stay. *pointers* has the file names and placeholders of batch
    offloading (True) and direct offloading (False). Texts that cannot be written stay in place.
    """

    matches: DecisionMatches = field(repr=False)
    start: int
    pointers: Mapping[bool, Pointers] = field(repr=False)

    __repr__ = short_repr

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Write the texts, then replace them. Raises StorageError if nothing can be written."""
        start = max(self.start, turn.protected)
        message_texts = self._repeating_texts(turn, start)
        texts = self._texts(turn, start, message_texts)
        if not texts:
            return Skip("the new messages repeat no text that was moved to a file before")
        await turn.counter.warm()
        is_long = sum(len(text.stored) for text in texts.values()) > _LONG
        texts = await in_thread_if(is_long, _worthwhile, texts, turn.counter)
        if not texts:
            return Skip("no placeholder would be cheaper than what it replaces")
        moving_texts = list(texts.items())
        storage = moving_texts[0][1].pointers.storage
        files = await write_texts(storage, [(text.key, text.stored) for _, text in moving_texts])
        pairs, failed = pair_written(moving_texts, files)
        placeholders: Placeholders = {
            lookup: text.placeholder(file) for (lookup, text), file in pairs
        }
        chars = sum(len(text.stored) for (_, text), _ in pairs)
        saved_chars = chars - sum(len(placeholder) for placeholder in placeholders.values())
        written_files = tuple(file for _, file in pairs)
        detail = Offloaded(written_files, chars, saved_chars, results=len(pairs), failed=failed)
        placeholders |= self._messages_with(message_texts, placeholders)
        messages = offload_again(
            placeholders, list(turn.messages), start, turn.messages[:start], start
        )
        locations = {text.stored: file for (_, text), file in pairs}
        return Change(messages, detail, stored=Stored(storage, locations))

    def _texts(
        self, turn: Turn, start: int, message_texts: Sequence[str]
    ) -> dict[int, _MovingText]:
        """Return the texts of results, inputs and messages that match, by `lookup_key`.

        Only messages from *start* on are searched. *message_texts* are their own texts that repeat
        a text which was moved before.
        """
        texts: dict[int, _MovingText] = {}
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
        for text in message_texts:

            def add_passage(passage: str, decision: Decision) -> str:
                """Add *passage* to the texts to move, if there are file names for its decision."""
                pointers = self.pointers.get(decision.is_batch)
                if pointers is not None:
                    key = pointers.key(turn.session_id, f"repeated-{content_hash(passage, 16)}")
                    texts[lookup_key("", passage)] = _MovingText(key, passage, decision, pointers)
                return ""  # only the passages are of interest here, not the new text

            replace_passages(text, self.matches.passages[lookup_key("", text)], add_passage)
        return texts

    def _pointers(self, lookup: int) -> Pointers | None:
        """Return the pointers for the text with the key *lookup*; None if it does not leave."""
        decision = self.matches.texts.get(lookup)
        return None if decision is None else self.pointers.get(decision.is_batch)

    def _text(
        self, turn: Turn, name: str, stored: str, lookup: int, pointers: Pointers
    ) -> _MovingText:
        """Return the text to move, with its storage key, which ends in *name*, and its decision."""
        key = pointers.key(turn.session_id, name)
        return _MovingText(key, stored, self.matches.texts[lookup], pointers)

    def _repeating_texts(self, turn: Turn, start: int) -> list[str]:
        """Return the texts of messages that repeat a text that was moved before."""
        if not self.matches.passages:
            return []
        texts = long_message_texts(turn.messages, start, in_replies=True)
        return [text for text in texts if lookup_key("", text) in self.matches.passages]

    def _messages_with(
        self, message_texts: Sequence[str], placeholders: Placeholders
    ) -> Placeholders:
        """Return *message_texts* with passages replaced by *placeholders*, by `lookup_key`."""

        def replacement(passage: str, _: Decision) -> str:
            return placeholders.get(lookup_key("", passage), passage)

        new_texts: Placeholders = {}
        for text in message_texts:
            lookup = lookup_key("", text)
            new_texts[lookup] = replace_passages(text, self.matches.passages[lookup], replacement)
        return new_texts


def _worthwhile(texts: Mapping[int, _MovingText], counter: TokenCounter) -> dict[int, _MovingText]:
    """Return the *texts* whose placeholder has fewer tokens, if no other file has its key."""
    worthwhile: dict[int, _MovingText] = {}
    for lookup, text in texts.items():
        placeholder = text.placeholder(text.pointers.storage.location(text.key))
        if counter.over(text.stored, counter.text(placeholder)):
            worthwhile[lookup] = text
    return worthwhile
