"""Reading of requests, clients and streams of Anthropic's SDK."""

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
from ..turn.state import Request

if TYPE_CHECKING:
    from anthropic import AsyncStream, Stream

BETA = "anthropic-beta"


def read_request(client: object, request: dict[str, Any]) -> Request:
    """Return what a turn needs of *request*, which has the arguments of ``client.messages.create``.

    In *request*, system and tools that are iterators are replaced by lists. The SDK's values for
    "not given" become None. The header of betas that *client* sends by default is included.
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
        headers[BETA] = default  # betas that ctxpipe adds must not replace the default ones
    options = {**request, "extra_headers": headers}
    return Request(system, tools, options, agent_model=find_agent_model(client, request))


@dataclass(frozen=True, kw_only=True)
class AnthropicModel(AgentModel):
    """The model that an agent uses through *client*, of Anthropic's SDK or compatible with it.

    Summaries are requested with the same client, and so from the same host or cloud. *options* are
    those arguments of the agent's request that determine where and for whom it is sent.
    """

    client: Any = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    api: str = "anthropic"

    @property
    def anthropic_client(self) -> object:
        """The client if it is async, otherwise None."""
        return self.client if is_async(self.client.messages.create) else None

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Send *prompt* with the client and return the answer.

        A synchronous client is called in a worker thread. Without *model* the model is
        SUMMARY_MODEL. Raises PromptTooLong if the answer did not fit into the context window, and
        the errors of the client.
        """
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
            if isawaitable(reply):  # a plain function that returns the coroutine of an async one
                reply = await reply
        if reply.stop_reason == "model_context_window_exceeded":
            raise PromptTooLong("the answer did not fit into the model's window", refused=True)
        text = "".join([block.text for block in reply.content if block.type == "text"])
        return AgentAnswer(text, reply.stop_reason, reply_usage(reply), reply.model)


_SENDING = (
    *("extra_headers", "extra_query", "inference_geo", "metadata", "service_tier"),
    *("user_profile_id", "workspace_id"),
)
"""Arguments that determine where and for whom a request is sent, but not its contents."""


def find_agent_model(
    client: object, request: Mapping[str, Any], summary_model: str | None = None
) -> AnthropicModel | None:
    """Return the model that answers *request*, with the client that sends it.

    *client* is a client of Anthropic's SDK, or the ``beta`` of one. Returns None for any other
    object. *summary_model* is that of `AgentModel`.
    """
    # The ``beta`` of a client has the client itself in this attribute.
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


def observe_stream(stream: AsyncStream[Any], report: Callable[[Any], None]) -> None:
    """Make *stream* call *report* with the usage of its reply, when the caller reads it.

    *report* gets the message of the first event. If the server cleared old results, it is called
    again with a mapping of that message's usage and model and of the clearing.
    """

    async def follow(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield *events*, and report the usage in them."""
        first_message: Any = None
        async for event in events:
            first_message = _report_usage(event, first_message, report)
            yield event

    vars(stream)["_iterator"] = follow(stream._iterator)  # noqa: SLF001  the SDK has no hook for it


def observe_sync_stream(stream: Stream[Any], report: Callable[[Any], None]) -> None:
    """Do the same as `observe_stream` for the stream of a synchronous client."""

    def follow(events: Iterator[Any]) -> Iterator[Any]:
        """Yield *events*, and report the usage in them."""
        first_message: Any = None
        for event in events:
            first_message = _report_usage(event, first_message, report)
            yield event

    vars(stream)["_iterator"] = follow(stream._iterator)  # noqa: SLF001  the SDK has no hook for it


def _report_usage(event: object, first_message: Any, report: Callable[[Any], None]) -> Any:
    """Call *report* if *event* has usage; return the message with which the stream began."""
    if value_at(event, "type") == "message_start":
        first_message = value_at(event, "message")
        report(first_message)
        return first_message
    cleared_results = value_at(event, "context_management")
    if cleared_results:
        usage = {name: value_at(first_message, name) for name in ("usage", "model")}
        report({**usage, "context_management": cleared_results})
    return first_message
