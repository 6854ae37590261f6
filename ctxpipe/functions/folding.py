"""Reduce source files to the names that they define."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from ..folding import fold
from ..folding.fold import MAX_LINE_SPAN, MAX_TOKENS, Folded
from ..tokens import as_counter


def fold_files(
    files: Iterable[tuple[str, str]],
    *,
    max_tokens: int | None = MAX_TOKENS,
    merge_functions: bool = True,
    max_line_span: int = MAX_LINE_SPAN,
    count: Callable[[str], int] | None = None,
    rng: random.Random | None = None,
) -> Folded:
    """Reduce source files to the names that they define, with line numbers.

    *files* are pairs of path and text. The language follows from the file name. Each file becomes
    one ``<system-reminder>`` block, with a line for each class and for each run of functions::

        12 | class Parser
        13 | parse, reset

    With *merge_functions* consecutive functions share a line, as long as they begin within
    *max_line_span* lines. A file in an unknown language, or without definitions, is skipped.

    *count* returns the number of tokens of a text, by default tiktoken's. If all blocks together
    have more than *max_tokens* tokens, lines are dropped, once. Their share is that of the tokens
    to save: for 12,500 tokens and a limit of 10,000, one line in five. *rng* chooses the lines at
    random; the default is seeded with the content, so the same files give the same result. The
    remaining text is not counted again, and may still exceed the limit slightly. With
    ``max_tokens=None`` there is no limit.

    The files are parsed in the calling thread, which may take seconds. In async code use
    `ctxpipe.folding.folder.Folder`.
    """
    return fold.fold_files(
        files,
        max_tokens=max_tokens,
        merge_functions=merge_functions,
        max_line_span=max_line_span,
        count=count or as_counter(None).text,
        rng=rng,
    )
