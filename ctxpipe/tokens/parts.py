"""The parts of a message that are counted: texts to tokenize, and numbers that are known already.

Nothing is added for the frame of a message or a block: the factor that the API's bill gives
includes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ..messages import MEDIA, Block, compact_json, field, kind, rebuilt
from . import media

Part: TypeAlias = str | int
"""A text whose tokens count, or a number of tokens."""

RESULTS = frozenset({"tool_result", "mcp_tool_result"})

# Encrypted or encoded content, at any depth of an unknown block: counted by what it may hold.
_ENCODED = re.compile(r"(?:data:[\w.+/-]+;base64,)?[A-Za-z0-9+/_\-\r\n]{512,}={0,2}\s*")


def content_parts(content: object) -> list[Part]:
    """The parts of what a message, a tool result or a document may hold: a text, blocks, or None.

    Those inside results come last.
    """
    found: list[Part] = []
    todo = [content]
    while todo:  # the API has no result inside a result, but one may be nested to any depth
        held = todo.pop()
        if isinstance(held, str):
            found.append(held)
        elif isinstance(held, list | tuple):
            for block in held:
                name = kind(block)
                if name in RESULTS:
                    todo.append(field(block, "content"))
                else:
                    found += _parts_of(block, name)
        elif held is not None:
            todo.append([held])
    return found


def _parts_of(block: Block, name: str) -> Iterable[Part]:
    """The parts of *block*, of the kind *name*."""
    match name:
        case "text" | "thinking":
            return (_as_text(field(block, name)),)
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            made = _as_text(field(block, "id")), _as_text(field(block, "name"))
            return (*made, compact_json(field(block, "input", {})))
        case "redacted_thinking":
            return (_base64_tokens(_as_text(field(block, "data"))),)
        case "image":
            return (media.image_tokens(field(block, "source")),)
        case "document":
            return _document(block)
        case _:
            return _unknown(block)


def _document(block: Block) -> Iterator[Part]:
    source = field(block, "source")
    yield _as_text(field(block, "title"))
    yield _as_text(field(block, "context"))
    match field(source, "type"):
        case "text":
            yield _as_text(field(source, "data"))
        case "content":
            yield from _document_parts(field(source, "content"))
        case _:
            yield media.document_part(source)


def _document_parts(content: object) -> Iterator[Part]:
    """The parts of a document: text and images, and anything else as the JSON that is sent."""
    if not isinstance(content, list | tuple):
        yield from content_parts(content)
        return
    for block in content:
        if kind(block) in ("text", "image"):
            yield from content_parts([block])
        else:
            yield compact_json(block)


def _base64_tokens(data: str) -> int:
    """Return the tokens of what *data*, cipher text or the like in base64, may hold.

    Base64 has three bytes in four characters, and a token has about four bytes.
    """
    return len(data) * 3 // 16


def _unknown(block: Block) -> Iterator[Part]:
    media_parts: list[Part] = []

    def strip(value: Any) -> object:
        """*value* without encoded data, images and documents: these go to *media_parts*."""
        if isinstance(value, str):
            if not is_encoded(value):
                return value
            media_parts.append(_base64_tokens(value))
            return ""
        is_media = isinstance(value, Mapping) and kind(value) in MEDIA
        if is_media and field(value, "source") is not None:
            media_parts.extend(content_parts([value]))
            return None
        return value

    yield compact_json(rebuilt(block, strip))
    yield from media_parts


def is_encoded(text: str) -> bool:
    """Whether *text* is base64 or the like: long, no blank, with both cases and digits in it."""
    if _ENCODED.fullmatch(text) is None:
        return False
    return all(re.search(pattern, text) for pattern in ("[A-Z]", "[a-z]", "[0-9]"))


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return compact_json(value)
