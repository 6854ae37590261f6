"""Recorded conversations of real agents, sent by two kinds of callers.

One keeps the complete history, the other continues with the context.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from api_rules import faults
from recorded import each_sample, recorded, turns

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    SmartTruncate,
)
from ctxpipe.messages import Message, rewrite, tool_results
from ctxpipe.messages.identity import digest
from ctxpipe.stages.compact.stage import Breaker, Evidence, Restore
from ctxpipe.stages.reports import Outcome
from ctxpipe.summarizers import ExtractiveSummarizer, Retry, Summary
from ctxpipe.tokens import TokenCounter

pytestmark = pytest.mark.shared

COUNTER = TokenCounter()
SECONDS_A_TURN = 100.0


@dataclass
class Life:
    """A conversation with its storage in *root*, and its own clock and summarizer."""

    root: Path
    budget: Budget
    seconds: float = 0.0
    asked: int = 0
    acted: Counter[str] = field(default_factory=Counter)

    async def summarize(self, messages: Sequence[Message], /) -> Summary:
        """Without a model, and every third time not at all: then truncation has to do."""
        self.asked += 1
        if self.asked % 3 == 0:
            raise ConnectionError("no answer this time")
        return await ExtractiveSummarizer(max_words=200, brief=True)(messages)

    def clock(self) -> float:
        return self.seconds

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.root, clock=self.clock)

    def pipeline(self) -> ContextPipeline:
        self.root.mkdir(parents=True, exist_ok=True)
        stages = (
            DirectOffload(self.storage),
            BatchOffload(self.storage),
            Compact(
                self.summarize,
                self.storage,
                restore=Restore(work_dir=self.root),
                evidence=Evidence(tokens=self.budget.trigger // 8),
                breaker=Breaker(
                    retry=Retry(max_retries=0),
                    cooldown_seconds=3 * SECONDS_A_TURN,
                    clock=self.clock,
                ),
            ),
            SmartTruncate(self.storage),
        )
        return ContextPipeline(stages, budget=self.budget, counter=COUNTER)

    def note(self, result: Result):
        self.seconds += SECONDS_A_TURN
        self.acted.update(
            report.stage for report in result.reports if report.outcome is Outcome.CHANGED
        )


class Bytes:
    """The bytes of messages, each written once."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Message, str]] = {}

    def __call__(self, messages: Sequence[Message]) -> list[str]:
        return [self._of(message) for message in messages]

    def _of(self, message: Message) -> str:
        held = self._held.get(id(message))
        if held is None:
            held = self._held[id(message)] = message, json.dumps(message)
        return held[1]


def first_change(result: Result) -> int | None:
    """Return the index from which the reports of a turn say that the context has changed."""
    places = [
        report.first_changed_index for report in result.reports if report.outcome is Outcome.CHANGED
    ]
    return min((place for place in places if place is not None), default=None)


async def small_budget(history: list[Message]) -> Budget:
    """Return a budget so small that several summaries are needed, even with results in files."""
    long = {
        result.place: "" for result in tool_results(history) if len(str(result.content)) >= 1000
    }
    head = await COUNTER.count([message for message in history if message["role"] == "system"])
    trigger = max(1500, head * 2, await COUNTER.count(rewrite(history, long)) // 4)
    return Budget(window=2 * trigger, trigger=trigger)


@each_sample(20, 3)
async def test_callers_with_the_history_or_the_context_send_the_same_bytes_until_a_summary(
    shared, tmp_path, file: Path
):
    history, told = recorded(file), Bytes()
    budget = await small_budget(history)
    root = tmp_path / "root"  # the same for both, because its path is in the context
    sent: list[list[str]] = []

    keeping = Life(root, budget)
    session = keeping.pipeline().session("s", journal=keeping.storage)
    stop = 0
    for new in turns(history):
        stop += len(new)
        result = await session.run(history[:stop])
        keeping.note(result)

        now, before, first = told(result.messages), sent[-1] if sent else [], first_change(result)
        same = len(before) if first is None else min(first, len(before))
        assert now[:same] == before[:same]
        assert (result.covered, result.notices, result.first_changed_index) == (stop, (), first)
        assert len(sent) % 10 or faults(result.messages) == []
        assert len(sent) % 25 or await as_another_process_sends(keeping, history[:stop]) in (
            now,
            None,
        )
        sent.append(now)
    assert list(map(digest, await session.history())) == list(map(digest, history))

    root.rename(tmp_path / "first")
    adopting, context = Life(root, budget), list[Message]()
    pipeline = adopting.pipeline()
    for new, expected in zip(turns(history), sent, strict=True):
        result = await pipeline.run([*context, *new], session_id="s")
        adopting.note(result)
        context = result.messages
        if adopting.acted["Compact"]:
            break  # from here on its evidence comes from the archives, and not from the raw history
        assert told(context) == expected
    assert adopting.acted["Compact"]
    assert keeping.acted.keys() >= {"DirectOffload", "Compact"}
    # where a summary failed, the next may have come in time
    assert keeping.acted["SmartTruncate"] or keeping.asked < 6


async def as_another_process_sends(life: Life, history: list[Message]) -> list[str] | None:
    """Return the messages that another process sends with the journal of *life*.

    Returns None if it tries something that was given up in *life*.
    """
    another, kept = Life(life.root, life.budget, life.seconds), life.root.with_name("kept")
    life.root.mkdir(exist_ok=True)
    shutil.copytree(life.root, kept)
    session = another.pipeline().session("s", journal=another.storage)
    result = await session.run(json.loads(json.dumps(history)))
    another.note(result)
    # What it has left there is not the first one's. The root itself stays: it is pinned.
    shutil.rmtree(life.root / "s", ignore_errors=True)
    if (kept / "s").exists():
        (kept / "s").rename(life.root / "s")
    shutil.rmtree(kept)

    assert result.notices == ()
    return None if another.asked or another.acted else Bytes()(result.messages)
