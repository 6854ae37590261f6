"""Thinking blocks behind a rewritten message: found, stripped, or dropped by the API."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from histories import assistant, chat, conversation, histories, step, text, thinking, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.edits.thinking import BINDING_BETA, changed_place, drop_block, follows, open_loop, strip
from ctxpipe.messages import THINKING, Message, blocks, check, kind
from ctxpipe.testing import MessagesServer, answer
from ctxpipe.testing import thinking as thought


def thoughts(messages: list[Message]) -> list[tuple[int, int]]:
    return [
        (index, place)
        for index, message in enumerate(messages)
        for place, block in enumerate(blocks(message))
        if kind(block) in THINKING
    ]


# Where a context begins to differ -----------------------------------------------------------------------------


def test_a_context_that_is_the_history_has_no_changed_place() -> None:
    history = conversation(user("go"), step("t1"), assistant("done"))

    assert changed_place(history, history) is None
    assert changed_place(history, copy.deepcopy(history)) is None


def test_the_changed_place_is_the_first_block_that_differs() -> None:
    before = conversation(user("go"), assistant(thinking(), "look", tool_use("t1")), user(tool_result("t1", "long")))
    after = conversation(user("go"), assistant(thinking(), "look", tool_use("t1")), user(tool_result("t1", "short")))
    without_call = conversation(user("go"), assistant(thinking(), "look"), user("next"))

    assert changed_place(before, after) == (2, 0)
    assert changed_place(before, without_call) == (1, 2)


def test_bare_text_is_the_same_as_its_one_block() -> None:
    assert changed_place([user("go")], [user(text("go"))]) is None
    assert changed_place([user("go")], [user("go", "on")]) == (0, 1)


def test_what_went_from_the_end_changes_nothing_before_it_and_what_was_added_does() -> None:
    history = chat(6)

    assert changed_place(history, history[:4]) is None
    assert changed_place(history[:4], history) == (4, 0)


def test_another_role_at_the_same_place_is_a_change_of_the_whole_message() -> None:
    assert changed_place(chat(5), [chat(5)[0], *chat(5)[2:]]) == (1, 0)


# Finding ------------------------------------------------------------------------------------------------------


def test_thinking_follows_a_place_only_at_it_or_behind_it() -> None:
    history = conversation(user("go"), assistant(thinking(), "yes"), user("and?"), assistant("no"))

    assert follows(history, (0, 0))
    assert follows(history, (1, 0))
    assert not follows(history, (1, 1))
    assert not follows(history, (2, 0))


def test_a_loop_is_open_from_the_users_last_words_as_long_as_results_or_calls_are_last() -> None:
    history = conversation(user("go"), step("t1"), assistant("done"), user("more"), step("t2"), step("t3"))

    assert open_loop(history) == 5
    assert open_loop(history[:-1]) == 5
    assert open_loop([*history, assistant("done")]) == len(history) + 1
    assert open_loop([*history, assistant("done"), user("thanks")]) == len(history) + 2
    assert open_loop([]) == 0


# Stripping ----------------------------------------------------------------------------------------------------


def test_exactly_the_thinking_from_the_place_on_is_stripped() -> None:
    history = conversation(
        user("go"),
        step("t1", think="first", say="look"),
        assistant(thinking("second"), "done"),
        user("more"),
        assistant(thinking("third"), {"type": "redacted_thinking", "data": "x"}, "sure"),
        user("thanks"),
    )

    stripped = strip(history, (2, 0))

    assert stripped == conversation(
        user("go"),
        step("t1", think="first", say="look"),
        assistant(text("done")),
        user("more"),
        assistant(text("sure")),
        user("thanks"),
    )
    assert all(new is old for new, old in zip(stripped, history, strict=True) if new == old)


def test_thinking_before_the_changed_block_of_the_same_message_stays() -> None:
    history = conversation(user("go"), assistant(thinking("kept"), "a", thinking("gone"), "b"), user("next"))

    assert thoughts(strip(history, (1, 1))) == [(1, 0)]


def test_the_thinking_of_an_open_tool_loop_is_never_stripped() -> None:
    history = conversation(
        user("go"), assistant(thinking(), "done"), user("more"), step("t1", think="a"), step("t2", think="b")
    )

    assert thoughts(strip(history, (0, 0))) == [(3, 0), (5, 0)]


def test_nothing_to_strip_is_the_very_same_list() -> None:
    history = conversation(user("go"), assistant(thinking(), "done"), user("more"))

    assert strip(history, (2, 0)) is history
    assert strip(history[:1], (0, 0)) == history[:1]


@given(histories(), st.data())
def test_stripping_leaves_a_valid_history_without_thinking_behind_the_place(
    history: list[Message], data: st.DataObject
) -> None:
    place = (data.draw(st.integers(0, len(history))), data.draw(st.integers(0, 3)))
    before = copy.deepcopy(history)

    stripped = strip(history, place)

    assert history == before
    assert check(stripped) == []
    loop = open_loop(stripped)
    assert all(found < place or found[0] >= loop for found in thoughts(stripped))
    assert stripped[loop:] == history[loop:]
    assert [kind(b) for m in stripped for b in blocks(m) if kind(b) not in THINKING] == [
        kind(b) for m in history for b in blocks(m) if kind(b) not in THINKING
    ]
    assert strip(stripped, place) is stripped


# Having it dropped --------------------------------------------------------------------------------------------

CONTROL = {"prefix_mismatch_behavior": "drop_block"}


def test_without_any_configuration_the_control_names_adaptive_thinking() -> None:
    assert drop_block() == {
        "extra_body": {"thinking": {"type": "adaptive", "block_binding": CONTROL}},
        "extra_headers": {"anthropic-beta": BINDING_BETA},
    }


def test_the_callers_own_configuration_is_carried_on() -> None:
    options = drop_block(
        {
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "extra_body": {"service": "x"},
            "extra_headers": {"Anthropic-Beta": "a-2025, b-2026", "x-trace": "1"},
        }
    )

    assert options == {
        "extra_body": {
            "service": "x",
            "thinking": {"type": "enabled", "budget_tokens": 2048, "block_binding": CONTROL},
        },
        "extra_headers": {"x-trace": "1", "anthropic-beta": f"a-2025,b-2026,{BINDING_BETA}"},
    }


def test_betas_of_the_beta_method_stay_betas() -> None:
    options = drop_block({"betas": ["a-2025"]})

    assert options["betas"] == ["a-2025", BINDING_BETA]
    assert "extra_headers" not in options


def test_asking_twice_asks_for_nothing_more() -> None:
    once = drop_block({"extra_headers": {"anthropic-beta": "a-2025"}})

    assert drop_block(once) == once


@pytest.mark.parametrize("kind", ["disabled", "between_tools"])
def test_thinking_that_cannot_carry_the_control_gets_none(kind: str) -> None:
    assert drop_block({"thinking": {"type": kind}}) == {}


@asynccontextmanager
async def talk() -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    """A model that thinks in its first answer, and a client to ask it."""
    async with (
        MessagesServer([answer(thought("hm"), "yes"), "sure"], counter=len) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0) as client,
    ):
        yield server, client


async def rewritten_conversation(client: anthropic.AsyncAnthropic) -> list[Message]:
    """A conversation whose first request is changed after the model has thought about it."""
    history: list[Message] = [user("the first request")]
    reply = await client.messages.create(model="m", max_tokens=100, messages=history)
    return [user("another request"), {"role": "assistant", "content": reply.content}, user("go on")]


async def test_the_api_refuses_thinking_behind_a_rewritten_message() -> None:
    async with talk() as (_, client):
        history = await rewritten_conversation(client)

        with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
            await client.messages.create(model="m", max_tokens=100, messages=history)


@pytest.mark.parametrize(
    "own", [{}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "adaptive"}}]
)
async def test_with_the_control_the_plain_method_goes_through(own: dict[str, Any]) -> None:
    async with talk() as (server, client):
        history = await rewritten_conversation(client)

        await client.messages.create(model="m", max_tokens=100, messages=history, **own, **drop_block(own))

        assert server.requests[-1].dropped == ("messages.1.content.0",)
        assert server.requests[-1].body["thinking"] == {
            **own.get("thinking", {"type": "adaptive"}),
            "block_binding": CONTROL,
        }


async def test_with_the_control_the_beta_method_goes_through_with_its_own_betas() -> None:
    async with talk() as (server, client):
        history: Any = await rewritten_conversation(client)
        own: dict[str, Any] = {"betas": ["a-2025"], "thinking": {"type": "adaptive"}}

        await client.beta.messages.create(model="m", max_tokens=100, messages=history, **{**own, **drop_block(own)})

        assert server.requests[-1].headers["anthropic-beta"] == f"a-2025,{BINDING_BETA}"
        assert server.requests[-1].dropped == ("messages.1.content.0",)


async def test_stripped_thinking_needs_no_control() -> None:
    async with talk() as (server, client):
        history = strip(await rewritten_conversation(client), (0, 0))

        await client.messages.create(model="m", max_tokens=100, messages=history)

        assert server.requests[-1].problems == ()
