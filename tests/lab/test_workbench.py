"""The workbench, which replaces the agent's disk and clock in a replay."""

from __future__ import annotations

import pytest
from histories import assistant, conversation, step, tool_result, tool_use, user, view

from ctxpipe import ContextPipeline, DirectOffload
from ctxpipe.errors import StorageError
from ctxpipe.lab.workbench import SeenFiles, Workbench
from ctxpipe.messages import tool_results
from ctxpipe.stages.compact.stage import Restore
from ctxpipe.tokens import as_counter


async def test_contexts_have_paths_like_those_of_a_local_storage():
    bench = Workbench()
    history = conversation(user("Go."), view("t1", "a.py", "x = 1\n" * 500))
    stage = DirectOffload(bench.storage, min_chars=100)

    context = await ContextPipeline([stage]).run(history, session_id="s")

    [result] = tool_results(context.messages)
    assert result.content == "[Tool result offloaded to file: /ctxpipe/s/t1.md]"
    assert bench.storage.stored == {"s/t1.md": "x = 1\n" * 500}


async def test_a_file_has_the_text_that_the_conversation_showed_last():
    files = SeenFiles()
    files.learn(conversation(user("Go."), view("t1", "a.py", "first"), view("t2", "b.py", "other")))
    assert (await files.read("a.py", 100)).text == "first"

    files.learn(step("t3", "Write", {"file_path": "a.py", "content": "second"}))
    assert (await files.read("a.py", 100)).text == "second"


async def test_a_view_whose_result_comes_later_counts_and_one_that_failed_does_not():
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


async def test_a_write_after_a_view_counts_even_if_both_are_read_in_one_call():
    files = SeenFiles()
    write = step("t2", "Write", {"file_path": "a.py", "content": "written"})
    files.learn(conversation(user("Go."), view("t1", "a.py", "viewed"), write))

    assert (await files.read("a.py", 100)).text == "written"


async def test_a_write_that_failed_or_has_no_result_changes_no_file():
    files = SeenFiles()
    call = assistant(tool_use("t2", "Write", {"file_path": "a.py", "content": "refused"}))
    failed = user(tool_result("t2", "permission denied", is_error=True))
    pending = assistant(tool_use("t3", "Write", {"file_path": "a.py", "content": "not yet"}))
    files.learn([*view("t1", "a.py", "viewed"), call, failed, pending])

    assert (await files.read("a.py", 100)).text == "viewed"


async def test_a_file_that_is_too_large_is_refused():
    files = SeenFiles()
    files.learn(view("t1", "a.py", "é" * 60))

    with pytest.raises(StorageError, match="larger than 100 bytes"):
        await files.read("a.py", 100)


def test_each_replay_has_its_own_workbench():
    one, two = Workbench(), Workbench()

    assert one.storage is not two.storage
    assert one.clock() == two.clock() == 0


async def test_a_restored_file_has_the_text_of_its_last_view():
    history = conversation(
        user("go"), view("1", "a.py", "a = 1\nb = 2\n"), view("2", "a.py", "b = 2\n")
    )
    bench = Workbench()
    bench.files.learn(history)
    restore = Restore(files=bench.files)

    found = await restore.read_again(history, as_counter(None), "s", bench.storage)

    assert [file.text for file in found.files] == ["b = 2\n"]
