"""The function that replaces a long history by a summary."""

from __future__ import annotations

import inspect
import tracemalloc
from pathlib import Path
from typing import cast

from compactions import LONG, Writer, archives, shortened, words, work
from histories import assistant, conversation, said, system, user, view
from memory import traced_memory

from ctxpipe.functions import compact_messages, load_archive
from ctxpipe.storage.files import FileText
from ctxpipe.summarizers import (
    ExtractiveSummarizer,
)


async def test_one_call_with_defaults_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = [user("Begin."), *work(20, results=12_000), user("Go on.")]

    result = await compact_messages(history)

    assert result.compacted
    assert [message["role"] for message in result.messages] == ["user", "assistant"]
    # no client, no key: no model
    assert "## Task Status" in cast("str", result.messages[0]["content"])
    assert result.original_messages_path is not None
    assert Path(result.original_messages_path).parent == tmp_path / ".compact" / "default"
    assert await load_archive(result.original_messages_path) == history


async def test_system_and_tools_count_into_the_threshold(tmp_path):
    history = [user("a " * 1700), assistant("b " * 100)]
    tools = [{"name": "x", "description": "d " * 50}]

    assert not (await shortened(history, tmp_path)).compacted
    assert (await shortened(history, tmp_path, system="c " * 50)).compacted
    assert (await shortened(history, tmp_path, tools=tools)).compacted


async def test_nothing_but_system_messages_is_never_summarized(tmp_path):
    history = [system("a " * 3000)]
    writer = Writer()

    assert (await shortened(history, tmp_path, summarize=writer)).messages is history
    assert writer.seen == []


async def test_a_text_block_without_a_text_is_no_reason_not_to_compact(tmp_path):
    history = conversation(
        user({"type": "text", "text": None}, {"type": "text", "text": "Go."}), LONG[2:]
    )

    result = await compact_messages(
        history,
        summarize=ExtractiveSummarizer(),
        counter=words,
        context_token_limit=1000,
        output_dir=tmp_path,
    )

    assert result.compacted


async def test_with_require_archive_a_failed_save_stops_it_before_any_model_call(
    tmp_path,
):
    (tmp_path / "file").write_text("in the way")
    writer = Writer()

    result = await shortened(
        LONG, tmp_path, output_dir=tmp_path / "file", summarize=writer, require_archive=True
    )

    assert result.messages is LONG
    assert writer.seen == []


async def test_the_limits_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTEXT_TOKEN_LIMIT", "100")
    monkeypatch.setenv("COMPACT_THRESHOLD_RATIO", "0.5")
    monkeypatch.setenv("COMPACT_MAX_RETRIES", "0")
    monkeypatch.setenv("COMPACT_OUTPUT_DIR", str(tmp_path / "elsewhere"))
    writer = Writer(failure=RuntimeError())

    result = await compact_messages(
        [user("word " * 50), assistant("ok")], summarize=writer, counter=words
    )

    assert not result.compacted
    assert len(writer.seen) == 1
    assert len(archives(tmp_path / "elsewhere")) == 1


async def test_files_come_through_any_reader(tmp_path):
    class Remote:
        async def read(self, path: str, /, max_bytes: int) -> FileText:
            return FileText(path, f"{path} of at most {max_bytes} bytes")

    result = await shortened([*LONG, *view("r", "far.py", "x")], tmp_path, files=Remote())

    assert (
        said(result.messages)[3]
        == "[Restored after compact] far.py:\nfar.py of at most 320000 bytes"
    )


async def test_a_second_call_with_the_same_history_gives_the_same_messages(tmp_path):
    first = await shortened(LONG, tmp_path)
    second = await shortened(LONG, tmp_path)

    assert second.messages == first.messages
    assert second.stats == first.stats


async def test_the_last_messages_are_summarized_too_and_no_setting_keeps_them(tmp_path):
    writer = Writer()

    await shortened(LONG, tmp_path, summarize=writer)

    assert writer.seen == [LONG[1:]]
    assert [name for name in inspect.signature(compact_messages).parameters if "tail" in name] == []


async def test_the_peak_of_memory_is_at_most_twice_the_size_of_the_messages(tmp_path):
    await shortened(LONG, tmp_path)  # loads what it needs
    with traced_memory():
        history = [user(f"word {number} " * 4_000) for number in range(20)]
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()

        result = await shortened(history, tmp_path)

        _, peak = tracemalloc.get_traced_memory()
    assert result.compacted
    assert peak <= 2 * size
