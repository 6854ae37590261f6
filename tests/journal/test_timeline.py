"""History and context as one alignment: grown, cut, branched, adopted, edited, replayed."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
from histories import (
    MARK,
    assistant,
    chat,
    conversation,
    histories,
    marked,
    step,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.errors import InvalidHistory
from ctxpipe.journal.step import Step
from ctxpipe.journal.timeline import Timeline
from ctxpipe.journal.unchanged import SLICES, WATCHED
from ctxpipe.messages import Message, blocks
from ctxpipe.messages.diff import Edit, apply_edits
from ctxpipe.messages.identity import parse, says_the_same, without_marks
from ctxpipe.messages.thinking import mark_stale

SUMMARY = [user("summary"), assistant("noted")]


def reply(*content: object) -> Message:
    """A reply of the model as the SDK hands it out, appended unchanged."""
    return cast("Message", {"role": "assistant", "content": list(content)})


def said(words: str) -> Message:
    return reply(TextBlock(type="text", text=words))


def turn(timeline: Timeline, history: list[Message], *contexts: list[Message]) -> Step:
    """One turn, in which stages make one of *contexts* after the other."""
    begun = timeline.begin(history)
    before = begun.context
    for context in contexts:
        begun.edit(before, context)
        before = context
    if begun.touched.first is not None:
        mark_stale(begun.stale, before, begun.touched.first)
    timeline.apply(begun)
    return begun


def rewritten(timeline: Timeline, history: list[Message], index: int, message: Message) -> Step:
    """One turn in which message *index* of the context is rewritten, as offloading does."""
    context = list(timeline.begin(history).context)
    context[index] = message
    return turn(timeline, history, context)


def exchange(message: Message, content: object):
    """Put another content into *message* in place."""
    cast("Any", message)["content"] = content


def spans(timeline: Timeline) -> list[tuple[int, int]]:
    return list(zip(timeline.alignment.starts, timeline.alignment.ends, strict=True))


# Growing ----------------------------------------------------------------------------------------


def test_without_a_change_the_context_is_the_history():
    timeline, history = Timeline(), chat(4)

    begun = turn(timeline, history)

    assert begun.context == begun.sent_context == history
    assert not begun.agreement.has_diverged
    assert timeline.history is timeline.context is timeline.sent


def test_the_context_handed_out_may_be_appended_to_without_harm():
    timeline, history = Timeline(), chat(4)

    turn(timeline, history).context.append(user("mine"))

    assert turn(timeline, history).context == history


def test_what_the_caller_appends_during_a_turn_belongs_to_the_next():
    timeline, history = Timeline(), chat(3)

    begun = timeline.begin(history)
    history.append(assistant("later"))
    timeline.apply(begun)

    assert len(begun.context) == 3
    following = timeline.begin(history)
    assert (following.unchanged_count, following.messages) == (3, [assistant("later")])
    assert following.context == history


def test_after_a_change_only_what_is_new_is_added():
    timeline, history = Timeline(), chat(5)
    turn(timeline, history, [*SUMMARY, user("go on")])

    begun = turn(timeline, [*history, *chat(2)])

    assert begun.context == [*SUMMARY, user("go on"), *chat(2)]
    assert (begun.retained_count, begun.same_count, begun.agreement.new_start) == (3, 3, 5)


def test_the_same_history_again_is_an_idle_step():
    timeline, history = Timeline(), chat(3)
    assert not turn(timeline, history).is_idle

    assert turn(timeline, history).is_idle


def test_a_turn_that_did_not_end_leaves_no_trace():
    timeline, history = Timeline(), chat(3)
    turn(timeline, history)

    lost = timeline.begin([*history, assistant("lost")])
    lost.edit(lost.context, SUMMARY)

    begun = timeline.begin([*history, assistant("kept")])
    assert (begun.unchanged_count, begun.context[-1]) == (3, assistant("kept"))
    assert not begun.agreement.is_rewound
    assert timeline.context == timeline.history == history


def test_a_turn_that_did_not_end_leaves_a_cut_history_uncut():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, [*SUMMARY, *history[4:]])
    before = list(timeline.context), list(timeline.history), spans(timeline)

    timeline.begin(history[:2])
    timeline.begin([*timeline.sent, user("adopted")])

    assert before == (timeline.context, timeline.history, spans(timeline))


def test_a_history_that_is_no_list_is_refused():
    with pytest.raises(InvalidHistory, match="not tuple"):
        Timeline().begin(cast("list[Message]", ()))


def test_a_known_message_that_is_no_message_any_more_is_refused_and_changes_nothing():
    timeline, history = Timeline(), chat(3)
    turn(timeline, history)

    with pytest.raises(InvalidHistory, match="message 1"):
        timeline.begin([history[0], cast("Message", {"role": "assistant"}), history[2]])

    assert timeline.begin(history).unchanged_count == 3


@pytest.mark.parametrize(
    "wreck", [lambda history: history[1].pop("content"), lambda history: exchange(history[-1], 5)]
)
def test_a_known_message_that_becomes_no_message_in_place_is_refused(wreck):
    timeline, history = Timeline(), chat(3)
    turn(timeline, history)

    wreck(history)

    with pytest.raises(InvalidHistory, match="message"):
        timeline.begin(history)


# Shortened, branched, rebuilt -------------------------------------------------------------------


def test_a_history_rebuilt_equal_is_the_known_one():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, SUMMARY)

    begun = turn(timeline, copy.deepcopy(history))

    assert (begun.unchanged_count, begun.context) == (6, SUMMARY)
    assert not begun.agreement.has_diverged


def test_sdk_objects_rebuilt_as_dicts_are_the_known_ones():
    call = ToolUseBlock(type="tool_use", id="t", name="x", input={})
    answered = reply(TextBlock(type="text", text="hi", citations=None), call)
    history = [user("go"), answered, user(tool_result("t"))]
    timeline = Timeline()
    turn(timeline, history)

    begun = turn(timeline, [history[0], parse(answered), history[2]])

    assert begun.unchanged_count == 3
    assert not begun.agreement.is_rewound
    assert timeline.history[1] == parse(answered)


def test_a_branch_is_cut_back_to_the_common_beginning():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history)

    begun = turn(timeline, [*history[:4], user("another way")])

    assert begun.context == [*history[:4], user("another way")]
    assert (
        begun.unchanged_count,
        begun.retained_count,
        begun.agreement.is_rewound,
        begun.agreement.has_diverged,
    ) == (
        4,
        4,
        True,
        True,
    )


def test_a_cut_after_a_summary_keeps_the_summary():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, SUMMARY)
    longer = [*history, *chat(4)]
    turn(timeline, longer)

    begun = turn(timeline, longer[:8])

    assert begun.context == [*SUMMARY, *longer[6:8]]


def test_a_cut_into_what_was_summarized_begins_anew():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, SUMMARY)

    begun = turn(timeline, history[:3])

    assert begun.context == history[:3]
    assert (begun.retained_count, begun.agreement.new_start, begun.agreement.has_diverged) == (
        0,
        0,
        True,
    )


def test_a_cut_into_a_gap_brings_back_what_was_taken_out_before_the_cut():
    timeline, history = Timeline(), chat(8)
    offloaded = user("offloaded")
    rewritten(timeline, history, 2, offloaded)
    turn(timeline, history, [history[0], history[1], offloaded, *history[6:]])

    begun = turn(timeline, history[:5])

    assert begun.context == [*history[:2], offloaded, *history[3:5]]
    assert (begun.retained_count, begun.agreement.new_start) == (3, 3)


def test_a_cut_right_after_a_gap_leaves_out_what_was_taken_out():
    timeline, history = Timeline(), chat(8)
    turn(timeline, history, [*history[:2], *history[6:]])

    begun = turn(timeline, [*history[:6], user("another way")])

    assert begun.context == [*history[:2], user("another way")]


@pytest.mark.parametrize("in_one_turn", [False, True])
def test_two_gaps_keep_the_summary_where_a_cut_lies_after_both(in_one_turn):
    timeline, history = Timeline(), chat(41)
    context = [*SUMMARY, *history[10:]]
    gapped = [*context[:10], *context[14:]]
    if in_one_turn:
        turn(timeline, history, context, gapped)
    else:
        turn(timeline, history[:13], context[:5])
        turn(timeline, history, gapped)

    begun = turn(timeline, history[:25])

    assert begun.context == [*SUMMARY, *history[10:18], *history[22:25]]


def test_messages_taken_out_in_two_places_by_one_stage_leave_the_middle_known():
    timeline, history = Timeline(), chat(12)
    turn(timeline, history, [*history[:2], *history[4:6], *history[8:]])

    begun = turn(timeline, history[:7])

    assert begun.context == [*history[:2], *history[4:7]]
    assert (begun.retained_count, begun.agreement.new_start) == (4, 6)


def test_what_a_stage_put_in_stays_where_the_cut_lies_after_it():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, [*history[:2], user("note"), *history[2:]])

    assert turn(timeline, history[:3]).context == [*history[:2], user("note"), history[2]]


# Edits in place ---------------------------------------------------------------------------------


def test_results_appended_in_place_to_the_last_message_are_noticed():
    timeline = Timeline()
    calls = assistant(tool_use("a"), tool_use("b"))
    history = [user("go"), calls, user(tool_result("a"))]
    turn(timeline, history)

    cast("Any", history[-1]["content"]).append(tool_result("b"))

    begun = turn(timeline, history)
    assert begun.context == history
    assert (begun.unchanged_count, begun.agreement.is_rewound, begun.agreement.has_diverged) == (
        2,
        True,
        False,
    )


def test_a_text_exchanged_in_place_in_the_last_message_is_noticed():
    timeline, history = Timeline(), chat(3)
    turn(timeline, history)

    exchange(history[-1], "something else")

    assert turn(timeline, history).unchanged_count == 2


@pytest.mark.parametrize("index", [0, 1, WATCHED - 1])
def test_a_content_exchanged_in_place_near_the_end_is_noticed_at_once(index):
    timeline, history = Timeline(), chat(WATCHED)
    turn(timeline, history)

    exchange(history[index], "edited")

    begun = turn(timeline, history)
    assert begun.unchanged_count == index
    assert begun.context == history
    assert begun.agreement.has_diverged is (index < WATCHED - 1)


def test_the_first_of_several_edits_in_place_is_the_one_that_counts():
    timeline, history = Timeline(), chat(9)
    turn(timeline, history)

    for index in (7, 3, 5):
        exchange(history[index], f"edited {index}")

    assert turn(timeline, history).unchanged_count == 3


def test_an_edit_in_place_under_a_summary_takes_the_summary_back():
    timeline, history = Timeline(), chat(8)
    turn(timeline, history, [*SUMMARY, *history[6:]])

    exchange(history[2], "edited")

    begun = turn(timeline, history)
    assert (begun.unchanged_count, begun.retained_count, begun.context) == (2, 0, history)


def test_an_edit_in_place_after_a_summary_keeps_it():
    timeline, history = Timeline(), chat(8)
    turn(timeline, history, [*SUMMARY, *history[4:]])

    exchange(history[6], "edited")

    assert turn(timeline, history).context == [*SUMMARY, *history[4:]]


@pytest.mark.parametrize("index", [0, 1, 299, 300, 301, 798, 799])
@pytest.mark.parametrize("action", ["exchanged", "grown"])
def test_an_older_content_is_noticed_within_so_many_turns(index, action):
    timeline = Timeline()
    history = [user(str(i), "b") if i % 2 == 0 else assistant(str(i), "b") for i in range(1000)]
    turn(timeline, history)

    if action == "exchanged":
        exchange(history[index], [text("edited"), text("b")])
    else:
        cast("Any", history[index]["content"]).append(text("more"))

    noticed = [turn(timeline, history).unchanged_count for _ in range(SLICES)]
    assert min(noticed) == index


@pytest.mark.parametrize("grows_by", [2, 7, 40])
def test_however_fast_the_history_grows_no_older_message_is_left_out(grows_by):
    late = []
    for index in range(0, 300, 7):
        timeline, history = Timeline(), chat(500)
        turn(timeline, history)
        exchange(history[index], "edited")
        noticed = []
        for _ in range(SLICES):
            history += chat(grows_by)
            noticed.append(turn(timeline, history).unchanged_count)
        late += [] if index in noticed else [index]

    assert late == []


def test_an_older_edit_that_a_failed_turn_has_noticed_is_noticed_by_the_next():
    timeline, history = Timeline(), chat(500)
    turn(timeline, history)
    exchange(history[40], "edited")

    while (step := timeline.begin(history)).unchanged_count == 500:
        timeline.apply(step)

    assert timeline.begin(history).unchanged_count == 40


def test_a_thorough_look_notices_every_exchanged_content():
    timeline, history = Timeline(), chat(1000)
    turn(timeline, history)

    exchange(history[7], "edited")

    assert timeline.begin(history, thorough=True).unchanged_count == 7


def test_whether_a_known_content_was_edited_can_be_asked_of_a_step():
    timeline, history = Timeline(), chat(1000)
    turn(timeline, history)
    exchange(history[990 - WATCHED], "edited")

    begun = timeline.begin(history)

    assert begun.unchanged_count == 1000
    assert timeline.is_edited(begun)


def test_nothing_is_edited_where_the_caller_has_only_appended():
    timeline, history = Timeline(), chat(1000)
    turn(timeline, history)

    assert not timeline.is_edited(timeline.begin([*history, *chat(2)]))


def test_a_content_exchanged_while_the_turn_runs_is_noticed_and_no_other():
    timeline, history = Timeline(), chat(9)
    turn(timeline, history)
    begun = timeline.begin(history)

    exchange(history[3], "edited")

    assert timeline.is_edited(begun)
    assert not timeline.is_edited(timeline.begin(history))


def test_a_content_exchanged_for_one_that_says_the_same_is_no_edit():
    timeline, history = Timeline(), chat(9)
    turn(timeline, history)

    exchange(history[3], [{**text(cast("str", history[3]["content"])), **MARK}])

    assert turn(timeline, history).unchanged_count == 9


@pytest.mark.parametrize("verify", [False, True])
def test_an_edit_inside_a_known_block_is_noticed_with_verify_only(verify):
    timeline = Timeline(verify=verify)
    history = conversation(user("go"), step("t1", result="old"), step("t2"))
    turn(timeline, history)

    cast("Any", history[2]["content"])[0]["content"] = "new"

    begun = turn(timeline, history)
    assert begun.unchanged_count == (2 if verify else 5)
    assert begun.agreement.has_diverged is verify


def test_with_verify_every_old_edit_is_noticed_at_once():
    timeline, history = Timeline(verify=True), chat(WATCHED * 2)
    turn(timeline, history)

    exchange(history[3], "edited")

    assert turn(timeline, history).unchanged_count == 3


def test_with_verify_moving_a_cache_mark_is_no_edit():
    timeline = Timeline(verify=True)
    history = conversation(user("go"), step("t1"), step("t2"))
    turn(timeline, history)

    cast("Any", history[2]["content"])[0].update(MARK)

    assert not turn(timeline, history).agreement.is_rewound


# Adopted ----------------------------------------------------------------------------------------


def test_a_caller_who_goes_on_with_the_context_is_recognized():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, SUMMARY)

    begun = turn(timeline, [*SUMMARY, *chat(1)])

    assert (begun.adopted, begun.unchanged_count, begun.agreement.has_diverged) == (True, 2, False)
    assert begun.context == [*SUMMARY, *chat(1)]


def test_an_adopted_context_is_the_history_from_then_on():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, SUMMARY)
    adopted = [*SUMMARY, *chat(3)]
    turn(timeline, adopted)

    begun = turn(timeline, adopted[:4])

    assert (begun.adopted, begun.unchanged_count, begun.context) == (False, 4, adopted[:4])


def test_a_caller_who_adopts_the_context_and_cuts_it_at_once_is_recognized():
    timeline, history = Timeline(), chat(8)
    turn(timeline, history, [*SUMMARY, *history[4:]])

    begun = turn(timeline, [*SUMMARY, history[4], assistant("another way")])

    assert (
        begun.adopted,
        begun.unchanged_count,
        begun.agreement.is_rewound,
        begun.agreement.has_diverged,
    ) == (
        True,
        3,
        True,
        True,
    )
    assert timeline.history == [*SUMMARY, history[4], assistant("another way")]


def test_a_context_adopted_from_json_is_recognized():
    timeline, history = Timeline(), chat(6)
    context = rewritten(timeline, history, 2, user("short")).context
    context[2] = user("short")

    begun = turn(timeline, [*json.loads(json.dumps(context)), user("on")])

    assert (begun.adopted, begun.unchanged_count) == (True, 6)


def test_a_step_that_adopts_is_not_idle():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, SUMMARY)

    assert not turn(timeline, list(SUMMARY)).is_idle


def test_an_adopted_context_can_be_edited_and_adopted_again():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, [*SUMMARY, *history[4:]])
    again = [user("summary of summaries"), assistant("noted")]
    turn(timeline, [*SUMMARY, *history[4:]], again)

    begun = turn(timeline, [*again, user("on")])

    assert (begun.adopted, begun.context) == (True, [*again, user("on")])
    assert spans(timeline) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("is_adopted", [True, False])
def test_results_appended_in_place_to_an_adopted_context_reach_it(is_adopted):
    timeline = Timeline()
    calls = assistant(tool_use("a"), tool_use("b"))
    history = [user("go"), calls, user(tool_result("a", "long"))]
    rewritten(timeline, history, 2, user(tool_result("a", "short")))
    context = list(timeline.sent)
    if is_adopted:
        turn(timeline, context)

    cast("Any", context[-1]["content"]).append(tool_result("b"))

    begun = turn(timeline, context)
    assert begun.context == begun.sent_context == timeline.history == timeline.context == context
    assert begun.unchanged_count == 2 if is_adopted else begun.adopted


def test_with_verify_an_edit_in_an_adopted_context_is_noticed():
    timeline = Timeline(verify=True)
    history = conversation(user("go"), step("t1", result="long"), step("t2"))
    rewritten(timeline, history, 2, user(tool_result("t1", "short")))
    context = list(timeline.sent)

    cast("Any", context[2]["content"])[0]["content"] = "edited"

    begun = turn(timeline, context)
    assert (begun.adopted, begun.unchanged_count) == (True, 2)


# Objects of the SDK -----------------------------------------------------------------------------


def test_the_context_is_plain_and_what_is_given_holds_the_callers_own_objects():
    history = [user("go"), said("a"), user("on")]

    begun = turn(Timeline(), history)

    assert begun.context == [user("go"), assistant(text("a")), user("on")]
    assert all(one is other for one, other in zip(begun.sent_context, history, strict=True))


def test_after_a_change_the_callers_own_objects_still_stand_wherever_it_is_untouched():
    timeline = Timeline()
    history = [user("go"), said("a"), user("long"), said("b")]
    rewritten(timeline, history, 2, user("short"))

    begun = turn(timeline, [*history, user("on"), said("c")])

    assert begun.sent_context == [*history[:2], user("short"), history[3], user("on"), said("c")]
    assert begun.sent_context[1] is history[1]
    assert begun.context == list(map(parse, begun.sent_context))


def test_what_a_stage_has_made_of_an_sdk_object_is_given_as_it_made_it():
    timeline, history = Timeline(), [user("go"), said("long"), user("on")]
    rewritten(timeline, history, 1, assistant("short"))

    begun = turn(timeline, history)

    assert begun.sent_context[1] == begun.context[1] == assistant("short")
    assert timeline.history[1] is history[1]


def test_objects_of_the_sdk_that_come_later_part_the_context_from_what_is_given():
    timeline, history = Timeline(), chat(3)
    turn(timeline, history)

    begun = turn(timeline, [*history, said("a")])

    assert begun.context == [*history, assistant(text("a"))]
    assert begun.sent_context[3] == said("a")
    assert timeline.sent[:3] == timeline.context[:3] == history


def test_a_context_with_objects_of_the_sdk_can_be_adopted():
    timeline = Timeline()
    history = [user("go"), said("a"), user("long"), said("b")]
    rewritten(timeline, history, 2, user("short"))

    begun = turn(timeline, [*timeline.sent, user("on")])

    assert (begun.adopted, begun.unchanged_count) == (True, 4)
    assert begun.sent_context[1] is history[1]
    assert timeline.context[1] == assistant(text("a"))


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_reply_that_cannot_be_sent_is_refused_by_its_message(
    is_changed,
):
    broken = ToolUseBlock.construct(type="tool_use", id="t", name="x", input={"a": object()})
    timeline, history = Timeline(), chat(3)
    turn(timeline, history, *([[user("short"), *history[1:]]] if is_changed else []))

    with pytest.raises(InvalidHistory, match="message 3, block 0"):
        timeline.begin([*history, reply(broken)])

    assert timeline.begin(history).unchanged_count == 3


# Cache marks ------------------------------------------------------------------------------------


def test_marks_moved_by_rebuilding_are_taken_from_the_history():
    timeline, history = Timeline(), chat(4)
    turn(timeline, [*history[:3], marked(history[3])])

    begun = turn(timeline, [*history, marked(user("next"))])

    assert begun.context == [*history, marked(user("next"))]
    assert begun.same_count == 3  # the message that lost its mark has other bytes


def test_marks_moved_in_place_reach_a_rewritten_message():
    timeline = Timeline()
    history = conversation(user("go"), step("t1", result="long " * 99))
    cast("Any", history[2]["content"])[0].update(MARK)
    rewritten(timeline, history, 2, marked(user(tool_result("t1", "short"))))

    del cast("Any", history[2]["content"])[0]["cache_control"]

    begun = turn(timeline, [*history, *step("t2")])
    assert begun.context[2] == begun.sent_context[2] == user(tool_result("t1", "short"))
    assert timeline.context[2] == user(tool_result("t1", "short"))


def test_marks_moved_in_copies_reach_a_rewritten_message():
    timeline, history = Timeline(), chat(4)
    rewritten(timeline, history, 2, user("short"))

    begun = turn(timeline, [*history[:2], marked(history[2]), history[3]])

    assert begun.context == [*history[:2], marked(user("short")), history[3]]
    assert begun.same_count == 2


def test_marks_inside_a_tool_result_follow_the_history():
    timeline = Timeline()
    inner = user(tool_result("t1", [{**text("a"), **MARK}]))
    history = [user("go"), assistant(tool_use("t1")), inner]
    turn(timeline, history)

    bare = user(tool_result("t1", [text("a")]))

    begun = turn(timeline, [*history[:2], bare])
    assert begun.context == [*history[:2], bare]
    assert not begun.agreement.is_rewound


def test_a_mark_before_a_gap_stays():
    timeline, history = Timeline(), chat(8)
    history[0] = marked(history[0])
    turn(timeline, history, [history[0], *history[5:]])

    assert turn(timeline, [*history, assistant("more")]).context[0] == history[0]


def test_marks_on_what_a_summary_has_put_in_are_gone():
    timeline, history = Timeline(), chat(6)
    turn(timeline, history, [marked(user("summary")), assistant("noted")])

    begun = turn(timeline, [*history, user("next")])

    assert begun.context == [user(text("summary")), assistant("noted"), user("next")]


def test_a_marked_object_of_the_sdk_is_given_as_it_is():
    timeline, history = Timeline(), [user("go"), said("a"), user("on")]
    turn(timeline, history)
    now = [user("go"), marked(assistant("a")), user("on")]

    begun = turn(timeline, now)

    assert begun.sent_context[1] is now[1]
    assert (begun.unchanged_count, begun.same_count, begun.context) == (3, 1, now)


def test_a_replayed_timeline_takes_its_marks_from_the_history():
    history = conversation(user("go"), step("a", result="long"), user("on"))
    short = user(tool_result("a", "short"))
    timeline = Timeline()
    timeline.apply(Step(0, False, list(history), [Edit(2, 3, [short])]))

    begun = timeline.begin([*history[:2], marked(history[2]), marked(history[3])])

    assert begun.context == [*history[:2], marked(short), marked(history[3])]
    assert not begun.agreement.is_rewound


# Stale thinking ---------------------------------------------------------------------------------


def thoughtful(turns: int) -> list[Message]:
    """So many requests, each answered with a thought and a word."""
    answers = [assistant(thinking(f"t{i}"), f"a{i}") for i in range(turns)]
    return [message for i in range(turns) for message in (user(f"u{i}"), answers[i])]


def test_thinking_after_a_rewritten_message_is_remembered_as_stale():
    timeline, history = Timeline(), thoughtful(3)
    rewritten(timeline, history, 2, user("short"))

    begun = timeline.begin([*history, user("on")])

    assert begun.stale == timeline.stale == {3: 0, 5: 0}


def test_stale_thinking_that_is_cut_off_is_forgotten():
    timeline, history = Timeline(), thoughtful(3)
    rewritten(timeline, history, 0, user("short"))

    assert turn(timeline, history[:3]).stale == {1: 0}
    assert timeline.stale == {1: 0}


def test_stale_thinking_moves_with_what_is_taken_out_before_it():
    timeline, history = Timeline(), thoughtful(4)
    rewritten(timeline, history, 0, user("short"))
    begun = timeline.begin(history)

    begun.edit(begun.context, [*begun.context[:2], *begun.context[4:]])

    assert begun.stale == {1: 0, 3: 0, 5: 0}


def test_thinking_that_comes_back_when_a_change_is_taken_back_is_stale():
    timeline, history = Timeline(), thoughtful(4)
    turn(timeline, history, [*SUMMARY, *history[6:]])

    begun = turn(timeline, history[:4])

    assert begun.context == history[:4]
    assert begun.stale == {1: 0, 3: 0}


def test_a_cut_that_takes_nothing_back_makes_no_thinking_stale():
    timeline, history = Timeline(), thoughtful(4)
    turn(timeline, history)

    assert turn(timeline, history[:4]).stale == {}


def test_stale_thinking_stays_stale_when_the_context_is_adopted():
    timeline, history = Timeline(), thoughtful(3)
    rewritten(timeline, history, 2, user("short"))

    begun = turn(timeline, [*timeline.sent, user("on")])

    assert begun.adopted
    assert timeline.stale == {3: 0, 5: 0}


def test_a_turn_that_did_not_end_makes_no_thinking_stale():
    timeline, history = Timeline(), thoughtful(2)
    rewritten(timeline, history, 2, user("short"))

    lost = timeline.begin(history)
    mark_stale(lost.stale, lost.context, (0, 0))

    assert timeline.stale == timeline.begin(history).stale == {3: 0}


# What a step notes ------------------------------------------------------------------------------


def test_the_changed_place_is_the_first_block_of_the_first_edit():
    calls = assistant(thinking(), "look", tool_use("t1"))
    history = [user("go"), calls, user(tool_result("t1", "long"))]
    begun = Timeline().begin(history)

    begun.edit(history, [*history[:2], user(tool_result("t1", "short"))])
    assert (begun.touched.first, begun.touched.tail) == ((2, 0), 0)

    begun.edit(begun.context, [history[0], assistant(thinking(), "look"), user("next")])
    assert (begun.touched.first, begun.touched.tail) == ((1, 2), 0)


def test_equal_contexts_are_no_change():
    begun = Timeline().begin(chat(4))

    assert begun.edit(begun.context, copy.deepcopy(begun.context)) == []
    assert begun.touched.first is None


def test_the_tail_is_what_no_edit_has_changed_at_the_end():
    begun = Timeline().begin(chat(9))

    after = [user("short"), *begun.context[1:]]
    begun.edit(begun.context, after)
    assert begun.touched.tail == 8

    begun.edit(after, [*after[:4], *after[6:]])
    assert (begun.touched.tail, begun.touched.first) == (3, (0, 0))


# Any life ---------------------------------------------------------------------------------------


class Life:
    """A caller and stages that do whatever *data* says; each message says something of its own."""

    def __init__(self, data: st.DataObject, timeline: Timeline):
        self.data = data
        self.timeline = timeline
        self.history: list[Message] = []
        self.received: list[Message] = []
        self.count = 0

    def words(self, label: str) -> str:
        self.count += 1
        return f"{label}{self.count}"

    def message(self) -> Message:
        form = self.data.draw(st.sampled_from(["user", "text", "thinking", "sdk", "sdk thinking"]))
        words = self.words("m")
        if form == "user":
            return user(words)
        if form == "text":
            return assistant(words)
        if form == "thinking":
            return assistant(thinking(words), words)
        spoken = TextBlock(type="text", text=words)
        thought = ThinkingBlock(type="thinking", thinking=words, signature=words)
        return reply(spoken) if form == "sdk" else reply(thought, spoken)

    def messages(self) -> list[Message]:
        return [self.message() for _ in range(self.data.draw(st.integers(0, 4)))]

    def range_of(self, messages: Sequence[Message]) -> tuple[int, int]:
        start = self.data.draw(st.integers(0, len(messages)))
        return start, self.data.draw(st.integers(start, len(messages)))

    def act(self) -> None:
        """What the caller does between two turns."""
        action = self.data.draw(st.sampled_from(["append", "append", "cut", "branch", "adopt"]))
        if action == "adopt":
            self.history = list(self.received)
        if action in ("cut", "branch") or (action == "adopt" and self.data.draw(st.booleans())):
            del self.history[self.data.draw(st.integers(0, len(self.history))) :]
        if action != "cut":
            self.history += self.messages()

    def stage(self, before: list[Message]) -> list[Message]:
        """What a stage makes of the context."""
        action = self.data.draw(st.sampled_from(["rewrite", "delete", "summarize", "insert"]))
        if action == "rewrite" and before:
            index = self.data.draw(st.integers(0, len(before) - 1))
            held: Any = before[index]["content"]
            other = [*held[:-1], text(self.words("r"))] if held and type(held) is list else "r"
            short = cast("Message", {**before[index], "content": other})
            return [*before[:index], short, *before[index + 1 :]]
        start, stop = self.range_of(before)
        if action == "delete":
            gone = set(self.data.draw(st.lists(st.integers(start, stop), max_size=4)))
            return [message for index, message in enumerate(before) if index not in gone]
        summary = [user(self.words("s")), assistant(self.words("ack"))]
        if action == "summarize":
            return [*before[:start], *summary, *before[stop:]]
        return [*before[:start], user(self.words("i")), *before[start:]]

    def turn(self) -> Step:
        begun = self.timeline.begin(self.history)
        context = begun.context
        for _ in range(self.data.draw(st.integers(0, 2))):
            after = self.stage(context)
            begun.edit(context, after)
            context = after
        if begun.touched.first is not None:
            mark_stale(begun.stale, context, begun.touched.first)
        self.received = apply_edits(begun.sent_context, begun.edits)
        recorded = copy.copy(begun)
        self.timeline.apply(begun)
        assert self.timeline.context == context
        return recorded


def check_alignment(timeline: Timeline):
    """Both columns rise within the history, and all lists of the context are equally long."""
    context, sent = timeline.context, timeline.sent
    alignment = timeline.alignment
    assert len(alignment.starts) == len(alignment.ends) == len(context) == len(sent)
    places = [place for span in spans(timeline) for place in span]
    assert places == sorted(places)
    assert all(0 <= place <= len(timeline.history) for place in places)


def check_sent(timeline: Timeline):
    """What was sent is the context, with the caller's own objects."""
    assert list(map(parse, timeline.sent)) == timeline.context
    for message, (start, stop) in zip(timeline.sent, spans(timeline), strict=True):
        if stop - start == 1 and says_the_same(message, timeline.history[start]):
            assert message is timeline.history[start]


