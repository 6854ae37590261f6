"""The contents of the context of one conversation, and of several."""

from __future__ import annotations

from histories import assistant, conversation, step, tool_result, tool_use, user, view

from ctxpipe.lab.contents import Contents, contents, total_contents
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import Message, compact_json
from ctxpipe.placeholders.placeholders import BATCH, placeholder
from ctxpipe.tokens import TokenCounter

HISTORY = conversation(
    user("Find the bug."),
    view("a", "src/a.py", "def f():\n    return 1\n" * 40),
    step("b", "bash", {"command": "make"}, "all is well"),
    assistant("Done."),
)


def found(history: list[Message], most: int = 1) -> Contents:
    return contents(parse_transcript(compact_json(history), "one"), TokenCounter(), most)


def test_the_tokens_by_kind_add_up_to_those_of_the_blocks():
    kinds = found(HISTORY).kinds

    assert set(kinds) == {"user text", "assistant text", "tool calls", "tool results"}
    assert kinds["tool results"] > kinds["tool calls"] > 0
    assert kinds.total() == TokenCounter().total(HISTORY)


def test_placeholders_and_pictures_have_their_own_kinds():
    text = placeholder(BATCH, "/store/s/a.md")
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    picture = user({"type": "image", "source": source})
    history = [picture, assistant(tool_use("a")), user(tool_result("a", text)), assistant("Done.")]

    assert set(found(history).kinds) == {"image", "tool calls", "placeholders", "assistant text"}


def test_a_tool_is_listed_with_its_calls_and_the_tokens_of_inputs_and_results():
    (first, calls, tokens), second = found(HISTORY).by_tool

    assert (first, calls) == ("read_file", 1)
    assert second[0] == "bash"
    assert tokens > second[2]


def test_the_largest_blocks_come_first_up_to_the_requested_number():
    largest, *others = found(HISTORY, 2).largest

    assert (largest.message, largest.what) == (2, "result of read_file: src/a.py")
    assert largest.begins.startswith("def f():")
    assert len(others) == 1
    assert found(HISTORY, 0).largest == []


def test_several_conversations_are_added_and_the_largest_blocks_are_those_of_all():
    counter = TokenCounter()
    one = contents(parse_transcript(compact_json(HISTORY), "one"), counter, 1)
    talk = conversation(user("word " * 900), assistant("Yes."))
    other = contents(parse_transcript(compact_json(talk), "other"), counter, 1)

    both = total_contents([one, other], 1)

    assert both.kinds.total() == one.kinds.total() + other.kinds.total()
    assert both.kinds["user text"] == one.kinds["user text"] + other.kinds["user text"]
    assert both.by_tool == one.by_tool
    assert both.largest == other.largest
    assert [block.file for block in both.largest] == ["other"]
    assert (both.messages, both.calls) == (len(HISTORY) + 2, one.calls + 1)


def test_a_heading_names_the_format_and_the_repairs():
    torn = conversation(user("Go."), assistant(tool_use("t1", "bash")), user("?"), assistant("Ok."))

    assert str(found(torn)).startswith("Anthropic messages, ")
    assert str(found(torn)).endswith("1 fault repaired")
