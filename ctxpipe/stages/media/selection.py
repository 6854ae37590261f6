"""Decide which images and documents leave the context, and replace them by placeholders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..._text import count_phrase
from ..._values import JsonDict, canonical_json
from ...messages import MEDIA, Message, blocks, field, kind, rebuilt
from ...placeholders.names import content_hash
from ...placeholders.placeholders import DOCUMENT, IMAGE
from ...tokens.media import pages_of, size_of

_DIGITS = 32
# A storage adds "-" and a hash or a number to a name that is in use for another text.
_NAME = re.compile(rf"media-([0-9a-f]{{{_DIGITS}}})(?:-[0-9a-f]+)*\.md")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}", re.ASCII)


class Weight(NamedTuple):
    """Size of images and documents: characters of base64, number of images, pages of PDFs."""

    chars: int = 0
    images: int = 0
    pages: int = 0

    def plus(self, other: Weight) -> Weight:
        """Return the sum of both."""
        return Weight(
            self.chars + other.chars, self.images + other.images, self.pages + other.pages
        )

    def fits(self, limit: Weight) -> bool:
        """Return True if characters, images and pages are each at most those of *limit*."""
        return (
            self.chars <= limit.chars and self.images <= limit.images and self.pages <= limit.pages
        )


def is_movable(value: object) -> bool:
    """Return True if *value* is an image or document that can be moved to a file.

    Its data must be in the message, not behind a URL or an id. A document with citations is not
    moved: replies cite documents by their number in the request.
    """
    if not isinstance(value, Mapping) or kind(value) not in MEDIA:
        return False
    source = value.get("source")
    has_data = field(source, "type") == "base64" and isinstance(field(source, "data"), str)
    return has_data and not field(value.get("citations"), "enabled")


def media_in(message: Message) -> list[JsonDict]:
    """Return the images and documents of a user's *message* that can be moved to files.

    Those inside tool results are included. Returns [] for a message of the assistant.
    """
    movable_blocks: list[JsonDict] = []
    if message["role"] != "user" or not blocks(message):
        return movable_blocks

    def collect(value: Any) -> object:
        """Add *value* to the list if it can be moved. Return None for it, else *value*."""
        if not is_movable(value):
            return value
        movable_blocks.append(value)
        return None

    # Called for its walk through all blocks, as `with_placeholders` walks; the copy that it returns
    # is not needed. None in place of a block ends the walk there.
    rebuilt(message, collect)
    return movable_blocks


def _weight(message: Message) -> Weight:
    """Return the weight of all movable images and documents of *message*."""
    weight = Weight()
    for block in media_in(message):
        data = block["source"]["data"]
        if kind(block) == "image":
            weight = weight.plus(Weight(len(data), images=1))
        else:
            weight = weight.plus(Weight(len(data), pages=pages_of(data)))
    return weight


def weights_of(messages: Sequence[Message], places: Iterable[int]) -> dict[int, Weight]:
    """Return the weight of the movable media of each message at *places*, by place.

    Messages without movable media, or with empty ones only, are left out.
    """
    weights = {place: _weight(messages[place]) for place in places}
    return {place: weight for place, weight in weights.items() if any(weight)}


def older_than_budget(weights: Mapping[int, Weight], keep: Weight) -> list[int]:
    """Return the places of the messages whose media must go, oldest first.

    *weights* has the weight of each message with media by its place, in ascending order. The newest
    of them stay, as many as together fit into *keep*. From the first that does not fit on, all
    older ones go, also if they are smaller.
    """
    places = list(weights)
    total = Weight()
    while places:
        total = total.plus(weights[places[-1]])
        if not total.fits(keep):
            break
        places.pop()
    return places


# Files and placeholders ---------------------------------------------------------------------------


def stored_text(block: Mapping[str, object]) -> str:
    """Return the text of the file for *block*: its JSON without ``cache_control``."""
    return canonical_json({key: value for key, value in block.items() if key != "cache_control"})


def file_name(text: str) -> str:
    """Return the name of the file for *text*, without its ".md"; equal texts have one name."""
    return f"media-{content_hash(text, _DIGITS)}"


def is_media_file(name: str) -> bool:
    """Return True if a file with this *name*, with its ".md", has an image or document."""
    return _NAME.fullmatch(name) is not None


def media_block_of(name: str, text: str) -> JsonDict | None:
    """Return the image or document in the file *name* with this *text*.

    Returns None if *name* is not that of a media file, or has the digest of another text.
    """
    match = _NAME.fullmatch(name)
    if match is None or content_hash(text, _DIGITS) != match[1]:
        return None
    return cast("JsonDict", json.loads(text))


def placeholder_of(block: Mapping[str, Any], path: str) -> str:
    """Return the text that replaces an image or document *block*, which is stored at *path*.

    It names the media type, the size in pixels or pages if it can be read, and the number of bytes.
    """
    source = block["source"]
    data = source["data"]
    media_type = str(source.get("media_type"))
    parts = [media_type] if _MEDIA_TYPE.fullmatch(media_type) else []
    if kind(block) == "image":
        form = IMAGE
        size = size_of(data)
        if size:
            parts.append(f"{size[0]} x {size[1]} pixels")
    else:
        form = DOCUMENT
        pages = pages_of(data)
        if pages:
            parts.append(count_phrase(pages, "page"))
    byte_count = len(data) // 4 * 3 - data[-2:].count("=")
    parts.append(f"{byte_count:,} bytes")
    return form.format(", ".join(parts), path)


def with_placeholders(message: Message, placeholders: Mapping[str, str]) -> Message:
    """Return *message* with *placeholders* for its images and documents.

    The key of a placeholder is the stored text of the block that it replaces.
    """

    def replace(value: Any) -> object:
        """Return the text block that replaces *value*; *value* itself if it has no placeholder.

        The text block keeps the ``cache_control`` of *value*.
        """
        placeholder = placeholders.get(stored_text(value)) if is_movable(value) else None
        if placeholder is None:
            return value
        block: JsonDict = {"type": "text", "text": placeholder}
        if value.get("cache_control"):
            block["cache_control"] = value["cache_control"]
        return block

    return cast("Message", rebuilt(message, replace))