@given(st.data(), st.booleans())
def test_whatever_happens_the_alignment_holds(data: st.DataObject, verify: bool):
    life = Life(data, Timeline(verify=verify))
    for _ in range(data.draw(st.integers(1, 8))):
        life.act()

        begun = life.turn()

        check_alignment(life.timeline)
        check_sent(life.timeline)
        assert life.timeline.history == life.history
        assert life.timeline.sent == life.received
        assert set(begun.stale) <= set(range(len(life.timeline.context)))


@given(st.data())
def test_a_turn_begins_with_the_kept_context_and_the_history_after_it(data: st.DataObject):
    life = Life(data, Timeline())
    for _ in range(data.draw(st.integers(1, 6))):
        life.act()
        kept = list(life.timeline.sent)

        begun = life.timeline.begin(life.history)

        assert begun.sent_context == [
            *kept[: begun.retained_count],
            *life.history[begun.agreement.new_start :],
        ]
        assert begun.context == list(map(parse, begun.sent_context))
        assert life.history == [*life.history[: begun.unchanged_count], *begun.messages]
        assert begun.agreement.new_start <= begun.unchanged_count
        assert begun.same_count <= begun.retained_count
        life.turn()


@given(st.data())
def test_recorded_steps_replayed_give_an_equal_timeline(data: st.DataObject):
    life, again = Life(data, Timeline()), Timeline()
    for _ in range(data.draw(st.integers(1, 8))):
        life.act()
        done = life.turn()

        again.apply(
            Step(done.unchanged_count, done.adopted, list(done.messages), done.edits, done.stale)
        )

        assert again.history == life.timeline.history
        assert again.context == life.timeline.context
        assert again.sent == life.timeline.sent
        assert spans(again) == spans(life.timeline)
        assert again.stale == life.timeline.stale


