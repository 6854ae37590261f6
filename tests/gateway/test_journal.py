"""Several gateways with one journal: whoever takes a turn, the context goes on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from gateways import conversation, http, key, kill, post, prefix_breaks, process, replies, serving
from models import MODEL
from services import free_port
from typer.testing import CliRunner

from ctxpipe._cli import app
from ctxpipe.errors import SettingsError
from ctxpipe.gateway.journals import journal_kind, open_journal
from ctxpipe.gateway.settings import GatewaySettings
from ctxpipe.gateway.tokens import parse_token
from ctxpipe.testing import MessagesServer

TURNS = 6


@pytest.fixture(params=["sqlite", "postgres", "redis", "s3"])
def journal(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty journal, or of one whose sessions have other names."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        for setting, value in server.environment().items():
            monkeypatch.setenv(setting, value)
        return f"s3://{server.BUCKET}/journals"
    return str(request.getfixturevalue(request.param).url)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> dict[str, str]:
    """The header that names a session of this test alone."""
    return {"x-ctxpipe-session": f"{request.node.name}-{os.getpid()}"}


@asynccontextmanager
async def two(upstream: str, root: Path, journal: str) -> AsyncIterator[list[Any]]:
    """Two gateways that know of each other only through *journal*."""
    async with (
        serving(upstream, root, journal=journal) as one,
        serving(upstream, root, journal=journal) as other,
    ):
        yield [one, other]


async def test_turns_that_alternate_between_two_keep_the_prefix(journal, tmp_path, name):
    async with (
        MessagesServer(replies(TURNS)) as api,
        two(api.url, tmp_path, journal) as gateways,
    ):
        for number in range(TURNS):
            body = {"messages": conversation(number + 1)}
            reply = await post(gateways[number % 2], body, name)
            assert reply.status_code == 200
        known = [one for it in gateways for one in it.gateway.shaper().conversations]
        ids = {conversation.session.session_id for conversation in known}
    assert prefix_breaks(list(api.requests)) == 0
    assert len(ids) == 1
    longest = api.requests[-1].raw
    assert len(longest) < len(json.dumps(conversation(TURNS))) / 2


async def test_sub_agents_with_equal_first_messages_do_not_mix_whoever_answers(
    journal, tmp_path, name
):
    one = conversation(4)
    other = [*conversation(1)[:1], *conversation(5)[3:]]
    sent: list[list[Any]] = [[], []]
    async with MessagesServer(replies(8)) as api, two(api.url, tmp_path, journal) as gateways:
        for number, length in enumerate((1, 3, 5, 7)):
            for whose, history in enumerate((one, other)):
                # Each of both agents is answered by the one and by the other.
                gateway = gateways[(number + whose) % 2]
                reply = await post(gateway, {"messages": history[:length]}, name)
                assert reply.status_code == 200
                sent[whose].append(api.requests[-1])
    assert [prefix_breaks(requests) for requests in sent] == [0, 0]


async def test_sub_agents_that_ask_at_once_keep_their_prefixes(journal, tmp_path, name):
    agents = [[*conversation(1)[:1], *conversation(9)[4 * n + 1 : 4 * n + 5]] for n in range(3)]
    async with MessagesServer(lambda _: "fine") as api, two(api.url, tmp_path, journal) as gateways:
        for turn, length in enumerate((1, 3, 5)):
            await asyncio.gather(
                *(
                    post(gateways[(turn + n) % 2], {"messages": history[:length]}, name)
                    for n, history in enumerate(agents)
                )
            )
    for history in agents:
        last = history[1]["content"]
        mine = [it for it in api.requests if last in [m["content"] for m in it.body["messages"]]]
        assert len(mine) == 2
        assert prefix_breaks(mine) == 0


async def test_tokens_have_journals_of_their_own(journal, tmp_path, name):
    tokens = ["a" * 20, "b" * 20]
    async with (
        MessagesServer(lambda _: "fine") as api,
        serving(api.url, tmp_path, journal=journal, tokens=tokens) as gateway,
    ):
        for token in tokens:
            given = {**name, "x-ctxpipe-token": token}
            assert (await post(gateway, {"messages": conversation(2)}, given)).status_code == 200
        shapers = [gateway.gateway.shaper(parse_token(token)) for token in tokens]
        journals = [next(iter(it.conversations)).session.journal for it in shapers]
    assert journals[0] is not journals[1]
    assert repr(journals[0]) != repr(journals[1])


# Cleaning up what belongs to one token ------------------------------------------------------------


TOKENS = ["a" * 20, "b" * 20]


def folder_of(root: Path, token: str) -> Path:
    return root / parse_token(token).owner


async def clean(*arguments: object) -> Any:
    command = ["clean", *map(str, arguments), "--yes"]
    return await anyio.to_thread.run_sync(CliRunner().invoke, app, command)


async def ask_as_both(gateway: Any, name: dict[str, str], turns: int):
    for token in TOKENS:
        given = {**name, "x-ctxpipe-token": token}
        reply = await post(gateway, {"messages": conversation(turns)}, given)
        assert reply.status_code == 200


async def sessions_of(journal: str, root: Path, token: str) -> list[str]:
    async with open_journal(journal, None, folder_of(root, token).name) as known:
        return await known.sessions()


async def test_what_one_token_has_kept_is_deleted_with_its_journal_and_nothing_of_another(
    journal, tmp_path, name
):
    root, prefix = tmp_path / "root", name["x-ctxpipe-session"]
    async with (
        MessagesServer(lambda _: "fine") as api,
        serving(api.url, root, journal=journal, tokens=TOKENS) as gateway,
    ):
        await ask_as_both(gateway, name, 2)
        folders = [folder_of(root, token) for token in TOKENS]
        done = await clean(folders[0], "--prefix", prefix, "--journal", journal)

        assert done.exit_code == 0, done.output
        assert [bool(list(folder.rglob("*.md"))) for folder in folders] == [False, True]
        left = [await sessions_of(journal, root, token) for token in TOKENS]
        assert [any(name.startswith(prefix) for name in names) for names in left] == [False, True]


async def test_texts_of_a_token_that_is_in_use_are_kept_by_the_nightly_clean_up(
    journal, tmp_path, name
):
    root, day = tmp_path / "root", 86_400
    for turns in (2, 3):
        async with (
            MessagesServer(lambda _: "fine") as api,
            serving(api.url, root, journal=journal, tokens=TOKENS) as gateway,
        ):
            await ask_as_both(gateway, name, turns)
        if turns == 2:
            for path in root.rglob("*"):
                os.utime(path, (path.stat().st_mtime - 40 * day,) * 2, follow_symlinks=False)

    texts = set(root.rglob("*.md"))
    for token in TOKENS:
        done = await clean(folder_of(root, token), "--max-days", 30)
        assert done.exit_code == 0, done.output

    assert texts
    assert set(root.rglob("*.md")) == texts


async def test_its_health_says_what_is_shared_and_no_password(tmp_path):
    url = f"sqlite:///{tmp_path}/secret-name.db"
    async with serving("http://127.0.0.1:9", tmp_path, journal=url) as gateway, http() as client:
        told = (await client.get(gateway.url + "/healthz")).json()
    assert told["processes"].endswith("their sessions are in SQLite")
    assert "secret-name" not in json.dumps(told)


def test_settings_do_not_show_the_password():
    settings = GatewaySettings({"": "http://127.0.0.1:9"}, journal="postgres://me:secret@db/agents")
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "mysql://host/database",
            "postgres://HOST/DATABASE, redis://HOST or s3://BUCKET/PREFIX",
        ),
        ("s3://", "s3://BUCKET/PREFIX"),
        ("journal.db", "a path"),
        ("sqlite://journal.db", "sqlite:///FILE"),
        ("sqlite:///", "sqlite:///FILE"),
        ("", "sqlite:///FILE"),
    ],
)
def test_another_journal_is_refused_by_name(url, told):
    with pytest.raises(SettingsError, match="journal") as refused:
        GatewaySettings({"": "http://127.0.0.1:9"}, journal=url)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("url", "kind", "extra"),
    [
        ("postgres://me@db/agents", "PostgreSQL", "postgres"),
        ("postgresql://db", "PostgreSQL", "postgres"),
        ("redis://cache", "Redis", "redis"),
        ("rediss://cache", "Redis", "redis"),
        ("s3://bucket/agents", "S3", "object-store"),
        ("gs://bucket", "Google Cloud Storage", "object-store"),
    ],
)
def test_where_the_client_of_a_database_is_missing_its_extra_is_named(
    url, kind, extra, monkeypatch
):
    for package in ("obstore", "psycopg", "redis"):
        monkeypatch.setitem(sys.modules, package, None)
    assert journal_kind(url) == kind
    with pytest.raises(SettingsError, match=rf"ctxpipe\[{extra}\]"):
        open_journal(url, None)


# Processes on one port ----------------------------------------------------------------------------


async def ask(port: int, messages: list[Any], headers: dict[str, str]) -> Any:
    """A request on a connection of its own, asked again where it breaks."""
    body = {"model": MODEL, "max_tokens": 9, "messages": messages}
    given = {"anthropic-version": "2023-06-01", "x-api-key": key(), **headers}
    url = f"http://127.0.0.1:{port}/v1/messages"
    async with http() as client:
        return await client.post(url, json=body, headers=given)


def turns_of(ended: Any) -> int:
    """How many turns a process that was ended has told of."""
    return int(ended.stderr.read().count(": shaped"))


async def test_processes_on_one_port_share_sessions_and_one_that_is_killed_loses_none(
    tmp_path, name
):
    port, url = free_port(), f"sqlite:///{tmp_path}/journal.db"
    sessions = [{"x-ctxpipe-session": f"{name['x-ctxpipe-session']}-{n}"} for n in range(5)]
    async with MessagesServer(lambda _: "fine") as api:
        sent: dict[str, list[Any]] = {it["x-ctxpipe-session"]: [] for it in sessions}

        async def turn(number: int):
            for session in sessions:
                reply = await ask(port, conversation(number), session)
                assert reply.status_code == 200
                sent[session["x-ctxpipe-session"]].append(api.requests[-1])

        with (
            process(api.url, port, tmp_path / "root", "--journal", url) as one,
            process(api.url, port, tmp_path / "root", "--journal", url) as other,
        ):
            assert one.address == other.address != ""
            for number in range(1, 5):
                await turn(number)
            await kill(one)
            for number in range(5, 7):
                await turn(number)
            other.terminate()
            served = [turns_of(one), turns_of(other)]
    assert all(served), served
    assert [prefix_breaks(requests) for requests in sent.values()] == [0] * len(sessions)


def test_without_a_journal_a_port_that_is_taken_is_an_error_that_says_how_to_share_it(tmp_path):
    port = free_port()
    upstream = "http://127.0.0.1:9"
    with process(upstream, port, tmp_path), process(upstream, port, tmp_path) as second:
        second.wait(60)
        told = second.stderr.read()
    assert second.returncode != 0
    assert "--journal" in told
    assert "Traceback" not in told
