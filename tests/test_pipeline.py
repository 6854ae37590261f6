"""Stages run in order over a turn, guarded, timed and reported.

The memory of earlier turns never changes a result.
"""

from __future__ import annotations

import copy
import errno
import json
import logging
import re
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
from api_rules import faults
from histories import (
    assistant,
    broken_histories,
    chat,
    conversation,
    histories,
    step,
    system,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given
from hypothesis import strategies as st
from processes import new_python, python

from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Collapse,
    Compact,
    ContextPipeline,
    DirectOffload,
    InvalidHistory,
    LocalStorage,
    MemoryStorage,
    Result,
    SettingsError,
    Skip,
    SmartTruncate,
    Stage,
    StorageError,
    TrimReadBacks,
    Turn,
    presets,
)
from ctxpipe.functions import count_tokens
from ctxpipe.messages import Message, blocks, check, kind, tool_calls, tool_results
from ctxpipe.messages.thinking import drop_block
from ctxpipe.placeholders.placeholders import Preview, any_reference, reference
from ctxpipe.providers.agent_tools import WRITING_TOOLS
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reports import Offloaded, Outcome, StageReport
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

HISTORY = conversation(
    user("go"), step("a", say="look", result="found " * 50), assistant("done"), user("and now?")
)


def proposing(change: Callable[[list[Message]], Sequence[Message]], **options: Any) -> Stage:
    """A stage that proposes what *change* makes of a copy of the messages."""

    async def propose(turn: Turn) -> Change:
        return Change(cast("list[Message]", change(copy.deepcopy(list(turn.messages)))), **options)

    return propose


async def nothing(_turn: Turn):
    return None


async def run(*stages: Stage, history: list[Message] | None = None, **options: Any) -> Result:
    pipeline = ContextPipeline(stages, **options)
    return await pipeline.run(HISTORY if history is None else history, session_id="s")


def shortened(messages: list[Message]) -> list[Message]:
    cast("Any", messages[2]["content"])[0]["content"] = "short"
    return messages


# Running ------------------------------------------------------------------------------------------


async def test_without_stages_the_same_list_object_is_returned():
    result = await run()

    assert result.messages is HISTORY
    assert (result.reports, result.repaired, result.changed, result.first_changed_index) == (
        (),
        (),
        False,
        None,
    )


async def test_stages_run_in_the_order_of_use_each_on_the_context_of_the_one_before():
    seen: list[tuple[str, int]] = []

    def noting(name: str) -> Stage:
        async def note(turn: Turn) -> Change:
            seen.append((name, len(turn.messages)))
            return Change(list(turn.messages[:-1]))

        return note

    history = chat(6)
    result = (
        await ContextPipeline().use(noting("one")).use(noting("two")).run(history, session_id="s")
    )

    assert seen == [("one", 6), ("two", 5)]
    assert result.messages == history[:4]


async def test_a_pipeline_has_its_stages_budget_and_counter_as_properties():
    counter, budget = TokenCounter(), Budget(1000)
    pipeline = ContextPipeline([nothing], counter=counter, budget=budget)

    assert (pipeline.stages, pipeline.counter, pipeline.budget) == ((nothing,), counter, budget)
    assert ContextPipeline().budget == Budget()


async def test_a_turn_has_the_session_force_budget_and_tokens_of_the_whole_request():
    turns: list[tuple[Any, ...]] = []

    async def note(turn: Turn):
        turns.append(
            (
                turn.session_id,
                turn.force,
                turn.budget.window,
                await turn.raw_tokens(),
                turn.overhead,
            )
        )

    pipeline = ContextPipeline([note], budget=Budget(1000), counter=len)
    tools = [{"name": "t", "description": "d"}]
    await pipeline.run([user("four")], session_id="s", system="be brief", tools=tools, force=True)
    await pipeline.run([user("four")], session_id="s")

    [(session, force, window, raw, overhead), later] = turns
    assert (session, force, window, raw) == ("s", True, 1000, 4 + overhead)
    assert overhead == len("be brief") + len(json.dumps(tools[0], separators=(",", ":")))
    assert later == ("s", False, 1000, 4, 0)


async def test_tools_added_in_place_count_from_the_next_turn_on():
    overheads: list[int] = []

    async def note(turn: Turn):
        overheads.append(turn.overhead)

    pipeline, session = (
        ContextPipeline([note], counter=len),
        ContextPipeline([note], counter=len).session("s"),
    )
    tools, system = [{"name": "t"}], [{"type": "text", "text": "be brief"}]
    for _ in range(2):
        await pipeline.run([user("four")], session_id="s", system=system, tools=tools)
        await session.run([user("four")], system=system, tools=tools)
        tools.append({"name": "u"})
        system.append({"type": "text", "text": "be kind"})

    before, added = overheads[0], len('{"name":"u"}') + len("be kind")
    assert overheads == [before, before, before + added, before + added]


async def test_an_invalid_history_is_refused_before_any_stage_runs(
    tmp_path,
):
    for broken, words in (
        ({"role": "user"}, "a history is a list"),
        ([user("go"), {"role": "user"}], "message 1 has no content"),
        ([*HISTORY, "hi"], f"message {len(HISTORY)} is str"),
        ([*HISTORY, {"role": "user", "content": [None]}], f"block 0 of message {len(HISTORY)}"),
    ):
        pipeline = ContextPipeline([BatchOffload(LocalStorage(tmp_path / "root"))])
        for attempt in (pipeline.run, pipeline.plan):
            with pytest.raises(InvalidHistory, match=words):
                await attempt(cast("list[Message]", broken), session_id="s")

    assert not (tmp_path / "root").exists()


async def test_an_invalid_message_appended_later_is_refused_and_then_forgotten():
    pipeline = ContextPipeline([nothing])
    await pipeline.run(HISTORY, session_id="s")

    with pytest.raises(InvalidHistory, match=f"message {len(HISTORY)} has no role"):
        await pipeline.run([*HISTORY, cast("Message", {"content": "x"})], session_id="s")

    assert (await pipeline.run(HISTORY, session_id="s")).messages is HISTORY


# Guarding -----------------------------------------------------------------------------------------


