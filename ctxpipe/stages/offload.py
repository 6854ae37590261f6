"""Move bulky tool results into files, and leave a placeholder that says where they lie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ..edits import offload
from ..errors import InvalidHistory, SettingsError
from ..messages import ToolResult, blocks, ensure_messages, rewrite, tool_results
from ..messages import field as read
from ..names import safe_name
from ..placeholders import BATCH, DIRECT, Preview, placeholder
from ..reports import Offloaded
from ..settings import (
    DIRECT_OFFLOAD_CHAR_THRESHOLD,
    OFFLOAD_CHAR_THRESHOLD,
    OFFLOAD_RATIO_THRESHOLD,
    setting,
)
from ..stage import Change, Skip, Turn
from ..storage import LocalStorage, TextWriter
from .gates import Gate, RatioGate

if TYPE_CHECKING:
    from ..edits.offload import Candidate, Selection
    from ..messages import Message

__all__ = [
    "READ_BACK_TOOLS",
    "WRITING_TOOLS",
    "BatchOffload",
    "DirectOffload",
    "OffloadResult",
    "OffloadedMessage",
    "offload_tool_result",
    "offload_tool_results",
]

READ_BACK_TOOLS = frozenset({"read_offloaded", "search_offloaded"})
"""Our own reading tools, whose results are never offloaded (A-27)."""

WRITING_TOOLS = frozenset({"write_file", "create_file", "edit_file", "Write", "Edit", "MultiEdit", "NotebookEdit"})
"""Tools of common agents whose inputs hold whole texts; a value for `BatchOffload.inputs`."""


# The functions, literal to the requirements -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffloadedMessage:
    """What `offload_tool_result` did. *freed_chars* is net of the placeholders (DO-11); *file* is the first of *files*.

    Nothing to offload leaves *message* the same object, *files* empty and *file* None.
    """

    message: Message
    freed_chars: int = 0
    files: tuple[str, ...] = ()

    @property
    def file(self) -> str | None:
        """The absolute path of the first file written."""
        return self.files[0] if self.files else None


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """What `offload_tool_results` did. *freed_chars* is gross (BO-22), *files* are absolute paths in message order."""

    messages: list[Message]
    offloaded_count: int = 0
    freed_chars: int = 0
    files: tuple[str, ...] = ()


async def offload_tool_result(
    message: Message, *, session_id: str, output_dir: str | os.PathLike[str], writer: TextWriter | None = None
) -> OffloadedMessage:
    """Write each tool result of *message* to ``<output_dir>/<session_id>/<tool_use_id>.md`` and point to it there.

    No threshold is checked: the caller has judged (DO-2). A result with images, or one that is a placeholder already,
    stays. The same id again overwrites its file (DO-10). *message* is not modified.

    Raises InvalidHistory when *message* holds no tool result, StorageError when a file cannot be written.
    """
    ensure_messages([message])
    results = list(tool_results([message]))
    if not results:
        raise InvalidHistory("message 0 holds no tool_result block, so there is nothing to offload")
    writer = writer or LocalStorage(output_dir, taken="overwrite")
    movable = [r for r in results if offload.is_text(r.content) and not offload.is_placeholder(r.content)]
    folder = safe_name(session_id)
    texts = [(f"{folder}/{safe_name(r.tool_use_id)}.md", offload.stored_text(r.content, indent=None)) for r in movable]
    files = tuple(await writer.write(texts)) if texts else ()
    pointers = {r.place: DIRECT.format(file) for r, file in zip(movable, files, strict=True)}
    if not pointers:
        return OffloadedMessage(message)
    freed = sum(offload.result_characters(r.content) - len(pointers[r.place]) for r in movable)
    return OffloadedMessage(rewrite([message], pointers)[0], freed, files)


async def offload_tool_results(
    messages: list[Message],
    *,
    output_dir: str | os.PathLike[str],
    ratio: float | Decimal | None = None,
    min_chars: int | None = None,
    writer: TextWriter | None = None,
) -> OffloadResult:
    """Write every tool result of *min_chars* (100) characters or more to ``<output_dir>/tool-result-<id>.md``.

    Only when these hold at least *ratio* (0.2) of all characters; below it the very same list comes back and no disk
    is touched (RG-8). A repeated id gets the next free number (BO-7). *messages* is not modified, messages without
    such a result come back by reference.

    Raises InvalidHistory before anything is written, StorageError when a file cannot be written, SettingsError when a
    variable of the environment is not a number.
    """
    ensure_messages(messages)
    min_chars, share = OFFLOAD_CHAR_THRESHOLD(min_chars), OFFLOAD_RATIO_THRESHOLD(ratio)
    if not offload.passes(offload.prescan(messages, min_chars), share):
        return OffloadResult(messages)
    writer = writer or LocalStorage(output_dir, taken="number")
    results = [(c.item, c.chars) for c in offload.offloadable(messages, min_chars) if isinstance(c.item, ToolResult)]
    texts = [
        (f"tool-result-{safe_name(result.tool_use_id)}.md", offload.stored_text(result.content, indent=2))
        for result, _ in results
    ]
    files = tuple(await writer.write(texts))
    pointers = {
        result.place: BATCH.format(f"./{PurePath(file).name}") for (result, _), file in zip(results, files, strict=True)
    }
    return OffloadResult(rewrite(messages, pointers), len(results), sum(chars for _, chars in results), files)


# What both stages share -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pointers:
    """How one stage names files and points to them."""

    storage: TextWriter
    form: str
    reference: str
    preview: Preview | None
    prefix: str = ""
    indent: int | None = None

    def check(self) -> None:
        known = ("absolute", "relative", "storage")
        if self.reference not in known and not re.search(r"\{(path|key|name)\}", self.reference):
            raise SettingsError(
                f"reference is {self.reference!r}; give {', '.join(map(repr, known))} or a template "
                "with {path}, {key} or {name}"
            )
        if not isinstance(self.storage, TextWriter):
            raise SettingsError(f"storage is {self.storage!r}; give a TextWriter such as LocalStorage('.ctxpipe')")

    def key(self, session_id: str, name: str) -> str:
        return f"{safe_name(session_id)}/{self.prefix}{safe_name(name)}.md"

    def where(self, key: str, location: str) -> str:
        """The path that the model sees for the file at *location*."""
        name = PurePath(location).name  # another than the key's where that was taken
        key = f"{key.rsplit('/', 1)[0]}/{name}"
        if self.reference == "absolute":
            return location
        if self.reference == "storage":
            return f"./{key}"
        if self.reference == "relative":
            return os.path.relpath(location) if os.path.isabs(location) else location
        return self.reference.format(path=location, key=key, name=name)

    def replacement(self, key: str, location: str, text: str) -> str:
        return placeholder(self.form, self.where(key, location), text, self.preview)

    def ours(self, session_id: str) -> re.Pattern[str]:
        """Finds the path of a file of this session in a text, in any form that we print."""
        sample = self.key(session_id, "x")
        location = self.storage.location(sample)
        folder = sample.rsplit("/", 1)[0]
        roots = {os.path.dirname(os.path.dirname(location)), os.path.dirname(self.where(sample, location)), folder}
        named = "|".join(re.escape(root) for root in sorted(roots, key=len, reverse=True) if root.strip("./"))
        # Up to the next blank or quote: what a shell command or a path argument would end with.
        return re.compile(rf"(?<![\w.-])(?:\./)?(?:{named})/[^\s\"'`<>|;&)]*")


@dataclass(frozen=True, slots=True)
class _Move:
    """One text on its way out of the context: *place* and *key* of its block, and what replaces the text."""

    candidate: Candidate
    key: str
    text: str
    predicted: str  # the replacement, as long as the key is free


def _moves(pointers: _Pointers, turn: Turn, chosen: Iterable[Candidate], selection: Selection) -> list[_Move]:
    """The chosen texts for which the placeholder is cheaper than what it replaces (R3f)."""
    moves: list[_Move] = []
    for candidate in chosen:
        for suffix, text in _texts(candidate, selection, pointers.indent):
            key = pointers.key(turn.session_id, candidate.id + suffix)
            predicted = pointers.replacement(key, pointers.storage.location(key), text)
            if turn.counter.over(text, turn.counter.text(predicted)):
                moves.append(_Move(candidate, key, text, predicted))
    return moves


def _texts(candidate: Candidate, selection: Selection, indent: int | None) -> list[tuple[str, str]]:
    """The texts to store for *candidate*, each with what its file name adds to the id."""
    if isinstance(candidate.item, ToolResult):
        return [("", offload.stored_text(candidate.item.content, indent=indent))]
    texts = selection.long_texts(candidate.item)
    return [(f"-input-{number}", text) for number, text in enumerate(texts, 1)]


def _change(turn: Turn, moves: Sequence[_Move], replacements: Sequence[str], files: Sequence[str]) -> Change:
    results: dict[tuple[int, int], object] = {}
    inputs: dict[tuple[int, int], dict[str, str]] = {}  # by place: text and replacement
    for move, text in zip(moves, replacements, strict=True):
        item = move.candidate.item
        if isinstance(item, ToolResult):
            results[item.place] = offload.replaced(item.content, text)
        else:
            inputs.setdefault(item.place, {})[move.text] = text
    messages = rewrite(turn.messages, results)
    shortened = {
        (message, block): _substituted(read(blocks(messages[message])[block], "input"), texts)
        for (message, block), texts in inputs.items()
    }
    messages = rewrite(messages, shortened, key="input")
    chars = sum(len(move.text) for move in moves)
    saved = chars - sum(map(len, replacements))
    return Change(messages, Offloaded(tuple(files), chars, saved, len(results), len(inputs)))


def _substituted(value: Any, texts: Mapping[str, str]) -> Any:
    """*value* with the same keys, where each of *texts* is replaced."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, Mapping):
        return {key: _substituted(item, texts) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_substituted(item, texts) for item in value]
    return value


