"""What has gone to a file stays there when a client changes how its history begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gateways import http, key, serving
from models import MODEL
from recorded import in_turn

from ctxpipe import LocalStorage
from ctxpipe.gateway.serving import Serving
from ctxpipe.storage import delete_sessions
from ctxpipe.storage.ownership import NOTES
from ctxpipe.testing import GeminiServer, MessagesServer, OpenAIServer
from ctxpipe.testing.scripted import ScriptedServer
from ctxpipe.wire.gemini import NO_SIGNATURE

Items = list[dict[str, Any]]
ROUNDS = 6
WINDOW = 4
PLACEHOLDER = re.compile(r"\[(?:Tool result|Content) offloaded to(?: file)?: ([^\]]+)\]")


@cache
def result(number: int) -> str:
    return "\n".join(f"line {line} of result {number}, größer" for line in range(300))


def middle(number: int) -> str:
    """What only the whole of a result says."""
    return f"line 150 of result {number},"


@dataclass(frozen=True)
class Api:
    """One API: where its requests go, its server, and how it says what."""

    path: str
    server: Callable[[Any], ScriptedServer]
    key: str
    say: Callable[[str], dict[str, Any]]
    round: Callable[[int], Items]
    empty: Callable[[Items], Items]


def text_message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def content_of_text(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}]}


def messages_round(number: int) -> Items:
    name = f"toolu_{number}"
    call = {"type": "tool_use", "id": name, "name": "ls", "input": {"path": f"p{number}"}}
    answer = {"type": "tool_result", "tool_use_id": name, "content": result(number)}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]


def chat_round(number: int) -> Items:
    name = f"call_{number}"
    function = {"name": "ls", "arguments": json.dumps({"path": f"p{number}"})}
    call = {"id": name, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": result(number)},
    ]


def responses_round(number: int) -> Items:
    name = f"call_{number}"
    arguments = json.dumps({"path": f"p{number}"})
    return [
        {"type": "function_call", "call_id": name, "name": "ls", "arguments": arguments},
        {"type": "function_call_output", "call_id": name, "output": result(number)},
    ]


def gemini_round(number: int, own_id: str = "") -> Items:
    name: dict[str, Any] = {"name": "ls"} | ({"id": f"{own_id}{number}"} if own_id else {})
    call = {
        "functionCall": {**name, "args": {"path": f"p{number}"}},
        "thoughtSignature": NO_SIGNATURE,
    }
    answer = {"functionResponse": {**name, "response": {"result": result(number)}}}
    return [{"role": "model", "parts": [call]}, {"role": "user", "parts": [answer]}]


def emptied(items: Items) -> Items:
    """*items* without the arguments of their calls, as some clients send old ones."""
    text = json.dumps(items)
    text = re.sub(r'\{"path": "p\d"\}', "{}", text)
    return list(json.loads(re.sub(r'"\{\\"path\\": \\"p\d\\"\}"', '"{}"', text)))


APIS = {
    "Messages": Api(
        "/v1/messages", MessagesServer, "messages", text_message, messages_round, emptied
    ),
    "chat": Api(
        "/v1/chat/completions", OpenAIServer, "messages", text_message, chat_round, emptied
    ),
    "responses": Api(
        "/v1/responses", OpenAIServer, "input", text_message, responses_round, emptied
    ),
    "Gemini": Api(
        "/v1beta/models/gemini-3-pro-preview:generateContent",
        GeminiServer,
        "contents",
        content_of_text,
        gemini_round,
        emptied,
    ),
    "Gemini with ids": Api(
        "/v1beta/models/gemini-3-pro-preview:generateContent",
        GeminiServer,
        "contents",
        content_of_text,
        lambda number: gemini_round(number, "id-"),
        emptied,
    ),
}

api_of_each = pytest.mark.parametrize("name", APIS)


async def ask(gateway: Serving, api: Api, items: Sequence[Any], **headers: str) -> None:
    body: dict[str, Any] = {api.key: items}
    if api.server is not GeminiServer:
        body |= {"model": MODEL if api.key == "messages" else "gpt-5.2", "max_tokens": 9}
    if api.path.endswith("responses"):
        del body["max_tokens"]
        body["store"] = False
    keys = {"x-api-key": key(), "x-goog-api-key": key(), "authorization": f"Bearer {key()}"}
    given = {"anthropic-version": "2023-06-01", **keys, **headers}
    async with http() as client:
        reply = await client.post(gateway.url + api.path, json=body, headers=given)
    assert reply.status_code == 200, reply.text


def histories(api: Api, way: str) -> list[Items]:
    """The requests of one agent, each with a round more, as a client sends them in that *way*."""
    sent: list[Items] = []
    for number in range(ROUNDS):
        rounds = [api.round(index) for index in range(number + 1)]
        first = "look around"
        if way == "window":
            rounds = rounds[-WINDOW:]
        elif way == "clock":
            first += f"; it is 12:{number:02}"
        elif way == "arguments":
            rounds = [*map(api.empty, rounds[:-1]), rounds[-1]]
        sent.append([api.say(first), *(item for items in rounds for item in items)])
    return sent


def whole_results(requests: Sequence[Any], count: int = ROUNDS) -> list[tuple[int, int]]:
    """Which request has which result whole."""
    bodies = [json.dumps(request.body) for request in requests]
    return [
        (index, number)
        for index, body in enumerate(bodies)
        for number in range(count)
        if middle(number) in body
    ]


def handed_over(api: Api, count: int, form: Callable[[int], str]) -> Items:
    """A new conversation, into whose first message another agent's *count* results are printed."""
    told = "\n".join(f"[chief] `ls` returned:\n{form(number)}\n<end>" for number in range(count))
    return [api.say(f"For context:\n{told}\nNow go on.")]


