"""What stands in for the agent's disk in a replay."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest
from histories import assistant, conversation, step, tool_result, tool_use, user, view
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import LocalStorage, Restore
from ctxpipe.errors import StorageError
from ctxpipe.lab.workbench import ROOT, MemoryStorage, SeenFiles, Workbench
from ctxpipe.storage.records import parse_line
from ctxpipe.tokens import as_counter


async def test_texts_lie_where_the_local_storage_would_put_them(tmp_path: Path) -> None:
    texts = [("s/a.md", "one"), ("s/b.md", "two"), ("s/a.md", "one"), ("s/a.md", "another")]
    memory, local = MemoryStorage(), LocalStorage(tmp_path)

    mine = [str(PurePath(path).relative_to(ROOT)) for path in await memory.write(texts)]
    theirs = [str(PurePath(path).relative_to(tmp_path)) for path in await local.write(texts)]

    assert mine == theirs
    assert list(memory.texts.values()) == ["one", "two", "another"]


@given(st.text(), st.integers(0, 50), st.none() | st.integers(0, 50))
async def test_a_text_is_read_a_page_at_a_time(text: str, offset: int, limit: int | None) -> None:
    storage = MemoryStorage()
    [path] = await storage.write([("s/a.md", text)])

    for spelling in (path, "s/a.md", "./s/a.md"):
        page = await storage.read(spelling, offset, limit)
        assert page.text == text[offset:][: len(text) if limit is None else limit]
        assert page.total == len(text)


async def test_what_is_not_there_cannot_be_read() -> None:
    with pytest.raises(StorageError, match=r"s/a\.md"):
        await MemoryStorage().read("s/a.md")


async def test_records_are_numbered_and_grow_and_are_listed_by_session() -> None:
    storage = MemoryStorage()
    first, second = [await storage.save("s", "compact", [number]) for number in (1, 2)]
    await storage.append("s", "log.jsonl", {"line": "a"})
    grown = await storage.append("s", "log.jsonl", {"line": "b"})
    await storage.save("other", "compact", [])

    assert first != second
    lines = storage.texts[grown].split("\n")[1:]
    assert (storage.texts[first], storage.texts[second]) == ("[\n  1\n]\n", "[\n  2\n]\n")
    assert list(map(parse_line, lines)) == [{"line": "a"}, {"line": "b"}]
    assert list(await storage.records("s")) == [first, second, grown]


async def test_a_file_holds_what_the_conversation_has_shown_of_it_last() -> None:
    files = SeenFiles()
    files.learn(conversation(user("Go."), view("t1", "a.py", "first"), view("t2", "b.py", "other")))
    assert (await files.read("a.py", 100)).text == "first"

    files.learn(step("t3", "Write", {"file_path": "a.py", "content": "second"}))
    assert (await files.read("a.py", 100)).text == "second"


async def test_a_view_whose_result_comes_later_counts_and_one_that_failed_does_not() -> None:
    files = SeenFiles()
    call, result = view("t1", "a.py", "text")
    files.learn([call])
    files.learn([result])
    failed = [assistant(tool_use("t2", "read_file", {"path": "b.py"}))]
    files.learn(failed)
    files.learn(
        [
            user(
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": "no such file",
                    "is_error": True,
                }
            )
        ]
    )

    assert (await files.read("a.py", 100)).text == "text"
    with pytest.raises(StorageError, match=r"b\.py"):
        await files.read("b.py", 100)


async def test_what_was_written_after_a_view_counts_however_much_is_learnt_at_once() -> None:
    files = SeenFiles()
    write = step("t2", "Write", {"file_path": "a.py", "content": "written"})
    files.learn(conversation(user("Go."), view("t1", "a.py", "viewed"), write))

    assert (await files.read("a.py", 100)).text == "written"


async def test_a_write_that_failed_or_was_never_answered_has_written_nothing() -> None:
    files = SeenFiles()
    call = assistant(tool_use("t2", "Write", {"file_path": "a.py", "content": "refused"}))
    failed = user(tool_result("t2", "permission denied", is_error=True))
    pending = assistant(tool_use("t3", "Write", {"file_path": "a.py", "content": "not yet"}))
    files.learn([*view("t1", "a.py", "viewed"), call, failed, pending])

    assert (await files.read("a.py", 100)).text == "viewed"


async def test_a_file_that_is_too_large_is_refused() -> None:
    files = SeenFiles()
    files.learn(view("t1", "a.py", "é" * 60))

    with pytest.raises(StorageError, match="larger than 100 bytes"):
        await files.read("a.py", 100)


def test_each_replay_has_a_bench_of_its_own() -> None:
    one, two = Workbench(), Workbench()

    assert one.storage is not two.storage
    assert one.clock() == two.clock() == 0


async def test_a_file_comes_back_as_its_last_view_showed_it() -> None:
    history = conversation(
        user("go"), view("1", "a.py", "a = 1\nb = 2\n"), view("2", "a.py", "b = 2\n")
    )
    bench = Workbench()
    bench.files.learn(history)
    restore = Restore(files=bench.files)

    found = await restore.read_again(history, as_counter(None), "s", bench.storage)

    assert [file.text for file in found.files] == ["b = 2\n"]
