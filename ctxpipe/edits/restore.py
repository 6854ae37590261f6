"""Which files to bring back after a summary, in which order, and how they look."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from operator import attrgetter

from ..messages import (
    Message,
    ToolCall,
    ToolResult,
    block_text,
    field,
    inner_blocks,
    result_text,
    results_by_id,
    tool_calls,
    tool_results,
)
from ..placeholders.placeholders import MAX_SHOWN, any_reference
from ..placeholders.summaries import restored_path, text_of
from ..providers.agent_tools import (
    FOLDER_VIEW,
    NOTE,
    READING_TOOLS,
    SHELL_TOOLS,
    WRITTEN_GUTTER,
    ReadingTools,
    view,
)
from .activity import (
    command_line,
    is_failure,
    paths_to_deny,
    put_last,
    says_failure,
    written_lines,
    written_paths,
)
from .offload import placeholder_files
from .shown import Shown
from .views import changes_folder, viewed_path

_MAX_COMPARED_CHARS = 500_000  # no longer file comes back whole


@dataclass(frozen=True, slots=True)
class WorkingFile:
    """A file that the conversation used.

    *path* is its latest spelling, *shown* what was seen of it last, if known, and *views* all that
    was seen and written of it. *denied* says that the last attempt to read it failed, so that it
    must not come back.
    """

    path: str
    shown: str | None = attribute(default=None, repr=False)
    denied: bool = False
    views: tuple[Shown, ...] = attribute(default=(), repr=False)


def working_set(
    messages: Sequence[Message],
    *,
    tools: ReadingTools,
    shell: bool = False,
    work_dir: str = "",
    offloaded: Mapping[str, str] | None = None,
) -> list[WorkingFile]:
    """The files that calls in *messages* read, the most recent first, each once, at its last place.

    A call counts only if it has a result that reports no failure; the text of one that was moved to
    a file is looked up in *offloaded*, by its placeholder, and counts if it is found. The newest
    verdict on a file counts: one whose last read failed is *denied* until a later call succeeds. A
    call that reads and has failed denies every path that it names, a command line that prints files
    every word in it. A call without a result decides nothing, and neither does a write that failed.
    A command line that succeeded shows its file only with *shell*, and as long as the shell's
    folder is known. No text of a message is trusted to name a file. The other arguments are those
    of `trusting_working_set`.
    """
    latest: dict[str, WorkingFile] = {}
    views: dict[str, list[tuple[int, str]]] = {}
    changed: dict[str, int] = {}
    last_command = -1
    folder_changed = False
    for number, (call, result) in enumerate(_calls_with_results(messages, offloaded or {})):
        by_shell = call.name.lower() in SHELL_TOOLS and call.name not in tools
        path = None
        if not _shows_folder(result):
            path = viewed_path(call, tools, True)
        text = result_text(result)
        failed = _is_failure(result, by_shell=by_shell)
        if failed:
            for name in paths_to_deny(call, result) if path is None else [path]:
                put_last(latest, _key(work_dir, name), WorkingFile(name, denied=True))
        elif path is None:
            paths = written_paths(call)
            for name in paths:
                key = _key(work_dir, name)
                changed[key] = number
                if len(paths) == 1:  # otherwise it is not known which line is whose
                    views.setdefault(key, []).append((number, written_lines(call)))
        elif not by_shell or (shell and (os.path.isabs(path) or not folder_changed)):
            key = _key(work_dir, path)
            views.setdefault(key, []).append((number, text))
            put_last(latest, key, WorkingFile(path, text))
        if path is None and command_line(call) and not (failed and says_failure(text)):
            last_command = number
        folder_changed = folder_changed or changes_folder(call)
    found: list[WorkingFile] = []
    for key, file in reversed(latest.items()):
        since = max(last_command, changed.get(key, -1))
        shown = tuple(Shown(text, number >= since) for number, text in views.get(key, ()))
        found.append(replace(file, views=shown))
    return found


def _key(work_dir: str, path: str) -> str:
    """What the spellings of *path* below *work_dir* have in common."""
    path = os.path.expanduser(path.removeprefix("file://"))
    return os.path.normpath(os.path.join(work_dir, path))


def files_of_results(messages: Sequence[Message]) -> dict[str, str]:
    """By placeholder: the name of the file with the whole result of a call."""
    return placeholder_files(
        (result.tool_use_id, result_text(result)) for result in tool_results(messages)
    )


def _calls_with_results(
    messages: Sequence[Message], offloaded: Mapping[str, str]
) -> Iterator[tuple[ToolCall, object]]:
    """Each call with its result as it was shown; of several results an error, if there is one.

    A result belongs to the last call before it with its id, since agents may use an id again.
    """
    calls: dict[str, ToolCall] = {}
    results: dict[tuple[int, int], ToolResult] = {}  # by the place of the call
    made = list(tool_calls(messages))
    parts: list[ToolCall | ToolResult] = [*made, *tool_results(messages)]
    for part in sorted(parts, key=attrgetter("place")):
        if isinstance(part, ToolCall):
            calls[part.id] = part
            continue
        call = calls.get(part.tool_use_id)
        if call is None or (call.place in results and _is_failure(results[call.place])):
            continue
        text = offloaded.get(result_text(part))
        results[call.place] = part if text is None else replace(part, content=text)
    for call in made:
        if call.place in results:
            yield call, results[call.place]


def _is_failure(result: object, *, by_shell: bool = False) -> bool:
    if any(block_text(part) is None for part in inner_blocks(result)):
        # Not a view of a text file; and a repair unmarks an error that shows a picture.
        return True
    if field(result, "is_error"):
        return True
    text = result_text(result)
    if any_reference(text, MAX_SHOWN) is not None:
        return True  # what was moved to that file may be a denial
    return says_failure(text, whole=by_shell) or (by_shell and is_failure(result))


def trusting_working_set(
    messages: Sequence[Message],
    *,
    tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    work_dir: str = "",
) -> list[WorkingFile]:
    """The files read in *messages*, the most recent first, each once, at its last place.

    A file that an earlier compaction brought back counts as read before everything after it. With
    *shell* command lines that print a file count as reading it. Spellings that mean the same path
    below *work_dir* are one file.

    It trusts every call, whatever its result, and every message that looks like a restored file.
    `working_set` trusts neither.
    """
    files: list[WorkingFile] = []
    for message in reversed(messages):  # a compaction puts the most recent file first
        path = restored_path(message)
        if path is not None:
            _, _, text = text_of(message).partition(":\n")
            files.append(WorkingFile(path, text))
    results = results_by_id(messages)
    for call in tool_calls(messages):
        result = results.get(call.id)
        path = viewed_path(call, tools, shell)
        if path is not None and not _shows_folder(result):
            files.append(WorkingFile(path, _view_text(result)))
    latest: dict[str, WorkingFile] = {}
    for file in files:
        put_last(latest, os.path.normpath(os.path.join(work_dir, file.path)), file)
    return list(reversed(latest.values()))


def _shows_folder(result: object) -> bool:
    return FOLDER_VIEW.match(result_text(result)) is not None


def _view_text(result: object) -> str | None:
    """What a reading tool showed of a file; None if it failed, or was moved to a file since."""
    if result is None or field(result, "is_error"):
        return None
    text = result_text(result)
    return text if any_reference(text) is None else None


def was_changed(file: WorkingFile, text: str) -> bool:
    """Whether *text* certainly lacks what was seen of *file*, with and without line numbers."""
    if file.shown is None or len(file.shown) > _MAX_COMPARED_CHARS:
        return False
    shown, _, _ = view(file.shown).text.partition(NOTE)
    if shown.strip() in text:
        return False
    return WRITTEN_GUTTER.sub("", shown).strip() not in text
