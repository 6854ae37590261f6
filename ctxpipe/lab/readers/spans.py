"""Reader for spans of OpenTelemetry with the messages of model calls.

The names of their attributes are those of the semantic conventions for generative AI. A span has
the complete input of its call. A file has the spans in one of two forms: OTLP as JSON, which a
collector and the file exporters write, or the form of the console exporter of Python.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..._values import JsonDict, JsonObject
from ...errors import InvalidHistory
from ...messages import field, kind
from ...wire.usage import usage
from ...wire.values import (
    arguments_object,
    first_field,
    has_text,
    image_block,
    opaque_block,
    result_block,
    text_block,
    thinking_block,
    use_block,
)
from ..records import FileRecord, Recording, seconds, valid_object
from .conversation import RecordedConversation

OPERATION = "gen_ai.operation.name"
MODEL_CALLS = ("chat", "generate_content", "text_completion")
INPUT = "gen_ai.input.messages"
OUTPUT = "gen_ai.output.messages"
CONTENT_ADVICE = (
    "record the content of messages, for example with "
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY"
)
NANOSECONDS = 1_000_000_000
MAX_DIGITS = 20
"""Maximum digits of an integer; those of OTLP have 64 bits."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A span: its *attributes*, its trace, its *start* in seconds, and its *place* in the file."""

    place: str
    trace_id: str
    start: float
    attributes: JsonObject

    @property
    def is_model_call(self) -> bool:
        return self.attributes.get(OPERATION) in MODEL_CALLS

    @property
    def conversation(self) -> tuple[str, str]:
        """The conversation that the span is part of, as the program or the trace names it."""
        name = self.attributes.get("gen_ai.conversation.id")
        agent = self.attributes.get("gen_ai.agent.id") or self.attributes.get("gen_ai.agent.name")
        return str(name or self.trace_id), str(agent or "")


def is_span_record(value: JsonObject) -> bool:
    """Return True if *value* is a span, or a list of spans in OTLP."""
    if isinstance(value.get("resourceSpans"), list):
        return True
    trace_id = field(value.get("context"), "trace_id")
    return isinstance(trace_id, str) and isinstance(value.get("attributes"), Mapping)


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the first conversation in the spans of model calls, and the number of other spans.

    Other conversations in the same trace are those of subagents; one whose calls do not continue
    each other is omitted. Raises InvalidHistory, naming the record, if the spans are of several
    traces and conversations, or those of the first do not continue each other or do not have the
    messages.
    """
    omitted_counts: Counter[str] = Counter()
    unknown_counts: Counter[str] = Counter()
    calls: list[_Span] = []
    span_count = 0
    for record in records:
        if not is_span_record(record.fields):
            unknown_counts["no span"] += 1
            span_count += 1
            continue
        for span in _spans(record):
            span_count += 1
            if span.is_model_call:
                calls.append(span)
            else:
                omitted_counts["not a model call"] += 1
    calls.sort(key=lambda span: span.start)
    spans_by_conversation: dict[tuple[str, str], list[_Span]] = {}
    for span in calls:
        spans_by_conversation.setdefault(span.conversation, []).append(span)
    main, *others = spans_by_conversation.values() or [[]]
    for span in calls:
        if span.conversation != main[0].conversation:
            if span.trace_id not in {other.trace_id for other in main}:
                raise InvalidHistory(
                    f"{span.place}: a span of a second conversation; give each a file of its own"
                )
            omitted_counts["of a subagent"] += 1
    subagents: list[Recording] = []
    for spans in others:
        with suppress(InvalidHistory):
            subagents.append(_recording(spans))
    return replace(
        _recording(main),
        omitted_counts=omitted_counts,
        unknown_counts=unknown_counts,
        record_count=span_count,
        agent="",
        subagents=subagents,
    )


def _recording(spans: Sequence[_Span]) -> Recording:
    """Return the conversation of *spans*, the model calls of one agent.

    Raises InvalidHistory, naming the record, if they do not continue each other or do not have the
    messages.
    """
    conversation = RecordedConversation()
    replies: dict[int, _Span] = {}
    messages: list[Any] = []
    previous_input: list[Any] = []
    for span in spans:
        messages = _json_list(span, INPUT)
        if messages[: len(previous_input)] != previous_input:
            raise InvalidHistory(
                f"{span.place}: the input of this call does not begin as the one before; "
                "give each conversation a file of its own"
            )
        previous_input = messages
        replies[len(messages)] = span
    if spans:
        messages = [*messages, *_json_list(spans[-1], OUTPUT)]
    for index, message in enumerate(messages):
        _add_message(conversation, message, replies.get(index), f"message {index}")
    return Recording(conversation.entries, _request(spans), agent=_agent(spans))


def _agent(spans: Sequence[_Span]) -> str:
    """Return the name of the agent whose calls are *spans*, or its id, or "subagent"."""
    attributes = spans[0].attributes if spans else {}
    name = first_field(attributes, "gen_ai.agent.name", "gen_ai.agent.id")
    return str(name or "subagent")


def _spans(record: FileRecord) -> Iterator[_Span]:
    """Yield the spans in *record*. Raises InvalidHistory if one is not valid."""
    fields = record.fields
    resources = fields.get("resourceSpans")
    if not isinstance(resources, list):
        context = valid_object(fields["context"], record.place, "context")
        start = seconds(fields.get("start_time")) or 0.0
        yield _Span(record.place, str(context["trace_id"]), start, fields["attributes"])
        return
    for resource in resources:
        for scope in _list(resource, "scopeSpans"):
            for value in _list(scope, "spans"):
                span = valid_object(value, record.place, "a span", attributes=list)
                start = (_integer(span.get("startTimeUnixNano")) or 0) / NANOSECONDS
                attributes = _attributes(span.get("attributes") or ())
                yield _Span(record.place, str(span.get("traceId")), start, attributes)


def _list(holder: object, name: str) -> list[object]:
    values = field(holder, name)
    return values if isinstance(values, list) else []


def _attributes(pairs: Sequence[object]) -> JsonDict:
    """Return the attributes of a span or a value of OTLP, a list of keys and values, by name."""
    return {str(field(pair, "key")): _value(field(pair, "value")) for pair in pairs}


def _value(value: object) -> object:
    """Return a *value* of OTLP, which names its type, as a plain value."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    [(name, content)] = value.items()
    match name:
        case "intValue":
            return _integer(content)
        case "arrayValue":
            return [_value(part) for part in _list(content, "values")]
        case "kvlistValue":
            return _attributes(_list(content, "values"))
    return content


