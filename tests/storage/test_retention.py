"""The nightly clean-up beside sessions whose journals are here, in a database, or on a server."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from histories import assistant, conversation, step, user
from services import Postgres, RedisServer

from ctxpipe import (
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    PostgresJournal,
    RedisJournal,
    SQLiteJournal,
)

DAY = 86_400
KINDS = ["local", "sqlite", "postgres", "redis"]
FIRST = conversation(user("go"), step("t1", "bash", result="the only copy of this text\n" * 200))
SECOND = [*FIRST, *conversation(assistant("Well."), user("And today?"))]


class Place:
    """The texts of a service in one folder, and its journals in another place."""

    def __init__(self, kind: str, folder: Path, request: pytest.FixtureRequest):
        self.kind = kind
        self.root = folder / "texts"
        self.name = f"retention_{folder.name}".lower().replace("-", "_")[:40]
        self.file = folder / "journal.sqlite"
        self.url = ""
        if kind == "postgres":
            server: Postgres = request.getfixturevalue("postgres")
            self.url = server.url
        if kind == "redis":
            other: RedisServer = request.getfixturevalue("redis")
            self.url = other.url

    def open(self) -> tuple[LocalStorage, Any]:
        """What a process makes at its start."""
        texts = LocalStorage(self.root)
        if self.kind == "sqlite":
            return texts, SQLiteJournal(self.file, texts=texts)
        if self.kind == "postgres":
            return texts, PostgresJournal(self.url, texts=texts, table=self.name)
        if self.kind == "redis":
            return texts, RedisJournal(self.url, texts=texts, prefix=self.name)
        return texts, texts

    def grow_older(self, days: int):
        """Let time pass for all files."""
        then = time.time() - days * DAY
        for path in self.root.rglob("*"):
            os.utime(path, (then, then), follow_symlinks=False)


@pytest.fixture(params=KINDS)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(request.param, tmp_path, request)


def session_in(texts: LocalStorage, journal: Any) -> Any:
    return ContextPipeline([DirectOffload(texts)]).session("cust1/chat", journal=journal)


async def clean_up_nightly(place: Place) -> int:
    """The recipe of docs/production.md: the texts, then the journal; the files that went."""
    texts, journal = place.open()
    cleaned = await texts.cleanup(max_age=30 * DAY)
    if hasattr(journal, "cleanup") and journal is not texts:
        await journal.cleanup(max_age=30 * DAY)
    await close(journal)
    return len(cleaned.files)


async def close(journal: Any):
    if hasattr(journal, "aclose"):
        await journal.aclose()


@pytest.mark.parametrize("history", [FIRST, SECOND], ids=["it writes nothing", "it writes"])
async def test_the_nightly_clean_up_keeps_what_a_session_needs_that_had_a_turn_today(
    place, history: list[Any]
):
    texts, journal = place.open()
    await session_in(texts, journal).run(FIRST)
    await close(journal)
    await anyio.to_thread.run_sync(place.grow_older, 40)
    texts, journal = place.open()
    await session_in(texts, journal).run(history)

    assert await clean_up_nightly(place) == 0
    assert await session_in(texts, journal).history() == history
    await close(journal)


async def test_without_a_sign_of_life_texts_go_and_the_history_names_the_message(
    place,
):
    texts, journal = place.open()
    await session_in(texts, journal).run(FIRST)
    await anyio.to_thread.run_sync(place.grow_older, 40)

    assert await clean_up_nightly(place) == 1
    session = session_in(texts, journal)
    history = await session.history()
    result = await session.run([*history, *SECOND[3:]])

    assert history[:2] == FIRST[:2]
    assert history[2]["content"][0]["content"] == ""
    assert "message 2 of the history is incomplete: a text is gone" in result.notices
    await close(journal)


async def test_max_bytes_takes_no_text_of_a_session_in_use(place):
    texts, journal = place.open()
    await session_in(texts, journal).run(FIRST)
    await texts.write([("nobody/a.md", "x" * 10_000)])

    alone = await texts.cleanup(max_bytes=0)
    both = await texts.cleanup(max_bytes=0, max_age=30 * DAY)

    assert [Path(path).name for path in (*alone.files, *both.files)] == ["a.md"]
    assert await session_in(texts, journal).history() == FIRST
    await close(journal)


async def test_a_session_that_an_earlier_version_began_is_protected_once_it_is_used(
    tmp_path, request: pytest.FixtureRequest
):
    place = Place("sqlite", tmp_path, request)
    texts, journal = place.open()
    await session_in(texts, journal).run(FIRST)
    [mark] = place.root.glob("*/.ctxpipe-session")
    lines = [line for line in mark.read_text().split("\n") if '"journal"' not in line]
    mark.write_text("\n".join(lines))
    await close(journal)
    await anyio.to_thread.run_sync(place.grow_older, 40)
    texts, journal = place.open()
    await session_in(texts, journal).run(SECOND)

    assert await clean_up_nightly(place) == 0
    assert await session_in(texts, journal).history() == SECOND
    await close(journal)
