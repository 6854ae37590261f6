"""Old images and documents go to files, before the request has too many bytes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from api_rules import faults
from histories import assistant, conversation, text, user
from hypothesis import given
from hypothesis import strategies as st
from pictures import look, pdf, picture
from recorded import NIGHTLY

from ctxpipe import ContextPipeline, LocalStorage, MemoryStorage, SettingsError, offload_tools
from ctxpipe.messages import MEDIA, Message, as_blocks, check, field, kind
from ctxpipe.placeholders.placeholders import media_reference
from ctxpipe.session import Session
from ctxpipe.stages.media.stage import MediaOffload
from ctxpipe.stages.reports import Outcome

SMALL = {"max_bytes": 10_000, "keep_bytes": 3_000}
KB = 1_000


def parts(messages: list[Message]) -> list[Any]:
    """The blocks of *messages*, those in results included."""
    found: list[Any] = []
    for message in messages:
        for block in as_blocks(message):
            held = field(block, "content")
            found += held if kind(block) == "tool_result" and isinstance(held, list) else [block]
    return found


def media(messages: list[Message]) -> list[Any]:
    return [part for part in parts(messages) if kind(part) in MEDIA]


def paths(messages: list[Message]) -> list[str]:
    found = [media_reference(field(part, "text")) for part in parts(messages)]
    return [path for path in found if path is not None]


def screens(count: int, size: int = KB, start: int = 0) -> list[Message]:
    numbers = range(start, start + count)
    seen = [look(number, picture(number, size)) for number in numbers]
    return conversation(user("Go."), *seen)


async def shape(folder: Path, history: list[Message], **settings: Any):
    stage = MediaOffload(LocalStorage(folder), **{**SMALL, **settings})
    return await ContextPipeline([stage]).run(history, session_id="s")


async def read_back(folder: Path, path: str) -> Any:
    read, *_ = offload_tools(LocalStorage(folder), session_id="s")
    result: Any = await read.result({"type": "tool_use", "id": "r", "input": {"path": path}})
    return result["content"]


# The loop -----------------------------------------------------------------------------------------


async def test_many_screenshots_never_make_a_body_of_20_mb_and_rewrite_it_five_times_at_most(
    tmp_path,
):
    session = ContextPipeline([MediaOffload(LocalStorage(tmp_path))]).session("s")
    history = conversation(user("Go."))
    sent: list[Message] = []
    rewrites = largest = 0
    count = 60 if NIGHTLY else 40
    for number in range(count):
        history += look(number)
        context = (await session.run(history)).messages
        rewrites += context[: len(sent)] != sent
        largest = max(largest, len(json.dumps(context)))
        sent = context

    assert largest < 20_000_000
    assert 1 <= rewrites <= 5
    left = paths(sent)
    assert len(left) + len(media(sent)) == count
    for number, path in enumerate(left):
        assert await read_back(tmp_path, path) == [picture(number)]


# What leaves --------------------------------------------------------------------------------------


async def test_below_the_limits_the_very_same_list_comes_back(tmp_path):
    history = screens(7)

    result = await shape(tmp_path, history)

    assert result.messages is history
    assert not list(tmp_path.glob("*/media-*"))


async def test_the_newest_stay_and_the_older_ones_are_in_files(tmp_path):
    history = screens(9)

    result = await shape(tmp_path, history)

    assert media(result.messages) == [picture(7, KB), picture(8, KB)]
    contents = [await read_back(tmp_path, path) for path in paths(result.messages)]
    assert contents == [[picture(number, KB)] for number in range(7)]
    assert not faults(result.messages)
    assert not check(result.messages)


async def test_what_the_model_has_not_answered_stays_however_much_it_is(tmp_path):
    shown = [picture(number, 20 * KB) for number in range(3)]
    history = conversation(*screens(2), assistant("Yes?"), user("Compare these.", *shown))

    result = await shape(tmp_path, history)

    assert media(result.messages) == shown
    assert len(paths(result.messages)) == 2


async def test_a_picture_of_the_users_leaves_and_his_words_stay(tmp_path):
    asked = user("What is this?", picture(1, 9 * KB))
    history = conversation(asked, assistant("A cat."), user("And this?", picture(2, KB)))

    result = await shape(tmp_path, history)

    words, note = as_blocks(result.messages[0])
    assert words == text("What is this?")
    assert media_reference(field(note, "text")) is not None


async def test_a_placeholder_says_kind_type_size_and_place(tmp_path):
    history = conversation(
        user("Go."),
        look(1, picture(1, 9_000)),
        look(2, pdf(2, pages=12)),
        assistant("Seen."),
        user("Go on."),
    )

    result = await shape(tmp_path, history, keep_bytes=0)

    first, second = (field(part, "text") for part in parts(result.messages)[2::2][:2])
    where = f"{tmp_path}/s/media-"
    assert first.startswith(
        f"[Image (image/png, 1280 x 800 pixels, 9,000 bytes) offloaded to file: {where}"
    )
    assert second.startswith(
        f"[Document (application/pdf, 12 pages, 2,225 bytes) offloaded to file: {where}"
    )
    assert await read_back(tmp_path, paths(result.messages)[1]) == [pdf(2, pages=12)]


@pytest.mark.parametrize(
    ("limit", "content"),
    [
        ("max_images", lambda number: picture(number, 100)),
        ("max_pages", lambda number: pdf(number, 1, 9)),
    ],
)
async def test_too_many_images_or_pages_leave_however_small_they_are(limit, content, tmp_path):
    history = conversation(user("Go."), *(look(number, content(number)) for number in range(11)))

    result = await shape(tmp_path, history, **{limit: 10})

    assert len(media(result.messages)) == 3
    assert len(paths(result.messages)) == 8


async def test_the_same_picture_twice_is_one_file(tmp_path):
    history = conversation(screens(1, 9 * KB), *(look(n, picture(0, 9 * KB)) for n in (1, 2)))

    result = await shape(tmp_path, history)

    assert len(set(paths(result.messages))) == 1
    assert len(list(tmp_path.glob("s/media-*"))) == 1


async def test_documents_with_citations_and_pictures_at_an_address_stay(tmp_path):
    cited = {**pdf(1, size=9 * KB), "citations": {"enabled": True}}
    far = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    history = conversation(user("Go."), look(1, cited), look(2, far), *screens(9)[1:])

    result = await shape(tmp_path, history)

    assert media(result.messages)[:2] == [cited, far]


async def test_a_cache_mark_moves_to_the_placeholder(tmp_path):
    mark = {"cache_control": {"type": "ephemeral"}}
    history = conversation(
        user("See.", {**picture(1, 9 * KB), **mark}), assistant("Yes."), user("?")
    )

    result = await shape(tmp_path, history)

    assert field(as_blocks(result.messages[0])[1], "cache_control") == mark["cache_control"]
    assert await read_back(tmp_path, paths(result.messages)[0]) == [picture(1, 9 * KB)]


async def test_what_hiding_secrets_would_change_stays(tmp_path):
    storage = LocalStorage(tmp_path, redact=lambda text: text.replace("A", "?"))
    history = screens(9)

    result = await ContextPipeline([MediaOffload(storage, **SMALL)]).run(history, session_id="s")

    assert result.messages is history


async def test_with_force_all_that_was_answered_leaves(tmp_path):
    history = screens(4)
    stage = MediaOffload(MemoryStorage())

    result = await ContextPipeline([stage]).run(history, session_id="s", force=True)

    assert media(result.messages) == [picture(3, KB)]


async def test_a_plan_names_what_a_run_does_and_writes_nothing(tmp_path):
    pipeline = ContextPipeline([MediaOffload(LocalStorage(tmp_path), **SMALL)])
    history = screens(9)

    planned = await pipeline.plan(history, session_id="s")

    assert planned.reports[0].outcome is Outcome.PLANNED
    assert not list(tmp_path.glob("*/media-*"))
    assert planned.messages == (await pipeline.run(history, session_id="s")).messages


@pytest.mark.parametrize(
    "wrong", [{"max_bytes": 0}, {"keep_bytes": -1}, {"max_images": 0}, {"keep_bytes": 10_000}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError):
        MediaOffload(MemoryStorage(), **{**SMALL, **wrong})


# Other processes ----------------------------------------------------------------------------------


async def test_another_process_has_the_same_context(tmp_path):
    history = screens(9)
    storage = LocalStorage(tmp_path)

    def session() -> Session:
        return ContextPipeline([MediaOffload(storage, **SMALL)]).session("s", journal=storage)

    async with session() as one:
        first = (await one.run(history)).messages
    longer = conversation(copy.deepcopy(history), *screens(1, start=9)[1:])
    async with session() as other:
        second = (await other.run(longer)).messages

    assert second[: len(first)] == first
    assert paths(second) == paths(first)


async def test_a_file_that_is_gone_is_written_again_when_the_session_comes_back(tmp_path):
    history = screens(9)
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline([MediaOffload(storage, **SMALL)])
    async with pipeline.session("s", journal=storage) as session:
        await session.run(history)
    [gone, *_] = sorted(tmp_path.glob("s/media-*"))
    gone.unlink()

    other = ContextPipeline([MediaOffload(storage, **SMALL)])
    async with other.session("s", journal=storage) as session:
        await session.run(history)

    assert gone.exists()


# What holds of every history ----------------------------------------------------------------------

shown = st.one_of(
    st.builds(picture, st.integers(0, 5), st.integers(100, 4_000)),
    st.builds(pdf, st.integers(0, 5), st.integers(1, 9)),
    st.builds(text, st.sampled_from(["words", "more words"])),
)


@given(
    looks=st.lists(st.lists(shown, min_size=1, max_size=4), max_size=12),
    asked=st.lists(shown, max_size=3),
    force=st.booleans(),
)
async def test_nothing_is_lost_no_rule_broken_and_a_second_run_changes_nothing(looks, asked, force):
    storage = MemoryStorage()
    seen = [look(number, *content) for number, content in enumerate(looks)]
    history = conversation(user("Go.", *asked), *seen)
    before = json.dumps(history)
    pipeline = ContextPipeline([MediaOffload(storage, **SMALL, max_images=9, max_pages=30)])

    result = await pipeline.run(history, session_id="s", force=force)
    again = await pipeline.run(result.messages, session_id="s", force=force)

    assert json.dumps(history) == before
    assert not check(result.messages)
    assert again.messages is result.messages
    read, *_ = offload_tools(storage, session_id="s")
    for old, new in zip(parts(history), parts(result.messages), strict=True):
        path = media_reference(field(new, "text"))
        assert new == old if path is None else await read({"path": path}) == [old]
