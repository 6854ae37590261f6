"""Edits that turn one list of messages into another."""

from __future__ import annotations

import copy
from typing import Any, cast

from anthropic.types import TextBlock
from histories import assistant, chat, conversation, histories, step, text, tool_result, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import Message
from ctxpipe.messages.diff import Edit, apply_edits, diff, first_changed_block


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """A context, and what a stage might make of it; some objects stand in it more than once."""
    pool = [*chat(4), user("a", "b"), assistant("a", "b"), user("a", "b")]
    before = draw(st.lists(st.sampled_from(pool), max_size=10))
    after = list(before)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(after)))
        stop = draw(st.integers(start, len(after)))
        held = after[start:stop]
        what = draw(st.sampled_from(["copy", "rewrite", "delete", "insert", "double", "reverse"]))
        if what == "copy":
            held = copy.deepcopy(held)
        elif what == "rewrite":
            held = [cast("Message", {**message, "content": "short"}) for message in held]
        elif what == "delete":
            held = []
        elif what == "insert":
            held = [*held, *draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))]
        elif what == "double":
            held = held * 2
        else:
            held = held[::-1]
        after[start:stop] = held
    return before, after


# Any change ---------------------------------------------------------------------------------------


@given(pairs())
def test_the_edits_turn_the_one_into_the_other(pair: tuple[list[Message], list[Message]]):
    before, after = pair

    assert apply_edits(before, diff(before, after)) == after


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_objects_that_occur_many_times_do_no_harm(old: list[int], new: list[int]):
    pool = [user("same"), user("same"), assistant("other")]
    before = [pool[i] for i in old]
    after = [pool[i] for i in new]

    assert apply_edits(before, diff(before, after)) == after


@given(pairs())
def test_the_last_edit_comes_first_and_none_overlaps_another(
    pair: tuple[list[Message], list[Message]],
):
    edits = diff(*pair)

    places = [place for edit in reversed(edits) for place in (edit.start, edit.stop)]
    assert places == sorted(places)


@given(pairs())
def test_no_edit_is_empty(pair: tuple[list[Message], list[Message]]):
    before, after = pair

    edits = diff(before, after)

    assert all(edit.messages != before[edit.start : edit.stop] for edit in edits)
    assert bool(edits) == (before != after)


@given(pairs())
def test_the_lists_compared_stay_as_they_were(pair: tuple[list[Message], list[Message]]):
    before, after = pair
    kept = list(before), list(after)

    edits = diff(before, after)
    apply_edits(before, edits)

    assert kept == (before, after)


@given(histories(3), histories(3))
def test_another_conversation_is_reached_too(before: list[Message], after: list[Message]):
    assert apply_edits(before, diff(before, after)) == after


# What an edit is ----------------------------------------------------------------------------------


def test_the_same_messages_make_no_edit():
    history = chat(4)

    assert diff(history, history) == []
    assert diff(history, copy.deepcopy(history)) == []
    assert diff([], []) == []


def test_from_nothing_and_to_nothing_is_one_edit():
    assert diff([], chat(2)) == [Edit(0, 0, chat(2))]
    assert diff(chat(2), []) == [Edit(0, 2, [])]


def test_messages_of_the_same_shape_are_paired_one_by_one():
    before = conversation(user("go"), step("t1", result="long"), step("t2", result="long"))
    shorter = [user(tool_result("t1", "short")), user(tool_result("t2", "short"))]
    after = [*before[:2], shorter[0], before[3], shorter[1]]

    assert diff(before, after) == [Edit(4, 5, [shorter[1]]), Edit(2, 3, [shorter[0]])]


def test_an_equal_message_among_paired_ones_is_no_edit():
    before = chat(3)

    after = [user("short"), copy.deepcopy(before[1]), user("shorter")]

    assert diff(before, after) == [Edit(2, 3, [user("shorter")]), Edit(0, 1, [user("short")])]


