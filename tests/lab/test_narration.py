"""The report of replays: turns, actions, the places of blocks, and the cost by tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

import pytest
from anyio import to_thread
from histories import assistant, tool_result, tool_use, user, view
from models import MODEL
from workdays import SYSTEM, TOOLS, batch, compact, direct, none, transcript

from ctxpipe import BatchOffload, ContextPipeline
from ctxpipe.diagnostics.prompt_cache import CacheUse
from ctxpipe.lab.costs import ReplayRequest, bill
from ctxpipe.lab.narration import narrate
from ctxpipe.lab.replay import Moment, PipelineMaker, ReplayResult, ReplaySettings, replay
from ctxpipe.lab.report import CostShare, PolicyRun
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message
from ctxpipe.providers.prices import Cliff, Prices, prices_of
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reports import Offloaded, Outcome, StageReport
from ctxpipe.tokens import TokenCounter, as_counter

PRICES = Prices(2.0, 3.0, 4.0, 1.0, 10.0)
COUNTER = TokenCounter()
RAW = ReplaySettings(tokens_per_raw=1.0, prefix_tokens=0)

ASK = user("Read them both.")
CALL = assistant(tool_use("t1", "Read", {"path": "a.py"}))
RESULT = user(tool_result("t1", "x = 1\n" * 50))
ANSWER = assistant("Done.")


@pytest.fixture(scope="module", autouse=True)
def ranks() -> None:
    """Loaded before any loop runs: a test may be the first to count."""
    COUNTER.text("a")


async def narrated(make: PipelineMaker, turns: int = 8) -> tuple[PolicyRun, list[Moment]]:
    moments: list[Moment] = []
    done = await replay(transcript(turns=turns), make, RAW, watch=moments.append)
    [run] = narrate(transcript(turns=turns), {"mine": (done, moments)}).runs
    return run, moments


def tokens(*messages: Message) -> float:
    return float(sum(map(COUNTER.message, messages)))


def moment(
    before: Sequence[Message],
    after: Sequence[Message] | None = None,
    reports: Sequence[StageReport] = (),
    use: CacheUse | None = None,
    reply: Sequence[Message] = (),
) -> Moment:
    after = before if after is None else after
    request = ReplayRequest(0, "reply", use or CacheUse(0.0, 0.0, tokens(*after)), tokens(*reply))
    return Moment(0, before, after, reports, [request], reply)


def told(*moments: Moment, prices: Prices = PRICES) -> PolicyRun:
    [run] = narrate(
        Transcript("t", [ASK, ANSWER], "Anthropic messages"),
        {"mine": (ReplayResult("t", ()), moments)},
        prices,
    ).runs
    return run


# Turns and actions --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [none, direct, batch, compact])
async def test_the_kinds_add_up_to_the_whole_prompt_and_the_shares_to_the_bill(
    make: PipelineMaker,
):
    run, moments = await narrated(make, turns=30)

    last = {moment.call: moment.after for moment in moments}
    assert [sum(turn.tokens.values()) for turn in run.turns] == [
        COUNTER.total(context, system=SYSTEM, tools=TOOLS) for context in last.values()
    ]
    assert sum(turn.cost for turn in run.turns) == pytest.approx(run.figures.cost)
    assert sum(share.cost for share in run.shares) == pytest.approx(run.figures.cost)
    [read] = [share for share in run.shares if share.name == "Read"]
    assert read.calls == 30
    assert read.sent > read.tokens > 0


async def test_carrying_is_the_cost_of_all_prompts_after_the_first_one_with_a_text():
    once, _ = await narrated(none, turns=1)
    often, _ = await narrated(none, turns=30)

    assert {share.name: share.carrying for share in once.shares}["Read"] == 0
    [read] = [share for share in often.shares if share.name == "Read"]
    assert 0 < read.carrying < read.cost
    # A text that stays is read from the cache by each later prompt.
    assert read.carrying == pytest.approx(0.1 * (read.sent - read.tokens), rel=0.25)
    assert all(0 <= share.carrying <= share.cost for share in often.shares)


async def test_every_kind_is_distinguished():
    run, _ = await narrated(direct)

    kinds = "system tools user assistant thinking calls placeholders"
    assert set(run.turns[6].tokens) == set(kinds.split())
    assert run.turns[6].tokens["user"] == COUNTER.text("Read every file, please.")


async def test_an_offloaded_result_is_shown_with_its_placeholder_and_its_file():
    _, moments = await narrated(direct)
    # A pipeline estimates a text that leaves before it was counted: here the figures are exact.
    as_counter(None).total(moments[1].before)
    run, moments = await narrated(direct)

    [action] = run.turns[1].actions
    [change] = action.replaced
    assert (action.stage, action.outcome) == ("DirectOffload", "changed")
    assert change.original.startswith("f0_0 = 0\n")
    assert change.placeholder.startswith("[Tool result offloaded to file: /")
    assert change.where in change.placeholder
    assert change.where.endswith("/t0.md")
    assert change.tokens_before > change.tokens_after > 0
    assert action.tokens_saved == change.tokens_before - change.tokens_after
    assert action.reason == f"1 block moved to files, {len(change.original):,} characters"
    assert moments[1].before[-1]["content"] != moments[1].after[-1]["content"]


async def test_a_compaction_is_shown_with_its_summary_and_the_messages_it_replaced():
    run, _ = await narrated(compact, turns=30)

    acted = [action for turn in run.turns for action in turn.actions]
    assert {action.stage for action in acted} == {"Compact"}
    [change] = acted[0].replaced
    assert "[Conversation compressed]" in change.placeholder
    assert "— result of Read: src/f0.py\nf0_0 = 0\n" in change.original
    assert change.where.endswith(".json")
    assert "summary" in run.turns[30].tokens


async def test_the_biggest_blocks_name_the_place_to_which_they_moved():
    run, _ = await narrated(batch, turns=12)

    blocks = {block.name: block for block in run.blocks}
    gone, there = blocks["result of Read: src/f0.py"], blocks["result of Read: src/f11.py"]
    assert gone.fate == "moved to tool-result-t0.md"
    assert gone.until is not None
    assert gone.action is not None
    assert run.turns[gone.until - 1].actions[gone.action].stage == "BatchOffload"
    assert (there.fate, there.until, there.action) == ("still in the context", None, None)
    sizes = [block.tokens for block in run.blocks]
    assert sizes == sorted(sizes, reverse=True)
    assert next(block.turn for block in run.blocks if block.name.endswith("f3.py")) == 5


async def test_a_call_whose_input_was_offloaded_names_the_file():
    text = "x = 1\n" * 500
    call = assistant(tool_use("t0", "Write", {"path": "f.py", "content": text}))
    views = (message for n in range(1, 9) for message in view(f"t{n}", f"f{n}.py", "y"))
    history = [user("Go."), call, user(tool_result("t0", "Done.")), *views]
    storage = Workbench().storage
    stage = BatchOffload(storage, RatioGate(0.1), inputs={"Write"})
    result = await ContextPipeline([stage]).run(history, session_id="s")

    run = told(moment(history, result.messages, result.reports))

    [change] = run.turns[0].actions[0].replaced
    assert storage.stored[change.where] == text
    assert run.blocks[0].fate == f"moved to {PurePath(change.where).name}"


def test_a_block_that_was_read_twice_is_listed_once():
    twice = [*view("t0", "f.py", "x = 1\n" * 50), *view("t1", "f.py", "x = 1\n" * 50)]

    run = told(moment([user("Go."), *twice]))

    assert sum(block.kind == "results" for block in run.blocks) == 1


def test_a_block_names_its_action_even_if_a_stage_acts_twice_in_a_turn():
    first, second = (view(f"t{n}", f"f{n}.py", "x = 1\n" * (50 + n)) for n in range(2))
    history = [user("Go."), *first, *second]
    placeholders = [tool_result(f"t{n}", f"[Content offloaded to: /x/s/t{n}.md]") for n in range(2)]
    once = [*history[:2], user(placeholders[0]), *history[3:]]
    twice = [*once[:4], user(placeholders[1])]
    reports = [
        StageReport("BatchOffload", "s", Outcome.CHANGED, 0.0, detail=Offloaded((f"/x/s/t{n}.md",)))
        for n in range(2)
    ]

    run = told(moment(history, once, reports[:1]), moment(once, twice, reports[1:]))

    actions = {block.name: block.action for block in run.blocks if block.kind == "results"}
    assert actions == {"result of read_file: f0.py": 0, "result of read_file: f1.py": 1}


# Shares of the cost -------------------------------------------------------------------------------


def by_name(run: PolicyRun) -> dict[str, CostShare]:
    return {share.name: share for share in run.shares}


def test_the_beginning_of_a_prompt_is_charged_as_read_and_the_rest_as_written():
    use = CacheUse(tokens(ASK, CALL), tokens(RESULT), 0.0)

    shares = by_name(told(moment([ASK, CALL, RESULT], use=use, reply=[ANSWER])))

    assert shares["user text"].cost == tokens(ASK) * PRICES.read
    assert shares["Read"].cost == tokens(CALL) * PRICES.read + tokens(RESULT) * PRICES.write
    assert shares["assistant text"].cost == tokens(ANSWER) * PRICES.output


@pytest.mark.parametrize("read", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("cliffs", [(), (Cliff(10, 2.0, 1.5),)])
def test_the_shares_add_up_to_the_bill(read, cliffs: tuple[Cliff, ...]):
    prices = replace(PRICES, cliffs=cliffs)
    whole = tokens(ASK, CALL, RESULT)
    rest = (1 - read) * whole
    use = CacheUse(read * whole, 0.75 * rest, 0.25 * rest)
    sent = moment([ASK, CALL, RESULT], use=use, reply=[ANSWER])

    shares = told(sent, prices=prices).shares

    assert sum(share.cost for share in shares) == pytest.approx(bill(sent.requests, prices).total)


def test_a_text_counts_once_but_is_sent_with_every_prompt():
    read = by_name(told(*[moment([ASK, CALL, RESULT])] * 3))["Read"]

    assert read.calls == 1
    assert read.tokens == tokens(CALL, RESULT)
    assert read.sent == 3 * read.tokens


def test_a_request_for_a_summary_is_charged_to_the_summaries():
    summary = ReplayRequest(0, "summary", CacheUse(100.0, 0.0, 20.0), 30.0)
    sent = moment([ASK])
    sent.requests.insert(0, summary)

    share = by_name(told(sent))["summaries and notes"]

    assert (share.sent, share.cost) == (120.0, bill([summary], PRICES).total)


# The report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "said"),
    [([], "an answer"), (["Read"], "Read"), (["Read", "Bash", "Read"], "Read ×2, Bash")],
)
def test_a_turn_is_named_by_what_the_model_did(names: Sequence[str], said):
    calls = [tool_use(str(n), name, {}) for n, name in enumerate(names)]
    reply = assistant(*calls) if calls else assistant("Done.")
    recorded = Transcript("folder/t.jsonl", [ASK, reply], "Anthropic messages")

    report = narrate(recorded, {"none": (ReplayResult("t", ()), ())})

    assert (report.title, list(report.labels)) == ("t.jsonl", [said])
    assert report.cache is None


async def test_the_runs_of_a_report_are_the_replays_at_the_prices_given():
    prices = await to_thread.run_sync(prices_of, MODEL)
    replays = {name: (await replay(transcript(), make), ()) for name, make in MAKERS.items()}

    report = narrate(transcript(), replays, prices)

    assert [run.figures.policy for run in report.runs] == ["none", "mine"]
    assert [run.figures.cost for run in report.runs] == [
        bill(done.requests, prices).total for done, _ in replays.values()
    ]


MAKERS: dict[str, PipelineMaker] = {"none": none, "mine": direct}
