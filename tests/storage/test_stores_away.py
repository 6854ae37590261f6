"""Journals whose server is slow, silent or away, and what is written afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import pytest
from histories import assistant, user
from services import FaultyProxy, Server

from ctxpipe import ContextPipeline, MemoryStorage, StorageError
from ctxpipe.messages import Message
from ctxpipe.session.session import conversation_of
from ctxpipe.storage import (
    JournalStorage,
    ObjectJournal,
    PostgresJournal,
    RedisJournal,
    SQLiteJournal,
)
from ctxpipe.storage.waiting import Unavailable

KINDS: dict[str, Callable[[Any, int], Any]] = {
    "postgres": lambda server, port: PostgresJournal(server.url_at(port), table="away"),
    "redis": lambda server, port: RedisJournal(server.url_at(port), prefix="away"),
    "s3": lambda server, port: ObjectJournal(server.store("away", port)),
}
on_each = pytest.mark.parametrize("name", KINDS)
ALLOWANCE = 1.0


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORE_SECONDS", str(ALLOWANCE))


@contextmanager
def patient() -> Iterator[None]:
    """Calls in the block, which are not what is tested, may take longer on a busy machine."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORE_SECONDS", "60")
        yield


def journal_at(name: str, server: Any, proxy: FaultyProxy) -> Any:
    return KINDS[name](server, proxy.port)


async def written(journal: JournalStorage, name: str, history: list[Message]):
    """Wait until the journal holds *history*, each message once."""
    found: list[Message] = []
    with anyio.fail_after(60):
        while found != history:
            with suppress(StorageError):
                found = await ContextPipeline([]).new_session(name, journal=journal).history()
            await anyio.sleep(0.05)


@on_each
@pytest.mark.parametrize("way", ["down", "silent", "slow"])
async def test_turns_go_on_without_the_server_and_each_message_is_written_once(
    name: str, way: str, request: pytest.FixtureRequest
):
    server: Server = request.getfixturevalue(name)
    async with FaultyProxy(server.port) as proxy, journal_at(name, server, proxy) as journal:
        pipeline = ContextPipeline([])
        sessions = [pipeline.new_session(f"{way}{n}", journal=journal) for n in range(6)]
        history: list[Message] = [user("go")]
        for number in range(12):
            if number == 3:
                proxy.is_silent = way == "silent"
                proxy.seconds = 0.4 if way == "slow" else 0.0
                if way == "down":
                    proxy.refuse()
            history = [*history, assistant("done"), user(f"and {number}")]

            async def turn(session: Any, history: list[Message] = history):
                assert (await session.run(history)).messages == history

            async with anyio.create_task_group() as tasks:
                for session in sessions:
                    tasks.start_soon(turn, session)
        proxy.is_silent = False
        proxy.seconds = 0.0
        if way == "down":
            await proxy.open()

        for session in sessions:
            await written(journal, session.session_id, history)
        with anyio.fail_after(60):
            while any(conversation_of(each).owned_history.has_unsaved for each in sessions):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        with patient():
            for session in sessions:
                await journal.delete(session.session_id)


@on_each
async def test_a_long_journal_that_arrives_slowly_is_read(
    name: str, request: pytest.FixtureRequest
):
    server: Server = request.getfixturevalue(name)
    async with FaultyProxy(server.port) as proxy, journal_at(name, server, proxy) as journal:
        lines = ["x" * 100_000, "y" * 2_500_000, "z"]
        with patient():
            for number, line in enumerate(lines):
                assert await journal.append("long", number, line)
        proxy.seconds = 0.06
        proxy.most = 1 << 16
        proxy.answers = 0

        assert await journal.entries("long") == lines
        assert proxy.answers * proxy.seconds > ALLOWANCE
        with patient():
            await journal.delete("long")


@on_each
async def test_a_deletion_without_an_answer_is_an_error(name: str, request: pytest.FixtureRequest):
    server: Server = request.getfixturevalue(name)
    async with FaultyProxy(server.port) as proxy, journal_at(name, server, proxy) as journal:
        with patient():
            await journal.append("gone", 0, "entry")
        proxy.is_silent = True
        for _ in range(2):
            with pytest.raises(StorageError):
                await journal.delete("gone")
        proxy.is_silent = False
        with patient():
            await journal.delete("gone")

            assert await journal.entries("gone") == []


@on_each
async def test_twenty_first_turns_side_by_side_end_while_the_server_is_silent(
    name: str, request: pytest.FixtureRequest
):
    server: Server = request.getfixturevalue(name)
    async with FaultyProxy(server.port) as proxy, journal_at(name, server, proxy) as journal:
        proxy.is_silent = True
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    session = ContextPipeline([]).new_session(f"s{number}", journal=journal)
                    tasks.start_soon(session.run, [user("go")])


# Without a server ---------------------------------------------------------------------------------


class Losing(MemoryStorage):
    """A journal whose *answers* to writing get lost: the entry is there, and nobody is told."""

    def __init__(self) -> None:
        super().__init__()
        self.is_unavailable = False
        self.loses_answers = False

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        if self.is_unavailable:
            raise Unavailable(5, "away")
        return await super().entries(session_id, start)

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        if self.is_unavailable:
            raise Unavailable(5, "away")
        is_written = await super().append(session_id, number, entry)
        if self.loses_answers:
            self.is_unavailable = True
            raise Unavailable(5, "the answer got lost")
        return is_written


async def test_what_follows_an_entry_whose_answer_got_lost_is_written_without_another_turn():
    journal = Losing()
    session = ContextPipeline([]).new_session("s", journal=journal)
    history: list[Message] = [user("go")]
    await session.run(history)
    journal.loses_answers = True
    for number in range(4):
        history = [*history, assistant("done"), user(f"and {number}")]
        await session.run(history)
    journal.loses_answers = journal.is_unavailable = False

    await written(journal, "s", history)


@pytest.mark.parametrize("others", ["none", "the beginning", "another history"])
async def test_a_journal_that_was_away_at_the_first_turns_is_read_in_a_later_one(others: str):
    journal = Losing()
    first = [user("go"), assistant("done"), user("and on")]
    if others != "none":
        before = first if others == "the beginning" else [user("something else")]
        await ContextPipeline([]).new_session("s", journal=journal).run(before)
    journal.is_unavailable = True
    session = ContextPipeline([]).new_session("s", journal=journal)
    history: list[Message] = first
    for number in range(3):
        history = [*history, assistant("done"), user(f"turn {number}")]
        assert (await session.run(history)).messages == history
    journal.is_unavailable = False
    with anyio.fail_after(60):
        while conversation_of(session).owned_history.has_unsaved:  # noqa: ASYNC110
            await anyio.sleep(0.05)
    history = [*history, assistant("done"), user("the last")]
    await session.run(history)

    anew = ContextPipeline([]).new_session("s", journal=journal)
    assert (await anew.run(history)).notices == ()
    assert await anew.history() == history


async def test_a_turn_that_is_cancelled_gives_its_lease_back(tmp_path):
    async with SQLiteJournal(tmp_path / "j.sqlite") as journal:
        for scope in (anyio.move_on_after(0.2), anyio.move_on_after(0.0)):
            with scope:
                async with journal.lease("s", 5):
                    await anyio.sleep(60)
            async with journal.lease("s", 1) as is_held:
                assert is_held
