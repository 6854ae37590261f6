"""Messages API on 127.0.0.1, with the real wire format and rules, and answers from a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .._values import JsonDict, JsonObject
from .replies import Answer, Failure, error_json, event, message_json, stream_events
from .rules import THINKING, problems
from .scripted import MAX_BODY_BYTES, Received, ScriptedServer, json_response
from .signatures import sign, verify

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MESSAGES = "/v1/messages"
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
ID_PREFIXES = {"tool_use": "toolu", "server_tool_use": "srvtoolu", "mcp_tool_use": "mcptoolu"}


class MessagesServer(ScriptedServer):
    """Scripted Messages API for tests: ``async with MessagesServer([...]) as server``.

    *script* has the replies in order (any iterable of them), or is a function, which may be async,
    that gets the body of a request and returns the reply. A reply is a text, an `answer` with
    blocks, a `Failure` such as `rate_limited`, a `Cut` or a `Hang`. *model* has the limits of the
    simulated model, *counter* counts its tokens, and *clock* is the time in seconds by which the
    simulated prompt cache expires.

    The server runs in the caller's event loop on a free port of 127.0.0.1. Give its *url* to the
    SDK as ``base_url``. At the end of the block it stops and closes every connection. Each request
    is checked against the API's rules; if it breaks one, it is answered with 400 and takes no reply
    from the script. *requests* has every request as a `Received`; *refused* has those that broke a
    rule.

    An error in the script, or a request after its last reply, is answered with 500 and raised at
    the end of the block. Raises SettingsError if *script* is a single text. Entering the block
    raises MissingExtra if starlette or uvicorn is not installed.
    """

    _paths = (MESSAGES, COUNT_TOKENS)

    @property
    def calls(self) -> int:
        """Number of requests for a message, including refused ones."""
        return [request.path for request in self.requests].count(MESSAGES)

    # Requests -------------------------------------------------------------------------------------

    def _early_failure(self, exchange: Received) -> Failure | None:
        """Return the error for a missing header or a body that is too large, or None."""
        headers = exchange.headers
        if "x-api-key" not in headers and "authorization" not in headers:
            return Failure(401, "authentication_error", "x-api-key header is required")
        if "anthropic-version" not in headers:
            return Failure(400, "invalid_request_error", "anthropic-version: header is required")
        if len(exchange.raw) > MAX_BODY_BYTES:
            return Failure(413, "request_too_large", "Request exceeds the maximum size")
        return None

    def _problems(self, exchange: Received) -> Iterator[str]:
        """Yield the API's errors in the request; read and count the prompt of a valid one.

        Signatures of thinking are checked too. A prompt longer than the model's window is an error,
        unless the request only counts tokens.
        """
        counting = exchange.path == COUNT_TOKENS
        invalid = problems(exchange.body, self.model, counting=counting)
        if invalid:
            yield from invalid
            return
        betas = exchange.headers.get("anthropic-beta", "")
        error_texts, dropped_paths = verify(exchange.body, self.model, betas)
        exchange.dropped = tuple(dropped_paths)
        yield from error_texts
        exchange.prompt = self._meter.read(exchange.body, betas)
        exchange.tokens = exchange.prompt.tokens
        if exchange.tokens > self.model.window and not counting:
            yield f"prompt is too long: {exchange.tokens} tokens > {self.model.window} maximum"

    # Replies --------------------------------------------------------------------------------------

    async def _answer(self, request: Request, exchange: Received) -> Response:
        """Return the response to a valid request: the token count, or the script's next reply."""
        if exchange.path == COUNT_TOKENS:
            return json_response({"input_tokens": exchange.tokens}, exchange)
        return await super()._answer(request, exchange)

    def _message(self, exchange: Received, reply: Answer) -> JsonDict:
        """Return the body of the plain answer *reply*, and set the usage of the exchange.

        Blocks get their ids, thinking its signature.
        """
        exchange.usage = self._meter.charge(exchange.prompt, exchange.cached)
        blocks = [self._with_id(block) for block in reply.blocks]
        if any(block["type"] in THINKING for block in blocks):
            blocks = sign(exchange.body, blocks)
        message = message_json(
            reply,
            blocks,
            name=exchange.id.replace("req_", "msg_"),
            model=exchange.body["model"],
            usage=exchange.usage.as_dict(self._meter.output_tokens(blocks)),
        )
        if exchange.dropped:
            transformation = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
            message["input_transformations"] = [
                {**transformation, "path": path} for path in exchange.dropped
            ]
        return message

    def _with_id(self, block: JsonObject) -> JsonDict:
        """Return *block* with a new id, if its kind has one and it has none yet."""
        prefix = ID_PREFIXES.get(str(block["type"]))
        if prefix is None or block.get("id") is not None:
            return dict(block)
        return {**block, "id": f"{prefix}_{next(self._numbers):022d}"}

    def _events(self, exchange: Received, message: JsonObject) -> Iterable[bytes]:  # noqa: ARG002
        return (event(one) for one in stream_events(message))

    def _error_body(self, failure: Failure, exchange: Received) -> JsonDict:
        return error_json(failure, exchange.id)
