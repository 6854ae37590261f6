"""Loops with screenshots on each API, by its own SDK over a socket, as far as the model's answers.

No body is too large for an API, and every picture that has left is shown again as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from gateways import key, serving
from histories import conversation, user
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from pictures import SCREEN, look, picture
from recorded import NIGHTLY
from sdks import ask_openai

from ctxpipe import ContextPipeline, LocalStorage, Stage, offload_tools, presets
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.messages import Message
from ctxpipe.placeholders.placeholders import media_reference
from ctxpipe.stages.media.stage import MediaOffload
from ctxpipe.testing import Failure, MessagesServer, OpenAIServer, Received

# Of every day's turns, pictures and limits; the stage's own tests have them whole, and so has the
# night.
TURNS = 60 if NIGHTLY else 30
SHARE = 1 if NIGHTLY else 20
LARGEST = 20_000_000 // SHARE
MAX_BYTES, KEEP_BYTES = 18_000_000 // SHARE, 4_000_000 // SHARE
WIRES = ["chat", "responses"]


def screen(number: int) -> dict[str, Any]:
    return picture(number, SCREEN // SHARE)


def screens(count: int) -> list[Message]:
    """So many looks at the screen."""
    return conversation(*(look(number, screen(number)) for number in range(count)))


def coding_agent(storage: LocalStorage) -> list[Stage]:
    """The preset, with limits for the screens of this run."""
    stages: list[Stage] = []
    for stage in presets.coding_agent(storage, work_dir=None):
        if isinstance(stage, MediaOffload):
            stage = replace(stage, max_bytes=MAX_BYTES, keep_bytes=KEEP_BYTES)  # noqa: PLW2901
        stages.append(stage)
    return stages


def test_the_nightly_limits_are_the_preset_s(tmp_path):
    [own] = [it for it in coding_agent(LocalStorage(tmp_path)) if isinstance(it, MediaOffload)]
    stages = presets.coding_agent(LocalStorage(tmp_path), work_dir=None)

    assert replace(own, max_bytes=MAX_BYTES * SHARE, keep_bytes=KEEP_BYTES * SHARE) in stages


def url_of(number: int) -> str:
    source = screen(number)["source"]
    return f"data:image/png;base64,{source['data']}"


def strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def paths(received: Received) -> list[str]:
    found = map(media_reference, strings(received.body))
    return [path for path in found if path is not None]


def items_of(received: Received, name: str) -> list[Any]:
    body: Any = received.body
    return list(body[name])


def check_bodies(requests: Sequence[Received], name: str):
    """None is too large, and few of them change what was sent before."""
    assert max(len(request.raw) for request in requests) < LARGEST
    rewrites = 0
    for before, after in itertools.pairwise(requests):
        sent, now = items_of(before, name), items_of(after, name)
        rewrites += now[: len(sent)] != sent
    assert 1 <= rewrites <= 5


def shot(wire: str, number: int) -> list[dict[str, Any]]:
    """The items of a look at the screen: chat completions show it in a message of the user's."""
    call = {"name": "look", "arguments": "{}"}
    name = f"call_{number}"
    if wire == "responses":
        seen: Any = [{"type": "input_image", "detail": "auto", "image_url": url_of(number)}]
        return [
            {"type": "function_call", "call_id": name, **call},
            {"type": "function_call_output", "call_id": name, "output": seen},
        ]
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": name, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": name, "content": "Taken."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": f"screen {number}"},
                {"type": "image_url", "image_url": {"url": url_of(number)}},
            ],
        },
    ]


def read_call(wire: str, path: str, content: Any) -> list[dict[str, Any]]:
    """A call that reads back, and what the tool has answered, as a loop hands it on."""
    call = {"name": "read_offloaded", "arguments": f'{{"path": "{path}"}}'}
    if wire == "responses":
        return [
            {"type": "function_call", "call_id": "back", **call},
            {"type": "function_call_output", "call_id": "back", "output": content},
        ]
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "back", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "back", "content": content},
    ]


# The Messages API ---------------------------------------------------------------------------------


async def test_a_loop_on_the_messages_api(tmp_path):
    history = conversation(user("Go."))
    async with MessagesServer(["ok"] * TURNS) as server:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none")
        session = ContextPipeline(coding_agent(LocalStorage(tmp_path))).session("s")
        for number in range(TURNS):
            history += look(number, screen(number))
            await session.create(client, messages=history, model="claude-sonnet-5", max_tokens=99)
        await client.close()

    check_bodies(server.requests, "messages")
    [read, *_] = offload_tools(session)
    for number, path in enumerate(paths(server.requests[-1])):
        assert await read({"path": path}) == [screen(number)]


