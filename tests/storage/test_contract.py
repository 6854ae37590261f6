"""The contract of a storage, checked against each that needs no service."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from services import failing_disk
from session_checks import session_checks

from ctxpipe import LocalStorage, MemoryStorage, SettingsError, StorageError
from ctxpipe.placeholders.names import session_folder
from ctxpipe.storage import Archive, JournalStorage, Page, TextReader, TextWriter
from ctxpipe.testing import ContractBroken, StorageCheck, storage_conformance
from examples.sqlite_storage import SqliteStorage

ROOT = os.path.realpath(mkdtemp(prefix="ctxpipe-contract-"))


def folder(place: str) -> str:
    return os.path.join(ROOT, place)


# A folder ---------------------------------------------------------------------------------------


@asynccontextmanager
async def on_a_failing_disk(place: str, operations: int) -> AsyncIterator[LocalStorage]:
    with failing_disk(folder(place), operations):
        yield LocalStorage(folder(place))


LOCAL = storage_conformance(
    lambda place: LocalStorage(folder(place)),
    extras=["add_notes", "delete", "lease", "sessions"],
    redacting=lambda place, redact: LocalStorage(folder(place), redact=redact),
    failing=on_a_failing_disk,
)
LOCAL += session_checks(lambda place: LocalStorage(folder(place)))


@pytest.mark.parametrize("check", LOCAL, ids=str)
async def test_a_folder_keeps_the_contract(check: StorageCheck):
    await check()


# This process's memory ----------------------------------------------------------------------------

PLACES: dict[str, MemoryStorage] = {}


def memory(place: str, redact: Callable[[str], str] | None = None) -> MemoryStorage:
    """The storage in memory that is *place*; it has no backend that could fail."""
    return PLACES.setdefault(place, MemoryStorage(redact=redact))


MEMORY = storage_conformance(
    memory, extras=["add_notes", "delete", "lease", "sessions"], redacting=memory
)


@pytest.mark.parametrize("check", [*MEMORY, *session_checks(memory)], ids=str)
async def test_memory_keeps_the_contract(check: StorageCheck):
    await check()


# The example --------------------------------------------------------------------------------------


def database(place: str) -> str:
    return folder(f"{place}.sqlite")


@asynccontextmanager
async def with_failing_statements(place: str, operations: int) -> AsyncIterator[SqliteStorage]:
    class Failing(SqliteStorage):
        left = operations

        async def sql(self, query: str, *values: object) -> list[Any]:
            if self.left <= 0:
                self.path = "/dev/full/no.sqlite"
            self.left -= 1
            return await super().sql(query, *values)

    yield Failing(database(place))


EXAMPLE = storage_conformance(
    lambda place: SqliteStorage(database(place)), failing=with_failing_statements
)


@pytest.mark.parametrize("check", EXAMPLE, ids=str)
async def test_the_example_keeps_the_contract(check: StorageCheck):
    await check()


def test_the_example_has_sixty_lines_of_code():
    lines = inspect.getsource(SqliteStorage).splitlines()

    assert len([line for line in lines if line.strip()]) <= 60


# The checks themselves ----------------------------------------------------------------------------


class Overwrites(MemoryStorage):
    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        self.stored |= dict(texts)
        return [self.location(key) for key, _ in texts]


class ForgetsOrder(MemoryStorage):
    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        return (await MemoryStorage.write(self, texts))[::-1]


class CountsBytes(MemoryStorage):
    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        content = (await MemoryStorage.read(self, location)).text.encode()
        end = None if limit is None else offset + limit
        return Page(content[offset:end].decode("utf-8", "replace"), offset, len(content))


class GivesNoReason(MemoryStorage):
    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        try:
            return await MemoryStorage.read(self, location, offset, limit)
        except StorageError:
            raise StorageError("no") from None


class AppendsAlways(MemoryStorage):
    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        self._journals.setdefault(session_folder(session_id), []).append(entry)
        return number >= 0


class ForgetsCase(MemoryStorage):
    async def append(self, session_id: str, number: int, entry: str, /) -> bool:
        return await MemoryStorage.append(self, session_id.lower(), number, entry)


class NewestFirst(MemoryStorage):
    async def records(self, session_id: str, /) -> list[str]:
        return (await MemoryStorage.records(self, session_id))[::-1]


class KeepsWhatItDeletes(MemoryStorage):
    async def delete(self, session_id: str, /):
        pass


FAULTS: list[tuple[type[MemoryStorage], str]] = [
    (Overwrites, "another text under the same key gets a name of its own"),
    (ForgetsOrder, "a batch is stored in order"),
    (CountsBytes, "a page is counted in characters"),
    (GivesNoReason, "what is not there is an error that says so"),
    (AppendsAlways, "an entry is written once"),
    (ForgetsCase, "sessions share nothing whatever they are called"),
    (NewestFirst, "records are listed oldest first and by session"),
    (KeepsWhatItDeletes, "deleting a session leaves nothing of it"),
]


@pytest.mark.parametrize(("kind", "sentence"), FAULTS)
async def test_a_storage_with_a_fault_is_found_out(kind: type[MemoryStorage], sentence: str):
    places: dict[str, MemoryStorage] = {}
    checks = storage_conformance(
        lambda place: places.setdefault(place, kind()),
        extras=["add_notes", "delete", "lease", "sessions"],
    )
    [check] = [check for check in checks if str(check) == sentence]

    with pytest.raises(ContractBroken):
        await check()


@pytest.mark.parametrize(
    ("checks", "told"),
    [
        (storage_conformance(memory, extras=["add_notes", "delete"]), "'lease'"),
        (
            storage_conformance(lambda _: object(), protocols=[JournalStorage]),
            "it is a JournalStorage",
        ),
    ],
    ids=["what it has and does not say", "a protocol that it lacks"],
)
async def test_of_a_storage_it_is_found_out(checks, told):
    with pytest.raises(ContractBroken, match=told):
        await checks[0]()


def test_only_what_a_storage_implements_is_checked():
    texts = storage_conformance(memory, protocols=[TextWriter, TextReader])
    records = storage_conformance(memory, protocols=[Archive])

    assert not {str(check) for check in texts[1:]} & {str(check) for check in records[1:]}
    assert len(storage_conformance(memory)) > len(texts) + len(records)


@pytest.mark.parametrize("wrong", [{"protocols": [Path]}, {"extras": ["speed"]}])
def test_an_unknown_part_of_the_contract_is_refused(wrong: dict[str, Any]):
    with pytest.raises(SettingsError, match="give some of"):
        storage_conformance(memory, **wrong)
