"""The APIs whose requests are shaped: fields of a request, usage and items of a reply.

A `Format` reads requests and replies of one API over HTTP. It also writes ctxpipe's own questions
to a model, such as that for a summary, in the form of that API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import ClassVar, cast
from urllib.parse import quote

from .._values import JsonDict, JsonObject
from ..messages import field, kind
from ..summarizers import AgentAnswer
from .codec import ItemReader, MessagesCodec
from .gemini import GeminiCodec, system_blocks
from .openai_chat import ChatCodec, ObservationCodec
from .openai_responses import ResponsesCodec
from .usage import gemini_usage, openai_usage
from .values import first_field


class Format:
    """The requests and replies of OpenAI's chat completions, and base class of the other APIs.

    *values* in the methods are the fields of a request, without its items. An *event* is an event
    of a stream, or a whole reply.
    """

    api: ClassVar[str] = "openai"
    """Name of the provider, for `AgentModel`."""
    routing: ClassVar[Sequence[str]] = (
        *("provider", "route", "safety_identifier", "service_tier", "store", "user"),
    )
    """Fields of a request that determine where, how and for whom it is processed.

    ctxpipe's own questions repeat them.
    """

    path: ClassVar[str] = "/chat/completions"
    """End of the path of a request."""
    key: ClassVar[str] = "messages"
    """Field of the body that contains the items."""
    codec: ItemReader = ChatCodec()
    read_events: ClassVar[Sequence[bytes]] = (b'"usage"',)
    """Texts that mark the events to read in a stream; events with none of them are skipped."""
    has_items: ClassVar[bool] = False
    """True if a reply consists of items that the client sends back one by one."""
    may_refuse_late: ClassVar[bool] = False
    """True if a stream with status 200 may contain a refusal of the request."""

    def is_shapeable(self, values: JsonObject, items: object) -> bool:
        """Return False if a request must be sent unchanged; *items* is its field `key`."""
        del values
        return isinstance(items, list) and bool(items)

    def model_in(self, values: JsonObject) -> str | None:
        """Return the model that a request with the fields *values* names; None if it names none."""
        model = values.get("model")
        return model if isinstance(model, str) else None

    def state_id(self, values: JsonObject) -> str:
        """Return the id of the stored conversation that a request continues, "" if there is none.

        *values* are the fields of the request. This base class returns "": the provider stores
        nothing, and the request contains the whole conversation.
        """
        del values
        return ""

    def arguments(self, values: JsonObject) -> JsonDict:
        """Return the arguments of `Session.run` for a request, without its messages."""
        return {
            "system": values.get("instructions"),
            "tools": values.get("tools"),
            "request": {"model": self.model_in(values)},
        }

    def usage_in(self, event: JsonObject) -> JsonObject | None:
        """Return the usage in *event*, in the form of the Messages API; None if it has none."""
        return openai_usage(event.get("usage"))

    def reply_in(self, event: JsonObject) -> JsonObject | None:
        """Return the fields of the reply in *event* for calibration; None if it has no usage.

        The usage is that of the whole prompt.
        """
        usage = self.usage_in(event)
        return None if usage is None else {"usage": usage}

    def items_in(self, event: JsonObject) -> Sequence[object]:
        """Return the items of the reply in *event*, if the replies of this format have items."""
        del event
        return ()

    # A question of ctxpipe's own ------------------------------------------------------------------

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """Return the body of a request with *prompt* as its only message, without a stream.

        *values* are the fields of the client's request; only those of `routing` are in the body.
        *max_tokens* is the maximum length of the answer, for an API that requires a limit; others
        ignore it. Without a *model* the path names it, as in Azure.
        """
        del max_tokens
        body = {name: values[name] for name in self.routing if name in values}
        if model is not None:
            body["model"] = model
        return {**body, self.key: [{"role": "user", "content": prompt}]}

    def question_target(self, target: str, model: str | None) -> str:
        """Return the path and query of a question to *model*, without one to the request's model.

        *target* is the path and query of the client's request. In Azure the path names the model.
        """
        path, mark, query = target.partition("?")
        if model is not None:
            path = _DEPLOYMENT.sub(f"/deployments/{quote(model, safe='')}/", path)
        return path + mark + query

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """Return the text of the first choice in *reply*, with its end reason, usage and model."""
        choice = _first(reply.get("choices"))
        message = field(choice, "message")
        reason = "refusal" if field(message, "refusal") else field(choice, "finish_reason")
        return self._answer(reply, _join_texts(field(message, "content")), reason)

    def _answer(
        self, reply: JsonObject, text: str, reason: object, model: object = None
    ) -> AgentAnswer:
        """Return the answer *text* with the reason of its end, the usage, and the model.

        *reason* and the model are dropped if they are no text. Without *model* the reply names it.
        """
        model = model or reply.get("model")
        return AgentAnswer(
            text,
            reason if isinstance(reason, str) else None,
            cast("Mapping[str, int] | None", self.usage_in(reply)),
            model if isinstance(model, str) else "",
        )


_DEPLOYMENT = re.compile(r"/deployments/[^/]+/")


def _first(values: object) -> object:
    return values[0] if isinstance(values, list) and values else None


def _join_texts(content: object) -> str:
    """Return the texts of *content*, a text or a list of parts, without thoughts."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    if not isinstance(content, list):
        return ""
    for part in content:
        text = field(part, "text")
        if isinstance(text, str) and not field(part, "thought"):
            texts.append(text)
    return "".join(texts)


