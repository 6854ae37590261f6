"""Texts that were moved to files."""

from __future__ import annotations

import pytest
from histories import assistant, step, text, tool_result, tool_use, user

from ctxpipe.messages import Message
from ctxpipe.placeholders.placeholders import BATCH, DIRECT, Preview, placeholder
from ctxpipe.stages.reading.moved_texts import first_batch_placeholder

IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * 99},
}


POINTER = placeholder(BATCH, "./s/tool-result-a.md")


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (user(tool_result("a", POINTER)), (2, 0)),
        (user(tool_result("x"), tool_result("a", [text(POINTER), IMAGE])), (2, 1)),
        (user(tool_result("a", placeholder(BATCH, "./x.md", "y" * 99, Preview(5, 5)))), (2, 0)),
        (assistant(text("ok"), tool_use("a", "write", {"text": POINTER})), (2, 1)),
        (user(tool_result("a", placeholder(DIRECT, "/x.md"))), None),
        (user(f"so {POINTER}"), None),
    ],
)
def test_the_first_block_that_batch_offloading_rewrote_is_found(
    message: Message, place: tuple[int, int] | None
):
    later = step("z", result=POINTER) if place else []

    assert first_batch_placeholder([*step("y"), message, *later]) == place
