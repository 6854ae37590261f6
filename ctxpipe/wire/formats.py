"""The APIs whose requests are shaped: where their items are, and what a reply says of its usage."""

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
    """How one API writes a conversation; this one as OpenAI's chat completions do."""

    api: ClassVar[str] = "openai"
    """Whose API it is, for `AgentModel`."""
    routing: ClassVar[Sequence[str]] = (
        *("provider", "route", "safety_identifier", "service_tier", "store", "user"),
    )
    """Fields of a request that say where, how and for whom it is processed, and not what is asked.

    A question of ctxpipe's own, such as that for a summary, repeats them.
    """

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

    # A question of ctxpipe's own ------------------------------------------------------------------

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """Return the body of a request for the answer to *prompt*, without a stream.

        *values* are those of the client's own request. *max_tokens* is the room for the answer,
        where the API requires a limit.
        """
        del max_tokens
        body = {name: values[name] for name in self.routing if name in values}
        if model is not None:  # else it is in the path, as Azure has it
            body["model"] = model
        return {**body, self.key: [{"role": "user", "content": prompt}]}

    def question_target(self, target: str, model: str | None) -> str:
        """Return the path and query of a question to *model*, from the *target* of a request.

        Azure has the model in the path, too.
        """
        path, mark, query = target.partition("?")
        if model is not None:
            path = _DEPLOYMENT.sub(f"/deployments/{quote(model, safe='')}/", path)
        return path + mark + query

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """Return what *reply*, a whole reply to a question, says."""
        choice = _first(reply.get("choices"))
        message = field(choice, "message")
        reason = "refusal" if field(message, "refusal") else field(choice, "finish_reason")
        return self._answer(reply, _join_texts(field(message, "content")), reason)

    def _answer(
        self, reply: JsonObject, text: str, reason: object, model: object = None
    ) -> AgentAnswer:
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
    """The texts of *content*, a text or a list of parts, without those of thoughts."""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content if isinstance(content, list) else ():
        text = field(part, "text")
        if isinstance(text, str) and not field(part, "thought"):
            texts.append(text)
    return "".join(texts)


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

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """One that is not stored."""
        return {**super().question(values, prompt, model, max_tokens), "store": False}

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """The texts of the messages in its output."""
        texts: list[str] = []
        reason = field(reply.get("incomplete_details"), "reason") or reply.get("status")
        for item in reply.get("output") or ():
            if kind(item) == "message":
                texts.append(_join_texts(field(item, "content")))
                if any(kind(part) == "refusal" for part in field(item, "content") or ()):
                    reason = "refusal"
        return self._answer(reply, "".join(texts), reason)


def _response(event: JsonObject) -> JsonObject:
    response = event.get("response")
    return response if isinstance(response, dict) else event


class Messages(Format):
    """Anthropic's Messages API."""

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

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """With the limit that the API requires."""
        body = super().question(values, prompt, model, max_tokens)
        return {**body, "max_tokens": max_tokens}

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """The texts of its content."""
        content = [block for block in reply.get("content") or () if kind(block) == "text"]
        return self._answer(reply, _join_texts(content), reply.get("stop_reason"))


class Gemini(Format):
    """Gemini's ``generateContent``, streamed or not, of the *model* that its path names."""

    api = "gemini"
    routing: ClassVar[Sequence[str]] = ()
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

    def question(
        self, values: JsonObject, prompt: str, model: str | None, max_tokens: int
    ) -> JsonDict:
        """One whose model is in the path."""
        del values, model, max_tokens
        return {self.key: [{"role": "user", "parts": [{"text": prompt}]}]}

    def question_target(self, target: str, model: str | None) -> str:
        """The path of a reply that is not streamed."""
        path, _, query = target.partition("?")
        name = quote(model or self.model, safe="")
        path = GEMINI_METHOD.sub(
            lambda found: found[0].replace(f"{found[1]}:{found[2]}", f"{name}:{GENERATE[0]}"),
            path.replace("%3A", ":"),
        )
        options = [option for option in query.split("&") if option and option != "alt=sse"]
        return "?".join([path, "&".join(options)] if options else [path])

    def answer_in(self, reply: JsonObject) -> AgentAnswer:
        """The texts of the first candidate, without thoughts."""
        candidate = _first(reply.get("candidates"))
        blocked = field(reply.get("promptFeedback"), "blockReason")
        reason = "safety" if blocked else field(candidate, "finishReason")
        text = _join_texts(field(field(candidate, "content"), "parts"))
        return self._answer(reply, text, reason, reply.get("modelVersion"))


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
