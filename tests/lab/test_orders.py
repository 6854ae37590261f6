"""The file of orders: its form, and its faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules import JOB, order_line, write_orders

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.orders import (
    ORDER_KINDS,
    Look,
    Order,
    RulesShare,
    Survival,
    read_orders,
    rules_share,
    survival_by_kind,
    transcript_key,
)


def test_both_forms_of_an_order_are_read(tmp_path):
    event = {"from_call": None, "until_call": None, "at_call": 12, "calls_since": 5}
    path = write_orders(tmp_path, order_line(), order_line(kind="to-do list", **event))

    first, second = read_orders(path)

    assert (first.from_call, first.until_call, first.is_event) == (0, 38, False)
    assert (second.from_call, second.until_call, second.is_event) == (7, 12, True)


def test_an_order_without_calls_since_came_right_before_its_call(tmp_path):
    path = write_orders(tmp_path, order_line(from_call=None, until_call=None, at_call=3))

    assert read_orders(path)[0].calls_since == 0


def test_blank_lines_and_other_keys_are_ignored(tmp_path):
    path = tmp_path / "orders.jsonl"
    path.write_text(f"\n{json.dumps(order_line(note='checked'))}\n\n", "utf-8")

    assert len(read_orders(path)) == 1


FAULTS: dict[str, tuple[Any, str]] = {
    "no transcript": (order_line(transcript=None), "has no transcript"),
    "no kind and no lines": (order_line(kind=None, lines=None), "has no kind and no lines"),
    "a recording": ({"role": "user", "content": "Hi."}, "looks like a recording"),
    "unknown kind": (order_line(kind="prohibitions"), "there is no kind 'prohibitions'"),
    "a kind that is no text": (order_line(kind=["finding"]), "there is no kind list"),
    "transcript is a number": (order_line(transcript=7), "transcript is int"),
    "transcript is empty": (order_line(transcript=""), "transcript is ''"),
    "lines is a text": (order_line(lines="Never."), "lines is str, not a list"),
    "a line is a number": (order_line(lines=["Never push.", 3]), "lines holds int"),
    "no lines": (order_line(lines=[]), "no line with a word"),
    "lines without words": (order_line(lines=["---", ""]), "no line with a word"),
    "no calls": (order_line(from_call=None, until_call=None), "no from_call and no until_call"),
    "half a range": (order_line(until_call=None), "has no until_call"),
    "both forms": (order_line(at_call=3), "has at_call and from_call"),
    "a range backwards": (order_line(from_call=9, until_call=3), "until_call 3 is before"),
    "a call that is a text": (order_line(from_call="0"), "from_call must be the number"),
    "a call that is true": (order_line(from_call=True), "from_call must be the number"),
    "a call below zero": (order_line(from_call=-1), "from_call must be the number"),
    "a fraction": (order_line(until_call=3.5), "until_call must be the number"),
    "more calls since than before": (
        order_line(from_call=None, until_call=None, at_call=3, calls_since=4),
        "calls_since is 4",
    ),
    "a list": ([], "list, not an object"),
    "a number": (5, "int, not an object"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_an_order_is_named_with_its_line(name: str, tmp_path):
    value, reason = FAULTS[name]
    path = tmp_path / "orders.jsonl"
    path.write_text(f"{json.dumps(order_line())}\n{json.dumps(value)}\n", "utf-8")

    with pytest.raises(TranscriptError) as raised:
        read_orders(path)

    assert str(raised.value).startswith(f"{path}: line 2")
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no orders"),
        (b"\n\n", "holds no orders"),
        (b"not json", "line 1 is not JSON"),
        (b'[{"transcript": "a"}]', "list, not an object"),
        (b"\xff\xfe\x00", "this is not UTF-16 text"),
        (b"\x1f\x8b rest", "is compressed by gzip"),
        (b"[" * 100_000, "line 1 is not JSON"),
    ],
)
def test_a_file_that_holds_no_orders_is_refused_with_the_reason(content, reason, tmp_path):
    path = tmp_path / "orders.jsonl"
    path.write_bytes(content)

    with pytest.raises(TranscriptError, match=reason):
        read_orders(path)


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path):
    with pytest.raises(TranscriptError, match="No such file"):
        read_orders(tmp_path / "none.jsonl")
    with pytest.raises(TranscriptError, match="Is a directory"):
        read_orders(tmp_path)


@pytest.mark.parametrize(
    "name", ["session", "session.jsonl", "/home/me/session.JSONL", "session.json", "a/session"]
)
def test_a_recording_is_named_with_or_without_its_folder_and_suffix(name: str):
    assert transcript_key(name) == "session"


def test_a_text_of_a_range_is_looked_for_at_each_tenth_call_from_the_fourth_after_it():
    assert order(6, 40).looks == [10, 20, 30, 40]
    assert order(7, 40).looks == [20, 30, 40]
    assert order(0, 3).looks == []


def test_a_text_of_an_event_is_looked_for_at_its_call():
    event = Order("session", "running job used", (JOB,), 3, 17, is_event=True)

    assert event.looks == [17]


def order(from_call: int, until_call: int, kind: str = "prohibition") -> Order:
    return Order("session", kind, ("Never push.",), from_call, until_call)


@given(
    kind=st.sampled_from(ORDER_KINDS),
    lines=st.lists(st.text(min_size=1).map(lambda text: f"word {text}"), min_size=1, max_size=4),
    calls=st.tuples(st.integers(0, 500), st.integers(0, 500)).map(sorted),
    is_event=st.booleans(),
)
def test_an_order_that_is_written_is_read_again(
    tmp_path_factory, kind: str, lines: list[str], calls: list[int], is_event: bool
):
    from_call, until_call = calls
    written = Order("session", kind, tuple(lines), from_call, until_call, is_event)
    path = Path(tmp_path_factory.mktemp("orders")) / "orders.jsonl"
    path.write_text(json.dumps(written.as_json()) + "\n", "utf-8", errors="replace")

    assert read_orders(path) == [written]


def test_survival_is_the_mean_of_the_shares_of_each_kind():
    looks = [
        Look(order(0, 40), 10, False, 1.0, 0.0),
        Look(order(0, 40), 20, False, 0.5, 0.25),
        Look(order(0, 40, "finding"), 20, False, 0.0, 1.0),
    ]

    by_kind = survival_by_kind(looks)

    assert list(by_kind) == ["prohibition", "finding"]
    prohibitions = by_kind["prohibition"]
    assert (prohibitions.looks, prohibitions.context_share) == (2, 0.75)
    assert (prohibitions.file_share, prohibitions.loss_share) == (0.125, 0.125)


def test_without_a_look_there_is_no_share():
    nothing = Survival()

    assert (nothing.context_share, nothing.file_share, nothing.loss_share) == (None, None, None)


def test_findings_and_looks_after_compactions_do_not_count_among_the_rules():
    looks = [
        Look(order(0, 40), 10, False, 1.0, 0.0),
        Look(order(0, 40), 11, True, 0.0, 1.0),
        Look(order(0, 40, "finding"), 10, False, 0.0, 1.0),
    ]

    assert rules_share(looks) == RulesShare(1.0, "prohibition", 1.0)
    assert rules_share(looks[2:]) is None


def test_each_kind_counts_alike_among_the_rules():
    looks = [Look(order(0, 40), call, False, 1.0, 0.0) for call in range(10, 50, 10)]
    looks.append(Look(order(0, 40, "skill text"), 10, False, 0.5, 0.5))

    assert rules_share(looks) == RulesShare(0.75, "skill text", 0.5)