async def test_a_valid_and_shorter_proposal_is_accepted():
    result = await run(proposing(shortened))

    assert [found.content for found in tool_results(result.messages)] == ["short"]
    assert (result.reports[0].outcome, result.reports[0].first_changed_index) == (
        Outcome.CHANGED,
        2,
    )
    assert result.first_changed_index == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda messages: messages[1:], "the first message is not the user's"),
        (lambda messages: [*messages[:2], *messages[3:]], "the tool_use 'a' has no tool_result"),
        (lambda messages: [messages[0], *messages[2:]], "the tool_result 'a' has no tool_use"),
        (lambda messages: [*messages[:3], assistant("")], "it is empty"),
        (lambda messages: [*messages[:3], assistant(text(" "))], "an empty text block"),
        (
            lambda messages: [*messages[:3], assistant(text("x"), thinking("y"))],
            "it ends in a thinking block",
        ),
        (
            lambda messages: [
                *messages[:3],
                user(*[{**text("x"), "cache_control": {"type": "e"}} for _ in range(5)]),
            ],
            "the first of more than 4 cache_control marks",
        ),
    ],
)
async def test_a_proposal_that_breaks_a_rule_is_refused(change, words):
    for options in ({}, {"may_grow": True}):
        result = await run(proposing(change, **options))

        assert result.messages is HISTORY
        assert result.reports[0].outcome is Outcome.REFUSED
        assert "it would break a rule of the Messages API" in result.reports[0].reason
        assert words in result.reports[0].reason


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda messages: [*messages, user("more")], len(HISTORY)),
        # as many tokens as before
        (lambda messages: [*messages[:-1], user("and then?")], len(HISTORY) - 1),
    ],
)
async def test_a_proposal_that_saves_nothing_is_refused_unless_the_stage_may_grow(
    change: Callable[[list[Message]], list[Message]], first
):
    refused, accepted = await run(proposing(change)), await run(proposing(change, may_grow=True))

    assert refused.messages is HISTORY
    assert (refused.reports[0].outcome, refused.reports[0].reason) == (
        Outcome.REFUSED,
        "it would not save a single token (Change(…, may_grow=True) allows that)",
    )
    assert accepted.messages == change(HISTORY)
    assert accepted.first_changed_index == first


async def test_a_proposal_of_equal_messages_changes_nothing():
    result = await run(proposing(lambda messages: messages, may_grow=True))

    assert result.messages is HISTORY
    assert (result.reports[0].outcome, result.reports[0].reason) == (
        Outcome.SKIPPED,
        "the proposal changes nothing",
    )


@pytest.mark.parametrize(
    ("verdict", "reason"), [(True, "vetoed"), ("too much at once", "too much at once")]
)
async def test_a_veto_refuses_a_proposal(verdict: bool | str, reason):
    result = await run(
        proposing(shortened, detail=Offloaded(results=1)), veto=lambda _turn, _change: verdict
    )

    assert result.messages is HISTORY
    [report] = result.reports
    assert (report.outcome, report.reason, report.detail) == (
        Outcome.REFUSED,
        reason,
        Offloaded(results=1),
    )


async def test_a_veto_gets_turn_and_proposal_and_may_accept_it():
    seen: list[tuple[int, int]] = []

    def look(turn: Turn, change: Change) -> bool:
        seen.append((len(turn.messages), len(change.messages)))
        return False

    result = await run(proposing(lambda messages: messages[:3]), veto=look)

    assert seen == [(5, 3)]
    assert result.changed


async def test_a_veto_that_fails_stops_the_proposal_and_not_the_turn():
    def fail(turn: Turn, change: Change) -> bool:
        raise ZeroDivisionError("no verdict")

    result = await run(proposing(shortened), nothing, veto=fail)

    assert result.messages is HISTORY
    assert [report.outcome for report in result.reports] == [Outcome.FAILED, Outcome.SKIPPED]


# Failing ------------------------------------------------------------------------------------------


async def failing(_turn: Turn):
    raise ZeroDivisionError("division by zero")


async def test_a_failing_stage_is_reported_and_the_others_run(
    caplog,
):
    result = await run(failing, proposing(shortened))

    failed, changed = result.reports
    assert (failed.stage, failed.outcome) == ("failing", Outcome.FAILED)
    assert failed.reason.startswith("ZeroDivisionError (test_pipeline.py, line ")
    assert isinstance(failed.error, ZeroDivisionError)
    assert changed.outcome is Outcome.CHANGED
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_an_error_without_a_text_is_reported_by_its_name():
    async def silent(_turn: Turn):
        raise TimeoutError

    assert (await run(silent)).reports[0].reason.startswith("TimeoutError (test_pipeline.py, line ")


async def test_with_on_error_raise_the_error_itself_is_raised():
    told: list[StageReport] = []

    with pytest.raises(ZeroDivisionError):
        await run(failing, on_error="raise", on_report=told.append)

    assert [report.outcome for report in told] == [Outcome.FAILED]


@pytest.mark.parametrize("answer", [[], HISTORY, "skip", True])
async def test_a_result_of_a_stage_that_is_not_a_proposal_is_a_failure(answer):
    async def odd(_turn: Turn) -> Any:
        return answer

    result = await run(odd)

    assert result.messages is HISTORY
    assert result.reports[0].outcome is Outcome.FAILED
    assert "a stage answers with a Change, a Skip or None" in result.reports[0].reason


async def test_invalid_messages_from_a_stage_are_a_failure():
    def other(proposed: Any, _messages: list[Message]) -> Any:
        return proposed

    for proposed in (None, ["x"], [{"role": "user"}]):
        result = await run(proposing(partial(other, proposed)))

        assert result.messages is HISTORY
        assert result.reports[0].outcome is Outcome.FAILED


async def test_a_stage_that_cannot_be_awaited_is_a_failure():
    def late(turn: Turn) -> str:
        return turn.session_id.upper()

    result = await run(cast("Stage", late))

    assert result.reports[0].outcome is Outcome.FAILED
    assert (
        result.reports[0].reason
        == "its answer, str, cannot be awaited; write the stage as `async def`"
    )


