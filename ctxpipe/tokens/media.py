"""The tokens of images and documents, by pixels and pages instead of the length of their base64.

An image has a token for each 28 x 28 pixels (Anthropic's guide to vision). A page of a PDF has the
tokens of its text, "1,500 to 3,000", and those of its picture (Anthropic's guide to PDF support;
OpenAI's guide to file inputs also counts text and picture, without a number). A page of prose was
measured at 2,098 to 2,115 tokens on Claude 4.5, at 2,324 to 2,347 on Claude 5.5, and a scan at
1,600. `PDF_PAGE_TOKENS` is at the low end, because reported usage corrects an estimate that is too
low, but not one that is too high.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from ..messages import field
from .memo import Memo

IMAGE_TOKENS = 1_568
"""The maximum for an image, which is also the estimate for an image of unknown size."""
LONG_EDGE = 1_568
PATCH = 28
PDF_PAGE_TOKENS = 2_100
"""The tokens of a page of a PDF: its text and its picture."""
DOCUMENT_TOKENS = 5 * PDF_PAGE_TOKENS
"""The estimate for a document whose pages cannot be counted, such as one behind a URL."""

_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_COUNT = re.compile(rb"/Count\s+(\d{1,6})(?![\d.]|\s+\d+\s+R)")  # of a page tree, or an outline
_OBJECT_STREAM = re.compile(rb"/Type\s*/ObjStm(?![A-Za-z])")
_STREAM = re.compile(rb"stream\r?\n")
_DICTIONARY_BYTES = 1_000  # of an object stream
_MAX_STREAMS = 5_000  # object streams; a PDF writer puts 100 to 200 objects into each
_MAX_UNPACKED_BYTES = 32 * 2**20  # of all object streams; those of 10,000 pages have 3 MB
_PIECE_BYTES = 2**14  # of an object stream, unpacked at a time
_PDF_HEADER_BYTES = 1_024  # within which readers look for "%PDF-"
# By length and hash of a file, so that the memo does not keep the file in memory.
_page_counts: Memo[tuple[int, int], int] = Memo(10_000)
_HEADER_CHARS = 4_096

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""


def image_tokens(source: object) -> int:
    """Return the tokens of an image: one per 28 x 28 pixels, after scaling to 1,568 pixels."""
    data = field(source, "data")
    size = size_of(data) if isinstance(data, str) else None
    if size is None or 0 in size:
        return IMAGE_TOKENS
    scale = min(1.0, LONG_EDGE / max(size))
    width, height = (math.ceil(edge * scale / PATCH) for edge in size)
    return min(IMAGE_TOKENS, width * height)


def document_part(source: object) -> str | int:
    """Return the text of the document in *source*, or the number of tokens of its pages.

    Returns `DOCUMENT_TOKENS` if neither can be read.
    """
    data = field(source, "data")
    if not isinstance(data, str):
        return DOCUMENT_TOKENS
    pages = pages_of(data)
    if not pages and str(field(source, "media_type")).startswith("text/"):
        content = _decode(data)
        if b"%PDF-" not in content[:_PDF_HEADER_BYTES]:
            return content.decode("utf-8", "replace")
    return PDF_PAGE_TOKENS * pages or DOCUMENT_TOKENS


def pages_of(data: str) -> int:
    """Return the number of pages of the PDF in the base64 *data*, or 0 if it cannot be read."""
    key = (len(data), hash(data))
    pages = _page_counts.get(key)
    if pages is None:
        pages = page_count(_decode(data))
        _page_counts.put(key, pages, size=1)
    return pages


def page_count(pdf: bytes) -> int:
    """Return the number of pages of *pdf*, or 0 if none is found.

    There are two numbers: the page objects, and the page counts that the file states. A PDF that
    was edited still has old page objects, so the stated count is right if it is lower. Both are
    also read from compressed object streams.
    """
    if b"%PDF-" not in pdf[:_PDF_HEADER_BYTES]:
        return 0
    page_objects = 0
    highest_count = 0
    for part in (pdf, *_object_streams(pdf)):
        page_objects += len(_PAGE.findall(part))
        for count in _COUNT.findall(part):
            highest_count = max(highest_count, int(count))
    return min(page_objects, highest_count) or max(page_objects, highest_count)


def _object_streams(pdf: bytes) -> Iterator[bytes]:
    """Yield the object streams of *pdf*, unpacked as far as possible.

    An attacker can send a file that consists only of beginnings of streams. So the work is limited:
    no byte is unpacked twice, except those of one piece for each stream, and there are limits on
    the number of streams and on the number of unpacked bytes.
    """
    stream_end = 0
    unpacked_bytes = 0
    for number, match in enumerate(_OBJECT_STREAM.finditer(pdf), start=1):
        if number > _MAX_STREAMS or unpacked_bytes >= _MAX_UNPACKED_BYTES:
            return
        if match.start() < stream_end:
            continue  # it is data of the previous stream
        start = _STREAM.search(pdf, match.end(), match.end() + _DICTIONARY_BYTES)
        if start is None:
            continue
        max_bytes = _MAX_UNPACKED_BYTES - unpacked_bytes
        objects, stream_end = _unpack(pdf, start.end(), max_bytes)
        unpacked_bytes += len(objects)
        yield objects


def _unpack(pdf: bytes, start: int, max_bytes: int) -> tuple[bytes, int]:
    """Return the unpacked bytes of the stream that begins at *start*, and its end in *pdf*.

    At most *max_bytes* are unpacked. The compressed data itself marks its end, so there is no
    search for an end marker, which may be missing. zlib gets the data in pieces, because it copies
    all input behind the end.
    """
    unpacker = zlib.decompressobj()
    parts: list[bytes] = []
    bytes_left = max_bytes
    place = start
    while place < len(pdf) and bytes_left > 0 and not unpacker.eof:
        piece = pdf[place : place + _PIECE_BYTES]
        try:
            part = unpacker.decompress(piece, bytes_left)
        except zlib.error:
            break
        place += len(piece)
        bytes_left -= len(part)
        parts.append(part)
    end = place - len(unpacker.unused_data) - len(unpacker.unconsumed_tail)
    return b"".join(parts), max(start, end)


def size_of(data: str) -> Size | None:
    """Return the size of a PNG, GIF, JPEG or WebP in base64, or None if it cannot be read."""
    size = _read_size(_decode(data[:_HEADER_CHARS]))
    if size is None and len(data) > _HEADER_CHARS and data.startswith("/9j"):
        # The header of a JPEG may have a long preview image before the size.
        size = _read_size(_decode(data))
    return size


def _read_size(head: bytes) -> Size | None:
    """Return width and height of the image that begins with *head*; None if they are not found."""
    with suppress(struct.error):  # the header is not complete
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return struct.unpack_from(">II", head, 16)
        if head.startswith(b"GIF8"):
            return struct.unpack_from("<HH", head, 6)
        if head.startswith(b"\xff\xd8"):
            return _jpeg(head)
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return _webp(head)
    return None


def _decode(data: str) -> bytes:
    """Return the bytes in the base64 *data*; empty if it is not valid.

    Both alphabets of RFC 4648 are read. Google's SDK uses the second one, with "-" and "_".
    """
    try:
        return binascii.a2b_base64(data.replace("-", "+").replace("_", "/"))
    except ValueError:
        return b""


def _jpeg(head: bytes) -> Size | None:
    """Return the size in the first start-of-frame segment of a JPEG image."""
    at = 2
    while head[at : at + 1] == b"\xff":
        marker, length, height, width = struct.unpack_from(">BHxHH", head, at + 1)
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_START:
            return width, height
        at += 2 + length
    return None


_NO_FRAME_START = (0xC4, 0xC8, 0xCC)  # JPEG markers among those of a start of frame


def _webp(head: bytes) -> Size | None:
    """Return the size of a WebP image in the extended, lossless or lossy format."""
    if len(head) < 30:
        return None
    if head[12:16] == b"VP8X":
        width = int.from_bytes(head[24:27], "little") + 1
        height = int.from_bytes(head[27:30], "little") + 1
    elif head[12:16] == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        width = (bits & 0x3FFF) + 1
        height = (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (edge & 0x3FFF for edge in struct.unpack_from("<HH", head, 26))
    return width, height
