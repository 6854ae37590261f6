"""What stands in the context where a history was compacted: the forms, written and recognised.

Recognised are only whole messages in these forms; a text that merely mentions one is content.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .messages import texts

if TYPE_CHECKING:
    from .messages import Message

__all__ = [
    "ACKNOWLEDGED",
    "CONTINUE",
    "EVIDENCE",
    "EVIDENCE_END",
    "FILE_ACKNOWLEDGED",
    "IN_PROGRESS",
    "REMINDER",
    "REMINDER_END",
    "SUMMARY",
    "own_words",
    "restored_path",
    "restored_text",
    "safe_summary",
    "summary_body",
    "summary_extras",
    "text_of",
]

SUMMARY = "[Conversation compressed]\n\n"  # CR-37
ACKNOWLEDGED = "Understood. I have the context from the compressed conversation. Continuing work."  # CR-37
RESTORED = "[Restored after compact] "  # CR-27
FILE_ACKNOWLEDGED = "Noted, file content restored."  # CR-37
CONTINUE = "Continue with the task."
IN_PROGRESS = f"{CONTINUE} It is under way; the user's latest request was:\n\n"
REMINDER, REMINDER_END = "\n\n<system-reminder>\n", "\n</system-reminder>"
EVIDENCE, EVIDENCE_END = "\n\n<evidence>\n", "\n</evidence>"

_RESTORED = re.compile(r"\[Restored after compact\] ([^\n]+):\n")
_EXTRAS = re.compile(f"{re.escape(REMINDER)}|{re.escape(EVIDENCE)}")
_OUR_TAGS = re.compile(r"<(?=/?(?:evidence|request|system-reminder|command)\b)", re.IGNORECASE)


def text_of(message: Message) -> str:
    """All that *message* says as text, its blocks a blank line apart."""
    return "\n\n".join(texts(message))


def restored_text(path: str, content: str) -> str:
    """The text that brings a file back. Source: CR-27."""
    return f"{RESTORED}{path}:\n{content}"


def restored_path(message: Message) -> str | None:
    """The path in a message that brings a file back; None for any other."""
    match = _RESTORED.match(text_of(message)) if message["role"] == "user" else None
    return match[1] if match else None


def safe_summary(text: str) -> str:
    """*text* with our own tags made harmless: what a model writes must not pass for what the user said (R22, A-47)."""
    return _OUR_TAGS.sub("&lt;", text)


def summary_body(message: Message) -> str | None:
    """The summary that *message* carries, without what stands behind it; None for any other message."""
    text = _summary(message)
    return None if text is None else _EXTRAS.split(text, maxsplit=1)[0]


def summary_extras(message: Message) -> str:
    """What stands behind the summary in *message*: commands, folded files, evidence; "" for any other message."""
    text = _summary(message)
    # A summary's own tags are harmless, so the first one is ours.
    start = _EXTRAS.search(text) if text is not None else None
    return text[start.start() :] if text is not None and start else ""


def _summary(message: Message) -> str | None:
    if message["role"] != "user":
        return None
    text = text_of(message)
    return text[len(SUMMARY) :] if text.startswith(SUMMARY) else None


def own_words(message: Message) -> str:
    """What the user wrote in *message*; "" when it is not the user's, or holds only what a compaction put there."""
    if message["role"] != "user":
        return ""
    text = text_of(message)
    if text.startswith(IN_PROGRESS):
        return text[len(IN_PROGRESS) :]
    ours = text == CONTINUE or text.isspace() or text.startswith(SUMMARY) or _RESTORED.match(text)
    return "" if ours else text