@given(st.data())
def test_a_replayed_timeline_goes_on_as_the_first_one_would(data: st.DataObject):
    life, again = Life(data, Timeline()), Timeline()
    for _ in range(data.draw(st.integers(1, 5))):
        life.act()
        done = life.turn()
        again.apply(
            Step(done.unchanged_count, done.adopted, list(done.messages), done.edits, done.stale)
        )
    life.act()

    one, other = life.timeline.begin(life.history), again.begin(life.history)

    assert (one.unchanged_count, one.adopted, one.retained_count) == (
        other.unchanged_count,
        other.adopted,
        other.retained_count,
    )
    assert (one.sent_context, one.context, one.stale) == (
        other.sent_context,
        other.context,
        other.stale,
    )


@given(st.data())
def test_stale_thinking_is_only_where_thinking_is(data: st.DataObject):
    life = Life(data, Timeline())
    for _ in range(data.draw(st.integers(1, 6))):
        life.act()
        life.turn()

        for index, block in life.timeline.stale.items():
            assert 0 <= index < len(life.timeline.context)
            assert 0 <= block <= len(blocks(life.timeline.context[index]))


@given(st.data())
def test_without_stages_the_context_says_what_the_history_says(data: st.DataObject):
    """Whether it was grown, cut, branched, rebuilt or marked anew."""
    timeline = Timeline(verify=data.draw(st.booleans()))
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
            history = [without_marks(message) for message in history]
            history[cut - 1] = marked(history[cut - 1])
        before = copy.deepcopy(history)

        begun = turn(timeline, history)

        assert begun.context == history == before
        assert timeline.context == timeline.history == history


