"""The recipe for LangGraph, with its own checkpointers, which `make examples` installs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import pytest
from models import MODEL

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, Sessions, Tool
from ctxpipe.testing import MessagesServer, RequestBody, answer_with, tool_use

REASON = "langgraph is not installed: make examples installs it in a new environment"
pytest.importorskip("langgraph", reason=REASON)
pytest.importorskip("langgraph.checkpoint.sqlite.aio", reason=REASON)

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # noqa: E402

from examples.langgraph_node import build_graph  # noqa: E402

LONG = "a long line of a result\n" * 300
CONFIG: Any = {"configurable": {"thread_id": "thread 7"}}


async def read(_: Any) -> str:
    return LONG


READ = Tool({"name": "read", "input_schema": {"type": "object"}}, read)


def reply(body: RequestBody) -> Any:
    number = len(body["messages"])
    if number % 8 in (6, 7):
        return "Done."
    return answer_with(f"Step {number}.", tool_use("read", {}, f"toolu_{number}"))


def sessions_in(root: Path) -> Sessions:
    storage = LocalStorage(root / "texts")
    return Sessions(ContextPipeline([DirectOffload(storage, min_chars=1000)]), journal=storage)


async def run(root: Path, server: MessagesServer, messages: list[Any], config: Any = CONFIG) -> Any:
    """Run the graph as a process does that has just started."""
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0)
    async with AsyncSqliteSaver.from_conn_string(str(root / "graph.sqlite")) as checkpointer:
        graph = build_graph(sessions_in(root), client, [READ], MODEL)
        compiled = graph.compile(checkpointer=checkpointer)
        state = await compiled.ainvoke({"messages": messages}, config)
        history = [found async for found in compiled.aget_state_history(config)]
    await client.close()
    return state["messages"], history


async def test_the_state_keeps_the_history_and_the_model_gets_the_context(tmp_path):
    async with MessagesServer(reply) as server:
        messages, _ = await run(tmp_path, server, [{"role": "user", "content": "Go."}])

    assert str(messages).count("a long line of a result") == 3 * 300
    sent = str(server.requests[-1].body["messages"])
    assert sent.count("offloaded to file") == 3
    assert "a long line" not in sent


async def test_after_a_restart_the_context_goes_on_where_it_was(tmp_path):
    async with MessagesServer(reply) as server:
        await run(tmp_path, server, [{"role": "user", "content": "Go."}])
        before = server.requests[-1].body["messages"]
        await run(tmp_path, server, [{"role": "user", "content": "And now?"}])

        assert server.requests[4].body["messages"][: len(before)] == before
        assert not server.refused


async def test_a_fork_of_the_graph_is_a_shorter_history(tmp_path):
    async with MessagesServer(reply) as server:
        messages, states = await run(tmp_path, server, [{"role": "user", "content": "Go."}])
        early = next(state for state in states if len(state.values["messages"]) == 3)
        forked, _ = await run(tmp_path, server, [{"role": "user", "content": "No."}], early.config)

        assert forked[:3] == messages[:3]
        assert not server.refused
