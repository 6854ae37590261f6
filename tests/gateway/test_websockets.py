"""Handshakes of WebSockets: refused at once, so that a client goes on by HTTP."""

from __future__ import annotations

import json
import logging

import pytest
from anyio import to_thread
from gateways import Upstream, answer_to, request, serving

UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
TARGETS = ("/v1/responses", "/openai/responses", "/anything?a=b", "/", "/healthz", "/mcp")


@pytest.mark.parametrize("target", TARGETS)
async def test_a_handshake_is_answered_426_on_every_path_and_goes_nowhere(tmp_path, target):
    raw = request(f"GET {target}", *UPGRADE, length=False, body=b"")
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        status, answer = await to_thread.run_sync(answer_to, gateway, raw)
    assert status == 426
    assert "ask by HTTP" in json.loads(answer)["error"]["message"]
    assert api.targets == []


@pytest.mark.parametrize(
    "lines",
    [
        ("Connection: keep-alive, Upgrade", "Upgrade: WebSocket"),
        ("Connection: Upgrade", "Upgrade: foo, websocket"),
        ("Connection: Upgrade", "Upgrade: foo", "Upgrade: websocket/13"),
        (*UPGRADE, "Origin: https://page.example"),
    ],
)
async def test_a_handshake_is_known_in_every_spelling(tmp_path, lines):
    raw = request("GET /v1/responses", *lines, length=False, body=b"")
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        status, _ = await to_thread.run_sync(answer_to, gateway, raw)
    assert status == 426
    assert api.targets == []


async def test_a_handshake_without_a_token_is_refused_in_the_same_way(tmp_path):
    raw = request("GET /v1/responses", *UPGRADE, length=False, body=b"")
    async with Upstream() as api, serving(api.url, tmp_path, tokens=["x" * 16]) as gateway:
        status, _ = await to_thread.run_sync(answer_to, gateway, raw)
    assert status == 426


async def test_the_log_has_one_line_for_all_handshakes(tmp_path, caplog):
    raw = request("GET /v1/responses", *UPGRADE, length=False, body=b"")
    with caplog.at_level(logging.INFO, "ctxpipe.gateway"):
        async with Upstream() as api, serving(api.url, tmp_path) as gateway:
            for _ in range(3):
                await to_thread.run_sync(answer_to, gateway, raw)
    [line] = caplog.messages
    assert "WebSocket" in line
    assert "426" in line


async def test_another_upgrade_is_no_reason_to_refuse(tmp_path):
    raw = request("GET /v1/models", "Connection: Upgrade", "Upgrade: h2c", length=False, body=b"")
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        status, _ = await to_thread.run_sync(answer_to, gateway, raw)
    assert status == 200
    assert api.targets == ["GET /v1/models"]
