"""Move bulky tool results into files, and leave a placeholder that says where they lie."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from ..edits import offload
from ..errors import InvalidHistory, SettingsError, StorageError, safe_text
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
from .pointing import check_reference, shown

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

_NAME = r"[A-Za-z0-9_-](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_SAMPLE = "SAMPLEOFANAME"

READ_BACK_TOOLS = frozenset({"read_offloaded", "search_offloaded"})
"""Our own reading tools, whose results are never offloaded (A-27)."""

WRITING_TOOLS = frozenset(
    {
        *(
            "write_file",
            "create_file",
            "edit_file",
            "Write",
            "Edit",
            "MultiEdit",
            "NotebookEdit",
            "ExitPlanMode",
        ),
        *(
            "write",
            "edit",
            "create",
            "apply_patch",
            "str_replace_editor",
            "str_replace_based_edit_tool",
        ),
    }
)
"""Tools of common agents whose inputs hold whole texts; a value for `BatchOffload.inputs`."""


# The functions, literal to the requirements -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffloadedMessage:
    """What `offload_tool_result` did. *freed_chars* is net of the placeholders (DO-11); *file* is
    the first of *files*.

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
    """Write each tool result of *message* to ``<output_dir>/<session_id>/<tool_use_id>.md`` and
    point to it there.

    No threshold is checked: the caller has judged (DO-2). A result with images, or one that is a
    placeholder already, stays. The same id again overwrites its file (DO-10). *message* is not
    modified.

    Raises InvalidHistory when *message* holds no tool result, StorageError when a file cannot be
    written.
    """
    ensure_messages([message])
    results = list(tool_results([message]))
    if not results:
        raise InvalidHistory("message 0 holds no tool_result block, so there is nothing to offload")
    writer = writer or LocalStorage(output_dir, taken="overwrite")
    movable = [
        r for r in results if offload.is_text(r.content) and not offload.is_placeholder(r.content)
    ]
    folder = session_folder(session_id)
    texts = [
        (f"{folder}/{safe_name(r.tool_use_id)}.md", offload.stored_text(r.content, indent=None))
        for r in movable
    ]
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
    """Write every tool result of *min_chars* (100) characters or more to
    ``<output_dir>/tool-result-<id>.md``.

    Only when these hold at least *ratio* (0.2) of all characters; below it the very same list comes
    back and no disk is touched (RG-8). A repeated id gets the next free number (BO-7). *messages*
    is not modified, messages without such a result come back by reference.

    Raises InvalidHistory before anything is written, StorageError when a file cannot be written,
    SettingsError when a variable of the environment is not a number.
    """
    ensure_messages(messages)
    min_chars, share = OFFLOAD_CHAR_THRESHOLD(min_chars), OFFLOAD_RATIO_THRESHOLD(ratio)
    found = offload.offloadable(messages, min_chars)
    if not offload.passes(offload.scanned(messages, found), share):
        return OffloadResult(messages)
    writer = writer or LocalStorage(output_dir, taken="number")
    results = [(c.item, c.chars) for c in found if isinstance(c.item, ToolResult)]
    texts = [
        (
            f"tool-result-{safe_name(result.tool_use_id)}.md",
            offload.stored_text(result.content, indent=2),
        )
        for result, _ in results
    ]
    files = tuple(await writer.write(texts))
    pointers = {
        result.place: BATCH.format(f"./{os.path.basename(file)}")
        for (result, _), file in zip(results, files, strict=True)
    }
    return OffloadResult(
        rewrite(messages, pointers), len(results), sum(chars for _, chars in results), files
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
        instance_of(TextWriter, "a TextWriter such as LocalStorage('.ctxpipe')").check(
            "storage", self.storage
        )
        instance_of(Preview, "a Preview(head, tail)").optional.check("preview", self.preview)
        TEXT.check("reference", self.reference)
        if self.preview is not None and self.preview.head + self.preview.tail > MAX_SHOWN:
            told = f"give at most {MAX_SHOWN} characters: a longer one would be taken for a tool's own text"
            raise SettingsError(f"preview is {self.preview!r}; {told}")
        check_reference(self.reference)
        key = f"{_SAMPLE}/{_SAMPLE}.md"
        printed = self.where(key, self.storage.location(key))
        if reference(placeholder(self.form, printed)) != printed:
            told = "its path has a line break or another control character, or is longer than 4,096 characters"
            raise SettingsError(
                f"storage is at {printed!r}, where no placeholder can point to: {told}"
            )

    def key(self, session_id: str, name: str) -> str:
        # As the id will be sent, by which its placeholder is known again.
        return f"{session_folder(session_id)}/{self.prefix}{safe_name(without_surrogates(name))}.md"

    def where(self, key: str, location: str) -> str:
        """The path that the model sees for the file at *location*: another than the key's where
        that was taken.
        """
        return shown(self.reference, key.rsplit("/", 1)[0], location)

    def replacement(self, key: str, location: str, text: str) -> str:
        return placeholder(self.form, self.where(key, location), text, self.preview)

    def ours(self, session_id: str) -> re.Pattern[str]:
        """Finds the path of a file of ours in a text, in any form that we print."""
        sample = f"{session_folder(session_id)}/{self.prefix}{_SAMPLE}.md"
        location = self.storage.location(sample)
        root, folder = (
            os.path.dirname(os.path.dirname(location)),
            re.escape(session_folder(session_id)),
        )
        printed = re.escape(self.where(sample, location)).replace(_SAMPLE, _NAME)
        below = [rf"{re.escape(root)}(?:/{_NAME})+"] if root.strip("./") else []
        # Both stages are recognised in their plain forms; a session may be called as a folder of
        # the user's is.
        named = "|".join([*below, printed, rf"{folder}/{_NAME}\.md", rf"tool-result-{_NAME}\.md"])
        return re.compile(rf"(?<![\w.-])(?:{named})")


@dataclass(slots=True)
class _Remembered:
    """What a stage may offload in a session, and the folder in which the paths are printed so."""

    selection: offload.Selection | None = None
    folder: str = ""


def _remembered(
    turn: Turn, reference: str, make: Callable[[str], offload.Selection]
) -> offload.Selection:
    """What *make* gives for the session, once: it costs more than all else of a turn with nothing
    to do.
    """
    held = turn.recall(_Remembered)
    folder = os.getcwd() if reference == "relative" else ""
    if held.selection is None or held.folder != folder:
        held.selection, held.folder = make(turn.session_id), folder
    return held.selection


@dataclass(frozen=True, slots=True)
class _Move:
    """One text on its way out of the context: *place* and *key* of its block, and what replaces the
    text.
    """

    candidate: Candidate
    key: str
    text: str
    predicted: str  # the replacement, as long as the key is free
    pointers: _Pointers

    @property
    def expected(self) -> str:
        """Where the text will lie, as long as the key is free."""
        return self.pointers.storage.location(self.key)

    def replacement(self, location: str) -> str:
        """What replaces the text, now that it lies at *location*."""
        return self.pointers.replacement(self.key, location, self.text)


async def _moves(
    pointers: _Pointers, turn: Turn, chosen: Sequence[Candidate], selection: Selection
) -> list[_Move]:
    """The chosen texts for which the placeholder is cheaper than what it replaces (R3f)."""
    if not chosen:
        return []
    is_long = _are_long(chosen)
    moves = await in_thread_if(is_long, _predicted, pointers, turn, chosen, selection)
    sizes = await turn.counter.texts([move.predicted for move in moves])
    return await in_thread_if(is_long, _cheaper, turn, moves, sizes)


def _are_long(candidates: Sequence[Candidate]) -> bool:
    """Whether to replace *candidates* would hold up the event loop."""
    return len(candidates) > 50 or sum(candidate.chars for candidate in candidates) > 200_000


def _predicted(
    pointers: _Pointers, turn: Turn, chosen: Iterable[Candidate], selection: Selection
) -> list[_Move]:
    moves: list[_Move] = []
    for candidate in chosen:
        for suffix, text in _texts(candidate, selection, pointers.indent):
            key = pointers.key(turn.session_id, candidate.id + suffix)
            predicted = pointers.replacement(key, pointers.storage.location(key), text)
            moves.append(_Move(candidate, key, text, predicted, pointers))
    return moves


def _cheaper(turn: Turn, moves: Iterable[_Move], sizes: Iterable[int]) -> list[_Move]:
    return [
        move for move, size in zip(moves, sizes, strict=True) if turn.counter.over(move.text, size)
    ]


def _long_enough(
    messages: Sequence[Message], start: int, min_chars: int, selection: Selection
) -> tuple[list[Answered], list[Candidate]]:
    """The results of *min_chars* or more from message *start* on with their calls, and those that
    may leave.
    """
    pairs = list(offload.answered(messages, start, min_chars))
    return pairs, [found for result, call in pairs if (found := selection.result(result, call))]


def _texts(candidate: Candidate, selection: Selection, indent: int | None) -> list[tuple[str, str]]:
    """The texts to store for *candidate*, each with what its file name adds to the id."""
    if isinstance(candidate.item, ToolResult):
        return [("", offload.stored_text(candidate.item.content, indent=indent))]
    texts = dict.fromkeys(selection.long_texts(candidate.item))
    return [(f"-input-{number}", text) for number, text in enumerate(texts, 1)]


def _change(
    turn: Turn, moves: Sequence[_Move], replacements: Sequence[str], files: Sequence[str]
) -> Change:
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
    return rebuilt(value, lambda item: texts.get(item, item) if isinstance(item, str) else item)


async def _moved(storage: TextWriter, turn: Turn, moves: Sequence[_Move]) -> Change:
    """Write first, replace after; what cannot be written stays inline.

    Raises StorageError where nothing can be.
    """
    try:
        files = await storage.write([(move.key, move.text) for move in moves])
    except StorageError:
        if len(moves) == 1:
            raise
        return await _moved_singly(storage, turn, moves)
    return await in_thread_if(
        _are_long([move.candidate for move in moves]), _moved_to, turn, moves, files
    )


async def _moved_singly(storage: TextWriter, turn: Turn, moves: Sequence[_Move]) -> Change:
    """One text that cannot be written must not keep the others in the context for ever."""
    written: list[tuple[_Move, str]] = []
    failed: list[StorageError] = []
    for move in moves:
        try:
            [file] = await storage.write([(move.key, move.text)])
            written.append((move, file))
        except StorageError as error:
            failed.append(error)
    if not written:
        raise failed[0]
    change = await in_thread(
        _moved_to, turn, [move for move, _ in written], [file for _, file in written]
    )
    return _with(change, failed=tuple(map(safe_text, failed)))


def _moved_to(turn: Turn, moves: Sequence[_Move], files: Sequence[str]) -> Change:
    change = _change(
        turn,
        moves,
        [move.replacement(file) for move, file in zip(moves, files, strict=True)],
        files,
    )
    locations = {move.text: file for move, file in zip(moves, files, strict=True)}
    return replace(change, stored=Stored(moves[0].pointers.storage, locations))


def _planned(turn: Turn, moves: Sequence[_Move]) -> Change:
    return _change(
        turn, moves, [move.predicted for move in moves], [move.expected for move in moves]
    )


# The stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DirectOffload:
    """Move each new tool result that is too long into a file of its own, before the model has seen
    it. Source: DO-1.

    It looks at the results behind the last reply only, so nothing that the provider has cached ever
    changes. A result goes when it has *min_chars* characters or more (*per_tool* by tool name,
    None: never) and the placeholder is cheaper in tokens. Images stay in place, and so does what a
    program of the server's has called for and reads. The result of a call that reads an offloaded
    file back is never offloaded again; above *read_back_chars* it is cut to head and tail behind
    the same pointer (None: never).

    *preview* keeps head and tail visible behind the placeholder. *reference* is the path that the model sees:
    "absolute", "relative" (to the current folder), "storage" (to its root), or a template that ends
    in /{key} or in {path}, from which the file is found again.

    Raises SettingsError for settings that make no sense.
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

        Raises StorageError when that is all there is to do.
        """
        moves, cut = await self._decide(turn)
        if not moves:
            return self._without_moves(turn, cut)
        try:
            return _with_cut(await _moved(self.storage, turn, moves), cut)
        except StorageError as error:
            if not cut:
                raise
            return _with(_with_cut(Change(list(turn.messages)), cut), failed=(safe_text(error),))

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        moves, cut = await self._decide(turn)
        return _with_cut(_planned(turn, moves), cut) if moves else self._without_moves(turn, cut)

    @property
    def _pointers(self) -> _Pointers:
        return _Pointers(self.storage, DIRECT, self.reference, self.preview)

    def _selection(self, session_id: str) -> offload.Selection:
        ours = self._pointers.ours(session_id)
        return offload.Selection(self.min_chars, self.per_tool, _exempt(self.exempt_tools), ours)

    async def _decide(self, turn: Turn) -> tuple[list[_Move], dict[tuple[int, int], str]]:
        """What goes into files, and what takes the place of texts that were read back and are too
        long.
        """
        selection = _remembered(turn, self.reference, self._selection)
        least = (
            selection.least_chars
            if self.read_back_chars is None
            else min(selection.least_chars, self.read_back_chars)
        )
        start = offload.newest(turn.messages)
        is_long = turn.is_bulky(max(0, start - 1))
        pairs, chosen = await in_thread_if(
            is_long, _long_enough, turn.messages, start, least, selection
        )
        moves = await _moves(self._pointers, turn, chosen, selection)
        cut: dict[tuple[int, int], str] = {}
        for result, call, where in await in_thread_if(is_long, self._too_long, pairs, selection):
            shortened = await self._shortened(turn, result, where)
            # Encoded in a worker thread: whoever asks later whether it saves tokens finds the
            # numbers known.
            await turn.counter.texts([offload.said(result.content), shortened or ""])
            if shortened is not None:
                cut[result.place] = shortened
            elif (
                call.name not in selection.exempt_tools
            ):  # it lies nowhere yet: the output of a filter, for example
                pointers = replace(self._pointers, preview=self._long_preview)
                moves += await _moves(pointers, turn, [offload.measured(result)], selection)
        return moves, cut

    def _too_long(
        self, pairs: Iterable[tuple[ToolResult, ToolCall | None]], selection: Selection
    ) -> list[tuple[ToolResult, ToolCall, str]]:
        found = []
        for result, call in pairs:
            text = offload.said(result.content)
            if call is None or call.program is not None or self.read_back_chars is None:
                continue  # what a program reads must be whole
            if len(text) <= self.read_back_chars:
                continue
            where = selection.read_back(call)
            if where is not None and any_reference(text, self.read_back_chars) is None:
                found.append((result, call, where))
        return found

    @property
    def _long_preview(self) -> Preview:
        limit = self.read_back_chars or 0
        return Preview(head=limit * 3 // 4, tail=limit // 4)

    async def _shortened(self, turn: Turn, result: ToolResult, where: str) -> str | None:
        """Head and tail behind the pointer to the file that was read.

        None when the text does not lie there.
        """
        text, shown = offload.said(result.content), self._long_preview
        if not isinstance(self.storage, TextReader) or len(text) > offload.MOST_COMPARED:
            return None
        for location in (where, f"{session_folder(turn.session_id)}/{PurePath(where).name}"):
            with suppress(StorageError):
                stored = await self.storage.read(location, 0, offload.MOST_COMPARED + 1)
                if await in_thread(
                    offload.lies_in, stored.text, text, shown.head, len(text) - shown.tail
                ):
                    return placeholder(DIRECT, where, text, shown)
        return None

    def _without_moves(self, turn: Turn, cut: Mapping[tuple[int, int], str]) -> Change | Skip:
        if cut:
            return _with_cut(Change(list(turn.messages)), cut)
        return Skip(f"no new result of {self.min_chars} characters or more")


@dataclass(frozen=True, slots=True)
class BatchOffload:
    """Move old tool results into files, all in one go, once the gate finds it worth it. Source: RG,
    BO, PL-2.

    Results that the model has answered fewer than *keep_recent* times since are protected, and
    nothing happens below
    *min_context_tokens* (estimated). Below the gate the very same list comes back; with a session's memory that costs
    the new messages only. *inputs* names tools whose long input texts (*min_input_chars*) go as
    well, such as `WRITING_TOOLS`; such an input keeps its keys. Calls of a program stay as they
    are, with their results. What was read back from our files stays for good (A-27); without
    *keep_read_backs* it leaves again once it is old, like any other result. The other settings are
    those of `DirectOffload`.

    Raises SettingsError for settings that make no sense.
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
        decision = await self._decide(turn)
        return (
            decision if isinstance(decision, Skip) else await _moved(self.storage, turn, decision)
        )

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        decision = await self._decide(turn)
        return decision if isinstance(decision, Skip) else _planned(turn, decision)

    @property
    def _pointers(self) -> _Pointers:
        return _Pointers(
            self.storage, BATCH, self.reference, self.preview, prefix="tool-result-", indent=2
        )

    def _selection(self, session_id: str) -> offload.Selection:
        keep = self.keep_read_backs
        exempt = (
            _exempt(self.exempt_tools) if keep else frozenset(self.exempt_tools) - READ_BACK_TOOLS
        )
        ours = self._pointers.ours(session_id) if keep else None
        return offload.Selection(
            self.min_chars, self.per_tool, exempt, ours, self.inputs, self.min_input_chars
        )

    async def _decide(self, turn: Turn) -> list[_Move] | Skip:
        selection = _remembered(turn, self.reference, self._selection)
        running = turn.recall(offload.Running)
        await in_thread_if(turn.is_bulky(running.known), running.extend, turn.messages, selection)
        if (
            not turn.force
            and self.min_context_tokens
            and await turn.tokens() < self.min_context_tokens
        ):
            return Skip(f"the context is below {self.min_context_tokens} tokens")
        end = offload.protected_from(turn.messages, self.keep_recent)
        chosen = await self._chosen(turn, running, end)
        if isinstance(chosen, str):
            return Skip(chosen)
        moves = await _moves(self._pointers, turn, chosen, selection)
        return moves or Skip("no placeholder would be cheaper than what it replaces")

    async def _chosen(
        self, turn: Turn, running: offload.Running, end: int
    ) -> Sequence[Candidate] | str:
        if turn.force:
            return (
                running.candidates(turn.protected, end) or "no old result is long enough to offload"
            )
        scan = running.scan(turn.protected, end)
        return await self.gate(turn, scan, lambda: running.candidates(turn.protected, end))


def _with_cut(change: Change, cut: Mapping[tuple[int, int], str]) -> Change:
    """*change* with the texts in *cut* in place of the results that stand there."""
    if not cut:
        return change
    contents = {
        result.place: result.content
        for result in tool_results(change.messages)
        if result.place in cut
    }
    shortened = {place: offload.replaced(contents[place], text) for place, text in cut.items()}
    saved = sum(len(offload.said(contents[place])) - len(text) for place, text in cut.items())
    before = change.detail.saved_chars if isinstance(change.detail, Offloaded) else 0
    return _with(
        replace(change, messages=rewrite(change.messages, shortened)), saved_chars=before + saved
    )


def _with(
    change: Change, *, failed: tuple[str, ...] = (), saved_chars: int | None = None
) -> Change:
    detail = change.detail if isinstance(change.detail, Offloaded) else Offloaded()
    saved = detail.saved_chars if saved_chars is None else saved_chars
    return replace(
        change, detail=replace(detail, failed=(*detail.failed, *failed), saved_chars=saved)
    )


# Settings -----------------------------------------------------------------------------------------


def _exempt(tools: AbstractSet[str]) -> AbstractSet[str]:
    return frozenset(tools) | READ_BACK_TOOLS


def _check_limits(**limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None and not is_size(limit):
            raise SettingsError(
                f"{name} is {excerpt(limit)}; give a whole number, 0 or more, or None for no limit"
            )


def _check_tools(per_tool: Mapping[str, int | None], **named: object) -> None:
    if not isinstance(per_tool, Mapping):
        raise SettingsError(
            f"per_tool is {excerpt(per_tool)}; give a mapping from the name of a tool to its limit"
        )
    _check_limits(**{f"per_tool[{tool!r}]": limit for tool, limit in per_tool.items()})
    for name, tools in named.items():
        if (
            isinstance(tools, str)
            or not isinstance(tools, Iterable)
            or not all(isinstance(t, str) for t in tools)
        ):
            raise SettingsError(f"{name} is {excerpt(tools)}; give a set of names of tools")
