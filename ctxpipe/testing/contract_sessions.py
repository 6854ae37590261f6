"""The contract for sessions: others go on with them, list them, and delete them meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from ..errors import SessionDeleted, SettingsError
from ..pipeline import ContextPipeline
from ..placeholders.names import session_folder
from ..session import Session
from ..stages.compact import Compact
from ..stages.offload import DirectOffload
from ..storage import Archive, JournalStorage, TextReader, TextWriter
from ..storage.generations import delete_sessions
from ..summarizers import Summary
from .storage import StoragePlace, entries_of, expect, expect_error, text_or_none

SESSION = "cust1/a b"
WORDS = "what a person said"
HOLDERS = 4
NAMES = ["cust1", "cust1/a", "cust1/B", "cust1/a/b", "cust10", "cust10/a", "Cust1/a", "plain"]


def talk(text: str) -> list[Any]:
    """A request of *text*, a call, and a long result with *text* in it."""
    call = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": text}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": f"{text}\n" * 500}
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


def request_of(text: str) -> list[Any]:
    """A request of *text*."""
    return [{"role": "user", "content": text}]


def session_on(storage: Any, *stages: Any, name: str = SESSION) -> Session:
    """A session that writes whatever *storage* takes, after *stages*."""
    used = list(stages)
    if isinstance(storage, TextWriter):
        used.append(DirectOffload(storage, min_chars=1000))
    journal = storage if isinstance(storage, JournalStorage) else None
    return ContextPipeline(used).session(name, journal=journal)


async def expect_nothing_kept(place: StoragePlace, session: Session) -> None:
    """Raise ContractBroken when the deleted session can be found anywhere."""
    storage = await place.storage()
    if isinstance(storage, JournalStorage):
        entries = "".join(await storage.entries(SESSION))
        expect(WORDS not in entries, "no entry of it is written again")
    if isinstance(storage, Archive):
        records = [where for where in await storage.records(SESSION) if where.endswith(".json")]
        expect(records == [], "no record of it is written again")
    if isinstance(storage, TextWriter):
        text = await text_or_none(storage, storage.location(f"{session_folder(SESSION)}/t1.md"))
        expect(text is None, "no text of it is written again")
    expect(WORDS not in str(await session.history()), "whoever held it has dropped it")


async def a_session_goes_on_in_another_process(first: Any, second: Any) -> None:
    history = talk(WORDS)
    result = await session_on(first).run(history)
    resumed = await session_on(second).run(history)
    expect(resumed.messages == result.messages, "another process sends the same context")
    if isinstance(first, TextReader):
        entries = await entries_of(first, SESSION)
        [result_block] = history[-1]["content"]
        is_short = sum(map(len, entries)) < len(result_block["content"])
        expect(is_short, "no entry repeats what is in a text")
    expect(await session_on(second).history() == history, "the journal gives the history back")
    expect(not (result.notices or resumed.notices), "nothing is to be said about it")


async def fill(storage: Any, session: str) -> list[str]:
    """Write whatever *storage* takes for *session*; the locations."""
    locations: list[str] = []
    if isinstance(storage, TextWriter):
        texts = [(f"{session}/{number}.md", f"text {number}") for number in range(5)]
        texts.append((f"{session}/5.md", "text 0"))
        locations += await storage.write(texts)
    if isinstance(storage, Archive):
        locations.append(await storage.save(session, "compact", ["x"]))
    if isinstance(storage, JournalStorage):
        for number in range(2):
            expect(await storage.append(session, number, f"entry {number}"), "it is empty")
        await storage.entries(session)
        await storage.set_aside(session)
        expect(await storage.append(session, 0, "entry"), "a new journal begins")
    return locations


async def deleting_a_session_leaves_nothing_of_it(storage: Any, other: Any) -> None:
    gone = await fill(storage, "s")
    kept = await fill(storage, "s2")
    await storage.delete("s")
    for reader in (storage, other):
        for location in gone:
            expect(await text_or_none(reader, location) is None, "its texts and records are gone")
        for location in kept:
            expect(await text_or_none(reader, location) is not None, "other sessions stay")
        if isinstance(reader, Archive):
            expect(list(await reader.records("s")) == [], "no record is listed")
            others = {where for where in kept if where.endswith(".json")}
            expect(others <= set(await reader.records("s2")), "those of others are")
        if isinstance(reader, JournalStorage):
            expect(await entries_of(reader, "s") == [], "its journal is gone")
            expect(await entries_of(reader, "s2") == ["entry"], "other journals stay")
    await storage.delete("s")
    await storage.delete("never heard of")
    expect((await fill(other, "s"))[:6] == gone[:6], "a session of that name begins anew")


async def holders_of_deleted(place: StoragePlace) -> list[Session]:
    """Several that hold one session, which is deleted now."""
    sessions = [session_on(storage) for storage in await place.storages(HOLDERS)]
    for session in sessions:
        await session.run(talk(WORDS))
    await (await place.storage()).delete(SESSION)
    return sessions


async def whoever_holds_a_deleted_session_drops_it(place: StoragePlace) -> None:
    history = request_of("hello again")
    for session in await holders_of_deleted(place):
        result = await session.run(history)
        expect(result.messages == history, "what is handed in begins a new conversation")
        expect(len(result.notices) == 1, "one notice says so")
        expect(not (await session.run(history)).notices, "it is said once")
        await expect_nothing_kept(place, session)


async def an_owner_of_a_deleted_session_does_not_ask_without_it(
    place: StoragePlace, storage: Any, other: Any
) -> None:
    sent: list[Any] = []
    session = session_on(storage)
    client = answering(sent)
    session.append(*request_of(WORDS))
    await session.create(client, model="m", max_tokens=10)
    await other.delete(SESSION)
    session.append(*request_of("hello again"))
    await expect_error(
        session.create(client, model="m", max_tokens=10), "its history is gone", SessionDeleted
    )
    expect(len(sent) == 1, "the model is not asked")
    await expect_nothing_kept(place, session)
    session.append(*request_of("a new life"))
    await session.create(client, model="m", max_tokens=10)
    expect(sent[-1] == request_of("a new life"), "what is appended then begins a new conversation")
    expect(len(await session.history()) == 2, "which is kept as any other")


async def a_deleted_session_has_an_empty_history_and_no_error(place: StoragePlace) -> None:
    sessions = await holders_of_deleted(place)
    for session in sessions:
        for _ in range(2):
            history = await session.history()
            expect(history == [], "there is no history, and that is no error")
    await sessions[0].run(request_of("a new life"))
    if sessions[1].journal is not None:
        history = await sessions[1].history()
        expect(history == request_of("a new life"), "the new one is everybody's")


def answering(sent: list[Any], meanwhile: Callable[[], Awaitable[object]] | None = None) -> Any:
    """A client that adds what it is sent to *sent*, and answers once *meanwhile* is done."""

    async def create(**request: Any) -> Any:
        sent.append(list(request["messages"]))
        if meanwhile is not None:
            await meanwhile()
        return {"role": "assistant", "content": f"an answer about {WORDS}"}

    return SimpleNamespace(messages=SimpleNamespace(create=create))


async def a_turn_writes_nothing_once_its_session_is_deleted(place: StoragePlace) -> None:
    for known in (request_of(WORDS), talk(WORDS), []):  # also where there is nothing new to write
        storage, other = await place.storages(2)

        async def delete(_: Any, other: Any = other) -> None:
            await other.delete(SESSION)

        session = session_on(storage)
        if known:
            await session.run(known)
        running = session_on(storage, delete).run(talk(WORDS))
        await expect_error(running, "it is deleted during shaping", SessionDeleted)
        await expect_nothing_kept(place, session)


async def a_summary_of_a_deleted_session_is_not_kept(
    place: StoragePlace, storage: Any, other: Any
) -> None:

    async def summarize(*_: Any, **__: Any) -> Summary:
        await other.delete(SESSION)
        return Summary(f"of {WORDS}")

    archive = storage if isinstance(storage, Archive) else None
    stage = Compact(summarize, archive=archive, require_archive=archive is not None)
    session = session_on(storage, stage)
    await session.run([*talk(WORDS), {"role": "assistant", "content": WORDS}, *request_of(WORDS)])
    await expect_error(
        session.compact(), "it is deleted while its summary is written", SessionDeleted
    )
    await expect_nothing_kept(place, session)


async def an_answer_in_a_deleted_session_is_not_kept(
    place: StoragePlace, storage: Any, other: Any
) -> None:
    sent: list[Any] = []

    async def delete() -> None:
        await other.delete(SESSION)

    session = session_on(storage)
    session.append(*request_of(WORDS))
    asked = session.create(answering(sent, delete), model="m", max_tokens=10)
    await expect_error(asked, "it is deleted while the model answers", SessionDeleted)
    await expect_nothing_kept(place, session)


async def sessions_are_listed_and_deleted_in_whole_components(storage: Any, other: Any) -> None:
    for name in NAMES:
        await session_on(storage, name=name).run(talk(name))
    expect(sorted(await other.sessions()) == sorted(NAMES), "every session is listed")
    below = ["cust1", "cust1/B", "cust1/a", "cust1/a/b"]
    for prefix in ("cust1", "cust1/"):
        expect(sorted(await other.sessions(prefix)) == below, "whole components are compared")
    for prefix in ("", "/"):
        await expect_error(other.sessions(prefix), "an empty prefix is an error", SettingsError)
    expect(await delete_sessions("cust1/", other) == below, "all below a prefix are deleted")
    expect(sorted(await storage.sessions()) == sorted(set(NAMES) - set(below)), "the others stay")


DELETE_CHECKS = (
    deleting_a_session_leaves_nothing_of_it,
    whoever_holds_a_deleted_session_drops_it,
    an_owner_of_a_deleted_session_does_not_ask_without_it,
    a_deleted_session_has_an_empty_history_and_no_error,
    a_turn_writes_nothing_once_its_session_is_deleted,
    a_summary_of_a_deleted_session_is_not_kept,
    an_answer_in_a_deleted_session_is_not_kept,
)
SESSION_CHECKS = (a_session_goes_on_in_another_process,)
LIST_CHECKS = (sessions_are_listed_and_deleted_in_whole_components,)
