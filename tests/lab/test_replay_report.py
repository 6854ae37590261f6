"""From replays to the report of a page."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from anyio import to_thread
from histories import assistant, conversation, step, user
from workdays import direct, none, transcript

from ctxpipe.atoms import AtomIndex
from ctxpipe.lab.replay import Settings, replay
from ctxpipe.lab.replay_report import Pages, label, recall_points, replay_and_report
from ctxpipe.lab.story import Moment
from ctxpipe.lab.tables import figures
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.lab.words import FIGURES
from ctxpipe.messages import compact_json
from ctxpipe.prices import Prices, prices_of
from ctxpipe.words import as_number, as_percent, as_ratio


async def test_a_report_holds_what_the_replays_tell():
    settings = Settings(tokens_per_raw=1.25)
    ours, theirs = [await replay(transcript(turns=20), make, settings) for make in (direct, none)]

    report = await replay_and_report(transcript(turns=20), direct, none, settings=settings)

    totals = [turn.total for turn in report.turns]
    assert totals == pytest.approx([step.prompt_tokens for step in ours.steps])
    without = [turn.tokens_without for turn in report.turns]
    assert without == [step.prompt_tokens for step in theirs.steps]
    assert sum(turn.cost for turn in report.turns) < sum(turn.cost_without for turn in report.turns)
    assert report.facts[0].without == f"{sum(step.prompt_tokens for step in theirs.steps):,.0f}"
    assert [turn.label for turn in report.turns[-2:]] == ["Read", "an answer"]


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
    moments, prices = list[Moment](), await to_thread.run_sync(prices_of, "claude-opus-4-5")
    told = transcript(turns=4)
    replays = {
        "mine": await replay(told, direct, watch=moments.append),
        "none": await replay(told, none),
    }

    report = await Pages("mine", "none", prices).report(told, replays, moments, None, AtomIndex())

    assert (report.policy, report.baseline, report.unit) == ("mine", "no management", "dollars")
    [cost] = [fact for fact in report.facts if fact.without.startswith("$")]
    assert cost.name == "cost, dollars"


async def test_the_page_calls_each_figure_as_the_tables_do():
    talk = transcript(turns=4)
    report = await replay_and_report(talk, direct, none)
    replays = {"none": await replay(talk, none), "mine": await replay(talk, direct)}
    _, row = figures(replays, Prices.relative(), "none")

    shown = {fact.name.partition(":")[0]: fact.with_it for fact in report.facts}
    assert [name for name in shown if name in FIGURES] == list(FIGURES)
    assert shown["ratio"] == as_ratio(row.ratio)
    assert shown["peak"] == as_number(row.peak)
    assert shown["seen"] == as_percent(row.seen)
    assert shown["found"] == as_percent(row.found)


async def test_a_short_conversation_has_no_curve_of_recall():
    assert await recall_points(transcript(turns=4)) == []


async def test_the_oracle_stands_above_each_way_to_keep_to_a_budget():
    def source(number: int) -> str:
        return "".join(f"value_{number}_{line} = {line}\n" for line in range(300))

    views = [step(f"t{n}", "Read", {"path": f"src/f{n}.py"}, source(n)) for n in range(20)]
    uses = [step(f"u{n}", "Grep", {"pattern": f"value_{n}_150"}, "none") for n in range(20)]
    told = parse_transcript(
        compact_json(conversation(user("Go."), *views, *uses, assistant("Done.")))
    )

    points = await recall_points(told)

    budgets = {point.budget_tokens for point in points}
    assert len(budgets) == 5
    for budget in budgets:
        here = [point for point in points if point.budget_tokens == budget]
        (best,) = [point.recall for point in here if point.oracle]
        assert all(point.recall <= best for point in here)
    assert len({point.recall for point in points}) > 2
