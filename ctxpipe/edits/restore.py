"""Which files to bring back behind a summary, in which order, and how they look.

Source: CR-16 to CR-35.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import TYPE_CHECKING, cast

from ..compacted import RESTORED, restored_path, restored_text, text_of
from ..facts import failed, possible_reads, refused, result_text, results_by_id
from ..messages import field, kind, tool_calls, tool_results
from ..placeholders import MAX_SHOWN, any_reference
from .views import READING_TOOLS, SHELL_TOOLS, ReadingTools, changes_folder, given_path, viewed_path

if TYPE_CHECKING:
    from ..messages import Message, ToolCall, ToolResult

__all__ = [
    "COMMON_WRITING_TOOLS",
    "FileInWork",
    "files_in_work",
    "restored_message",
    "was_changed",
    "working_set",
]

COMMON_WRITING_TOOLS: ReadingTools = {
    "write_file": "path",
    "create_file": "path",
    "edit_file": "path",
    "replace_in_file": "path",
    "str_replace": "path",
    "Write": "file_path",
    "Edit": "file_path",
    "MultiEdit": "file_path",
    "NotebookEdit": "notebook_path",
    "write": ("path", "filePath", "file_path"),
    "edit": ("path", "filePath", "file_path"),
    "str_replace_editor": "path",
    "str_replace_based_edit_tool": "path",
}
"""The writing tools of widespread agents and editors: name → the input key that holds the path."""

_LINE_NUMBER = re.compile(r"^[ ]*\d+(?:→|\t|\||: )", re.MULTILINE)
_NOTE = "<system-reminder>"
_MOST_COMPARED = 500_000  # characters: no file of that size comes back whole


@dataclass(frozen=True, slots=True)
class FileInWork:
    """A file that the conversation looked at: *path* as it was spelled last, *shown* what was seen
    of it, if known.

    *denied* says that the last attempt to read it failed, so that it must not come back.
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
) -> list[FileInWork]:
    """The files that calls in *messages* read, the most recent first, each once, at its last place.

    A call counts only when its result is there and tells of no failure; a result that lies in a
    file tells nothing. The newest verdict on a file holds: one whose last read failed is *denied*,
    until a later call succeeds. A call of any tool that reads and has failed denies every path that
    it names, a command line that prints every word. A call without a result decides nothing, and
    neither does a write that failed. A command line that succeeded shows its file only with
    *shell*, and as long as the shell's folder is known. No text of a message is believed to name a
    file. The other arguments are those of `files_in_work`.
    """
    latest: dict[str, FileInWork] = {}

    def note(file: FileInWork) -> None:
        key = os.path.normpath(
            os.path.join(work_dir, os.path.expanduser(file.path.removeprefix("file://")))
        )
        latest.pop(key, None)
        latest[key] = file

    is_elsewhere = False
    for call, result in _answered(messages):
        read = viewed_path(call, tools, True)
        path = read if read is not None else _written_path(call, writing_tools or {})
        by_shell = call.name.lower() in SHELL_TOOLS and call.name not in tools
        is_lost = is_elsewhere and path is not None and not os.path.isabs(path)
        is_elsewhere = is_elsewhere or changes_folder(call)
        if _is_failure(result, by_shell=by_shell):
            if path is None or read is not None:
                for named in possible_reads(call) if path is None else [path]:
                    note(FileInWork(named, denied=True))
        elif path is not None and not (by_shell and (is_lost or not shell)):
            shown = _shown(result) if read is not None else None
            note(FileInWork(path, shown, written=read is None))
    return list(reversed(latest.values()))


