"""The edge to Anthropic's SDK: what a request says, what a reply and its stream tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from ..messages import field as value_at
from ..settings import SUMMARY_MODEL, is_async
from ..summarizers import AgentAnswer, AgentModel, PromptTooLong
from ..summarizers.anthropic import reply_usage, without_retries

if TYPE_CHECKING:
    from anthropic import AsyncStream, Stream

BETA = "anthropic-beta"


def request_arguments(client: object, request: dict[str, Any]) -> dict[str, Any]:
    """What `Session.run` is to know of a *request*.

    What the SDK calls "not given" is falsy, and None here.
    """
    tools = request.get("tools") or None
    if tools is not None and not isinstance(tools, Sequence):
        tools = request["tools"] = list(tools)  # an iterator can be read once only
    system = request.get("system") or None
    if system is not None and not isinstance(system, Sequence):
        system = request["system"] = list(system)
    headers = dict(request.get("extra_headers") or {})
    default = getattr(client, "default_headers", {}).get(BETA)
    if isinstance(default, str) and not any(name.lower() == BETA for name in headers):
        headers[BETA] = default  # what is added to it must not replace it
    return {"system": system, "tools": tools, "request": {**request, "extra_headers": headers}}


@dataclass(frozen=True, kw_only=True)
class AnthropicModel(AgentModel):
    """The model that an agent asks through *client*, any client of Anthropic's SDK or alike.

    It is that very client, whatever host or cloud it sends to. *options* are arguments of the
    agent's own request that say where and how a request is sent.
    """

    client: Any = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    api: str = "anthropic"

    @property
    def anthropic_client(self) -> object:
        """The client, unless it is a synchronous one."""
        return self.client if is_async(self.client.messages.create) else None

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Ask through the client; one that is synchronous is called in a worker thread."""
        create = partial(
            without_retries(self.client).messages.create,
            **self.options,
            model=model or SUMMARY_MODEL(),
            max_tokens=max_tokens,
            messages=[{"role": "user", "content": prompt}],
        )
        if is_async(create):
            reply = await create()
        else:
            reply = await to_thread.run_sync(create, abandon_on_cancel=True)
            if isawaitable(reply):  # a function that only calls an asynchronous one
                reply = await reply
        if reply.stop_reason == "model_context_window_exceeded":
            raise PromptTooLong("the answer did not fit into the model's window", refused=True)
        text = "".join([block.text for block in reply.content if block.type == "text"])
        return AgentAnswer(text, reply.stop_reason, reply_usage(reply), reply.model)


_SENDING = (
    *("extra_headers", "extra_query", "inference_geo", "metadata", "service_tier"),
    *("user_profile_id", "workspace_id"),
)
"""Arguments of a request that say where it goes and for whom, and not what is asked."""


def lent_model(
    client: object, request: Mapping[str, Any], summary_model: str | None = None
) -> AnthropicModel | None:
    """Return the model that *request* is sent to through *client*, or through its ``beta``.

    None for an object that is no client. *summary_model* is that of `AgentModel`.
    """
    for candidate in (getattr(client, "_client", None), client):
        if callable(getattr(getattr(candidate, "messages", None), "create", None)):
            model = request.get("model")
            return AnthropicModel(
                client=candidate,
                name=model if isinstance(model, str) else None,
                summary_model=summary_model,
                options={name: request[name] for name in _SENDING if request.get(name)},
            )
    return None


def observe_stream(stream: AsyncStream[Any], tell: Callable[[Any], None]) -> None:
    """Have *stream* tell of the message that it begins with, and of what the server has cleared,
    once that is read.
    """

    async def follow(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        begun: Any = None
        async for event in events:
            begun = _tell_of(event, begun, tell)
            yield event

    vars(stream)["_iterator"] = follow(stream._iterator)  # noqa: SLF001  it offers no hook of its own


def observe_sync_stream(stream: Stream[Any], tell: Callable[[Any], None]) -> None:
    """As `observe_stream`, for the stream of a synchronous client."""

    def follow(events: Iterator[Any]) -> Iterator[Any]:
        begun: Any = None
        for event in events:
            begun = _tell_of(event, begun, tell)
            yield event

    vars(stream)["_iterator"] = follow(stream._iterator)  # noqa: SLF001


def _tell_of(event: object, begun: Any, tell: Callable[[Any], None]) -> Any:
    """Tell what *event* says of the usage; the message with which the stream has *begun*."""
    if value_at(event, "type") == "message_start":
        begun = value_at(event, "message")
        tell(begun)
    elif cleared := value_at(event, "context_management"):
        told = {name: value_at(begun, name) for name in ("usage", "model")}
        tell({**told, "context_management": cleared})
    return begun
