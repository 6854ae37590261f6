"""Make valid messages of the pieces that a compaction carries over.

A piece is a `Candidate`: whole messages, or one block of a message. In a context they follow each
other without the messages that were between them. So blocks of one message are put together again,
and a short fixed line is added where two messages of the same role would meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from ...messages import Message, as_blocks, blocks
from ...placeholders.summaries import CARRIED_LINE, SHORT_REPLY
from ..reading.carry_candidates import (
    GOVERNING_KINDS,
    TEXT_KINDS,
    Candidate,
    CarryKind,
    with_only,
)


def arrange(candidates: Iterable[Candidate]) -> list[Message]:
    """Return the messages of *candidates*, in order, as a valid piece that begins with the user.

    Blocks and words that follow each other, and the request, become one message; if the blocks are
    a whole message, it is the very same object. Between two messages of the same role, a short
    reply of the assistant, or a line of the user, is added.
    """
    message_groups: list[list[Message]] = []  # those of a list become one message
    is_open = False  # True if blocks and words may be added to the last message
    last_role = "assistant"
    for pieces in _by_origin(candidates):
        messages = _messages_of(pieces)
        if is_open and _can_join(pieces[0]) and messages[0]["role"] == last_role:
            message_groups[-1] += messages
            continue
        for message in messages:
            role = message["role"]
            if role == last_role:
                message_groups.append([_user_line() if role == "assistant" else _assistant_reply()])
            message_groups.append([message])
            last_role = role
        is_open = last_role == "user" and _can_be_joined(pieces[0])
    return [_as_one(messages) for messages in message_groups]


def _can_join(piece: Candidate) -> bool:
    """Return True if *piece* may be added to the user's message before it."""
    return _is_text(piece) or piece.origin is not None or piece.kind == CarryKind.REQUEST


def _can_be_joined(piece: Candidate) -> bool:
    """Return True if other pieces may be added to the user's message that *piece* ends with.

    A pinned message stays as it is. So does a call or a note that still applies.
    """
    if piece.kind == CarryKind.PIN:
        return False
    return piece.kind not in GOVERNING_KINDS or _is_text(piece)


def _is_text(piece: Candidate) -> bool:
    """Return True if *piece* still applies and is a text: words, a skill, or a plan.

    A note about a call is not: in a message with other texts it would pass for the user's words.
    """
    return piece.kind in TEXT_KINDS and len(piece.messages) == 1


def _by_origin(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return the candidates in groups: neighboring blocks of one message are one group."""
    groups: list[list[Candidate]] = []
    for candidate in candidates:
        origin = candidate.origin
        if groups and origin is not None and groups[-1][0].origin is origin:
            groups[-1].append(candidate)
        else:
            groups.append([candidate])
    return groups


def _messages_of(pieces: Sequence[Candidate]) -> Sequence[Message]:
    """Return the messages of *pieces*, one group of `_by_origin`.

    Blocks of one message become one message that has only them.
    """
    origin = pieces[0].origin
    if origin is None:
        return pieces[0].messages
    content = [block for piece in pieces for block in blocks(piece.messages[0])]
    return [with_only(origin, content)]


def _as_one(messages: Sequence[Message]) -> Message:
    """Return one message with the blocks of all *messages*; the same object if it is only one."""
    if len(messages) == 1:
        return messages[0]
    content = [block for message in messages for block in as_blocks(message)]
    return cast("Message", {"role": messages[0]["role"], "content": content})


def with_frame(candidate: Candidate) -> list[Message]:
    """Return the messages of *candidate* with the lines that may be needed before and after it.

    Their tokens are an upper limit of what the piece takes in a context.
    """
    messages = list(candidate.messages)
    if _is_text(candidate):
        return messages
    if candidate.kind in (CarryKind.LEADING, CarryKind.SYSTEM, CarryKind.REQUEST):
        return messages
    if messages[-1]["role"] == "user":
        messages.append(_assistant_reply())
    if messages[0]["role"] == "assistant":
        messages.insert(0, _user_line())
    return messages


def with_reply(messages: Sequence[Message]) -> list[Message]:
    """Return *messages* with a short fixed reply at the end, if the last one is the user's."""
    if messages and messages[-1]["role"] == "user":
        return [*messages, _assistant_reply()]
    return list(messages)


def _user_line() -> Message:
    return {"role": "user", "content": CARRIED_LINE}


def _assistant_reply() -> Message:
    return {"role": "assistant", "content": SHORT_REPLY}
