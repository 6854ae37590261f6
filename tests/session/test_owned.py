"""A session that owns the history, and calls at its end that have no result."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anthropic
import anyio
import pytest
from cancellation import cancelled
from histories import assistant, chat, text, tool_result, tool_use, user
from in_memory import messages_api
from recorded import NIGHTLY
from sdks import needs_middleware

from ctxpipe import ContextPipeline, InvalidHistory, LocalStorage, Session, SettingsError, Turn
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.messages import Message, pending_calls
from ctxpipe.placeholders.placeholders import INTERRUPTED
from ctxpipe.session.session import conversation_of
from ctxpipe.testing import MessagesServer, RequestBody, Script, answer_with
from ctxpipe.testing import tool_use as called

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 99}


@asynccontextmanager
async def talk(
    script: Script, **client: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    async with messages_api(MessagesServer(script), **client) as talking:
        yield talking


def sent(server: MessagesServer) -> list[list[Any]]:
    # The body of a request that was cancelled may not be parsed.
    return [json.loads(received.raw)["messages"] for received in server.requests]


def plain(history: list[Message]) -> list[Any]:
    """Return a history as JSON, with plain texts as blocks."""
    told = [{**message, "content": _blocks(message)} for message in history]
    written = json.dumps(told, default=lambda block: block.model_dump())
    return list(json.loads(written, object_hook=_without_none))


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    # Which fields that are not given a reply has is up to the version of the SDK.
    return {name: value for name, value in fields.items() if value is not None}


def _blocks(message: Message) -> object:
    content = message["content"]
    return [text(content)] if isinstance(content, str) else content


# Owning -----------------------------------------------------------------------------------------


async def test_create_sends_appended_messages_and_appends_the_reply(tmp_path):
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first", "second"]) as (server, client):
        session.append(user("go"))
        await session.create(client, **ASKED)
        session.append(user("on"))
        await session.create(client, **ASKED)

    expected = [user("go"), assistant(text("first")), user("on")]
    assert plain(sent(server)[1]) == plain(expected)
    assert plain(await session.history()) == plain([*expected, assistant(text("second"))])


async def test_create_continues_after_messages_of_another_process(tmp_path):
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


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_streamed_reply_is_appended_if_it_was_read_to_its_end(is_read, tmp_path):
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first " * 200]) as (_, client):
        session.append(user("go"))
        async with session.stream(client, **ASKED) as stream:
            async for _ in stream:
                if not is_read:
                    break

    said = assistant(text("first " * 200))
    assert plain(await session.history()) == plain([user("go"), *[said] * is_read])


async def test_a_paid_reply_is_in_the_journal_before_create_returns(tmp_path):
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk([answer_with(called("look", {}, "toolu_1"))]) as (_, client):
        session.append(user("go"))
        await session.create(client, **ASKED)

    known = await ContextPipeline().session("s", journal=LocalStorage(tmp_path)).history()
    assert plain(known) == plain([user("go"), assistant(tool_use("toolu_1", "look"))])


async def test_with_messages_the_reply_is_not_appended(tmp_path):
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk(["first"]) as (_, client):
        await session.create(client, messages=chat(3), **ASKED)

    assert await session.history() == chat(3)


async def test_create_before_append_is_an_error():
    async with talk(["never"]) as (server, client):
        with pytest.raises(InvalidHistory, match="append a message"):
            await ContextPipeline().session("s").create(client, **ASKED)

    assert not server.requests


def test_append_refuses_an_invalid_message():
    with pytest.raises(InvalidHistory):
        ContextPipeline().session("s").append("go")  # type: ignore[arg-type]


# Whenever it comes ------------------------------------------------------------------------------


def spoken(history: list[Any]) -> list[str]:
    """The texts and calls of *history*, in order."""
    said: list[str] = []
    for message in plain(history):
        for block in message["content"]:
            said.append(block.get("text") or block.get("id") or block["tool_use_id"])
    return said


class Steps:
    """A stage that waits, each time it runs, until it is let go on."""

    def __init__(self) -> None:
        self.entered, self.gate = anyio.Event(), anyio.Event()
        self.fails = False

    async def __call__(self, _turn: Turn):
        self.entered.set()
        await self.gate.wait()
        if self.fails:
            raise RuntimeError("not today")


async def while_it_is_shaped(session: Session, steps: Steps, act: Callable[[], object]):
    with anyio.fail_after(30):
        await steps.entered.wait()
    act()
    steps.gate.set()


def in_a_thread(act: Callable[[], object]):
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.mark.parametrize("place", ["here", "thread"])
@pytest.mark.parametrize("way", ["create", "stream"])
async def test_a_message_appended_during_the_shaping_is_in_the_next_request(way, place, tmp_path):
    steps = Steps()
    session = ContextPipeline([steps]).session("s", journal=LocalStorage(tmp_path))

    def act() -> None:
        if place == "here":
            session.append(user("stop"))
        else:
            in_a_thread(lambda: session.append(user("stop")))

    async with talk(["one", "two"]) as (server, client):
        session.append(user("go"))
        async with anyio.create_task_group() as group:
            group.start_soon(while_it_is_shaped, session, steps, act)
            if way == "create":
                await session.create(client, **ASKED)
            else:
                async with session.stream(client, **ASKED) as stream:
                    await stream.get_final_message()
        await session.create(client, **ASKED)

    assert [spoken(messages) for messages in sent(server)] == [["go"], ["go", "one", "stop"]]
    fresh = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    assert spoken(await fresh.history()) == ["go", "one", "stop", "two"]


@pytest.mark.parametrize("how", ["raises", "is cancelled"])
async def test_appended_messages_stay_if_the_turn_ends_early(how, tmp_path):
    steps = Steps()
    pipeline = ContextPipeline([steps], on_error="raise")
    session = pipeline.session("s", journal=LocalStorage(tmp_path))
    async with talk(["one"]) as (server, client):
        session.append(user("go"))
        steps.fails = how == "raises"

        def act() -> None:
            session.append(user("on"))
            if how == "is cancelled":
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(while_it_is_shaped, session, steps, act)
            with suppress(RuntimeError):
                await session.create(client, **ASKED)
        steps.fails = False
        steps.gate.set()
        await session.create(client, **ASKED)

    assert spoken(sent(server)[0]) == ["go", "on"]
    assert spoken(await session.history()) == ["go", "on", "one"]


@pytest.mark.parametrize("how", ["task", "scope"])
async def test_a_request_cancelled_anywhere_loses_and_duplicates_no_message(
    how: Literal["task", "scope"], tmp_path
):
    for at in range(1, 60, 1 if NIGHTLY else 4):
        session = ContextPipeline().session(f"s{at}", journal=LocalStorage(tmp_path))
        async with talk(["one", "two"]) as (server, client):
            session.append(user("go"))
            await cancelled(session.create(client, **ASKED), at, how)
            session.append(user("on"))
            await session.create(client, **ASKED)

        history = spoken(await session.history())
        assert [words for words in history if words in ("go", "on")] == ["go", "on"]
        assert history.count("one") <= 1
        assert spoken(sent(server)[-1]) == history[:-1]


async def test_a_message_appended_during_a_call_follows_the_reply_and_its_results():
    session = ContextPipeline().session("s")
    calls = [called("look", {}, "toolu_1"), called("look", {}, "toolu_2")]

    def think(body: RequestBody) -> Any:
        if len(body["messages"]) == 1:
            session.append(user("stop"))
            return answer_with(*calls)
        return "done"

    async with talk(think) as (server, client):
        session.append(user("go"))
        await session.create(client, **ASKED)
        with pytest.raises(InvalidHistory, match=r"toolu_1.*toolu_2.*append their results"):
            await session.create(client, **ASKED)
        session.append(user(tool_result("toolu_2")), user("and more"))
        with pytest.raises(InvalidHistory, match="toolu_1"):
            await session.create(client, **ASKED)
        session.append(user(tool_result("toolu_1")))
        await session.create(client, **ASKED)

    calls_and_results = ["toolu_1", "toolu_2", "toolu_2", "toolu_1"]
    assert spoken(await session.history()) == ["go", *calls_and_results, "stop", "and more", "done"]
    assert not server.refused


async def test_interrupted_calls_are_answered_before_appended_messages():
    session = ContextPipeline().session("s")
    async with talk([answer_with(called("look", {}, "toolu_1")), "fine"]) as (server, client):
        session.append(user("go"))
        await session.create(client, **ASKED)
        session.append(user("never mind"))
        await session.create(client, open_calls="interrupted", **ASKED)

    assert spoken(await session.history()) == ["go", "toolu_1", "toolu_1", "never mind", "fine"]
    assert not server.refused


@pytest.mark.parametrize("form", ["the same object", "a copy"])
async def test_a_reply_appended_by_the_caller_too_is_stored_once(
    form,
):
    session = ContextPipeline().session("s")

    def again(content: Any) -> Message:
        if form == "a copy":
            content = [block.model_dump(exclude_none=True) for block in content]
        return {"role": "assistant", "content": content}

    async with talk(["one", answer_with(called("look", {}, "toolu_1")), "three"]) as (_, client):
        session.append(user("go"))
        async with session.stream(client, **ASKED) as stream:
            reply: Any = await stream.get_final_message()
            session.append(user("while it speaks"), again(reply.content))
        reply = await session.create(client, **ASKED)
        session.append(user("and"), again(reply.content), user(tool_result("toolu_1")))
        await session.create(client, **ASKED)

    words = ["go", "one", "while it speaks", "toolu_1", "toolu_1", "and", "three"]
    assert spoken(await session.history()) == words


async def test_an_appended_message_does_not_change_if_the_caller_reuses_its_object():
    session = ContextPipeline().session("s")
    message: Any = user(text("first"))
    session.append(message)
    message["content"][0:] = [text("second")]
    session.append(message)
    message["content"] = "third"
    session.append(message)
    message.clear()
    async with talk(["done"]) as (server, client):
        await session.create(client, **ASKED)

    assert spoken(sent(server)[0]) == ["first", "second", "third"]


# One after the other ----------------------------------------------------------------------------


async def asks(session: Session, client: anthropic.AsyncAnthropic, words: str, way: str):
    session.append(user(words))
    if way == "create":
        await session.create(client, **ASKED)
    else:
        async with session.stream(client, **ASKED) as stream:
            await stream.get_final_message()


@pytest.mark.parametrize("has_journal", [True, False])
@pytest.mark.parametrize("ways", [["create"] * 4, ["stream", "create", "stream"]])
async def test_requests_at_the_same_time_are_sent_one_after_the_other(
    ways: list[str], has_journal, tmp_path
):
    journal = LocalStorage(tmp_path) if has_journal else None
    session = ContextPipeline().session("s", journal=journal)
    expected = [name for turn in range(len(ways)) for name in (f"q{turn}", f"a{turn}")]
    async with talk([f"a{turn}" for turn in range(len(ways))]) as (server, client):
        together = [asks(session, client, f"q{turn}", way) for turn, way in enumerate(ways)]
        await asyncio.gather(*together)

    assert spoken(await session.history()) == expected
    for turn, messages in enumerate(sent(server)):
        assert spoken(messages) == expected[: 2 * turn + 1]


async def test_a_request_whose_messages_were_answered_while_it_waited_is_an_error():
    session = ContextPipeline().session("s")
    async with talk(["one"]) as (server, client):
        session.append(user("go"))
        asked = [asyncio.create_task(session.create(client, **ASKED)) for _ in range(2)]
        _, second = await asyncio.gather(*asked, return_exceptions=True)

    assert isinstance(second, InvalidHistory)
    assert "answered" in str(second)
    assert spoken(await session.history()) == ["go", "one"]
    assert len(server.requests) == 1


async def test_messages_whose_request_was_cancelled_while_it_waited_are_in_the_next_request():
    session = ContextPipeline().session("s")
    async with talk(["one", "two"]) as (server, client):
        session.append(user("go"))
        first = asyncio.create_task(session.create(client, **ASKED))
        await anyio.lowlevel.checkpoint()
        session.append(user("by the way"))
        session.append(user("on"))
        waiting = asyncio.create_task(session.create(client, **ASKED))
        await anyio.lowlevel.checkpoint()
        waiting.cancel()
        await asyncio.wait({first, waiting})
        await session.create(client, **ASKED)

    assert waiting.cancelled()
    assert spoken(sent(server)[-1]) == ["go", "one", "by the way", "on"]


@pytest.mark.parametrize("way", ["here", "in a task", "in a stage"])
async def test_a_request_that_would_wait_for_itself_is_an_error(way):
    async with talk(["one", "two"]) as (_, client):

        async def again() -> None:
            session.append(user("on"))
            await session.create(client, **ASKED)

        async def stage(_turn: Turn):
            if way == "in a stage":
                await again()

        session = ContextPipeline([stage], on_error="raise").session("s")
        session.append(user("go"))
        with anyio.fail_after(30), pytest.raises(SettingsError, match="wait for itself"):
            async with session.stream(client, **ASKED):
                await (asyncio.create_task(again()) if way == "in a task" else again())

    assert "on" in spoken(
        [*await session.history(), *conversation_of(session).owned_history.appended]
    )


async def test_a_task_started_inside_a_stream_may_send_after_its_end():
    session, ended = ContextPipeline().session("s"), anyio.Event()

    async def later(client: anthropic.AsyncAnthropic):
        await ended.wait()
        await asks(session, client, "on", "create")

    async with talk(["one", "two"]) as (_, client):
        session.append(user("go"))
        async with session.stream(client, **ASKED) as stream:
            task = asyncio.create_task(later(client))
            await stream.get_final_message()
        ended.set()
        await task

    assert spoken(await session.history()) == ["go", "one", "on", "two"]


async def test_requests_with_messages_do_not_wait():
    session = ContextPipeline().session("s")
    async with talk(["one", "two"]) as (server, client):
        session.append(user("go"))
        async with session.stream(client, **ASKED) as stream:
            await session.create(client, messages=chat(3), **ASKED)
            await stream.get_final_message()

    assert len(server.requests) == 2


# Kept until it is written -----------------------------------------------------------------------


async def test_flushed_messages_are_in_the_journal_before_any_request(tmp_path):
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    session.append(user("go"))
    await conversation_of(session).owned_history.flush()
    session.append(user("on"))
    await conversation_of(session).owned_history.flush()

    fresh = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    assert await fresh.history() == [user("go"), user("on")]
    async with talk(["fine"]) as (server, client):
        await session.create(client, **ASKED)
    assert spoken(sent(server)[0]) == ["go", "on"]


async def test_results_appended_after_a_flush_directly_follow_their_calls(
    tmp_path,
):
    session = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    async with talk([answer_with(called("look", {}, "toolu_1")), "fine"]) as (server, client):
        session.append(user("go"))
        await session.create(client, **ASKED)
        session.append(user("stop"))
        await conversation_of(session).owned_history.flush()
        session.append(user(tool_result("toolu_1")))
        await session.create(client, **ASKED)

    assert spoken(sent(server)[1]) == ["go", "toolu_1", "toolu_1", "stop"]
    assert not server.refused


@pytest.mark.parametrize("fails", [False, True])
async def test_the_end_of_async_with_writes_appended_messages(fails, tmp_path):
    with suppress(RuntimeError):
        async with ContextPipeline().session("s", journal=LocalStorage(tmp_path)) as session:
            session.append(user("go"))
            if fails:
                raise RuntimeError("not today")

    again = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
    assert await again.history() == [user("go")]


# Open calls -------------------------------------------------------------------------------------

OPEN = [user("go"), assistant(tool_use("toolu_1", "bash"), tool_use("toolu_2", "look"))]


async def asked_for(way: str, session: Session, client: anthropic.AsyncAnthropic, **options: Any):
    if way == "create":
        await session.create(client, messages=OPEN, **ASKED, **options)
    else:
        async with session.stream(client, messages=OPEN, **ASKED, **options) as stream:
            await stream.get_final_message()


@pytest.mark.parametrize("way", ["create", "stream"])
async def test_calls_without_results_are_named_before_anything_is_sent(way):
    async with talk(["never"]) as (server, client):
        with pytest.raises(InvalidHistory, match=r"bash \(toolu_1\), look \(toolu_2\).*open_calls"):
            await asked_for(way, ContextPipeline().session("s"), client)

    assert server.requests == []


@pytest.mark.parametrize("way", ["create", "stream"])
async def test_open_calls_interrupted_answers_calls_with_an_error_result(way):
    async with talk(["fine"]) as (server, client):
        await asked_for(way, ContextPipeline().session("s"), client, open_calls="interrupted")

    results = sent(server)[0][-1]["content"]
    assert [result["tool_use_id"] for result in results] == ["toolu_1", "toolu_2"]
    assert all(result["is_error"] and result["content"] == INTERRUPTED for result in results)
    assert not server.refused


async def test_after_interrupted_calls_the_next_request_has_the_same_bytes():
    session = ContextPipeline().session("s")
    async with talk(["fine", "on"]) as (server, client):
        reply = await session.create(client, messages=OPEN, open_calls="interrupted", **ASKED)
        grown: list[Message] = [*OPEN, {"role": "assistant", "content": reply.content}, user("on")]
        await session.create(client, messages=grown, open_calls="interrupted", **ASKED)

    first, second = sent(server)
    assert second[: len(first)] == first
    assert not server.refused


async def test_a_call_that_has_its_result_is_not_open():
    history = [*OPEN, user(tool_result("toolu_1"), tool_result("toolu_2"))]
    async with talk(["fine"]) as (server, client):
        await ContextPipeline().session("s").create(client, messages=history, **ASKED)

    assert len(server.requests) == 1


async def test_an_unknown_value_of_open_calls_is_refused():
    async with talk(["never"]) as (_, client):
        with pytest.raises(SettingsError, match="open_calls"):
            await asked_for("create", ContextPipeline().session("s"), client, open_calls="skip")


@needs_middleware
async def test_an_adapter_sends_a_request_with_open_calls_unchanged_and_warns_once(
    caplog,
):
    middleware = ctxpipe_middleware(ContextPipeline(), session_id="s")
    async with talk(["never"], middleware=[middleware]) as (server, client):
        with caplog.at_level(logging.WARNING, "ctxpipe"):
            for _ in range(2):
                with pytest.raises(anthropic.BadRequestError):
                    await client.messages.create(messages=OPEN, **ASKED)

    assert sent(server) == [json.loads(json.dumps(OPEN))] * 2
    messages = [record.message for record in caplog.records if "no result" in record.message]
    assert messages == ["a request ends with calls that have no result; it is sent unchanged"]


@pytest.mark.parametrize("how", ["task", "scope"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_waited_for_a_cancelled_one_never_ends_with_a_reply(
    how: Literal["task", "scope"], streams: bool, tmp_path
):
    """The first request answers the messages of both, so the second has nothing to send."""

    async def ask(session: Session, client: anthropic.AsyncAnthropic):
        if not streams:
            await session.create(client, **ASKED)
            return
        async with session.stream(client, **ASKED) as stream:
            await stream.get_final_message()

    refused = 0
    clients: list[anthropic.AsyncAnthropic] = []
    for at in range(1, 60, 1 if NIGHTLY else 2):
        session = ContextPipeline().session(f"s{at}", journal=LocalStorage(tmp_path))
        waiting: list[asyncio.Task[None]] = []

        def think(_: RequestBody, session: Session = session, waiting: Any = waiting) -> Any:
            if not waiting:
                waiting.append(asyncio.create_task(ask(session, clients[-1])))
            return "an answer"

        async with talk(think) as (server, client):
            clients.append(client)
            session.append(user("first"))
            session.append(user("second"))
            await cancelled(ask(session, client), at, how)
            for second in waiting:
                try:
                    await second
                except InvalidHistory:
                    refused += 1

        assert [request[-1]["role"] for request in sent(server)] == ["user"] * len(sent(server))
        if waiting:
            history = spoken(await session.history())
            assert [words for words in history if words != "an answer"] == ["first", "second"]
    assert refused


async def test_a_prefilled_answer_is_sent_even_after_waiting():
    session = ContextPipeline().session("s")
    async with talk(["one", "two"]) as (server, client):
        session.append(user("first"))
        first = asyncio.create_task(session.create(client, **ASKED))
        await asyncio.sleep(0)
        session.append(user("second"), assistant("So:"))
        with suppress(anthropic.BadRequestError):  # the newest models refuse a prefilled answer
            await session.create(client, **ASKED)
        await first

    assert spoken(sent(server)[-1])[-1] == "So:"


# Several processes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meanwhile(LocalStorage):
    """A journal. While its lease is awaited, the *actions* of another process happen, once each."""

    actions: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    @asynccontextmanager
    async def lease(self, session_id: str, seconds: float, /) -> AsyncIterator[bool]:
        while self.actions:
            await self.actions.pop()()
        async with super().lease(session_id, seconds) as is_free:
            yield is_free


def pair(root: Path) -> tuple[Session, Session, Meanwhile]:
    """One session in two processes, and the journal of the first."""
    journal = Meanwhile(root)
    first = ContextPipeline().session("s", journal=journal, lease_seconds=5)
    return first, ContextPipeline().session("s", journal=LocalStorage(root)), journal


class Slow:
    """A client whose reply arrives after *happens* has happened."""

    def __init__(self, client: anthropic.AsyncAnthropic, happens: Callable[[], Awaitable[object]]):
        self._client = client
        self._happens = happens

    @property
    def messages(self) -> Slow:
        return self

    async def create(self, **request: Any) -> Any:
        reply = await self._client.messages.create(**request)
        await self._happens()
        return reply

    @asynccontextmanager
    async def stream(self, **request: Any) -> AsyncIterator[Any]:
        async with self._client.messages.stream(**request) as stream:
            await stream.get_final_message()
            await self._happens()
            yield stream


async def sends(session: Session, client: Any, way: str):
    if way == "create":
        await session.create(client, **ASKED)
    else:
        async with session.stream(client, **ASKED):
            pass


@pytest.mark.parametrize("way", ["create", "stream"])
async def test_of_two_replies_to_a_message_the_first_in_the_journal_counts(way: str, tmp_path):
    first, second, _ = pair(tmp_path)
    async with talk(["late", "early", "next"]) as (_, client):
        first.append(user("go"))
        slow = Slow(client, lambda: second.create(client, **ASKED))
        with pytest.raises(InvalidHistory, match="another process, has answered the last of them"):
            await sends(first, slow, way)
        assert spoken(await second.history()) == ["go", "early"]
        await asks(first, client, "on", way)

    assert spoken(await first.history()) == ["go", "early", "on", "next"]
    assert await first.branches() == []


async def test_an_error_in_the_body_of_a_stream_is_not_replaced_by_that_of_a_late_reply(tmp_path):
    first, second, _ = pair(tmp_path)
    async with talk(["late", "early"]) as (_, client):
        first.append(user("go"))
        slow: Any = Slow(client, lambda: second.create(client, **ASKED))
        with pytest.raises(ZeroDivisionError):
            async with first.stream(slow, **ASKED):
                raise ZeroDivisionError

    assert spoken(await first.history()) == ["go", "early"]


async def test_a_reply_is_kept_if_another_process_has_answered_a_later_message_first(tmp_path):
    first, second, _ = pair(tmp_path)
    async with talk(["late", "early", "next"]) as (_, client):
        slow: Any = Slow(client, lambda: asks(second, client, "by the way", "create"))
        first.append(user("go"))
        await first.create(slow, **ASKED)
        await asks(first, client, "on", "create")

    expected = ["go", "by the way", "early", "late", "on", "next"]
    assert spoken(await first.history()) == expected
    assert await first.branches() == []


@pytest.mark.parametrize("appended", [[], [user("on")]], ids=["recorded", "sent to both"])
async def test_a_message_that_is_answered_before_the_request_is_sent_costs_nothing(
    appended: list[Any], tmp_path
):
    first, second, journal = pair(tmp_path)
    async with talk(["one", "two"]) as (server, client):
        await asks(first, client, "go", "create")
        recorder = ContextPipeline().session("s", journal=LocalStorage(tmp_path))
        if not appended:
            async with recorder:  # as a worker that is killed before its request
                recorder.append(user("on"))

        async def answer():
            second.append(*appended)
            await second.create(client, **ASKED)

        journal.actions.append(answer)
        first.append(*appended)
        with pytest.raises(InvalidHistory, match="its reply is in history"):
            await first.create(client, **ASKED)

    assert len(server.requests) == 2
    assert spoken(await first.history()) == ["go", "one", "on", "two"]
    assert await first.branches() == []


async def test_a_request_has_what_another_process_adds_before_it_is_sent(tmp_path):
    first, second, journal = pair(tmp_path)
    async with talk(["one", "two", "three"]) as (server, client):
        await asks(first, client, "go", "create")
        journal.actions.append(lambda: asks(second, client, "by the way", "create"))
        await asks(first, client, "on", "create")

    expected = ["go", "one", "by the way", "two", "on", "three"]
    assert spoken(sent(server)[2]) == expected[:-1]
    assert spoken(await first.history()) == expected
    assert await first.branches() == []


async def test_a_result_that_two_processes_were_given_is_in_the_history_once(tmp_path):
    first, second, journal = pair(tmp_path)
    async with talk([answer_with(called("look", {})), "done"]) as (server, client):
        await asks(first, client, "go", "create")
        [call] = pending_calls(await first.history())
        result = user(tool_result(call.id, "seen"))

        async def answer():
            second.append(result)
            await second.create(client, **ASKED)

        journal.actions.append(answer)
        first.append(result)
        with pytest.raises(InvalidHistory, match="its reply is in history"):
            await first.create(client, **ASKED)

    assert not any(request.problems for request in server.requests)
    assert spoken(await first.history()) == ["go", call.id, call.id, "done"]
