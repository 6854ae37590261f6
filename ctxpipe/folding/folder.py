"""Fold files without holding up the event loop: they are parsed in a process of their own."""

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

PATIENCE_SECONDS = 10  # source is read at megabytes per second; what takes longer is no source
_MEMORY_BYTES = 2**30
_MEMORY_BYTES_PER_CHAR = 100  # a syntax tree, for each character of the source
MEMO_BYTES = 16 * 2**20
_DEFINITION_BYTES = 250


@dataclass(frozen=True, slots=True, repr=False)
class Folder:
    """Folds files for the stages.

    Each distinct text is parsed once per process, whatever the settings. Source is
    parsed in a worker process, never on the event loop: a few kilobytes of hostile text hold a
    parser for minutes. A file on which the parser fails or takes too long is not folded, and where
    no process can be started none is; both are logged as warnings.
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
        """The folded text of each file, a pair of path and text.

        None where that would be no shorter, or cannot be. The budget of tokens is for all of them
        together, by *count*, else the counter of this folder.
        """
        outlines, whole = await in_thread(self._outlines, files, await self._definitions(files))
        if self.max_tokens is None or not whole.content:
            return list(whole.folded)
        (tokens,) = await as_counter(count or self.counter).texts([whole.content])
        within_budget = await in_thread(drop_sections, outlines, whole, tokens, self.max_tokens)
        return list(within_budget.folded)

    def _outlines(self, files: Files, found: Sequence[Definitions]) -> tuple[Outlines, Folded]:
        """The outline of each file, and all of them folded.

        An outline is empty where it would be no shorter than the file.
        """
        outlines: list[tuple[str, Outline]] = []
        for (path, text), definitions in zip(files, found, strict=True):
            outline: Outline = merge_functions(
                definitions, self.max_line_span, merge=self.merge_functions
            )
            if len(format_file(path, outline)) >= len(text):
                outline = ()
            outlines.append((path, outline))
        return outlines, fold_outlines(outlines)

    async def _definitions(self, files: Files) -> list[Definitions]:
        memo = _memo()
        keys = await in_thread(_keys, files)
        known: dict[Key | None, Definitions | None] = {key: memo.get(key) for key in keys if key}
        pairs = zip(keys, files, strict=True)
        new = {key: file for key, file in pairs if key and known[key] is None}
        found = await _parse(list(new.values())) if new else []
        # A worker that fails leaves the last ones for another time.
        for key, definitions in zip(new, found, strict=False):
            known[key] = definitions
            memo.put(key, definitions, _DEFINITION_BYTES * (1 + len(definitions)))
        return [known.get(key) or () for key in keys]


@cache
def _memo() -> Memo[Key, Definitions]:
    """What each text defines.

    One for the process: it is the same for everyone, and the stages make folders freely.
    """
    return Memo(MEMO_BYTES)


def _keys(files: Files) -> list[Key | None]:
    """Cache keys: (language, digest of the text) of each file; None in an unknown language."""
    keys: list[Key | None] = []
    for path, text in files:
        language = language_of(path)
        keys.append(None if language is None else (language.name, text_digest(text)))
    return keys


async def _parse(files: Files) -> list[Definitions]:
    """What *files* define, up to the first on which the worker process fails.

    For that one nothing, and nothing after it.
    """
    texts = [part for file in files for part in file]
    memory = _MEMORY_BYTES + _MEMORY_BYTES_PER_CHAR * sum(map(len, texts))
    answers = await in_process(
        definition_rows, texts, seconds=PATIENCE_SECONDS, memory_bytes=memory
    )
    found = await in_thread(_definitions, answers.items)
    if answers.end == "unavailable":
        logger.warning("no worker process can be started: %d files are not folded", len(files))
    elif len(found) < len(files):
        logger.warning("a file cannot be folded: the parser failed or took too long")
        logger.debug("the file that cannot be folded is %r", files[len(found)][0])
        found.append(())
    return found


def _definitions(files: Iterable[Iterable[Iterable[object]]]) -> list[Definitions]:
    return [tuple(map(Definition._make, rows)) for rows in files]
