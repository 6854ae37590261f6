"""How much of what is used later a shortened context still shows."""

from __future__ import annotations

import anyio
import pytest
from histories import assistant, conversation, step, user
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baselines import BudgetedPolicy
from benchmarks.recall import (
    ORACLES,
    Cut,
    Scored,
    cuts,
    lines_around,
    mean_recall,
    one_hop,
    oracle_atoms,
    oracle_blocks,
    oracle_lines,
    oracle_pointers,
    run_pipeline,
)
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.references import Use
from ctxpipe.lab.transcripts import Transcript, parse_transcript, read_transcript
from ctxpipe.messages import compact_json
from ctxpipe.stages.reading.atoms import AtomIndex
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter()
FILLER = "a line of a log that says nothing at all\n" * 30


def fact(number: int) -> str:
    return f"the box with the number {number + 1000} stands in room_of_{'abcdefghij'[number]}"


def talk(results: int, *replies: str) -> Transcript:
    """Some long results with a fact in each, and then replies that may use them."""
    steps = [step(f"t{i}", result=f"log:\n{fact(i)}\n{FILLER}") for i in range(results)]
    said = [message for reply in replies for message in (assistant(reply), user("Go on."))]
    return parse_transcript(compact_json(conversation(user("Go."), *steps, said)), "talk")


def cut_at(transcript: Transcript, call: int) -> Cut:
    return Cut(transcript, call, AtomIndex(), COUNTER)


# What is used later -------------------------------------------------------------------------------


def test_a_future_reference_is_what_a_later_reply_says_and_the_history_has_said():
    cut = cut_at(talk(4, f"I know:\n{fact(0)}", "Nothing else."), 4)

    assert f"L{fact(0)}" in cut.future
    assert f"L{fact(1)}" not in cut.future
    assert cut.history == talk(4, "x").messages[:9]


def test_what_something_newer_has_said_again_is_no_use_of_the_history():
    transcript = talk(3, "One moment.", f"I know:\n{fact(0)}")
    transcript.messages[8] = user(f"log:\n{fact(0)}")

    assert not [atom for atom in cut_at(transcript, 3).future if "1000" in atom]


def test_each_thing_is_used_once():
    once = cut_at(talk(3, fact(0)), 3)
    twice = cut_at(talk(3, fact(0), fact(0)), 3)

    assert once.future == twice.future
    assert once.weight == twice.weight > 1


def test_a_conversation_is_cut_where_enough_lies_before_and_behind():
    transcript = talk(8, *[f"I know:\n{fact(i)}" for i in range(6)], "Done.")

    assert [cut.call for cut in cuts(transcript, min_tokens=500, min_weight=1)] == [5, 8]
    assert not list(cuts(transcript, min_tokens=100_000))
    assert not list(cuts(transcript, min_tokens=0, min_weight=1000))
    assert not list(cuts(transcript, min_tokens=0, min_weight=0, min_calls=50))


# What is left of it -------------------------------------------------------------------------------


async def test_the_full_context_has_recall_one():
    cut = cut_at(talk(4, fact(0), fact(3)), 4)
    found = await run_pipeline(cut, Policy("none"))

    assert found.use.recall == 1
    assert found.tokens == cut.tokens


