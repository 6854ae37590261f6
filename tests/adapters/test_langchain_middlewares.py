"""LangChain's own middlewares for long conversations beside ctxpipe's, in both orders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from mounts import offloading, placeholders, result

from ctxpipe.testing import MessagesServer, Received, answer_with, tool_use

pytest.importorskip("langchain", reason="the extra ctxpipe[langchain] is not installed")
pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")

from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    SummarizationMiddleware,
)
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from ctxpipe.adapters.langchain import ctxpipe_middleware

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
THREAD: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 200}
ROUNDS = 12
FEW_TOKENS = 4_000  # less than the history has at the end, and more than what is sent
MANY_TOKENS = 1_000_000


@tool
def look(number: int) -> str:
    """Looks."""
    return result(number)


def script() -> Callable[[Any], Any]:
    """A model that makes two calls in each of the ROUNDS, and writes a summary if it is asked."""
    done = 0

    def reply(body: Any) -> Any:
        nonlocal done
        if not body.get("tools"):
            return "It has looked."
        done += 1
        if done > ROUNDS:
            return "Done."
        numbers = (2 * done, 2 * done + 1)
        return answer_with(*[tool_use("look", {"number": n}, id=f"c{n}") for n in numbers])

    return reply


@dataclass
class Outcome:
    """The requests of an agent."""

    requests: list[Received]

    @property
    def summaries(self) -> int:
        """Number of requests for a summary."""
        return sum(not request.body.get("tools") for request in self.requests)

    @property
    def breaks(self) -> int:
        """Number of requests that do not begin as the one before, apart from cache marks."""
        sent = [
            json.loads(json.dumps(request.body["messages"]), object_hook=without_mark)
            for request in self.requests
            if request.body.get("tools")
        ]
        return sum(after[: len(before)] != before for before, after in pairwise(sent))

    @property
    def cleared(self) -> int:
        """Number of results that LangChain has cleared in the last request."""
        return json.dumps(self.requests[-1].body["messages"]).count("[cleared]")


def without_mark(value: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if name != "cache_control"}


async def run(folder: Path, other: Callable[[Any], Any], *, is_last: bool) -> Outcome:
    """Run an agent with ctxpipe's middleware and the *other* one, which *is_last* or first."""
    async with MessagesServer(script()) as server:
        model: Any = ChatAnthropic(
            base_url=server.url,
            api_key="k",  # type: ignore[arg-type]
            max_retries=0,
            model="m",  # type: ignore[call-arg]
            max_tokens=2000,  # type: ignore[call-arg]
        )
        middleware = [ctxpipe_middleware(offloading(folder)), other(model)]
        if not is_last:
            middleware.reverse()
        agent: Any = create_agent(
            model, [look], middleware=middleware, checkpointer=InMemorySaver()
        )
        await agent.ainvoke({"messages": [HumanMessage("go")]}, THREAD)
        assert not server.refused
        return Outcome(list(server.requests))


def editing(_: Any) -> Any:
    return ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=FEW_TOKENS)])


def summarizing(tokens: int) -> Callable[[Any], Any]:
    return lambda model: SummarizationMiddleware(
        model, trigger=("tokens", tokens), keep=("messages", 6)
    )


async def test_context_editing_after_ctxpipe_counts_what_is_sent_and_clears_nothing(tmp_path):
    outcome = await run(tmp_path, editing, is_last=True)
    assert outcome.cleared == outcome.breaks == 0
    assert placeholders(outcome.requests[-1]) == 2 * ROUNDS


async def test_context_editing_before_ctxpipe_clears_what_has_left_and_breaks_the_prefix(tmp_path):
    outcome = await run(tmp_path, editing, is_last=False)
    assert outcome.cleared > ROUNDS
    assert outcome.breaks > ROUNDS / 2


@pytest.mark.parametrize("is_last", [False, True])
async def test_summarization_counts_the_state_in_both_orders_and_breaks_the_prefix(
    tmp_path, is_last
):
    outcome = await run(tmp_path, summarizing(FEW_TOKENS), is_last=is_last)
    assert outcome.summaries > ROUNDS / 2
    assert outcome.breaks > ROUNDS / 2


@pytest.mark.parametrize("is_last", [False, True])
async def test_summarization_with_a_trigger_above_the_history_does_nothing(tmp_path, is_last):
    outcome = await run(tmp_path, summarizing(MANY_TOKENS), is_last=is_last)
    assert outcome.summaries == outcome.breaks == 0
    assert placeholders(outcome.requests[-1]) == 2 * ROUNDS
