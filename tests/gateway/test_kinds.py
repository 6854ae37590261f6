"""What a turn of the gateway was spent on, by kind."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest
from gateways import conversation, post, replies, serving
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.gateway.kinds import MAX_UNCOUNTED, ContextKinds
from ctxpipe.testing import MessagesServer
from ctxpipe.tokens import TokenCounter

CALL = {"type": "tool_use", "id": "t", "name": "bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "one two three " * 9}
HISTORY: list[Any] = [
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": [{"type": "text", "text": "I look."}, CALL]},
    {"role": "user", "content": [RESULT]},
]
SHORT = [*HISTORY[:2], {"role": "user", "content": [{**RESULT, "content": "moved"}]}]
SYSTEMS = [None, "be brief", [{"type": "text", "text": "be kind"}]]


@pytest.fixture
def counter() -> TokenCounter:
    return TokenCounter()


def test_tokens_are_told_apart_by_kind(counter):
    contexts = ContextKinds(counter)
    found = contexts.add(HISTORY, system="be brief", tools=[{"name": "bash"}])
    assert set(found) == {"user", "assistant", "calls", "results", "system", "tools"}
    assert found["results"] == counter.block(RESULT)
    assert found["system"] == counter.total([], system="be brief")


CONTEXTS = st.tuples(
    st.sampled_from([HISTORY[:2], HISTORY, SHORT, [], HISTORY[:1]]), st.sampled_from(SYSTEMS)
)


@given(st.lists(st.tuples(CONTEXTS, st.booleans()), min_size=1, max_size=8))
def test_the_counts_of_a_context_do_not_depend_on_earlier_contexts_and_when_they_are_read(turns):
    counter = TokenCounter()
    contexts = ContextKinds(counter)
    counts = []
    for (messages, system), is_read in turns:
        counts.append(contexts.add(messages, system))
        if is_read:
            assert counts[-1].get("user", 0) >= 0
    for ((messages, system), _), found in zip(turns, counts, strict=True):
        alone = ContextKinds(counter)
        assert dict(found) == dict(alone.add(messages, system))


def test_nothing_is_counted_until_the_numbers_are_used(counter):
    contexts = ContextKinds(counter)
    counts = [contexts.add(HISTORY[:length], system="be brief") for length in (1, 2, 3)]
    assert counter.encoded_chars == 0
    assert counts[2]["system"] > 0
    assert counter.encoded_chars > 0


def test_messages_that_were_counted_are_not_counted_again(counter):
    contexts = ContextKinds(counter)
    dict(contexts.add(HISTORY))
    sums = list(contexts._sums)
    dict(contexts.add([*HISTORY, {"role": "assistant", "content": "done"}]))
    assert all(one is other for one, other in zip(sums, contexts._sums, strict=False))


def test_contexts_are_due_if_many_wait(counter):
    contexts = ContextKinds(counter)
    for _ in range(MAX_UNCOUNTED):
        contexts.add(HISTORY, system="be brief")
    assert not contexts.is_due
    contexts.add(HISTORY, system="be brief")
    assert contexts.is_due


def test_contexts_are_due_while_one_keeps_a_head_that_is_not_used_any_more(counter):
    contexts = ContextKinds(counter)
    contexts.add(HISTORY, system="be brief")
    contexts.add(HISTORY, system="be kind")
    assert contexts.is_due


def test_the_counts_of_a_conversation_that_has_left_memory_are_empty_unless_they_were_read(counter):
    contexts = ContextKinds(counter)
    read = contexts.add(HISTORY[:1])
    assert read["user"] == counter.text("look")
    unread = contexts.add(HISTORY)
    del contexts
    gc.collect()
    assert dict(unread) == {}
    assert read["user"] == counter.text("look")


def test_a_message_that_cannot_be_counted_is_logged_and_the_others_are_counted(counter, caplog):
    contexts = ContextKinds(counter)
    bad: Any = {
        "role": "user",
        "content": [{"type": "text", "text": "of"}, {"type": "x", "y": object()}],
    }
    with caplog.at_level(logging.WARNING):
        found = contexts.add([*HISTORY, bad, {"role": "assistant", "content": "done"}])
        assert found["assistant"] == counter.text("I look.") + counter.text("done")
    assert "could not be counted by kind" in caplog.text


async def test_a_turn_of_a_gateway_knows_what_its_tokens_were_spent_on(tmp_path):
    async with MessagesServer(replies(1)) as api, serving(api.url, tmp_path) as gateway:
        await post(gateway, {"messages": conversation(1), "system": "be brief"})
    [turn] = gateway.gateway.record.turns
    assert set(turn.kinds) == {"system", "user", "calls", "placeholders"}
    assert abs(sum(turn.kinds.values()) - turn.sent_tokens) < 20
