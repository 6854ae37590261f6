"""The middleware in the real SDK, against the loopback Messages API.

What the server receives, and what comes back.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anthropic
import anyio
import pytest
from histories import MARK, conversation, histories, python_source, step, text, tool_result, user
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import in_memory, messages_api
from mounts import CALLS, Factors, placeholders, result, rounds
from readme import run_adapter_program
from recorded import NIGHTLY, in_turn
from sdks import needs_middleware

from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Skip,
    SmartTruncate,
    Turn,
)
from ctxpipe.adapters.anthropic import (
    ctxpipe_client,
    ctxpipe_middleware,
    ctxpipe_sync_client,
    ctxpipe_sync_middleware,
)
from ctxpipe.adapters.http_client import library_of
from ctxpipe.messages import Message, cache_marks
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.summarizers import AnthropicSummarizer, ExtractiveSummarizer, Retry
from ctxpipe.testing import (
    Cut,
    Failure,
    Hang,
    MessagesServer,
    Model,
    Received,
    Reply,
    RequestBody,
    Script,
    answer_with,
    prompt_too_long,
    thinking,
    tool_use,
)

if TYPE_CHECKING:
    import httpx2 as http
else:
    http = library_of(anthropic)

pytestmark = needs_middleware

LONG = "a long line of output\n" * 100
BETA = "anthropic-beta"
BINDING = "thinking-binding-controls-2026-08-01"
TOOLS: Any = [
    {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
]


# Talking ------------------------------------------------------------------------------------------


@asynccontextmanager
async def talk(
    script: Script, *middleware: Any, model: Model | None = None, **client: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    """A server that follows *script*, and a client with *middleware*, outermost first."""
    server = MessagesServer(script, model=model or Model())
    async with messages_api(server, middleware=middleware, **client) as talking:
        yield talking


Ask = Callable[..., Awaitable[Any]]


async def plain(
    client: anthropic.AsyncAnthropic, messages: Sequence[Message], **options: Any
) -> Any:
    return await client.messages.create(
        **{"model": "m", "max_tokens": 99, "messages": messages, **options}
    )


async def beta(client: anthropic.AsyncAnthropic, messages: Any, **options: Any) -> Any:
    return await client.beta.messages.create(
        **{"model": "m", "max_tokens": 99, "messages": messages, **options}
    )


async def streamed(
    client: anthropic.AsyncAnthropic, messages: Sequence[Message], **options: Any
) -> Any:
    """A stream's events, put together by hand: the first says the message, what counts here."""
    stream = await plain(client, messages, stream=True, **options)
    events = [event async for event in stream]
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]
    return events[0].message


async def helped(client: anthropic.AsyncAnthropic, messages: Any, **options: Any) -> Any:
    """The SDK's own helper for streams."""
    async with client.messages.stream(
        **{"model": "m", "max_tokens": 99, "messages": messages, **options}
    ) as stream:
        return await stream.get_final_message()


async def beta_helped(client: anthropic.AsyncAnthropic, messages: Any, **options: Any) -> Any:
    async with client.beta.messages.stream(
        **{"model": "m", "max_tokens": 99, "messages": messages, **options}
    ) as stream:
        return await stream.get_final_message()


async def raw(client: anthropic.AsyncAnthropic, messages: Any, **options: Any) -> Any:
    response = await client.messages.with_raw_response.create(
        **{"model": "m", "max_tokens": 99, "messages": messages, **options}
    )
    assert response.headers["request-id"].startswith("req_")
    return await response.parse()


async def raw_streamed(client: anthropic.AsyncAnthropic, messages: Any, **options: Any) -> Any:
    response = await client.messages.with_raw_response.create(
        **{"model": "m", "max_tokens": 99, "messages": messages, "stream": True, **options}
    )
    events = [event async for event in await response.parse()]
    return events[0].message


async def response_streamed(client: anthropic.AsyncAnthropic, messages: Any, **options: Any) -> Any:
    async with client.messages.with_streaming_response.create(
        **{"model": "m", "max_tokens": 99, "messages": messages, "stream": True, **options}
    ) as response:
        events = [event async for event in await response.parse()]
        return events[0].message


WAYS = [plain, beta, streamed, helped, beta_helped, raw, raw_streamed]
every_way = pytest.mark.parametrize("ask", WAYS, ids=lambda ask: ask.__name__)


def offloading(folder: Path, **options: Any) -> ContextPipeline:
    return ContextPipeline([DirectOffload(LocalStorage(folder), min_chars=500)], **options)


def full(folder: Path, **options: Any) -> ContextPipeline:
    """All four stages, and a budget so small that all of them have to work."""
    storage = LocalStorage(folder, clock=float)
    stages = (
        DirectOffload(storage, min_chars=2000),
        BatchOffload(storage),
        Compact(
            ExtractiveSummarizer(),
            storage,
            breaker=Breaker(clock=float, retry=Retry(max_retries=0)),
        ),
        SmartTruncate(storage, max_tokens=1500),
    )
    return ContextPipeline(stages, budget=Budget(window=4000, trigger=3000), **options)


def loop(turns: int, result: str = LONG) -> list[Message]:
    """A conversation of *turns* calls, with their results."""
    return conversation(user("go"), *(step(f"t{i}", result=result) for i in range(turns)))


def sent(received: Received) -> str:
    """The messages as they came over the wire."""
    return received.raw.decode().split('"messages":', 1)[1]


