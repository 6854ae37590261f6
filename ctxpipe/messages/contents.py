"""The text of a block.

Measuring, offloading, previews, search, evidence and summaries all read texts by these functions. A
block without a text is measured by its size in the request.
"""

from __future__ import annotations

from .vocabulary import OPAQUE, Block, field, kind

_SERVER_FIELDS = ("title", "url", "stdout", "stderr", "error_code")
"""Keys under which results of server tools have texts, in addition to their content."""


def block_text(block: Block) -> str | None:
    """Return the text of *block*; None if it has no readable text.

    Blocks with a text are text blocks, results of tools (also of those that a server runs), search
    results, documents that consist of text, and opaque items, whose text is their JSON.
    """
    name = kind(block)
    if name == "tool_result":
        return result_text(block)
    if name.endswith("_tool_result"):
        return _server_result_text(block)
    return _part_text(block)


def result_text(result: object) -> str:
    """Return the text of a tool result; blocks without a text are named in brackets."""
    content = field(result, "content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join([_text_or_kind(part) for part in content])


def _text_or_kind(part: Block) -> str:
    """Return the text of *part*; its kind in brackets if it has no readable text."""
    text = _part_text(part)
    return f"[{kind(part)}]" if text is None else text


def source_of(block: Block) -> str:
    """Return the title and the address of a search result, or the title of a document.

    "" for other blocks, and if *block* has neither.
    """
    title = _string(block, "title")
    match kind(block):
        case "document":
            return title
        case "search_result":
            source = _string(block, "source")
            return f"{title} ({source})" if title and source else title or source
    return ""


def is_text_part(part: Block) -> bool:
    """Return True if *part* of a message or result consists of text that can be moved to a file.

    False for an opaque item: a request must contain it unchanged, or not at all.
    """
    return kind(part) != OPAQUE and _part_text(part) is not None


# Parts: blocks of a message or a result that are no results -------------------------------------


def _part_text(part: Block) -> str | None:
    """Return the text of *part*; None if it is no text, search result, document or opaque item.

    The text of a search result or document begins with its source.
    """
    match kind(part):
        case "text":
            return field(part, "text") or ""
        case "search_result":
            return _with_source(part, _text_alone(field(part, "content")))
        case "document":
            return _with_source(part, _document_text(part))
        case name if name == OPAQUE:
            return _string(part, "json")
    return None


def _document_text(document: Block) -> str | None:
    """Return the text of a document; None if it is a file, encoded data, or has pictures."""
    source = field(document, "source")
    text: str | None = None
    match field(source, "type"):
        case "text":
            text = _text_alone(field(source, "data"))
        case "content":
            text = _text_alone(field(source, "content"))
    context = _string(document, "context")
    return f"{context}\n\n{text}" if text and context else text


def _with_source(part: Block, text: str | None) -> str | None:
    """Return *text* with the source of *part* as a paragraph before it, if both exist."""
    source = source_of(part)
    return f"{source}\n\n{text}" if text and source else text


def _text_alone(content: object) -> str | None:
    """Return the text of *content*, a text or text blocks; None if it is anything else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return None
    if any(kind(part) != "text" for part in content):
        return None
    return "\n\n".join([field(part, "text") or "" for part in content])


def _string(block: Block, name: str) -> str:
    """Return the field *name* of *block*, or "" if it is no text."""
    value = field(block, name)
    return value if isinstance(value, str) else ""


# Results of tools that a server runs ------------------------------------------------------------


def _server_result_text(result: Block) -> str | None:
    """Return the text of the result of a server's tool; None if it has no readable text.

    Depending on the tool, the content is a text, a list of parts, or one value with its own fields,
    such as the output of a command, or a page with a document in it.
    """
    texts: list[str] = []
    unread: list[object] = [field(result, "content")]
    while unread:
        value = unread.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list | tuple):
            unread += reversed(value)
        elif (text := _part_text(value)) is not None:
            texts.append(text)
        elif kind(value):
            texts += [_string(value, name) for name in _SERVER_FIELDS]
            unread.append(field(value, "content"))
    return "\n".join([text for text in texts if text]) or None