def _answered(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, object]]:
    """Each call with its result, one that is an error where it has several.

    A result belongs to the call before it, since agents may use an id again.
    """
    waiting: dict[str, ToolCall] = {}
    results: dict[str, ToolResult] = {}
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            for result in tool_results(messages, index, index + 1):
                known = results.get(result.tool_use_id)
                if known is None or not _is_failure(known):
                    results[result.tool_use_id] = result
            continue
        if results:  # else the calls of one reply stand in several messages
            yield from _paired(waiting, results)
            waiting, results = {}, {}
        waiting |= {call.id: call for call in tool_calls(messages, index, index + 1)}
    yield from _paired(waiting, results)


def _paired(
    calls: Mapping[str, ToolCall], results: Mapping[str, ToolResult]
) -> Iterator[tuple[ToolCall, object]]:
    yield from ((call, results[name]) for name, call in calls.items() if name in results)


def _is_failure(result: object, *, by_shell: bool = False) -> bool:
    content = field(result, "content")
    if isinstance(content, list | tuple) and any(kind(part) != "text" for part in content):
        # no view of a text file; and of an error that shows a picture a repair must take the mark
        return True
    if field(result, "is_error"):
        return True
    text = result_text(result)
    if any_reference(text, MAX_SHOWN) is not None:
        return True  # a denial may be what has been moved to that file
    return refused(text, whole=by_shell) or (by_shell and failed(result))


def files_in_work(
    messages: Sequence[Message],
    *,
    tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    writing_tools: ReadingTools | None = None,
    work_dir: str = "",
) -> list[FileInWork]:
    """The files read in *messages*, the most recent first, each once, at its last place. Source:
    CR-16 to CR-19, A-43.

    A file that an earlier compaction brought back counts as read before everything after it. With
    *writing_tools* files written count as well; with *shell* command lines that print a file count
    as reading it. Spellings that mean the same path below *work_dir* are one file.

    It believes every call, whatever its result, and every message that looks like a restored file.
    `working_set` believes neither.
    """
    latest: dict[str, FileInWork] = {}
    results = results_by_id(messages)
    for file in [
        *_brought_back(messages),
        *_touched(messages, results, tools, shell, writing_tools or {}),
    ]:
        key = os.path.normpath(os.path.join(work_dir, file.path))
        latest.pop(key, None)
        latest[key] = file
    return list(reversed(latest.values()))


def _brought_back(messages: Sequence[Message]) -> Iterator[FileInWork]:
    """What the last compaction restored; it stands the most recent first."""
    for message in reversed(messages):
        path = restored_path(message)
        if path is not None:
            yield FileInWork(path, text_of(message)[len(RESTORED) + len(path) + 2 :])


def _touched(
    messages: Sequence[Message],
    results: Mapping[str, object],
    tools: ReadingTools,
    shell: bool,
    writing_tools: ReadingTools,
) -> Iterator[FileInWork]:
    for call in tool_calls(messages):
        read = viewed_path(call, tools, shell)
        written = _written_path(call, writing_tools) if read is None else None
        if read is not None:
            yield FileInWork(read, _shown(results.get(call.id)))
        elif written is not None:
            yield FileInWork(written, written=True)


def _written_path(call: ToolCall, tools: ReadingTools) -> str | None:
    is_view = call.input.get("command") == "view"  # an editor's tool does both
    return None if is_view else given_path(call.input, tools.get(call.name, ()))


def _shown(result: object) -> str | None:
    """What a reading tool showed of a file; None when it failed, or lies in a file by now."""
    if result is None or field(result, "is_error"):
        return None
    text = result_text(result)
    return None if any_reference(text) else text


def was_changed(file: FileInWork, text: str) -> bool:
    """Whether *text* is certainly not what was seen of *file*: neither as it was shown nor without
    line numbers.
    """
    if file.shown is None or len(file.shown) > _MOST_COMPARED:
        return False
    shown, _, _ = file.shown.partition(_NOTE)
    return not any(part.strip() in text for part in (shown, _LINE_NUMBER.sub("", shown)))


def restored_message(path: str, text: str) -> Message:
    """The user message that brings a file back. Source: CR-27."""
    return cast("Message", {"role": "user", "content": restored_text(path, text)})
