"""Gemini's API through the gateway, plain, streamed, and as Vertex serves it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from gateways import Upstream, serving

from ctxpipe.testing import GeminiServer, Model, answer_with, tool_use

GO = {"role": "user", "parts": [{"text": "look"}]}
RESULT = "a line of the output\n" * 900
STUDIO = "/v1beta/models/gemini-3-pro-preview"
VERTEX = "/v1/projects/p/locations/global/publishers/google/models/gemini-3-pro-preview"
METHODS = ["generateContent", "streamGenerateContent?alt=sse"]


def client_of(url: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, headers={"x-goog-api-key": "k"}, timeout=60)


async def ask(
    client: httpx2.AsyncClient, contents: list[Any], method: str = METHODS[0], at: str = STUDIO
) -> list[dict[str, Any]]:
    """The parts of the reply to *contents*, as they came."""
    response = await client.post(f"{at}:{method}", json={"contents": contents})
    assert response.status_code == 200, response.text
    if "sse" in method:
        lines = [line for line in response.text.splitlines() if line]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
    else:
        events = [response.json()]
    return [part for event in events for part in event["candidates"][0]["content"]["parts"]]


def answered(parts: list[dict[str, Any]], text: str = RESULT) -> list[dict[str, Any]]:
    """A reply of *parts*, each in a content as a stream brings it, and what its calls answer."""
    results: list[dict[str, Any]] = []
    for part in parts:
        if "functionCall" in part:
            name = part["functionCall"]["name"]
            results.append({"functionResponse": {"name": name, "response": {"output": text}}})
    said = [{"role": "model", "parts": [part]} for part in parts]
    return [*said, {"role": "user", "parts": results}]


def check_prefix(api: GeminiServer):
    """Each request begins as the one before it."""
    bodies: list[Any] = [request.body for request in api.requests]
    for before, after in pairwise(bodies):
        known = before["contents"]
        assert after["contents"][: len(known)] == known


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at", [STUDIO, VERTEX])
async def test_long_results_leave_and_the_beginning_stays(tmp_path, method, at):
    replies = [answer_with("I look.", tool_use("ls", {}), tool_use("ls", {"a": 1}))] * 5
    contents: list[Any] = [GO]
    async with (
        GeminiServer(replies) as api,
        serving(api.url, tmp_path) as gateway,
        client_of(gateway.url) as client,
    ):
        for _ in replies:
            contents += answered(await ask(client, contents, method, at))
        record = gateway.gateway.record
    assert api.refused == []
    assert record.outcomes["not shaped"] == 0
    assert record.sent_tokens < record.history_tokens / 3
    assert all(len(request.raw) < 12_000 for request in api.requests)
    check_prefix(api)
    assert {turn.model for turn in record.turns} == {"gemini-3-pro-preview"}
    assert all(turn.bill.dollars for turn in record.turns)


async def test_a_loop_survives_a_restart_of_the_gateway(tmp_path):
    replies = [answer_with(tool_use("ls", {})) for _ in range(4)] + ["done"]
    contents: list[Any] = [GO]
    async with GeminiServer(replies) as api:
        for number in range(5):
            async with serving(api.url, tmp_path) as gateway, client_of(gateway.url) as client:
                parts = await ask(client, contents)
            contents += answered(parts, f"{number} {RESULT}")
    assert api.refused == []
    check_prefix(api)


@pytest.mark.parametrize("method", METHODS)
async def test_a_prompt_that_is_too_long_is_sent_again_shorter(tmp_path, method):
    contents: list[Any] = [GO]
    for number in range(12):
        words = f"{number} " + "some words of the user " * 150
        contents += [{"role": "model", "parts": [{"text": "ok"}]}, {"parts": [{"text": words}]}]
    async with (
        GeminiServer(["fine"], model=Model(window=8_000)) as api,
        serving(api.url, tmp_path) as gateway,
        client_of(gateway.url) as client,
    ):
        parts = await ask(client, contents, method)
        record = gateway.gateway.record
    assert parts[0]["text"] == "fine"
    assert [bool(request.problems) for request in api.requests] == [True, False]
    assert [turn.outcome for turn in record.turns] == ["recovered"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{STUDIO}:countTokens", {"contents": [GO]}),
        ("/v1internal:streamGenerateContent", {"model": "m", "request": {"contents": [GO]}}),
        (f"{STUDIO}:generateContent", {"contents": [GO], "cachedContent": "cachedContents/1"}),
        ("/v1beta/cachedContents", {"contents": [GO]}),
    ],
)
async def test_other_requests_pass_byte_for_byte(tmp_path, path, body):
    raw = json.dumps(body, indent=1).encode()
    async with (
        Upstream() as api,
        serving(api.url, tmp_path) as gateway,
        client_of(gateway.url) as client,
    ):
        await client.post(path, content=raw)
    assert api.bodies == [raw]


async def test_the_gateway_refuses_in_the_form_of_the_api(tmp_path):
    async with (
        serving("http://127.0.0.1:9", tmp_path) as gateway,
        client_of(gateway.url) as client,
    ):
        response = await client.post(f"{STUDIO}:generateContent", json={"contents": [GO]})
    assert response.status_code == 502
    assert response.json()["error"] == {
        "code": 502,
        "message": "ctxpipe gateway: the upstream does not answer",
        "status": "INTERNAL",
    }
