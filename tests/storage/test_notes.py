"""Notes of names: how many are kept, for how long, and what is on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ctxpipe import LocalStorage, MemoryStorage
from ctxpipe.storage import notes as note_files
from ctxpipe.storage.notes import StoredNote, newest_notes
from ctxpipe.storage.ownership import NOTES

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000 * DAY

    def __call__(self) -> float:
        return self.now


def file_of(root: Path, name: str = "job") -> Path:
    return root / name / NOTES


async def texts_in(storage: LocalStorage | MemoryStorage, name: str = "job") -> list[str]:
    loaded = await storage.load_notes(name, "?")
    assert loaded is not None
    return list(loaded[1])


def test_of_too_many_notes_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr(note_files, "MAX_NOTES", 3)
    notes = [StoredNote(f"n{number}", "0" * 16, number) for number in range(6)]
    used_again = StoredNote("n0", "1" * 16, 9)

    retained = newest_notes([*notes, used_again])

    assert [note.text for note in retained] == ["n0", "n4", "n5"]
    assert retained[0].owner == "0" * 16


async def test_a_file_of_notes_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(note_files, "MAX_NOTES", 10)
    monkeypatch.setattr(note_files, "_MAX_BYTES", 1_000)
    storage = LocalStorage(tmp_path)

    for number in range(200):
        await storage.add_notes("job", "job", [f"note-{number:03}"])

    assert file_of(tmp_path).stat().st_size <= 1_100
    assert await texts_in(storage) == [f"note-{number:03}" for number in range(190, 200)]


async def test_a_cleanup_by_age_drops_the_notes_that_nobody_has_used_since(tmp_path):
    clock = Clock()
    storage = LocalStorage(tmp_path, clock=clock)
    await storage.add_notes("job", "job", ["old", "used"])
    clock.now += 20 * DAY
    await storage.add_notes("job", "job/0a1b2c3d", ["used", "new"])

    clock.now += 15 * DAY
    await storage.cleanup(max_age=30 * DAY)
    assert await texts_in(storage) == ["used", "new"]

    clock.now += 30 * DAY
    await storage.cleanup(max_age=30 * DAY)
    assert await texts_in(storage) == []
    assert not file_of(tmp_path).exists()


async def test_a_cleanup_without_an_age_leaves_the_notes(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.add_notes("job", "job", ["note"])

    await storage.cleanup(max_bytes=0)

    assert await texts_in(storage) == ["note"]


async def test_a_torn_line_costs_one_note(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.add_notes("job", "job", ["first", "second"])
    file = file_of(tmp_path)
    file.write_bytes(file.read_bytes()[:-3])

    await storage.add_notes("job", "job", ["third"])

    assert await texts_in(storage) == ["first", "sec", "third"]


async def test_what_is_no_note_is_not_read(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.add_notes("job", "job", ["note"])
    with file_of(tmp_path).open("ab") as file:
        file.write(b"\n12 zz note2\n\xff\xfe\n" + b"9" * 5000)

    assert await texts_in(storage) == ["note"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no file modes")
async def test_the_file_is_private_and_a_hard_link_to_it_keeps_what_it_has(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.add_notes("job", "job", ["note"])
    file = file_of(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    elsewhere = tmp_path / "elsewhere"
    os.link(file, elsewhere)
    before = elsewhere.read_bytes()
    await storage.add_notes("job", "job", ["more"])
    assert await texts_in(storage) == ["note", "more"]
    assert elsewhere.read_bytes() == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_the_notes_of_conversations_without_a_name_go_with_each_of_them(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.add_notes("unnamed-shared", "unnamed-0123456789ab", ["one"])
    await storage.add_notes("unnamed-shared", "unnamed-0123456789ab/0a1b2c3d", ["two"])

    await storage.delete("unnamed-0123456789ab")

    assert await texts_in(storage, "unnamed-shared") == ["two"]
