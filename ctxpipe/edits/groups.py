"""What belongs together: messages of which none may go without the others, or be parted from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..messages import blocks, has_calls, kind, program
from ..messages.rules import closes_turn, server_call, server_result
from ..tokens.billed import server_summary

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["after_compaction", "groups", "has_compaction", "server_spans"]


def groups(messages: Sequence[Message]) -> Iterator[range]:
    """The messages as groups that stay or go as one.

    Such are a call with its results, a server tool's call with its result and all between them, and
    a message with the system messages that follow it.
    """
    reach = [
        min(index + has_calls(message), len(messages) - 1) for index, message in enumerate(messages)
    ]
    for span in server_spans(messages):
        reach[span.start] = max(reach[span.start], span.stop - 1)
    place = 0
    while place < len(messages):
        stop, seen = place + 1, place
        while seen < stop:
            stop = max(stop, reach[seen] + 1)
            seen += 1
        while stop < len(messages) and messages[stop]["role"] == "system":
            stop += 1
        yield range(place, stop)
        place = stop


def server_spans(messages: Sequence[Message]) -> list[range]:
    """For each server tool, the messages from its call up to its result, with all calls of its
    program.

    Where the server is still at work, they go on to the end.
    """
    spans: list[range] = []
    waiting: dict[str, int] = {}
    made: dict[str, int] = {}
    for index, message in enumerate(messages):
        if closes_turn(message):
            waiting, made = {}, {}
        for block in blocks(message) if message["role"] == "assistant" else ():
            call, result, caller = server_call(block), server_result(block), program(block)
            if call is not None:
                waiting[call] = made[call] = index
            if result in waiting:
                spans.append(range(waiting.pop(result), index + 1))
            if caller in made:
                spans.append(range(made[caller], index + 1))
    return spans + [range(index, len(messages)) for index in waiting.values()]


def after_compaction(messages: Sequence[Message]) -> int:
    """The index after the last message with a summary of the server's, which reads nothing that
    comes before.
    """
    for index in range(len(messages) - 1, -1, -1):
        if server_summary(messages[index]) is not None:
            return index + 1
    return 0


def has_compaction(message: Message) -> bool:
    """Whether *message* holds a summary of the server's, or the trace of one that failed."""
    return any(kind(block) == "compaction" for block in blocks(message))