async def test_cancellation_is_raised_and_does_not_affect_the_next_turn(
    tmp_path,
):
    patience = 0.01

    async def slow(_turn: Turn):
        await anyio.sleep(patience and 60)

    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path)), slow, proposing(shortened)])
    history = conversation(
        HISTORY, [assistant(tool_use("b"))], [user(tool_result("b", "line of a log\n" * 200))]
    )
    before = copy.deepcopy(history)

    with anyio.move_on_after(patience) as scope:
        await pipeline.run(history, session_id="s")
    patience = 0
    result = await pipeline.run(history, session_id="s")

    assert scope.cancelled_caught
    assert history == before
    outcomes = [report.outcome for report in result.reports]
    assert outcomes == [Outcome.CHANGED, Outcome.SKIPPED, Outcome.CHANGED]


async def test_a_turn_cancelled_while_a_file_is_being_written_leaves_it_whole_and_the_history_as_it_was(  # noqa: E501
    tmp_path,
):
    scope = anyio.CancelScope()

    def cancelling(words: str) -> str:
        # we are in the worker thread, in the midst of the write
        anyio.from_thread.run_sync(scope.cancel)
        return words

    async def pause(_turn: Turn):
        await anyio.lowlevel.checkpoint()

    words = "line of a log\n" * 200
    history = conversation(user("go"), step("a", result=words))
    before = copy.deepcopy(history)
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path, redact=cancelling)), pause])

    with scope:
        await pipeline.run(history, session_id="s")
    held = {path.name: path.read_text() for path in tmp_path.rglob("*.md")}
    result = await pipeline.run(history, session_id="s")

    assert scope.cancelled_caught
    assert history == before
    assert held == {"a.md": words}
    assert reference(next(tool_results(result.messages)).content) == str(tmp_path / "s/a.md")
    assert [path.name for path in tmp_path.rglob("*.md")] == ["a.md"]


async def test_an_error_that_is_not_an_exception_is_never_caught():
    async def stop(_turn: Turn):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(stop)


# Reporting ----------------------------------------------------------------------------------------


async def test_every_stage_is_reported_when_it_ends():
    told: list[StageReport] = []

    async def reasoned(_turn: Turn) -> Skip:
        return Skip("too early", Offloaded(chars=5))

    result = await run(nothing, reasoned, proposing(shortened), on_report=told.append)

    assert tuple(told) == result.reports
    assert [(r.stage, r.session_id, r.outcome, r.reason) for r in told] == [
        ("nothing", "s", Outcome.SKIPPED, ""),
        ("reasoned", "s", Outcome.SKIPPED, "too early"),
        ("propose", "s", Outcome.CHANGED, ""),
    ]
    assert told[1].detail == Offloaded(chars=5)
    assert result.tokens_saved == count_tokens(HISTORY) - count_tokens(result.messages) > 0
    assert all(report.seconds >= 0 for report in told)


async def test_an_observer_that_fails_never_breaks_the_turn(
    caplog,
):
    def fail(report: StageReport):
        raise ZeroDivisionError

    result = await run(proposing(shortened), nothing, on_report=fail)

    assert [report.outcome for report in result.reports] == [Outcome.CHANGED, Outcome.SKIPPED]
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 2
    assert all(
        line.startswith("on_report failed, and the turn goes on: ZeroDivisionError")
        for line in told
    )


async def test_each_stage_writes_one_line_to_the_log(caplog):
    with caplog.at_level(logging.DEBUG, "ctxpipe"):
        await run(nothing, proposing(shortened), proposing(lambda messages: messages[1:]), failing)

    levels = [(record.name, record.levelname) for record in caplog.records]
    assert levels == [
        ("ctxpipe", level) for level in ("DEBUG", "INFO", "WARNING", "WARNING", "DEBUG")
    ]
    assert caplog.records[1].message.startswith("propose [s, turn 1] changed: from message 2 on; ")
    assert caplog.records[-1].exc_info is not None  # the traceback, on level DEBUG


@given(histories(2), st.data())
async def test_the_first_changed_index_is_where_input_and_output_part(
    history: list[Message], data: st.DataObject
):
    cuts = data.draw(st.lists(st.integers(0, len(history)), max_size=3))

    def cut_at(end: int, messages: list[Message]) -> list[Message]:
        return messages[:end]

    stages = [proposing(partial(cut_at, end)) for end in cuts]

    result = await run(*stages, history=history)

    if result.first_changed_index is None:
        assert result.messages == history
    else:
        index = result.first_changed_index
        assert result.messages[:index] == history[:index]
        assert result.messages[index : index + 1] != history[index : index + 1]


@pytest.mark.parametrize("is_old_first", [True, False])
async def test_the_changed_part_spans_the_changes_of_all_stages(is_old_first):
    def shorter_request(messages: list[Message]) -> list[Message]:
        return [*messages[:4], user("now?"), *messages[5:]]

    stages = [proposing(shortened), proposing(shorter_request)]
    history = [*HISTORY, assistant("hm"), user("go on")]

    result = await run(*(stages if is_old_first else stages[::-1]), history=history)

    assert (result.first_changed_index, result.changed_end) == (2, 5)
    assert result.messages[5:] == history[5:]


def test_spans_have_the_name_session_and_outcome():
    script = """
import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ctxpipe import Change, ContextPipeline
async def shorten(turn):
    return Change(list(turn.messages[:1]))
async def wait(turn):
    pass
async def fail(turn):
    raise ZeroDivisionError
async def main():
    pipeline = ContextPipeline([shorten, wait, fail])
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "ok"}]
    await pipeline.run(history, session_id="before")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    await pipeline.run(history, session_id="s")
    spans = exporter.get_finished_spans()
    whole = next(span for span in spans if span.name == "ctxpipe.run")
    for span in spans:
        inside = span.parent is not None and span.parent.span_id == whole.context.span_id
        names = {key.removeprefix("ctxpipe."): value for key, value in span.attributes.items()}
        print(span.name, names, inside)
anyio.run(main)
"""
    assert python(script).splitlines() == [
        (
            "ctxpipe.shorten "
            "{'session_id': 's', 'gen_ai.conversation.id': 's', 'tokens_before': 2, "
            "'tokens_after': 1, 'tokens_saved': 1, "
            "'outcome': 'changed'} True"
        ),
        (
            "ctxpipe.wait "
            "{'session_id': 's', 'gen_ai.conversation.id': 's', 'tokens_before': 1, "
            "'tokens_after': 1, 'tokens_saved': 0, "
            "'outcome': 'skipped'} True"
        ),
        (
            "ctxpipe.fail "
            "{'session_id': 's', 'gen_ai.conversation.id': 's', 'tokens_before': 1, "
            "'tokens_after': 1, 'tokens_saved': 0, "
            "'outcome': 'failed', 'error.type': 'ZeroDivisionError'} True"
        ),
        (
            "ctxpipe.run "
            "{'session_id': 's', 'gen_ai.conversation.id': 's', 'tokens_before': 2, "
            "'tokens_after': 1, 'tokens_saved': 1, "
            "'messages': 1, 'repaired': 0, 'gen_ai.conversation.compacted': True} False"
        ),
    ]


