"""tiktoken as everybody else uses it.

Its own loader, fed the same ranks through its own cache folder.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import tempfile
from pathlib import Path
from unittest import mock

import tiktoken

from ctxpipe.tokens import vocabulary

URL = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"


def official(name: str) -> bytes:
    """OpenAI's rank file, rebuilt from the packed form that the package ships."""
    packed = Path(vocabulary.__file__).parent / "vocab" / f"{name}.bin"
    ranks = vocabulary.unpack(packed.read_bytes())
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


@functools.cache
def encoding(name: str) -> tiktoken.Encoding:
    """Return the encoding that ``tiktoken.get_encoding`` makes of the official file.

    It checks OpenAI's sha256 itself.
    """
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, TIKTOKEN_CACHE_DIR=cache),
    ):
        cached = hashlib.sha1(URL.format(name).encode()).hexdigest()  # noqa: S324
        (Path(cache) / cached).write_bytes(official(name))
        return tiktoken.get_encoding(name)


def count(name: str, text: str) -> int:
    """The tokens of *text*, counted by stock tiktoken in one go."""
    return len(encoding(name).encode(text, disallowed_special=()))
