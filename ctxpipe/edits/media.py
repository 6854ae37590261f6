"""Which images and documents leave the context, and what replaces them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import add, le
from typing import Any, NamedTuple, cast

from .._text import count_phrase
from .._values import JsonDict, canonical_json
from ..messages import MEDIA, Message, blocks, field, kind, rebuilt
from ..placeholders.names import content_hash
from ..placeholders.placeholders import DOCUMENT, IMAGE
from ..tokens.media import pages_of, size_of

_DIGITS = 32
_NAME = re.compile(rf"media-([0-9a-f]{{{_DIGITS}}})(?:-[0-9a-f]+)*\.md")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}", re.ASCII)


class Weight(NamedTuple):
    """What images and documents take of a request: characters of base64, images, pages of PDFs."""

    chars: int = 0
    images: int = 0
    pages: int = 0

    def plus(self, other: Weight) -> Weight:
        """Both together."""
        return Weight(*map(add, self, other))

    def fits(self, most: Weight) -> bool:
        """Whether nothing is more than in *most*."""
        return all(map(le, self, most))


def is_movable(value: object) -> bool:
    """Whether *value* is an image or document that is wholly in its message and may leave it.

    Documents with citations stay: replies point into them by their number.
    """
    if not isinstance(value, Mapping) or kind(value) not in MEDIA:
        return False
    source = value.get("source")
    is_whole = field(source, "type") == "base64" and isinstance(field(source, "data"), str)
    return is_whole and not field(value.get("citations"), "enabled")


def media_in(message: Message) -> list[JsonDict]:
    """The images and documents of *message* that may leave it, those in results included."""
    found: list[JsonDict] = []
    if message["role"] != "user" or not blocks(message):
        return found

    def collect(value: Any) -> object:
        if not is_movable(value):
            return value
        found.append(value)
        return None

    rebuilt(message, collect)
    return found


def _weight(message: Message) -> Weight:
    weight = Weight()
    for block in media_in(message):
        data = block["source"]["data"]
        if kind(block) == "image":
            weight = weight.plus(Weight(len(data), images=1))
        else:
            weight = weight.plus(Weight(len(data), pages=pages_of(data)))
    return weight


def weigh(messages: Sequence[Message], places: Iterable[int]) -> dict[int, Weight]:
    """What the images and documents weigh of each message at *places* that has some to move."""
    weights = {place: _weight(messages[place]) for place in places}
    return {place: weight for place, weight in weights.items() if any(weight)}


def older(weights: Mapping[int, Weight], keep: Weight) -> list[int]:
    """The messages but the newest, whose images and documents together fit into *keep*."""
    places = list(weights)
    kept = Weight()
    while places:
        kept = kept.plus(weights[places[-1]])
        if not kept.fits(keep):
            break
        places.pop()
    return places


# What is stored, and what stands for it ---------------------------------------------------------


def stored_text(block: Mapping[str, object]) -> str:
    """What the file of *block* holds: all of it but its cache mark, as JSON."""
    return canonical_json({key: value for key, value in block.items() if key != "cache_control"})


def file_name(text: str) -> str:
    """The name, without its ending, of the file for a stored *text*: the same for the same."""
    return f"media-{content_hash(text, _DIGITS)}"


def is_media_file(name: str) -> bool:
    """Whether *name* has the form of those of files with an image or document."""
    return _NAME.fullmatch(name) is not None


def block_of(name: str, text: str) -> JsonDict | None:
    """The image or document in the file *name* with this *text*; None where that is another."""
    match = _NAME.fullmatch(name)
    if match is None or content_hash(text, _DIGITS) != match[1]:
        return None
    return cast("JsonDict", json.loads(text))


def placeholder_of(block: Mapping[str, Any], where: str) -> str:
    """The text that replaces *block*, which is now at *where*."""
    source = block["source"]
    data = source["data"]
    media_type = str(source.get("media_type"))
    parts = [media_type] if _MEDIA_TYPE.fullmatch(media_type) else []
    form = DOCUMENT
    if kind(block) == "image":
        form = IMAGE
        size = size_of(data)
        parts += [f"{size[0]} x {size[1]} pixels"] if size else []
    elif pages := pages_of(data):
        parts.append(count_phrase(pages, "page"))
    parts.append(f"{len(data) // 4 * 3 - data[-2:].count('='):,} bytes")
    return form.format(", ".join(parts), where)


def with_placeholders(message: Message, notes: Mapping[str, str]) -> Message:
    """*message* with the text that *notes* have for an image or document, by what is stored."""

    def replace(value: Any) -> object:
        note = notes.get(stored_text(value)) if is_movable(value) else None
        if note is None:
            return value
        block: JsonDict = {"type": "text", "text": note}
        if value.get("cache_control"):
            block["cache_control"] = value["cache_control"]
        return block

    return cast("Message", rebuilt(message, replace))
