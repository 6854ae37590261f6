"""The functions of the requirements, literal to them, each with the type of its result.

They stand alone, without a pipeline or a session; what a stage does beyond them is said there.
"""

from .edits.truncate import truncate_conversation
from .folding.fold import Folded
from .stages.compact import CompactResult, compact_messages, load_archive, restore_files
from .stages.fold import fold_files
from .stages.offload import (
    OffloadedMessage,
    OffloadResult,
    offload_tool_result,
    offload_tool_results,
)
from .stages.truncate import Truncation, smart_truncate
from .tokens import conservative, count_tokens, should_compact

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
