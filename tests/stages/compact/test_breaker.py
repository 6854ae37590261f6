"""The breaker and the refill guard."""

from __future__ import annotations

import json

from ctxpipe.stages.compact.breaker import Attempts


def test_at_first_every_attempt_is_made():
    assert Attempts().refusal(now=0, tokens=10) == ""


def test_two_failures_in_a_row_are_borne_the_third_opens_it_for_a_cooldown():
    attempts = Attempts()

    refusals = []
    for _ in range(3):
        attempts.record_failure(until=100, why="500")
        refusals.append(attempts.refusal(now=0, tokens=10))

    assert refusals[:2] == ["", ""]
    assert refusals[2] == "3 attempts failed in a row, the last with: 500; no attempt for 100 s"


def test_after_the_cooldown_there_is_one_trial():
    attempts = Attempts()
    for _ in range(3):
        attempts.record_failure(until=100, why="500")

    assert attempts.refusal(now=99, tokens=10)
    assert not attempts.refusal(now=100, tokens=10)
    attempts.record_failure(until=200, why="500")
    assert attempts.refusal(now=101, tokens=10)


def test_a_success_forgets_the_failures():
    attempts = Attempts()
    attempts.record_failure(100, "a")
    attempts.record_failure(100, "b")
    attempts.record_success(100)
    attempts.record_failure(100, "c")

    assert attempts.refusal(now=0, tokens=10) == ""


def test_a_context_that_cannot_be_brought_down_is_tried_again_when_it_changed_or_time_passed():
    attempts = Attempts()
    attempts.record_no_progress(until=100, tokens=1000)

    assert attempts.refusal(now=0, tokens=1000)
    assert attempts.refusal(now=0, tokens=1090)
    assert attempts.refusal(now=0, tokens=920)
    assert not attempts.refusal(now=0, tokens=1200)
    assert not attempts.refusal(now=0, tokens=800)
    assert not attempts.refusal(now=100, tokens=1000)


def compacted_at(*turns: int) -> list[bool]:
    attempts = Attempts()
    opened = []
    for turn in turns:
        attempts.turns = turn
        opened.append(attempts.record_success(until=100))
    return opened


def test_coming_back_within_three_turns_three_times_in_a_row_opens_it():
    assert compacted_at(10, 13, 15, 16) == [False, False, False, True]


def test_after_the_cooldown_coming_back_as_soon_opens_it_again_at_once():
    assert compacted_at(10, 13, 15, 16, 30, 32, 50, 60, 62, 64) == [
        *[False] * 3,
        True,
        False,
        True,
        *[False] * 4,
    ]


def test_a_longer_pause_restarts_the_count():
    assert compacted_at(10, 13, 17, 20, 23, 24) == [False, False, False, False, False, True]


# In another process -------------------------------------------------------------------------------


def another_process(attempts: Attempts) -> Attempts:
    return Attempts.load(json.loads(json.dumps(attempts.saved())))


def test_at_first_there_is_nothing_to_save():
    assert Attempts(turns=7, warned=True).saved() == {}


def test_failures_are_counted_on_by_another_process():
    attempts = Attempts()
    for _ in range(3):
        attempts = another_process(attempts)
        attempts.record_failure(until=100, why="a secret of the user's")

    assert "secret" not in json.dumps(attempts.saved())
    known = another_process(attempts)
    assert known.refusal(now=0, tokens=10) == "3 attempts failed in a row; no attempt for 100 s"
    assert not known.refusal(now=100, tokens=10)


def test_another_process_knows_below_what_a_context_cannot_be_brought():
    attempts = Attempts()
    attempts.record_no_progress(until=100, tokens=1000)

    assert another_process(attempts).refusal(now=0, tokens=1050)
    assert not another_process(attempts).refusal(now=0, tokens=1200)


def test_a_context_that_fills_up_again_is_noticed_by_another_process_in_every_turn():
    attempts = Attempts()
    opened = list[bool]()
    for turn in range(1, 17):
        attempts = another_process(attempts)
        attempts.turns += 1
        if turn in (10, 13, 15, 16):
            opened.append(attempts.record_success(until=100))

    assert opened == [False, False, False, True]


def test_a_compaction_long_ago_does_not_count_in_another_process():
    """The turns since the compaction are those of both processes."""
    attempts = Attempts(turns=8)
    attempts.record_success(until=100)
    attempts.turns += 2

    attempts = another_process(attempts)
    attempts.turns += 3
    attempts.record_success(until=100)

    assert attempts.refills == 0


def test_what_is_over_is_not_saved():
    attempts = Attempts()
    attempts.record_failure(100, "a")
    attempts.record_success(100)
    assert attempts.saved() == {"last_turn": 0}
    attempts.turns += 4
    assert attempts.saved() == {}
