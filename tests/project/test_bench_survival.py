"""What survives a compaction, on a small session in which Claude Code has compacted itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from histories import conversation, step, user

from benchmarks.bench_survival import (
    KINDS,
    RECORDED,
    SUMMARY,
    TRUNCATED,
    Fact,
    Survival,
    facts_in,
    survivals,
)
from benchmarks.peers import conversations
from ctxpipe.messages import Message
from ctxpipe.stages.reading.atoms import AtomIndex

COMMAND = "pytest -q tests/engine --maxfail 3"
ERROR = "AssertionError: blade_pitch is 1417, not 1418"
ORDER = "Never change the file of the blades by hand."
SAID = "The agent looks at engine/turbine.py, in which 1417 stands."


def history() -> list[Message]:
    given = {"command": COMMAND}
    failed = f"engine/turbine.py:12\n{ERROR}\nexit code 1"
    others = (step(f"t{i}", result=conversations.prose(i, 4000)) for i in range(2, 8))
    return conversation(user(ORDER), step("t1", given=given, result=failed), *others)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Survival]:
    """What survives of the history in each row."""
    lines = [{"type": one["role"], "message": one} for one in history()]
    summary = {"type": "user", "isCompactSummary": True, "message": user(SAID)}
    path: Path = tmp_path_factory.mktemp("sessions") / "one.jsonl"
    path.write_text("\n".join(map(json.dumps, [*lines, summary])), "utf-8")
    return survivals([path], [])


def test_each_kind_is_found_once_whatever_says_it():
    found = [(fact.kind, fact.text) for fact in facts_in(history()[:3] * 2, AtomIndex())]

    assert ("paths", "Pengine/turbine.py") in found
    assert ("commands", COMMAND) in found
    assert ("numbers", "N1417") in found
    assert ("identifiers", "Iblade_pitch") in found
    assert ("errors", ERROR) in found
    assert ("user's lines", ORDER) in found
    assert len(found) == len(set(found))


def test_a_recorded_summary_shows_what_it_says_and_names_nothing(done):
    recorded = done[RECORDED]

    assert [recorded.sight[kind] for kind in KINDS] == [2, 0, 1, 0, 0, 0]
    assert recorded.named == recorded.reached == recorded.sight


@pytest.mark.parametrize("row", ["coding", "lean", "chat"])
def test_all_that_our_presets_take_out_is_named(done, row):
    survival = done[row]

    assert survival.sight.total() < survival.total.total()
    assert survival.mean_share(survival.reached) == 1
    assert survival.sight["commands"] == survival.sight["user's lines"] == 1
    assert survival.asked > 0


def test_what_truncation_takes_out_is_gone(done):
    survival = done[TRUNCATED]

    assert survival.sight["user's lines"] == 1
    assert survival.sight["errors"] == survival.reached["errors"] == 0
    assert survival.asked == done[SUMMARY].asked == 0


def test_a_question_does_not_hold_its_answer():
    atom = Fact("numbers", "N1417", "blade_pitch is 1417, not 1418")
    line = Fact("errors", ERROR, "", is_atom=False)

    assert "1417" not in atom.question()
    assert line.question() == "AssertionError: is not"
