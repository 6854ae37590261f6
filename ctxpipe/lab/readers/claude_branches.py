"""Branches in a session file of Claude Code: which of its lines belong to the conversation.

Each line names the line before it (``parentUuid``). If the user rewinds, edits a prompt or repeats
a request, the file continues with a line whose parent is an earlier one. The lines of the abandoned
branch stay in the file, and nothing marks them:

    u1 ── a2 ─┬─ u3 ── a4          taken back
              └─ u5 ── a6          the conversation: u1 a2 u5 a6

A reply with several tool calls looks like a branch, too: it has a line for each call, and each
result follows the line of its own call. So all lines of a reply belong together, and results belong
to their calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from ..._values import JsonObject
from ...messages import field, kind

PARENT = "parentUuid"
LOGICAL_PARENT = "logicalParentUuid"
"""The line before a compaction; its ``parentUuid`` is null."""


def find_taken_back(lines: Sequence[JsonObject]) -> set[int]:
    """Return the indices of the *lines* that the user took back: those of abandoned branches.

    Only lines with an id of their own can be on a branch.
    """
    if not any(line.get(PARENT) for line in lines):
        return set()  # no line has a parent, so the file has no branches
    places: dict[str, int] = {}
    for index, line in enumerate(lines):
        if line_id(line):
            places.setdefault(line_id(line), index)
    if not places:
        return set()
    branch = _branch(lines, places)
    reply_ids = {_reply_id(lines[index]) for index in branch} - {""}
    branch |= {index for index in places.values() if _reply_id(lines[index]) in reply_ids}
    call_ids = {id_ for index in branch for id_ in _ids(lines[index], "tool_use", "id")}
    answered_ids = {
        id_ for index in branch for id_ in _ids(lines[index], "tool_result", "tool_use_id")
    }
    open_calls = call_ids - answered_ids
    for index in places.values():
        if open_calls.intersection(_ids(lines[index], "tool_result", "tool_use_id")):
            branch.add(index)
    # A line that repeats the id of another one is that line.
    retained_ids = {line_id(lines[index]) for index in branch}
    abandoned: set[int] = set()
    for index, line in enumerate(lines):
        if line_id(line) and line_id(line) not in retained_ids:
            abandoned.add(index)
    return abandoned


def _branch(lines: Sequence[JsonObject], places: Mapping[str, int]) -> set[int]:
    """Return the indices of the last message in *lines* and of all lines before it on its branch.

    *places* has the index of each line by its id. Where the parent of a line is not in the file,
    for example after a compaction, the branch continues with the line before it.
    """
    branch: set[int] = set()
    index: int | None = max(
        (index for index in places.values() if _is_message(lines[index])),
        default=max(places.values()),
    )
    ordered = sorted(places.values())
    while index is not None and index not in branch:
        branch.add(index)
        line = lines[index]
        parent = places.get(str(line.get(PARENT) or line.get(LOGICAL_PARENT) or ""))
        if parent is None and not _begins_conversation(line):
            earlier_count = bisect_left(ordered, index)
            parent = ordered[earlier_count - 1] if earlier_count else None
        index = parent
    return branch


def _begins_conversation(line: JsonObject) -> bool:
    """Return True if *line* is a prompt before which the user kept nothing."""
    if line.get(PARENT, "") is not None or line.get("isCompactSummary"):
        return False
    return line.get("type") == "user" and not _ids(line, "tool_result", "tool_use_id")


def _is_message(line: JsonObject) -> bool:
    return line.get("type") in ("user", "assistant") and isinstance(line.get("message"), Mapping)


def line_id(line: JsonObject) -> str:
    """Return the id of a line, "" if it has none."""
    return str(line.get("uuid") or "")


def _reply_id(line: JsonObject) -> str:
    """Return the id of the reply that *line* is a part of, or "" if it is no reply."""
    if line.get("type") != "assistant":
        return ""
    return str(field(line.get("message"), "id") or "")


def _ids(line: JsonObject, block_kind: str, name: str) -> set[str]:
    """Return the field *name* of the blocks of this kind in *line*."""
    content = field(line.get("message"), "content")
    blocks: Iterable[object] = content if isinstance(content, list) else ()
    return {str(field(block, name)) for block in blocks if kind(block) == block_kind}
