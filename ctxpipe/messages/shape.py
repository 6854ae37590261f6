"""The check that a value is a list of messages at all. All other code relies on this form."""

from __future__ import annotations

from collections.abc import Iterable

from .._text import one_line
from .._threads.bulk import MAPPINGS
from ..errors import InvalidHistory
from .vocabulary import ROLES, SPOKEN, field, kind

SEE_DOCS = (
    "ctxpipe takes the messages of Anthropic's API; for OpenAI's use "
    "Adapter(pipeline).begin(ChatCodec(), messages) of ctxpipe.wire; docs: 'Messages of another "
    "API'"
)
_OTHER_KEYS = frozenset({"tool_calls", "function_call", "tool_call_id"})
_OTHER_BLOCKS = frozenset(
    {
        "input_text",
        "output_text",
        "input_image",
        "input_file",
        "image_url",
        "input_audio",
        "refusal",
        "toolUse",
        "toolResult",
    }
)
"""Kinds of the blocks of other APIs; for blocks without a kind, keys in them."""


def ensure_messages(messages: object, start: int = 0) -> None:
    """Raise InvalidHistory, with the index, unless *messages* is a list of messages.

    The messages before *start* are not checked.
    """
    if not isinstance(messages, list):
        name = type(messages).__name__
        hint = _history_hint(messages)
        raise InvalidHistory(f"a history is a list of messages, not {name}{hint}")
    for index in range(start, len(messages)):
        _ensure_message(index, messages[index])


def _history_hint(history: object) -> str:
    """Return advice on what to pass instead of *history*, which is no list; "" if there is none."""
    if history is None or isinstance(history, str | bytes):
        return '; give [{"role": "user", "content": "…"}]'
    if isinstance(history, MAPPINGS):
        if "messages" in history:
            return "; give its messages"
        return "; give a list of such messages"
    if hasattr(history, "messages") and hasattr(history, "reports"):
        return "; give the history, or result.messages"
    if isinstance(history, Iterable):
        return "; give list(…) of it"
    return ""


def _ensure_message(index: int, message: object) -> None:
    """Raise InvalidHistory, with *index*, if *message* has not the shape of a message.

    Its role, its content, and the shape of each block are checked, not the blocks' fields.
    """
    if not isinstance(message, MAPPINGS):
        name = type(message).__name__
        advice = SEE_DOCS
        if hasattr(message, "stop_reason"):
            advice = 'append {"role": "assistant", "content": reply.content}'
        raise InvalidHistory(
            f"message {index} is {name}, not a mapping with role and content; {advice}"
        )
    for key in ("role", "content"):
        if key not in message:
            raise InvalidHistory(f"message {index} has no {key}; {SEE_DOCS}")
    role = message["role"]
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidHistory(
            f"message {index} has the role {one_line(repr(role), 60)}, not one of {sorted(ROLES)};"
            f" {SEE_DOCS}"
        )
    if not _OTHER_KEYS.isdisjoint(message) and any(message.get(key) for key in _OTHER_KEYS):
        raise InvalidHistory(f"message {index} has the form of another API; {SEE_DOCS}")
    content = message["content"]
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list | tuple):
        name = type(content).__name__
        raise InvalidHistory(f"message {index} has {name} as content, not text or a list of blocks")
    for place, block in enumerate(content):
        fault = _shape_fault(block)
        if fault:
            raise InvalidHistory(f"block {place} of message {index} {fault}")


def _shape_fault(block: object) -> str:
    """Return why *block* is not a content block, as a phrase after its name; "" if it is one.

    Examples: "is str, not a mapping", "holds a block that is str, not a mapping".
    """
    unread = [block]
    while unread:
        part = unread.pop()
        holds = "" if part is block else "holds a block that "
        if not (isinstance(part, MAPPINGS) or hasattr(part, "model_dump")):
            return f"{holds}is {type(part).__name__}, not a mapping"
        name = kind(part)
        keys = part if not name and isinstance(part, dict) else (name,)
        if not _OTHER_BLOCKS.isdisjoint(keys):
            return f"{holds}has the form of another API; {SEE_DOCS}"
        text = field(part, name) if name in SPOKEN else None
        if not isinstance(text, str | None):
            return f"{holds}has {type(text).__name__} as {name}, not text"
        content = field(part, "content") if name == "tool_result" else None
        if isinstance(content, list | tuple):
            unread += content
        elif not isinstance(content, str | None):
            what = f"a tool_result with {type(content).__name__} as content"
            return f"{holds}is {what}, not text or a list of blocks"
    return ""
