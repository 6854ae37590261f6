"""Convert the contents of Gemini's ``generateContent`` to blocks, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._values import JsonDict, JsonObject
from ..messages import as_dict, compact_json, field, kind, without_surrogates
from .codec import Codec, Halves, Item, Reading
from .values import (
    arguments_object,
    block_text,
    client_block,
    content_blocks,
    document_block,
    first_field,
    has_text,
    image_block,
    join_texts,
    opaque_block,
    result_block,
    result_blocks,
    result_text,
    split_blocks,
    take_part,
    text_block,
    text_or_opaque,
    thinking_block,
    use_block,
)

# The JSON form of a protocol buffer accepts both spellings of each name.
CALL = ("functionCall", "function_call")
RESPONSE = ("functionResponse", "function_response")
SIGNATURE = ("thoughtSignature", "thought_signature")
DATA = ("inlineData", "inline_data")
FILE = ("fileData", "file_data")
ROLES = ("user", "model", "function", "tool", None)
OUTPUT = "output"
"""Key of a response that contains the result, unless the response has another single key."""
NO_SIGNATURE = "skip_thought_signature_validator"
"""Value that the API accepts instead of a signature, for a call that it has not written."""


class GeminiCodec(Codec):
    """Codec of the ``contents`` of a request. Calls and responses may have no ids."""

    def read(self, item: Item) -> Reading:
        """Return *item* as blocks."""
        role = field(item, "role")
        if role not in ROLES:
            return self.read_unknown(item, role)
        blocks = content_blocks(_parts(item), _part_reader(item))
        if role == "model":
            return Reading("assistant", blocks, joins=True)
        is_result = any(kind(block) == "tool_result" for block in blocks)
        return Reading("result" if is_result else "user", blocks)

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """Return a copy of *item* with *blocks* as its content.

        Parts with the same content stay, with their signatures and in their order. A new part
        follows the part of the block before it.
        """
        read_part = _part_reader(item)
        old_parts = [(read_part(part), part) for part in _parts(item)]
        places = {id(part): place for place, (_, part) in enumerate(old_parts)}
        new_parts: list[tuple[int, Any]] = []  # each with the place of its old part
        for block in blocks:
            old_block, part = take_part(old_parts, block)
            place = places.get(id(part), new_parts[-1][0] if new_parts else -1)
            if old_block is None:
                part = _new_part(block)
            elif old_block != block:
                part = _rebuild_part(part, block)
            new_parts.append((place, part))
        new_parts.sort(key=lambda pair: pair[0])
        parts = [part for _, part in new_parts]
        # The signature of a removed part may have covered the calls after it.
        if any(first_field(part, *SIGNATURE) for _, part in old_parts):
            parts = [_with_signature(part) for part in parts]
        return {**as_dict(item), "parts": parts}

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Return new contents with *blocks*; responses are in a content of their own."""
        results, calls, others = split_blocks(blocks)
        items: list[Item] = []
        if results:
            items.append({"role": "user", "parts": [_new_part(block) for block in results]})
        if others or calls:
            name = "model" if role == "assistant" else "user"
            parts = [_new_part(block) for block in (*others, *calls)]
            items.append({"role": name, "parts": parts})
        return items

    def halves(self, item: Item) -> Halves:
        """Return no ids: calls and their responses, whose ids may be names, leave together."""
        del item
        return set(), set()


# Reading ------------------------------------------------------------------------------------------


def system_blocks(instruction: object) -> list[JsonDict]:
    """Return the blocks of a ``systemInstruction``."""
    return content_blocks(_parts(instruction), _content_block)


def _parts(content: object) -> Sequence[object]:
    """Return the parts of *content*: a text is one part; a content without parts has none."""
    if isinstance(content, str):
        return [content]
    parts = field(content, "parts")
    return parts if isinstance(parts, list) else []


def _part_reader(item: Item) -> Callable[[object], JsonDict]:
    """Return the function that reads the parts of *item*.

    Calls are accepted from the model only, responses from the user only.
    """
    return _model_block if field(item, "role") == "model" else _user_block


def _model_block(part: object) -> JsonDict:
    """Return the block for a part of a model's reply: a call, thinking, or other content."""
    call = first_field(part, *CALL)
    if isinstance(call, Mapping):
        return use_block(_id_of(call), field(call, "name"), arguments_object(field(call, "args")))
    text = field(part, "text")
    if field(part, "thought") and has_text(text):
        return thinking_block(text, first_field(part, *SIGNATURE))
    return _content_block(part)


