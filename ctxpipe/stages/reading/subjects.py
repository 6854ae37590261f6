"""Name a call on one line of a note: its tool, and what it is about."""

from __future__ import annotations

from ...messages import ToolCall
from ...messages.activity import one_line, target

MAX_READ_CHARS = 2_000
"""Characters that are read of a text whose beginning is shown."""
LINE_CHARS = 100
"""Characters that are shown of a call's subject; with more, notes were no more useful."""

_SEARCH_ARGUMENTS = ("pattern", "query", "regex", "glob", "search_term", "q")


def subject_line(call: ToolCall) -> str:
    """Return the name of the tool of *call*, and the beginning of what the call is about."""
    name = one_line(call.name[:MAX_READ_CHARS])
    subject = one_line(_subject(call)[: LINE_CHARS + MAX_READ_CHARS])
    if len(subject) > LINE_CHARS:
        subject = f"{subject[:LINE_CHARS]}…"
    return f"{name} {subject}"


def _subject(call: ToolCall) -> str:
    """Return what *call* is about: its command or path, and what it searches for there."""
    place = target(call)
    for name in _SEARCH_ARGUMENTS:
        search_text = call.input.get(name)
        if isinstance(search_text, str) and search_text not in place:
            return f"{one_line(search_text[:MAX_READ_CHARS])} in {place}"
    return place
