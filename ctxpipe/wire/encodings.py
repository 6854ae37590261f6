"""Decode the content encodings of a request's body: gzip, deflate, br and zstd.

A few kilobytes may decode to gigabytes. So each decoder produces a limited number of bytes, and a
body that decodes to more is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..errors import CtxpipeError
from ..settings import excerpt

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""Maximum size of a decoded body in bytes, the same as that of a body without an encoding."""
MAX_RATIO = 100
"""Maximum number of decoded bytes for each encoded byte. Requests of agents reach about 20."""
RATIO_FREE_BYTES = 32 * 1024 * 1024
"""Number of decoded bytes up to which the ratio is not limited: short bodies may repeat a lot."""
MAX_ENCODINGS = 4
"""Maximum number of encodings of one body, applied one after the other."""
MAX_FRAMES = 64
"""Maximum number of frames in a body: each frame costs a copy of the bytes after it."""

_CHUNK_BYTES = 1024 * 1024
_GZIP = 16 + zlib.MAX_WBITS  # selects the format of gzip in zlib
_RAW_DEFLATE = -zlib.MAX_WBITS
_EXTRA = "pip install 'ctxpipe[gateway]'"


class EncodingError(CtxpipeError, ValueError):
    """A body cannot be decoded. The message names the encoding and the reason, not the content."""


def content_encodings(header: str) -> list[str]:
    """Return the encodings in the value of a Content-Encoding *header*, in the order applied.

    The name "identity" is left out, because it means that the body is not encoded.
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
    """Return *raw* decompressed with zstd.

    Raises EncodingError if no zstd package is installed, if the data is damaged or incomplete, or
    if the result has more than *limit* bytes.
    """
    zstd = _import("zstd", "compression.zstd", "backports.zstd")
    return _decode_frames("zstd", raw, limit, zstd.ZstdDecompressor, zstd.ZstdError)


def _decode_frames(
    name: str,
    raw: bytes,
    limit: int,
    new_decoder: Callable[[], Any],
    decoder_error: type[Exception],
) -> bytes:
    """Decode *raw*, a sequence of one or more frames, with a new decoder for each frame.

    Raises EncodingError if a frame is damaged or incomplete, if the result has more than *limit*
    bytes, or if there are more than MAX_FRAMES frames.
    """
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
    """Return *raw* decompressed with brotli.

    Raises EncodingError if no brotli package is installed, if the data is damaged or incomplete, or
    if the result has more than *limit* bytes.
    """
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