def messages_of(received: Received) -> list[Any]:
    return cast("list[Any]", received.body["messages"])


# Nothing to do ------------------------------------------------------------------------------------


@every_way
async def test_below_the_gates_the_request_is_byte_for_byte_the_one_without_ctxpipe(
    tmp_path, ask: Ask
):
    beside: Any = {
        "system": [text("Be brief.")],
        "tools": TOOLS,
        "stop_sequences": ["é"],
        "metadata": {"user_id": "é"},
    }
    received = []
    for middleware in ([], [ctxpipe_middleware(full(tmp_path), session_id="s")]):
        async with talk(think_and_call, *middleware) as (server, client):
            history: list[Any] = [user("go")]
            for _ in range(3):
                reply = await client.messages.create(
                    model="m", max_tokens=99, messages=history, **beside
                )
                history += [
                    reply.to_param(),
                    user(tool_result(cast("Any", reply.content[-1]).id, "ok é😀")),
                ]
            await ask(client, history, **beside)
        received.append(server.requests)
        assert not server.refused

    bare, ours = received
    assert [request.raw for request in ours] == [request.raw for request in bare]
    headers = [comparable(request.headers) for request in ours]
    assert headers == [comparable(request.headers) for request in bare]


def comparable(headers: Any) -> dict[str, str]:
    """The headers without what differs between two servers, and two clients."""
    return {
        name: value
        for name, value in headers.items()
        if name not in {"host", "idempotency-key", "x-stainless-raw-response"}
    }


def think_and_call(body: RequestBody) -> Reply:
    number = len(body["messages"])
    return answer_with(
        thinking(f"thought {number}"), "so", tool_use("look", {"n": number}, id=f"t{number}")
    )


@settings(max_examples=6, deadline=None)
@given(st.lists(histories(3, thoughts=False, ends=False), min_size=5, max_size=5))
async def test_whatever_was_said_a_pipeline_with_nothing_to_do_changes_no_byte(
    said: list[list[Message]],
):
    shaping = ctxpipe_middleware(ContextPipeline([Factors()]), session_id="s")

    async with talk(lambda _: "ok", shaping) as (server, client):
        for history in said:
            spoken = [message for message in history if message["role"] != "system"]
            await plain(client, spoken)
            await plain(client.with_options(middleware=[]), spoken)

    assert not server.refused
    for ours, bare in zip(server.requests[::2], server.requests[1::2], strict=True):
        assert ours.raw == bare.raw


@every_way
async def test_the_answer_is_the_one_without_ctxpipe(tmp_path, ask: Ask):
    replies = []
    for middleware in ([], [ctxpipe_middleware(offloading(tmp_path), session_id="s")]):
        async with talk(
            [answer_with(thinking("hm"), "Hello.", tool_use("look", {}, id="t"))], *middleware
        ) as (_, client):
            replies.append(await ask(client, [user("hi")]))

    assert replies[0] == replies[1]
    assert type(replies[0]) is type(replies[1])


# Below the SDK ------------------------------------------------------------------------------------


async def converse(ask: Ask, client: Any, **beside: Any):
    """A conversation in which results leave, old messages are rewritten, and thinking is stale."""
    history: list[Any] = [user("go")]
    for number in range(10):
        reply = await plain(client, history, **beside)
        await ask(client, history, **beside)
        length = 1_500 if number % 3 else len(LONG)  # batch offloading takes the shorter ones
        result = tool_result(reply.content[-1].id, f"{number} é😀 {LONG[:length]}")
        history += [reply.to_param(), user(result)]


@pytest.mark.parametrize(("ask", "breakpoints"), in_turn(WAYS, last=[0, 4]))
async def test_a_transport_sends_the_bytes_that_the_middleware_sends(
    tmp_path, ask: Ask, breakpoints
):
    beside: Any = {"system": [text("Be brief.")], "tools": TOOLS, "extra_headers": {BETA: "b-1"}}
    given: Any = {"session_id": "s", "cache_breakpoints": breakpoints}
    received = []
    for is_below in (False, True):
        shutil.rmtree(tmp_path)
        server = MessagesServer(think_and_call, model=Model(window=9_000, thinking="signed"))
        pipeline = full(tmp_path)
        async with in_memory(server) as transport:
            reached: Any = {"base_url": server.url, "api_key": "k", "max_retries": 0}
            if is_below:
                http_client = ctxpipe_client(pipeline, transport=transport, **given)
                client = anthropic.AsyncAnthropic(http_client=http_client, **reached)
            else:
                bare = http.AsyncClient(transport=transport)
                middleware = [ctxpipe_middleware(pipeline, **given)]
                client = anthropic.AsyncAnthropic(
                    http_client=bare, middleware=middleware, **reached
                )
            async with client:
                await converse(ask, client, **beside)
        received.append(server.requests)

    by_middleware, below = received
    assert [request.raw for request in below] == [request.raw for request in by_middleware]
    headers = [{**comparable(request.headers), "accept-encoding": ""} for request in below]
    assert headers == [
        {**comparable(request.headers), "accept-encoding": ""} for request in by_middleware
    ]
    assert any(BINDING in request.headers[BETA] for request in below)
    assert any("offloaded" in request.raw.decode() for request in below)


