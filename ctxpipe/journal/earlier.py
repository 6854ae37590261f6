"""The context before a summary, for a caller who takes back a message that the summary describes.

A summary describes every message of the history so far, but it replaces only some of them. The
newest ones, which the model has not answered, stay after it. An example with eight messages:

    history                h0 h1 h2 h3 h4 h5 h6 h7
    context before         h0 h1 p2 h3 h4 h5 h6 h7     p2 is h2 with a placeholder
    context with summary   S              h5 h6 h7     S describes h0 to h7, replaces h0 to h4

`EarlierContext(described_count=8, replaced_count=5, edits=[Edit(2, 3, [p2])])` has the data to go
back. Suppose that the user edits h6. S may quote the old h6, so it must not be used any more: the
next context is "h0 h1 p2 h3 h4 h5" and the new message. Each summary has its own earlier context.
The one used is the newest whose own summaries describe only messages that still exist.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from ..messages import Message, as_blocks, with_content
from ..messages.diff import Edit, diff
from ..messages.identity import says_the_same

OUTDATED = sys.maxsize
"""A `described_count` that no history reaches: the summary describes messages that are gone."""


class EarlierContext(NamedTuple):
    """The context before a summary, as edits of the history.

    The summary describes the first *described_count* messages of the history and replaces the
    first *replaced_count* of them. The *edits* turn the history into the earlier context; the last
    edit comes first.
    """

    described_count: int
    replaced_count: int
    edits: list[Edit]


def has_only_grown(before: Message, now: Message) -> bool:
    """Return True if *now* begins with all that *before* says."""
    if before["role"] != now["role"]:
        return False
    beginning = list(as_blocks(now))[: len(as_blocks(before))]
    return says_the_same(before, with_content(now, beginning))


def undoing_edits(context: Sequence[Message], before: Sequence[Message]) -> list[Edit]:
    """Return the edits that turn *context*, which has a summary, into the context *before* it.

    The last edit comes first. An edit that replaces several messages is split: all messages of the
    earlier context take the place of the first one, and the others are removed. So if the history
    ends inside the replaced messages, no part of the earlier context is used.
    """
    undoing: list[Edit] = []
    for start, stop, messages in diff(context, before, paired=False):
        first = min(start + 1, stop)
        if first < stop:
            undoing.append(Edit(first, stop, []))
        undoing.append(Edit(start, first, messages))
    return undoing


def replaces_one_by_one(edit: Edit) -> bool:
    """Return True if *edit* replaces one message by one message."""
    return edit.stop - edit.start == 1 and len(edit.messages) == 1


def were_unanswered(undone: Sequence[EarlierContext], known: int) -> bool:
    """Return True if the model had not answered the messages that the caller has taken back.

    *undone* are the earlier contexts of the summaries that describe such a message. The first
    *known* messages of the history are unchanged. If these are all that the oldest of the summaries
    replaced, every message taken back came after it in the context.
    """
    return bool(undone) and undone[0].replaced_count <= known
