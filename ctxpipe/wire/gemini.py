"""Contents of Gemini's ``generateContent``: what user and model say, in parts."""

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
    image_block,
    join_texts,
    opaque_block,
    result_block,
    result_blocks,
    result_text,
    says,
    sort_blocks,
    take_part,
    text_block,
    text_or_opaque,
    thinking_block,
    use_block,
)

# JSON of a protocol buffer may write each name in both ways.
CALL = ("functionCall", "function_call")
RESPONSE = ("functionResponse", "function_response")
SIGNATURE = ("thoughtSignature", "thought_signature")
DATA = ("inlineData", "inline_data")
FILE = ("fileData", "file_data")
ROLES = ("user", "model", "function", "tool", None)
OUTPUT = "output"
"""Where a response says what a function has answered, unless it says it in a way of its own."""
NO_SIGNATURE = "skip_thought_signature_validator"
"""What the API takes instead of the signature of a call that it has not written."""


class GeminiCodec(Codec):
    """The ``contents`` of a request. Calls and their responses may do without ids."""

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        role = field(item, "role")
        if role not in ROLES:
            return self.read_unknown(item, role)
        blocks = content_blocks(_parts(item), _reader(item))
        if role == "model":
            return Reading("assistant", blocks, joins=True)
        is_result = any(kind(block) == "tool_result" for block in blocks)
        return Reading("result" if is_result else "user", blocks)

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """A copy of *item* that says *blocks*; parts that say the same stay, signed as they are.

        They stay in their order; a new part follows the one before it.
        """
        read = _reader(item)
        old = [(read(part), part) for part in _parts(item)]
        places = {id(part): place for place, (_, part) in enumerate(old)}
        made: list[tuple[int, Any]] = []
        for block in blocks:
            said, part = take_part(old, block)
            place = places.get(id(part), made[-1][0] if made else -1)
            if said is None:
                part = _new_part(block)
            elif said != block:
                part = _rebuild_part(part, block)
            made.append((place, part))
        made.sort(key=lambda pair: pair[0])
        parts = [part for _, part in made]
        if any(first_field(part, *SIGNATURE) for _, part in old):
            parts = list(map(_without_signature, parts))
        return {**as_dict(item), "parts": parts}

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Contents that say *blocks*; responses are apart from what is said after them."""
        results, uses, spoken = sort_blocks(blocks)
        said_by = "model" if role == "assistant" else "user"
        contents = (("user", results), (said_by, [*spoken, *uses]))
        return [
            {"role": name, "parts": list(map(_new_part, said))} for name, said in contents if said
        ]

    def halves(self, item: Item) -> Halves:
        """None: calls and their responses, whose ids may be names, leave together."""
        del item
        return set(), set()


# Reading ------------------------------------------------------------------------------------------


def system_blocks(instruction: object) -> list[JsonDict]:
    """What a ``systemInstruction`` says."""
    return content_blocks(_parts(instruction), _content_block)


def _parts(content: object) -> Sequence[object]:
    if isinstance(content, str):
        return [content]
    parts = field(content, "parts")
    return parts if isinstance(parts, list) else []


def _reader(item: Item) -> Callable[[object], JsonDict]:
    """What reads the parts of *item*: a half on the wrong side is none."""
    return _model_block if field(item, "role") == "model" else _user_block


def _model_block(part: object) -> JsonDict:
    call, text = first_field(part, *CALL), field(part, "text")
    if isinstance(call, Mapping):
        return use_block(_id_of(call), field(call, "name"), arguments_object(field(call, "args")))
    if field(part, "thought") and says(text):
        return thinking_block(text, first_field(part, *SIGNATURE))
    return _content_block(part)


def _user_block(part: object) -> JsonDict:
    response = first_field(part, *RESPONSE)
    if not isinstance(response, Mapping):
        return _client_part(part)
    _, text = _text_of(field(response, "response"))
    media = content_blocks(_parts(response), _client_part)
    said = [text_block(text)] if says(text) else []
    return result_block(_id_of(response), [*said, *media] if media else text)


def _content_block(part: object, unknown: Callable[[object], JsonDict] = opaque_block) -> JsonDict:
    """Return the block of a *part* that is no half of a call; *unknown* makes that of others."""
    if isinstance(part, str):
        part = {"text": part}
    data = first_field(part, *DATA)
    media = first_field(data, "mimeType", "mime_type")
    url = f"data:{media};base64,{field(data, 'data')}"
    block = None
    if str(media).startswith("image/"):
        block = image_block(url)
    elif media == "application/pdf":
        block = document_block({"file_data": url, "filename": field(data, "displayName")})
    return block or text_or_opaque(field(part, "text"), part, unknown)


def _file_reference(part: object) -> JsonDict | None:
    """Return the image or document to whose address *part* refers; None where it does not."""
    file = first_field(part, *FILE)
    address = first_field(file, "fileUri", "file_uri")
    if str(first_field(file, "mimeType", "mime_type")).startswith("image/"):
        return image_block(address)
    return document_block({"file_url": address})


def _unknown_part(part: object) -> JsonDict:
    name = next(iter(part), "") if isinstance(part, Mapping) else ""
    return client_block(part, name)


def _client_part(part: object) -> JsonDict:
    """Return the block of a *part* of what the client says."""
    return _file_reference(part) or _content_block(part, _unknown_part)


def _id_of(half: object) -> object:
    """The id of a call or response; without one its name, by which they are paired in order."""
    return first_field(half, "id", "name") or ""


def _text_of(response: object) -> tuple[str, str]:
    """The one key of *response* that has a text, and this; else `OUTPUT`, and its JSON."""
    if isinstance(response, Mapping) and len(response) == 1:
        [(key, text)] = response.items()
        if isinstance(text, str):
            return key, without_surrogates(text)
    return OUTPUT, without_surrogates(compact_json(response)) if response else ""


# Writing ------------------------------------------------------------------------------------------


def _rebuild_part(part: object, block: JsonObject) -> JsonDict:
    """A copy of *part*, a call or response, with the arguments or the content of *block*."""
    plain = as_dict(part)
    key = next(name for name in (*CALL, *RESPONSE) if name in plain)
    half = plain[key] = as_dict(plain[key])
    if kind(block) == "tool_use":
        half["args"] = block["input"]
        return plain
    old = [(_client_part(one), one) for one in _parts(half)]
    taken = [(one, *take_part(old, one)) for one in result_blocks(block.get("content"))]
    name, _ = _text_of(half.get("response"))
    half["response"] = {name: join_texts(one for one, said, _ in taken if said is None)}
    if "parts" in half:
        half["parts"] = [media for _, said, media in taken if said is not None]
    return plain


def _without_signature(part: JsonDict) -> JsonDict:
    """*part*, whose signature may have left with the call before it."""
    is_call = first_field(part, *CALL) is not None
    return {SIGNATURE[0]: NO_SIGNATURE, **part} if is_call else part


def _new_part(block: JsonObject) -> JsonDict:
    match kind(block):
        case "tool_use":
            call = {"id": block["id"], "name": block["name"], "args": block["input"]}
            return {CALL[0]: call, SIGNATURE[0]: NO_SIGNATURE}
        case "tool_result":
            name = block["tool_use_id"]
            response = {OUTPUT: result_text(block.get("content"))}
            return {RESPONSE[0]: {"id": name, "name": name, "response": response}}
    return {"text": block_text(block)}
