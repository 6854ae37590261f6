"""Contract of a `TextWriter`, a `TextReader` and an `Archive`."""

from __future__ import annotations

import errno
import json
import os
import re
from itertools import cycle
from pathlib import PurePosixPath
from typing import Any

import anyio

from ..placeholders.locations import is_url
from ..placeholders.placeholders import BATCH, placeholder, reference
from ..storage import TextReader
from .storage import (
    StoragePlace,
    eight_at_once,
    expect,
    expect_error,
    expect_texts,
    text_at,
    text_or_none,
    write_one,
)

ODD_TEXTS = {
    "an empty one": "",
    "line breaks of all kinds": "a\nb\r\nc\rd\u2028e\x0bf",
    "no ASCII": "ä 漢 🔑 " * 50,
    "control characters": "\x00\x01\x7f\x85",
    "a byte order mark": "\ufeffa",
    "half a megabyte": "0123456789漢" * 50_000,
}
ESCAPES = ("", ".", "..", "/", "../x.md", "s/../../x.md", "/etc/x.md", "s/..", "s/a\0.md")
URLS_OUT = ("ctxpipe://s/../../../etc/passwd", "ctxpipe:///etc/passwd", "ctxpipe://")
PAGES = ((0, 10), (7, 1), (65_535, 3), (65_536, 70_000))


async def a_text_comes_back_as_it_was_written(writer: Any, reader: Any) -> None:
    """Check that any text is read unchanged, by its location and by its key.

    Raises ContractBroken.
    """
    for name, text in ODD_TEXTS.items():
        key = f"s/{name.replace(' ', '-')}.md"
        location = await write_one(writer, key, text)
        for storage in (writer, reader):
            page = await storage.read(location)
            expect(page.text == text, f"{name} comes back")
            expect((page.offset, page.total) == (0, len(text)), f"{name} comes back as one page")
            expect(await text_at(storage, key) == text, f"{name} is read by its key")


async def a_batch_is_stored_in_order(storage: Any) -> None:
    """Check that the locations of a batch are distinct and in its order. Raises ContractBroken."""
    texts = {f"s/{number}.md": f"text {number} " * number for number in range(40)}
    locations = await storage.write(list(texts.items()))
    expect(len(set(locations)) == 40, "each text of a batch has its own location")
    await expect_texts(storage, locations, texts.values(), "locations are returned in order")
    expect(list(await storage.write([])) == [], "a batch may be empty")


async def a_free_key_leads_to_the_announced_location(storage: Any) -> None:
    """Check that a text with a free key gets the location that `location` returns for it.

    Check also that this location is an absolute path or a URL of ctxpipe, and that it can be read
    from a placeholder that names it. Raises ContractBroken.
    """
    location = storage.location("s/a.md")
    expect(
        await write_one(storage, "s/a.md", "text") == location, "a free key leads to its location"
    )
    expect(
        os.path.isabs(location) or is_url(location),
        "a location is an absolute path, or a URL of ctxpipe",
    )
    expect(reference(placeholder(BATCH, location)) == location, "a placeholder can point to it")


async def the_same_text_again_stays_where_it_is(place: StoragePlace) -> None:
    """Check that a text that is written again keeps its location. Raises ContractBroken."""
    for storage in await place.storages(2):
        locations = await storage.write([("s/a.md", "text")] * 2)
        expect(set(locations) == {storage.location("s/a.md")}, "the same text is left as it is")


async def another_text_under_the_same_key_gets_a_name_of_its_own(first: Any, second: Any) -> None:
    """Check that a second text with a key gets another location, and an equal text the same.

    Raises ContractBroken.
    """
    texts = ["one", "two", "three", "one", "two"]
    pairs = zip(cycle([first, second]), texts)
    locations = [await write_one(writer, "s/a.md", text) for writer, text in pairs]
    await expect_texts(second, locations, texts, "a stored text never changes")
    expect(locations[3:] == locations[:2], "an existing text keeps its location")


