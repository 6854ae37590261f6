"""What stands in place of something that a broken history lacks."""

from __future__ import annotations

__all__ = ["DROPPED", "INTERRUPTED", "OPENING", "SILENT_ERROR"]

INTERRUPTED = "[No result: this tool call was interrupted. It may or may not have taken effect.]"
OPENING = "[The conversation begins here.]"
DROPPED = "[Nothing of this message could be kept.]"
SILENT_ERROR = "[The tool failed and gave no further word.]"
