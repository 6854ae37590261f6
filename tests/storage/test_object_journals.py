"""Journals in object stores: the contract, races, kills, deletions, and what a turn asks."""

from __future__ import annotations

import errno
import json
import time
from typing import Any

import anyio
import pytest
from histories import assistant, conversation, step, user
from object_store_contract import ObjectStoreContract
from object_stores import Watched, paths
from processes import python, python_killed_at
from recorded import NIGHTLY
from services import S3, CuttingProxy

from ctxpipe import (
    ContextPipeline,
    DirectOffload,
    ObjectJournal,
    ObjectStorage,
    SessionDeleted,
    Sessions,
    SettingsError,
    StorageError,
)
from ctxpipe.storage import Generation, JournalStorage, object_journals
from ctxpipe.testing import StorageCheck

obstore = pytest.importorskip("obstore", reason="there is no obstore")
stores = pytest.importorskip("obstore.store", reason="there is no obstore")

EXTRAS = ["delete", "lease", "sessions"]
WORDS = "my diagnosis is a broken heart"
DAY = 86_400

# The contract -------------------------------------------------------------------------------------

CONTRACT = ObjectStoreContract(ObjectJournal, protocols=[JournalStorage], extras=EXTRAS, timeout=1)


@pytest.mark.parametrize("check", CONTRACT.checks_in_memory(), ids=str)
async def test_a_journal_in_a_store_in_memory_keeps_the_contract(check: StorageCheck):
    await check()


@pytest.mark.parametrize("check", CONTRACT.checks_in_a_folder(), ids=str)
async def test_a_journal_in_a_store_in_a_folder_keeps_the_contract(check: StorageCheck):
    await check()


@pytest.mark.parametrize("check", CONTRACT.checks_on_s3(), ids=str)
async def test_a_journal_in_s3_keeps_the_contract(check: StorageCheck, s3: S3):
    CONTRACT.server = s3
    await check()


# Several writers, and those that are killed -------------------------------------------------------

WRITER = """
import sys, time, anyio
from obstore.store import LocalStore
from ctxpipe import ObjectJournal

folder, name, begin = sys.argv[1], sys.argv[2], float(sys.argv[3])

async def write():
    journal = ObjectJournal(LocalStore(folder, mkdir=True))
    number = len(await journal.entries("s"))
    time.sleep(max(0.0, begin - time.time()))
    wins = 0
    for _ in range(100):
        if await journal.append("s", number, f"{number} of {name}"):
            wins += 1
            number += 1
        number += len(await journal.entries("s", number))
    print(wins)

anyio.run(write)
"""


async def test_of_processes_that_race_one_wins_each_entry(tmp_path):
    begin = time.time() + 2
    wins: list[int] = []

    async def write(name: str):
        written = await anyio.to_thread.run_sync(python, WRITER, tmp_path, name, begin)
        wins.append(int(written))

    async with anyio.create_task_group() as processes:
        for name in ("first", "second", "third"):
            processes.start_soon(write, name)

    entries = await ObjectJournal(stores.LocalStore(tmp_path)).entries("s")
    assert sum(wins) == len(entries) >= 100
    assert [int(entry.split()[0]) for entry in entries] == list(range(len(entries)))


KILLED = """
import sys, time, anyio
from obstore.store import LocalStore
from ctxpipe import ContextPipeline, ObjectJournal

class NeverAnswers:
    '''A store that writes, and whose answer does not come.'''

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def put_async(self, path, content, **options):
        await self.store.put_async(path, content, **options)
        if b"two" in bytes(content):
            print("written", flush=True)
            time.sleep(60)

async def run():
    journal = ObjectJournal(NeverAnswers(LocalStore(sys.argv[1], mkdir=True)))
    session = ContextPipeline([]).session("s", journal=journal)
    history = [{"role": "user", "content": "one"}]
    await session.run(history)
    history += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "two"}]
    await session.run(history)

anyio.run(run)
"""


