"""The usage of the scripted API: counted tokens times a factor, and a simulated prompt cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import anyio
import pytest
from anthropic.types import Message, Usage
from in_memory import messages_api

from ctxpipe.testing import MessagesServer, Model, answer_with, overloaded, thinking, tool_use
from ctxpipe.tokens import TokenCounter

TOOLS: Any = [{"name": "ls", "description": "List a folder.", "input_schema": {"type": "object"}}]
MARK = {"type": "ephemeral"}
SMALL = Model(min_cached_tokens=1)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def talk(model: Model = SMALL, **options: Any) -> AsyncIterator[Talk]:
    script = options.pop("script", lambda _: "fine")
    async with messages_api(MessagesServer(script, model=model, **options)) as (_, client):
        yield Talk(client)


class Talk:
    def __init__(self, client: anthropic.AsyncAnthropic):
        self.client = client

    async def ask(self, *messages: Any, **options: Any) -> Usage:
        options = {"model": "m", "max_tokens": 9, **options}
        reply: Message = await self.client.messages.create(messages=list(messages), **options)
        return reply.usage

    async def shares(self, *messages: Any, **options: Any) -> tuple[int, int, int]:
        """Tokens read from the cache, written to it, and neither."""
        usage = await self.ask(*messages, **options)
        return (
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
            usage.input_tokens,
        )


def user(*texts: str, mark: bool = False) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    if mark:
        blocks[-1]["cache_control"] = MARK
    return {"role": "user", "content": blocks}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


# Tokens -------------------------------------------------------------------------------------------


HISTORY: list[Any] = [
    {"role": "user", "content": "What lies in the folder? 目录里有什么?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "src/a"}}],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "one\ntwo\n" * 50}],
    },
]


@pytest.mark.parametrize("factor", [1.0, 1.47, 2.1])
async def test_a_prompt_costs_what_the_counter_counts_times_the_factor(factor):
    raw = await TokenCounter().count(HISTORY, system="Be brief.", tools=TOOLS)
    async with talk(Model(billing_factor=factor)) as talking:
        usage = await talking.ask(*HISTORY, system="Be brief.", tools=TOOLS)
        counted = await talking.client.messages.count_tokens(
            model="m", messages=HISTORY, system="Be brief.", tools=TOOLS
        )

    assert usage.input_tokens == counted.input_tokens
    assert raw * factor <= usage.input_tokens < raw * factor + 1
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)


async def test_the_output_tokens_are_those_of_the_blocks():
    said = {"type": "text", "text": "So it is."}
    content: Any = [said, {"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}}]
    reply = answer_with("So it is.", tool_use("ls", {"a": 1}, id="t"))
    async with talk(Model(billing_factor=2), script=[reply]) as talking:
        usage = await talking.ask(user("go"))

    assert usage.output_tokens == 2 * await TokenCounter().count(
        [{"role": "assistant", "content": content}]
    )


async def test_the_window_is_in_billed_tokens():
    async with talk(Model(window=150, billing_factor=2), counter=len) as talking:
        await talking.ask(user("x" * 75))
        with pytest.raises(
            anthropic.BadRequestError, match="prompt is too long: 152 tokens > 150 maximum"
        ):
            await talking.ask(user("x" * 76))


@pytest.mark.parametrize(("summary", "before"), [("123", 0), (None, 75)])
async def test_messages_replaced_by_a_summary_of_the_api_are_not_charged(
    summary: str | None, before
):
    compacted = {"role": "assistant", "content": [{"type": "compaction", "content": summary}]}
    async with talk(counter=len) as talking:
        whole = await talking.ask(user("x" * 75), compacted, user("12"))
        rest = await talking.ask(compacted, user("12"))

    assert whole.input_tokens == before + rest.input_tokens


# The cache ----------------------------------------------------------------------------------------


async def test_without_a_mark_nothing_is_cached():
    async with talk(counter=len) as talking:
        assert [await talking.shares(user("12345")) for _ in range(2)] == [(0, 0, 5), (0, 0, 5)]


async def test_a_prefix_up_to_a_mark_is_written_first_and_read_later():
    asked = user("12345"), assistant("123"), user("1234567", mark=True), assistant("1"), user("12")
    async with talk(counter=len) as talking:
        assert [await talking.shares(*asked) for _ in range(2)] == [(0, 15, 3), (15, 0, 3)]


async def test_an_appended_conversation_reads_the_turn_before_and_writes_the_new_part():
    first = user("12345", mark=True)
    again = user("12345"), assistant("123"), user("1234567", mark=True)
    async with talk(counter=len) as talking:
        assert await talking.shares(first) == (0, 5, 0)
        assert await talking.shares(*again) == (5, 10, 0)


async def test_a_changed_prefix_is_read_up_to_the_change_at_most():
    async with talk(counter=len) as talking:
        await talking.shares(user("12345", mark=True), assistant("123"), user("1234567", mark=True))
        changed = await talking.shares(user("12345"), assistant("124"), user("1234567", mark=True))

    assert changed == (5, 10, 0)


async def test_a_mark_on_the_request_applies_to_its_last_block():
    async with talk(counter=len) as talking:
        assert await talking.shares(user("12345"), cache_control=MARK) == (0, 5, 0)
        appended = user("12345"), assistant("123"), user("1234567")
        assert await talking.shares(*appended, cache_control=MARK) == (5, 10, 0)


async def test_bare_text_and_one_text_block_are_the_same_prefix():
    async with talk(counter=len) as talking:
        await talking.shares(user("12345", mark=True))
        bare = {"role": "user", "content": "12345"}
        assert await talking.shares(bare, assistant("123"), user("12", mark=True)) == (5, 5, 0)


async def test_a_mark_looks_back_twenty_blocks_and_no_further():
    async with talk(counter=len) as talking:
        await talking.shares(user("12345", mark=True))
        near = await talking.shares(user("12345", *"x" * 19, mark=True))
        await talking.shares(user("54321", mark=True))
        far = await talking.shares(user("54321", *"x" * 20, mark=True))

    assert (near, far) == ((5, 19, 0), (0, 25, 0))


async def test_a_prefix_below_the_minimum_is_not_cached():
    async with talk(Model(min_cached_tokens=6), counter=len) as talking:
        assert [await talking.shares(user("12345", mark=True)) for _ in range(2)] == [(0, 0, 5)] * 2
        found = [await talking.shares(user("123456", mark=True)) for _ in range(2)]
        assert found == [(0, 6, 0), (6, 0, 0)]


async def test_the_cache_expires_five_minutes_or_an_hour_after_its_last_use():
    clock = Clock()
    hour = user("12345")
    hour["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    async with talk(counter=len, clock=clock) as talking:
        reads = []
        for clock.seconds in (0, 299, 598, 899):
            reads.append((await talking.shares(user("123", mark=True)))[0])
        hours = []
        for clock.seconds in (1_000, 4_000, 9_000):
            hours.append((await talking.shares(hour))[0])

    assert (reads, hours) == ([0, 3, 3, 0], [0, 5, 0])


async def test_a_failed_request_writes_nothing_to_the_cache():
    async with talk(counter=len, script=[overloaded(), "fine"]) as talking:
        with pytest.raises(anthropic.InternalServerError):
            await talking.ask(user("12345", mark=True))
        assert await talking.shares(user("12345", mark=True)) == (0, 5, 0)


async def test_a_stream_has_the_same_usage():
    async with talk(counter=len, script=[answer_with(thinking("hm"), "so")] * 2) as talking:
        plain = await talking.ask(user("12345", mark=True))
        options: Any = {"model": "m", "max_tokens": 9, "messages": [user("54321", mark=True)]}
        async with talking.client.messages.stream(**options) as stream:
            streamed = (await stream.get_final_message()).usage

    assert plain.to_dict() == streamed.to_dict()


async def test_tokens_written_for_an_hour_are_charged_so_and_renewed_by_reading():
    clock = Clock()
    hour = user("12345", "678")
    hour["content"][0]["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    hour["content"][1]["cache_control"] = MARK
    async with talk(counter=len, clock=clock) as talking:
        first = await talking.ask(hour)
        reads = []
        for clock.seconds in (3_000, 6_000, 10_000):
            later = await talking.shares(user("12345", "678", "9", mark=True))
            reads.append(later[0])

    assert first.cache_creation is not None
    assert first.cache_creation.ephemeral_1h_input_tokens == 5
    assert first.cache_creation.ephemeral_5m_input_tokens == 3
    assert reads == [5, 5, 0]


async def test_concurrent_requests_do_not_read_what_the_other_writes():
    both = anyio.Event()
    waiting = 2

    async def script(_: Any) -> str:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            both.set()
        await both.wait()
        return "fine"

    shares = []

    async def ask(talking: Talk):
        shares.append(await talking.shares(user("12345", mark=True)))

    async with talk(counter=len, script=script) as talking:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, talking)
            group.start_soon(ask, talking)
        await ask(talking)

    assert shares == [(0, 5, 0), (0, 5, 0), (5, 0, 0)]
