"""What every mount does with a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ctxpipe import Change, ContextPipeline, DirectOffload, LocalStorage, Skip, Turn
from ctxpipe.refusals import Refusal
from ctxpipe.wire import ChatCodec, Shaped, Shaper

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


def offloading(folder: Path) -> Shaper:
    pipeline = ContextPipeline([DirectOffload(LocalStorage(folder), min_chars=500)])
    return Shaper(pipeline, ChatCodec(), session_id="s")


async def shape(shaper: Shaper, items: list[Any], **options: Any) -> Shaped:
    shaped = await shaper.shape(items, **options)
    assert shaped is not None
    return shaped


async def test_nothing_to_do_changes_nothing(tmp_path: Path):
    shaped = await shape(offloading(tmp_path), messages("short"))

    assert not shaped.is_changed


async def test_a_context_that_shrank_is_one_that_changed(tmp_path: Path):
    shaped = await shape(offloading(tmp_path), messages())

    assert shaped.is_changed
    assert "offloaded" in shaped.items[-1]["content"]


async def test_what_is_never_shaped_is_counted():
    tokens: list[int] = []

    for system in ("", "You are a long-winded helper. " * 100):
        shaped = await shape(Shaper(ContextPipeline(), ChatCodec()), messages(), system=system)
        tokens.append(shaped.result.tokens_after)

    assert tokens[1] > tokens[0] + 400


async def test_a_conversation_of_nobody_is_sent_as_it_came(tmp_path: Path):
    assert await offloading(tmp_path).shape([{"role": "system", "content": "x"}]) is None
    assert await offloading(tmp_path).shape([]) is None


async def test_what_a_stage_asks_of_a_model_is_not_shaped(tmp_path: Path):
    shaper = offloading(tmp_path)
    inner: list[Shaped | None] = []

    async def ask(turn: Turn) -> Skip:
        inner.append(await shaper.shape(messages()))
        return Skip("")

    await shape(Shaper(ContextPipeline([ask]), ChatCodec()), messages())

    assert inner == [None]


async def test_what_cannot_be_shortened_gives_none(tmp_path: Path):
    shaper = offloading(tmp_path)
    shaped = await shape(shaper, messages("short"))

    assert await shaper.recover(shaped, Refusal("OpenAI", 9000, 8000)) is None
    assert await shaper.recover(shaped, None) is None


async def test_an_error_while_recovering_is_logged(caplog: pytest.LogCaptureFixture):
    calls: list[Turn] = []

    async def fail_at_last(turn: Turn) -> Change | Skip:
        calls.append(turn)
        if len(calls) > 1:
            raise RuntimeError("secret")
        return Skip("")

    shaper = Shaper(ContextPipeline([fail_at_last], on_error="raise"), ChatCodec())
    shaped = await shape(shaper, messages())

    assert await shaper.recover(shaped, Refusal("OpenAI", 900_000, 200_000)) is None
    assert caplog.text.count("could not be shortened") == 1
    assert "secret" not in caplog.text
