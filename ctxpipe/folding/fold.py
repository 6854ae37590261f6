"""Write the names that files define as folded texts: a line for each class or run of functions.

<system-reminder>
…
12 | class Parser
13 | parse, reset
</system-reminder>
"""

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
    """Line of a folded file: a class, an interface, a type, or consecutive functions."""

    type: Literal["class", "interface", "type", "functions"]
    names: tuple[str, ...]
    start_line: int


Outline: TypeAlias = Sequence[Section]
"""Sections of one file, from top to bottom; empty if there is nothing to show."""

Outlines: TypeAlias = Sequence[tuple[str, Outline]]
"""Pairs of path and outline."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Result of folding several files.

    *sections* are the ``<system-reminder>`` blocks, one for each file processed, and *content* is
    all of them in one text. *folded* has an entry for each input file: its block, or None if the
    file was skipped. *sections_dropped* is the number of lines (of a class, or of a run of
    functions) that were left out because of the token limit; no whole block is dropped.
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
    have *max_tokens* tokens, counted by *count* (None: no limit). Above the limit, one pass drops
    sections: their number is the share of the excess, and *rng* chooses them. The default *rng* is
    seeded with the content, so that the same files always fold to the same text. The rest is not
    counted again and may still exceed the limit.
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
    """Return the folded *outlines* without the sections that exceed *max_tokens*.

    *whole* is the result with all sections, of *tokens* tokens.
    """
    total = sum(len(sections) for _, sections in outlines)
    excess = drop_count(tokens, max_tokens, total)
    if not excess:
        return whole
    generator = rng or _random_from(whole.content)
    # Python guarantees a stable sequence across versions only for random().
    shuffled_numbers = sorted(range(total), key=lambda _: generator.random())
    return fold_outlines(outlines, frozenset(shuffled_numbers[:excess]))


def fold_outlines(outlines: Outlines, dropped_numbers: AbstractSet[int] = frozenset()) -> Folded:
    """Return *outlines* as folded texts, without some sections.

    *dropped_numbers* are the numbers of the sections to leave out. Sections are counted from 0
    through all files.
    """
    numbers = itertools.count()
    by_file: list[str | None] = []
    for path, outline in outlines:
        if not outline:
            by_file.append(None)
            continue
        remaining = [section for section in outline if next(numbers) not in dropped_numbers]
        by_file.append(format_file(path, remaining))
    blocks = tuple(block for block in by_file if block is not None)
    return Folded(
        content="\n".join(blocks),
        sections=blocks,
        files_processed=len(blocks),
        files_skipped=len(by_file) - len(blocks),
        sections_dropped=len(dropped_numbers),
        folded=tuple(by_file),
    )


# The parts ----------------------------------------------------------------------------------------


def merge_functions(
    definitions: Iterable[Definition], max_line_span: int = MAX_LINE_SPAN, *, merge: bool = True
) -> list[Section]:
    """Return a section for each run of consecutive functions and for every other definition.

    A run ends before a class, interface or type, and before a function that is more than
    *max_line_span* lines below its first one. Without *merge* each function is a section. A section
    lists a name once.
    """
    runs: list[list[Definition]] = []
    for definition in definitions:
        if merge and runs and _continues(runs[-1], definition, max_line_span):
            runs[-1].append(definition)
        else:
            runs.append([definition])
    return [_section(run) for run in runs]


def _continues(run: Sequence[Definition], definition: Definition, max_line_span: int) -> bool:
    """Return True if *definition* belongs to the same section as the functions of *run*.

    That is a function at most *max_line_span* lines below the first function of *run*. *run* has at
    least one definition, in the order of the file; a definition that is no function stands alone.
    """
    first = run[0]
    if not first.type == definition.type == "function":
        return False
    return definition.line - first.line <= max_line_span


_outline = merge_functions  # the option of fold_files has the same name


def _section(run: Sequence[Definition]) -> Section:
    """Return the section of the definitions in *run*; it lists each name once.

    Its kind and line are those of the first definition.
    """
    first = run[0]
    kind = "functions" if first.type == "function" else first.type
    names = dict.fromkeys(definition.name for definition in run)
    return Section(kind, tuple(names), first.line)


def format_sections(sections: Iterable[Section]) -> str:
    """Return one line per section: ``12 | class Name`` or ``34 | one, two``."""
    return "\n".join(_section_line(section) for section in sections)


def _section_line(section: Section) -> str:
    """Return one line: line number, kind unless it is a run of functions, and names."""
    kind = "" if section.type == "functions" else f"{section.type} "
    return f"{section.start_line} | {kind}{', '.join(section.names)}"


def format_file(path: str, sections: Iterable[Section]) -> str:
    """Return the folded text of the file at *path*: a ``<system-reminder>`` block."""
    return fold_block(path, format_sections(sections))


def drop_count(tokens: int, budget: int, sections: int) -> int:
    """Return how many of *sections* to drop if they have *tokens* tokens and may have *budget*.

    The result is the excess divided by the average size of a section, rounded up. At least one
    section stays.
    """
    if tokens <= budget or sections == 0:
        return 0
    # The formula is n * r / (1 + r) with r = tokens / budget - 1. Whole numbers avoid rounding.
    return min(sections - 1, -(-sections * (tokens - budget) // tokens))


def _random_from(content: str) -> random.Random:
    return random.Random(int.from_bytes(hashlib.sha256(content.encode(errors="replace")).digest()))  # noqa: S311 - an even choice, not a secret
