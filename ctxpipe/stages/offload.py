"""Move bulky tool results into files, and leave a placeholder that says where they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from ..edits import offload
from ..errors import InvalidHistory, SettingsError, StorageError, safe_text
from ..locations import SCHEME, is_url
from ..messages import (
    ToolCall,
    ToolResult,
    blocks,
    ensure_messages,
    rebuilt,
    rewrite,
    tool_results,
    without_surrogates,
)
from ..messages import field as read
from ..names import safe_name, session_folder
from ..placeholders import BATCH, DIRECT, MAX_SHOWN, Preview, any_reference, placeholder, reference
from ..reports import Offloaded
from ..settings import (
    CALLABLE,
    DIRECT_OFFLOAD_CHAR_THRESHOLD,
    FLAG,
    OFFLOAD_CHAR_THRESHOLD,
    OFFLOAD_RATIO_THRESHOLD,
    SIZE,
    TEXT,
    Wanted,
    check_settings,
    excerpt,
    instance_of,
    is_size,
    setting,
)
from ..stage import Change, Skip, Stored, Turn
from ..storage import LocalStorage, TextReader, TextWriter
from ..threads import in_thread, in_thread_if
from .gates import Gate, RatioGate
from .references import check_reference, visible_path

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

Answered: TypeAlias = tuple[ToolResult, ToolCall | None]
Place: TypeAlias = tuple[int, int]

_NAME = r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_SAMPLE = "SAMPLEOFANAME"

READ_BACK_TOOLS = frozenset({"read_offloaded", "search_offloaded"})
"""Our own reading tools, whose results are never offloaded (A-27)."""

WRITING_TOOLS = frozenset(
    {
        "write_file",
        "create_file",
        "edit_file",
        "Write",
        "Edit",
        "MultiEdit",
        "NotebookEdit",
        "ExitPlanMode",
        "write",
        "edit",
        "create",
        "apply_patch",
        "str_replace_editor",
        "str_replace_based_edit_tool",
    }
)
"""Tools of common agents whose inputs hold whole texts; a value for `BatchOffload.inputs`."""


# The functions, literal to the requirements -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffloadedMessage:
    """What `offload_tool_result` did.

    *freed_chars* is net of the placeholders (DO-11); *file* is the first of *files*. With nothing
    to offload, *message* is the same object, *files* empty and *file* None.
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
    """What `offload_tool_results` did.

    *freed_chars* is gross (BO-22), *files* are absolute paths in message order.
    """

    messages: list[Message]
    offloaded_count: int = 0
    freed_chars: int = 0
    files: tuple[str, ...] = ()


async def offload_tool_result(
    message: Message,
    *,
    session_id: str,
    output_dir: str | os.PathLike[str],
    writer: TextWriter | None = None,
) -> OffloadedMessage:
    """Write each tool result of *message* to a file, and replace it by a placeholder.

    The file is ``<output_dir>/<session_id>/<tool_use_id>.md``. No threshold is checked: the caller
    has decided (DO-2). A result with images, or one that is a placeholder already, stays. The same
    id again overwrites its file (DO-10). *message* is not modified.

    Raises InvalidHistory when *message* holds no tool result, StorageError when a file cannot be
    written.
    """
    ensure_messages([message])
    results = list(tool_results([message]))
    if not results:
        raise InvalidHistory("message 0 holds no tool_result block, so there is nothing to offload")
    writer = writer or LocalStorage(output_dir, on_conflict="overwrite")
    folder = session_folder(session_id)
    movable: list[ToolResult] = []
    texts: list[tuple[str, str]] = []
    for result in results:
        content = result.content
        if offload.is_text(content) and not offload.is_placeholder(content):
            key = f"{folder}/{safe_name(result.tool_use_id)}.md"
            movable.append(result)
            texts.append((key, offload.stored_text(content, indent=None)))
    if not movable:
        return OffloadedMessage(message)
    files = tuple(await writer.write(texts))
    pointers: dict[Place, str] = {}
    freed = 0
    for result, file in zip(movable, files, strict=True):
        pointer = DIRECT.format(file)
        pointers[result.place] = pointer
        freed += offload.result_characters(result.content) - len(pointer)
    [rewritten] = rewrite([message], pointers)
    return OffloadedMessage(rewritten, freed, files)


