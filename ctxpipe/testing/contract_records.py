"""What every `Archive` promises."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

import anyio

from ..stages.archive import archive_digest, archive_record, verified_archive
from ..storage import TextReader
from .storage import StoragePlace, expect

__all__ = ["RECORD_CHECKS"]

NAME = re.compile(r"compact-\d{8}T\d{6}Z-\d+\.json")
TALK: list[Any] = [
    {"role": "user", "content": 'go "now"\n漢🙂'},
    {"role": "assistant", "content": [{"type": "text", "text": "done \ud83d"}]},
]


def is_reader(storage: object) -> bool:
    """Whether records can be read back."""
    return isinstance(storage, TextReader)


async def a_record_is_json_under_a_name_with_stem_time_and_number(place: StoragePlace) -> None:
    storage = await place.storage()
    for record in (TALK, {"form": 1, "messages": TALK}):
        location = await storage.save("s", "compact", record)
        expect(NAME.fullmatch(PurePosixPath(location).name), "a record has stem, time and number")
        if is_reader(storage):
            text = (await storage.read(location)).text
            expect(json.loads(text) == record, "a record comes back equal")


async def records_are_listed_oldest_first_and_by_session(place: StoragePlace) -> None:
    storage, other = await place.storages(2)
    expect(list(await storage.records("s")) == [], "a new session has no records")
    saved = [await storage.save("s", "compact", TALK[:1]) for _ in range(12)]
    saved += [await other.save("s", "truncate", TALK) for _ in range(2)]
    await storage.save("t", "compact", TALK)
    expect(len(set(saved)) == 14, "no record replaces another")
    for reader in (storage, other):
        expect(list(await reader.records("s")) == saved, "records are listed oldest first")


async def eight_records_at_once_are_eight(place: StoragePlace) -> None:
    storages = await place.storages(8)
    saved: list[str] = []

    async def save(number: int) -> None:
        saved.append(await storages[number].save("s", "compact", [number]))

    async with anyio.create_task_group() as savers:
        for number in range(8):
            savers.start_soon(save, number)
    expect(len(set(saved)) == 8, "of records saved at once none is lost")
    expect(set(await storages[0].records("s")) == set(saved), "all eight are listed")


async def an_archive_is_verified_as_the_sessions_own(place: StoragePlace) -> None:
    storage: Any = await place.storage()
    if not is_reader(storage):
        return  # nobody can read it back
    talk: list[Any] = [{"role": "user", "content": "go"}]
    for session in ("s", "Of a / tenant"):
        location = await storage.save(session, "compact", archive_record(talk))
        digest = await archive_digest(storage, location)
        own = await verified_archive(storage, session, location, digest)
        expect(own is not None and own.messages == talk, "a session's archive is verified")
        others = await verified_archive(storage, "another", location, digest)
        expect(others is None, "it is not another session's")


RECORD_CHECKS = (
    a_record_is_json_under_a_name_with_stem_time_and_number,
    records_are_listed_oldest_first_and_by_session,
    eight_records_at_once_are_eight,
    an_archive_is_verified_as_the_sessions_own,
)
