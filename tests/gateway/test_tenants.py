"""What belongs to one token is nobody else's: neither texts nor names nor counts."""

import json
import logging
from typing import Any

import pytest
from gateways import Upstream, conversation, http, post, serving

from ctxpipe.gateway.tokens import parse_token

ALICE, BOB = "the token of Alice", "the token of Bob..."
SECRET = "the-diagnosis-of-alice"  # noqa: S105


def shown(token: str) -> dict[str, str]:
    return {"x-ctxpipe-token": token}


async def ask_as_alice(gateway, path: str = "/v1/messages", **more: str):
    history: list[Any] = [{"role": "user", "content": SECRET}]
    if path == "/v1/messages":
        history += conversation(1)[1:]
    key = "input" if path.endswith("responses") else "messages"
    body = {key: history, "metadata": {"user_id": "alice@bank.example"}}
    await post(gateway, body, {**shown(ALICE), **more}, path=path)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
async def test_the_page_has_the_own_conversations_only(tmp_path, path, dry_run):
    settings = {"tokens": [ALICE, BOB], "show_texts": True, "dry_run": dry_run}
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, **settings) as gateway,
        http() as client,
    ):
        await ask_as_alice(gateway, path)
        hers = (await client.get(gateway.url + "/", headers=shown(ALICE))).text
        his = (await client.get(gateway.url + "/", headers=shown(BOB))).text
    assert "1 turn: " in hers
    assert "No turn has been shaped yet" in his
    assert SECRET not in his
    assert "alice" not in his


async def test_what_passed_or_was_refused_is_counted_for_who_asked(tmp_path):
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=[ALICE, BOB]) as gateway,
        http() as client,
    ):
        await client.get(gateway.url + "/v1/models", headers=shown(ALICE))
        await client.get(gateway.url + "/mcp", headers=shown(ALICE))
        await client.get(gateway.url + "/v1/models", headers=shown("nobody's token at all"))
        pages = [
            (await client.get(gateway.url + "/", headers=shown(token))).text
            for token in (ALICE, BOB)
        ]
        everything = (
            str(gateway.gateway.record.outcomes["passed"]),
            str(gateway.gateway.record.outcomes["refused"]),
        )
    assert "1 other request passed through, 1 request refused" in pages[0]
    assert "passed through" not in pages[1]
    assert "refused" not in pages[1]
    assert everything == ("1", "2")


async def test_the_health_tells_the_own_turns_only(tmp_path):
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=[ALICE, BOB]) as gateway,
        http() as client,
    ):
        await ask_as_alice(gateway)
        turns = [
            (await client.get(gateway.url + "/healthz", headers=shown(token))).json()["turns"]
            for token in (ALICE, BOB)
        ]
    assert turns == [1, 0]


async def test_the_tools_read_the_own_texts_only(tmp_path):
    given = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    said = {}
    async with (
        Upstream() as api,
        serving(api.url, tmp_path, tokens=[ALICE, BOB]) as gateway,
        http() as client,
    ):
        await ask_as_alice(gateway)
        [path] = map(str, tmp_path.rglob("*.md"))
        params = {"name": "read_offloaded", "arguments": {"path": path}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        for token in (ALICE, BOB):
            headers = {**given, **shown(token)}
            said[token] = (await client.post(gateway.url + "/mcp", headers=headers, json=body)).text
    assert "line 0 of the output" in said[ALICE]
    assert "line 0 of the output" not in said[BOB]
    assert '"isError":true' in said[BOB]


async def test_no_cookie_of_one_goes_with_the_request_of_another(tmp_path):
    async with (
        Upstream(200, **{"set-cookie": "who=alice; Path=/"}) as api,
        serving(api.url, tmp_path, tokens=[ALICE, BOB]) as gateway,
    ):
        await ask_as_alice(gateway)
        reply = await post(gateway, {"messages": conversation(1)}, shown(BOB))
        await post(gateway, {"messages": conversation(1)}, {**shown(BOB), "cookie": "who=bob"})
    assert "cookie" not in api.headers[1]
    assert api.headers[2]["cookie"] == "who=bob"
    assert reply.headers["set-cookie"] == "who=alice; Path=/"


async def test_the_log_tells_whose_a_turn_was_and_no_token(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "ctxpipe.gateway"):
        async with Upstream() as api, serving(api.url, tmp_path, tokens=[ALICE, BOB]) as gateway:
            await ask_as_alice(gateway)
            await post(gateway, {"messages": conversation(1)}, shown(BOB))
    owners = [parse_token(token).owner for token in (ALICE, BOB)]
    lines = [text for text in caplog.messages if text.startswith("turn ")]
    for line, owner in zip(lines, owners, strict=True):
        assert line.startswith("turn 1 of ")
        assert f" for {owner}: " in line
    assert ALICE not in caplog.text


async def test_who_runs_the_gateway_has_the_sums_of_all(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path, tokens=[ALICE, BOB]) as gateway:
        await ask_as_alice(gateway)
        await post(gateway, {"messages": conversation(1)}, shown(BOB))
        record = gateway.gateway.record
    assert str(record).startswith("2 turns, ")
    assert not record.turns
    assert SECRET not in json.dumps(str(record))
