"""The cases' operations, each mapped to the package in a line or two.

A case names an operation; the function of that name in `OPERATIONS` gets the case's input and options, and the hooks:
the counter, the scripted model, the clock and the failing writer that the case prescribes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ctxpipe.tokens import conservative, count_tokens, should_compact

Operation: TypeAlias = Callable[[dict[str, Any], Any], Awaitable[dict[str, Any]]]


async def call(op: str, args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    """The result of *op*; NotImplementedError for one that is not mapped."""
    operation = OPERATIONS.get(op)
    if operation is None:
        raise NotImplementedError(op)
    return await operation(args, hooks)


async def _count_tokens(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    return {"tokens": count_tokens(args["messages"], counter=hooks.count_text)}


async def _conservative(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    return {"tokens": conservative(args["tokens"])}


async def _should_compact(args: dict[str, Any], hooks: Any) -> dict[str, Any]:
    value = should_compact(args["messages"], counter=hooks.count_text, **args["options"])
    return {"value": value}


OPERATIONS: dict[str, Operation] = {
    "conservative": _conservative,
    "count_tokens": _count_tokens,
    "should_compact": _should_compact,
}
