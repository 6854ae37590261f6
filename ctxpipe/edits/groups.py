"""Which messages belong together: none of a group may go without the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..messages import Message, blocks, field, has_calls, kind, program
from ..messages.rules import closes_turn, server_result
from ..tokens.billed import server_summary


def groups(messages: Sequence[Message]) -> Iterator[range]:
    """The messages as groups that stay or go as one.

    A group is a call with its results, a server tool's call with its result and all between them,
    and a message with the system messages that follow it.
    """
    length = len(messages)
    # For each message, the end of the group that it makes with those after it.
    numbered = enumerate(messages, 1)
    ends = [min(number + has_calls(message), length) for number, message in numbered]
    for span in server_spans(messages)[0]:
        ends[span.start] = max(ends[span.start], span.stop)
    start = 0
    while start < length:
        stop = start + 1
        seen = start
        while seen < stop:
            stop = max(stop, ends[seen])
            seen += 1
        while stop < length and messages[stop]["role"] == "system":
            stop += 1
        yield range(start, stop)
        start = stop


def server_spans(messages: Sequence[Message]) -> tuple[list[range], int]:
    """For each call of a server tool, the messages from it up to its result.

    All calls that its program made are included. Where the server is still at work, in a paused
    turn or in code that is running, the messages go on to the end; the number is that of such
    calls. Words of the user end a turn, and with it what was open in it.
    """
    spans: list[range] = []
    waiting: dict[str, int] = {}
    made: dict[str, int] = {}
    for index, message in enumerate(messages):
        if made and closes_turn(message):
            waiting.clear()
            made.clear()
        if message["role"] != "assistant":
            continue
        for block in blocks(message):
            # Also of a kind that the API has got since: `rules.server_call` goes by those of today,
            # since it must refuse nothing new.
            if kind(block).endswith("_tool_use"):
                call = str(field(block, "id"))
                waiting[call] = index
                made[call] = index
            if not made:
                continue
            result = server_result(block)
            if result in waiting:
                spans.append(range(waiting.pop(result), index + 1))
            caller = program(block)
            if caller in made:
                spans.append(range(made[caller], index + 1))
    spans += [range(start, len(messages)) for start in waiting.values()]
    return spans, len(waiting)


def after_compaction(messages: Sequence[Message]) -> int:
    """The index after the last message with a summary of the server's.

    The server reads nothing that comes before it.
    """
    for index in reversed(range(len(messages))):
        if server_summary(messages[index]) is not None:
            return index + 1
    return 0


def has_compaction(message: Message) -> bool:
    """Whether *message* holds a summary of the server's, or the trace of one that failed."""
    return "compaction" in map(kind, blocks(message))
