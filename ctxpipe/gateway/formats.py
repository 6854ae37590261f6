"""The APIs that the gateway shapes: where their conversations are, and what a reply was billed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..edits.breakpoints import with_free_breakpoints
from ..messages import kind, pending_calls
from ..messages.identity import says_the_same
from ..wire import ChatCodec, ResponsesCodec, Translation
from ..wire.usage import openai_usage

if TYPE_CHECKING:
    from ..messages import Message
    from ..wire import Codec
    from .body import Body

__all__ = [
    "FORMATS",
    "Format",
    "History",
    "Translator",
    "format_of",
    "model_of",
]


@dataclass(frozen=True, slots=True)
class History:
    """The conversation that a request holds, and what a session needs beside it.

    *write* turns the messages of a context into the items of a request.
    """

    messages: list[Message] = field(repr=False)
    arguments: Mapping[str, Any] = field(repr=False)
    write: Callable[[list[Message]], Sequence[Any]] = field(repr=False)


class Translator(Protocol):
    """Reads the requests of one conversation, one after the other."""

    def read(self, body: Body) -> History | None:
        """The conversation in *body*; None where calls at its end have no result yet."""
        ...


class Format(Protocol):
    """How one API writes a conversation."""

    path: str
    """What the path of a request ends with."""
    key: str
    """Where in the body its items are."""
    may_refuse_late: bool
    """Whether a stream may be refused after it has begun, with status 200."""

    def is_ours(self, body: Body) -> bool:
        """Whether the client holds the conversation in *body*, and not the provider."""
        ...

    def says_the_same(self, one: Any, other: Any) -> bool:
        """Whether two items say the same."""
        ...

    def is_reply(self, item: Any) -> bool:
        """Whether *item* is of the model."""
        ...

    def new_translator(self) -> Translator:
        """What reads one conversation."""
        ...

    def mark_rewrite(
        self,
        body: Body,
        items: Sequence[Any],
        rewritten: tuple[int, int] | None,
    ) -> Sequence[Any]:
        """*items*, which replace those of *body*, with cache marks around those *rewritten*.

        These are from the one index up to the other; None where none are.
        """
        ...

    def bill_in(self, event: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The reply, or the part of one, in *event*, with ``usage`` as the Messages API writes it.

        *event* is a whole reply, or an event of a stream.
        """
        ...

    def is_whole(self, event: Mapping[str, Any]) -> bool:
        """Whether *event* has the bill of the whole prompt."""
        ...


# Anthropic ----------------------------------------------------------------------------------------