async def test_a_synchronous_transport_sends_the_bytes_that_the_middleware_sends(
    tmp_path,
):
    def work(url: str, **ours: Any):
        with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, **ours) as client:
            history: list[Any] = [user("go")]
            for number in range(8):
                asked: Any = {"model": "m", "max_tokens": 99, "messages": history}
                if number % 2:
                    with client.messages.stream(**asked) as stream:
                        reply: Any = stream.get_final_message()
                else:
                    reply = client.messages.create(**asked)
                history += [reply.to_param(), user(tool_result(reply.content[-1].id, LONG))]

    received = []
    for is_below in (False, True):
        shutil.rmtree(tmp_path)
        pipeline = full(tmp_path)
        ours: Any = {"middleware": [ctxpipe_sync_middleware(pipeline, session_id="s")]}
        if is_below:
            ours = {"http_client": ctxpipe_sync_client(pipeline, session_id="s")}
        async with MessagesServer(think_and_call) as server:
            await anyio.to_thread.run_sync(partial(work, server.url, **ours))
        received.append([request.raw for request in server.requests])

    assert received[0] == received[1]
    assert b"offloaded" in received[0][-1]


# Something to do ----------------------------------------------------------------------------------


@every_way
async def test_a_long_result_goes_to_a_file_and_the_request_names_it(tmp_path, ask: Ask):
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s")

    async with talk(["ok"], shaping) as (server, client):
        await ask(client, loop(1))

    shown = messages_of(server.requests[0])[-1]["content"][0]["content"]
    assert "t0.md" in shown
    assert len(shown) < 500
    assert (tmp_path / "s" / "t0.md").read_text() == LONG
    assert not server.refused


async def test_the_callers_history_stays_as_it_is(tmp_path):
    history, before = loop(16), loop(16)

    async with talk(lambda _: "ok", ctxpipe_middleware(full(tmp_path), session_id="s")) as (
        server,
        client,
    ):
        for end in range(1, len(history) + 1, 2):
            await plain(client, history[:end])

    assert history == before
    assert server.requests[-1].tokens < 3000


@pytest.mark.parametrize(
    ("stages", "streaming"), [(full, False), (offloading, True)], ids=["plain", "streaming"]
)
async def test_the_tool_runner_works_for_many_turns_and_no_request_is_refused(
    tmp_path, stages: Callable[[Path], ContextPipeline], streaming
):
    turns = 60 if NIGHTLY else 30
    seen: list[int] = []

    @anthropic.beta_async_tool(
        name="look", description="Looks.", input_schema={"type": "object", "properties": {}}
    )
    async def look(**given: int) -> str:
        seen.append(given["n"])
        return python_source(given["n"] % 30 * 5)

    def script(body: RequestBody) -> Reply:
        turn = len(server.requests)
        calls = [
            tool_use("look", {"n": turn * 2 + n}, id=f"t{turn}_{n}") for n in range(1 + turn % 2)
        ]
        if turn > turns:
            return "Done."
        return answer_with(thinking(f"thought {turn}"), f"Turn {turn}.", *calls)

    shaping = ctxpipe_middleware(stages(tmp_path), session_id="s")
    async with talk(script, shaping) as (server, client):
        task: Any = [user("go")]
        runner = client.beta.messages.tool_runner(
            model="m",
            max_tokens=99,
            tools=[look],
            messages=task,
            system="Be brief.",
            stream=streaming,
        )
        last: Any = await runner.until_done()

    assert last.content[0].text == "Done."
    assert (server.calls, server.refused) == (turns + 1, [])
    assert len(seen) == turns + turns // 2
    assert len({*seen}) == len(seen)  # nothing was asked twice because it was lost
    assert all("thread" not in request.body for request in server.requests)
    assert server.requests[-1].tokens < 10_000
    files = {
        match[0]: file
        for file in tmp_path.rglob("*.md")
        if (match := re.search(r"t\d+_\d$", file.stem))
    }
    assert len(files) > turns
    for name, file in files.items():
        turn, number = name[1:].split("_")
        assert file.read_text() == python_source((int(turn) * 2 + int(number)) % 30 * 5)


async def test_each_request_of_a_session_goes_on_where_the_one_before_ended(tmp_path):
    history = loop(12)

    async with talk(lambda _: "ok", ctxpipe_middleware(offloading(tmp_path), session_id="s")) as (
        server,
        client,
    ):
        for end in range(1, len(history) + 1, 2):
            await plain(client, history[:end])

    wire = [json.dumps(messages_of(request))[:-1] for request in server.requests]
    assert len(wire) == 13
    for before, after in itertools.pairwise(wire):
        assert after.startswith(before)


async def test_a_side_question_does_not_make_the_loop_forget_what_it_has_offloaded(tmp_path):
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s")
    history = loop(5)

    async with talk(lambda _: "ok", shaping) as (server, client):
        for end in range(1, len(history) + 1, 2):
            await plain(client, history[:end])
            await plain(client, [user(f"Give this a title: {end}")])
        await plain(client, history)

    assert not server.refused
    assert LONG[:100] not in server.requests[-1].raw.decode().replace("\\n", "\n")
    assert sent(server.requests[-1]) == sent(server.requests[-3])


async def test_a_session_of_the_loop_itself_and_the_middleware_agree(tmp_path):
    pipeline = offloading(tmp_path)
    session, history = pipeline.session("s"), loop(5)

    async with talk(lambda _: "ok", ctxpipe_middleware(pipeline, session_id="s")) as (
        server,
        client,
    ):
        await session.create(client, model="m", max_tokens=99, messages=history)
        await plain(client, history)

    by_the_loop, by_the_middleware = server.requests
    assert by_the_loop.raw == by_the_middleware.raw


