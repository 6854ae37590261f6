"""The carry budget: the pieces that pass a compaction verbatim, and their order."""

from __future__ import annotations

from typing import Any

from compactions import gadget
from histories import assistant, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.stages.compact.carry import select
from ctxpipe.stages.reading.carry_candidates import (
    Candidate,
    CarryKind,
    blocks_to_carry,
)


def piece(carry_kind: CarryKind, index: int, **values: Any) -> Candidate:
    return Candidate(carry_kind, index, 0, [user(f"message {index}")], "piece", **values)


# Which are carried --------------------------------------------------------------------------------


def test_the_share_goes_to_the_more_important_kinds_and_in_them_to_the_newest():
    candidates = [
        piece(CarryKind.BLOCK, 1),
        piece(CarryKind.PIN, 2),
        piece(CarryKind.BLOCK, 3),
        piece(CarryKind.WORDS, 4),
        piece(CarryKind.BLOCK, 5),
    ]

    selection = select(candidates, [10] * 5, 35, 35)

    assert [one.index for one in selection.chosen] == [2, 4, 5]
    assert [one.index for one in selection.left_out] == [1, 3]
    assert selection.used_tokens == 30


def test_words_of_the_system_and_definitions_of_tools_do_not_share_the_budget():
    candidates = [
        piece(CarryKind.SYSTEM, 1),
        piece(CarryKind.TOOLS, 2),
        piece(CarryKind.WORDS, 3),
        piece(CarryKind.BLOCK, 4),
    ]

    selection = select(candidates, [60, 30, 40, 30], 50, 100)

    assert [one.index for one in selection.chosen] == [1, 2, 3]
    assert selection.used_tokens == 130
    assert selection.budget_tokens == 40


def test_of_the_words_of_the_system_the_largest_are_left_out_first():
    candidates = [piece(CarryKind.SYSTEM, index) for index in (1, 2, 3)]

    selection = select(candidates, [20, 70, 10], 50, 90)

    assert [one.index for one in selection.chosen] == [1, 3]
    assert [one.index for one in selection.left_out] == [2]


def test_the_words_of_the_system_are_the_last_that_a_lighter_selection_leaves_out():
    candidates = [
        piece(CarryKind.SYSTEM, 1),
        piece(CarryKind.PIN, 2),
        piece(CarryKind.WORDS, 3),
    ]
    selection = select(candidates, [60, 20, 20], 50, 100)

    lighter = selection.lighter(30)

    assert lighter is not None
    assert [one.index for one in lighter.chosen] == [1]
    assert lighter.used_tokens == 60


def test_one_huge_piece_does_not_push_out_small_ones():
    candidates = [piece(CarryKind.BLOCK, 1), piece(CarryKind.PIN, 2)]

    selection = select(candidates, [5, 1_000], 100, 100)

    assert [one.index for one in selection.chosen] == [1]
    assert [one.index for one in selection.left_out] == [2]


def test_leading_blocks_that_exceed_the_budget_together_count_as_any_other_blocks():
    candidates = [piece(CarryKind.LEADING, index) for index in range(3)]
    candidates.append(piece(CarryKind.PIN, 3))

    assert len(select(candidates, [10] * 4, 40, 40).left_out) == 0
    selection = select(candidates, [10] * 4, 29, 29)

    assert [one.index for one in selection.chosen] == [2, 3]
    assert {one.kind for one in selection.chosen} == {CarryKind.BLOCK, CarryKind.PIN}


def test_the_request_is_shortened_and_never_left_out():
    def shorten(chars: int) -> Candidate:
        return piece(CarryKind.REQUEST, 1, chars=chars)

    request = piece(CarryKind.REQUEST, 1, chars=40_000, shorten=shorten)

    selection = select([request], [10_000], 1_000, 1_000)

    assert [one.chars for one in selection.chosen] == [3_600]
    assert selection.cuts == ["of the newest request 3600 characters are in the context"]
    least = selection.lighter(1)
    assert least is not None
    assert [one.chars for one in least.chosen] == [1_000]
    assert least.lighter(1) is None


def test_blocks_of_a_pinned_message_come_with_it_and_alone_where_it_does_not_fit():
    message = user("rule", gadget())
    pinned = Candidate(CarryKind.PIN, 0, 0, [message], "pinned message")
    [block] = blocks_to_carry([message])

    assert select([pinned, block], [50, 5], 60, 60).chosen == [pinned]
    assert select([pinned, block], [50, 5], 20, 20).chosen == [block]


