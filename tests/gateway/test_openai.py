"""OpenAI's two APIs through the gateway, by OpenAI's own SDK."""

from typing import Any

import openai
import pytest
from gateways import key, serving
from sdks import responses_of

from ctxpipe.testing import OpenAIServer, answer_with, tool_use

TASK = {"role": "user", "content": "look"}
RESULT = "a line of the output\n" * 900
FORMS = ["chat", "responses"]


async def ask(client: openai.AsyncOpenAI, form: str, items: list[Any], *, stream: bool) -> Any:
    """The reply to *items*, whole also where it was streamed."""
    if form == "responses":
        made = await responses_of(client).create(
            model="gpt-5.2", input=items, stream=stream, store=False
        )
        if not stream:
            return made
        events = [event async for event in made]
        return events[-1].response
    api: Any = client
    made = await api.chat.completions.create(
        model="gpt-5.2",
        messages=items,
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )
    if not stream:
        return made
    return [chunk async for chunk in made]


def round_of(form: str, number: int, text: str = RESULT) -> list[dict[str, Any]]:
    """A call and its result."""
    name = f"call_{number}"
    if form == "responses":
        return [
            {"type": "function_call", "call_id": name, "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": name, "output": text},
        ]
    call = {"id": name, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": text},
    ]


def history(form: str, rounds: int) -> list[dict[str, Any]]:
    items = [TASK]
    for number in range(rounds):
        items += round_of(form, number)
    return items


def items_of(form: str, body: Any) -> list[Any]:
    return list(body["input" if form == "responses" else "messages"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
async def test_long_results_leave_and_the_beginning_stays(tmp_path, form, stream):
    async with (
        OpenAIServer([f"reply {number}" for number in range(5)]) as api,
        serving(api.url, tmp_path) as gateway,
        openai.AsyncOpenAI(api_key=key(), base_url=f"{gateway.url}/v1", max_retries=0) as client,
    ):
        for rounds in range(1, 6):
            await ask(client, form, history(form, rounds), stream=stream)
        record = gateway.gateway.record
    assert not api.refused
    assert record.sent_tokens < record.history_tokens / 3
    assert all(len(request.raw) < 8_000 for request in api.requests)
    for before, after in zip(api.requests, api.requests[1:], strict=False):
        known = items_of(form, before.body)
        assert items_of(form, after.body)[: len(known)] == known


@pytest.mark.parametrize("form", FORMS)
async def test_what_is_not_rewritten_is_the_client_s_own(tmp_path, form):
    items = [*history(form, 2), TASK]
    async with (
        OpenAIServer(["fine"]) as api,
        serving(api.url, tmp_path) as gateway,
        openai.AsyncOpenAI(api_key=key(), base_url=f"{gateway.url}/v1", max_retries=0) as client,
    ):
        await ask(client, form, items, stream=False)
    sent = items_of(form, api.requests[0].body)
    assert len(sent) == len(items)
    changed = [place for place, item in enumerate(items) if sent[place] != item]
    assert changed == [4]  # the newest result


@pytest.mark.parametrize("form", FORMS)
async def test_a_loop_with_real_calls_survives_a_restart_of_the_gateway(tmp_path, form):
    replies = [answer_with(tool_use("ls", {})) for _ in range(4)] + ["done"]
    items: list[Any] = [TASK]
    async with OpenAIServer(replies) as api:
        for number in range(5):
            async with (
                serving(api.url, tmp_path) as gateway,
                openai.AsyncOpenAI(
                    api_key=key(), base_url=f"{gateway.url}/v1", max_retries=0
                ) as client,
            ):
                reply = await ask(client, form, items, stream=False)
                items = [*items, *answered(form, reply, number)]
    assert not api.refused
    for before, after in zip(api.requests, api.requests[1:], strict=False):
        known = items_of(form, before.body)
        assert items_of(form, after.body)[: len(known)] == known


def answered(form: str, reply: Any, number: int) -> list[dict[str, Any]]:
    """What *reply* adds to a history, and the results of its calls."""
    if form == "responses":
        items = [item.model_dump(exclude_none=True) for item in reply.output]
        calls = [item["call_id"] for item in items if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": call, "output": f"{number} {RESULT}"}
            for call in calls
        ]
        return [*items, *results]
    message = reply.choices[0].message.model_dump(exclude_none=True)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"{number} {RESULT}"}
        for call in message.get("tool_calls", ())
    ]
    return [message, *results]
