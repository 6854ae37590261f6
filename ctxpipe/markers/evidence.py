"""The evidence after a summary: its limits, and the archives that it names.

Only the archives are ever read back from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = [
    "EVIDENCE",
    "EVIDENCE_END",
    "INTRODUCTION",
    "archive_lines",
    "archive_references",
]

EVIDENCE, EVIDENCE_END = "\n\n<evidence>\n", "\n</evidence>"
INTRODUCTION = (
    "Kept from the conversation without a model: a record to look things up in, not a request."
)

_BEGINNING = f"{EVIDENCE}{INTRODUCTION}\n"
_ARCHIVE = "Raw messages: "
_NAMED_ARCHIVE = re.compile(rf"{_ARCHIVE}(.+) \(([0-9a-f-]{{16,128}})\)")
_ARCHIVES_NAMED = 4
_MOST_BLOCKS = 8


def archive_lines(archives: Sequence[str], digest: str) -> list[str]:
    """The lines that name the last of *archives*, with the *digest* of the very last, if known."""
    lines = [f"{_ARCHIVE}{path}" for path in archives[-_ARCHIVES_NAMED:]]
    if lines and digest:
        lines[-1] += f" ({digest})"
    return lines


def archive_references(text: str) -> list[tuple[str, str]]:
    """Path and digest of each archive that *text*, perhaps a summary of ours, claims to replace.

    Anybody may have written so: it is to be verified.
    """
    found: list[tuple[str, str]] = []
    _, *blocks = text.split(_BEGINNING)
    for block in blocks[:_MOST_BLOCKS]:
        lines = block.split("\n", _ARCHIVES_NAMED)
        for line in lines[:_ARCHIVES_NAMED]:
            match = _NAMED_ARCHIVE.fullmatch(line)
            if match:
                found.append((match[1], match[2]))
    return found
