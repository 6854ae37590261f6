"""Old exchanges, and the tokens that would leave with each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from histories import assistant, conversation, histories, step, text, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import FactSums, Message
from ctxpipe.stages.collapse.exchanges import ExchangeIndex
from ctxpipe.stages.collapse.governing import Governing
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter()
LONG = "word " * 400


def sums(messages: Sequence[Message]) -> list[int]:
    return [0, *accumulate(COUNTER.message(message) for message in messages)]


def index_of(messages: Sequence[Message], keep_recent: int) -> ExchangeIndex:
    index = ExchangeIndex()
    extend(index, messages, keep_recent)
    return index


def extend(index: ExchangeIndex, messages: Sequence[Message], keep_recent: int):
    recent = FactSums(messages).recent_from(keep_recent)
    index.extend(messages, recent, sums(messages), COUNTER)


def columns(index: ExchangeIndex, messages: Sequence[Message], keep_recent: int) -> Any:
    table = index.table(FactSums(messages), sums(messages), keep_recent)
    return list(table.freed), list(table.reads), list(table.starts)


def test_exchanges_are_old_once_they_were_answered_so_often():
    messages = conversation(user("Go."), *(step(f"t{i}", result=LONG) for i in range(5)))
    totals = sums(messages)

    freed, reads, starts = columns(index_of(messages, 3), messages, 3)

    assert starts == [totals[1], totals[3]]
    assert reads == [2, 1]
    assert freed == [totals[3] - totals[1] - 25, totals[5] - totals[3] - 25]


def test_what_would_stay_is_not_counted_as_freed():
    words = "some words of the assistant"
    plain = conversation(user("Go."), step("t1", result=LONG), assistant("a"))
    rich = conversation(
        user("Go."),
        assistant(words, tool_use("t1")),
        user(tool_result("t1", LONG), text("And hurry.")),
        assistant("a"),
    )

    [more], _, _ = columns(index_of(rich, 1), rich, 1)
    [less], _, _ = columns(index_of(plain, 1), plain, 1)

    assert more == less + COUNTER.text(words)  # the words leave, the user's block stays


def test_an_exchange_from_which_nothing_would_be_freed_is_left_out():
    messages = conversation(user("Go."), step("t1", result="ok"), assistant("a"))

    assert columns(index_of(messages, 1), messages, 1) == ([], [], [])


@given(histories(), histories(2), st.integers(1, 3), st.data())
def test_an_index_that_was_rewound_is_the_one_of_the_new_messages(
    before: list[Message], after: list[Message], keep_recent: int, data: st.DataObject
):
    known = data.draw(st.integers(0, len(before)))
    messages = [*before[:known], *after]
    index = index_of(before, keep_recent)

    index.rewind(known)
    extend(index, messages, keep_recent)

    fresh = index_of(messages, keep_recent)
    assert columns(index, messages, keep_recent) == columns(fresh, messages, keep_recent)


def test_exchanges_that_govern_the_agent_are_no_candidates():
    messages = conversation(
        user("Go."), step("t1", result=LONG), step("t2", result=LONG), assistant("a")
    )
    index = index_of(messages, 1)

    remaining = index.without(messages, Governing(kept_messages=frozenset({2})))

    assert list(index.places) == [1, 3]
    assert list(remaining.places) == [3]
    assert columns(remaining, messages, 1)[0] == columns(index, messages, 1)[0][1:]
