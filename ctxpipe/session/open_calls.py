"""Calls at the end of a history that have no result yet, as a killed process leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ..edits.repair import interrupted
from ..errors import InvalidHistory
from ..messages import has_calls, pending_calls
from ..settings import one_of

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["OPEN_CALLS", "OpenCalls", "answered", "ensure_answered"]

OpenCalls: TypeAlias = Literal["raise", "interrupted"]
"""What becomes of calls without a result: an error that names them, or results that say so."""

OPEN_CALLS = one_of("raise", "interrupted")

_MOST_NAMED = 5


def ensure_answered(history: list[Message]) -> None:
    """Raise InvalidHistory, naming the calls, when *history* ends with calls that have no result."""
    calls = pending_calls(history)
    if not calls:
        return
    named = ", ".join(f"{call.name or 'a tool'} ({call.id})" for call in calls[:_MOST_NAMED])
    others = f" and {len(calls) - _MOST_NAMED} others" if len(calls) > _MOST_NAMED else ""
    raise InvalidHistory(
        f"the history ends with calls that have no result: {named}{others}; append their results, or give "
        'open_calls="interrupted"'
    )


def answered(history: list[Message]) -> list[Message]:
    """*history*, with results that say so after calls that the assistant or nobody follows.

    Not only at its end: the caller has gone on with such a history, and does not know of our
    results.
    """
    open_ends = [
        index
        for index, message in enumerate(history)
        if message["role"] == "assistant"
        and has_calls(message)
        and (index + 1 == len(history) or history[index + 1]["role"] == "assistant")
    ]
    whole = list(history)
    for index in reversed(open_ends):
        results: list[Any] = [interrupted(call.id) for call in pending_calls(history[: index + 1])]
        whole.insert(index + 1, cast("Message", {"role": "user", "content": results}))
    return whole if open_ends else history
