"""Reader for sessions of pi, the files below ``~/.pi/agent/sessions``.

Each line is an entry of a tree: ``parentId`` names the entry before it. The last entry of the file
is the end of the conversation; entries that are not on its branch were taken back by the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..._values import JsonDict, JsonObject
from ...messages import field, kind
from ...wire.values import (
    arguments_object,
    content_blocks,
    has_text,
    image_block,
    opaque_block,
    result_block,
    text_block,
    thinking_block,
    use_block,
)
from ..records import TEXT_OR_LIST, FileRecord, Recording, second_conversation, valid_object
from .conversation import RecordedConversation

NOT_MESSAGES = frozenset(
    {"custom", "label", "model_change", "session", "session_info", "thinking_level_change"}
)
"""Types of entries that are never sent to the model."""
OWN_ROLES = ("bashExecution", "branchSummary", "compactionSummary", "custom", "toolResult")
"""Roles of messages that other formats do not have."""


def is_session_entry(value: JsonObject) -> bool:
    """Return True if *value* is the header of a session, or a message in it."""
    if kind(value) == "session":
        return "cwd" in value and "id" in value
    message = value.get("message")
    if kind(value) != "message" or not isinstance(message, Mapping):
        return False
    return message.get("role") in OWN_ROLES or "stopReason" in message


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the conversation, and the number of omitted entries of each kind.

    Omitted are entries that the user took back, the summaries of compactions (the file still has
    the messages that they summarize), and entries that are not messages. Raises InvalidHistory,
    naming the line, for a message that is not valid and for a second session.
    """
    conversation = RecordedConversation()
    omitted_counts: Counter[str] = Counter()
    unknown_counts: Counter[str] = Counter()
    model = ""
    branch = _branch(records)
    for index, record in enumerate(records):
        fields = record.fields
        time = fields.get("timestamp")
        match kind(fields):
            case "session" if index and is_session_entry(fields):
                raise second_conversation(record)
            case _ if branch is not None and "id" in fields and index not in branch:
                omitted_counts["taken back by the user"] += 1
            case "message":
                message = valid_object(
                    fields.get("message"), record.place, "message", content=TEXT_OR_LIST
                )
                model = str(message.get("model") or model)
                if not _add_message(conversation, message, record.place, time, model):
                    omitted_counts["not a message"] += 1
            case "custom_message":
                content = content_blocks(fields.get("content"), _user_block)
                conversation.add_user(content, time)
            case "branch_summary" if has_text(fields.get("summary")):
                conversation.add_user([text_block(fields["summary"])], time)
            case "compaction":
                omitted_counts["summary of a compaction"] += 1
            case name if name in NOT_MESSAGES:
                omitted_counts["not a message"] += 1
            case name:
                unknown_counts[str(name or "no type")] += 1
    return Recording(conversation.entries, {"model": model}, omitted_counts, unknown_counts)


def _branch(records: Sequence[FileRecord]) -> set[int] | None:
    """Return the indices of the last entry and of all before it on its branch.

    Returns None for a file of version 1, whose entries have no parents.
    """
    places: dict[str, int] = {}
    last = None
    for index, record in enumerate(records):
        if "parentId" in record.fields:
            places[str(record.fields.get("id"))] = index
            last = index
    if last is None:
        return None
    branch: set[int] = {index for index in (0,) if kind(records[0].fields) == "session"}
    while last is not None and last not in branch:
        branch.add(last)
        last = places.get(str(records[last].fields.get("parentId")))
    return branch


def _add_message(
    conversation: RecordedConversation, message: JsonObject, place: str, time: object, model: str
) -> bool:
    """Add *message* to *conversation*; return False if it is never sent to the model.

    Raises InvalidHistory, naming the *place*, if it is not valid.
    """
    match message.get("role"):
        case "assistant":
            content = _reply(message, place)
            return conversation.add_reply(content, time, _usage(message.get("usage")), model)
        case "toolResult":
            content_list = content_blocks(message.get("content"), _user_block)
            result = result_block(str(message.get("toolCallId") or ""), content_list)
            if message.get("isError"):
                result["is_error"] = True
            conversation.add_result(result, time)
        case "bashExecution":
            if message.get("excludeFromContext"):
                return False
            texts = (message.get("command"), message.get("output"))
            conversation.add_user([text_block(text) for text in texts if has_text(text)], time)
        case "compactionSummary":
            return False
        case _:
            text = message.get("summary") if "summary" in message else message.get("content")
            conversation.add_user(content_blocks(text, _user_block), time)
    return True


def _reply(message: JsonObject, place: str) -> Iterator[JsonDict]:
    """Yield the blocks of a reply. Raises InvalidHistory, naming the *place*, if one is invalid."""
    content = message.get("content") or ()
    for part in [content] if isinstance(content, str) else content:
        if isinstance(part, str):
            yield from [text_block(part)] if has_text(part) else []
            continue
        fields = valid_object(part, place, "a part of the content", id=str, name=str)
        match kind(fields):
            case "thinking" if has_text(fields.get("thinking")):
                yield thinking_block(fields["thinking"], fields.get("thinkingSignature"))
            case "toolCall":
                arguments = arguments_object(fields.get("arguments"))
                yield use_block(fields.get("id") or "", fields.get("name") or "unknown", arguments)
            case "text" if not has_text(fields.get("text")):
                pass
            case "thinking":
                pass
            case _:
                yield _user_block(fields)


def _user_block(part: object) -> JsonDict:
    """Return the block of a text or a part of a content."""
    text = part if isinstance(part, str) else field(part, "text")
    if has_text(text):
        return text_block(text)
    if kind(part) == "image":
        url = f"data:{field(part, 'mimeType')};base64,{field(part, 'data')}"
        return image_block(url) or opaque_block(part)
    return opaque_block(part)


def _usage(reported: object) -> JsonObject | None:
    """Return pi's usage under the names of the Messages API, which counts the same."""
    if not isinstance(reported, Mapping):
        return None
    return {
        "input_tokens": reported.get("input", 0),
        "cache_read_input_tokens": reported.get("cacheRead", 0),
        "cache_creation_input_tokens": reported.get("cacheWrite", 0),
        "output_tokens": reported.get("output", 0),
    }
