"""Thinking blocks behind a rewritten message: found, stripped, or dropped by the API."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from histories import assistant, chat, conversation, histories, step, text, thinking, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import THINKING, Message, blocks, check, kind
from ctxpipe.messages.diff import Edit, apply_edits, diff
from ctxpipe.messages.thinking import (
    BINDING_BETA,
    Stale,
    drop_block,
    index_after_thinking,
    mark_stale,
    open_loop,
    shift_stale,
    strip_thinking,
)
from ctxpipe.messages.vocabulary import UNSIGNED
from ctxpipe.testing import MessagesServer, answer_with
from ctxpipe.testing import thinking as thought


def thoughts(messages: list[Message]) -> list[tuple[int, int]]:
    return [
        (index, place)
        for index, message in enumerate(messages)
        for place, block in enumerate(blocks(message))
        if kind(block) in THINKING
    ]


def stale_from(messages: list[Message], *place: int) -> Stale:
    """Return the stale thinking in *messages* after a change of the text at *place*."""
    stale: Stale = {}
    mark_stale(stale, messages, (place[0], place[1]))
    return stale


def talk_of(turns: int) -> list[Message]:
    """Return a history of requests, each answered with a thought and a word."""
    answers = [assistant(thinking(f"t{i}"), f"a{i}") for i in range(turns)]
    return [message for i in range(turns) for message in (user(f"u{i}"), answers[i])]


# Marking ------------------------------------------------------------------------------------------


def test_all_thinking_after_a_changed_place_is_stale():
    history = talk_of(3)

    assert stale_from(history, 2, 0) == {3: 0, 5: 0}


def test_thinking_at_the_changed_block_and_after_it_is_stale():
    history = [user("go"), assistant(thinking("a"), "b", thinking("c"), "d")]

    assert stale_from(history, 1, 1) == {1: 1}
    assert stale_from(history, 1, 2) == {1: 2}


def test_a_message_without_thinking_after_the_place_is_not_noted():
    history = [user("go"), assistant(thinking(), "yes"), user("and?"), assistant("no")]

    assert stale_from(history, 1, 1) == {}
    assert stale_from(history, 2, 0) == {}
    assert stale_from(history, 4, 0) == {}


def test_redacted_thinking_goes_stale_too():
    history = [user("go"), assistant({"type": "redacted_thinking", "data": "x"}, "yes")]

    assert stale_from(history, 0, 0) == {1: 0}


def test_thinking_without_a_signature_is_never_stale():
    unsigned = {**thinking("said"), "signature": UNSIGNED}
    history = [
        user("go"),
        *step("t1", say="look"),
        assistant(unsigned, "done"),
        user("more"),
        assistant(unsigned, thinking("signed"), "done"),
        user("thanks"),
    ]

    assert stale_from(history, 0, 0) == {5: 0}
    assert thoughts(strip_thinking(history, stale_from(history, 0, 0))) == [(3, 0), (5, 0)]
    assert index_after_thinking(history[:5]) == 0


def test_a_second_change_marks_from_the_earlier_place_on():
    history = [user("go"), assistant(thinking("a"), "b", thinking("c"), "d")]
    stale = stale_from(history, 1, 1)

    mark_stale(stale, history, (1, 2))
    assert stale == {1: 1}

    mark_stale(stale, history, (0, 0))
    assert stale == {1: 0}


# Shifting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "shifted"),
    [
        pytest.param(Edit(6, 8, []), {1: 0, 3: 2, 5: 0}, id="after it"),
        pytest.param(Edit(4, 4, chat(2)), {1: 0, 3: 2, 7: 0}, id="something came before it"),
        pytest.param(Edit(2, 3, []), {1: 0, 2: 2, 4: 0}, id="something before it went"),
        pytest.param(Edit(0, 4, chat(2)), {3: 0}, id="a summary took its place"),
        pytest.param(Edit(3, 4, []), {1: 0, 4: 0}, id="it went itself"),
        pytest.param(Edit(3, 4, [assistant("a")]), {1: 0, 3: 2, 5: 0}, id="it was rewritten"),
        pytest.param(Edit(2, 4, chat(2)), {1: 0, 5: 0}, id="two were put for two"),
    ],
)
def test_stale_thinking_goes_with_its_message(edit: Edit, shifted: Stale):
    stale = {1: 0, 3: 2, 5: 0}

    assert shift_stale(stale, edit) == shifted
    assert stale == {1: 0, 3: 2, 5: 0}


def test_where_nothing_is_stale_there_is_nothing_to_shift():
    assert shift_stale({}, Edit(0, 1, chat(3))) == {}


@given(st.data())
def test_after_any_edits_the_same_messages_are_stale(data: st.DataObject):
    history = talk_of(6)
    stale = stale_from(history, data.draw(st.integers(0, 11)), 0)
    marked = [id(history[index]) for index in stale]
    start = data.draw(st.integers(0, 12))
    stop = data.draw(st.integers(start, 12))
    inserted = chat(data.draw(st.integers(0, 3)))
    context = [*history[:start], *inserted, *history[stop:]]
    edits = diff(history, context)

    for edit in edits:
        stale = shift_stale(stale, edit)

    assert apply_edits(history, edits) == context
    left = [id(context[index]) for index in stale if context[index] not in inserted]
    assert left == [name for name in marked if name in {id(message) for message in context}]


# Finding ------------------------------------------------------------------------------------------


def test_a_loop_is_open_from_the_users_last_words_as_long_as_results_or_calls_are_last():
    first = [user("go"), *step("t1"), assistant("done")]
    history = [*first, user("more"), *step("t2"), *step("t3")]

    assert open_loop(history) == 5
    assert open_loop(history[:-1]) == 5
    assert open_loop([*history, assistant("done")]) == len(history) + 1
    assert open_loop([*history, assistant("done"), user("thanks")]) == len(history) + 2
    assert open_loop([]) == 0


# Stripping ----------------------------------------------------------------------------------------


def test_exactly_the_thinking_from_the_place_on_is_stripped():
    history = conversation(
        user("go"),
        step("t1", think="first", say="look"),
        assistant(thinking("second"), "done"),
        user("more"),
        assistant(thinking("third"), {"type": "redacted_thinking", "data": "x"}, "sure"),
        user("thanks"),
    )

    stripped = strip_thinking(history, stale_from(history, 2, 0))

    assert stripped == conversation(
        user("go"),
        step("t1", think="first", say="look"),
        assistant(text("done")),
        user("more"),
        assistant(text("sure")),
        user("thanks"),
    )
    assert all(new is old for new, old in zip(stripped, history, strict=True) if new == old)


def test_thinking_before_the_changed_block_of_the_same_message_stays():
    answer_in_two = assistant(thinking("kept"), "a", thinking("gone"), "b")
    history = [user("go"), answer_in_two, user("next")]

    assert thoughts(strip_thinking(history, {1: 1})) == [(1, 0)]


def test_the_thinking_of_an_open_tool_loop_is_never_stripped():
    done = [user("go"), assistant(thinking(), "done"), user("more")]
    history = [*done, *step("t1", think="a"), *step("t2", think="b")]

    assert thoughts(strip_thinking(history, stale_from(history, 0, 0))) == [(3, 0), (5, 0)]


def test_nothing_to_strip_is_the_very_same_list():
    history = conversation(user("go"), assistant(thinking(), "done"), user("more"))

    assert strip_thinking(history, {}) is history
    assert strip_thinking(history, {1: 1}) is history


def test_only_what_is_stale_is_stripped_even_before_thinking_that_is_not():
    history = [*talk_of(3), user("thanks")]

    assert thoughts(strip_thinking(history, {1: 0})) == [(3, 0), (5, 0)]


def test_a_message_of_nothing_but_thinking_is_not_emptied():
    history = conversation(user("go"), assistant(thinking()), user("more"))

    assert strip_thinking(history, {1: 0}) is history


@given(histories(), st.data())
def test_stripping_leaves_a_valid_history_without_thinking_behind_the_place(
    history: list[Message], data: st.DataObject
):
    place = (data.draw(st.integers(0, len(history))), data.draw(st.integers(0, 3)))
    before = copy.deepcopy(history)
    stale = stale_from(history, *place)

    stripped = strip_thinking(history, stale)

    assert history == before
    assert check(stripped) == []
    loop = open_loop(stripped)
    assert all(found < place or found[0] >= loop for found in thoughts(stripped))
    assert stripped[loop:] == history[loop:]
    kinds = [kind(b) for m in stripped for b in blocks(m) if kind(b) not in THINKING]
    assert kinds == [kind(b) for m in history for b in blocks(m) if kind(b) not in THINKING]
    assert strip_thinking(stripped, stale) is stripped


# Having it dropped --------------------------------------------------------------------------------

CONTROL = {"prefix_mismatch_behavior": "drop_block"}


def test_without_any_configuration_the_control_names_adaptive_thinking():
    assert drop_block() == {
        "extra_body": {"thinking": {"type": "adaptive", "block_binding": CONTROL}},
        "extra_headers": {"anthropic-beta": BINDING_BETA},
    }


def test_the_callers_own_configuration_is_carried_on():
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


def test_betas_of_the_beta_method_stay_betas():
    options = drop_block({"betas": ["a-2025"]})

    assert options["betas"] == ["a-2025", BINDING_BETA]
    assert "extra_headers" not in options


def test_asking_twice_asks_for_nothing_more():
    once = drop_block({"extra_headers": {"anthropic-beta": "a-2025"}})

    assert drop_block(once) == once


@pytest.mark.parametrize("kind", ["disabled", "between_tools"])
def test_thinking_that_cannot_carry_the_control_gets_none(kind):
    assert drop_block({"thinking": {"type": kind}}) == {}


@asynccontextmanager
async def talk() -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    """A model that thinks in its first answer, and a client to ask it."""
    async with (
        MessagesServer([answer_with(thought("hm"), "yes"), "sure"], counter=len) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0) as client,
    ):
        yield server, client


async def rewritten_conversation(client: anthropic.AsyncAnthropic) -> list[Message]:
    """A conversation whose first request is changed after the model has thought about it."""
    history: list[Message] = [user("the first request")]
    reply = await client.messages.create(model="m", max_tokens=100, messages=history)
    return [user("another request"), {"role": "assistant", "content": reply.content}, user("go on")]


async def test_the_api_refuses_thinking_behind_a_rewritten_message():
    async with talk() as (_, client):
        history = await rewritten_conversation(client)

        with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
            await client.messages.create(model="m", max_tokens=100, messages=history)


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive"}},
    ],
)
async def test_with_the_control_the_plain_method_goes_through(own: dict[str, Any]):
    async with talk() as (server, client):
        history = await rewritten_conversation(client)

        options = {**own, **drop_block(own)}
        await client.messages.create(model="m", max_tokens=100, messages=history, **options)

        assert server.requests[-1].dropped == ("messages.1.content.0",)
        assert server.requests[-1].body["thinking"] == {
            **own.get("thinking", {"type": "adaptive"}),
            "block_binding": CONTROL,
        }


async def test_with_the_control_the_beta_method_goes_through_with_its_own_betas():
    async with talk() as (server, client):
        history: Any = await rewritten_conversation(client)
        own: dict[str, Any] = {"betas": ["a-2025"], "thinking": {"type": "adaptive"}}

        options = {**own, **drop_block(own)}
        await client.beta.messages.create(model="m", max_tokens=100, messages=history, **options)

        assert server.requests[-1].headers["anthropic-beta"] == f"a-2025,{BINDING_BETA}"
        assert server.requests[-1].dropped == ("messages.1.content.0",)


async def test_stripped_thinking_needs_no_control():
    async with talk() as (server, client):
        history = await rewritten_conversation(client)
        history = strip_thinking(history, stale_from(history, 0, 0))

        await client.messages.create(model="m", max_tokens=100, messages=history)

        assert server.requests[-1].problems == ()
