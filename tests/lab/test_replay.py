"""A recorded conversation, turn by turn through a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
from histories import (
    PICTURE,
    assistant,
    conversation,
    histories,
    step,
    text,
    thinking,
    tool_use,
    user,
)
from hypothesis import given, settings

from benchmarks.baselines import Baseline, KeepLast
from ctxpipe import BatchOffload, Budget, Collapse, Compact, ContextPipeline, DirectOffload
from ctxpipe.diagnostics.prompt_cache import CacheUse
from ctxpipe.lab.costs import bill
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.replay import (
    Moment,
    PipelineMaker,
    ReplayResult,
    ReplaySettings,
    replay,
    replay_all,
)
from ctxpipe.lab.transcripts import Transcript, parse_transcript, read_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message, compact_json, tool_calls, tool_results
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.compact.stage import Breaker, Restore
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.protocol import Skip, Turn
from ctxpipe.stages.reports import Outcome
from ctxpipe.summarizers import ExtractiveSummarizer, Summarizer, Summary
from ctxpipe.tokens import TokenCounter

NONE = Policy("none")
FREE = ReplaySettings(refetch=False, prefix_tokens=0)
BY_SETTINGS = ReplaySettings(refetch=False, by_settings=True, prefix_tokens=0)
FACT = "the old staging server keeps its keys in vault_entry_4711"
LOG = f"the log:\n{FACT}\n" + "a line of a log that says nothing at all\n" * 120


def recorded(messages: list[Message], **more: object) -> Transcript:
    return replace(parse_transcript(compact_json(messages), "talk"), **more)  # type: ignore[arg-type]


def work(calls: int, *, long: Sequence[int] = (), last: str = "All done here.") -> list[Message]:
    steps = [
        step(f"t{i}", result=f"{i} {LOG}" if i in long else f"{i} is fine") for i in range(calls)
    ]
    return conversation(user("Go."), *steps, assistant(last))


def offloading(keep_recent: int = 1) -> PipelineMaker:
    def make(bench: Workbench) -> ContextPipeline:
        return ContextPipeline(
            [BatchOffload(bench.storage, RatioGate(0.2), keep_recent=keep_recent)]
        )

    return make


@dataclass
class Seen:
    """A stage that looks and does nothing."""

    contexts: list[list[Message]] = field(default_factory=list)
    cold: list[bool] = field(default_factory=list)

    async def __call__(self, turn: Turn) -> Skip:
        self.contexts.append(list(turn.messages))
        self.cold.append(turn.cache_expired)
        return Skip("only looking")


# As in life ---------------------------------------------------------------------------------------


async def test_each_reply_is_one_call_with_all_messages_before_it():
    seen, history = Seen(), work(3)

    found = await replay(recorded(history), lambda _: ContextPipeline([seen]))

    assert seen.contexts == [history[:1], history[:3], history[:5], history[:7]]
    assert [one.call for one in found.steps] == [0, 1, 2, 3]


@settings(max_examples=settings().max_examples // 10)
@given(histories(3, thoughts=False))
async def test_without_stages_the_whole_conversation_is_sent_and_visible(
    history: list[Message],
):
    if not any(message["role"] == "assistant" for message in history):
        return
    transcript = recorded(history)
    found = await replay(transcript, NONE, ReplaySettings(prefix_tokens=0))
    counter = TokenCounter()
    last = max(i for i, message in enumerate(transcript.messages) if message["role"] == "assistant")

    assert len(found.steps) == len(found.requests) == transcript.calls
    assert found.steps[-1].prompt_tokens == 1.25 * counter.total(transcript.messages[:last])
    assert found.use.recall == 1


async def test_the_figures_do_not_depend_on_where_a_recording_is():
    here = recorded(work(6, long=range(6)))
    far = replace(here, name="/a/folder/far/away/of a name/that-is-long-0123456789/talk.jsonl")

    one, other = [await replay(transcript, offloading()) for transcript in (here, far)]

    assert one.steps == other.steps


async def test_a_text_that_a_stage_replaced_stays_replaced():
    seen = Seen()

    def make(bench: Workbench) -> ContextPipeline:
        return ContextPipeline([seen, *offloading()(bench).stages])

    await replay(recorded(work(6, long=[0])), make, FREE)

    found = [FACT in compact_json(context) for context in seen.contexts]
    assert found == [False, True, True, *[False] * 4]


async def test_the_same_input_gives_the_same_replay():
    transcript = recorded(work(9, long=[0, 3, 5], last=f"Remember:\n{FACT}"))
    one, two = [await replay(transcript, Policy("coding")) for _ in range(2)]

    assert one.requests == two.requests
    assert one.use == two.use


# Time ---------------------------------------------------------------------------------------------


async def test_after_a_pause_longer_than_the_cache_lifetime_the_stages_get_cache_expired():
    seen, history = Seen(), work(3, long=[0])
    times = {1: 0.0, 3: 10.0, 5: 311.0, 7: 320.0}

    found = await replay(recorded(history, seconds=times), lambda _: ContextPipeline([seen]), FREE)

    assert seen.cold == [False, False, True, False]
    assert [request.use.read > 0 for request in found.requests] == [False, False, False, True]


async def test_without_times_the_cache_expires_only_with_rest_every():
    transcript = recorded(work(6, long=[0]))
    awake, resting = [await replay(transcript, NONE, ReplaySettings(rest_every=n)) for n in (0, 3)]

    assert [request.use.read > 0 for request in awake.requests[2:]] == [True] * 5
    found = [request.use.read > 0 for request in resting.requests[2:]]
    assert found == [True, False, True, True, False]


@pytest.mark.parametrize(
    "shown", [[assistant("Let me see."), user(PICTURE)], step("t9", result=[PICTURE])]
)
async def test_with_by_settings_the_first_image_removes_the_messages_from_the_cache(
    shown: list[Message],
):
    *before, _ = work(3, long=[0])
    history = conversation(*before, *shown, assistant("Ok."))

    found = await replay(recorded(history), NONE, BY_SETTINGS)

    reads = [request.use.read for request in found.requests]
    assert reads[3] > 0
    assert reads[4] == 0


@pytest.mark.parametrize("counts", [True, False])
async def test_with_by_settings_options_for_stale_thinking_remove_the_messages_from_the_cache(
    counts,
):
    _, *history = work(5, long=[0])
    history[4] = assistant(thinking(), tool_use("t2"))

    moments: list[Moment] = []
    found = await replay(
        recorded([user(LOG), *history]),
        offloading(2),
        BY_SETTINGS if counts else FREE,
        watch=moments.append,
    )

    changed = next(
        moment.call
        for moment in moments
        if any(report.outcome is Outcome.CHANGED for report in moment.reports)
    )
    assert (found.requests[changed].use.read == 0) == counts


# Reading back -------------------------------------------------------------------------------------


async def refetching(
    last: str, settings: ReplaySettings | None = None, keep_recent: int = 1
) -> tuple[ReplayResult, Seen]:
    seen = Seen()

    def make(bench: Workbench) -> ContextPipeline:
        return ContextPipeline([*offloading(keep_recent)(bench).stages, seen])

    return await replay(recorded(work(6, long=[0], last=last)), make, settings), seen


async def test_a_text_that_a_reply_uses_and_the_context_lacks_is_read_back_first():
    found, seen = await refetching(f"Here it is:\n{FACT}")
    requests = [(request.call, request.purpose) for request in found.requests]

    assert requests[-2:] == [(6, "refetch"), (6, "reply")]
    assert sum(purpose == "refetch" for _, purpose in requests) == 1
    [call] = tool_calls(seen.contexts[-1][-2:])
    [result] = tool_results(seen.contexts[-1][-1:])
    assert call.name == "read_offloaded"
    assert str(call.input["path"]).endswith("tool-result-t0.md")
    assert result.content == f"0 {LOG}"


FACTS = {
    "English": (
        "The parcel with number {} has to be checked by two people before it leaves the hall",
        "on day number {} the hall was cleaned and nobody reported anything at all",
    ),
    "Chinese": (
        "编号{}的包裹在离开仓库之前必须由两名员工共同检查一遍",
        "第{}天打扫了仓库当天没有任何人报告任何问题",
    ),
    "Japanese": (
        "番号{}の小包は倉庫を出る前に二人で確認しなければならない",
        "第{}日は倉庫を掃除したが誰からも何の報告もなかった",
    ),
    "Thai": (
        "พัสดุหมายเลข{}ต้องได้รับการตรวจสอบโดยคนสองคนก่อนออกจากคลังสินค้า",
        "วันที่{}ทำความสะอาดคลังสินค้าและไม่มีใครรายงานอะไรเลย",
    ),
    "Korean": (
        "번호{}의 소포는 창고를 떠나기 전에 두 사람이 확인해야 한다",
        "제{}일에는 창고를 청소했으며 아무도 아무것도 보고하지 않았다",
    ),
    "Khmer": (
        "កញ្ចប់លេខ{}ត្រូវតែពិនិត្យដោយមនុស្សពីរនាក់មុនពេលចាកចេញពីឃ្លាំង",
        "ថ្ងៃទី{}បានសម្អាតឃ្លាំងហើយគ្មាននរណារាយការណ៍អ្វីទេ",
    ),
    "Chinese with English": (
        "package编号{}在离开warehouse之前必须由两名员工共同review一遍",
        "第{}天打扫了warehouse当天没有任何人报告任何problem",
    ),
}
"""A fact and a line without interest, in several languages."""


def lookups(language: str) -> list[Message]:
    """Thirty records are looked up, and later replies say the facts of some of them."""
    fact, other_line = FACTS[language]
    history = [user("?")]
    for number in range(30):
        lines = [other_line.format(50 * number + day) for day in range(60)]
        lines[20] = fact.format(1011 + 7 * number)
        history += step(f"t{number}", "lookup", {"q": str(number)}, "\n".join(lines))
    for number in range(0, 30, 3):
        history += [assistant(fact.format(1011 + 7 * number)), user("?")]
    return [*history, assistant("ok")]


@pytest.mark.parametrize("policy", ["none", "coding", "lean"])
async def test_recall_and_reading_back_are_those_of_the_same_talk_in_english(policy: str):
    results = {
        language: await replay(recorded(lookups(language)), Policy(policy)) for language in FACTS
    }

    english = results["English"]
    refetches = sum(request.purpose == "refetch" for request in english.requests)
    assert (english.use.recall == 1.0) is (policy == "none")
    for result in results.values():
        assert result.use.total == english.use.total
        assert abs(result.use.recall - english.use.recall) <= 0.05
        found = sum(request.purpose == "refetch" for request in result.requests)
        assert abs(found - refetches) <= 1


async def test_a_collapsed_step_is_read_back_from_its_file():
    seen = Seen()

    def make(bench: Workbench) -> ContextPipeline:
        stage = Collapse(
            bench.storage,
            prices=Prices.relative(read=1.25),
            min_calls=0,
            min_tokens=1,
            keep_recent=2,
            min_value=1000,
        )
        return ContextPipeline([stage, seen])

    found = await replay(recorded(work(6, long=[0], last=f"Here it is:\n{FACT}")), make)

    assert [request.purpose for request in found.requests].count("refetch") == 1
    [call] = tool_calls(seen.contexts[-1][-2:])
    assert call.name == "read_offloaded"
    assert str(call.input["path"]).endswith("/s1.md")


async def test_a_text_without_a_pointer_is_read_back_by_repeating_the_call():
    seen = Seen()

    def make(bench: Workbench) -> ContextPipeline:
        return ContextPipeline([*Baseline("mask")(bench).stages, seen])

    history = conversation(
        user("Go."),
        step("t0", "grep", {"q": "x"}, LOG),
        *(step(f"u{i}") for i in range(12)),
        assistant(FACT),
    )
    await replay(recorded(history), make)

    [call] = tool_calls(seen.contexts[-1][-2:])
    assert (call.name, call.input) == ("grep", {"q": "x"})


async def test_a_text_that_no_tool_returned_is_read_back_as_a_message():
    seen = Seen()

    def make(_: Workbench) -> ContextPipeline:
        return ContextPipeline([KeepLast(20), seen])

    history = [user("Go."), assistant("Well."), user(FACT), *work(6, last=FACT)[1:]]
    await replay(recorded(history), make)

    [call] = tool_calls(seen.contexts[-1][-2:])
    assert (call.name, call.input) == ("read_history", {"message": 2})


@pytest.mark.parametrize(
    ("last", "settings"), [(f"Here it is:\n{FACT}", FREE), ("It was vault_entry_4711.", None)]
)
async def test_without_refetching_or_enough_weight_nothing_is_read_back(
    last, settings: ReplaySettings | None
):
    found, _ = await refetching(last, settings)

    assert {request.purpose for request in found.requests} == {"reply"}
    assert found.use.pointer > 0


async def test_each_request_has_its_cache_use_with_all_four_marks():
    found = await replay(recorded(work(60, long=range(60))), offloading(8), FREE)
    marked = [request.marked for request in found.requests if request.marked]

    assert len(marked) == len(found.requests)
    assert [use.prompt for use in marked] == [request.use.prompt for request in found.requests]
    assert sum(use.read for use in marked) > sum(request.use.read for request in found.requests)


async def test_policies_replayed_together_give_the_same_as_each_alone():
    transcript = recorded(work(12, long=range(12), last=f"Here it is:\n{FACT}"))
    makers: dict[str, PipelineMaker] = {
        "none": NONE,
        "offloading": offloading(2),
        "coding": Policy("coding"),
    }

    together = await replay_all(transcript, makers)

    assert together == {name: await replay(transcript, make) for name, make in makers.items()}


async def test_reading_back_has_a_cost():
    prices = Prices.relative()
    paid, _ = await refetching(f"Here it is:\n{FACT}")
    free, _ = await refetching(f"Here it is:\n{FACT}", FREE)

    assert bill(paid.requests, prices).total > bill(free.requests, prices).total


async def test_a_direct_offload_s_preview_counts_as_visible():
    def make(bench: Workbench) -> ContextPipeline:
        return ContextPipeline([DirectOffload(bench.storage, preview=Preview(len(FACT) + 20, 0))])

    found = await replay(recorded(work(2, long=[0], last=FACT)), make)

    assert found.use.lost == found.use.pointer == 0


# Compaction ---------------------------------------------------------------------------------------


def compacting(summarize: Summarizer | None = None) -> PipelineMaker:
    def make(bench: Workbench) -> ContextPipeline:
        stage = Compact(
            summarize or ExtractiveSummarizer(),
            archive=bench.storage,
            restore=Restore(files=bench.files),
            breaker=Breaker(clock=bench.clock),
        )
        return ContextPipeline([stage], budget=Budget(window=20_000, trigger=3000))

    return make


async def test_an_extracted_summary_costs_as_much_as_one_by_a_model():
    found = await replay(recorded(work(12, long=range(12))), compacting(), FREE)
    summaries = [request for request in found.requests if request.purpose == "summary"]

    assert summaries
    assert summaries[0].output == 2000
    assert summaries[0].use.written == 0
    assert summaries[0].use.read > 0


async def test_the_usage_that_a_summarizer_reports_is_used():
    class Billed:
        async def __call__(self, _messages: Sequence[Message], /) -> Summary:
            return Summary(
                "## Goals\nGo on.", input_tokens=900, cached_tokens=600, output_tokens=77
            )

    found = await replay(recorded(work(12, long=range(12))), compacting(Billed()), FREE)
    summary = next(request for request in found.requests if request.purpose == "summary")

    assert (summary.use, summary.output) == (CacheUse(600, 0, 300), 77)


async def test_an_atom_in_an_archive_is_one_call_away_if_its_path_is_visible():
    told = "the seventh column of the ledger is written in green ink"
    history = work(12, long=range(12), last=told)
    history[1:3] = step("first", result=f"{told}\n{LOG}")
    found = await replay(recorded(history), compacting(), FREE)

    assert found.use.lost + found.use.pointer > 0


# Odd conversations --------------------------------------------------------------------------------


async def test_system_prompt_and_tools_of_the_transcript_are_part_of_every_prompt():
    bare = await replay(recorded(work(1)), NONE, FREE)
    full = await replay(
        recorded(work(1), system="Be brief. " * 50, tools=[{"name": "bash"}]), NONE, FREE
    )
    more = {
        round(b.prompt_tokens - a.prompt_tokens, 6)
        for a, b in zip(bare.steps, full.steps, strict=True)
    }

    assert len(more) == 1
    assert more.pop() > 100


async def test_replies_with_only_calls_and_histories_with_pictures_can_be_replayed():
    history = conversation(
        user(PICTURE), [assistant(tool_use("t")), user(text("Never mind."))], assistant("Ok.")
    )

    found = await replay(recorded(history), Policy("coding"))

    assert len(found.steps) == 2


def replayed(
    file: Path, make: PipelineMaker, settings: ReplaySettings | None = None
) -> ReplayResult:
    return anyio.run(replay, read_transcript(file), make, settings)


@pytest.mark.shared
def test_the_full_context_of_a_real_session_has_recall_one_and_a_high_hit_rate(
    shared,
):
    file = shared / "transcripts" / "kimicli-fetchurl.jsonl"
    found, resting = replayed(file, NONE), replayed(file, NONE, ReplaySettings(rest_every=33))

    assert found.use.recall == 1
    assert found.use.total > 100
    assert 0.93 < bill(found.requests, Prices.relative()).hit_rate < 0.97
    assert (
        bill(resting.requests, Prices.relative()).hit_rate
        < bill(found.requests, Prices.relative()).hit_rate
    )


@pytest.mark.shared
def test_on_a_real_session_nothing_is_lost_and_the_gate_saves_money(shared):
    file = shared / "transcripts" / "kimicli-pr-checklist-sonnet46.jsonl"
    none, gated = replayed(file, NONE), replayed(file, Baseline("rent-or-buy"))

    assert gated.use.lost == 0
    assert (
        bill(gated.requests, Prices.relative()).total < bill(none.requests, Prices.relative()).total
    )
