"""A session spends no more than its budget, whichever process it asks."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import Any

import pytest
from gateways import TASK, http, key, process, serving
from models import MODEL

from ctxpipe.errors import SettingsError, StorageError
from ctxpipe.gateway.budget import SessionBudget
from ctxpipe.gateway.guard import Refused
from ctxpipe.gateway.settings import GatewaySettings
from ctxpipe.providers.prices import prices_of
from ctxpipe.storage import LocalStorage, SQLiteJournal
from ctxpipe.storage.memory import MemoryStorage

TURN_DOLLARS = 0.4
TOKENS = round(TURN_DOLLARS / prices_of(MODEL).input)
JOB = {"x-ctxpipe-session": "job-42"}


class DearUpstream:
    """An upstream each of whose replies costs TURN_DOLLARS, once *may_answer* is set."""

    def __init__(self) -> None:
        self.requests = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r")[0]))
                self.requests += 1
                await self.may_answer.wait()
                content = [{"type": "text", "text": "ok"}]
                usage = {"input_tokens": TOKENS, "output_tokens": 0}
                message = {"id": "m", "type": "message", "role": "assistant", "model": MODEL}
                answer = json.dumps({**message, "content": content, "usage": usage}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(f"content-length: {len(answer)}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def dear_upstream() -> AsyncIterator[DearUpstream]:
    api = DearUpstream()
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()


async def ask(
    gateway: Any, headers: dict[str, str] = JOB, path: str = "/v1/messages", **more: Any
) -> Any:
    body = {"model": MODEL, "max_tokens": 9, "messages": [TASK], "input": [TASK], **more}
    async with http() as client:
        return await client.post(
            gateway.url + path, json=body, headers={"x-api-key": key(), **headers}
        )


async def statuses(gateway: Any, count: int, headers: dict[str, str] = JOB) -> list[int]:
    return [(await ask(gateway, headers)).status_code for _ in range(count)]


async def test_a_budget_is_exceeded_by_no_more_than_the_requests_already_under_way(tmp_path):
    async with dear_upstream() as api, serving(api.url, tmp_path, session_budget=1) as gateway:
        assert await statuses(gateway, 2) == [200, 200]
        api.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            under_way = [tasks.create_task(ask(gateway)) for _ in range(5)]
            while api.requests < 7:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            api.may_answer.set()
        after = await statuses(gateway, 4)
        record = gateway.gateway.record
    assert [task.result().status_code for task in under_way] == [200] * 5
    assert after == [402] * 4
    assert api.requests == 7
    assert record.outcomes["over budget"] == 4
    assert record.dollars == pytest.approx(7 * TURN_DOLLARS)


async def test_the_log_warns_once_before_the_budget_is_spent(tmp_path, caplog):
    async with dear_upstream() as api, serving(api.url, tmp_path, session_budget=2) as gateway:
        replies = [await ask(gateway) for _ in range(6)]
    assert [reply.status_code for reply in replies] == [200] * 5 + [402]
    assert replies[2].headers["x-ctxpipe-budget"] == "spent=0.8000, limit=2"
    warnings = [text for text in caplog.messages if "has spent" in text and "refused" not in text]
    assert warnings == ["session 'job-42' has spent $1.60 of its budget of $2.00"]


@pytest.mark.parametrize(
    ("path", "place", "kind"),
    [
        ("/v1/messages", ("error", "type"), "billing_error"),
        ("/v1/chat/completions", ("error", "code"), "insufficient_quota"),
        ("/v1/responses", ("error", "code"), "insufficient_quota"),
        ("/v1beta/models/g:generateContent", ("error", "status"), "RESOURCE_EXHAUSTED"),
    ],
)
async def test_the_refusal_has_the_form_of_the_api_and_says_what_to_do(tmp_path, path, place, kind):
    async with dear_upstream() as api, serving(api.url, tmp_path, session_budget=0.1) as gateway:
        await ask(gateway)
        reply = await ask(gateway, path=path)
    answer = reply.json()
    assert reply.status_code == 402
    assert answer[place[0]][place[1]] == kind
    assert "spent $0.400 of its budget of $0.100. Begin a new session" in answer["error"]["message"]


async def test_gateways_with_one_journal_share_the_sum(tmp_path):
    settings = {"session_budget": 1, "journal": f"sqlite:////{tmp_path}/journal.db"}
    async with (
        dear_upstream() as api,
        serving(api.url, tmp_path / "root", **settings) as first,
        serving(api.url, tmp_path / "root", **settings) as second,
    ):
        answers = [
            (await ask(gateway)).status_code for gateway in (first, second, first, second, first)
        ]
    assert answers == [200, 200, 200, 402, 402]


async def test_processes_with_one_journal_exceed_a_budget_by_the_requests_under_way_only(tmp_path):
    journal = ("--journal", f"sqlite:////{tmp_path}/journal.db", "--session-budget", "1")
    async with dear_upstream() as api:
        with (
            process(api.url, 0, tmp_path / "root", *journal) as first,
            process(api.url, 0, tmp_path / "root", *journal) as second,
        ):
            urls = [json.loads(started.address)["listening"] for started in (first, second)]
            gateways = [SimpleNamespace(url=url) for url in urls]
            assert [(await ask(gateway)).status_code for gateway in gateways] == [200, 200]
            api.may_answer.clear()
            async with asyncio.TaskGroup() as tasks:
                under_way = [tasks.create_task(ask(gateways[n % 2])) for n in range(6)]
                while api.requests < 8:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                api.may_answer.set()
            after = [await ask(gateway) for gateway in (*gateways, *gateways)]
    assert [task.result().status_code for task in under_way] == [200] * 6
    assert [reply.status_code for reply in after] == [402] * 4
    assert api.requests == 8
    spent = 8 * TURN_DOLLARS
    assert f"${spent:.2f} of its budget of $1.00" in after[0].json()["error"]["message"]


async def test_a_gateway_that_is_started_again_knows_the_sum(tmp_path):
    answers = []
    async with dear_upstream() as api:
        for _ in range(2):
            async with serving(api.url, tmp_path, session_budget=1) as gateway:
                answers.append(await statuses(gateway, 2))
    assert answers == [[200, 200], [200, 402]]


async def test_sub_agents_spend_the_budget_of_their_session_and_other_sessions_do_not(tmp_path):
    def agent(session: str, name: str) -> dict[str, str]:
        return {"x-claude-code-session-id": session, "x-claude-code-agent-id": name}

    async with dear_upstream() as api, serving(api.url, tmp_path, session_budget=1) as gateway:
        own = [(await ask(gateway, agent("s", name))).status_code for name in "abcd"]
        other = await statuses(gateway, 1, agent("t", "a"))
    assert own == [200, 200, 200, 402]
    assert other == [200]


@pytest.mark.parametrize("headers", [{"x-ctxpipe": "off", **JOB}, {"x-ctxpipe": "off"}, {}])
async def test_requests_that_are_not_shaped_or_not_named_have_a_budget_too(tmp_path, headers):
    async with dear_upstream() as api, serving(api.url, tmp_path, session_budget=1) as gateway:
        assert await statuses(gateway, 4, headers) == [200, 200, 200, 402]


async def test_tenants_with_the_same_session_have_budgets_of_their_own(tmp_path):
    tokens = ["the token of Alice", "the token of Bob..."]
    async with (
        dear_upstream() as api,
        serving(api.url, tmp_path, session_budget=0.5, tokens=tokens) as gateway,
    ):
        answers = [await statuses(gateway, 3, {**JOB, "x-ctxpipe-token": name}) for name in tokens]
    assert answers == [[200, 200, 402], [200, 200, 402]]


async def test_a_client_cannot_give_its_conversation_the_name_of_the_sums(tmp_path):
    async with dear_upstream() as api, serving(api.url, tmp_path, session_budget=1) as gateway:
        await statuses(gateway, 3)
        await ask(gateway, {"x-ctxpipe-session": "job-42/ctxpipe-spending"})
        assert await statuses(gateway, 1) == [402]


async def test_without_a_price_nothing_is_refused_and_the_log_says_so_once(tmp_path, caplog):
    async with dear_upstream() as api, serving(api.url, tmp_path, session_budget=0.1) as gateway:
        for _ in range(3):
            assert (await ask(gateway, model="of-nobody")).status_code == 200
    assert sum("does not count turns of 'of-nobody'" in text for text in caplog.messages) == 1


async def test_without_files_and_journal_the_log_says_where_the_sums_are(tmp_path, caplog):
    async with dear_upstream() as api, serving(api.url, None, session_budget=1) as gateway:
        assert await statuses(gateway, 4) == [200, 200, 200, 402]
    assert any("in this process only" in text for text in caplog.messages)


@pytest.mark.parametrize("dollars", [0, -1])
def test_a_budget_of_nothing_is_refused(dollars):
    with pytest.raises(SettingsError, match="session_budget"):
        GatewaySettings({"": "http://a"}, session_budget=dollars)


# A journal that fails -----------------------------------------------------------------------------


class FailingJournal(MemoryStorage):
    """A journal that fails while *is_away*."""

    is_away = False

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        if self.is_away:
            raise StorageError(5, "away")
        return await super().append(session_id, number, entry)

    async def entries(self, session_id: str, start: int = 0, /) -> list[str]:
        if self.is_away:
            raise StorageError(5, "away")
        return list(await super().entries(session_id, start))


async def test_what_could_not_be_written_is_written_with_the_next_turn(caplog):
    journal = FailingJournal()
    budget = SessionBudget(1, journal)
    with caplog.at_level(logging.CRITICAL):
        journal.is_away = True
        await budget.add("s", 0.4, MODEL)
        assert await budget.check("s") == pytest.approx(0.4)
    journal.is_away = False
    await budget.add("s", 0.3, MODEL)
    assert await SessionBudget(1, journal).check("s") == pytest.approx(0.7)


class LosingJournal(MemoryStorage):
    """A journal that writes its first entry, and whose answer gets lost."""

    appends = 0

    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        is_written = await super().append(session_id, number, entry)
        self.appends += 1
        if self.appends == 1:
            raise StorageError(5, "the connection is lost")
        return is_written


@pytest.mark.parametrize("others", [0, 1])
async def test_a_turn_is_counted_once_if_the_answer_of_the_journal_gets_lost(others):
    journal = LosingJournal()
    budget = SessionBudget(10, journal)
    await budget.add("s", 0.4, MODEL)
    for _ in range(others):
        await SessionBudget(10, journal).add("s", 1, MODEL)
    await budget.add("s", 0.3, MODEL)
    total = pytest.approx(0.7 + others)
    assert await budget.check("s") == total
    assert await SessionBudget(10, journal).check("s") == total


@pytest.fixture
def locked_journal(tmp_path, monkeypatch):
    """A journal in SQLite, and the connection that has locked it."""
    monkeypatch.setenv("CTXPIPE_STORE_SECONDS", "0.3")
    path = tmp_path / "journal.db"
    journal = SQLiteJournal(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin exclusive")
        yield journal, other


async def test_many_requests_without_the_journal_are_one_warning(locked_journal, caplog):
    journal, other = locked_journal
    async with journal:
        budget = SessionBudget(10, journal)
        for number in range(20):
            await budget.check(f"s{number}")
            await budget.add(f"s{number}", 0.4, MODEL)
        other.execute("rollback")
        await budget.close()
    assert sum("unavailable" in text for text in caplog.messages) == 1
    assert not [text for text in caplog.messages if "has spent" in text]


async def test_what_could_not_be_written_is_written_once_the_journal_is_back(locked_journal):
    journal, other = locked_journal
    async with journal:
        budget = SessionBudget(10, journal)
        await budget.add("s", 0.4, MODEL)
        await budget.add("t", 0.5, MODEL)
        other.execute("rollback")
        elsewhere = SessionBudget(10, journal)
        # It is written in the background, and reported nowhere else.
        while not (await elsewhere.check("s") and await elsewhere.check("t")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await elsewhere.check("s") == pytest.approx(0.4)
        assert await elsewhere.check("t") == pytest.approx(0.5)


async def test_a_gateway_that_ends_writes_what_it_could_not_write_before(tmp_path, caplog):
    journal = FailingJournal()
    budget = SessionBudget(10, journal)
    with caplog.at_level(logging.CRITICAL):
        journal.is_away = True
        await budget.add("s", 0.4, MODEL)
        await budget.add("t", 0.5, MODEL)
    journal.is_away = False
    await budget.close()
    assert await SessionBudget(10, journal).check("s") == pytest.approx(0.4)
    assert await SessionBudget(10, journal).check("t") == pytest.approx(0.5)
    assert not [text for text in caplog.messages if "could not be written" in text]


async def test_a_gateway_that_ends_without_its_journal_says_how_much_is_not_counted(caplog):
    journal = FailingJournal()
    budget = SessionBudget(10, journal)
    journal.is_away = True
    await budget.add("s", 0.4, MODEL)
    await budget.add("t", 0.5, MODEL)
    await budget.close()
    assert any("$0.900 that 2 sessions spent could not be written" in t for t in caplog.messages)


async def test_turns_that_end_at_the_same_time_are_all_counted():
    journal = MemoryStorage()
    budgets = [SessionBudget(10, journal) for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for number in range(30):
            tasks.create_task(budgets[number % 3].add("s", 0.1, MODEL))
    assert [await budget.check("s") for budget in budgets] == [pytest.approx(3)] * 3
    await budgets[0].add("s", 7, MODEL)
    with pytest.raises(Refused):
        await budgets[1].check("s")


async def test_the_sum_of_a_session_that_was_deleted_begins_again(tmp_path):
    journal = LocalStorage(tmp_path)
    budget = SessionBudget(10, journal)
    await budget.add("s", 4, MODEL)
    await journal.delete("s/ctxpipe-spending")
    await budget.add("s", 1, MODEL)
    await budget.add("s", 1, MODEL)
    assert await budget.check("s") == pytest.approx(2)
    assert await SessionBudget(10, LocalStorage(tmp_path)).check("s") == pytest.approx(2)
