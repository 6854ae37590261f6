"""What stands in a context in place of something else, written and recognized.

Of content that was offloaded (in two forms), of the middle of a long text, of a file folded to its
names, and of what a broken history lacks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .._text import one_line
from .._threads.pieces import overlapping_pieces
from ..providers.agent_tools import NOTE, NOTE_END, SEARCH_TOOL
from ..settings import SIZE, check_settings

# Required word for word.
DIRECT = "[Tool result offloaded to file: {}]"
BATCH = "[Content offloaded to: {}]"

IMAGE = "[Image ({}) offloaded to file: {}]"
DOCUMENT = "[Document ({}) offloaded to file: {}]"

MAX_PATH = 4096
MAX_SHOWN = 10_000
"""The most characters that a preview may be set to show.

A stage does not take a placeholder with a longer preview for its own.
"""

# One line, as long as a path can be; a longer one is content. A folder's name may contain brackets.
_PATH = rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{MAX_PATH}}}"
SEARCHABLE = f"\n[{SEARCH_TOOL} finds it.]"
"""After either form, where the model has that tool."""
SOURCES = "\n[Sources: {}]"
"""After either form, where the text has search results or documents with a title or an address."""
_MOST_SOURCES_CHARS = 1_000
_MOST_SOURCE_CHARS = 200
_FORMS = re.compile(
    rf"\[(?:Tool result offloaded to file|Content offloaded to): ({_PATH})\]"
    rf"(?:{re.escape(SEARCHABLE)})?"
    rf"(?:\n\[Sources: [^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{_MOST_SOURCES_CHARS}}}\])?"
)
_INSIDE = re.compile(_FORMS.pattern.replace(f"({_PATH})", rf"({_PATH}?\.md)"))
_MEDIA = re.compile(rf"\[(?:Image|Document) \([^()\n]{{1,200}}\) offloaded to file: ({_PATH})\]")
_BEGINNINGS = [form.removesuffix("{}]") for form in (DIRECT, BATCH)]  # in this order
_MARKS = (*_BEGINNINGS, ") offloaded to file: ")
_WORDS = re.compile(r"[A-Za-z0-9._-]+")
_PREVIEW = re.compile(r"\nPreview, ([0-9]{1,15}) of ([0-9]{1,15}) characters:\n")


@dataclass(frozen=True, slots=True)
class Preview:
    """How many characters of *head* and *tail* stay visible after the placeholder's first line.

    Raises SettingsError for what is not a whole number, 0 or more.
    """

    head: int = 400
    tail: int = 200

    def __post_init__(self) -> None:
        check_settings(self, head=SIZE, tail=SIZE)

    def of(self, text: str) -> str:
        """The lines that follow the placeholder: head, how much is missing, tail.

        "" where nothing would be missing. Slices of a Python string are code points, so no
        character is ever split.
        """
        shown = self.head + self.tail
        if len(text) <= shown:
            return ""
        title = f"\nPreview, {shown} of {len(text)} characters:\n"
        return title + _without_middle(text, self.head, self.tail)


def quoted_file_names(text: str) -> list[str]:
    """The file names in a *text* that quotes a placeholder of any form anywhere.

    It returns too many names rather than too few.
    """
    if not any(mark in text for mark in _MARKS):
        return []
    names: list[str] = []
    for piece in overlapping_pieces(text):
        # Word by word: a pattern with the ending takes quadratic time in long words such as base64.
        for word in _WORDS.findall(piece):
            name = word.lstrip(".")
            end = name.rfind(".md")
            if end > 0:
                names.append(name[: end + 3])
    return names


def placeholder(
    form: str,
    where: str,
    text: str = "",
    preview: Preview | None = None,
    *,
    sources: Sequence[str] = (),
) -> str:
    """The text that replaces *text*, which is now at *where* and comes from *sources*."""
    pointer = form.format(where) + sources_line(sources)
    if preview is None:
        return pointer
    return pointer + preview.of(text)


def sources_line(sources: Sequence[str]) -> str:
    """The line that names the *sources* of an offloaded text; "" where there are none."""
    if not sources:
        return ""
    shown: list[str] = []
    left = _MOST_SOURCES_CHARS - len("; 1000000 more")
    for source in sources:
        name = one_line(source, _MOST_SOURCE_CHARS)
        left -= len(name) + len("; ")
        if left < 0:
            break
        shown.append(name)
    if len(shown) < len(sources):
        shown.append(f"{len(sources) - len(shown)} more")
    return SOURCES.format("; ".join(shown))


def reference(text: object) -> str | None:
    """The path in a placeholder without a preview; None for any other content.

    Only a text that is a placeholder from its first to its last character counts. A tool
    result that merely begins like one is content, and so is one with an impossibly long path.
    """
    match = _FORMS.fullmatch(text) if isinstance(text, str) else None
    return match[1] if match else None


def any_reference(text: object, most: int = sys.maxsize) -> str | None:
    """The path in a placeholder alone, or with a preview of at most *most* characters.

    None for any other content. Any page can look like a preview. So code that spares a text because
    of it must give *most*, and compare the path with the one that belongs to the block's own id.
    """
    if not isinstance(text, str):
        return None
    match = _FORMS.match(text)
    if match and (match.end() == len(text) or _is_preview(text, match.end(), most)):
        return match[1]
    return None


def _is_preview(text: str, start: int, most: int) -> bool:
    title = _PREVIEW.match(text, start)
    if title is None:
        return False
    shown = int(title[1])
    missing = int(title[2]) - shown
    if missing <= 0 or shown > most:
        return False
    # The rest must be exactly what the title announces.
    note = gap(missing)
    rest = text[title.end() :]
    return len(rest) == shown + len(note) and note in rest


def preview_in(rest: str, length: int) -> Preview | None:
    """Return the sizes of the preview in *rest*, what follows a placeholder's first line.

    The text behind the placeholder has *length* characters. None where there is no preview.
    """
    title = _PREVIEW.match(rest)
    if title is None:
        return None
    shown = int(title[1])
    head = rest.find(gap(length - shown), title.end()) - title.end()
    return Preview(head, shown - head) if 0 <= head <= shown else None


def references_inside(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where in *text* placeholders are, with or without a preview, and the path in each.

    Any text can look like one: compare with what was there before.
    """
    for match in _INSIDE.finditer(text):
        stop = match.end()
        title = _PREVIEW.match(text, stop)
        if title is not None:
            shown = int(title[1])
            stop = title.end() + shown + len(gap(int(title[2]) - shown))
        yield match.start(), min(stop, len(text)), match[1]


