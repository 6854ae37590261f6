"""Whether a file holds what a conversation was shown of it, and nothing was hidden."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from ..messages import strings
from ..providers.agent_tools import ADDED_LINE, ANY_GUTTER, CUT, GUTTER, NOTE, NOTES, view

_LONG = 2000  # characters; agents shorten longer lines
_PIECE = 200
_MAX_ADDED = 400  # a longer line is none that an agent adds
_MAX_TIMES, _MAX_MORE = 8, 100_000  # no frame and no line numbers make a view so much longer


class Shown(NamedTuple):
    """A *text* that showed a file; *is_current* if no later call could have changed the file."""

    text: str
    is_current: bool


def obstacle(views: Iterable[Shown], text: str, redact: Callable[[str], str]) -> str:
    """Why a file with this *text* must not come back after these *views*; "" when it may.

    A result may be a refusal in any words, and a tool may hide a part of what it reads. So the
    views must hold at least one line of *text*, and no line that *text* lacks, unless a later call
    could have changed the file, or all of *text* was shown. *redact* is what *text* went through.
    """
    now = _Lines.of(text)
    shown: set[str] = set()
    is_proven = lacks_lines = False
    for seen in views:
        if len(seen.text) > _MAX_TIMES * len(text) + _MAX_MORE:
            lacks_lines = lacks_lines or seen.is_current
            continue
        lines = now.read(redact(seen.text))
        shown.update(chain.from_iterable(lines))
        is_proven = is_proven or any(map(now.prove, lines))
        lacks_lines = lacks_lines or (seen.is_current and not all(map(now.hold, lines)))
    if not is_proven:
        return "no result has shown a line of what it holds now"
    if lacks_lines and not now.lines <= shown:
        return (
            "it lacks lines that were shown, and no call since then can have changed it: "
            "what it holds may have been hidden on purpose"
        )
    return ""


_Line: TypeAlias = tuple[str, ...]
"""A line as it was shown, and without what may be a gutter of one kind or another."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """The *lines* of a file; those of more than 2,000 characters are in *long*, too."""

    lines: frozenset[str]
    long: str

    @classmethod
    def of(cls, text: str) -> _Lines:
        lines = frozenset(filter(None, map(_plain, text.split("\n"))))
        return cls(lines, "\n".join(line for line in lines if len(line) > _LONG))

    def read(self, shown: str) -> list[_Line]:
        """The lines of a view as it was *shown*, without what agents add."""
        lines = self._read(shown)
        if any(map(self.prove, lines)) or shown.lstrip()[:1] not in ("{", "["):
            return lines
        framed = self._read("\n".join(_strings_in_json(shown)))
        return framed if any(map(self.prove, framed)) else lines

    def _read(self, shown: str) -> list[_Line]:
        if not any(NOTE in line for line in self.lines):
            shown = NOTES.sub("", shown)
        found: list[_Line] = []
        for line in view(shown).text.split("\n"):
            forms = [line, GUTTER.sub("", line), ANY_GUTTER.sub("", line.lstrip(), count=1)]
            found_line = tuple(map(_plain, forms))
            # What is left of an empty line with a number is no line.
            if all(found_line) and not self._is_added(found_line):
                found.append(found_line)
        return found

    def _is_added(self, line: _Line) -> bool:
        if len(line[0]) > _MAX_ADDED or not self.lines.isdisjoint(line):
            return False
        return any(map(ADDED_LINE.fullmatch, line))

    def hold(self, line: _Line) -> bool:
        """Whether *line* is one of the file, or the rest of one that was too long."""
        if not self.lines.isdisjoint(line):
            return True
        if not self.long or len(line[-1]) < _PIECE:
            return False
        return any(all(part in self.long for part in CUT.split(form)) for form in line)

    def prove(self, line: _Line) -> bool:
        """Whether *line* shows a line of the file, or a piece of a long one.

        A bracket proves nothing: a refusal may be JSON, too.
        """
        if any(form in self.lines and any(map(str.isalnum, form)) for form in line):
            return True
        bare = line[-1]
        starts = range(0, len(bare) - _PIECE + 1, _PIECE) if self.long else ()
        return any(bare[start : start + _PIECE] in self.long for start in starts)


def _plain(line: str) -> str:
    """*line* without differences that nobody sees: blanks, and forms of a letter."""
    line = " ".join(line.replace("\ufeff", "").split())
    return line if line.isascii() else unicodedata.normalize("NFC", line)


def _strings_in_json(text: str) -> list[str]:
    try:
        return list(strings(json.loads(text)))
    except (ValueError, RecursionError):
        return []
