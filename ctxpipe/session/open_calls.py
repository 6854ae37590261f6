"""Calls at the end of a history that have no result yet, and what is appended meanwhile."""

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
from ..turn.repair import interrupted_result

if TYPE_CHECKING:
    from collections.abc import Sequence


OpenCalls: TypeAlias = Literal["raise", "interrupted"]
"""Treatment of tool calls without a result at the end of a history.

With "raise" an InvalidHistory names them. With "interrupted" each gets an error result, which tells
the model that the call was interrupted.
"""

OPEN_CALLS = one_of("raise", "interrupted")

_MOST_NAMED = 5


def add_appended(history: Sequence[Message], appended: Sequence[Message]) -> list[Message]:
    """*history* and what was *appended* to it, in order.

    But results come right after the calls that wait for them, whatever was appended before, and a
    reply that is there already is not added again.
    """
    grown = list(history)
    for message in appended:
        place = len(grown)
        if message["role"] == "assistant" and _is_repeated(message, grown):
            continue
        if has_results(message):
            waiting = {call.id for call in unanswered_calls(grown)}
            if any(result.tool_use_id in waiting for result in tool_results([message])):
                place = _results_end(grown)
        grown.insert(place, message)
    return grown


def _is_repeated(message: Message, history: Sequence[Message]) -> bool:
    """Whether *message* is the newest reply of *history* once more; calls tell by their ids."""
    end = index_after_last_reply(history)
    if end == 0 or (end < len(history) and not has_calls(message)):
        return False
    return says_the_same(history[end - 1], message)


def unanswered_calls(history: Sequence[Message]) -> list[ToolCall]:
    """The calls of the newest reply that nothing after it has answered."""
    end = index_after_last_reply(history)
    answered = {result.tool_use_id for result in tool_results(history, end)}
    return [call for call in tool_calls(history, max(0, end - 1), end) if call.id not in answered]


def _results_end(history: Sequence[Message]) -> int:
    """Where the results end that follow the newest reply."""
    end = index_after_last_reply(history)
    while end < len(history) and has_results(history[end]):
        end += 1
    return end


def close_calls(history: list[Message], open_calls: OpenCalls) -> list[Message]:
    """*history* as it may be sent: with the calls at its end answered, or an error that names them.

    Raises InvalidHistory unless *open_calls* is "interrupted".
    """
    if open_calls == "interrupted":
        ensure_messages(history)
        return answer_open_calls(history)
    newest = len(history) - 1 if history and isinstance(history, list) else 0
    ensure_messages(history, newest)
    _ensure_answered(pending_calls(history))
    return history


def close_own_calls(history: list[Message], open_calls: OpenCalls) -> list[Message]:
    """As `close_calls`, where what was appended may follow the calls, and nothing is an error."""
    if not history:
        raise InvalidHistory("there is nothing to send yet: append a message, or give messages=")
    calls = unanswered_calls(history)
    if open_calls == "raise":
        _ensure_answered(calls)
    if calls:
        end = _results_end(history)
        history = [*history[:end], _answer_as_interrupted(calls), *history[end:]]
    return close_calls(history, open_calls)


def _ensure_answered(calls: Sequence[ToolCall]) -> None:
    if not calls:
        return
    names = [f"{call.name or 'a tool'} ({call.id})" for call in calls[:_MOST_NAMED]]
    others = len(calls) - _MOST_NAMED
    if others > 0:
        names[-1] += f" and {others} others"
    raise InvalidHistory(
        f"the history ends with calls that have no result: {', '.join(names)}; "
        'append their results, or give open_calls="interrupted"'
    )


def _answer_as_interrupted(calls: Sequence[ToolCall]) -> Message:
    results: list[Any] = [interrupted_result(call.id) for call in calls]
    return cast("Message", {"role": "user", "content": results})


def answer_open_calls(history: list[Message]) -> list[Message]:
    """*history*, with an error result for each call that was interrupted.

    Such calls are followed by the assistant or by nothing. They are not only at the end: the caller
    has continued such a history, and does not know of our results.
    """
    answered = list(history)
    for index in reversed(range(len(history))):
        message = history[index]
        if message["role"] != "assistant" or not has_calls(message):
            continue
        if index + 1 == len(history) or history[index + 1]["role"] == "assistant":
            answered.insert(index + 1, _answer_as_interrupted(pending_calls(history[: index + 1])))
    return answered if len(answered) > len(history) else history
