"""The model searches by words all that has left its conversation, and nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from histories import conversation, step, user
from hypothesis import given
from hypothesis import strategies as st
from pictures import look
from processes import prepared_python, python

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    Tool,
    offload_tools,
)
from ctxpipe.placeholders.placeholders import reference
from ctxpipe.stages.media.stage import MediaOffload
from ctxpipe.storage.objects import ObjectStorage
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tools import ToolInputError
from ctxpipe.tools import index as index_module

NOTHING = "[Nothing else that has left the context matches.]"
LOGS = {f"pod-{number}": f"pod-{number} started\n" + "INFO tick\n" * 100 for number in range(200)}
LOGS["pod-77"] += "ERROR the certificate of vault has expired\n"
TEXTS = {
    **LOGS,
    "de": "Der Bericht nennt Öl auf der Fahrbahn als Ursache des Unfalls.",
    "zh": "服务器的证书已经过期了，请尽快更新。",
    "th": "เซิร์ฟเวอร์ปฏิเสธใบรับรองที่หมดอายุ",
    "port": "proxy: listen on 7443 for the canary",
}
SOUND = "the sound of one hand"


async def write(storage: Any, session_id: str = "s", **texts: str) -> None:
    await storage.write([(f"{session_id}/{name}.md", text) for name, text in texts.items()])


def search_tool(storage: Any, session_id: str | None = "s", **options: Any) -> Tool:
    tools = offload_tools(storage, session_id=session_id, **options)
    return next(tool for tool in tools if tool.name == "search_history")


async def find(storage: Any, query: str, session_id: str = "s") -> str:
    return str(await search_tool(storage, session_id)({"query": query}))


@pytest.fixture(params=["local", "memory", "objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    if request.param == "memory":
        return MemoryStorage()
    stores = pytest.importorskip("obstore.store", reason="there is no obstore")
    return ObjectStorage(stores.MemoryStore())


# What is found ------------------------------------------------------------------------------------


QUESTIONS = {
    "which certificate expired?": "pod-77",
    "Was war die Ursache des Unfalls?": "de",
    "Öl": "de",
    "öl": "de",
    "bahn": "de",
    "服务器的证书什么时候过期": "zh",
    "证书": "zh",
    "ใบรับรองไหน": "th",
    "7443": "port",
    "canary PORT": "port",
}


async def test_the_passage_with_the_words_of_the_query_comes_first(storage):
    await write(storage, **TEXTS)

    tool = search_tool(storage)
    found = {query: str(await tool({"query": query})) for query in QUESTIONS}

    first = {query: Path(text.split(", offset ")[0]).stem for query, text in found.items()}
    assert first == QUESTIONS


async def test_a_word_ranks_before_its_prefix_and_substring_matches():
    storage = MemoryStorage()
    await write(storage, a="to rewind", b="a winding road", c="the wind", d="__")

    found = await find(storage, "wind __")

    assert re.findall("[abcd](?=.md)", found) == ["c", "b", "a", "d"]


async def test_the_offset_of_a_passage_is_where_to_continue_reading(storage):
    await write(storage, **TEXTS)
    reading, *_ = offload_tools(storage, session_id="s")

    place, passage = (await find(storage, "certificate expired")).split("\n", 1)
    path, offset = place.removesuffix(":").split(", offset ")
    page = str(await reading({"path": path, "offset": int(offset)}))

    assert page.startswith(passage.split("\n")[0])
    assert "certificate" in page


async def test_an_archived_message_is_found_by_its_words(storage):
    said = 'Deploy it.\nThe canary port\nis "7443"; \ud800 C:\\new'
    await storage.save("s", "compact", {"form": 1, "messages": [user(said)]})
    reading, *_ = offload_tools(storage, session_id="s")

    found = await find(storage, "canary")

    place, passage = found.split("\n", 1)
    path, offset = place.removesuffix(":").split(", offset ")
    assert passage == 'Deploy it.\nThe canary port\nis "7443"; \ufffd C:\\new'
    assert str(await reading({"path": path, "offset": int(offset)})).startswith("Deploy it.")


async def test_pictures_and_signatures_of_an_archive_are_not_in_the_index(storage):
    image = {"type": "image", "source": {"type": "base64", "data": "QUJD" * 400}}
    await storage.save("s", "compact", [{"role": "user", "content": [image]}])

    assert await find(storage, "QUJD") == NOTHING


async def test_the_same_passage_is_shown_once(storage):
    await write(storage, a=SOUND, b=SOUND)

    assert (await find(storage, "hand")).count(SOUND) == 1


async def test_at_most_five_passages_are_shown(storage):
    await write(storage, **{f"t{number}": f"{SOUND} {number}" for number in range(20)})

    assert (await find(storage, "hand")).count(SOUND) == 5


async def test_an_answer_is_as_long_as_the_tools_may_be(storage):
    await write(storage, a=f"{SOUND} {'x ' * 400}")

    found = await search_tool(storage, max_chars=100)({"query": "hand"})

    assert found[100:] == "\n[Cut at 100 characters.]"


@given(st.text(max_size=300) | st.text(alphabet="\"'*^()-+:{}ab \0\ud800", max_size=40))
def test_no_query_raises(query):
    storage = MemoryStorage()

    async def ask() -> str:
        await write(storage, a=SOUND)
        return await find(storage, query or "x")

    assert anyio.run(ask)


async def test_a_query_that_is_not_text_is_refused(storage):
    with pytest.raises(ToolInputError, match="query is missing"):
        await search_tool(storage)({"query": 7})


# What is not found --------------------------------------------------------------------------------


async def test_pictures_are_not_searched(storage):
    history = conversation(user("Look."), *(look(number) for number in range(3)))
    stages = [MediaOffload(storage, max_bytes=1_500_000, keep_bytes=1_000_000)]
    await ContextPipeline(stages).run(history, session_id="s")
    await write(storage, a=SOUND)

    assert await storage.contents("s") != ["a.md"]
    assert SOUND in await find(storage, "base64 hand image")


async def test_nothing_of_another_session_is_found(storage):
    await write(storage, "other", a=SOUND)
    await write(storage, a="mine")

    assert await find(storage, "hand") == NOTHING


async def test_without_a_session_a_path_selects_the_conversation(storage):
    await write(storage, "mine", a=f"{SOUND}, mine")
    await write(storage, "other", a=f"{SOUND}, of another")

    found = str(await search_tool(storage, None)({"query": "hand", "path": "mine/a.md"}))

    assert found.endswith(f"{SOUND}, mine")
    with pytest.raises(ToolInputError, match="there is no offloaded text"):
        await search_tool(storage, None)({"query": "hand", "path": "none/a.md"})


@pytest.mark.parametrize("make", ["local", "memory"])
async def test_redacted_text_is_never_found(tmp_path, make):
    def hide(text: str) -> str:
        return text.replace("hunter2", "***")

    storage: Any = MemoryStorage(redact=hide)
    if make == "local":
        storage = LocalStorage(tmp_path, redact=hide)
    await write(storage, a="the password is hunter2")
    await storage.save("s", "compact", [user("again hunter2, a password")])

    assert await find(storage, "hunter2") == NOTHING
    assert (await find(storage, "password")).count("***") == 2
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"hunter2" not in file.read_bytes()


async def test_after_a_deletion_nothing_is_found_and_no_index_is_left(storage, tmp_path):
    await write(storage, a=SOUND)
    tool = search_tool(storage)
    assert SOUND in await tool({"query": "hand"})

    await storage.delete("s")

    assert await tool({"query": "hand"}) == NOTHING
    assert list(tmp_path.rglob(".ctxpipe-index")) == []


async def test_after_a_deletion_only_newer_texts_are_found(storage):
    await write(storage, a=SOUND)
    tool = search_tool(storage)
    await tool({"query": "hand"})
    await storage.delete("s")
    await write(storage, a="another hand")

    found = str(await tool({"query": "hand"}))

    assert "another hand" in found
    assert SOUND not in found


async def test_a_clean_up_removes_the_index(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND)
    tool = search_tool(storage)
    await tool({"query": "hand"})

    await storage.cleanup(max_age=0)

    assert list(tmp_path.rglob(".ctxpipe-index")) == []
    assert await tool({"query": "hand"}) == NOTHING


async def test_a_removed_text_is_not_found(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND, b="another hand")
    await find(storage, "hand")
    (tmp_path / "s" / "a.md").unlink()

    assert SOUND not in await find(storage, "hand")
    assert b"the sound" not in (tmp_path / "s" / ".ctxpipe-index").read_bytes()


# The index ----------------------------------------------------------------------------------------


async def test_a_text_added_after_the_last_search_is_found(storage):
    tool = search_tool(storage)
    await write(storage, a="one")
    await tool({"query": "hand"})
    await write(storage, b=SOUND)

    assert SOUND in await tool({"query": "hand"})


async def test_the_index_is_stored_with_the_texts_and_read_there(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND)
    await find(storage, "hand")
    index = tmp_path / "s" / ".ctxpipe-index"
    written = index.stat().st_mtime_ns

    assert SOUND in await find(LocalStorage(tmp_path), "hand")
    assert index.stat().st_mtime_ns == written
    assert index.stat().st_mode & 0o777 == 0o600


OLD_INDEX = b"ctxpipe index 3\n" + b"\0" * 9_000


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "a byte", "noise", "old", "a link"])
async def test_a_missing_or_damaged_index_is_built_again(tmp_path, damage):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND)
    await find(storage, "hand")
    index = tmp_path / "s" / ".ctxpipe-index"
    content = index.read_bytes()
    index.unlink()
    damaged = {
        "empty": b"",
        "cut": content[:-1],
        "a byte": content.replace(b"of one hand", b"of one hend"),
        "noise": b"x" * 9_000,
        "old": OLD_INDEX,
    }
    if damage in damaged:
        index.write_bytes(damaged[damage])
    if damage == "a link":
        index.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_bytes(content)

    assert SOUND in await find(storage, "hand")
    assert index.read_bytes() == content
    assert not index.is_symlink()


async def test_a_new_text_leaves_almost_all_of_the_index_as_it_was(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, **{f"t{number}": f"{SOUND} {number} " * 200 for number in range(50)})
    await find(storage, "hand")
    index = tmp_path / "s" / ".ctxpipe-index"
    inode = index.stat().st_ino
    before = pages_of(index)
    await write(storage, late="one more")

    assert "one more" in await find(storage, "more")

    changed = [place for place, page in enumerate(before) if pages_of(index)[place] != page]
    assert index.stat().st_ino == inode
    assert len(changed) < len(before) / 10


def pages_of(index: Path) -> list[bytes]:
    content = index.read_bytes()
    return [content[start : start + 4096] for start in range(0, len(content), 4096)]


async def test_texts_that_cannot_be_read_are_tried_again(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND)
    text = tmp_path / "s" / "a.md"
    text.rename(tmp_path / "elsewhere")
    text.mkdir()
    assert await find(storage, "hand") == NOTHING
    assert await find(storage, "hand") == NOTHING
    text.rmdir()
    (tmp_path / "elsewhere").rename(text)

    assert SOUND in await find(storage, "hand")


DIE = """
import os, sys
from ctxpipe.tools.index import Index
class Texts(dict):
    def __getitem__(self, name):
        if name == "second":
            os._exit(0)
        return super().__getitem__(name)
