"""Shortening the middle of a history.

Which messages it holds, which calls go, which block is deleted.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import pytest
from histories import (
    assistant,
    broken_histories,
    chat,
    conversation,
    histories,
    said,
    step,
    system,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
    view,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import (
    THINKING,
    Message,
    blocks,
    check,
    kind,
    split_system,
    tool_calls,
    tool_results,
)
from ctxpipe.messages.thinking import open_loop
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.providers.agent_tools import COMMON_READING_TOOLS
from ctxpipe.stages.truncate import selection as truncate
from ctxpipe.stages.truncate.selection import Window
from ctxpipe.tokens import TokenCounter
from ctxpipe.turn.repair import repair

CHARS = TokenCounter(len)


def sizes(messages: Sequence[Message]) -> list[int]:
    return [CHARS.message(message) for message in messages]


def filtered(history: list[Message], middle: range, *, strict: bool = False) -> list[Message]:
    views = {view.place for view in truncate.file_views(history)}
    ground = truncate.editable_region(history, middle, strict=strict)
    parts, _ = truncate.filter_calls(history, ground, views)
    return truncate.join_parts(parts)


def deleted(
    history: list[Message], middle: range, excess: int, window: Window = "average", marker: str = ""
) -> list[Message]:
    parts = [truncate.Part(index, message) for index, message in enumerate(history)]
    ground = truncate.editable_region(history, middle)
    return truncate.join_parts(
        truncate.delete_center(parts, sizes(history), ground, excess, window=window, marker=marker)
    )


def middle_range(
    tokens: Sequence[int],
    start: Fraction | float = truncate.MIDDLE_START,
    end: Fraction | float = truncate.MIDDLE_END,
) -> range:
    return truncate.middle_range([0, *accumulate(tokens)], start, end)


def alternates(messages: Sequence[Message]) -> bool:
    return all(one["role"] != other["role"] for one, other in pairwise(split_system(messages)[1]))


def all_but_a_block(texts: list[str], kept: list[str], holes: str = "<command>") -> bool:
    """Whether *kept* is *texts* without one contiguous block.

    Texts with *holes* may have stayed in it.
    """
    missing = [index for index, words in enumerate(texts) if words not in kept]
    between = (
        [words for words in texts[missing[0] : missing[-1]] if words in kept] if missing else []
    )
    return kept == [words for words in texts if words in kept] and all(
        holes in words for words in between
    )


# The middle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([100] * 12, range(2, 10)),
        ([100] * 10, range(2, 8)),
        ([100] * 6, range(1, 5)),
        ([100] * 3, range(1, 2)),
        ([1000, 1, 1, 1, 1000], range(1, 4)),
        ([100, 0, 0, 100], range(1, 3)),
        ([100, 100], range(0)),
        ([0, 0, 0], range(0)),
        ([], range(0)),
    ],
)
def test_the_middle_is_wholly_between_a_sixth_and_five_sixths(tokens: list[int], found: range):
    assert middle_range(tokens) == found


def test_the_bounds_of_the_middle_may_be_given_as_any_fraction():
    assert middle_range([100] * 10, 0.25, 0.75) == range(3, 7)
    assert middle_range([100] * 6, 1 / 6, 5 / 6) == range(1, 5)
    assert middle_range([100] * 7, Fraction(1, 7), Fraction(6, 7)) == range(1, 6)


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_no_middle_reaches_into_the_outer_sixths(tokens: list[int]):
    found = middle_range(tokens)

    assert sum(tokens[: found.start]) * 6 >= sum(tokens) or not found
    assert sum(tokens[found.stop :]) * 6 >= sum(tokens) or not found
    wider = (range(found.start - 1, found.stop), range(found.start, found.stop + 1))
    for other in wider:
        if found and other.start >= 0 and other.stop <= len(tokens):
            outside = sum(tokens[: other.start]), sum(tokens[other.stop :])
            assert min(outside) * 6 < sum(tokens)


def test_the_head_is_no_part_of_what_the_middle_is_taken_from():
    history = conversation(system("s" * 1000), chat(12))

    assert truncate.middle(history, [0, 1000, *(1000 + 10 * n for n in range(1, 13))]) == range(
        3, 11
    )


def test_the_first_request_and_the_last_turn_are_never_in_the_middle():
    history = conversation(user("go"), step("t1"), step("t2"), step("t3"))
    sums = [0, *(10 * n for n in range(1, 8))]

    assert truncate.middle(history, sums, 0, 1) == range(1, 5)
    assert truncate.middle(history[:-1], sums[:-1], 0, 1) == range(1, 5)
    assert truncate.middle(
        [*history, assistant("done"), user("more")], [*sums, 80, 90], 0, 1
    ) == range(1, 8)
    assert truncate.middle(history[:1], sums[:2], 0, 1) == range(0)
    assert truncate.middle([], [0]) == range(0)


def test_the_last_turn_is_what_the_model_has_not_answered_with_the_calls_answered_in_it():
    history = conversation(user("go"), step("t1"), assistant("done"), user("more"), step("t2"))

    assert truncate.last_turn(history) == 5
    assert truncate.last_turn([*history, system("be brief")]) == 5
    assert truncate.last_turn([*history, user("and this")]) == 5
    assert truncate.last_turn(history[:-1]) == 5
    assert truncate.last_turn(history[:-2]) == 4
    assert truncate.last_turn(history[:4]) == 3
    assert truncate.last_turn(history[:1]) == 0
    assert truncate.last_turn([]) == 0


# File views ---------------------------------------------------------------------------------------


def test_a_view_is_an_answered_call_of_a_reading_tool():
    history = conversation(
        user("go"), view("v1", "a.py", "x = 1"), step("b1"), assistant(tool_use("v2", "read_file"))
    )

    assert truncate.file_views(history) == [truncate.FileView((2, 0), "a.py", "x = 1")]


def test_a_repeated_id_is_a_view_only_where_its_own_call_is_one():
    history = conversation(user("go"), view("t1", "a.py", "x"), step("t1"), view("t1", "b.py", "y"))

    assert [found.path for found in truncate.file_views(history)] == ["a.py", "b.py"]


def test_text_blocks_are_the_text_of_a_view_and_a_picture_has_none():
    picture = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    history = conversation(
        user("go"),
        view("v1", "a.py", [text("x"), text("y")]),
        view("v2", "b.png", [text("b"), picture]),
    )

    assert [found.text for found in truncate.file_views(history)] == ["x\ny", ""]


def test_shell_views_and_other_tools_are_asked_for():
    history = conversation(
        user("go"),
        step("b1", "bash", {"command": "cat a.py"}, "x"),
        step("r1", "Read", {"file_path": "b.py"}, "y"),
    )

    assert truncate.file_views(history) == []
    paths = [found.path for found in truncate.file_views(history, COMMON_READING_TOOLS, True)]
    assert paths == ["a.py", "b.py"]


@pytest.mark.parametrize(
    "content",
    [
        "[Content offloaded to: ./tool-result-t1.md]",
        "[Tool result offloaded to file: /tmp/t1.md]",
        "[Tool result offloaded to file: /tmp/t1.md]"
        + Preview(10, 5).of("def f():\n    return 1\n" * 9),
        "<system-reminder>\n## File Context: a.py\n1 | f\n</system-reminder>",
        "",
    ],
)
def test_a_pointer_a_folded_file_and_no_text_are_not_to_be_folded(content):
    history = conversation(user("go"), view("v1", "a.py", content))
    assert not truncate.file_views(history)[0].is_foldable
    assert truncate.file_views(conversation(user("go"), view("v1", "a.py", "x = 1")))[0].is_foldable


@pytest.mark.parametrize(
    "content",
    [
        "<system-reminder>\n## File Context: a.py\n" + "1 | f\n" * 10_000,
        f"[Content offloaded to: {'a' * 5_000}]",
        "[Tool result offloaded to file: /tmp/t1.md]"
        + Preview(50_000, 5).of("def f():\n    return 1\n" * 9_000),
    ],
)
def test_a_long_view_that_only_looks_folded_is_folded(content):
    assert truncate.file_views(conversation(user("go"), view("v1", "a.py", content)))[0].is_foldable


# Filtering ----------------------------------------------------------------------------------------


def test_calls_of_the_middle_go_with_their_results_and_all_text_stays():
    history = conversation(
        user("go"),
        step("t1", say="one"),
        step("t2"),
        step("t3", say="three"),
        assistant("done"),
        user("next"),
    )

    assert filtered(history, range(1, 7)) == [
        user("go"),
        assistant("one", "three", "done"),
        user("next"),
    ]


def test_without_a_call_in_the_middle_nothing_changes():
    history = conversation(user("go"), step("t1"), chat(5), step("t2"))
    ground = truncate.editable_region(history, range(3, 8))

    parts, calls = truncate.filter_calls(history, ground, frozenset())

    assert calls == 0
    assert [part.message for part in parts] == history


def test_a_file_view_stays_with_its_call_in_the_midst_of_a_parallel_batch():
    calls = assistant(
        "look", tool_use("b1"), tool_use("v1", "read_file", {"path": "a.py"}), tool_use("b2")
    )
    results = user(
        tool_result("b1"), tool_result("v1", "x = 1"), tool_result("b2"), text("and now?")
    )
    history = conversation(user("go"), calls, results, assistant("done"))

    assert filtered(history, range(1, 3)) == conversation(
        user("go"),
        assistant("look", tool_use("v1", "read_file", {"path": "a.py"})),
        user(tool_result("v1", "x = 1"), text("and now?")),
        assistant("done"),
    )


def test_the_users_words_in_a_message_of_results_join_the_message_before():
    history = conversation(
        user("go"),
        view("v1", "a.py", "x"),
        assistant(tool_use("t1")),
        user(tool_result("t1"), "hm"),
        assistant("ok"),
    )

    assert filtered(history, range(3, 5)) == conversation(
        user("go"),
        view("v1", "a.py", "x")[0],
        user(tool_result("v1", "x"), "hm"),
        assistant("ok"),
    )


def test_in_strict_ground_a_call_is_spared_where_a_message_outside_would_be_touched():
    mixed = conversation(assistant(tool_use("t1")), user(tool_result("t1"), "hm"))
    history = conversation(
        chat(3), mixed, step("t2"), step("t3", say="x"), assistant("so"), user("next")
    )

    loose = filtered(history, range(3, 9))
    strict = filtered(history, range(3, 9), strict=True)

    assert loose == [
        *chat(2),
        user(chat(3)[2]["content"], "hm"),  # type: ignore[arg-type]
        assistant("x", "so"),
        user("next"),
    ]
    assert strict == [*history[:5], *history[7:]]
    assert all(any(message is other for other in history) for message in strict)


def test_thinking_goes_with_its_call_when_nothing_else_is_left():
    history = conversation(
        user("go"), step("t1", think="a"), step("t2", think="b", say="look"), user("and?")
    )

    assert filtered(history, range(1, 5)) == [
        user("go"),
        assistant(thinking("b"), "look"),
        user("and?"),
    ]


def test_a_message_never_ends_in_the_thinking_that_led_to_a_call():
    history = conversation(
        user("go"), assistant("a", thinking("b"), tool_use("t1")), user(tool_result("t1"), "hm")
    )

    assert filtered([*history, assistant("ok")], range(1, 3)) == [
        *conversation(user("go"), assistant(text("a")), user(text("hm")), assistant("ok"))
    ]


def test_thinking_that_a_merge_would_move_goes_in_a_closed_turn():
    history = conversation(
        user("go"),
        step("t1", think="a", say="one"),
        step("t2", think="b", say="two"),
        assistant("three"),
        user("next"),
    )

    assert filtered(history, range(1, 5)) == [
        user("go"),
        assistant(thinking("a"), "one", "two", "three"),
        user("next"),
    ]


@pytest.mark.parametrize(
    ("end", "parts"),
    [
        (
            5,
            [
                assistant(tool_use("t1")),
                user(tool_result("t1"), "hm"),
                step("t2", say="x"),
                assistant("a"),
            ],
        ),
        (5, [step(f"t{n}", think="a", say="one") for n in range(3)]),
        (3, [step("t1", say="one"), assistant(thinking(), "two"), user("next")]),
        (3, [step("t1", say="one"), system("be brief"), assistant("done"), user("next")]),
    ],
    ids=[
        "what the first request or the last turn would be merged with",
        "what would move the thinking of an open loop",
        "what would move thinking outside the middle",
        "what would put a system message behind the assistant's",
    ],
)
def test_a_call_is_spared_rather_than(end, parts):
    history = conversation(user("go"), *parts)

    assert filtered(history, range(1, end)) == history


# Deleting -----------------------------------------------------------------------------------------


def test_the_block_has_excess_by_average_messages_around_the_centre():
    history = chat(30)
    average = sum(sizes(history[5:25])) / 20

    assert deleted(history, range(5, 25), int(17.5 * average)) == [*history[:6], *history[24:]]


def test_no_excess_deletes_nothing():
    history = chat(8)

    assert deleted(history, range(2, 6), 0) == history
    assert deleted(history, range(2, 6), -5) == history
    assert deleted(history, range(0), 10) == history


def test_the_block_is_widened_until_roles_alternate():
    history = chat(10)

    assert deleted(history, range(2, 8), 1) in (
        [*history[:4], *history[6:]],
        [*history[:3], *history[5:]],
    )


def test_the_block_never_leaves_the_middle():
    history = chat(10)

    assert deleted(history, range(2, 8), 10**9) == [*history[:2], *history[8:]]


def test_average_may_fall_short_and_covering_does_not():
    history = conversation(
        user("go"), *[(assistant("a" * 9), user("b")) for _ in range(8)], assistant("c" * 300)
    )
    middle = range(1, 17)
    excess = 41
    light = sizes(history)

    assert sum(light) - sum(sizes(deleted(history, middle, excess))) >= excess - 10
    uneven = conversation(
        user("go"), *[assistant("a" * 99), user("b")], *history[1:9], assistant("a" * 99), user("c")
    )
    average, covering = (
        deleted(uneven, range(1, 13), 100, window) for window in ("average", "covering")
    )
    assert (
        sum(sizes(uneven)) - sum(sizes(average)) < 100 <= sum(sizes(uneven)) - sum(sizes(covering))
    )


def test_a_call_goes_with_its_results_or_stays():
    history = conversation(
        user("go"), *[view(f"v{n}", "a.py", "x" * 50) for n in range(9)], assistant("done")
    )

    for excess in range(1, 500, 7):
        left = deleted(history, range(2, 16), excess)
        assert check(left) == []
        assert left[:3] == history[:3]
        assert left[-4:] == history[-4:]


def test_a_users_command_stays_as_a_hole_in_the_block():
    history = conversation(
        chat(14), user("m14 <command>keep</command>"), chat(17)[15:], chat(30)[17:]
    )

    left = deleted(history, range(5, 25), 16 * min(sizes(history)))

    assert history[14] in left
    assert len(left) <= 14
    assert alternates(left)


@pytest.mark.parametrize(
    ("part", "stays"),
    [
        ([user("do <command name='x'>it</command> now")], True),
        ([assistant(tool_use("t1")), user(tool_result("t1"), "<command>it</command>")], True),
        ([assistant("<command>it</command>"), user("do it")], False),
        ([assistant(tool_use("t1")), user(tool_result("t1", "<command>it</command>"))], False),
        ([user("<commands>it</commands>")], False),
    ],
)
def test_a_command_in_a_result_or_in_the_assistants_words_protects_nothing(
    part: list[Message], stays: bool
):
    history = conversation(chat(14)[len(part) - 1 :], part, chat(31)[15:])

    left = deleted(history, range(4, 26), 16 * min(sizes(history)))

    assert len(left) < len(history)
    assert (part[-1] in left) is stays


def test_a_marker_follows_the_users_words_before_the_block():
    history = chat(10)

    marked = deleted(history, range(2, 8), 1, marker="[cut]")

    assert sum("[cut]" in words for words in said(marked)) == 1
    place = next(i for i, message in enumerate(marked) if "[cut]" in said([message]))
    assert marked[place]["role"] == "user"
    assert said(marked[: place + 1])[:-1] == said(history[: place + 1])


def test_a_system_message_goes_with_the_users_message_before_it():
    history = conversation(chat(5), system("be brief"), chat(10)[5:])

    for excess in range(1, 200, 5):
        left = deleted(history, range(2, 9), excess)
        assert all(
            one["role"] == "user" for one, other in pairwise(left) if other["role"] == "system"
        )


# What holds for every history ---------------------------------------------------------------------


def cut(
    history: list[Message], data: st.DataObject, *, strict: bool
) -> tuple[list[Message], range]:
    """Filter and delete with a middle, an excess and a window of any kind."""
    first = len(split_system(history)[0]) + 1
    last = truncate.last_turn(history)
    start = data.draw(st.integers(first, max(first, last)), label="start")
    stop = data.draw(st.integers(start, max(start, last)), label="stop")
    middle = range(start, stop) if stop <= last else range(0)
    ground = truncate.editable_region(history, middle, strict=strict)
    views = {view.place for view in truncate.file_views(history, COMMON_READING_TOOLS, True)}
    parts, _ = truncate.filter_calls(history, ground, views)
    excess = data.draw(st.integers(0, 4000), label="excess")
    window: Window = data.draw(st.sampled_from(["average", "covering"]), label="window")
    parts = truncate.delete_center(
        parts, sizes([p.message for p in parts]), ground, excess, window=window
    )
    joined = truncate.join_parts(parts)
    assert sum(sizes(joined)) == sum(sizes([part.message for part in parts]))
    return joined, middle


@given(histories(), st.data(), st.booleans())
def test_every_cut_of_every_history_is_valid_and_alternates(
    history: list[Message], data: st.DataObject, strict: bool
):
    before = copy.deepcopy(history)

    left, middle = cut(history, data, strict=strict)

    assert history == before
    assert check(left) == []
    assert alternates(left)
    assert sum(sizes(left)) <= sum(sizes(history))
    assert all_but_a_block(said(history), said(left))
    behind = len(history) - middle.stop
    assert said(left)[: len(said(history[: middle.start]))] == said(history[: middle.start])
    first = len(split_system(history)[0])
    last = truncate.last_turn(history)
    assert left[first] is history[first]
    assert all(
        new is old for new, old in zip(left[last - len(history) :], history[last:], strict=True)
    )
    if strict and middle:
        assert all(new is old for new, old in zip(left[: middle.start], history, strict=False))
        assert all(new is old for new, old in zip(left[-behind:], history[-behind:], strict=True))


@given(histories(thoughts=True), st.data())
def test_thinking_that_stays_keeps_its_place(history: list[Message], data: st.DataObject):
    left, _ = cut(history, data, strict=True)

    stood = [
        (place, block)
        for m in history
        for place, block in enumerate(blocks(m))
        if kind(block) in THINKING
    ]
    stands = [
        (place, block)
        for m in left
        for place, block in enumerate(blocks(m))
        if kind(block) in THINKING
    ]
    assert all(thought in stood for thought in stands)
    loop = open_loop(history)
    whole = [message for message in history[loop:] if any(message is other for other in left)]
    texts = set(said(left))
    for message in history[
        loop:
    ]:  # in an open loop a message is whole, or its thinking went with all it held
        held = any(words in texts for words in said([message]))
        thought = [block for block in blocks(message) if kind(block) in THINKING]
        assert (
            not thought
            or not held
            or any(message is other for other in whole)
            or thought[0] in _thoughts(left)
        )


def _thoughts(messages: Sequence[Message]) -> list[object]:
    return [block for message in messages for block in blocks(message) if kind(block) in THINKING]


@given(broken_histories(), st.data(), st.booleans())
def test_a_broken_history_that_was_repaired_is_cut_like_any_other(
    history: list[Message], data: st.DataObject, strict: bool
):
    mended = repair(history)

    left, _ = cut(mended, data, strict=strict)

    assert check(left) == []


@given(histories(repeat_ids=True), st.data())
def test_repeated_ids_mix_up_no_pairs(history: list[Message], data: st.DataObject):
    left, _ = cut(history, data, strict=True)

    assert check(left) == []
    assert len(list(tool_results(left))) == len(list(tool_calls(left))) - len(
        list(tool_calls(left, len(left) - 1))
    )
