"""What every driver does with a request, without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ctxpipe import (
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Skip,
    SmartTruncate,
    Turn,
)
from ctxpipe.providers.refusals import Refusal
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.wire import CHAT, MESSAGES, RESPONSES, Adapter, Exchange, Format, Gemini, HttpExchange

GEMINI = Gemini("gemini-3-pro")
LONG = "a long line of output\n" * 100


def messages(result: str = LONG) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "c", "type": "function", "function": function}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]


def offloading(folder: Path) -> Adapter:
    return Adapter(ContextPipeline([DirectOffload(LocalStorage(folder), min_chars=500)]), "s")


async def begin(adapter: Adapter, items: list[Any], **options: Any) -> Exchange:
    exchange = await adapter.begin(CHAT.codec, items, **options)
    assert exchange is not None
    return exchange


async def test_nothing_to_do_changes_nothing(tmp_path):
    exchange = await begin(offloading(tmp_path), messages("short"))

    assert not exchange.is_changed


async def test_a_context_that_shrank_is_one_that_changed(tmp_path):
    exchange = await begin(offloading(tmp_path), messages())

    assert exchange.is_changed
    assert "offloaded" in exchange.items[-1]["content"]


async def test_what_is_never_shaped_is_counted():
    tokens: list[int] = []

    for system in ("", "You are a long-winded helper. " * 100):
        arguments = {"system": system, "request": {}}
        exchange = await begin(Adapter(ContextPipeline()), messages(), arguments=arguments)
        tokens.append(exchange.result.tokens_after)

    assert tokens[1] > tokens[0] + 400


async def test_a_conversation_of_nobody_is_sent_as_it_came(tmp_path):
    adapter = offloading(tmp_path)
    assert await adapter.begin(CHAT.codec, [{"role": "system", "content": "x"}]) is None
    assert await adapter.begin(CHAT.codec, []) is None


async def test_what_a_stage_asks_of_a_model_is_not_shaped(tmp_path):
    adapter = offloading(tmp_path)
    inner: list[Exchange | None] = []

    async def ask(turn: Turn) -> Skip:
        inner.append(await adapter.begin(CHAT.codec, messages()))
        return Skip("")

    await begin(Adapter(ContextPipeline([ask])), messages())

    assert inner == [None]


async def test_what_cannot_be_shortened_gives_none(tmp_path):
    adapter = offloading(tmp_path)
    exchange = await begin(adapter, messages("short"))

    assert not await exchange.shorten(Refusal("OpenAI", 9000, 8000))
    assert not await exchange.shorten(None)


async def test_an_error_while_recovering_is_logged(caplog):
    calls: list[Turn] = []

    async def fail_at_last(turn: Turn) -> Change | Skip:
        calls.append(turn)
        if len(calls) > 1:
            raise RuntimeError("secret")
        return Skip("")

    adapter = Adapter(ContextPipeline([fail_at_last], on_error="raise"))
    exchange = await begin(adapter, messages())

    assert not await exchange.shorten(Refusal("OpenAI", 900_000, 200_000))
    assert caplog.text.count("could not be shortened") == 1
    assert "secret" not in caplog.text


async def test_a_begun_answer_stays_the_end_of_the_request_and_is_no_part_of_the_history(tmp_path):
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline([Compact(ExtractiveSummarizer(), storage)], budget=Budget(2_000))
    adapter = Adapter(pipeline, "s")
    begun = {"role": "assistant", "content": '{"names": [', "prefix": True}
    history = [*messages(LONG * 10), {"role": "assistant", "content": "Seen."}]
    asked = {"role": "user", "content": "Give the names."}

    exchange = await begin(adapter, [*history, asked, begun])

    assert exchange.is_changed
    assert exchange.items[-2:] == [asked, begun]
    assert exchange.items[-1] is begun
    assert exchange.result.messages[-1]["content"] == '{"names": ['
    assert exchange.session.memory.history[-1]["content"] == "Give the names."
    whole = {"role": "assistant", "content": '{"names": []}'}
    later = await begin(adapter, [*history, asked, whole, asked])
    assert later.dialog is exchange.dialog
    assert later.result.notices == ()


async def test_the_words_of_another_agent_are_no_prefill(tmp_path):
    adapter = offloading(tmp_path)
    await begin(adapter, messages())
    printed = f"The conversation so far:\n<HISTORY>\n{json.dumps(LONG)}\n</HISTORY>"

    exchange = await begin(adapter, [{"role": "assistant", "content": printed}])

    assert exchange.is_changed
    assert "<HISTORY>" in exchange.items[-1]["content"]
    assert "a long line of output" not in exchange.items[-1]["content"]


# Rebuilt histories --------------------------------------------------------------------------------


def look(known: Format, name: str) -> list[dict[str, Any]]:
    """A call named *name*, and its long result, in the form of *known*."""
    result = f"{name}: {LONG}"
    if known is RESPONSES:
        wanted = {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
        return [wanted, {"type": "function_call_output", "call_id": name, "output": result}]
    if known is CHAT:
        function = {"name": "look", "arguments": "{}"}
        call = {"id": name, "type": "function", "function": function}
        answer = {"role": "tool", "tool_call_id": name, "content": result}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}, answer]
    use: dict[str, Any] = {"type": "tool_use", "id": name, "name": "look", "input": {}}
    block = {"type": "tool_result", "tool_use_id": name, "content": result}
    return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]


@pytest.mark.parametrize("known", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("has_journal", [True, False])
async def test_what_was_offloaded_stays_out_of_a_history_whose_messages_are_merged(
    known: Format, has_journal, tmp_path
):
    journal = LocalStorage(tmp_path) if has_journal else None
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path), min_chars=500)])
    adapter = Adapter(pipeline, journal=journal)
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for run in range(10):
        history += [*look(known, f"c{run}"), {"role": "assistant", "content": f"said {run}"}]
        history += [{"role": "user", "content": f"a{run}"}, {"role": "user", "content": f"b{run}"}]
        if run % 3 == 2:
            at = history.index({"role": "user", "content": f"a{run - 1}"})
            history[at : at + 2] = [{"role": "user", "content": f"a{run - 1}\nb{run - 1}"}]
        if has_journal and run == 7:
            adapter = Adapter(pipeline, journal=LocalStorage(tmp_path))
        calls = [item for item in history if f"c{run}" in str(item)]
        for end in (history.index(calls[-1]) + 1, len(history)):
            exchange = await adapter.begin(known.codec, history[:end])
            assert exchange is not None
            assert str(exchange.items).count(LONG[:100]) == 0
            assert str(exchange.items).count("offloaded to file") == run + 1


# In bytes -----------------------------------------------------------------------------------------


async def begin_http(
    adapter: Adapter, known: Format, body: Mapping[str, Any] | bytes
) -> HttpExchange:
    exchange = HttpExchange(adapter.conversations, known, adapter.find)
    raw = body if isinstance(body, bytes) else json.dumps(body, indent=1).encode()
    await exchange.shape_bytes(raw)
    return exchange


@pytest.mark.parametrize("held", ["previous_response_id", "conversation"])
async def test_what_was_read_back_stays_where_the_provider_holds_the_call(held, tmp_path):
    adapter = offloading(tmp_path)
    calls = [
        {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}
        for name in ("look", "read_offloaded")
    ]
    first = await begin_http(adapter, RESPONSES, {"input": [{"role": "user", "content": "go"}]})
    first.begin_answer(200, "application/json")
    usage = {"input_tokens": 9, "output_tokens": 1}
    first.feed(json.dumps({"id": "h", "output": calls, "usage": usage}).encode())
    first.end()
    before = factor(first)

    given = [
        {"type": "function_call_output", "call_id": name, "output": LONG}
        for name in ("read_offloaded", "look", "unknown")
    ]
    exchange = await begin_http(adapter, RESPONSES, {"input": given, held: "h"})
    exchange.calibrate({"usage": {"input_tokens": 9_000}})

    read_back, looked, unknown = exchange.items
    assert [read_back, unknown] == [given[0], given[2]]
    assert looked["output"].startswith("[Tool result offloaded to file: ")
    assert not await exchange.shorten(Refusal("OpenAI", 9_000, 8_000))
    assert factor(first) == before


def events(*said: Mapping[str, Any]) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in said)


def factor(exchange: HttpExchange) -> float:
    """What a token is believed to cost after the reply."""
    return exchange.session.memory.state.ledger.factor


async def test_where_nothing_is_to_be_done_the_bytes_are_the_clients_own(tmp_path):
    exchange = await begin_http(offloading(tmp_path), CHAT, {"messages": messages("short")})

    assert exchange.is_shaped
    assert exchange.content() is exchange.raw


async def test_what_is_unchanged_keeps_its_bytes(tmp_path):
    exchange = await begin_http(offloading(tmp_path), CHAT, {"x": [1.50], "messages": messages()})

    sent = exchange.content()
    assert sent.startswith(b'{\n "x": [\n  1.5\n ],\n "messages": [{\n   "role": "system",')
    assert b"offloaded" in sent
    assert len(sent) < len(exchange.raw) / 2


@pytest.mark.parametrize(
    ("known", "raw", "reason"),
    [
        (CHAT, b'{"messages": [}', "its body is not valid JSON"),
        (CHAT, b'{"messages": "x"}', "is not shaped"),
        (CHAT, b'{"messages": [1]}', "is not shaped"),
        (
            RESPONSES,
            b'{"input": "go", "previous_response_id": "r"}',
            "is not shaped",
        ),
        (
            MESSAGES,
            b'{"messages": [{"role": "user", "content": "x"}], "thread": {"id": "t"}}',
            "not",
        ),
        (MESSAGES, b'{"messages": [{"role": 1}]}', ""),
        (GEMINI, b'{"contents": [{"parts": [{"text": "x"}]}], "cachedContent": "c"}', "not"),
        (CHAT, b'{"messages": [' + b"[" * 300 + b"]" * 300 + b"]}", "deeper than 200"),
    ],
)
async def test_what_is_not_shaped_passes_as_it_came_and_says_why(known: Format, raw: bytes, reason):
    exchange = await begin_http(Adapter(ContextPipeline()), known, raw)

    assert not exchange.is_shaped
    assert exchange.content() is raw
    assert exchange.reason
    assert reason in exchange.reason
    exchange.begin_answer(400, "application/json")
    assert not exchange.is_undecided
    exchange.feed(b"prompt is too long")
    exchange.end()
    assert not await exchange.retry()


USAGE = {"prompt_tokens": 4_000, "completion_tokens": 5}
GEMINI_REPLY = {
    "usageMetadata": {
        "promptTokenCount": 4_000,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 3,
    },
    "candidates": [{"finishReason": "STOP"}, {}],
}
REPLIES: list[tuple[Format, str, bytes]] = [
    (CHAT, "application/json", json.dumps({"usage": USAGE}).encode()),
    (CHAT, "text/event-stream", events({"choices": []}, {"usage": USAGE})),
    (
        RESPONSES,
        "text/event-stream",
        events(
            {"type": "response.created", "response": {"usage": None}},
            {"type": "response.output_text.delta"},
            {"type": "response.completed", "response": {"usage": {"input_tokens": 4_000}}},
        ),
    ),
    (
        MESSAGES,
        "text/event-stream",
        events(
            {
                "type": "message_start",
                "message": {"type": "message", "usage": {"input_tokens": 4_000}},
            },
            {"type": "message_delta", "usage": {"output_tokens": 5}},
        ),
    ),
    (GEMINI, "application/json", json.dumps(GEMINI_REPLY).encode()),
    (GEMINI, "application/json", json.dumps([{"candidates": []}, GEMINI_REPLY]).encode()),
    (
        GEMINI,
        "text/event-stream",
        events({"usageMetadata": {"promptTokenCount": 9}, "candidates": [{}]}, GEMINI_REPLY),
    ),
]


@pytest.mark.parametrize(("known", "content_type", "reply"), REPLIES)
@pytest.mark.parametrize("step", [1, 50, 100_000])
async def test_the_usage_of_a_reply_is_learned_however_it_is_cut(
    known: Format, content_type: str, reply: bytes, step
):
    words = "word " * 3_000
    said = [{"role": "user", "content": words, "parts": [{"text": words}]}]
    exchange = await begin_http(Adapter(ContextPipeline()), known, {known.key: said, "model": "m"})
    before = factor(exchange)

    exchange.begin_answer(200, content_type)
    for start in range(0, len(reply), step):
        exchange.feed(reply[start : start + step])
    exchange.end()

    assert factor(exchange) != before
    assert exchange.usage["input_tokens"] == 4_000


async def test_only_the_beginning_of_a_stream_that_may_be_refused_is_held_back(tmp_path):
    exchange = await begin_http(
        offloading(tmp_path), RESPONSES, {"input": [{"role": "user", "content": "x"}]}
    )

    exchange.begin_answer(200, "text/event-stream")
    undecided: list[bool] = []
    for kind in ("response.created", "response.output_item.added"):
        exchange.feed(events({"type": kind}))
        undecided.append(exchange.is_undecided)
    assert undecided == [True, False]
    assert not await exchange.retry()


@pytest.mark.parametrize("late", [True, False])
async def test_after_too_long_there_is_a_shorter_request(late, tmp_path):
    pipeline = ContextPipeline([SmartTruncate(LocalStorage(tmp_path))], budget=Budget(20_000))
    said = [
        {"role": "user", "content": f"{n} " + "one word after the other " * 400} for n in range(7)
    ]
    items = [item for one in said for item in (one, {"role": "assistant", "content": "ok"})]
    exchange = await begin_http(Adapter(pipeline), RESPONSES, {"input": [*items, said[0]]})
    assert exchange.content() is exchange.raw

    error = {"type": "error", "message": "Your input exceeds the context window of this model."}
    if late:
        exchange.begin_answer(200, "text/event-stream")
        exchange.feed(events({"type": "response.created"}, error))
    else:
        exchange.begin_answer(400, "application/json")
        exchange.feed(json.dumps(error).encode())
        assert exchange.is_undecided

    assert await exchange.retry()
    assert len(exchange.content()) < len(exchange.raw)
