"""Bring the files in work back from disk, as they are now."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import to_thread

from ..edits.restore import FileInWork, files_in_work, restored_message, was_changed
from ..edits.views import READING_TOOLS, ReadingTools
from ..errors import StorageError
from ..messages import ensure_messages
from ..settings import MAX_RESTORE_FILES, MAX_RESTORE_TOKENS_PER_FILE, MAX_RESTORE_TOKENS_TOTAL
from ..storage.files import FileReader, FileText, LocalFiles
from ..tokens import Counting, as_counter

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["RestoredFile", "RestoredFiles", "restore_files"]

logger = logging.getLogger("ctxpipe")

_BYTES_PER_TOKEN = 64  # no text that is worth reading has so few tokens
_MIN_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A file that was read: *path* as the conversation spells it, *changed* if it is not what was shown before."""

    path: str
    text: str
    tokens: int
    changed: bool = False

    @property
    def message(self) -> Message:
        """The user message that brings it back."""
        return restored_message(self.path, self.text)


@dataclass(frozen=True, slots=True)
class RestoredFiles:
    """What `restore_files` found: *files* fit, *unfit* are too long, *deleted* are gone; *warnings* say why."""

    files: tuple[RestoredFile, ...] = ()
    unfit: tuple[RestoredFile, ...] = ()
    warnings: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """One user message for each file, the most recent first."""
        return [file.message for file in self.files]

    @property
    def total_tokens(self) -> int:
        """The tokens of the files' contents."""
        return sum(file.tokens for file in self.files)


async def restore_files(
    messages: Sequence[Message],
    *,
    work_dir: str | os.PathLike[str] | None = None,
    max_restore_files: int | None = None,
    max_restore_tokens_per_file: int | None = None,
    max_restore_tokens_total: int | None = None,
    tools: ReadingTools = READING_TOOLS,
    shell: bool = False,
    writing_tools: ReadingTools | None = None,
    files: FileReader | None = None,
    counter: Counting | None = None,
) -> RestoredFiles:
    """The files that *messages* read last, from disk as they are now, the most recent first. Source: CR-16 to CR-36.

    Of the *max_restore_files* (5) files read last those with at most *max_restore_tokens_per_file* (5,000) tokens are
    restored, until the next would lift the sum above *max_restore_tokens_total* (50,000). What cannot be read, or lies
    outside *work_dir* (default: the current folder), is skipped with a warning. Tokens are raw.

    *tools* names the reading tools and their path argument; *writing_tools* lets files written count as well, *shell*
    command lines that print a file. *files* reads from elsewhere than the disk. Raises SettingsError when a variable of
    the environment is not a number.
    """
    ensure_messages(list(messages))
    if files is None:
        files = await to_thread.run_sync(LocalFiles, work_dir or ".")
    root = files.root if isinstance(files, LocalFiles) else work_dir or ""
    in_work = files_in_work(messages, tools=tools, shell=shell, writing_tools=writing_tools, work_dir=os.fspath(root))
    search = _Search(
        files,
        MAX_RESTORE_FILES(max_restore_files),
        MAX_RESTORE_TOKENS_PER_FILE(max_restore_tokens_per_file),
        MAX_RESTORE_TOKENS_TOTAL(max_restore_tokens_total),
        counter,
    )
    return await search.of(in_work)


@dataclass(frozen=True, slots=True)
class _Search:
    files: FileReader
    max_files: int
    max_tokens_per_file: int
    max_tokens_total: int
    counter: Counting | None

    async def of(self, in_work: Sequence[FileInWork]) -> RestoredFiles:
        found, warnings, deleted = await self._read(in_work)
        counted = await as_counter(self.counter).texts([text.text for _, text in found])
        fit: list[RestoredFile] = []
        unfit: list[RestoredFile] = []
        room = self.max_tokens_total
        for (file, now), tokens in zip(found, counted, strict=True):
            restored = RestoredFile(file.path, now.text, tokens, was_changed(file, now.text))
            if tokens > self.max_tokens_per_file:
                warnings.append(f"{file.path!r} is not restored: its {tokens} tokens exceed {self.max_tokens_per_file}")
                unfit.append(restored)
                continue
            (unfit if tokens > room else fit).append(restored)
            room -= tokens  # below 0 from the first that is too much: what comes after stays out
        for warning in warnings:
            logger.warning("%s", warning)
        return RestoredFiles(tuple(fit), tuple(unfit), tuple(warnings), tuple(deleted))

    async def _read(
        self, in_work: Sequence[FileInWork]
    ) -> tuple[list[tuple[FileInWork, FileText]], list[str], list[str]]:
        """The texts of the files that take the first places; a file that cannot be read takes its place too (A-40)."""
        found: dict[str, tuple[FileInWork, FileText]] = {}
        warnings: list[str] = []
        deleted: list[str] = []
        max_bytes = max(_MIN_BYTES, _BYTES_PER_TOKEN * self.max_tokens_per_file)
        for file in in_work:
            if len(found) + len(warnings) >= self.max_files:
                break
            try:
                now = await self.files.read(file.path, max_bytes)
            except StorageError as error:
                warnings.append(f"not restored: {error.strerror or error}")
                if error.errno == errno.ENOENT and file.shown is not None:
                    deleted.append(file.path)
            else:
                found.setdefault(now.real, (file, now))  # another spelling was read later
        return list(found.values()), warnings, deleted
