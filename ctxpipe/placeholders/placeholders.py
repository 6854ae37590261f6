"""Write and recognize the texts that replace content in a context.

They replace offloaded content (in two forms), the middle of a long text, a file that was folded to
its names, and parts that a broken history lacks. A placeholder with a preview:

    [Tool result offloaded to file: .ctxpipe/job-42/toolu_1.md]
    [search_history finds it.]
    Preview, 600 of 48210 characters:
    (the first 400 characters)
    [... 47610 characters left out ...]
    (the last 200 characters)
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

# The requirements prescribe these two texts.
DIRECT = "[Tool result offloaded to file: {}]"
BATCH = "[Content offloaded to: {}]"

IMAGE = "[Image ({}) offloaded to file: {}]"
DOCUMENT = "[Document ({}) offloaded to file: {}]"

MAX_PATH = 4096
MAX_PREVIEW_CHARS = 10_000
"""Most characters that a preview can be set to show.

A stage does not recognize a placeholder with a longer preview as its own.
"""

# One line, at most as long as a path can be. The name of a folder may contain brackets.
_PATH = rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{MAX_PATH}}}"
SEARCHABLE = f"\n[{SEARCH_TOOL} finds it.]"
"""Line after either form if the model has the tool `search_history`."""
SOURCES = "\n[Sources: {}]"
"""Line after either form if the text has search results or documents with a title or an address."""
FAILURE_OPENING = "\n[It failed: "
FAILURE = FAILURE_OPENING + "{}]"
"""Line after either form if the text is the result of a failed call: what went wrong."""
_MAX_FAILURE_CHARS = 1_000
_MAX_SOURCES_CHARS = 1_000
_MAX_SOURCE_CHARS = 200
_FORMS = re.compile(
    rf"\[(?:Tool result offloaded to file|Content offloaded to): ({_PATH})\]"
    rf"(?:{re.escape(SEARCHABLE)})?"
    rf"(?:\n\[Sources: [^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{_MAX_SOURCES_CHARS}}}\])?"
    rf"(?:\n\[It failed: [^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{_MAX_FAILURE_CHARS}}}\])?"
)
_INSIDE = re.compile(_FORMS.pattern.replace(f"({_PATH})", rf"({_PATH}?\.md)"))
_MEDIA = re.compile(rf"\[(?:Image|Document) \([^()\n]{{1,200}}\) offloaded to file: ({_PATH})\]")
_DIRECT_BEGINNING = DIRECT.removesuffix("{}]")
_BATCH_BEGINNING = BATCH.removesuffix("{}]")
_MARKS = (_DIRECT_BEGINNING, _BATCH_BEGINNING, ") offloaded to file: ")
_WORDS = re.compile(r"[A-Za-z0-9._-]+")
_PREVIEW = re.compile(r"\nPreview, ([0-9]{1,15}) of ([0-9]{1,15}) characters:\n")


@dataclass(frozen=True, slots=True)
class Preview:
    """Sizes of the preview after the first line of a placeholder.

    *head* is the number of characters from the beginning of the text, *tail* from its end. Raises
    SettingsError if one of them is not a whole number of 0 or more.
    """

    head: int = 400
    tail: int = 200

    def __post_init__(self) -> None:
        check_settings(self, head=SIZE, tail=SIZE)

    def of(self, text: str) -> str:
        """Return the preview of *text*: a title, the head, a line for the middle, and the tail.

        "" if nothing would be missing. Slices of a Python string are code points, so no character
        is split.
        """
        size = self.head + self.tail
        if len(text) <= size:
            return ""
        title = f"\nPreview, {size} of {len(text)} characters:\n"
        return title + _without_middle(text, self.head, self.tail)


def quoted_file_names(text: str) -> list[str]:
    """Return the names of files in a *text* that contains a placeholder of any form.

    It may return too many names, never too few.
    """
    if not any(mark in text for mark in _MARKS):
        return []
    names: list[str] = []
    for piece in overlapping_pieces(text):
        # A pattern with the ending would take quadratic time in long words such as base64.
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
    failure: str = "",
) -> str:
    """Return the placeholder of *text*, which is stored at *where* and comes from *sources*.

    *form* is one of the forms above, such as `DIRECT`. *failure* are the lines that say what went
    wrong, if the text is the result of a failed call. Without *preview* the placeholder is one
    line, and one more each for *sources* and *failure*.
    """
    pointer = form.format(where) + sources_line(sources) + failure_line(failure)
    if preview is None:
        return pointer
    return pointer + preview.of(text)


def sources_line(sources: Sequence[str]) -> str:
    """Return the line that names the *sources* of an offloaded text; "" without sources.

    If they are too long, the line ends with the number of the others.
    """
    if not sources:
        return ""
    names: list[str] = []
    available_chars = _MAX_SOURCES_CHARS - len("; 1000000 more")
    for source in sources:
        name = one_line(source, _MAX_SOURCE_CHARS)
        available_chars -= len(name) + len("; ")
        if available_chars < 0:
            break
        names.append(name)
    if len(names) < len(sources):
        names.append(f"{len(sources) - len(names)} more")
    return SOURCES.format("; ".join(names))


def failure_line(failure: str) -> str:
    """Return the line that says what went wrong, with the lines of *failure*; "" without any."""
    lines = one_line(" ¶ ".join(failure.splitlines()), _MAX_FAILURE_CHARS)
    return FAILURE.format(lines) if lines else ""


def reference(text: object) -> str | None:
    """Return the path in a placeholder without a preview; None for any other content.

    The whole text must be a placeholder. A tool result that only begins like one is content, and so
    is one with a path that is too long to be one.
    """
    match = _FORMS.fullmatch(text) if isinstance(text, str) else None
    return match[1] if match else None


def any_reference(text: object, max_preview: int = sys.maxsize) -> str | None:
    """Return the path in a placeholder alone, or with a preview of up to *max_preview* characters.

    None for any other content. A web page can look like a placeholder with a preview. So code that
    leaves a text in the context for that reason must set *max_preview*, and compare the path with
    the one that belongs to the block's own id.
    """
    if not isinstance(text, str):
        return None
    match = _FORMS.match(text)
    if match and (match.end() == len(text) or _is_preview(text, match.end(), max_preview)):
        return match[1]
    return None


def _is_preview(text: str, start: int, max_preview: int) -> bool:
    """Return True if all of *text* from *start* on is a preview with its title.

    The title must announce the characters that follow, at most *max_preview*, and how many are
    missing.
    """
    title = _PREVIEW.match(text, start)
    if title is None:
        return False
    size = int(title[1])
    missing = int(title[2]) - size
    if missing <= 0 or size > max_preview:
        return False
    # The rest must be exactly what the title announces.
    note = gap(missing)
    rest = text[title.end() :]
    return len(rest) == size + len(note) and note in rest


def preview_in(rest: str, length: int) -> Preview | None:
    """Return the sizes of the preview in *rest*, the part of a placeholder after its first line.

    *length* is the number of characters of the whole text. None if there is no preview.
    """
    title = _PREVIEW.match(rest)
    if title is None:
        return None
    size = int(title[1])
    head = rest.find(gap(length - size), title.end()) - title.end()
    return Preview(head, size - head) if 0 <= head <= size else None


def references_inside(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, stop and path of each placeholder in *text*, with its preview if it has one.

    Content can look like a placeholder: compare with the original text.
    """
    for match in _INSIDE.finditer(text):
        stop = match.end()
        title = _PREVIEW.match(text, stop)
        if title is not None:
            size = int(title[1])
            stop = title.end() + size + len(gap(int(title[2]) - size))
        yield match.start(), min(stop, len(text)), match[1]


