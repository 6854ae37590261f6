"""A file folded to its names, as it stands in a context: the block, written and recognized."""

from __future__ import annotations

import re

from ..agent_tools import NOTE, NOTE_END

__all__ = ["fold_block", "is_folded"]

_HEAD = f"{NOTE}\n## File Context: "


def fold_block(path: str, body: str) -> str:
    """The block of the file at *path* with the lines of *body*, if any."""
    lines = [f"{_HEAD}{_one_line(path)}"]
    if body:
        lines.append(body)
    lines.append(NOTE_END)
    return "\n".join(lines)


def _one_line(path: str) -> str:
    """*path* so that it can end neither its line nor its block."""
    return re.sub(r"[^\S ]|</?(?=system-reminder)", " ", path)


def is_folded(text: str) -> bool:
    """Whether *text* begins as the block of a folded file does."""
    return text.startswith(_HEAD)
