"""A session that owns the history, and calls at its end that have no result."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from histories import assistant, chat, text, tool_result, tool_use, user

from ctxpipe import ContextPipeline, InvalidHistory, LocalStorage, Session, SettingsError
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.markers.repairs import INTERRUPTED
from ctxpipe.messages import Message
from ctxpipe.testing import MessagesServer, Script, answer
from ctxpipe.testing import tool_use as called

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 99}


@asynccontextmanager
async def talk(
    script: Script, **client: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    async with (
        MessagesServer(script) as server,
        anthropic.AsyncAnthropic(
            base_url=server.url, api_key="test", max_retries=0, **client
        ) as asking,
    ):
        yield server, asking


def sent(server: MessagesServer) -> list[list[Any]]:
    return [received.body["messages"] for received in server.requests]


def plain(history: list[Message]) -> list[Any]:
    """What a history says, as JSON, its bare texts as blocks."""
    told = [{**message, "content": _blocks(message)} for message in history]
    return list(
        json.loads(json.dumps(told, default=lambda block: block.model_dump(exclude_none=True)))
    )


def _blocks(message: Message) -> object:
    content = message["content"]
    return [text(content)] if isinstance(content, str) else content


# Owning -----------------------------------------------------------------------------------------


async def test_what_was_appended_is_sent_and_the_reply_is_added(tmp_path: Path) -> None:
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first", "second"]) as (server, client):
        session.append(user("go"))
        await session.create(client, **ASKED)
        session.append(user("on"))
        await session.create(client, **ASKED)

    expected = [user("go"), assistant(text("first")), user("on")]
    assert plain(sent(server)[1]) == plain(expected)
    assert plain(await session.history()) == plain([*expected, assistant(text("second"))])


async def test_what_another_process_has_added_is_gone_on_from(tmp_path: Path) -> None:
    both = [ContextPipeline().session("s", journal=LocalStorage(tmp_path)) for _ in range(2)]
    expected: list[Any] = []
    async with talk([f"answer {turn}" for turn in range(6)]) as (server, client):
        for turn in range(6):
            session = both[turn % 2]
            session.append(user(f"question {turn}"))
            await session.create(client, **ASKED)
            expected += [user(f"question {turn}"), assistant(text(f"answer {turn}"))]
            assert plain(sent(server)[turn]) == plain(expected[:-1])

    assert plain(await both[0].history()) == plain(expected[:-2])
    assert plain(await both[1].history()) == plain(expected)
    assert await both[0].branches() == []


async def test_a_stream_that_was_read_to_its_end_is_added(tmp_path: Path) -> None:
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first"]) as (_, client):
        session.append(user("go"))
        async with session.stream(client, **ASKED) as stream:
            assert await stream.get_final_text() == "first"

    assert plain(await session.history()) == plain([user("go"), assistant(text("first"))])


async def test_a_stream_that_was_left_in_the_middle_is_not_added(tmp_path: Path) -> None:
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first " * 200]) as (_, client):
        session.append(user("go"))
        async with session.stream(client, **ASKED) as stream:
            async for _ in stream:
                break

    assert await session.history() == [user("go")]


async def test_a_reply_that_is_appended_by_hand_as_well_is_there_once(tmp_path: Path) -> None:
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first", "second"]) as (server, client):
        session.append(user("go"))
        reply = await session.create(client, **ASKED)
        session.append({"role": "assistant", "content": reply.content}, user("on"))
        await session.create(client, **ASKED)

    assert len(sent(server)[1]) == 3


async def test_a_new_process_goes_on_without_a_history_handed_in(tmp_path: Path) -> None:
    async with talk(["first", "second"]) as (server, client):
        session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
        session.append(user("go"))
        await session.create(client, **ASKED)
        again = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
        again.append(user("on"))
        await again.create(client, **ASKED)

    assert plain(sent(server)[1]) == plain([user("go"), assistant(text("first")), user("on")])


async def test_a_paid_reply_is_in_the_journal_before_create_returns(tmp_path: Path) -> None:
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk([answer(called("look", {}, "toolu_1"))]) as (_, client):
        session.append(user("go"))
        await session.create(client, **ASKED)

    known = await ContextPipeline().session("s", journal=LocalStorage(tmp_path)).history()
    assert plain(known) == plain([user("go"), assistant(tool_use("toolu_1", "look"))])


async def test_without_a_journal_a_session_owns_its_history_as_long_as_it_lives() -> None:
    session = ContextPipeline().session("s")
    async with talk(["first", "second"]) as (server, client):
        for words in ("go", "on"):
            session.append(user(words))
            await session.create(client, **ASKED)

    assert [len(messages) for messages in sent(server)] == [1, 3]


async def test_with_messages_the_reply_is_the_callers_to_add(tmp_path: Path) -> None:
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first"]) as (_, client):
        await session.create(client, messages=chat(3), **ASKED)

    assert await session.history() == chat(3)


def test_what_is_no_message_cannot_be_appended() -> None:
    with pytest.raises(InvalidHistory):
        ContextPipeline().session("s").append("go")  # type: ignore[arg-type]


# Open calls -------------------------------------------------------------------------------------

OPEN = [user("go"), assistant(tool_use("toolu_1", "bash"), tool_use("toolu_2", "look"))]


async def asked_for(
    way: str, session: Session, client: anthropic.AsyncAnthropic, **options: Any
) -> None:
    if way == "create":
        await session.create(client, messages=OPEN, **ASKED, **options)
    else:
        async with session.stream(client, messages=OPEN, **ASKED, **options) as stream:
            await stream.get_final_message()


@pytest.mark.parametrize("way", ["create", "stream"])
async def test_calls_without_results_are_named_before_anything_is_sent(way: str) -> None:
    async with talk(["never"]) as (server, client):
        with pytest.raises(InvalidHistory, match=r"bash \(toolu_1\), look \(toolu_2\).*open_calls"):
            await asked_for(way, ContextPipeline().session("s"), client)

    assert server.requests == []


@pytest.mark.parametrize("way", ["create", "stream"])
async def test_interrupted_calls_are_answered_so(way: str) -> None:
    async with talk(["fine"]) as (server, client):
        await asked_for(way, ContextPipeline().session("s"), client, open_calls="interrupted")

    results = sent(server)[0][-1]["content"]
    assert [result["tool_use_id"] for result in results] == ["toolu_1", "toolu_2"]
    assert all(result["is_error"] and result["content"] == INTERRUPTED for result in results)
    assert not server.refused


async def test_after_interrupted_calls_the_loop_goes_on_with_the_same_bytes() -> None:
    session = ContextPipeline().session("s")
    async with talk(["fine", "on"]) as (server, client):
        reply = await session.create(client, messages=OPEN, open_calls="interrupted", **ASKED)
        grown: list[Message] = [*OPEN, {"role": "assistant", "content": reply.content}, user("on")]
        await session.create(client, messages=grown, open_calls="interrupted", **ASKED)

    first, second = sent(server)
    assert second[: len(first)] == first
    assert not server.refused


async def test_a_call_that_has_its_result_is_not_open() -> None:
    history = [*OPEN, user(tool_result("toolu_1"), tool_result("toolu_2"))]
    async with talk(["fine"]) as (server, client):
        await ContextPipeline().session("s").create(client, messages=history, **ASKED)

    assert len(server.requests) == 1


async def test_another_word_for_open_calls_is_refused() -> None:
    async with talk(["never"]) as (_, client):
        with pytest.raises(SettingsError, match="open_calls"):
            await asked_for("create", ContextPipeline().session("s"), client, open_calls="skip")


async def test_a_mount_sends_such_a_request_as_it_came_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    middleware = ctxpipe_middleware(ContextPipeline(), session_id="s")
    async with talk(["never"], middleware=[middleware]) as (server, client):
        with caplog.at_level(logging.WARNING, "ctxpipe"):
            for _ in range(2):
                with pytest.raises(anthropic.BadRequestError):
                    await client.messages.create(messages=OPEN, **ASKED)

    assert sent(server) == [json.loads(json.dumps(OPEN))] * 2
    messages = [record.message for record in caplog.records if "no result" in record.message]
    assert messages == ["a request ends with calls that have no result; it is sent as it came"]
