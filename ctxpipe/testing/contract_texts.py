"""What every `TextWriter` and `TextReader` promises."""

from __future__ import annotations

import errno
import os

import anyio

from ..locations import is_url
from ..markers.placeholders import BATCH, placeholder, reference
from .storage import StoragePlace, expect, expect_error

__all__ = ["TEXT_CHECKS"]

ODD_TEXTS = {
    "an empty one": "",
    "line breaks of all kinds": "a\nb\r\nc\rd\u2028e\x0bf",
    "no ASCII": "ä 漢 🔑 " * 50,
    "control characters": "\x00\x01\x7f\x85",
    "a byte order mark": "\ufeffa",
    "half a megabyte": "0123456789漢" * 50_000,
}
ESCAPES = ("", ".", "..", "/", "../x.md", "s/../../x.md", "/etc/x.md", "s/..", "s/a\0.md")


async def a_text_comes_back_as_it_was_written(place: StoragePlace) -> None:
    writer, reader = await place.storages(2)
    for name, text in ODD_TEXTS.items():
        key = f"s/{name.replace(' ', '-')}.md"
        [location] = await writer.write([(key, text)])
        for storage in (writer, reader):
            page = await storage.read(location)
            expect(
                (page.text, page.offset, page.total) == (text, 0, len(text)), f"{name} comes back"
            )
            expect((await storage.read(key)).text == text, f"{name} is read by its key")


async def a_batch_is_stored_in_order(place: StoragePlace) -> None:
    storage = await place.storage()
    texts = [(f"s/{number}.md", f"text {number} " * number) for number in range(40)]
    locations = await storage.write(texts)
    expect(len(set(locations)) == 40, "each text of a batch has a place of its own")
    for location, (_, text) in zip(locations, texts, strict=True):
        expect((await storage.read(location)).text == text, "places are returned in order")
    expect(list(await storage.write([])) == [], "a batch may be empty")


async def a_free_key_leads_where_it_was_said_to(place: StoragePlace) -> None:
    storage = await place.storage()
    said = storage.location("s/a.md")
    [location] = await storage.write([("s/a.md", "text")])
    expect(location == said, "a free key leads to its location")
    expect(os.path.isabs(said) or is_url(said), "a place is an absolute path, or a URL of ctxpipe")
    expect(reference(placeholder(BATCH, said)) == said, "a placeholder can point to it")


async def the_same_text_again_stays_where_it_is(place: StoragePlace) -> None:
    for storage in await place.storages(2):
        locations = await storage.write([("s/a.md", "text"), ("s/a.md", "text")])
        expect(set(locations) == {storage.location("s/a.md")}, "the same text is left as it is")


async def another_text_under_the_same_key_gets_a_name_of_its_own(place: StoragePlace) -> None:
    first, second = await place.storages(2)
    texts = ["one", "two", "three", "one", "two"]
    locations: list[str] = []
    for storage, text in zip([first, second, first, second, first], texts, strict=True):
        locations += await storage.write([("s/a.md", text)])
    for location, text in zip(locations, texts, strict=True):
        expect((await second.read(location)).text == text, "a stored text never changes")
    expect(locations[3:] == locations[:2], "a text that is there already is found again")


async def equal_texts_under_two_keys_are_both_there(place: StoragePlace) -> None:
    storage = await place.storage()
    keys = ["s/a.md", "s/b.md", "t/a.md"]
    for location in await storage.write([(key, "the same") for key in keys]):
        expect((await storage.read(location)).text == "the same", "equal texts are all there")


async def of_eight_writers_each_finds_its_own_text(place: StoragePlace) -> None:
    storages = await place.storages(8)
    found: dict[int, str] = {}

    async def write(number: int) -> None:
        [found[number]] = await storages[number].write([("s/a.md", f"of writer {number}")])

    async with anyio.create_task_group() as writers:
        for number in range(8):
            writers.start_soon(write, number)
    for number, location in found.items():
        text = (await storages[0].read(location)).text
        expect(text == f"of writer {number}", "each of eight writers finds its own text")
    plain = storages[0].location("s/a.md")
    expect(list(found.values()).count(plain) == 1, "one of eight writers gets the key")


