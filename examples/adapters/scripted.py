"""The scripted model of the examples: it calls the tool ``read_log`` three times, then answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ctxpipe import Tool, answer
from ctxpipe.testing import Reply, tool_use
from ctxpipe.testing import answer_with as reply

LOG = "2026-11-23 09:00:00 INFO request served in 12 ms\n" * 200


def read_log(day: int) -> str:
    """The log of a day."""
    return f"day {day}\n{LOG}"


def script() -> list[Reply]:
    """Return the replies of the model, in order."""
    calls = [reply(tool_use("read_log", {"day": day}, id=f"call_{day}")) for day in (1, 2, 3)]
    return [*calls, "All three days are quiet."]


def as_function(tool: Tool) -> dict[str, Any]:
    """Return the definition of *tool* in the form of chat completions."""
    definition = tool.definition
    function = {
        "name": definition["name"],
        "description": definition.get("description", ""),
        "parameters": definition["input_schema"],
    }
    return {"type": "function", "function": function}


async def tool_message(call: Any, others: Sequence[Tool]) -> dict[str, Any]:
    """Return the message that answers *call* of a chat completion, by the log or by *others*.

    For an unknown name or wrong arguments it is an error that the model reads, and the loop
    continues.
    """

    async def handle(arguments: Mapping[str, Any]) -> str:
        return read_log(arguments["day"])

    schema: dict[str, Any] = {"type": "object", "properties": {"day": {"type": "integer"}}}
    tool = Tool({"name": "read_log", "input_schema": schema}, handle)
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        arguments = {}
    block: Any = {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}
    result: Any = await answer(block, [tool, *others])
    return {"role": "tool", "tool_call_id": call.id, "content": result.get("content", "")}