def test_spans_say_whether_the_context_is_a_compacted_view_of_the_conversation():
    script = """
import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ctxpipe import Change, ContextPipeline, MemoryStorage
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
async def shorten_five(turn):
    if len(turn.messages) == 5:
        return Change([turn.messages[0], *turn.messages[3:]])
def view():
    [span] = [span for span in exporter.get_finished_spans() if span.name == "ctxpipe.run"]
    exporter.clear()
    return span.attributes.get("gen_ai.conversation.compacted")
async def main():
    storage = MemoryStorage()
    said = [{"role": role, "content": "go"} for role in ("user", "assistant") * 4]
    pipeline = ContextPipeline([shorten_five])
    session = pipeline.session("s", journal=storage)
    for count in (3, 5, 7):
        await session.run(said[:count])
        print(view(), end=" ")
    await ContextPipeline([]).session("s", journal=storage).run(said)
    print(view(), end=" ")
    await session.run(said[:1])
    print(view())
anyio.run(main)
"""
    # Three messages, the turn that shortens, one after it, another process, and back to the first.
    assert new_python(script) == "None True True True None"


def test_opentelemetry_is_not_imported_without_its_sdk():
    script = """
import sys, anyio
from ctxpipe import ContextPipeline
async def main():
    await ContextPipeline([]).run([{"role": "user", "content": "go"}], session_id="s")
    print([name for name in sys.modules if name.startswith("opentelemetry")])
anyio.run(main)
"""
    assert new_python(script) == "[]"


def test_an_sdk_that_only_the_environment_names_gets_the_spans_too(
    monkeypatch,
):
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "sdk_tracer_provider")
    script = """
import anyio
from ctxpipe import ContextPipeline
async def look(turn):
    from opentelemetry import trace
    print(trace.get_current_span().name)
async def main():
    await ContextPipeline([look]).run([{"role": "user", "content": "go"}], session_id="s")
anyio.run(main)
"""
    assert new_python(script) == "ctxpipe.look"


# Mending ------------------------------------------------------------------------------------------


async def test_a_broken_history_is_repaired_and_reported():
    broken = conversation(user("go"), assistant(tool_use("a")), assistant("so"), user("and?"))

    result = await run(history=broken)  # the two replies become one

    assert faults(result.messages) == []
    assert [str(problem) for problem in result.repaired] == [
        "message 1, block 0: the tool_use 'a' has no tool_result in the next message"
    ]
    assert (result.changed, result.first_changed_index) == (True, 1)


async def test_a_broken_history_is_repaired_before_the_stages_run():
    async def look(turn: Turn) -> Skip:
        return Skip(str(faults(turn.messages)))

    broken = conversation(user("go"), assistant(""), assistant(tool_use("a")), user("and?"))

    assert (await run(look, history=broken)).reports[0].reason == "[]"


async def test_a_history_that_stays_broken_is_repaired_in_every_turn():
    pipeline = ContextPipeline([nothing])
    history = conversation(system("be"), system("brief"), assistant("hi"), user("go"))
    for turn in range(3):
        history = [*history, *step(f"t{turn}")]

        result = await pipeline.run(history, session_id="s")

        assert faults(result.messages) == []
        assert len(result.repaired) == 1


# Thinking behind a rewritten message --------------------------------------------------------------

THOUGHTFUL = conversation(
    user("go"),
    step("a", say="look", think="first", result="found " * 50),
    step("b", think="second", result="more"),
    assistant("done"),
    user("and now?"),
)


async def test_stale_thinking_stays_and_the_request_options_drop_it():
    asked = {"extra_headers": {"x": "y"}}
    pipeline = ContextPipeline([proposing(shortened)])

    result = await pipeline.run(THOUGHTFUL, session_id="s", request=asked)
    later = await ContextPipeline([nothing]).run(THOUGHTFUL, session_id="s")

    assert blocks(result.messages[3])[0] == thinking("second")
    assert result.request_options == drop_block(asked)
    assert later.request_options == {}


async def test_every_later_request_has_the_options_even_in_another_process(tmp_path):
    stages = [BatchOffload(LocalStorage(tmp_path), min_chars=200)]
    pipeline = ContextPipeline(stages)
    first = await pipeline.run(THOUGHTFUL, session_id="s")
    grown = [*first.messages, assistant("so"), user("go on")]

    assert first.changed
    for later in (pipeline, ContextPipeline(stages)):
        assert (await later.run(grown, session_id="s")).request_options == drop_block() != {}


async def test_a_change_after_all_thinking_makes_none_stale(tmp_path):
    new = conversation(THOUGHTFUL[:4], [user(tool_result("b", "line of a log\n" * 200))])

    result = await run(DirectOffload(LocalStorage(tmp_path)), history=new)

    assert (result.changed, result.request_options) == (True, {})


async def test_without_stale_thinking_the_request_needs_no_options():
    result = await run(proposing(shortened), history=THOUGHTFUL, thinking="strip")

    assert blocks(result.messages[1])[0] == thinking("first")
    assert [block["type"] for block in cast("Any", blocks(result.messages[3]))] == ["tool_use"]
    assert result.request_options == {}


async def test_inside_an_open_tool_loop_thinking_is_never_stripped():
    result = await run(proposing(shortened), history=THOUGHTFUL[:5], thinking="strip")

    assert blocks(result.messages[3])[0] == thinking("second")
    assert result.request_options == drop_block()


async def test_thinking_after_a_block_that_is_stripped_later_is_stale_too():
    """The thinking of an open loop stays, and goes once the loop is closed.

    What came behind had been bound to it.
    """
    session = ContextPipeline([proposing(shortened)], thinking="strip").session("s")
    history = [*THOUGHTFUL[:5]]
    assert (await session.run(history)).request_options == drop_block()

    history += conversation(assistant("done"), user("next"), step("c", think="third"))
    result = await session.run(history)

    assert kind(blocks(result.messages[3])[0]) == "tool_use"
    assert blocks(result.messages[-2])[0] == thinking("third")
    assert result.request_options == drop_block()


