"""The counted parts of a message, and the tokens of images, documents and unknown blocks."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from typing import Any

import pytest
from histories import assistant, step, thinking, tool_result, tool_use, user

from ctxpipe.messages import compact_json
from ctxpipe.tokens import TokenCounter, media
from ctxpipe.tokens.media import DOCUMENT_TOKENS, IMAGE_TOKENS, PDF_PAGE_TOKENS, size_of

COUNT = TokenCounter()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image(data: str, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def png(width: int, height: int, behind: int = 0) -> str:
    head = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return encoded(b"\x89PNG\r\n\x1a\n" + chunk + random.Random(0).randbytes(behind))


def jpeg(width: int, height: int, preview: int = 0) -> str:
    segments = b""
    while preview > 0:
        size = min(preview, 60_000)
        segments += b"\xff\xe1" + struct.pack(">H", size + 2) + bytes(size)
        preview -= size
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return encoded(b"\xff\xd8" + segments + frame + b"\xff\xd9")


def webp(form: bytes, body: bytes) -> str:
    return encoded(
        b"RIFF" + struct.pack("<I", 0) + b"WEBP" + form + struct.pack("<I", 0) + body + bytes(20)
    )


# Blocks -------------------------------------------------------------------------------------------


def test_bare_text_and_a_text_block_count_the_same():
    assert (
        COUNT.message(user("hello world"))
        == COUNT.message(user({"type": "text", "text": "hello world"}))
        == 2
    )


def test_a_tool_call_counts_its_id_its_name_and_its_input_as_compact_json():
    block = tool_use("toolu_17", "read_file", {"path": "a b.py", "größe": 3})

    assert COUNT.block(block) == sum(
        map(COUNT.text, ("toolu_17", "read_file", '{"path":"a b.py","größe":3}'))
    )


@pytest.mark.parametrize(("content", "expected"), [("hello world", 2), ("", 0), ([], 0), (None, 0)])
def test_a_tool_result_counts_its_content(content, expected):
    assert COUNT.block(tool_result("a_long_tool_use_id", content)) == expected


def test_a_tool_result_without_content_counts_nothing():
    assert COUNT.block({"type": "tool_result", "tool_use_id": "t1"}) == 0


def test_a_tool_result_counts_its_blocks_of_any_kind():
    blocks = [
        {"type": "text", "text": "hello world"},
        image(png(280, 280)),
        tool_result("t2", "hello"),
    ]

    assert COUNT.block(tool_result("t1", blocks)) == 2 + 100 + 1


def test_thinking_counts_its_text_and_not_its_signature():
    assert COUNT.block({**thinking("hello world"), "signature": "x1" * 5_000}) == 2


def test_redacted_thinking_is_estimated_by_the_length_of_its_data():
    plain = "thinking about it. " * 100
    hidden = {"type": "redacted_thinking", "data": encoded(plain.encode())}

    assert COUNT.block(hidden) == pytest.approx(COUNT.text(plain), rel=0.25)


def test_an_unknown_block_counts_by_its_json():
    block = {"type": "mystery", "note": "something the API will charge for"}

    assert COUNT.block(block) == COUNT.text(compact_json(block))


def test_encoded_data_in_an_unknown_block_is_estimated_at_any_depth():
    data = encoded(random.Random(0).randbytes(100_000))
    block = {
        "type": "mystery",
        "results": [{"url": "https://a.b", "blob": data}, "data:audio/wav;base64," + data],
    }

    assert COUNT.block(block) == pytest.approx(2 * len(data) * 3 / 16, abs=40)


SHOT = png(280, 280, behind=9_000)
GIF = b"GIF89a" + struct.pack("<HH", 280, 280) + b"\xff\xfe\xfb" + random.Random(0).randbytes(9_000)
URL_SAFE_GIF = base64.urlsafe_b64encode(GIF).decode()


@pytest.mark.parametrize(
    ("shown", "without_data"),
    [
        (image(SHOT), None),
        ({"image_url": f"data:image/png;base64,{SHOT}"}, {"image_url": ""}),
        ({"image_url": f"data:image/png;charset=utf-8;base64,{SHOT}"}, {"image_url": ""}),
        ({"image_url": f"data:image/*;base64,{SHOT}"}, {"image_url": ""}),
        ({"inlineData": {"data": SHOT}}, {"inlineData": {"data": ""}}),
        ({"inlineData": {"data": URL_SAFE_GIF}}, {"inlineData": {"data": ""}}),
    ],
)
def test_an_image_in_an_unknown_block_counts_by_its_pixels(shown, without_data):
    json = compact_json({"type": "mystery", "shown": [without_data]})

    assert COUNT.block({"type": "mystery", "shown": [shown]}) == COUNT.text(json) + 10 * 10


@pytest.mark.parametrize("before", ["", "data:application/pdf;base64,"])
def test_a_pdf_in_an_unknown_block_counts_by_its_pages(before):
    pdf = encoded(b"%PDF-1.4\n" + b"<< /Type /Page >>\n" * 3 + random.Random(0).randbytes(9_000))
    block = {"type": "mystery", "file_data": before + pdf}

    assert COUNT.block(block) == pytest.approx(3 * PDF_PAGE_TOKENS, abs=40)


def test_long_plain_text_in_an_unknown_block_counts():
    assert COUNT.block({"type": "mystery", "text": "word " * 1_000}) > 1_000
    assert COUNT.block({"type": "mystery", "text": "abcdef" * 1_000}) > 1_000


def test_a_text_that_is_no_string_counts_by_its_json():
    assert COUNT.block({"type": "text", "text": 12}) == 1
    assert COUNT.block({"type": "text", "text": None}) == 0


def test_a_reply_of_the_sdk_counts_like_a_message():
    from anthropic.types import Message, TextBlock, Usage

    reply: Any = Message(
        id="m",
        type="message",
        role="assistant",
        model="m",
        stop_reason="end_turn",
        stop_sequence=None,
        content=[TextBlock(type="text", text="hello world")],
        usage=Usage(input_tokens=1, output_tokens=1),
    )

    assert COUNT.message(reply) == 2


def test_a_call_and_its_result_count_as_the_sum_of_their_parts():
    call, result = step("t1", "bash", {"command": "ls"}, "a.py")

    assert COUNT.total([call, result]) == sum(
        map(COUNT.text, ("t1", "bash", '{"command":"ls"}', "a.py"))
    )
    assert COUNT.message(assistant("a.py")) == COUNT.text("a.py")


# Images -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (28, 28, 1),
        (29, 28, 2),
        (280, 280, 100),
        (1_000, 500, 36 * 18),
        (1_568, 784, 56 * 28),
        (3_136, 1_568, 56 * 28),  # scaled down to the long edge
        (4_000, 4_000, IMAGE_TOKENS),
        (100_000, 1, 56),
    ],
)
def test_an_image_takes_a_token_for_each_28_by_28_pixels_once_scaled_down(width, height, tokens):
    assert COUNT.block(image(png(width, height))) == tokens
    assert COUNT.block(image(png(height, width))) == tokens


def test_two_megabytes_of_image_take_less_than_five_thousand_tokens():
    assert COUNT.block(image(png(2_000, 1_500, behind=2_000_000))) <= IMAGE_TOKENS < 5_000


@pytest.mark.parametrize(
    "data",
    [
        png(640, 480),
        jpeg(640, 480),
        jpeg(640, 480, preview=200_000),
        encoded(b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(10)),
        webp(b"VP8 ", b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", 640, 480 | 0x4000)),
        webp(b"VP8L", b"\x2f" + struct.pack("<I", 639 | 479 << 14)),
        webp(b"VP8X", bytes(4) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")),
    ],
    ids=["png", "jpeg", "jpeg with a preview", "gif", "webp", "lossless webp", "extended webp"],
)
def test_the_size_of_an_image_is_read_from_its_header(data):
    assert size_of(data) == (640, 480)


@pytest.mark.parametrize(
    "source",
    [
        {"type": "url", "url": "https://a.b/c.png"},
        {"type": "file", "file_id": "file_1"},
        {"type": "base64", "media_type": "image/png", "data": "not base64 at all, é"},
        {"type": "base64", "media_type": "image/png", "data": encoded(b"\x89PNG\r\n\x1a\n")},
        {"type": "base64", "media_type": "image/png", "data": png(0, 0)},
        {
            "type": "base64",
            "media_type": "image/jpeg",
            "data": encoded(b"\xff\xd8\xff\xe0\x00\x00" + bytes(100)),
        },
        {
            "type": "base64",
            "media_type": "image/x",
            "data": encoded(b"some other format altogether"),
        },
        None,
    ],
)
def test_an_image_of_unknown_size_counts_as_the_largest(source):
    assert COUNT.block({"type": "image", "source": source}) == IMAGE_TOKENS


@pytest.mark.parametrize("cut", range(0, 80, 3))
def test_a_truncated_image_never_raises(cut: int):
    for data in (png(640, 480), jpeg(640, 480), webp(b"VP8L", b"\x2f" + bytes(4))):
        assert COUNT.block(image(data[:cut])) > 0


# Documents ----------------------------------------------------------------------------------------


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


def test_a_document_of_text_counts_its_text_title_and_context():
    block = {
        **document(type="text", media_type="text/plain", data="hello world"),
        "title": "one",
        "context": "two",
    }

    assert COUNT.block(block) == 4


def test_a_document_of_blocks_counts_them():
    assert (
        COUNT.block(
            document(
                type="content", content=[{"type": "text", "text": "hello"}, image(png(280, 280))]
            )
        )
        == 101
    )
    assert COUNT.block(document(type="content", content="hello")) == 1


def tree(count: int) -> bytes:
    return b"<</Kids[" + b"3 0 R " * count + b"]/Type /Pages /Count %d >>\n" % count


PAGE = b"<</Parent 1 0 R /Resources<</Font<</F1 5 0 R>>>> /Type /Page>>\n"
OUTLINES = b"<</Type /Outlines /Count 90>>\n"


def object_stream(*objects: bytes) -> bytes:
    packed = zlib.compress(b"11 0 12 90 " + b"".join(objects))
    head = b"<</Type/ObjStm/N 3/First 9/Filter/FlateDecode/Length %d>>" % len(packed)
    return b"9 0 obj\n" + head + b"\nstream\r\n" + packed + b"\nendstream\nendobj\n"


@pytest.mark.parametrize(
    ("pages", "objects"),
    [
        (3, tree(3) + PAGE * 3),
        (3, b"<< /Type /Pages /Count 3 >>" + b"<</Type/Page>>" * 3),
        (4, object_stream(tree(4), *[PAGE] * 4)),
        (5, object_stream(tree(5), PAGE) + OUTLINES + object_stream(*[PAGE] * 4)),
        (6, tree(6) + object_stream(*[PAGE] * 6)),
        (7, PAGE * 7),
        (8, tree(8)),
        (9, tree(9) + PAGE * 9 + PAGE * 2),
        (2, tree(9) + PAGE * 2),
        (5, tree(2) + tree(3) + tree(5) + PAGE * 5),
        (2, b"<</Type /Catalog /Pages 1 0 R>> <<" + tree(2) + PAGE * 2),
    ],
    ids=[
        *("as they are", "in another order", "packed", "in several packs", "half packed"),
        *("without a tree", "the tree alone", "pages written again", "pages that are missing"),
        *("a tree of trees", "a dictionary without an end"),
    ],
)
def test_a_pdf_counts_by_its_pages(pages, objects: bytes):
    data = encoded(b"%PDF-1.7\n" + objects + bytes(300_000))

    assert COUNT.block(document(type="base64", data=data)) == pages * PDF_PAGE_TOKENS


@pytest.mark.parametrize(
    "content",
    [
        random.Random(1).randbytes(2_000_000),
        b"%PDF-1.7\n" + random.Random(1).randbytes(2_000_000),
        b"%PDF-1.7\n" + bytes(450_000),
        b"%PDF-1.7\n" + object_stream(tree(4), PAGE)[:60],
        b"%PDF-1.7\n<</Type/ObjStm>>stream\nno zlib\nendstream",
        b"%PDF-1.7\n<</Type /Pages /Count 7 0 R>>",
        b"PK\x03\x04" + tree(4),
    ],
    ids=["noise", "a header", "zeros", "cut off", "packed otherwise", "elsewhere", "no pdf"],
)
def test_a_document_whose_pages_cannot_be_read_counts_the_same_whatever_its_size(
    content: bytes,
):
    assert COUNT.block(document(type="base64", data=encoded(content))) == DOCUMENT_TOKENS


def test_the_unpacked_size_of_a_pdf_is_limited():
    bomb = object_stream(bytes(40_000_000), PAGE)

    assert COUNT.block(document(type="base64", data=encoded(b"%PDF-1.7" + bomb * 3)))


class CountingZlib:
    """Counts the streams that are unpacked, and the bytes that zlib is given for them."""

    error = zlib.error

    def __init__(self) -> None:
        self.streams = 0
        self.bytes = 0

    def decompressobj(self) -> CountingZlib.Unpacker:
        self.streams += 1
        return CountingZlib.Unpacker(self)

    class Unpacker:
        def __init__(self, counts: CountingZlib) -> None:
            self._counts = counts
            self._unpacker = zlib.decompressobj()

        def decompress(self, data: bytes, most: int) -> bytes:
            self._counts.bytes += len(data)
            return self._unpacker.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._unpacker, name)


@pytest.mark.parametrize(
    "piece",
    [
        b"/Type/ObjStm>>stream\n",
        b"/Type/ObjStm>>stream\n" + zlib.compress(b"")[:2],
        object_stream(PAGE),
        object_stream(PAGE).replace(b"endstream", b""),
        b"/Type/ObjStm",
    ],
    ids=["no data", "a header", "whole streams", "streams without an end", "no streams"],
)
def test_the_work_on_a_pdf_of_streams_grows_with_its_size_up_to_a_limit(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
):
    used: list[int] = []
    for size in (100_000, 1_000_000, 4_000_000):
        counts = CountingZlib()
        monkeypatch.setattr(media, "zlib", counts)
        pdf = b"%PDF-1.7\n" + piece * (size // len(piece))
        media.page_count(pdf)
        assert counts.streams <= media._MAX_STREAMS
        assert counts.bytes <= len(pdf) + counts.streams * media._PIECE_BYTES
        used.append(counts.bytes)

    assert used[2] <= max(4_000_000, media._MAX_STREAMS * media._PIECE_BYTES)


def test_a_stream_inside_the_data_of_another_is_ignored():
    inner = object_stream(tree(7), *[PAGE] * 7)
    outer = zlib.compress(
        b"11 0 " + tree(2) + PAGE * 2 + inner, 0
    )  # stored without compression, so it can be seen
    pdf = b"%PDF-1.7\n<</Type/ObjStm>>stream\n" + outer + b"\nendstream\n"

    assert inner in pdf
    assert media.page_count(pdf) == 2


def test_pages_after_a_damaged_stream_are_counted():
    pdf = b"%PDF-1.7\n<</Type/ObjStm>>stream\nno zlib" + object_stream(tree(3), *[PAGE] * 3)

    assert media.page_count(pdf) == 3


@pytest.mark.parametrize(
    "source",
    [
        {"type": "url", "url": "https://a.b/c.pdf"},
        {"type": "file", "file_id": "file_1"},
        {"type": "base64", "data": "é"},
        {"type": "base64", "data": None},
        None,
    ],
)
def test_a_document_given_by_reference_has_a_fixed_count(source):
    assert COUNT.block({"type": "document", "source": source}) == DOCUMENT_TOKENS


def test_a_document_of_text_in_base64_counts_its_text():
    data = encoded(b"hello world")

    assert COUNT.block(document(type="base64", media_type="text/plain", data=data)) == 2