def test_a_lighter_selection_loses_the_least_important_and_oldest_pieces_first():
    candidates = [
        piece(CarryKind.PIN, 1),
        piece(CarryKind.BLOCK, 2),
        piece(CarryKind.BLOCK, 3),
        piece(CarryKind.REQUEST, 4, is_answered=False),
    ]
    selection = select(candidates, [10] * 4, 100, 100)

    lighter = selection.lighter(5)
    assert lighter is not None
    assert [one.index for one in lighter.chosen] == [1, 3, 4]
    assert lighter.used_tokens == selection.used_tokens - 10
    lightest = lighter.lighter(1_000)
    assert lightest is not None
    assert [one.index for one in lightest.chosen] == [4]
    assert [one.index for one in lightest.left_out] == [1, 2, 3]
    assert lightest.lighter(1) is None


def test_if_a_long_piece_has_to_go_small_ones_that_matter_less_stay():
    candidates = [
        piece(CarryKind.WORDS, 1),
        piece(CarryKind.WORDS, 2),
        piece(CarryKind.JOB, 3),
        piece(CarryKind.BLOCK, 4),
        piece(CarryKind.BLOCK, 5),
    ]
    selection = select(candidates, [300, 10, 20, 30, 40], 400, 400)

    lighter = selection.lighter(200)

    assert lighter is not None
    assert [one.index for one in lighter.chosen] == [2, 3, 4, 5]
    assert [one.index for one in lighter.left_out] == [1]
    assert lighter.used_tokens == 100


def test_references_of_one_result_keep_their_order_in_a_lighter_selection():
    first = piece(CarryKind.BLOCK, 2)
    second = piece(CarryKind.BLOCK, 2)
    selection = select([piece(CarryKind.BLOCK, 1), first, second], [10] * 3, 100, 100)

    lighter = selection.lighter(10)

    assert lighter is not None
    assert lighter.chosen == [first, second]


def test_a_block_that_governs_is_chosen_once_and_stays_if_the_pinned_message_around_it_goes():
    message = user({"type": "gadget", "tools": []}, "rule")
    pinned = Candidate(CarryKind.PIN, 1, 0, [message], "pinned message")
    [block] = blocks_to_carry([assistant("a"), message])

    selection = select([pinned, block], [50, 5], 52, 52)
    lighter = selection.lighter(10)

    assert block.kind == CarryKind.TOOLS
    assert (selection.chosen, selection.used_tokens) == ([pinned], 50)
    assert lighter is not None
    assert (lighter.chosen, lighter.left_out, lighter.used_tokens) == ([block], [pinned], 5)


@given(
    st.lists(st.tuples(st.sampled_from(CarryKind), st.integers(0, 100)), max_size=20),
    st.integers(0, 300),
    st.integers(1, 300),
)
def test_a_lighter_selection_is_lighter_by_what_was_asked_or_has_nothing_left(
    pieces: list[tuple[CarryKind, int]], room: int, tokens: int
):
    candidates = [piece(carry_kind, index) for index, (carry_kind, _) in enumerate(pieces)]
    sizes = [size for _, size in pieces]
    selection = select(candidates, sizes, room, room)

    lighter = selection.lighter(tokens)

    if lighter is None:
        assert all(one.kind == CarryKind.REQUEST for one in selection.chosen)
        return
    chosen = [one.index for one in lighter.chosen]
    assert sum(sizes[index] for index in chosen) == lighter.used_tokens
    is_bare = all(one.kind == CarryKind.REQUEST for one in lighter.chosen)
    assert lighter.used_tokens <= selection.used_tokens - tokens or is_bare
    assert sorted([*chosen, *(one.index for one in lighter.left_out)]) == list(range(len(pieces)))


@given(
    st.lists(st.tuples(st.sampled_from(CarryKind), st.integers(0, 100)), max_size=20),
    st.integers(0, 300),
)
def test_what_is_chosen_keeps_to_the_budget_and_nothing_vanishes(
    pieces: list[tuple[CarryKind, int]], room: int
):
    candidates = [piece(carry_kind, index) for index, (carry_kind, _) in enumerate(pieces)]
    sizes = [size for _, size in pieces]

    selection = select(candidates, sizes, room, room)

    chosen = [one.index for one in selection.chosen]
    left_out = [one.index for one in selection.left_out]
    assert sum(sizes[index] for index in chosen) == selection.used_tokens <= 2 * room
    assert selection.budget_tokens <= room
    assert sorted([*chosen, *left_out]) == list(range(len(pieces)))
    assert chosen == sorted(chosen)
