"""Raw messages set aside, and read back."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any, cast

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from histories import assistant, histories, system, user
from hypothesis import given

from ctxpipe.errors import InvalidHistory, StorageError
from ctxpipe.messages import Message
from ctxpipe.stages.archive import archive_text, load_archive
from ctxpipe.storage import LocalStorage


async def archived(messages: list[Message], folder: Path) -> str:
    return await LocalStorage(folder).save("s", "compact", archive_text(messages))


@given(histories(repeat_ids=True))
def test_the_text_is_json_that_gives_the_very_messages(history: list[Message]) -> None:
    assert json.loads("".join(archive_text(history))) == history


async def test_the_very_messages_come_back_from_disk(tmp_path: Path) -> None:
    history = [
        system("S"),
        user("ü 漢字 🙂 \ud83d \u2028 \0 \r\n\ttail "),
        user({"type": "odd", "deep": [1, 2.5, None, True, {"x": {}}], "empty": []}),
        cast("Message", {"role": "assistant", "content": [], "own": "key"}),
    ]

    assert await load_archive(await archived(history, tmp_path)) == history


async def test_no_messages_are_an_empty_archive(tmp_path: Path) -> None:
    assert await load_archive(await archived([], tmp_path)) == []


def test_the_text_is_indented_as_json_would_indent_it() -> None:
    history = [user("a\nb"), assistant({"type": "text", "text": "c"})]

    assert "".join(archive_text(history)) == json.dumps(history, indent=2, ensure_ascii=False) + "\n"


async def test_objects_of_the_sdk_come_back_as_they_would_be_sent(tmp_path: Path) -> None:
    reply: Any = [TextBlock(type="text", text="hm"), ToolUseBlock(type="tool_use", id="t", name="ls", input={"a": 1})]

    path = await archived([{"role": "assistant", "content": reply}], tmp_path)

    assert await load_archive(path) == [
        assistant("hm", {"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}}),
    ]


async def test_what_cannot_be_archived_faithfully_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    odd: Any = {"role": "user", "content": [{"type": "text", "text": object()}]}

    with pytest.raises(StorageError, match="neither a mapping nor an SDK object"):
        await archived([odd], tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_no_second_copy_of_the_history_is_ever_held() -> None:
    history = [user("x" * 100_000 + str(number)) for number in range(200)]

    tracemalloc.start()
    for _ in archive_text(history):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2_000_000  # of 20,000,000


@pytest.mark.parametrize("text", ["", "{", '{"role": "user"}', '["text"]', '[{"role": "user"}]'])
async def test_what_is_no_archive_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)

    with pytest.raises(InvalidHistory, match="no archive"):
        await load_archive(path)


async def test_a_missing_archive_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read the archive"):
        await load_archive(tmp_path / "gone.json")
