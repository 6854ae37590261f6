"""What a turn of the gateway was spent on, by kind."""

from __future__ import annotations

from typing import Any

from gateways import conversation, post, replies, serving

from ctxpipe.gateway.shaping import Content
from ctxpipe.testing import MessagesServer
from ctxpipe.tokens import TokenCounter

CALL = {"type": "tool_use", "id": "t", "name": "bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "one two three " * 9}
HISTORY: list[Any] = [
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, CALL]},
    {"role": "user", "content": [RESULT]},
]


def test_tokens_are_told_apart_by_kind():
    counter = TokenCounter()
    found = Content().read(counter, HISTORY, system="be brief", tools=[{"name": "bash"}])
    assert list(found) == ["user", "assistant", "calls", "results", "system", "tools"]
    assert found["results"] == counter.block(RESULT)
    assert found["system"] == counter.total([], system="be brief")


def test_a_context_that_goes_on_or_was_rewritten_is_read_as_one_that_is_new():
    content, counter = Content(), TokenCounter()
    short = [*HISTORY[:2], {"role": "user", "content": [{**RESULT, "content": "moved"}]}]
    for messages in (HISTORY[:2], HISTORY, short, [], HISTORY, HISTORY[:1]):
        assert content.read(counter, messages) == Content().read(counter, messages)


def test_what_is_known_is_not_read_again():
    content, counter = Content(), TokenCounter()
    content.read(counter, HISTORY)
    before = list(content._sums)
    content.read(counter, [*HISTORY, {"role": "assistant", "content": "done"}])
    assert all(one is other for one, other in zip(before, content._sums, strict=False))


async def test_a_turn_of_a_gateway_knows_what_its_tokens_were_spent_on(tmp_path):
    async with MessagesServer(replies(1)) as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, {"messages": conversation(1), "system": "be brief"})
    [turn] = gateway.gateway.record.turns
    assert set(turn.kinds) == {"system", "user", "calls", "placeholders"}
    assert abs(sum(turn.kinds.values()) - turn.sent_tokens) < 20
