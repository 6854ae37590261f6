"""Convert parts of foreign items to blocks of the Messages API, and back.

The functions are shared by all codecs: texts, calls and their arguments, results, thinking, images
and documents, and the opaque blocks for everything unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, TypeGuard, cast

from .._values import JsonDict, JsonObject, canonical_json, sendable
from ..errors import InvalidHistory
from ..messages import (
    OPAQUE,
    as_dict,
    compact_json,
    contents,
    field,
    is_blank,
    is_encodable,
    kind,
    rebuilt,
    without_surrogates,
)
from ..messages.vocabulary import INSTRUCTION, UNSIGNED
from ..stages.media.selection import is_movable

RAW = "_raw"
"""Key for the arguments of a call that are no JSON object."""

CACHE_FIELDS = ("cache_control", "prompt_cache_breakpoint")
"""Fields by which foreign items place cache breakpoints; they are no content."""

Blocks: TypeAlias = list[JsonObject]

MAX_ENCODED = 1_000
"""Maximum length of encoded data, such as base64, that an opaque text shows."""
_MAX_DIGITS = 4_000
"""Maximum digits of an integer; Python refuses to write more than 4,300."""
_BLANK = frozenset(" \t\r\n")


def first_field(holder: object, *names: str) -> Any:
    """Return the first value that is not None among the fields *names* of *holder*, else None."""
    for name in names:
        value = field(holder, name)
        if value is not None:
            return value
    return None


def text_block(text: str) -> JsonDict:
    """Return a text block; lone surrogates, which cannot be sent, are removed from *text*."""
    return {"type": "text", "text": without_surrogates(text)}


def has_text(value: object) -> TypeGuard[str]:
    """Return True if *value* is a text that is not blank; the API refuses blank text blocks."""
    return isinstance(value, str) and not is_blank(value)


def text_or_opaque(
    text: object, value: object, unknown: Callable[[object], JsonDict] | None = None
) -> JsonDict:
    """Return a text block with *text*, or a block for *value* if *text* cannot be in a text block.

    *unknown* converts a *value* without a text, by default `opaque_block`. A value with a blank
    text always becomes a text block with its JSON.
    """
    if has_text(text):
        return text_block(text)
    if unknown is None or isinstance(text, str):
        return opaque_block(value)
    return unknown(value)


def use_block(call: object, name: object, arguments: object) -> JsonDict:
    """Return a tool_use block: the call with the id *call*, of the tool *name*."""
    return {"type": "tool_use", "id": call, "name": str(name or ""), "input": arguments}


def result_block(call: object, content: object) -> JsonDict:
    """Return a tool_result block for the call with the id *call*."""
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def content_blocks(content: object, read_part: Callable[[Any], JsonDict]) -> list[JsonDict]:
    """Return the blocks of a foreign *content*: a text, a list of parts, or None.

    *read_part* converts a part, or the text, to a block.
    """
    if content is None or content == "":
        return []
    parts = content if isinstance(content, list | tuple) else [content]
    return [read_part(part) for part in parts]


def read_result(call: object, content: object, read_part: Callable[[Any], JsonDict]) -> JsonDict:
    """Return a tool_result block for the call with the id *call* and a foreign *content*.

    A text stays a text, without lone surrogates; None becomes "". *read_part* converts each part of
    any other content to a block.
    """
    if content is None or isinstance(content, str):
        return result_block(call, without_surrogates(content or ""))
    return result_block(call, content_blocks(content, read_part))


def split_blocks(blocks: Iterable[JsonObject]) -> tuple[Blocks, Blocks, Blocks]:
    """Split *blocks* into results, calls and all others: foreign items store them separately."""
    results: Blocks = []
    calls: Blocks = []
    others: Blocks = []
    for block in blocks:
        match kind(block):
            case "tool_result":
                results.append(block)
            case "tool_use":
                calls.append(block)
            case _:
                others.append(block)
    return results, calls, others


def thinking_block(thought: str | None, signature: object = None) -> JsonDict:
    """Return a thinking block, or a redacted one if *thought* is None.

    *signature* is the provider's proof that the model wrote the thought, or the encrypted thought.
    """
    signature = signature or UNSIGNED
    if thought is None:
        return {"type": "redacted_thinking", "data": str(signature)}
    thought = without_surrogates(thought)
    return {"type": "thinking", "thinking": thought, "signature": str(signature)}


def block_text(block: object) -> str:
    """Return *block* as text, for an API without such a block: its text, or its JSON."""
    text = contents.block_text(block)
    return compact_json(block) if text is None else text


def join_texts(blocks: Iterable[object]) -> str:
    """Return *blocks* as one text, with a line break between them."""
    return "\n".join([block_text(block) for block in blocks])


def result_text(content: object) -> str:
    """Return the content of a tool_result block as one text."""
    return content if isinstance(content, str) else join_texts(result_blocks(content))


def result_blocks(content: object) -> list[JsonObject]:
    """Return the content of a tool_result block as blocks: none for None or "", one for a text."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [text_block(content)]
    return list(cast("Iterable[JsonObject]", content))