FORMS: dict[str, Callable[[int], str]] = {
    "as it is": result,
    "as Python shows it": lambda number: repr({"result": result(number)}),
    "as JSON": lambda number: json.dumps({"call_id": "x", "output": result(number)}),
    "as JSON with letters": lambda number: json.dumps([result(number)], ensure_ascii=False),
}


# What comes back ----------------------------------------------------------------------------------


WAYS_AND_SESSIONS = [
    (way, session) for session in ("", "agent-1") for way in ("window", "clock", "arguments")
]


@pytest.mark.parametrize(("name", "way_and_session"), in_turn(APIS, last=WAYS_AND_SESSIONS))
async def test_what_has_left_stays_away(tmp_path, name, way_and_session):
    api = APIS[name]
    way, session = way_and_session
    headers = {"x-ctxpipe-session": session} if session else {}
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        for items in histories(api, way):
            await ask(gateway, api, items, **headers)

    assert whole_results(upstream.requests) == []


@pytest.mark.parametrize(("name", "form"), in_turn(APIS, last=list(FORMS)))
async def test_results_that_a_hand_off_prints_into_a_message_stay_away(tmp_path, name, form):
    api = APIS[name]
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        for items in histories(api, "plain"):
            await ask(gateway, api, items)
        before = upstream.requests[-1].tokens
        await ask(gateway, api, handed_over(api, ROUNDS, FORMS[form]))
    last = json.dumps(upstream.requests[-1].body)

    assert whole_results(upstream.requests) == []
    assert upstream.requests[-1].tokens < 1.3 * before
    assert last.count("`ls` returned") == last.count("<end>") == ROUNDS
    assert "Now go on." in last


@pytest.mark.parametrize(("name", "form"), in_turn(APIS, last=["as it is", "as JSON"]))
async def test_what_a_hand_off_has_begun_goes_on_with_the_same_bytes(tmp_path, name, form):
    api = APIS[name]
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        for items in histories(api, "plain"):
            await ask(gateway, api, items)
        items = handed_over(api, ROUNDS, FORMS[form])
        upstream.requests.clear()
        await ask(gateway, api, items)
        for number in range(3):
            items = [*items, *api.round(ROUNDS + number)]
            await ask(gateway, api, items)

    bodies: list[Any] = [request.body for request in upstream.requests]
    sent: list[Items] = [body[api.key] for body in bodies]
    for before, after in pairwise(sent):
        assert after[: len(before)] == before
    assert [len(each) for each in sent] == [1, 3, 5, 7]


async def test_a_part_that_repeats_a_result_stays_between_its_neighbours(tmp_path):
    api = APIS["Gemini"]
    told = f"[chief] `ls` returned: { ({'result': result(0)})!r}"
    parts = [{"text": "For context:"}, {"text": told}, {"text": "Go on."}]
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        await ask(gateway, api, [api.say("look"), *api.round(0)])
        await ask(gateway, api, [{"role": "user", "parts": parts}])
    body: Any = upstream.requests[-1].body
    [content] = body["contents"]

    assert len(content["parts"]) == 3
    assert content["parts"][::2] == parts[::2]
    assert "offloaded to" in content["parts"][1]["text"]


