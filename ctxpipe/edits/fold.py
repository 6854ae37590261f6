"""Files folded to the names they define: one line per class, interface and type, functions
together, nothing else.

Source: FF-1 to FF-18, UP-18 to UP-20, UP-23, A-56 to A-61.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .definitions import Definition, definitions

__all__ = [
    "MAX_LINE_SPAN",
    "MAX_TOKENS",
    "Definition",
    "Folded",
    "Outline",
    "Section",
    "definitions",
    "drop_count",
    "fold_files",
    "fold_outlines",
    "format_file",
    "format_sections",
    "merge_functions",
]

MAX_TOKENS = 10_000
MAX_LINE_SPAN = 100


@dataclass(frozen=True, slots=True)
class Section:
    """One line of a folded file: a class, an interface or a type, or functions that follow one
    another.
    """

    type: Literal["class", "interface", "type", "functions"]
    names: tuple[str, ...]
    start_line: int


Outline: TypeAlias = Sequence[Section]
"""What one file defines, from top to bottom; empty when there is nothing to show of it."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What folding made of some files: in *sections* a ``<system-reminder>`` block for each file
    processed.

    *content* is those blocks as one text; *folded* has an entry for each file given, None for one that was skipped.
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
    """Fold *files*, pairs of path and text, to the names they define, each in a
    ``<system-reminder>`` block of its own.

    A file in an unknown language, and one that defines nothing, is skipped. The blocks together may
    have *max_tokens* tokens by *count* (None: no limit). Above that, one pass drops as many
    sections as the excess is worth, chosen by
    *rng*, by default one seeded with the content: the same files fold to the same text. What is left is not counted
    again, and may still be above the limit (FF-7 to FF-10).
    """
    outlines = [
        (path, _outline(definitions(path, text) or (), max_line_span, merge=merge_functions))
        for path, text in files
    ]
    return fold_outlines(outlines, max_tokens=max_tokens, count=count, rng=rng)


def fold_outlines(
    outlines: Sequence[tuple[str, Outline]],
    *,
    max_tokens: int | None = MAX_TOKENS,
    count: Callable[[str], int],
    rng: random.Random | None = None,
) -> Folded:
    """The second half of `fold_files`, for files that have been read: pairs of path and outline."""
    whole = _fold(outlines)
    if max_tokens is None or not whole.content:
        return whole
    total = sum(len(sections) for _, sections in outlines)
    excess = drop_count(count(whole.content), max_tokens, total)
    return (
        _fold(outlines, _chosen(excess, total, rng or _seeded(whole.content))) if excess else whole
    )


def _fold(
    outlines: Iterable[tuple[str, Outline]], dropped: AbstractSet[int] = frozenset()
) -> Folded:
    """The blocks of *outlines*, without the sections *dropped*, numbered through all files."""
    numbers = itertools.count()
    folded = tuple(
        format_file(path, [section for section in outline if next(numbers) not in dropped])
        if outline
        else None
        for path, outline in outlines
    )
    blocks = tuple(block for block in folded if block is not None)
    return Folded(
        "\n".join(blocks), blocks, len(blocks), len(folded) - len(blocks), len(dropped), folded
    )


# The parts ----------------------------------------------------------------------------------------


def merge_functions(
    definitions: Iterable[Definition], max_line_span: int = MAX_LINE_SPAN, *, merge: bool = True
) -> list[Section]:
    """Functions that follow one another as one section, every other definition on its own (FF-11 to
    FF-14).

    A section ends before a class, interface or type, and before a function more than
    *max_line_span* lines below its first one (A-59). Without *merge* each function stands on its
    own. A section lists a name once.
    """
    runs: list[list[Definition]] = []
    for each in definitions:
        first = runs[-1][0] if merge and runs else None
        if (
            first
            and first.type == each.type == "function"
            and each.line - first.line <= max_line_span
        ):
            runs[-1].append(each)
        else:
            runs.append([each])
    return [_section(run) for run in runs]


_outline = merge_functions  # the option of fold_files has the same name


def _section(run: Sequence[Definition]) -> Section:
    type_ = run[0].type
    names = tuple(dict.fromkeys(definition.name for definition in run))
    return Section("functions" if type_ == "function" else type_, names, run[0].line)


def format_sections(sections: Iterable[Section]) -> str:
    """One line per section: ``12 | class Name`` or ``34 | one, two`` (A-60)."""
    return "\n".join(
        f"{section.start_line} | {'' if section.type == 'functions' else f'{section.type} '}{', '.join(section.names)}"
        for section in sections
    )


def format_file(path: str, sections: Iterable[Section]) -> str:
    """The folded text of the file at *path*: a ``<system-reminder>`` block of its own (FF-4,
    UP-18).
    """
    header = f"<system-reminder>\n## File Context: {_one_line(path)}"
    return "\n".join(filter(None, (header, format_sections(sections), "</system-reminder>")))


def _one_line(path: str) -> str:
    """*path* so that it can end neither its line nor the block it stands in."""
    return re.sub(r"[^\S ]|</?(?=system-reminder)", " ", path)


def drop_count(tokens: int, budget: int, sections: int) -> int:
    """How many of *sections* to drop when they take *tokens* and may take *budget* (FF-7 to FF-9,
    A-57).

    The excess divided by the average size of a section, rounded up, but at least one section stays.
    """
    if tokens <= budget or sections == 0:
        return 0
    # n * r / (1 + r) with r = tokens / budget - 1, in whole numbers: 0.1 + 0.2 decides nothing here
    return min(sections - 1, -(-sections * (tokens - budget) // tokens))


def _chosen(amount: int, total: int, rng: random.Random) -> frozenset[int]:
    """*amount* of the numbers below *total*.

    Of all that a generator offers, random() alone is promised to stay.
    """
    return frozenset(sorted(range(total), key=lambda _: rng.random())[:amount])


def _seeded(content: str) -> random.Random:
    digest = hashlib.sha256(content.encode(errors="replace")).digest()
    return random.Random(int.from_bytes(digest))  # noqa: S311 - chosen evenly, nothing is kept secret
