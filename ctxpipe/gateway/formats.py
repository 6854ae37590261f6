"""The APIs that the gateway shapes: where their messages are, and what a reply says was billed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..messages import field as read
from ..messages import kind, pending_calls

if TYPE_CHECKING:
    from ..messages import Message
    from .body import Body

__all__ = ["FORMATS", "Format", "History", "format_of"]


@dataclass(frozen=True, slots=True)
class History:
    """The conversation that a request holds, and what a session needs beside it.

    *write* turns the messages of a context into the items of a request.
    """

    messages: list[Message] = field(repr=False)
    arguments: Mapping[str, Any] = field(repr=False)
    write: Callable[[Sequence[Message]], Sequence[Any]] = field(repr=False)


class Format(Protocol):
    """How one API writes a conversation."""

    path: str
    """What the path of a request ends with."""
    key: str
    """Where in the body the list of messages is."""

    def read(self, body: Body) -> History | None:
        """The conversation in *body*; None where it is not the client's to shape."""
        ...

    def reply_in(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """The reply, or the part of one, in *event*: with ``usage`` in the Messages API's form.

        *event* is a whole reply, or an event of a stream.
        """
        ...

    def begins(self, event: Mapping[str, Any]) -> bool:
        """Whether the usage in *event* is that of the prompt, for `Session.observe`."""
        ...


class Messages:
    """Anthropic's Messages API: its messages are ours."""

    path = "/v1/messages"
    key = "messages"

    def read(self, body: Body) -> History | None:
        """The conversation in *body*.

        None where the server is to summarize it or holds it, where it begins with such a summary,
        and where calls have no result yet.
        """
        values = body.values
        if not body.items or values.get("compaction") or values.get("thread"):
            return None
        if not all(isinstance(item, dict) for item in body.items):
            return None
        first = body.items[0].get("content")
        if isinstance(first, list) and any(kind(block) == "compaction" for block in first):
            return None
        if pending_calls(body.items):
            return None
        options = {name: values.get(name) for name in ("thinking", "model", "cache_control")}
        arguments = {
            "system": values.get("system"),
            "tools": values.get("tools"),
            "request": options,
        }
        return History(list(body.items), arguments, _unchanged)

    def reply_in(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """The reply that a stream begins with, its end, or the whole."""
        message = event.get("message")
        return message if isinstance(message, dict) else event

    def begins(self, event: Mapping[str, Any]) -> bool:
        """Whether *event* is a whole reply, or the beginning of a stream."""
        return event.get("type") in {"message", "message_start"}


def _unchanged(messages: Sequence[Message]) -> Sequence[Any]:
    return messages


FORMATS: tuple[Format, ...] = (Messages(),)
"""Every API whose requests are shaped."""


def format_of(method: str, path: str) -> Format | None:
    """The format of a request to *path*, None where it passes as it is."""
    if method != "POST":
        return None
    for known in FORMATS:
        if path.endswith(known.path):
            return known
    return None


def model_of(values: Mapping[str, Any]) -> str | None:
    """The model that a request asks."""
    model = read(values, "model")
    return model if isinstance(model, str) else None
