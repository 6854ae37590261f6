"""What images and documents cost: by their published size formula, never by the length of their
base64.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable

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


def image_tokens(source: object) -> int:
    """The visual tokens of an image: one per 28 x 28 pixels after it was scaled down to a long edge
    of 1,568.
    """
    data = field(source, "data")
    size = size_of(data) if isinstance(data, str) else None
    if size is None:
        return IMAGE_TOKENS
    scale = min(1.0, LONG_EDGE / max(size))
    width, height = (math.ceil(edge * scale / PATCH) for edge in size)
    return min(IMAGE_TOKENS, width * height)


def document_tokens(source: object) -> int:
    """A PDF by its pages; one page for a document that lies elsewhere."""
    data = field(source, "data")
    content = _decoded(data) if isinstance(data, str) else None
    if content is None:
        return PDF_PAGE_TOKENS
    # Pages inside compressed object streams cannot be seen; then the file's size must do.
    pages = sum(1 for _ in _PAGE.finditer(content)) or -(-len(content) // _PDF_BYTES_PER_PAGE)
    return PDF_PAGE_TOKENS * max(1, pages)


def size_of(data: str) -> tuple[int, int] | None:
    """Width and height of a PNG, GIF, JPEG or WebP in base64, if its header tells."""
    head = _decoded(data[:_HEADER_CHARS])
    if head is None:
        return None
    read = next((reader for magic, reader in _FORMATS.items() if head.startswith(magic)), None)
    if read is None:
        return None
    size = read(head)
    if (
        size is None and len(data) > _HEADER_CHARS
    ):  # a JPEG may carry a long preview before its size
        size = read(_decoded(data) or b"")
    return size if size and min(size) > 0 else None


def _decoded(data: str) -> bytes | None:
    try:
        return binascii.a2b_base64(data)
    except ValueError:
        return None


def _png(head: bytes) -> tuple[int, int] | None:
    return _pair(head, 16, 4, "big")


def _gif(head: bytes) -> tuple[int, int] | None:
    return _pair(head, 6, 2, "little")


def _pair(head: bytes, at: int, width: int, order: str) -> tuple[int, int] | None:
    if len(head) < at + 2 * width:
        return None
    first, second = head[at : at + width], head[at + width : at + 2 * width]
    if order == "big":
        return int.from_bytes(first, "big"), int.from_bytes(second, "big")
    return int.from_bytes(first, "little"), int.from_bytes(second, "little")


def _jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (
            0xC4,
            0xC8,
            0xCC,
        ):  # a start of frame: height, then width
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(
                head[at + 5 : at + 7], "big"
            )
        at += 2 + length
    return None


def _webp(head: bytes) -> tuple[int, int] | None:
    if len(head) < 30 or head[8:12] != b"WEBP":
        return None
    if head[12:16] == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = int.from_bytes(head[26:28], "little"), int.from_bytes(head[28:30], "little")
    return width & 0x3FFF, height & 0x3FFF


_FORMATS: dict[bytes, Callable[[bytes], tuple[int, int] | None]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"GIF8": _gif,
    b"\xff\xd8": _jpeg,
    b"RIFF": _webp,
}
