from __future__ import annotations

import copy
from typing import Any, cast

import pytest
from histories import assistant, chat, conversation, histories, step, text, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.edits.projection import Match, Opening, Projection, digest, unmarked, with_marks
from ctxpipe.errors import InvalidHistory
from ctxpipe.messages import Message

MARK = {"cache_control": {"type": "ephemeral"}}


def marked(message: Message) -> Message:
    """*message*, as a caller would mark its last block."""
    content = message["content"]
    held: list[Any] = [text(content)] if isinstance(content, str) else list(content)
    return cast("Message", {**message, "content": [*held[:-1], {**held[-1], **MARK}]})


def turn(projection: Projection, history: list[Message], context: list[Message] | None = None) -> Opening:
    """One turn without a stage, or one after which *context* stands."""
    opening = projection.begin(history)
    if context is None:
        projection.end(opening, opening.context, opening.match)
    else:
        match = opening.match.behind(opening.context, context, len(history))
        projection.end(opening, context, match)
    return opening


def rewritten(projection: Projection, history: list[Message], index: int, message: Message) -> list[Message]:
    """One turn in which message *index* of the context is rewritten, as offloading does."""
    opening = projection.begin(history)
    context = [message if i == index else held for i, held in enumerate(opening.context)]
    projection.end(opening, context, opening.match)
    return context


# Growing ----------------------------------------------------------------------------------------------------------


def test_without_a_change_the_context_is_the_history() -> None:
    projection, history = Projection(), chat(4)

    opening = turn(projection, history)

    assert opening.context == history
    assert not opening.diverged


def test_the_context_handed_out_may_be_appended_to_without_harm() -> None:
    projection, history = Projection(), chat(4)

    turn(projection, history).context.append(user("mine"))

    assert turn(projection, history).context == history


def test_what_the_caller_appends_during_a_turn_belongs_to_the_next() -> None:
    projection, history = Projection(), chat(3)

    opening = projection.begin(history)
    history.append(assistant("later"))
    projection.end(opening, opening.context, opening.match)

    assert len(opening.context) == 3
    following = projection.begin(history)
    assert (following.known, following.context) == (3, history)


def test_behind_a_change_only_what_is_new_is_added() -> None:
    projection, history = Projection(), chat(5)
    turn(projection, history, [user("summary"), assistant("noted"), user("go on")])

    opening = turn(projection, [*history, *chat(2)])

    assert opening.context == [user("summary"), assistant("noted"), user("go on"), *chat(2)]
    assert opening.same == 3


def test_a_turn_that_did_not_end_leaves_no_trace() -> None:
    projection, history = Projection(), chat(3)
    turn(projection, history)

    projection.begin([*history, assistant("lost")])

    opening = projection.begin([*history, assistant("kept")])
    assert (opening.known, opening.context[-1]) == (3, assistant("kept"))
    assert not opening.cut


def test_a_history_that_is_none_is_refused() -> None:
    projection = Projection()

    with pytest.raises(InvalidHistory, match="not tuple"):
        projection.begin(cast("list[Message]", ()))


def test_a_message_that_is_none_in_the_known_part_is_refused_and_changes_nothing() -> None:
    projection, history = Projection(), chat(3)
    turn(projection, history)

    with pytest.raises(InvalidHistory, match="message 1"):
        projection.begin([history[0], cast("Message", {"role": "assistant"}), history[2]])

    assert projection.begin(history).known == 3


# Shortened, branched, rebuilt -------------------------------------------------------------------------------------


def test_a_history_rebuilt_equal_is_the_known_one() -> None:
    projection, history = Projection(), chat(6)
    turn(projection, history, [user("summary"), assistant("noted")])

    opening = turn(projection, copy.deepcopy(history))

    assert (opening.known, opening.context) == (6, [user("summary"), assistant("noted")])
    assert not opening.diverged


def test_sdk_objects_rebuilt_as_dicts_are_the_known_ones() -> None:
    from anthropic.types import TextBlock, ToolUseBlock

    said = [
        TextBlock(type="text", text="hi", citations=None),
        ToolUseBlock(type="tool_use", id="t", name="x", input={}),
    ]
    history = [user("go"), cast("Message", {"role": "assistant", "content": said}), user(tool_result("t"))]
    projection = Projection()
    turn(projection, history)

    plain = [history[0], cast("Message", {"role": "assistant", "content": [b.model_dump() for b in said]}), history[2]]

    assert not turn(projection, plain).diverged


