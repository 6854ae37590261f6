"""Write and read the note that replaces earlier steps of an agent.

    [Earlier steps, shortened; whole in .ctxpipe/job-42/s{12..14}.md]
    12 bash grep -rn port src → 1840 chars
     src/server.py:41:    port = int(os.environ["PORT"])
    13 bash pytest -q → 312 chars failed
     AssertionError: the port is 8080
    14 bash npm run dev → 42 chars running job_7f2
    15 answered: The port comes from the environment, so… → 2210 chars
    16 bash_output {"id": "job_7f2"} → 9 chars ended job_7f2

A step is a model call with its tools. Its line begins in the first column and ends with what became
of the step: it failed, it started a job, or a job was found to be over. Lines quoted from the step
are indented, so a quoted line cannot look like the line of a step.

Users, web pages and models can write a text in this form too. So code that finds one may only do
less because of it, unless it knows that ctxpipe has written it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..messages import Message
from .placeholders import MAX_PATH

_OPENING = "[Earlier steps, shortened; whole in "
_STEPS = re.compile(r"s\{(\d{1,9})\.\.(\d{1,9})\}((?:-[0-9a-f]{8})?)\.md\]")
_PATH = rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{0,{MAX_PATH}}}?"
_HEADING = re.compile(rf"{re.escape(_OPENING)}({_PATH}){_STEPS.pattern}")
_OUTCOME = (
    r"→ \d{1,12} chars(?P<failed> failed)?(?: running (?P<job>[\w-]+))?"
    r"(?: ended (?P<over>[\w-]+(?:,[\w-]+)*))?"
)
_STEP_LINE = re.compile(rf"\d{{1,9}} [\w.:-]{{1,130}} [^\n]{{0,2000}}{_OUTCOME}")
_ANY_STEP_LINE = re.compile(rf"(?P<number>\d{{1,9}}) (?P<about>[^\n]*) {_OUTCOME}")
_JOB = re.compile(r"[\w-]+")
MAX_STEP_CHARS = 1_000
"""Most characters of a step, with its quoted lines, when it gets a note of its own."""
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


def step_line(
    number: int,
    about: str,
    chars: int,
    *,
    failed: bool = False,
    job: str = "",
    jobs_over: Sequence[str] = (),
) -> str:
    """Return the line of step *number*.

    *about* is its tool and the command, or its answer. *chars* is the length of its result.
    *job* is the id of a job that it started, *jobs_over* are those of jobs that it found to be
    over; an id of anything but letters, digits, "_" and "-" is not named.
    """
    line = f"{number} {about} → {chars} chars"
    if failed:
        line += " failed"
    if _JOB.fullmatch(job):
        line += f" running {job}"
    ids = [name for name in jobs_over if _JOB.fullmatch(name)]
    if ids:
        line += f" ended {','.join(ids)}"
    return line


@dataclass(frozen=True, slots=True)
class NotedStep:
    """Content of a note about one step.

    *about* is its tool and the command, *job* the id of a job that it started, *jobs_over* are
    those of jobs that it found to be over. *note* is the text of a note of this step alone.
    """

    about: str
    note: str = field(repr=False)
    failed: bool = False
    job: str = ""
    jobs_over: Sequence[str] = ()


def steps_in_note(message: Message, folder: str) -> Iterator[NotedStep]:
    """Yield the steps of a note about files in *folder*; none if *message* is no such note."""
    note = note_of(message)
    if note is None or note.folder != folder:
        return
    steps: list[list[str]] = []
    for line in str(message["content"]).split("\n")[1:]:
        if not line.startswith(" "):
            steps.append([line])
        elif steps:
            steps[-1].append(line)
    for lines in steps:
        match = _ANY_STEP_LINE.fullmatch(lines[0])
        if match is None:
            continue
        number = int(match["number"])
        if not note.first <= number <= note.last:
            continue
        heading = StepsNote(folder, number, number, note.suffix).heading
        yield NotedStep(
            match["about"],
            "\n".join([heading, *_first_lines(lines)]),
            failed=match["failed"] is not None,
            job=match["job"] or "",
            jobs_over=match["over"].split(",") if match["over"] else (),
        )


def _first_lines(lines: Sequence[str]) -> list[str]:
    """Return the first of *lines* and those after it, up to `MAX_STEP_CHARS` characters."""
    first_lines = [lines[0]]
    chars_left = MAX_STEP_CHARS - len(lines[0])
    for line in lines[1:]:
        chars_left -= len(line) + 1
        if chars_left < 0:
            break
        first_lines.append(line)
    return first_lines


def is_part_of_note(part: str, note: str) -> bool:
    """Return True if *part* is a note whose steps, word for word, are among those of *note*."""
    if not part.startswith(_OPENING) or not note.startswith(_OPENING):
        return False
    return set(part.split("\n")[1:]) <= set(note.split("\n")[1:])


def find_imitations(reply: str) -> int:
    """Return how many lines of a *reply* have the form of a note's heading or of a step.

    A model that writes such a line instead of calling a tool imitates the note.
    """
    count = 0
    for line in reply[:_MAX_SEARCHED_CHARS].splitlines():
        words = line.strip()
        count += words.startswith(_OPENING) or bool(_STEP_LINE.fullmatch(words))
    return count
