"""Content that passes a compaction verbatim: unknown blocks, references, pins, a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from compactions import UPLOAD, words
from histories import assistant, conversation, said, step, system, text, tool_result, tool_use, user
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import NIGHTLY

from ctxpipe import Budget, ContextPipeline, MemoryStorage, Result, SmartTruncate, StorageError
from ctxpipe.messages import Message, as_blocks, blocks, check, inner_blocks, is_opaque, kind
from ctxpipe.placeholders.summaries import IN_PROGRESS, SUMMARY
from ctxpipe.stages.compact.stage import Compact, Evidence
from ctxpipe.stages.reading.carry_candidates import is_reference
from ctxpipe.stages.reading.pins import Pin
from ctxpipe.stages.reports import Compacted, Outcome, Truncated
from ctxpipe.summarizers import Summary

Block: TypeAlias = dict[str, Any]

LEFT_OUT = "not carried on for lack of space"


async def summarize(_messages: Sequence[Message], /) -> Summary:
    return Summary("It went well.")


def gadget(number: int = 1, size: int = 1) -> Block:
    return {"type": "gadget", "number": number, "value": "word " * size}


def work(turns: int, results: int = 100) -> list[Message]:
    """A task of *turns* steps, each with a result of so many words."""
    return conversation(
        *(step(f"t{n}", "bash", {"command": f"make {n}"}, "word " * results) for n in range(turns))
    )


def report_of(result: Result, stage: str = "Compact") -> Any:
    """Return the report of the *stage* about its change."""
    [report] = [report for report in result.reports if report.stage == stage]
    assert report.outcome is Outcome.CHANGED, report
    return report.detail


async def compacted(
    history: list[Message], target: int = 600, storage: Any = None, **arguments: Any
) -> tuple[list[Message], Compacted]:
    """The context of a compaction that has to count, and its report."""
    stage = Compact(summarize, archive=storage or MemoryStorage(), **arguments)
    budget = Budget(window=4 * target, trigger=2 * target, target=target)
    pipeline = ContextPipeline([stage], budget=budget, counter=words)
    result = await pipeline.run(history, session_id="s")
    return result.messages, report_of(result)


def carried(messages: Sequence[Message]) -> list[Any]:
    """The unknown blocks and references of the user's *messages*, in their order."""
    users = [message for message in messages if message["role"] == "user"]
    found = [block for message in users for block in blocks(message)]
    return [block for block in found if is_opaque(block) or is_reference(block)]


def tools_loaded(messages: Sequence[Message]) -> list[str]:
    found: list[str] = []
    for message in messages:
        for result in blocks(message):
            parts: Sequence[Any] = inner_blocks(result)
            found += [part["tool_name"] for part in parts if kind(part) == "tool_reference"]
    return found


# Where they stand ---------------------------------------------------------------------------------


async def test_an_attachment_of_the_request_stays_in_the_turn_that_needs_it():
    history = [user("Analyse it.", UPLOAD), *work(20)]

    context, detail = await compacted(history)

    request = [message for message in context if UPLOAD in blocks(message)]
    assert request == [user(f"{IN_PROGRESS}Analyse it.", UPLOAD)]
    assert context[context.index(request[0]) + 1 :] == history[-2:]
    assert detail.left_out == ()


async def test_unknown_blocks_at_the_beginning_stay_before_the_summary_from_then_on():
    history = [user(gadget(1), gadget(2), "Go."), *work(20), assistant("Done."), user("On.")]

    context, _ = await compacted(history)
    again, _ = await compacted([*context, *work(20), assistant("Done."), user("More.")])

    for messages in (context, again):
        assert blocks(messages[0])[:2] == [gadget(1), gadget(2)]
        assert said(messages)[0].startswith(SUMMARY)
        assert carried(messages) == [gadget(1), gadget(2)]


@pytest.mark.parametrize("words_after", [[], [text("Go.")]])
async def test_an_unknown_block_at_the_beginning_of_a_pinned_message_is_in_the_context_once(
    words_after: list[Block],
):
    history = [user(gadget(1), *words_after), assistant("ok"), *work(20), assistant("Done.")]
    evidence = Evidence(pin=is_pinned_by_its_blocks)

    context, detail = await compacted([*history, user("On.")], evidence=evidence)

    assert blocks(context[0])[0] == gadget(1)
    assert carried(context) == [gadget(1)]
    pinned = [list(as_blocks(message)) for message in context[2:-1] if message["role"] == "user"]
    assert pinned == [words_after] * bool(words_after)
    assert "gadget" not in detail.removed


async def test_an_unknown_block_at_the_end_is_unanswered_and_the_rest_is_compacted():
    approval = gadget(7)
    history = [user("Go."), *work(20), assistant("May I?"), user(approval)]

    context, _ = await compacted(history)

    assert context[-1] is history[-1]
    assert "It went well." in said(context)[0]


