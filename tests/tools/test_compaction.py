"""The model asks for a summary of its context: before the next turn, and not too often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import pytest
from histories import assistant, step, user
from models import MODEL
from sdks import needs_middleware

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SettingsError,
    Tool,
    answer,
    offload_tools,
    testing,
)
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.messages import Message, pending_calls
from ctxpipe.session import Session
from ctxpipe.session.session import conversation_of
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.summarizers import PromptSummarizer, Retry, Summary
from ctxpipe.tools import ToolInputError, as_beta_tools
from ctxpipe.tools.offloaded import MIN_TURNS_BETWEEN

LONG = "a line of output\n" * 200


def compacting(folder: Path, *, window: int = 20_000, focuses: list[str] | None = None) -> Session:
    """Return a session whose summaries are "in short"; *focuses* gets their focus."""
    told = [] if focuses is None else focuses

    async def write(prompt: str) -> str:
        told.append(prompt)
        return "in short"

    storage = LocalStorage(folder)
    stages = [Compact(PromptSummarizer(write), archive=storage)]
    return ContextPipeline(stages, budget=Budget(window=window)).session("s", journal=storage)


def asking(session: Session) -> Tool:
    return {tool.name: tool for tool in offload_tools(session)}["compact_context"]


def work(steps: int, start: int = 0) -> list[Message]:
    history: list[Message] = []
    for number in range(start, start + steps):
        history += step(f"t{number}", result=f"{number} {LONG}")
    return history


async def test_a_session_gives_the_reading_tools_and_one_to_ask_for_a_summary(
    tmp_path,
):
    names = [tool.name for tool in offload_tools(compacting(tmp_path))]

    assert names == ["read_offloaded", "search_offloaded", "search_history", "compact_context"]


async def test_without_a_compact_stage_there_is_no_tool_for_a_summary(tmp_path):
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path))])

    names = [tool.name for tool in offload_tools(pipeline.session("s"))]

    assert names == ["read_offloaded", "search_offloaded", "search_history"]


async def test_the_tools_of_a_session_read_its_own_texts_only(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.write([("s/a.md", "ours"), ("t/b.md", "theirs")])
    read, *_ = offload_tools(ContextPipeline([DirectOffload(storage)]).session("s"))

    assert await read({"path": "s/a.md"}) == "ours"
    with pytest.raises(ToolInputError, match="there is no offloaded text"):
        await read({"path": "t/b.md"})


def test_a_session_without_a_storage_of_texts_has_no_tools():
    session = ContextPipeline([]).session("s")

    with pytest.raises(SettingsError, match="the session has no storage to read from"):
        offload_tools(session)


def test_a_session_together_with_a_session_id_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="session_id cannot be combined with a session"):
        offload_tools(compacting(tmp_path), session_id="s")


async def test_the_context_is_compacted_before_the_next_turn_with_the_focus(
    tmp_path,
):
    told: list[str] = []
    session = compacting(tmp_path, focuses=told)
    history = [user("Go."), *work(10)]
    before = await session.run(history)
    call = {"type": "tool_use", "id": "c", "name": "compact_context", "input": {"focus": "ports"}}
    history.append(assistant(call))
    result = await answer(call, offload_tools(session))
    assert result is not None
    history.append(user(dict(result)))
    assert told == []

    after = await session.run(history)

    assert "ports" in told[0]
    assert before.messages == history[:-2]
    assert len(after.messages) < len(before.messages)
    assert after.tokens_saved > 0
    assert after.changed
    assert json.dumps(after.messages).count("in short") == 1
    assert pending_calls(after.messages) == []
    again = await session.run([*history, assistant("Ok."), user("On.")])
    assert again.messages[: len(after.messages)] == after.messages
    assert len(told) == 1


async def test_a_second_request_for_a_due_summary_is_refused(tmp_path):
    session = compacting(tmp_path)
    await session.run([user("Go."), *work(10)])
    tool = asking(session)
    await tool({"focus": "ports"})

    with pytest.raises(ToolInputError, match="is due before the next turn already"):
        await tool({"focus": "ports"})


async def test_the_next_summary_has_to_wait_for_some_turns(tmp_path):
    session = compacting(tmp_path)
    tool = asking(session)
    history = [user("Go."), *work(10)]
    await session.run(history)
    await tool({"focus": "ports"})

    for number in range(MIN_TURNS_BETWEEN - 1):
        history += work(1, 100 + number)
        await session.run(history)
        with pytest.raises(
            ToolInputError, match=rf"ask again in {MIN_TURNS_BETWEEN - 1 - number} turn"
        ):
            await tool({"focus": "ports"})
    history += work(1, 200)
    await session.run(history)

    assert "before your next turn" in await tool({"focus": "ports"})


async def test_a_request_to_compact_a_small_context_is_refused_with_the_reason(
    tmp_path,
):
    session = compacting(tmp_path, window=200_000)
    await session.run([user("Go."), *work(2)])

    call = {"type": "tool_use", "id": "c", "name": "compact_context", "input": {"focus": "x"}}
    result = await asking(session).result(call)

    assert result["is_error"]
    assert "the context is not compacted: it fills 1% of its budget" in str(result["content"])
    assert not conversation_of(session).turns.is_compaction_due


@pytest.mark.parametrize("arguments", [{}, {"focus": 3}, {"focus": "x" * 2001}])
async def test_an_invalid_focus_is_refused(tmp_path, arguments):
    with pytest.raises(ToolInputError, match="focus"):
        await asking(compacting(tmp_path))(arguments)


async def test_if_the_summary_fails_the_turn_continues_and_a_notice_has_the_reason(
    tmp_path,
):
    async def fail(messages: Sequence[Message], /) -> Summary:
        raise ValueError("no")

    once = Breaker(Retry(max_retries=0))
    stage = Compact(fail, archive=LocalStorage(tmp_path), breaker=once)
    pipeline = ContextPipeline([stage], budget=Budget(window=20_000))
    session = pipeline.session("s")
    history = [user("Go."), *work(10)]
    await session.run(history)
    await asking(session)({"focus": "ports"})

    result = await session.run(history)

    assert result.messages == history
    [notice] = result.notices
    assert notice.startswith("the compaction that was asked for changed nothing: ")
    assert not conversation_of(session).turns.is_compaction_due


@needs_middleware
async def test_the_runner_of_the_sdk_compacts_when_the_model_asks(tmp_path):
    session_id = "runner"
    storage = LocalStorage(tmp_path)

    async def write(prompt: str) -> str:
        return "in short"

    stages = [Compact(PromptSummarizer(write), archive=storage)]
    pipeline = ContextPipeline(stages, budget=Budget(window=20_000))
    ask = testing.tool_use("compact_context", {"focus": "ports"})
    replies: list[testing.Reply] = [testing.answer_with(ask), "Done."]
    history: Any = [user("Go."), *work(10)]
    async with testing.MessagesServer(replies) as server:
        client = anthropic.AsyncAnthropic(
            base_url=server.url,
            api_key="test",
            max_retries=0,
            middleware=[ctxpipe_middleware(pipeline, session_id=session_id)],
        )
        async with client:
            runner = client.beta.messages.tool_runner(
                model=MODEL,
                max_tokens=100,
                messages=history,
                tools=as_beta_tools(offload_tools(pipeline.session(session_id))),
            )
            await runner.until_done()
    requests = [request for request in server.requests if request.usage is not None]

    assert not server.refused
    assert len(requests[0].body["messages"]) == len(history)
    assert len(requests[1].body["messages"]) < len(history)
    assert "in short" in json.dumps(requests[1].body["messages"])
    last: Any = requests[1].body["messages"][-1]
    assert last["content"][0]["content"].startswith("The conversation so far will be replaced")
