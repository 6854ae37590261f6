"""The APIs whose requests are shaped: where their items are, and what a reply says of its usage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import ClassVar, cast

from .._values import JsonDict, JsonObject
from ..messages import field, kind
from .codec import ItemReader, MessagesCodec
from .gemini import GeminiCodec, system_blocks
from .openai_chat import ChatCodec, ObservationCodec
from .openai_responses import ResponsesCodec
from .usage import gemini_usage, openai_usage
from .values import first_field


class Format:
    """How one API writes a conversation; this one as OpenAI's chat completions do."""

    path: ClassVar[str] = "/chat/completions"
    """What the path of a request ends with."""
    key: ClassVar[str] = "messages"
    """Where in the body its items are."""
    codec: ItemReader = ChatCodec()
    read_events: ClassVar[Sequence[bytes]] = (b'"usage"',)
    """Parts of the events of a stream that are read: each has one of them."""
    has_items: ClassVar[bool] = False
    """Whether a reply consists of items that the client sends back one by one."""
    may_refuse_late: ClassVar[bool] = False
    """Whether a stream may be refused after it has begun, with status 200."""

    def is_shapeable(self, values: JsonObject, items: object) -> bool:
        """Whether the client sends what it says in *items*."""
        del values
        return isinstance(items, list) and bool(items)

    def state_id(self, values: JsonObject) -> str:
        """The id by which the provider holds what came before, "" where it holds nothing."""
        del values
        return ""

    def arguments(self, values: JsonObject) -> JsonDict:
        """What a session needs of a request beside its messages."""
        model = values.get("model")
        return {
            "system": values.get("instructions"),
            "tools": values.get("tools"),
            "request": {"model": model if isinstance(model, str) else None},
        }

    def usage_in(self, event: JsonObject) -> JsonObject | None:
        """The usage in *event*, a whole reply or an event of a stream, as the Messages API writes
        it; None where it has none.
        """
        return openai_usage(event.get("usage"))

    def reply_in(self, event: JsonObject) -> JsonObject | None:
        """What a session can learn from: a reply with the usage of the whole prompt."""
        usage = self.usage_in(event)
        return None if usage is None else {"usage": usage}

    def items_in(self, event: JsonObject) -> Sequence[object]:
        """Return the items of a reply in *event*, a whole reply or an event of a stream."""
        del event
        return ()


class Responses(Format):
    """OpenAI's responses."""

    path = "/responses"
    key = "input"
    codec: ItemReader = ResponsesCodec()
    may_refuse_late = True
    read_events: ClassVar[Sequence[bytes]] = (b'"usage"', b'"response.output_item.done"')
    has_items = True

    def state_id(self, values: JsonObject) -> str:
        """The id of the response before, or of the conversation."""
        conversation = values.get("conversation")
        known = values.get("previous_response_id") or field(conversation, "id") or conversation
        return known if isinstance(known, str) else ""

    def usage_in(self, event: JsonObject) -> JsonObject | None:
        """That of the response at the end of a stream, or of a whole one."""
        return super().usage_in(_response(event))

    def reply_in(self, event: JsonObject) -> JsonObject | None:
        """With what a later request may go on from without repeating it."""
        reply, response = super().reply_in(event), _response(event)
        return reply and {**reply, "id": response.get("id"), "output": response.get("output")}

    def items_in(self, event: JsonObject) -> Sequence[object]:
        """Return the item that is complete now, or all of a whole reply and of a stream's end."""
        if event.get("type") == "response.output_item.done":
            return [event.get("item")]
        output = _response(event).get("output")
        return output if isinstance(output, list) else ()


def _response(event: JsonObject) -> JsonObject:
    response = event.get("response")
    return response if isinstance(response, dict) else event


class Messages(Format):
    """Anthropic's Messages API."""

    path = "/v1/messages"
    codec: ItemReader = MessagesCodec()

    def is_shapeable(self, values: JsonObject, items: object) -> bool:
        """Not where the server is to summarize the conversation, has done so, or holds it."""
        if values.get("compaction") or values.get("thread"):
            return False
        if not super().is_shapeable(values, items):
            return False
        content = field(cast("list[object]", items)[0], "content")
        if not isinstance(content, list):
            return True
        return all(kind(block) != "compaction" for block in content)

    def arguments(self, values: JsonObject) -> JsonDict:
        """With what concerns thinking and the cache."""
        options = ("thinking", "model", "cache_control", "extra_headers")
        return {
            "system": values.get("system"),
            "tools": values.get("tools"),
            "request": {name: values[name] for name in options if name in values},
        }

    def usage_in(self, event: JsonObject) -> JsonObject | None:
        """That of the message that a stream begins with, of its end, or of the whole reply."""
        message = event.get("message")
        usage = (message if isinstance(message, dict) else event).get("usage")
        return usage if isinstance(usage, dict) else None

    def reply_in(self, event: JsonObject) -> JsonObject | None:
        """The whole reply, or the message that a stream begins with."""
        if event.get("type") == "message_start":
            event = event["message"]
        return event if event.get("type") == "message" else None


class Gemini(Format):
    """Gemini's ``generateContent``, streamed or not, of the *model* that its path names."""

    key = "contents"
    codec: ItemReader = GeminiCodec()
    read_events: ClassVar[Sequence[bytes]] = (b'"finishReason"',)  # others have the usage so far

    def __init__(self, model: str) -> None:
        self.model = model

    def is_shapeable(self, values: JsonObject, items: object) -> bool:
        """Not where the provider holds the beginning."""
        is_held = first_field(values, "cachedContent", "cached_content")
        return not is_held and super().is_shapeable(values, items)

    def arguments(self, values: JsonObject) -> JsonDict:
        """The system prompt is a content of its own, and a tool may have several functions."""
        instruction = first_field(values, "systemInstruction", "system_instruction")
        tools: list[object] = []
        for tool in values.get("tools") or ():
            tools += first_field(tool, "functionDeclarations", "function_declarations") or [tool]
        return {
            "system": system_blocks(instruction),
            "tools": tools,
            "request": {"model": self.model},
        }

    def usage_in(self, event: JsonObject) -> JsonObject | None:
        """That of a whole reply, or of the end of a stream."""
        return gemini_usage(event.get("usageMetadata"))


GEMINI_METHOD = re.compile(r"/(?:models|tunedModels|endpoints)/([^/:]+):(\w+)\Z")
"""How the path of a request to Gemini ends: a model and a method, at Google's API and Vertex's."""
GENERATE = ("generateContent", "streamGenerateContent")
"""The methods whose requests are shaped."""
MESSAGES, CHAT, RESPONSES = Messages(), Format(), Responses()
FORMATS: Sequence[Format] = (MESSAGES, CHAT, RESPONSES)
"""The APIs whose requests are shaped, whatever the model; Gemini's is in the path."""


def format_of(method: str, path: str, observation: str = "") -> Format | None:
    """The format of a request to *path*, None where it passes as it is.

    *observation* is the mark of `ObservationCodec`; without it texts are texts.
    """
    if method != "POST":
        return None
    asked = GEMINI_METHOD.search(path)
    if asked is not None:
        return Gemini(asked[1]) if asked[2] in GENERATE else None
    known = next((known for known in FORMATS if path.endswith(known.path)), None)
    if known is not None and known.key == "messages" and observation:
        known = copy(known)
        known.codec = ObservationCodec(observation)
    return known