async def offload_tool_results(
    messages: list[Message],
    *,
    output_dir: str | os.PathLike[str],
    ratio: float | Decimal | None = None,
    min_chars: int | None = None,
    writer: TextWriter | None = None,
) -> OffloadResult:
    """Write every tool result of *min_chars* (100) characters or more to a file.

    The file is ``<output_dir>/tool-result-<id>.md``. It happens only when these results hold at
    least *ratio* (0.2) of all characters; below it the very same list comes back and no disk is
    touched (RG-8). A repeated id gets the next free number (BO-7). *messages* is not modified;
    messages without such a result come back by reference.

    Raises InvalidHistory before anything is written, StorageError when a file cannot be written,
    SettingsError when a variable of the environment is not a number.
    """
    ensure_messages(messages)
    min_chars = OFFLOAD_CHAR_THRESHOLD(min_chars)
    share = OFFLOAD_RATIO_THRESHOLD(ratio)
    candidates = offload.offloadable(messages, min_chars)
    if not offload.passes(offload.scan_of(messages, candidates), share):
        return OffloadResult(messages)
    writer = writer or LocalStorage(output_dir, on_conflict="number")
    results: list[ToolResult] = []
    texts: list[tuple[str, str]] = []
    freed = 0
    for candidate in candidates:
        result = candidate.item
        if isinstance(result, ToolResult):
            key = f"tool-result-{safe_name(result.tool_use_id)}.md"
            results.append(result)
            texts.append((key, offload.stored_text(result.content, indent=2)))
            freed += candidate.chars
    files = tuple(await writer.write(texts))
    pointers: dict[Place, str] = {}
    for result, file in zip(results, files, strict=True):
        name = os.path.basename(file)
        pointers[result.place] = BATCH.format(f"./{name}")
    return OffloadResult(
        rewrite(messages, pointers),
        len(results),
        freed,
        files,
    )


# What both stages share ---------------------------------------------------------------------------


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
        writer = instance_of(TextWriter, "a TextWriter such as LocalStorage('.ctxpipe')")
        writer.check("storage", self.storage)
        preview = instance_of(Preview, "a Preview(head, tail)").optional
        preview.check("preview", self.preview)
        TEXT.check("reference", self.reference)
        self._check_preview_length()
        check_reference(self.reference)
        self._check_location()

    def _check_preview_length(self) -> None:
        preview = self.preview
        if preview is None or preview.head + preview.tail <= MAX_SHOWN:
            return
        raise SettingsError(
            f"preview is {preview!r}; give at most {MAX_SHOWN} characters: "
            "a longer one would be taken for a tool's own text"
        )

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
        file_name = safe_name(without_surrogates(name))
        return f"{session_folder(session_id)}/{self.prefix}{file_name}.md"

    def visible_path(self, key: str, location: str) -> str:
        """The path that the model sees for the file at *location*.

        Its name differs from the key's where that name was in use already.
        """
        folder = key.rsplit("/", 1)[0]
        return visible_path(self.reference, folder, location)

    def replacement(self, key: str, location: str, text: str) -> str:
        return placeholder(
            self.form,
            self.visible_path(key, location),
            text,
            self.preview,
        )

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
        visible = re.escape(self.visible_path(sample, location))
        forms.append(visible.replace(_SAMPLE, _NAME))
        # Both stages recognize the plain forms of either; a session may be named like one of the
        # user's folders.
        forms.append(rf"{re.escape(folder)}/{_NAME}\.md")
        forms.append(rf"tool-result-{_NAME}\.md")
        return re.compile(rf"(?<![\w.-])(?:{'|'.join(forms)})")


@dataclass(slots=True)
class _SelectionMemory:
    """What a stage may offload in a session, and the current folder that relative paths are for."""

    selection: offload.Selection | None = None
    folder: str = ""


def _recall_selection(
    turn: Turn,
    reference: str,
    make: Callable[[str], offload.Selection],
) -> offload.Selection:
    """What *make* returns for the session, called once.

    It costs more than all else in a turn with nothing to do.
    """
    memory = turn.recall(_SelectionMemory)
    folder = os.getcwd() if reference == "relative" else ""
    if memory.selection is None or memory.folder != folder:
        memory.selection = make(turn.session_id)
        memory.folder = folder
    return memory.selection