@pytest.mark.parametrize(
    "beside", [{"system": LONG * 9}, {"tools": [{**TOOLS[0], "description": LONG * 9}]}, {}]
)
async def test_system_prompt_and_tools_count_into_the_budget(tmp_path, beside: dict[str, Any]):
    truncate = SmartTruncate(LocalStorage(tmp_path), max_tokens=1500)
    pipeline = ContextPipeline([truncate], budget=Budget(window=20_000, trigger=8_000))

    async with talk(["ok"], ctxpipe_middleware(pipeline, session_id="s")) as (server, client):
        await plain(client, loop(6), **beside)

    assert (len(messages_of(server.requests[0])) < 13) == bool(beside)
    assert not server.refused


# The bill -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [*WAYS, response_streamed], ids=lambda ask: ask.__name__)
async def test_the_usage_of_a_reply_is_fed_back(ask: Ask):
    factors = Factors()
    shaping = ctxpipe_middleware(ContextPipeline([factors]), session_id="s")

    async with talk(["ok", "ok"], shaping, model=Model(billing_factor=1.2)) as (_, client):
        await ask(client, loop(3))
        await ask(client, [*loop(3), user("and?")])

    assert factors.noted[0] == 1
    assert factors.noted[1] == pytest.approx(1.2, rel=0.05)


async def test_what_a_cancelled_stream_has_told_of_its_usage_is_known():
    factors = Factors()
    shaping = ctxpipe_middleware(ContextPipeline([factors]), session_id="s")

    async with talk(["ok " * 99, "ok"], shaping, model=Model(billing_factor=1.2)) as (_, client):
        stream = await plain(client, loop(3), stream=True)
        async with stream:
            async for _ in stream:
                break
        await plain(client, [*loop(3), user("and?")])

    assert factors.noted[1] == pytest.approx(1.2, rel=0.05)


async def test_a_usage_counts_for_the_messages_that_it_bills_however_late_it_is_read():
    factors = Factors()
    shaping = ctxpipe_middleware(ContextPipeline([factors]), session_id="s")

    async with talk(lambda _: "ok", shaping, model=Model(billing_factor=1.2)) as (_, client):
        stream = await plain(client, loop(9), stream=True)
        await plain(client, loop(1))  # another branch of the same conversation, nine times as short
        assert [event.type async for event in stream][-1] == "message_stop"
        await plain(client, loop(2))

    assert factors.noted[-1] == pytest.approx(1.2, rel=0.05)


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
async def test_whoever_reads_the_body_himself_is_left_alone(tmp_path, caplog, streaming):
    factors = Factors()
    pipeline = offloading(tmp_path).use(factors)

    async with talk(["Hello.", "ok"], ctxpipe_middleware(pipeline, session_id="s")) as (
        server,
        client,
    ):
        request: Any = {"model": "m", "max_tokens": 99, "messages": loop(1), "stream": streaming}
        async with client.messages.with_streaming_response.create(**request) as response:
            body = b"".join([part async for part in response.iter_bytes()])
        await plain(client, loop(2))

    assert b"Hello." in body
    assert (b"event: message_stop" in body) == streaming
    assert "t0.md" in sent(server.requests[0])
    assert factors.noted == [1, 1]
    assert not warnings_in(caplog)


# Too long -----------------------------------------------------------------------------------------

WITHOUT_NUMBERS = [
    Failure(413, "request_too_large", "Request too large"),
    Failure(400, "invalid_request_error", "Input is too long for requested model."),
]


def truncating(folder: Path, window: int = 500_000) -> ContextPipeline:
    """A pipeline that believes in a larger window than the model has."""
    return ContextPipeline(
        [SmartTruncate(LocalStorage(folder), max_tokens=1500)], budget=Budget(window=window)
    )


@every_way
@pytest.mark.parametrize("refusal", [prompt_too_long(), *WITHOUT_NUMBERS])
async def test_a_request_refused_as_too_long_is_sent_once_more_shortened(
    tmp_path, refusal: Failure, ask: Ask
):
    async with talk(
        [refusal, "ok"], ctxpipe_middleware(truncating(tmp_path, 30_000), session_id="s")
    ) as (
        server,
        client,
    ):
        reply = await ask(client, loop(20), system="Be brief.")

    first, second = server.requests
    assert reply.role == "assistant"
    assert len(second.raw) < len(first.raw) / 2
    assert (second.body["system"], server.refused) == ("Be brief.", [])


@every_way
async def test_a_shorter_request_that_is_too_long_as_well_is_the_last(tmp_path, ask: Ask):
    shaping = ctxpipe_middleware(truncating(tmp_path), session_id="s")

    async with talk(lambda _: prompt_too_long(), shaping, max_retries=2) as (server, client):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await ask(client, loop(20))

    assert server.calls == 2


@every_way
async def test_another_refusal_reaches_the_caller_as_the_api_says_it(tmp_path, ask: Ask):
    refusal = Failure(400, "invalid_request_error", "temperature: must not be warm")

    async with talk([refusal], ctxpipe_middleware(truncating(tmp_path), session_id="s")) as (
        server,
        client,
    ):
        with pytest.raises(anthropic.BadRequestError, match="must not be warm") as raised:
            await ask(client, loop(20))

    assert raised.value.request_id == server.requests[0].id
    assert server.calls == 1


