"""The tools that read back, by the official client over HTTP, and who is given them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from gateways import Upstream, conversation, http, post, result_of, serving
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from places import ROOT
from processes import prepared_python

from ctxpipe.gateway import app
from ctxpipe.gateway.serving import Serving

TOKENS = ("the token of the first", "the token of the second")


@asynccontextmanager
async def talk(
    gateway: Serving, headers: Mapping[str, str] | None = None
) -> AsyncIterator[ClientSession]:
    """The official client of the Model Context Protocol at ``/mcp``."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30, trust_env=False, verify=False) as client,
        streamable_http_client(gateway.url + "/mcp", http_client=client) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


async def call(session: ClientSession, tool: str, **arguments: Any) -> tuple[str, bool]:
    """What *tool* says, and whether that is an error."""
    result: Any = await session.call_tool(tool, arguments)
    [content] = result.content
    return content.text, bool(result.is_error)


async def offload(gateway: Serving, headers: Mapping[str, str] | None = None):
    await post(gateway, {"messages": conversation(1)}, headers)


def file_below(root: Path) -> str:
    """The one text that has left a context."""
    [path] = root.rglob("*.md")
    return str(path)


async def test_what_has_left_a_context_is_read_and_searched_over_http(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await offload(gateway)
        path = file_below(tmp_path)
        async with talk(gateway) as session:
            listed = (await session.list_tools()).tools
            page, failed = await call(session, "read_offloaded", path=path, limit=30)
            found, _ = await call(session, "search_offloaded", path=path, pattern="line 0", limit=1)
    assert [tool.name for tool in listed] == [
        "read_offloaded",
        "search_offloaded",
        "search_history",
    ]
    assert page.startswith("line 0 of the output")
    assert not failed
    assert "line 0" in found
    assert api.targets == ["POST /v1/messages"]


async def test_a_conversation_is_searched_by_a_path_that_its_placeholder_names(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, tokens=TOKENS) as gateway:
        await offload(gateway, {"x-ctxpipe-token": TOKENS[0]})
        path = file_below(tmp_path)
        said = []
        for token in TOKENS:
            async with talk(gateway, {"x-ctxpipe-token": token}) as session:
                said.append(await call(session, "search_history", query="output", path=path))
    assert said[0][0].startswith(f"{path}, offset 0:\nline 0 of the output")
    assert said[0][1] is False
    assert said[1][1] is True


async def test_what_was_read_back_stays_in_the_context(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await offload(gateway)
        path = file_below(tmp_path)
        async with talk(gateway) as session:
            page, _ = await call(session, "read_offloaded", path=path)
        history = conversation(2)
        history[3]["content"][0]["name"] = "mcp__ctxpipe__read_offloaded"
        history[3]["content"][0]["input"] = {"path": path}
        history[4]["content"][0]["content"] = page
        await post(gateway, {"messages": history})
    assert len(page) > 10_000
    assert result_of(json.loads(api.bodies[-1])["messages"][4]) == page


@pytest.mark.parametrize("scheme", ["x-ctxpipe-token", "authorization"])
async def test_a_token_reads_what_is_its_own(tmp_path, scheme):
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=TOKENS) as gateway,
    ):
        await offload(gateway, {"x-ctxpipe-token": TOKENS[0]})
        path = file_below(tmp_path)
        said = []
        for token in TOKENS:
            shown = {scheme: token if scheme != "authorization" else f"Bearer {token}"}
            async with talk(gateway, shown) as session:
                said.append(await call(session, "read_offloaded", path=path))
    assert [failed for _, failed in said] == [False, True]
    assert "line 0" not in said[1][0]


REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.mark.parametrize(
    ("headers", "tokens", "status"),
    [
        ({"host": "evil.example"}, (), 403),
        ({"origin": "http://127.0.0.1"}, (), 403),
        ({}, TOKENS, 401),
        ({"authorization": "Bearer another token of nobody"}, TOKENS, 401),
    ],
)
async def test_the_guard_of_the_gateway_is_before_it(tmp_path, headers, tokens, status):
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=tokens) as gateway,
        http() as client,
    ):
        url = gateway.url + "/mcp"
        reply = await client.post(url, json=REQUEST, headers={**ACCEPT, **headers})
    assert reply.status_code == status
    assert reply.json()["type"] == "error"
    assert api.targets == []


async def test_it_keeps_no_stream_open(tmp_path):
    async with serving("http://127.0.0.1:9", tmp_path) as gateway, http() as client:
        reply = await client.get(gateway.url + "/mcp", headers=ACCEPT)
    assert reply.status_code == 405


@pytest.mark.parametrize("why", ["no files", "a dry run", "no package"])
async def test_where_nothing_can_be_read_back_the_path_is_the_upstream_s(
    tmp_path, monkeypatch, why
):
    if why == "no package":
        monkeypatch.setattr(app, "find_spec", lambda _: None)
    root = None if why == "no files" else tmp_path
    async with (
        Upstream() as api,
        serving(api.url, root, dry_run=why == "a dry run") as gateway,
        http() as client,
    ):
        await client.post(gateway.url + "/mcp", json=REQUEST)
        assert gateway.reader_url is None
    assert api.targets == ["POST /mcp"]


async def test_without_files_nothing_leaves_for_one_and_a_context_is_still_compacted(tmp_path):
    history = conversation(12, size=6_000)
    async with Upstream() as api, serving(api.url, None, window=9_000) as gateway:
        await post(gateway, {"messages": history})
        assert gateway.gateway.record.turns[0].removals[0][0] == "Compact"
    assert len(api.bodies[0]) < 0.6 * len(json.dumps(history))
    assert str(tmp_path).encode() not in api.bodies[0]
    assert list(tmp_path.iterdir()) == []


# Agents that are wrapped --------------------------------------------------------------------------


async def wrapped_arguments(folder: Path, program: str, *options: str) -> list[str]:
    """The arguments that an agent called *program* is run with by ``ctxpipe wrap``."""
    agent = folder / program
    agent.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    agent.chmod(0o755)
    run = await asyncio.create_subprocess_exec(
        *(*prepared_python(), "-m", "ctxpipe", "wrap", *options, "--", str(agent), "-p", "a task"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    output, _ = await run.communicate()
    found: list[str] = json.loads(output)
    return found


async def test_claude_is_told_where_the_reading_tools_are(tmp_path):
    told, *rest = await wrapped_arguments(tmp_path, "claude")
    option, _, config = told.partition("=")
    server = json.loads(config)["mcpServers"]["ctxpipe"]
    assert option == "--mcp-config"
    assert server["type"] == "http"
    assert server["alwaysLoad"] is True
    assert server["url"].endswith("/mcp")
    assert rest == ["-p", "a task"]


@pytest.mark.parametrize(
    ("program", "options"),
    [("an-agent", ()), ("claude", ("--no-files",)), ("claude", ("--dry-run",))],
)
async def test_others_and_those_without_files_are_told_nothing(tmp_path, program, options):
    assert await wrapped_arguments(tmp_path, program, *options) == ["-p", "a task"]
