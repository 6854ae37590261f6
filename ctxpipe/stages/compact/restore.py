"""Read the files of the working set again, as they are on disk now, after a compaction."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..._logs import logger
from ..._text import short_repr
from ..._threads.threads import in_thread
from ...errors import SettingsError, StorageError, storage_errors
from ...messages import Message
from ...messages.activity import is_one_line
from ...placeholders.summaries import restored_text
from ...providers.agent_tools import COMMON_READING_TOOLS, ReadingTools
from ...settings import (
    FLAG,
    FUNCTION,
    MAX_RESTORE_FILES,
    MAX_RESTORE_TOKENS_PER_FILE,
    MAX_RESTORE_TOKENS_TOTAL,
    PATH,
    SIZE,
    TOOLS,
    check_settings,
    excerpt,
    instance_of,
    is_async,
    setting,
)
from ...storage.files import FileReader, FileText, LocalFiles, name_below
from ...storage.records import Redact, redactor_of
from ...storage.secrets import is_secret
from ...tokens import Counting, TokenCounter, as_counter
from ..offloaded import read_offloaded
from .shown import reason_to_withhold
from .working_set import (
    WorkingFile,
    files_of_results,
    was_changed,
    working_set,
)

_BYTES_PER_TOKEN = 64  # no text worth reading has more bytes for a token
_MIN_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A file that was read again.

    *path* is spelled as in the conversation. *changed* is True if the file no longer has the text
    that was shown before.
    """

    path: str
    text: str = field(repr=False)
    tokens: int
    changed: bool = False

    @property
    def message(self) -> Message:
        """The user message that puts the file into the context."""
        return {"role": "user", "content": restored_text(self.path, self.text)}


@dataclass(frozen=True, slots=True, repr=False)
class RestoredFiles:
    """The result of `restore_files`.

    *files* fit the limits, *unfit* are too long, *deleted* do not exist any more. *warnings* say
    why a file is not restored.
    """

    files: tuple[RestoredFile, ...] = ()
    unfit: tuple[RestoredFile, ...] = ()
    warnings: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def messages(self) -> list[Message]:
        """A user message for each file, the most recent first."""
        return [file.message for file in self.files]

    @property
    def total_tokens(self) -> int:
        """The tokens of the files' contents."""
        return sum(file.tokens for file in self.files)


ReadText: TypeAlias = Callable[[str], Awaitable[str | None]]
"""An async function from the path that a call names to the text there, or to None."""

_READER = instance_of(FileReader, "a FileReader such as LocalFiles('.')")
_FILES = replace(
    _READER,
    accepts=lambda value: _READER.accepts(value) or is_async(value),
    words=f"{_READER.words}, or an async function from a path to its text",
)


@dataclass(frozen=True, slots=True)
class _ToolFiles:
    """A `FileReader` that reads files with a function of the agent's tool."""

    read_text: ReadText

    async def read(self, path: str, /, max_bytes: int) -> FileText:
        """Return the text that the function gives for *path*.

        Raises StorageError if it gives no text, or one of more than *max_bytes* bytes.
        """
        text = await self.read_text(path)
        if not isinstance(text, str):
            raise StorageError(errno.ENOENT, f"{path!r}: there is no text")
        if len(text.encode(errors="replace")) > max_bytes:
            raise StorageError(errno.EFBIG, f"{path!r}: it has more than {max_bytes:,} bytes")
        return FileText(path, text)


