"""Reader for conversations in the form of OpenAI's responses API.

A file has their items, or requests with or without their responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..._values import JsonObject
from ...errors import InvalidHistory
from ...messages import kind
from ...providers.response_items import ANSWERED_ITEMS, SERVER_ITEMS
from ...wire import ResponsesCodec
from ...wire.openai_responses import OUTPUT
from ..records import TEXT_OR_LIST, FileRecord, Recording, valid_object
from .items import Items, request_of

ITEMS = (
    ANSWERED_ITEMS | {name + OUTPUT for name in ANSWERED_ITEMS} | {"item_reference", "reasoning"}
)
"""Types of items that only this API has."""
CLIENT_ITEMS = frozenset(
    {"additional_tools", "compaction_trigger", "mcp_approval_response", "tool_search_output"}
)
"""Types of items that clients write, apart from the results of calls."""
PARTS = frozenset({"input_file", "input_image", "input_text", "output_text"})
"""Types of content parts that only this API has."""
STORED = ("previous_response_id", "conversation")
"""Fields of a request that continues a conversation stored by the provider."""


def is_response_record(value: JsonObject) -> bool:
    """Return True if *value* is an item, a request or a response in the form of this API."""
    if _is_item(value) or request_of(value, "response").get("object") == "response":
        return True
    request = request_of(value)
    return "input" in request and "messages" not in request


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the conversation in *records*: items, or requests with or without responses.

    Raises InvalidHistory, naming the record, if they are neither, or hold several conversations.
    """
    items = Items(ResponsesCodec())
    request: JsonObject = {}
    omitted_counts: Counter[str] = Counter()
    unknown_counts: Counter[str] = Counter()
    are_items = any(_is_item(record.fields) for record in records)
    for record in records:
        fields = record.fields
        if not are_items:
            request = request_of(fields)
            _add_exchange(items, record)
        elif "type" in fields or "role" in fields:
            if not is_known_item(fields):
                unknown_counts[str(kind(fields))] += 1
            items.add(valid_item(fields, record.place), fields.get("timestamp"))
        else:  # old rollouts of codex have lines without a type
            omitted_counts["not a message"] += 1
    return items.recording(request, omitted_counts, unknown_counts)


def _add_exchange(items: Items, record: FileRecord) -> None:
    """Add the input of a request and, if there is a response, its output and usage.

    Raises InvalidHistory, which names the place in the file, if input or output is missing or
    invalid.
    """
    place = record.place
    request = request_of(record.fields)
    if "input" not in request:
        raise InvalidHistory(
            f"{place}: a response without the request that it answers; record both, as "
            '{"request": {"input": …}, "response": {"output": …}}'
        )
    request_input = valid_object(request, place, input=TEXT_OR_LIST)["input"]
    if isinstance(request_input, str):
        request_input = [{"role": "user", "content": request_input}]
    request_input = request_input or []
    if not any(request.get(name) for name in STORED):
        items.begin(request_input, place)
    for item in request_input:
        items.add(valid_item(item, place))
    response = valid_object(request_of(record.fields, "response"), place, output=list)
    start = len(items.items)
    for item in response.get("output") or ():
        items.add(valid_item(item, place), response.get("created_at"))
    for item in items.items[start : start + 1]:
        items.note_usage(item, response.get("usage"), response.get("model"))


def _is_item(value: JsonObject) -> bool:
    """Return True if *value* is an item in a form that only OpenAI's responses have."""
    if kind(value) in ITEMS:
        return True
    content = value.get("content")
    if not isinstance(content, list):
        return False
    return any(kind(part) in PARTS for part in content)


def is_known_item(fields: JsonObject) -> bool:
    """Return True if the item *fields* is a message, or of a type that the API has."""
    name = kind(fields)
    if not name or name == "message":
        return "role" in fields
    return name in ITEMS or name in SERVER_ITEMS or name in CLIENT_ITEMS


def valid_item(item: object, place: str) -> JsonObject:
    """Return *item* if it is valid. Raises InvalidHistory, naming the *place*, otherwise."""
    fields = valid_object(item, place, "an item", type=str, role=str, id=str, call_id=str)
    if "type" not in fields and "role" not in fields:
        raise InvalidHistory(f"{place}: an item has neither a type nor a role")
    if kind(fields) == "reasoning":
        valid_object(fields, place, summary=list, content=list)
    return fields