def test_another_role_between_two_anchors_makes_one_edit():
    before = chat(4)
    after = [before[0], user("a"), assistant("b"), before[3]]

    assert diff(before, after) == [Edit(1, 3, [user("a"), assistant("b")])]


def test_another_number_of_blocks_makes_one_edit():
    before = [user("a", "b"), assistant("c"), user("d")]
    after = [user(text("a")), assistant("c"), user("e")]

    assert diff(before, after) == [Edit(0, 3, after)]


def test_a_summary_is_one_edit_that_replaces_all_removed_messages():
    before = chat(6)
    summary = [user("summary"), assistant("noted")]

    assert diff(before, [*summary, *before[4:]]) == [Edit(0, 4, summary)]


def test_two_gaps_are_two_edits():
    before = chat(10)

    edits = diff(before, [*before[:2], *before[4:6], *before[8:]])

    assert edits == [Edit(6, 8, []), Edit(2, 4, [])]


def test_what_is_put_between_two_messages_replaces_none():
    before = chat(4)

    assert diff(before, [*before[:2], user("new"), *before[2:]]) == [Edit(2, 2, [user("new")])]


def test_only_the_very_same_object_is_an_anchor():
    before = [user("a"), assistant("b"), user("c"), assistant("d")]
    twin = copy.deepcopy(before[2])

    assert diff(before, [user("s"), before[2], before[3]]) == [Edit(0, 2, [user("s")])]
    assert diff(before, [user("s"), twin]) == [Edit(0, 4, [user("s"), twin])]


def test_a_message_that_has_moved_forward_is_taken_out_and_put_in_again():
    before = chat(4)
    after = [before[2], before[0], before[1], before[3]]

    edits = diff(before, after)

    assert edits == [Edit(3, 3, [before[0], before[1]]), Edit(0, 2, [])]


def test_an_edit_holds_the_very_objects_that_came_in():
    before = chat(4)
    new = user("new")

    [edit] = diff(before, [before[0], new, before[3]])

    assert edit.messages[0] is new


# The first block that changed ---------------------------------------------------------------------


def test_the_first_changed_block_is_the_first_that_differs():
    before = [assistant("a", "b", "c")]
    after = [assistant("a", "B", "c")]

    assert first_changed_block(before, Edit(0, 1, after)) == 1


def test_bare_text_is_the_same_as_its_one_block():
    assert first_changed_block([user("go")], Edit(0, 1, [user("go", "on")])) == 1


def test_a_block_that_is_gone_from_the_end_is_the_first_changed():
    before = [assistant("a", "b")]

    assert first_changed_block(before, Edit(0, 1, [assistant(text("a"))])) == 1


def test_what_was_put_in_or_taken_out_is_changed_from_its_beginning():
    before = chat(3)

    assert first_changed_block(before, Edit(1, 1, [user("new")])) == 0
    assert first_changed_block(before, Edit(1, 2, [])) == 0


def test_the_first_changed_block_is_in_the_first_message_of_the_edit():
    before = [user("a"), assistant("a", "b"), user("c")]
    after = [assistant("a", "B")]

    assert first_changed_block(before, Edit(1, 3, after)) == 1


def test_an_object_of_the_sdk_that_stays_is_no_change():
    said = TextBlock(type="text", text="a")
    before = cast("list[Message]", [{"role": "assistant", "content": [said, text("b")]}])
    after = cast("list[Message]", [{"role": "assistant", "content": [said, text("B")]}])

    assert first_changed_block(before, Edit(0, 1, after)) == 1


@given(histories(2), st.data())
def test_all_blocks_before_the_first_changed_one_are_as_they_were(
    history: list[Message],
    data: st.DataObject,
):
    index = data.draw(st.integers(0, len(history) - 1))
    held: Any = history[index]["content"]
    if isinstance(held, str):
        return
    place = data.draw(st.integers(0, len(held) - 1))
    other: Any = {**history[index], "content": [*held[:place], text("new"), *held[place + 1 :]]}

    assert first_changed_block(history, Edit(index, index + 1, [other])) == place
