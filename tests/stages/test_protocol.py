"""The turn that a stage gets, and the answers that it may give."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from histories import chat, user

from ctxpipe import BatchOffload, Budget, DirectOffload, LocalStorage, Turn
from ctxpipe.messages import FactSums
from ctxpipe.stages.offload.selection import CandidateIndex
from ctxpipe.stages.protocol import PlannedStage, Tracked
from ctxpipe.tokens import Ledger, TokenCounter


def turn(*messages: str, tracked: Tracked | None = None) -> Turn:
    return Turn(
        [user(words) for words in messages],
        ledger=Ledger(TokenCounter(len)),
        overhead=5,
        tracked=tracked,
    )


async def test_the_tokens_of_a_turn_are_those_of_its_messages_and_the_overhead():
    assert await turn("four", "sixsix").raw_tokens() == 15
    assert list(await turn("four", "sixsix").prefix_sums()) == [0, 4, 10]


async def test_before_the_first_bill_the_counted_tokens_are_expected():
    assert await turn("four", "six").tokens() == 12


async def test_after_a_bill_the_estimate_is_what_was_billed():
    asked = turn("x" * 95)
    asked.ledger.observe({"input_tokens": 120}, asked.messages, overhead=5)

    assert await asked.tokens() == 120


async def test_a_turn_alone_has_a_budget_and_a_counter_of_its_own():
    alone = Turn(chat(2))

    assert alone.budget == Budget()
    assert await alone.counter.texts(["hello"]) == [1]
    assert await alone.raw_tokens() > 0


async def test_in_a_tracked_turn_the_ledger_is_trusted_as_far_as_it_reaches():
    first = turn(
        "four", "sixsix", tracked=Tracked(0, exceeds_inline_limit=False, fact_sums=FactSums())
    )
    await first.raw_tokens()
    longer = replace(first, messages=[*first.messages, user("xx")])

    assert list(await longer.prefix_sums()) == [0, 4, 10, 12]


@pytest.mark.parametrize("is_long", [False, True])
async def test_what_reads_new_messages_is_called_in_a_thread_only_if_they_are_long(is_long: bool):
    tracked = Tracked(0, exceeds_inline_limit=is_long, fact_sums=FactSums())
    asked = turn("four", tracked=tracked)

    caller_thread = await asked.call_from(0, threading.get_ident)

    assert (caller_thread != threading.get_ident()) is is_long


def test_a_record_is_made_once_and_found_again_by_its_kind():
    asked = turn()

    made = asked.recall(CandidateIndex)

    assert asked.recall(CandidateIndex) is made
    assert len(asked.memory) == 1


def test_the_offload_stages_can_plan():
    assert isinstance(DirectOffload(LocalStorage("x")), PlannedStage)
    assert isinstance(BatchOffload(LocalStorage("x")), PlannedStage)
