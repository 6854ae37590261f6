"""Requests whose bodies are compressed: shaped, and sent on as the upstream can read them."""

from __future__ import annotations

import gzip
import json
import logging
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import brotli
import pytest
from gateways import Upstream, conversation, http, key, post, replies, result_of, serving
from models import MODEL

from ctxpipe.testing import MessagesServer, Model

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "gzip, zstd": lambda raw: zstd.compress(gzip.compress(raw)),
}
every_encoding = pytest.mark.parametrize("encoding", ENCODERS)


def body(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"model": MODEL, "max_tokens": 9, "messages": messages, **more}).encode()


@every_encoding
async def test_a_compressed_request_is_shaped_and_goes_out_plain(tmp_path, encoding):
    packed = ENCODERS[encoding](body(conversation(1)))
    async with MessagesServer(replies(1)) as api, serving(api.url, tmp_path) as gateway:
        reply = await post(gateway, packed, {"content-encoding": encoding})
    assert reply.status_code == 200
    [sent] = api.requests
    assert "offloaded to file" in result_of(sent.body["messages"][2])
    assert "content-encoding" not in sent.headers
    assert int(sent.headers["content-length"]) == len(sent.raw)
    assert gateway.gateway.record.outcomes["not shaped"] == 0


@every_encoding
async def test_a_compressed_request_with_nothing_to_shape_goes_out_plain_too(tmp_path, encoding):
    raw = body([{"role": "user", "content": "h\u00e9llo"}])
    packed = ENCODERS[encoding](raw)
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, packed, {"content-encoding": encoding})
        record = gateway.gateway.record
    assert api.bodies == [raw]
    assert "content-encoding" not in api.headers[0]
    assert [turn.outcome for turn in record.turns] == ["unchanged"]


async def test_encodings_in_two_headers_are_one_list(tmp_path):
    packed = zstd.compress(gzip.compress(body(conversation(1))))
    async with MessagesServer(replies(1)) as api, serving(api.url, tmp_path) as gateway:
        headers = [("content-encoding", "gzip"), ("content-encoding", "zstd")]
        headers += [("anthropic-version", "2023-06-01"), ("x-api-key", key())]
        async with http() as client:
            reply = await client.post(f"{gateway.url}/v1/messages", content=packed, headers=headers)
    assert reply.status_code == 200
    assert "offloaded to file" in str(api.requests[0].body)


async def test_turn_after_turn_the_beginning_stays_the_same(tmp_path):
    async with MessagesServer(replies(4)) as api, serving(api.url, tmp_path) as gateway:
        for rounds in range(1, 5):
            packed = zstd.compress(body(conversation(rounds)))
            await post(gateway, packed, {"content-encoding": "zstd"})
    for before, after in zip(api.requests, api.requests[1:], strict=False):
        known = before.body["messages"]
        assert after.body["messages"][: len(known)] == known


async def test_after_too_long_the_shorter_request_is_plain_too(tmp_path):
    packed = zstd.compress(body(conversation(12, size=6_000)))
    async with (
        MessagesServer(["fine"], model=Model(window=9_000)) as api,
        serving(api.url, tmp_path) as gateway,
    ):
        reply = await post(gateway, packed, {"content-encoding": "zstd"})
    assert reply.status_code == 200
    assert [bool(request.problems) for request in api.requests] == [True, False]
    assert all("content-encoding" not in request.headers for request in api.requests)


async def test_a_dry_run_sends_the_compressed_bytes_and_says_what_it_would_save(tmp_path):
    packed = zstd.compress(body(conversation(2)))
    async with Upstream() as api, serving(api.url, tmp_path / "no", dry_run=True) as gateway:
        reply = await post(gateway, packed, {"content-encoding": "zstd"})
    assert api.bodies == [packed]
    assert api.headers[0]["content-encoding"] == "zstd"
    assert int(reply.headers["x-ctxpipe-saved"]) > 4_500


@pytest.mark.parametrize(
    ("encoding", "packed", "reason"),
    [
        ("zstd", b"no zstd at all", "it is not zstd"),
        ("gzip", gzip.compress(body(conversation(1)))[:-9], "ends in the middle"),
        ("compress", b"\x1f\x9d", "'compress' is unknown"),
        ("gzip", gzip.compress(bytes(2**26)), "more than"),
    ],
    ids=["not what it says", "cut off", "unknown", "a bomb"],
)
async def test_what_cannot_be_decoded_is_sent_on_as_it_came_with_a_line_in_the_log(
    tmp_path, caplog, encoding, packed, reason
):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        with caplog.at_level(logging.WARNING, "ctxpipe"):
            reply = await post(gateway, packed, {"content-encoding": encoding})
        record = gateway.gateway.record
    assert reply.status_code == 200
    assert api.bodies == [packed]
    assert api.headers[0]["content-encoding"] == encoding
    assert [turn.outcome for turn in record.turns] == ["not shaped"]
    [line] = caplog.messages
    assert "the original request is sent" in line
    assert reason in line


async def test_with_the_switch_off_nothing_is_decoded(tmp_path):
    packed = zstd.compress(body(conversation(1)))
    headers = {"content-encoding": "zstd", "x-ctxpipe": "off"}
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, packed, headers)
    assert api.bodies == [packed]
    assert api.headers[0]["content-encoding"] == "zstd"


async def test_what_is_not_ours_to_shape_keeps_its_compressed_bytes(tmp_path):
    summary: list[dict[str, Any]] = [{"type": "compaction", "content": "so far"}]
    packed = zstd.compress(body([{"role": "user", "content": summary}]))
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, packed, {"content-encoding": "zstd"})
    assert api.bodies == [packed]
    assert api.headers[0]["content-encoding"] == "zstd"