async def test_protected_thinking_keeps_everything_before_it():
    def shorter_end(messages: list[Message]) -> list[Message]:
        return [*messages[:-1], user("?")]

    refused = await run(proposing(shortened), history=THOUGHTFUL, thinking="protect")
    accepted = await run(proposing(shorter_end), history=THOUGHTFUL, thinking="protect")

    assert refused.messages is THOUGHTFUL
    assert (
        refused.reports[0].reason
        == "it would rewrite a message before kept thinking, which is protected"
    )
    assert accepted.changed


async def test_a_protected_result_is_never_a_candidate(tmp_path):
    stage = BatchOffload(LocalStorage(tmp_path / "root"), RatioGate(0))

    result = await run(stage, history=THOUGHTFUL, thinking="protect")

    assert result.messages is THOUGHTFUL
    assert result.reports[0].outcome is Outcome.SKIPPED
    assert not (tmp_path / "root").exists()


async def test_results_after_protected_thinking_are_offloaded_as_without_it(tmp_path):
    stage = BatchOffload(LocalStorage(tmp_path / "root"), RatioGate(0))
    later = conversation(
        step("c", result="later " * 50), assistant("done"), user("and now?"), assistant("fine")
    )
    history = [*THOUGHTFUL, *later[:-1]]

    result = await run(stage, history=history, thinking="protect")

    assert result.first_changed_index == len(THOUGHTFUL) + 1
    assert result.messages[: len(THOUGHTFUL) + 1] == history[: len(THOUGHTFUL) + 1]


async def test_with_prices_a_report_has_the_cost_and_the_saving_of_a_change():
    history = conversation(user("x " * 3000), THOUGHTFUL[1:])
    result = await run(proposing(shortened), history=history, prices=Prices.relative())

    cost = result.reports[0].cost
    assert cost is not None
    assert cost.burnt > 0
    assert cost.saved_per_call > 0


# Remembering --------------------------------------------------------------------------------------


class Counting:
    """A stage's record of how many messages it knows."""

    def __init__(self) -> None:
        self.known = 0

    def rewind(self, known: int):
        self.known = min(self.known, known)


async def test_a_stage_has_a_memory_for_each_session_of_its_own():
    seen: list[tuple[str, str, int]] = []

    def remembering(name: str) -> Stage:
        async def remember(turn: Turn):
            record = turn.recall(Counting)
            seen.append((name, turn.session_id, record.known))
            record.known = len(turn.messages)

        return remember

    pipeline = ContextPipeline([remembering("one"), remembering("two")])
    for session in ("s", "t", "s"):
        await pipeline.run(HISTORY, session_id=session)

    assert seen[:4] == [("one", "s", 0), ("two", "s", 0), ("one", "t", 0), ("two", "t", 0)]
    # The last message is never taken for known: agents add results to it in place.
    assert seen[4:] == [("one", "s", 4), ("two", "s", 4)]


async def test_the_records_of_a_session_are_rewound_to_the_first_change():
    known: list[int] = []

    async def remember(turn: Turn):
        record = turn.recall(Counting)
        known.append(record.known)
        record.known = len(turn.messages)

    pipeline = ContextPipeline([remember, proposing(shortened)])
    first = await pipeline.run(HISTORY, session_id="s")
    await pipeline.run(HISTORY, session_id="s")
    await pipeline.run(first.messages, session_id="s")
    await pipeline.run(chat(2), session_id="s")

    assert known == [0, 2, 2, 0]


async def test_at_most_max_sessions_are_remembered_and_the_longest_unused_is_forgotten_first():
    known: list[tuple[str, int]] = []

    async def remember(turn: Turn):
        record = turn.recall(Counting)
        known.append((turn.session_id, record.known))
        record.known = len(turn.messages)

    pipeline = ContextPipeline([remember], max_sessions=2)
    for session in ("a", "b", "a", "c", "a", "b"):
        await pipeline.run(HISTORY, session_id=session)

    assert known == [("a", 0), ("b", 0), ("a", 4), ("c", 0), ("a", 4), ("b", 0)]


async def test_forgetting_a_session_changes_no_context():
    contexts: list[list[list[Message]]] = []
    for is_forgetful in (False, True):
        storage = MemoryStorage()
        compact = Compact(ExtractiveSummarizer(), require_archive=False)
        stages: list[Stage] = [BatchOffload(storage), compact]
        pipeline = ContextPipeline(stages, budget=Budget(window=2_000), max_sessions=1)
        messages = conversation(user("go"))
        contexts.append([])
        for number in range(40):
            result = f"line {number}\n" * 60
            messages = [*messages, *step(f"t{number}", say="words " * 40, result=result)]
            if is_forgetful:
                await pipeline.run(conversation(user("another")), session_id="other")
            shaped = await pipeline.run(messages, session_id="s")
            messages = shaped.messages
            contexts[-1].append(list(messages))

    remembered, forgotten = contexts
    assert remembered == forgotten
    assert len(remembered[-1]) < 81


async def test_runs_of_one_session_at_the_same_time_do_not_wait_for_each_other():
    waiting: list[Turn] = []
    both_are_inside = anyio.Event()

    async def meet(turn: Turn):
        waiting.append(turn)
        if len(waiting) == 2:
            both_are_inside.set()
        await both_are_inside.wait()

    pipeline = ContextPipeline([meet])
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(partial(pipeline.run, HISTORY, session_id="s"))


async def test_a_run_at_the_same_time_works_on_a_copy_that_is_not_remembered():
    seen: list[tuple[float, int]] = []
    is_inside = anyio.Event()
    may_end = anyio.Event()

    async def remember(turn: Turn):
        record = turn.recall(Counting)
        seen.append((turn.ledger.factor, record.known))
        record.known = len(turn.messages)
        if len(seen) == 2:
            is_inside.set()
            await may_end.wait()

    pipeline = ContextPipeline([remember])
    first = await pipeline.run(HISTORY, session_id="s")
    usage = {"input_tokens": 2 * first.tokens_after}
    pipeline.observe(usage, first.messages, session_id="s")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(pipeline.run, first.messages, session_id="s"))
        await is_inside.wait()
        await pipeline.run(chat(3), session_id="s")
        may_end.set()
    await pipeline.run(first.messages, session_id="s")

    factors, known = zip(*seen, strict=True)
    assert known == (0, 4, 0, 4)
    assert factors[1] == factors[2] == factors[3] > factors[0]


