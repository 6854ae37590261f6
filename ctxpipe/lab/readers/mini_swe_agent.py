"""Reader for trajectories of mini-swe-agent, ``….traj.json``.

A trajectory has the messages of OpenAI's chat completions. An agent without tool calls writes its
command as text, and reads the output as text of the user. Such a pair is read as a call with its
result, as ``ctxpipe wrap --observation`` reads it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from ..._values import JsonDict, JsonObject
from ...messages import field
from ...wire import ChatCodec
from ...wire.openai_chat import INPUT
from ..records import FileRecord, Recording, second_conversation, valid_object
from .items import Items
from .openai_chat import ROLES, add_message

NAME = "mini-swe-agent"
OBSERVATIONS = ("<returncode>", "<exception>")
"""The texts that the output of a command begins with, if the trajectory has no details."""
COMMAND = "bash"
"""Name of the call that a command in a text is read as."""


def is_trajectory(value: JsonObject) -> bool:
    """Return True if *value* is a trajectory."""
    if not isinstance(value.get("messages"), list):
        return False
    return NAME in str(value.get("trajectory_format")) or bool(
        field(value.get("info"), "mini_version")
    )


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the conversation, and the number of omitted messages of each kind.

    Omitted is the message with which the agent ends. Raises InvalidHistory, naming the message, if
    one is not valid, and for a second trajectory.
    """
    if len(records) > 1:
        raise second_conversation(records[1])
    trajectory = records[0].fields
    items = Items(ChatCodec())
    omitted_counts: Counter[str] = Counter()
    unknown_counts: Counter[str] = Counter()
    call_id = ""
    messages = trajectory["messages"]
    for index, value in enumerate(messages):
        place = f"message {index}"
        message = valid_object(value, place, content=(str, list))
        details = message.get("extra")
        role = message.get("role")
        if role == "exit":
            omitted_counts["not a message"] += 1
            continue
        if role not in ROLES:
            unknown_counts[str(role or message.get("type") or "no role")] += 1
            continue
        following = messages[index + 1] if index + 1 < len(messages) else None
        if role == "assistant" and _is_command(message, following):
            call_id = f"command-{index}"
            add_message(items, _call(call_id, message), place, field(details, "timestamp"))
        elif call_id and _is_observation(message):
            result = {"role": "tool", "tool_call_id": call_id, "content": message["content"]}
            add_message(items, result, place, field(details, "timestamp"))
            call_id = ""
        else:
            plain = {name: part for name, part in message.items() if name != "extra"}
            add_message(items, plain, place, field(details, "timestamp"))
        if role == "assistant":
            response = field(details, "response")
            items.note_usage(items.items[-1], field(response, "usage"), field(response, "model"))
    model = field(field(field(trajectory.get("info"), "config"), "model"), "model_name")
    return items.recording({"model": model}, omitted_counts, unknown_counts, len(messages))


def _is_command(message: JsonObject, following: object) -> bool:
    """Return True if *message* is a text with a command, whose output is the *following* one."""
    if message.get("tool_calls") or not isinstance(message.get("content"), str):
        return False
    return _is_observation(following)


def _is_observation(message: object) -> bool:
    """Return True if *message* is the output of a command, as a text of the user."""
    if field(message, "role") != "user":
        return False
    details = field(message, "extra")
    if isinstance(details, Mapping) and "raw_output" in details:
        return True
    content = field(message, "content")
    return isinstance(content, str) and content.startswith(OBSERVATIONS)


def _call(call_id: str, message: JsonObject) -> JsonDict:
    """Return the text of *message* as a tool call."""
    arguments = json.dumps({INPUT: message["content"]})
    function = {"name": COMMAND, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
