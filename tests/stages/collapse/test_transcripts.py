"""Recorded conversations of real agents whose old exchanges collapse, turn by turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from api_rules import faults
from recorded import each_sample, recorded, turns

from ctxpipe import Budget, Collapse, ContextPipeline, DirectOffload, LocalStorage, Result, presets
from ctxpipe.functions import load_archive
from ctxpipe.messages import THINKING, Message
from ctxpipe.messages.identity import digest
from ctxpipe.placeholders.notes import note_of
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.stages.protocol import Stage
from ctxpipe.stages.reports import Collapsed, Outcome
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import problems
from ctxpipe.testing.rules import Model
from ctxpipe.tokens import TokenCounter

pytestmark = pytest.mark.shared

COUNTER = TokenCounter()
MODEL = Model(prefill=True)  # a context may end in the assistant's words
BUDGET = Budget(window=200_000, trigger=167_000)
FOREIGN_ID = "should match pattern"  # ids of other providers, as the transcripts have them
CHECKED = 5  # contexts between two that are checked whole, where nothing was rewritten


def lean(storage: LocalStorage) -> list[Stage]:
    return presets.coding_agent(
        storage,
        work_dir=None,
        old_exchanges="lines",
        summarize=ExtractiveSummarizer(max_words=200, brief=True),
    )


def collapse_alone(storage: LocalStorage) -> list[Stage]:
    return [Collapse(storage)]


async def contexts(
    history: list[Message], pipeline: ContextPipeline, storage: LocalStorage
) -> list[Result]:
    """Contexts sent at each turn."""
    session = pipeline.session("s", journal=storage)
    found = []
    stop = 0
    for new in turns(history):
        stop += len(new)
        found.append(await session.run(history[:stop]))
    stored = await session.history()
    assert [digest(message) for message in stored] == [digest(message) for message in history]
    return found


def body_of(result: Result) -> dict[str, Any]:
    extra = result.request_options.get("extra_body", {})
    said = [message for message in result.messages if message["role"] != "system"]
    return {"model": "m", "max_tokens": 1, **extra, "messages": said}


def thoughts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] in THINKING:
                yield json.dumps(block)


@each_sample(15)
async def test_every_context_is_accepted_and_begins_as_the_one_before(shared, tmp_path, file: Path):
    history = recorded(file)
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline(lean(storage), budget=BUDGET, counter=COUNTER, on_error="raise")
    known = set(thoughts(history))
    sent: list[Message] = []
    for number, result in enumerate(await contexts(history, pipeline, storage)):
        messages = result.messages
        first = result.first_changed_index
        same = len(sent) if first is None else min(first, len(sent))
        assert messages[:same] == sent[:same]
        sent = messages
        if first is None and number % CHECKED:
            continue
        assert [
            fault for fault in problems(body_of(result), MODEL) if FOREIGN_ID not in fault
        ] == []
        assert faults(messages) == []
        assert set(thoughts(messages)) <= known


@each_sample(15, 12)
async def test_nothing_that_leaves_is_lost(shared, tmp_path, file: Path):
    history = recorded(file)
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline(
        collapse_alone(storage), budget=BUDGET, counter=COUNTER, on_error="raise"
    )
    archived: set[bytes] = set()
    last: list[Message] = []
    for result in await contexts(history, pipeline, storage):
        last = result.messages
        for report in result.reports:
            if isinstance(report.detail, Collapsed) and report.detail.archive:
                messages = await load_archive(report.detail.archive)
                archived.update(digest(message) for message in messages)
    here = archived | {digest(message) for message in last}

    assert {digest(message) for message in history} <= here
    for message in last:
        note = note_of(message)
        for number in range(note.first, note.last + 1) if note else ():
            assert Path(note.path(number)).stat().st_size  # type: ignore[union-attr]


@each_sample(15, 8)
async def test_another_process_sends_the_same_bytes(shared, tmp_path, file: Path):
    history = recorded(file)
    root = tmp_path / "root"
    sent = []
    for number in range(2):
        root.mkdir()  # one in which nothing is written, too
        storage = LocalStorage(root)
        stages: list[Stage] = [
            DirectOffload(storage, min_chars=8000, preview=Preview()),
            Collapse(storage, min_calls=0),
        ]
        pipeline = ContextPipeline(stages, budget=BUDGET, counter=COUNTER, on_error="raise")
        session = pipeline.session("s")
        stop = 0
        said = []
        for new in turns(history):
            stop += len(new)
            result = await session.run(history[:stop])
            said.append(json.dumps(result.messages))
            assert all(report.outcome is not Outcome.REFUSED for report in result.reports)
        sent.append(said)
        root.rename(tmp_path / f"of process {number}")

    assert sent[0] == sent[1]
