"""Move texts out of the context into files: choose the names, write, then point to the files."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .._threads.threads import in_thread, in_thread_if
from ..edits import offload
from ..edits.offload import Candidate, Selection
from ..errors import SettingsError, StorageError, safe_text, storage_errors
from ..messages import ToolResult, blocks, rebuilt, rewrite, without_surrogates
from ..messages import field as read
from ..placeholders.locations import SCHEME, is_url
from ..placeholders.names import safe_name, session_folder
from ..placeholders.placeholders import MAX_SHOWN, Preview, placeholder, reference
from ..settings import instance_of
from ..storage import TextWriter
from ..storage.references import check_reference, reference_of, visible_path
from .protocol import Change, Skip, Stored, Turn
from .reports import Offloaded

Place: TypeAlias = tuple[int, int]
"""Where a block is: the index of its message, and its own index there."""

_NAME = r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_SAMPLE = "SAMPLEOFANAME"


@dataclass(frozen=True, slots=True)
class Pointers:
    """How one stage names files and points to them."""

    storage: TextWriter
    form: str
    preview: Preview | None
    prefix: str = ""
    indent: int | None = None

    def check(self) -> None:
        writer = instance_of(TextWriter, "a TextWriter such as LocalStorage('.ctxpipe')")
        writer.check("storage", self.storage)
        instance_of(Preview, "a Preview(head, tail)").optional.check("preview", self.preview)
        preview = self.preview
        if preview is not None and preview.head + preview.tail > MAX_SHOWN:
            raise SettingsError(
                f"preview is {preview!r}; give at most {MAX_SHOWN} characters: "
                "a longer one would be taken for a tool's own text"
            )
        check_reference(reference_of(self.storage))
        self._check_location()

    def _check_location(self) -> None:
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
        folder = key.rsplit("/", 1)[0]
        return visible_path(reference_of(self.storage), folder, location)

    def replacement(self, key: str, location: str, text: str) -> str:
        return placeholder(self.form, self.visible_path(key, location), text, self.preview)

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
        forms.append(re.escape(self.visible_path(sample, location)).replace(_SAMPLE, _NAME))
        # All stages recognize the plain forms of each; a session may be named like one of the
        # user's folders.
        forms.append(rf"{re.escape(folder)}/{_NAME}\.md")
        forms.append(rf"tool-result-{_NAME}\.md")
        return re.compile(rf"(?<![\w.-])(?:{'|'.join(forms)})")


class _Selections(dict[str, Selection]):
    """What a stage may offload in a session, by the current folder that relative paths are for."""


def recall_selection(
    turn: Turn, storage: TextWriter, make: Callable[[str], Selection]
) -> Selection:
    """What *make* returns for the session, called once.

    It costs more than all else in a turn with nothing to do.
    """
    selections = turn.recall(_Selections)
    folder = os.getcwd() if reference_of(storage) == "relative" else ""
    if folder not in selections:
        selections[folder] = make(turn.session_id)
    return selections[folder]


@dataclass(frozen=True, slots=True)
class Move:
    """One text on its way out of the context: the block it is in, its key, what replaces it."""

    candidate: Candidate
    key: str
    text: str
    predicted: str  # the replacement, as long as the key is free
    pointers: Pointers


async def worthwhile_moves(
    pointers: Pointers, turn: Turn, chosen: Sequence[Candidate], selection: Selection
) -> list[Move]:
    """The moves of *chosen* for which the placeholder is cheaper than what it replaces."""
    if not chosen:
        return []
    is_long = _are_long(chosen)
    moves = await in_thread_if(is_long, _all_moves, pointers, turn, chosen, selection)
    sizes = await turn.counter.texts([move.predicted for move in moves])
    return await in_thread_if(is_long, _cheaper_moves, turn, moves, sizes)


def _are_long(candidates: Sequence[Candidate]) -> bool:
    """Whether replacing *candidates* would hold up the event loop."""
    if len(candidates) > 50:
        return True
    return sum(candidate.chars for candidate in candidates) > 200_000


def _all_moves(
    pointers: Pointers, turn: Turn, chosen: Iterable[Candidate], selection: Selection
) -> list[Move]:
    moves: list[Move] = []
    for candidate in chosen:
        for suffix, text in _texts(candidate, selection, pointers.indent):
            key = pointers.key(turn.session_id, candidate.id + suffix)
            predicted = pointers.replacement(key, pointers.storage.location(key), text)
            moves.append(Move(candidate, key, text, predicted, pointers))
    return moves


def _cheaper_moves(turn: Turn, moves: Iterable[Move], sizes: Iterable[int]) -> list[Move]:
    pairs = zip(moves, sizes, strict=True)
    return [move for move, size in pairs if turn.counter.over(move.text, size)]


def _texts(candidate: Candidate, selection: Selection, indent: int | None) -> list[tuple[str, str]]:
    """The texts to store for *candidate*, each with what its file name adds to the id."""
    if isinstance(candidate.item, ToolResult):
        return [("", offload.stored_text(candidate.item.content, indent=indent))]
    texts = dict.fromkeys(selection.long_texts(candidate.item))
    return [(f"-input-{number}", text) for number, text in enumerate(texts, 1)]


def _point_to_files(turn: Turn, moves: Sequence[Move], files: Sequence[str]) -> Change:
    """The context with placeholders instead of the texts of *moves*, which are in *files*."""
    locations: dict[str, str] = {}
    results: dict[Place, object] = {}
    texts_of_inputs: dict[Place, dict[str, str]] = {}  # by place: text and replacement
    chars = 0
    saved = 0
    for move, file in zip(moves, files, strict=True):
        locations[move.text] = file
        replacement = move.pointers.replacement(move.key, file, move.text)
        chars += len(move.text)
        saved += len(move.text) - len(replacement)
        item = move.candidate.item
        if isinstance(item, ToolResult):
            results[item.place] = offload.with_placeholder(item.content, replacement)
        else:
            texts_of_inputs.setdefault(item.place, {})[move.text] = replacement
    messages = rewrite(turn.messages, results)
    inputs: dict[Place, object] = {}
    for (message, block), texts in texts_of_inputs.items():
        inputs[message, block] = _substitute(read(blocks(messages[message])[block], "input"), texts)
    messages = rewrite(messages, inputs, key="input")
    detail = Offloaded(
        tuple(files), chars=chars, saved_chars=saved, results=len(results), inputs=len(inputs)
    )
    return Change(messages, detail, stored=Stored(moves[0].pointers.storage, locations))


def _substitute(value: Any, texts: Mapping[str, str]) -> Any:
    """*value* with the same keys, where each of *texts* is replaced."""

    def substitute(item: Any) -> Any:
        return texts.get(item, item) if isinstance(item, str) else item

    return rebuilt(value, substitute)


async def write_moves(turn: Turn, moves: Sequence[Move]) -> Change:
    """Write first, then replace; what cannot be written stays inline.

    Raises StorageError when nothing can be written.
    """
    storage = moves[0].pointers.storage
    try:
        texts = [(move.key, move.text) for move in moves]
        with storage_errors():
            files = await storage.write(texts)
    except StorageError:
        if len(moves) == 1:
            raise
        return await _write_one_by_one(storage, turn, moves)
    is_long = _are_long([move.candidate for move in moves])
    return await in_thread_if(is_long, _point_to_files, turn, moves, files)


async def _write_one_by_one(storage: TextWriter, turn: Turn, moves: Sequence[Move]) -> Change:
    """One text that cannot be written must not keep the others in the context for ever."""
    written: list[Move] = []
    files: list[str] = []
    errors: list[StorageError] = []
    for move in moves:
        try:
            with storage_errors():
                [file] = await storage.write([(move.key, move.text)])
        except StorageError as error:
            errors.append(error)
        else:
            written.append(move)
            files.append(file)
    if not written:
        raise errors[0]
    return add_failures(await in_thread(_point_to_files, turn, written, files), *errors)


async def predict_moves(turn: Turn, moves: Sequence[Move]) -> Change:
    """What `write_moves` would propose as long as every key is free; nothing is written."""
    files = [move.pointers.storage.location(move.key) for move in moves]
    return replace(_point_to_files(turn, moves, files), stored=None)


Act: TypeAlias = Callable[[Turn, Sequence[Move]], Awaitable[Change]]
"""What is done with the moves of a turn: `write_moves`, or `predict_moves` for a plan."""


class Moving(ABC):
    """A stage that moves texts into files."""

    __slots__ = ()

    async def __call__(self, turn: Turn) -> Change | Skip:
        """What cannot be written stays inline.

        Raises StorageError when nothing else is left to do.
        """
        return await self._propose(turn, write_moves)

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        return await self._propose(turn, predict_moves)

    @abstractmethod
    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        """The decision, of which *act* makes a change."""


def add_failures(change: Change, *errors: StorageError) -> Change:
    detail = offload_detail(change)
    return replace(change, detail=replace(detail, failed=(*detail.failed, *map(safe_text, errors))))


def offload_detail(change: Change) -> Offloaded:
    return change.detail if isinstance(change.detail, Offloaded) else Offloaded()