async def test_unknown_blocks_in_the_middle_stay_in_their_order_and_are_the_same_objects():
    blocks_given = [gadget(number) for number in range(4)]
    history = [
        user("Go.", blocks_given[0]),
        assistant("ok"),
        user(blocks_given[1]),
        assistant("ok"),
        user(text("And?"), blocks_given[2]),
        *work(20),
        assistant("ok"),
        user(blocks_given[3], "End."),
    ]

    context, _ = await compacted(history)

    assert carried(context) == blocks_given
    assert all(one is other for one, other in zip(carried(context), blocks_given, strict=True))
    assert check(context) == []


async def test_a_system_prompt_in_the_first_message_stays_however_large_it_is():
    prompt = {"type": "opaque", "kind": "system message", "json": "word " * 500}
    history = [user(prompt, "Go."), *work(20)]

    context, report = await compacted([*history, *work(1)], target=600)

    assert blocks(context[0])[0] == prompt
    assert not report.left_out


async def test_references_in_results_stay_when_the_results_are_summarized():
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    document = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
    draw = step("a", "draw", {}, [text("drawn"), picture])
    export = step("b", "export", {}, [document])
    history = [user("Go."), *draw, *export, *work(20, results=4_000)]

    first, report = await compacted(history, target=30_000)
    second, _ = await compacted([*first, *work(20, results=4_000)], target=30_000)

    assert carried(first) == carried(second) == [picture, document]
    assert not report.left_out
    assert check(first) == check(second) == []


async def test_tools_that_a_search_has_loaded_stay_loaded():
    search = step("s", "find_tools", {}, [{"type": "tool_reference", "tool_name": "create_event"}])
    history = [user("Book it."), *search, *work(20)]

    context, _ = await compacted(history)

    assert tools_loaded(context) == ["create_event"]
    assert check(context) == []


async def test_unknown_blocks_of_a_system_message_stay_with_it():
    rules = system([{"type": "tool_addition", "tool": {"name": "x"}}])
    history = [user("Go."), rules, *work(20), assistant("ok"), user("On.")]

    context, _ = await compacted(history)

    assert any(message is rules for message in context)


async def test_a_citation_whose_document_is_summarized_goes_with_it():
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "word " * 50},
        "citations": {"enabled": True},
    }
    citation = {"type": "char_location", "cited_text": "word", "document_index": 0}
    reply = assistant({**text("It says so."), "citations": [citation]}, tool_use("last"))
    history = [user(document, "Check."), *work(20), reply, user(tool_result("last"))]

    context, detail = await compacted(history)

    assert context[-2] == assistant("It says so.", tool_use("last"))
    assert detail.removed["document"] == 1


# The budget ---------------------------------------------------------------------------------------


async def test_pins_and_unknown_blocks_share_half_of_the_target():
    rules = [user(f"rule {n} " + "word " * 60) for n in range(8)]
    history = [message for rule in rules for message in (rule, assistant("ok"))]
    history += [*work(10), assistant("ok"), user("On.", gadget(1, size=20)), assistant("ok")]
    history += [user("End.")]

    context, detail = await compacted(history, evidence=Evidence(tokens=0, pin=["rule"]))

    pinned = [rule for rule in rules if any(message is rule for message in context)]
    assert pinned == rules[4:]
    assert carried(context) == [gadget(1, size=20)]
    assert detail.left_out == ("pinned message",) * 4
    assert detail.tokens_after <= 600


async def test_restored_files_and_evidence_get_what_is_left_of_the_half():
    history = [user("Go."), *work(30), assistant("ok"), user(gadget(1, size=280)), assistant("ok")]
    history += [user("End.")]

    context, _ = await compacted(history)
    lean, _ = await compacted([*history[:-4], *history[-2:]])

    assert "make 29" in said(lean)[0]
    assert "make 29" not in said(context)[0]


async def test_a_long_request_under_way_is_cut_to_what_is_left():
    history = [user("Read this. " + "word " * 700), *work(10)]

    context, detail = await compacted(history)

    request = next(text for text in said(context) if text.startswith(IN_PROGRESS))
    assert "Read this." in request
    assert 200 < words(request) <= 310
    assert any("characters are in the context" in warning for warning in detail.warnings)


async def test_what_does_not_fit_is_in_a_file_that_the_context_and_the_report_name():
    storage = MemoryStorage()
    uploads = [{**UPLOAD, "file_id": f"file_{n}", "note": "word " * 90} for n in range(5)]
    history = [user("Go."), assistant("ok"), user(*uploads), *work(10), assistant("ok"), user("E.")]

    context, detail = await compacted(history, storage=storage)

    assert detail.left_out == ("container_upload file_0", "container_upload file_1")
    assert f"{LEFT_OUT}: 2 container_upload (file_0, file_1), in {detail.left_out_file}" in said(
        context
    )[0].replace("\n", " ")
    stored = (await storage.read(detail.left_out_file)).text.splitlines()
    pieces = [json.loads(line)["messages"] for line in stored[1:]]
    assert pieces == [[user(upload)] for upload in uploads[:2]]
    assert detail.removed["container_upload"] == 2


