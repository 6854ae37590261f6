"""Contract for notes, which all conversations of one name share until they are deleted."""

from __future__ import annotations

from typing import Any

from ..errors import SessionDeleted
from ..storage.generations import Generation
from .storage import Check, StoragePlace, expect, expect_error

NAME = "cust1/job 42"
OWNERS = (NAME, f"{NAME}/0a1b2c3d")
NOTES = ["kTo-_9.d.400-200", "b2.b.n.1200.ffee01.AbC", "third"]


async def notes_of(storage: Any, name: str = NAME) -> list[str]:
    """Return the notes of *name* in *storage*, sorted."""
    _, notes = await storage.load_notes(name, "?")
    return sorted(notes)


async def notes_are_there_for_every_process(storage: Any, other: Any) -> None:
    """Check that notes are read by every storage, each once, with a version that changes.

    Raises ContractBroken.
    """
    expect(await storage.load_notes(NAME, "") is None, "a name without notes has the version ''")
    await storage.add_notes(NAME, OWNERS[0], NOTES[:2])
    await other.add_notes(NAME, OWNERS[1], NOTES[1:])
    for reader in (storage, other):
        expect(await notes_of(reader) == sorted(NOTES), "each note is there once")
        expect(await notes_of(reader, f"{NAME}2") == [], "no other name has them")
        version, _ = await reader.load_notes(NAME, "?")
        expect(await reader.load_notes(NAME, version) is None, "nothing is newer")
    await storage.add_notes(NAME, OWNERS[0], ["fourth"])
    newer_notes = await other.load_notes(NAME, version)
    expect(newer_notes is not None, "a new note makes a new version")


async def notes_are_no_texts_of_the_session(place: StoragePlace) -> None:
    """Check that notes are listed neither as texts nor as a session. Raises ContractBroken."""
    storage = await place.storage()
    await storage.write([("job/t1.md", "a text")])
    await storage.add_notes("job", "job", NOTES)
    if hasattr(storage, "contents"):
        expect(list(await storage.contents("job")) == ["t1.md"], "the search does not see them")
    expect(await storage.sessions() == ["job"], "they are no session of their own")


async def deleting_a_session_deletes_its_notes(storage: Any, other: Any) -> None:
    """Check that a deleted session's notes are deleted, and those of other sessions stay.

    Raises ContractBroken.
    """
    await storage.add_notes(NAME, OWNERS[0], NOTES[:1])
    await storage.add_notes(NAME, OWNERS[1], NOTES[1:])
    await other.delete(OWNERS[1])
    expect(await notes_of(storage) == NOTES[:1], "notes of others stay")
    await other.delete(NAME)
    expect(await notes_of(other) == [], "the notes of the name are deleted with it")


async def a_process_that_held_a_deleted_name_adds_no_notes(storage: Any, other: Any) -> None:
    """Check that notes are refused if the name was deleted in the meantime.

    Raises ContractBroken.
    """
    generation = Generation(NAME)
    with generation.running():
        await storage.add_notes(NAME, NAME, NOTES[:1])
        await other.delete(NAME)
        late = storage.add_notes(NAME, NAME, NOTES[1:])
        await expect_error(late, "its notes are refused", SessionDeleted)
    expect(await notes_of(other) == [], "nothing comes back")


NOTE_CHECKS: tuple[Check, ...] = (
    notes_are_there_for_every_process,
    notes_are_no_texts_of_the_session,
    deleting_a_session_deletes_its_notes,
    a_process_that_held_a_deleted_name_adds_no_notes,
)