# Tried again by the SDK ---------------------------------------------------------------------------

SOON = {"retry-after-ms": "1"}
FAILURES: dict[str, Reply] = {
    "429": Failure(429, "rate_limit_error", "slow down", SOON),
    "529": Failure(529, "overloaded_error", "Overloaded", SOON),
    "500": Failure(500, "api_error", "Internal server error", SOON),
    "connection reset": Cut(),
}


class Counted:
    """A summarizer that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0
        self._summarize = ExtractiveSummarizer()

    async def __call__(self, messages: Sequence[Message], /) -> Any:
        self.calls += 1
        return await self._summarize(messages)


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("ask", [plain, helped], ids=["plain", "streaming"])
async def test_a_retry_of_the_sdk_sends_the_same_request(tmp_path, ask: Ask, failure: Reply):
    summarize, storage = Counted(), LocalStorage(tmp_path)
    stages = (DirectOffload(storage, min_chars=500), Compact(summarize, storage))
    pipeline = ContextPipeline(stages, budget=Budget(window=4000, trigger=2000))

    async with talk(
        [failure, "ok"],
        ctxpipe_middleware(pipeline, session_id="s", cache_breakpoints=2),
        max_retries=1,
    ) as (server, client):
        reply = await ask(client, [*loop(40, "a line\n" * 40), *step("long", result=LONG)])

    first, second = server.requests
    assert first.raw == second.raw
    assert second.headers["x-stainless-retry-count"] == "1"
    assert reply.content[0].text == "ok"
    assert summarize.calls == 1
    assert not server.refused


async def test_once_shortened_the_request_stays_short_when_it_is_sent_again(tmp_path):
    script: list[Reply] = [prompt_too_long(), FAILURES["529"], "ok"]

    async with talk(
        script, ctxpipe_middleware(truncating(tmp_path), session_id="s"), max_retries=1
    ) as (
        server,
        client,
    ):
        await plain(client, loop(20))

    _, shorter, again = server.requests
    assert shorter.raw == again.raw


# Thinking -----------------------------------------------------------------------------------------


async def forget(turn: Turn) -> Change | Skip:
    """Rewrite an early message as soon as there are some, and keep to it."""
    first = turn.messages[0]
    if len(turn.messages) < 6 or first["content"] == "go on":
        return Skip("it is early")
    return Change(
        [cast("Message", {**first, "content": "go on"}), *turn.messages[1:]], may_grow=True
    )


async def thinking_on(
    client: anthropic.AsyncAnthropic, turns: int, ask: Ask = beta, **options: Any
) -> Any:
    """*turns* calls of a tool, each with thinking before it; the last reply."""
    history: list[Any] = [user("go")]
    for _ in range(turns):
        reply = await ask(client, history, **options)
        content = [block.to_dict() for block in reply.content]
        history += [
            {"role": "assistant", "content": content},
            user(tool_result(reply.content[-1].id, "ok")),
        ]
    return reply


def forgetting(**options: Any) -> Any:
    return ctxpipe_middleware(ContextPipeline([forget]), session_id="s", **options)


@pytest.mark.parametrize(
    "ask", [plain, beta, helped, raw], ids=["plain", "beta", "streaming", "raw"]
)
async def test_thinking_behind_rewritten_text_is_dropped_by_the_api_instead_of_refused(
    ask: Ask,
):
    async with talk(think_and_call, forgetting()) as (server, client):
        await thinking_on(client, 6, ask)

    assert not server.refused
    dropped = [bool(request.dropped) for request in server.requests]
    assert dropped == [False, False, False, True, True, True]
    for request in server.requests:
        binding = request.body.get("thinking", {}).get("block_binding")
        assert binding == ({"prefix_mismatch_behavior": "drop_block"} if request.dropped else None)


@pytest.mark.parametrize(
    ("client_sends", "request_sends", "expected"),
    [
        (None, {}, [BINDING]),
        ("a-1,b-2", {}, ["a-1", "b-2", BINDING]),
        (None, {"betas": ["c-3"]}, ["c-3", BINDING]),
        ("a-1", {"betas": ["c-3"]}, ["c-3", BINDING]),
        ("a-1", {"extra_headers": {"Anthropic-Beta": "d-4"}}, ["d-4", BINDING]),
        ("a-1", {"extra_headers": {"anthropic-beta": anthropic.Omit()}}, [BINDING]),
    ],
)
async def test_betas_of_the_caller_and_of_the_client_are_kept(
    client_sends: str | None, request_sends: dict[str, Any], expected: list[str]
):
    headers = {BETA: client_sends} if client_sends else {}

    async with talk(think_and_call, forgetting(), default_headers=headers) as (server, client):
        await thinking_on(client, 4, **request_sends)

    assert server.requests[-1].headers[BETA].split(",") == expected
    assert server.requests[0].headers.get(BETA, "").split(",") == (expected[:-1] or [""])


async def test_the_clients_betas_are_kept_from_the_very_first_request_on_and_behind_other_middleware():  # noqa: E501
    async with talk(think_and_call) as (_, client):
        history: list[Any] = [user("go")]
        for _ in range(3):
            reply = await plain(client, history)
            content = [block.to_dict() for block in reply.content]
            history += [
                {"role": "assistant", "content": content},
                user(tool_result(reply.content[-1].id, "ok")),
            ]

    passed: list[Any] = []
    shaping = forgetting()
    async with talk(["ok", "ok"], shaping, recording(passed), default_headers={BETA: "a-1"}) as (
        server,
        client,
    ):
        await plain(client, history)
        await plain(client.with_options(default_headers={BETA: "z-9"}), history)

    found = [request.headers[BETA] for request in server.requests]
    assert found == [f"a-1,{BINDING}", f"z-9,{BINDING}"]
    assert not server.refused


def recording(passed: list[Any]) -> Any:
    """A middleware that notes the requests it passes on."""

    async def record(request: Any, call_next: Any) -> Any:
        passed.append(request)
        return await call_next(request)

    return record


# What is left alone, and what is kept -------------------------------------------------------------


async def test_counting_tokens_counts_what_the_caller_gave(tmp_path):
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s")
    history: Any = loop(3)

    async with talk([], shaping) as (server, client):
        ours = await client.messages.count_tokens(model="m", messages=history)
        await client.beta.messages.count_tokens(model="m", messages=history)
        bare = await client.with_options(middleware=[]).messages.count_tokens(
            model="m", messages=history
        )

    assert ours == bare
    assert messages_of(server.requests[0]) == messages_of(server.requests[1]) == history
    assert not list(tmp_path.iterdir())


async def test_a_batch_goes_out_as_it_is(tmp_path):
    passed: list[Any] = []
    history: Any = loop(3)

    async with talk(
        [], ctxpipe_middleware(offloading(tmp_path), session_id="s"), recording(passed)
    ) as (_, client):
        with pytest.raises(anthropic.NotFoundError):  # the loopback server has no batches
            await client.messages.batches.create(
                requests=[
                    {
                        "custom_id": "a",
                        "params": {"model": "m", "max_tokens": 9, "messages": history},
                    }
                ]
            )

    assert passed[0].json["requests"][0]["params"]["messages"] == history
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "beside",
    [
        {"extra_body": {"compaction": {"type": "enabled"}}},
        {"messages": [{"role": "user", "content": "compacted"}]},
    ],
    ids=["asked for", "done before"],
)
async def test_what_the_server_compacts_is_its_own(tmp_path, beside: dict[str, Any]):
    history: Any = loop(1)
    if "messages" in beside:
        history = [user({"type": "compaction", "content": "what was said"}), *history[1:]]
        beside = {}

    async with talk(["ok"], ctxpipe_middleware(offloading(tmp_path), session_id="s")) as (
        server,
        client,
    ):
        await beta(client, history, **beside)

    assert messages_of(server.requests[0]) == history


async def test_headers_query_and_timeout_of_a_rewritten_request_are_the_callers(
    tmp_path,
):
    passed: list[Any] = []
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s")

    async with talk(["ok"], shaping, recording(passed), default_headers={"X-Client": "c"}) as (
        server,
        client,
    ):
        await plain(
            client,
            loop(1),
            extra_headers={"X-Mine": "1", "User-Agent": anthropic.Omit()},
            extra_query={"trace": "on"},
            extra_body={"service_tier": "auto"},
            timeout=7.5,
        )

    received = server.requests[0]
    assert "t0.md" in sent(received)
    assert (received.headers["x-mine"], received.headers["x-client"]) == ("1", "c")
    assert "anthropic" not in received.headers.get("user-agent", "").lower()
    assert cast("Any", received.body)["service_tier"] == "auto"
    assert (passed[0].query_params, passed[0].timeout) == ({"trace": "on"}, 7.5)


async def test_a_request_is_the_same_object_where_nothing_is_to_do(tmp_path):
    before: list[Any] = []
    after: list[Any] = []
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s")

    async with talk(["ok", "ok"], recording(before), shaping, recording(after)) as (_, client):
        await plain(client, [user("hi")])
        await plain(client, loop(1))

    assert before[0] is after[0]
    assert before[1] is not after[1]
    assert before[1].json["messages"] == loop(1)  # what other middleware has seen stays as it was


@pytest.mark.parametrize("kind", [http.Response, dict[str, Any], object])
async def test_a_caller_may_have_the_answer_in_any_form(tmp_path, kind):
    shaping = ctxpipe_middleware(truncating(tmp_path), session_id="s")
    body = {"model": "m", "max_tokens": 9, "messages": loop(20)}

    async with talk([prompt_too_long(), "Hello."], shaping) as (_, client):
        got: Any = await client.post("/v1/messages", cast_to=kind, body=body)

    reply = got.json() if kind is http.Response else got
    assert reply["content"][0]["text"] == "Hello."


async def test_another_middleware_may_answer_in_the_apis_place(tmp_path, caplog):
    kept: list[Any] = []

    async def cached(request: Any, call_next: Any) -> Any:
        if not kept:
            response = await call_next(request)
            kept.append(await response.parse())
            return response
        return kept[0]

    async with talk(
        ["Hello."], ctxpipe_middleware(offloading(tmp_path), session_id="s"), cached
    ) as (server, client):
        first, second = await plain(client, loop(1)), await plain(client, loop(1))

    assert first is second
    assert server.calls == 1
    assert not warnings_in(caplog)


async def test_a_reply_that_does_not_validate_fails_as_it_does_without_ctxpipe(tmp_path, caplog):
    import pydantic

    class Weather(pydantic.BaseModel):
        degrees: int

    async with talk(
        ["no JSON at all"], ctxpipe_middleware(offloading(tmp_path), session_id="s")
    ) as (_, client):
        with pytest.raises(pydantic.ValidationError):
            await client.messages.parse(
                model="m",
                max_tokens=9,
                messages=[{"role": "user", "content": "?"}],
                output_format=Weather,
            )

    assert not warnings_in(caplog)


# Errors of ours -----------------------------------------------------------------------------------


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [
        record
        for record in caplog.records
        if record.name == "ctxpipe" and record.levelno >= logging.WARNING
    ]


async def broken(turn: Turn) -> Change | Skip:
    raise RuntimeError("this stage is broken")


def by_user(body: Any) -> str:
    return cast("str", body["metadata"]["user_id"])


def refuse_to_count(words: str) -> int:
    raise ValueError("this counter is broken")


@pytest.mark.parametrize("ask", [plain, helped], ids=["plain", "streaming"])
@pytest.mark.parametrize(
    ("pipeline", "session_id", "warning"),
    [
        (lambda: ContextPipeline([broken]), "s", "broken [s, turn 1] failed: RuntimeError"),
        (lambda: ContextPipeline([broken], on_error="raise"), "s", "could not be shaped"),
        (ContextPipeline, by_user, "could not be shaped"),
    ],
    ids=["a stage fails", "the pipeline raises", "no name found"],
)
async def test_an_error_of_ours_sends_the_original_request_with_one_warning(
    pipeline: Callable[[], ContextPipeline],
    session_id,
    warning,
    ask: Ask,
    caplog,
):
    async with talk(["Hello."], ctxpipe_middleware(pipeline(), session_id=session_id)) as (
        server,
        client,
    ):
        reply = await ask(client, loop(1))

    assert reply.content[0].text == "Hello."
    assert messages_of(server.requests[0]) == loop(1)
    assert [warning in record.message for record in warnings_in(caplog)].count(True) == 1


async def test_a_history_that_is_none_is_refused_by_the_api_in_its_own_words(tmp_path, caplog):
    nonsense: Any = ([{"role": "nobody", "content": "x"}], [], [{}], ["hello"])

    async with talk([], ctxpipe_middleware(offloading(tmp_path), session_id="s")) as (_, client):
        for messages in nonsense:
            with pytest.raises(anthropic.BadRequestError, match="messages"):
                await plain(client, messages)

    assert all("original request" in record.message for record in warnings_in(caplog))


@every_way
async def test_a_counter_that_fails_costs_a_reply_nothing(ask: Ask, caplog):
    pipeline = ContextPipeline(counter=refuse_to_count)

    async with talk(["Hello."], ctxpipe_middleware(pipeline, session_id="s")) as (_, client):
        reply = await ask(client, loop(1))

    assert reply.role == "assistant"
    assert all("cannot be counted: ValueError" in record.message for record in warnings_in(caplog))


async def cancelled_once(begun: anyio.Event, client: anthropic.AsyncAnthropic):
    """A turn that is cancelled as soon as *begun* is set."""
    async with anyio.create_task_group() as group:
        group.start_soon(plain, client, loop(1))
        with anyio.fail_after(30):
            await begun.wait()
        group.cancel_scope.cancel()


async def test_cancellation_while_the_model_thinks_is_passed_on_and_the_next_turn_goes_well(
    tmp_path, caplog
):
    asked = anyio.Event()

    def script(body: RequestBody) -> Reply:
        first = not asked.is_set()
        asked.set()
        return Hang() if first else "ok"

    async with talk(script, ctxpipe_middleware(offloading(tmp_path), session_id="s")) as (
        server,
        client,
    ):
        await cancelled_once(asked, client)
        await plain(client, loop(1))

    cancelled, again = server.requests
    assert cancelled.raw == again.raw
    assert not warnings_in(caplog)


# Cache breakpoints --------------------------------------------------------------------------------


def marks_of(received: Received) -> int:
    body: Any = received.body
    beside = [
        *(body.get("tools") or []),
        *(body.get("system") if isinstance(body.get("system"), list) else []),
    ]
    inside = sum(sum(1 for _ in cache_marks(message)) for message in body["messages"])
    return inside + sum("cache_control" in block for block in beside) + ("cache_control" in body)


@pytest.mark.parametrize("wanted", range(5))
@pytest.mark.parametrize("own", range(5))
async def test_at_most_the_free_ones_of_the_four_marks_are_placed(tmp_path, wanted: int, own: int):
    system = [{**text(f"Rule {n}."), **(MARK if n < own else {})} for n in range(5)]
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s", cache_breakpoints=wanted)

    async with talk(["ok"], shaping) as (server, client):
        await plain(client, loop(3), system=system, tools=TOOLS)

    assert not server.refused  # the server refuses a fifth
    assert own <= marks_of(server.requests[0]) <= min(4, own + wanted)
    if own:
        assert server.requests[0].body["system"] == system


async def test_a_turn_that_rewrites_old_results_still_reads_what_stands_before_them(
    tmp_path,
):
    gate = BatchOffload(LocalStorage(tmp_path), RatioGate(0.5), min_chars=900)
    shaping = ctxpipe_middleware(ContextPipeline([gate]), session_id="s", cache_breakpoints=4)
    history = [*loop(12, "short"), *step("long", result="x" * 5_000), *step("last", result="short")]

    async with talk(lambda _: "ok", shaping, model=Model(min_cached_tokens=1)) as (server, client):
        for end in range(1, len(history) + 1, 2):
            await plain(client, history[:end], system="Be brief.")

    before, rewriting = server.requests[-3], server.requests[-1]
    assert before.usage is not None
    assert rewriting.usage is not None
    assert len(str(messages_of(rewriting))) < len(str(messages_of(server.requests[-2])))
    assert rewriting.usage.cache_read_input_tokens == before.tokens


# Conversations ------------------------------------------------------------------------------------


async def test_concurrent_conversations_on_one_client_keep_to_themselves(tmp_path):
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id=by_user)

    async def converse(client: anthropic.AsyncAnthropic, name: str):
        history: list[Message] = [user("go")]
        for turn in range(5):
            history += step(f"t{turn}", result=f"secret of {name}\n" * 50)
            await plain(client, history, metadata={"user_id": name})

    async with (
        talk(lambda _: "ok", shaping) as (server, client),
        anyio.create_task_group() as group,
    ):
        for number in range(12):
            group.start_soon(converse, client, f"user-{number}")

    assert not server.refused
    for request in server.requests:
        name = cast("Any", request.body)["metadata"]["user_id"]
        shown = sent(request)
        assert "secret of" not in shown
        assert {f"user-{n}" for n in range(12) if f"/user-{n}/" in shown} == {name}
    for folder in tmp_path.iterdir():
        for file in folder.glob("t*.md"):
            assert file.read_text() == f"secret of {folder.name}\n" * 50


async def test_a_summary_may_be_asked_for_on_the_very_client(tmp_path):
    def script(body: RequestBody) -> Reply:
        return "The summary." if body["model"] == "small" else "ok"

    pipeline = ContextPipeline(budget=Budget(window=4000, trigger=2000))
    async with talk(script, ctxpipe_middleware(pipeline, session_id="s")) as (server, client):
        pipeline.use(Compact(AnthropicSummarizer(client, model="small"), LocalStorage(tmp_path)))
        with anyio.fail_after(60):
            await plain(client, loop(20))

    asked, shaped = server.requests
    assert asked.body["model"] == "small"
    assert "The summary." in sent(shaped)
    assert not server.refused


async def test_a_journal_carries_the_context_into_another_process(tmp_path):
    summarize, history, storage = Counted(), loop(20), LocalStorage(tmp_path)
    wire = []
    for _ in range(2):  # each time a pipeline that knows nothing
        pipeline = ContextPipeline(
            [Compact(summarize, storage)], budget=Budget(window=4000, trigger=2000)
        )
        shaping = ctxpipe_middleware(pipeline, session_id="s", journal=storage)
        async with talk(["ok"], shaping) as (server, client):
            await plain(client, history)
        wire.append(server.requests[0].raw)

    assert wire[0] == wire[1]
    assert summarize.calls == 1


# Threads held by the server -----------------------------------------------------------------------


async def test_a_thread_that_may_go_on_without_the_server_does(tmp_path):
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s")

    async with talk([answer_with(tool_use("look", {}, id="t0")), "Done."], shaping) as (
        server,
        client,
    ):
        thread = client.beta.messages.thread(
            model="m", max_tokens=99, unsupported_request_behavior="continue_unthreaded"
        )
        await thread.send({"role": "user", "content": "go"})
        reply = await thread.send(cast("Any", user(tool_result("t0", LONG))))

    assert cast("Any", reply.content[0]).text == "Done."
    assert [len(messages_of(request)) for request in server.requests] == [1, 3]
    assert all("thread" not in request.body for request in server.requests)
    assert "t0.md" in sent(server.requests[1])


async def test_a_thread_that_may_not_is_told_the_way_out_and_nothing_is_sent(
    tmp_path,
):
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s")

    async with talk([], shaping, max_retries=2) as (server, client):
        thread = client.beta.messages.thread(model="m", max_tokens=99)
        with pytest.raises(anthropic.BadRequestError, match="threads='pass'"):
            await thread.send({"role": "user", "content": "go"})

    assert server.calls == 0


async def test_a_thread_that_is_passed_goes_out_untouched(tmp_path):
    shaping = ctxpipe_middleware(offloading(tmp_path), session_id="s", threads="pass")

    async with talk(["ok"], shaping) as (server, client):
        thread = client.beta.messages.thread(
            model="m", max_tokens=99, messages=cast("Any", loop(1))
        )
        await thread.send()

    assert cast("Any", server.requests[0].body)["thread"] == {"type": "create"}
    assert messages_of(server.requests[0]) == loop(1)


# Settings -----------------------------------------------------------------------------------------


def test_the_synchronous_client_says_that_it_cannot_await_it():
    with pytest.raises(TypeError, match="ctxpipe_middleware is an async function"):
        anthropic.Anthropic(
            api_key="x", middleware=[ctxpipe_middleware(ContextPipeline(), session_id="s")]
        )


# The row of the README --------------------------------------------------------------------------


async def test_the_program_of_the_page_sends_placeholders(tmp_path, monkeypatch):
    @anthropic.beta_async_tool
    async def look(number: int) -> str:
        """Looks."""
        return result(number)

    async with MessagesServer(rounds()) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
        async with run_adapter_program("middleware", offloading(tmp_path))["client"] as client:
            asked: Any = {"model": "m", "max_tokens": 2000, "messages": [user("go")]}
            runner = client.beta.messages.tool_runner(tools=[look], **asked)
            await runner.until_done()

    assert not server.refused
    assert placeholders(server.requests[-1]) == CALLS
    assert (tmp_path / "job-42" / "c0.md").read_text() == result(0)
