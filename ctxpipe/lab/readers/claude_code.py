"""Reader for session files of Claude Code.

A session file has one JSON line for each block of a reply. It also has many lines that are not
part of the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ..._values import JsonObject
from ...messages import Message, as_blocks, kind
from ..records import FileRecord, RecordedMessage, Recording, as_message, message_with_details
from .claude_branches import find_taken_back, line_id
from .conversation import is_results

ROLES = ("user", "assistant")
OTHER_LINES = frozenset(
    {
        *("agent-color", "agent-name", "agent-setting", "ai-title", "api-request"),
        *("api-request-blob", "api-request-resumed", "api-request-shape"),
        *("artifact-autoreact-ledger", "artifact-comment-monitor", "atis-latch", "attachment"),
        *("attribution-snapshot", "bridge-session", "content-replacement", "continued-in"),
        *("cost-state", "custom-title", "data-flow-incomplete", "data-flow-records"),
        *("derived-from", "dev-mods", "ended-by-model", "file-history-delta"),
        *("file-history-snapshot", "fork-context-ref", "frame-link", "history-suppression"),
        *("host-row", "hybrid-organization", "isolation-latch", "last-prompt", "memory-mode"),
        *("mode", "observer-ref", "permission-mode", "pr-link", "progress", "queue-operation"),
        *("relocated", "repl-mode", "resume-head-vouch", "session-owner", "summary", "system"),
        *("tag", "tools-used", "worktree-state"),
        # ``claude -p --output-format stream-json`` prints these.
        *("rate_limit_event", "result", "stream_event", "tool_progress", "tool_use_summary"),
    }
)
"""Types of lines that are not messages, as Claude Code 2.1.332 and earlier versions write them."""


def is_session_line(value: JsonObject) -> bool:
    """Return True if *value* is a line of a session file that holds a message."""
    return value.get("type") in ROLES and isinstance(value.get("message"), Mapping)


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the main conversation, and the number of omitted records of each kind.

    The lines of one reply become one message, and the results of its tools become one message
    after it. Omitted are the conversations of subagents, the summaries of earlier compactions (the
    file still has the messages that they summarize), texts that only the user saw, turns that the
    user took back, and records that are not messages.

    A subagent has a file of its own, in which every line has ``isSidechain``. Its conversation is
    returned.
    """
    lines = [record.fields for record in records]
    is_subagent = all(line.get("isSidechain") for line in lines if is_session_line(line))
    own_lines = [line for line in lines if is_subagent or not line.get("isSidechain")]
    abandoned_lines = {id(own_lines[index]) for index in find_taken_back(own_lines)}
    entries: list[RecordedMessage] = []
    omitted_counts: Counter[str] = Counter()
    unknown_counts: Counter[str] = Counter()
    places_of_replies: dict[str, int] = {}  # index in entries by the reply's id
    line_ids: set[str] = set()
    for record in records:
        line = record.fields
        if not is_session_line(line) and kind(line) not in OTHER_LINES:
            unknown_counts[kind(line) or "no type"] += 1
            continue
        reason = _reason_to_omit(line, line_ids, is_subagent=is_subagent)
        if not reason and id(line) in abandoned_lines:
            reason = "taken back by the user"
        if reason:
            omitted_counts[reason] += 1
            continue
        line_ids.add(line_id(line))
        fields = line["message"]
        entry = message_with_details(
            as_message(fields, record.place), fields, line.get("timestamp")
        )
        reply_id = str(fields.get("id") or "")
        place = places_of_replies.get(reply_id) if reply_id else None
        if place is not None and all(is_results(later.message) for later in entries[place + 1 :]):
            entries[place] = _join(entries[place], entry)
        elif entries and entry.message["role"] == entries[-1].message["role"] == "user":
            entries[-1] = _join(entries[-1], entry)
        else:
            places_of_replies[reply_id] = len(entries)
            entries.append(entry)
    return Recording(
        entries,
        _request(own_lines),
        omitted_counts,
        unknown_counts,
        agent=_agent(own_lines) if is_subagent else "",
    )


def _request(lines: Iterable[JsonObject]) -> JsonObject:
    """Return the system prompt and the tools of the first request, if *lines* have them.

    Claude Code writes them since version 2.1.300.
    """
    for line in lines:
        shape = line.get("shape")
        if kind(line) == "api-request-shape" and isinstance(shape, Mapping):
            return {name: shape.get(name) for name in ("system", "tools")}
    return {}


def _agent(lines: Iterable[JsonObject]) -> str:
    """Return the type of the subagent whose conversation is in *lines*, or its id."""
    agent_id = ""
    for line in lines:
        source = str(line.get("querySource") or "")
        if source.startswith("agent:"):
            return source.rpartition(":")[2]
        agent_id = agent_id or str(line.get("agentId") or "")
    return agent_id or "subagent"


def _reason_to_omit(line: JsonObject, line_ids: set[str], *, is_subagent: bool) -> str:
    """Return the reason why *line* is not part of the conversation, or "" if it is.

    *line_ids* are the ids of the lines before it. *is_subagent* is True for the file of a subagent.
    """
    if not is_session_line(line):
        return "not a message"
    if line.get("isSidechain") and not is_subagent:
        return "of a subagent"
    if line.get("isCompactSummary"):
        return "summary of a compaction"
    is_synthetic = line["message"].get("model") == "<synthetic>"
    if is_synthetic or line.get("isVisibleInTranscriptOnly") or line.get("isApiErrorMessage"):
        return "shown to the user only"
    uuid = line_id(line)
    return "repeated" if uuid and uuid in line_ids else ""


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
