"""The scripted Gemini API, asked over a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from pictures import picture

from ctxpipe.testing import (
    GeminiServer,
    Model,
    Reply,
    Script,
    answer_with,
    overloaded,
    rate_limited,
    thinking,
    tool_use,
)
from ctxpipe.testing.gemini_rules import signature_of

GO = {"role": "user", "parts": [{"text": "go"}]}
MODEL = "/v1beta/models/gemini-3-pro"
VERTEX = "/v1/projects/p/locations/global/publishers/google/models/gemini-3-pro"


@asynccontextmanager
async def talk(
    script: Script, **settings: Any
) -> AsyncIterator[tuple[GeminiServer, httpx2.AsyncClient]]:
    async with (
        GeminiServer(script, **settings) as server,
        httpx2.AsyncClient(base_url=server.url, headers={"x-goog-api-key": "test"}) as client,
    ):
        yield server, client


async def ask(
    client: httpx2.AsyncClient, method: str, *contents: Any, at: str = MODEL
) -> httpx2.Response:
    return await client.post(f"{at}:{method}", json={"contents": [GO, *contents]})


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    """The objects of a stream."""
    lines = [line for line in response.text.splitlines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def parts_of(reply: dict[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = reply["candidates"][0]["content"]["parts"]
    return parts


async def test_a_screenshot_counts_by_its_pixels():
    data = picture(0)["source"]["data"]
    shown = {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]}

    async with talk(["Seen."]) as (server, client):
        await ask(client, "generateContent", shown)

    assert 1_300 < server.requests[0].tokens < 1_400


@pytest.mark.parametrize("at", [MODEL, VERTEX])
async def test_a_call_is_continued_with_its_signature(at):
    script: list[Reply] = [
        answer_with(thinking("hm"), "I look.", tool_use("look", {"a": 1})),
        "Done.",
    ]

    async with talk(script) as (server, client):
        reply = (await ask(client, "generateContent", at=at)).json()
        said = reply["candidates"][0]["content"]
        result = {"functionResponse": {"name": "look", "response": {"output": "seen"}}}
        answered = {"role": "user", "parts": [result]}
        second = (await ask(client, "generateContent", said, answered, at=at)).json()

    assert not server.refused
    assert said["parts"] == [
        {"text": "hm", "thought": True},
        {"text": "I look."},
        {
            "functionCall": {"name": "look", "args": {"a": 1}},
            "thoughtSignature": signature_of("look"),
        },
    ]
    assert parts_of(second)[0]["text"] == "Done."
    assert second["usageMetadata"]["promptTokenCount"] == server.requests[1].tokens


async def test_a_request_that_breaks_a_rule_is_refused_in_the_form_of_the_api():
    async with talk(["no"]) as (server, client):
        response = await ask(client, "generateContent", {"role": "tool", "parts": [{"text": "x"}]})

    assert response.status_code == 400
    assert response.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert len(server.refused) == 1


async def test_a_stream_has_the_plain_reply_in_pieces():
    words = "many words " * 30
    script = [answer_with(words, tool_use("look", {"a": "b"}, id="c1"))]

    async with talk(script) as (_, client):
        response = await ask(client, "streamGenerateContent?alt=sse")
        found = events(response)

    parts = [part for event in found for part in parts_of(event)]
    assert "event-stream" in response.headers["content-type"]
    assert len(found) > 4
    assert "".join(part.get("text", "") for part in parts) == words
    [call] = [part["functionCall"] for part in parts if "functionCall" in part]
    assert call == {"id": "c1", "name": "look", "args": {"a": "b"}}
    ends = [event["candidates"][0].get("finishReason") for event in found]
    assert [end for end in ends if end] == ["STOP"]


async def test_a_stream_may_end_with_an_error():
    async with talk([overloaded(after=answer_with("many words " * 30))]) as (_, client):
        found = events(await ask(client, "streamGenerateContent?alt=sse"))

    assert found[-1]["error"]["status"] == "UNAVAILABLE"


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
async def test_a_prompt_that_is_too_long_is_refused_with_both_lengths(method):
    async with talk(["no"], model=Model(window=1_000)) as (server, client):
        response = await ask(client, method, {"parts": [{"text": "words " * 2_000}]})

    tokens = server.requests[0].tokens
    assert response.status_code == 400
    assert f"The input token count ({tokens}) exceeds the maximum" in response.text


async def test_items_sent_before_are_read_from_the_cache():
    long = {"parts": [{"text": "words " * 3_000}]}

    async with talk(["one", "two"]) as (_, client):
        replies = [(await ask(client, "generateContent", long)).json() for _ in range(2)]

    cached = [reply["usageMetadata"]["cachedContentTokenCount"] for reply in replies]
    assert cached[0] == 0
    assert cached[1] > 1_000


async def test_errors_have_the_names_of_the_api():
    async with talk([rate_limited()]) as (server, client):
        limited = await ask(client, "generateContent")
        unknown = await client.post(
            f"{server.url}{MODEL}:generateContent", headers={"x-goog-api-key": ""}, json={}
        )
    async with httpx2.AsyncClient() as nobody, GeminiServer([]) as server:
        refused = await nobody.post(f"{server.url}{MODEL}:generateContent", json={})

    assert limited.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert unknown.status_code == 400
    assert (refused.status_code, refused.json()["error"]["status"]) == (403, "PERMISSION_DENIED")
