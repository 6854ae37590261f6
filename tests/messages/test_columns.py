"""Sums over the facts of a context, whatever it went through."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

from histories import assistant, conversation, histories, step, text, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.edits.diff import apply_edits, diff
from ctxpipe.messages import Columns, Message, blocks
from ctxpipe.messages.rules import mark_problems


def everything(columns: Columns) -> Any:
    """All that *columns* can be asked."""
    count = len(columns)
    return (
        count,
        columns.marks,
        list(columns.messages_with_marks()),
        columns.calls,
        columns.messages_sent,
        columns.reads(range(count)),
        [columns.recent_from(keep) for keep in range(4)],
    )


def marked(number: int = 1) -> list[Any]:
    return [{**text("x"), "cache_control": {"type": "ephemeral"}} for _ in range(number)]


@given(st.lists(st.tuples(st.sampled_from(["cut", "extend", "replace"]), histories(2), st.data())))
def test_after_any_cut_extension_and_replacement_columns_equal_those_built_anew(
    steps: list[tuple[str, list[Message], st.DataObject]],
):
    columns = Columns()
    messages: list[Message] = []
    for action, new, data in steps:
        place = data.draw(st.integers(0, len(messages)))
        if action == "cut":
            columns.cut(place)
            messages = messages[:place]
        elif action == "extend":
            messages = [*messages, *new]
        else:
            stop = data.draw(st.integers(place, len(messages)))
            after = [*messages[:place], *new, *messages[stop:]]
            edits = diff(messages, after)
            columns.replace(edits)
            messages = apply_edits(messages, edits)
        columns.extend(messages)

        assert everything(columns) == everything(Columns(messages))


def test_what_follows_a_replacement_is_not_read_again():
    before = conversation(user("go"), step("a"), step("b"))
    columns = Columns(before)
    edits = diff(before, [user("go on"), *before[1:]])
    for message in before[1:]:
        cast("Any", message).clear()

    columns.replace(edits)

    assert len(columns) == len(before)


def instructions(function: Callable[[], object]) -> int:
    """The instructions that *function* runs, in all that it calls."""
    ran = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal ran
        frame.f_trace_opcodes = True
        ran += event == "opcode"
        return count

    before = sys.gettrace()  # that of a measurement of coverage
    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return ran


def test_many_replacements_at_once_cost_one_pass_over_the_context():
    def ran(length: int) -> int:
        messages = [user(f"{number}") for number in range(length)]
        columns = Columns(messages)
        edits = [(at, at + 1, messages[at : at + 1]) for at in reversed(range(len(messages)))]
        return instructions(lambda: columns.replace(edits))

    assert ran(200) < 2.1 * ran(100)


def test_a_replacement_beyond_what_is_known_leaves_what_comes_before_it():
    messages = conversation(user("go"), step("a"), step("b"))
    columns = Columns(messages[:2])

    columns.replace([(1, 4, [assistant("done")])])

    assert len(columns) == 1


# Replies ------------------------------------------------------------------------------------------


def test_messages_are_recent_until_the_model_has_answered_often_enough():
    history = conversation(user("go"), step("a"), step("b"), step("c"))

    assert [Columns(history).recent_from(keep) for keep in range(5)] == [7, 5, 3, 1, 0]
    assert Columns([*history, assistant("done")]).recent_from(1) == 7
    assert Columns().recent_from(1) == 0


def test_a_reply_that_nothing_follows_is_always_recent():
    history = conversation(user("Go."), step("a"), step("b"))

    assert Columns(history[:-1]).recent_from(0) == len(history) - 2
    assert Columns(history[:-1]).recent_from(1) == len(history) - 2
    assert Columns().recent_from(0) == 0


# Cache marks --------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_marks_counted_from_turn_to_turn_are_those_counted_afresh(
    turns: list[tuple[int, bool]],
):
    counted, history = Columns(), list[Message]()
    for marks, again in turns:
        if again and history:
            counted.cut(len(history) - 1)
            del history[-1]
        history.append(user(text("x"), *marked(marks)))
        counted.extend(history)

        assert mark_problems(history, counted) == mark_problems(history, Columns(history))


def test_marks_that_move_along_in_place_never_add_up():
    counted, history = Columns(), list[Message]()
    for _ in range(20):
        for message in history:
            for block in blocks(message):
                cast("Any", block).pop("cache_control", None)
        history.append(user(*marked()))
        counted.extend(history)

        assert mark_problems(history, counted) == []
