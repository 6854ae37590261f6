"""What of a message is counted: texts to be tokenised, and numbers where the size is known
otherwise.

Nothing is added for the frame of a message or a block: the factor that the API's bill gives absorbs
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ..messages import MEDIA, Block, Message, compact_json, field, kind, rebuilt
from . import media

__all__ = ["Part", "block_parts", "content_parts", "message_parts"]

Part: TypeAlias = str | int
"""A text whose tokens count, or a number of tokens."""

RESULTS = frozenset({"tool_result", "mcp_tool_result"})

AsJson: TypeAlias = Callable[[object], str]

# Encrypted or encoded content, at any depth of a block we do not know: never counted by its length.
_ENCODED = re.compile(r"(?:data:[\w.+/-]+;base64,)?[A-Za-z0-9+/_\-\r\n]{512,}={0,2}\s*")


def message_parts(message: Message, as_json: AsJson) -> Iterator[Part]:
    return content_parts(field(message, "content"), as_json)


def content_parts(content: object, as_json: AsJson) -> Iterator[Part]:
    """Bare text, blocks, or nothing: what a message, a tool result or a document may hold."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list | tuple):
        for block in content:
            yield from block_parts(block, as_json)
    elif content is not None:
        yield from block_parts(content, as_json)


def block_parts(block: Block, as_json: AsJson) -> Iterable[Part]:
    """The parts of one block. Source: UP-1 to UP-3, A-05, A-30."""
    read = _READERS.get(kind(block))
    return read(block, as_json) if read else _unknown(block)


def _text(block: Block, _: AsJson) -> Iterable[Part]:
    return (_as_text(field(block, "text")),)


def _tool_use(block: Block, as_json: AsJson) -> Iterable[Part]:
    return (
        _as_text(field(block, "id")),
        _as_text(field(block, "name")),
        as_json(field(block, "input", {})),
    )


def _tool_result(block: Block, as_json: AsJson) -> Iterator[Part]:
    todo = [field(block, "content")]
    while todo:  # a result inside a result is none that the API has, but may lie however deep
        content = todo.pop()
        if not isinstance(content, list | tuple):
            yield from content_parts(content, as_json)
            continue
        for held in content:
            if kind(held) in RESULTS:
                todo.append(field(held, "content"))
            else:
                yield from block_parts(held, as_json)


def _thinking(block: Block, _: AsJson) -> Iterable[Part]:
    return (_as_text(field(block, "thinking")),)


def _redacted_thinking(block: Block, _: AsJson) -> Iterable[Part]:
    # Cipher text in base64: three bytes in four characters, and about four bytes of thinking to a
    # token.
    return (len(_as_text(field(block, "data"))) * 3 // 16,)


def _image(block: Block, _: AsJson) -> Iterable[Part]:
    return (media.image_tokens(field(block, "source")),)


def _document(block: Block, as_json: AsJson) -> Iterator[Part]:
    source = field(block, "source")
    yield _as_text(field(block, "title"))
    yield _as_text(field(block, "context"))
    match field(source, "type"):
        case "text":
            yield _as_text(field(source, "data"))
        case "content":
            yield from _document_parts(field(source, "content"), as_json)
        case _:
            yield media.document_tokens(source)


def _document_parts(content: object, as_json: AsJson) -> Iterator[Part]:
    """What a document holds: text and images, or anything else as the text that is sent."""
    if not isinstance(content, list | tuple):
        yield from content_parts(content, as_json)
        return
    for block in content:
        yield from (
            block_parts(block, as_json)
            if kind(block) in ("text", "image")
            else (compact_json(block),)
        )


def _unknown(block: Block) -> Iterator[Part]:
    found: list[Part] = []

    def counted(value: Any) -> object:
        """*value* without encoded data; the sizes of images and documents go to *found*."""
        if isinstance(value, str):
            return "" if is_encoded(value) else value
        if (
            isinstance(value, Mapping)
            and kind(value) in MEDIA
            and field(value, "source") is not None
        ):
            found.extend(block_parts(value, compact_json))
            return None
        return value

    yield compact_json(rebuilt(block, counted))
    yield from found


def is_encoded(text: str) -> bool:
    """Whether *text* is base64 or the like: long, no blank, and upper case, lower case and digits
    all in it.
    """
    return (
        len(text) >= 512
        and _ENCODED.fullmatch(text) is not None
        and all(re.search(one, text) for one in ("[A-Z]", "[a-z]", "[0-9]"))
    )


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else compact_json(value)


_READERS: dict[str, Callable[[Block, AsJson], Iterable[Part]]] = {
    "text": _text,
    "tool_use": _tool_use,
    "server_tool_use": _tool_use,
    "mcp_tool_use": _tool_use,
    "tool_result": _tool_result,
    "mcp_tool_result": _tool_result,
    "thinking": _thinking,
    "redacted_thinking": _redacted_thinking,
    "image": _image,
    "document": _document,
}
