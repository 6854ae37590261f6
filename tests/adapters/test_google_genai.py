"""The google-genai SDK through the gateway, by its base URL alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gateways import key, serving

from ctxpipe.gateway.serving import Serving
from ctxpipe.testing import GeminiServer, Model, Reply, answer_with, tool_use

genai: Any = pytest.importorskip("google.genai", reason="google-genai is not installed")

# What the SDK warns of is its own; that a coroutine was not awaited is an error.
pytestmark = pytest.mark.filterwarnings("ignore", "error::RuntimeWarning")

GEMINI = "gemini-3-pro-preview"
TURNS = 30
LINE = "a line of the result\n"


def look(number: int) -> str:
    """Look at something."""
    return f"result {number}\n{LINE * 600}"


def rounds(turns: int = TURNS) -> list[Reply]:
    """A call in each turn, and a last word."""
    return [*(answer_with(tool_use("look", {"number": n})) for n in range(turns)), "Done."]


@asynccontextmanager
async def connect(api: GeminiServer, folder: Path) -> AsyncIterator[tuple[Serving, Any]]:
    """A gateway before *api*, and a client that has its address."""
    async with serving(api.url, folder) as gateway:
        client = genai.Client(api_key=key(), http_options={"base_url": gateway.url})
        try:
            yield gateway, client.aio
        finally:
            await client.aio.aclose()


def chat_of(client: Any, history: list[Any] | None = None) -> Any:
    """A chat whose calls the SDK runs by itself."""
    most = {"maximum_remote_calls": 2 * TURNS}
    config = {"tools": [look], "automatic_function_calling": most}
    return client.chats.create(model=GEMINI, config=config, history=history)


async def say(chat: Any, words: str, *, stream: bool = False) -> str:
    """What *chat* says last, whole also where it was streamed."""
    if not stream:
        return str((await chat.send_message(words)).text)
    chunks = [chunk async for chunk in await chat.send_message_stream(words)]
    return "".join(chunk.text or "" for chunk in chunks)


def parts_of(request: Any) -> list[dict[str, Any]]:
    return [part for content in request.body["contents"] for part in content["parts"]]


def breaks(api: GeminiServer) -> int:
    """How many requests do not begin as the one before."""
    sent = [parts_of(request) for request in api.requests]
    return sum(after[: len(before)] != before for before, after in pairwise(sent))


every_way = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@every_way
async def test_the_results_of_rounds_go_to_files_and_the_prefix_stays(tmp_path: Path, stream: bool):
    async with GeminiServer(rounds()) as api, connect(api, tmp_path) as (_, client):
        said = await say(chat_of(client), "go", stream=stream)

    assert said.endswith("Done.")
    assert len(api.requests) == TURNS + 1
    assert api.refused == []
    assert breaks(api) == 0
    assert api.requests[-1].raw.count(b"offloaded to") == TURNS


@every_way
async def test_the_callers_history_stays_whole(tmp_path: Path, stream: bool):
    async with GeminiServer(rounds(3)) as api, connect(api, tmp_path) as (_, client):
        chat = chat_of(client)
        await say(chat, "go", stream=stream)

    assert api.refused == []
    kept = str(chat.get_history())
    assert kept.count(LINE.strip()) == 3 * 600
    assert "offloaded" not in kept


async def test_every_signature_comes_back_with_its_call(tmp_path: Path):
    async with GeminiServer(rounds(5)) as api, connect(api, tmp_path) as (_, client):
        await say(chat_of(client), "go")

    calls = [part for part in parts_of(api.requests[-1]) if "functionCall" in part]
    assert api.refused == []
    assert len(calls) == 5
    assert all(part["thoughtSignature"] for part in calls)


async def test_the_usage_that_is_billed_reaches_the_client_and_the_page(tmp_path: Path):
    async with GeminiServer(["one"]) as api, connect(api, tmp_path) as (gateway, client):
        reply = await client.models.generate_content(model=GEMINI, contents="go")
        [turn] = gateway.gateway.record.turns

    assert reply.usage_metadata.prompt_token_count == api.requests[0].tokens
    assert turn.model == GEMINI
    assert turn.bill.dollars


@every_way
async def test_after_too_long_a_shorter_request_is_sent(tmp_path: Path, stream: bool):
    history: list[Any] = []
    for number in range(12):
        words = f"{number} " + "some words of the user " * 150
        history += [{"role": "user", "parts": [{"text": words}]}]
        history += [{"role": "model", "parts": [{"text": "ok"}]}]
    async with (
        GeminiServer(["fine"], model=Model(window=8_000)) as api,
        connect(api, tmp_path) as (_, client),
    ):
        said = await say(chat_of(client, history), "go", stream=stream)

    assert said == "fine"
    assert [bool(request.problems) for request in api.requests] == [True, False]


async def test_a_side_question_leaves_the_conversation_as_it_was(tmp_path: Path):
    script = [*rounds(2), "aside", "more"]
    async with GeminiServer(script) as api, connect(api, tmp_path) as (_, client):
        chat = chat_of(client)
        await say(chat, "go")
        await say(chat_of(client, chat.get_history()), "a title, please")
        await say(chat, "go on")

    before, aside, after = map(parts_of, api.requests[-3:])
    assert api.refused == []
    assert aside[-1] == {"text": "a title, please"}
    assert after[: len(before)] == before


async def test_a_new_process_goes_on_with_the_same_prefix(tmp_path: Path):
    async with GeminiServer([*rounds(3), *rounds(3)]) as api:
        history: list[Any] = []
        for words in ("go", "go on"):
            async with connect(api, tmp_path) as (_, client):
                chat = chat_of(client, history)
                await say(chat, words)
                history = chat.get_history()

    assert api.refused == []
    assert breaks(api) == 0
