"""Move texts out of the context into files: choose the names, write, then point to the files."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from .._threads.threads import in_thread_if
from ..edits import offload
from ..edits.citations import has_citations, without_dangling_citations
from ..edits.offload import OffloadCandidate, OffloadRules
from ..errors import SettingsError, StorageError, safe_text, storage_errors
from ..messages import ToolCall, ToolResult, rebuilt, rewrite, without_surrogates
from ..placeholders.locations import SCHEME, is_url
from ..placeholders.names import safe_name, session_folder
from ..placeholders.placeholders import (
    DIRECT,
    MAX_SHOWN,
    SEARCHABLE,
    Preview,
    placeholder,
    reference,
)
from ..settings import check_settings, instance_of
from ..storage import TextWriter
from ..storage.references import check_reference, reference_of, visible_path
from .protocol import Change, Skip, Stored, Turn
from .reports import Offloaded

T = TypeVar("T")

Place: TypeAlias = tuple[int, int]
"""Where a block is: the index of its message, and its own index there."""

_NAME = r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_SAMPLE = "SAMPLEOFANAME"


@dataclass(frozen=True, slots=True)
class Pointers:
    """How one stage names files and points to them."""

    storage: TextWriter
    form: str
    preview: Preview | None = None
    prefix: str = ""
    indent: int | None = None

    def check(self) -> None:
        check_settings(
            self,
            storage=instance_of(TextWriter, "a TextWriter such as LocalStorage('.ctxpipe')"),
            preview=instance_of(Preview, "a Preview(head, tail)").optional,
        )
        preview = self.preview
        if preview is not None and preview.head + preview.tail > MAX_SHOWN:
            raise SettingsError(
                f"preview is {preview!r}; give at most {MAX_SHOWN} characters: "
                "a longer one would be taken for a tool's own text"
            )
        check_reference(reference_of(self.storage))
        key = f"{_SAMPLE}/{_SAMPLE}.md"
        path = self.visible_path(key, self.storage.location(key))
        if reference(placeholder(self.form, path)) == path:
            return
        raise SettingsError(
            f"storage is at {path!r}, where no placeholder can point to: its path has a line break "
            "or another control character, or is longer than 4,096 characters"
        )

    def key(self, session_id: str, name: str) -> str:
        # Named after the id as it will be sent: the id is how the placeholder is recognized later.
        return f"{session_folder(session_id)}/{self.prefix}{safe_name(without_surrogates(name))}.md"

    def visible_path(self, key: str, location: str) -> str:
        """The path that the model sees for the file at *location*.

        Its name differs from the key's where that name was in use already.
        """
        return visible_path(reference_of(self.storage), key.rsplit("/", 1)[0], location)

    def replacement(self, turn: Turn, move: Move, location: str) -> str:
        """The placeholder of what *move* moves to the file at *location*."""
        form = self.form + SEARCHABLE if turn.can_search else self.form
        path = self.visible_path(move.key, location)
        return placeholder(form, path, move.text, self.preview, sources=move.sources)

    def own_paths(self, session_id: str) -> re.Pattern[str]:
        """Finds the path of a file of ours in a text, in any form that we print."""
        folder = session_folder(session_id)
        sample = f"{folder}/{self.prefix}{_SAMPLE}.md"
        location = self.storage.location(sample)
        root = os.path.dirname(os.path.dirname(location))
        forms = []
        if is_url(location):
            forms.append(rf"{SCHEME}{_NAME}(?:/{_NAME})+")
        elif root.strip("./"):
            forms.append(rf"{re.escape(root)}(?:/{_NAME})+")
        forms += [
            re.escape(self.visible_path(sample, location)).replace(_SAMPLE, _NAME),
            # All stages recognize the plain forms of each; a session may be named like one of the
            # user's folders.
            rf"{re.escape(folder)}/{_NAME}\.md",
            rf"tool-result-{_NAME}\.md",
        ]
        return re.compile(rf"(?<![\w.-])(?:{'|'.join(forms)})")


class _RulesByFolder(dict[str, OffloadRules]):
    """What a stage may offload in a session, by the current folder that relative paths are for."""


def recall_rules(
    turn: Turn, storage: TextWriter, make: Callable[[str], OffloadRules]
) -> OffloadRules:
    """What *make* returns for the session, called once.

    It costs more than all else in a turn with nothing to do.
    """
    rules_by_folder = turn.recall(_RulesByFolder)
    folder = os.getcwd() if reference_of(storage) == "relative" else ""
    if folder not in rules_by_folder:
        rules_by_folder[folder] = make(turn.session_id)
    return rules_by_folder[folder]


@dataclass(frozen=True, slots=True)
class Move:
    """One text on its way out of the context: the block that it is in, and its key."""

    item: ToolResult | ToolCall
    key: str
    text: str
    pointers: Pointers

    @property
    def sources(self) -> list[str]:
        """Where the search results and documents in the text come from."""
        return offload.sources_in(self.item.content) if isinstance(self.item, ToolResult) else []

    def predict_placeholder(self, turn: Turn) -> str:
        """The placeholder of the text, as long as the key is free."""
        return self.pointers.replacement(turn, self, self.pointers.storage.location(self.key))


async def worthwhile_moves(
    pointers: Pointers, turn: Turn, chosen: Sequence[OffloadCandidate], rules: OffloadRules
) -> list[Move]:
    """The moves of *chosen* for which the placeholder is cheaper than what it replaces."""
    if not chosen:
        return []
    await turn.counter.warm()  # what is counted below is short
    is_long = _is_long([candidate.chars for candidate in chosen])
    return await in_thread_if(is_long, _cheaper_moves, pointers, turn, chosen, rules)


def _is_long(sizes: Sequence[int]) -> bool:
    """Whether replacing texts of these *sizes* would hold up the event loop."""
    return len(sizes) > 50 or sum(sizes) > 200_000


def _cheaper_moves(
    pointers: Pointers, turn: Turn, chosen: Iterable[OffloadCandidate], rules: OffloadRules
) -> list[Move]:
    counter = turn.counter
    moves: list[Move] = []
    for candidate in chosen:
        for name, text in _texts(candidate, rules, pointers.indent):
            key = pointers.key(turn.session_id, name)
            move = Move(candidate.item, key, text, pointers)
            if counter.over(text, counter.text(move.predict_placeholder(turn))):
                moves.append(move)
    return moves


def _texts(
    candidate: OffloadCandidate, rules: OffloadRules, indent: int | None
) -> list[tuple[str, str]]:
    """The texts to store for *candidate*, each with the name of its file."""
    item = candidate.item
    if isinstance(item, ToolResult):
        return [(item.tool_use_id, offload.stored_text(item.content, indent=indent))]
    texts = dict.fromkeys(rules.long_texts(item))
    return [(f"{item.id}-input-{number}", text) for number, text in enumerate(texts, 1)]


def _point_to_files(turn: Turn, moves: Sequence[Move], files: Sequence[Written]) -> Change:
    """The context with placeholders instead of the texts of *moves*, as far as they are in *files*.

    Raises StorageError when none is.
    """
    pairs, failed = pair_written(moves, files)
    locations: dict[str, str] = {}
    results: dict[Place, object] = {}
    inputs: dict[Place, object] = {}
    chars = 0
    saved = 0
    for move, file in pairs:
        locations[move.text] = file
        replacement = move.pointers.replacement(turn, move, file)
        chars += len(move.text)
        saved += len(move.text) - len(replacement)
        item = move.item
        if isinstance(item, ToolResult):
            results[item.place] = offload.with_placeholder(item.content, replacement)
        else:
            given = inputs.get(item.place, item.input)
            inputs[item.place] = _substitute(given, move.text, replacement)
    messages = rewrite(rewrite(turn.messages, results), inputs, key="input")
    if any(has_citations(message) for message in messages):
        messages = without_dangling_citations(turn.messages, messages)
    written = tuple(file for _, file in pairs)
    detail = Offloaded(written, chars, saved, len(results), len(inputs), failed=failed)
    return Change(messages, detail, stored=Stored(moves[0].pointers.storage, locations))


def _substitute(value: object, old: str, new: str) -> object:
    """*value* with the same keys, and *new* for each text in it that is *old*."""
    return rebuilt(value, lambda item: new if item == old else item)


async def move_texts(turn: Turn, moves: Sequence[Move], act: Act) -> Change:
    """Have *act* write first, then replace; what cannot be written stays inline.

    Raises StorageError when nothing can be written.
    """
    files = await act(moves[0].pointers.storage, [(each.key, each.text) for each in moves])
    is_long = _is_long([len(each.text) for each in moves])
    return await in_thread_if(is_long, _point_to_files, turn, moves, files)


# Writing ------------------------------------------------------------------------------------------

Written: TypeAlias = str | StorageError
"""Where a text is, or why it could not be written."""

Act: TypeAlias = Callable[[TextWriter, Sequence[tuple[str, str]]], Awaitable[Sequence[Written]]]
"""What is done with each (key, text) of a turn: `write_texts`, or `predict_files` for a plan."""


async def write_texts(storage: TextWriter, texts: Sequence[tuple[str, str]]) -> Sequence[Written]:
    """Write *texts* together, or one by one where that fails."""
    try:
        with storage_errors():
            return await storage.write(texts)
    except StorageError as error:
        if len(texts) == 1:
            return [error]
    # One text that cannot be written must not keep the others in the context for ever.
    files: list[Written] = []
    for text in texts:
        files += await write_texts(storage, [text])
    return files


async def predict_files(storage: TextWriter, texts: Sequence[tuple[str, str]]) -> Sequence[Written]:
    """Where `write_texts` would put them as long as every key is free; nothing is written."""
    return [storage.location(key) for key, _ in texts]


def pair_written(
    items: Iterable[T], files: Sequence[Written]
) -> tuple[list[tuple[T, str]], tuple[str, ...]]:
    """Each of *items* that is in a file, with that file; and why others are in none.

    Raises StorageError when all are in none.
    """
    both = zip(items, files, strict=True)
    pairs = [(item, file) for item, file in both if not isinstance(file, StorageError)]
    errors = [file for file in files if isinstance(file, StorageError)]
    if not pairs:
        raise errors[0]
    return pairs, tuple(map(safe_text, errors))


class Moving(ABC):
    """A stage that moves texts into files of its *storage*."""

    __slots__ = ()

    storage: TextWriter

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self.storage, DIRECT)

    @property
    def file_pointers(self) -> Pointers:
        """How the stage names its files and points to them."""
        return self._pointers

    async def __call__(self, turn: Turn) -> Change | Skip:
        """What cannot be written stays inline.

        Raises StorageError when nothing else is left to do.
        """
        return await self._propose(turn, write_texts)

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        proposal = await self._propose(turn, predict_files)
        return proposal if isinstance(proposal, Skip) else replace(proposal, stored=None)

    @abstractmethod
    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        """The decision, of which *act* makes a change."""
