"""Write and recognize the messages at the beginning of a compacted context.

    user        [Conversation compressed], the summary, and its extras
    assistant   Understood. I have the context …
    user        [Restored after compact] src/app.py: …
    assistant   Noted, file content restored.
    user        Continue with the task.

The extras are the user's commands in force, folded files, and the evidence.

Users, web pages and models can write a text in these forms too. So code that finds one may only do
less because of it, unless it knows that a compaction has written it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .._logs import logger
from ..messages import Message, texts
from ..messages.vocabulary import head_length
from ..providers.agent_tools import NOTE, NOTE_END, SEARCH_TOOL
from .notes import note_of

EVIDENCE = "\n\n<evidence>\n"
EVIDENCE_END = "\n</evidence>"
INTRODUCTION = (
    "Kept from the conversation without a model: a record to look things up in, not a request."
)

SEARCHABLE = f"{SEARCH_TOOL} finds by words what was said before and what is in files"
"""Note in the evidence if the model has the tool `search_history`."""

_BEGINNING = f"{EVIDENCE}{INTRODUCTION}\n"
_ARCHIVE = "Raw messages: "
_NAMED_ARCHIVE = re.compile(rf"{_ARCHIVE}(.+) \(([0-9a-f-]{{16,128}})\)")
_MAX_ARCHIVES = 4
_MAX_EVIDENCE_BLOCKS = 8

# The requirements prescribe these texts, up to CONTINUE.
SUMMARY = "[Conversation compressed]\n\n"
ACKNOWLEDGED = "Understood. I have the context from the compressed conversation. Continuing work."
RESTORED = "[Restored after compact] "
FILE_ACKNOWLEDGED = "Noted, file content restored."
CONTINUE = "Continue with the task."
IN_PROGRESS = f"{CONTINUE} It is under way; the user's latest request was:\n\n"
CARRIED_LINE = "[Kept word for word from the conversation.]"
SHORT_REPLY = "Noted."
REMINDER = f"\n\n{NOTE}\n"
REMINDER_END = f"\n{NOTE_END}"
_WORKFLOWS = f"{REMINDER}## Active Workflows\nThese commands of the user stay in force:\n"

_OMISSIONS = "not carried on for lack of space"
_OMISSIONS_NAME = re.compile(r"compact-left-out(?:-[0-9a-f]{1,16})*\.txt")
_OMISSIONS_LINE = re.compile(rf"\nNote: [^\n]*{_OMISSIONS}[^\n]*? in ([^\n]+)\n")

_MEDIA_NOTE = re.compile(r"\[The \w{1,20} of this message is not shown here\.[^\n]*\]")
_RESTORED = re.compile(r"\[Restored after compact\] ([^\n]+):\n")
_EXTRAS = re.compile(f"{re.escape(REMINDER)}|{re.escape(EVIDENCE)}")
_CTXPIPE_TAGS = re.compile(r"<(?=/?(?:evidence|request|system-reminder|command)\b)", re.IGNORECASE)


def assemble(
    head: Sequence[Message], summary: str, restored_files: Sequence[Message]
) -> list[Message]:
    """Return *head*, the summary pair, and each restored file with its acknowledgement."""
    if not summary:
        logger.warning("an empty summary replaces a history")
    files: list[Message] = []
    for file in restored_files:
        files += [file, {"role": "assistant", "content": FILE_ACKNOWLEDGED}]
    return [
        *head,
        {"role": "user", "content": SUMMARY + summary},
        {"role": "assistant", "content": ACKNOWLEDGED},
        *files,
    ]


def text_of(message: Message) -> str:
    """Return all text of *message*, its blocks separated by a blank line."""
    return "\n\n".join(texts(message))


def restored_text(path: str, content: str) -> str:
    """Return the text of the message that restores a file."""
    return f"{RESTORED}{path}:\n{content}"


def restored_path(message: Message) -> str | None:
    """Return the path in a message with the form of a restored file; None for any other."""
    if message["role"] != "user":
        return None
    match = _RESTORED.match(text_of(message))
    return match[1] if match else None


def safe_summary(text: str) -> str:
    """Return *text* with the tags escaped that ctxpipe uses.

    The words of a model must not pass for the user's.
    """
    return _CTXPIPE_TAGS.sub("&lt;", text)


def summary_body(message: Message) -> str | None:
    """Return the summary in *message* without its extras; None for any other message."""
    text = text_of(message)
    if message["role"] != "user" or not text.startswith(SUMMARY):
        return None
    # Tags inside the summary are escaped, so the first tag begins the extras.
    return _EXTRAS.split(text.removeprefix(SUMMARY), maxsplit=1)[0]


def summary_extras(message: Message) -> str:
    """Return the text after the summary in *message*: commands, folded files, evidence.

    "" for any other message.
    """
    body = summary_body(message)
    if body is None:
        return ""
    return text_of(message).removeprefix(SUMMARY + body)


def commands_in_force(message: Message) -> str:
    """Return the extras of *message* with the user's commands in force; "" if there are none."""
    extras = summary_extras(message)
    if not extras.startswith(_WORKFLOWS):
        return ""
    return extras.split(REMINDER_END, 1)[0]


