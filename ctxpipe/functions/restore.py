"""Read the files that a conversation has used again from the disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from anyio import to_thread

from .._logs import logger
from ..messages import Message, MessageLike, ensure_messages
from ..providers.agent_tools import READING_TOOLS, ReadingTools
from ..settings import (
    MAX_RESTORE_FILES,
    MAX_RESTORE_TOKENS_PER_FILE,
    MAX_RESTORE_TOKENS_TOTAL,
)
from ..stages.compact.restore import RestoredFiles, WorkingSetReader
from ..stages.compact.working_set import (
    trusting_working_set,
)
from ..storage.files import FileReader, LocalFiles
from ..tokens import Counting


async def restore_files(
    messages: Sequence[MessageLike],
    *,
    work_dir: str | os.PathLike[str] | None = None,
    max_restore_files: int | None = None,
    max_restore_tokens_per_file: int | None = None,
    max_restore_tokens_total: int | None = None,
    tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    files: FileReader | None = None,
    counter: Counting | None = None,
) -> RestoredFiles:
    """Read again from disk the files that the calls in *messages* read last, most recent first.

    Of the *max_restore_files* (5) files read last, those with at most *max_restore_tokens_per_file*
    (5,000) tokens are restored, until the next one would make the sum exceed
    *max_restore_tokens_total* (50,000). A file that cannot be read, or is outside *work_dir*
    (default: the current folder), is skipped with a warning. Tokens are raw.

    *tools* maps the name of each reading tool to the input key with the path. If *shell* is True,
    command lines that only print a file count as well. *files* is a reader to use in place of the
    disk. Raises SettingsError if an environment variable is not a number.

    This function trusts *messages*: a call counts with any result, even if the user denied it; a
    message that looks like a restored file names a file; and names with line breaks are put into
    the text unchanged. The stage `Compact` uses `Restore`, which trusts none of this. Use that one
    too if *messages* contain text of other people.
    """
    ensure_messages(list(messages))
    messages = cast("Sequence[Message]", messages)
    if files is None:
        files = await to_thread.run_sync(LocalFiles, work_dir or ".")
    root = os.fspath(work_dir or "")
    if isinstance(files, LocalFiles):
        root = os.fspath(files.root)
    working_files = trusting_working_set(messages, tools=tools, shell=shell, work_dir=root)
    reader = WorkingSetReader(
        files,
        MAX_RESTORE_FILES(max_restore_files),
        MAX_RESTORE_TOKENS_PER_FILE(max_restore_tokens_per_file),
        MAX_RESTORE_TOKENS_TOTAL(max_restore_tokens_total),
        counter,
    )
    restored = await reader.restore(working_files)
    for warning in restored.warnings:
        logger.warning("%s", warning)
    return restored
