"""What a user says as the result of a call, where the model calls in its words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, SettingsError
from ctxpipe.wire import Adapter, HttpExchange, Translation
from ctxpipe.wire.formats import format_of
from ctxpipe.wire.openai_chat import ObservationCodec

LONG = "a long line of output\n" * 100
MARK = "Observation:"
every_api = pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def loop(*results: str) -> list[dict[str, Any]]:
    """A task, and what the model has called for in its words."""
    messages = [said("user", "Build it.")]
    for number, result in enumerate(results):
        messages += [said("assistant", f"Action {number}: make"), said("user", result)]
    return messages


def offloading(folder: Path, mark: str) -> Adapter:
    pipeline = ContextPipeline([DirectOffload(LocalStorage(folder), min_chars=500)])
    return Adapter(pipeline, "s", observation=mark)


async def sent(adapter: Adapter, path: str, messages: list[Any]) -> list[Any]:
    """What is sent instead of *messages*."""
    known = format_of("POST", path, adapter.observation)
    assert known is not None
    exchange = HttpExchange(adapter.conversations, known, adapter.find)
    await exchange.shape_bytes(json.dumps({"model": "m", "messages": messages}).encode())
    assert exchange.is_shaped, exchange.reason
    items: list[Any] = json.loads(exchange.content())["messages"]
    return items


def test_words_that_nobody_answered_stay_the_same_objects_where_something_leaves():
    messages = [*loop(f"{MARK} fine", "Why?"), said("assistant", "So."), said("user", f"{MARK} x")]
    translation = Translation(ObservationCodec(MARK))
    units = translation.read(messages)
    summary: Any = said("user", "A summary.")

    items = translation.items(units, [summary, *units.messages[1:]])

    assert [id(item) for item in items[1:]] == [id(message) for message in messages[1:]]


@every_api
@pytest.mark.parametrize("mark", [MARK, "<returncode>"])
async def test_a_long_observation_leaves_and_all_else_stays(tmp_path, path, mark):
    messages = loop("fine", f"{mark} {LONG}")

    items = await sent(offloading(tmp_path, mark), path, messages)

    assert items[:-1] == messages[:-1]
    assert items[-1]["role"] == "user"
    assert items[-1]["content"].startswith("[Tool result offloaded to file: ")
    [file] = tmp_path.rglob("*.md")
    assert file.read_text() == f"{mark} {LONG}"


@every_api
async def test_texts_stay_texts_where_nobody_has_asked_for_it(tmp_path, path):
    messages = loop(f"Observation: {LONG}")

    for mark in ("", "<returncode>"):
        assert await sent(offloading(tmp_path, mark), path, messages) == messages


async def test_the_beginning_keeps_its_bytes_while_the_loop_goes_on(tmp_path):
    messages = loop(*[f"Observation: {number} {LONG}" for number in range(3)])

    adapter = offloading(tmp_path, MARK)
    contexts = [await sent(adapter, "/v1/messages", messages[:stop]) for stop in (3, 5, 7)]

    assert contexts[0] == contexts[1][:3]
    assert contexts[1] == contexts[2][:5]
    assert all(len(item["content"]) < 500 for item in contexts[2])


async def test_what_was_read_back_stays(tmp_path):
    messages = loop(f"Observation: {LONG}")
    adapter = offloading(tmp_path, MARK)
    [*_, placeholder] = await sent(adapter, "/v1/messages", messages)
    path = placeholder["content"].split("file: ")[1].split("]")[0]
    read = [said("assistant", f"Action: cat {path}"), said("user", f"Observation: {LONG}")]

    items = await sent(adapter, "/v1/messages", [*messages, *read])

    assert items[-1] == read[-1]


def test_what_nobody_has_called_for_and_what_has_no_result_are_texts():
    codec = ObservationCodec(MARK)
    items = [said("user", "Observation: none"), said("assistant", "Hm."), said("user", "Go on.")]

    units = Translation(codec).read(items)

    assert [message["content"] for message in units.messages] == [it["content"] for it in items]


def test_the_beginning_is_a_text():
    marks: Any = [MARK]
    with pytest.raises(SettingsError, match=r"observation is .*give a text"):
        Adapter(ContextPipeline(), observation=marks)