# Whose it is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("journal", [None, "sqlite"])
async def test_another_process_sends_the_same_bytes(tmp_path, journal):
    """Two gateways on one folder: the second one begins once the first has decided."""
    api = APIS["Messages"]
    settings = {"journal": f"sqlite:///{tmp_path}/journals.sqlite"} if journal else {}
    first, last = histories(api, "clock")[ROUNDS - 2 :]
    async with (
        api.server(lambda _: "ok") as upstream,
        serving(upstream.url, tmp_path / "root", **settings) as gateway,
    ):
        for items in histories(api, "clock"):
            await ask(gateway, api, items[:3])
        await ask(gateway, api, first)
        async with serving(upstream.url, tmp_path / "root", **settings) as other:
            await ask(other, api, first)
            await ask(other, api, last)
            await ask(gateway, api, last)
    one, two, three, four = upstream.requests[-4:]

    assert one.body == two.body
    assert three.body == four.body


async def test_the_gateway_knows_after_a_restart(tmp_path):
    api = APIS["chat"]
    async with api.server(lambda _: "ok") as upstream:
        for items in histories(api, "clock"):
            async with serving(upstream.url, tmp_path) as gateway:
                await ask(gateway, api, items)

    assert whole_results(upstream.requests) == []


async def test_another_name_knows_nothing_of_it(tmp_path):
    api = APIS["Messages"]
    *_, items = histories(api, "plain")
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        for history in histories(api, "plain"):
            await ask(gateway, api, history, **{"x-ctxpipe-session": "agent-1"})
        await ask(gateway, api, items, **{"x-ctxpipe-session": "agent-10"})

    newest = ROUNDS - 1
    assert whole_results(upstream.requests) == [(ROUNDS, number) for number in range(newest)]


async def test_another_token_knows_nothing_of_it(tmp_path):
    api = APIS["Messages"]
    tokens = ["the token of Alice", "the token of Bob..."]
    *_, items = histories(api, "plain")
    async with (
        api.server(lambda _: "ok") as upstream,
        serving(upstream.url, tmp_path, tokens=tokens) as gateway,
    ):
        for history in histories(api, "plain"):
            await ask(gateway, api, history, **{"x-ctxpipe-token": tokens[0]})
        await ask(gateway, api, items, **{"x-ctxpipe-token": tokens[1]})

    newest = ROUNDS - 1
    assert whole_results(upstream.requests) == [(ROUNDS, number) for number in range(newest)]


# On disk ------------------------------------------------------------------------------------------


def paths_in(body: object) -> list[Path]:
    return [Path(path) for path in PLACEHOLDER.findall(json.dumps(body))]


async def test_each_conversation_has_its_own_copies_and_no_pointer_leads_to_another(tmp_path):
    api = APIS["Messages"]
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        for items in histories(api, "clock"):
            await ask(gateway, api, items)
        await ask(gateway, api, handed_over(api, ROUNDS, FORMS["as JSON"]))

    folders: list[Path] = []
    for index, request in enumerate(upstream.requests):
        paths = paths_in(request.body)
        assert len(paths) == min(index + 1, ROUNDS)
        [folder] = {path.parent for path in paths}
        folders.append(folder)
        for number, path in enumerate(paths):
            assert middle(number) in path.read_text("utf-8").encode().decode("unicode_escape")
    assert len(set(folders)) == len(folders)


async def test_what_is_remembered_of_a_result_holds_none_of_its_words(tmp_path):
    api = APIS["Messages"]
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        for items in histories(api, "clock"):
            await ask(gateway, api, items)
    files = list(tmp_path.rglob(NOTES))

    assert files
    for file in files:
        lines = file.read_text("ascii").split("\n")
        assert len(lines) == ROUNDS + 1
        for word in ("line", "result", "gr", "toolu", "ls", "12:"):
            assert not any(f"{word} " in line or f" {word}" in line for line in lines)


@pytest.mark.parametrize("session", ["", "agent-1"])
async def test_a_deletion_leaves_neither_a_copy_nor_a_decision(tmp_path, session):
    api = APIS["Messages"]
    headers = {"x-ctxpipe-session": session} if session else {}
    async with api.server(lambda _: "ok") as upstream, serving(upstream.url, tmp_path) as gateway:
        for items in histories(api, "clock"):
            await ask(gateway, api, items, **headers)
        assert list(tmp_path.rglob(NOTES))
        storage = LocalStorage(tmp_path)
        for name in [session] if session else await storage.sessions():
            await delete_sessions(name, storage)
        left = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path for path in left if path.name == NOTES or path.suffix == ".md"] == []
        assert await storage.sessions() == []
        # What comes now is new to all.
        *_, items = histories(api, "clock")
        await ask(gateway, api, [api.say("another beginning"), *items[1:]], **headers)

    newest = ROUNDS - 1
    assert whole_results(upstream.requests) == [(ROUNDS, number) for number in range(newest)]