Index(sys.argv[1]).add(Texts(first="half a hand", second=""))
"""


async def test_an_index_that_a_killed_process_has_half_written_is_built_again(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND)
    await find(storage, "hand")
    index = tmp_path / "s" / ".ctxpipe-index"
    content = index.read_bytes()
    await write(storage, b="another hand")
    python(DIE, index)
    assert index.read_bytes() != content

    found = await find(storage, "hand")

    assert SOUND in found
    assert "another hand" in found
    assert "half a hand" not in found


async def test_an_index_with_a_second_name_stays_as_it_is(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND)
    await find(storage, "hand")
    snapshot = tmp_path / "snapshot"
    snapshot.hardlink_to(tmp_path / "s" / ".ctxpipe-index")
    content = snapshot.read_bytes()
    await write(storage, b="another hand")

    assert "another hand" in await find(storage, "hand")
    assert snapshot.read_bytes() == content


def test_an_index_that_is_changed_is_the_only_file_with_its_texts(tmp_path):
    path = tmp_path / "index"
    path.touch()

    class Texts(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            assert list(tmp_path.iterdir()) == [path]
            return super().__getitem__(name)

    with closing(index_module.Index(str(path))) as index:
        for number in range(3):
            index.add(Texts({f"{number}.md": SOUND}))
        assert len(index.names) == 3


async def test_a_storage_that_cannot_save_an_index_can_be_searched(tmp_path):
    storage = LocalStorage(tmp_path)
    await write(storage, a=SOUND)
    (tmp_path / "s" / ".ctxpipe-index").mkdir()

    assert SOUND in await find(storage, "hand")


async def test_an_answer_from_a_full_index_mentions_its_limit(storage, monkeypatch):
    monkeypatch.setattr(index_module, "MAX_INDEX_CHARS", 10)
    await write(storage, a=SOUND)

    found = await find(storage, "hand")

    assert found.endswith("characters were searched.]")


ASK = """
import asyncio, sys
from ctxpipe import LocalStorage, offload_tools
async def main():
    storage = LocalStorage(sys.argv[1])
    for number in range(20):
        await storage.write([(f"s/{sys.argv[2]}-{number}.md", f"{sys.argv[2]} hand {number}")])
        [_, _, search] = offload_tools(storage, session_id="s")
        found = await search({"query": f"{sys.argv[2]} {number}"})
        assert f"{sys.argv[2]} hand {number}" in found, found