async def test_the_file_of_an_earlier_compaction_is_named_on():
    storage = MemoryStorage()
    history = [user("Go."), assistant("ok"), user(gadget(1, size=500)), *work(10), assistant("ok")]

    context, first = await compacted([*history, user("E.")], storage=storage)
    again, second = await compacted(
        [*context, *work(15), assistant("k"), user("F.")], storage=storage
    )

    assert second.left_out == ()
    assert f"{LEFT_OUT}: earlier blocks, in {first.left_out_file}" in said(again)[0]
    further = [*again, *work(5), assistant("ok"), user(gadget(2, size=500)), *work(8)]
    last, third = await compacted([*further, assistant("k"), user("G.")], storage=storage)
    stored = (await storage.read(third.left_out_file)).text.splitlines()
    assert json.loads(stored[0]) == {"form": 1, "before": first.left_out_file}
    assert third.left_out_file in said(last)[0]


async def test_where_the_file_cannot_be_written_the_archive_has_it_and_the_report_says_so():
    class Full(MemoryStorage):
        async def write(self, _texts: Sequence[tuple[str, str]], /) -> list[str]:
            raise StorageError("no space left")

    history = [user("Go."), assistant("ok"), user(gadget(1, size=500)), *work(10), assistant("ok")]

    _, detail = await compacted([*history, user("E.")], storage=Full())

    assert detail.left_out == ("gadget",)
    assert any("in the archive only" in warning for warning in detail.warnings)


async def test_the_log_line_counts_the_blocks_that_were_removed():
    _, detail = await compacted([user("Go.", text("x")), *work(20)])

    assert detail.removed == {"tool_use": 19, "tool_result": 19, "text": 2}
    assert "removed 19 tool_use, 19 tool_result, 2 text" in str(detail)


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("is_one_message", [True, False])
async def test_a_history_of_unknown_blocks_ten_times_the_window_still_fits(
    is_answered: bool, is_one_message: bool
):
    many = [gadget(number, size=100) for number in range(400)]
    history = [user(*many)] if is_one_message else [user(one) for one in many]
    if is_answered:
        history += [assistant("ok"), user("Go.")]

    context, detail = await compacted(history, target=1_000)

    assert check(context) == []
    assert detail.tokens_after <= 1_000
    kept_numbers = [block["number"] for block in carried(context)]
    assert kept_numbers == list(range(400 - len(kept_numbers), 400))
    assert len(kept_numbers) + len(detail.left_out) == 400
    assert len(kept_numbers) >= 4


async def test_a_history_whose_every_request_ends_in_an_unknown_block_is_compacted():
    pipeline = ContextPipeline(
        [Compact(summarize, archive=MemoryStorage())],
        budget=Budget(window=2_000, trigger=1_000, target=500),
        counter=words,
    )
    session = pipeline.session("s")
    history: list[Message] = [user("Go.")]
    compactions = 0
    for number in range(30):
        history += [assistant("word " * 90), user(gadget(number))]
        result = await session.run(history)
        compactions += result.reports[0].outcome is Outcome.CHANGED
        assert result.messages[-1] == user(gadget(number))
        assert result.tokens_after < 1_000
        assert carried(result.messages) == carried(history)
    assert compactions >= 2


# Truncation ---------------------------------------------------------------------------------------


async def truncated(
    history: list[Message], target: int, window: int = 1_200
) -> tuple[list[Message], Truncated]:
    budget = Budget(window=window, trigger=target + 1, target=target)
    pipeline = ContextPipeline([SmartTruncate()], budget=budget, counter=words)
    result = await pipeline.run(history, session_id="s")
    return result.messages, report_of(result, "SmartTruncate")


def talk(turns: int) -> list[Message]:
    return [message for n in range(turns) for message in (assistant("word " * 50), user(f"on {n}"))]


async def test_truncation_takes_unknown_blocks_and_references_last():
    history = [user("Go."), *talk(6), assistant("ok"), user(gadget(1), UPLOAD), *talk(6)]

    context, _ = await truncated(history, 300)

    assert carried(context) == [gadget(1), UPLOAD]


async def test_truncation_takes_them_only_where_the_window_does_not_hold_them():
    history = [user("Go.")]
    for number in range(12):
        history += [assistant("ok"), user(gadget(number, size=50))]
    history += [assistant("ok"), user("End.")]

    history += [*talk(6), assistant("ok"), user("End.")]

    whole, spared = await truncated(history, 300)
    context, detail = await truncated(history, 300, window=400)

    assert len(carried(whole)) == 12
    assert spared.still_over
    assert sum(words(json.dumps(block)) for block in carried(context)) < 400
    assert 0 < len(carried(context)) < 12
    assert detail.removed["gadget"] == 12 - len(carried(context))