def take_part(parts: list[tuple[Any, Any]], block: JsonObject) -> tuple[Any, Any]:
    """Remove the part for *block* from *parts*, and return it.

    Each element of *parts* is a pair of a block and the foreign part that was read as that block.
    The part for *block* is the first one whose block is equal; otherwise, for a call or result, the
    first one with the same id. Returns (None, None) if there is none.
    """
    matches = [pair for pair in parts if pair[0] == block]
    name = first_field(block, "id", "tool_use_id")
    if not matches and name is not None:
        matches = [pair for pair in parts if first_field(pair[0], "id", "tool_use_id") == name]
    if not matches:
        return None, None
    parts.remove(matches[0])
    return matches[0]


# Arguments of calls -------------------------------------------------------------------------------


def arguments_object(arguments: object) -> JsonDict:
    """Return the *arguments* of a foreign call, a JSON text or a mapping, as a JSON object.

    Other values, and texts that are no JSON object, become the value of the key `RAW`.
    """
    if isinstance(arguments, Mapping):
        return cast("JsonDict", sendable(arguments))
    if not isinstance(arguments, str):
        return {} if arguments is None else {RAW: arguments}
    if not arguments or arguments == "{}":
        return {}
    try:
        value = json.loads(arguments, parse_constant=_refuse_constant, parse_int=_parse_integer)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return {RAW: without_surrogates(arguments)}
    if "\\ud" in arguments or "\\uD" in arguments or not is_encodable(arguments):
        return cast("JsonDict", sendable(value))
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _parse_integer(digits: str) -> int:
    """Return *digits* as a number. Raises ValueError if there are too many of them."""
    if len(digits) > _MAX_DIGITS:
        raise ValueError("a number that cannot be written again")
    return int(digits)


def arguments_json(arguments: JsonObject) -> str:
    """Return the input of a call as JSON; a text that was no valid JSON is returned unchanged."""
    if list(arguments) == [RAW] and isinstance(arguments[RAW], str):
        return cast("str", arguments[RAW])
    return compact_json(arguments)


# Parts of contents --------------------------------------------------------------------------------


def image_block(url: object) -> JsonDict | None:
    """Return an image block for *url*, which may be a data URL; None without a URL."""
    if not isinstance(url, str) or not url:
        return None
    return {"type": "image", "source": _data_source(url) or {"type": "url", "url": url}}


def image_by_id(file_id: object) -> JsonDict | None:
    """Return an image block for a file that the provider stores; None without an id."""
    if not isinstance(file_id, str) or not file_id:
        return None
    return {"type": "image", "source": {"type": "file", "file_id": file_id}}


def document_block(file: object) -> JsonDict | None:
    """Return a document block for *file*, in the form of the responses API.

    *file* has the data, the URL or the id of the document. Returns None if it has none of these.
    """
    data = field(file, "file_data")
    url = field(file, "file_url")
    file_id = field(file, "file_id")
    if isinstance(data, str) and data:
        source = _data_source(data)
        if source is None:
            source = {"type": "base64", "media_type": "application/octet-stream", "data": data}
    elif isinstance(url, str) and url:
        source = {"type": "url", "url": url}
    elif isinstance(file_id, str) and file_id:
        source = {"type": "file", "file_id": file_id}
    else:
        return None
    block = {"type": "document", "source": source}
    title = field(file, "filename")
    if isinstance(title, str) and title:
        block["title"] = without_surrogates(title)
    return block


def image_url(block: JsonObject) -> str | None:
    """Return the URL of an image block, a data URL if it contains its data; None for others."""
    source = block.get("source")
    if kind(block) != "image" or not isinstance(source, Mapping) or source.get("type") == "file":
        return None
    return _data_url(source)


