"""Reader for session files of Claude Code.

A session file has one JSON line for each block of a reply. It also has many lines that are not
part of the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

from .._values import JsonObject
from ..messages import Message, as_blocks, blocks, kind
from .claude_branches import find_taken_back
from .records import FileRecord, RecordedMessage, Recording, as_message, message_with_details

ROLES = ("user", "assistant")


def is_session_line(value: JsonObject) -> bool:
    """Return True if *value* is a line of a session file that holds a message."""
    return value.get("type") in ROLES and isinstance(value.get("message"), Mapping)


def read(records: Iterable[FileRecord]) -> Recording:
    """Return the main conversation, and the number of omitted records of each kind.

    The lines of one reply become one message, and the results of its tools become one message
    after it. Omitted are the conversations of subagents, the summaries of earlier compactions (the
    file still has the messages that they summarize), texts that only the user saw, turns that the
    user took back, and records that are not messages.
    """
    entries: list[RecordedMessage] = []
    omitted_counts: Counter[str] = Counter()
    places_of_replies: dict[str, int] = {}  # index in entries by the reply's id
    line_ids: set[str] = set()
    records = list(records)
    main_lines = [record.fields for record in records if not record.fields.get("isSidechain")]
    abandoned_lines = {id(main_lines[index]) for index in find_taken_back(main_lines)}
    for record in records:
        line = record.fields
        reason = _reason_to_omit(line, line_ids)
        if not reason and id(line) in abandoned_lines:
            reason = "taken back by the user"
        if reason:
            omitted_counts[reason] += 1
            continue
        line_ids.add(_uuid(line))
        fields = line["message"]
        entry = message_with_details(
            as_message(fields, record.place), fields, line.get("timestamp")
        )
        reply_id = str(fields.get("id") or "")
        place = places_of_replies.get(reply_id) if reply_id else None
        if place is not None and all(_is_results(later.message) for later in entries[place + 1 :]):
            entries[place] = _join(entries[place], entry)
        elif entries and entry.message["role"] == entries[-1].message["role"] == "user":
            entries[-1] = _join(entries[-1], entry)
        else:
            places_of_replies[reply_id] = len(entries)
            entries.append(entry)
    return Recording("Claude Code session", entries, omitted_counts=omitted_counts)


def _reason_to_omit(line: JsonObject, line_ids: set[str]) -> str:
    """Return the reason why *line* is not part of the conversation, or "" if it is.

    *line_ids* are the ids of the lines before it.
    """
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
    return "repeated" if uuid and uuid in line_ids else ""


def _uuid(line: JsonObject) -> str:
    return str(line.get("uuid") or "")


def _join(first: RecordedMessage, second: RecordedMessage) -> RecordedMessage:
    """Return both as one message, tool results first.

    Each line of a reply repeats its usage so far. The last one is complete, so it is used.
    """
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
    """Return True if *message* has blocks, and all of them are tool results."""
    content = blocks(message)
    return bool(content) and all(kind(block) == "tool_result" for block in content)
