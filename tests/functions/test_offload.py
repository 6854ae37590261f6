"""The functions that move tool results to files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from histories import (
    PICTURE,
    assistant,
    conversation,
    histories,
    step,
    text,
    tool_result,
    user,
)
from hypothesis import given
from hypothesis import strategies as st
from offloads import LOG, WriteOnly, contents, files_below

from ctxpipe import InvalidHistory, LocalStorage, SettingsError, StorageError
from ctxpipe.functions import offload_tool_result, offload_tool_results
from ctxpipe.functions.offload import offloadable, scan_of, total_characters
from ctxpipe.messages import Message
from ctxpipe.placeholders.placeholders import (
    BATCH,
    placeholder,
)
from ctxpipe.stages.offload.selection import (
    Scan,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def old(*results: Any, last: str = "ok") -> list[Message]:
    """A history in which the model has answered each result; ids a, b, c …"""
    steps = [
        step(chr(97 + number), "bash", {"n": number}, result)
        for number, result in enumerate(results)
    ]
    return conversation(user("go"), *steps, assistant(last), user("and now?"))


async def test_each_result_of_a_message_gets_a_file_and_a_pointer(root):
    message = user(
        tool_result("a", "one"), tool_result("b", [text("two")], is_error=True), text("and?")
    )
    before = copy.deepcopy(message)

    done = await offload_tool_result(message, session_id="s", output_dir=root)

    assert done.files == (f"{root}/s/a.md", f"{root}/s/b.md")
    assert done.file == done.files[0]
    assert files_below(root) == {"s/a.md": "one", "s/b.md": '[{"type":"text","text":"two"}]'}
    pointers = [f"[Tool result offloaded to file: {file}]" for file in done.files]
    assert done.message == user(
        tool_result("a", pointers[0]), tool_result("b", pointers[1], is_error=True), text("and?")
    )
    assert done.freed_chars == len("one") + len('[{"type":"text","text":"two"}]') - sum(
        map(len, pointers)
    )
    assert message == before


async def test_a_result_with_an_image_and_a_placeholder_stay(root):
    message = user(
        tool_result("a", [text("x"), PICTURE]), tool_result("b", "[Content offloaded to: ./b.md]")
    )

    done = await offload_tool_result(message, session_id="s", output_dir=root)

    assert done.message is message
    assert (done.files, done.file, done.freed_chars) == ((), None, 0)
    assert not root.exists()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (user("hi"), "message 0 has no tool_result"),
        (user(text("hi")), "message 0 has no tool_result"),
        ({"role": "user"}, "message 0 has no content"),
        (user("x") | {"content": [None]}, "block 0 of message 0 is NoneType"),
        ("hi", "message 0 is str"),
    ],
)
async def test_a_message_without_a_result_is_refused_and_nothing_written(root, message, words):
    with pytest.raises(InvalidHistory, match=words):
        await offload_tool_result(message, session_id="s", output_dir=root)

    assert not root.exists()


async def test_hostile_ids_and_sessions_stay_inside_and_apart(root, tmp_path):
    hostile = [
        *(
            "../../x",
            "/etc/x",
            "a\\b",
            "a/b",
            "a\0",
            ".",
            "",
            "x" * 1500,
            "漢",
            "CON",
            "Con",
            "con",
        ),
    ]
    message = user(*[tool_result(name, name or "empty") for name in hostile])

    for session in ("../up", "/abs", ""):
        done = await offload_tool_result(message, session_id=session, output_dir=root)
        assert len(set(done.files)) == len(hostile)

    assert len(files_below(tmp_path)) == len(files_below(root)) == 3 * len(hostile)
    assert all(
        name.count("/") == 1 and len(name.split("/")[1]) <= 123 for name in files_below(root)
    )


async def test_a_relative_folder_gives_absolute_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = await offload_tool_results(old(LOG), output_dir="out")

    assert done.files == (f"{tmp_path}/out/tool-result-a.md",)
    assert contents(done.messages) == ["[Content offloaded to: ./tool-result-a.md]"]


async def test_a_writer_of_ones_own_is_used(root, tmp_path):
    writer = WriteOnly(LocalStorage(root))

    await offload_tool_results(old(LOG), output_dir=tmp_path / "unused", writer=writer)
    await offload_tool_result(
        user(tool_result("a", LOG)), session_id="s", output_dir=tmp_path / "unused", writer=writer
    )

    assert files_below(tmp_path) == {"root/tool-result-a.md": LOG, "root/s/a.md": LOG}


async def test_its_own_output_is_left_alone(root):
    first = await offload_tool_results(old(LOG, LOG), output_dir=root)

    assert (await offload_tool_results(first.messages, output_dir=root)).messages is first.messages


@pytest.mark.parametrize(
    "broken",
    [[user("go"), {"role": "user"}], [user("go"), "x"], {"role": "user"}, [user("x"), None]],
)
async def test_a_broken_history_is_refused_and_nothing_written(root, broken):
    with pytest.raises(InvalidHistory):
        await offload_tool_results(broken, output_dir=root)

    assert not root.exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("min_chars", -1), ("min_chars", "x"), ("ratio", "x"), ("ratio", float("nan"))],
)
async def test_a_nonsensical_option_of_the_function_is_refused(root, option, value):
    with pytest.raises(SettingsError, match=r"OFFLOAD_(CHAR|RATIO)_THRESHOLD is"):
        await offload_tool_results(old(LOG), output_dir=root, **{option: value})


async def test_an_unwritable_folder_is_an_error_with_the_cause_in_words(tmp_path):
    (tmp_path / "file").write_text("x")

    for attempt in (
        offload_tool_results(old(LOG), output_dir=tmp_path / "file"),
        offload_tool_result(
            user(tool_result("a", LOG)), session_id="s", output_dir=tmp_path / "file"
        ),
    ):
        with pytest.raises(StorageError, match="Not a directory") as failed:
            await attempt
        assert isinstance(failed.value.__cause__, NotADirectoryError)


IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * 99},
}


@pytest.mark.parametrize(("result_chars", "offloaded"), [(199, 0), (200, 1)])
async def test_a_share_just_below_the_ratio_keeps_every_result(root, result_chars, offloaded):
    history = [user("x" * (1000 - result_chars)), user(tool_result("a", "x" * result_chars))]

    done = await offload_tool_results(history, output_dir=root)

    assert done.offloaded_count == offloaded
    assert (done.messages is history) == (not offloaded)


def test_textual_results_long_enough_are_offloadable_oldest_first():
    history = conversation(
        user("go"),
        step("long", result="x" * 100),
        step("short", result="x" * 99),
        step("listed", result=[text("x" * 100)]),
        step("picture", result=[text("x" * 999), IMAGE]),
        step("empty", result=""),
        step("done", result=placeholder(BATCH, "x" * 200)),
    )

    found = offloadable(history, 100)

    assert [result.tool_use_id for result in found] == ["long", "listed"]
    assert [total_characters([result]) for result in found] == [100, 127]
    assert prescan(history, 100).offloadable_chars == 227


def test_an_empty_result_is_never_offloadable():
    assert offloadable(step("a", result=""), 0) == []


@given(histories(repeat_ids=True), st.integers(0, 200))
def test_the_sums_of_the_prescan_are_consistent_and_read_only(
    history: list[Message], min_chars: int
):
    before = copy.deepcopy(history)

    scan = prescan(history, min_chars)

    assert history == before
    assert 0 <= scan.offloadable_chars <= scan.total_chars
    assert scan.offloadable_chars == total_characters(offloadable(history, min_chars))


def prescan(history: list[Message], min_chars: int) -> Scan:
    return scan_of(history, offloadable(history, min_chars))


async def test_a_ratio_above_one_is_accepted_never_reached_and_logged(tmp_path, caplog):
    result = await offload_tool_results(old(LOG), output_dir=tmp_path, ratio=30)

    assert result.offloaded_count == 0
    assert "for 30 % write 0.3" in caplog.text
