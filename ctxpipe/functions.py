"""The functions of the requirements, literal to them, each with the type of its result.

They stand alone, without a pipeline or a session; what a stage does beyond them is said there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from .edits.truncate import truncate_conversation
from .folding import fold
from .folding.fold import MAX_LINE_SPAN, MAX_TOKENS, Folded
from .stages.compact import CompactResult, compact_messages, load_archive, restore_files
from .stages.offload import (
    OffloadedMessage,
    OffloadResult,
    offload_tool_result,
    offload_tool_results,
)
from .stages.truncate import Truncation, smart_truncate
from .tokens import as_counter, conservative, count_tokens, should_compact

__all__ = [
    "CompactResult",
    "Folded",
    "OffloadResult",
    "OffloadedMessage",
    "Truncation",
    "compact_messages",
    "conservative",
    "count_tokens",
    "fold_files",
    "load_archive",
    "offload_tool_result",
    "offload_tool_results",
    "restore_files",
    "should_compact",
    "smart_truncate",
    "truncate_conversation",
]


def fold_files(
    files: Iterable[tuple[str, str]],
    *,
    max_tokens: int | None = MAX_TOKENS,
    merge_functions: bool = True,
    max_line_span: int = MAX_LINE_SPAN,
    count: Callable[[str], int] | None = None,
    rng: random.Random | None = None,
) -> Folded:
    """Fold *files*, pairs of path and text, to the names they define.

    Each is in a ``<system-reminder>`` block of its own. A file in an unknown language, and one that
    defines nothing, is skipped. The blocks together may have *max_tokens* tokens by *count*, by
    default tiktoken's (None: no limit). Above that, one pass drops as many sections as the excess
    is worth, chosen by *rng*, by default one seeded with the content: the same files fold to the
    same text. What is left is not counted again. It parses where it is called; on an event loop use
    `Folder`.
    """
    return fold.fold_files(
        files,
        max_tokens=max_tokens,
        merge_functions=merge_functions,
        max_line_span=max_line_span,
        count=count or as_counter(None).text,
        rng=rng,
    )
