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
    user,
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
from ctxpipe.providers.agent_tools import COMMON_READING_TOOLS
from ctxpipe.stages.truncate import selection as truncate
from ctxpipe.stages.truncate.calls import file_views, filter_calls
from ctxpipe.stages.truncate.deletion import delete_center
from ctxpipe.stages.truncate.parts import join_parts
from ctxpipe.stages.truncate.selection import Window
from ctxpipe.tokens import TokenCounter
from ctxpipe.turn.repair import repair

CHARS = TokenCounter(len)


def sizes(messages: Sequence[Message]) -> list[int]:
    return [CHARS.message(message) for message in messages]


def middle_range(
    tokens: Sequence[int],
    start: Fraction | float = truncate.MIDDLE_START,
    end: Fraction | float = truncate.MIDDLE_END,
) -> range:
    return truncate.middle_range([0, *accumulate(tokens)], start, end)


def middle(
    history: list[Message], sums: Sequence[int], start: Fraction | float, end: Fraction | float
) -> range:
    return truncate.middle(history, sums, truncate.find_ends(history), start, end)


def last_turn(history: list[Message]) -> int:
    return truncate.find_ends(history).last_turn


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

    sums = [0, 1000, *(1000 + 10 * n for n in range(1, 13))]

    assert middle(history, sums, truncate.MIDDLE_START, truncate.MIDDLE_END) == range(3, 11)


def test_the_first_request_and_the_last_turn_are_never_in_the_middle():
    history = conversation(user("go"), step("t1"), step("t2"), step("t3"))
    sums = [0, *(10 * n for n in range(1, 8))]

    assert middle(history, sums, 0, 1) == range(1, 5)
    assert middle(history[:-1], sums[:-1], 0, 1) == range(1, 5)
    assert middle([*history, assistant("done"), user("more")], [*sums, 80, 90], 0, 1) == range(1, 8)
    assert middle(history[:1], sums[:2], 0, 1) == range(0)
    assert middle([], [0], 0, 1) == range(0)


def test_the_last_turn_is_what_the_model_has_not_answered_with_the_calls_answered_in_it():
    history = conversation(user("go"), step("t1"), assistant("done"), user("more"), step("t2"))

    assert last_turn(history) == 5
    assert last_turn([*history, system("be brief")]) == 5
    assert last_turn([*history, user("and this")]) == 5
    assert last_turn(history[:-1]) == 5
    assert last_turn(history[:-2]) == 4
    assert last_turn(history[:4]) == 3
    assert last_turn(history[:1]) == 0
    assert last_turn([]) == 0


# What holds for every history ---------------------------------------------------------------------


def cut(
    history: list[Message], data: st.DataObject, *, strict: bool
) -> tuple[list[Message], range]:
    """Filter and delete with a middle, an excess and a window of any kind."""
    first = len(split_system(history)[0]) + 1
    last = last_turn(history)
    start = data.draw(st.integers(first, max(first, last)), label="start")
    stop = data.draw(st.integers(start, max(start, last)), label="stop")
    middle = range(start, stop) if stop <= last else range(0)
    ends = truncate.find_ends(history)
    ground = truncate.editable_region(history, ends, middle, strict=strict)
    views = {view.place for view in file_views(history, COMMON_READING_TOOLS, True)}
    parts, _ = filter_calls(history, ground, views)
    excess = data.draw(st.integers(0, 4000), label="excess")
    window: Window = data.draw(st.sampled_from(["average", "covering"]), label="window")
    parts = delete_center(parts, sizes([p.message for p in parts]), ground, excess, window=window)
    joined = join_parts(parts)
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
    last = last_turn(history)
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
