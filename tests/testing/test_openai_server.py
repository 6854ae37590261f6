"""The real SDK against the scripted chat completions and responses."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from pictures import picture
from sdks import responses_of

from ctxpipe.testing import (
    Cut,
    Model,
    OpenAIServer,
    Reply,
    Script,
    ScriptExhausted,
    answer_with,
    rate_limited,
    text,
    thinking,
    tool_use,
)

TOOLS: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
LONG = "a long line of input\n" * 1000


@asynccontextmanager
async def talk(
    script: Script, **settings: Any
) -> AsyncIterator[tuple[OpenAIServer, openai.AsyncOpenAI]]:
    async with (
        OpenAIServer(script, **settings) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="test", max_retries=0) as client,
    ):
        yield server, client


def user(words: str) -> Any:
    return {"role": "user", "content": words}


async def ask(client: openai.AsyncOpenAI, path: str, said: Any):
    if path == "chat":
        await client.chat.completions.create(model="m", messages=said)
    else:
        await responses_of(client).create(model="m", input=said)


@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_a_screenshot_counts_by_its_pixels(path):
    url = f"data:image/png;base64,{picture(0)['source']['data']}"
    shown: Any = {"type": "image_url", "image_url": {"url": url}}
    if path == "responses":
        shown = {"type": "input_image", "image_url": url}

    async with talk(["Seen."]) as (server, client):
        await ask(client, path, [{"role": "user", "content": [shown]}])

    assert 1_300 < server.requests[0].tokens < 1_400


# Chat ---------------------------------------------------------------------------------------------


async def test_a_chat_with_a_call_is_answered_in_the_form_of_the_sdk():
    script: list[Reply] = [
        answer_with(thinking("hm"), "I look.", tool_use("look", {"a": 1})),
        "Done.",
    ]

    async with talk(script) as (server, client):
        first = await client.chat.completions.create(model="m", messages=[user("go")], tools=TOOLS)
        reply = first.choices[0].message
        [call] = reply.tool_calls or []
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "seen"}
        said: Any = reply.model_dump(exclude_none=True)
        second = await client.chat.completions.create(
            model="m", messages=[user("go"), said, result]
        )

    assert not server.refused
    assert first.choices[0].finish_reason == "tool_calls"
    assert reply.content == "I look."
    assert second.choices[0].message.content == "Done."
    assert second.usage is not None
    assert second.usage.prompt_tokens == server.requests[1].tokens


@pytest.mark.skipif(
    not hasattr(openai.resources.chat.AsyncCompletions, "stream"),
    reason=f"openai {openai.__version__} streams chats below beta only",
)
async def test_a_streamed_chat_has_the_plain_reply_in_pieces():
    words = "many words " * 30
    script = [answer_with(words, tool_use("look", {"a": "b" * 99}, id="c1"))]
    async with (
        talk(script) as (_, client),
        client.chat.completions.stream(
            model="m", messages=[user("go")], stream_options={"include_usage": True}
        ) as stream,
    ):
        reply = await stream.get_final_completion()

    assert reply.choices[0].message.content == words
    [call] = reply.choices[0].message.tool_calls or []
    assert call.function.arguments == '{"a": "' + "b" * 99 + '"}'
    assert reply.usage is not None


async def test_without_the_option_a_stream_has_no_usage():
    async with talk(["ok"]) as (_, client):
        stream = await client.chat.completions.create(model="m", messages=[user("go")], stream=True)
        chunks = [chunk async for chunk in stream]

    assert all(chunk.usage is None for chunk in chunks)


async def test_a_request_that_breaks_a_rule_is_refused_and_takes_no_reply():
    async with talk(["ok"]) as (server, client):
        with pytest.raises(openai.BadRequestError, match="preceeding message"):
            await client.chat.completions.create(
                model="m", messages=[{"role": "tool", "tool_call_id": "c", "content": "x"}]
            )
        await client.chat.completions.create(model="m", messages=[user("go")])

    assert len(server.refused) == 1


@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_a_prompt_that_is_too_long_is_refused_in_the_apis_words(path):
    async with talk(["ok"], model=Model(window=1000)) as (server, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, path, [user(LONG)])

    assert caught.value.code == "context_length_exceeded"
    assert server.requests[0].tokens > 1000


# Responses ----------------------------------------------------------------------------------------


async def test_a_response_with_reasoning_and_a_call_is_continued_with_its_items():
    script: list[Reply] = [answer_with(thinking("hm"), tool_use("look", {"a": 1})), "Done."]

    async with talk(script) as (server, client):
        first = await responses_of(client).create(model="m", input="go", store=False)
        items: list[Any] = [user("go"), *(item.model_dump() for item in first.output)]
        result: Any = {
            "type": "function_call_output",
            "call_id": items[-1]["call_id"],
            "output": "x",
        }
        second = await responses_of(client).create(model="m", input=[*items, result])

    assert not server.refused
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    assert second.output_text == "Done."


async def test_a_streamed_response_has_the_plain_one_in_pieces():
    words = "many words " * 30
    script = [answer_with(thinking("hm"), words, tool_use("look", {"a": 1}))]
    async with (
        talk(script) as (_, client),
        responses_of(client).stream(model="m", input="go") as stream,
    ):
        kinds = [event.type async for event in stream]
        reply = await stream.get_final_response()

    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.output_text.delta") > 3
    assert reply.output_text == words
    assert reply.usage is not None


async def test_a_call_with_a_text_is_a_call_of_a_custom_tool():
    script = [answer_with(tool_use("exec", "ls -l")), answer_with(tool_use("exec", "ls -l"))]
    async with talk(script) as (server, client):
        plain = await responses_of(client).create(model="m", input="go")
        stream = await responses_of(client).create(model="m", input="go", stream=True)
        events: list[Any] = [event async for event in stream]

    [call] = plain.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "exec", "ls -l")
    said = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert [event.input for event in said] == ["ls -l"]
    assert not server.refused


@pytest.mark.parametrize(
    "body", [gzip.compress(b'{"model": "m", "input": "go"}'), b"{}"], ids=["gzip", "plain"]
)
async def test_a_compressed_request_is_read_and_one_falsely_declared_so_is_refused(body):
    async with OpenAIServer(["Done."]) as server, httpx2.AsyncClient(trust_env=False) as client:
        headers = {"authorization": "Bearer test", "content-encoding": "gzip"}
        reply = await client.post(f"{server.base_url}/responses", content=body, headers=headers)

    assert reply.status_code == (400 if body == b"{}" else 200)
    assert bool(server.refused) == (body == b"{}")


async def test_a_stored_response_is_continued():
    async with talk(["One.", "Two."]) as (server, client):
        first = await responses_of(client).create(model="m", input=LONG)
        await responses_of(client).create(model="m", input="on", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="resp_x"):
            await responses_of(client).create(model="m", input="on", previous_response_id="resp_x")

    assert server.requests[1].tokens > server.requests[0].tokens


async def test_the_stored_copy_of_an_item_with_an_id_is_read():
    async with talk(["One.", "Two."]) as (server, client):
        first = await responses_of(client).create(model="m", input="go")
        said: Any = first.output[0].model_dump()
        said["content"][0]["text"] = LONG
        await responses_of(client).create(model="m", input=[user("go"), said, user("on")])

    assert server.requests[1].ignored == (said["id"],)
    assert server.requests[1].tokens < 100


async def test_an_item_without_the_reasoning_it_came_from_is_refused():
    async with talk([answer_with(thinking("hm"), "So."), "on"]) as (_, client):
        first = await responses_of(client).create(model="m", input="go")
        said: Any = first.output[1].model_dump()
        with pytest.raises(openai.BadRequestError, match="required 'reasoning' item: 'rs_"):
            await responses_of(client).create(model="m", input=[user("go"), said, user("on")])


async def test_a_late_refusal_is_sent_within_the_stream():
    async with talk([], model=Model(window=1000), late_refusal=True) as (server, client):
        stream = await responses_of(client).create(model="m", input=LONG, stream=True)
        events: list[Any] = [event async for event in stream]

    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert events[-1].response.error.code == "context_length_exceeded"
    assert server.refused


# Both ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["chat", "responses"])
async def test_a_beginning_sent_before_is_read_from_the_cache(path):
    async with talk(lambda _: "ok") as (server, client):
        for said in ([user(LONG)], [user(LONG), user("on")], [user("other"), user(LONG)]):
            await ask(client, path, said)

    usages = [request.usage for request in server.requests]
    cached = [usage.cache_read_input_tokens for usage in usages if usage]
    assert cached[0] == cached[2] == 0
    assert cached[1] % 128 == 0
    assert cached[1] > 1024


async def test_an_error_in_a_script_has_the_type_of_the_sdk():
    async with talk([rate_limited(), "ok"]) as (_, client):
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="m", messages=[user("go")])


async def test_a_stream_may_be_cut_off():
    async with talk([Cut(after=answer_with("many words " * 99))]) as (_, client):
        stream = await responses_of(client).create(model="m", input="go", stream=True)
        with pytest.raises(openai.APIConnectionError):
            async for _event in stream:
                pass


async def test_a_request_after_the_last_reply_is_raised_when_the_block_ends():
    async def ask_twice() -> None:
        async with talk([answer_with(text("ok"))]) as (_, client):
            await responses_of(client).create(model="m", input="go")
            with pytest.raises(openai.InternalServerError):
                await responses_of(client).create(model="m", input="go")

    with pytest.raises(ScriptExhausted):
        await ask_twice()


async def test_a_request_without_a_key_is_refused():
    async with talk([]) as (_, client):
        with pytest.raises(openai.AuthenticationError):
            await responses_of(client).create(
                model="m", input="go", extra_headers={"Authorization": openai.omit}
            )
