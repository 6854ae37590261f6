"""Keep the context of an LLM agent small, cheap and useful: history in, context out."""

from typing import TYPE_CHECKING

from .lazy import import_on_use
from .logs import keep_records_on_one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from .edits.repair import repair
    from .edits.truncate import truncate_conversation
    from .errors import (
        CtxpipeError,
        InvalidHistory,
        SettingsError,
        StorageError,
        SummaryFailed,
        VocabularyError,
    )
    from .folding.fold import Folded
    from .folding.folder import Folder
    from .markers.placeholders import Preview
    from .messages import Message, Problem, ToolCall, ToolResult, check, pending_calls, split_system
    from .pipeline import ContextPipeline
    from .prices import Prices, prices_of
    from .reports import (
        Collapsed,
        Compacted,
        Detail,
        Offloaded,
        Outcome,
        Result,
        StageReport,
        Truncated,
    )
    from .session import Session
    from .session.sessions import Sessions
    from .stage import Change, Intent, Skip, Stage, Turn
    from .stages.collapse import Collapse
    from .stages.compact import (
        Breaker,
        Compact,
        CompactResult,
        Evidence,
        Restore,
        compact_messages,
        load_archive,
        restore_files,
    )
    from .stages.fold import fold_files
    from .stages.gates import Gate, RatioGate, RentOrBuyGate
    from .stages.offload import (
        BatchOffload,
        DirectOffload,
        OffloadedMessage,
        OffloadResult,
        offload_tool_result,
        offload_tool_results,
    )
    from .stages.read_backs import TrimReadBacks
    from .stages.truncate import SmartTruncate, Truncation, smart_truncate
    from .storage import (
        Archive,
        JournalStorage,
        LocalStorage,
        MemoryStorage,
        ObjectStorage,
        Page,
        PostgresJournal,
        RedisJournal,
        SQLiteJournal,
        TextReader,
        TextWriter,
        is_secret,
    )
    from .tokens import Budget, Ledger, TokenCounter, conservative, count_tokens, should_compact
    from .tools import Tool, ToolInputError, answer, as_beta_tools, offload_tools

__version__ = "0.1.0"

__all__ = [
    "Archive",
    "BatchOffload",
    "Breaker",
    "Budget",
    "Change",
    "Collapse",
    "Collapsed",
    "Compact",
    "CompactResult",
    "Compacted",
    "ContextPipeline",
    "CtxpipeError",
    "Detail",
    "DirectOffload",
    "Evidence",
    "Folded",
    "Folder",
    "Gate",
    "Intent",
    "InvalidHistory",
    "JournalStorage",
    "Ledger",
    "LocalStorage",
    "MemoryStorage",
    "Message",
    "ObjectStorage",
    "OffloadResult",
    "Offloaded",
    "OffloadedMessage",
    "Outcome",
    "Page",
    "PostgresJournal",
    "Preview",
    "Prices",
    "Problem",
    "RatioGate",
    "RedisJournal",
    "RentOrBuyGate",
    "Restore",
    "Result",
    "SQLiteJournal",
    "Session",
    "Sessions",
    "SettingsError",
    "Skip",
    "SmartTruncate",
    "Stage",
    "StageReport",
    "StorageError",
    "SummaryFailed",
    "TextReader",
    "TextWriter",
    "TokenCounter",
    "Tool",
    "ToolCall",
    "ToolInputError",
    "ToolResult",
    "TrimReadBacks",
    "Truncated",
    "Truncation",
    "Turn",
    "VocabularyError",
    "answer",
    "as_beta_tools",
    "check",
    "compact_messages",
    "conservative",
    "count_tokens",
    "fold_files",
    "is_secret",
    "load_archive",
    "offload_tool_result",
    "offload_tool_results",
    "offload_tools",
    "pending_calls",
    "prices_of",
    "repair",
    "restore_files",
    "should_compact",
    "smart_truncate",
    "split_system",
    "truncate_conversation",
]

# A name is imported when it is first asked for: `import ctxpipe` costs a few milliseconds.
_NAMES = {
    ".edits.repair": "repair",
    ".edits.truncate": "truncate_conversation",
    ".errors": "CtxpipeError InvalidHistory SettingsError StorageError SummaryFailed "
    "VocabularyError",
    ".folding.fold": "Folded",
    ".folding.folder": "Folder",
    ".markers.placeholders": "Preview",
    ".messages": "Message Problem ToolCall ToolResult check pending_calls split_system",
    ".pipeline": "ContextPipeline",
    ".prices": "Prices prices_of",
    ".reports": "Collapsed Compacted Detail Offloaded Outcome Result StageReport Truncated",
    ".session": "Session",
    ".session.sessions": "Sessions",
    ".stage": "Change Intent Skip Stage Turn",
    ".stages.collapse": "Collapse",
    ".stages.compact": "Breaker Compact CompactResult Evidence Restore "
    "compact_messages load_archive restore_files",
    ".stages.fold": "fold_files",
    ".stages.gates": "Gate RatioGate RentOrBuyGate",
    ".stages.offload": "BatchOffload DirectOffload OffloadResult OffloadedMessage "
    "offload_tool_result offload_tool_results",
    ".stages.read_backs": "TrimReadBacks",
    ".stages.truncate": "SmartTruncate Truncation smart_truncate",
    ".storage": "Archive JournalStorage LocalStorage MemoryStorage ObjectStorage Page "
    "PostgresJournal RedisJournal SQLiteJournal TextReader TextWriter is_secret",
    ".tokens": "Budget Ledger TokenCounter conservative count_tokens should_compact",
    ".tools": "Tool ToolInputError answer as_beta_tools offload_tools",
}
keep_records_on_one_line()
__getattr__: "Callable[[str], object]" = import_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