class Responses(Format):
    """The requests and replies of OpenAI's responses API."""

    path = "/responses"
    key = "input"
    codec: ItemReader = ResponsesCodec()
    may_refuse_late = True
    read_events: ClassVar[Sequence[bytes]] = (b'"usage"', b'"response.output_item.done"')
    has_items = True

    def state_id(self, values: JsonObject) -> str:
        """Return the id of the stored conversation that a request continues, "" if there is none.

        It is the field ``previous_response_id`` of *values*, otherwise the id of ``conversation``.
        """
        conversation = values.get("conversation")
        state_id = values.get("previous_response_id") or field(conversation, "id") or conversation
        return state_id if isinstance(state_id, str) else ""

    def usage_in(self, event: JsonObject) -> JsonObject | None:
        """Return the usage of the response in *event*: only the end of a stream has one."""
        return super().usage_in(_response(event))

    def reply_in(self, event: JsonObject) -> JsonObject | None:
        """Return the usage, and the id and the output, which a later request may continue."""
        reply = super().reply_in(event)
        if reply is None:
            return None
        response = _response(event)
        return {**reply, "id": response.get("id"), "output": response.get("output")}

    def items_in(self, event: JsonObject) -> Sequence[object]:
        """Return the item that *event* completes, or all items of a complete response."""
        if event.get("type") == "response.output_item.done":
            return [event.get("item")]
        output = _response(event).get("output")
        return output if isinstance(output, list) else ()

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """Return the body of a request that the provider does not store.

        The arguments are those of the base class.
        """
        return {**super().question(values, prompt, model, max_tokens), "store": False}

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """Return the text of all messages in the output, with its end reason, usage and model."""
        texts: list[str] = []
        reason = field(reply.get("incomplete_details"), "reason") or reply.get("status")
        for item in reply.get("output") or ():
            if kind(item) == "message":
                texts.append(_join_texts(field(item, "content")))
                if any(kind(part) == "refusal" for part in field(item, "content") or ()):
                    reason = "refusal"
        return self._answer(reply, "".join(texts), reason)


def _response(event: JsonObject) -> JsonObject:
    """Return the response in *event*; *event* itself if it is a whole response."""
    response = event.get("response")
    return response if isinstance(response, dict) else event


class Messages(Format):
    """The requests and replies of Anthropic's Messages API."""

    api = "anthropic"
    routing: ClassVar[Sequence[str]] = (
        "inference_geo",
        "metadata",
        "service_tier",
        "user_profile_id",
        "workspace_id",
    )
    path = "/v1/messages"
    codec: ItemReader = MessagesCodec()

    def is_shapeable(self, values: JsonObject, items: object) -> bool:
        """Return False if *items* is no list with items, or the server shortens the conversation.

        It does so by the field ``compaction`` or ``thread`` in *values*, or has done so if the
        first item begins with its summary.
        """
        if values.get("compaction") or values.get("thread"):
            return False
        if not super().is_shapeable(values, items):
            return False
        content = field(cast("list[object]", items)[0], "content")
        if not isinstance(content, list):
            return True
        return all(kind(block) != "compaction" for block in content)

    def arguments(self, values: JsonObject) -> JsonDict:
        """Return the arguments of `Session.run` for a request, without its messages.

        They include the options for thinking and for the cache.
        """
        options = ("thinking", "model", "cache_control", "extra_headers")
        return {
            "system": values.get("system"),
            "tools": values.get("tools"),
            "request": {name: values[name] for name in options if name in values},
        }

    def usage_in(self, event: JsonObject) -> JsonObject | None:
        """Return the usage of a whole reply, or at the beginning or the end of a stream."""
        message = event.get("message")
        if not isinstance(message, dict):
            message = event
        usage = message.get("usage")
        return usage if isinstance(usage, dict) else None

    def reply_in(self, event: JsonObject) -> JsonObject | None:
        """Return the fields of the reply in *event*, or None.

        *event* is a whole reply, or the first event of a stream, which contains the message.
        """
        if event.get("type") == "message_start":
            event = event["message"]
        return event if event.get("type") == "message" else None

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """Return the body of a request with *max_tokens*, which the API requires.

        The arguments are those of the base class.
        """
        body = super().question(values, prompt, model, max_tokens)
        return {**body, "max_tokens": max_tokens}

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """Return the text of all text blocks, with its end reason, usage and model."""
        content = [block for block in reply.get("content") or () if kind(block) == "text"]
        return self._answer(reply, _join_texts(content), reply.get("stop_reason"))


