"""OpenAI's chat completions and responses on 127.0.0.1: their rules, answers from a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from .._values import JsonDict, JsonObject
from .chat_rules import chat_problems
from .openai_replies import (
    chat_events,
    chat_json,
    openai_error_json,
    response_events,
    response_items,
    response_json,
)
from .replies import Answer, Failure, event, sse
from .responses_rules import item_type, responses_problems
from .scripted import MAX_BODY_BYTES, Received, ScriptedServer, is_stream, stream_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
TOO_LONG = "context_length_exceeded"
SAYING = ("content", "arguments", "output", "summary")
"""The fields of an item in which it says something."""


@dataclass
class OpenAIServer(ScriptedServer):
    """Scripted chat completions and responses for tests: ``async with OpenAIServer([...])``.

    As `MessagesServer`, whose scripts and replies it takes: ``tool_use`` is a function call,
    ``thinking`` a reasoning item, or ``reasoning_content`` in a chat. Give its *base_url* to the
    SDK. Responses are stored as the API does: ``previous_response_id`` continues one, and of an
    item with a known id the stored copy is read; `Received.ignored` names those that were edited in
    vain. With *late_refusal* a prompt of a streamed response that is too long is refused within the
    stream, after the status 200.

    Raises SettingsError and MissingExtra as `MessagesServer` does.
    """

    _paths = (CHAT, RESPONSES)

    late_refusal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stored: dict[str, JsonObject] = {}
        self._conversations: dict[str, list[Any]] = {}
        self._reasoned: dict[str, str] = {}

    @property
    def base_url(self) -> str:
        """The ``base_url`` for the SDK."""
        return f"{self.url}/v1"

    # Requests -------------------------------------------------------------------------------------

    def _early_failure(self, received: Received) -> Failure | None:
        if "authorization" not in received.headers:
            return Failure(401, "invalid_request_error", "You didn't provide an API key.")
        if len(received.raw) > MAX_BODY_BYTES:
            return Failure(413, "invalid_request_error", "Request body is too large.")
        return None

    def _problems(self, received: Received) -> Iterator[str]:
        body: Any = received.body
        is_chat = received.path == CHAT
        found = chat_problems(body) if is_chat else self._response_problems(received, body)
        if found:
            yield from found
            return
        key = "messages" if is_chat else "input"
        received.prompt = self._meter.read_items(self._effective(received), key)
        received.tokens = received.prompt.tokens
        refuses_late = self.late_refusal and not is_chat and is_stream(received)
        if received.tokens > self.model.window and not refuses_late:
            yield self._too_long(received)

    def _too_long(self, received: Received) -> str:
        if received.path == CHAT:
            return (
                f"This model's maximum context length is {self.model.window} tokens. However, "
                f"your messages resulted in {received.tokens} tokens. Please reduce the length of "
                "the messages."
            )
        return (
            "Your input exceeds the context window of this model. Please adjust your input and "
            "try again."
        )

    def _response_problems(self, received: Received, body: JsonObject) -> list[str]:
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self._conversations:
            return [f"Previous response with id '{previous}' not found."]
        given = body.get("input")
        items = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
        for item in items:
            if item_type(item) == "item_reference" and item.get("id") not in self._stored:
                return [f"Item with id '{item.get('id')}' not found."]
        received.ignored = tuple(self._vain_edits(items))
        effective = self._effective(received)
        return responses_problems(effective) or list(self._without_reasoning(effective["input"]))

    def _vain_edits(self, items: Iterable[JsonObject]) -> Iterator[str]:
        """The ids of *items* that say something else than the stored ones."""
        for item in items:
            stored = self._stored.get(str(item.get("id")), item)
            if item_type(item) == "item_reference":
                continue
            if any(item.get(name) != stored.get(name) for name in SAYING):
                yield item["id"]

    def _without_reasoning(self, items: Sequence[JsonObject]) -> Iterator[str]:
        """Observed: an item by its id comes with the reasoning that led to it."""
        names = {item.get("id") for item in items}
        for item in items:
            name = item.get("id")
            thought = self._reasoned.get(str(name))
            if thought is not None and thought not in names:
                yield (
                    f"Item '{name}' of type '{item_type(item)}' was provided without its "
                    f"required 'reasoning' item: '{thought}'."
                )

    def _effective(self, received: Received) -> JsonDict:
        """The request with all that the API has stored of it."""
        body: JsonDict = {**received.body}
        if received.path == CHAT:
            return body
        before = self._conversations.get(str(body.get("previous_response_id")), [])
        items = body.get("input", [])
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if isinstance(items, list):
            body["input"] = before + [
                self._stored.get(item.get("id", ""), item) if isinstance(item, dict) else item
                for item in items
            ]
        return body

    # Replies --------------------------------------------------------------------------------------

    def _message(self, received: Received, reply: Answer) -> JsonDict:
        effective = self._effective(received)
        usage = self._meter.charge_items(received.prompt, received.cached)
        received.usage = usage
        output = self._meter.output_tokens(reply.blocks)
        if received.path == CHAT:
            return chat_json(
                reply,
                self._numbers,
                name=received.id.replace("req_", "chatcmpl-"),
                model=effective["model"],
                usage=usage,
                output=output,
            )
        items = response_items(reply, self._numbers)
        name = received.id.replace("req_", "resp_")
        self._store(name, effective, items)
        return response_json(reply, items, name=name, body=effective, usage=usage, output=output)

    def _store(self, name: str, body: JsonObject, items: list[JsonDict]) -> None:
        for thought, item in pairwise(items):
            if thought["type"] == "reasoning":
                self._reasoned[item["id"]] = thought["id"]
        if not body.get("store", True):
            return
        for item in items:
            self._stored[item["id"]] = item
        self._conversations[name] = [*body["input"], *items]

    def _events(self, received: Received, message: JsonObject) -> Iterable[bytes]:
        if received.path == RESPONSES:
            return response_events(message)
        options: Any = received.body.get("stream_options") or {}
        return chat_events(message, with_usage=bool(options.get("include_usage")))

    def _error_event(self, failure: Failure, received: Received) -> bytes:
        body = openai_error_json(failure)
        if received.path == CHAT:
            return sse(body)
        return event({**body["error"], "type": "error", "sequence_number": 99})

    def _error_body(self, failure: Failure, received: Received) -> JsonDict:  # noqa: ARG002
        return openai_error_json(failure)

    async def _answer(self, request: Request, received: Received) -> Response:
        """Observed: a stream that begins well may still refuse the prompt."""
        if received.tokens <= self.model.window:
            return await super()._answer(request, received)
        problem = self._too_long(received)
        received.problems = (problem,)
        failed = {
            "id": "resp_late",
            "object": "response",
            "status": "failed",
            "output": [],
            "error": {"code": TOO_LONG, "message": problem},
        }
        return stream_response(response_events(failed), received)