async def equal_texts_under_two_keys_are_both_there(storage: Any) -> None:
    """Check that equal texts with different keys can all be read. Raises ContractBroken."""
    texts = [("s/a.md", "the same"), ("s/b.md", "the same"), ("t/a.md", "the same")]
    for location in await storage.write(texts):
        expect(await text_at(storage, location) == "the same", "equal texts are all there")


async def of_eight_writers_each_finds_its_own_text(place: StoragePlace) -> None:
    """Check that eight concurrent texts with one key are all stored, one of them under the key.

    Raises ContractBroken.
    """
    storages = await place.storages(8)
    locations: dict[int, str] = {}  # by the number of the writer

    async def write(number: int) -> None:
        locations[number] = await write_one(storages[number], "s/a.md", f"of writer {number}")

    await eight_at_once(write)
    texts = [f"of writer {number}" for number in locations]
    promise = "each of eight writers finds its own text"
    await expect_texts(storages[0], locations.values(), texts, promise)
    plain = storages[0].location("s/a.md")
    expect(list(locations.values()).count(plain) == 1, "one of eight writers gets the key")


async def a_page_is_counted_in_characters(storage: Any) -> None:
    """Check that offset, limit and total of a page are characters, not bytes.

    A page after the end is empty. Raises ContractBroken.
    """
    text = "".join(f"{number}:漢🙂é\n" for number in range(30_000))
    location = await write_one(storage, "s/a.md", text)
    for offset, limit in (*PAGES, (len(text) - 5, 100)):
        page = await storage.read(location, offset, limit)
        expect(page.text == text[offset : offset + limit], "a page has the characters asked for")
        expect(
            (page.offset, page.total) == (offset, len(text)), "a page has its offset and the total"
        )
    parts = ""
    following: int | None = 0
    while following is not None:
        page = await storage.read(location, following, 50_001)
        parts += page.text
        following = page.next_offset
    expect(parts == text, "the pages make up the text")
    for offset in (len(text), len(text) + 9):
        page = await storage.read(location, offset, 5)
        expect((page.text, page.next_offset) == ("", None), "there is nothing after the end")
    expect((await storage.read(location, 3, 0)).text == "", "a page may be empty")


async def a_lone_surrogate_is_kept_readable(storage: Any) -> None:
    """Check that a lone surrogate harms no other character of a text. Raises ContractBroken."""
    text = await text_at(storage, await write_one(storage, "s/a.md", "half \ud83d of a pair"))
    is_whole = text.startswith("half ") and text.endswith(" of a pair")
    expect(is_whole, "a surrogate loses no text")


async def no_name_leads_out(storage: Any) -> None:
    """Check that keys and URLs that lead out of the storage are refused. Raises ContractBroken."""
    await write_one(storage, "s/a.md", "text")
    for key in ESCAPES:
        await expect_error(storage.write([(key, "x")]), f"{key!r} is not written")
        await expect_error(storage.read(key), f"{key!r} is not read")
    for url in URLS_OUT:
        await expect_error(storage.read(url), "a URL does not lead out")


async def what_is_not_there_is_an_error_that_says_so(storage: Any) -> None:
    """Check that reading a missing text raises StorageError with errno ENOENT or ENAMETOOLONG.

    Raises ContractBroken.
    """
    await write_one(storage, "s/a.md", "text")
    locations = ("s/b.md", "t/a.md", "ctxpipe://t/a.md", storage.location("s/b.md"), "x" * 5000)
    for location in locations:
        error = await expect_error(storage.read(location), "what is not there cannot be read")
        expect(error.errno in (errno.ENOENT, errno.ENAMETOOLONG), "its errno is ENOENT")


async def sessions_whose_names_differ_in_case_share_nothing(storage: Any) -> None:
    """Check that sessions "S" and "s" have separate texts. Raises ContractBroken."""
    texts = ["of S", "of s"]
    locations = [await write_one(storage, f"{text[-1]}/a.md", text) for text in texts]
    await expect_texts(storage, locations, texts, "each has its own text")


