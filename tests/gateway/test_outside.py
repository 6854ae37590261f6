"""What a program beside the agent asks of a gateway: a compaction, and rules that stay."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from gateways import TASK, Upstream, conversation, http, post, serving

from ctxpipe.gateway.serving import Serving

TOKENS = ("the token of the first", "the token of the second")
NAMED = {"x-ctxpipe-session": "job/42"}
CHAT: list[dict[str, Any]] = [
    TASK,
    *(
        message
        for number in range(10)
        for message in (
            {"role": "assistant", "content": f"{number}: {'words of a long talk. ' * 800}"},
            {"role": "user", "content": f"{number}: and then?"},
        )
    ),
]
ON = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "go on"}]


async def compact(gateway: Serving, name: str = "job/42", **headers: str) -> httpx2.Response:
    async with http() as client:
        path = f"/ctxpipe/sessions/{name}/compact"
        return await client.post(gateway.url + path, headers=headers)


def size(body: bytes) -> int:
    return len(json.dumps(json.loads(body)["messages"]))


async def test_the_next_turn_of_a_named_session_begins_with_a_compaction(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, {"messages": CHAT}, NAMED)
        reply = await compact(gateway)
        await post(gateway, {"messages": [*CHAT, *ON]}, NAMED)
        await post(gateway, {"messages": [*CHAT, *ON, *ON]}, NAMED)
    assert (reply.status_code, reply.json()) == (202, {"compact": ["job/42"]})
    whole, summed_up, later = map(size, api.bodies)
    assert summed_up < whole / 5
    assert summed_up < later < whole / 5
    assert json.loads(api.bodies[1])["messages"][-1] == ON[-1]


async def test_another_session_keeps_its_history(tmp_path):
    other = {"x-ctxpipe-session": "job/43"}
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, {"messages": CHAT}, NAMED)
        await post(gateway, {"messages": CHAT}, other)
        await compact(gateway)
        await post(gateway, {"messages": [*CHAT, *ON]}, other)
    assert size(api.bodies[2]) > size(api.bodies[1])


@pytest.mark.parametrize(
    ("name", "settings", "status", "told"),
    [
        ("nobody", {}, 404, "no session 'nobody' has asked"),
        ("job/42", {"dry_run": True}, 400, "every request is sent unchanged"),
    ],
)
async def test_where_nothing_can_be_compacted_that_is_said(tmp_path, name, settings, status, told):
    async with Upstream() as api, serving(api.url, tmp_path, **settings) as gateway:
        await post(gateway, {"messages": CHAT}, NAMED)
        reply = await compact(gateway, name)
    assert reply.status_code == status
    assert told in reply.json()["error"]["message"]
    assert len(api.bodies) == 1


async def test_a_pipeline_without_compaction_says_so(tmp_path):
    file = tmp_path / "pipeline.toml"
    file.write_text('[[stage]]\nuse = "DirectOffload"\n')
    async with Upstream() as api, serving(api.url, tmp_path, preset=str(file)) as gateway:
        await post(gateway, {"messages": CHAT}, NAMED)
        reply = await compact(gateway)
    assert reply.status_code == 400
    assert "no Compact stage" in reply.json()["error"]["message"]


async def test_only_a_token_of_its_own_compacts_a_session(tmp_path):
    first, second = ({"x-ctxpipe-token": token} for token in TOKENS)
    async with Upstream() as api, serving(api.url, tmp_path, tokens=TOKENS) as gateway:
        await post(gateway, {"messages": CHAT}, {**NAMED, **first})
        statuses = [
            (await compact(gateway, "job/42", **headers)).status_code
            for headers in ({}, second, {"authorization": f"Bearer {TOKENS[0]}"})
        ]
    assert statuses == [401, 404, 202]


async def test_a_page_in_a_browser_compacts_nothing(tmp_path):
    async with Upstream() as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, {"messages": CHAT}, NAMED)
        reply = await compact(gateway, origin="https://evil.example")
    assert reply.status_code == 403


@pytest.mark.parametrize("preset", ["coding", "lean", "chat"])
async def test_a_pinned_rule_survives_a_compaction_word_for_word(tmp_path, preset):
    rule = {"role": "user", "content": "RULE: never touch main. " + "Why: it is long. " * 500}
    history = [TASK, CHAT[1], rule, *CHAT[3:]]
    settings = {"preset": preset, "pin": ["RULE:"]}
    async with Upstream() as api, serving(api.url, tmp_path, **settings) as gateway:
        await post(gateway, {"messages": history}, NAMED)
        await compact(gateway)
        await post(gateway, {"messages": [*history, *ON]}, NAMED)
    assert rule in json.loads(api.bodies[1])["messages"]
    assert CHAT[1] not in json.loads(api.bodies[1])["messages"]


async def test_a_result_that_says_a_pinned_text_is_no_rule(tmp_path):
    history = conversation(12, 3_000)
    said = "line 3 of the output"
    async with Upstream() as api, serving(api.url, tmp_path, pin=[said]) as gateway:
        await post(gateway, {"messages": history}, NAMED)
        await compact(gateway)
        await post(gateway, {"messages": [*history, *ON]}, NAMED)
    assert api.bodies[0].count(said.encode()) > 100
    assert api.bodies[1].count(said.encode()) < 3
