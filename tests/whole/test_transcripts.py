"""Recorded conversations of real agents, turn by turn through both offload stages."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, cast

import pytest
from api_rules import faults
from recorded import TRANSCRIPTS, each_sample, recorded, turns

from ctxpipe import BatchOffload, ContextPipeline, DirectOffload, LocalStorage
from ctxpipe.messages import Message, blocks, check, tool_results
from ctxpipe.placeholders.placeholders import BATCH, reference
from ctxpipe.stages.reading.results import stored_text
from ctxpipe.stages.reports import Outcome

pytestmark = pytest.mark.shared


def pipeline(root: Path) -> ContextPipeline:
    storage = LocalStorage(root)
    return ContextPipeline([DirectOffload(storage), BatchOffload(storage)], on_error="raise")


def opening(content: Any) -> str:
    first = content[0] if isinstance(content, list) and content else {}
    return str(first.get("text") if first else content)


def misplaced(context: list[Message], history: list[Message], root: Path, start: int) -> list[str]:
    """The placeholders from message *start* on behind which not the original lies, whole."""
    wrong = []
    for result in tool_results(context, start):
        where = reference(opening(result.content))
        if where is not None:
            original = cast("Any", blocks(history[result.message])[result.block]).get("content")
            indent = 2 if opening(result.content).startswith(BATCH.split("{}")[0]) else None
            if Path(root, where).read_bytes().decode() != stored_text(original, indent=indent):
                wrong.append(where)
    return wrong


def test_there_are_46_of_them(shared):
    assert len(TRANSCRIPTS) == 46


@each_sample(12, 7)
async def test_at_every_turn_the_context_is_valid_and_nothing_is_lost(shared, tmp_path, file: Path):
    history = recorded(file)
    before = copy.deepcopy(history)
    remembered = pipeline(tmp_path)
    context: list[Message] = []
    offloaded = 0
    for number, new in enumerate(turns(history)):
        given = [*context, *new]
        result = await remembered.run(given, session_id=file.stem)
        context = result.messages

        assert result.repaired == ()
        assert check(context) == []
        assert number % 10 or faults(context) == []
        if result.first_changed_index is not None:
            offloaded += 1
            assert context[: result.first_changed_index] == given[: result.first_changed_index]
            assert misplaced(context, history, tmp_path, result.first_changed_index) == []
        again = await (pipeline(tmp_path) if number % 25 == 0 else remembered).run(
            context, session_id=file.stem
        )
        assert again.messages is context

    assert history == before
    assert len(context) == len(history)
    assert faults(context) == []
    assert misplaced(context, history, tmp_path, 0) == []
    assert offloaded or all(len(str(result.content)) < 1000 for result in tool_results(history))


@each_sample(15, 11)
async def test_a_new_process_goes_on_where_another_stopped(shared, tmp_path, file: Path):
    context: list[Message] = []
    for number, new in enumerate(turns(recorded(file))):
        result = await pipeline(tmp_path).run([*context, *new], session_id="s")
        if number % 10 == 0:
            # read back from disk, all objects are new
            lines = json.loads(json.dumps([*context, *new]))
            assert (await pipeline(tmp_path).run(lines, session_id="s")).messages == result.messages
        assert [r.error for r in result.reports if r.outcome is Outcome.FAILED] == []
        context = result.messages
