"""Counts of the blocks that a change removes."""

from __future__ import annotations

from typing import Any, cast

from histories import PICTURE, assistant, conversation, step, user

from ctxpipe.messages import blocks
from ctxpipe.stages.reading.removed import count_removed

UPLOAD = {"type": "container_upload", "file_id": "file_1"}


def gadget(number: int = 1, **values: Any) -> dict[str, Any]:
    return {"type": "gadget", "number": number, **values}


def test_the_blocks_that_are_no_longer_there_are_counted_the_seldom_kinds_first():
    before = conversation(
        user("Go.", UPLOAD, gadget()), step("t", result=[PICTURE]), step("u"), assistant("Done.")
    )

    removed = count_removed(before, [user(cast("Any", blocks(before[0])[2])), *before[3:5]])

    assert list(removed.items()) == [
        ("container_upload", 1),
        ("image", 1),
        ("tool_use", 1),
        ("tool_result", 1),
        ("text", 2),
    ]
