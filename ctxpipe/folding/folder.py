"""Fold files without blocking the event loop: a process of its own parses them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from .._logs import logger
from .._text import short_repr
from .._threads.pieces import text_digest
from .._threads.processes import in_process
from .._threads.threads import in_thread
from ..settings import FLAG, SIZE, check_settings
from ..tokens import Counting, as_counter
from ..tokens.counter import COUNTING
from ..tokens.memo import Memo
from .definitions import Definition, Definitions, definition_rows
from .fold import (
    MAX_LINE_SPAN,
    MAX_TOKENS,
    Folded,
    Outline,
    Outlines,
    drop_sections,
    fold_outlines,
    format_file,
    merge_functions,
)
from .languages import language_of

Files: TypeAlias = Sequence[tuple[str, str]]
Key: TypeAlias = tuple[str, bytes]

# The parser reads megabytes of source per second. A file that takes longer is not source code.
PARSE_TIMEOUT_SECONDS = 10
_MEMORY_BYTES = 2**30
_MEMORY_BYTES_PER_CHAR = 100  # a syntax tree, for each character of the source
MEMO_BYTES = 16 * 2**20
_DEFINITION_BYTES = 250


@dataclass(frozen=True, slots=True, repr=False)
class Folder:
    """Folding of source files for the stages: a file is reduced to the names that it defines.

    Each distinct text is parsed once per process, for all settings. A worker process parses, never
    the event loop, because a few kilobytes of hostile text can occupy a parser for minutes. A file
    on which the parser fails or takes too long is not folded. If no worker process can be started,
    no file is folded at all. Both cases are logged as warnings.

    Raises SettingsError if a setting is invalid.
    """

    max_tokens: int | None = MAX_TOKENS
    merge_functions: bool = True
    max_line_span: int = MAX_LINE_SPAN
    counter: Counting | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(
            self,
            max_tokens=SIZE.optional,
            merge_functions=FLAG,
            max_line_span=SIZE,
            counter=COUNTING.optional,
        )

    async def fold(self, files: Files, /, count: Counting | None = None) -> list[str | None]:
        """Return the folded text of each file, a pair of path and text.

        The entry is None if the folded text would not be shorter, or the file cannot be folded. The
        budget of tokens is for all files together. *count* counts them, by default the counter of
        this folder.
        """
        outlines, whole = await in_thread(self._outlines, files, await self._definitions(files))
        if self.max_tokens is None or not whole.content:
            return list(whole.folded)
        (tokens,) = await as_counter(count or self.counter).texts([whole.content])
        within_budget = await in_thread(drop_sections, outlines, whole, tokens, self.max_tokens)
        return list(within_budget.folded)

    def _outlines(
        self, files: Files, definitions_by_file: Sequence[Definitions]
    ) -> tuple[Outlines, Folded]:
        """Return the outline of each file, and all of them folded.

        An outline is empty if it would not be shorter than the file.
        """
        outlines: list[tuple[str, Outline]] = []
        for (path, text), definitions in zip(files, definitions_by_file, strict=True):
            outline: Outline = merge_functions(
                definitions, self.max_line_span, merge=self.merge_functions
            )
            if len(format_file(path, outline)) >= len(text):
                outline = ()
            outlines.append((path, outline))
        return outlines, fold_outlines(outlines)

    async def _definitions(self, files: Files) -> list[Definitions]:
        """Return the definitions of each file; texts that are in the cache are not parsed again."""
        memo = _memo()
        keys = await in_thread(_keys, files)
        by_key: dict[Key, Definitions] = {}
        new_files: dict[Key, tuple[str, str]] = {}
        for key, file in zip(keys, files, strict=True):
            if key is None:
                continue
            definitions = memo.get(key)
            if definitions is None:
                new_files[key] = file
            else:
                by_key[key] = definitions
        if new_files:
            # The results end early if a worker fails. The other files are tried again another time.
            parsed_files = await _parse(list(new_files.values()))
            for key, definitions in zip(new_files, parsed_files, strict=False):
                by_key[key] = definitions
                memo.put(key, definitions, _DEFINITION_BYTES * (1 + len(definitions)))
        return [() if key is None else by_key.get(key, ()) for key in keys]


@cache
def _memo() -> Memo[Key, Definitions]:
    """Return the cache of definitions by text, one for the process.

    The definitions of a text do not depend on settings, and stages create folders freely.
    """
    return Memo(MEMO_BYTES)


def _keys(files: Files) -> list[Key | None]:
    """Return a cache key, (language, digest of the text), per file; None: unknown language."""
    keys: list[Key | None] = []
    for path, text in files:
        language = language_of(path)
        keys.append(None if language is None else (language.name, text_digest(text)))
    return keys


async def _parse(files: Files) -> list[Definitions]:
    """Return the definitions of each file, up to the first on which the worker process fails.

    The failed file has no definitions, and the list ends with it.
    """
    texts = [part for file in files for part in file]
    memory_bytes = _MEMORY_BYTES + _MEMORY_BYTES_PER_CHAR * sum(len(text) for text in texts)
    answers = await in_process(
        definition_rows, texts, seconds=PARSE_TIMEOUT_SECONDS, memory_bytes=memory_bytes
    )
    results = await in_thread(_as_definitions, answers.items)
    if answers.end == "unavailable":
        logger.warning("no worker process can be started: %d files are not folded", len(files))
    elif len(results) < len(files):
        logger.warning("a file cannot be folded: the parser failed or took too long")
        logger.debug("the file that cannot be folded is %r", files[len(results)][0])
        results.append(())
    return results


def _as_definitions(files: Iterable[Iterable[Iterable[object]]]) -> list[Definitions]:
    """Return the rows that the worker process sent as definitions."""
    return [tuple(Definition._make(row) for row in rows) for rows in files]
