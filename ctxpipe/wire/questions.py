"""Send ctxpipe's own questions, such as that for a summary, to the model of a request over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .._threads.threads import in_thread
from .._values import JsonObject
from ..errors import SummaryFailed
from ..summarizers import AgentAnswer, AgentModel
from .formats import Format

Send: TypeAlias = "Callable[[Format, str | None, bytes], Awaitable[HttpAnswer]]"
"""Function that sends a body with the URL and the credentials of the agent's request.

The arguments are the format, the model (None for the model of the agent's request) and the body.
"""

_NOT_REPEATED = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length"),
        *("content-type", "host", "idempotency-key", "transfer-encoding"),
    }
)
_SDK_PREFIX = "x-stainless-"
"""Beginning of the headers in which an SDK describes one request."""
QUESTION_HEADERS: Mapping[str, str] = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
}


@dataclass(frozen=True)
class HttpAnswer:
    """A complete answer to an HTTP request."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)


class QuestionRefused(SummaryFailed):
    """An API has answered a question with an error.

    *response* has the headers and the content, from which the retry layer reads the reason.
    """

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"the API has answered with status {answer.status}")
        self.status_code: int = answer.status
        self.response: HttpAnswer = answer


@dataclass(frozen=True, kw_only=True)
class HttpModel(AgentModel):
    """The model of a request in *format*. Its questions repeat the fields *values* of the request.

    *send* must send a question without shaping it.
    """

    format: Format
    send: Send = field(repr=False)
    values: JsonObject = field(default_factory=dict, repr=False)

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Send *prompt* in the format of the agent's request, and return the answer.

        *model* is by default the agent's own. *max_tokens* is the limit of the answer; only a
        format whose API requires a limit sends it.

        Raises QuestionRefused if the API answers with an error, and SummaryFailed if the answer is
        no JSON object.
        """
        body = self.format.question(self.values, prompt, model or self.name, max_tokens)
        content = await in_thread(encode_body, body)
        other_model = None if model == self.name else model
        answer = await self.send(self.format, other_model, content)
        if answer.status >= 400:
            raise QuestionRefused(answer)
        try:
            reply = json.loads(answer.content)
        except ValueError as error:
            raise SummaryFailed("the answer is not valid JSON") from error
        if not isinstance(reply, dict):
            raise SummaryFailed("the answer is not a JSON object")
        return self.format.answer_in(reply)


def http_model(
    wire_format: Format, values: JsonObject, send: Send, summary_model: str | None = None
) -> HttpModel:
    """Return the model of a request in *wire_format* with the fields *values*.

    *send* sends the requests for summaries. *summary_model* names another model of the same
    provider for them.
    """
    return HttpModel(
        name=wire_format.arguments(values)["request"].get("model"),
        summary_model=summary_model,
        api=wire_format.api,
        format=wire_format,
        send=send,
        values={name: values[name] for name in wire_format.routing if name in values},
    )


def encode_body(body: JsonObject) -> bytes:
    """Return *body* as JSON bytes."""
    return json.dumps(body).encode()


def question_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of a question: those of the agent's request that it may repeat.

    Headers that describe the request's own body or connection are left out.
    """
    repeated_headers = []
    for name, value in headers:
        lower_name = name.lower()
        if lower_name not in _NOT_REPEATED and not lower_name.startswith(_SDK_PREFIX):
            repeated_headers.append((name, value))
    return [*repeated_headers, *QUESTION_HEADERS.items()]
