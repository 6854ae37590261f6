"""Prompt-cache breakpoints in the items of other APIs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from ctxpipe import BatchOffload, ContextPipeline, LocalStorage
from ctxpipe.diagnostics.prompt_cache import CacheUse, PrefixCache
from ctxpipe.providers.cache_rules import OPENAI
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.wire import CHAT, Adapter, HttpExchange, ResponsesCodec
from ctxpipe.wire.breakpoints import ContentMarks, marking_rules, place_breakpoints, rewritten_part

MODEL = "gpt-5.6"
LONG = "a long line of output\n" * 200


def call(number: int) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(number: int, text: str = LONG) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} {text}"}


def chat(calls: int, text: str = LONG) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief. " * 1_000},
        {"role": "user", "content": "Go."},
    ]
    for number in range(calls):
        items += [call(number), result(number, text)]
    return items


def marked(items: Sequence[Any], field: str = "prompt_cache_breakpoint") -> list[int]:
    """The indices of the items with a breakpoint on their last part."""
    found = []
    for index, item in enumerate(items):
        content = item.get("content")
        if isinstance(content, list) and field in content[-1]:
            found.append(index)
    return found


def placed(
    items: Sequence[Any], previous: Sequence[Any], limit: int = 4, model: str = MODEL
) -> list[Any]:
    rules = marking_rules(model)
    assert rules is not None
    return place_breakpoints(items, previous, limit, ContentMarks("text"), rules)


def test_a_turn_that_rewrites_nothing_has_a_breakpoint_after_the_system_prompt():
    # OpenAI itself has one at the end of the prompt.
    assert marked(placed(chat(3), chat(2))) == [0]


def test_a_rewritten_part_has_a_breakpoint_before_and_after_it():
    before = chat(6)
    after = [*before[:5], result(1, "gone"), before[6], result(2, "gone"), *before[8:], call(9)]

    # Item 4 is a reply, which cannot have one: item 3, the result before it, gets it.
    assert rewritten_part(before, after) == (5, 8)
    assert marked(placed(after, before)) == [0, 3, 7]
    assert marked(placed(after, before, limit=2)) == [3, 7]


def test_a_request_to_openai_has_at_most_three_breakpoints_of_the_client():
    before = chat(6)
    after = [*before[:5], result(1, "gone"), *before[6:]]
    assert len(marked(placed(after, before, limit=4))) == 3


def test_claude_behind_a_chat_api_also_has_one_at_the_end_of_the_prompt():
    items = placed(chat(3), chat(2), model=f"anthropic/{EXAMPLE_MODEL}")

    assert marked(items, "cache_control") == [0, 5, 7]
    assert items[7]["content"] == [
        {"type": "text", "text": chat(3)[7]["content"], "cache_control": {"type": "ephemeral"}}
    ]


@pytest.mark.parametrize(
    "model", ["gpt-5.5", "gpt-4o", "gemini-3.8-flash", "deepseek-v4", "x", None]
)
def test_models_without_breakpoints_have_none(model: str | None):
    assert marking_rules(model) is None


def test_a_client_that_places_breakpoints_keeps_control():
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    before = chat(6)
    own = {"role": "user", "content": [{"type": "text", "text": "Go.", **mark}]}
    before[1] = own
    after = [*before[:5], result(1, "gone"), *before[6:]]

    assert marked(placed(before, before)) == [1]
    assert marked(placed(after, before)) == [1, 3, 5]


def test_a_breakpoint_of_the_client_that_moves_is_no_rewriting():
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    before = chat(3)
    with_mark = {"role": "user", "content": [{"type": "text", "text": "Go.", **mark}]}
    without = {"role": "user", "content": [{"type": "text", "text": "Go."}]}

    items = placed([before[0], without, *chat(4)[2:]], [before[0], with_mark, *before[2:]])
    assert marked(items) == [0]


def test_the_items_of_the_client_are_not_modified():
    before, after = chat(3), chat(3)
    placed(after, chat(2))
    assert after == before


# Through an adapter -------------------------------------------------------------------------------


def shaping(folder: Path, breakpoints: int | None) -> Adapter:
    stage = BatchOffload(LocalStorage(folder), RatioGate(0.2), keep_recent=1)
    return Adapter(ContextPipeline([stage]), "s", cache_breakpoints=breakpoints)


async def sent(adapter: Adapter, items: list[Any], model: str = MODEL) -> list[Any]:
    exchange = await adapter.begin(CHAT.codec, items, {"request": {"model": model}})
    assert exchange is not None
    return list(exchange.items)


async def test_an_adapter_places_them_around_what_its_turn_has_rewritten(tmp_path):
    adapter = shaping(tmp_path, 4)
    contexts = [await sent(adapter, chat(calls)) for calls in range(1, 7)]

    assert all(marked(context)[:1] == [0] for context in contexts)
    rewritten = [context for context in contexts if len(marked(context)) > 1]
    assert rewritten
    for context in rewritten:
        assert len(marked(context)) <= 3
    # The client's own items come back without marks, and are one conversation.
    first, last = [
        await adapter.begin(CHAT.codec, chat(7), {"request": {"model": MODEL}}) for _ in range(2)
    ]
    assert first is not None
    assert last is not None
    assert first.dialog is last.dialog


@pytest.mark.parametrize("breakpoints", [None, 0])
async def test_by_default_no_breakpoint_is_placed(tmp_path, breakpoints: int | None):
    adapter = shaping(tmp_path, breakpoints)
    contexts = [await sent(adapter, chat(calls)) for calls in range(1, 7)]

    assert "prompt_cache_breakpoint" not in json.dumps(contexts)


async def test_items_of_the_responses_api_have_them_on_messages(tmp_path):
    adapter = shaping(tmp_path, 4)
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    exchange = await adapter.begin(ResponsesCodec(), items, {"request": {"model": MODEL}})

    assert exchange is not None
    assert exchange.items[0]["content"] == [
        {
            "type": "input_text",
            "text": "Be brief.",
            "prompt_cache_breakpoint": {"mode": "explicit"},
        }
    ]
    assert exchange.items[3] is items[3]


@pytest.mark.parametrize("breakpoints", [None, 4])
async def test_a_request_over_http_has_them_in_its_body(tmp_path, breakpoints: int | None):
    adapter = shaping(tmp_path, breakpoints)
    exchange = HttpExchange(adapter.conversations, CHAT, adapter.find, breakpoints=breakpoints)
    raw = json.dumps({"model": MODEL, "messages": chat(2, "short"), "stream": True}).encode()
    await exchange.shape_bytes(raw)

    body = json.loads(exchange.content())
    assert marked(body["messages"]) == ([0] if breakpoints else [])
    assert (exchange.content() == raw) == (breakpoints is None)
    assert {name: body[name] for name in ("model", "stream")} == {"model": MODEL, "stream": True}


# What they save -----------------------------------------------------------------------------------


def billed(cache: PrefixCache, items: Sequence[Any]) -> CacheUse:
    """The cache use of a request with *items*, by the rules of OpenAI."""
    plain = [
        json.dumps(item, sort_keys=True).replace(
            ', "prompt_cache_breakpoint": {"mode": "explicit"}', ""
        )
        for item in (as_parts(item) for item in items)
    ]
    sums = list(accumulate(len(text) // 4 for text in plain))
    chain = [tuple(plain[: place + 1]) for place in range(len(plain))]
    return cache.request(chain, sums.__getitem__, marked(items), 0.0)


def as_parts(item: dict[str, Any]) -> dict[str, Any]:
    """An item whose content is a list of parts: a text and a part with it are the same prompt."""
    content = item.get("content")
    if not isinstance(content, str):
        return item
    return {**item, "content": [{"text": content, "type": "text"}]}


async def test_breakpoints_make_conversations_of_one_agent_cheaper(tmp_path):
    written = {}
    for breakpoints in (0, 4):
        cache = PrefixCache(rules=OPENAI)
        uses = []
        for name in ("one", "two", "three"):
            adapter = shaping(tmp_path / f"{breakpoints}-{name}", breakpoints)
            for calls in range(1, 9):
                items = chat(calls)
                items[1] = {"role": "user", "content": f"Go, {name}."}
                uses.append(billed(cache, await sent(adapter, items)))
        written[breakpoints] = sum(use.written for use in uses)

    # The system prompt is written once, not once for each conversation.
    system_tokens = len(chat(0)[0]["content"]) // 4
    assert written[4] <= written[0] - 2 * system_tokens