async def test_truncation_continues_until_the_context_fits():
    history = [user("Go.")]
    for size in (100, 30, 400, 100):
        history += [assistant("ok " * 5), user("word " * size)]
    history += [assistant("ok"), user("End.")]

    context, detail = await truncated(history, 300, window=301)

    assert not detail.still_over
    assert sum(words(part) for part in said(context)) <= 300


# A property of the whole --------------------------------------------------------------------------

SIZES = st.sampled_from([1, 3, 30, 300])


@st.composite
def unknown_blocks(draw: st.DrawFn, name: str) -> Block:
    value = "word " * draw(SIZES)
    match draw(st.sampled_from(["gadget", "opaque", "upload", "document"])):
        case "gadget":
            return {"type": "gadget", "name": name, "value": value}
        case "opaque":
            return {"type": "opaque", "kind": "approval", "json": f'{{"name":"{name}"}} {value}'}
        case "upload":
            return {"type": "container_upload", "file_id": name}
    return {"type": "image", "source": {"type": "url", "url": f"https://example.com/{name}"}}


def is_pinned_by_its_blocks(message: Message) -> bool:
    return any(is_opaque(block) for block in blocks(message))


@st.composite
def turns_with_blocks(draw: st.DrawFn) -> list[list[Message]]:
    """Messages of a conversation, those of each turn together, with unknown blocks anywhere."""
    number = 0

    def some() -> list[Block]:
        nonlocal number
        found: list[Block] = []
        for _ in range(draw(st.integers(0, 2))):
            number += 1
            found.append(draw(unknown_blocks(f"item-{number}")))
        return found

    turns = [[user(*some(), text("Go."), *some())]]
    for turn in range(draw(st.integers(2, 14))):
        match draw(st.sampled_from(["call", "search", "talk", "blocks"])):
            case "call":
                result = tool_result(f"t{turn}", "word " * draw(SIZES))
                turns.append([assistant(tool_use(f"t{turn}")), user(result, *some())])
            case "search":
                loaded = {"type": "tool_reference", "tool_name": f"tool-{turn}"}
                result = tool_result(f"t{turn}", [loaded])
                turns.append([assistant("Well.", tool_use(f"t{turn}")), user(result, *some())])
            case "talk":
                asked = text(f"request {turn} " + "word " * draw(SIZES))
                turns.append([assistant("word " * draw(SIZES)), user(*some(), asked, *some())])
            case "blocks":
                only = some() or [{"type": "container_upload", "file_id": f"only-{turn}"}]
                turns.append([assistant("ok"), user(*only)])
    return turns


@given(
    turns_with_blocks(),
    st.sampled_from([300, 700, 2_000]),
    st.sampled_from([None, ["Go."], ["request"], is_pinned_by_its_blocks]),
)
@settings(max_examples=(2 if NIGHTLY else 1) * settings().max_examples)
async def test_unknown_blocks_are_sent_as_they_came_until_the_budget_is_used_and_then_named(
    turns: list[list[Message]], target: int, pin: Pin | None
):
    storage = MemoryStorage()
    budget = Budget(window=100 * target, trigger=target + 1, target=target)
    stage = Compact(summarize, archive=storage, evidence=Evidence(pin=pin))
    pipeline = ContextPipeline([stage], budget=budget, counter=words)
    session = pipeline.session("s")
    history: list[Message] = []
    files: list[str] = []
    for turn in turns:
        history += turn
        result = await session.run(history)
        context = result.messages
        detail = result.reports[0].detail
        if isinstance(detail, Compacted) and result.reports[0].outcome is Outcome.CHANGED:
            files += [detail.left_out_file] if detail.left_out else []

        assert check(context) == []
        sent = [json.dumps(block) for block in carried(context)]
        given_blocks = [json.dumps(block) for block in carried(history)]
        places = [given_blocks.index(block) for block in sent]
        assert all(one < other for one, other in pairwise(places))
        tail = [json.dumps(block) for block in carried(history[-1:])]
        assert sent[len(sent) - len(tail) :] == tail
        missing = set(given_blocks) - set(sent)
        stored = "".join([(await storage.read(file)).text for file in files])
        assert (LEFT_OUT in said(context)[0]) is bool(files)
        for block in missing:
            # A block of a pinned or shortened message would be there with the message.
            assert json.dumps(json.loads(block), separators=(",", ":")) in stored
        loaded = set(tools_loaded(history)) - set(tools_loaded(context))
        assert all(f'"tool_name":"{name}"' in stored for name in loaded)
        assert as_blocks(context[-1])
