"""The Messages API on 127.0.0.1: the real wire format, the real rules, answers from a script."""

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
    """A scripted Messages API for tests: ``async with MessagesServer([...]) as server``.

    It runs in the caller's event loop on a free port of 127.0.0.1, and ends with every connection
    when the block ends. Each request is checked by the API's rules and answered 400 when it breaks
    one; such a request takes no reply from the script. *requests* contains everything that came in.
    Give its *url* to the SDK as ``base_url``.

    An error in the script, or a request after its last reply, is answered 500 and raised again when
    the block ends. Raises SettingsError when *script* is a single text. Entering it raises
    MissingExtra when starlette or uvicorn is not installed.
    """

    _paths = (MESSAGES, COUNT_TOKENS)

    @property
    def calls(self) -> int:
        """The number of messages that were asked for, refused ones included."""
        return [request.path for request in self.requests].count(MESSAGES)

    # Requests -------------------------------------------------------------------------------------

    def _early_failure(self, received: Received) -> Failure | None:
        headers = received.headers
        if "x-api-key" not in headers and "authorization" not in headers:
            return Failure(401, "authentication_error", "x-api-key header is required")
        if "anthropic-version" not in headers:
            return Failure(400, "invalid_request_error", "anthropic-version: header is required")
        if len(received.raw) > MAX_BODY_BYTES:
            return Failure(413, "request_too_large", "Request exceeds the maximum size")
        return None

    def _problems(self, received: Received) -> Iterator[str]:
        counting = received.path == COUNT_TOKENS
        invalid = problems(received.body, self.model, counting=counting)
        if invalid:
            yield from invalid
            return
        betas = received.headers.get("anthropic-beta", "")
        refused, dropped = verify(received.body, self.model, betas)
        received.dropped = tuple(dropped)
        yield from refused
        received.prompt = self._meter.read(received.body, betas)
        received.tokens = received.prompt.tokens
        if received.tokens > self.model.window and not counting:
            yield f"prompt is too long: {received.tokens} tokens > {self.model.window} maximum"

    # Replies --------------------------------------------------------------------------------------

    async def _answer(self, request: Request, received: Received) -> Response:
        if received.path == COUNT_TOKENS:
            return json_response({"input_tokens": received.tokens}, received)
        return await super()._answer(request, received)

    def _message(self, received: Received, reply: Answer) -> JsonDict:
        received.usage = self._meter.charge(received.prompt, received.cached)
        blocks = [self._with_id(block) for block in reply.blocks]
        if any(block["type"] in THINKING for block in blocks):
            blocks = sign(received.body, blocks)
        message = message_json(
            reply,
            blocks,
            name=received.id.replace("req_", "msg_"),
            model=received.body["model"],
            usage=received.usage.as_dict(self._meter.output_tokens(blocks)),
        )
        if received.dropped:
            notice = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
            message["input_transformations"] = [
                {**notice, "path": path} for path in received.dropped
            ]
        return message

    def _with_id(self, block: JsonObject) -> JsonDict:
        prefix = ID_PREFIXES.get(str(block["type"]))
        if prefix is None or block.get("id") is not None:
            return dict(block)
        return {**block, "id": f"{prefix}_{next(self._numbers):022d}"}

    def _events(self, received: Received, message: JsonObject) -> Iterable[bytes]:  # noqa: ARG002
        return map(event, stream_events(message))

    def _error_body(self, failure: Failure, received: Received) -> JsonDict:
        return error_json(failure, received.id)
