"""Thinking blocks that come back: the very bytes, and the conversation they were thought in."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from in_memory import messages_api
from sdks import refusal_of

from ctxpipe.testing import (
    MessagesServer,
    Model,
    RequestBody,
    answer_with,
    redacted_thinking,
    thinking,
    tool_use,
)

DROP: dict[str, Any] = {
    "thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
    "betas": ["thinking-binding-controls-2026-08-01"],
}
BOUND = "The block is bound to a different conversation. Remove the block, or set"


def think_and_call(body: RequestBody) -> Any:
    number = len(body["messages"])
    hidden = [redacted_thinking()] if number == 3 else []
    return answer_with(
        thinking(f"thought {number}"), *hidden, "so", tool_use("ls", {"n": number}, id=f"t{number}")
    )


@asynccontextmanager
async def talk(
    model: Model | None = None,
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    server = MessagesServer(think_and_call, model=model or Model(), counter=len)
    async with messages_api(server) as talking:
        yield talking


async def ask(client: anthropic.AsyncAnthropic, messages: list[Any], **options: Any) -> Any:
    return await client.beta.messages.create(
        **{"model": "m", "max_tokens": 9, "messages": messages, **options}
    )


async def converse(client: anthropic.AsyncAnthropic, turns: int = 3, **options: Any) -> list[Any]:
    """A history of *turns* calls and their results, as plain data; the next answer is to come."""
    history: list[Any] = [{"role": "user", "content": "go"}]
    for _ in range(turns):
        reply = await ask(client, history, **options)
        history.append(
            {"role": "assistant", "content": [block.to_dict() for block in reply.content]}
        )
        call = reply.content[-1].id
        history.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call, "content": "ok" * 9}],
            }
        )
    return history


async def test_an_appended_history_may_bring_all_its_thinking_back():
    async with talk() as (server, client):
        await converse(client, turns=4)

    assert (server.calls, server.refused) == (4, [])


@pytest.mark.parametrize("place", [0, 2, 4])
async def test_thinking_after_a_changed_message_is_refused(place):
    async with talk() as (server, client):
        history = await converse(client)
        content = history[place]["content"]
        history[place]["content"] = (
            "went" if place == 0 else [{**content[0], "content": "offloaded"}]
        )
        with pytest.raises(anthropic.BadRequestError) as caught:
            await ask(client, history)

    first = f"messages.{place + 1}.content.0: Invalid `signature` in `thinking` block. {BOUND}"
    assert refusal_of(caught.value)["message"].startswith(first)
    blocks_after = {0: 4, 2: 3, 4: 1}[place]
    assert len(server.refused[0].problems) == blocks_after


@pytest.mark.parametrize(
    "change",
    [{"system": "Be brief."}, {"tools": [{"name": "ls", "input_schema": {"type": "object"}}]}],
)
async def test_thinking_after_another_system_prompt_or_other_tools_is_refused(
    change: dict[str, Any],
):
    async with talk() as (_, client):
        history = await converse(client)
        with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
            await ask(client, history, **change)


async def test_a_cache_mark_does_not_change_the_conversation():
    async with talk() as (server, client):
        history = await converse(client)
        history[2]["content"][0]["cache_control"] = {"type": "ephemeral"}
        await ask(client, history, system=[])

    assert not server.refused


async def test_drop_block_accepts_the_request_and_reports_the_dropped_blocks():
    async with talk() as (server, client):
        history = await converse(client)
        history[2]["content"][0]["content"] = "offloaded"
        reply = await ask(client, history, **DROP)

    dropped = ["messages.3.content.0", "messages.3.content.1", "messages.5.content.0"]
    transformations: Any = reply.to_dict()["input_transformations"]
    assert [transformation["path"] for transformation in transformations] == dropped
    assert {transformation["reason"] for transformation in transformations} == {
        "prefix_binding_mismatch"
    }
    assert list(server.requests[-1].dropped) == dropped


async def test_thinking_after_a_change_is_bound_to_the_changed_conversation():
    async with talk() as (_, client):
        history = await converse(client)
        history[2]["content"][0]["content"] = "offloaded"
        reply = await ask(client, history, **DROP)
        history.append(
            {"role": "assistant", "content": [block.to_dict() for block in reply.content]}
        )
        history.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t7", "content": "ok"}],
            }
        )
        reply = await ask(client, history, **DROP)

    transformations: Any = reply.to_dict()["input_transformations"]
    assert "messages.7.content.0" not in [
        transformation["path"] for transformation in transformations
    ]


async def test_drop_block_needs_its_beta_header():
    async with talk() as (_, client):
        with pytest.raises(anthropic.BadRequestError, match="thinking-binding-controls-2026-08-01"):
            await ask(client, [{"role": "user", "content": "go"}], thinking=DROP["thinking"])


async def test_thinking_may_be_removed_from_the_start_but_not_from_the_middle():
    async with talk() as (_, client):
        history = await converse(client)
        start, middle = copy.deepcopy(history), copy.deepcopy(history)
        del start[1]["content"][0]
        del middle[3]["content"][:2]
        await ask(client, start)
        with pytest.raises(
            anthropic.BadRequestError, match=r"messages\.5\.content\.0: .*bound to a different"
        ):
            await ask(client, middle)


@pytest.mark.parametrize("strictness", ["signed", "bound"])
async def test_edited_thinking_is_refused(strictness):
    async with talk(Model(thinking=strictness)) as (_, client):
        history = await converse(client)
        early, late = copy.deepcopy(history), copy.deepcopy(history)
        early[1]["content"][0]["thinking"] = ""
        late[5]["content"][0]["thinking"] = ""
        with pytest.raises(
            anthropic.BadRequestError, match=r"messages\.1\.content\.0: Invalid `signature`"
        ):
            await ask(client, early)
        with pytest.raises(
            anthropic.BadRequestError,
            match="blocks in the latest assistant message cannot be modified",
        ):
            await ask(client, late)


async def test_older_models_do_not_check_the_conversation_before_thinking():
    async with talk(Model(thinking="signed")) as (server, client):
        history = await converse(client)
        history[2]["content"][0]["content"] = "offloaded"
        del history[3]["content"][1]
        await ask(client, history)

    assert not server.refused


async def test_thinking_of_another_origin_is_accepted_if_nothing_is_checked():
    foreign = {"type": "thinking", "thinking": "hm", "signature": "EqQBCgIYAhIM"}
    history: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [foreign, {"type": "text", "text": "so"}]},
        {"role": "user", "content": "on"},
    ]
    async with talk(Model(thinking="unchecked")) as (server, client):
        await ask(client, history)

    assert not server.refused
