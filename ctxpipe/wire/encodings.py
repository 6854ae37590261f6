"""Content encodings of a request's body: gzip, deflate, br and zstd, decoded within limits.

A few kilobytes may decode to gigabytes, so the decoders are asked for a limited number of bytes
and a body that has more is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..errors import CtxpipeError
from ..settings import excerpt

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""Bytes of a decoded body: as many as the gateway takes of one that is not encoded."""
MAX_RATIO = 100
"""Decoded bytes for each encoded byte. Requests of agents reach 20: their tool outputs repeat."""
RATIO_FREE_BYTES = 32 * 1024 * 1024
"""Decoded bytes up to which the ratio is not looked at: a short text may repeat a thousandfold."""
MAX_ENCODINGS = 4
"""Encodings that may be applied one after the other."""
MAX_FRAMES = 64
"""Frames that one body may consist of: each of them costs a copy of the bytes behind it."""

_CHUNK_BYTES = 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for the format of gzip
_RAW_DEFLATE = -zlib.MAX_WBITS
_EXTRA = "pip install 'ctxpipe[gateway]'"


class EncodingError(CtxpipeError, ValueError):
    """A body cannot be decoded; the text names the encoding and the reason, never the content."""


def content_encodings(header: str) -> list[str]:
    """Return the encodings in the value of a Content-Encoding *header*, in the order applied.

    The word "identity" is left out: it means that nothing was done.
    """
    names = [name.strip().lower() for name in header.split(",")]
    return [name for name in names if name not in {"", "identity"}]


def decode(raw: bytes, header: str) -> bytes:
    """Return *raw* without the encodings that a Content-Encoding *header* names.

    Raises EncodingError if an encoding is unknown or its package is not installed, if the bytes are
    damaged or end too early, and if the decoded body exceeds MAX_DECODED_BYTES, or MAX_RATIO times
    the size of *raw* beyond RATIO_FREE_BYTES.
    """
    names = content_encodings(header)
    if len(names) > MAX_ENCODINGS:
        raise EncodingError(f"the body has more than {MAX_ENCODINGS} content encodings")
    limit = min(MAX_DECODED_BYTES, max(RATIO_FREE_BYTES, MAX_RATIO * len(raw)))
    content = raw
    for name in reversed(names):
        decoder = _DECODERS.get(name)
        if decoder is None:
            raise EncodingError(f"the content encoding {excerpt(name)} is unknown")
        content = decoder(content, limit)
    return content


def _gunzip(raw: bytes, limit: int) -> bytes:
    return _decode_frames("gzip", raw, limit, lambda: zlib.decompressobj(_GZIP), zlib.error)


def _inflate(raw: bytes, limit: int) -> bytes:
    """Decode "deflate", which is zlib's format; some clients send the bare stream inside it."""
    try:
        return _decode_frames("deflate", raw, limit, zlib.decompressobj, zlib.error)
    except EncodingError as error:
        if not isinstance(error.__cause__, zlib.error):
            raise
    return _decode_frames(
        "deflate", raw, limit, lambda: zlib.decompressobj(_RAW_DEFLATE), zlib.error
    )


def _decode_zstd(raw: bytes, limit: int) -> bytes:
    zstd = _import("zstd", "compression.zstd", "backports.zstd")
    return _decode_frames("zstd", raw, limit, zstd.ZstdDecompressor, zstd.ZstdError)


def _decode_frames(
    name: str,
    raw: bytes,
    limit: int,
    new_decoder: Callable[[], Any],
    decoder_error: type[Exception],
) -> bytes:
    """Decode *raw*, one or more frames after each other, with a new decoder for each frame."""
    parts: list[bytes] = []
    size = 0
    rest = raw
    for _ in range(MAX_FRAMES):
        decoder = new_decoder()
        try:
            part = decoder.decompress(rest, max_length=limit - size + 1)
        except decoder_error as error:
            raise EncodingError(f"the body is damaged, or it is not {name}") from error
        size += len(part)
        if size > limit:
            raise _too_large(name, limit)
        if not decoder.eof:
            raise EncodingError(f"the body ends in the middle of its {name} data")
        parts.append(part)
        rest = decoder.unused_data
        if not rest:
            return b"".join(parts)
    raise EncodingError(f"the body has more than {MAX_FRAMES} frames of {name}")


def _decode_brotli(raw: bytes, limit: int) -> bytes:
    brotli = _import("br", "brotli", "brotlicffi")
    decoder = brotli.Decompressor()
    parts: list[bytes] = []
    size = 0
    rest = raw
    while not decoder.is_finished():
        try:
            part = decoder.process(rest, output_buffer_limit=_CHUNK_BYTES)
        except brotli.error as error:
            raise EncodingError("the body is damaged, or it is not br") from error
        size += len(part)
        if size > limit:
            raise _too_large("br", limit)
        if not part and not decoder.is_finished():
            raise EncodingError("the body ends in the middle of its br data")
        parts.append(part)
        rest = b""
    return b"".join(parts)


def _too_large(name: str, limit: int) -> EncodingError:
    return EncodingError(f"the body decodes from {name} to more than {limit:,} bytes")


def _import(name: str, *modules: str) -> Any:
    """Return the first of *modules* that is installed. Raises EncodingError if none is."""
    for module in modules:
        try:
            return import_module(module)
        except ImportError:
            continue
    raise EncodingError(f"decoding {name} needs a package that is not installed: {_EXTRA}")


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "br": _decode_brotli,
    "zstd": _decode_zstd,
}
