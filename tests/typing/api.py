"""Code of a user, as it would be written. Type checkers read it; nobody runs it.

mypy --strict reads it with the rest (``make lint``), pyright in tests/project/test_typing.py. What
they must not accept is at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_type, cast

import anthropic
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from anthropic.lib.streaming import BetaAsyncMessageStream
from anthropic.lib.vertex import AsyncAnthropicVertex
from anthropic.types import Message as Reply
from anthropic.types import MessageParam, RawMessageStreamEvent, ToolResultBlockParam
from anthropic.types.beta import BetaMessage

import ctxpipe.sync
from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    CtxpipeError,
    DirectOffload,
    LocalStorage,
    Result,
    Session,
    Sessions,
    Skip,
    SmartTruncate,
    Stage,
    Tool,
    Turn,
    answer,
)
from ctxpipe.functions import (
    compact_messages,
    count_tokens,
    offload_tool_results,
    restore_files,
    should_compact,
    smart_truncate,
    truncate_conversation,
)
from ctxpipe.functions.compact import CompactStats
from ctxpipe.messages import (
    Message,
    Problem,
    ToolCall,
    ToolResult,
    check,
    pending_calls,
    rewrite,
    split_system,
    tool_calls,
    tool_results,
)
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.presets import chat, coding_agent
from ctxpipe.providers.prices import Prices, prices_of
from ctxpipe.settings import EXAMPLE_MODEL as MODEL
from ctxpipe.stages.offload.gates import RatioGate, RentOrBuyGate
from ctxpipe.stages.reports import Collapsed, Compacted, Offloaded, Outcome, StageReport, Truncated
from ctxpipe.summarizers import AnthropicSummarizer, ExtractiveSummarizer, Summarizer, Summary
from ctxpipe.testing import MessagesServer, answer_with, tool_use
from ctxpipe.tools import ToolInputError
from ctxpipe.turn.repair import repair

logger = logging.getLogger(__name__)

# A pipeline and a loop ----------------------------------------------------------------------------


def build_pipeline(folder: Path, client: anthropic.AsyncAnthropic) -> ContextPipeline:
    storage = LocalStorage(folder)
    return (
        ContextPipeline(budget=Budget(window=200_000), on_report=log_report, veto=keep_the_plan)
        .use(DirectOffload(storage, min_chars=5_000, preview=Preview(head=500, tail=200)))
        .use(BatchOffload(storage, gate=RatioGate(0.3)))
        .use(Compact(AnthropicSummarizer(client, model=MODEL), archive=storage))
        .use(SmartTruncate(archive=storage))
    )


def log_report(report: StageReport) -> None:
    logger.info("%s: %d tokens", report.stage, report.tokens_after)


def keep_the_plan(turn: Turn, change: Change) -> bool | str:
    if len(change.messages) < len(turn.messages):
        return "the plan must stay"
    return False


async def loop(pipeline: ContextPipeline, storage: LocalStorage, task: str) -> list[Message]:
    client = anthropic.AsyncAnthropic()
    history: list[MessageParam] = [{"role": "user", "content": task}]
    async with pipeline.session("job-42", journal=storage) as session:
        assert_type(session, Session)
        while True:
            reply = await session.create(
                client, messages=history, model=MODEL, max_tokens=4096, system="Be brief."
            )
            assert_type(reply, Reply)
            history.append({"role": "assistant", "content": reply.content})
            results: list[ToolResultBlockParam] = []
            for block in reply.content:
                if block.type == "tool_use":
                    results.append(
                        {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
                    )
            if not results:
                return await session.history()
            history.append({"role": "user", "content": results})


async def loop_by_hand(session: Session, history: list[Message]) -> None:
    client = anthropic.AsyncAnthropic()
    context = await session.run(history, system="Be brief.", tools=[{"name": "bash"}])
    assert_type(context, Result)
    # To pyright, options of any type make it unknown which of the SDK's overloads is meant.
    reply = cast(
        "Reply",
        await client.messages.create(
            model=MODEL, max_tokens=4096, messages=context.messages, **context.request_options
        ),
    )
    session.observe(reply.usage, model=reply.model)
    for tally in session.diagnostics.cache_tally:
        assert_type(tally.cost, float | None)


async def print_stream(session: Session, client: anthropic.AsyncAnthropic) -> str:
    session.append({"role": "user", "content": "Go on."})
    async with session.stream(client, model=MODEL, max_tokens=4096) as stream:
        async for text in stream.text_stream:
            assert_type(text, str)
        final = await stream.get_final_message()
    await session.compact(focus="the failing test")
    return final.model


async def ask_in_other_ways(
    session: Session,
    bedrock: AsyncAnthropicBedrock,
    vertex: AsyncAnthropicVertex,
) -> None:
    client = anthropic.AsyncAnthropic()
    for other in (client, bedrock, vertex):
        reply = await session.create(
            other,
            model=MODEL,
            max_tokens=100,
            tools=[{"name": "bash", "input_schema": {"type": "object"}}],
            thinking={"type": "disabled"},
            stop_sequences=["END"],
            extra_headers={"x-team": "search"},
            timeout=30,
        )
        assert_type(reply, Reply)
    events = await session.create(client, model=MODEL, max_tokens=100, stream=True)
    assert_type(events, anthropic.AsyncStream[RawMessageStreamEvent])
    beta = await session.create(client.beta, model=MODEL, max_tokens=100, betas=["a-beta"])
    assert_type(beta, BetaMessage)
    async with session.stream(client.beta, model=MODEL, max_tokens=100, betas=["a"]) as stream:
        assert_type(stream, BetaAsyncMessageStream[Any])


async def ask_without_memory(pipeline: ContextPipeline, history: list[Message]) -> list[Message]:
    result = await pipeline.run(history, session_id="s", request={"model": MODEL})
    planned = await pipeline.plan(history, session_id="s")
    assert_type(planned.tokens_saved, int)
    return result.messages


async def serve(pipeline: ContextPipeline, storage: LocalStorage, name: str) -> Session:
    sessions = Sessions(pipeline, journal=storage)
    return sessions.get(name)


def work_synchronously(pipeline: ContextPipeline, history: list[Message]) -> list[Message]:
    with ctxpipe.sync.Session(pipeline, "job-43") as session:
        reply = session.create(
            anthropic.AsyncAnthropic(), messages=history, model=MODEL, max_tokens=9
        )
        assert_type(reply, Reply)
        context = session.run(history)
        assert_type(context, Result)
        return context.messages


# Reports ------------------------------------------------------------------------------------------


def describe(result: Result) -> str:
    for report in result.reports:
        if report.outcome is Outcome.FAILED:
            assert_type(report.error, Exception | None)
        match report.detail:
            case Offloaded() as offloaded:
                assert_type(offloaded.chars, int)
            case Collapsed(steps=steps):
                assert_type(steps, int)
            case Compacted(archive=archive):
                assert_type(archive, str | None)
            case Truncated(still_over=still_over):
                assert_type(still_over, bool)
            case None:
                pass
    assert_type(result.repaired, tuple[Problem, ...])
    return f"{result.tokens_before} to {result.tokens_after}: {', '.join(result.notices)}"


# Stages of one's own ------------------------------------------------------------------------------


async def forget_weather(turn: Turn) -> Change | Skip:
    kept = [message for message in turn.messages if "weather" not in str(message["content"])]
    if len(kept) == len(turn.messages):
        return Skip("nobody mentioned the weather")
    return Change(kept)


@dataclass
class Seen:
    names: set[str] = field(default_factory=set[str])

    def rewind(self, known: int, /) -> None:
        self.names = set(list(self.names)[:known])


@dataclass(frozen=True, slots=True)
class DropProgressBars:
    min_chars: int = 1_000

    async def __call__(self, turn: Turn) -> Change | Skip:
        seen = turn.recall(Seen)
        assert_type(seen, Seen)
        if await turn.tokens() < turn.budget.trigger and not turn.force:
            return Skip("there is room")
        results: list[ToolResult] = list(tool_results(turn.messages))
        long = [result for result in results if len(str(result.content)) > self.min_chars]
        return Change(rewrite(turn.messages, {result.place: "[progress]" for result in long}))

    plan = __call__


OWN_STAGES: list[Stage] = [forget_weather, DropProgressBars()]


def names_of_calls(messages: Sequence[Message]) -> list[str]:
    calls = tool_calls(messages)
    open_calls: Sequence[ToolCall] = pending_calls(messages)
    return [call.name for call in [*calls, *open_calls]]


# A summarizer of one's own -----------------------------------------------------------------------


async def count_words(messages: Sequence[Message], /) -> Summary:
    return Summary(f"{len(messages)} messages", writer="count_words")


SUMMARIZERS: list[Summarizer] = [count_words, ExtractiveSummarizer()]


# Tools, adapters, presets, functions --------------------------------------------------------------


async def run_tools(tools: Sequence[Tool], reply: Reply) -> list[ToolResultBlockParam]:
    by_name = {tool.name: tool for tool in tools}
    results: list[ToolResultBlockParam] = []
    for block in reply.content:
        if block.type == "tool_use":
            results.append(await by_name[block.name].result(block))
    return results


async def read_page(arguments: Mapping[str, object]) -> str:
    number = arguments.get("page")
    if not isinstance(number, int):
        raise ToolInputError("page is missing; give a number")
    return f"page {number}"


def preset_pipelines(storage: LocalStorage) -> list[ContextPipeline]:
    prices = prices_of(MODEL)
    assert_type(prices, Prices)
    return [
        ContextPipeline(coding_agent(storage, work_dir=".", prices=prices)),
        ContextPipeline(chat(storage, summarize=count_words)),
        ContextPipeline([BatchOffload(storage, gate=RentOrBuyGate(prices))]),
    ]


async def call_the_functions(history: list[Message], storage: LocalStorage) -> list[Message]:
    assert_type(count_tokens(history), int)
    if should_compact(history, context_token_limit=200_000):
        compacted = await compact_messages(history, summarize=count_words, archive=storage)
        assert_type(compacted.stats, CompactStats | None)
        history = compacted.messages
    offloaded = await offload_tool_results(history, output_dir=storage.root, writer=storage)
    shortened = await smart_truncate(offloaded.messages, max_tokens=50_000)
    problems: Sequence[Problem] = check(shortened.messages)
    if problems:
        return repair(shortened.messages)
    _head, rest = split_system(shortened.messages)
    return list(rest)


async def send_plain_dicts(pipeline: ContextPipeline, client: anthropic.AsyncAnthropic) -> None:
    """A history whose type a type checker infers from its first lines."""
    history = [{"role": "user", "content": "hi"}]
    result = await pipeline.run(history, session_id="s")
    await pipeline.plan(history, session_id="s")
    pipeline.observe({"input_tokens": 1}, history, session_id="s")

    session = pipeline.session("s")
    session.append({"role": "user", "content": "hi"}, *history)
    await session.run(history)
    await session.compact(history)
    await session.recover("prompt is too long", history, result)
    await session.create(client, messages=history, model=MODEL, max_tokens=100)
    ctxpipe.sync.Session(pipeline, "t").run(history)

    shorter: list[Message] = truncate_conversation(history, 0.5)
    shorter = (await smart_truncate(history)).messages
    shorter = (await compact_messages(history)).messages
    shorter = (await offload_tool_results(history, output_dir="results")).messages
    restored = await restore_files(history)
    print(count_tokens(history), check(history), pending_calls(history), len(shorter))
    print(should_compact(history), restored.total_tokens)


async def test_with_a_server(pipeline: ContextPipeline):
    script = [answer_with("I look.", tool_use("bash", {"command": "ls"})), answer_with("Done.")]
    async with MessagesServer(script) as server:
        client = anthropic.AsyncAnthropic(api_key="none", base_url=server.url)
        session = pipeline.session("test")
        reply = await session.create(client, model=MODEL, max_tokens=100)
        result = await answer(reply.content[1], [])
        assert_type(result, ToolResultBlockParam | None)
        assert_type(server.requests[0].tokens, int)


# What a checker must refuse -----------------------------------------------------------------------
# mypy and pyright both report an ignore that is not needed.


async def mistakes(pipeline: ContextPipeline, session: Session, storage: LocalStorage) -> None:
    ContextPipeline(budget=200_000)  # type: ignore[arg-type]
    pipeline.use("a stage")  # type: ignore[arg-type]
    DirectOffload(storage, min_chars="long")  # type: ignore[arg-type]
    await session.run("hello")  # type: ignore[arg-type]
    client = anthropic.AsyncAnthropic()
    await session.create(anthropic.Anthropic(), model=MODEL, max_tokens=1)  # type: ignore[call-overload]
    await session.create(client, model=MODEL, max_token=1)  # type: ignore[call-overload]
    await session.create(client, model=MODEL)  # type: ignore[call-overload]
    await session.create(client, model=MODEL, max_tokens="9")  # type: ignore[call-overload]
    await session.create(client, model=MODEL, max_tokens=1, betas=["a"])  # type: ignore[call-overload]
    session.stream(client, model=MODEL, max_tokens=1, tols=[])  # type: ignore[call-overload]
    Change(messages="none")  # type: ignore[arg-type]


def main() -> None:
    try:
        asyncio.run(loop(ContextPipeline(), LocalStorage(".ctxpipe"), "Fix the build."))
    except CtxpipeError as error:
        logger.exception("the loop failed", exc_info=error)
