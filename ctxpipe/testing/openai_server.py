"""OpenAI's chat completions and responses on 127.0.0.1, with rules and answers from a script."""

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
CONTENT_FIELDS = ("content", "arguments", "output", "summary")
"""Fields with the content of an item."""


@dataclass
class OpenAIServer(ScriptedServer):
    """Scripted chat completions and responses for tests: ``async with OpenAIServer([...])``.

    It takes the same scripts and replies as `MessagesServer`. ``tool_use`` becomes a function call,
    ``thinking`` a reasoning item, or ``reasoning_content`` in a chat. Give its *base_url* to the
    SDK.

    Responses are stored, as by the API: a request with ``previous_response_id`` continues a stored
    one. If an input item has the id of a stored item, the stored copy is read in its place, so
    changes in it have no effect; ``Received.ignored`` lists the ids of such items that were
    changed. With *late_refusal*, a streamed response to a prompt that is too long begins with
    status 200 and then fails within the stream.

    Raises SettingsError and MissingExtra like `MessagesServer`.
    """

    _paths = (CHAT, RESPONSES)

    late_refusal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stored_items: dict[str, JsonObject] = {}
        self._conversations: dict[str, list[Any]] = {}
        self._reasoning_ids: dict[str, str] = {}  # item id → id of the reasoning before it

    @property
    def base_url(self) -> str:
        """``base_url`` for the SDK."""
        return f"{self.url}/v1"

    # Requests -------------------------------------------------------------------------------------

    def _early_failure(self, exchange: Received) -> Failure | None:
        """Return the error for a missing API key or a body that is too large, or None."""
        if "authorization" not in exchange.headers:
            return Failure(401, "invalid_request_error", "You didn't provide an API key.")
        if len(exchange.raw) > MAX_BODY_BYTES:
            return Failure(413, "invalid_request_error", "Request body is too large.")
        return None

    def _problems(self, exchange: Received) -> Iterator[str]:
        """Yield the API's errors in the request; read and count the prompt of a valid one.

        A prompt longer than the model's window is an error too, unless the stream is to report it.
        """
        body: Any = exchange.body
        is_chat = exchange.path == CHAT
        error_texts = chat_problems(body) if is_chat else self._response_problems(exchange, body)
        if error_texts:
            yield from error_texts
            return
        key = "messages" if is_chat else "input"
        exchange.prompt = self._meter.read_items(self._effective(exchange), key)
        exchange.tokens = exchange.prompt.tokens
        refuses_late = self.late_refusal and not is_chat and is_stream(exchange)
        if exchange.tokens > self.model.window and not refuses_late:
            yield self._too_long(exchange)

    def _too_long(self, exchange: Received) -> str:
        """Return the error text of the API for a prompt that is too long."""
        if exchange.path == CHAT:
            return (
                f"This model's maximum context length is {self.model.window} tokens. However, "
                f"your messages resulted in {exchange.tokens} tokens. Please reduce the length of "
                "the messages."
            )
        return (
            "Your input exceeds the context window of this model. Please adjust your input and "
            "try again."
        )

    def _response_problems(self, exchange: Received, body: JsonObject) -> list[str]:
        """Return the errors of a request for a response, with stored items filled in."""
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self._conversations:
            return [f"Previous response with id '{previous}' not found."]
        items: list[JsonDict] = []
        input_items = body.get("input")
        if isinstance(input_items, list):
            items = [item for item in input_items if isinstance(item, dict)]
        for item in items:
            if item_type(item) == "item_reference" and item.get("id") not in self._stored_items:
                return [f"Item with id '{item.get('id')}' not found."]
        exchange.ignored = tuple(self._ids_with_lost_edits(items))
        effective = self._effective(exchange)
        return responses_problems(effective) or list(self._missing_reasoning(effective["input"]))

    def _ids_with_lost_edits(self, items: Iterable[JsonObject]) -> Iterator[str]:
        """Yield the ids of *items* whose content differs from the stored copy."""
        for item in items:
            stored_item = self._stored_items.get(str(item.get("id")), item)
            if item_type(item) == "item_reference":
                continue
            if any(item.get(name) != stored_item.get(name) for name in CONTENT_FIELDS):
                yield item["id"]

    def _missing_reasoning(self, items: Sequence[JsonObject]) -> Iterator[str]:
        """Yield an error for each stored item without its reasoning item. Observed."""
        names = {item.get("id") for item in items}
        for item in items:
            name = item.get("id")
            reasoning_id = self._reasoning_ids.get(str(name))
            if reasoning_id is not None and reasoning_id not in names:
                yield (
                    f"Item '{name}' of type '{item_type(item)}' was provided without its "
                    f"required 'reasoning' item: '{reasoning_id}'."
                )

    def _effective(self, exchange: Received) -> JsonDict:
        """Return the request body with previous and referenced items filled in from the store."""
        body: JsonDict = {**exchange.body}
        if exchange.path == CHAT:
            return body
        previous_items = self._conversations.get(str(body.get("previous_response_id")), [])
        items = body.get("input", [])
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if isinstance(items, list):
            body["input"] = previous_items + [
                self._stored_items.get(item.get("id", ""), item) if isinstance(item, dict) else item
                for item in items
            ]
        return body

    # Replies --------------------------------------------------------------------------------------

    def _message(self, exchange: Received, reply: Answer) -> JsonDict:
        """Return the body of the plain answer *reply*, and set the usage of the exchange.

        A response of the Responses API is also stored, if the request does not forbid it.
        """
        effective = self._effective(exchange)
        usage = self._meter.charge_items(exchange.prompt, exchange.cached)
        exchange.usage = usage
        output = self._meter.output_tokens(reply.blocks)
        if exchange.path == CHAT:
            return chat_json(
                reply,
                self._numbers,
                name=exchange.id.replace("req_", "chatcmpl-"),
                model=effective["model"],
                usage=usage,
                output=output,
            )
        items = response_items(reply, self._numbers)
        name = exchange.id.replace("req_", "resp_")
        self._store(name, effective, items)
        return response_json(reply, items, name=name, body=effective, usage=usage, output=output)

    def _store(self, name: str, body: JsonObject, items: list[JsonDict]) -> None:
        """Store the output *items* of the response *name*, for later requests that refer to them.

        If the request *body* has ``store`` False, only the order of reasoning and the items after
        it is remembered.
        """
        for previous_item, item in pairwise(items):
            if previous_item["type"] == "reasoning":
                self._reasoning_ids[item["id"]] = previous_item["id"]
        if not body.get("store", True):
            return
        for item in items:
            self._stored_items[item["id"]] = item
        self._conversations[name] = [*body["input"], *items]

    def _events(self, exchange: Received, message: JsonObject) -> Iterable[bytes]:
        """Return the events of a stream with the answer *message*, in the form of the path."""
        if exchange.path == RESPONSES:
            return response_events(message)
        options: Any = exchange.body.get("stream_options") or {}
        return chat_events(message, with_usage=bool(options.get("include_usage")))

    def _error_event(self, failure: Failure, exchange: Received) -> bytes:
        """Return the event that reports *failure* in a stream."""
        body = openai_error_json(failure)
        if exchange.path == CHAT:
            return sse(body)
        return event({**body["error"], "type": "error", "sequence_number": 99})

    def _error_body(self, failure: Failure, exchange: Received) -> JsonDict:  # noqa: ARG002
        return openai_error_json(failure)

    async def _answer(self, request: Request, exchange: Received) -> Response:
        """Return the response; a prompt that is too long fails within the stream. Observed."""
        if exchange.tokens <= self.model.window:
            return await super()._answer(request, exchange)
        problem = self._too_long(exchange)
        exchange.problems = (problem,)
        failed_response = {
            "id": "resp_late",
            "object": "response",
            "status": "failed",
            "output": [],
            "error": {"code": TOO_LONG, "message": problem},
        }
        return stream_response(response_events(failed_response), exchange)