async def _moved(pointers: _Pointers, turn: Turn, moves: Sequence[_Move]) -> Change:
    """Write first, replace after. Raises StorageError; nothing is replaced then."""
    files = await pointers.storage.write([(move.key, move.text) for move in moves])
    replacements = [pointers.replacement(move.key, file, move.text) for move, file in zip(moves, files, strict=True)]
    return _change(turn, moves, replacements, files)


def _planned(pointers: _Pointers, turn: Turn, moves: Sequence[_Move]) -> Change:
    files = [pointers.storage.location(move.key) for move in moves]
    return _change(turn, moves, [move.predicted for move in moves], files)


# The stages -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DirectOffload:
    """Move each new tool result that is too long into a file of its own, before the model has seen it. Source: DO-1.

    It looks at the results behind the last reply only, so nothing that the provider has cached ever changes. A result
    goes when it has *min_chars* characters or more (*per_tool* by tool name, None: never) and the placeholder is
    cheaper in tokens. Images stay in place. The result of a call that reads an offloaded file back is never offloaded
    again; above *read_back_chars* it is cut to head and tail behind the same pointer (None: never).

    *preview* keeps head and tail visible behind the placeholder. *reference* is the path that the model sees:
    "absolute", "relative" (to the current folder), "storage" (to its root), or a template with {path}, {key}, {name}.
    """

    storage: TextWriter
    min_chars: int = setting(DIRECT_OFFLOAD_CHAR_THRESHOLD)
    preview: Preview | None = None
    reference: str = "absolute"
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    exempt_tools: AbstractSet[str] = READ_BACK_TOOLS
    read_back_chars: int | None = 100_000

    def __post_init__(self) -> None:
        self._pointers.check()
        _check_sizes(min_chars=self.min_chars, read_back_chars=self.read_back_chars)

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Raises StorageError when a file cannot be written: the results stay inline then."""
        moves, cut = self._decide(turn)
        if moves:
            return _with_cut(await _moved(self._pointers, turn, moves), cut)
        return self._nothing(turn, cut)

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        moves, cut = self._decide(turn)
        if moves:
            return _with_cut(_planned(self._pointers, turn, moves), cut)
        return self._nothing(turn, cut)

    @property
    def _pointers(self) -> _Pointers:
        return _Pointers(self.storage, DIRECT, self.reference, self.preview)

    def _decide(self, turn: Turn) -> tuple[list[_Move], dict[tuple[int, int], object]]:
        pointers = self._pointers
        selection = offload.Selection(
            self.min_chars, self.per_tool, self.exempt_tools | READ_BACK_TOOLS, pointers.ours(turn.session_id)
        )
        start = offload.newest(turn.messages)
        pairs = list(offload.answered(turn.messages, start))
        chosen = [found for result, call in pairs if (found := selection.result(result, call))]
        cut = offload.shortened_read_backs(pairs, selection, DIRECT, self.read_back_chars)
        return _moves(pointers, turn, chosen, selection), cut

    def _nothing(self, turn: Turn, cut: Mapping[tuple[int, int], object]) -> Change | Skip:
        if cut:
            return _with_cut(Change(list(turn.messages), Offloaded()), cut)
        return Skip(f"no new result of {self.min_chars} characters or more")


@dataclass(frozen=True, slots=True)
class BatchOffload:
    """Move old tool results into files, all in one go, once the gate finds it worth it. Source: RG, BO, PL-2.

    Results that the model has answered fewer than *keep_recent* times since are protected, and nothing happens below
    *min_context_tokens* (estimated). Below the gate the very same list comes back; with a session's memory that costs
    the new messages only. *inputs* names tools whose long input texts (*min_input_chars*) go as well, such as
    `WRITING_TOOLS`; such an input keeps its keys. The other settings are those of `DirectOffload`.
    """

    storage: TextWriter
    gate: Gate = field(default_factory=RatioGate)
    min_chars: int = setting(OFFLOAD_CHAR_THRESHOLD)
    keep_recent: int = 1
    min_context_tokens: int = 0
    preview: Preview | None = None
    reference: str = "storage"
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    exempt_tools: AbstractSet[str] = READ_BACK_TOOLS
    inputs: AbstractSet[str] = frozenset()
    min_input_chars: int = 1000

    def __post_init__(self) -> None:
        self._pointers.check()
        _check_sizes(
            min_chars=self.min_chars,
            keep_recent=self.keep_recent,
            min_context_tokens=self.min_context_tokens,
            min_input_chars=self.min_input_chars,
        )
        if not callable(self.gate):
            raise SettingsError(f"gate is {self.gate!r}; give a Gate such as RatioGate(0.2)")

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Raises StorageError when a file cannot be written: the results stay inline then."""
        decision = await self._decide(turn)
        return decision if isinstance(decision, Skip) else await _moved(self._pointers, turn, decision)

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        decision = await self._decide(turn)
        return decision if isinstance(decision, Skip) else _planned(self._pointers, turn, decision)

    @property
    def _pointers(self) -> _Pointers:
        return _Pointers(self.storage, BATCH, self.reference, self.preview, prefix="tool-result-", indent=2)

    async def _decide(self, turn: Turn) -> list[_Move] | Skip:
        selection = offload.Selection(
            self.min_chars,
            self.per_tool,
            self.exempt_tools | READ_BACK_TOOLS,
            self._pointers.ours(turn.session_id),
            self.inputs,
            self.min_input_chars,
        )
        running = turn.recall(offload.Running)
        running.extend(turn.messages, selection)
        if not turn.force and self.min_context_tokens and await turn.tokens() < self.min_context_tokens:
            return Skip(f"the context is below {self.min_context_tokens} tokens")
        end = offload.protected_from(turn.messages, self.keep_recent)
        chosen = await self._chosen(turn, running, end)
        if isinstance(chosen, str):
            return Skip(chosen)
        moves = _moves(self._pointers, turn, chosen, selection)
        return moves or Skip("no placeholder would be cheaper than what it replaces")

    async def _chosen(self, turn: Turn, running: offload.Running, end: int) -> Sequence[Candidate] | str:
        if turn.force:
            return running.candidates(turn.protected, end) or "no old result is long enough to offload"
        scan = running.scan(turn.protected, end)
        return await self.gate(turn, scan, lambda: running.candidates(turn.protected, end))


def _with_cut(change: Change, cut: Mapping[tuple[int, int], object]) -> Change:
    return Change(rewrite(change.messages, cut), change.detail) if cut else change


def _check_sizes(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, int) or size < 0):
            raise SettingsError(f"{name} is {size!r}; give a whole number, 0 or more")
