"""Read the content of a tool result: its text, its size, and the file that a placeholder names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from ...messages import (
    MEDIA,
    Block,
    ToolResult,
    as_dict,
    as_json,
    block_text,
    compact_json,
    inner_blocks,
    is_text_part,
    kind,
    source_of,
    without_surrogates,
)
from ...messages import field as read
from ...placeholders.names import safe_name
from ...placeholders.placeholders import (
    MAX_PREVIEW_CHARS,
    any_reference,
    media_reference,
    reference,
)

ResultContent: TypeAlias = "str | Sequence[Block] | None"  # of a tool result


def has_text(block: Block) -> bool:
    """Return True if *block* holds text other than the placeholder of an image or document."""
    return is_text_part(block) and media_reference(block_text(block)) is None


def is_text(content: ResultContent) -> bool:
    """Return True if a tool result is a string, or one or more text blocks and nothing else.

    A text block that is the placeholder of an image or document does not count as text.
    """
    if isinstance(content, str):
        return True
    if not content:
        return False
    return all(kind(block) == "text" and has_text(block) for block in content)


def text_of(content: ResultContent) -> str:
    """Return the text of a tool result, without that of placeholders of images and documents."""
    if isinstance(content, str):
        return content
    return _join_texts(_parts_with_text(content))


def _parts_with_text(content: Iterable[Block] | None) -> list[Block]:
    return [block for block in content or () if has_text(block)]


def _join_texts(parts: Sequence[Block]) -> str:
    """Return the texts of *parts* in their order.

    If all parts are text blocks, their texts are joined directly. If one of them is another block,
    a blank line separates every two parts.
    """
    separator = "" if all(kind(part) == "text" for part in parts) else "\n\n"
    return separator.join([block_text(part) or "" for part in parts])


def stored_text(content: ResultContent, *, indent: int | None) -> str:
    """Return the text of the file for a tool result.

    A string is stored unchanged. Text blocks are stored as JSON, compact if *indent* is None. If
    other blocks hold text too, such as search results, the file has the plain texts of all blocks.
    """
    if isinstance(content, str):
        return content
    parts = _parts_with_text(content)
    if any(kind(part) != "text" for part in parts):
        return _join_texts(parts)
    return as_json([as_dict(part) for part in parts], indent=indent, ensure_ascii=False)


def plain_text(stored: str) -> str:
    """Return the text of a tool result from the text of its file, which `stored_text` has made."""
    if stored.startswith("["):
        with suppress(ValueError, RecursionError):
            parts = json.loads(stored)
            if all(kind(part) == "text" for part in parts):
                return "\n".join(str(read(part, "text", "")) for part in parts)
    return stored


def sources_in(content: ResultContent) -> list[str]:
    """Return where the search results and documents of a tool result come from, each once."""
    if content is None or isinstance(content, str):
        return []
    sources = [source_of(part) for part in _parts_with_text(content)]
    return list(dict.fromkeys(source for source in sources if source))


def result_characters(content: ResultContent) -> int:
    """Return the size of a tool result's content in characters.

    A string counts its length. Blocks count the length of their compact JSON, without images and
    documents.
    """
    if isinstance(content, str):
        return len(content)
    counted_blocks = [block for block in content or () if kind(block) not in MEDIA]
    return len(compact_json(counted_blocks)) if counted_blocks else 0


def only_text(content: ResultContent) -> str:
    """Return the text of a tool result if it is a string, or its first block is its only text.

    Returns "" otherwise.
    """
    if content is None or isinstance(content, str):
        return content or ""
    parts = _parts_with_text(content)
    if len(parts) != 1 or parts[0] is not content[0] or kind(parts[0]) != "text":
        return ""
    return block_text(parts[0]) or ""


def is_placeholder(content: ResultContent) -> bool:
    """Return True if *content* is only a placeholder of ctxpipe, alone or before images."""
    return reference(only_text(content)) is not None


def with_placeholder(content: ResultContent, text: str) -> str | list[Any]:
    """Return the *content* of a tool result after offloading.

    That is the placeholder *text*, followed by the images and other blocks without text. A cache
    mark on one of the old texts moves to the placeholder.
    """
    if isinstance(content, str) or content is None:
        return text
    others = [block for block in content if not has_text(block)]
    marks = []
    for block in _parts_with_text(content):
        mark = read(block, "cache_control")
        if mark:
            marks.append(mark)
    if not others and not marks:
        return text
    first = {"type": "text", "text": text}
    if marks:
        first["cache_control"] = marks[-1]
    return [first, *others]


def holds_tools(result: ToolResult) -> bool:
    """Return True if *result* loads tools, which the model would lose with it."""
    return any(kind(part) == "tool_reference" for part in inner_blocks(result))


def placeholder_file(call_id: str, text: str) -> str | None:
    """Return the name of the file that the placeholder *text* points to, without its folder.

    *text* is a result of the call *call_id*, or a part of its input. Returns None if *text* is no
    placeholder. A tool may print a text that looks like a placeholder, so this function also
    returns None if the name of the file does not contain *call_id* in its safe form. The caller
    must look for the file only in the folder of the same session.
    """
    path = any_reference(text, MAX_PREVIEW_CHARS)
    if path is None:
        return None
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return name if safe_name(without_surrogates(call_id)) in name else None


def placeholder_files(texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the name of the file of each placeholder in *texts*, by placeholder.

    Each of *texts* is a pair of a call's id and a text.
    """
    files: dict[str, str] = {}
    for call_id, text in texts:
        name = placeholder_file(call_id, text)
        if name is not None:
            files[text] = name
    return files