async def test_the_memory_of_a_session_is_used_again_after_a_run_that_failed():
    message_counts: list[int] = []

    async def remember(turn: Turn):
        record = turn.recall(Counting)
        message_counts.append(record.known)
        record.known = len(turn.messages)
        if len(message_counts) == 1:
            raise ValueError("the first run fails")

    pipeline = ContextPipeline([remember], on_error="raise")
    with pytest.raises(ValueError, match="the first run fails"):
        await pipeline.run(chat(3), session_id="s")
    await pipeline.run(HISTORY, session_id="s")
    await pipeline.run(HISTORY, session_id="s")

    # The last message may still change, so no record describes it.
    assert message_counts[2] == len(HISTORY) - 1


async def test_a_session_in_use_is_not_forgotten():
    known: list[tuple[str, int]] = []
    is_inside = anyio.Event()
    may_end = anyio.Event()

    async def remember(turn: Turn):
        record = turn.recall(Counting)
        known.append((turn.session_id, record.known))
        record.known = len(turn.messages)
        if turn.session_id == "s" and not is_inside.is_set():
            is_inside.set()
            await may_end.wait()

    pipeline = ContextPipeline([remember], max_sessions=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(pipeline.run, HISTORY, session_id="s"))
        await is_inside.wait()
        await pipeline.run(HISTORY, session_id="another")
        may_end.set()
    await pipeline.run(HISTORY, session_id="s")

    assert known == [("s", 0), ("another", 0), ("s", 4)]


async def test_observing_a_usage_calibrates_the_token_counts_of_the_stages():
    sizes: list[tuple[int, int]] = []

    async def note(turn: Turn):
        sizes.append((await turn.raw_tokens(), await turn.tokens()))

    pipeline = ContextPipeline([note], counter=len)
    history = [user("x" * 1000)]
    await pipeline.run(history, session_id="s")
    pipeline.observe({"input_tokens": 1200}, history, session_id="s")
    await pipeline.run(history, session_id="s")

    assert sizes == [(1000, 1000), (1000, 1200)]


async def test_a_run_that_was_cancelled_leaves_the_calibration_of_its_session():
    sizes: list[int] = []
    waits = [False]

    async def note(turn: Turn):
        sizes.append(await turn.tokens())
        if waits[0]:
            await anyio.sleep_forever()

    pipeline = ContextPipeline([note], counter=len)
    history = [user("x" * 1000)]
    await pipeline.run(history, session_id="s")
    pipeline.observe({"input_tokens": 1200}, history, session_id="s")
    waits[0] = True
    async with anyio.create_task_group() as group:
        group.start_soon(partial(pipeline.run, history, session_id="s"))
        while len(sizes) < 2:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    waits[0] = False
    await pipeline.run(history, session_id="s")

    assert sizes == [1000, 1200, 1200]


# Planning -----------------------------------------------------------------------------------------


async def test_a_stage_that_cannot_plan_reports_it_and_does_not_run():
    asked: list[Turn] = []

    async def stage(turn: Turn):
        asked.append(turn)

    planned = await ContextPipeline([stage]).plan(HISTORY, session_id="s")

    assert asked == []
    assert planned.messages is HISTORY
    assert (planned.reports[0].outcome, planned.reports[0].reason) == (
        Outcome.PLANNED,
        "it cannot say in advance: it has no plan of its own",
    )


class Planned:
    """A stage whose plan is given."""

    def __init__(self, plan: Callable[[Turn], Awaitable[Any]]):
        self.plan = plan

    async def __call__(self, _turn: Turn) -> Any:
        raise AssertionError("a plan never acts")


async def test_a_plan_is_judged_as_a_run_is():
    breaking = proposing(lambda messages: messages[1:])
    stages = [Planned(breaking), Planned(failing), Planned(proposing(shortened))]

    planned = await ContextPipeline(stages).plan(HISTORY, session_id="s")
    vetoed = await ContextPipeline(stages, veto=lambda _turn, _change: "no").plan(
        HISTORY, session_id="s"
    )

    outcomes = [r.outcome for r in planned.reports]
    assert outcomes == [Outcome.REFUSED, Outcome.FAILED, Outcome.PLANNED]
    assert vetoed.reports[2].reason == "no"
    with pytest.raises(ZeroDivisionError):
        await ContextPipeline(stages, on_error="raise").plan(HISTORY, session_id="s")


async def test_stages_of_one_class_plan_with_separate_records(tmp_path):
    storage = LocalStorage(tmp_path / "root")
    history = conversation(
        user("go"), step("a", result="x y z " * 50), step("b", result="x y z " * 500), step("c")
    )
    stages = [
        BatchOffload(storage, RatioGate(0), min_chars=2000),
        BatchOffload(storage, RatioGate(0), min_chars=200),
    ]
    pipeline = ContextPipeline(stages)

    planned = await pipeline.plan(history, session_id="s")
    done = await pipeline.run(history, session_id="s")

    assert planned.messages == done.messages
    assert [report.outcome for report in planned.reports] == [Outcome.PLANNED] * 2


async def test_a_plan_touches_neither_disk_nor_threads_nor_memory(tmp_path, monkeypatch):
    known: list[int] = []

    async def remember(turn: Turn):
        known.append(turn.recall(Counting).known)

    storage = LocalStorage(tmp_path / "root")
    pipeline = ContextPipeline([remember, DirectOffload(storage), BatchOffload(storage)])
    await pipeline.counter.warm()
    hops: list[object] = []
    hop = anyio.to_thread.run_sync

    async def noted(*args: Any, **options: Any) -> Any:
        hops.append(args)
        return await hop(*args, **options)

    monkeypatch.setattr(anyio.to_thread, "run_sync", noted)
    history = conversation(
        user("go"), step("a", result="x y z " * 500), step("b", result="x y z " * 500)
    )

    planned = await pipeline.plan(history, session_id="s")

    assert planned.changed
    assert hops == []
    assert not (tmp_path / "root").exists()
    await pipeline.run(history, session_id="s")
    assert hops != []
    assert known == [0]


