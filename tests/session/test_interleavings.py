"""A session that owns its history, whatever is done to it at once: nothing is lost, or twice."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from api_rules import faults, parts
from histories import assistant, text, tool_result, tool_use, user
from hypothesis import example, given
from hypothesis import strategies as st

from ctxpipe import ContextPipeline, InvalidHistory, MemoryStorage, Session, Sessions, StorageError
from ctxpipe.messages import Message, as_json, tool_calls, tool_results
from ctxpipe.messages.identity import says_the_same
from ctxpipe.placeholders.placeholders import INTERRUPTED
from ctxpipe.session.session import conversation_of
from ctxpipe.stages.protocol import Turn

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 99}
MAX_BYTES = 100_000  # more than the session "s" ever has, so that it is never given up


async def ticks(number: int):
    """Let the others go on so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


class Unwell(RuntimeError):
    """What a stage or the model raises here."""


@dataclass
class Reply:
    content: list[Any]
    stop_reason: str = "end_turn"


@dataclass
class World:
    """A model, a stage and a journal, which all take their time, and fail when they are asked to.

    *pace* says how many ticks each of their steps takes, in turn.
    """

    pace: Sequence[int]
    requests: list[list[Any]] = field(default_factory=list)
    failures: set[str] = field(default_factory=set)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    replies: int = 0

    def __post_init__(self) -> None:
        self._paces: Iterator[int] = iter(())

    async def wait(self, what: str):
        pace = next(self._paces, None)
        if pace is None:
            self._paces = iter(self.pace)
            pace = next(self._paces, 0)
        await ticks(pace)
        if what in self.failures:
            self.failures.discard(what)
            if what == "journal":
                raise StorageError(28, "no space left")
            raise Unwell(what)

    # The pipeline's stage

    async def stage(self, _turn: Turn):
        await self.wait("stage")

    # The client

    @property
    def messages(self) -> World:
        return self

    async def create(self, *, messages: list[Any], **_: object) -> Reply:
        self.requests.append(json.loads(as_json(messages)))
        await self.wait("model")
        self.replies += 1
        content = [text(f"reply {self.replies}.")]
        if self.replies % 3 == 0:
            content.append(tool_use(f"a{self.replies}", "look"))
        if self.replies % 6 == 0:
            content.append(tool_use(f"b{self.replies}", "look"))
        return Reply(content)

    @asynccontextmanager
    async def stream(self, **body: Any) -> AsyncIterator[World]:
        self.current_message_snapshot = await self.create(**body)
        yield self

    # The journal

    async def append(self, session_id: str, *entry: Any) -> bool:
        await self.wait("journal" if session_id == "s" else "")
        is_written = await self.storage.append(session_id, *entry)
        if "answer" in self.failures:
            self.failures.discard("answer")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await self.wait("")
        await asyncio.sleep(0)
        return is_written

    async def entries(self, *place: Any) -> Any:
        await self.wait("")
        return await self.storage.entries(*place)

    async def set_aside(self, session_id: str) -> str:
        return await self.storage.set_aside(session_id)

    def sessions(self) -> Sessions:
        pipeline = ContextPipeline([self.stage], on_error="raise")
        return Sessions(pipeline, journal=self, max_bytes=MAX_BYTES)


