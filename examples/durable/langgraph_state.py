"""A LangGraph agent whose state has only new messages; the session of the node has the history.

    python -m examples.durable.langgraph_state

A checkpointer stores the state after each step. Runs the same agent without and with ctxpipe on
LangGraph's own checkpointer for SQLite, and prints the size of what it has stored.
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from examples.durable import agent

STORED = """
    SELECT (SELECT SUM(LENGTH(checkpoint) + LENGTH(metadata)) FROM checkpoints)
         + (SELECT SUM(LENGTH(value)) FROM writes)
"""


class State(TypedDict):
    """The state with ctxpipe: *content* is the newest reply, *messages* are not answered yet.

    *position* is the number of messages before these.
    """

    position: int
    content: list[agent.JsonDict]
    messages: list[agent.JsonDict]


class PlainState(TypedDict):
    """The state without ctxpipe: all messages."""

    messages: Annotated[list[agent.JsonDict], operator.add]


def build_graph(steps: agent.Steps) -> StateGraph[State]:
    """Return the graph with ctxpipe; compile it with a checkpointer."""

    async def ask(state: State, config: RunnableConfig) -> dict[str, Any]:
        session_id = config.get("configurable", {})["thread_id"]
        content = await steps.ask(session_id, state["position"], state["messages"])
        return {"content": content, "position": state["position"] + len(state["messages"]) + 1}

    async def act(state: State) -> dict[str, Any]:
        results = [await steps.run_tool(call) for call in agent.calls_in(state["content"])]
        return {"messages": [{"role": "user", "content": results}]}

    def has_calls(state: State) -> str:
        return "act" if agent.calls_in(state["content"]) else END

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_node("act", act)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", has_calls, ["act", END])
    graph.add_edge("act", "ask")
    return graph


def build_plain_graph(steps: agent.Steps) -> StateGraph[PlainState]:
    """Return the graph without ctxpipe."""

    async def ask(state: PlainState) -> PlainState:
        content = await steps.ask_with_history(state["messages"])
        return {"messages": [{"role": "assistant", "content": content}]}

    async def act(state: PlainState) -> PlainState:
        calls = agent.calls_in(state["messages"][-1]["content"])
        results = [await steps.run_tool(call) for call in calls]
        return {"messages": [{"role": "user", "content": results}]}

    def has_calls(state: PlainState) -> str:
        return "act" if agent.calls_in(state["messages"][-1]["content"]) else END

    graph = StateGraph(PlainState)
    graph.add_node("ask", ask)
    graph.add_node("act", act)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", has_calls, ["act", END])
    graph.add_edge("act", "ask")
    return graph


async def stored_bytes(graph: Any, start: dict[str, Any], database: Path, calls: int) -> int:
    """Run *graph* from *start*. Returns the size of what the checkpointer has stored."""
    config: Any = {"configurable": {"thread_id": "job-42"}, "recursion_limit": 2 * calls + 1}
    async with AsyncSqliteSaver.from_conn_string(str(database)) as checkpointer:
        await graph.compile(checkpointer=checkpointer).ainvoke(start, config)
    async with aiosqlite.connect(database) as connection, connection.execute(STORED) as rows:
        [[size]] = await rows.fetchall()
    return int(size)


async def main(calls: int, page_chars: int) -> None:
    """Run both agents, and print the sizes of what the checkpointer has stored."""
    first: dict[str, Any] = {"messages": [agent.user_words(0)]}
    with tempfile.TemporaryDirectory() as root:
        async with agent.scripted_client(calls) as model:
            steps = agent.Steps(root, model, page_chars)
            plain_bytes = await stored_bytes(
                build_plain_graph(steps), first, Path(root, "plain.sqlite"), calls
            )
            ctxpipe_bytes = await stored_bytes(
                build_graph(steps), {"position": 0, **first}, Path(root, "ctxpipe.sqlite"), calls
            )
    agent.print_sizes("LangGraph", calls, plain_bytes, ctxpipe_bytes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=agent.CALLS)
    parser.add_argument("--chars", type=int, default=agent.RESULT_CHARS)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.calls, arguments.chars))
