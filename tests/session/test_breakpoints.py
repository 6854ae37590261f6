from __future__ import annotations

import copy
from typing import Any

import pytest
from api_histories import MODEL, body_of, few, valid_histories
from histories import (
    MARK,
    assistant,
    conversation,
    histories,
    step,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from ctxpipe.messages import Message, cache_marks
from ctxpipe.session.breakpoints import with_breakpoints, with_free_breakpoints, with_hour_marks
from ctxpipe.testing import Model, problems

HOUR = {"type": "ephemeral", "ttl": "1h"}


def request(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": conversation(*parts), **more}


def marked_messages(body: dict[str, Any]) -> list[int]:
    return [index for index, message in enumerate(body["messages"]) if any(cache_marks(message))]


def test_the_ends_of_this_prompt_and_the_one_before_are_marked_first():
    body = request(user("go"), step("t1"), step("t2"), system="Be brief.")

    changed = with_breakpoints(body, 2)

    assert marked_messages(changed) == [2, 4]
    assert changed["system"] == "Be brief."


def test_a_mark_is_placed_before_and_after_rewritten_messages():
    body = request(user("go"), *(step(f"t{n}") for n in range(9)), system="Be brief.")

    changed = with_breakpoints(body, 4, rewritten=(4, 9))

    assert marked_messages(changed) == [3, 8, 18]
    assert changed["system"] == [{**text("Be brief."), **MARK}]


def test_in_front_of_what_was_rewritten_pays_more_than_behind_it():
    body = request(user("go"), *(step(f"t{n}") for n in range(9)))

    assert marked_messages(with_breakpoints(body, 2, rewritten=(4, 9))) == [3, 18]


def test_a_new_result_that_was_offloaded_leaves_the_prompt_before_as_it_was():
    body = request(user("go"), step("t1"), step("t2"))

    assert with_breakpoints(body, 2, rewritten=(4, 5)) == with_breakpoints(body, 2)


def test_a_context_rewritten_from_its_first_message_on_has_nothing_in_front():
    body = request(user("go"), step("t1"), step("t2"))

    assert marked_messages(with_breakpoints(body, 4, rewritten=(0, 3))) == [2, 4]


def test_a_third_mark_goes_behind_the_system_prompt():
    changed = with_breakpoints(request(user("go"), step("t1"), system="Be brief."), 3)

    assert changed["system"] == [{**text("Be brief."), **MARK}]


def test_without_a_system_prompt_it_goes_behind_the_tools():
    tools = [{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}}]

    changed = with_breakpoints(request(user("go"), tools=tools), 4)

    assert changed["tools"] == [tools[0], {**tools[1], **MARK}]


@pytest.mark.parametrize(
    "marked", [{**text("a"), **MARK}, tool_result("t", [{**text("a"), **MARK}])]
)
def test_a_request_with_marks_of_its_own_decides_for_itself(marked):
    body = request(user("go"), assistant(tool_use("t")), user(marked))

    assert with_breakpoints(body, 4) == body


def test_automatic_caching_decides_for_itself():
    body = request(user("go"), system="Be brief.", **MARK)

    assert with_breakpoints(body, 4)["messages"] == body["messages"]


def nine_steps(**more: Any) -> dict[str, Any]:
    """A request of 19 messages."""
    return request(user("go"), *(step(f"t{n}") for n in range(9)), **more)


def with_mark(body: dict[str, Any], index: int, mark: dict[str, Any] = MARK) -> dict[str, Any]:
    """*body* with a mark of the caller's at the end of message *index*."""
    messages = list(body["messages"])
    content = messages[index]["content"]
    if isinstance(content, str):
        content = [text(content)]
    messages[index] = {**messages[index], "content": [*content[:-1], {**content[-1], **mark}]}
    return {**body, "messages": messages}


PLACES = [
    lambda body, rewritten: with_breakpoints(body, 4, rewritten),
    with_free_breakpoints,
]


@pytest.mark.parametrize("place", PLACES)
def test_around_a_rewriting_marks_join_those_of_the_request_that_come_after(place):
    assert marked_messages(place(with_mark(nine_steps(), 18), (4, 9))) == [3, 8, 18]
    assert marked_messages(place(nine_steps(**MARK), (4, 9))) == [3, 8]


@pytest.mark.parametrize("place", PLACES)
def test_after_the_last_mark_of_a_request_none_is_added_since_it_would_have_to_be_paid(
    place,
):
    assert marked_messages(place(with_mark(nine_steps(), 6), (4, 9))) == [3, 6]


@pytest.mark.parametrize("place", PLACES)
def test_a_request_with_four_marks_gets_no_other(place):
    system = [{**text(str(n)), **MARK} for n in range(3)]
    body = with_mark(nine_steps(system=system), 18)

    assert place(body, (4, 9)) == body


@pytest.mark.parametrize("place", PLACES)
def test_of_two_marks_the_one_before_a_rewriting_is_placed_where_only_one_is_left(
    place,
):
    system = [{**text(str(n)), **MARK} for n in range(2)]

    assert marked_messages(place(with_mark(nine_steps(system=system), 18), (4, 9))) == [3, 18]


@pytest.mark.parametrize("place", PLACES)
def test_a_new_message_that_was_rewritten_has_left_no_entry_to_find(place):
    body = with_mark(nine_steps(), 18)

    assert place(body, (18, 19)) == body


def test_no_mark_is_free_in_a_request_that_is_not_cached():
    body = nine_steps(system=[{**text("Be brief."), **MARK}])

    assert with_free_breakpoints(body, (4, 9)) == body


def test_no_mark_is_free_in_a_turn_that_rewrites_nothing():
    body = with_mark(nine_steps(), 18)

    assert with_free_breakpoints(body, None) == body


@pytest.mark.parametrize(("last", "own"), [(18, "1h"), (6, None)])
def test_each_mark_lives_as_long_as_the_ones_after_it(last, own: str | None):
    body = with_mark(with_mark(nine_steps(), 2, {"cache_control": HOUR}), 18)
    body = with_mark(body, last, {"cache_control": HOUR})

    changed = with_free_breakpoints(body, (8, 12))

    [mark] = [block["cache_control"] for block in changed["messages"][7]["content"]]
    assert mark.get("ttl") == own


def test_a_system_prompt_with_a_mark_keeps_its_own():
    system = [{**text("a"), **MARK}, text("b")]

    assert with_breakpoints(request(user("go"), system=system), 4)["system"] == system


@pytest.mark.parametrize(
    "own",
    [
        {"messages": [user({**text("go"), "cache_control": HOUR})]},
        {
            "messages": [
                user("go"),
                *step("t1"),
                user({**tool_result("t1", [{**text("x"), "cache_control": HOUR}])}),
            ]
        },
        {"messages": [user("go")], "cache_control": HOUR},
    ],
)
def test_an_added_mark_before_a_mark_for_an_hour_is_for_an_hour_too(own: dict[str, Any]):
    marked = with_breakpoints({"system": "Be brief.", **own}, 4)

    assert marked["system"][-1]["cache_control"] == HOUR


@pytest.mark.parametrize("last", [user("  "), user(), assistant(thinking())])
def test_what_cannot_carry_a_mark_gets_none(last: Message):
    assert marked_messages(with_breakpoints(request(user("go"), assistant("hm"), last), 1)) == [0]


def test_with_a_limit_of_none_nothing_is_marked():
    body = request(user("go"), system="Be brief.")

    assert with_breakpoints(body, 0) == body


@given(
    histories(3, thoughts=False), st.integers(0, 4), st.integers(0, 4), st.booleans(), st.booleans()
)
def test_there_are_never_more_than_four_marks_and_the_body_stays_as_it_was(
    history: list[Message], limit: int, own: int, system: bool, automatic: bool
):
    body = request(
        *history,
        **({"system": [{**text("s"), **MARK}] * own} if system else {}),
        **(MARK if automatic else {}),
    )
    before = copy.deepcopy(body)
    sound = not problems(body, Model())

    changed = with_breakpoints(body, limit)

    assert body == before
    assert not (sound and problems(changed, Model()))
    assert sum(sum(1 for _ in cache_marks(message)) for message in changed["messages"]) <= min(
        limit, 2
    )


def test_with_marks_for_an_hour_those_of_the_request_are_for_an_hour_as_well():
    tools = [{"name": "a", "input_schema": {}, **MARK}, {"name": "b", "input_schema": {}}]
    inner = user(tool_result("t1", [{**text("x"), **MARK}]))
    system = [text("s")]
    body = request(user("go"), assistant(tool_use("t1")), inner, tools=tools, system=system, **MARK)
    before = copy.deepcopy(body)

    changed = with_hour_marks(with_breakpoints(body, 4))

    lasting = str(before).replace(str(MARK["cache_control"]), str(HOUR))
    assert (str(changed), body) == (lasting, before)


@pytest.mark.parametrize(
    "last", [{"type": "hologram", "of": [1]}, {"type": "fallback", "to": {}, "from": {}}]
)
def test_a_block_of_a_kind_that_may_not_be_marked_is_left_alone(last: dict[str, Any]):
    body = request(user(text("go"), last))

    assert with_breakpoints(body, 4) == body


def test_what_is_shown_for_one_turn_is_not_marked():
    reminder: Any = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    body = request(user("go"), reminder, assistant("so"), user("on"))

    changed = with_breakpoints(body, 4, rewritten=(0, 2))

    assert marked_messages(changed) == [3]


@few
@given(
    valid_histories(),
    st.integers(0, 4),
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.sampled_from([{}, MARK, {"cache_control": {"type": "ephemeral", "ttl": "1h"}}]),
)
def test_the_api_accepts_every_marked_request(
    history: list[Message], limit: int, rewritten: tuple[int, int] | None, mark: dict[str, Any]
):
    tools = [{"name": "ls", "input_schema": {"type": "object"}}]
    body = {**body_of(history), "system": "Be brief.", "tools": tools, **mark}
    assume(not problems(body, MODEL))
    if rewritten is not None:
        start, stop = sorted(min(index, len(body["messages"])) for index in rewritten)
        rewritten = start, stop

    assert problems(with_breakpoints(body, limit, rewritten), MODEL) == []
    assert problems(with_free_breakpoints(body, rewritten), MODEL) == []


@few
@given(
    valid_histories(),
    st.sets(st.integers(0, 9), max_size=4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_marks_among_those_of_the_caller_are_accepted_and_change_nothing_else(
    history: list[Message], own: set[int], hours: int, limit: int, rewritten: tuple[int, int]
):
    body = body_of(history)
    for count, index in enumerate(sorted(own)):
        if index < len(history):
            lifetime = {"ttl": "1h"} if count < hours else {}
            body = with_mark(body, index, {"cache_control": {**MARK["cache_control"], **lifetime}})
    assume(not problems(body, MODEL))
    start, stop = sorted(min(index, len(history)) for index in rewritten)

    for changed in (
        with_breakpoints(body, limit, (start, stop)),
        with_free_breakpoints(body, (start, stop)),
        with_hour_marks(with_breakpoints(body, limit, (start, stop))),
    ):
        assert problems(changed, MODEL) == []
        assert without_marks(changed) == without_marks(body)


def without_marks(body: dict[str, Any]) -> list[Any]:
    """The messages of *body* in blocks, without the marks."""
    found = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [text(content)] if isinstance(content, str) else content
        found.append([{k: v for k, v in b.items() if k != "cache_control"} for b in blocks])
    return found