async def test_a_process_that_is_killed_between_a_write_and_its_answer_leaves_the_entry_once(
    tmp_path,
):
    await anyio.to_thread.run_sync(python_killed_at, "written", KILLED, tmp_path)
    history = conversation(user("one"), assistant("done"), user("two"))
    journal = ObjectJournal(stores.LocalStore(tmp_path))

    session = ContextPipeline([]).session("s", journal=journal)
    result = await session.run(history)

    assert result.messages == history
    assert not result.notices
    assert await session.history() == history
    assert len(await journal.entries("s")) == 2


@pytest.mark.parametrize("packets", range(1, 6))
async def test_an_append_whose_answer_gets_lost_is_not_taken_for_anothers(s3: S3, packets: int):
    async with CuttingProxy(s3.port, packets, once=True) as proxy:
        journal = ObjectJournal(s3.store(f"lost-{packets}", proxy.port))

        assert await journal.append("s", 0, "entry") is True
        assert await journal.append("s", 1, "another") is True

        assert await journal.entries("s") == ["entry", "another"]


async def test_a_write_whose_answer_is_another_writers_error_is_found_out():
    class AnswersTwice(Watched):
        """A store that takes an entry, and is asked again by its client."""

        async def put_async(self, path: str, content: bytes, **options: Any) -> Any:
            await self.store.put_async(path, content, **options)
            return await self.store.put_async(path, content, **options)

    store = stores.MemoryStore()
    journal = ObjectJournal(AnswersTwice(store))  # type: ignore[arg-type]

    assert await journal.append("s", 0, "entry") is True
    assert await journal.append("s", 0, "entry") is False

    assert await ObjectJournal(store).entries("s") == ["entry"]


# What a turn asks ---------------------------------------------------------------------------------


async def test_a_turn_asks_for_one_object_and_writes_one():
    store: Any = Watched(stores.MemoryStore())
    session = ContextPipeline([]).session("s", journal=ObjectJournal(store))
    history = conversation(user("one"))
    await session.run(history)
    for number in range(5):
        history = [*history, assistant("done"), user(f"turn {number}")]
        store.calls.clear()

        await session.run(history)

        assert store.calls == {"get_async": 1, "put_async": 1}


async def test_a_worker_who_finds_entries_of_others_reads_the_journal_and_lists_nothing():
    store: Any = Watched(stores.MemoryStore())
    journals = [ObjectJournal(store) for _ in range(2)]
    workers = [ContextPipeline([]).session("s", journal=journal) for journal in journals]
    history = conversation(user("one"))
    for worker in workers:
        await worker.run(history)
    for number in range(6):
        history = [*history, assistant("done"), user(f"turn {number}")]
        before = store.calls.copy()
        await workers[number % 2].run(history)
        asked = store.calls - before

    assert asked["put_async"] == 1
    assert not asked["list"]
    written = len(await journals[0].entries("s"))
    assert asked["get_async"] <= 3 + 2 * written


async def test_a_long_journal_is_read_in_a_few_steps_and_nothing_is_listed():
    store: Any = Watched(stores.MemoryStore())
    journal = ObjectJournal(store)
    for number in range(200):
        await journal.append("s", number, f"entry {number}")
    other = ObjectJournal(store, connections=8)
    store.calls.clear()

    assert await other.entries("s") == [f"entry {number}" for number in range(200)]

    assert store.calls["list"] == 0
    assert store.calls["get_async"] < 200 + 2 * object_journals._MOST_AT_ONCE
    assert store.most_at_once == 8


async def test_a_long_journal_that_is_delivered_slowly_is_no_failure():
    store: Any = Watched(stores.MemoryStore())
    journal = ObjectJournal(store)
    history = conversation(user("one"))
    session = ContextPipeline([]).session("s", journal=journal)
    for number in range(20):
        history = [*history, assistant("done"), user(f"turn {number}")]
        await session.run(history)
    store.seconds = 0.15

    anew = ContextPipeline([]).session("s", journal=ObjectJournal(store, connections=1, timeout=2))
    result = await anew.run(history)

    assert not result.notices
    assert await anew.history() == history


