"""The carried pieces as messages of a context."""

from __future__ import annotations

from typing import Any

from compactions import UPLOAD, gadget
from histories import assistant, histories, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.messages import Message, blocks, check, is_opaque
from ctxpipe.placeholders.summaries import CARRIED_LINE, SHORT_REPLY
from ctxpipe.stages.compact.arrangement import arrange, with_reply
from ctxpipe.stages.compact.pieces import attach
from ctxpipe.stages.reading.carry_candidates import (
    Candidate,
    CarryKind,
    blocks_to_carry,
    is_reference,
)

REFERENCE = {"type": "tool_reference", "tool_name": "create_event"}


def test_blocks_that_follow_each_other_become_one_message_in_their_order():
    history = [user("a", gadget(1), UPLOAD), assistant("b"), user(gadget(2)), assistant("c")]

    assert arrange(blocks_to_carry(history)) == [user(gadget(1), UPLOAD, gadget(2))]


def test_a_message_of_blocks_alone_is_the_very_same_object():
    message = user(gadget(1), UPLOAD)

    [arranged] = arrange(blocks_to_carry([user("a"), assistant("b"), message]))

    assert arranged is message


def test_blocks_in_a_message_of_results_follow_the_exchange_that_is_carried():
    results = user(tool_result("s", [REFERENCE]), gadget())
    history = [user("Go."), assistant(tool_use("s")), results]

    assert arrange(blocks_to_carry(history)) == [
        user(CARRIED_LINE),
        assistant(tool_use("s")),
        results,
    ]


def test_blocks_of_the_request_are_placed_around_its_words():
    message = user(gadget(1), "Go.", UPLOAD)
    found = attach(blocks_to_carry([assistant("a"), message]), 1)
    request = Candidate(CarryKind.REQUEST, 1, 1, [user("Go on.")], "request")

    arranged = arrange(sorted([*found, request], key=lambda one: one.key))

    assert {one.kind for one in found} == {CarryKind.ATTACHMENT}
    assert arranged == [user(gadget(1), "Go on.", UPLOAD)]


def test_a_reply_of_the_assistant_ends_a_piece_that_the_user_would_end():
    assert with_reply([user("a")]) == [user("a"), assistant(SHORT_REPLY)]
    assert with_reply([user("a"), assistant("b")]) == [user("a"), assistant("b")]
    assert with_reply([]) == []


BLOCKS = st.sampled_from([gadget(1), gadget(2), UPLOAD])


@st.composite
def histories_with_blocks(draw: st.DrawFn) -> list[Message]:
    """Histories with unknown blocks and references at the end of some of the user's messages."""
    history: list[Message] = []
    for message in draw(histories()):
        added = draw(st.lists(BLOCKS, max_size=2)) if message["role"] == "user" else []
        content = message["content"]
        held: list[Any] = [content] if isinstance(content, str) else list(content)
        history.append(user(*held, *added) if added else message)
    return history


@given(histories_with_blocks())
def test_carried_pieces_are_a_valid_conversation_with_every_block_in_order(
    history: list[Message],
):
    def held(messages: list[Message]) -> list[Any]:
        users = [message for message in messages if message["role"] == "user"]
        found = [block for message in users for block in blocks(message)]
        return [block for block in found if is_opaque(block) or is_reference(block)]

    arranged = with_reply(arrange(blocks_to_carry(history)))

    assert check([*arranged, user("go on")]) == []
    assert held(arranged) == held(history)
