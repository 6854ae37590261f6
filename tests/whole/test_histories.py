"""The random histories that other tests stand on are what they claim to be."""

from __future__ import annotations

from histories import (
    broken_histories,
    histories,
    said,
)
from hypothesis import Phase, given, seed, settings

from ctxpipe.messages import Message, check, pending_calls, tool_calls


@given(histories())
def test_a_random_history_is_valid_and_no_text_occurs_twice(history: list[Message]):
    assert check(history) == []
    assert len(set(said(history))) == len(said(history))


def test_random_histories_hold_the_shapes_that_matter():
    seen: set[str] = set()

    @seed(7)
    @settings(phases=[Phase.generate], max_examples=60)
    @given(histories(), broken_histories())
    def look(history: list[Message], broken: list[Message]):
        shapes = {
            "waiting calls": bool(pending_calls(history)),
            "many calls": len(list(tool_calls(history))) > 8,
            "a command": any("<command>" in words for words in said(history)),
            "broken": bool(check(broken)),
        }
        seen.update(name for name, is_so in shapes.items() if is_so)

    look()

    assert seen == {"waiting calls", "many calls", "a command", "broken"}
