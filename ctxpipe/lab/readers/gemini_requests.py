"""Reader for requests to Gemini's ``generateContent``, with or without their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..._values import JsonObject
from ...messages import field
from ...wire import GeminiCodec
from ...wire.gemini import CALL, RESPONSE, system_blocks
from ...wire.usage import gemini_usage
from ...wire.values import first_field
from ..records import FileRecord, Recording, valid_object
from .items import Items, request_of


def is_gemini_record(value: JsonObject) -> bool:
    """Return True if *value* is a request with contents, a content of the model, or a response."""
    if isinstance(request_of(value).get("contents"), list):
        return True
    if value.get("role") in ("model", "user") and isinstance(value.get("parts"), list):
        return True
    return isinstance(request_of(value, "response").get("candidates"), list)


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the conversation in *records*: contents, or requests with or without responses.

    Raises InvalidHistory, naming the place, if a content is not valid, or if a request does not
    continue the one before.
    """
    items = Items(GeminiCodec())
    request: JsonObject = {}
    for record in records:
        fields = record.fields
        if "parts" in fields:
            _add_content(items, fields, record.place)
            continue
        request = request_of(fields)
        _add_exchange(items, record)
    instruction = first_field(request, "systemInstruction", "system_instruction")
    other_fields = {
        "model": request.get("model"),
        "tools": request.get("tools"),
        "instructions": system_blocks(instruction) or None,
    }
    return items.recording(other_fields)


def _add_exchange(items: Items, record: FileRecord) -> None:
    """Add the contents of a request and, if there is a response, its content and usage."""
    request = request_of(record.fields)
    contents = valid_object(request, record.place, contents=list).get("contents") or []
    items.begin(contents, record.place)
    for index, content in enumerate(contents):
        _add_content(items, content, f"{record.place}, content {index}")
    response = request_of(record.fields, "response")
    candidates = response.get("candidates")
    if not (isinstance(candidates, list) and candidates and isinstance(candidates[0], Mapping)):
        return
    _add_content(items, field(candidates[0], "content"), record.place)
    reply = items.items[-1]
    reply.usage = gemini_usage(first_field(response, "usageMetadata", "usage_metadata"))
    reply.model = str(first_field(response, "modelVersion", "model_version") or "")


def _add_content(items: Items, content: object, place: str) -> None:
    """Add *content*. Raises InvalidHistory, naming the *place*, if it is not valid."""
    fields = valid_object(content, place, parts=list, role=str)
    for part in fields.get("parts") or ():
        ensure_valid_part(part, place)
    items.add(fields)


def ensure_valid_part(part: object, place: str) -> None:
    """Raise InvalidHistory, naming the *place*, unless *part* is an object with valid ids."""
    fields = valid_object(part, place, "a part")
    for half in (first_field(fields, *CALL), first_field(fields, *RESPONSE)):
        if isinstance(half, Mapping):
            valid_object(half, place, id=str, name=str)
