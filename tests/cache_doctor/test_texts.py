"""Where a text changed, and what kind of thing is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.cache_doctor.texts import first_change

CHANGES = {
    ("It is 2026-11-23T07:00:01Z.", "It is 2026-11-23T07:00:02Z."): (6, "a time stamp"),
    ("Now: 7:59 am", "Now: 8:00 am"): (5, "a time stamp"),
    ("at 1763881200 sharp", "at 1763881207 sharp"): (3, "a time stamp"),
    ("Today is 2026-11-23.", "Today is 2026-11-24."): (9, "a date"),
    ("Today is Monday.", "Today is Tuesday."): (9, "a date"),
    (
        "run 3f2b8c1e-0000-4000-8000-1234567890ab",
        "run 9a2b8c1e-0000-4000-8000-1234567890ab",
    ): (4, "an id"),
    ("session deadbeef01", "session deadbeef02"): (8, "an id"),
    ("You have 99 credits.", "You have 100 credits."): (9, "a number"),
    ("Be brief.", "Be long."): (3, ""),
    ("Be brief.", "Be brief. Always."): (9, ""),
}


@pytest.mark.parametrize("texts", CHANGES, ids=lambda texts: texts[1])
def test_the_thing_that_changed_is_named_with_its_first_character(texts: tuple[str, str]) -> None:
    assert first_change(*texts) == CHANGES[texts]


@given(st.text(), st.text(), st.text())
def test_what_precedes_the_place_is_the_same_in_both(head: str, one: str, other: str) -> None:
    before, after = head + one, head + other

    place = first_change(before, after).character

    assert before[:place] == after[:place]