async def places_share_nothing(place: StoragePlace) -> None:
    """Check that a storage at another place cannot read a text. Raises ContractBroken."""
    await write_one(await place.storage(), "s/a.md", "text")
    other = await place.other()
    await expect_error(other.read("s/a.md"), "another place does not have the text")


async def a_cancelled_write_leaves_whole_texts(writer: Any, reader: Any) -> None:
    """Check that a cancelled write leaves each text whole or absent. Raises ContractBroken."""
    text = "0123456789" * 20_000
    for number in range(8):
        keys = [f"s/{number}-{index}.md" for index in range(5)]
        with anyio.move_on_after(number * 0.002):
            await writer.write([(key, text) for key in keys])
        for key in keys:
            stored_text = await text_or_none(reader, key)
            expect(stored_text in (None, text), "after a cancelled write a text is whole or absent")


TEXT_CHECKS = (
    a_text_comes_back_as_it_was_written,
    a_batch_is_stored_in_order,
    a_free_key_leads_to_the_announced_location,
    the_same_text_again_stays_where_it_is,
    another_text_under_the_same_key_gets_a_name_of_its_own,
    equal_texts_under_two_keys_are_both_there,
    of_eight_writers_each_finds_its_own_text,
    a_page_is_counted_in_characters,
    a_lone_surrogate_is_kept_readable,
    no_name_leads_out,
    what_is_not_there_is_an_error_that_says_so,
    sessions_whose_names_differ_in_case_share_nothing,
    places_share_nothing,
    a_cancelled_write_leaves_whole_texts,
)


# Records ------------------------------------------------------------------------------------------


NAME = re.compile(r"compact-\d{8}T\d{6}Z-\d+\.json")
TALK: list[Any] = [
    {"role": "user", "content": 'go "now"\n漢🙂'},
    {"role": "assistant", "content": [{"type": "text", "text": "done \ud83d"}]},
]


async def a_record_is_json_under_a_name_with_stem_time_and_number(storage: Any) -> None:
    """Check the name of a record, and that it is stored as JSON. Raises ContractBroken."""
    for record in (TALK, {"form": 1, "messages": TALK}):
        location = await storage.save("s", "compact", record)
        expect(NAME.fullmatch(PurePosixPath(location).name), "a record has stem, time and number")
        if isinstance(storage, TextReader):
            text = await text_at(storage, location)
            expect(json.loads(text) == record, "a record comes back equal")


async def records_are_listed_oldest_first_and_by_session(storage: Any, other: Any) -> None:
    """Check that the records of a session are listed oldest first, and only those.

    Raises ContractBroken.
    """
    expect(list(await storage.records("s")) == [], "a new session has no records")
    record_locations = [await storage.save("s", "compact", TALK[:1]) for _ in range(12)]
    record_locations += [await other.save("s", "truncate", TALK) for _ in range(2)]
    of_another = await storage.save("Of a / tenant", "compact", TALK)
    expect(len(set(record_locations)) == 14, "no record replaces another")
    for reader in (storage, other):
        expect(
            list(await reader.records("s")) == record_locations, "records are listed oldest first"
        )
        expect(list(await reader.records("Of a / tenant")) == [of_another], "each has its own")


async def eight_records_at_once_are_eight(place: StoragePlace) -> None:
    """Check that eight concurrent records are all stored and listed. Raises ContractBroken."""
    storages = await place.storages(8)
    record_locations: list[str] = []

    async def save(number: int) -> None:
        record_locations.append(await storages[number].save("s", "compact", [number]))

    await eight_at_once(save)
    expect(len(set(record_locations)) == 8, "of records saved at once none is lost")
    expect(set(await storages[0].records("s")) == set(record_locations), "all eight are listed")


RECORD_CHECKS = (
    a_record_is_json_under_a_name_with_stem_time_and_number,
    records_are_listed_oldest_first_and_by_session,
    eight_records_at_once_are_eight,
)