@dataclass(frozen=True, slots=True)
class _Move:
    """One text on its way out of the context: the block it is in, its key, what replaces it."""

    candidate: Candidate
    key: str
    text: str
    predicted: str  # the replacement, as long as the key is free
    pointers: _Pointers

    @property
    def likely_location(self) -> str:
        """Where the text will be, as long as the key is free."""
        return self.pointers.storage.location(self.key)

    def replacement(self, location: str) -> str:
        """What replaces the text, now that it is at *location*."""
        return self.pointers.replacement(self.key, location, self.text)


async def _worthwhile_moves(
    pointers: _Pointers,
    turn: Turn,
    chosen: Sequence[Candidate],
    selection: Selection,
) -> list[_Move]:
    """The moves of *chosen* for which the placeholder is cheaper than what it replaces (R3f)."""
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
    pointers: _Pointers,
    turn: Turn,
    chosen: Iterable[Candidate],
    selection: Selection,
) -> list[_Move]:
    moves: list[_Move] = []
    for candidate in chosen:
        for suffix, text in _texts(candidate, selection, pointers.indent):
            key = pointers.key(turn.session_id, candidate.id + suffix)
            location = pointers.storage.location(key)
            predicted = pointers.replacement(key, location, text)
            moves.append(_Move(candidate, key, text, predicted, pointers))
    return moves


def _cheaper_moves(turn: Turn, moves: Iterable[_Move], sizes: Iterable[int]) -> list[_Move]:
    pairs = zip(moves, sizes, strict=True)
    return [move for move, size in pairs if turn.counter.over(move.text, size)]


def _find_candidates(
    messages: Sequence[Message],
    start: int,
    min_chars: int,
    selection: Selection,
) -> tuple[list[Answered], list[Candidate]]:
    """The results of *min_chars* or more with their calls, and those of them that may leave.

    Only messages from *start* on are looked at.
    """
    pairs = list(offload.results_with_calls(messages, start, min_chars))
    candidates = [selection.result(result, call) for result, call in pairs]
    return pairs, [candidate for candidate in candidates if candidate]


def _texts(candidate: Candidate, selection: Selection, indent: int | None) -> list[tuple[str, str]]:
    """The texts to store for *candidate*, each with what its file name adds to the id."""
    if isinstance(candidate.item, ToolResult):
        return [("", offload.stored_text(candidate.item.content, indent=indent))]
    texts = dict.fromkeys(selection.long_texts(candidate.item))
    return [(f"-input-{number}", text) for number, text in enumerate(texts, 1)]


def _change(
    turn: Turn,
    moves: Sequence[_Move],
    replacements: Sequence[str],
    files: Sequence[str],
) -> Change:
    results: dict[Place, object] = {}
    texts_of_inputs: dict[Place, dict[str, str]] = {}  # by place: text and replacement
    chars = 0
    saved = 0
    for move, replacement in zip(moves, replacements, strict=True):
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
        call = blocks(messages[message])[block]
        inputs[message, block] = _substitute(read(call, "input"), texts)
    messages = rewrite(messages, inputs, key="input")
    detail = Offloaded(
        tuple(files),
        chars=chars,
        saved_chars=saved,
        results=len(results),
        inputs=len(inputs),
    )
    return Change(messages, detail)


def _substitute(value: Any, texts: Mapping[str, str]) -> Any:
    """*value* with the same keys, where each of *texts* is replaced."""

    def substitute(item: Any) -> Any:
        return texts.get(item, item) if isinstance(item, str) else item

    return rebuilt(value, substitute)


async def _move_to_files(storage: TextWriter, turn: Turn, moves: Sequence[_Move]) -> Change:
    """Write first, then replace; what cannot be written stays inline.

    Raises StorageError when nothing can be written.
    """
    try:
        texts = [(move.key, move.text) for move in moves]
        files = await storage.write(texts)
    except StorageError:
        if len(moves) == 1:
            raise
        return await _move_one_by_one(storage, turn, moves)
    is_long = _are_long([move.candidate for move in moves])
    return await in_thread_if(is_long, _point_to_files, turn, moves, files)


