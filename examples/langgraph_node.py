"""A LangGraph node that sends a shaped context; the graph keeps its own checkpointer.

The checkpointer stores the graph's state with the full history, message by message. The session is
named after the thread, and its journal stores which context the history became: after a restart
the model receives the same bytes, and no summary is written twice.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anthropic
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from ctxpipe import Sessions
from ctxpipe.tools import Tool, answer


class State(TypedDict):
    messages: Annotated[list[Any], operator.add]


def build_graph(
    sessions: Sessions, client: anthropic.AsyncAnthropic, tools: list[Tool], model: str
) -> StateGraph[State]:
    """Return a graph whose model calls *tools* until it answers; compile it with a checkpointer."""
    definitions = [tool.definition for tool in tools]

    async def ask(state: State, config: RunnableConfig) -> State:
        session = sessions.get(config.get("configurable", {})["thread_id"])
        reply = await session.create(
            client, messages=state["messages"], model=model, max_tokens=4096, tools=definitions
        )
        return {"messages": [{"role": "assistant", "content": reply.to_dict()["content"]}]}

    async def act(state: State) -> State:
        calls = [block for block in state["messages"][-1]["content"] if is_call(block)]
        results = [await answer(call, tools) for call in calls]
        return {"messages": [{"role": "user", "content": results}]}

    def has_calls(state: State) -> str:
        content = state["messages"][-1]["content"]
        return "act" if any(is_call(block) for block in content) else END

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_node("act", act)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", has_calls, ["act", END])
    graph.add_edge("act", "ask")
    return graph


def is_call(block: Any) -> bool:
    return bool(block["type"] == "tool_use")