def file_fields(block: JsonObject) -> JsonDict | None:
    """Return the name and the data URL of a document block with data; None for others."""
    source = block.get("source")
    if kind(block) != "document" or field(source, "type") != "base64":
        return None
    return {"filename": block.get("title") or "document", "file_data": _data_url(source)}


def _data_url(source: Any) -> str:
    """Return the data of an image or document as a data URL, or its own URL."""
    if source.get("type") != "base64":
        return str(source.get("url"))
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def media_block(part: object) -> JsonDict | None:
    """Return *part* as a dict if it is an image or document block of the Messages API, else None.

    The tools that read offloaded content answer with such blocks, in conversations of every form.
    """
    return as_dict(part) if is_movable(part) else None


def has_media_blocks(content: object) -> bool:
    """Return True if a foreign *content* has image or document blocks of the Messages API."""
    return isinstance(content, list | tuple) and any(is_movable(part) for part in content)


def _data_source(url: str) -> JsonDict | None:
    """Return the source of a block for a data URL in base64; None for any other *url*."""
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:"):
        return None
    return {"type": "base64", "media_type": head[5:], "data": data}


def opaque_block(value: object) -> JsonDict:
    """Return a text block with the JSON of *value*, whose type is unknown, without encoded data.

    Equal values give equal blocks. The order of keys and cache marks are ignored.
    """
    return text_block(_opaque_text(value))


def client_block(value: object, name: object = None) -> JsonDict:
    """Return an opaque block with the whole JSON of *value*, an unknown item or part of the client.

    *name* is its type in its own API, by default its field "type". The JSON is complete, so that
    the block has as many tokens as *value* in the request. Equal values give equal blocks. The
    order of keys and cache marks are ignored.
    """
    type_name = kind(value) if name is None else str(name)
    if type_name == "tool_reference" and isinstance(field(value, "tool_name"), str):
        return tool_reference(field(value, "tool_name"))  # a known block, which loads a tool
    return {"type": OPAQUE, "kind": type_name, "json": _json_of(value, _full_value)}


def instruction_block(value: object) -> JsonDict:
    """Return the block of *value*, words of the system where the Messages API takes none.

    As an opaque block it stays word for word: as a text of the user it would be summarized.
    """
    return client_block(value, INSTRUCTION)


def tool_reference(name: str) -> JsonDict:
    """Return the block that loads the tool *name*, whose definition is in the request's tools."""
    return {"type": "tool_reference", "tool_name": without_surrogates(name)}


def tool_search_block(value: object, name: str, tools: Iterable[str] = ()) -> JsonDict:
    """Return an opaque block for *value*, the call or the result of a tool search by the server.

    *name* is its type in its own API, *tools* has the names of the tools that the search has
    loaded. A compaction carries the block, because without it the model would not have these tools.
    """
    return {**client_block(value, name), "tools": [without_surrogates(tool) for tool in tools]}


def _opaque_text(value: object) -> str:
    """Return *value* as a text: its own JSON if it is an opaque block, else shortened JSON."""
    if kind(value) == OPAQUE:
        # Its JSON is the text already. To quote it again would make it longer.
        text = field(value, "json")
        if isinstance(text, str):
            return text
    return _json_of(value, _shorten)


def _json_of(value: object, leaf: Callable[[Any], object]) -> str:
    """Return the canonical JSON of *value* without cache marks; *leaf* converts each leaf."""
    try:
        plain = as_dict(value) if hasattr(value, "model_dump") else value
        text = canonical_json(rebuilt(plain, leaf))
        if any(mark in text for mark in CACHE_FIELDS):
            # A client moves its marks with each turn; the value remains the same.
            text = canonical_json(json.loads(text, object_hook=_without_marks))
    except (InvalidHistory, TypeError, RecursionError, ValueError):
        return f"[{type(value).__name__}: {_fingerprint(repr(value))}]"
    return text


def _without_marks(fields: JsonDict) -> JsonDict:
    return {key: inner for key, inner in fields.items() if key not in CACHE_FIELDS}


def _full_value(value: Any) -> object:
    return value


def _shorten(value: Any) -> object:
    """Return *value*; encoded data, a long text without blanks, is replaced by its digest."""
    if not isinstance(value, str) or len(value) <= MAX_ENCODED:
        return value
    if not _BLANK.isdisjoint(value[:MAX_ENCODED]):
        return value
    return f"[{len(value)} characters: {_fingerprint(value)}]"


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
