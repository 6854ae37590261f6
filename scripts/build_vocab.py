"""Pack tiktoken's official rank files into the compact form that the package ships.

    python scripts/build_vocab.py FOLDER

FOLDER holds ``cl100k_base.tiktoken`` and ``o200k_base.tiktoken`` as published by OpenAI. Prints the
lines for ``RANK_FILES`` in ``ctxpipe/tokens/vocabulary.py``, which compares them with what the
installed tiktoken expects.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "ctxpipe" / "tokens" / "vocab"


def pack(official: bytes) -> bytes:
    """The tokens in the order of their ranks.

    How many (4 bytes, big-endian), one length byte each, then all bytes.
    """
    tokens = []
    for expected, line in enumerate(official.splitlines()):
        token, rank = line.split()
        if int(rank) != expected:
            raise SystemExit(
                f"line {expected + 1} has rank {int(rank)}: the packed form needs ranks "
                "without gaps"
            )
        tokens.append(base64.b64decode(token))
    return len(tokens).to_bytes(4, "big") + bytes(map(len, tokens)) + b"".join(tokens)


def main(folder: Path) -> None:
    for name in ("cl100k_base", "o200k_base"):
        official = (folder / f"{name}.tiktoken").read_bytes()
        packed = pack(official)
        (TARGET / f"{name}.bin").write_bytes(packed)
        print(f'    "{name}": RankFile(')
        print(f'        official_sha256="{hashlib.sha256(official).hexdigest()}",')
        print(f'        packed_sha256="{hashlib.sha256(packed).hexdigest()}",')
        print("    ),")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
