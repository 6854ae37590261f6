"""Find the end of a conversation that the model has not answered yet."""

from __future__ import annotations

from collections.abc import Sequence

from ...messages import Message, tool_results
from .groups import server_spans


def index_after_last_reply(messages: Sequence[Message]) -> int:
    """Return the index of the message after the last reply, 0 without a reply.

    The model has not seen the results from there on yet.
    """
    start = len(messages)
    while start and messages[start - 1]["role"] != "assistant":
        start -= 1
    return start


def open_tail(messages: Sequence[Message]) -> int:
    """Return the index of the first message that belongs to the unanswered end of *messages*.

    It is the length of *messages* if everything is answered. Unanswered results need their calls,
    and calls and results of server tools between them must not be split either.
    """
    start = index_after_last_reply(messages)
    if not any(tool_results(messages, start)):
        return start
    spans, _ = server_spans(messages)
    while True:
        while start and messages[start - 1]["role"] == "assistant":
            start -= 1
        overlapping = [span.start for span in spans if span.start < start < span.stop]
        if not overlapping:
            return start
        start = min(overlapping)
