"""What real clients send, replayed through a gateway: shaped, and never against the API's rules."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from client_requests import FOLDER, FORM_HEADERS, ITEM_LISTS, Recording, filler, read
from clients import RECORDED, parts_of
from gateways import http, serving
from places import ROOT
from recorder import Sent

from ctxpipe.gateway.serving import Serving
from ctxpipe.testing import GeminiServer, MessagesServer, Model, OpenAIServer
from ctxpipe.testing.scripted import Received, ScriptedServer
from ctxpipe.testing.signatures import sign
from ctxpipe.wire.formats import MESSAGES, Gemini, format_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

every_client = pytest.mark.parametrize("name", RECORDED)
FOLDED = "[Conversation compressed]"
LONG = 1000  # characters of a result that leaves at once


def api_of(recording: Recording, window: int = 1_000_000) -> ScriptedServer:
    """The scripted API that the client asks, with a *window*."""
    sent = recording.messages[0]
    known = format_of(sent.method, sent.target.partition("?")[0])
    kind: type[ScriptedServer] = OpenAIServer
    if known is MESSAGES:
        kind = MessagesServer
    elif isinstance(known, Gemini):
        kind = GeminiServer
    return kind(lambda _: "Yes.", model=Model(window=window))


async def send(url: str, sent: Sent) -> httpx2.Response:
    """The answer at *url* to the request *sent*, with its own headers and compression."""
    content = None
    if sent.body is not None:
        content = json.dumps(sent.body, ensure_ascii=False, separators=(",", ":")).encode()
        if ("content-encoding", "zstd") in sent.headers:
            content = zstd.compress(content)
    async with http() as client:
        return await client.request(
            sent.method, url + sent.target, headers=sent.headers, content=content
        )


async def tokens_of(recording: Recording) -> int:
    """What the API counts for the last request when it is sent as the client has it."""
    async with api_of(recording) as api:
        api.model = replace(api.model, thinking="unchecked")
        await send(api.url, recording.messages[-1])
    return api.requests[0].tokens


@asynccontextmanager
async def replayed(
    recording: Recording, root: Path | None, window: int
) -> AsyncIterator[tuple[Serving, list[Received]]]:
    """A gateway through which all requests went, and what its API has got of those with tools."""
    answers: list[Any] = []
    async with (
        api_of(recording, window) as api,
        serving(api.url, root, window=window) as gateway,
    ):
        for number, sent in enumerate(recording.requests):
            reply = await send(gateway.url, replace(sent, body=with_answers(sent.body, answers)))
            is_handshake = ("upgrade", "websocket") in sent.headers
            assert reply.status_code == (426 if is_handshake else 200), reply.text
            for later in recording.requests[number + 1 : number + 2]:
                new = answers_in(later.body)[len(answers) :]
                answers += [sign(api.requests[-1].body, blocks) for blocks in new]
        asked = [sent for sent in recording.requests if sent.body is not None]
        received = zip(asked, api.requests, strict=True)
        yield gateway, [request for sent, request in received if sent in recording.messages]
    assert api.refused == []


def answers_in(body: Any) -> list[Any]:
    """The replies of the model in the messages of *body*."""
    messages = (body or {}).get("messages", ())
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    return [answer for answer in answers if isinstance(answer, list)]


def with_answers(body: Any, answers: Sequence[Any]) -> Any:
    """*body* with the *answers* that the API has given in this run, which it has signed."""
    if not answers_in(body):
        return body
    rest = iter(answers)
    messages = []
    for message in body["messages"]:
        if message["role"] == "assistant" and isinstance(message["content"], list):
            messages.append({**message, "content": next(rest)})
        else:
            messages.append(message)
    return {**body, "messages": messages}


def tools_of(body: Mapping[str, Any]) -> list[Any]:
    """The tools in *body*: beside its items, or in one of them."""
    tools = list(body.get("tools") or ())
    for item in body.get("input") or ():
        if isinstance(item, dict):
            tools += item.get("tools") or ()
    return tools


def head_of(body: Any) -> list[object]:
    """What *body* says before the user says something, without cache marks."""
    items = next(body[name] for name in ITEM_LISTS if name in body)
    roles = [item.get("role") for item in items]
    parts = parts_of(body)
    return parts[: len(parts) - len(items) + roles.index("user")]


@every_client
async def test_long_results_leave_for_files_and_no_request_breaks_a_rule(name, tmp_path):
    recording = read(name)
    async with replayed(recording, tmp_path, 400_000) as (gateway, received):
        record = gateway.gateway.record
        contexts = [parts_of(request.body) for request in received]
    assert len(received) == len(recording.messages) >= 5
    assert record.outcomes["not shaped"] == 0
    assert "offloaded to file" in json.dumps(received[-1].body)
    assert len(received[-1].raw) < 0.8 * len(json.dumps(recording.messages[-1].body))
    for before, after in itertools.pairwise(contexts):
        assert after[: len(before)] == before
    for sent, request in zip(recording.messages, received, strict=True):
        assert tools_of(request.body) == tools_of(sent.body)
        assert "content-encoding" not in request.headers


@every_client
async def test_a_compaction_breaks_no_rule_and_leaves_the_agent_its_instructions_and_tools(name):
    recording = read(name)
    window = int(0.85 * await tokens_of(recording))
    async with replayed(recording, None, window) as (gateway, received):
        assert gateway.gateway.record.outcomes["not shaped"] == 0
    assert any(FOLDED in json.dumps(request.body) for request in received)
    assert all(request.tokens <= window for request in received)
    for sent, request in zip(recording.messages, received, strict=True):
        assert tools_of(request.body) == tools_of(sent.body)
        assert head_of(request.body) == head_of(sent.body)


# The files ----------------------------------------------------------------------------------------


@every_client
def test_a_recording_is_of_the_version_that_is_installed(name):
    packages = json.loads((ROOT / "tests/clients/package.json").read_text())["dependencies"]
    recording = read(name)
    assert recording.client == RECORDED[name]
    assert recording.version == packages[recording.client]


def test_there_is_a_recording_of_each_client_and_all_are_small():
    files = sorted(FOLDER.glob("*.json"))
    assert {file.stem for file in files} == set(RECORDED)
    assert sum(file.stat().st_size for file in files) < 300_000


@every_client
def test_a_recording_holds_no_text_of_anybody(name):
    whole = json.loads((FOLDER / f"{name}.json").read_text())
    for request in whole["requests"]:
        for header in FORM_HEADERS & set(request["headers"]):
            del request["headers"][header]
    mark = re.compile(r"\{\{\d+ chars, text \d+\}\}")
    said = strings_in([whole["parts"], whole["requests"]])
    texts = [text for text in said if not mark.fullmatch(text)]
    assert 100 < len(texts) < len(said)
    assert [text for text in texts if " " in text or len(text) > 80] == []


def strings_in(value: object) -> list[str]:
    """Each text in *value* that is no name of a field."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in strings_in(one)]
    if isinstance(value, list):
        return [text for one in value for text in strings_in(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("length", [1, 2, 7, 500, 9_999])
def test_a_text_is_made_up_in_its_length_and_differs_from_others(length):
    one = filler(length, 12)
    assert len(one) == length
    assert one.strip()
    assert one == filler(length, 12)
    assert length < 3 or one != filler(length, 13)