@pytest.mark.parametrize(
    "refusal",
    [
        Failure(413, "request_too_large", "Request exceeds the maximum size"),
        Failure(400, "invalid_request_error", "Too much media: 0 document pages + 9 images > 8"),
    ],
)
async def test_a_request_that_is_too_large_is_asked_again_without_its_old_pictures(
    refusal, tmp_path
):
    stages = coding_agent(LocalStorage(tmp_path))
    history = conversation(user("Go."), screens(9))
    async with MessagesServer([refusal, "ok"]) as server:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        session = ContextPipeline(stages).session("s")
        reply = await session.create(
            client, messages=history, model="claude-sonnet-5", max_tokens=99
        )
        await client.close()

    first, second = server.requests
    assert [block.type for block in reply.content] == ["text"]
    assert len(second.raw) < len(first.raw) / 8
    assert len(paths(second)) == 8
    assert len(second.body["messages"]) == len(history)  # nothing is summarized for it


# Those of OpenAI ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_a_loop_on_the_other_apis(wire, tmp_path):
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline(coding_agent(storage))
    items: list[Any] = [{"role": "user", "content": "Go."}]
    async with OpenAIServer(["ok"] * (TURNS + 2)) as server:
        client = openai.AsyncOpenAI(
            base_url=server.base_url,
            api_key="none",
            http_client=ctxpipe_client(pipeline, session_id="s"),
        )
        for number in range(TURNS):
            items += shot(wire, number)
            await ask_openai(client, wire, "gpt-5.2", items)
        check_bodies(server.requests, "input" if wire == "responses" else "messages")
        left = paths(server.requests[-1])
        read, *_ = offload_tools(storage, session_id="s")
        for number, path in enumerate(left):
            assert await read({"path": path}) == [screen(number)]
        items += read_call(wire, left[0], await read({"path": left[0]}))
        await ask_openai(client, wire, "gpt-5.2", items)
        await client.close()

    last = server.requests[-1]
    assert last.problems == ()
    assert url_of(0) in strings(last.body)


@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_read_again_goes_out_in_the_form_of_the_api(wire, tmp_path):
    pipeline = ContextPipeline([MediaOffload(LocalStorage(tmp_path))])
    document = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        "title": "a.pdf",
    }
    items = [{"role": "user", "content": "Go."}, *read_call(wire, "a", [picture(1, 99), document])]
    async with OpenAIServer(["ok"] * 2) as server:
        client = openai.AsyncOpenAI(
            base_url=server.base_url, api_key="none", http_client=ctxpipe_client(pipeline)
        )
        await ask_openai(client, wire, "gpt-5.2", items)
        items += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "And?"}]
        await ask_openai(client, wire, "gpt-5.2", items)
        await client.close()

    first, second = server.requests
    name = "input" if wire == "responses" else "messages"
    said = list(strings(first.body))
    assert first.problems == second.problems == ()
    assert "data:application/pdf;base64,JVBERi0=" in said
    assert f"data:image/png;base64,{picture(1, 99)['source']['data']}" in said
    before, after = items_of(first, name), items_of(second, name)
    assert after[: len(before)] == before


# The gateway --------------------------------------------------------------------------------------


async def test_a_loop_through_the_gateway(tmp_path):
    history = conversation(user("Go."))
    preset = tmp_path / "media.toml"
    preset.write_text(
        f'[[stage]]\nuse = "MediaOffload"\nmax_bytes = {MAX_BYTES}\nkeep_bytes = {KEEP_BYTES}\n'
    )
    async with (
        MessagesServer(["ok"] * TURNS) as server,
        serving(
            server.url, tmp_path / "root", preset="coding" if NIGHTLY else str(preset)
        ) as gateway,
    ):
        client = anthropic.AsyncAnthropic(base_url=gateway.url, api_key=key())
        for number in range(TURNS):
            history += look(number, screen(number))
            await client.messages.create(model="claude-sonnet-5", max_tokens=99, messages=history)
        await client.close()
        check_bodies(server.requests, "messages")
        left = paths(server.requests[-1])
        async with (
            streamable_http_client(gateway.url + "/mcp") as (read, write, *_),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            for number, path in enumerate(left[:3]):
                result: Any = await session.call_tool("read_offloaded", {"path": path})
                assert result.content[0].data == screen(number)["source"]["data"]