async def test_a_long_journal_is_deleted_while_its_requests_wait_for_each_other():
    store: Any = Watched(stores.MemoryStore())
    journal = ObjectJournal(store, connections=1, timeout=1)
    for number in range(60):
        assert await journal.append("s", number, f"entry {number}")
    store.seconds = 0.03  # so that all requests together take longer than the timeout

    await journal.delete("s")

    store.seconds = 0.0
    assert await journal.entries("s") == []


async def test_turns_go_on_while_a_store_does_not_answer_and_one_notice_says_so():
    store: Any = Watched(stores.MemoryStore())
    journal = ObjectJournal(store, timeout=0.3)
    session = ContextPipeline([]).session("s", journal=journal)
    history = conversation(user("one"))
    await session.run(history)
    store.seconds = 3600.0
    notices: list[str] = []

    for number in range(20):
        history = [*history, assistant("done"), user(f"turn {number}")]
        result = await session.run(history)
        assert result.messages == history
        notices += result.notices

    assert len(notices) == 1
    store.seconds = 0.0
    with anyio.fail_after(20):
        while len(await ObjectJournal(store.store).entries("s")) < 2:  # noqa: ASYNC110
            await anyio.sleep(0.05)
    anew = ContextPipeline([]).session("s", journal=ObjectJournal(store.store))
    assert await anew.history() == history
    await journal.aclose()


# Deletion -----------------------------------------------------------------------------------------


async def contents(store: Any) -> dict[str, bytes]:
    """What is in each object of *store*."""
    found: dict[str, bytes] = {}
    for path in await paths(store):
        found[path] = bytes(await (await store.get_async(path)).bytes_async())
    return found


async def test_of_a_deleted_session_nothing_is_left_but_tombstones():
    store = stores.MemoryStore()
    journal = ObjectJournal(store)
    session = ContextPipeline([]).session("cust1/anna", journal=journal)
    history: list[Any] = conversation(user(WORDS))
    for number in range(5):
        await session.run(history)
        history = [*history, assistant("done"), user(f"turn {number}")]
    async with journal.lease("cust1/anna", 0):
        pass

    await journal.delete("cust1/anna")

    left = await contents(store)
    assert "anna" not in str(left)
    assert WORDS not in str(left)
    assert {json.loads(content).get("next") for content in left.values()} == {6}
    assert len({json.loads(content)["tombstone"] for content in left.values()}) == 1
    assert await journal.sessions() == []


@pytest.mark.parametrize("known", range(4))
async def test_a_holder_who_knows_less_than_others_writes_nothing_after_a_deletion(known: int):
    store = stores.MemoryStore()
    holder = ObjectJournal(store)
    others = ObjectJournal(store)
    generation = Generation("s")
    for number in range(known):
        await others.append("s", number, f"entry {number}")
    with generation.running():
        await holder.entries("s")
        for number in range(known, 4):
            await others.append("s", number, f"entry {number}")
        await others.delete("s")
        before = await contents(store)

        assert await holder.append("s", known, WORDS) is False

        assert await contents(store) == before
        with pytest.raises(SessionDeleted):
            await holder.entries("s", known)
        for number in range(6):
            assert await holder.append("s", number, WORDS) is False
    assert await contents(store) == before


async def test_a_session_is_deleted_again_and_again_and_begins_anew():
    store = stores.MemoryStore()
    journal = ObjectJournal(store)
    other = ObjectJournal(store)
    for life in range(4):
        for number in range(3):
            assert await journal.append("s", number, f"{number} of life {life}")
        assert await other.entries("s") == [f"{number} of life {life}" for number in range(3)]
        await other.delete("s")
        assert await journal.entries("s", 3) == []

    assert b"life" not in b"".join((await contents(store)).values())


async def test_a_deletion_that_fails_in_the_middle_is_an_error_and_is_finished_later():
    store = stores.MemoryStore()
    journal = ObjectJournal(store)
    for number in range(20):
        await journal.append("s", number, WORDS)

    for operations in range(60):
        failing: Any = Watched(store, operations)
        try:
            await ObjectJournal(failing).delete("s")
        except StorageError:
            continue
        break

    assert WORDS.encode() not in b"".join((await contents(store)).values())
    assert await journal.entries("s", 20) == []


