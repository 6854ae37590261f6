"""Which files to bring back behind a summary, in which order, and how they look. Source: CR-16 to CR-35."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..compacted import RESTORED, restored_path, restored_text, text_of
from ..facts import result_text, results_by_id
from ..messages import field, tool_calls
from ..placeholders import any_reference
from .views import READING_TOOLS, ReadingTools, viewed_path

if TYPE_CHECKING:
    from ..messages import Message, ToolCall

__all__ = ["COMMON_WRITING_TOOLS", "FileInWork", "files_in_work", "restored_message", "was_changed"]

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


@dataclass(frozen=True, slots=True)
class FileInWork:
    """A file that the conversation looked at: *path* as it was spelled last, *shown* what was seen of it, if known."""

    path: str
    shown: str | None = None
    written: bool = False


def files_in_work(
    messages: Sequence[Message],
    *,
    tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    writing_tools: ReadingTools | None = None,
    work_dir: str = "",
) -> list[FileInWork]:
    """The files read in *messages*, the most recent first, each once, at its last place. Source: CR-16 to CR-19, A-43.

    A file that an earlier compaction brought back counts as read before everything after it. With *writing_tools*
    files written count as well; with *shell* command lines that print a file count as reading it. Spellings that mean
    the same path below *work_dir* are one file.
    """
    latest: dict[str, FileInWork] = {}
    results = results_by_id(messages)
    for file in [*_brought_back(messages), *_touched(messages, results, tools, shell, writing_tools or {})]:
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
    keys = () if call.input.get("command") == "view" else tools.get(call.name, ())  # an editor's tool does both
    paths = (call.input.get(key) for key in ([keys] if isinstance(keys, str) else keys))
    return next((path for path in paths if isinstance(path, str) and path), None)


def _shown(result: object) -> str | None:
    """What a reading tool showed of a file; None when it failed, or lies in a file by now."""
    if result is None or field(result, "is_error"):
        return None
    text = result_text(result)
    return None if any_reference(text) else text


def was_changed(file: FileInWork, text: str) -> bool:
    """Whether *text* is certainly not what was seen of *file*: neither as it was shown nor without line numbers."""
    if file.shown is None:
        return False
    shown, _, _ = file.shown.partition(_NOTE)
    return not any(part.strip() in text for part in (shown, _LINE_NUMBER.sub("", shown)))


def restored_message(path: str, text: str) -> Message:
    """The user message that brings a file back. Source: CR-27."""
    return cast("Message", {"role": "user", "content": restored_text(path, text)})
