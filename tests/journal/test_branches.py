"""Where the branches of a journal end, and which entries lead there."""

from __future__ import annotations

from ctxpipe.journal.branches import ends_of, path_to
from ctxpipe.storage.sealed import Entry


def entry(base: int, branch: str) -> Entry:
    return Entry(base, branch, [], [], [], "salt")


# The third entry is left behind: the fourth follows the second.
ENTRIES = [entry(0, ""), entry(1, ""), entry(2, ""), entry(2, "3"), entry(4, "3")]


def test_each_branch_ends_with_its_last_entry():
    assert ends_of(ENTRIES) == {"": 3, "3": 5}


def test_a_journal_without_entries_has_the_first_branch():
    assert ends_of([]) == {"": 0}


def test_the_path_of_a_branch_leaves_out_what_it_does_not_follow():
    assert path_to(ENTRIES, 5) == [ENTRIES[0], ENTRIES[1], ENTRIES[3], ENTRIES[4]]
    assert path_to(ENTRIES, 3) == ENTRIES[:3]
    assert path_to(ENTRIES, 0) == []