async def test_deletion_beside_writers_leaves_no_entry_of_before():
    store = stores.MemoryStore()
    for _ in range(20 if NIGHTLY else 6):
        generation = Generation("s")
        with generation.running():
            journals = [ObjectJournal(store) for _ in range(4)]
            for journal in journals:
                await journal.entries("s")

            async def write(journal: ObjectJournal):
                number = 0
                for _ in range(8):
                    if await journal.append("s", number, WORDS):
                        number += 1
                    try:
                        number += len(await journal.entries("s", number))
                    except SessionDeleted:
                        return

            async with anyio.create_task_group() as group:
                for journal in journals:
                    group.start_soon(write, journal)
                await ObjectJournal(store).delete("s")
        assert WORDS.encode() not in b"".join((await contents(store)).values())


async def test_sessions_delete_a_session_from_the_journal_and_the_texts_of_one_bucket():
    store = stores.MemoryStore()
    texts = ObjectStorage(store)
    journal = ObjectJournal(store, texts=texts)
    sessions = Sessions(ContextPipeline([DirectOffload(texts, min_chars=1000)]), journal=journal)
    history = conversation(user(WORDS), step("t1", "bash", result=f"{WORDS}\n" * 500))
    await sessions.get("s").run(history)
    await sessions.get("t").run(history)
    assert sorted(await texts.sessions()) == sorted(await journal.sessions()) == ["s", "t"]

    await sessions.delete("s")

    assert await texts.sessions() == await journal.sessions() == ["t"]
    assert await sessions.get("t").history() == history
    assert await sessions.get("s").history() == []


# Retention ----------------------------------------------------------------------------------------


async def test_journals_that_nobody_writes_to_are_deleted_by_age():
    store = stores.MemoryStore()
    now = time.time()
    journal = ObjectJournal(store, clock=lambda: now)
    session = ContextPipeline([]).session("s", journal=journal)
    await session.run(conversation(user(WORDS)))
    await journal.append("deleted", 0, WORDS)
    await journal.delete("deleted")
    now += 2 * DAY

    assert await journal.cleanup(max_age=3 * DAY) == 0
    assert await journal.cleanup(max_age=DAY) == 1

    assert WORDS.encode() not in b"".join((await contents(store)).values())
    history = conversation(user(WORDS), assistant("done"), user("again"))
    assert (await session.run(history)).messages == history
    anew = ContextPipeline([]).session("s", journal=ObjectJournal(store))
    assert await anew.history() == history
    now += 100 * DAY
    assert await journal.cleanup(max_age=DAY) == 1
    now += 100 * DAY
    assert await journal.cleanup(max_age=DAY) == 0
    assert await paths(store) == []


async def test_what_is_in_a_bucket_beside_the_journals_is_left_alone():
    store = stores.MemoryStore()
    for path in ("photo.jpg", "=journals/photo.jpg", "=journals/x/0000000001", "s/used"):
        await store.put_async(path, b"of others")
    before = await contents(store)
    journal = ObjectJournal(store, clock=lambda: time.time() + 1e9)

    await journal.cleanup(max_age=0)
    assert await journal.sessions() == []

    assert await contents(store) == before


async def test_a_journal_whose_first_entries_a_bucket_rule_took_is_written_again(monkeypatch):
    monkeypatch.setattr(object_journals, "TOUCH_SECONDS", 0.0)
    store = stores.MemoryStore()
    session = ContextPipeline([]).session("s", journal=ObjectJournal(store))
    history = conversation(user("one"))
    for number in range(6):
        await session.run(history)
        history = [*history, assistant("done"), user(f"turn {number}")]
    await store.delete_async((await paths(store))[:3])

    for number in range(3):
        await session.run(history)
        history = [*history, assistant("done"), user(f"later {number}")]
    await session.run(history)

    anew = ContextPipeline([]).session("s", journal=ObjectJournal(store))
    assert await anew.history() == history


