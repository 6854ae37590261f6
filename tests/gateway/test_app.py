import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anthropic
import httpx2
import pytest
from gateways import Upstream, conversation, http, key, post, replies, result_of, serving
from models import MODEL

from ctxpipe.gateway import guard
from ctxpipe.testing import MessagesServer, Model, Received
from ctxpipe.testing.signatures import as_blocks, bare

HELLO = [{"role": "user", "content": "hello"}]


def bare_contents(request: Received) -> list[Any]:
    """What the messages of *request* say, without their cache marks."""
    contents: list[Any] = [message["content"] for message in request.body["messages"]]
    return [[bare(block) for block in as_blocks(content)] for content in contents]


def common_length(before: list[Any], after: list[Any]) -> int:
    """How many messages both begin with."""
    pairs = zip(before, after, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), len(before))


async def test_a_long_result_leaves_for_a_file_and_the_reply_comes_back(tmp_path):
    async with (
        MessagesServer(["hello"]) as api,
        serving(api.url, tmp_path) as gateway,
        anthropic.AsyncAnthropic(api_key=key(), base_url=gateway.url) as client,
    ):
        messages: Any = conversation(1)
        reply: Any = await client.messages.create(model=MODEL, max_tokens=100, messages=messages)
    assert reply.content[0].text == "hello"
    sent = result_of(api.requests[0].body["messages"][2])
    assert str(tmp_path) in sent
    assert len(sent) < 2_000


async def test_where_nothing_is_to_be_done_the_bytes_are_the_client_s_own(tmp_path):
    raw = b'{ "max_tokens":9, "messages":[ {"role":"user","content":"h\\u00e9"} ],"model":"m" }'
    async with MessagesServer(["hello"]) as api, serving(api.url, tmp_path) as gateway:
        reply = await post(gateway, raw)
    assert reply.status_code == 200, reply.text
    assert api.requests[0].raw == raw


async def test_what_is_not_rewritten_keeps_its_bytes(tmp_path):
    first, called, long = conversation(1)
    body = '{ "model" : "m", "unknown":[1.50], "max_tokens":9,"messages":[\n' + ",\n".join(
        [json.dumps(first, indent=1), json.dumps(called, indent=1), json.dumps(long)]
    )
    raw = f'{body} ], "temperature":  1.0}}'.encode()
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, raw)
    sent = api.bodies[0]
    assert sent.startswith(b'{ "model" : "m", "unknown":[1.50], "max_tokens":9,"messages":[')
    assert json.dumps(called, indent=1).encode() in sent
    assert sent.endswith(b', "temperature":  1.0}')
    assert len(sent) < 4_000 < len(raw)


async def test_a_stream_comes_chunk_by_chunk_and_its_bill_is_learned(tmp_path):
    async with (
        MessagesServer(replies(2)) as api,
        serving(api.url, tmp_path) as gateway,
        anthropic.AsyncAnthropic(api_key=key(), base_url=gateway.url) as client,
    ):
        messages: Any = conversation(1)
        stream = client.messages.stream(model=MODEL, max_tokens=100, messages=messages)
        async with stream as chunks:
            text = "".join([piece async for piece in chunks.text_stream])
    assert text == "reply 0"
    session = next(iter(gateway.gateway.shaper().conversations)).session
    assert session.memory.state.ledger.model == MODEL
    assert (gateway.gateway.record.turns[0].bill.dollars or 0) > 0


