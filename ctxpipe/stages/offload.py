"""Move bulky tool results into files, and leave a placeholder that says where they are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal

from .._text import count_phrase, short_repr
from .._threads.threads import in_thread_if
from ..edits import offload
from ..edits.offload import OffloadCandidate
from ..errors import InvalidHistory, SettingsError
from ..messages import Message, ToolResult, ensure_messages, rewrite, tool_results
from ..placeholders.names import safe_name, session_folder
from ..placeholders.placeholders import BATCH, DIRECT, Preview
from ..providers.agent_tools import READ_BACK_TOOLS
from ..settings import (
    CALLABLE,
    DIRECT_OFFLOAD_CHAR_THRESHOLD,
    FLAG,
    OFFLOAD_CHAR_THRESHOLD,
    OFFLOAD_RATIO_THRESHOLD,
    SIZE,
    TOOL_NAMES,
    Requirement,
    check_settings,
    excerpt,
    is_size,
    setting,
)
from ..storage import LocalStorage, TextWriter
from .gates import Gate, RatioGate, Waiting
from .moves import (
    Act,
    Move,
    Moving,
    Pointers,
    move_texts,
    recall_rules,
    worthwhile_moves,
    write_texts,
)
from .newest_batch import moves_to_make_room
from .protocol import Change, Skip, Turn

# The functions, literal to the requirements -------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class OffloadedMessage:
    """What `offload_tool_result` did.

    *freed_chars* is net of the placeholders; *file* is the first of *files*. With nothing
    to offload, *message* is the same object, *files* empty and *file* None.
    """

    message: Message = field(repr=False)
    freed_chars: int = 0
    files: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def file(self) -> str | None:
        """The absolute path of the first file written."""
        return self.files[0] if self.files else None


@dataclass(frozen=True, slots=True, repr=False)
class OffloadResult:
    """What `offload_tool_results` did.

    *freed_chars* is gross, *files* are absolute paths in message order.
    """

    messages: list[Message] = field(repr=False)
    offloaded_count: int = 0
    freed_chars: int = 0
    files: tuple[str, ...] = ()

    __repr__ = short_repr


async def offload_tool_result(
    message: Message,
    *,
    session_id: str,
    output_dir: str | os.PathLike[str],
    writer: TextWriter | None = None,
) -> OffloadedMessage:
    """Write each tool result of *message* to a file, and replace it by a placeholder.

    The file is ``<output_dir>/<session_id>/<tool_use_id>.md``. No threshold is checked: the caller
    has decided. A result with images, or one that is a placeholder already, stays. The same
    id again overwrites its file. *message* is not modified.

    Raises InvalidHistory when *message* holds no tool result, StorageError when a file cannot be
    written.
    """
    ensure_messages([message])
    if not any(tool_results([message])):
        raise InvalidHistory("message 0 holds no tool_result block, so there is nothing to offload")
    writer = writer or LocalStorage(output_dir, on_conflict="overwrite")
    movable = offload.movable([message])
    if not movable:
        return OffloadedMessage(message)
    files = await _write_results(
        writer, movable, f"{session_folder(session_id)}/{{}}.md", indent=None
    )
    pointers = [DIRECT.format(file) for file in files]
    [rewritten] = _point_to([message], movable, pointers)
    freed = offload.total_characters(movable)
    return OffloadedMessage(rewritten, freed - sum(map(len, pointers)), files)


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
    touched. A repeated id gets the next free number. *messages* is not modified;
    messages without such a result come back by reference.

    Raises InvalidHistory before anything is written, StorageError when a file cannot be written,
    SettingsError when a variable of the environment is not a number.
    """
    ensure_messages(messages)
    min_chars = OFFLOAD_CHAR_THRESHOLD(min_chars)
    share = OFFLOAD_RATIO_THRESHOLD(ratio)
    results = offload.offloadable(messages, min_chars)
    scan = offload.scan_of(messages, results)
    if not offload.passes(scan, share):
        return OffloadResult(messages)
    writer = writer or LocalStorage(output_dir, on_conflict="number")
    files = await _write_results(writer, results, "tool-result-{}.md", indent=2)
    pointers = [BATCH.format(f"./{os.path.basename(file)}") for file in files]
    rewritten = _point_to(messages, results, pointers)
    return OffloadResult(rewritten, len(results), scan.offloadable_chars, files)


async def _write_results(
    writer: TextWriter, results: Sequence[ToolResult], name: str, indent: int | None
) -> tuple[str, ...]:
    """Write each of *results* to a file of this *name*, with its id in place of ``{}``."""
    keys = [name.format(safe_name(result.tool_use_id)) for result in results]
    texts = [offload.stored_text(result.content, indent=indent) for result in results]
    return tuple(await writer.write(list(zip(keys, texts, strict=True))))


def _point_to(
    messages: list[Message], results: Iterable[ToolResult], pointers: Iterable[str]
) -> list[Message]:
    """*messages* with one of *pointers*, and nothing else, in place of each of *results*."""
    return rewrite(messages, dict(zip([result.place for result in results], pointers, strict=True)))