asyncio.run(main())
"""


async def test_two_processes_can_search_at_the_same_time(tmp_path):
    runs = [
        await asyncio.create_subprocess_exec(
            *prepared_python(), "-c", ASK, str(tmp_path), name, stderr=subprocess.PIPE
        )
        for name in ("first", "second")
    ]
    errors = [(await run.communicate())[1] for run in runs]

    assert errors == [b"", b""]
    assert "second hand 3" in await find(LocalStorage(tmp_path), "second 3")


# A session ----------------------------------------------------------------------------------------

FACT = "the vault listens on port 7443"


def working(steps: int) -> list[Any]:
    history: list[Any] = [user(f"Deploy it; {FACT}.")]
    for number in range(steps):
        say = f"Now I look at part {number}. " + "That takes me some words to explain. " * 20
        history += step(f"t{number}", result=f"{number} a line of output\n" * 200, say=say)
    return history


def session_in(storage: Any) -> Any:
    stages: list[Any] = [
        DirectOffload(storage),
        Compact(ExtractiveSummarizer(), archive=storage),
    ]
    return ContextPipeline(stages, budget=Budget(window=6_000)).session("s")


async def test_passages_that_the_context_shows_are_omitted():
    storage = MemoryStorage()
    session = ContextPipeline([DirectOffload(storage, min_chars=20)]).session("s")
    await write(storage, a=FACT, b="another vault")
    await session.run([user("Go."), *step("t1", name="read_offloaded", result=FACT)])
    tool = next(tool for tool in offload_tools(session) if tool.name == "search_history")

    found = str(await tool({"query": "vault"}))

    assert "another vault" in found
    assert FACT not in found


async def test_messages_replaced_by_a_summary_are_found(tmp_path):
    storage = LocalStorage(tmp_path)
    session = session_in(storage)
    history = working(60)
    for end in range(1, len(history) + 1, 2):
        await session.run(history[:end])
    tool = next(tool for tool in offload_tools(session) if tool.name == "search_history")

    found = str(await tool({"query": "Now I look at part 7"}))

    assert re.match(r"[^\n]*/s/compact-[^\n]*\.json, offset \d+:\n", found)
    assert "Now I look at part 7." in found


async def test_a_placeholder_names_the_tool_if_the_model_has_it(tmp_path):
    history = working(30)
    contexts = {}
    for name in ("search_history", "mcp__ctxpipe__search_history", "another"):
        session = session_in(LocalStorage(tmp_path / name))
        for end in range(1, len(history) + 1, 2):
            result = await session.run(history[:end], tools=[{"name": name, "input_schema": {}}])
        contexts[name] = json.dumps(result.messages)

    assert "search_history finds by words" in contexts["search_history"]
    assert "search_history finds it.]" in contexts["search_history"]
    assert "search_history finds by words" in contexts["mcp__ctxpipe__search_history"]
    assert "search_history" not in contexts["another"].replace(str(tmp_path), "")


def test_a_placeholder_that_names_the_tool_is_recognized():
    named = "[Tool result offloaded to file: /x/s/a.md]\n[search_history finds it.]"

    assert reference(named) == "/x/s/a.md"
    assert reference(f"{named} ") is None
