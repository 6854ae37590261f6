"""Running sums over the facts of a context, after any changes to it."""

from __future__ import annotations

from typing import Any, cast

from histories import assistant, conversation, histories, step, text, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import FactSums, Message, blocks
from ctxpipe.messages.rules import mark_problems


def everything(fact_sums: FactSums) -> Any:
    """The values of all properties and methods of *fact_sums*."""
    count = fact_sums.message_count
    return (
        count,
        fact_sums.marks,
        list(fact_sums.messages_with_marks()),
        fact_sums.calls,
        fact_sums.messages_sent,
        fact_sums.reads(range(count)),
        [fact_sums.recent_from(keep) for keep in range(4)],
    )


def marked(number: int = 1) -> list[Any]:
    return [{**text("x"), "cache_control": {"type": "ephemeral"}} for _ in range(number)]


@given(st.lists(st.tuples(st.sampled_from(["cut", "extend"]), histories(2), st.data())))
def test_after_any_rewind_and_extension_columns_equal_new_ones(
    steps: list[tuple[str, list[Message], st.DataObject]],
):
    fact_sums = FactSums()
    messages: list[Message] = []
    for action, new, data in steps:
        place = data.draw(st.integers(0, len(messages)))
        if action == "cut":
            fact_sums.rewind(place)
            messages = messages[:place]
        else:
            messages = [*messages, *new]
        fact_sums.extend(messages)

        assert everything(fact_sums) == everything(FactSums(messages))


def test_the_columns_of_the_first_messages_are_their_own():
    messages = conversation(user("go"), step("a"), step("b"))
    fact_sums = FactSums(messages)

    first = fact_sums.of_first(3)
    first.extend([*messages[:3], user("something else")])

    assert everything(first) == everything(FactSums([*messages[:3], user("something else")]))
    assert everything(fact_sums) == everything(FactSums(messages))


# Replies ------------------------------------------------------------------------------------------


def test_messages_are_recent_until_the_model_has_answered_often_enough():
    history = conversation(user("go"), step("a"), step("b"), step("c"))

    assert [FactSums(history).recent_from(keep) for keep in range(5)] == [7, 5, 3, 1, 0]
    assert FactSums([*history, assistant("done")]).recent_from(1) == 7
    assert FactSums().recent_from(1) == 0


def test_a_reply_that_nothing_follows_is_always_recent():
    history = conversation(user("Go."), step("a"), step("b"))

    assert FactSums(history[:-1]).recent_from(0) == len(history) - 2
    assert FactSums(history[:-1]).recent_from(1) == len(history) - 2
    assert FactSums().recent_from(0) == 0


# Cache marks --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_marks_counted_from_turn_to_turn_equal_a_new_count(
    turns: list[tuple[int, bool]],
):
    counted, history = FactSums(), list[Message]()
    for marks, again in turns:
        if again and history:
            counted.rewind(len(history) - 1)
            del history[-1]
        history.append(user(text("x"), *marked(marks)))
        counted.extend(history)

        assert mark_problems(history, counted) == mark_problems(history, FactSums(history))


def test_marks_that_move_in_place_are_not_counted_twice():
    counted, history = FactSums(), list[Message]()
    for _ in range(20):
        for message in history:
            for block in blocks(message):
                cast("Any", block).pop("cache_control", None)
        history.append(user(*marked()))
        counted.extend(history)

        assert mark_problems(history, counted) == []
