"""Group messages that belong together: none of a group may be removed without the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...messages import Message, blocks, field, has_calls, kind, program
from ...messages.rules import closes_turn, server_result
from ...tokens.billed import server_summary


def groups(messages: Sequence[Message]) -> Iterator[range]:
    """Yield the groups of *messages* as index ranges, in order; together they cover all messages.

    A group is a call with its results, a server tool's call with its result and everything between
    them, and a message with the system messages that follow it.
    """
    length = len(messages)
    # ends[i]: the end of the group of message i, as far as that message alone decides it.
    ends: list[int] = []
    for index, message in enumerate(messages):
        end = index + 2 if has_calls(message) else index + 1
        ends.append(min(end, length))
    for span in server_spans(messages)[0]:
        ends[span.start] = max(ends[span.start], span.stop)
    start = 0
    while start < length:
        stop = start + 1
        index = start
        while index < stop:
            stop = max(stop, ends[index])
            index += 1
        while stop < length and messages[stop]["role"] == "system":
            stop += 1
        yield range(start, stop)
        start = stop


def server_spans(messages: Sequence[Message]) -> tuple[list[range], int]:
    """Return, for each call of a server tool, the messages from the call up to its result.

    A span also reaches to all calls that the call's program made. If the server is still at work,
    in a paused turn or in running code, the span reaches to the end of *messages*; the second value
    is the number of such calls. Words of the user end a turn, and with it all open calls.
    """
    spans: list[range] = []
    waiting: dict[str, int] = {}  # message of each call without a result
    calls: dict[str, int] = {}  # message of each call of the turn
    for index, message in enumerate(messages):
        if calls and closes_turn(message):
            waiting.clear()
            calls.clear()
        if message["role"] != "assistant":
            continue
        for block in blocks(message):
            # Any kind with this ending, also one that is newer than this code. The check of the
            # rules, `rules.server_call`, knows today's kinds only: it must not refuse a new one.
            if kind(block).endswith("_tool_use"):
                call_id = str(field(block, "id"))
                waiting[call_id] = index
                calls[call_id] = index
            if not calls:
                continue
            result_id = server_result(block)
            if result_id in waiting:
                spans.append(range(waiting.pop(result_id), index + 1))
            program_id = program(block)
            if program_id in calls:
                spans.append(range(calls[program_id], index + 1))
    spans += [range(start, len(messages)) for start in waiting.values()]
    return spans, len(waiting)


def after_compaction(messages: Sequence[Message]) -> int:
    """Return the index after the last message with a summary of the server; 0 if there is none.

    The server reads nothing before that summary.
    """
    for index in reversed(range(len(messages))):
        if server_summary(messages[index]) is not None:
            return index + 1
    return 0


def has_compaction(message: Message) -> bool:
    """Return True if *message* has a summary of the server, or the trace of one that failed."""
    return any(kind(block) == "compaction" for block in blocks(message))
