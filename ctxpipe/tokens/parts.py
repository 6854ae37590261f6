"""The parts of a message that are counted: texts to encode, and numbers of tokens.

Nothing is added for the frame of a message or a block. The factor that is measured from the API's
usage includes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ..messages import MEDIA, Block, compact_json, field, kind, rebuilt
from . import media

Part: TypeAlias = str | int
"""A text to encode, or a number of tokens."""

RESULTS = frozenset({"tool_result", "mcp_tool_result"})

# Encrypted or encoded content in an unknown block.
_ENCODED = re.compile(r"(?:data:[^,\s]*;base64,)?[A-Za-z0-9+/_\-\r\n]{512,}={0,2}\s*")
_PDF_IN_BASE64 = "JVBERi0"  # "%PDF-"


def content_parts(content: object) -> list[Part]:
    """Return the parts of *content*: a text, blocks, one block, or None.

    This is the content of a message, a tool result or a document. The parts inside of results come
    last.
    """
    parts: list[Part] = []
    # A stack instead of recursion: the API has no result inside a result, but a caller may nest
    # them to any depth.
    contents = [content]
    while contents:
        content = contents.pop()
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list | tuple):
            for block in content:
                name = kind(block)
                if name in RESULTS:
                    contents.append(field(block, "content"))
                else:
                    parts += _parts_of(block, name)
        elif content is not None:
            contents.append([content])
    return parts


def _parts_of(block: Block, name: str) -> Iterable[Part]:
    """Return the parts of *block*, whose kind is *name*."""
    match name:
        case "text" | "thinking":
            return (_as_text(field(block, name)),)
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            call_id = _as_text(field(block, "id"))
            tool = _as_text(field(block, "name"))
            return (call_id, tool, compact_json(field(block, "input", {})))
        case "redacted_thinking":
            return (_base64_tokens(_as_text(field(block, "data"))),)
        case "image":
            return (media.image_tokens(field(block, "source")),)
        case "document":
            return _document(block)
        case _:
            return _unknown(block)


def _document(block: Block) -> Iterator[Part]:
    """Yield title, context and content of a document *block*: texts, and token counts of media."""
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
    """Yield the parts of a document: text and images, and other blocks as JSON."""
    if not isinstance(content, list | tuple):
        yield from content_parts(content)
        return
    for block in content:
        if kind(block) in ("text", "image"):
            yield from content_parts([block])
        else:
            yield compact_json(block)


def _base64_tokens(data: str) -> int:
    """Return the estimated tokens of *data*, encrypted or encoded content in base64.

    Base64 has three bytes in four characters, and a token has about four bytes.
    """
    return len(data) * 3 // 16


def _base64_part(text: str) -> Part:
    """Return the part for *text*, encoded data in base64, which may be a data URL.

    An image counts by its pixels and a PDF by its pages, whatever the API calls the field.
    """
    data = text.rpartition(";base64,")[2]
    if data.startswith(_PDF_IN_BASE64):
        return media.document_part({"data": data})
    if media.size_of(data) is not None:
        return media.image_tokens({"data": data})
    return _base64_tokens(data)


def _unknown(block: Block) -> Iterator[Part]:
    """Yield the parts of a *block* of unknown kind: its JSON, then its encoded data and media."""
    media_parts: list[Part] = []

    def strip(value: Any) -> object:
        """Return *value* without encoded data and media, whose parts go to *media_parts*."""
        if isinstance(value, str):
            if not is_encoded(value):
                return value
            media_parts.append(_base64_part(value))
            return ""
        is_media = isinstance(value, Mapping) and kind(value) in MEDIA
        if is_media and field(value, "source") is not None:
            media_parts.extend(content_parts([value]))
            return None
        return value

    yield compact_json(rebuilt(block, strip))
    yield from media_parts


def is_encoded(text: str) -> bool:
    """Return True if *text* looks like base64: long, no blanks, with both cases and digits."""
    if _ENCODED.fullmatch(text) is None:
        return False
    return all(re.search(pattern, text) for pattern in ("[A-Z]", "[a-z]", "[0-9]"))


def _as_text(value: object) -> str:
    """Return *value* as text: None is empty, any other value its compact JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return compact_json(value)