@pytest.mark.parametrize("restarts", [1, 8])
async def test_turn_after_turn_the_beginning_stays_the_same_also_after_a_restart(
    tmp_path, restarts
):
    async with MessagesServer(replies(8)) as api:
        for begun in range(1, 9, 8 // restarts):
            async with serving(api.url, tmp_path) as gateway:
                for rounds in range(begun, begun + 8 // restarts):
                    await post(gateway, {"messages": conversation(rounds)})
    for before, after in zip(api.requests, api.requests[1:], strict=False):
        known = before.body["messages"]
        assert after.body["messages"][: len(known)] == known


async def test_before_what_a_turn_rewrites_is_a_cache_mark(tmp_path):
    short, long = conversation(34, size=100), conversation(34, size=7_900)
    first, some = 49, 57  # the long results come after the first request
    history = [*short[:first], *long[first:some], *short[some:]]
    async with MessagesServer(replies(11)) as api, serving(api.url, tmp_path) as gateway:
        for stop in range(first, len(history) + 1, 2):
            *before, last = history[:stop]
            [result] = last["content"]
            marked = {**result, "cache_control": {"type": "ephemeral"}}
            await post(gateway, {"messages": [*before, {**last, "content": [marked]}]})
    rewritten = 0
    for earlier, later in itertools.pairwise(api.requests):
        changed = common_length(bare_contents(earlier), bare_contents(later))
        if changed < len(earlier.body["messages"]):
            rewritten += 1
            mark_before: Any = later.body["messages"][changed - 1]["content"]
            assert "cache_control" in mark_before[-1]
    assert rewritten


async def test_where_the_cache_keeps_an_hour_the_marks_of_the_client_are_for_an_hour(tmp_path):
    marked: Any = {"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}
    body: Any = {"messages": [{"role": "user", "content": [marked]}], "system": [marked]}
    async with MessagesServer(["ok"]) as api, serving(api.url, tmp_path, cache_seconds=3600) as it:
        await post(it, body)

    [sent] = api.requests
    lasting = {**marked, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert sent.body["system"] == sent.body["messages"][0]["content"] == [lasting]


async def test_after_too_long_a_shorter_request_is_sent_once(tmp_path):
    history = conversation(12, size=6_000)
    async with (
        MessagesServer(["fine"], model=Model(window=9_000)) as api,
        serving(api.url, tmp_path) as gateway,
    ):
        reply = await post(gateway, {"messages": history})
        record = gateway.gateway.record
    assert reply.status_code == 200
    assert [bool(request.problems) for request in api.requests] == [True, False]
    assert len(api.requests[1].raw) < len(api.requests[0].raw)
    assert record.outcomes["recovered"] == 1
    assert record.turns[0].outcome == "recovered"


async def test_conversations_of_one_name_with_equal_first_messages_do_not_mix(tmp_path):
    one = conversation(3)
    other = [*conversation(1)[:1], *conversation(4)[3:]]
    async with MessagesServer(replies(6)) as api, serving(api.url, tmp_path) as gateway:
        for length in (1, 3, 5):
            await post(gateway, {"messages": one[:length]})
            await post(gateway, {"messages": other[:length]})
        found = list(gateway.gateway.shaper().conversations)
    assert [len(conversation.session.memory.history) for conversation in found] == [5, 5]
    assert len({conversation.session.session_id for conversation in found}) == 2
    for before, after in zip(api.requests[::2], api.requests[2::2], strict=False):
        known = before.body["messages"]
        assert after.body["messages"][: len(known)] == known


async def test_with_the_switch_off_a_request_passes_as_it_came(tmp_path):
    body = {"messages": conversation(1)}
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, body, {"x-ctxpipe": "off"})
        await post(gateway, body)
    assert len(api.bodies[0]) > 20_000 > len(api.bodies[1])


async def test_an_error_of_ours_sends_the_request_as_it_came(tmp_path, caplog):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        with caplog.at_level(logging.WARNING, "ctxpipe"):
            raw = json.dumps(
                {"model": "m", "messages": [*HELLO, {"role": "nobody", "content": "x"}]}
            ).encode()
            await post(gateway, raw)
            await post(gateway, b'{"messages": [}')
    assert api.bodies == [raw, b'{"messages": [}']
    assert "the original request is sent" in caplog.text


async def test_a_dry_run_shapes_nothing_and_says_what_it_would_have_saved(tmp_path):
    root = tmp_path / "root"
    raw = json.dumps({"model": "m", "messages": conversation(2)}).encode()
    async with Upstream() as api, serving(api.url, root, dry_run=True) as gateway:
        reply = await post(gateway, raw)
        record = gateway.gateway.record
    assert api.bodies == [raw]
    assert int(reply.headers["x-ctxpipe-saved"]) > 4_500  # of 20,000 characters, estimated
    assert record.history_tokens - record.sent_tokens > 4_500
    assert not root.exists()


async def test_everything_else_passes_byte_for_byte(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway, http() as client:
        for method, path in [
            ("POST", "/v1/messages/count_tokens"),
            ("GET", "/v1/models?limit=%31&a=b%2Fc"),
            ("HEAD", "/"),
            ("DELETE", "/v1/files/a%20b"),
        ]:
            await client.request(method, gateway.url + path, content=b'{"messages": [ ]}')
    assert api.targets == [
        "POST /v1/messages/count_tokens",
        "GET /v1/models?limit=%31&a=b%2Fc",
        "HEAD /",
        "DELETE /v1/files/a%20b",
    ]
    assert set(api.bodies) == {b'{"messages": [ ]}'}


@pytest.mark.parametrize("is_chunked", [True, False], ids=["chunked", "of a known length"])
async def test_what_passes_has_no_limit_and_keeps_how_its_length_is_said(
    tmp_path, is_chunked, monkeypatch
):
    limit = 4 * 2**20  # all that may be shaped would take minutes
    monkeypatch.setattr(guard, "MAX_BODY", limit)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(limit // 2**20 + 1):
            yield bytes(2**20)

    content = chunks() if is_chunked else bytes(limit + 2**20)
    async with Upstream() as api, serving(api.url, tmp_path) as gateway, http() as client:
        reply = await client.post(f"{gateway.url}/v1/files", content=content)
    assert reply.status_code == 200
    assert len(api.bodies[0]) == limit + 2**20
    assert ("content-length" in api.headers[0]) != is_chunked


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/other"])
async def test_a_client_that_leaves_before_the_reply_ends_the_request_upstream(
    tmp_path, path, caplog
):
    asked, left = asyncio.Event(), asyncio.Event()

    async def think(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
        left.set()
        writer.close()

    async with (
        await asyncio.start_server(think, "127.0.0.1", 0) as api,
        serving(f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}", tmp_path) as gateway,
    ):
        with caplog.at_level(logging.INFO, "ctxpipe.gateway"):
            asking = asyncio.create_task(post(gateway, {"messages": HELLO}, path=path))
            await asyncio.wait_for(asked.wait(), 30)
            asking.cancel()
            await asyncio.wait_for(left.wait(), 30)
    assert gateway.gateway.record.number == 0
    assert f"POST {path}: the client left before the reply" in caplog.messages


async def test_what_is_refused_and_what_passes_has_a_line_in_the_log(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "ctxpipe.gateway"):
        async with Upstream() as api, serving(api.url, tmp_path) as gateway, http() as client:
            await client.get(f"{gateway.url}/v1/models?key=secret")
            await client.get(f"{gateway.url}/v1/a%0Ab")
            await client.get(f"{gateway.url}/v1/b", headers={"origin": "null"})
    assert caplog.messages == [
        "GET /v1/models: passed, status 200",
        "GET /v1/a%0Ab: refused, status 404",
        "GET /v1/b: refused, status 403: a page in a browser may not send requests to this gateway",
    ]


async def test_a_reply_that_breaks_off_is_one_line_and_no_traceback(tmp_path, caplog):
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        writer.write(head + b"transfer-encoding: chunked\r\n\r\n5\r\nevent")
        await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(break_off, "127.0.0.1", 0) as api,
        serving(f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}", tmp_path) as gateway,
    ):
        with pytest.raises(httpx2.RemoteProtocolError):
            await post(gateway, {"messages": HELLO})
    assert "the upstream's reply breaks off: RemoteProtocolError" in caplog.messages
    assert not any(record.exc_info for record in caplog.records)


async def test_a_header_that_the_upstream_names_for_the_next_hop_ends_here(tmp_path):
    api = Upstream(connection="x-hop")
    api.more["x-hop"] = "1"
    async with api, serving(api.url, tmp_path) as gateway:
        reply = await post(gateway, {"messages": HELLO})
    assert "x-hop" not in reply.headers
    assert reply.headers["request-id"] == "req_1"


async def test_identity_in_any_letters_is_no_compression(tmp_path):
    async with MessagesServer(replies(1)) as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, {"messages": HELLO}, {"content-encoding": "Identity"})
    assert gateway.gateway.record.outcomes["not shaped"] == 0


async def test_headers_go_through_but_those_of_the_hop_and_ours(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        given = {
            "anthropic-beta": "a,b",
            "x-strange": "1",
            "x-ctxpipe-session": "s",
            "connection": "close, x-hop",
            "x-hop": "2",
        }
        reply = await post(gateway, {"messages": HELLO}, given)
    sent = api.headers[0]
    assert sent["x-strange"] == "1"
    assert sent["anthropic-beta"] == "a,b"
    assert sent["x-api-key"] == key()
    assert sent["host"] == api.url.removeprefix("http://")
    assert not {"x-hop", "x-ctxpipe-session"} & set(sent)
    assert reply.headers["request-id"] == "req_1"
    assert reply.headers["retry-after"] == "7"


async def test_an_upstream_that_is_down_is_said_in_the_api_s_form(tmp_path):
    async with serving("http://127.0.0.1:9", tmp_path) as gateway:
        reply = await post(gateway, {"messages": HELLO})
        other = await post(gateway, {"messages": HELLO}, path="/v1/chat/completions")
    assert reply.status_code == other.status_code == 502
    assert reply.json()["error"]["type"] == "api_error"
    assert other.json()["error"]["code"] is None


async def test_each_token_has_a_folder_of_its_own(tmp_path):
    tokens = ["the token of the first", "the token of the second"]
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=tokens) as gateway,
    ):
        for token in tokens:
            await post(gateway, {"messages": conversation(1)}, {"x-ctxpipe-token": token})
    folders = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.md")}
    assert len(folders) == 2
    assert not any(token in str(path) for token in tokens for path in tmp_path.rglob("*"))


async def test_only_the_upstream_is_asked(tmp_path, monkeypatch):
    asked: set[Any] = set()
    connect = asyncio.base_events.BaseEventLoop.create_connection

    async def listening(loop: Any, factory: Any, host: Any = None, port: Any = None, **rest: Any):
        asked.add((host, port))
        return await connect(loop, factory, host, port, **rest)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "create_connection", listening)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with MessagesServer(replies(2)) as api, serving(api.url, tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway.url))
        asked.clear()
        body = json.dumps({"model": MODEL, "max_tokens": 9, "messages": conversation(1)}).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {key()}\r\n"
        head += f"anthropic-version: 2023-06-01\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        assert b" 200 " in await reader.readline()
        writer.close()
        assert {port for _, port in asked} == {port_of(api.url)}


async def test_its_health_says_that_it_is_one_process(tmp_path):
    async with serving("http://127.0.0.1:9", tmp_path) as gateway, http() as client:
        reply = await client.get(gateway.url + "/healthz")
    assert reply.json()["status"] == "ok"
    assert reply.json()["processes"].startswith("one: give --journal")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_what_a_user_says_leaves_as_a_result_where_its_beginning_is_named(tmp_path):
    observed = {"role": "user", "content": "Observation:" + " a line of the output" * 1_000}
    messages = [*HELLO, {"role": "assistant", "content": "Action: make"}, observed]
    async with (
        MessagesServer(replies(1)) as api,
        serving(api.url, tmp_path, observation="Observation:") as gateway,
    ):
        await post(gateway, {"messages": messages})
    [request] = api.requests
    *before, last = request.body["messages"]
    assert before == messages[:-1]
    assert "offloaded to file" in str(last["content"])
