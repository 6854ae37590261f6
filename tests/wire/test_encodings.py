"""Content encodings: what is decoded, and what is refused before it fills the memory."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from functools import partial

import brotli
import pytest

from ctxpipe.wire import encodings
from ctxpipe.wire.encodings import MAX_ENCODINGS, MAX_FRAMES, MAX_RATIO, EncodingError, decode

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b'{"input": "' + b"a line of a tool's output, " * 200 + b'"}'


def bare_deflate(raw: bytes) -> bytes:
    """The stream that zlib's format wraps, as some clients send it."""
    return zlib.compress(raw)[2:-4]


ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=4),
    "zstd": zstd.compress,
}
every_encoding = pytest.mark.parametrize("name", ENCODERS)


@every_encoding
@pytest.mark.parametrize("raw", [TEXT, b"", b"x", bytes(range(256)) * 9_000], ids=len)
def test_a_body_is_what_it_was_before_it_was_encoded(name, raw):
    assert decode(ENCODERS[name](raw), name) == raw


@pytest.mark.parametrize("header", ["", "identity", " , ", "Identity,identity"])
def test_a_body_without_an_encoding_is_the_very_same_object(header):
    assert decode(TEXT, header) is TEXT


@pytest.mark.parametrize("header", ["GZIP", " gzip ", "x-gzip", "identity, gzip"])
def test_the_name_of_an_encoding_is_read_in_every_spelling(header):
    assert decode(gzip.compress(TEXT), header) == TEXT


def test_a_deflate_body_may_lack_the_header_of_zlib():
    assert decode(bare_deflate(TEXT), "deflate") == TEXT


@pytest.mark.parametrize("header", ["gzip, zstd", "br,gzip", "zstd, zstd, deflate"])
def test_encodings_are_taken_off_in_the_reverse_order(header):
    encoded = TEXT
    for name in header.split(","):
        encoded = ENCODERS[name.strip()](encoded)
    assert decode(encoded, header) == TEXT


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_body_may_have_several_frames(name):
    encode = ENCODERS[name]
    assert decode(encode(TEXT) + encode(b"") + encode(TEXT), name) == TEXT + TEXT


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_a_body_of_very_many_frames_is_refused(name):
    with pytest.raises(EncodingError, match="frames"):
        decode(ENCODERS[name](b"") * (MAX_FRAMES + 1), name)


@every_encoding
def test_a_body_that_ends_too_early_is_refused(name):
    with pytest.raises(EncodingError, match="ends in the middle"):
        decode(ENCODERS[name](TEXT)[:-5], name)


@every_encoding
@pytest.mark.parametrize("raw", [TEXT, b"\xff" * 40, b"\x00"], ids=["plain", "bytes", "zero"])
def test_a_body_that_is_not_what_its_header_says_is_refused(name, raw):
    with pytest.raises(EncodingError):
        decode(raw, name)


@every_encoding
def test_a_body_with_bytes_behind_its_end_is_refused(name):
    with pytest.raises(EncodingError):
        decode(ENCODERS[name](TEXT) + b"more", name)


FREE = 1 << 20


@pytest.fixture
def small_limits(monkeypatch):
    """The ratio is looked at from one megabyte on: larger bombs take long to build."""
    monkeypatch.setattr(encodings, "RATIO_FREE_BYTES", FREE)


@every_encoding
def test_a_bomb_is_refused_and_takes_little_memory(name, small_limits):
    bomb = ENCODERS[name](bytes(16 * FREE))
    tracemalloc.start()
    try:
        with pytest.raises(EncodingError, match="more than"):
            decode(bomb, name)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 6 * FREE


def test_a_bomb_inside_of_another_is_refused(small_limits):
    bomb = gzip.compress(gzip.compress(bytes(16 * FREE)))
    with pytest.raises(EncodingError, match="more than"):
        decode(bomb, "gzip, gzip")


@every_encoding
def test_a_body_of_a_usual_ratio_is_decoded_beyond_what_is_free(name, small_limits):
    lines = (f"line {number} of the output of {number % 97}" for number in range(50_000))
    raw = "\n".join(lines).encode()
    encoded = ENCODERS[name](raw)
    assert len(raw) > FREE
    assert 4 * len(encoded) < len(raw) < MAX_RATIO * len(encoded)
    assert decode(encoded, name) == raw


@pytest.mark.parametrize("header", ["aes128gcm", "gzip, nothing", "zstd;q=1", "gz\nip"])
def test_an_encoding_that_nobody_knows_is_named_in_the_error(header):
    with pytest.raises(EncodingError, match="is unknown") as caught:
        decode(gzip.compress(TEXT), header)
    assert "\n" not in str(caught.value)


def test_a_long_chain_of_encodings_is_refused():
    with pytest.raises(EncodingError, match=f"more than {MAX_ENCODINGS}"):
        decode(TEXT, ", ".join(["gzip"] * (MAX_ENCODINGS + 1)))


@pytest.mark.parametrize(("name", "modules"), [("br", ["brotli"]), ("zstd", [zstd.__name__])])
def test_without_its_package_an_encoding_is_refused_with_what_to_install(
    name, modules, monkeypatch
):
    encoded = ENCODERS[name](TEXT)
    for module in [*modules, "brotlicffi", "compression.zstd"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EncodingError, match=r"pip install 'ctxpipe\[gateway\]'"):
        decode(encoded, name)
