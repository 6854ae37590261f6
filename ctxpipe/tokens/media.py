"""The tokens of images and documents: by pixels and pages, never by the length of their base64.

An image takes a token for each 28 x 28 pixels (Anthropic's guide to vision). A page of a PDF takes
its text, "1,500 to 3,000 tokens", and its picture (Anthropic's guide to PDF support; OpenAI's guide
to file inputs says the same of text and pictures, without a figure). `PDF_PAGE_TOKENS` is what a
page of prose was measured to take in all on Claude 4.5 (2,098 to 2,115; 2,324 to 2,347 on 5.5; a
scan 1,600): the low end, since a bill corrects an estimate upwards, but nothing does so downwards.
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
"""The most that an image takes, and what is assumed for one whose size is not known."""
LONG_EDGE = 1_568
PATCH = 28
PDF_PAGE_TOKENS = 2_100
"""A page of a PDF: its text and its picture."""
DOCUMENT_TOKENS = 5 * PDF_PAGE_TOKENS
"""Assumed for a document whose pages cannot be counted: it is elsewhere, or in another format."""

_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_COUNT = re.compile(rb"/Count\s+(\d{1,6})(?![\d.]|\s+\d+\s+R)")  # of a page tree, or an outline
_OBJECT_STREAM = re.compile(rb"/Type\s*/ObjStm(?![A-Za-z])")
_STREAM = re.compile(rb"stream\r?\n")
_DICTIONARY_BYTES = 1_000  # of an object stream
_MOST_STREAMS = 5_000  # object streams; a writer puts 100 to 200 objects into each
_MOST_UNPACKED = 32 * 2**20  # bytes of all object streams; those of 10,000 pages take 3 MB
_PIECE_BYTES = 2**14  # of an object stream, unpacked at a time
_PDF_HEADER_BYTES = 1_024  # within which readers look for "%PDF-"
_known_pages: Memo[tuple[int, int], int] = Memo(10_000)  # by length and hash: not to keep the file
_HEADER_CHARS = 4_096

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""


def image_tokens(source: object) -> int:
    """The tokens of an image: one per 28 x 28 pixels, scaled down to a long edge of 1,568."""
    data = field(source, "data")
    size = size_of(data) if isinstance(data, str) else None
    if size is None or 0 in size:
        return IMAGE_TOKENS
    scale = min(1.0, LONG_EDGE / max(size))
    width, height = (math.ceil(edge * scale / PATCH) for edge in size)
    return min(IMAGE_TOKENS, width * height)


def document_part(source: object) -> str | int:
    """What the document in *source* counts: its text, or the tokens of its pages.

    `DOCUMENT_TOKENS` where neither can be read.
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
    """The pages of the PDF in the base64 *data*; 0 where none can be seen."""
    key = len(data), hash(data)
    pages = _known_pages.get(key)
    if pages is None:
        pages = page_count(_decode(data))
        _known_pages.put(key, pages, 1)
    return pages


def page_count(pdf: bytes) -> int:
    """The pages of *pdf*, also those in compressed object streams; 0 where none can be seen.

    A file that was changed has some pages twice, and those that were removed: where the counts in
    it are lower, they are right.
    """
    if b"%PDF-" not in pdf[:_PDF_HEADER_BYTES]:
        return 0
    pages = total = 0
    for part in (pdf, *_object_streams(pdf)):
        pages += len(_PAGE.findall(part))
        total = max([total, *map(int, _COUNT.findall(part))])
    return min(pages, total) or max(pages, total)


def _object_streams(pdf: bytes) -> Iterator[bytes]:
    """The object streams of *pdf*, unpacked as far as can be.

    Anyone can send a file that consists of nothing but the beginnings of streams. So the work is
    bounded: no byte is unpacked twice except those of one piece for each stream, and there are
    limits on the number of streams and on what they unpack to.
    """
    searched = 0
    unpacked = 0
    for number, found in enumerate(_OBJECT_STREAM.finditer(pdf), 1):
        if number > _MOST_STREAMS or unpacked >= _MOST_UNPACKED:
            return
        if found.start() < searched:
            continue  # it is data of the stream before
        start = _STREAM.search(pdf, found.end(), found.end() + _DICTIONARY_BYTES)
        if start is None:
            continue
        objects, searched = _unpack(pdf, start.end(), _MOST_UNPACKED - unpacked)
        unpacked += len(objects)
        yield objects


def _unpack(pdf: bytes, start: int, most: int) -> tuple[bytes, int]:
    """Unpack the stream that begins at *start*, to at most *most* bytes.

    Returns these bytes, and the place up to which *pdf* is part of the stream. The compressed data
    says itself where it ends. So nothing has to look for the end, which may be missing; and zlib
    gets the data in pieces, because it copies all that it is given beyond the end.
    """
    unpacker = zlib.decompressobj()
    parts: list[bytes] = []
    left = most
    place = start
    while place < len(pdf) and left > 0 and not unpacker.eof:
        piece = pdf[place : place + _PIECE_BYTES]
        try:
            part = unpacker.decompress(piece, left)
        except zlib.error:
            break
        place += len(piece)
        left -= len(part)
        parts.append(part)
    end = place - len(unpacker.unused_data) - len(unpacker.unconsumed_tail)
    return b"".join(parts), max(start, end)


def size_of(data: str) -> Size | None:
    """Width and height of a PNG, GIF, JPEG or WebP in base64, if its header has them."""
    size = _read_size(_decode(data[:_HEADER_CHARS]))
    if size is None and len(data) > _HEADER_CHARS and data.startswith("/9j"):
        # A JPEG may have a long preview before its size.
        size = _read_size(_decode(data))
    return size


def _read_size(head: bytes) -> Size | None:
    with suppress(struct.error):  # it ends too early
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
    """The bytes in the base64 *data*; none where it is not valid."""
    try:
        return binascii.a2b_base64(data)
    except ValueError:
        return b""


def _jpeg(head: bytes) -> Size | None:
    at = 2
    while head[at : at + 1] == b"\xff":
        marker, length, height, width = struct.unpack_from(">BHxHH", head, at + 1)
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_START:
            return width, height
        at += 2 + length
    return None


_NO_FRAME_START = (0xC4, 0xC8, 0xCC)  # JPEG markers among those of a start of frame


def _webp(head: bytes) -> Size | None:
    if len(head) < 30:
        return None
    if head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    elif head[12:16] == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (edge & 0x3FFF for edge in struct.unpack_from("<HH", head, 26))
    return width, height
