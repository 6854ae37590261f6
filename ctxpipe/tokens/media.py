"""The tokens of images and documents: by their size, never by the length of their base64."""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable
from typing import TypeAlias

from ..messages import field

__all__ = ["IMAGE_TOKENS", "PDF_PAGE_TOKENS", "document_tokens", "image_tokens", "size_of"]

IMAGE_TOKENS = 1_568
"""The most that an image takes, and what is assumed for one whose size is not known."""
LONG_EDGE = 1_568
PATCH = 28
PDF_PAGE_TOKENS = 2_100
"""A page of a PDF: its picture and its text, as measured on a page of prose."""
_PDF_BYTES_PER_PAGE = 100_000

_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_HEADER_CHARS = 4_096

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""

Reader: TypeAlias = Callable[[bytes], Size | None]
"""Reads the size of a picture from the beginning of its file."""


def image_tokens(source: object) -> int:
    """The tokens of an image: one per 28 x 28 pixels, scaled down to a long edge of 1,568."""
    data = field(source, "data")
    size = size_of(data) if isinstance(data, str) else None
    if size is None:
        return IMAGE_TOKENS
    scale = min(1.0, LONG_EDGE / max(size))
    width, height = (math.ceil(edge * scale / PATCH) for edge in size)
    return min(IMAGE_TOKENS, width * height)


def document_tokens(source: object) -> int:
    """The tokens of a PDF, by its pages; of one page for a document that is not in *source*."""
    data = field(source, "data")
    content = _decode(data) if isinstance(data, str) else None
    if content is None:
        return PDF_PAGE_TOKENS
    pages = sum(1 for _ in _PAGE.finditer(content))
    if not pages:
        # Pages inside compressed object streams cannot be seen: the file's size must do.
        pages = -(-len(content) // _PDF_BYTES_PER_PAGE)
    return PDF_PAGE_TOKENS * max(1, pages)


def size_of(data: str) -> Size | None:
    """Width and height of a PNG, GIF, JPEG or WebP in base64, if its header has them."""
    head = _decode(data[:_HEADER_CHARS])
    if head is None:
        return None
    read = _reader(head)
    if read is None:
        return None
    size = read(head)
    if size is None and len(data) > _HEADER_CHARS:
        # A JPEG may have a long preview before its size.
        size = read(_decode(data) or b"")
    if size is None or min(size) <= 0:
        return None
    return size


def _reader(head: bytes) -> Reader | None:
    for magic, read in _FORMATS.items():
        if head.startswith(magic):
            return read
    return None


def _decode(data: str) -> bytes | None:
    try:
        return binascii.a2b_base64(data)
    except ValueError:
        return None


def _png(head: bytes) -> Size | None:
    if len(head) < 24:
        return None
    width = _big_endian(head[16:20])
    height = _big_endian(head[20:24])
    return width, height


def _gif(head: bytes) -> Size | None:
    if len(head) < 10:
        return None
    width = _little_endian(head[6:8])
    height = _little_endian(head[8:10])
    return width, height


def _jpeg(head: bytes) -> Size | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_START:
            height = _big_endian(head[at + 5 : at + 7])
            width = _big_endian(head[at + 7 : at + 9])
            return width, height
        at += 2 + _big_endian(head[at + 2 : at + 4])
    return None


_NO_FRAME_START = (0xC4, 0xC8, 0xCC)  # JPEG markers among those of a start of frame


def _webp(head: bytes) -> Size | None:
    if len(head) < 30 or head[8:12] != b"WEBP":
        return None
    if head[12:16] == b"VP8X":
        width = _little_endian(head[24:27])
        height = _little_endian(head[27:30])
        return width + 1, height + 1
    if head[12:16] == b"VP8L":
        bits = _little_endian(head[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width = _little_endian(head[26:28])
    height = _little_endian(head[28:30])
    return width & 0x3FFF, height & 0x3FFF


def _big_endian(number: bytes) -> int:
    return int.from_bytes(number, "big")


def _little_endian(number: bytes) -> int:
    return int.from_bytes(number, "little")


_FORMATS: dict[bytes, Reader] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"GIF8": _gif,
    b"\xff\xd8": _jpeg,
    b"RIFF": _webp,
}
