"""The forms of a compacted context: what replaces a history, and how to recognize it.

Anybody can write a text in these forms. So code that finds one may only do less because of it,
unless it knows that a compaction has put it there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..messages import Message, texts
from ..messages.vocabulary import head_length
from ..providers.agent_tools import NOTE, NOTE_END, SEARCH_TOOL
from .notes import note_of

EVIDENCE, EVIDENCE_END = "\n\n<evidence>\n", "\n</evidence>"
INTRODUCTION = (
    "Kept from the conversation without a model: a record to look things up in, not a request."
)

SEARCHABLE = f"{SEARCH_TOOL} finds by words what was said before and what is in files"
"""Of the evidence, where the model has that tool."""

_BEGINNING = f"{EVIDENCE}{INTRODUCTION}\n"
_ARCHIVE = "Raw messages: "
_NAMED_ARCHIVE = re.compile(rf"{_ARCHIVE}(.+) \(([0-9a-f-]{{16,128}})\)")
_ARCHIVES_NAMED = 4
_MOST_BLOCKS = 8

# Required word for word, down to CONTINUE.
SUMMARY = "[Conversation compressed]\n\n"
ACKNOWLEDGED = "Understood. I have the context from the compressed conversation. Continuing work."
RESTORED = "[Restored after compact] "
FILE_ACKNOWLEDGED = "Noted, file content restored."
CONTINUE = "Continue with the task."
IN_PROGRESS = f"{CONTINUE} It is under way; the user's latest request was:\n\n"
KEPT, SEEN = "[Kept word for word from the conversation.]", "Noted."
REMINDER, REMINDER_END = f"\n\n{NOTE}\n", f"\n{NOTE_END}"
_WORKFLOWS = f"{REMINDER}## Active Workflows\nThese commands of the user stay in force:\n"

_OMISSIONS = "not carried on for lack of space"
_OMISSIONS_NAME = re.compile(r"compact-left-out(?:-[0-9a-f]{1,16})*\.txt")
_OMISSIONS_LINE = re.compile(rf"\nNote: [^\n]*{_OMISSIONS}[^\n]*? in ([^\n]+)\n")

_MEDIA_NOTE = re.compile(r"\[The \w{1,20} of this message is not shown here\.[^\n]*\]")
_RESTORED = re.compile(r"\[Restored after compact\] ([^\n]+):\n")
_EXTRAS = re.compile(f"{re.escape(REMINDER)}|{re.escape(EVIDENCE)}")
_OUR_TAGS = re.compile(r"<(?=/?(?:evidence|request|system-reminder|command)\b)", re.IGNORECASE)


def text_of(message: Message) -> str:
    """All text of *message*, its blocks separated by a blank line."""
    return "\n\n".join(texts(message))


def restored_text(path: str, content: str) -> str:
    """The text that brings a file back."""
    return f"{RESTORED}{path}:\n{content}"


def restored_path(message: Message) -> str | None:
    """The path in a message that looks as if it brought a file back; None for any other."""
    if message["role"] != "user":
        return None
    match = _RESTORED.match(text_of(message))
    return match[1] if match else None


def safe_summary(text: str) -> str:
    """*text* with our own tags escaped.

    What a model writes must not be mistaken for what the user said.
    """
    return _OUR_TAGS.sub("&lt;", text)


def summary_body(message: Message) -> str | None:
    """The summary in *message*, without what follows it; None for any other message."""
    text = text_of(message)
    if message["role"] != "user" or not text.startswith(SUMMARY):
        return None
    # The first tag is ours, since those in a summary are escaped.
    return _EXTRAS.split(text.removeprefix(SUMMARY), maxsplit=1)[0]


def summary_extras(message: Message) -> str:
    """What follows the summary in *message*: commands, folded files, evidence.

    "" for any other message.
    """
    body = summary_body(message)
    if body is None:
        return ""
    return text_of(message).removeprefix(SUMMARY + body)


def commands_in_force(message: Message) -> str:
    """What follows the summary in *message* with the user's commands; "" where there are none."""
    extras = summary_extras(message)
    if not extras.startswith(_WORKFLOWS):
        return ""
    return extras.split(REMINDER_END, 1)[0]


