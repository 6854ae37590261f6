"""Contract of a `JournalStorage`."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import anyio

from .storage import StoragePlace, eight_at_once, entries_of, expect, expect_error

ODD_ENTRIES = ["", "ä 漢 🔑", "x" * 1_000_000, "\u2028\x0b\x0c\x1c\x85", "a\rb", '{"a": "\\u0000"}']
SESSIONS = [
    "s",
    "S",
    "t",
    "s/t",
    "../s",
    "",
    "a\0b",
    "'; drop table x; --",
    "漢" * 300,
    "s:1",
    "{s}",
]


async def entries_come_back_in_their_order(writer: Any, reader: Any) -> None:
    """Check that entries are read in their order, from any number on, also by another storage.

    Raises ContractBroken.
    """
    expect(await entries_of(writer, "s") == [], "a new session has no entries")
    entries = [f"entry {number}" for number in range(25)]
    for number, entry in enumerate(entries):
        expect(await writer.append("s", number, entry) is True, "a new entry is written")
        expect(await entries_of(reader, "s", number) == [entry], "others see it at once")
    for storage in (writer, reader):
        for start in (0, 3, 24, 25, 99):
            read_entries = await entries_of(storage, "s", start)
            expect(read_entries == entries[start:], "entries are returned from a number on")


async def an_entry_is_written_once(place: StoragePlace) -> None:
    """Check that an existing entry is never replaced. Raises ContractBroken."""
    for storage in await place.storages(3):
        await storage.append("s", 0, "the first")
        expect(await storage.append("s", 0, "another") is False, "an entry is not written again")
        expect(await entries_of(storage, "s") == ["the first"], "an entry never changes")


async def an_entry_that_would_leave_a_gap_is_not_written(first: Any, second: Any) -> None:
    """Check that an entry is refused unless its number is the next one. Raises ContractBroken."""
    expect(await first.append("s", 1, "later") is False, "the first entry is number 0")
    await first.append("s", 0, "the first")
    for number in (2, 9):
        expect(await second.append("s", number, "later") is False, "there is no gap")
    expect(await entries_of(first, "s") == ["the first"], "nothing was written")


async def of_eight_writers_one_wins_each_number(place: StoragePlace) -> None:
    """Check that of eight concurrent writers exactly one writes each entry.

    A writer that is refused can read the entry that was written instead. Raises ContractBroken.
    """
    storages = await place.storages(8)
    wins: list[tuple[int, str]] = []

    async def write(number: int) -> None:
        """Try to write twelve entries as writer *number*, and record those that were written."""
        journal = storages[number]
        for entry in range(12):
            line = f"{entry} of writer {number}"
            if await journal.append("s", entry, line):
                wins.append((entry, line))
            expect(await journal.entries("s", entry), "a writer that lost sees the entry that won")

    await eight_at_once(write)
    wins.sort()
    expect([number for number, _ in wins] == list(range(12)), "one of eight wins each number")
    lines = [line for _, line in wins]
    expect(await entries_of(storages[0], "s") == lines, "the entries are those of the winners")


async def any_line_of_text_is_an_entry(writer: Any, reader: Any) -> None:
    """Check that an entry may be any line of text, and that two lines are refused.

    Raises ContractBroken.
    """
    for number, entry in enumerate(ODD_ENTRIES):
        expect(await writer.append("s", number, entry), "any line of text is written")
    expect(await entries_of(reader, "s") == ODD_ENTRIES, "any line of text comes back")
    number = len(ODD_ENTRIES)
    await expect_error(writer.append("s", number, "two\nlines"), "an entry is one line")
    expect(await entries_of(reader, "s", number) == [], "two lines are not written")


async def sessions_share_nothing_whatever_they_are_called(storage: Any) -> None:
    """Check that each session has its own journal, also with an odd id. Raises ContractBroken."""
    for name in SESSIONS:
        expect(await storage.append(name, 0, f"of {name!r}"), "each session has its own journal")
    for name in SESSIONS:
        expect(await entries_of(storage, name) == [f"of {name!r}"], "none shares its journal")


async def places_share_no_journal(place: StoragePlace) -> None:
    """Check that a storage at another place does not see the entries. Raises ContractBroken."""
    await (await place.storage()).append("s", 0, "entry")
    expect(
        await entries_of(await place.other(), "s") == [], "another place does not have the entry"
    )


async def a_journal_is_set_aside_once(first: Any, second: Any) -> None:
    """Check that a journal is renamed only by a storage that has read it, and only once.

    A new journal begins then; what was renamed stays. Raises ContractBroken.
    """
    expect(await first.set_aside("s") == "", "there is nothing to set aside")
    for number in range(3):
        await first.append("s", number, f"old {number}")
    for storage in (first, second):
        await storage.entries("s")
    name = await first.set_aside("s")
    expect(name, "the name of what was set aside is returned")
    expect(await entries_of(first, "s") == [], "a new journal begins")
    expect(await first.append("s", 0, "new"), "the new journal takes entries")
    if second is not first:
        expect(await second.set_aside("s") == "", "a journal that it has not read is not set aside")
        expect(await entries_of(second, "s") == ["new"], "the new journal stays")
    for storage in (first, second):
        await storage.entries("s")
    expect(await second.set_aside("s") not in ("", name), "what was set aside before stays")


async def no_writer_appends_to_a_journal_that_was_replaced(first: Any, second: Any) -> None:
    """Check that an append is refused if the journal was replaced since it was read.

    Nothing is checked if both storages are the same object. Raises ContractBroken.
    """
    if second is first:
        return  # a storage has read everything that it has written itself
    await first.append("s", 0, "old")
    await second.entries("s")
    await first.set_aside("s")
    await first.append("s", 0, "new")
    expect(await second.append("s", 1, "x") is False, "the journal was replaced")
    await second.entries("s")
    expect(await second.append("s", 1, "x"), "a writer that has read it can append")


async def one_of_two_holds_a_lease(first: Any, second: Any) -> None:
    """Check that a session is leased to one storage at a time. Raises ContractBroken."""
    async with first.lease("s", 0) as is_held:
        expect(is_held is True, "a free session is held at once")
        async with second.lease("s", 0.1) as is_held_too:
            expect(is_held_too is False, "no other process holds it")
        async with second.lease("t", 0) as is_held_too:
            expect(is_held_too is True, "another session is free")
    async with second.lease("s", 5) as is_held:
        expect(is_held is True, "it is free afterwards")


async def a_lease_is_waited_for(first: Any, second: Any) -> None:
    """Check that a storage that waits gets the lease soon after it is free.

    Raises ContractBroken.
    """
    waiting_seconds: list[float] = []

    async def wait() -> None:
        """Acquire the lease, and record how many seconds that took."""
        began = time.monotonic()
        async with second.lease("s", 20) as is_held:
            expect(is_held is True, "it is held in the end")
            waiting_seconds.append(time.monotonic() - began)

    async with anyio.create_task_group() as group, first.lease("s", 0):
        group.start_soon(wait)
        await anyio.sleep(0.3)
    expect(0.2 <= waiting_seconds[0] < 10, "a waiting process gets it when it is free")


async def a_lease_ends_with_an_error_inside(first: Any, second: Any) -> None:
    """Check that an error in the block ends the lease. Raises ContractBroken."""
    with suppress(KeyError):
        async with first.lease("s", 0):
            raise KeyError("inside")
    async with second.lease("s", 5) as is_held:
        expect(is_held is True, "an error releases the lease")


JOURNAL_CHECKS = (
    entries_come_back_in_their_order,
    an_entry_is_written_once,
    an_entry_that_would_leave_a_gap_is_not_written,
    of_eight_writers_one_wins_each_number,
    any_line_of_text_is_an_entry,
    sessions_share_nothing_whatever_they_are_called,
    places_share_no_journal,
    a_journal_is_set_aside_once,
    no_writer_appends_to_a_journal_that_was_replaced,
)

LEASE_CHECKS = (one_of_two_holds_a_lease, a_lease_is_waited_for, a_lease_ends_with_an_error_inside)
