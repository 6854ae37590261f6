"""Values of foreign items as blocks of ours, and back: arguments, texts, pictures, the unknown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeAlias, TypeGuard, cast

from .._values import JsonDict, JsonObject, canonical_json
from ..edits.media import is_movable
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
from ..messages.vocabulary import UNSIGNED

RAW = "_raw"
"""The key under which arguments are that are no JSON object."""

MARKS = ("cache_control", "prompt_cache_breakpoint")
"""Where foreign items ask for a cache; that is no content, and stays on the item."""

Blocks: TypeAlias = list[JsonObject]

MAX_ENCODED = 1_000  # characters of base64 and the like that an opaque block shows
_MOST_DIGITS = 4_000  # of a whole number; Python writes no more than 4,300
_BLANK = frozenset(" \t\r\n")


def first_field(holder: object, *names: str) -> Any:
    """What *holder* has under the first of *names* under which it has something."""
    values = (field(holder, name) for name in names)
    return next((value for value in values if value is not None), None)


def text_block(text: str) -> JsonDict:
    """A text block with *text*, without lone surrogates, which cannot be sent."""
    return {"type": "text", "text": without_surrogates(text)}


def says(text: object) -> TypeGuard[str]:
    """Whether *text* can be a text block as it is."""
    return isinstance(text, str) and not is_blank(text)


def text_or_opaque(
    text: object, value: object, unknown: Callable[[object], JsonDict] | None = None
) -> JsonDict:
    """Return a text block with *text*; where *text* cannot be one, a block for *value*.

    A blank text is known, though no block may hold it: its block is a text. *unknown* makes the
    block of a value without any text, by default `opaque_block`.
    """
    if says(text):
        return text_block(text)
    if unknown is None or isinstance(text, str):
        return opaque_block(value)
    return unknown(value)


def use_block(call: object, name: object, arguments: object) -> JsonDict:
    """The *call* of the tool *name*."""
    return {"type": "tool_use", "id": call, "name": str(name or ""), "input": arguments}


def result_block(call: object, content: object) -> JsonDict:
    """The result of *call*."""
    return {"type": "tool_result", "tool_use_id": call, "content": content}


def content_blocks(content: object, read: Callable[[Any], JsonDict]) -> list[JsonDict]:
    """The blocks of a foreign *content*: a text, a list of parts, or nothing; *read* reads one."""
    if content is None or content == "":
        return []
    return list(map(read, content if isinstance(content, list | tuple) else [content]))


def read_result(call: object, content: object, read: Callable[[Any], JsonDict]) -> JsonDict:
    """The result of *call* with a foreign *content*."""
    if content is None or isinstance(content, str):
        return result_block(call, without_surrogates(content or ""))
    return result_block(call, content_blocks(content, read))


def sort_blocks(blocks: Iterable[JsonObject]) -> tuple[Blocks, Blocks, Blocks]:
    """The results, the calls, and all other blocks of *blocks*, which foreign items keep apart."""
    results: Blocks = []
    calls: Blocks = []
    spoken: Blocks = []
    for block in blocks:
        match kind(block):
            case "tool_result":
                results.append(block)
            case "tool_use":
                calls.append(block)
            case _:
                spoken.append(block)
    return results, calls, spoken


def thinking_block(thought: str | None, proof: object = None) -> JsonDict:
    """A *thought* with the *proof* of it, if there is any, or what it is encrypted to."""
    proof = proof or UNSIGNED
    if thought is None:
        return {"type": "redacted_thinking", "data": str(proof)}
    thought = without_surrogates(thought)
    return {"type": "thinking", "thinking": thought, "signature": str(proof)}


def block_text(block: object) -> str:
    """Return what *block* says in an API that has no such block: its text, else its JSON."""
    text = contents.block_text(block)
    return compact_json(block) if text is None else text


def join_texts(blocks: Iterable[object]) -> str:
    """What *blocks* say, in one text."""
    return "\n".join(map(block_text, blocks))


def result_text(content: object) -> str:
    """The content of a tool_result in one text."""
    return content if isinstance(content, str) else join_texts(result_blocks(content))


def result_blocks(content: object) -> list[JsonObject]:
    """The content of a tool_result as blocks."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [text_block(content)]
    return list(cast("Iterable[JsonObject]", content))


def take_part(parts: list[Any], block: JsonObject) -> tuple[Any, Any]:
    """The one of *parts*, each behind what it says, that says *block*, taken out of them.

    If none does, it is the first of its call; None: there is none of that either.
    """
    same: list[tuple[Any, Any]] = [part for part in parts if part[0] == block]
    name = first_field(block, "id", "tool_use_id")
    if name is not None:
        same += [part for part in parts if first_field(part[0], "id", "tool_use_id") == name]
    if not same:
        return None, None
    parts.remove(same[0])
    return same[0]


# Arguments of calls -------------------------------------------------------------------------------


def arguments_object(text: object) -> JsonDict:
    """The object that the arguments *text* of a call mean.

    What is no JSON object is under the key `RAW`.
    """
    if isinstance(text, Mapping):
        return cast("JsonDict", rebuilt(text, _sendable, keys=True))
    if not isinstance(text, str):
        return {} if text is None else {RAW: text}
    if not text or text == "{}":
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_whole_number)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return {RAW: without_surrogates(text)}
    if "\\ud" in text or "\\uD" in text or not is_encodable(text):
        return cast("JsonDict", rebuilt(value, _sendable, keys=True))
    return value