def _user_block(part: object) -> JsonDict:
    """Return the block for a part of a user's content: a tool result, or other content.

    The result's content is a text, or blocks if the response has media.
    """
    response = first_field(part, *RESPONSE)
    if not isinstance(response, Mapping):
        return _client_part(part)
    _, text = _result_text(field(response, "response"))
    media_blocks = content_blocks(_parts(response), _client_part)
    if not media_blocks:
        return result_block(_id_of(response), text)
    text_blocks = [text_block(text)] if has_text(text) else []
    return result_block(_id_of(response), [*text_blocks, *media_blocks])


def _content_block(part: object, unknown: Callable[[object], JsonDict] = opaque_block) -> JsonDict:
    """Return the block of a *part* that is neither a call nor a response.

    *unknown* converts a part of an unknown kind.
    """
    if isinstance(part, str):
        part = {"text": part}
    data = first_field(part, *DATA)
    media_type = first_field(data, "mimeType", "mime_type")
    url = f"data:{media_type};base64,{field(data, 'data')}"
    block = None
    if str(media_type).startswith("image/"):
        block = image_block(url)
    elif media_type == "application/pdf":
        block = document_block({"file_data": url, "filename": field(data, "displayName")})
    return block or text_or_opaque(field(part, "text"), part, unknown)


def _file_reference(part: object) -> JsonDict | None:
    """Return an image or document block for a *part* that has a URL; None for others."""
    file = first_field(part, *FILE)
    address = first_field(file, "fileUri", "file_uri")
    if str(first_field(file, "mimeType", "mime_type")).startswith("image/"):
        return image_block(address)
    return document_block({"file_url": address})


def _unknown_part(part: object) -> JsonDict:
    """Return *part*, which is of an unknown kind, as an opaque block."""
    name = next(iter(part), "") if isinstance(part, Mapping) else ""
    return client_block(part, name)


def _client_part(part: object) -> JsonDict:
    """Return the block of a *part* that the client wrote."""
    return _file_reference(part) or _content_block(part, _unknown_part)


def _id_of(half: object) -> object:
    """Return the id of a call or response, or its name: calls without ids are paired in order."""
    return first_field(half, "id", "name") or ""


def _result_text(response: object) -> tuple[str, str]:
    """Return the key and the text of the result in *response*.

    If *response* has a single key with a text, these are the result. Otherwise the key is `OUTPUT`
    and the text is the JSON of *response*, or "" if that is empty.
    """
    if isinstance(response, Mapping) and len(response) == 1:
        [(key, text)] = response.items()
        if isinstance(text, str):
            return key, without_surrogates(text)
    if not response:
        return OUTPUT, ""
    return OUTPUT, without_surrogates(compact_json(response))


# Writing ------------------------------------------------------------------------------------------


def _rebuild_part(part: object, block: JsonObject) -> JsonDict:
    """Return a copy of *part*, a call or response, with the arguments or the content of *block*."""
    plain = as_dict(part)
    key = next(name for name in (*CALL, *RESPONSE) if name in plain)
    half = as_dict(plain[key])
    plain[key] = half
    if kind(block) == "tool_use":
        half["args"] = block["input"]
        return plain
    old_media = [(_client_part(media), media) for media in _parts(half)]
    new_texts: list[JsonObject] = []
    retained_media: list[object] = []
    for content_block in result_blocks(block.get("content")):
        old_block, media = take_part(old_media, content_block)
        if old_block is None:
            new_texts.append(content_block)
        else:
            retained_media.append(media)
    name, _ = _result_text(half.get("response"))
    half["response"] = {name: join_texts(new_texts)}
    if "parts" in half:
        half["parts"] = retained_media
    return plain


def _with_signature(part: JsonDict) -> JsonDict:
    """Return *part*; a call without a signature gets the value that replaces one."""
    if first_field(part, *CALL) is None:
        return part
    return {SIGNATURE[0]: NO_SIGNATURE, **part}


def _new_part(block: JsonObject) -> JsonDict:
    """Return the part for *block*: a call, a response, or else its text.

    A call gets the signature that the API accepts for calls that it has not made. The name of a
    response is the id of its call.
    """
    match kind(block):
        case "tool_use":
            call = {"id": block["id"], "name": block["name"], "args": block["input"]}
            return {CALL[0]: call, SIGNATURE[0]: NO_SIGNATURE}
        case "tool_result":
            name = block["tool_use_id"]
            response = {OUTPUT: result_text(block.get("content"))}
            return {RESPONSE[0]: {"id": name, "name": name, "response": response}}
    return {"text": block_text(block)}