def reminder(found: Sequence[str]) -> str:
    """The text after a summary that keeps the commands *found* in force; "" when there are none."""
    if not found:
        return ""
    return _WORKFLOWS + "\n".join(found) + REMINDER_END


def missing_text(name: str, archive: str) -> str:
    """The note in place of a picture or document, the *name*, that is no longer in the context."""
    where = f" It is in {archive}." if archive else ""
    return f"\n\n[The {name} of this message is not shown here.{where}]"


def own_words(message: Message) -> str:
    """What the user wrote in *message*; "" where it may be what a stage put there."""
    if message["role"] != "user" or note_of(message):
        return ""
    text = _without_media_notes(message)
    if text.startswith(IN_PROGRESS):
        return text.removeprefix(IN_PROGRESS)
    if text.isspace() or text in (CONTINUE, KEPT) or text.startswith((SUMMARY, RESTORED)):
        return ""
    return text


# The beginning of a compacted context -------------------------------------------------------------


def leading_count(messages: Sequence[Message]) -> int:
    """How many messages at the beginning have the forms with which a compaction begins a context.

    They are the summary, system messages that were kept, the acknowledgment, and each restored file
    with its own acknowledgment.
    """
    if not messages or summary_body(messages[0]) is None:
        return 0
    index = 1 + head_length(messages[1:])
    if index < len(messages) and _is_reply(messages[index], ACKNOWLEDGED):
        index += 1
    while index + 1 < len(messages):
        file, reply = messages[index], messages[index + 1]
        is_file = file["role"] == "user" and text_of(file).startswith(RESTORED)
        if not is_file or not _is_reply(reply, FILE_ACKNOWLEDGED):
            break
        index += 2
    return index


def acknowledged_count(messages: Sequence[Message]) -> int:
    """As `leading_count`, but 0 unless our acknowledgment follows the summary.

    No user can write that.
    """
    count = leading_count(messages)
    if any(_is_reply(message, ACKNOWLEDGED) for message in messages[1:count]):
        return count
    return 0


def is_connective(message: Message) -> bool:
    """Whether *message* has a form that a compaction puts between or before kept messages."""
    if message["role"] != "user":
        return _is_reply(message, SEEN)
    text = _without_media_notes(message)
    return text in (CONTINUE, KEPT) or text.startswith(IN_PROGRESS)


def _without_media_notes(message: Message) -> str:
    """The text of *message* without the notes that replace pictures and documents."""
    paragraphs = text_of(message).split("\n\n")
    while len(paragraphs) > 1 and _MEDIA_NOTE.fullmatch(paragraphs[-1]):
        paragraphs.pop()
    return "\n\n".join(paragraphs)


def _is_reply(message: Message, text: str) -> bool:
    return message["role"] == "assistant" and text_of(message) == text


def omission_line(names: str, path: str) -> str:
    """Return the line that names what a compaction did not carry on, and the file that holds it.

    Without *names* all of it was left out by earlier compactions.
    """
    what = safe_summary(names) if names else "earlier blocks"
    where = f", in {path}" if path else ""
    return f"{_OMISSIONS}: {what}{where}"


def omissions_name(message: Message) -> str:
    """Return the name of the file with what earlier compactions did not carry on, "" for none.

    The summary in *message* names it. Only the name of a file of ctxpipe's counts, without its
    folder: the text may be anybody's.
    """
    match = _OMISSIONS_LINE.search(summary_extras(message))
    if match is None:
        return ""
    name = match[1].replace("\\", "/").rsplit("/", 1)[-1]
    return name if _OMISSIONS_NAME.fullmatch(name) else ""


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
        for line in block.split("\n", _ARCHIVES_NAMED)[:_ARCHIVES_NAMED]:
            match = _NAMED_ARCHIVE.fullmatch(line)
            if match:
                found.append((match[1], match[2]))
    return found
