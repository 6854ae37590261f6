"""What stands in the context where content was offloaded: the two forms, written and recognised."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import SettingsError
from .pieces import overlapping_pieces
from .settings import excerpt, is_size

__all__ = [
    "BATCH",
    "DIRECT",
    "MAX_SHOWN",
    "Preview",
    "any_reference",
    "placeholder",
    "previewed_reference",
    "reference",
]

DIRECT = "[Tool result offloaded to file: {}]"  # DO-5
BATCH = "[Content offloaded to: {}]"  # BO-18

MAX_PATH = 4096
MAX_SHOWN = 10_000
"""Characters of a preview behind a placeholder that a stage takes for its own.

The most that it may be set to.
"""

# One line, as long as a path can be: whatever is longer is content. A folder's name may hold
# brackets.
_PATH = rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{MAX_PATH}}}"
_FORMS = re.compile(rf"\[(?:Tool result offloaded to file|Content offloaded to): ({_PATH})\]")
_BEGINNINGS = tuple(form.split("{}")[0] for form in (DIRECT, BATCH))
_WORDS = re.compile(r"[A-Za-z0-9._-]+")
_PREVIEW = re.compile(r"\nPreview, ([0-9]{1,15}) of ([0-9]{1,15}) characters:\n")


@dataclass(frozen=True, slots=True)
class Preview:
    """How many characters of the *head* and the *tail* stay visible behind the placeholder's first
    line.

    Raises SettingsError for what is no whole number of 0 or more.
    """

    head: int = 400
    tail: int = 200

    def __post_init__(self) -> None:
        for name, size in (("head", self.head), ("tail", self.tail)):
            if not is_size(size):
                raise SettingsError(
                    f"{name} of a Preview is {excerpt(size)}; give a whole number of characters, 0 or more"
                )

    def of(self, text: str) -> str:
        """The lines that follow the placeholder: head, how much is missing, tail; "" where nothing
        would be missing.

        Slices of a Python string are code points, so no character is ever split.
        """
        missing = len(text) - self.head - self.tail
        if missing <= 0:
            return ""
        tail = text[len(text) - self.tail :]
        shown = self.head + self.tail
        return f"\nPreview, {shown} of {len(text)} characters:\n{text[: self.head]}{_gap(missing)}{tail}"


def _gap(missing: int) -> str:
    return f"\n[... {missing} characters left out ...]\n"


def named_files(text: str) -> list[str]:
    """The names of files in a *text* that quotes a placeholder anywhere, in whatever form: rather
    too many.
    """
    if not any(begin in text for begin in _BEGINNINGS):
        return []
    # Word by word: a pattern that looks for the ending takes quadratic time in a long word, such as
    # base64.
    words = (
        word.lstrip(".") for piece in overlapping_pieces(text) for word in _WORDS.findall(piece)
    )
    return [word[: end + 3] for word in words if (end := word.rfind(".md")) > 0]


def placeholder(form: str, where: str, text: str = "", preview: Preview | None = None) -> str:
    """The text that replaces *text*, which now lies at *where*."""
    return form.format(where) + (preview.of(text) if preview else "")


def reference(text: object) -> str | None:
    """The path in a bare placeholder; None for any other content.

    Only a text that is a placeholder from its first to its last character counts (A-17): a tool
    result that merely begins like one is content, and so is one with a longer path than there can
    be.
    """
    match = _FORMS.fullmatch(text) if isinstance(text, str) else None
    return match[1] if match else None


def previewed_reference(text: object, most: int | None = None) -> str | None:
    """The path in a placeholder that a preview follows, of at most *most* characters; None for any
    other content.

    Whoever leaves a text alone because of it must give *most*, and compare the path with the one
    that the block's own id leads to: any page can look like a preview.
    """
    if not isinstance(text, str):
        return None
    most = len(text) if most is None else most
    match = _FORMS.match(text)
    if match is None:
        return None
    head = _PREVIEW.match(text, match.end())
    if head is None or int(head[1]) > most:
        return None
    missing = int(head[2]) - int(head[1])
    gap = _gap(missing)
    # The rest must be exactly what the first lines announce.
    as_announced = len(text) == head.end() + int(head[1]) + len(gap) and gap in text[head.end() :]
    return match[1] if missing > 0 and as_announced else None


def any_reference(text: object, most: int | None = None) -> str | None:
    """The path in a placeholder, bare or with a preview of at most *most* characters.

    None for any other content.
    """
    return reference(text) or previewed_reference(text, most)
