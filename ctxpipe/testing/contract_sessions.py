"""Contract for sessions: other processes can continue them, list them, and delete them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import SessionDeleted, SettingsError
from ..pipeline import ContextPipeline
from ..session import Session
from ..stages.offload.stage import DirectOffload
from ..storage import Archive, JournalStorage, TextReader, TextWriter
from ..storage.generations import Generation, delete_sessions
from .storage import entries_of, expect, expect_error, text_or_none

SESSION = "cust1/a b"
WORDS = "what a person said"
NAMES = ["cust1", "cust1/a", "cust1/B", "cust1/a/b", "cust10", "cust10/a", "Cust1/a", "plain"]


def talk(text: str) -> list[Any]:
    """Return a history: a user message *text*, a call, and a long result that repeats *text*."""
    call = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": text}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": f"{text}\n" * 500}
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


def session_on(storage: Any, name: str = SESSION) -> Session:
    """Return a session that writes its journal and texts to *storage*, if it takes them."""
    stages = [DirectOffload(storage, min_chars=1000)] if isinstance(storage, TextWriter) else []
    journal = storage if isinstance(storage, JournalStorage) else None
    return ContextPipeline(stages).session(name, journal=journal)


async def a_session_goes_on_in_another_process(first: Any, second: Any) -> None:
    """Check that a session on another storage continues with the same context and history.

    No entry of the journal repeats a stored text. Raises ContractBroken.
    """
    history = talk(WORDS)
    result = await session_on(first).run(history)
    resumed_result = await session_on(second).run(history)
    expect(resumed_result.messages == result.messages, "another process sends the same context")
    if isinstance(first, TextReader):
        entries = await entries_of(first, SESSION)
        [result_block] = history[-1]["content"]
        journal_chars = sum(len(entry) for entry in entries)
        is_short = journal_chars < len(result_block["content"])
        expect(is_short, "no entry repeats what is in a text")
    expect(await session_on(second).history() == history, "the journal returns the history")
    expect(not (result.notices or resumed_result.notices), "there is no notice about it")


async def fill(storage: Any, session: str) -> list[str]:
    """Write texts, a record and entries of *session*, those that *storage* takes.

    Returns the locations of the texts and of the record.
    """
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
    """Check that deleting a session deletes its texts, records and entries, and no others.

    A session that does not exist may be deleted too. Raises ContractBroken.
    """
    deleted_locations = await fill(storage, "s")
    other_locations = await fill(storage, "s2")
    await storage.delete("s")
    for reader in (storage, other):
        for location in deleted_locations:
            expect(await text_or_none(reader, location) is None, "its texts and records are gone")
        for location in other_locations:
            expect(await text_or_none(reader, location) is not None, "other sessions stay")
        if isinstance(reader, Archive):
            expect(list(await reader.records("s")) == [], "no record is listed")
            others = {where for where in other_locations if where.endswith(".json")}
            expect(
                others <= set(await reader.records("s2")), "records of other sessions are listed"
            )
        if isinstance(reader, JournalStorage):
            expect(await entries_of(reader, "s") == [], "its journal is gone")
            expect(await entries_of(reader, "s2") == ["entry"], "other journals stay")
    await storage.delete("s")
    await storage.delete("never heard of")
    expect(
        (await fill(other, "s"))[:6] == deleted_locations[:6], "a new session of that name is empty"
    )


async def writes_of_a_deleted_session_are_refused(storage: Any, other: Any) -> None:
    """Check that writes of a turn are refused if another process deletes its session meanwhile.

    Raises ContractBroken.
    """
    generation = Generation("s")
    with generation.running():
        await fill(storage, "s")
        await other.delete("s")
        if isinstance(storage, TextWriter):
            late = storage.write([("s/late.md", "text")])
            await expect_error(late, "its texts are refused", SessionDeleted)
        if isinstance(storage, Archive):
            late = storage.save("s", "compact", ["x"])
            await expect_error(late, "its records are refused", SessionDeleted)
        if isinstance(storage, JournalStorage):
            with suppress(SessionDeleted):
                expect(not await storage.append("s", 0, "late"), "its entries are refused")
            await expect_error(storage.entries("s"), "reading it is refused", SessionDeleted)
        else:
            check = storage.ensure_not_deleted("s")
            await expect_error(check, "the deletion is reported", SessionDeleted)
    if isinstance(other, TextReader):
        expect(await text_or_none(other, "s/late.md") is None, "no text of it is written")
    if isinstance(other, Archive):
        expect(list(await other.records("s")) == [], "no record of it is written")
    if isinstance(other, JournalStorage):
        expect(await entries_of(other, "s") == [], "no entry of it is written")


async def sessions_are_listed_and_deleted_in_whole_components(storage: Any, other: Any) -> None:
    """Check that a prefix means an id and those below it, such as ``cust1/a`` below ``cust1``.

    An empty prefix is an error. Raises ContractBroken.
    """
    for name in NAMES:
        await session_on(storage, name).run(talk(name))
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
    writes_of_a_deleted_session_are_refused,
)
SESSION_CHECKS = (a_session_goes_on_in_another_process,)
LIST_CHECKS = (sessions_are_listed_and_deleted_in_whole_components,)