class Chat:
    """What is done to the session "s" of a server, and what has to come of it."""

    def __init__(self, world: World):
        self.world = world
        self.client: Any = world
        self.sessions = world.sessions()
        self.said: list[str] = []  # in the order of appending
        self.answered: list[str] = []
        self._order = threading.Lock()

    @property
    def session(self) -> Session:
        return self.sessions.get("s")

    def say(self) -> None:
        with self._order:
            words = f"message {len(self.said)}."
            self.session.append(user(words))
            self.said.append(words)

    async def act(self, kind: str, start: int):
        await ticks(start)
        # Invalid with calls that are open, say, since their loop was cancelled.
        with suppress(Unwell, InvalidHistory):
            await getattr(self, kind)()

    # What may be done

    async def append(self) -> None:
        self.say()

    async def thread(self) -> None:
        thread = threading.Thread(target=self.say)
        thread.start()
        await ticks(1)
        thread.join()

    async def create(self) -> None:
        self.say()
        said = list(self.said)
        number = len(self.world.requests)
        reply = await self.session.create(self.client, **ASKED)
        assert_sent(said, self.world.requests[number:])
        await self.answer(reply)

    async def stream(self) -> None:
        self.say()
        async with self.session.stream(self.client, **ASKED) as stream:
            self.say()
            await ticks(2)
            reply = stream.current_message_snapshot
        await self.answer(reply)

    async def answer(self, reply: Reply):
        self.answered.append(as_json(reply.content))
        await ticks(2)
        for call in tool_calls([assistant(*reply.content)]):
            self.session.append(user(tool_result(call.id)))
            await ticks(1)

    async def evict(self) -> None:
        await self.sessions.get(f"other {len(self.said)}").run([user("x" * MAX_BYTES)])
        gc.collect()

    async def flush(self) -> None:
        await conversation_of(self.session).owned_history.flush()

    async def stage(self) -> None:
        self.world.failures.add("stage")

    async def model(self) -> None:
        self.world.failures.add("model")

    async def journal(self) -> None:
        self.world.failures.add("journal")

    async def unanswered(self) -> None:
        """Whoever writes next is cancelled when the entry is there, and before he knows."""
        self.world.failures.add("answer")

    # What has to come of it

    async def end(self) -> list[Message]:
        """The history, after a last request with all calls answered."""
        session = self.session
        history = [*await session.history(), *conversation_of(session).owned_history.appended]
        done = {result.tool_use_id for result in tool_results(history)}
        for call in tool_calls(history):
            if call.id not in done:
                session.append(user(tool_result(call.id)))
        self.say()
        await session.create(self.client, **ASKED)
        assert not conversation_of(session).owned_history.appended
        assert_sent(self.said, self.world.requests[-1:])
        return await session.history()


def merged(history: list[Any]) -> list[Any]:
    """*history* as the API reads it: neighbours of one role are one message."""
    one: list[Any] = []
    for message in history:
        content = parts(message)
        if one and one[-1]["role"] == message["role"]:
            one[-1]["content"] += content
        else:
            one.append({**message, "content": list(content)})
    return one


def assert_sent(said: list[str], requests: list[list[Any]]):
    assert any(all(words in json.dumps(request) for words in said) for request in requests)


KINDS = ["append", "append", "thread", "create", "create", "stream", "cancel", "cancel", "evict"]
KINDS += ["evict", "flush", "stage", "model", "journal", "unanswered"]
ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 40)), min_size=1, max_size=12)


ENTRY_OF_TWO_TURNS = [("flush", 32), ("cancel", 30), ("stream", 9), ("model", 34), ("model", 34)]
ENTRY_OF_TWO_TURNS += [("journal", 28), ("unanswered", 34), ("append", 24), ("model", 6)]
ENTRY_OF_TWO_TURNS += [("flush", 9), ("stream", 12), ("flush", 1)]


async def test_a_reply_is_in_the_history_as_soon_as_its_cancelled_entry_is_found():
    world = World([0])
    session = world.sessions().get("s")
    session.append(user("question"))
    answer = world.create

    async def cancel_the_next_writer(**body: Any) -> Reply:
        reply = await answer(**body)
        world.failures.add("answer")
        return reply

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world, "create", cancel_the_next_writer)
        client: Any = world
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(session.create(client, **ASKED))

    known, _ = await conversation_of(session).owned_history.for_request()

    assert [message["role"] for message in known] == ["user", "assistant"]
    assert await session.history() == known


@example(ENTRY_OF_TWO_TURNS, [1, 2, 5, 2, 0])
@given(ACTIONS, st.lists(st.integers(0, 6), min_size=1, max_size=5))
async def test_whatever_happens_at_once_each_message_is_sent_and_kept_once_and_in_order(
    actions: list[tuple[str, int]], pace: list[int]
):
    world = World(pace)
    chat = Chat(world)
    tasks: list[asyncio.Task[None]] = []
    for kind, start in actions:
        if kind == "cancel":
            running = [task for task in tasks if not task.done()]
            await ticks(start)
            if running:
                running[start % len(running)].cancel()
        else:
            tasks.append(asyncio.create_task(chat.act(kind, start)))
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert outcome is None or isinstance(outcome, asyncio.CancelledError), repr(outcome)

    world.failures.clear()
    history = await chat.end()

    written = as_json(history)
    places = [written.find(words) for words in chat.said]
    assert -1 not in places
    assert places == sorted(places)
    assert all(written.count(words) == 1 for words in chat.said)
    assert all(written.count(reply) == 1 for reply in chat.answered)
    for request in [*world.requests, merged(json.loads(written))]:
        assert not faults(request)
        assert INTERRUPTED not in json.dumps(request)
    roles = [message["role"] for message in history]
    assert ("assistant", "assistant") not in pairwise(roles)
    again = await world.sessions().get("s").history()
    assert len(again) == len(history)
    assert all(map(says_the_same, again, history))