# What has left once -------------------------------------------------------------------------------

LOG = "a line of a log\n" * 100
READ = [assistant(tool_use("t1", "bash", {"command": "cat log"})), user(tool_result("t1", LOG))]


def sent_result(step: Step) -> object:
    """What the last message before any stage says of its result."""
    result: Any = blocks(apply_edits(step.context, step.edits)[-1])[0]
    return result["content"]


SO = assistant("so")


@pytest.mark.parametrize(
    ("known", "then"),
    [
        ([user("go")], [user("go"), *READ]),
        ([user("go"), SO, user("on")], [user("go"), SO, user("on"), *READ]),
        ([user("go"), *READ, SO], [user("go"), *READ, SO, *READ]),
        ([user("go"), SO], [user("go"), *READ]),
        ([user("go"), SO, *READ], [user("go"), *READ]),
        ([user("went"), *READ], [user("go"), *READ]),
    ],
)
def test_a_result_is_in_a_file_as_before_where_the_history_was_rebuilt_and_not_where_it_grew(
    known: list[Message], then: list[Message]
):
    timeline = Timeline(placeholders={hash(("t1", LOG)): "in a file"})
    turn(timeline, known)

    has_grown = then[: len(known)] == known
    assert sent_result(timeline.begin(then)) == (LOG if has_grown else "in a file")


# A caller who continues with the context ----------------------------------------------------------


def test_a_timeline_that_adopts_its_context_has_one_list_of_messages():
    timeline, history = Timeline(adopts=True), chat(6)
    shorter = [user("short"), *history[3:]]

    turn(timeline, history, shorter)

    assert timeline.history == shorter
    assert timeline.history is timeline.context is timeline.sent
    assert [*timeline.alignment.starts] == [0, 1, 2, 3]
    assert [*timeline.alignment.ends] == [1, 2, 3, 4]


def test_a_timeline_that_adopts_its_context_continues_it_as_the_history():
    timeline, history = Timeline(adopts=True), chat(6)
    shorter = [user("short"), *history[3:]]
    turn(timeline, history, shorter)

    begun = timeline.begin([*shorter, assistant("new")])

    assert (begun.unchanged_count, begun.retained_count, begun.adopted) == (4, 4, False)
    assert begun.messages == [assistant("new")]
