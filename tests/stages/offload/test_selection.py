"""Decisions which tool results leave the context, without I/O."""

from __future__ import annotations

from typing import cast

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from histories import (
    assistant,
    conversation,
    histories,
    step,
    system,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.functions.offload import offloadable, scan_of
from ctxpipe.messages import Message
from ctxpipe.stages.offload.selection import CandidateIndex, Scan, characters
from ctxpipe.stages.reading.candidates import OffloadCandidate, OffloadRules

IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * 99},
}
DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "x" * 999},
}


# Measuring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (user("漢🙂é"), 3),
        (user(text("ab"), text("c")), 3),
        (assistant(thinking("hmm"), text("ok")), 5),
        (assistant({"type": "redacted_thinking", "data": "x" * 50}), 0),
        (assistant(tool_use("a", "bash", {"command": "é"})), len('{"command":"é"}')),
        (user(tool_result("a", "found")), 5),
        (user(tool_result("a", [text("ab")])), len('[{"type":"text","text":"ab"}]')),
        (user(tool_result("a", [text("ab"), IMAGE])), len('[{"type":"text","text":"ab"}]')),
        (user(tool_result("a", [IMAGE])), 0),
        (user(tool_result("a", [])), 0),
        (user(tool_result("a", None)), 0),
        (user(IMAGE), 0),
        (user(DOCUMENT), 0),
        (user({"type": "new", "x": 1}), len('{"type":"new","x":1}')),
        (system("be"), 2),
    ],
)
def test_characters_are_counted_by_the_kind_of_block(message: Message, expected):
    assert characters(message) == expected


def test_an_sdk_object_counts_as_its_dict_does():
    objects = [
        TextBlock(type="text", text="abc"),
        ToolUseBlock(type="tool_use", id="a", name="bash", input={"command": "ls"}),
    ]

    assert characters(cast("Message", {"role": "assistant", "content": objects})) == characters(
        assistant(text("abc"), tool_use("a", "bash", {"command": "ls"}))
    )


# The functions' rules -----------------------------------------------------------------------------


def prescan(history: list[Message], min_chars: int) -> Scan:
    return scan_of(history, offloadable(history, min_chars))


# The running sums ---------------------------------------------------------------------------------

RULES = OffloadRules(50, input_tools={"bash"}, min_input_chars=3)


def summed(history: list[Message], start: int, end: int) -> tuple[Scan, list[OffloadCandidate]]:
    """Return the sums and candidates of a new index."""
    running = CandidateIndex()
    running.extend(history, RULES)
    return between(running, start, end)


def between(running: CandidateIndex, start: int, end: int) -> tuple[Scan, list[OffloadCandidate]]:
    scan, candidates = running.between(start, end)
    return scan, candidates()


def test_the_running_sums_are_those_of_the_prescan():
    history = conversation(
        user("go"), step("a", "grep", result="x" * 100), step("b", "grep", result="x" * 30)
    )

    assert summed(history, 0, 5)[0] == prescan(history, 50)


def test_only_candidates_in_the_asked_range_count():
    history = conversation(user("go"), *[step(name, "grep", result="x" * 100) for name in "abc"])

    total = prescan(history, 50).total_chars
    assert [
        summed(history, *bounds)[0] for bounds in ((0, 7), (0, 4), (3, 7), (3, 4), (5, 3), (7, 7))
    ] == [Scan(total, chars) for chars in (300, 100, 200, 0, 0, 0)]
    assert [found.item.message for found in summed(history, 3, 7)[1]] == [4, 6]


@given(histories(4), histories(4), st.data())
def test_sums_kept_from_turn_to_turn_are_those_made_afresh(
    history: list[Message], other: list[Message], data: st.DataObject
):
    running = CandidateIndex()
    now: list[Message] = []
    for source in (history, other, history):
        # The context grows, shrinks or has other messages from some index on.
        kept = data.draw(st.integers(0, len(now)))
        now = [*now[:kept], *source[: data.draw(st.integers(0, len(source)))]]
        running.rewind(kept)
        running.extend(now, RULES)
        start = data.draw(st.integers(0, len(now)))
        end = data.draw(st.integers(0, len(now)))

        assert between(running, start, end) == summed(now, start, end)


def test_a_message_that_cannot_be_measured_leaves_the_record_as_it_was():
    running = CandidateIndex()
    history = conversation(user("go"), step("a", "grep", result="x" * 100))
    broken = [*history, *step("b", "grep", {"odd": object()}, "x" * 100)]

    with pytest.raises(ValueError, match="object"):
        running.extend(broken, RULES)
    running.extend(history, RULES)

    assert between(running, 0, 3) == summed(history, 0, 3)
