"""Session files of Claude Code.

They hold one line for each block of a reply, and much beside the conversation itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

from .._values import JsonObject
from ..messages import Message, as_blocks, blocks, kind
from .records import Entry, Record, Recording, as_message, entry

ROLES = ("user", "assistant")


def is_session_line(value: JsonObject) -> bool:
    """Whether *value* is a line of a session file that holds a message."""
    return value.get("type") in ROLES and isinstance(value.get("message"), Mapping)


def read(records: Iterable[Record]) -> Recording:
    """The messages of the main conversation, and what was left out of it, by kind.

    The lines of one reply become one message, its tools' results one message after it. Left out are
    the conversations of subagents, summaries of earlier compactions (the file has what they
    summarize), what only the user saw, and records that are no messages.
    """
    found: list[Entry] = []
    dropped: Counter[str] = Counter()
    replies: dict[str, int] = {}  # by the reply's id
    seen: set[str] = set()
    for record in records:
        line = record.fields
        reason = _reason(line, seen)
        if reason:
            dropped[reason] += 1
            continue
        seen.add(_uuid(line))
        fields = line["message"]
        new = entry(as_message(fields, record.place), fields, line.get("timestamp"))
        reply = str(fields.get("id") or "")
        at = replies.get(reply) if reply else None
        if at is not None and all(_is_results(later.message) for later in found[at + 1 :]):
            found[at] = _join(found[at], new)
        elif found and new.message["role"] == found[-1].message["role"] == "user":
            found[-1] = _join(found[-1], new)
        else:
            replies[reply] = len(found)
            found.append(new)
    return Recording("Claude Code session", found, dropped=dropped)


def _reason(line: JsonObject, seen: set[str]) -> str:
    """The reason why *line* is no part of the conversation; "" when it is part of it."""
    if not is_session_line(line):
        return "not a message"
    if line.get("isSidechain"):
        return "of a subagent"
    if line.get("isCompactSummary"):
        return "summary of a compaction"
    is_synthetic = line["message"].get("model") == "<synthetic>"
    if is_synthetic or line.get("isVisibleInTranscriptOnly") or line.get("isApiErrorMessage"):
        return "shown to the user only"
    uuid = _uuid(line)
    return "repeated" if uuid and uuid in seen else ""


def _uuid(line: JsonObject) -> str:
    return str(line.get("uuid") or "")


def _join(first: Entry, second: Entry) -> Entry:
    """Both as one message, tool results in front; of a reply's usages the last one is complete."""
    content = [*as_blocks(first.message), *as_blocks(second.message)]
    content.sort(key=lambda block: kind(block) != "tool_result")
    message = cast("Message", {"role": first.message["role"], "content": content})
    return replace(
        first,
        message=message,
        usage=second.usage or first.usage,
        model=first.model or second.model,
    )


def _is_results(message: Message) -> bool:
    content = blocks(message)
    return bool(content) and all(kind(block) == "tool_result" for block in content)