def _sendable(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number that cannot be written again")
    return int(digits)


def arguments_json(arguments: JsonObject) -> str:
    """*arguments* as the text of a call."""
    if list(arguments) == [RAW] and isinstance(arguments[RAW], str):
        return cast("str", arguments[RAW])
    return compact_json(arguments)


# Parts of contents --------------------------------------------------------------------------------


def image_block(url: object) -> JsonDict | None:
    """The image at *url*, which may hold the data itself; None for what is no address."""
    if not isinstance(url, str) or not url:
        return None
    return {"type": "image", "source": _data_source(url) or {"type": "url", "url": url}}


def image_by_id(file_id: object) -> JsonDict | None:
    """Return the image that the provider stores as *file_id*; None where that is no id."""
    if not isinstance(file_id, str) or not file_id:
        return None
    return {"type": "image", "source": {"type": "file", "file_id": file_id}}


def document_block(file: object) -> JsonDict | None:
    """The document that *file* holds or names by its address or id; None where it does neither."""
    data, url, file_id = (field(file, name) for name in ("file_data", "file_url", "file_id"))
    if isinstance(data, str) and data:
        other = {"type": "base64", "media_type": "application/octet-stream", "data": data}
        source = _data_source(data) or other
    elif isinstance(url, str) and url:
        source = {"type": "url", "url": url}
    elif isinstance(file_id, str) and file_id:
        source = {"type": "file", "file_id": file_id}
    else:
        return None
    title = field(file, "filename")
    named = {"title": without_surrogates(title)} if isinstance(title, str) and title else {}
    return {"type": "document", "source": source, **named}


def image_url(block: JsonObject) -> str | None:
    """The address of an image of ours, with its data in it where it holds any; None: it is none."""
    source = block.get("source")
    if kind(block) != "image" or not isinstance(source, Mapping) or source.get("type") == "file":
        return None
    return _data_url(source)


def file_of(block: JsonObject) -> JsonDict | None:
    """What a document of ours is as a file with its data; None where it is none."""
    source = block.get("source")
    if kind(block) != "document" or field(source, "type") != "base64":
        return None
    return {"filename": block.get("title") or "document", "file_data": _data_url(source)}


def _data_url(source: Any) -> str:
    if source.get("type") != "base64":
        return str(source.get("url"))
    return f"data:{source.get('media_type')};base64,{source.get('data')}"


def own_media(part: object) -> JsonDict | None:
    """*part* itself where it is an image or document of ours, as a tool answers with it."""
    return as_dict(part) if is_movable(part) else None


def holds_own_media(content: object) -> bool:
    """Whether there are images or documents of ours in a foreign *content*."""
    return isinstance(content, list | tuple) and any(map(is_movable, content))


def _data_source(url: str) -> JsonDict | None:
    """The data in *url* in base64; None where it holds none."""
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:"):
        return None
    return {"type": "base64", "media_type": head[5:], "data": data}


def opaque_block(value: object) -> JsonDict:
    """A text block for *value*, of which nothing is known: its JSON, without encoded data.

    Equal values make equal blocks, whatever the order of their keys and their cache marks.
    """
    return text_block(_opaque_text(value))


def client_block(value: object, name: object = None) -> JsonDict:
    """Return the block that represents *value*, an item or part of the client's, by its whole JSON.

    *name* is its type in its own API, by default what it calls its type. The JSON is complete, so
    that the block counts as much as *value* takes of a request. Equal values make equal blocks,
    whatever the order of their keys and their cache marks.
    """
    own_type = kind(value) if name is None else str(name)
    if own_type == "tool_reference" and isinstance(field(value, "tool_name"), str):
        return tool_reference(field(value, "tool_name"))  # known: it loads a tool
    return {"type": OPAQUE, "kind": own_type, "json": _json_of(value, _whole)}


def tool_reference(name: str) -> JsonDict:
    """Return the block that loads the tool *name*, whose definition is in the request's tools."""
    return {"type": "tool_reference", "tool_name": without_surrogates(name)}


def tool_search_block(value: object, name: str, tools: Iterable[str] = ()) -> JsonDict:
    """Return the block of *value*, a half of a tool search that the server ran.

    *name* is its type in its own API, *tools* the names of the tools that were loaded by it. A
    compaction carries such a search on: without it the model would not have these tools.
    """
    return {**client_block(value, name), "tools": [without_surrogates(tool) for tool in tools]}


def _opaque_text(value: object) -> str:
    if kind(value) == OPAQUE:
        # Its JSON is the text already, and quoted once more it would be counted twice.
        text = field(value, "json")
        if isinstance(text, str):
            return text
    return _json_of(value, _shorten)


def _json_of(value: object, leaf: Callable[[Any], object]) -> str:
    """Return the canonical JSON of *value* without cache marks, *leaf* applied to each leaf."""
    try:
        plain = as_dict(value) if hasattr(value, "model_dump") else value
        text = canonical_json(rebuilt(plain, leaf))
        if any(mark in text for mark in MARKS):
            # A client moves its marks with each turn: they do not make another value of it.
            text = canonical_json(json.loads(text, object_hook=_without_marks))
    except (InvalidHistory, TypeError, RecursionError, ValueError):
        return f"[{type(value).__name__}: {_fingerprint(repr(value))}]"
    return text


def _without_marks(fields: JsonDict) -> JsonDict:
    return {key: inner for key, inner in fields.items() if key not in MARKS}


def _whole(value: Any) -> object:
    return value


def _shorten(value: Any) -> object:
    """*value*, or what replaces it where it is a long text without a blank: encoded data."""
    if not isinstance(value, str) or len(value) <= MAX_ENCODED:
        return value
    if not _BLANK.isdisjoint(value[:MAX_ENCODED]):
        return value
    return f"[{len(value)} characters: {_fingerprint(value)}]"


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
