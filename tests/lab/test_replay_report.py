"""From replays to the report of a page."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from anyio import to_thread
from models import MODEL
from workdays import batch, compact, direct, none, transcript

from ctxpipe import TokenCounter
from ctxpipe.lab.figures import figures
from ctxpipe.lab.replay import PipelineMaker, Settings, replay
from ctxpipe.lab.replay_report import Pages, label, replay_and_report
from ctxpipe.lab.report import FIGURES
from ctxpipe.lab.story import Moment
from ctxpipe.prices import Prices, prices_of
from ctxpipe.words import as_number, as_percent, as_ratio


async def test_a_report_holds_what_the_replays_tell():
    settings = Settings(tokens_per_raw=1.25)
    ours, theirs = [await replay(transcript(turns=20), make, settings) for make in (direct, none)]

    makers = {"none": none, "mine": direct}
    report = await replay_and_report(transcript(turns=20), makers, settings=settings)

    without, mine = report.runs
    totals = [turn.total for turn in mine.turns]
    assert totals == pytest.approx([step.prompt_tokens for step in ours.steps])
    totals = [turn.total for turn in without.turns]
    assert totals == pytest.approx([step.prompt_tokens for step in theirs.steps])
    assert sum(turn.cost for turn in mine.turns) == pytest.approx(mine.cost)
    assert mine.cost < without.cost
    sent = sum(step.prompt_tokens for step in theirs.steps)
    assert report.facts[-1].values[0] == as_number(sent)
    assert report.labels[-2:] == ("Read", "an answer")


@pytest.mark.parametrize(
    ("names", "said"),
    [([], "an answer"), (["Read"], "Read"), (["Read", "Bash", "Read"], "Read ×2, Bash")],
)
def test_a_turn_is_named_by_what_the_model_did(names: Sequence[str], said: str):
    content = [
        {"type": "tool_use", "id": str(n), "name": name, "input": {}}
        for n, name in enumerate(names)
    ]
    reply = {"role": "assistant", "content": content or "Done."}

    assert label(reply) == said  # type: ignore[arg-type]


async def test_no_management_is_called_so_on_the_page():
    prices = await to_thread.run_sync(prices_of, MODEL)
    told = transcript(turns=4)
    moments: dict[str, list[Moment]] = {"none": [], "mine": []}
    replays = {
        "none": await replay(told, none, watch=moments["none"].append),
        "mine": await replay(told, direct, watch=moments["mine"].append),
    }

    report = Pages(prices).report(told, replays, moments, {})

    assert [run.policy for run in report.runs] == ["no management", "mine"]
    assert report.unit == "dollars"
    assert report.facts[0].name == "cost, dollars"
    assert all(cost.startswith("$") for cost in report.facts[0].values)


async def test_the_page_calls_each_figure_as_the_tables_do():
    talk = transcript(turns=4)
    report = await replay_and_report(talk, {"none": none, "mine": direct})
    replays = {"none": await replay(talk, none), "mine": await replay(talk, direct)}
    _, row = figures(replays, Prices.relative(), "none")

    shown = {fact.name.partition(":")[0]: fact.values[1] for fact in report.facts}
    assert [name for name in shown if name in FIGURES] == list(FIGURES)
    assert shown["ratio"] == as_ratio(row.ratio)
    assert shown["peak"] == as_number(row.peak)
    assert shown["seen"] == as_percent(row.seen)
    assert shown["found"] == as_percent(row.found)


@pytest.mark.parametrize("make", [none, direct, batch, compact])
async def test_the_shares_of_the_tools_add_up_to_the_bill(make: PipelineMaker):
    report = await replay_and_report(transcript(turns=30), {"mine": make})

    [run] = report.runs
    assert sum(share.cost for share in run.shares) == pytest.approx(run.cost)
    [read] = [share for share in run.shares if share.name == "Read"]
    assert read.calls == 30
    assert read.sent > read.tokens > 0


@pytest.fixture(scope="module", autouse=True)
def ranks() -> None:
    """Loaded before any loop runs: a test may be the first to count."""
    TokenCounter().text("a")