async def test_what_was_dropped_is_lost_and_what_stays_is_visible():
    cut = cut_at(talk(8, fact(0), fact(7)), 8)
    found = await run_pipeline(cut, BudgetedPolicy("keep last", cut.tokens // 2))

    assert found.tokens <= cut.tokens // 2
    assert 0 < found.use.recall < 1
    assert found.use.lost > 0
    assert found.use.total == cut.weight


async def test_what_was_offloaded_is_one_reading_call_away():
    cut = cut_at(talk(8, fact(0), fact(7)), 8)
    found = await run_pipeline(cut, BudgetedPolicy("offload oldest", cut.tokens // 2))

    assert found.use.recall < 1
    assert one_hop(found.use) == 1


def test_means_give_each_context_the_same_say():
    scored = [Scored(100, Use(visible=1)), Scored(300, Use(pointer=30, lost=10))]
    found = mean_recall(scored)

    assert (found.cuts, found.visible, found.one_hop, found.tokens) == (2, 0.5, (1 + 0.75) / 2, 200)
    assert mean_recall([]).cuts == 0


# Bounds -------------------------------------------------------------------------------------------


def test_one_who_knows_the_future_keeps_the_blocks_that_are_used():
    cut = cut_at(talk(8, fact(2), fact(6)), 8)
    block = COUNTER.text(f"log:\n{fact(2)}\n{FILLER}")

    assert oracle_blocks(cut, 2 * block).use.recall == 1
    assert 0 < oracle_blocks(cut, block).use.recall < 1
    assert oracle_blocks(cut, block - 1).use.visible == 0


def test_pointers_add_what_they_lead_to():
    cut = cut_at(talk(8, fact(2), fact(6)), 8)
    found = oracle_pointers(cut, 8 * 30)

    assert found.use.recall == 0
    assert one_hop(found.use) == 1


def test_lines_need_less_than_blocks_and_strings_less_than_lines():
    cut = cut_at(talk(8, fact(2), f"I know room_of_{'g'}."), 8)

    everything = [oracle(cut, cut.tokens) for oracle in (oracle_blocks, oracle_lines, oracle_atoms)]
    assert [one.use.recall for one in everything] == [1, 1, 1]
    assert everything[0].tokens > everything[1].tokens > 0
    assert everything[1].tokens < 100


@settings(max_examples=settings().max_examples // 10)
@given(st.sets(st.integers(0, 7), min_size=1), st.integers(0, 3000))
def test_no_bound_is_above_its_room_and_with_all_the_room_nothing_is_missing(
    used: set[int], room: int
):
    cut = cut_at(talk(8, *map(fact, sorted(used))), 8)

    for name, oracle in ORACLES.items():
        found = oracle(cut, room)
        assert found.use.total == pytest.approx(cut.weight)
        assert found.tokens <= (max(room, 8 * 30) if name == "oracle pointers" else room)
        assert oracle(cut, cut.tokens + 8 * 30).use.recall == pytest.approx(1)


@pytest.mark.shared
def test_on_a_real_session_policies_stand_in_their_order(shared):
    transcript = read_transcript(shared / "transcripts" / "kimicli-gen-check.jsonl")
    found: dict[str, list[Scored]] = {"keep last": [], "offload oldest": [], "oracle": []}
    for cut in cuts(transcript, index=AtomIndex()):
        budget = cut.tokens // 4
        for name in ("keep last", "offload oldest"):
            found[name].append(anyio.run(run_pipeline, cut, BudgetedPolicy(name, budget)))
        found["oracle"].append(oracle_blocks(cut, budget))
        assert anyio.run(run_pipeline, cut, Policy("none")).use.recall == 1
    last, offload, oracle = (mean_recall(scored) for scored in found.values())

    assert last.cuts == 3
    assert last.one_hop < offload.one_hop
    assert offload.visible < oracle.visible


# Reading back by pages ----------------------------------------------------------------------------


def test_pages_show_the_lines_around_what_is_wanted_and_nothing_else():
    text = "".join(f"{' ' * 40}line_number_{number}\n" for number in range(100))

    shown = lines_around(text, {"Iline_number_30", "Iline_number_33", "Iline_number_99"}, 5)

    assert shown.split() == [
        f"line_number_{number}" for number in (*range(25, 39), *range(94, 100))
    ]


def test_a_short_text_is_read_back_whole_and_so_is_one_that_holds_it_in_no_line():
    assert lines_around("wanted_here\nb\nc\n", {"Iwanted_here"}, 0) == "wanted_here\nb\nc\n"
    assert lines_around("b\n" * 2000, {"Inot_there"}, 1) == "b\n" * 2000