def _integer(content: object) -> int | None:
    """Return an integer of OTLP, which may be a text, or None if *content* is not valid."""
    digits = str(content)
    return int(digits) if digits.isdecimal() and len(digits) <= MAX_DIGITS else None


def _json_list(span: _Span, name: str) -> list[Any]:
    """Return the attribute *name* of *span*, a list, perhaps as JSON.

    Raises InvalidHistory if the span does not have it.
    """
    value = span.attributes.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list):
        raise InvalidHistory(
            f"{span.place}: the span of a model call has no {name}; {CONTENT_ADVICE}"
        )
    return value


def _request(main: Sequence[_Span]) -> JsonDict:
    """Return the model, the system prompt and the tools of the last call in *main*."""
    if not main:
        return {}
    attributes = main[-1].attributes
    model = first_field(attributes, "gen_ai.response.model", "gen_ai.request.model")
    request: JsonDict = {"model": model}
    for name, key in (
        ("system", "gen_ai.system_instructions"),
        ("tools", "gen_ai.tool.definitions"),
    ):
        if key in attributes:
            request[name] = _json_list(main[-1], key)
    if "system" in request:
        request["system"] = [_block(part) for part in request["system"]] or None
    return request


def _add_message(
    conversation: RecordedConversation, value: object, reply: _Span | None, place: str
) -> None:
    """Add the message *value*; *reply* is the span of the call that it answers.

    Raises InvalidHistory, naming the *place*, if it is not valid.
    """
    message = valid_object(value, place, parts=list)
    parts = message.get("parts") or ()
    content = [_block(part) for part in parts if not _is_blank(part)]
    if message.get("role") == "assistant":
        attributes = reply.attributes if reply else {}
        time = reply.start if reply else None
        model = first_field(attributes, "gen_ai.response.model", "gen_ai.request.model")
        conversation.add_reply(content, time, _usage(attributes), str(model or ""))
        return
    for block in content:
        if kind(block) == "tool_result":
            conversation.add_result(block, None)
    conversation.add_user([block for block in content if kind(block) != "tool_result"], None)


def _is_blank(part: object) -> bool:
    return kind(part) in ("text", "reasoning") and not has_text(field(part, "content"))


def _block(part: object) -> JsonDict:
    """Return the block of a *part* of a message."""
    content = field(part, "content")
    match kind(part):
        case "text" if has_text(content):
            return text_block(content)
        case "reasoning" if has_text(content):
            return thinking_block(content)
        case "tool_call":
            arguments = arguments_object(field(part, "arguments"))
            return use_block(str(field(part, "id") or ""), field(part, "name"), arguments)
        case "tool_call_response":
            result = first_field(part, "response", "result")
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            return result_block(str(field(part, "id") or ""), text)
    return _media_block(part) or opaque_block(part)


def _media_block(part: object) -> JsonDict | None:
    """Return the block of a *part* with an image, or None."""
    if kind(part) == "uri":
        return image_block(field(part, "uri"))
    if kind(part) == "blob" and field(part, "modality") == "image":
        return image_block(f"data:{field(part, 'mime_type')};base64,{field(part, 'content')}")
    return None


def _usage(attributes: JsonObject) -> JsonObject | None:
    """Return the usage of a call; its input tokens include the cached ones."""
    details = "gen_ai.usage.details."
    return usage(
        attributes.get("gen_ai.usage.input_tokens"),
        read=first_field(
            attributes,
            "gen_ai.usage.cache_read.input_tokens",
            f"{details}cache_read_input_tokens",
            f"{details}cache_read_tokens",
        ),
        written=first_field(
            attributes,
            "gen_ai.usage.cache_creation.input_tokens",
            "gen_ai.usage.cache_write.input_tokens",
            f"{details}cache_creation_input_tokens",
            f"{details}cache_write_tokens",
        ),
        output=attributes.get("gen_ai.usage.output_tokens"),
    )