def media_reference(text: object) -> str | None:
    """Return the path in a placeholder of an image or document; None for any other content."""
    match = _MEDIA.fullmatch(text) if isinstance(text, str) else None
    return match[1] if match else None


def is_batch(text: str) -> bool:
    """Return True if *text* is a placeholder of batch offloading."""
    return text.startswith(_BATCH_BEGINNING) and any_reference(text, MAX_PREVIEW_CHARS) is not None


_GAP = re.compile(r"\n\[\.\.\. \d+ characters left out[^\n]* \.\.\.\]\n")


def gap(missing: int, where: str = "") -> str:
    """Return the line that replaces *missing* characters.

    *where* is the file with the whole text, if there is one.
    """
    source = f"; the whole text is in {where}" if where else ""
    return f"\n[... {missing} characters left out{source} ...]\n"


def shorten(text: str, limit: int, where: str = "") -> str:
    """Return *text* with *limit* of its characters: its head, a line for the rest, and its tail.

    A text of up to *limit* characters is returned unchanged. *where* is the file with the whole
    text, if there is one.
    """
    if len(text) <= limit:
        return text
    head_chars = limit * 2 // 3
    return _without_middle(text, head_chars, limit - head_chars, where)


def _without_middle(text: str, head_chars: int, tail_chars: int, where: str = "") -> str:
    """Return head and tail of *text*, with a note between them that counts what is missing."""
    tail_start = len(text) - tail_chars
    return f"{text[:head_chars]}{gap(tail_start - head_chars, where)}{text[tail_start:]}"


def is_cut(text: str, whole: str) -> bool:
    """Return True if *text* is *whole*, or *whole* as `shorten` shortens it."""
    if text == whole:
        return True
    note = _GAP.search(text)
    if note is None:
        return False
    return whole.startswith(text[: note.start()]) and whole.endswith(text[note.end() :])


_FOLD_BEGINNING = f"{NOTE}\n## File Context: "


def fold_block(path: str, body: str) -> str:
    """Return the block of the folded file at *path*, with the lines of *body* if it has any."""
    # A hostile path must not end its line or its block.
    safe_path = re.sub(r"[^\S ]|</?(?=system-reminder)", " ", path)
    lines = [_FOLD_BEGINNING + safe_path, body, NOTE_END]
    return "\n".join([line for line in lines if line])


def is_folded(text: str) -> bool:
    """Return True if *text* begins like the block of a folded file."""
    return text.startswith(_FOLD_BEGINNING)


# Texts in place of parts that a broken history lacks.
INTERRUPTED = "[No result: this tool call was interrupted. It may or may not have taken effect.]"
OPENING = "[The conversation begins here.]"
DROPPED = "[Nothing of this message could be kept.]"
SILENT_ERROR = "[The tool failed and gave no further word.]"
