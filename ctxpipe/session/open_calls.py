"""Calls at the end of a history that have no result yet, as a killed process leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ..edits.repair import interrupted_result
from ..errors import InvalidHistory
from ..messages import ensure_messages, has_calls, pending_calls
from ..settings import one_of

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["OPEN_CALLS", "OpenCalls", "close_calls"]

OpenCalls: TypeAlias = Literal["raise", "interrupted"]
"""What becomes of calls without a result: an error that names them, or results that say so."""

OPEN_CALLS = one_of("raise", "interrupted")

_MOST_NAMED = 5


def close_calls(history: list[Message], open_calls: OpenCalls) -> list[Message]:
    """*history* as it may be sent: with the calls at its end answered, or an error that names them.

    Raises InvalidHistory unless *open_calls* is "interrupted".
    """
    if open_calls == "interrupted":
        ensure_messages(history)
        return answer_open_calls(history)
    newest = len(history) - 1 if isinstance(history, list) else 0
    ensure_messages(history, newest)
    calls = pending_calls(history)
    if not calls:
        return history
    names = [f"{call.name or 'a tool'} ({call.id})" for call in calls[:_MOST_NAMED]]
    others = len(calls) - _MOST_NAMED
    if others > 0:
        names[-1] += f" and {others} others"
    raise InvalidHistory(
        f"the history ends with calls that have no result: {', '.join(names)}; "
        'append their results, or give open_calls="interrupted"'
    )


def answer_open_calls(history: list[Message]) -> list[Message]:
    """*history*, with an error result for each call that was interrupted.

    Such calls are followed by the assistant or by nothing. They are not only at the end: the caller
    has continued such a history, and does not know of our results.
    """
    answered = list(history)
    for index in reversed(range(len(history))):
        if _is_open(history, index):
            calls = pending_calls(history[: index + 1])
            results: list[Any] = [interrupted_result(call.id) for call in calls]
            answered.insert(index + 1, cast("Message", {"role": "user", "content": results}))
    return answered if len(answered) > len(history) else history


def _is_open(history: list[Message], index: int) -> bool:
    message = history[index]
    if message["role"] != "assistant" or not has_calls(message):
        return False
    return index + 1 == len(history) or history[index + 1]["role"] == "assistant"
