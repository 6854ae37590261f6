"""The pieces of a context and their tokens."""

from __future__ import annotations

import pickle

from histories import assistant, conversation, step, user, view

from ctxpipe.messages import Message
from ctxpipe.placeholders.summaries import RESTORED
from ctxpipe.tokens import TokenCounter
from ctxpipe.tokens.spent import Piece, Pieces, TokensByKind


def pieces_of(*messages: Message) -> list[Piece]:
    pieces = Pieces(TokenCounter())
    for message in messages:
        pieces.learn(message)
    return [piece for message in messages for piece in pieces.of(message)]


def test_a_call_and_its_result_are_named_by_the_tool_and_its_argument():
    call, result = pieces_of(*view("t0", "f.py", "x = 1"))

    assert (call.kind, call.name, call.tool) == ("calls", "call of read_file: f.py", "read_file")
    assert (result.kind, result.name) == ("results", "result of read_file: f.py")
    assert (result.text, result.tool) == ("x = 1", "read_file")


def test_a_long_path_is_cut_between_its_segments():
    _, result = pieces_of(*view("t0", f"/home/somebody/{'folder/' * 9}name.py", "x = 1"))

    assert result.name == f"result of read_file: …{'/folder' * 5}/name.py"


def test_a_collapse_note_counts_as_a_summary_and_a_pointer_as_a_placeholder():
    note = "[Earlier steps, shortened; whole in /x/s/s{1..1}.md]\n1 bash ls → 9 chars"
    said, _, pointer = pieces_of(user(note), *view("t0", "f", "[Content offloaded to: /x/s/t0.md]"))

    assert (said.kind, said.tokens) == ("summary", TokenCounter().text(note))
    assert pointer.kind == "placeholders"


def test_restored_files_are_a_kind_of_their_own():
    [restored] = pieces_of(user(f"{RESTORED} a.py\nx = 1"))

    assert restored.kind == "files"


def test_the_tokens_by_kind_add_up_to_those_of_the_request_and_survive_a_pickle():
    counter = TokenCounter()
    messages = conversation(user("Go."), step("t0", result="line " * 99), assistant("Done."))
    tools = [{"name": "ls", "description": "List files.", "input_schema": {}}]

    by_kind = TokensByKind(counter, messages, "Be brief.", tools)

    assert [*by_kind()] == ["system", "tools", "user", "assistant", "calls", "results"]
    assert sum(by_kind().values()) == counter.total(messages, system="Be brief.", tools=tools)
    assert pickle.loads(pickle.dumps(by_kind))() == by_kind()  # noqa: S301  our own object