def test_a_branch_is_cut_back_to_the_common_beginning() -> None:
    projection, history = Projection(), chat(6)
    turn(projection, history)

    opening = turn(projection, [*history[:4], user("another way")])

    assert opening.context == [*history[:4], user("another way")]
    assert (opening.known, opening.kept, opening.cut, opening.diverged) == (4, 4, True, True)


def test_a_cut_behind_a_summary_keeps_the_summary() -> None:
    projection, history = Projection(), chat(6)
    turn(projection, history, [user("summary"), assistant("noted")])
    longer = [*history, *chat(4)]
    turn(projection, longer)

    opening = turn(projection, longer[:8])

    assert opening.context == [user("summary"), assistant("noted"), *longer[6:8]]


def test_a_cut_into_what_was_summarised_begins_anew() -> None:
    projection, history = Projection(), chat(6)
    turn(projection, history, [user("summary"), assistant("noted")])

    opening = turn(projection, history[:3])

    assert opening.context == history[:3]
    assert (opening.kept, opening.diverged) == (0, True)


def test_a_cut_into_a_gap_keeps_what_stands_in_front_of_it() -> None:
    projection, history = Projection(), chat(8)
    offloaded = user("offloaded")
    rewritten(projection, history, 2, offloaded)
    turn(projection, history, [history[0], history[1], offloaded, *history[6:]])

    opening = turn(projection, history[:5])

    assert opening.context == [*history[:2], offloaded, *history[3:5]]
    assert (opening.kept, opening.fresh) == (3, 3)


def test_behind_a_gap_the_same_messages_still_stand_for_each_other() -> None:
    projection, history = Projection(), chat(8)
    turn(projection, history, [history[0], *history[5:]])

    opening = turn(projection, history[:6])

    assert opening.context == [history[0], history[5]]


def test_results_appended_in_place_to_the_last_message_are_noticed() -> None:
    projection = Projection()
    history = conversation(user("go"), assistant(tool_use("a"), tool_use("b")), user(tool_result("a")))
    turn(projection, history)

    cast("list[Any]", history[-1]["content"]).append(tool_result("b"))

    opening = turn(projection, history)
    assert opening.context == history
    assert (opening.known, opening.cut, opening.diverged) == (2, True, False)


def test_a_text_exchanged_in_place_in_the_last_message_is_noticed() -> None:
    projection, history = Projection(), chat(3)
    turn(projection, history)

    cast("dict[str, Any]", history[-1])["content"] = "something else"

    assert turn(projection, history).known == 2


def test_a_last_message_that_becomes_no_message_in_place_is_refused() -> None:
    projection, history = Projection(), chat(3)
    turn(projection, history)

    cast("dict[str, Any]", history[-1])["content"] = 5

    with pytest.raises(InvalidHistory):
        projection.begin(history)


@pytest.mark.parametrize("verify", [False, True])
def test_an_edit_inside_a_known_message_is_noticed_with_verify_only(verify: bool) -> None:
    projection = Projection(verify=verify)
    history = conversation(user("go"), step("t1", result="old"), step("t2"))
    turn(projection, history)

    cast("Any", history[2]["content"])[0]["content"] = "new"

    opening = turn(projection, history)
    assert opening.known == (2 if verify else 5)
    assert opening.diverged is verify


def test_with_verify_an_edit_is_noticed_behind_a_change_too() -> None:
    projection = Projection(verify=True)
    history = conversation(user("go"), *(step(f"t{i}") for i in range(4)))
    turn(projection, history, [user("summary"), assistant("noted"), *history[5:]])

    cast("Any", history[6]["content"])[0]["content"] = "new"

    opening = turn(projection, history)
    assert (opening.known, opening.context) == (6, [user("summary"), assistant("noted"), *history[5:]])


def test_with_verify_moving_a_cache_mark_is_no_edit() -> None:
    projection = Projection(verify=True)
    history = conversation(user("go"), step("t1"), step("t2"))
    turn(projection, history)

    cast("Any", history[2]["content"])[0].update(MARK)

    assert not turn(projection, history).cut


# Adopted ----------------------------------------------------------------------------------------------------------


