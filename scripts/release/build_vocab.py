"""Pack tiktoken's official rank files into the compact form that the package ships.

    python scripts/release/build_vocab.py FOLDER

FOLDER contains ``cl100k_base.tiktoken`` and ``o200k_base.tiktoken`` as published by OpenAI. Needed
only if OpenAI publishes other rank files. Prints the lines for ``RANK_FILES`` in
``ctxpipe/tokens/vocabulary.py``, which compares them with those of the installed tiktoken.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "ctxpipe" / "tokens" / "vocab"


def pack(official: bytes) -> bytes:
    """Return the packed form of a rank file.

    It has the number of tokens (4 bytes, big-endian), the length of each token (one byte), then the
    tokens themselves in the order of their ranks. Raises SystemExit if ranks have gaps.
    """
    tokens = []
    for number, line in enumerate(official.splitlines()):
        token, rank = line.split()
        if int(rank) != number:
            raise SystemExit(
                f"line {number + 1} has rank {int(rank)}: the packed form needs ranks without gaps"
            )
        tokens.append(base64.b64decode(token))
    lengths = bytes(len(token) for token in tokens)
    return len(tokens).to_bytes(4, "big") + lengths + b"".join(tokens)


def main(folder: Path) -> None:
    """Write the packed files, and print the lines with their digests."""
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