@dataclass(frozen=True, slots=True, repr=False)
class Restore:
    """Choice of the user's files that `Compact` may put back into the context after a summary.

    Give *work_dir*, the folder below which files may be read, or *files*: a reader of your own. The
    best reader is the one that the agent's own tool uses, so that what the tool hides stays hidden.
    It is a `FileReader`, or an async function from a path to a text, or to None.

    A file comes back only if a call to read it succeeded in this conversation, no later attempt
    failed, and a result has shown at least one line of its current text. If a line that was shown
    is missing from the current text, and no later call could have changed the file, the file stays
    out, with a warning: the line may have been hidden on purpose. *reading_tools* maps the name of
    a tool to the input key, or keys, with the path. If *shell* is True, a command line that only
    prints a file reads it too. A message's text never names a file.

    *deny* returns True if the file at a path must not be read. It is called with the path as the
    call spells it, and with the real location of the file. The default is `is_secret`; give a
    function of your own to extend or replace it, or None to deny nothing. *redact* is applied to
    the text of a file; the default is that of the storage, and `str` hides nothing.

    Of the *max_files* files used last, those of at most *max_tokens_per_file* raw tokens come back,
    the most recent first, as long as they have no more than *max_tokens_total* together. The
    defaults are those of the environment variables MAX_RESTORE_FILES, MAX_RESTORE_TOKENS_PER_FILE,
    MAX_RESTORE_TOKENS_TOTAL. A file that does not fit these limits of tokens does not come back:
    only the names that it defines are put into the context, such as its functions and classes.

    Raises SettingsError unless exactly one of *work_dir* and *files* is given, and if a setting is
    invalid.
    """

    work_dir: str | os.PathLike[str] | None = None
    files: FileReader | ReadText | None = None
    reading_tools: ReadingTools = field(default_factory=lambda: COMMON_READING_TOOLS)
    shell: bool = False
    max_files: int = setting(MAX_RESTORE_FILES)
    max_tokens_per_file: int = setting(MAX_RESTORE_TOKENS_PER_FILE)
    max_tokens_total: int = setting(MAX_RESTORE_TOKENS_TOTAL)
    deny: Callable[[str], bool] | None = is_secret
    redact: Redact | None = None
    reader: FileReader = field(init=False, repr=False, compare=False)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if (self.work_dir is None) == (self.files is None):
            raise SettingsError(
                "Restore needs to know where the files are; give work_dir= or files=, and only one"
            )
        check_settings(
            self,
            work_dir=PATH.optional,
            files=_FILES.optional,
            reading_tools=TOOLS,
            shell=FLAG,
            max_files=SIZE,
            max_tokens_per_file=SIZE,
            max_tokens_total=SIZE,
            deny=FUNCTION.optional,
            redact=FUNCTION.optional,
        )
        reader = self.files or LocalFiles(self.work_dir or "", deny=self.deny)
        if not isinstance(reader, FileReader):
            reader = _ToolFiles(reader)
        if isinstance(reader, LocalFiles) and not os.path.isdir(reader.root):
            raise SettingsError(
                f"work_dir is {excerpt(reader.root)}, which is not a folder; "
                "give the folder of the agent's files, or a reader of your own as files="
            )
        object.__setattr__(self, "reader", reader)

    async def read_again(
        self, messages: Sequence[Message], counter: TokenCounter, session_id: str, storage: object
    ) -> RestoredFiles:
        """Read the files that calls in *messages* used last again, and sort them by the limits.

        The result has the texts that fit (``files``) and those that do not (``unfit``), each with
        the file that was used last at the beginning, the paths of files that do not exist any more
        (``deleted``), and ``warnings``. A file that must not or cannot be read raises nothing: it
        adds a warning, which is also logged at the level DEBUG.

        A file comes back only if the conversation has shown it. A result may have been moved to a
        file of *storage* in the folder of *session_id*; that text counts as shown too, if *storage*
        can read it. *counter* counts the tokens for the limits.
        """
        files_by_placeholder = await in_thread(files_of_results, messages)
        offloaded_texts = await read_offloaded(storage, session_id, files_by_placeholder)
        working_files = await in_thread(self._working_set, messages, offloaded_texts)
        reader = WorkingSetReader(
            self.reader,
            self.max_files,
            self.max_tokens_per_file,
            self.max_tokens_total,
            counter,
            self._check,
            redactor_of(self if self.redact else storage),
        )
        restored = await reader.restore(working_files)
        for warning in restored.warnings:
            logger.debug("%s", warning)  # not a warning: it names a path, and the report has it
        return restored

    def _working_set(
        self, messages: Sequence[Message], offloaded_texts: Mapping[str, str]
    ) -> list[WorkingFile]:
        """Return the files that calls in *messages* used, the most recent first.

        *offloaded_texts* are the texts of results that were moved to files, by placeholder. Below a
        *work_dir*, two spellings of one path are one file.
        """
        root = os.fspath(self.reader.root) if isinstance(self.reader, LocalFiles) else ""
        files = working_set(
            messages,
            tools=self.reading_tools,
            shell=self.shell,
            work_dir=root,
            offloaded=offloaded_texts,
        )
        return _merge_names(root, files) if root else files

    def _check(self, path: str, location: str) -> None:
        """Raise StorageError if the file at *path*, as a call spells it, must not be read.

        *location* is the path to test: the caller passes first *path* itself, then the real path of
        the file. A file is refused if *path* has line breaks or other control characters, or if
        *deny* returns True for *location*. For files below *work_dir*, *deny* gets the path
        relative to that folder.
        """
        if not is_one_line(path):
            reason = "its name has line breaks or other control characters"
            raise StorageError(errno.EACCES, f"{path!r}: {reason}")
        if isinstance(self.reader, LocalFiles):
            location = name_below(self.reader.root, location)
        if self.deny is not None and self.deny(location):
            reason = "it is on the list of files that are not to be shown"
            raise StorageError(errno.EACCES, f"{path!r}: {reason}")


