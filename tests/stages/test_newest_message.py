"""The user's last words stay whole in every stage as long as anything else can be removed."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from histories import assistant, chat, conversation, step, tool_result, tool_use, user
from recorded import in_turn

from ctxpipe import (
    Budget,
    Collapse,
    Compact,
    ContextPipeline,
    LocalStorage,
    SmartTruncate,
    Stage,
    presets,
)
from ctxpipe.functions import count_tokens
from ctxpipe.messages import Message, as_blocks, kind
from ctxpipe.stages.reports import Compacted
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens.media import PDF_PAGE_TOKENS

WINDOW = 200_000
TRIGGER = 184_000
SUMMARIZE = ExtractiveSummarizer()
Stages: TypeAlias = Callable[[LocalStorage], list[Stage]]


def words(text: str) -> int:
    return len(text.split())


def text_of(number: int) -> str:
    return "word " * number


def pdf(pages: int) -> dict[str, Any]:
    content = b"%PDF-1.7\n" + b"<</Type /Page>>" * pages + bytes(3_000_000)
    data = base64.b64encode(content).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    return {"type": "document", "source": source}


PICTURE = {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}

NEWEST: dict[str, list[Message]] = {
    "a text": [user(text_of(126_000))],
    "several messages": [user(text_of(40_000)), user(PICTURE), user(text_of(80_000)), user("So?")],
    "a document, then a question": [user(pdf(50)), user("When does it end?")],
    "a document and a question": [user(pdf(50), "When does it end?")],
    "results and a text": [
        assistant(tool_use("now")),
        user(tool_result("now", "a result"), pdf(30), PICTURE, text_of(60_000)),
    ],
}

STAGES: dict[str, Stages] = {
    "coding": lambda it: presets.coding_agent(it, work_dir=None, summarize=SUMMARIZE),
    "chat": lambda it: presets.chat(it, summarize=SUMMARIZE),
    "compact": lambda it: [Compact(SUMMARIZE, it)],
    "truncate": lambda it: [SmartTruncate(it)],
    "collapse": lambda it: [Collapse(it, min_calls=0), SmartTruncate(it)],
}

every_stage = pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
every_message = pytest.mark.parametrize("newest", NEWEST.values(), ids=NEWEST)


def pipeline_of(stages: Stages, folder: Path, **budget: Any) -> ContextPipeline:
    made = stages(LocalStorage(folder))
    return ContextPipeline(made, budget=Budget(WINDOW, **budget), counter=words)


def old(tokens: int) -> list[Message]:
    """Return an earlier history with so many tokens."""
    steps = [step(f"t{n}", "bash", {"command": f"make {n}"}, text_of(400)) for n in range(100)]
    rest = tokens - 40_000
    return conversation(
        user("Fix it."), *steps, assistant("Done."), chat(20, rest // 20), assistant("So.")
    )


def own_blocks(messages: Sequence[Message]) -> list[object]:
    """Return the user's own blocks in *messages*: everything but results."""
    blocks = itertools.chain.from_iterable(map(as_blocks, messages))
    return [block for block in blocks if kind(block) not in ("tool_result", "tool_use")]


def check_newest(context: Sequence[Message], newest: Sequence[Message]):
    wanted = own_blocks(newest)
    assert own_blocks(context)[-len(wanted) :] == wanted


@every_stage
@every_message
async def test_a_first_request_that_fits_passes_whole(
    stages: Stages, newest: list[Message], tmp_path
):
    history = [user("Look."), *newest] if newest[0]["role"] == "assistant" else newest

    result = await pipeline_of(stages, tmp_path).run(history, session_id="s")

    assert result.messages is history


@pytest.mark.parametrize(
    ("stages", "newest_and_bill"),
    in_turn(STAGES, last=[(newest, billed) for billed in (None, 1.25) for newest in NEWEST]),
)
async def test_what_is_older_gives_way_first(
    stages: str, newest_and_bill: tuple[str, float | None], tmp_path
):
    newest, billed = newest_and_bill
    pipeline = pipeline_of(STAGES[stages], tmp_path)
    before = old(90_000)
    session = pipeline.session("s")
    if billed is not None:
        sent = await session.run(before)
        session.observe({"input_tokens": round(billed * sent.tokens_after)})

    result = await session.run([*before, *NEWEST[newest]])

    assert result.tokens_after < count_tokens([*before, *NEWEST[newest]], counter=words)
    check_newest(result.messages, NEWEST[newest])


