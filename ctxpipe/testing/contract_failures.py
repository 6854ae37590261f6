"""Contract for backends that fail, for secrets, and for missing texts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from ..errors import StorageError
from ..pipeline import ContextPipeline
from ..storage import Archive, JournalStorage, TextReader, TextWriter
from .storage import (
    Check,
    StoragePlace,
    entries_of,
    expect,
    expect_error,
    expect_texts,
    text_at,
    text_or_none,
)

MAX_OPERATIONS = 200
TEXT = "0123456789漢\n" * 3_000
KEY = 'sk-"12345678'

Act: TypeAlias = Callable[[Any, int], Awaitable[object]]


# Failures -----------------------------------------------------------------------------------------


async def fail_everywhere(place: StoragePlace, act: Act) -> AsyncIterator[tuple[int, bool]]:
    """Run *act* with a backend that fails at its first operation, its second, until it succeeds.

    Yields for each attempt the number of operations that worked, and True if *act* succeeded.
    """
    for operations in range(MAX_OPERATIONS):
        is_done = False
        async with place.failing(place.name, operations) as storage:
            with suppress(StorageError):
                await act(storage, operations)
                is_done = True
        yield operations, is_done
        if is_done:
            expect(operations > 0, "a backend that fails at once fails the call")
            return
    expect(False, f"{MAX_OPERATIONS} operations are enough")


async def a_write_that_fails_anywhere_leaves_whole_texts(place: StoragePlace, healthy: Any) -> None:
    """Check that a write in which any operation fails leaves each text whole or absent.

    The same texts can be written afterwards. Raises ContractBroken.
    """

    def batch(number: int) -> dict[str, str]:
        return {f"s/{number}-{index}.md": f"{index} {TEXT}" for index in range(3)}

    async def write(storage: Any, number: int) -> None:
        await storage.write(list(batch(number).items()))

    async for number, is_done in fail_everywhere(place, write):
        texts = batch(number)
        for key, text in texts.items():
            stored_text = await text_or_none(healthy, key)
            expect(
                stored_text == text or (stored_text is None and not is_done),
                "a text is whole or absent",
            )
        locations = await healthy.write(list(texts.items()))
        await expect_texts(healthy, locations, texts.values(), "the next write succeeds")


async def a_read_that_fails_anywhere_gives_no_wrong_text(place: StoragePlace, healthy: Any) -> None:
    """Check that a read in which any operation fails returns no wrong text and changes nothing.

    Raises ContractBroken.
    """
    await healthy.write([("s/a.md", TEXT)])

    async def read(storage: Any, _: int) -> None:
        expect(await text_at(storage, "s/a.md") == TEXT, "a text is read whole")

    async for _ in fail_everywhere(place, read):
        expect(await text_or_none(healthy, "s/a.md") == TEXT, "reading changes nothing")


async def a_record_that_fails_anywhere_is_whole_or_absent(
    place: StoragePlace, healthy: Any
) -> None:
    """Check that a record whose saving fails at any operation is whole or absent.

    Raises ContractBroken.
    """
    talk = [{"role": "user", "content": TEXT}]

    async def save(storage: Any, _: int) -> None:
        await storage.save("s", "compact", talk)

    async for _, is_done in fail_everywhere(place, save):
        records = await healthy.records("s")
        expect(records or not is_done, "a saved record is listed")
        for record in records if isinstance(healthy, TextReader) else ():
            text = await text_or_none(healthy, record)
            expect(text is not None and json.loads(text) == talk, "a record is whole")


async def an_append_that_fails_anywhere_leaves_whole_entries(
    place: StoragePlace, healthy: Any
) -> None:
    """Check that an entry whose writing fails at any operation is there once, whole, or absent.

    The next entry can be written afterwards. Raises ContractBroken.
    """

    async def append(storage: Any, number: int) -> None:
        """Write the first entry of a new session, then append the second with *storage*."""
        # A new session each time, since reading a journal may take one operation per entry.
        await healthy.append(f"s{number}", 0, "the first")
        await storage.entries(f"s{number}")
        await storage.append(f"s{number}", 1, f"{number} {TEXT!r}")

    async for number, is_done in fail_everywhere(place, append):
        session = f"s{number}"
        entries = await entries_of(healthy, session)
        times = entries.count(f"{number} {TEXT!r}")
        expect(is_done <= times <= 1, "an entry is there once, or absent")
        expect(
            await healthy.append(session, len(entries), f"after {number}"), "the next is written"
        )
        for entry in await entries_of(healthy, session, 1):
            is_whole = entry.startswith("after ") or entry.endswith(repr(TEXT))
            expect(is_whole, "an entry is whole")


# Secrets ------------------------------------------------------------------------------------------


def hide(text: str) -> str:
    """Return *text* with the secret replaced."""
    return text.replace(KEY, "[key]")


def refuse(text: str) -> str:
    """Raise ValueError, like a redaction rule with a defect."""
    raise ValueError(text)


def is_hidden_in(text: str) -> bool:
    """Return True if *text* has the replacement instead of the secret."""
    return "12345678" not in text and "[key]" in text


async def a_secret_is_hidden_in_everything_that_is_written(place: StoragePlace) -> None:
    """Check that texts, records and journals contain what the redaction rule returns.

    Raises ContractBroken.
    """
    storage = await place.redacting_storage(hide)
    talk = [{"role": "user", "content": f"the key is {KEY}"}]
    expect(storage.redact is not None, "the storage has its redaction rule")
    if isinstance(storage, TextWriter) and isinstance(storage, TextReader):
        texts = [("s/a.md", KEY), ("s/b.md", json.dumps({"key": f"漢{KEY}"}))]
        for location in await storage.write(texts):
            expect(is_hidden_in(await text_at(storage, location)), "texts hide it")
    if isinstance(storage, Archive) and isinstance(storage, TextReader):
        location = await storage.save("s", "compact", talk)
        expect(is_hidden_in(await text_at(storage, location)), "records hide it")
    if isinstance(storage, JournalStorage):
        await ContextPipeline([]).session("s", journal=storage).run(talk)
        expect(is_hidden_in("".join(await storage.entries("s"))), "journals hide it")


async def nothing_is_written_that_the_rule_has_not_seen(place: StoragePlace) -> None:
    """Check that a write stores nothing if the redaction rule raises an error.

    Checks `write` of a text storage and `save` of an archive: each must raise StorageError.
    Journals are not checked. Raises ContractBroken if the storage breaks this promise.
    """
    storage = await place.redacting_storage(refuse)
    healthy = await place.storage()
    if isinstance(storage, TextWriter):
        await expect_error(storage.write([("s/a.md", KEY)]), "an error of the rule fails the write")
        expect(await text_or_none(healthy, "s/a.md") is None, "no text is written")
    if isinstance(storage, Archive):
        await expect_error(
            storage.save("s", "compact", [KEY]), "an error of the rule fails the save"
        )
        expect(list(await healthy.records("s")) == [], "no record is written")


# Missing texts ------------------------------------------------------------------------------------


async def missing_texts_are_reported(storage: Any) -> None:
    """Check that `missing` returns exactly the locations without a text. Raises ContractBroken."""
    existing_locations = await storage.write([("s/a.md", "a"), ("t/漢.md", "b"), ("u/a.md", "c")])
    missing_locations = [storage.location("s/b.md"), storage.location("v/a.md")]
    expect(
        sorted(await storage.missing([*existing_locations, *missing_locations]))
        == sorted(missing_locations),
        "missing texts are listed",
    )
    expect(list(await storage.missing([])) == [], "without locations nothing is missing")


FAILURE_CHECKS: Mapping[type, Sequence[Check]] = {
    TextWriter: (a_write_that_fails_anywhere_leaves_whole_texts,),
    TextReader: (a_read_that_fails_anywhere_gives_no_wrong_text,),
    Archive: (a_record_that_fails_anywhere_is_whole_or_absent,),
    JournalStorage: (an_append_that_fails_anywhere_leaves_whole_entries,),
}
REDACTION_CHECKS = (
    a_secret_is_hidden_in_everything_that_is_written,
    nothing_is_written_that_the_rule_has_not_seen,
)
MISSING_CHECKS = (missing_texts_are_reported,)
