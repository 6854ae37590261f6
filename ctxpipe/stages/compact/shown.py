"""Check that a file still holds what a conversation was shown of it, and that nothing is hidden."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...messages import strings
from ...providers.agent_tools import ADDED_LINE, ANY_GUTTER, CUT, GUTTER, NOTE, NOTES, view

_LONG_LINE = 2000  # characters; agents shorten longer lines
_PIECE = 200  # characters of a long line that are compared at once
_MAX_ADDED_LINE = 400  # characters; a longer line was not added by an agent

# Line numbers and a header make a view longer than the file. A text with more than _MAX_GROWTH
# times the characters of the file, plus _MAX_ADDED_CHARS, is not compared with it.
_MAX_GROWTH = 8
_MAX_ADDED_CHARS = 100_000


class ShownText(NamedTuple):
    """A *text* that showed a file; *is_current* if no later call could have changed the file."""

    text: str
    is_current: bool


def reason_to_withhold(views: Iterable[ShownText], text: str, redact: Callable[[str], str]) -> str:
    """Return the reason why a file with this *text* must not come back; "" if it may.

    *views* are the texts that showed the file or were written to it. A result may be a refusal in
    any words, and a tool may hide a part of the file. So there are two conditions:

    - At least one line of *text* is in a view.
    - *text* has every line of each view that is current. This is not required if every line of
      *text* was shown.

    *redact* is applied to the views; it has been applied to *text*.
    """
    file_lines = _FileLines.of(text)
    shown_forms: set[str] = set()
    is_proven = False
    lacks_lines = False
    for seen in views:
        if len(seen.text) > _MAX_GROWTH * len(text) + _MAX_ADDED_CHARS:
            lacks_lines = lacks_lines or seen.is_current
            continue
        lines = file_lines.read(redact(seen.text))
        for line in lines:
            shown_forms.update(line)
        is_proven = is_proven or file_lines.prove_any(lines)
        if seen.is_current and not all(file_lines.has(line) for line in lines):
            lacks_lines = True
    if not is_proven:
        return "no result has shown a line of what it holds now"
    if lacks_lines and not file_lines.lines <= shown_forms:
        return (
            "it lacks lines that were shown, and no call since then can have changed it: "
            "what it holds may have been hidden on purpose"
        )
    return ""


_ShownLine: TypeAlias = tuple[str, ...]
"""Forms of a line: as it was shown, and without line numbers of one kind or another."""


@dataclass(frozen=True, slots=True)
class _FileLines:
    """The *lines* of a file; *long* joins those of more than 2,000 characters."""

    lines: frozenset[str]
    long: str

    @classmethod
    def of(cls, text: str) -> _FileLines:
        """Split *text* into its lines; empty ones are left out."""
        plain_lines = [_plain(line) for line in text.split("\n")]
        lines = frozenset(line for line in plain_lines if line)
        return cls(lines, "\n".join(line for line in lines if len(line) > _LONG_LINE))

    def read(self, shown_text: str) -> list[_ShownLine]:
        """Return the lines that *shown_text* shows of the file, without lines that agents add.

        If none of them is in the file and the text looks like JSON, the texts inside the JSON are
        read instead, provided that one of their lines is in the file.
        """
        lines = self._read(shown_text)
        if self.prove_any(lines) or shown_text.lstrip()[:1] not in ("{", "["):
            return lines
        lines_in_json = self._read("\n".join(_strings_in_json(shown_text)))
        return lines_in_json if self.prove_any(lines_in_json) else lines

    def _read(self, shown_text: str) -> list[_ShownLine]:
        """Return the lines that *shown_text* shows of the file, each as it may be in the file.

        A line has three forms: whole, without a line number as a tool writes it, and without any
        number. Empty lines are skipped, and so are lines that the tool has added.
        """
        if not any(NOTE in line for line in self.lines):
            shown_text = NOTES.sub("", shown_text)
        lines: list[_ShownLine] = []
        for line in view(shown_text).text.split("\n"):
            forms = [line, GUTTER.sub("", line), ANY_GUTTER.sub("", line.lstrip(), count=1)]
            plain_forms = tuple(_plain(form) for form in forms)
            # Only the number remains of an empty line of the file.
            if all(plain_forms) and not self._is_added(plain_forms):
                lines.append(plain_forms)
        return lines

    def _is_added(self, line: _ShownLine) -> bool:
        """Return True if an agent has added *line* to the file's lines."""
        if len(line[0]) > _MAX_ADDED_LINE or not self.lines.isdisjoint(line):
            return False
        return any(ADDED_LINE.fullmatch(form) for form in line)

    def has(self, line: _ShownLine) -> bool:
        """Return True if *line* is a line of the file, or a long line that the tool has cut."""
        if not self.lines.isdisjoint(line):
            return True
        if not self.long or len(line[-1]) < _PIECE:
            return False
        return any(all(part in self.long for part in CUT.split(form)) for form in line)

    def prove_any(self, lines: Iterable[_ShownLine]) -> bool:
        """Return True if one of *lines* proves that the file was shown."""
        return any(self._prove(line) for line in lines)

    def _prove(self, line: _ShownLine) -> bool:
        """Return True if *line* is a line of the file, or a piece of a long one.

        A line of punctuation, such as a bracket, proves nothing: a refusal may be JSON too.
        """
        for form in line:
            if form in self.lines and any(char.isalnum() for char in form):
                return True
        if not self.long:
            return False
        bare = line[-1]
        starts = range(0, len(bare) - _PIECE + 1, _PIECE)
        return any(bare[start : start + _PIECE] in self.long for start in starts)


def _plain(line: str) -> str:
    """Return *line* without invisible differences: white space, and forms of the same letter."""
    line = " ".join(line.replace("\ufeff", "").split())
    return line if line.isascii() else unicodedata.normalize("NFC", line)


def _strings_in_json(text: str) -> list[str]:
    """Return the strings in the JSON *text*; none if it is not valid."""
    try:
        return list(strings(json.loads(text)))
    except (ValueError, RecursionError):
        return []