async def _move_one_by_one(storage: TextWriter, turn: Turn, moves: Sequence[_Move]) -> Change:
    """One text that cannot be written must not keep the others in the context for ever."""
    written: list[_Move] = []
    files: list[str] = []
    errors: list[StorageError] = []
    for move in moves:
        try:
            [file] = await storage.write([(move.key, move.text)])
        except StorageError as error:
            errors.append(error)
        else:
            written.append(move)
            files.append(file)
    if not written:
        raise errors[0]
    change = await in_thread(_point_to_files, turn, written, files)
    return _add_failures(change, *errors)


def _point_to_files(turn: Turn, moves: Sequence[_Move], files: Sequence[str]) -> Change:
    replacements: list[str] = []
    locations: dict[str, str] = {}
    for move, file in zip(moves, files, strict=True):
        replacements.append(move.replacement(file))
        locations[move.text] = file
    change = _change(turn, moves, replacements, files)
    return replace(change, stored=Stored(moves[0].pointers.storage, locations))


def _predict_change(turn: Turn, moves: Sequence[_Move]) -> Change:
    replacements = [move.predicted for move in moves]
    files = [move.likely_location for move in moves]
    return _change(turn, moves, replacements, files)


# The stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DirectOffload:
    """Move each new tool result that is too long into a file of its own.

    It happens before the model has seen the result. Only the results after the last reply are
    looked at, so nothing that the provider has cached ever changes. Source: DO-1.

    A result goes when it has *min_chars* characters or more (*per_tool* by tool name, None: never)
    and the placeholder is cheaper in tokens. Images stay in place, and so does the result of a call
    that a program on the server has made and reads. The result of a call that reads an offloaded
    file back is never offloaded again; above *read_back_chars* it is cut to head and tail after
    the same pointer (None: never).

    *preview* keeps head and tail visible after the placeholder. *reference* is the path that the
    model sees: "absolute", "relative" (to the current folder), "storage" (to its root), or a
    template that ends in /{key} or in {path}, from which the file is found again.

    Raises SettingsError for settings that are invalid.
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
        check_settings(self, min_chars=SIZE)
        _check_limits(read_back_chars=self.read_back_chars)
        _check_tools(self.per_tool, exempt_tools=self.exempt_tools)

    async def __call__(self, turn: Turn) -> Change | Skip:
        """What cannot be written stays inline.

        Raises StorageError when nothing else is left to do.
        """
        moves, cuts = await self._decide(turn)
        if not moves:
            return self._cut_only(turn, cuts)
        try:
            change = await _move_to_files(self.storage, turn, moves)
        except StorageError as error:
            if not cuts:
                raise
            change = _apply_cuts(Change(list(turn.messages)), cuts)
            return _add_failures(change, error)
        return _apply_cuts(change, cuts)

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        moves, cuts = await self._decide(turn)
        if not moves:
            return self._cut_only(turn, cuts)
        return _apply_cuts(_predict_change(turn, moves), cuts)

    @property
    def _pointers(self) -> _Pointers:
        return _Pointers(self.storage, DIRECT, self.reference, self.preview)

    def _selection(self, session_id: str) -> offload.Selection:
        exempt = frozenset(self.exempt_tools) | READ_BACK_TOOLS
        own_paths = self._pointers.own_paths(session_id)
        return offload.Selection(self.min_chars, self.per_tool, exempt, own_paths)

    async def _decide(self, turn: Turn) -> tuple[list[_Move], dict[Place, str]]:
        """What goes into files, and what replaces results that were read back and are too long."""
        selection = _recall_selection(turn, self.reference, self._selection)
        min_chars = selection.least_chars
        if self.read_back_chars is not None:
            min_chars = min(min_chars, self.read_back_chars)
        start = offload.newest(turn.messages)
        is_long = turn.is_bulky(max(0, start - 1))
        pairs, candidates = await in_thread_if(
            is_long, _find_candidates, turn.messages, start, min_chars, selection
        )
        moves = await _worthwhile_moves(self._pointers, turn, candidates, selection)
        cuts: dict[Place, str] = {}
        too_long = await in_thread_if(is_long, self._long_read_backs, pairs, selection)
        for result, call, path in too_long:
            cut = await self._shorten(turn, result, path)
            # Counted in a worker thread now: to ask later whether it saves tokens is a look-up.
            text = offload.text_of(result.content)
            await turn.counter.texts([text, cut or ""])
            if cut is not None:
                cuts[result.place] = cut
            elif call.name not in selection.exempt_tools:
                # The text is in no file yet: the output of a filter, for example.
                pointers = replace(self._pointers, preview=self._long_preview)
                candidate = offload.candidate_of(result)
                moves += await _worthwhile_moves(pointers, turn, [candidate], selection)
        return moves, cuts

    def _long_read_backs(
        self,
        pairs: Iterable[Answered],
        selection: Selection,
    ) -> list[tuple[ToolResult, ToolCall, str]]:
        """The results too long to stay that were read from our files, each with the file's path."""
        limit = self.read_back_chars
        if limit is None:
            return []
        found = []
        for result, call in pairs:
            if call is None or call.program is not None:
                continue  # what a program reads must be whole
            text = offload.text_of(result.content)
            if len(text) <= limit:
                continue
            path = selection.read_back(call)
            if path is not None and any_reference(text, limit) is None:
                found.append((result, call, path))
        return found

    @property
    def _long_preview(self) -> Preview:
        limit = self.read_back_chars or 0
        return Preview(head=limit * 3 // 4, tail=limit // 4)

    async def _shorten(self, turn: Turn, result: ToolResult, path: str) -> str | None:
        """Head and tail after the pointer to the file that was read.

        None when the text is not in that file.
        """
        text = offload.text_of(result.content)
        preview = self._long_preview
        end = len(text) - preview.tail
        limit = offload.MOST_COMPARED
        if not isinstance(self.storage, TextReader) or len(text) > limit:
            return None
        in_session = f"{session_folder(turn.session_id)}/{PurePath(path).name}"
        for location in (path, in_session):
            with suppress(StorageError):
                page = await self.storage.read(location, 0, limit + 1)
                if await in_thread(offload.contains_excerpt, page.text, text, preview.head, end):
                    return placeholder(DIRECT, path, text, preview)
        return None

    def _cut_only(self, turn: Turn, cuts: Mapping[Place, str]) -> Change | Skip:
        if cuts:
            return _apply_cuts(Change(list(turn.messages)), cuts)
        return Skip(f"no new result of {self.min_chars} characters or more")


@dataclass(frozen=True, slots=True)
class BatchOffload:
    """Move old tool results into files, all at once, when the gate finds it worthwhile.

    Results that the model has answered fewer than *keep_recent* times since are protected, and
    nothing happens below *min_context_tokens* (estimated). Below the gate the very same list comes
    back; with a session's memory that costs the new messages only. Source: RG, BO, PL-2.

    *inputs* names tools whose long input texts (*min_input_chars*) go as well, such as
    `WRITING_TOOLS`; such an input keeps its keys. Calls of a program stay as they are, with their
    results. What was read back from our files stays for good (A-27); without *keep_read_backs* it
    leaves again once it is old, like any other result. The other settings are those of
    `DirectOffload`.

    Raises SettingsError for settings that are invalid.
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
    keep_read_backs: bool = True

    def __post_init__(self) -> None:
        self._pointers.check()
        check_settings(
            self,
            min_chars=SIZE,
            gate=Wanted(CALLABLE.accepts, "a Gate such as RatioGate(0.2)"),
            keep_recent=SIZE,
            keep_read_backs=FLAG,
            min_context_tokens=SIZE,
            min_input_chars=SIZE,
        )
        _check_tools(self.per_tool, exempt_tools=self.exempt_tools, inputs=self.inputs)
        if not (self.keep_read_backs or self.keep_recent):
            raise SettingsError(
                "keep_read_backs is False and keep_recent 0: what is read back would leave unseen"
            )

    async def __call__(self, turn: Turn) -> Change | Skip:
        """What cannot be written stays inline. Raises StorageError when nothing can be."""
        moves = await self._decide(turn)
        if isinstance(moves, Skip):
            return moves
        return await _move_to_files(self.storage, turn, moves)

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        moves = await self._decide(turn)
        if isinstance(moves, Skip):
            return moves
        return _predict_change(turn, moves)

    @property
    def _pointers(self) -> _Pointers:
        return _Pointers(
            self.storage,
            BATCH,
            self.reference,
            self.preview,
            prefix="tool-result-",
            indent=2,
        )

    def _selection(self, session_id: str) -> offload.Selection:
        own_paths = None
        if self.keep_read_backs:
            exempt = frozenset(self.exempt_tools) | READ_BACK_TOOLS
            own_paths = self._pointers.own_paths(session_id)
        else:
            exempt = frozenset(self.exempt_tools) - READ_BACK_TOOLS
        return offload.Selection(
            self.min_chars, self.per_tool, exempt, own_paths, self.inputs, self.min_input_chars
        )

    async def _decide(self, turn: Turn) -> list[_Move] | Skip:
        selection = _recall_selection(turn, self.reference, self._selection)
        running = turn.recall(offload.CandidateIndex)
        is_long = turn.is_bulky(running.known)
        await in_thread_if(is_long, running.extend, turn.messages, selection)
        if await self._is_below_minimum(turn):
            return Skip(f"the context is below {self.min_context_tokens} tokens")
        end = offload.protected_from(turn.messages, self.keep_recent)
        chosen = await self._choose(turn, running, end)
        if isinstance(chosen, str):
            return Skip(chosen)
        moves = await _worthwhile_moves(self._pointers, turn, chosen, selection)
        return moves or Skip("no placeholder would be cheaper than what it replaces")

    async def _is_below_minimum(self, turn: Turn) -> bool:
        if turn.force or not self.min_context_tokens:
            return False
        return await turn.tokens() < self.min_context_tokens

    async def _choose(
        self,
        turn: Turn,
        running: offload.CandidateIndex,
        end: int,
    ) -> Sequence[Candidate] | str:
        if turn.force:
            chosen = running.candidates(turn.protected, end)
            return chosen or "no old result is long enough to offload"
        scan = running.scan(turn.protected, end)
        candidates = partial(running.candidates, turn.protected, end)
        return await self.gate(turn, scan, candidates)


def _apply_cuts(change: Change, cuts: Mapping[Place, str]) -> Change:
    """*change* with the texts in *cuts* instead of the results at their places."""
    if not cuts:
        return change
    contents: dict[Place, object] = {}
    saved = 0
    for result in tool_results(change.messages):
        text = cuts.get(result.place)
        if text is not None:
            contents[result.place] = offload.with_placeholder(result.content, text)
            saved += len(offload.text_of(result.content)) - len(text)
    detail = _offload_detail(change)
    return replace(
        change,
        messages=rewrite(change.messages, contents),
        detail=replace(detail, saved_chars=detail.saved_chars + saved),
    )


def _add_failures(change: Change, *errors: StorageError) -> Change:
    detail = _offload_detail(change)
    failed = (*detail.failed, *map(safe_text, errors))
    return replace(change, detail=replace(detail, failed=failed))


def _offload_detail(change: Change) -> Offloaded:
    return change.detail if isinstance(change.detail, Offloaded) else Offloaded()


# Settings -----------------------------------------------------------------------------------------


def _check_limits(**limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None and not is_size(limit):
            raise SettingsError(
                f"{name} is {excerpt(limit)}; give a whole number, 0 or more, or None for no limit"
            )


def _check_tools(per_tool: Mapping[str, int | None], **tool_sets: object) -> None:
    if not isinstance(per_tool, Mapping):
        raise SettingsError(
            f"per_tool is {excerpt(per_tool)}; give a mapping from the name of a tool to its limit"
        )
    limits = {f"per_tool[{tool!r}]": limit for tool, limit in per_tool.items()}
    _check_limits(**limits)
    for name, tools in tool_sets.items():
        if not _are_names(tools):
            raise SettingsError(f"{name} is {excerpt(tools)}; give a set of names of tools")


def _are_names(tools: object) -> bool:
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        return False
    return all(isinstance(name, str) for name in tools)