class Gemini(Format):
    """The requests and replies of Gemini's ``generateContent``, streamed or not.

    *model* is the model that the path of the request names.
    """

    api = "gemini"
    routing: ClassVar[Sequence[str]] = ()
    key = "contents"
    codec: ItemReader = GeminiCodec()
    read_events: ClassVar[Sequence[bytes]] = (b'"finishReason"',)
    """Mark of the last event; the others have the usage up to that event only."""

    def __init__(self, model: str) -> None:
        self.model = model

    def model_in(self, values: JsonObject) -> str:
        """Return the model in the path of the request, whatever its fields *values* are."""
        del values
        return self.model

    def is_shapeable(self, values: JsonObject, items: object) -> bool:
        """Return False if the provider stores the beginning of the conversation."""
        if first_field(values, "cachedContent", "cached_content"):
            return False
        return super().is_shapeable(values, items)

    def arguments(self, values: JsonObject) -> JsonDict:
        """Return the arguments of `Session.run` for a request, without its messages.

        The functions of each tool are listed one by one.
        """
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
        """Return the usage of a whole reply, or of the last event of a stream."""
        return gemini_usage(event.get("usageMetadata"))

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """Return the body of a request that has *prompt* only; the path names the model.

        *values*, *model* and *max_tokens* are ignored.
        """
        del values, model, max_tokens
        return {self.key: [{"role": "user", "parts": [{"text": prompt}]}]}

    def question_target(self, target: str, model: str | None) -> str:
        """Return the path and query of a question to *model*, whose answer is not streamed.

        Without *model* it is the model of the client's request. *target* is the path and query of
        that request; other options of the query stay.
        """
        path, _, query = target.partition("?")
        path = path.replace("%3A", ":")
        request = GEMINI_METHOD.search(path)
        if request is not None:
            name = quote(model or self.model, safe="")
            path = f"{path[: request.start(1)]}{name}:{GENERATE[0]}"
        options = [option for option in query.split("&") if option and option != "alt=sse"]
        return "?".join([path, "&".join(options)] if options else [path])

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """Return the text of the first candidate, with its end reason, usage and model.

        Thoughts are left out. For a blocked prompt the reason is "safety".
        """
        candidate = _first(reply.get("candidates"))
        reason = field(candidate, "finishReason")
        if field(reply.get("promptFeedback"), "blockReason"):
            reason = "safety"
        text = _join_texts(field(field(candidate, "content"), "parts"))
        return self._answer(reply, text, reason, reply.get("modelVersion"))


GEMINI_METHOD = re.compile(r"/(?:models|tunedModels|endpoints)/([^/:]+):(\w+)\Z")
"""End of the path of a request to Gemini, the model and the method, at Google's API and Vertex."""
GENERATE = ("generateContent", "streamGenerateContent")
"""The methods of Gemini whose requests are shaped."""
MESSAGES = Messages()
CHAT = Format()
RESPONSES = Responses()
FORMATS: Sequence[Format] = (MESSAGES, CHAT, RESPONSES)
"""The formats that do not depend on the model; a format of Gemini is for one model."""


def format_of(method: str, path: str, observation: str = "") -> Format | None:
    """Return the format of a request to *path*, None if such a request is never shaped.

    Only requests with the HTTP *method* POST have a format. *observation* is the mark of
    `ObservationCodec`; with "" that codec is not used.
    """
    if method != "POST":
        return None
    gemini_request = GEMINI_METHOD.search(path)
    if gemini_request is not None:
        return Gemini(gemini_request[1]) if gemini_request[2] in GENERATE else None
    for wire_format in FORMATS:
        if not path.endswith(wire_format.path):
            continue
        if observation and wire_format.key == "messages":
            wire_format = copy(wire_format)  # noqa: PLW2901
            wire_format.codec = ObservationCodec(observation)
        return wire_format
    return None