@every_message
async def test_what_a_refusal_takes_is_what_is_older(newest: list[Message], tmp_path):
    stages = STAGES["compact"]
    session = pipeline_of(stages, tmp_path).session("s")
    history = [*old(50_000), *newest]
    sent = await session.run(history)

    shorter = await session.recover(
        "prompt is too long: 205000 tokens > 200000 maximum", history, sent
    )

    assert shorter is not None
    check_newest(shorter.messages, newest)


@pytest.mark.parametrize("overhead", [60_000, 120_000, 150_000])
@pytest.mark.parametrize("room", [3_000, 10_000])
async def test_a_system_prompt_and_tools_are_no_reason_to_cut(overhead, room, tmp_path):
    tools = [{"name": "bash", "description": text_of(overhead // 2)}]
    system = text_of(overhead // 2)
    newest = [user(text_of(WINDOW - overhead - room))]
    pipeline = pipeline_of(STAGES["coding"], tmp_path)

    alone = await pipeline.run(newest, session_id="s", system=system, tools=tools)
    after = [*chat(10, 600), assistant("ok"), *newest]
    shaped = await pipeline.run(after, session_id="t", system=system, tools=tools)

    assert alone.messages is newest
    check_newest(shaped.messages, newest)


async def test_a_greeting_is_no_measure_of_a_long_text(tmp_path):
    session = pipeline_of(STAGES["coding"], tmp_path).session("s")
    history = [user("Hello.")]
    await session.run(history)
    session.observe({"input_tokens": 40})
    history = [*history, assistant("Hello, what is it?"), user(text_of(160_000))]

    assert (await session.run(history)).messages == history


async def test_a_resumed_session_knows_what_was_measured(tmp_path):
    storage = LocalStorage(tmp_path)
    history = old(120_000)
    contexts = []
    for billed in (1.6, None):
        pipeline = ContextPipeline([SmartTruncate(storage)], budget=Budget(WINDOW), counter=words)
        session = pipeline.session("s", journal=storage)
        contexts.append(await session.run(history))
        if billed is not None:
            session.observe({"input_tokens": round(billed * contexts[0].tokens_after)})
            await session.run(history)

    assert not contexts[0].changed
    assert contexts[1].tokens_after < contexts[0].tokens_after


async def test_a_trigger_far_below_the_window_is_no_reason_to_cut(tmp_path):
    newest = [user(pdf(50), "When does it end?")]
    pipeline = pipeline_of(STAGES["chat"], tmp_path, trigger=0.1)

    result = await pipeline.run([*chat(40, 400), assistant("ok"), *newest], session_id="s")

    report = result.reports[-2]
    assert isinstance(report.detail, Compacted)
    assert report.detail.over_target
    check_newest(result.messages, newest)


async def test_what_no_window_holds_is_cut(tmp_path):
    newest = [user(pdf(90), text_of(60_000))]
    stage = Compact(SUMMARIZE, LocalStorage(tmp_path))
    pipeline = ContextPipeline([stage], budget=Budget(WINDOW), counter=words)

    result = await pipeline.run([*chat(10), assistant("ok"), *newest], session_id="s")

    [report] = result.reports
    assert isinstance(report.detail, Compacted)
    assert any("in the archive only" in warning for warning in report.detail.warnings)


async def test_compacting_by_hand_keeps_the_newest_message(tmp_path):
    pipeline = pipeline_of(STAGES["coding"], tmp_path)
    session = pipeline.session("s")
    newest = [user(pdf(15), "When does it end?")]
    before = [*chat(4, 20), assistant("ok")]
    await session.run(before[:-1])
    context = await session.compact([*before, *newest])

    check_newest(context.messages, newest)


def test_the_figures_of_this_file_are_those_of_the_default_budget():
    assert (Budget().window, Budget().trigger) == (WINDOW, TRIGGER)
    assert 50 * PDF_PAGE_TOKENS < TRIGGER
