"""Choose the files to bring back after a compaction, and their order.

A *working set* is the list of files that the conversation has read, the most recent first.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute

from ...messages import (
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
from ...messages.activity import (
    command_line,
    is_failure,
    paths_to_deny,
    put_last,
    says_failure,
    written_lines,
    written_paths,
)
from ...placeholders.placeholders import MAX_PREVIEW_CHARS, any_reference
from ...placeholders.summaries import restored_path, text_of
from ...providers.agent_tools import (
    FOLDER_VIEW,
    NOTE,
    READING_TOOLS,
    SHELL_TOOLS,
    WRITTEN_GUTTER,
    ReadingTools,
    view,
)
from ..reading.results import placeholder_files
from ..reading.views import changes_folder, viewed_path
from .shown import ShownText

_MAX_COMPARED_CHARS = 500_000  # a longer file never comes back as a whole


@dataclass(frozen=True, slots=True)
class WorkingFile:
    """A file that the conversation has read, or tried to read.

    *path* is its latest spelling. *shown* is the text that was seen of it last, None if unknown.
    *views* are all texts that were seen or written of it. *denied* is True if the last attempt to
    read it failed: then it must not come back.
    """

    path: str
    shown: str | None = attribute(default=None, repr=False)
    denied: bool = False
    views: tuple[ShownText, ...] = attribute(default=(), repr=False)


def working_set(
    messages: Sequence[Message],
    *,
    tools: ReadingTools,
    shell: bool = False,
    work_dir: str = "",
    offloaded: Mapping[str, str] | None = None,
) -> list[WorkingFile]:
    """Return the files that calls in *messages* read or failed to read, newest first, each once.

    - The newest attempt decides: a file whose last read failed is *denied* until a later call reads
      it. A call without a result decides nothing, and neither does a failed write.
    - A failed call denies the one path that it reads; if that is not clear, all paths that it
      names. A failed command line that prints files does so too, also if *shell* is False, and
      also after the shell has changed its folder.
    - *offloaded* has the texts of results that were moved to files, by the text of the placeholder.
      A result whose text is not there counts as failed, since it may be a refusal.
    - A command line that succeeded reads its file only if *shell* is True. A relative path counts
      only until the shell has changed its folder.
    - A message that looks like a restored file is not trusted.

    *tools* are the tools that read files. *work_dir* is the folder of relative paths: spellings
    that mean the same path are one file.
    """
    latest: dict[str, WorkingFile] = {}
    views: dict[str, list[tuple[int, str]]] = {}
    last_writes: dict[str, int] = {}
    last_command = -1
    has_left_folder = False
    for number, (call, result) in enumerate(_calls_with_results(messages, offloaded or {})):
        by_shell = call.name.lower() in SHELL_TOOLS and call.name not in tools
        # The file that the call reads, if it is clear. With True command lines read files too: even
        # without *shell*, one that fails denies its file.
        path = None
        if not _shows_folder(result):
            path = viewed_path(call, tools, True)
        text = result_text(result)
        has_failed = _is_failure(result, by_shell=by_shell)
        if has_failed:
            denied_paths = paths_to_deny(call, result) if path is None else [path]
            for name in denied_paths:
                put_last(latest, _key(work_dir, name), WorkingFile(name, denied=True))
        elif path is None:  # it may have written files
            paths = written_paths(call)
            for name in paths:
                key = _key(work_dir, name)
                last_writes[key] = number
                if len(paths) == 1:  # with several files it is unknown which line is in which
                    views.setdefault(key, []).append((number, written_lines(call)))
        elif not by_shell or (shell and (os.path.isabs(path) or not has_left_folder)):
            key = _key(work_dir, path)
            views.setdefault(key, []).append((number, text))
            put_last(latest, key, WorkingFile(path, text))
        # A command line may change any file. One whose output looks like a failure may have done so
        # before it failed. Only one whose text is an error or a refusal counts as not run.
        was_refused = has_failed and says_failure(text)
        if path is None and command_line(call) and not was_refused:
            last_command = number
        has_left_folder = has_left_folder or changes_folder(call)
    files: list[WorkingFile] = []
    for key, file in reversed(latest.items()):
        # The newest call that could have changed the file: what was shown since then is current.
        last_change = max(last_command, last_writes.get(key, -1))
        file_views = tuple(
            ShownText(text, is_current=number >= last_change) for number, text in views.get(key, ())
        )
        files.append(replace(file, views=file_views))
    return files


def _key(work_dir: str, path: str) -> str:
    """Return one key for all spellings of *path* below *work_dir*."""
    path = os.path.expanduser(path.removeprefix("file://"))
    return os.path.normpath(os.path.join(work_dir, path))


def files_of_results(messages: Sequence[Message]) -> dict[str, str]:
    """Return the name of the file with the whole result of each offloaded call, by placeholder."""
    return placeholder_files(
        (result.tool_use_id, result_text(result)) for result in tool_results(messages)
    )


def _calls_with_results(
    messages: Sequence[Message], offloaded: Mapping[str, str]
) -> Iterator[tuple[ToolCall, ToolResult]]:
    """Yield each call that has a result, with the result as it was shown.

    Of several results an error wins. A result belongs to the last call with its id before it, since
    agents may use an id again.
    """
    calls_by_id: dict[str, ToolCall] = {}
    results: dict[tuple[int, int], ToolResult] = {}  # by the place of the call
    calls = list(tool_calls(messages))
    calls_and_results: list[ToolCall | ToolResult] = [*calls, *tool_results(messages)]
    calls_and_results.sort(key=lambda item: item.place)
    for item in calls_and_results:
        if isinstance(item, ToolCall):
            calls_by_id[item.id] = item
            continue
        call = calls_by_id.get(item.tool_use_id)
        if call is None or (call.place in results and _is_failure(results[call.place])):
            continue
        text = offloaded.get(result_text(item))
        results[call.place] = item if text is None else replace(item, content=text)
    for call in calls:
        if call.place in results:
            yield call, results[call.place]


def _is_failure(result: object, *, by_shell: bool = False) -> bool:
    """Return True if *result* may be a failure; *by_shell* if it is that of a command line."""
    if any(block_text(part) is None for part in inner_blocks(result)):
        # A result with an image is not the view of a text file, so the file cannot come back as
        # text. It may even be an error: the repair of a history removes `is_error` from it.
        return True
    if field(result, "is_error"):
        return True
    text = result_text(result)
    if any_reference(text, MAX_PREVIEW_CHARS) is not None:
        return True  # the text in that file may be a denial
    return says_failure(text, whole=by_shell) or (by_shell and is_failure(result))


def trusting_working_set(
    messages: Sequence[Message],
    *,
    tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    work_dir: str = "",
) -> list[WorkingFile]:
    """Return the files read in *messages*, the most recent first, each once.

    *tools* are the tools that read files. If *shell* is True, command lines that print a file count
    as reading it. Spellings that mean the same path below *work_dir* are one file. A file that an
    earlier compaction restored counts as read before all calls.

    A call counts even if it failed or has no result, and so does every message that looks like a
    restored file. `working_set` trusts neither.
    """
    files: list[WorkingFile] = []
    # A compaction puts the most recent file first, so the oldest one is the last.
    for message in reversed(messages):
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
    # The files are in the order oldest to newest. Of each path the last one stays, at its place.
    latest: dict[str, WorkingFile] = {}
    for file in files:
        put_last(latest, os.path.normpath(os.path.join(work_dir, file.path)), file)
    return list(reversed(latest.values()))


def _shows_folder(result: object) -> bool:
    return FOLDER_VIEW.match(result_text(result)) is not None


def _view_text(result: object) -> str | None:
    """Return the text that a reading tool showed; None if it failed or has been offloaded."""
    if result is None or field(result, "is_error"):
        return None
    text = result_text(result)
    return text if any_reference(text) is None else None


def was_changed(file: WorkingFile, text: str) -> bool:
    """Return True if *text* certainly lacks the seen text of *file*; line numbers do not count."""
    if file.shown is None or len(file.shown) > _MAX_COMPARED_CHARS:
        return False
    # An agent may add a note to the model after the text of a file.
    shown, _, _ = view(file.shown).text.partition(NOTE)
    if shown.strip() in text:
        return False
    return WRITTEN_GUTTER.sub("", shown).strip() not in text
