"""A memory that forgets what was not used for longest, and never takes more bytes than it may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.tokens.memo import Memo


def test_a_stored_value_is_returned_and_can_be_replaced():
    memo: Memo[str, int] = Memo(100)
    memo.put("a", 1, 10)
    assert memo.get("a") == 1

    memo.put("a", 2, 20)

    assert memo.get("a") == 2
    assert memo.bytes == 20


def test_a_value_larger_than_half_the_limit_is_not_stored():
    memo: Memo[str, int] = Memo(100)

    memo.put("a", 1, 51)

    assert memo.get("a") is None


def test_values_in_use_stay_and_the_others_are_removed():
    memo: Memo[str, int] = Memo(100)
    memo.put("used", 0, 10)
    for number in range(50):
        memo.put(f"new {number}", number, 10)
        assert memo.get("used") == 0

    assert memo.get("new 49") == 49
    assert memo.get("new 0") is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.booleans())))
def test_a_memo_never_exceeds_its_limit_nor_returns_a_wrong_value(
    steps: list[tuple[int, int, bool]],
):
    memo: Memo[int, int] = Memo(100)
    last: dict[int, int] = {}
    for number, (key, size, ask) in enumerate(steps):
        if ask:
            assert memo.get(key) in (None, last.get(key))
        elif size <= 50:
            memo.put(key, number, size)
            last[key] = number
        assert 0 <= memo.bytes <= 100
