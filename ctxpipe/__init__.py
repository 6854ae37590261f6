"""Keep the context of an LLM agent small, valid and cached.

    import asyncio

    from anthropic import AsyncAnthropic
    from anyio import run_process
    from ctxpipe import ContextPipeline, LocalStorage, Tool, answer, offload_tools, presets

    client, storage = AsyncAnthropic(), LocalStorage(".ctxpipe")
    pipeline = ContextPipeline(presets.coding_agent(storage, work_dir="."))
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}


    async def bash(arguments) -> str:
        return (await run_process(arguments["command"], check=False)).stdout.decode()


    async def main(task) -> str:
        async with pipeline.session("job-42", journal=storage) as session:
            run = Tool({"name": "bash", "input_schema": schema}, bash)
            tools = [run, *offload_tools(session)]  # the model reads back with these
            request = {"model": "claude-opus-5", "max_tokens": 4096}
            request["tools"] = [tool.definition for tool in tools]
            session.append({"role": "user", "content": task})
            while True:
                reply = await session.create(client, **request)
                calls = [block for block in reply.content if block.type == "tool_use"]
                if not calls:
                    texts = [block.text for block in reply.content if block.type == "text"]
                    return "".join(texts) or f"No answer: {reply.stop_reason}"
                results = [await answer(call, tools) for call in calls]
                session.append({"role": "user", "content": results})


    print(asyncio.run(main("Which module here is the largest?")))

What long results held is in files below the storage, where the model can read it; the session keeps
the history whole.
"""

from typing import TYPE_CHECKING

from ._lazy import import_on_use
from ._logs import keep_records_on_one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from .errors import (
        CtxpipeError,
        InvalidHistory,
        SessionDeleted,
        SettingsError,
        StorageError,
    )
    from .pipeline import ContextPipeline
    from .session import Session
    from .session.sessions import Sessions
    from .stages.collapse import Collapse
    from .stages.compact import Compact, Restore
    from .stages.offload import BatchOffload, DirectOffload
    from .stages.protocol import Change, Skip, Stage, Turn
    from .stages.read_backs import TrimReadBacks
    from .stages.reports import Result
    from .stages.truncate import SmartTruncate
    from .storage import (
        LocalStorage,
        MemoryStorage,
        ObjectJournal,
        ObjectStorage,
        PostgresJournal,
        RedisJournal,
        SQLiteJournal,
    )
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
    ".session": "Session",
    ".session.sessions": "Sessions",
    ".stages.collapse": "Collapse",
    ".stages.compact": "Compact Restore",
    ".stages.offload": "BatchOffload DirectOffload",
    ".stages.protocol": "Change Skip Stage Turn",
    ".stages.read_backs": "TrimReadBacks",
    ".stages.reports": "Result",
    ".stages.truncate": "SmartTruncate",
    ".storage": "LocalStorage MemoryStorage ObjectJournal ObjectStorage PostgresJournal "
    "RedisJournal SQLiteJournal",
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
    ".edits.repair": "repair",
    ".errors": "SummaryFailed",
    ".messages": "Message check pending_calls rewrite tool_calls tool_results",
    ".placeholders.placeholders": "Preview",
    ".providers.prices": "Prices prices_of",
    ".stages.compact": "Breaker Evidence",
    ".stages.gates": "RatioGate RentOrBuyGate",
    ".stages.media": "MediaOffload",
    ".summarizers": "AgentSummarizer AnthropicSummarizer ExtractiveSummarizer PromptSummarizer",
    ".tokens": "TokenCounter",
    ".tools": "as_beta_tools",
}
keep_records_on_one_line()
__getattr__: "Callable[[str], object]" = import_on_use(__name__, _NAMES, _ELSEWHERE)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
