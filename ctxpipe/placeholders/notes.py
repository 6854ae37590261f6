"""Write and read the note that replaces earlier steps of an agent.

    [Earlier steps, shortened; whole in .ctxpipe/job-42/s{12..14}.md]
    12 bash grep -rn port src → 1840 chars
     src/server.py:41:    port = int(os.environ["PORT"])
    13 bash pytest -q → 312 chars failed
     AssertionError: the port is 8080
    14 answered: The port comes from the environment, so… → 2210 chars

A step is a model call with its tools. Its line begins in the first column; lines quoted from the
step are indented, so a quoted line cannot look like the line of a step.

Users, web pages and models can write a text in this form too. So code that finds one may only do
less because of it, unless it knows that ctxpipe has written it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..messages import Message
from .placeholders import MAX_PATH

_OPENING = "[Earlier steps, shortened; whole in "
_STEPS = re.compile(r"s\{(\d{1,9})\.\.(\d{1,9})\}((?:-[0-9a-f]{8})?)\.md\]")
_PATH = rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{0,{MAX_PATH}}}?"
_HEADING = re.compile(rf"{re.escape(_OPENING)}({_PATH}){_STEPS.pattern}")
_STEP_LINE = re.compile(r"\d{1,9} [\w.:-]{1,130} [^\n]{0,2000}→ \d{1,12} chars(?: failed)?")
_MAX_SEARCHED_CHARS = 20_000  # of a reply
_MAX_STEPS = 10_000  # of one note


@dataclass(frozen=True, slots=True)
class StepsNote:
    """The heading of a note, with the numbers of the *first* and the *last* step.

    The file of step *n* is ``{folder}s{n}{suffix}.md``; *folder* ends in a separator, or is "".
    """

    folder: str
    first: int
    last: int
    suffix: str = ""

    @property
    def heading(self) -> str:
        """The first line of the note."""
        return f"{_OPENING}{self.folder}s{{{self.first}..{self.last}}}{self.suffix}.md]"

    def path(self, number: int) -> str:
        """Return the path of the file with the whole step *number*."""
        return f"{self.folder}s{number}{self.suffix}.md"


def note_of(message: Message) -> StepsNote | None:
    """Return the note about collapsed steps that *message* is, else None.

    A note has at least one line for each step that its heading announces.
    """
    content = message["content"]
    if message["role"] != "user" or not isinstance(content, str):
        return None
    if not content.startswith(_OPENING):
        return None
    heading, _, lines = content.partition("\n")
    match = _HEADING.fullmatch(heading)
    if match is None or not lines:
        return None
    note = StepsNote(match[1], int(match[2]), int(match[3]), match[4])
    step_count = note.last - note.first + 1
    line_count = lines.count("\n") + 1
    # Each step has a line, so a forged heading cannot announce a billion steps.
    return note if 1 <= step_count <= line_count else None


def step_names_in(text: str) -> list[str]:
    """Return the names of all files of steps in a *text* that contains the heading of a note.

    It may return too many names, never too few.
    """
    if _OPENING not in text:
        return []
    names: list[str] = []
    for match in _STEPS.finditer(text):
        first = int(match[1])
        last = int(match[2])
        numbers = range(first, min(last + 1, first + _MAX_STEPS))
        names += [f"s{number}{match[3]}.md" for number in numbers]
    return names


def step_line(number: int, about: str, chars: int, *, failed: bool = False) -> str:
    """Return the line of step *number*.

    *about* is its tool and the command, or its answer. *chars* is the length of its result.
    """
    ending = " failed" if failed else ""
    return f"{number} {about} → {chars} chars{ending}"


def find_imitations(reply: str) -> int:
    """Return how many lines of a *reply* have the form of a note's heading or of a step.

    A model that writes such a line instead of calling a tool imitates the note.
    """
    count = 0
    for line in reply[:_MAX_SEARCHED_CHARS].splitlines():
        words = line.strip()
        count += words.startswith(_OPENING) or bool(_STEP_LINE.fullmatch(words))
    return count