def media_reference(text: object) -> str | None:
    """The path in a placeholder of an image or document; None for any other content."""
    match = _MEDIA.fullmatch(text) if isinstance(text, str) else None
    return match[1] if match else None


def is_batch(text: str) -> bool:
    """Whether *text* is a placeholder of batch offloading."""
    return text.startswith(_BEGINNINGS[1]) and any_reference(text, MAX_SHOWN) is not None


_GAP = re.compile(r"\n\[\.\.\. \d+ characters left out[^\n]* \.\.\.\]\n")


def gap(missing: int, where: str = "") -> str:
    """The line in place of *missing* characters; *where* is the file that has the whole text."""
    source = f"; the whole text is in {where}" if where else ""
    return f"\n[... {missing} characters left out{source} ...]\n"


def shorten(text: str, limit: int, where: str = "") -> str:
    """*text* if it has at most *limit* characters, else its head, a note on the rest, its tail.

    *where* is the file that contains the whole text.
    """
    if len(text) <= limit:
        return text
    head_chars = limit * 2 // 3
    return _without_middle(text, head_chars, limit - head_chars, where)


def _without_middle(text: str, head_chars: int, tail_chars: int, where: str = "") -> str:
    tail_start = len(text) - tail_chars
    return f"{text[:head_chars]}{gap(tail_start - head_chars, where)}{text[tail_start:]}"


def is_cut(text: str, whole: str) -> bool:
    """Whether *text* is *whole*, or what `shorten` leaves of it."""
    if text == whole:
        return True
    note = _GAP.search(text)
    if note is None:
        return False
    return whole.startswith(text[: note.start()]) and whole.endswith(text[note.end() :])


_HEAD = f"{NOTE}\n## File Context: "


def fold_block(path: str, body: str) -> str:
    """The block of the file at *path* with the lines of *body*, if any."""
    # The path must end neither its line nor its block.
    shown_path = re.sub(r"[^\S ]|</?(?=system-reminder)", " ", path)
    return "\n".join(filter(None, [_HEAD + shown_path, body, NOTE_END]))


def is_folded(text: str) -> bool:
    """Whether *text* begins as the block of a folded file does."""
    return text.startswith(_HEAD)


INTERRUPTED = "[No result: this tool call was interrupted. It may or may not have taken effect.]"
OPENING = "[The conversation begins here.]"
DROPPED = "[Nothing of this message could be kept.]"
SILENT_ERROR = "[The tool failed and gave no further word.]"
