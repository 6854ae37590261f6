"""The edge to Anthropic's SDK: what a request says, what a reply and its stream tell."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..messages import field

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream, Stream

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


def lendable(client: object) -> AsyncAnthropic | None:
    """The client of the API that *client* is, or is a part of, such as ``client.beta``; None for
    any other.

    A synchronous one would hold the loop, and those of other clouds know the model under another
    name.
    """
    sdk = sys.modules.get("anthropic")  # who has a client has imported it
    for found in (client, getattr(client, "_client", None)):
        if sdk is not None and isinstance(found, sdk.AsyncAnthropic):
            return cast("AsyncAnthropic", found)
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
    if field(event, "type") == "message_start":
        begun = field(event, "message")
        tell(begun)
    elif cleared := field(event, "context_management"):
        told = {name: field(begun, name) for name in ("usage", "model")}
        tell({**told, "context_management": cleared})
    return begun