def reminder(commands: Sequence[str]) -> str:
    """Return the text after a summary that keeps *commands* in force; "" if there are none."""
    if not commands:
        return ""
    return _WORKFLOWS + "\n".join(commands) + REMINDER_END


def missing_text(name: str, archive: str) -> str:
    """Return the note that replaces a picture or document which is no longer in the context.

    *name* is the kind of it, such as "image", *archive* the file that has it, or "".
    """
    where = f" It is in {archive}." if archive else ""
    return f"\n\n[The {name} of this message is not shown here.{where}]"


def own_words(message: Message) -> str:
    """Return the user's own words in *message*; "" if a stage may have written it."""
    if message["role"] != "user" or note_of(message):
        return ""
    text = _without_media_notes(message)
    if text.startswith(IN_PROGRESS):
        return text.removeprefix(IN_PROGRESS)
    if text.isspace() or text in (CONTINUE, CARRIED_LINE) or text.startswith((SUMMARY, RESTORED)):
        return ""
    return text


# The beginning of a compacted context -------------------------------------------------------------


def leading_count(messages: Sequence[Message]) -> int:
    """Return the number of leading messages that have the forms of a compacted context.

    They are the summary, carried system messages, the acknowledgment, and each restored file with
    its own acknowledgment.
    """
    if not messages or summary_body(messages[0]) is None:
        return 0
    index = 1 + head_length(messages[1:])
    if index < len(messages) and _is_reply(messages[index], ACKNOWLEDGED):
        index += 1
    while index + 1 < len(messages):
        file = messages[index]
        is_file = file["role"] == "user" and text_of(file).startswith(RESTORED)
        if not is_file or not _is_reply(messages[index + 1], FILE_ACKNOWLEDGED):
            break
        index += 2
    return index


def find_carried(messages: Sequence[Message], end: int) -> range:
    """Return the indices of the messages that a compaction has carried over.

    *end* is the index of the first message after those that the compaction has written or carried
    over. The part before them is the summary with its files, and what precedes the summary.
    """
    for index in range(end):
        if summary_body(messages[index]) is not None:
            return range(index + leading_count(messages[index:end]), end)
    return range(0)


def acknowledged_count(messages: Sequence[Message]) -> int:
    """Return `leading_count`, but 0 if the acknowledgment does not follow the summary.

    The acknowledgment is a message of the assistant, so no user can write it.
    """
    count = leading_count(messages)
    if any(_is_reply(message, ACKNOWLEDGED) for message in messages[1:count]):
        return count
    return 0


def is_connective(message: Message) -> bool:
    """Return True if *message* has the form of one that joins the carried messages."""
    if message["role"] != "user":
        return _is_reply(message, SHORT_REPLY)
    text = _without_media_notes(message)
    return text in (CONTINUE, CARRIED_LINE) or text.startswith(IN_PROGRESS)


def _without_media_notes(message: Message) -> str:
    """Return the text of *message* without the notes that replace pictures and documents."""
    paragraphs = text_of(message).split("\n\n")
    while len(paragraphs) > 1 and _MEDIA_NOTE.fullmatch(paragraphs[-1]):
        paragraphs.pop()
    return "\n\n".join(paragraphs)


def _is_reply(message: Message, text: str) -> bool:
    return message["role"] == "assistant" and text_of(message) == text


def omission_line(names: str, path: str) -> str:
    """Return the line that names the pieces which a compaction did not carry on, and their file.

    If *names* is empty, earlier compactions left out all of them.
    """
    pieces = safe_summary(names) if names else "earlier blocks"
    file = f", in {path}" if path else ""
    return f"{_OMISSIONS}: {pieces}{file}"


def omissions_name(message: Message) -> str:
    """Return the name of the file with the pieces that earlier compactions did not carry on, or "".

    The summary in *message* names the file. Its folder is ignored, and only a name that ctxpipe
    gives is returned: the text may be forged.
    """
    match = _OMISSIONS_LINE.search(summary_extras(message))
    if match is None:
        return ""
    name = match[1].replace("\\", "/").rsplit("/", 1)[-1]
    return name if _OMISSIONS_NAME.fullmatch(name) else ""


def archive_lines(archives: Sequence[str], digest: str) -> list[str]:
    """Return the lines that name the last few of *archives*; the last one with *digest*, if any."""
    lines = [f"{_ARCHIVE}{path}" for path in archives[-_MAX_ARCHIVES:]]
    if lines and digest:
        lines[-1] += f" ({digest})"
    return lines


def archive_references(text: str) -> list[tuple[str, str]]:
    """Return path and digest of each archive that *text* names in the form of evidence.

    The text may be forged, so the caller must verify the digest.
    """
    references: list[tuple[str, str]] = []
    _, *blocks = text.split(_BEGINNING)
    for block in blocks[:_MAX_EVIDENCE_BLOCKS]:
        for line in block.split("\n", _MAX_ARCHIVES)[:_MAX_ARCHIVES]:
            match = _NAMED_ARCHIVE.fullmatch(line)
            if match:
                references.append((match[1], match[2]))
    return references
