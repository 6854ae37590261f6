"""Decisions to move a text to a file: kept as digests, and found again wherever the text comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages.diff import diff
from ctxpipe.placeholders.placeholders import BATCH, DIRECT, SEARCHABLE, Preview, placeholder
from ctxpipe.stages.offload.decisions import (
    MIN_REPEATED_CHARS,
    Decision,
    RenderingIndex,
    decision_key,
    decision_of,
    decode_decision,
    find_matches,
    find_moved,
    renderings_of,
    replace_passages,
)
from ctxpipe.stages.reading.moved_texts import Moved, lookup_key
from ctxpipe.stages.reading.what_applies import error_lines
from ctxpipe.storage.notes import MAX_NOTE_CHARS

TEXT = 'day 1\n09:00 "INFO" served in 12 ms; größer\n' * 60
PATH = "/data/s/tool-result-t1.md"


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "bash", "input": arguments}


def result(name: str, text: object = TEXT) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": text}


def history(*blocks: list[dict[str, Any]]) -> list[Any]:
    """A request, then *blocks* of replies and of what answers them in turn."""
    roles = ["assistant", "user"] * len(blocks)
    said = [{"role": role, "content": block} for role, block in zip(roles, blocks, strict=False)]
    return [{"role": "user", "content": "go"}, *said]


def decided(name: str = "t1", text: str = TEXT, *, is_batch: bool = False) -> Decision:
    shown = placeholder(BATCH if is_batch else DIRECT, f"/data/s/{name}.md", text, Preview())
    decision = decision_of(Moved(name, text, shown, content=text))
    assert decision is not None
    return decision


def found(messages: list[Any], *decisions: Decision, in_replies: bool = False, start: int = 0):
    by_key = {decision.key: decision for decision in decisions}
    return find_matches(messages, start, by_key, RenderingIndex(decisions), in_replies=in_replies)


# What is kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [DIRECT, BATCH])
@pytest.mark.parametrize("searchable", ["", SEARCHABLE])
@pytest.mark.parametrize("preview", [None, Preview(), Preview(0, 30), Preview(40, 0)])
def test_a_decision_writes_the_placeholder_that_it_was_made_from(form, searchable, preview):
    shown = placeholder(form + searchable, PATH, TEXT, preview)

    decision = decision_of(Moved("t1", TEXT, shown, content=TEXT))

    assert decision is not None
    read_again = decode_decision(decision.encode())
    assert read_again == decision
    assert read_again.placeholder(PATH, TEXT) == shown


@pytest.mark.parametrize("preview", [None, Preview(40, 20)])
def test_a_decision_about_a_failed_call_writes_what_went_wrong_again(preview):
    text = "ok\n" * 500 + "AssertionError: two tags\n"
    shown = placeholder(DIRECT, PATH, text, preview, failure=error_lines(text))

    decision = decision_of(Moved("t1", text, shown, content=text))

    assert decision is not None
    assert decision.is_failure
    read_again = decode_decision(decision.encode())
    assert read_again == decision
    assert read_again.placeholder(PATH, text) == shown


def test_a_note_holds_no_text_and_is_short():
    note = decided().encode()

    assert len(note) <= MAX_NOTE_CHARS
    for word in ("day", "INFO", "served", "t1", "bash"):
        assert word not in note


@given(st.text(max_size=80))
def test_a_note_of_another_version_is_no_decision(note):
    decision = decode_decision(note)
    assert decision is None or isinstance(decision, Decision)


def test_a_text_that_quotes_the_gap_of_a_preview_keeps_the_sizes_or_is_not_remembered():
    text = "\n[... 1400 characters left out ...]\n" * 60
    shown = placeholder(DIRECT, PATH, text, Preview())

    decision = decision_of(Moved("t1", text, shown, content=text))

    assert decision is None or decision.placeholder(PATH, text) == shown


def test_a_call_with_a_generated_id_is_the_same_at_any_number():
    assert decision_key("read_log-7", TEXT) == decision_key("read_log", TEXT)
    assert decision_key("toolu_1", TEXT) != decision_key("toolu_2", TEXT)
    assert decision_key("read_log", TEXT) != decision_key("read_log", f"{TEXT}x")


def test_edits_show_which_results_and_inputs_have_gone():
    before = history([call("t1", path="a", content=TEXT)], [result("t1")])
    after = history(
        [call("t1", path="a", content="[Content offloaded to: /r/s/tool-result-t1-input-1.md]")],
        [result("t1", "[Tool result offloaded to file: /r/s/t1.md]")],
    )

    moved = list(find_moved(before, diff(before, after)))

    assert [(each.call_id, each.text) for each in moved] == [("t1", TEXT), ("t1", TEXT)]
    assert [each.content for each in moved] == [TEXT, None]


# Decisions that apply to a history ----------------------------------------------------------------


def test_an_answered_result_is_found_by_its_call_and_its_text():
    messages = history([call("t1")], [result("t1")], [{"type": "text", "text": "ok"}])

    assert list(found(messages, decided()).texts) == [lookup_key("t1", TEXT)]
    assert not found(messages, decided("t2"))
    assert not found(messages, decided(text=TEXT + "x"))
    assert not found(messages, decided(), start=3)


def test_what_has_left_in_a_batch_stays_until_the_model_has_answered_it():
    messages = history([call("t1")], [result("t1")])

    assert not found(messages, decided(is_batch=True))
    assert found(messages, decided())


def test_an_input_is_found_once_its_call_is_old():
    shown = placeholder(BATCH, "/data/s/tool-result-t1-input-1.md")
    decision = decision_of(Moved("t1", TEXT, shown))
    assert decision is not None
    newest = history([call("t1", content=TEXT)], [result("t1", "ok")])

    assert not found(newest, decision)
    assert found([*newest, {"role": "assistant", "content": "done"}], decision)


# Texts inside other texts -------------------------------------------------------------------------


def prints(text: str) -> list[str]:
    """The texts in which frameworks repeat a result of *text*."""
    return [
        text,
        f"[chief] `read_log` tool returned result:\n{text}",
        f"For context: { ({'result': text})!r}",
        f"3. {json.dumps({'call_id': 't1', 'output': text})}\n4. more",
        f"3. {json.dumps({'output': text}, ensure_ascii=False, indent=2)}",
        f"<result>{text.strip()}</result>",
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_result_is_found_however_a_framework_prints_it(number):
    said = prints(TEXT)[number]
    passages = RenderingIndex([decided()]).passages(said)

    [passage] = passages
    short = replace_passages(said, passages, lambda _passage, _decision: "[gone]")
    assert "[gone]" in short
    assert "served" not in short
    assert passage.decision == decided()


def test_a_result_that_is_json_is_found_where_python_prints_it():
    value = {"rows": [{"day": day, "state": "größer", "ok": True} for day in range(60)]}
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    assert RenderingIndex([decided(text=text)]).passages(f"returned: {value!r}")


def test_several_results_in_one_text_are_found_and_what_is_between_stays():
    texts = [f"{number} {TEXT}" for number in range(5)]
    index = RenderingIndex([decided(f"t{number}", text) for number, text in enumerate(texts)])
    said = "".join(f"<{number}>{text!r}</{number}>" for number, text in enumerate(texts))

    short = replace_passages(said, index.passages(said), lambda *_: "-")

    assert short == "".join(f"<{number}>'-\\n'</{number}>" for number in range(5))


def test_a_part_of_a_result_is_not_the_result():
    index = RenderingIndex([decided()])

    assert not index.passages(TEXT.strip()[:-1])
    assert not index.passages(TEXT.strip()[1:])
    assert not index.passages(TEXT.replace("12 ms", "13 ms"))


def test_a_short_result_is_not_looked_for():
    assert renderings_of("x" * (MIN_REPEATED_CHARS - 1)) == ()


def test_a_result_whose_text_the_user_says_too_is_not_looked_for():
    shown = placeholder(DIRECT, PATH, TEXT)
    decision = decision_of(Moved("t1", TEXT, shown, content=TEXT), [f"# AGENTS.md\n{TEXT}\n<end>"])

    assert decision is not None
    assert decision.renderings == ()


def test_a_text_of_the_model_is_looked_at_only_where_no_request_has_had_it():
    messages = history([{"type": "text", "text": f"the history so far: {TEXT!r}"}])

    assert found(messages, decided(), in_replies=True).passages
    assert not found(messages, decided()).passages


@given(st.lists(st.sampled_from(["a", "é", "\ud800", "\n", "'", '"', "\\", "𝔘"]), min_size=30))
def test_what_is_not_replaced_keeps_every_character(letters):
    text = "".join(letters) * 40
    if len(text.strip()) < MIN_REPEATED_CHARS:
        return
    said = f"before é {text} after \ud800"
    index = RenderingIndex([decided(text=text)])

    parts: list[str] = []

    def replacement(part: str, _decision: Decision) -> str:
        parts.append(part)
        return "|"

    new = replace_passages(said, index.passages(said), replacement)

    assert parts[:1] == [text.strip()]
    assert said.startswith(new.partition("|")[0])
    assert said.endswith(new.rpartition("|")[2])