async def a_page_is_counted_in_characters(place: StoragePlace) -> None:
    storage = await place.storage()
    text = "".join(f"{number}:漢🙂é\n" for number in range(30_000))
    [location] = await storage.write([("s/a.md", text)])
    for offset, limit in [(0, 10), (7, 1), (65_535, 3), (65_536, 70_000), (len(text) - 5, 100)]:
        page = await storage.read(location, offset, limit)
        expect(page.text == text[offset : offset + limit], "a page has the characters asked for")
        expect((page.offset, page.total) == (offset, len(text)), "a page says where it is")
    offset, parts = 0, []
    while True:
        page = await storage.read(location, offset, 50_001)
        parts.append(page.text)
        if page.next_offset is None:
            break
        offset = page.next_offset
    expect("".join(parts) == text, "the pages make up the text")
    for offset in (len(text), len(text) + 9):
        page = await storage.read(location, offset, 5)
        expect(page.text == "" and page.next_offset is None, "there is nothing after the end")
    expect((await storage.read(location, 3, 0)).text == "", "a page may be empty")


async def a_lone_surrogate_is_kept_readable(place: StoragePlace) -> None:
    storage = await place.storage()
    [location] = await storage.write([("s/a.md", "half \ud83d of a pair")])
    text = (await storage.read(location)).text
    expect(text.startswith("half ") and text.endswith(" of a pair"), "a surrogate loses no text")


async def no_name_leads_out(place: StoragePlace) -> None:
    storage = await place.storage()
    await storage.write([("s/a.md", "text")])
    for key in ESCAPES:
        await expect_error(storage.write([(key, "x")]), f"{key!r} is not written")
        await expect_error(storage.read(key), f"{key!r} is not read")
    for url in ("ctxpipe://s/../../../etc/passwd", "ctxpipe:///etc/passwd", "ctxpipe://"):
        await expect_error(storage.read(url), "a URL does not lead out")


async def what_is_not_there_is_an_error_that_says_so(place: StoragePlace) -> None:
    storage = await place.storage()
    await storage.write([("s/a.md", "text")])
    for location in (
        "s/b.md",
        "t/a.md",
        "ctxpipe://t/a.md",
        storage.location("s/b.md"),
        "x" * 5000,
    ):
        error = await expect_error(storage.read(location), "what is not there cannot be read")
        expect(error.errno in (errno.ENOENT, errno.ENAMETOOLONG), "its errno is ENOENT")


async def sessions_whose_names_differ_in_case_share_nothing(place: StoragePlace) -> None:
    storage = await place.storage()
    [upper] = await storage.write([("S/a.md", "of S")])
    [lower] = await storage.write([("s/a.md", "of s")])
    expect((await storage.read(upper)).text == "of S", "S has its own text")
    expect((await storage.read(lower)).text == "of s", "s has its own text")


async def places_share_nothing(place: StoragePlace) -> None:
    storage, other = await place.storage(), await place.storage(f"{place.name}b")
    await storage.write([("s/a.md", "text")])
    await expect_error(other.read("s/a.md"), "another place has not got the text")


async def a_cancelled_write_leaves_whole_texts(place: StoragePlace) -> None:
    writer, reader = await place.storages(2)
    text = "0123456789" * 20_000
    for number in range(8):
        keys = [f"s/{number}-{index}.md" for index in range(5)]
        with anyio.move_on_after(number * 0.002):
            await writer.write([(key, text) for key in keys])
        for key in keys:
            try:
                page = await reader.read(key)
            except OSError:
                continue
            expect(page.text == text, "after a cancelled write a text is whole or absent")


TEXT_CHECKS = (
    a_text_comes_back_as_it_was_written,
    a_batch_is_stored_in_order,
    a_free_key_leads_where_it_was_said_to,
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
