"""The end of a conversation that the model has not answered."""

from __future__ import annotations

import pytest
from histories import assistant, conversation, step, system, tool_result, tool_use, user

from ctxpipe.messages import Message
from ctxpipe.stages.reading.unanswered import index_after_last_reply, open_tail


def test_the_unanswered_messages_begin_after_the_last_reply():
    history = conversation(user("go"), step("a"), step("b"), user("and"), system("note"))

    assert index_after_last_reply(history) == 4
    assert index_after_last_reply(history[:4]) == 4
    assert index_after_last_reply([user("go")]) == 0
    assert index_after_last_reply([]) == 0


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}


FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


CODE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}


RAN = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {}}


UNKNOWN = {"type": "hologram_tool_use", "id": "holotoolu_1", "name": "draw", "input": {}}


DRAWN = {"type": "hologram_tool_result", "tool_use_id": "holotoolu_1", "content": []}


BY_CODE = {"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}


@pytest.mark.parametrize(
    ("tail", "length"),
    [
        ([assistant("a"), user("b")], 1),
        ([assistant("a"), user("b"), user("c"), system("s")], 3),
        ([assistant("a"), *step("t")], 3),
        ([user("x"), assistant("a"), assistant("b"), *step("t")], 4),
        ([assistant(SEARCH, FOUND, tool_use("t", "bash", {})), user(tool_result("t", "x"))], 2),
        (
            [
                assistant(SEARCH, tool_use("t", "a", {})),
                user(tool_result("t", "x")),
                assistant(FOUND, tool_use("u", "b", {})),
                user(tool_result("u", "x")),
            ],
            4,
        ),
        (
            [
                assistant(CODE, {**tool_use("t", "a", {}), **BY_CODE}),
                user(tool_result("t", "x")),
                assistant(RAN, tool_use("u", "b", {})),
                user(tool_result("u", "x")),
            ],
            4,
        ),
        (
            [
                assistant(UNKNOWN, tool_use("t", "a", {})),
                user(tool_result("t", "x")),
                assistant(DRAWN, tool_use("u", "b", {})),
                user(tool_result("u", "x")),
            ],
            4,
        ),
        ([assistant("done")], 0),
    ],
)
def test_the_unanswered_part_never_splits_what_belongs_together(tail: list[Message], length):
    history = [user("old"), assistant("ok"), user("new"), *tail]

    assert open_tail(history) == len(history) - length
