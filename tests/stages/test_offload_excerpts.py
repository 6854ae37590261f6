"""`BatchOffload` with an excerpt: the lines worth keeping follow the placeholder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from histories import assistant, conversation, step, user

from ctxpipe import (
    BatchOffload,
    ContextPipeline,
    Excerpt,
    LocalStorage,
    Preview,
    RatioGate,
    Result,
    SettingsError,
)
from ctxpipe.messages import Message, tool_results


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    return LocalStorage(root)


async def run(stage: BatchOffload, history: list[Message]) -> Result:
    return await ContextPipeline([stage]).run(history, session_id="s")


def contents(messages: list[Message]) -> list[Any]:
    return [result.content for result in tool_results(messages)]


FACT = "the_port of service_one is 4711 on host_seven"


def of_facts(count: int = 3) -> list[Message]:
    """Old results, each with a line that names what nothing else names."""
    lines = [FACT.replace("4711", str(4001 + n)).replace("one", f"no_{n}") for n in range(count)]
    rest = "\nnothing much to say" * 60
    steps = [step(f"t{n}", result=line + rest) for n, line in enumerate(lines)]
    return conversation(user("Go."), *steps, assistant("So."), user("On."))


async def test_an_excerpt_follows_the_mandated_line_and_the_file_is_whole(
    storage: LocalStorage, root: Path
) -> None:
    stage = BatchOffload(storage, RatioGate(0), excerpt=Excerpt(min_value=1))
    history = of_facts()

    result = await run(stage, history)

    for number, (shown, before) in enumerate(
        zip(contents(result.messages), contents(history), strict=True)
    ):
        first, title, line = shown.split("\n")
        assert first == f"[Content offloaded to: ./s/tool-result-t{number}.md]"
        assert title == "Excerpt, 1 of 61 lines:"
        assert line == f" {before.splitlines()[0]}"
        assert (root / "s" / f"tool-result-t{number}.md").read_text() == before


async def test_a_placeholder_with_an_excerpt_stays_as_it_is(storage: LocalStorage) -> None:
    stage = BatchOffload(storage, RatioGate(0), min_chars=10, excerpt=Excerpt(min_value=1))
    first = await run(stage, of_facts())

    again = await run(stage, first.messages)

    assert again.messages is first.messages


async def test_a_plan_shows_the_excerpts_that_will_be_there(storage: LocalStorage) -> None:
    stage = BatchOffload(storage, RatioGate(0), excerpt=Excerpt(min_value=1))
    history = of_facts()
    pipeline = ContextPipeline([stage])

    planned = await pipeline.plan(history, session_id="s")
    done = await pipeline.run(history, session_id="s")

    assert planned.messages == done.messages != history


async def test_an_excerpt_longer_than_what_leaves_is_left_out(storage: LocalStorage) -> None:
    only = conversation(user("Go."), step("t0", result=f"{FACT} " * 5), assistant("So."))
    stage = BatchOffload(
        storage, RatioGate(0), min_chars=10, excerpt=Excerpt(min_value=0, max_share=1)
    )

    result = await run(stage, [*only, user("On.")])

    assert contents(result.messages) == ["[Content offloaded to: ./s/tool-result-t0.md]"]


def test_a_placeholder_shows_a_preview_or_an_excerpt_and_not_both(storage: LocalStorage) -> None:
    with pytest.raises(SettingsError, match="preview and excerpt are both given"):
        BatchOffload(storage, preview=Preview(), excerpt=Excerpt())
