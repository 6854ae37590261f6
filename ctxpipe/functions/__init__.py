"""Functions that do one step on messages each, and the types of their results.

They need no pipeline and no session. A docstring names what the stage of the same step does
differently.
"""

from __future__ import annotations

from ..folding.fold import Folded
from ..stages.truncate.shortening import Truncation
from ..tokens import conservative, count_tokens, should_compact
from .archive import load_archive
from .compact import CompactResult, compact_messages
from .folding import fold_files
from .offload import OffloadedMessage, OffloadResult, offload_tool_result, offload_tool_results
from .restore import restore_files
from .truncate import smart_truncate, truncate_conversation

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