@pytest.mark.parametrize("content", [b"", b"x", b"{}\nx", b'{"form": 1, "token": 1}', b"[" * 9999])
@pytest.mark.parametrize("number", [0, 1])
async def test_a_damaged_entry_is_set_aside_with_its_journal(content: bytes, number: int):
    store = stores.MemoryStore()
    session = ContextPipeline([]).session("s", journal=ObjectJournal(store))
    history = conversation(user("one"))
    await session.run(history)
    history = [*history, assistant("done"), user("two")]
    await session.run(history)
    await store.put_async((await paths(store))[number], content)

    anew = ContextPipeline([]).session("s", journal=ObjectJournal(store))
    result = await anew.run(history)

    assert result.messages == history
    assert f"damaged from entry {number} on" in result.notices[0]
    another = ContextPipeline([]).session("s", journal=ObjectJournal(store))
    assert await another.history() == history


async def test_a_journal_of_a_newer_form_is_refused_and_stays():
    store = stores.MemoryStore()
    await ObjectJournal(store).append("s", 0, "entry")
    [path] = await paths(store)
    newer = b'{"form": 2, "token": "t", "name": "\\"s\\""}\nentry'
    await store.put_async(path, newer)

    with pytest.raises(StorageError, match="newer ctxpipe, in form 2"):
        await ObjectJournal(store).entries("s")

    assert await contents(store) == {path: newer}


# Leases -------------------------------------------------------------------------------------------


async def test_a_lease_that_nobody_renews_ends_and_one_of_many_has_it_then():
    store = stores.MemoryStore()
    now = time.time()
    journals = [ObjectJournal(store, clock=lambda: now) for _ in range(6)]
    for number in range(3):
        assert await journals[0]._lease("s", f"of killed process {number}")
        assert not await journals[1]._lease("s", "another")
        now += 16
    held: list[int] = []

    async def acquire(number: int):
        if await journals[number]._lease("s", f"token {number}"):
            held.append(number)

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(acquire, number)

    [holder] = held
    assert await journals[holder]._lease("s", f"token {holder}")
    await journals[holder]._release("s", f"token {holder}")
    assert await paths(store) == []


# Stores without conditions, and settings ----------------------------------------------------------


class WithoutConditions(Watched):
    """A store that writes over what must not exist, as servers do that know no If-None-Match."""

    async def put_async(self, path: str, content: bytes, **options: Any) -> Any:
        options.pop("mode", None)
        return await self.store.put_async(path, content, **options)


async def test_a_store_that_writes_over_what_must_not_exist_is_refused_and_says_what_to_do():
    store = stores.MemoryStore()
    journal = ObjectJournal(WithoutConditions(store))  # type: ignore[arg-type]

    for _ in range(2):
        with pytest.raises(StorageError, match="keep the journal in a database") as refused:
            await journal.append("s", 0, "entry")

    assert refused.value.errno == errno.ENOTSUP
    assert await paths(store) == []


async def test_a_store_whose_conditions_are_switched_off_is_refused_and_says_what_to_do():
    store = stores.S3Store(
        "bucket",
        conditional_put="disabled",
        endpoint="http://127.0.0.1:9",
        region="us-east-1",
        access_key_id="key",
        secret_access_key="of nobody",  # noqa: S106  nobody is asked
        client_options={"allow_http": True},
    )
    journal = ObjectJournal(store)
    journal._positions[object_journals._folder("s")] = object_journals.JournalPosition()

    with pytest.raises(StorageError, match="keep the journal in a database"):
        await journal._create(object_journals._folder("s"), 0, b"entry")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"store": "s3://bucket"}, {"store": ObjectJournal}, {"redact": 1}, {"texts": 1}),
        *({"connections": 0}, {"timeout": 0}, {"clock": 1}),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]):
    with pytest.raises(SettingsError, match=f"{next(iter(wrong))} is"):
        ObjectJournal(**{"store": stores.MemoryStore(), **wrong})
