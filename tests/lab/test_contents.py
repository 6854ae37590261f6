"""What fills a context, of one conversation and of several."""

from __future__ import annotations

from histories import assistant, conversation, step, tool_result, tool_use, user, view

from ctxpipe.lab.contents import (
    contents,
    largest_blocks,
    tokens_by_kind,
    tokens_by_tool,
    total_contents,
)
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.markers.placeholders import BATCH, placeholder
from ctxpipe.messages import compact_json
from ctxpipe.tokens import TokenCounter

HISTORY = conversation(
    user("Find the bug."),
    view("a", "src/a.py", "def f():\n    return 1\n" * 40),
    step("b", "bash", {"command": "make"}, "all is well"),
    assistant("Done."),
)


def test_the_kinds_hold_every_token_of_the_blocks():
    counter = TokenCounter()
    kinds = tokens_by_kind(HISTORY, counter)
    assert set(kinds) == {"user text", "assistant text", "tool use", "tool result"}
    assert kinds["tool result"] > kinds["tool use"] > 0


def test_a_placeholder_is_a_kind_of_its_own():
    text = placeholder(BATCH, "/store/s/a.md")
    kinds = tokens_by_kind([assistant(tool_use("a")), user(tool_result("a", text))], TokenCounter())
    assert kinds["placeholder"]
    assert not kinds["tool result"]


def test_a_tool_is_told_with_its_calls_and_the_tokens_of_inputs_and_results():
    (first, calls, tokens), second = tokens_by_tool(HISTORY, TokenCounter())
    assert (first, calls) == ("read_file", 1)
    assert second[0] == "bash"
    assert tokens > second[2]


def test_the_largest_blocks_come_first_and_no_more_than_wanted():
    largest, *others = largest_blocks(HISTORY, TokenCounter(), 2)
    assert (largest.message, largest.what) == (2, "tool result of read_file")
    assert largest.begins.startswith("def f():")
    assert len(others) == 1
    assert largest_blocks(HISTORY, TokenCounter(), 0) == []


def test_several_conversations_are_added_and_the_largest_blocks_are_those_of_all():
    counter = TokenCounter()
    one = contents(parse_transcript(compact_json(HISTORY), "one"), counter, 1)
    talk = conversation(user("word " * 900), assistant("Yes."))
    other = contents(parse_transcript(compact_json(talk), "other"), counter, 1)

    both = total_contents([one, other], 1)

    assert both.tokens == one.tokens + other.tokens
    assert both.kinds["user text"] == one.kinds["user text"] + other.kinds["user text"]
    assert both.tools == one.tools
    assert both.largest == other.largest
    assert [block.file for block in both.largest] == ["other"]
    assert (both.messages, both.calls) == (len(HISTORY) + 2, one.calls + 1)


def test_a_heading_says_what_was_read_and_repaired():
    torn = conversation(user("Go."), assistant(tool_use("t1", "bash")), user("?"), assistant("Ok."))
    found = contents(parse_transcript(compact_json(torn)), TokenCounter(), 1)

    assert str(found).startswith("Anthropic messages, ")
    assert str(found).endswith("1 fault repaired")
