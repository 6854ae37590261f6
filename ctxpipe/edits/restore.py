"""Which files to bring back after a summary, in which order, and how they look."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import TYPE_CHECKING, cast

from ..activity import is_failure, possible_reads, says_failure
from ..agent_tools import (
    FOLDER_VIEW,
    NOTE,
    READING_TOOLS,
    SHELL_TOOLS,
    VIEW_COMMAND,
    WRITTEN_GUTTER,
    ReadingTools,
    view,
)
from ..markers.placeholders import MAX_SHOWN, any_reference
from ..markers.summaries import RESTORED, restored_path, restored_text, text_of
from ..messages import field, kind, result_text, results_by_id, tool_calls, tool_results
from .views import changes_folder, path_argument, viewed_path

if TYPE_CHECKING:
    from ..messages import Message, ToolCall, ToolResult

__all__ = [
    "WorkingFile",
    "restored_message",
    "trusting_working_set",
    "was_changed",
    "working_set",
]

_MAX_COMPARED_CHARS = 500_000  # no longer file comes back whole


@dataclass(frozen=True, slots=True)
class WorkingFile:
    """A file that the conversation used.

    *path* is its latest spelling, *shown* what was seen of it, if known. *denied* says that the
    last attempt to read it failed, so that it must not come back.
    """

    path: str
    shown: str | None = attribute(default=None, repr=False)
    written: bool = False
    denied: bool = False


def working_set(
    messages: Sequence[Message],
    *,
    tools: ReadingTools,
    shell: bool = False,
    writing_tools: ReadingTools | None = None,
    work_dir: str = "",
) -> list[WorkingFile]:
    """The files that calls in *messages* read, the most recent first, each once, at its last place.

    A call counts only if it has a result that reports no failure and was not moved to a file. The
    newest verdict on a file counts: one whose last read failed is *denied* until a later call
    succeeds. A call that reads and has failed denies every path that it names, a command line that
    prints files every word in it. A call without a result decides nothing, and neither does a write
    that failed. A command line that succeeded shows its file only with *shell*, and as long as the
    shell's folder is known. No text of a message is trusted to name a file. The other arguments are
    those of `trusting_working_set`.
    """
    latest: dict[str, WorkingFile] = {}
    folder_changed = False
    for call, result in _calls_with_results(messages):
        by_shell = call.name.lower() in SHELL_TOOLS and call.name not in tools
        read_path = None
        if not _shows_folder(result):
            read_path = viewed_path(call, tools, True)
        path = read_path
        if path is None:
            path = _path_to_write(call, writing_tools or {})
        files: list[WorkingFile] = []
        if _is_failure(result, by_shell=by_shell):
            files = _denials(call, path, is_read=read_path is not None)
        elif path is not None:
            is_place_known = os.path.isabs(path) or not folder_changed
            if not by_shell or (shell and is_place_known):
                if read_path is not None:
                    files = [WorkingFile(path, _view_text(result))]
                else:
                    files = [WorkingFile(path, written=True)]
        for file in files:
            full_path = os.path.expanduser(file.path.removeprefix("file://"))
            _put_last(latest, os.path.join(work_dir, full_path), file)
        folder_changed = folder_changed or changes_folder(call)
    return list(reversed(latest.values()))


def _denials(call: ToolCall, path: str | None, *, is_read: bool) -> list[WorkingFile]:
    """The files that must not come back because *call* has failed."""
    if path is None:
        return [WorkingFile(each, denied=True) for each in possible_reads(call)]
    if is_read:
        return [WorkingFile(path, denied=True)]
    return []


def _put_last(files: dict[str, WorkingFile], path: str, file: WorkingFile) -> None:
    key = os.path.normpath(path)
    files.pop(key, None)
    files[key] = file


def _calls_with_results(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, object]]:
    """Each call with its result; of several results an error, if there is one.

    A result belongs to the last call before it with its id, since agents may use an id again.
    """
    calls: dict[str, ToolCall] = {}
    results: dict[str, ToolResult] = {}
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            for result in tool_results(messages, index, index + 1):
                known = results.get(result.tool_use_id)
                if known is None or not _is_failure(known):
                    results[result.tool_use_id] = result
            continue
        if results:  # otherwise the calls of one reply are in several messages
            yield from _pair(calls, results)
            calls, results = {}, {}
        for call in tool_calls(messages, index, index + 1):
            calls[call.id] = call
    yield from _pair(calls, results)


def _pair(
    calls: Mapping[str, ToolCall], results: Mapping[str, ToolResult]
) -> Iterator[tuple[ToolCall, object]]:
    for call_id, call in calls.items():
        if call_id in results:
            yield call, results[call_id]


def _is_failure(result: object, *, by_shell: bool = False) -> bool:
    content = field(result, "content")
    if isinstance(content, list | tuple) and any(kind(part) != "text" for part in content):
        # Not a view of a text file; and a repair unmarks an error that shows a picture.
        return True
    if field(result, "is_error"):
        return True
    text = result_text(result)
    if any_reference(text, MAX_SHOWN) is not None:
        return True  # what was moved to that file may be a denial
    if says_failure(text, whole=by_shell):
        return True
    return by_shell and is_failure(result)


def trusting_working_set(
    messages: Sequence[Message],
    *,
    tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    writing_tools: ReadingTools | None = None,
    work_dir: str = "",
) -> list[WorkingFile]:
    """The files read in *messages*, the most recent first, each once, at its last place.

    A file that an earlier compaction brought back counts as read before everything after it. With
    *writing_tools* files written count as well; with *shell* command lines that print a file count
    as reading it. Spellings that mean the same path below *work_dir* are one file.

    It trusts every call, whatever its result, and every message that looks like a restored file.
    `working_set` trusts neither.
    """
    latest: dict[str, WorkingFile] = {}
    for file in _files_restored_before(messages):
        _put_last(latest, os.path.join(work_dir, file.path), file)
    results = results_by_id(messages)
    for file in _files_of_calls(messages, results, tools, shell, writing_tools or {}):
        _put_last(latest, os.path.join(work_dir, file.path), file)
    return list(reversed(latest.values()))


def _files_restored_before(messages: Sequence[Message]) -> Iterator[WorkingFile]:
    """The files that the last compaction restored, the least recent first."""
    for message in reversed(messages):  # a compaction puts the most recent file first
        path = restored_path(message)
        if path is not None:
            prefix = len(RESTORED) + len(path) + 2  # the path is followed by a colon and a newline
            yield WorkingFile(path, text_of(message)[prefix:])


def _files_of_calls(
    messages: Sequence[Message],
    results: Mapping[str, object],
    tools: ReadingTools,
    shell: bool,
    writing_tools: ReadingTools,
) -> Iterator[WorkingFile]:
    for call in tool_calls(messages):
        result = results.get(call.id)
        path = viewed_path(call, tools, shell)
        if path is not None and not _shows_folder(result):
            yield WorkingFile(path, _view_text(result))
            continue
        path = _path_to_write(call, writing_tools)
        if path is not None:
            yield WorkingFile(path, written=True)


def _path_to_write(call: ToolCall, tools: ReadingTools) -> str | None:
    if call.input.get("command") == VIEW_COMMAND:  # an editor's tool both views and writes
        return None
    return path_argument(call.input, tools.get(call.name, ()))


def _shows_folder(result: object) -> bool:
    return FOLDER_VIEW.match(result_text(result)) is not None


def _view_text(result: object) -> str | None:
    """What a reading tool showed of a file; None if it failed, or was moved to a file since."""
    if result is None or field(result, "is_error"):
        return None
    text = result_text(result)
    if any_reference(text) is not None:
        return None
    return text


def was_changed(file: WorkingFile, text: str) -> bool:
    """Whether *text* certainly lacks what was seen of *file*, with and without line numbers."""
    if file.shown is None or len(file.shown) > _MAX_COMPARED_CHARS:
        return False
    shown, _, _ = view(file.shown).text.partition(NOTE)
    if shown.strip() in text:
        return False
    without_numbers = WRITTEN_GUTTER.sub("", shown)
    return without_numbers.strip() not in text


def restored_message(path: str, text: str) -> Message:
    """The user message that brings a file back."""
    return cast("Message", {"role": "user", "content": restored_text(path, text)})
