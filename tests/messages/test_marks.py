"""Cache marks: where they are, and which of them stay."""

from __future__ import annotations

import copy

from histories import MARK, assistant, marked, text, tool_result, tool_use, user

from ctxpipe.messages import check
from ctxpipe.messages.marks import change_marked, limit_marks, mark_places
from ctxpipe.messages.rules import NO_OTHER_MARKS, OtherMarks

HISTORY = [
    marked(message)
    for number in range(3)
    for message in (user(f"u{number}"), assistant(f"a{number}"))
]


def test_a_mark_inside_a_result_is_found_at_its_place_in_the_result():
    result = tool_result("t", [text("a"), {**text("b"), **MARK}])
    history = [user("go"), assistant(tool_use("t")), user(result)]

    assert mark_places(history) == [(2, (0, 1))]


def test_only_the_last_four_marks_stay():
    before = copy.deepcopy(HISTORY)

    limited = limit_marks(HISTORY, NO_OTHER_MARKS)

    assert [index for index, _ in mark_places(limited)] == [2, 3, 4, 5]
    assert check(limited) == []
    assert before == HISTORY


def test_marks_outside_the_messages_count():
    limited = limit_marks(HISTORY, OtherMarks(3, has_short=True))

    assert [index for index, _ in mark_places(limited)] == [5]


def test_a_message_without_a_change_stays_the_same_object():
    changed = change_marked(HISTORY, mark_places(HISTORY)[:1], lambda _: text("new"))

    assert changed[0] != HISTORY[0]
    assert all(new is old for new, old in zip(changed[1:], HISTORY[1:], strict=True))
