"""Half an emoji anywhere in a history costs no stage its effect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from histories import assistant, step, system, text, tool_result, tool_use, user
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import in_turn

from ctxpipe import (
    BatchOffload,
    Budget,
    Collapse,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    SmartTruncate,
)
from ctxpipe.messages import Message, as_json, check
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.compact.stage import Evidence
from ctxpipe.stages.protocol import Change, Stage, Turn
from ctxpipe.stages.reports import Outcome, Result
from ctxpipe.summarizers import Summary

HALVES = ("nice \ud83d", "\udcff.py", "a \udc80 b", "\ud800\ud800")


async def summarize(messages: Sequence[Message]) -> Summary:
    return Summary("a summary, with half an emoji: \ud83d")


def loop(turns: int, *beginning: Message) -> list[Message]:
    history = list(beginning)
    for number in range(turns):
        history += step(f"t{number}", "bash", {"command": f"step {number}"}, "word " * 200)
    return history


BEGINNINGS: dict[str, Any] = {
    "words of the user": lambda half: [user(half)],
    "a command of the user's": lambda half: [user(f"<command>{half}</command>")],
    "a block of the user's": lambda half: [user(text(half), text("and on"))],
    "a system message": lambda half: [user("go"), assistant("yes"), user("on"), system(half)],
    "a reply": lambda half: [user("go"), assistant(half), user("on")],
    "a path": lambda half: [user("go"), *step("q", "write_file", {"path": f"src/{half}"}, "ok")],
    "a key of an input": lambda half: [user("go"), *step("q", "bash", {half: "x"}, "ok")],
    "a command": lambda half: [user("go"), *step("q", "bash", {"command": f"cat {half}"}, "ok")],
    "a result": lambda half: [user("go"), *step("q", result=f"{half} " * 300)],
    "an error": lambda half: [
        user("go"),
        assistant(tool_use("q")),
        user(tool_result("q", f"failed: {half}", is_error=True)),
    ],
    "a pinned message": lambda half: [user(f"Rule: {half}"), assistant("yes"), user("on")],
}


def stages(storage: Any) -> list[list[Stage]]:
    compact = Compact(summarize, archive=storage, evidence=Evidence(pin=["Rule:"]))
    return [
        [DirectOffload(storage, min_chars=500), BatchOffload(storage, min_chars=300)],
        [compact],
        [Collapse(storage, min_calls=0, min_tokens=100, prices=Prices.relative(read=1.0))],
        [SmartTruncate(archive=storage)],
    ]


async def shaped(history: list[Message], chosen: list[Stage], storage: Any) -> list[Result]:
    """The results of a life in which the *history* grows, in two processes."""
    results: list[Result] = []
    for _ in range(2):
        pipeline = ContextPipeline(chosen, budget=Budget(window=3_000))
        session = pipeline.session("s", journal=storage)
        for end in range(len(history) // 2, len(history) + 1):
            if history[end - 1]["role"] == "user":
                results.append(await session.run(history[:end]))
    return results


@pytest.mark.parametrize(
    ("place", "number_and_half"),
    in_turn(BEGINNINGS, last=[(number, half) for half in HALVES[:2] for number in range(4)]),
)
async def test_half_an_emoji_costs_no_stage_its_effect(
    place: str, number_and_half: tuple[int, str]
):
    number, half = number_and_half
    storage = MemoryStorage()
    history = loop(14, *BEGINNINGS[place](half))
    before = as_json(history)

    results = await shaped(history, stages(storage)[number], storage)

    outcomes = [report.outcome for result in results for report in result.reports]
    assert Outcome.CHANGED in outcomes
    assert Outcome.REFUSED not in outcomes
    assert Outcome.FAILED not in outcomes
    for result in results:
        assert check(result.messages) == []
        json.dumps(result.messages, ensure_ascii=False).encode()
    assert as_json(history) == before


@settings(max_examples=settings().max_examples // 2)
@given(
    st.lists(st.sampled_from(sorted(BEGINNINGS)), min_size=1, max_size=5),
    st.sampled_from(HALVES),
    st.integers(0, 3),
)
def test_half_an_emoji_in_several_places_costs_no_compaction(
    places: list[str], half: str, number: int
):
    storage = MemoryStorage()
    beginning: list[Message] = []
    for index, place in enumerate(places):
        part = as_json(BEGINNINGS[place](half)).replace('"q"', f'"q{index}"')
        beginning += [*json.loads(part), assistant("done")]
    history = loop(16, *beginning, user("on"))

    results = asyncio.run(shaped(history, stages(storage)[number], storage))

    outcomes = [report.outcome for result in results for report in result.reports]
    assert Outcome.REFUSED not in outcomes
    assert all(check(result.messages) == [] for result in results)


async def test_what_a_stage_of_the_caller_writes_is_made_fit_to_be_sent(tmp_path: Path):
    async def note(turn: Turn) -> Change | None:
        if len(turn.messages) < 3:
            return None
        return Change([user(text("half: \ud83d"), text("whole"))])

    storage = LocalStorage(tmp_path)
    session = ContextPipeline([note]).session("s", journal=storage)

    result = await session.run([user("x" * 200), assistant("y" * 200), user("z" * 200)])

    assert result.messages == [user(text("half: \ufffd"), text("whole"))]
    assert result.reports[0].outcome is Outcome.CHANGED