# Any history --------------------------------------------------------------------------------------


def offloading(root: str, *, reference: str = "absolute", **options: Any) -> ContextPipeline:
    """Both offload stages, eager enough for small histories."""
    storage = LocalStorage(root, reference=reference)
    return ContextPipeline(
        [
            DirectOffload(storage, min_chars=300, preview=Preview(20, 10)),
            TrimReadBacks(storage, max_chars=700),
            BatchOffload(
                storage,
                RatioGate(0.05),
                min_chars=60,
                inputs=WRITING_TOOLS | {"bash"},
            ),
        ],
        **options,
    )


def texts_of(history: Sequence[Message]) -> set[str]:
    """Everything that a file may rightly hold of *history*."""
    held: set[str] = set()
    for message in history:
        for block in blocks(message):
            content = cast("Any", block).get("content")
            if isinstance(content, list):
                told = [part for part in content if part["type"] == "text"]
                held |= {
                    json.dumps(told, ensure_ascii=False, separators=s, indent=i) for s, i in FORMS
                }
            elif content is not None:
                held.add(content)
            held |= {
                value
                for value in cast("Any", block).get("input", {}).values()
                if isinstance(value, str)
            }
    return held


FORMS: list[tuple[tuple[str, str] | None, int | None]] = [((",", ":"), None), (None, 2)]


def pointers_in(messages: Sequence[Message]) -> list[str]:
    found = [result.content for result in tool_results(messages)]
    opened = [
        content[0]["text"] if isinstance(content, list) and content else content
        for content in cast("Any", found)
    ]
    return [where for content in opened if (where := any_reference(content))]


def file_text(root: str, where: str) -> str:
    """Return the file to which a placeholder points, by an absolute path or one below *root*."""
    return Path(root, where).read_bytes().decode()


@given(st.one_of(histories(2, repeat_ids=True), broken_histories(2)))
async def test_any_history_gives_a_valid_context_and_is_not_modified(history: list[Message]):
    before = copy.deepcopy(history)
    with tempfile.TemporaryDirectory() as root:
        result = await offloading(root).run(history, session_id="s")

    assert history == before
    assert (faults(result.messages), check(result.messages)) == ([], [])
    assert bool(result.repaired) == bool(check(before))


@given(histories(2, repeat_ids=True))
async def test_every_placeholder_leads_to_the_whole_text(history: list[Message]):
    with tempfile.TemporaryDirectory() as root:
        result = await offloading(root).run(history, session_id="s")

        for where in pointers_in(result.messages):
            assert file_text(root, where) in texts_of(history)


