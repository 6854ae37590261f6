"""Files folded to the names that they define: a line for each class, and for several functions."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..placeholders.placeholders import fold_block
from .definitions import Definition, definitions

MAX_TOKENS = 10_000
MAX_LINE_SPAN = 100


@dataclass(frozen=True, slots=True)
class Section:
    """One line of a folded file: a class, an interface, a type, or consecutive functions."""

    type: Literal["class", "interface", "type", "functions"]
    names: tuple[str, ...]
    start_line: int


Outline: TypeAlias = Sequence[Section]
"""What one file defines, from top to bottom; empty when there is nothing to show."""

Outlines: TypeAlias = Sequence[tuple[str, Outline]]
"""Pairs of path and outline."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What some files were folded to.

    *sections* are the ``<system-reminder>`` blocks, one for each file processed, *content* the same
    as one text; *folded* has an entry for each file given, None for one that was skipped.
    """

    content: str
    sections: tuple[str, ...]
    files_processed: int
    files_skipped: int
    sections_dropped: int
    folded: tuple[str | None, ...]


def fold_files(
    files: Iterable[tuple[str, str]],
    *,
    max_tokens: int | None = MAX_TOKENS,
    merge_functions: bool = True,
    max_line_span: int = MAX_LINE_SPAN,
    count: Callable[[str], int],
    rng: random.Random | None = None,
) -> Folded:
    """Fold *files*, pairs of path and text, each to a ``<system-reminder>`` block of its names.

    A file in an unknown language, and one that defines nothing, is skipped. The blocks together may
    have *max_tokens* tokens by *count* (None: no limit). Above that, one pass drops as many
    sections as the excess is worth, chosen by *rng*, by default one seeded with the content, so
    that the same files fold to the same text. The rest is not counted again, and may still be above
    the limit.
    """
    outlines = [
        (path, _outline(definitions(path, text) or (), max_line_span, merge=merge_functions))
        for path, text in files
    ]
    whole = fold_outlines(outlines)
    if max_tokens is None or not whole.content:
        return whole
    return drop_sections(outlines, whole, count(whole.content), max_tokens, rng)


def drop_sections(
    outlines: Outlines,
    whole: Folded,
    tokens: int,
    max_tokens: int,
    rng: random.Random | None = None,
) -> Folded:
    """*outlines* without so many sections as *whole*, all of them, is above *max_tokens*."""
    total = sum(len(sections) for _, sections in outlines)
    excess = drop_count(tokens, max_tokens, total)
    if not excess:
        return whole
    chance = rng or _random_from(whole.content)
    # Of all methods, Python promises only for random() that its sequence stays the same.
    shuffled = sorted(range(total), key=lambda _: chance.random())
    return fold_outlines(outlines, frozenset(shuffled[:excess]))


def fold_outlines(outlines: Outlines, dropped: AbstractSet[int] = frozenset()) -> Folded:
    """The blocks of *outlines*, without the sections *dropped*.

    Sections are numbered through all files.
    """
    numbers = itertools.count()
    folded: list[str | None] = []
    for path, outline in outlines:
        kept = [section for section in outline if next(numbers) not in dropped]
        folded.append(format_file(path, kept) if outline else None)
    blocks = tuple(block for block in folded if block is not None)
    return Folded(
        content="\n".join(blocks),
        sections=blocks,
        files_processed=len(blocks),
        files_skipped=len(folded) - len(blocks),
        sections_dropped=len(dropped),
        folded=tuple(folded),
    )


# The parts ----------------------------------------------------------------------------------------


def merge_functions(
    definitions: Iterable[Definition], max_line_span: int = MAX_LINE_SPAN, *, merge: bool = True
) -> list[Section]:
    """Consecutive functions as one section, every other definition as its own.

    A section ends before a class, interface or type, and before a function more than
    *max_line_span* lines below its first one. Without *merge* each function is a section of
    its own. A section lists a name once.
    """
    runs: list[list[Definition]] = []
    for each in definitions:
        if merge and runs and _continues(runs[-1], each, max_line_span):
            runs[-1].append(each)
        else:
            runs.append([each])
    return list(map(_section, runs))


def _continues(run: Sequence[Definition], definition: Definition, max_line_span: int) -> bool:
    first = run[0]
    if not first.type == definition.type == "function":
        return False
    return definition.line - first.line <= max_line_span


_outline = merge_functions  # the option of fold_files has the same name


def _section(run: Sequence[Definition]) -> Section:
    first = run[0]
    kind = "functions" if first.type == "function" else first.type
    return Section(kind, tuple(dict.fromkeys(each.name for each in run)), first.line)


def format_sections(sections: Iterable[Section]) -> str:
    """One line per section: ``12 | class Name`` or ``34 | one, two``."""
    return "\n".join(map(_section_line, sections))


def _section_line(section: Section) -> str:
    kind = "" if section.type == "functions" else f"{section.type} "
    return f"{section.start_line} | {kind}{', '.join(section.names)}"


def format_file(path: str, sections: Iterable[Section]) -> str:
    """The folded text of the file at *path*: a ``<system-reminder>`` block ."""
    return fold_block(path, format_sections(sections))


def drop_count(tokens: int, budget: int, sections: int) -> int:
    """How many of *sections* to drop when they take *tokens* and may take *budget*.

    The excess divided by the average size of a section, rounded up, but at least one section stays.
    """
    if tokens <= budget or sections == 0:
        return 0
    # n * r / (1 + r) with r = tokens / budget - 1, in whole numbers: no rounding error decides.
    return min(sections - 1, -(-sections * (tokens - budget) // tokens))


def _random_from(content: str) -> random.Random:
    return random.Random(int.from_bytes(hashlib.sha256(content.encode(errors="replace")).digest()))  # noqa: S311 - an even choice, not a secret