def _merge_names(root: str, files: Iterable[WorkingFile]) -> list[WorkingFile]:
    """Return *files* with all names of a file merged into the name that was used last.

    A file has several names through links, other cases, and other forms of the same letter.
    """
    merged: dict[Hashable, WorkingFile] = {}
    for file in files:
        identity: Hashable = file.path
        with suppress(OSError, ValueError):  # it was deleted, or its name is not a valid file name
            info = os.stat(os.path.join(root, file.path))
            identity = (info.st_dev, info.st_ino)
        latest = merged.get(identity, replace(file, views=()))
        merged[identity] = replace(latest, views=(*latest.views, *file.views))
    return list(merged.values())


def _allow(*_paths: str) -> None:
    """Refuse no file."""


@dataclass(frozen=True, slots=True)
class WorkingSetReader:
    """Reads the files of a working set, within limits.

    *check* is called with the path in a call and with a location, first the same path, then the
    real one; it raises StorageError if the file must not be read. If *redact* is given, a file must
    also have the lines that the conversation was shown of it.
    """

    files: FileReader
    max_files: int
    max_tokens_per_file: int
    max_tokens_total: int
    counter: Counting | None
    check: Callable[[str, str], None] = _allow
    redact: Redact | None = None

    async def restore(self, working_files: Sequence[WorkingFile]) -> RestoredFiles:
        """Read *working_files*, the most recent first, and sort them by the limits."""
        warnings: list[str] = []
        deleted: list[str] = []
        texts = await self._read(working_files, warnings, deleted)
        counts = await as_counter(self.counter).texts([current.text for _, current in texts])
        fit: list[RestoredFile] = []
        unfit: list[RestoredFile] = []
        budget = self.max_tokens_total
        for (file, current), tokens in zip(texts, counts, strict=True):
            has_changed = was_changed(file, current.text)
            restored = RestoredFile(file.path, current.text, tokens, has_changed)
            if tokens > self.max_tokens_per_file:
                warnings.append(
                    f"{file.path!r} is not restored: "
                    f"its {tokens:,} tokens exceed {self.max_tokens_per_file:,}"
                )
                unfit.append(restored)
                continue
            if tokens > budget:
                unfit.append(restored)
            else:
                fit.append(restored)
            # Also for a file that does not fit: so the budget is below 0 from then on, and no older
            # file comes back.
            budget -= tokens
        return RestoredFiles(tuple(fit), tuple(unfit), tuple(warnings), tuple(deleted))

    async def _read(
        self, working_files: Sequence[WorkingFile], warnings: list[str], deleted: list[str]
    ) -> list[tuple[WorkingFile, FileText]]:
        """Return the texts of the first *max_files* files.

        A file that cannot be read counts too, and adds to *warnings*. The path of a file that does
        not exist any more is added to *deleted*.
        """
        texts: list[tuple[WorkingFile, FileText]] = []
        seen_paths: set[str] = set()
        max_bytes = max(_MIN_BYTES, _BYTES_PER_TOKEN * self.max_tokens_per_file)
        for file in working_files:
            if len(texts) + len(warnings) >= self.max_files:
                break
            if file.denied:
                seen_paths.add(file.path)
                continue
            try:
                current = await self._text_of(file.path, max_bytes)
                if current.real in seen_paths:
                    continue  # another spelling was used later
                seen_paths.add(current.real)
                texts.append((file, await self._visible_text(file, current)))
            except StorageError as error:
                warnings.append(f"not restored: {error.strerror or error}")
                if error.errno == errno.ENOENT and file.shown is not None:
                    deleted.append(file.path)
        return texts

    async def _text_of(self, path: str, max_bytes: int) -> FileText:
        """Return the text of the file at *path*.

        Raises StorageError if *check* refuses the path or its real location, or if it cannot be
        read.
        """
        self.check(path, path)
        with storage_errors():
            current = await self.files.read(path, max_bytes)
        self.check(path, current.real)
        return current

    async def _visible_text(self, file: WorkingFile, current: FileText) -> FileText:
        """Return *current* with its whole text, redacted if there is a function for that.

        Raises StorageError if the text comes from the file itself (``is_view`` is False), and the
        tool results that showed the file do not prove that it may be shown.
        """
        if self.redact is None:
            return current
        text = await in_thread(self.redact, current.text)
        if not current.is_view:
            reason = await in_thread(reason_to_withhold, file.views, text, self.redact)
            if reason:
                raise StorageError(errno.EACCES, f"{file.path!r}: {reason}")
        return replace(current, text=text)