def test_a_caller_who_goes_on_with_the_context_is_recognised() -> None:
    projection, history = Projection(), chat(6)
    turn(projection, history, [user("summary"), assistant("noted")])

    opening = turn(projection, [user("summary"), assistant("noted"), *chat(1)])

    assert (opening.adopted, opening.known, opening.diverged) == (True, 2, False)
    assert opening.context == [user("summary"), assistant("noted"), *chat(1)]


def test_an_adopted_context_is_the_history_from_then_on() -> None:
    projection, history = Projection(), chat(6)
    turn(projection, history, [user("summary"), assistant("noted")])
    adopted = [user("summary"), assistant("noted"), *chat(3)]
    turn(projection, adopted)

    opening = turn(projection, adopted[:4])

    assert (opening.adopted, opening.known, opening.context) == (False, 4, adopted[:4])


def test_results_appended_in_place_to_an_adopted_context_are_noticed() -> None:
    projection = Projection()
    history = conversation(user("go"), assistant(tool_use("a"), tool_use("b")), user(tool_result("a", "long")))
    context = rewritten(projection, history, 2, user(tool_result("a", "short")))

    cast("list[Any]", context[-1]["content"]).append(tool_result("b"))

    opening = turn(projection, context)
    assert (opening.adopted, opening.known, opening.context) == (True, 2, context)


def test_with_verify_an_edit_in_an_adopted_context_is_noticed() -> None:
    projection = Projection(verify=True)
    history = conversation(user("go"), step("t1", result="long"), step("t2"))
    context = rewritten(projection, history, 2, user(tool_result("t1", "short")))

    cast("Any", context[2]["content"])[0]["content"] = "edited"

    opening = turn(projection, context)
    assert (opening.adopted, opening.known) == (True, 2)


# Cache marks ------------------------------------------------------------------------------------------------------


def test_marks_moved_by_rebuilding_are_taken_from_the_history() -> None:
    projection, history = Projection(), chat(4)
    turn(projection, [*history[:3], marked(history[3])])

    opening = turn(projection, [*history, marked(user("next"))])

    assert opening.context == [*history, marked(user("next"))]
    assert opening.same == 3  # the message that lost its mark is another one for whoever compares bytes


def test_marks_moved_in_place_reach_a_rewritten_message() -> None:
    projection = Projection()
    history = conversation(user("go"), step("t1", result="long " * 99))
    cast("Any", history[2]["content"])[0].update(MARK)
    rewritten(projection, history, 2, marked(user(tool_result("t1", "short"))))

    del cast("Any", history[2]["content"])[0]["cache_control"]

    opening = turn(projection, [*history, *step("t2")])
    assert opening.context[2] == user(tool_result("t1", "short"))


def test_what_another_process_remembered_takes_form_and_marks_from_the_history() -> None:
    result, short = tool_result("a", "long"), tool_result("a", "short")
    history = conversation(user("go"), step("a", result="long"), user("on"))
    now = [history[0], history[1], marked(history[2]), marked(history[3])]
    assert cast("Any", history[2]["content"]) == [result]

    projection = Projection()
    projection.resume(now, [*history[:2], user(short), history[3]], Match())

    assert projection.context == [*now[:2], user({**short, **MARK}), now[3]]
    assert projection.context[3] is now[3]


def test_what_another_process_remembered_as_unchanged_is_the_history() -> None:
    projection, history = Projection(), [user("go"), marked(assistant("done"))]

    projection.resume(history, [user("go"), assistant("done")], Match())

    assert projection.context is projection.history


def test_marks_inside_a_tool_result_follow_the_history() -> None:
    projection = Projection()
    inner = user(tool_result("t1", [{**text("a"), **MARK}]))
    history = [user("go"), assistant(tool_use("t1")), inner]
    turn(projection, history)

    bare = user(tool_result("t1", [text("a")]))

    opening = turn(projection, [*history[:2], bare])
    assert opening.context == [*history[:2], bare]
    assert not opening.cut


def test_a_mark_in_front_of_a_gap_stays() -> None:
    projection, history = Projection(), chat(8)
    history[0] = marked(history[0])
    turn(projection, history, [history[0], *history[5:]])

    assert turn(projection, [*history, assistant("more")]).context[0] == history[0]


