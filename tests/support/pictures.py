"""Images and documents for tests, in the form of the Messages API."""

from __future__ import annotations

import base64
import struct
import zlib
from random import Random
from typing import Any

from histories import assistant, conversation, tool_result, tool_use, user

from ctxpipe.messages import Message

SCREEN = 1_000_000  # bytes of a screenshot


def picture(number: int, size: int = SCREEN) -> dict[str, Any]:
    """The image *number*, of *size* bytes and 1280 x 800 pixels."""
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1280).to_bytes(4, "big") + (800).to_bytes(4, "big")
    return _block("image", "image/png", header + Random(number).randbytes(size - len(header)))


def noise(number: int, width: int = 640, height: int = 520) -> bytes:
    """A PNG of random colors, a megabyte of it, which programs that decode images can read."""
    random = Random(number)
    rows = b"".join(b"\0" + random.randbytes(3 * width) for _ in range(height))

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def pdf(number: int, pages: int = 3, size: int = 2_000) -> dict[str, Any]:
    """A document of so many *pages*."""
    content = b"%PDF-1.4\n" + b"<< /Type /Page >>\n" * pages + Random(number).randbytes(size)
    return {**_block("document", "application/pdf", content), "title": f"report {number}"}


def _block(kind: str, media_type: str, content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {
        "type": kind,
        "source": {"type": "base64", "media_type": media_type, "data": data},
    }


def look(number: int, *content: Any) -> list[Message]:
    """The model looks at the screen, and sees *content*, or the picture *number*."""
    seen = list(content) or [picture(number)]
    return conversation(
        assistant(tool_use(f"t{number}", "look")), user(tool_result(f"t{number}", seen))
    )
