"""The stages for common kinds of agents."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
from histories import assistant, conversation, step, tool_result, tool_use, user

from ctxpipe import (
    BatchOffload,
    Budget,
    Collapse,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SettingsError,
    SmartTruncate,
    TrimReadBacks,
    presets,
)
from ctxpipe.messages import Message, check, tool_results
from ctxpipe.providers.agent_tools import WRITING_TOOLS
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.media.stage import MediaOffload
from ctxpipe.stages.offload.gates import RentOrBuyGate
from ctxpipe.stages.protocol import Stage
from ctxpipe.stages.reports import Outcome
from ctxpipe.storage.memory import MemoryStorage
from ctxpipe.summarizers import ExtractiveSummarizer

Preset: TypeAlias = Callable[..., list[Stage]]

coding_agent = partial(presets.coding_agent, work_dir=None)
lines = partial(presets.coding_agent, work_dir=None, old_exchanges="lines")

WORDS = "some words of a result " * 120  # 600 tokens
SMALL = Budget(window=30_000, trigger=20_000)


def work(calls: int, result: str = WORDS) -> list[Message]:
    return conversation(user("Go."), *(step(f"t{i}", result=f"{i} {result}") for i in range(calls)))


@pytest.mark.parametrize("preset", [coding_agent, lines, presets.chat])
async def test_the_report_of_a_sub_agent_stays_whole_while_it_is_new(preset: Preset, tmp_path):
    def history(length: int, tool: str) -> list[Message]:
        call = tool_use("t", tool, {"prompt": "look"})
        return conversation(
            user("Go."), assistant(call), user(tool_result("t", (WORDS * 9)[:length]))
        )

    async def chars(length: int, tool: str) -> int:
        pipeline = ContextPipeline(preset(LocalStorage(tmp_path)))
        [result] = tool_results(
            (await pipeline.run(history(length, tool), session_id="s")).messages
        )
        return len(str(result.content))

    for tool in ("Task", "Agent", "task"):
        assert await chars(19_999, tool) == 19_999
        assert await chars(20_000, tool) < 3_000
    assert await chars(19_999, "bash") < 3_000


@pytest.mark.parametrize("preset", [coding_agent, presets.chat])
async def test_a_preset_is_a_plain_list_of_six_stages(preset: Preset, tmp_path):
    stages = preset(LocalStorage(tmp_path))

    assert type(stages) is list
    found = [type(stage) for stage in stages]
    assert found == [
        DirectOffload,
        TrimReadBacks,
        MediaOffload,
        BatchOffload,
        Compact,
        SmartTruncate,
    ]
    assert len(ContextPipeline(stages).stages) == 6


def test_old_exchanges_can_collapse_into_lines(tmp_path):
    prices = Prices.relative(read=0.05)
    direct, _, _, collapse, *rest = lines(LocalStorage(tmp_path), prices=prices)

    first = coding_agent(LocalStorage(tmp_path))[0]
    assert isinstance(direct, DirectOffload)
    assert isinstance(collapse, Collapse)
    assert isinstance(first, DirectOffload)
    assert replace(direct, per_tool=first.per_tool) == first
    assert direct.per_tool["Read"] == 30_000
    assert direct.per_tool["Task"] == 20_000
    assert [type(stage) for stage in rest] == [Compact, SmartTruncate]
    assert collapse.prices == prices


@pytest.mark.parametrize("wrong", ["whole", "more_lines", "", None, True])
def test_an_unknown_value_of_old_exchanges_is_refused(wrong, tmp_path):
    with pytest.raises(SettingsError, match=r"give one of 'calls', 'lines'$"):
        coding_agent(LocalStorage(tmp_path), old_exchanges=wrong)


async def test_old_exchanges_collapse_when_they_have_cost_enough(tmp_path):
    history = work(60)

    result = await ContextPipeline(lines(LocalStorage(tmp_path))).run(history, session_id="s")

    assert result.reports[3].outcome is Outcome.CHANGED
    assert not check(result.messages)
    assert result.messages[-8:] == history[-8:]
    assert result.tokens_after < result.tokens_before / 3


def test_the_stages_of_a_preset_can_be_changed_one_by_one(tmp_path):
    stages = presets.coding_agent(LocalStorage(tmp_path), work_dir=tmp_path)
    direct = stages[0]
    assert isinstance(direct, DirectOffload)

    assert ContextPipeline([replace(direct, min_chars=20_000), *stages[1:]]).stages[0] == replace(
        direct, min_chars=20_000
    )


def test_the_prices_reach_the_gate(tmp_path):
    prices = Prices.relative(read=0.05)
    storage = LocalStorage(tmp_path)
    stages = (
        presets.coding_agent(storage, work_dir=tmp_path, prices=prices),
        presets.chat(storage, prices=prices),
    )
    for _, _, _, batch, *_ in stages:
        assert isinstance(batch, BatchOffload)
        assert isinstance(batch.gate, RentOrBuyGate)
        assert batch.gate.prices == prices


def test_the_free_calls_of_the_gate_equal_keep_recent(tmp_path):
    for preset in (coding_agent, presets.chat):
        batch = preset(LocalStorage(tmp_path))[3]
        assert isinstance(batch, BatchOffload)
        assert isinstance(batch.gate, RentOrBuyGate)
        assert batch.gate.free_calls == batch.keep_recent


@pytest.mark.parametrize("preset", [coding_agent, lines, presets.chat])
async def test_a_short_conversation_is_not_changed(preset: Preset, tmp_path):
    history = work(20)

    result = await ContextPipeline(preset(LocalStorage(tmp_path))).run(history, session_id="s")

    assert result.messages is history
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", [coding_agent, presets.chat])
async def test_a_long_new_result_is_offloaded_with_a_preview_and_an_absolute_path(
    preset: Preset, tmp_path
):
    history = work(1, "first words " + "x" * 9000 + " last words")

    result = await ContextPipeline(preset(LocalStorage(tmp_path))).run(history, session_id="s")

    [shown] = [str(found.content) for found in tool_results(result.messages)]
    path = re.match(r"\[Tool result offloaded to file: (.+)\]\n", shown)
    assert path
    assert Path(path[1]).is_absolute()
    assert "x" * 9000 in Path(path[1]).read_text()
    assert "first words" in shown
    assert "last words" in shown


async def test_old_results_and_inputs_are_offloaded_when_they_have_cost_enough(tmp_path):
    written = [
        assistant(tool_use("w", "Write", {"file_path": "a.py", "content": WORDS})),
        *step("w")[1:],
    ]
    history = conversation(user("Go."), written, work(60)[1:])

    result = await ContextPipeline(
        presets.coding_agent(LocalStorage(tmp_path), work_dir=tmp_path)
    ).run(history, session_id="s")

    assert result.reports[3].outcome is Outcome.CHANGED
    assert "Write" in WRITING_TOOLS
    assert WORDS not in str(result.messages[1]["content"])
    assert all(
        message is old for message, old in zip(result.messages[-10:], history[-10:], strict=True)
    )


@pytest.mark.parametrize("preset", [coding_agent, lines, presets.chat])
async def test_near_the_limit_the_history_is_compacted(preset: Preset, tmp_path):
    stages = preset(LocalStorage(tmp_path), summarize=ExtractiveSummarizer())
    talk = [
        message for i in range(40) for message in (user(f"{i} {WORDS}"), assistant(f"{i} {WORDS}"))
    ]

    result = await ContextPipeline(stages, budget=SMALL).run(
        [*talk, user("And now?")], session_id="s"
    )

    assert result.reports[4].outcome is Outcome.CHANGED
    assert not check(result.messages)
    assert "And now?" in str(result.messages[-1]["content"])


def test_any_storage_of_texts_and_archives_is_accepted():
    assert isinstance(MemoryStorage(), presets.Storage)
    assert isinstance(LocalStorage("x"), presets.Storage)


@pytest.mark.parametrize("preset", [coding_agent, presets.chat])
def test_a_preset_pauses_compactions_by_the_wall_clock_that_processes_share(
    preset: Callable[..., list[Stage]],
):
    [compact] = [stage for stage in preset(MemoryStorage()) if isinstance(stage, Compact)]

    assert compact.breaker.clock is time.time


@pytest.mark.parametrize("preset", [coding_agent, lines, presets.chat])
def test_limits_for_single_tools_are_added_to_those_of_the_preset(preset: Preset):
    plain = preset(MemoryStorage())[0]
    limited = preset(MemoryStorage(), per_tool={"grep": 20_000, "Task": 5})[0]

    assert isinstance(plain, DirectOffload)
    assert isinstance(limited, DirectOffload)
    assert limited.per_tool == {**plain.per_tool, "grep": 20_000, "Task": 5}
    assert "'Task': 20000" in repr(coding_agent(MemoryStorage())[0])


@pytest.mark.parametrize("preset", [coding_agent, presets.chat])
async def test_the_results_of_a_tool_without_a_limit_stay_whole_when_they_are_old(preset: Preset):
    stages = preset(MemoryStorage(), per_tool={"read_file": None})
    history = conversation(
        user("Go."), step("schema", "read_file", result=WORDS * 4), *work(30)[1:]
    )

    result = await ContextPipeline(stages).session("s").run(history)

    contents = {found.tool_use_id: found.content for found in tool_results(result.messages)}
    assert contents["schema"] == WORDS * 4
    assert any(content != WORDS for content in contents.values())


def test_limits_that_are_no_mapping_are_refused():
    with pytest.raises(SettingsError, match="per_tool is"):
        coding_agent(MemoryStorage(), per_tool=["read_file"])  # type: ignore[arg-type]
