"""Decide which old exchanges stay in place, because they govern the agent.

An exchange stays if it has a plan or a to-do list that still applies, or a loaded skill. Of skills
as much stays as Claude Code promises after a compaction of its own. For single tasks, for the
user's words in a result (such as an answer to a question), for the heading of an instruction file,
for an error and for a running job, lines under their step in a note are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TypeAlias

from ...messages import Message, tool_calls
from ..reading.pins import Pin, pinned_indices
from ..reading.what_applies import Applicable, ApplicableKind

SKILL_TOKENS = 5_000
"""Tokens of a skill that stay."""
ALL_SKILLS_TOKENS = 25_000
"""Tokens of all skills together that stay, those of the newest first."""
MAX_QUOTED_CHARS = 4_000
"""Characters that stay of the user's words in a result."""
MAX_JOB_LINE = 300
"""Characters of the line with the id of a running job; of a longer line only the id stays."""

Place: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Governing:
    """Content that governs the agent in the old exchanges of a conversation.

    *kept_messages* are the indices of messages that stay with their whole exchange. *skill_heads*
    has the beginning of each skill that is too long to stay, by its text. *quoted_texts* are texts
    for the note, by the place of the call or the result that has them: tasks that are not done,
    words of the user, headings of instruction files. *open_errors* are the places of the results of
    calls that have failed and not succeeded since. *jobs* has the id of each running job, by the
    place of the result that named it. *jobs_over* has the ids of jobs that are over, by the index
    of the message that says so.
    """

    kept_messages: AbstractSet[int] = frozenset()
    skill_heads: Mapping[str, str] = field(default_factory=dict, repr=False)
    quoted_texts: Mapping[Place, str] = field(default_factory=dict, repr=False)
    open_errors: AbstractSet[Place] = frozenset()
    jobs: Mapping[Place, str] = field(default_factory=dict)
    jobs_over: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def keeps(self, start: int, length: int) -> bool:
        """Return True if one of the *length* messages from *start* on stays."""
        return any(index in self.kept_messages for index in range(start, start + length))


def governing(
    messages: Sequence[Message],
    pieces: Iterable[Applicable],
    count: Callable[[str], int],
    pin: Pin | None = None,
) -> Governing:
    """Return what of *pieces*, which apply at the end of *messages*, governs the agent.

    *count* returns the tokens of a text. The messages that *pin* chooses stay too.
    """
    kept_messages = pinned_indices(messages, pin)
    skills: list[Applicable] = []
    quoted_texts: dict[Place, str] = {}
    open_errors: set[Place] = set()
    jobs: dict[Place, str] = {}
    for piece in pieces:
        if piece.kind is ApplicableKind.SKILL:
            skills.append(piece)
        elif piece.kind is ApplicableKind.ERROR:
            open_errors.add(piece.place)
        elif piece.kind is ApplicableKind.JOB:
            jobs[piece.place] = piece.name
        elif _stays_in_place(messages, piece):
            kept_messages |= {piece.first_message, piece.message}
        elif piece.call is not None:  # what the user wrote without a call always stays
            quoted_texts[piece.place] = piece.text[:MAX_QUOTED_CHARS]
    skill_heads: dict[str, str] = {}
    tokens_left = ALL_SKILLS_TOKENS
    for skill in reversed(skills):
        max_tokens = min(SKILL_TOKENS, tokens_left)
        tokens = count(skill.text)
        if tokens <= max_tokens:
            kept_messages |= {skill.first_message, skill.message}
        else:
            skill_heads[skill.text] = head_of(skill.text, max_tokens, count)
        tokens_left -= min(tokens, max_tokens)
    return Governing(kept_messages, skill_heads, quoted_texts, open_errors, jobs)


def _stays_in_place(messages: Sequence[Message], piece: Applicable) -> bool:
    """Return True if *piece* is a plan, or a to-do list in an exchange without other calls.

    A single task, which has a name, is short enough for a note, and so are the open tasks of a list
    whose exchange has more than the list.
    """
    if piece.kind is ApplicableKind.PLAN:
        return True
    if piece.kind is not ApplicableKind.TO_DO or piece.name:
        return False
    return len(list(tool_calls(messages, piece.message, piece.message + 1))) == 1


def head_of(text: str, max_tokens: int, count: Callable[[str], int]) -> str:
    """Return the first lines of *text* that have at most *max_tokens* tokens together."""
    lines: list[str] = []
    for line in text.splitlines():
        max_tokens -= count(f"{line}\n")
        if max_tokens < 0:
            break
        lines.append(line)
    return "\n".join(lines)


def job_line(job: str, text: str) -> str:
    """Return the line of a result's *text* that names the running *job*."""
    for line in text.splitlines():
        if job in line and len(line) <= MAX_JOB_LINE:
            return line.strip()
    return f"running: {job}"
