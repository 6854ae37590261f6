"""The scripted Messages API, through the real SDK.

Answers, streams, failures, and what is left when it stops.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import anthropic
import anyio
import httpx2
import pytest
from anthropic.types import Message
from sdks import needs_stream_of_today, refusal_of

from ctxpipe.adapters.http_client import library_of
from ctxpipe.errors import InvalidHistory, SettingsError
from ctxpipe.testing import (
    Cut,
    Failure,
    Hang,
    MessagesServer,
    Model,
    RequestBody,
    Script,
    ScriptExhausted,
    answer_with,
    overloaded,
    prompt_too_long,
    rate_limited,
    redacted_thinking,
    refusal,
    server_error,
    thinking,
    tool_use,
)

http = library_of(anthropic)
LONG = "Habe Mut, dich deines eigenen Verstandes zu bedienen! " * 40
BUSY = answer_with(
    thinking("first this, then that"),
    LONG,
    tool_use("ls", {"path": "a/ü", "deep": [1, {"x": None}]}),
    tool_use("pwd", {}),
)


@asynccontextmanager
async def talk(
    script: Script, **options: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    async with (
        MessagesServer(script, counter=len, model=options.pop("model", Model())) as server,
        anthropic.AsyncAnthropic(
            base_url=server.url, api_key="test", **{"max_retries": 0, **options}
        ) as client,
    ):
        yield server, client


async def ask(client: anthropic.AsyncAnthropic, text: str = "go") -> Message:
    return await client.messages.create(
        model="m", max_tokens=99, messages=[{"role": "user", "content": text}]
    )


async def ask_streaming(client: anthropic.AsyncAnthropic) -> Message:
    messages: Any = [{"role": "user", "content": "go"}]
    async with client.messages.stream(model="m", max_tokens=99, messages=messages) as stream:
        return await stream.get_final_message()


def said_in(reply: Message) -> dict[str, Any]:
    return {"role": "assistant", "content": [block.to_dict() for block in reply.content]}


# Answers ------------------------------------------------------------------------------------------


async def test_an_answer_has_the_shape_of_the_api():
    async with talk([BUSY]) as (server, client):
        reply = await ask(client)

    assert [block.type for block in reply.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (reply.role, reply.model, reply.stop_reason) == ("assistant", "m", "tool_use")
    assert reply.id.startswith("msg_")
    assert reply._request_id == server.requests[0].id
    assert len({block.id for block in reply.content if block.type == "tool_use"}) == 2
    assert Message.model_validate(reply.model_dump(), strict=True) == reply


@needs_stream_of_today
async def test_a_stream_adds_up_to_the_plain_answer():
    async with talk([BUSY, BUSY]) as (_, client):
        plain, streamed = await ask(client), await ask_streaming(client)

    assert told(streamed) == told(plain)


def told(message: Message) -> dict[str, Any]:
    """Return *message* without fields that differ between requests or come from the SDK."""
    body = message.to_dict()
    blocks = [
        {k: v for k, v in block.items() if k not in {"id", "parsed_output"}}
        for block in body["content"]  # type: ignore[attr-defined]
    ]
    return {**body, "id": "", "content": blocks}


async def test_a_streams_events_come_in_the_apis_order():
    async with talk(
        [answer_with(thinking("hm"), "so", tool_use("ls", {}), redacted_thinking(), "x")]
    ) as (_, client):
        stream = await client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}], stream=True
        )
        kinds = [event.type async for event in stream]

    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    think = [
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
    ]
    redacted = ["content_block_start", "content_block_stop"]
    assert kinds == [
        "message_start",
        *think,
        *block,
        *think,
        *redacted,
        *block,
        "message_delta",
        "message_stop",
    ]


@needs_stream_of_today
async def test_a_streamed_answer_can_be_sent_back_unchanged():
    async with talk(
        [answer_with(thinking("hm"), "so", tool_use("ls", {"a": [1]}, id="t1")), "done"]
    ) as (server, client):
        reply = await ask_streaming(client)
        messages: Any = [
            {"role": "user", "content": "go"},
            said_in(reply),
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}],
            },
        ]
        await client.messages.create(model="m", max_tokens=99, messages=messages)

    assert not server.refused


@pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=needs_stream_of_today)])
async def test_a_paused_turn_is_continued_when_it_is_sent_back(streaming):
    search = {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "web_search",
        "input": {"query": "q"},
    }
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    async with talk([answer_with("I search.", search), answer_with(found, "So it is.")]) as (
        server,
        client,
    ):
        paused = await (ask_streaming(client) if streaming else ask(client))
        messages: Any = [{"role": "user", "content": "go"}, said_in(paused)]
        ended = await client.messages.create(model="m", max_tokens=99, messages=messages)

    assert (paused.stop_reason, ended.stop_reason) == ("pause_turn", "end_turn")
    assert paused.content[1].input == {"query": "q"}  # type: ignore[union-attr]
    assert not server.refused


async def test_a_call_of_the_apis_own_tool_gets_an_id_of_its_kind():
    search = {"type": "server_tool_use", "name": "web_search", "input": {}}
    async with talk([answer_with(search, tool_use("ls", {}))]) as (_, client):
        reply = await ask(client)

    assert [block.id.partition("_")[0] for block in reply.content] == ["srvtoolu", "toolu"]  # type: ignore[union-attr]
    assert reply.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("reply", "kinds", "reason"),
    [
        (answer_with(), [], "end_turn"),
        (answer_with(" \n"), ["text"], "end_turn"),
        (answer_with(thinking("hm")), ["thinking"], "end_turn"),
        (answer_with(tool_use("ls", {})), ["tool_use"], "tool_use"),
        (answer_with("half", stop_reason="max_tokens"), ["text"], "max_tokens"),
        (refusal(), [], "refusal"),
    ],
    ids=["empty", "blank", "thinking only", "tool use", "max_tokens", "refusal"],
)
@pytest.mark.parametrize(
    "streaming",
    [False, pytest.param(True, marks=needs_stream_of_today)],
    ids=["plain", "streaming"],
)
async def test_refusals_and_cut_answers_arrive_as_scripted(
    reply, kinds: list[str], reason, streaming
):
    async with talk([reply]) as (_, client):
        message = await (ask_streaming if streaming else ask)(client)

    assert [block.type for block in message.content] == kinds
    assert message.stop_reason == reason
    assert (message.stop_details is not None) == (reason == "refusal")


# Scripts ------------------------------------------------------------------------------------------


async def test_an_async_script_may_wait_for_the_test():
    arrived, go = asyncio.Event(), asyncio.Event()

    async def when_told(body: RequestBody) -> str:
        arrived.set()
        await go.wait()
        return "went"

    async with talk(when_told) as (_, client), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask(client))
        await arrived.wait()
        go.set()

    assert asking.result().content[0].text == "went"  # type: ignore[union-attr]


async def test_a_refused_request_takes_no_reply_from_the_script():
    async with talk(["the only one"]) as (server, client):
        with pytest.raises(anthropic.BadRequestError):
            await ask(client, " ")
        reply = await ask(client)

    assert reply.content[0].text == "the only one"  # type: ignore[union-attr]
    assert (server.calls, len(server.refused)) == (2, 1)


async def test_a_request_after_the_last_reply_fails_there_and_when_the_server_stops():
    server = MessagesServer(["one"], counter=len)

    with pytest.raises(ScriptExhausted, match=r"it has 1\)"):
        await ask_until_refused(server, "ScriptExhausted", times=2)

    assert server.calls == 2  # the SDK did not try again


async def test_an_error_in_the_script_is_raised_when_the_server_stops():
    def broken(body: RequestBody) -> str:
        raise KeyError(body["model"])

    with pytest.raises(KeyError, match="'m'"):
        await ask_until_refused(
            MessagesServer(broken, counter=len), "the script failed: KeyError: 'm'"
        )


@pytest.mark.parametrize("nonsense", [None, 7, {"type": "text", "text": "hi"}])
async def test_a_script_that_returns_no_reply_raises_a_clear_error(nonsense):
    with pytest.raises(TypeError, match="a script answers with a Reply or a text"):
        await ask_until_refused(MessagesServer([nonsense], counter=len), "TypeError")


def test_a_single_text_is_refused_as_a_script():
    with pytest.raises(SettingsError, match="give a list of replies"):
        MessagesServer("done")


async def test_an_answer_that_cannot_be_sent_is_an_error_of_the_script():
    script = [answer_with(tool_use("ls", {"path": object()}))]
    with pytest.raises(InvalidHistory, match="Object of type object is not JSON"):
        await ask_until_refused(MessagesServer(script, counter=len), "InvalidHistory")


async def test_an_error_of_the_callers_counter_is_raised_when_the_server_stops():
    def broken(text: str) -> int:
        raise ArithmeticError(text)

    with pytest.raises(ArithmeticError, match="go"):
        await ask_until_refused(
            MessagesServer(["one"], counter=broken), "the script failed: ArithmeticError: go"
        )


async def test_an_error_of_the_test_is_raised_instead_of_one_of_the_script():
    with pytest.raises(ZeroDivisionError):
        await ask_until_refused(
            MessagesServer([], counter=len), "ScriptExhausted", then=lambda: 1 // 0
        )


async def ask_until_refused(
    server: MessagesServer, words: str, times: int = 1, then: Callable[[], object] = lambda: None
):
    async with (
        server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=3) as client,
    ):
        for _ in range(times - 1):
            await ask(client)
        with pytest.raises(anthropic.InternalServerError, match=words):
            await ask(client)
        then()


async def test_everything_about_a_request_is_recorded():
    async with talk(["one", "two"]) as (server, client):
        await ask(client, "hello")
        await ask_streaming(client)
        await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "go"}])

    first, second, counted = server.requests
    assert first.body["messages"] == [{"role": "user", "content": "hello"}]
    assert json.loads(first.raw) == first.body
    older = first.headers.get("x-api-key") == "test"  # where an older SDK sends it
    assert older or first.headers["authorization"] == "Bearer test"
    assert first.usage is not None
    assert first.usage.total == first.tokens
    assert (first.tokens, first.usage, first.reply, first.problems) == (
        5,
        first.usage,
        answer_with("one"),
        (),
    )
    assert (first.body.get("stream"), second.body.get("stream")) == (None, True)
    assert (counted.path, counted.usage, server.calls) == ("/v1/messages/count_tokens", None, 2)


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "error", "kind"),
    [
        (rate_limited(7), anthropic.RateLimitError, "rate_limit_error"),
        (overloaded(), anthropic.InternalServerError, "overloaded_error"),
        (server_error(), anthropic.InternalServerError, "api_error"),
        (prompt_too_long(201_000), anthropic.BadRequestError, "invalid_request_error"),
        (
            Failure(403, "permission_error", "no"),
            anthropic.PermissionDeniedError,
            "permission_error",
        ),
    ],
    ids=["429", "529", "500", "too long", "403"],
)
@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
async def test_a_failure_reaches_the_client_as_the_sdks_error(
    failure: Failure, error: type[anthropic.APIStatusError], kind, streaming
):
    async with talk([failure]) as (server, client):
        with pytest.raises(error) as caught:
            await (ask_streaming if streaming else ask)(client)

    refusal = refusal_of(caught.value)
    assert (caught.value.status_code, refusal["type"]) == (failure.status, kind)
    assert refusal["message"] == failure.message
    assert caught.value.request_id == server.requests[0].id
    assert caught.value.body["request_id"] == server.requests[0].id  # type: ignore[index]


@pytest.mark.parametrize(
    "failure",
    [rate_limited(0.01), overloaded(), server_error(), Cut()],
    ids=["429", "529", "500", "cut"],
)
async def test_the_sdk_tries_again_after_a_passing_failure(failure):
    async with talk([failure, "at last"], max_retries=1) as (server, client):
        reply = await ask(client)

    assert reply.content[0].text == "at last"  # type: ignore[union-attr]
    assert [request.headers["x-stainless-retry-count"] for request in server.requests] == ["0", "1"]


async def test_a_client_with_only_failures_gives_up_and_gets_retry_after():
    async with talk([rate_limited(0.01)] * 3, max_retries=2) as (server, client):
        with pytest.raises(anthropic.RateLimitError) as caught:
            await ask(client)

    assert caught.value.response.headers["retry-after"] == "0.01"
    assert server.calls == 3


@pytest.mark.parametrize(
    "reply", [Cut(), Cut(after=answer_with(LONG))], ids=["before the first byte", "halfway"]
)
async def test_a_cut_connection_is_a_connection_error(reply: Cut):
    async with talk([reply]) as (_, client):
        with pytest.raises(anthropic.APIConnectionError):
            await ask(client)


@pytest.mark.parametrize(
    ("reply", "error"), [(Cut, http.RemoteProtocolError), (Hang, http.ReadTimeout)]
)
async def test_a_stream_that_is_cut_or_hangs_gives_half_of_the_answer(reply, error):
    seen: list[str] = []
    patience = http.Timeout(60, read=3)  # the first half has to come in time
    async with talk([reply(after=answer_with(LONG))], timeout=patience) as (_, client):
        with pytest.raises(error):
            await listen(client, seen)

    assert 0 < len("".join(seen)) < len(LONG)
    assert LONG.startswith("".join(seen))


async def listen(client: anthropic.AsyncAnthropic, seen: list[str]):
    messages: Any = [{"role": "user", "content": "go"}]
    async with client.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
        async for text in stream.text_stream:
            seen.append(text)


async def test_a_stream_may_end_with_an_error_halfway():
    async with talk([overloaded(after=answer_with(LONG))]) as (_, client):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await ask_streaming(client)

    assert refusal_of(caught.value)["type"] == "overloaded_error"


@pytest.mark.parametrize(
    "reply", [Hang(), Hang(after=answer_with(LONG))], ids=["from the start", "halfway"]
)
async def test_a_hanging_reply_ends_with_the_clients_timeout(reply: Hang):
    async with talk([reply], timeout=http.Timeout(60, read=0.1)) as (_, client):
        with pytest.raises(anthropic.APITimeoutError):
            await ask(client)


async def first_request(server: MessagesServer):
    """Wait for a request by polling, because the server does not report one.

    A client that is cancelled earlier has not sent one, and anyio before 4.16 leaves a connection
    open that is cancelled while it is established.
    """
    while not server.calls:  # noqa: ASYNC110
        await anyio.sleep(0.01)


@pytest.mark.parametrize(
    "script", [[answer_with("late", seconds=60)], [Hang()], None], ids=["slow", "hanging", "script"]
)
async def test_a_request_that_is_cancelled_ends_at_the_server_too(script: Script | None):
    ended = asyncio.Event()

    async def waits(body: RequestBody) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ""

    async with talk(script or waits) as (server, client):
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, client)
                await first_request(server)
                group.cancel_scope.cancel()
            if script is None:
                await ended.wait()

    assert (server.calls, server.errors) == (1, [])


async def test_unknown_paths_are_not_found():
    async with talk([]) as (_, client):
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.list()

    assert refusal_of(caught.value)["type"] == "not_found_error"


# Life ---------------------------------------------------------------------------------------------


MANY = 300  # more than wait for an accept by default


def test_hundreds_of_connections_at_once_are_answered():
    asyncio.run(hundreds_of_connections())  # the loop's debug mode would take most of the time


async def hundreds_of_connections() -> None:
    waiting: list[RequestBody] = []
    all_there = asyncio.Event()

    async def meet(body: RequestBody) -> str:
        waiting.append(body)
        if len(waiting) == MANY:  # no client gets a reply before all have sent
            all_there.set()
        await all_there.wait()
        return f"you said {body['messages'][0]['content']}"

    async with MessagesServer(meet, counter=len) as server, asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask_by_hand(server.url, str(number))) for number in range(MANY)]

    assert [task.result() for task in asked] == [f"you said {number}" for number in range(MANY)]
    assert (server.calls, server.refused) == (MANY, [])


async def ask_by_hand(url: str, text: str) -> str:
    """Send a request on a new connection, without the SDK.

    The SDK's pool checks all of its connections for each new one, which is slow for hundreds.
    """
    address = httpx2.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    body = json.dumps(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    )
    head = (
        f"POST /v1/messages HTTP/1.1\r\nhost: {address.host}\r\nx-api-key: test\r\n"
        "anthropic-version: 2023-06-01"
    )
    writer.write(
        f"{head}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    )
    answered = await reader.read()
    writer.close()
    await writer.wait_closed()
    return str(json.loads(answered.partition(b"\r\n\r\n")[2])["content"][0]["text"])


async def test_a_stopped_server_leaves_no_task_and_no_socket():
    tasks = asyncio.all_tasks()
    started: list[str] = []
    async with talk([Hang(), Hang(after=answer_with(LONG))]) as (server, client):
        plain = asyncio.create_task(ask(client))
        streaming = asyncio.create_task(listen(client, started))
        with anyio.move_on_after(0.2):
            await asyncio.wait({plain, streaming})
        url = httpx2.URL(server.url)
        await server.__aexit__(None, None, None)  # while the client still waits
        ends = await asyncio.gather(plain, streaming, return_exceptions=True)

    assert {type(end) for end in ends} <= {anthropic.APIConnectionError, http.RemoteProtocolError}
    assert asyncio.all_tasks() == tasks
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.host, url.port or 0))
    gc.collect()  # an unclosed socket would warn now, and a warning is an error


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_is_being_accepted_is_closed_with_the_server(turns: int):
    async with MessagesServer(lambda _: "fine", counter=len) as server:
        asking = [asyncio.create_task(ask_by_hand(server.url, "go")) for _ in range(20)]
        for _ in range(turns):
            await asyncio.sleep(0)

    with anyio.fail_after(30):  # each is answered or broken off, none waits for ever
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_server_stops_although_its_block_is_cancelled():
    async with anyio.create_task_group() as group, talk([Hang()]) as (server, client):
        url = httpx2.URL(server.url)
        group.start_soon(ask, client)
        await first_request(server)
        group.cancel_scope.cancel()
        await anyio.sleep_forever()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((url.host, url.port or 0))


async def test_a_client_that_disconnects_while_it_sends_is_no_error(
    caplog,
):
    async with MessagesServer([], counter=len) as server:
        address = httpx2.URL(server.url)
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        await writer.drain()
        await anyio.sleep(0.01)
        writer.close()
        await writer.wait_closed()

    assert (server.calls, caplog.records) == (0, [])


async def test_a_server_can_be_started_again():
    server = MessagesServer(["one", "two"], counter=len)
    for expected in ("one", "two"):
        async with server, anthropic.AsyncAnthropic(base_url=server.url, api_key="test") as client:
            assert (await ask(client)).content[0].text == expected  # type: ignore[union-attr]

    with pytest.raises(RuntimeError, match="not running"):
        _ = server.url


def test_a_server_runs_under_plain_asyncio():
    async def main() -> Literal["fine"]:
        async with talk(["fine"]) as (_, client):
            return (await ask(client)).content[0].text  # type: ignore[union-attr,return-value]

    assert asyncio.run(main()) == "fine"


def test_importing_testing_imports_no_web_server_and_no_sdk():
    code = (
        "import sys, ctxpipe.testing; print(*{'starlette', 'uvicorn', 'anthropic', 'tiktoken'} & "
        "set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_package_is_an_error_that_names_the_extra(missing):
    code = (
        f"import sys, asyncio; sys.modules[{missing!r}] = None\n"
        "from ctxpipe.testing import MessagesServer, MissingExtra\n"
        "try: asyncio.run(MessagesServer([], counter=len).__aenter__())\n"
        "except MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip().endswith("pip install 'ctxpipe[testing]'")
