"""The forms of a compacted context: what is written in the place of a history, and how it looks.

Anybody can write a text in these forms. So whoever finds one may only do less because of it, unless
he knows that a compaction has put it there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    "KEPT",
    "REMINDER",
    "REMINDER_END",
    "SEEN",
    "SUMMARY",
    "is_connective",
    "leading",
    "missing_text",
    "own_words",
    "placed",
    "restored_path",
    "restored_text",
    "safe_summary",
    "summary_body",
    "summary_extras",
    "text_of",
]

SUMMARY = "[Conversation compressed]\n\n"  # CR-37
ACKNOWLEDGED = (
    "Understood. I have the context from the compressed conversation. Continuing work."  # CR-37
)
RESTORED = "[Restored after compact] "  # CR-27
FILE_ACKNOWLEDGED = "Noted, file content restored."  # CR-37
CONTINUE = "Continue with the task."
IN_PROGRESS = f"{CONTINUE} It is under way; the user's latest request was:\n\n"
KEPT, SEEN = "[Kept word for word from the conversation.]", "Noted."
REMINDER, REMINDER_END = "\n\n<system-reminder>\n", "\n</system-reminder>"
EVIDENCE, EVIDENCE_END = "\n\n<evidence>\n", "\n</evidence>"

_MISSING = re.compile(r"\[The \w{1,20} of this message is not shown here\.[^\n]*\]")
_MOST_MISSING = 100
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
    """The path in a message that looks as if it brought a file back; None for any other."""
    match = _RESTORED.match(text_of(message)) if message["role"] == "user" else None
    return match[1] if match else None


def safe_summary(text: str) -> str:
    """*text* with our own tags made harmless: what a model writes must not pass for what the user
    said (R22, A-47).
    """
    return _OUR_TAGS.sub("&lt;", text)


def summary_body(message: Message) -> str | None:
    """The summary that *message* carries, without what stands behind it.

    None for any other message.
    """
    text = _summary(message)
    return None if text is None else _EXTRAS.split(text, maxsplit=1)[0]


def summary_extras(message: Message) -> str:
    """What stands behind the summary in *message*: commands, folded files, evidence; "" for any
    other message.
    """
    text = _summary(message)
    # A summary's own tags are harmless, so the first one is ours.
    start = _EXTRAS.search(text) if text is not None else None
    return text[start.start() :] if text is not None and start else ""


def _summary(message: Message) -> str | None:
    if message["role"] != "user":
        return None
    text = text_of(message)
    return text[len(SUMMARY) :] if text.startswith(SUMMARY) else None


def missing_text(name: str, archive: str) -> str:
    """What is said in the place of a picture or a document, its *name*, that is not in the context
    any more.
    """
    where = f" It is in {archive}." if archive else ""
    return f"\n\n[The {name} of this message is not shown here.{where}]"


def own_words(message: Message) -> str:
    """What the user wrote in *message*, "" when it is not his, or may be what a compaction put
    there.
    """
    if message["role"] != "user":
        return ""
    text = _told(message)
    if text.startswith(IN_PROGRESS):
        return text[len(IN_PROGRESS) :]
    ours = text in (CONTINUE, KEPT) or text.isspace() or text.startswith((SUMMARY, RESTORED))
    return "" if ours else text


# The beginning of a compacted context -------------------------------------------------------------


def leading(messages: Sequence[Message]) -> int:
    """How many messages at the beginning have the forms that a compaction begins a context with.

    The summary, system messages that were carried on, the acknowledgment, and each restored file
    with its own.
    """
    if not messages or summary_body(messages[0]) is None:
        return 0
    index = 1
    while index < len(messages) and messages[index]["role"] == "system":
        index += 1
    index += index < len(messages) and _is_reply(messages[index], ACKNOWLEDGED)
    while (
        index + 1 < len(messages)
        and _is_file(messages[index])
        and _is_reply(messages[index + 1], FILE_ACKNOWLEDGED)
    ):
        index += 2
    return index


def placed(messages: Sequence[Message]) -> int:
    """As `leading`, but 0 unless the summary is acknowledged in our words, which no user can write."""
    count = leading(messages)
    return count if any(_is_reply(message, ACKNOWLEDGED) for message in messages[1:count]) else 0


def is_connective(message: Message) -> bool:
    """Whether *message* has the form of what a compaction puts between kept messages, or before the
    last ones.
    """
    if message["role"] == "user":
        text = _told(message)
        return text in (CONTINUE, KEPT) or text.startswith(IN_PROGRESS)
    return _is_reply(message, SEEN)


def _told(message: Message) -> str:
    """The text of *message* without what is said there in the place of pictures."""
    text = text_of(message)
    for _ in range(_MOST_MISSING):
        before, mark, last = text.rpartition("\n\n")
        if not mark or _MISSING.fullmatch(last) is None:
            break
        text = before
    return text


def _is_file(message: Message) -> bool:
    return message["role"] == "user" and text_of(message).startswith(RESTORED)


def _is_reply(message: Message, text: str) -> bool:
    return message["role"] == "assistant" and text_of(message) == text
