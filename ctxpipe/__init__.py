"""Shape the context of an LLM agent, once per turn: an asyncio middleware pipeline.

    import asyncio

    from anthropic import AsyncAnthropic
    from ctxpipe import AnthropicSummarizer, BatchOffload, Compact, ContextPipeline, answer
    from ctxpipe import DirectOffload, LocalStorage, Restore, SmartTruncate, offload_tools

    client, storage = AsyncAnthropic(), LocalStorage(".ctxpipe")
    pipeline = (
        ContextPipeline()
        .use(DirectOffload(storage))
        .use(BatchOffload(storage))
        .use(Compact(AnthropicSummarizer(client), archive=storage, restore=Restore(".")))
        .use(SmartTruncate(archive=storage))
    )


    async def agent(task, **request):
        messages, tools = [{"role": "user", "content": task}], offload_tools(storage)
        request["tools"] = [tool.definition for tool in tools]
        while True:  # once per turn
            result = await pipeline.run(messages, session_id="job", tools=request["tools"])
            request |= {"messages": result.messages, **result.request_options}
            reply = await client.messages.create(**request)
            messages = [*result.messages, {"role": "assistant", "content": reply.content}]
            output = [await answer(b, tools) for b in reply.content if b.type == "tool_use"]
            if not output:
                return reply
            messages.append({"role": "user", "content": output})


    print(asyncio.run(agent("Say hello.", model="claude-opus-5", max_tokens=4096)))

A long result goes to a file below the storage, where the model can read it with `offload_tools`.
"""

import sys
from typing import TYPE_CHECKING

from ._lazy import import_on_use
from ._logs import keep_records_on_one_line
from ._moved import MovedModules

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import CtxpipeError, InvalidHistory, SessionDeleted, SettingsError, StorageError
    from .pipeline import ContextPipeline
    from .placeholders.placeholders import Preview as Preview
    from .session import Session
    from .session.sessions import Sessions
    from .stages.collapse.stage import Collapse
    from .stages.compact.stage import Breaker as Breaker
    from .stages.compact.stage import Compact, Restore
    from .stages.compact.stage import Evidence as Evidence
    from .stages.media.stage import MediaOffload as MediaOffload
    from .stages.offload.gates import RatioGate as RatioGate
    from .stages.offload.gates import RentOrBuyGate as RentOrBuyGate
    from .stages.offload.stage import BatchOffload, DirectOffload
    from .stages.protocol import Change, Skip, Stage, Turn
    from .stages.read_backs.stage import TrimReadBacks
    from .stages.reading.pins import Pins as Pins
    from .stages.reports import Result
    from .stages.truncate.stage import SmartTruncate
    from .storage import (
        LocalStorage,
        MemoryStorage,
        ObjectJournal,
        ObjectStorage,
        PostgresJournal,
        RedisJournal,
        SQLiteJournal,
    )
    from .summarizers import AnthropicSummarizer as AnthropicSummarizer
    from .summarizers import ExtractiveSummarizer as ExtractiveSummarizer
    from .summarizers import PromptSummarizer as PromptSummarizer
    from .summarizers import Retry as Retry
    from .tokens import Budget
    from .tools import Tool, answer, offload_tools

__version__ = "0.1.0"

__all__ = [
    "BatchOffload",
    "Budget",
    "Change",
    "Collapse",
    "Compact",
    "ContextPipeline",
    "CtxpipeError",
    "DirectOffload",
    "InvalidHistory",
    "LocalStorage",
    "MemoryStorage",
    "ObjectJournal",
    "ObjectStorage",
    "PostgresJournal",
    "RedisJournal",
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
    "Tool",
    "TrimReadBacks",
    "Turn",
    "answer",
    "offload_tools",
]

# A name is imported when it is first asked for: `import ctxpipe` costs a few milliseconds.
_NAMES = {
    ".errors": "CtxpipeError InvalidHistory SessionDeleted SettingsError StorageError",
    ".functions": "CompactResult Folded OffloadResult OffloadedMessage Truncation compact_messages "
    "conservative count_tokens fold_files load_archive offload_tool_result "
    "offload_tool_results restore_files should_compact smart_truncate "
    "truncate_conversation",
    ".pipeline": "ContextPipeline",
    ".placeholders.placeholders": "Preview",
    ".session": "Session",
    ".session.sessions": "Sessions",
    ".stages.collapse.stage": "Collapse",
    ".stages.compact.stage": "Breaker Compact Evidence Restore",
    ".stages.offload.gates": "RatioGate RentOrBuyGate",
    ".stages.media.stage": "MediaOffload",
    ".stages.offload.stage": "BatchOffload DirectOffload",
    ".stages.protocol": "Change Skip Stage Turn",
    ".stages.read_backs.stage": "TrimReadBacks",
    ".stages.reading.pins": "Pins",
    ".stages.reports": "Result",
    ".stages.truncate.stage": "SmartTruncate",
    ".storage": "LocalStorage MemoryStorage ObjectJournal ObjectStorage PostgresJournal "
    "RedisJournal SQLiteJournal",
    ".summarizers": "AnthropicSummarizer ExtractiveSummarizer PromptSummarizer Retry",
    ".tokens": "Budget",
    ".tools": "Tool answer offload_tools",
}
# Names in other modules: importing one of them from here raises an ImportError with its module.
_ELSEWHERE = {
    ".adapters.anthropic": "ctxpipe_sync_middleware",
    ".adapters.anthropic or ctxpipe.adapters.langchain": "ctxpipe_middleware",
    ".adapters.anthropic or ctxpipe.adapters.openai": "ctxpipe_client ctxpipe_sync_client",
    ".adapters.litellm": "ctxpipe_logger",
    ".adapters.pydantic_ai": "Ctxpipe",
    ".turn.repair": "repair",
    ".errors": "SummaryFailed VocabularyError",
    ".folding.folder": "Folder",
    ".messages": "Message Problem ToolCall ToolResult check pending_calls rewrite split_system "
    "tool_calls tool_results",
    ".providers.prices": "Prices prices_of",
    ".stages.offload.gates": "Gate",
    ".stages.protocol": "Intent",
    ".stages.reports": "Collapsed Compacted Detail Offloaded Outcome StageReport Truncated",
    ".storage": "Archive JournalStorage Page TextReader TextWriter is_secret",
    ".summarizers": "AgentSummarizer",
    ".tokens": "Ledger TokenCounter",
    ".tools": "ToolInputError as_beta_tools",
}
_RENAMED = {"Excerpt": "ctxpipe.Preview"}
keep_records_on_one_line()
if MovedModules not in sys.meta_path:
    sys.meta_path.append(MovedModules)
__getattr__: "Callable[[str], object]" = import_on_use(__name__, _NAMES, _ELSEWHERE, _RENAMED)


def __dir__() -> list[str]:
    return [*globals(), *" ".join(_NAMES.values()).split()]
