"""The command ``ctxpipe survive``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rules import ERROR, JOB, PROHIBITION, order_line, write_orders, write_recording
from typer.testing import CliRunner

from ctxpipe._cli import app
from ctxpipe.lab.orders import read_orders

HOSTILE = "</td><img src=x onerror=alert(1)> never push"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["survive", *map(str, arguments)])


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write_recording(tmp_path)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    event = {"from_call": None, "until_call": None, "calls_since": 30}
    return write_orders(
        tmp_path,
        order_line(),
        order_line(kind="running job used", at_call=39, lines=[JOB], **event),
        order_line(kind="error of a call tried again", at_call=38, lines=[ERROR], **event),
        order_line(kind="finding", lines=["value_5_1 = compute_1()", "value_5_2 = compute_2()"]),
    )


def test_the_tables_name_each_policy_what_it_costs_and_the_number_of_looks(recording, orders):
    done = run(recording, "--orders", orders, "--compare", "none,compact,coding")

    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["text", "n", "none", "compact", "coding"] in lines
    assert ["prohibition", "3", "1.000", "1.000", "1.000"] in lines
    assert [line[:3] for line in lines if line[:1] == ["none"]] == [["none", lines[3][1], "1.000"]]
    assert "running job used, 4 calls or more later" in done.stdout
    assert f"texts of {orders}" in done.stdout


def test_json_has_the_shares_of_each_kind_and_every_look(recording, orders):
    done = run(recording, "--orders", orders, "--compare", "none,coding", "--json")

    told = json.loads(done.stdout)
    kinds = told["policies"]["none"]["at_calls"]
    assert kinds["prohibition"] == {"looks": 3, "in_context": 1.0, "in_file": 0.0, "lost": 0.0}
    assert told["policies"]["none"]["ratio"] == 1.0
    file = told["files"][str(recording)]
    assert [order["kind"] for order in file["orders"]][:1] == ["prohibition"]
    looks = [look for look in file["looks"]["none"] if look["order"] == 0]
    assert [look["call"] for look in looks] == [10, 20, 30]


def test_without_orders_the_texts_are_proposed_and_all_policies_are_compared(recording):
    done = run(recording)

    assert done.exit_code == 0
    assert "none  compact  clear-old  coding   lean   chat" in done.stdout
    assert "skill text" in done.stdout
    assert "texts proposed by the reader" in done.stdout


def test_proposals_are_written_in_the_form_that_orders_takes(recording, tmp_path):
    target = tmp_path / "proposed.txt"

    done = run(recording, "--write-orders", target)

    assert (done.exit_code, done.stdout) == (0, "")
    orders = read_orders(target)
    assert f"{len(orders)} texts proposed in {target}" in done.stderr
    assert PROHIBITION in [order.lines[0] for order in orders]
    assert run(recording, "--orders", target, "--compare", "none").exit_code == 0


def test_a_conversation_without_a_text_to_propose_leaves_the_file_alone(tmp_path):
    recording = tmp_path / "short.jsonl"
    recording.write_text(
        '{"role": "user", "content": "Hi."}\n{"role": "assistant", "content": "Hi."}'
    )
    target = tmp_path / "orders.txt"
    target.write_text("mine", "utf-8")

    done = run(recording, "--write-orders", target)

    assert (done.exit_code, target.read_text("utf-8")) == (0, "mine")
    assert "no text was recognized, so nothing is written" in done.stderr


def test_a_file_of_orders_among_the_recordings_is_no_recording(recording, tmp_path):
    orders = tmp_path / "orders.jsonl"
    orders.write_text(json.dumps(order_line()), "utf-8")

    done = run(recording, orders, "--orders", orders, "--compare", "none", "--processes", 1)

    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize("option", ["--page", "--html"])
def test_a_page_is_written_and_named(option: str, recording, orders, tmp_path):
    target = tmp_path / "page.html"

    done = run(recording, "--orders", orders, "--compare", "none,coding", option, target)

    assert f"page: {target}" in done.stderr
    assert "What stays in the context" in target.read_text("utf-8")


def test_a_page_that_cannot_be_written_is_reported_before_the_work(recording, tmp_path):
    done = run(recording, "--page", tmp_path / "no" / "page.html")

    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
    assert done.stdout == ""


def test_recordings_without_orders_and_orders_without_a_recording_are_named(tmp_path):
    recordings = [write_recording(tmp_path, name, calls=12) for name in ("session", "other")]
    orders = write_orders(tmp_path, order_line(), order_line(transcript="third"))

    done = run(*recordings, "--orders", orders, "--compare", "none", "--processes", 1)

    assert done.exit_code == 0
    assert "no orders, so nothing to look for: other" in done.stderr
    assert "orders for recordings that are not given: third" in done.stderr


def test_an_event_after_the_end_of_the_recording_is_reported(recording, tmp_path):
    late = order_line(kind="to-do list", at_call=900, from_call=None, until_call=None)
    orders = write_orders(tmp_path, order_line(), late)

    done = run(recording, "--orders", orders, "--compare", "none")

    assert "has 40 calls: 1 order with a later at_call cannot be looked for" in done.stderr


def test_if_nothing_was_looked_for_that_is_said(recording, tmp_path):
    orders = write_orders(tmp_path, order_line(until_call=3))

    done = run(recording, "--orders", orders, "--compare", "none")

    assert done.exit_code == 0
    assert "none of the texts was looked for" in done.stderr


def test_orders_for_other_recordings_are_refused(recording, tmp_path):
    orders = write_orders(tmp_path, order_line(transcript="another"))

    done = run(recording, "--orders", orders)

    assert done.exit_code == 1
    assert "has no orders for the given recordings; it has orders for another" in done.stderr


@pytest.mark.parametrize(
    ("orders_text", "reason"),
    [
        ('{"transcript": "session"}', "line 1 has no kind and no lines"),
        (json.dumps(order_line(kind="rule")), "there is no kind 'rule'"),
        (json.dumps(order_line(from_call=None)), "has no from_call"),
        ('{"role": "user", "content": "Hi."}', "this looks like a recording"),
        ("Never push.", "line 1 is not JSON"),
        ("", "holds no orders"),
    ],
)
def test_a_bad_file_of_orders_is_reported_in_a_sentence(orders_text, reason, recording, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text(orders_text, "utf-8")

    done = run(recording, "--orders", path)

    assert done.exit_code == 1
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(f"ctxpipe: {path}")
    assert reason in sentence


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        (("--orders", "/nowhere.jsonl"), "No such file", 1),
        (("--orders", "a", "--write-orders", "b"), "give --orders or --write-orders", 2),
        (("--compare", "nonsense"), "there is no policy 'nonsense'", 2),
        (("--write-orders", "/no/such/folder/file"), "cannot be written", 2),
    ],
)
def test_a_misuse_is_reported_in_a_sentence(recording, arguments, reason, code):
    done = run(recording, *arguments)

    assert done.exit_code == code
    assert reason in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_file_that_fails_is_reported_and_the_others_are_measured(recording, orders, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("[]", "utf-8")

    done = run(bad, recording, "--orders", orders, "--compare", "none", "--processes", 1)

    assert done.exit_code == 1
    assert "bad.jsonl" in done.stderr
    assert "prohibition" in done.stdout


def test_standard_output_has_only_json_when_asked(recording, orders):
    done = run(recording, "--orders", orders, "--compare", "none", "--json")

    json.loads(done.stdout)


def test_no_text_of_an_order_becomes_markup_of_the_page(recording, tmp_path):
    hostile = order_line(kind="finding", lines=[HOSTILE])
    orders = write_orders(tmp_path, hostile, order_line())
    target = tmp_path / "page.html"

    run(recording, "--orders", orders, "--compare", "none", "--page", target)

    page = target.read_text("utf-8")
    assert "onerror=alert" in page
    assert "<img" not in page
