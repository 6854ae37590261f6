"""Gemini's ``generateContent`` on 127.0.0.1, with the API's rules and answers from a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .._values import JsonDict, JsonObject
from .gemini_rules import CALL, SIGNATURE, gemini_problems, signature_of
from .replies import Answer, Failure, chunks, sse
from .scripted import STREAMING, Received, ScriptedServer

VERTEX = "/v1/projects/{project}/locations/{place}/publishers/google/models/{model}"
STATUSES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    529: "UNAVAILABLE",
}
FINISH = {"max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}


@dataclass(slots=True)
class GeminiServer(ScriptedServer):
    """A scripted Gemini API for tests: ``async with GeminiServer([...])``.

    It takes the same scripts and replies as `MessagesServer`. ``tool_use`` becomes a function call,
    with an id only if the script sets one. Give its *url* to the SDK as ``base_url``; Vertex's
    paths work too. The first call of a reply is signed, and models whose names begin with
    "gemini-3" require its signature. Streams are server-sent events.

    Raises SettingsError and MissingExtra like `MessagesServer`.
    """

    _paths = tuple(
        base + method
        for base in ("/{version}/models/{model}", VERTEX)
        for method in (":generateContent", STREAMING)
    )

    # Requests -------------------------------------------------------------------------------------

    def _early_failure(self, exchange: Received) -> Failure | None:
        """Return the error for a missing API key, or None."""
        if exchange.headers.keys().isdisjoint(("x-goog-api-key", "authorization")):
            return Failure(403, "", "Method doesn't allow unregistered callers.")
        return None

    def _problems(self, exchange: Received) -> Iterator[str]:
        """Yield the API's errors in the request; read and count the prompt of a valid one.

        A prompt longer than the model's window is an error too.
        """
        body: JsonDict = {**exchange.body, "model": _model(exchange)}
        error_texts = gemini_problems(body)
        if error_texts:
            yield from error_texts
            return
        body["instructions"] = body.get("systemInstruction")
        exchange.prompt = self._meter.read_items(body, "contents")
        exchange.tokens = exchange.prompt.tokens
        if exchange.tokens > self.model.window:
            yield (
                f"The input token count ({exchange.tokens}) exceeds the maximum number of tokens "
                f"allowed ({self.model.window})."
            )

    # Replies --------------------------------------------------------------------------------------

    def _message(self, exchange: Received, reply: Answer) -> JsonDict:
        """Return the body of the plain answer *reply*, and set the usage of the exchange.

        The first call gets a signature.
        """
        usage = self._meter.charge_items(exchange.prompt, exchange.cached)
        exchange.usage = usage
        output = self._meter.output_tokens(reply.blocks)
        parts = [_part(block) for block in reply.blocks]
        call = next((part for part in parts if CALL in part), None)
        if call is not None:
            call[SIGNATURE] = signature_of(call[CALL]["name"])
        return {
            "candidates": [
                {
                    "content": {"role": "model", "parts": parts},
                    "finishReason": FINISH.get(reply.reason, "STOP"),
                    "index": 0,
                }
            ],
            "usageMetadata": {
                "promptTokenCount": usage.total,
                "cachedContentTokenCount": usage.cache_read_input_tokens,
                "candidatesTokenCount": output,
                "totalTokenCount": usage.total + output,
            },
            "modelVersion": _model(exchange),
            "responseId": exchange.id,
        }

    def _events(self, exchange: Received, message: JsonObject) -> Iterable[bytes]:  # noqa: ARG002
        """Yield the events of a stream with the answer *message*; the last one has its end."""
        [whole] = message["candidates"]
        *first, last = list(_pieces(whole["content"]["parts"])) or [{"text": ""}]
        for part in first:
            yield sse({**message, "candidates": [_candidate(part)]})
        yield sse({**message, "candidates": [{**whole, **_candidate(last)}]})

    def _error_event(self, failure: Failure, exchange: Received) -> bytes:
        return sse(self._error_body(failure, exchange))

    def _error_body(self, failure: Failure, exchange: Received) -> JsonDict:  # noqa: ARG002
        """Return the body with which Gemini's API reports *failure*."""
        status = STATUSES.get(failure.status, "INTERNAL")
        error = {"code": failure.status, "message": failure.message, "status": status}
        return {"error": error}


def _candidate(part: JsonDict) -> JsonDict:
    return {"content": {"role": "model", "parts": [part]}, "index": 0}


def _model(exchange: Received) -> str:
    return exchange.path.rpartition("/")[2].partition(":")[0]


def _part(block: JsonObject) -> JsonDict:
    """Return *block* as a part of Gemini's content."""
    match block["type"]:
        case "tool_use":
            call = {"name": block["name"], "args": block["input"]}
            return {CALL: call if block["id"] is None else {"id": block["id"], **call}}
        case "thinking":
            return {"text": block["thinking"], "thought": True}
    return {"text": block["text"]}


def _pieces(parts: Iterable[JsonDict]) -> Iterator[JsonDict]:
    """Yield *parts* in their streamed form: calls whole, texts in pieces."""
    for part in parts:
        if CALL in part:
            yield part
        for text in chunks(part.get("text", "")):
            yield {**part, "text": text}
