"""The model behind a request for it, asked a question of ctxpipe's own over HTTP."""

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
"""Sends a body in a format with the URL and the credentials of the agent's request.

The second argument is the model; None for that of the agent's request.
"""

_NOT_REPEATED = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-encoding", "content-length"),
        *("content-type", "host", "idempotency-key", "transfer-encoding"),
    }
)
_OF_ONE_REQUEST = "x-stainless-"
"""How headers begin in which an SDK describes one request."""
QUESTION_HEADERS: Mapping[str, str] = {
    "accept": "application/json",
    "accept-encoding": "identity",
    "content-type": "application/json",
}


@dataclass(frozen=True)
class HttpAnswer:
    """The answer to an HTTP request, read to its end."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)


class QuestionRefused(SummaryFailed):
    """An API has answered a question with an error.

    *response* has its headers and its content, in which the retry layer looks for what it says.
    """

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(f"the API has answered with status {answer.status}")
        self.status_code: int = answer.status
        self.response: HttpAnswer = answer


@dataclass(frozen=True, kw_only=True)
class HttpModel(AgentModel):
    """The model that a request in *format* goes to; *values* are what a question repeats of it.

    *send* is below whatever shapes the agent's requests.
    """

    format: Format
    send: Send = field(repr=False)
    values: JsonObject = field(default_factory=dict, repr=False)

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Ask in the format of the agent's request. Raises QuestionRefused for an error."""
        body = self.format.question(self.values, prompt, model or self.name, max_tokens)
        content = await in_thread(encode_body, body)
        answer = await self.send(self.format, None if model == self.name else model, content)
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
    known: Format, values: JsonObject, send: Send, summary_model: str | None = None
) -> HttpModel:
    """Return the model that a request in the format *known* with *values* goes to."""
    return HttpModel(
        name=known.arguments(values)["request"].get("model"),
        summary_model=summary_model,
        api=known.api,
        format=known,
        send=send,
        values={name: values[name] for name in known.routing if name in values},
    )


def encode_body(body: JsonObject) -> bytes:
    """Return *body* as it is sent."""
    return json.dumps(body).encode()


def question_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of a question, from those of the agent's request."""
    kept = []
    for name, value in headers:
        lowered = name.lower()
        if lowered not in _NOT_REPEATED and not lowered.startswith(_OF_ONE_REQUEST):
            kept.append((name, value))
    return [*kept, *QUESTION_HEADERS.items()]