# The stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class DirectOffload(Moving):
    """Move each new tool result that is too long into a file of its own.

    It happens before the model has seen the result. Only the results after the last reply are
    looked at, so nothing that the provider has cached ever changes.

    A result goes when it has *min_chars* characters or more (*per_tool* by tool name, None: never)
    and the placeholder is cheaper in tokens. Images stay in place, and so does the result of a call
    that a program on the server has made and reads. The result of a call that reads an offloaded
    file back is not offloaded again; where it is long, `TrimReadBacks` shortens it.

    Where the new results, with the system prompt, the tools and what a compaction carries on,
    exceed the window together, the largest of them go as well, with a preview, until the rest fits:
    otherwise they would be summarized before the model has seen them. If that is not enough, what
    was read back goes, too.

    *preview* keeps head and tail visible after the placeholder.

    Raises SettingsError for settings that are invalid.
    """

    storage: TextWriter
    min_chars: int = setting(DIRECT_OFFLOAD_CHAR_THRESHOLD)
    preview: Preview | None = None
    per_tool: Mapping[str, int | None] = field(default_factory=dict)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        self._pointers.check()
        check_settings(self, min_chars=SIZE)
        _check_limits(self.per_tool)

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self.storage, DIRECT, self.preview)

    def _rules(self, session_id: str) -> offload.OffloadRules:
        own_paths = self._pointers.own_paths(session_id)
        return offload.OffloadRules(self.min_chars, self.per_tool, READ_BACK_TOOLS, own_paths)

    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        rules = recall_rules(turn, self.storage, self._rules)
        start = offload.unanswered_start(turn.messages)
        moves: list[Move] = []
        if (await turn.columns()).result_chars(start) >= rules.least_chars:
            is_bulky = turn.is_bulky(max(0, start - 1))
            chosen = await in_thread_if(is_bulky, offload.candidates, turn.messages, start, rules)
            moves = await worthwhile_moves(self._pointers, turn, chosen, rules)
        if start < len(turn.messages):
            moves += await moves_to_make_room(self._pointers, turn, moves, rules)
        if not moves:
            return Skip(f"no new result of {self.min_chars:,} characters or more")
        return await move_texts(turn, moves, act)


@dataclass(frozen=True, slots=True, repr=False)
class BatchOffload(Moving):
    """Move old tool results into files, all at once, when the gate finds it worthwhile.

    Results that the model has answered fewer than *keep_recent* times since are protected. Below
    the gate the very same list comes back; with a session's memory that costs the new messages
    only.

    *inputs* names tools whose input texts of 1,000 characters or more go as well, such as
    `WRITING_TOOLS`; such an input keeps its keys. Calls of a program stay as they are, with their
    results. What was read back from our files stays for good; without *keep_read_backs* it
    leaves again once it is old, like any other result. The other settings are those of
    `DirectOffload`.

    Raises SettingsError for settings that are invalid.
    """

    storage: TextWriter
    gate: Gate = field(default_factory=RatioGate)
    min_chars: int = setting(OFFLOAD_CHAR_THRESHOLD)
    keep_recent: int = 1
    preview: Preview | None = None
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    inputs: AbstractSet[str] = frozenset()
    keep_read_backs: bool = True

    __repr__ = short_repr

    def __post_init__(self) -> None:
        self._pointers.check()
        check_settings(
            self,
            min_chars=SIZE,
            gate=Requirement(CALLABLE.accepts, "a Gate such as RatioGate(0.2)"),
            keep_recent=SIZE,
            keep_read_backs=FLAG,
            inputs=TOOL_NAMES,
        )
        _check_limits(self.per_tool)
        if not (self.keep_read_backs or self.keep_recent):
            raise SettingsError(
                "keep_read_backs is False and keep_recent 0: what is read back would leave unseen"
            )

    @property
    def _pointers(self) -> Pointers:
        return Pointers(self.storage, BATCH, self.preview, prefix="tool-result-", indent=2)

    def _rules(self, session_id: str) -> offload.OffloadRules:
        if not self.keep_read_backs:
            return offload.OffloadRules(self.min_chars, self.per_tool, input_tools=self.inputs)
        own_paths = self._pointers.own_paths(session_id)
        return offload.OffloadRules(
            self.min_chars, self.per_tool, READ_BACK_TOOLS, own_paths, self.inputs
        )

    async def _propose(self, turn: Turn, act: Act) -> Change | Skip:
        rules = recall_rules(turn, self.storage, self._rules)
        running = turn.recall(offload.CandidateIndex)
        await in_thread_if(
            turn.is_bulky(running.message_count), running.extend, turn.messages, rules
        )
        end = (await turn.columns()).recent_from(self.keep_recent)
        scan, candidates = running.between(turn.protected, end)
        chosen: Sequence[OffloadCandidate] | str
        if turn.force:
            chosen = candidates() or "no old result is long enough to offload"
        else:
            chosen = await self.gate(turn, scan, candidates)
        if isinstance(chosen, str):
            waiting = candidates()
            if not waiting:
                return Skip(chosen)
            if act is write_texts:
                turn.recall(Waiting).log(turn, waiting, scan.offloadable_chars, chosen)
            return Skip(f"{count_phrase(len(waiting), 'old result')} wait; {chosen}")
        moves = await worthwhile_moves(self._pointers, turn, chosen, rules)
        if not moves:
            return Skip("no placeholder would be cheaper than what it replaces")
        return await move_texts(turn, moves, act)


# Settings -----------------------------------------------------------------------------------------


def _check_limits(per_tool: object) -> None:
    """Raise SettingsError unless *per_tool* maps names of tools to limits in characters."""
    if not isinstance(per_tool, Mapping):
        raise SettingsError(
            f"per_tool is {excerpt(per_tool)}; give a mapping from the name of a tool to its limit"
        )
    for tool, limit in per_tool.items():
        if limit is not None and not is_size(limit):
            raise SettingsError(
                f"per_tool[{tool!r}] is {excerpt(limit)}; "
                "give a whole number, 0 or more, or None for no limit"
            )
