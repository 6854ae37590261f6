"""Keep the context of an LLM agent small, cheap and useful: history in, context out."""

from .edits.repair import repair
from .errors import CtxpipeError, InvalidHistory, SettingsError, StorageError, SummaryFailed, VocabularyError
from .messages import Message, Problem, ToolCall, ToolResult, check, split_system
from .pipeline import ContextPipeline
from .placeholders import Preview
from .reports import Compacted, Detail, Offloaded, Outcome, Result, StageReport, Truncated
from .stage import Change, Intent, Skip, Stage, Turn
from .stages.gates import Gate, RatioGate
from .stages.offload import (
    BatchOffload,
    DirectOffload,
    OffloadedMessage,
    OffloadResult,
    offload_tool_result,
    offload_tool_results,
)
from .storage import Archive, LocalStorage, Page, TextReader, TextWriter
from .tokens import Budget, Ledger, TokenCounter, conservative, count_tokens, should_compact
from .tools import Tool, offload_tools

__version__ = "0.1.0"

__all__ = [
    "Archive",
    "BatchOffload",
    "Budget",
    "Change",
    "Compacted",
    "ContextPipeline",
    "CtxpipeError",
    "Detail",
    "DirectOffload",
    "Gate",
    "Intent",
    "InvalidHistory",
    "Ledger",
    "LocalStorage",
    "Message",
    "OffloadResult",
    "Offloaded",
    "OffloadedMessage",
    "Outcome",
    "Page",
    "Preview",
    "Problem",
    "RatioGate",
    "Result",
    "SettingsError",
    "Skip",
    "Stage",
    "StageReport",
    "StorageError",
    "SummaryFailed",
    "TextReader",
    "TextWriter",
    "TokenCounter",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Truncated",
    "Turn",
    "VocabularyError",
    "check",
    "conservative",
    "count_tokens",
    "offload_tool_result",
    "offload_tool_results",
    "offload_tools",
    "repair",
    "should_compact",
    "split_system",
]