def test_marks_on_what_a_summary_replaced_are_gone() -> None:
    projection, history = Projection(), chat(6)
    history[2] = marked(history[2])
    kept = history[2]
    turn(projection, history, [user("summary"), assistant("noted"), kept, assistant("noted")])

    assert turn(projection, [*history, user("next")]).context[2] == unmarked(kept) != kept


def test_marks_go_to_the_same_block_of_a_rewritten_message() -> None:
    source = user(tool_result("a"), {**tool_result("b"), **MARK})

    moved = with_marks(user(tool_result("a", "x"), tool_result("b", "y")), source)

    assert moved == user(tool_result("a", "x"), {**tool_result("b", "y"), **MARK})


def test_a_mark_on_bare_text_makes_it_a_block() -> None:
    assert with_marks(user("hi"), marked(user("hi"))) == marked(user("hi"))


def test_a_message_that_has_the_marks_already_is_the_very_same() -> None:
    message = marked(user("hi"))

    assert with_marks(message, message) is message
    assert unmarked(user("hi", "there"))["content"] == user("hi", "there")["content"]
    assert unmarked(step("t")[0]) == step("t")[0]


# What stands for what ---------------------------------------------------------------------------------------------


@given(st.data())
def test_a_match_names_equal_messages_in_front_of_and_behind_every_change(data: st.DataObject) -> None:
    history = chat(20)
    context, match = list(history), Match()
    for number in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(context)))
        stop = data.draw(st.integers(start, len(context)))
        after = [*context[:start], *([user(f"summary {number}")] * data.draw(st.integers(0, 1))), *context[stop:]]
        match = match.behind(context, after, len(history))
        context = after

    places = {index: match.place(index) for index in range(len(history))}

    assert all(context[place] is history[index] for index, place in places.items() if place is not None)
    behind = [place for index, place in places.items() if index >= match.history]
    assert behind == list(range(match.context, len(context)))


# Digests ----------------------------------------------------------------------------------------------------------


@given(histories(3))
def test_a_copy_from_json_has_the_same_digests(history: list[Message]) -> None:
    import json

    assert [digest(message) for message in json.loads(json.dumps(history))] == [digest(m) for m in history]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("hi"), user(text("hi"))),
        (user("hi"), marked(user("hi"))),
        (user({**text("hi"), "citations": None}), user("hi")),
        (user(tool_result("t", [text("a")])), user(tool_result("t", [{**text("a"), **MARK}]))),
    ],
)
def test_what_says_the_same_has_the_same_digest(one: Message, other: Message) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("hi"), assistant("hi")),
        (user("hi"), user("ho")),
        (user("a", "b"), user("ab")),
        (user("\ud83d"), user("\\ud83d")),
        (user(tool_result("t", "x")), user(tool_result("t", "x", is_error=True))),
    ],
)
def test_what_says_something_else_has_another_digest(one: Message, other: Message) -> None:
    assert digest(one) != digest(other)


def test_a_value_that_json_does_not_know_still_has_a_digest() -> None:
    from datetime import UTC, datetime

    call = assistant(tool_use("t", given={"when": datetime(2026, 1, 2, tzinfo=UTC)}))

    assert digest(call) == digest(copy.deepcopy(call))


# Any caller -------------------------------------------------------------------------------------------------------


@given(st.data())
def test_whatever_the_caller_does_the_context_says_what_a_history_without_memory_says(data: st.DataObject) -> None:
    """Without changes by stages, the context is the history: grown, cut, branched, rebuilt or marked anew."""
    projection = Projection(verify=data.draw(st.booleans()))
    history = data.draw(histories(3, thoughts=False))
    for _ in range(data.draw(st.integers(1, 6))):
        action = data.draw(st.sampled_from(["grow", "cut", "branch", "rebuild", "mark"]))
        cut = data.draw(st.integers(0, len(history)))
        if action == "grow":
            history = [*history, *chat(2)]
        elif action == "cut":
            history = history[:cut]
        elif action == "branch":
            history = [*history[:cut], user(f"branch {cut}")]
        elif action == "rebuild":
            history = copy.deepcopy(history)
        elif history:
            history = [unmarked(message) for message in history]
            history[cut - 1] = marked(history[cut - 1])
        before = copy.deepcopy(history)

        opening = turn(projection, history)

        assert opening.context == history == before
        assert projection.context == projection.history == history
