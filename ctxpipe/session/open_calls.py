"""Tool calls without a result at the end of a history, and messages appended after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ..errors import InvalidHistory
from ..messages import (
    Message,
    ToolCall,
    ensure_messages,
    has_calls,
    has_results,
    pending_calls,
    tool_calls,
    tool_results,
)
from ..messages.identity import says_the_same
from ..settings import one_of
from ..stages.reading.unanswered import index_after_last_reply
from ..turn.repair_exchanges import interrupted_result

if TYPE_CHECKING:
    from collections.abc import Sequence


OpenCalls: TypeAlias = Literal["raise", "interrupted"]
"""Treatment of tool calls without a result at the end of a history.

With "raise" an InvalidHistory names them. With "interrupted" each gets an error result that
reports the interruption to the model.
"""

OPEN_CALLS = one_of("raise", "interrupted")

MAX_NAMED = 5
"""Largest number of calls that an error names."""


def with_appended(history: Sequence[Message], new_messages: Sequence[Message]) -> list[Message]:
    """Return *history* followed by *new_messages*, in order, with two exceptions.

    Results of open calls are placed directly after these calls. A reply that is the last one of the
    history already is not added again.
    """
    messages = list(history)
    for message in new_messages:
        if message["role"] == "assistant" and _repeats_last_reply(message, messages):
            continue
        place = len(messages)
        if has_results(message):
            open_ids = {call.id for call in unanswered_calls(messages)}
            if any(result.tool_use_id in open_ids for result in tool_results([message])):
                place = _end_of_results(messages)
        messages.insert(place, message)
    return messages


def _repeats_last_reply(message: Message, history: Sequence[Message]) -> bool:
    """Return True if *message* is the last reply of *history*.

    After further messages only a reply with calls is recognized, by the ids of the calls.
    """
    end = index_after_last_reply(history)
    if end == 0 or (end < len(history) and not has_calls(message)):
        return False
    return says_the_same(history[end - 1], message)


def unanswered_calls(history: Sequence[Message]) -> list[ToolCall]:
    """Return the calls of the last reply that have no result after it."""
    end = index_after_last_reply(history)
    result_ids = {result.tool_use_id for result in tool_results(history, end)}
    calls = tool_calls(history, max(0, end - 1), end)
    return [call for call in calls if call.id not in result_ids]


def _end_of_results(history: Sequence[Message]) -> int:
    """Return the index after the results that follow the last reply."""
    end = index_after_last_reply(history)
    while end < len(history) and has_results(history[end]):
        end += 1
    return end


def close_calls(history: list[Message], open_calls: OpenCalls) -> list[Message]:
    """Return the caller's *history* as it may be sent, without calls that have no result.

    If *open_calls* is "interrupted", these calls get an error result. Otherwise raises
    InvalidHistory, which names the calls at the end of the history.
    """
    if open_calls == "interrupted":
        ensure_messages(history)
        return answer_open_calls(history)
    newest = len(history) - 1 if history and isinstance(history, list) else 0
    ensure_messages(history, newest)
    _ensure_answered(pending_calls(history))
    return history


def close_own_calls(history: list[Message], open_calls: OpenCalls) -> list[Message]:
    """Do the same as `close_calls` for a history that the session keeps.

    In it, appended messages may follow the calls. Raises InvalidHistory also if it is empty.
    """
    if not history:
        raise InvalidHistory("there is nothing to send yet: append a message, or give messages=")
    calls = unanswered_calls(history)
    if open_calls == "raise":
        _ensure_answered(calls)
    if calls:
        end = _end_of_results(history)
        history = [*history[:end], _error_results(calls), *history[end:]]
    return close_calls(history, open_calls)


def _ensure_answered(calls: Sequence[ToolCall]) -> None:
    """Raise InvalidHistory, which names the *calls*, if there are any."""
    if not calls:
        return
    names = [f"{call.name or 'a tool'} ({call.id})" for call in calls[:MAX_NAMED]]
    other_count = len(calls) - MAX_NAMED
    if other_count > 0:
        names[-1] += f" and {other_count} others"
    raise InvalidHistory(
        f"the history ends with calls that have no result: {', '.join(names)}; "
        'append their results, or give open_calls="interrupted"'
    )


def _error_results(calls: Sequence[ToolCall]) -> Message:
    """Return a message with an error result for each of *calls*."""
    results: list[Any] = [interrupted_result(call.id) for call in calls]
    return cast("Message", {"role": "user", "content": results})


def answer_open_calls(history: list[Message]) -> list[Message]:
    """Return *history* with an error result for each call that was interrupted.

    Such calls are followed by a message of the assistant, or by no message. They are also in the
    middle: a caller who continues such a history does not have the results that were added here.
    """
    messages = list(history)
    for index in reversed(range(len(history))):
        message = history[index]
        if message["role"] != "assistant" or not has_calls(message):
            continue
        if index + 1 == len(history) or history[index + 1]["role"] == "assistant":
            results = _error_results(pending_calls(history[: index + 1]))
            messages.insert(index + 1, results)
    return messages if len(messages) > len(history) else history
