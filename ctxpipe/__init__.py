"""Keep the context of an LLM agent small, cheap and useful: history in, context out."""

from typing import TYPE_CHECKING

from ._lazy import import_on_use
from ._logs import keep_records_on_one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from .edits.repair import repair
    from .errors import (
        CtxpipeError,
        InvalidHistory,
        SessionDeleted,
        SettingsError,
        StorageError,
        SummaryFailed,
    )
    from .messages import Message, check, pending_calls
    from .pipeline import ContextPipeline
    from .placeholders.placeholders import Preview
    from .providers.prices import Prices, prices_of
    from .session import Session
    from .session.sessions import Sessions
    from .stages.collapse import Collapse
    from .stages.compact import Breaker, Compact, Evidence, Restore
    from .stages.gates import RatioGate, RentOrBuyGate
    from .stages.offload import BatchOffload, DirectOffload
    from .stages.protocol import Change, Skip, Stage, Turn
    from .stages.read_backs import TrimReadBacks
    from .stages.reports import Result
    from .stages.truncate import SmartTruncate
    from .storage import (
        LocalStorage,
        MemoryStorage,
        ObjectStorage,
        PostgresJournal,
        RedisJournal,
        SQLiteJournal,
    )
    from .tokens import Budget, TokenCounter
    from .tools import Tool, answer, as_beta_tools, offload_tools

__version__ = "0.1.0"

__all__ = [
    "BatchOffload",
    "Breaker",
    "Budget",
    "Change",
    "Collapse",
    "Compact",
    "ContextPipeline",
    "CtxpipeError",
    "DirectOffload",
    "Evidence",
    "InvalidHistory",
    "LocalStorage",
    "MemoryStorage",
    "Message",
    "ObjectStorage",
    "PostgresJournal",
    "Preview",
    "Prices",
    "RatioGate",
    "RedisJournal",
    "RentOrBuyGate",
    "Restore",
    "Result",
    "SQLiteJournal",
    "Session",
    "SessionDeleted",
    "Sessions",
    "SettingsError",
    "Skip",
    "SmartTruncate",
    "Stage",
    "StorageError",
    "SummaryFailed",
    "TokenCounter",
    "Tool",
    "TrimReadBacks",
    "Turn",
    "answer",
    "as_beta_tools",
    "check",
    "offload_tools",
    "pending_calls",
    "prices_of",
    "repair",
]

# A name is imported when it is first asked for: `import ctxpipe` costs a few milliseconds.
_NAMES = {
    ".edits.repair": "repair",
    ".errors": "CtxpipeError InvalidHistory SessionDeleted SettingsError StorageError "
    "SummaryFailed",
    ".functions": "CompactResult Folded OffloadResult OffloadedMessage Truncation compact_messages "
    "conservative count_tokens fold_files load_archive offload_tool_result "
    "offload_tool_results restore_files should_compact smart_truncate "
    "truncate_conversation",
    ".placeholders.placeholders": "Preview",
    ".messages": "Message check pending_calls",
    ".pipeline": "ContextPipeline",
    ".providers.prices": "Prices prices_of",
    ".stages.reports": "Result",
    ".session": "Session",
    ".session.sessions": "Sessions",
    ".stages.protocol": "Change Skip Stage Turn",
    ".stages.collapse": "Collapse",
    ".stages.compact": "Breaker Compact Evidence Restore",
    ".stages.gates": "RatioGate RentOrBuyGate",
    ".stages.offload": "BatchOffload DirectOffload",
    ".stages.read_backs": "TrimReadBacks",
    ".stages.truncate": "SmartTruncate",
    ".storage": "LocalStorage MemoryStorage ObjectStorage PostgresJournal RedisJournal "
    "SQLiteJournal",
    ".tokens": "Budget TokenCounter",
    ".tools": "Tool answer as_beta_tools offload_tools",
}
keep_records_on_one_line()
__getattr__: "Callable[[str], object]" = import_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