class Messages:
    """Anthropic's Messages API: its messages are ours."""

    path = "/v1/messages"
    key = "messages"
    may_refuse_late = False

    def is_ours(self, body: Body) -> bool:
        """Not where the server is to summarize the conversation, has done so, or holds it."""
        values = body.values
        if values.get("compaction") or values.get("thread"):
            return False
        if not _has_objects(body):
            return False
        first = body.items[0].get("content")
        if not isinstance(first, list):
            return True
        return all(kind(block) != "compaction" for block in first)

    def says_the_same(self, one: Any, other: Any) -> bool:
        """Cache marks and the form of a text make no difference."""
        if one is other:
            return True
        return says_the_same(one, other)

    def is_reply(self, item: Any) -> bool:
        """A message of the assistant."""
        return bool(item.get("role") == "assistant")

    def new_translator(self) -> Translator:
        """There is nothing to translate."""
        return _Unchanged()

    def mark_rewrite(
        self,
        body: Body,
        items: Sequence[Any],
        rewritten: tuple[int, int] | None,
    ) -> Sequence[Any]:
        """With marks where they cost nothing: all before a rewrite is read from the cache then."""
        if rewritten is None:
            return items
        changed = {**body.values, body.key: items}
        marked: Sequence[Any] = with_free_breakpoints(changed, rewritten)[body.key]
        return marked

    def bill_in(self, event: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """That of the message that a stream begins with, of its end, or of the whole reply."""
        message = event.get("message")
        if isinstance(message, dict):
            return message
        return event

    def is_whole(self, event: Mapping[str, Any]) -> bool:
        """A whole reply, or the beginning of a stream."""
        return event.get("type") in {"message", "message_start"}


class _Unchanged:
    """Reads requests whose items are messages."""

    def read(self, body: Body) -> History | None:
        """The conversation in *body*."""
        if pending_calls(body.items):
            return None
        values = body.values
        options = {
            "thinking": values.get("thinking"),
            "model": values.get("model"),
            "cache_control": values.get("cache_control"),
        }
        arguments = {
            "system": values.get("system"),
            "tools": values.get("tools"),
            "request": options,
        }
        messages = list(body.items)
        return History(messages, arguments, _as_they_are)


def _as_they_are(messages: list[Message]) -> Sequence[Any]:
    return messages


# OpenAI -------------------------------------------------------------------------------------------


class _OpenAI:
    """What OpenAI's two forms have in common."""

    def mark_rewrite(
        self,
        body: Body,  # noqa: ARG002
        items: Sequence[Any],
        rewritten: tuple[int, int] | None,  # noqa: ARG002
    ) -> Sequence[Any]:
        """As they are: what is cached needs no marks."""
        return items

    def says_the_same(self, one: Any, other: Any) -> bool:
        """Cache marks make no difference."""
        if one is other:
            return True
        return bool(_without_marks(one) == _without_marks(other))


class Chat(_OpenAI):
    """OpenAI's chat completions."""

    path = "/chat/completions"
    key = "messages"
    may_refuse_late = False

    def is_ours(self, body: Body) -> bool:
        """Always, where there are messages."""
        return _has_objects(body)

    def is_reply(self, item: Any) -> bool:
        """A message of the assistant."""
        return bool(item.get("role") == "assistant")

    def new_translator(self) -> Translator:
        """One by the codec."""
        return _Translated(ChatCodec())

    def bill_in(self, event: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A whole completion, or the last chunk of a stream where the client asked for usage."""
        return _bill(event)

    def is_whole(self, event: Mapping[str, Any]) -> bool:
        """Whatever has a bill."""
        return bool(event.get("usage"))


class Responses(_OpenAI):
    """OpenAI's responses."""

    path = "/responses"
    key = "input"
    may_refuse_late = True

    def is_ours(self, body: Body) -> bool:
        """Not where the server holds what came before."""
        values = body.values
        if values.get("previous_response_id") or values.get("conversation"):
            return False
        return _has_objects(body)

    def is_reply(self, item: Any) -> bool:
        """What the model has said, thought or called."""
        item_type = item.get("type", "message")
        if item_type == "message":
            return bool(item.get("role") == "assistant")
        return not str(item_type).endswith("_output")

    def new_translator(self) -> Translator:
        """One by the codec."""
        return _Translated(ResponsesCodec())

    def bill_in(self, event: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """That of the response at the end of a stream, or of a whole one."""
        response = event.get("response")
        if isinstance(response, dict):
            return _bill(response)
        return _bill(event)

    def is_whole(self, event: Mapping[str, Any]) -> bool:
        """Whatever has a bill."""
        return self.bill_in(event) is not None


class _Translated:
    """Reads requests by a codec, which remembers the last one."""

    def __init__(self, codec: Codec) -> None:
        self._translation = Translation(codec)

    def read(self, body: Body) -> History | None:
        """The conversation in *body*."""
        units = self._translation.read(body.items)
        if not units.messages or pending_calls(units.messages):
            return None
        values = body.values
        instructions = _as_blocks(values.get("instructions"))
        system = [*instructions, *units.system]
        arguments = {
            "system": system or None,
            "tools": values.get("tools"),
            "request": {"model": model_of(values)},
        }

        def write(messages: list[Message]) -> Sequence[Any]:
            return self._translation.items(units, messages)

        return History(units.messages, arguments, write)


def _has_objects(body: Body) -> bool:
    """Whether there are items, and all of them are objects."""
    if not body.items:
        return False
    return all(isinstance(item, dict) for item in body.items)


def _as_blocks(text: object) -> list[dict[str, Any]]:
    if not isinstance(text, str) or not text:
        return []
    return [{"type": "text", "text": text}]


def _bill(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    usage = openai_usage(reply.get("usage"))
    if usage is None:
        return None
    return {
        "model": reply.get("model"),
        "usage": usage,
    }


_MARKS = ("cache_control", "prompt_cache_breakpoint")


def _without_marks(value: Any) -> Any:
    """*value* without the marks of the cache, which clients move from turn to turn."""
    if isinstance(value, dict):
        plain = {}
        for name, inner in value.items():
            if name not in _MARKS:
                plain[name] = _without_marks(inner)
        return plain
    if isinstance(value, list):
        return [_without_marks(inner) for inner in value]
    return value


# Which one ----------------------------------------------------------------------------------------

FORMATS: tuple[Format, ...] = (
    Messages(),
    Chat(),
    Responses(),
)
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
    model = values.get("model")
    if isinstance(model, str):
        return model
    return None
