"""Checks of sessions and stages that run on any storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from ctxpipe import Compact, ContextPipeline, DirectOffload
from ctxpipe.errors import SessionDeleted
from ctxpipe.placeholders.names import session_folder
from ctxpipe.session import Session
from ctxpipe.stages.archive import (
    archive_digest,
    archive_record,
    last_part,
    read_verified,
    records_by_name,
)
from ctxpipe.storage import Archive, JournalStorage, TextReader, TextWriter
from ctxpipe.summarizers import Summary
from ctxpipe.testing import StorageCheck
from ctxpipe.testing.contract_sessions import SESSION, WORDS, talk
from ctxpipe.testing.storage import Factory, StoragePlace, expect, expect_error, text_or_none

HOLDERS = 4


def session_checks(factory: Factory) -> list[StorageCheck]:
    """Return the checks of sessions on the storages of *factory*, like `storage_conformance`."""
    place = partial(StoragePlace, factory)
    return [StorageCheck(check.__name__.replace("_", " "), check, place) for check in CHECKS]


def request_of(text: str) -> list[Any]:
    """A request of *text*."""
    return [{"role": "user", "content": text}]


def session_on(storage: Any, *stages: Any) -> Session:
    """A session that writes whatever *storage* takes, after *stages*."""
    used = list(stages)
    if isinstance(storage, TextWriter):
        used.append(DirectOffload(storage, min_chars=1000))
    journal = storage if isinstance(storage, JournalStorage) else None
    return ContextPipeline(used).session(SESSION, journal=journal)


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


async def an_archive_is_verified_as_the_sessions_own(storage: Any) -> None:
    if not isinstance(storage, Archive) or not isinstance(storage, TextReader):
        return
    for session in ("s", "Of a / tenant"):
        location = await storage.save(session, "compact", archive_record(talk(WORDS)))
        digest = await archive_digest(storage, location)
        name = last_part(location)
        records = await records_by_name(storage, session)
        own = await read_verified(storage, records.get(name, ""), digest or "")
        expect(own is not None and own.messages == talk(WORDS), "a session's archive is verified")
        others = await records_by_name(storage, "another")
        expect(name not in others, "it is not another session's")


CHECKS = (
    an_archive_is_verified_as_the_sessions_own,
    whoever_holds_a_deleted_session_drops_it,
    an_owner_of_a_deleted_session_does_not_ask_without_it,
    a_deleted_session_has_an_empty_history_and_no_error,
    a_turn_writes_nothing_once_its_session_is_deleted,
    a_summary_of_a_deleted_session_is_not_kept,
    an_answer_in_a_deleted_session_is_not_kept,
)