@given(histories(2))
async def test_a_second_run_returns_the_same_object_and_writes_nothing(
    history: list[Message],
):
    with tempfile.TemporaryDirectory() as root:
        first = await offloading(root).run(history, session_id="s")
        before = {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")}

        for pipeline in (offloading(root), offloading(root)):
            assert (await pipeline.run(first.messages, session_id="s")).messages is first.messages
        assert {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")} == before


@given(histories(2))
async def test_a_plan_reports_what_a_run_does(history: list[Message]):
    with tempfile.TemporaryDirectory() as root:
        pipeline = offloading(root)
        planned = await pipeline.plan(history, session_id="s")
        nothing_written = not list(Path(root).iterdir())
        done = await pipeline.run(history, session_id="s")

    assert nothing_written
    assert planned.messages == done.messages
    assert [r.detail for r in planned.reports] == [r.detail for r in done.reports]
    assert planned.first_changed_index == done.first_changed_index


@given(histories(2, repeat_ids=True), histories(2, repeat_ids=True))
async def test_the_file_of_a_placeholder_never_changes_even_on_a_shared_root(
    one: list[Message], two: list[Message]
):
    with tempfile.TemporaryDirectory() as root:
        named: dict[str, str] = {}
        # Two sessions, and the first one's name and ids once more for another conversation.
        for session, history in (("s", one), ("t", two), ("s", two), ("s", one)):
            result = await offloading(root).run(history, session_id=session)
            for where in pointers_in(result.messages):
                assert named.setdefault(where, file_text(root, where)) == file_text(root, where)
        assert {where: file_text(root, where) for where in named} == named


@given(histories(3, repeat_ids=True), st.data())
async def test_nothing_is_offloaded_twice(history: list[Message], data: st.DataObject):
    with tempfile.TemporaryDirectory() as root:
        pipeline, context, end = offloading(root), list[Message](), 0
        while end < len(history):
            start, end = end, min(len(history), end + data.draw(st.integers(1, 6)))
            before = {result.place: result.content for result in tool_results(context)}
            context = (await pipeline.run([*context, *history[start:end]], session_id="s")).messages
            # A placeholder for a file keeps its words.
            for result in tool_results(context):
                was = before.get(result.place)
                assert result.content == was or not pointers_in(
                    [user(tool_result("x", cast("Any", was)))]
                )
        held = [path.read_bytes().decode() for path in Path(root).rglob("*.md")]

    assert [words for words in held if any_reference(words)] == []


@pytest.mark.parametrize("order", [1, -1])
async def test_sdk_objects_pass_through_every_stage_in_any_order(tmp_path, order):
    storage = LocalStorage(tmp_path)
    stages: list[Stage] = [
        DirectOffload(storage, min_chars=2000),
        BatchOffload(storage, RatioGate(0.15), min_chars=500, inputs=WRITING_TOOLS),
        Compact(ExtractiveSummarizer(), archive=storage),
        SmartTruncate(archive=storage),
    ]
    pipeline = ContextPipeline(stages[::order], budget=Budget(6000, 3000))
    context: list[Message] = [user("go")]
    acted: set[str] = set()
    for number in range(40):
        made = ToolUseBlock(
            type="tool_use",
            id=f"t{number}",
            name="write_file",
            input={"text": f"{number} is " * 90},
        )
        said = TextBlock(
            type="text", text=f"Step {number}: " + "look at what there is " * 20, citations=None
        )
        thought = ThinkingBlock(type="thinking", thinking="hm " * 20, signature="signed")
        found = TextBlock(
            type="text", text=f"{number} line of a log\n" * (150 if number % 5 == 0 else 40)
        )
        context = [
            *context,
            cast("Message", {"role": "assistant", "content": [thought, said, made]}),
        ]
        answered: list[Any] = [tool_result(f"t{number}", [found])]
        context += [cast("Message", {"role": "user", "content": answered})]

        result = await pipeline.run(context, session_id="s")

        reasons = [report.reason for report in result.reports if report.outcome is Outcome.FAILED]
        assert reasons == []
        assert faults(result.messages) == []
        acted |= {report.stage for report in result.reports if report.outcome is Outcome.CHANGED}
        context = result.messages

    # Where SmartTruncate comes first, what it leaves is never long enough to be summarized.
    summarized = {"Compact"} if order == 1 else set[str]()
    assert acted == {"DirectOffload", "BatchOffload", "SmartTruncate"} | summarized


async def test_hostile_ids_go_through_every_offload_stage_and_stay_inside(tmp_path):
    hostile = [
        *("../../x", "/etc/x", "a\\b", "a/b", "a\0", ".", "", "x" * 1500, "漢", "CON", "con"),
        *("{path}", "[x]\n"),
    ]
    root = tmp_path / "root"
    # A long absolute path would be no shorter than the short results.
    pipeline = offloading(str(root), reference="storage")
    context: list[Message] = [user("go")]
    said = [
        f"{number} line of a log\n" * (16 if number % 2 else 40)
        for number in range(2 * len(hostile))
    ]
    for name, words in zip([*hostile, *hostile], said, strict=True):
        context = (
            await pipeline.run([*context, *step(name, result=words)], session_id="../../s")
        ).messages

    *pointers, last = [result.content for result in tool_results(context)]
    assert [file_text(str(root), where) for where in pointers_in(context)] == said[: len(pointers)]
    assert last == said[-1]  # it is new, and below the limit for new ones
    assert {
        path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents
    } == set()
    # The API takes few characters in an id: each becomes another one, and no two the same.
    names = {call.id for call in tool_calls(context)}
    assert len(names) == len(set(hostile))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", name) for name in names)


# Unusual orders of stages -------------------------------------------------------------------------

STORE = MemoryStorage()


@pytest.mark.parametrize(
    ("stages", "warned"),
    [
        ([SmartTruncate(STORE), Compact(archive=STORE)], "SmartTruncate comes before Compact"),
        ([Compact(archive=STORE), DirectOffload(STORE)], "Compact comes before DirectOffload"),
        ([Compact(archive=STORE), Collapse(STORE)], "Compact comes before Collapse"),
        ([SmartTruncate(STORE), TrimReadBacks(STORE)], "SmartTruncate comes before TrimReadBacks"),
        ([BatchOffload(STORE), Collapse(STORE)], "BatchOffload and Collapse both remove"),
        ([Collapse(STORE), BatchOffload(STORE)], "Collapse and BatchOffload both remove"),
        ([Compact(archive=STORE), Compact(archive=STORE)], "Compact is registered twice"),
        ([SmartTruncate(STORE), SmartTruncate(STORE)], "SmartTruncate is registered twice"),
    ],
)
def test_an_unusual_order_of_stages_gives_one_warning(stages: list[Any], warned, caplog):
    pipeline = ContextPipeline(stages)
    pipeline.use(stages[-1])
    pipeline.session("a")
    pipeline.session("b")

    assert sum(warned in record.getMessage() for record in caplog.records) == 1
    assert pipeline.stages == (*stages, stages[-1])


@pytest.mark.parametrize(
    "stages",
    [
        [DirectOffload(STORE), BatchOffload(STORE), Compact(archive=STORE), SmartTruncate(STORE)],
        [DirectOffload(STORE, min_chars=9), DirectOffload(STORE), Collapse(STORE)],
        [BatchOffload(STORE), TrimReadBacks(STORE), BatchOffload(STORE, min_chars=9)],
        presets.coding_agent(STORE, work_dir="."),
        presets.coding_agent(STORE, work_dir=None, old_exchanges="lines"),
        presets.chat(STORE),
    ],
)
def test_a_usual_order_of_stages_gives_no_warning(stages: list[Any], caplog):
    ContextPipeline(stages)

    assert caplog.records == []


# Mistakes of callers ------------------------------------------------------------------------------


def test_stages_as_separate_arguments_are_refused_with_the_way_to_give_them():
    with pytest.raises(SettingsError, match=r"DirectOffload, SmartTruncate .*give one list"):
        ContextPipeline(DirectOffload(STORE), SmartTruncate(STORE))  # type: ignore[arg-type]


async def shorten(turn: Turn) -> Change | None:
    """Replace all messages but the newest two by one."""
    if len(turn.messages) < 4:
        return None
    return Change([user("In short."), *turn.messages[-2:]])


@pytest.mark.parametrize("continues", [True, False])
async def test_a_caller_who_runs_the_full_history_in_each_turn_is_warned_once(continues, caplog):
    pipeline = ContextPipeline([shorten])
    history = [user("words " * 50), assistant("ok"), user("more"), assistant("ok"), user("on")]
    for number in range(4):
        result = await pipeline.run(history, session_id="s")
        if continues:
            history = result.messages
        history = [*history, assistant(f"reply {number}"), user(f"request {number}")]

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (0 if continues else 1)
    assert all("continue with result.messages" in warning for warning in warnings)


async def test_the_same_history_again_is_a_second_attempt_and_gives_no_warning(caplog):
    pipeline = ContextPipeline([shorten])
    history = [user("words " * 50), assistant("ok"), user("more"), assistant("ok"), user("on")]

    await pipeline.run(history, session_id="s")
    await pipeline.run(history, session_id="s", force=True)

    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_a_full_disk_is_logged_once_until_a_write_succeeds(caplog):
    is_full = True

    class Disk(MemoryStorage):
        async def write(self, texts: Any, /) -> Any:
            if is_full:
                raise StorageError(errno.ENOSPC, f"cannot write {texts[0][0]}: No space left")
            return await super().write(texts)

    storage = Disk()
    pipeline = ContextPipeline([DirectOffload(storage, min_chars=100)])

    async def turns(*names: str) -> None:
        for name in names:
            history = conversation(user("Go."), step(name, result="line " * 99))
            await pipeline.run(history, session_id=name)

    await turns("a", "b", "c")
    is_full = False
    await turns("d")
    is_full = True
    await turns("e", "f")

    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(",")[0] for text in warned] == ["DirectOffload [a", "DirectOffload [e"]
