"""Move texts out of the context: choose file names, write the files, then point to them."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from .._threads.threads import in_thread
from ..errors import SettingsError, StorageError, safe_text, storage_errors
from ..messages import ToolCall, ToolResult, rebuilt, rewrite, without_surrogates
from ..messages.activity import is_failure
from ..placeholders.locations import SCHEME, is_url
from ..placeholders.names import safe_name, session_folder
from ..placeholders.placeholders import (
    DIRECT,
    MAX_PREVIEW_CHARS,
    SEARCHABLE,
    Preview,
    placeholder,
    reference,
)
from ..settings import check_settings, instance_of
from ..storage import TextWriter
from ..storage.references import check_reference, reference_of, visible_path
from .protocol import Change, Skip, Stored, Turn
from .reading.candidates import OffloadCandidate, OffloadRules
from .reading.citations import has_citations, without_dangling_citations
from .reading.results import plain_text, sources_in, stored_text, with_placeholder
from .reading.what_applies import error_lines
from .reports import Offloaded

T = TypeVar("T")

Place: TypeAlias = tuple[int, int]
"""The place of a block: the index of its message, and its own index in the message."""

_NAME = r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_SAMPLE = "SAMPLEOFANAME"


@dataclass(frozen=True, slots=True)
class Pointers:
    """The file names and placeholders of one stage.

    *form* is the text of a placeholder, *prefix* the beginning of each file name. *indent* is that
    of the JSON of text blocks in a file. *preview* is the part of a text that stays visible.
    """

    storage: TextWriter
    form: str
    preview: Preview | None = None
    prefix: str = ""
    indent: int | None = None

    def check(self) -> None:
        """Raise SettingsError if the storage or the preview cannot be used for placeholders."""
        check_settings(
            self,
            storage=instance_of(TextWriter, "a TextWriter such as LocalStorage('.ctxpipe')"),
            preview=instance_of(Preview, "a Preview(head, tail)").optional,
        )
        preview = self.preview
        if preview is not None and preview.head + preview.tail > MAX_PREVIEW_CHARS:
            raise SettingsError(
                f"preview is {preview!r}; give at most {MAX_PREVIEW_CHARS} characters: "
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
        """Return the storage key of the file *name* of a session."""
        # Surrogates are replaced as in the request: a placeholder is recognized by the call's id.
        return f"{session_folder(session_id)}/{self.prefix}{safe_name(without_surrogates(name))}.md"

    def visible_path(self, key: str, location: str) -> str:
        """Return the path that the model sees for the file at *location*.

        Its name differs from that of *key* if that name was in use already.
        """
        return visible_path(reference_of(self.storage), key.rsplit("/", 1)[0], location)

    def replacement(self, turn: Turn, move: Move, location: str) -> str:
        """Return the placeholder for the text of *move*, which is in the file at *location*."""
        form = self.form + SEARCHABLE if turn.can_search else self.form
        path = self.visible_path(move.key, location)
        return placeholder(
            form, path, move.text, self.preview, sources=move.sources, failure=move.failure
        )

    def own_paths(self, session_id: str) -> re.Pattern[str]:
        """Return a pattern for the path of a file of ctxpipe in a text, in any of its forms."""
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
            # The last two are forms that every stage uses. They need the full names: a session may
            # be named like one of the user's folders.
            rf"{re.escape(folder)}/{_NAME}\.md",
            rf"tool-result-{_NAME}\.md",
        ]
        return re.compile(rf"(?<![\w.-])(?:{'|'.join(forms)})")


class _RulesByFolder(dict[str, OffloadRules]):
    """The rules of a stage in one session, by the current folder: relative paths depend on it."""


def recall_rules(
    turn: Turn, storage: TextWriter, make: Callable[[str], OffloadRules]
) -> OffloadRules:
    """Return what *make* returns for the session; it is called once and remembered.

    Making the rules costs more than everything else in a turn with nothing to do.
    """
    rules_by_folder = turn.recall(_RulesByFolder)
    folder = os.getcwd() if reference_of(storage) == "relative" else ""
    if folder not in rules_by_folder:
        rules_by_folder[folder] = make(turn.session_id)
    return rules_by_folder[folder]


@dataclass(frozen=True, slots=True)
class Move:
    """A text that leaves the context: the block that it is in, and its storage key."""

    item: ToolResult | ToolCall
    key: str
    text: str
    pointers: Pointers

    @property
    def sources(self) -> list[str]:
        """The sources of the search results and documents in the text."""
        if not isinstance(self.item, ToolResult):
            return []
        return sources_in(self.item.content)

    @property
    def failure(self) -> str:
        """The lines that say what went wrong if the text is the result of a failed call, or ""."""
        if not isinstance(self.item, ToolResult) or not is_failure(self.item):
            return ""
        return error_lines(plain_text(self.text))

    def predict_placeholder(self, turn: Turn) -> str:
        """Return the placeholder of the text if no other file has the key."""
        return self.pointers.replacement(turn, self, self.pointers.storage.location(self.key))


async def worthwhile_moves(
    pointers: Pointers, turn: Turn, candidates: Sequence[OffloadCandidate], rules: OffloadRules
) -> list[Move]:
    """Return the moves of *candidates* whose placeholder has fewer tokens than the text."""
    if not candidates:
        return []
    await turn.counter.warm()
    if _is_long([candidate.chars for candidate in candidates]):
        return await in_thread(_cheaper_moves, pointers, turn, candidates, rules)
    return _cheaper_moves(pointers, turn, candidates, rules)


def _is_long(sizes: Sequence[int]) -> bool:
    """Return True if replacing texts of these *sizes* (characters) would block the event loop."""
    return len(sizes) > 50 or sum(sizes) > 200_000


def _cheaper_moves(
    pointers: Pointers, turn: Turn, candidates: Iterable[OffloadCandidate], rules: OffloadRules
) -> list[Move]:
    """Return the moves of *candidates* whose placeholder has fewer tokens than the text."""
    counter = turn.counter
    moves: list[Move] = []
    for candidate in candidates:
        for name, text in _texts(candidate, rules, pointers.indent):
            key = pointers.key(turn.session_id, name)
            move = Move(candidate.item, key, text, pointers)
            placeholder_tokens = counter.text(move.predict_placeholder(turn))
            if counter.over(text, placeholder_tokens):
                moves.append(move)
    return moves


def _texts(
    candidate: OffloadCandidate, rules: OffloadRules, indent: int | None
) -> list[tuple[str, str]]:
    """Return the texts to store for *candidate*, each after the name of its file."""
    item = candidate.item
    if isinstance(item, ToolResult):
        return [(item.tool_use_id, stored_text(item.content, indent=indent))]
    texts = dict.fromkeys(rules.long_texts(item))
    return [(f"{item.id}-input-{number}", text) for number, text in enumerate(texts, 1)]


def _point_to_files(turn: Turn, moves: Sequence[Move], files: Sequence[FileOrError]) -> Change:
    """Return the context with a placeholder for each text of *moves* that is in a file.

    *files* has the file of each move, or the error. Raises StorageError if no text was written.
    """
    pairs, failed = pair_written(moves, files)
    locations: dict[str, str] = {}
    results: dict[Place, object] = {}
    inputs: dict[Place, object] = {}
    chars = 0
    saved_chars = 0
    for move, file in pairs:
        locations[move.text] = file
        replacement = move.pointers.replacement(turn, move, file)
        chars += len(move.text)
        saved_chars += len(move.text) - len(replacement)
        item = move.item
        if isinstance(item, ToolResult):
            results[item.place] = with_placeholder(item.content, replacement)
        else:
            # Another text of the same input may have been replaced already.
            current_input = inputs.get(item.place, item.input)
            inputs[item.place] = _substitute(current_input, move.text, replacement)
    messages = rewrite(rewrite(turn.messages, results), inputs, key="input")
    # A reply cites what comes before it, so earlier replies cite nothing that was moved.
    first_changed, _ = min([*results, *inputs])
    if any(has_citations(message) for message in messages[first_changed:]):
        messages = without_dangling_citations(turn.messages, messages)
    written_files = tuple(file for _, file in pairs)
    detail = Offloaded(written_files, chars, saved_chars, len(results), len(inputs), failed=failed)
    return Change(messages, detail, stored=Stored(moves[0].pointers.storage, locations))


def _substitute(value: object, old: str, new: str) -> object:
    """Return *value* with *new* in place of each text in it that is *old*; keys stay."""
    return rebuilt(value, lambda item: new if item == old else item)


async def move_texts(turn: Turn, moves: Sequence[Move], act: Act) -> Change:
    """Write the texts of *moves* with *act*, then replace them; unwritten texts stay in place.

    Raises StorageError if no text can be written.
    """
    files = await act(moves[0].pointers.storage, [(move.key, move.text) for move in moves])
    if _is_long([len(move.text) for move in moves]):
        return await in_thread(_point_to_files, turn, moves, files)
    return _point_to_files(turn, moves, files)


# Writing ------------------------------------------------------------------------------------------

FileOrError: TypeAlias = str | StorageError
"""The location of a text that was written, or the reason why it could not be written."""

Act: TypeAlias = Callable[[TextWriter, Sequence[tuple[str, str]]], Awaitable[Sequence[FileOrError]]]
"""The handling of the (key, text) pairs of a turn: `write_texts`, or `predict_files` for a plan."""


async def write_texts(
    storage: TextWriter, texts: Sequence[tuple[str, str]]
) -> Sequence[FileOrError]:
    """Write the (key, text) pairs together; if that fails, one by one.

    Return a location for each pair in order, or the StorageError of a text that was not written.
    That error is not raised.
    """
    try:
        with storage_errors():
            return await storage.write(texts)
    except StorageError as error:
        if len(texts) == 1:
            return [error]
    # One text that cannot be written must not keep the others in the context for ever.
    files: list[FileOrError] = []
    for text in texts:
        files += await write_texts(storage, [text])
    return files


async def predict_files(
    storage: TextWriter, texts: Sequence[tuple[str, str]]
) -> Sequence[FileOrError]:
    """Return where `write_texts` would put *texts* if every key is free; nothing is written."""
    return [storage.location(key) for key, _ in texts]


def pair_written(
    items: Iterable[T], files: Sequence[FileOrError]
) -> tuple[list[tuple[T, str]], tuple[str, ...]]:
    """Return each of *items* that was written, with its file, and the errors of the others.

    Raises StorageError if none was written.
    """
    pairs: list[tuple[T, str]] = []
    errors: list[StorageError] = []
    for item, file in zip(items, files, strict=True):
        if isinstance(file, StorageError):
            errors.append(file)
        else:
            pairs.append((item, file))
    if not pairs:
        raise errors[0]
    return pairs, tuple(safe_text(error) for error in errors)


class Moving(ABC):
    """A stage that moves texts into files of its *storage*."""

    __slots__ = ()

    storage: TextWriter

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self.storage, DIRECT)

    @property
    def file_pointers(self) -> Pointers:
        """The file names and placeholders of the stage."""
        return self._pointers

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Write the texts and replace them; texts that cannot be written stay in place.

        Raises StorageError if nothing can be written.
        """
        return await self._propose(turn, write_texts)

    async def plan(self, turn: Turn) -> Change | Skip:
        """Return the change that this turn would make, without writing anything."""
        proposal = await self._propose(turn, predict_files)
        return proposal if isinstance(proposal, Skip) else replace(proposal, stored=None)

    @abstractmethod
    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        """Decide what moves, and return the change that *act* makes of it."""
