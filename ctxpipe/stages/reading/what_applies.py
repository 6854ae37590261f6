"""Find what governs the agent at the end of a conversation, by structure and not by meaning.

An `Applicable` is a piece of the conversation that still applies:

    words            a text that the user wrote, also as the answer to a question of the agent
    skill            a loaded skill, in the result of a tool or in a text of the user's side
    plan             the newest plan that was proposed to the user, and the newest that was approved
    to-do list       the newest list, or each task of it that is not done
    error            the last failure of a call that has not succeeded since
    job              a job or sub-agent that goes on running
    instructions     an instruction file that was read, such as AGENTS.md

Failures and jobs are also found in the notes that the session has put in place of earlier steps.

The order of the words says which of them were revoked; no code here judges that. The names of tools
and the forms of texts are in `providers.agent_tools`.

`what_applies` reads a whole conversation. `ApplicableIndex` reads each message once, for a stage
that asks in each turn.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...messages import (
    Block,
    Message,
    ToolCall,
    ToolResult,
    as_blocks,
    block_text,
    is_blank,
    kind,
    strings,
    texts,
    tool_calls,
    tool_results,
)
from ...messages import field as read
from ...messages.activity import is_failure, one_line, target
from ...messages.contents import result_text
from ...placeholders.notes import steps_in_note
from ...placeholders.summaries import IN_PROGRESS, own_words, safe_summary
from ...providers.agent_tools import (
    COMMON_READING_TOOLS,
    FINISHED,
    HARNESS_TEXT,
    INSTRUCTION_FILES,
    INSTRUCTION_FOLDERS,
    NOTES,
    PLAN_TOOLS,
    QUESTION_TOOLS,
    REFUSAL_WITH_WORDS,
    SKILL_KEYS,
    SKILL_TEXTS,
    SKILL_TOOLS,
    TASK_CREATORS,
    TASK_KEYS,
    TASK_UPDATERS,
    TO_DO_TOOLS,
    view,
)
from .jobs import job_started_by, jobs_ended_by, jobs_over_in
from .subjects import subject_line
from .views import viewed_path


class ApplicableKind(Enum):
    """Kinds of content that governs an agent."""

    WORDS = "words of the user"
    SKILL = "skill"
    PLAN = "plan"
    TO_DO = "to-do list"
    ERROR = "open error"
    JOB = "running job"
    INSTRUCTIONS = "instruction file"


@dataclass(frozen=True, slots=True)
class Applicable:
    """A piece of a conversation that still applies.

    *message* and *block* are the place of its *text*: a text, a result, or the input of a call. For
    a piece of a tool, *call* is the call, which is in the message before that of the result.
    *name* is the skill's name, the path of the file, the id of the job, or what the failed call was
    about. *text* is the text that must not be lost: of an error its lines, of a job the id, of an
    instruction file the heading, of a step in a note the note of this step alone, of everything
    else the whole. For a step in a note, *block* is the number of the step in the note.
    """

    kind: ApplicableKind
    message: int
    block: int
    text: str = field(repr=False)
    name: str = ""
    call: ToolCall | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Message index and block index, as a pair."""
        return self.message, self.block

    @property
    def first_message(self) -> int:
        """Index of the first message that the piece needs: that of its call, if it has one."""
        return self.message if self.call is None else self.call.message


def what_applies(
    messages: Sequence[Message], *, is_history: bool = False, notes_folder: str | None = None
) -> list[Applicable]:
    """Return what still applies at the end of *messages*, in the order of the conversation.

    If *is_history* is True, every text of the user's side comes from the caller. Otherwise a text
    in a form that ctxpipe writes is not taken for words of the user, and a note about files in
    *notes_folder*, the folder of the session as the model sees it, is read as the session's own.
    """
    index = ApplicableIndex(is_history=is_history)
    index.notes_folder = notes_folder
    index.extend(messages)
    return index.applicable()


@dataclass(slots=True)
class _Entry:
    """A piece, and the indices of the messages that made it apply, and not apply any more."""

    piece: Applicable
    key: str
    start: int
    end: int | None = None


class ApplicableIndex:
    """Index of what applies in one conversation, read message by message.

    It lives from turn to turn, so that a turn costs its new messages only. Call `rewind` when
    earlier messages change.
    """

    __slots__ = ("_entries", "_is_history", "_open", "message_count", "notes_folder")

    def __init__(self, *, is_history: bool = False) -> None:
        self._is_history = is_history
        self._entries: list[_Entry] = []
        self._open: dict[tuple[ApplicableKind, str], _Entry] = {}
        self.message_count: int = 0
        """Number of messages that were read."""
        self.notes_folder: str | None = None
        """Folder of the files that the session's own notes are about; None reads no notes."""

    def applicable(self, *kinds: ApplicableKind) -> list[Applicable]:
        """Return the pieces that still apply, of *kinds* or of all kinds, oldest first."""
        pieces = [entry.piece for entry in self._open.values()]
        if kinds:
            pieces = [piece for piece in pieces if piece.kind in kinds]
        return sorted(pieces, key=lambda piece: piece.place)

    def jobs_over(self) -> dict[int, list[str]]:
        """Return the ids of the finished jobs, by the index of the message that reports the end."""
        last_entries = {
            entry.key: entry for entry in self._entries if entry.piece.kind is ApplicableKind.JOB
        }
        jobs: dict[int, list[str]] = {}
        for job, entry in last_entries.items():
            if entry.end is not None:
                jobs.setdefault(entry.end, []).append(job)
        return jobs

    def rewind(self, length: int) -> None:
        """Forget all but the first *length* messages."""
        # The last message before a change may be a call, and its result may have changed.
        self.message_count = min(self.message_count, max(0, length - 1))
        count = self.message_count
        remaining: list[_Entry] = []
        self._open = {}
        for entry in self._entries:
            if entry.start >= count:
                continue
            if entry.end is not None and entry.end >= count:
                entry.end = None
            remaining.append(entry)
            if entry.end is None:
                self._open[entry.piece.kind, entry.key] = entry
        self._entries = remaining

    def extend(self, messages: Sequence[Message], stop: int | None = None) -> None:
        """Read the messages after the first `message_count` ones, up to *stop*.

        *messages* is the whole conversation.
        """
        stop = len(messages) if stop is None else stop
        for index in range(self.message_count, stop):
            role = messages[index]["role"]
            if role == "user":
                self._read_user_message(messages, index)
            elif role == "assistant":
                self._read_plans_in_words(messages[index], index)
            self.message_count = index + 1

    def _add(self, piece: Applicable, key: str) -> None:
        """Add *piece*. It replaces the piece of its kind that has the same *key*."""
        self._close(piece.kind, key)
        entry = _Entry(piece, key, start=self.message_count)
        self._entries.append(entry)
        self._open[piece.kind, key] = entry

    def _close(self, kind: ApplicableKind, key: str) -> None:
        """Note that the piece of *kind* with *key* does not apply any more."""
        entry = self._open.pop((kind, key), None)
        if entry is not None:
            entry.end = self.message_count

    def _keys(self, kind: ApplicableKind) -> list[str]:
        return [key for entry_kind, key in self._open if entry_kind is kind]

    # Messages -------------------------------------------------------------------------------------

    def _read_user_message(self, messages: Sequence[Message], index: int) -> None:
        message = messages[index]
        before = max(0, index - 1)
        calls = {call.id: call for call in tool_calls(messages, before, index)}
        loads_skill = ""
        for result in tool_results(messages, index, index + 1):
            call = calls.get(result.tool_use_id)
            if call is None or call.program is not None:
                continue
            self._read_result(call, result)
            if call.name in SKILL_TOOLS:
                loads_skill = skill_name(call)
        if not self._is_history and not own_words(message):
            self._read_note(message, index)
            return
        for place, block in enumerate(as_blocks(message)):
            if kind(block) == "text":
                text = read(block, "text") or ""
                if not self._is_history:
                    text = text.removeprefix(IN_PROGRESS)
                self._read_text(index, place, text, loads_skill)
            elif kind(block) == "document":
                self._read_document(index, place, block)

    def _read_note(self, message: Message, index: int) -> None:
        """Read what a note of the session says of failed calls and of jobs."""
        if self.notes_folder is None:
            return
        for place, step in enumerate(steps_in_note(message, self.notes_folder)):
            for job in step.jobs_over:
                self._close(ApplicableKind.JOB, job)
            if step.job:
                job_piece = Applicable(ApplicableKind.JOB, index, place, step.note, step.job)
                self._add(job_piece, step.job)
            key = _NOTED + step.about
            if step.failed:
                piece = Applicable(ApplicableKind.ERROR, index, place, step.note, step.about)
                self._add(piece, key)
            else:
                self._close(ApplicableKind.ERROR, key)

    def _read_text(self, index: int, place: int, text: str, loaded_skill: str) -> None:
        """Read a *text* of the user's side; *loaded_skill* is the skill loaded by this message."""
        if is_blank(text):
            return
        name = skill_in(text)
        if name is None and loaded_skill and len(text) >= _MIN_SKILL_CHARS:
            name = loaded_skill
        if name is not None:
            piece = Applicable(ApplicableKind.SKILL, index, place, text, name)
            self._add(piece, name)
        elif HARNESS_TEXT.fullmatch(text):
            for job in jobs_over_in(text, self._keys(ApplicableKind.JOB)):
                self._close(ApplicableKind.JOB, job)
        elif is_of_user(text):
            self._add(Applicable(ApplicableKind.WORDS, index, place, text), f"{index} {place}")

    def _read_document(self, index: int, place: int, block: Block) -> None:
        """Read a document of the user's side: it may be an instruction file or a skill."""
        path = str(read(block, "title") or "")
        text = block_text(block)
        if text and is_instruction_file(path):
            self._add(Applicable(ApplicableKind.SKILL, index, place, text, path), path)

    def _read_plans_in_words(self, message: Message, index: int) -> None:
        """Read the plans that an assistant's *message* proposes in its words."""
        for place, block in enumerate(as_blocks(message)):
            if kind(block) == "text" and "<proposed_plan>" in (text := read(block, "text") or ""):
                self._add(Applicable(ApplicableKind.PLAN, index, place, text), _PROPOSED)

    def _read_result(self, call: ToolCall, result: ToolResult) -> None:
        text = result_text(result)
        failed = is_failure(result)
        index = result.message
        for job in jobs_ended_by(call, text, failed=failed, jobs=self._keys(ApplicableKind.JOB)):
            self._close(ApplicableKind.JOB, job)
        self._read_outcome(call, result, text, failed=failed)
        if call.name in PLAN_TOOLS:
            self._read_plan(call, result, text, failed=failed)
        if failed:
            return
        if call.name in SKILL_TOOLS and len(text) >= _MIN_SKILL_CHARS:
            self._add_of(ApplicableKind.SKILL, call, result, text, skill_name(call))
        elif call.name in TO_DO_TOOLS:
            self._read_list(call)
        elif call.name in TASK_CREATORS or call.name in TASK_UPDATERS:
            self._read_task(call, text)
        elif call.name in QUESTION_TOOLS:
            self._add_words(call, result, text)
        job = job_started_by(call, text)
        if job:
            self._add(Applicable(ApplicableKind.JOB, index, result.block, job, job, call), job)
        path = viewed_path(call, COMMON_READING_TOOLS, shell=True)  # noqa: S604  no shell is started
        if path is not None and is_instruction_file(path):
            heading = heading_of(view(text).text)
            self._add_of(ApplicableKind.INSTRUCTIONS, call, result, heading, path)

    def _add_of(
        self, kind: ApplicableKind, call: ToolCall, result: ToolResult, text: str, name: str
    ) -> None:
        """Add a piece whose *text* is in *result*; it replaces the piece with the same *name*."""
        self._add(Applicable(kind, result.message, result.block, text, name, call), name)

    def _add_words(self, call: ToolCall, result: ToolResult, words: str) -> None:
        """Add the user's *words* in *result*."""
        piece = Applicable(
            ApplicableKind.WORDS, result.message, result.block, words, call.name, call
        )
        self._add(piece, f"{result.message} {result.block}")

    def _read_outcome(self, call: ToolCall, result: ToolResult, text: str, *, failed: bool) -> None:
        """Note the failure of *call*, or that it has succeeded after one."""
        subject = f"{call.name} {target(call)}"
        if self.notes_folder is not None:
            self._close(ApplicableKind.ERROR, _NOTED + safe_summary(subject_line(call)))
        if not failed:
            self._close(ApplicableKind.ERROR, subject)
            return
        refusal = REFUSAL_WITH_WORDS.search(text)
        if refusal is not None:
            self._add_words(call, result, refusal["words"])
        self._add(
            Applicable(
                ApplicableKind.ERROR,
                result.message,
                result.block,
                error_lines(text),
                subject,
                call,
            ),
            subject,
        )

    # Plans and lists ------------------------------------------------------------------------------

    def _read_plan(self, call: ToolCall, result: ToolResult, text: str, *, failed: bool) -> None:
        """Add the plan of *call*. One that the user has approved replaces all others."""
        plan = max(strings(call.input), key=len, default="")
        is_in_result = not failed and len(text) > len(plan)
        if not plan and not is_in_result:
            return
        place = result.place if is_in_result else call.place
        piece = Applicable(
            ApplicableKind.PLAN, *place, text=text if is_in_result else plan, call=call
        )
        self._close(ApplicableKind.PLAN, _PROPOSED)
        if failed:
            self._add(piece, _PROPOSED)
        else:
            self._add(piece, _APPROVED)

    def _read_list(self, call: ToolCall) -> None:
        """Add the to-do list that *call* writes; one whose tasks are all done does not apply."""
        for key in self._keys(ApplicableKind.TO_DO):
            self._close(ApplicableKind.TO_DO, key)
        texts = list(open_tasks(call.input))
        if texts:
            piece = Applicable(ApplicableKind.TO_DO, *call.place, text="\n".join(texts), call=call)
            self._add(piece, _LIST)

    def _read_task(self, call: ToolCall, text: str) -> None:
        """Add the task that *call* creates, or what it says about a task that is not done."""
        task = _task_id(call.input)
        if call.name in TASK_CREATORS:
            match = _TASK_NUMBER.search(text)
            task = match[1] if match else task or call.id
            piece = Applicable(
                ApplicableKind.TO_DO,
                *call.place,
                text=next(open_tasks(call.input), "") or text,
                name=task,
                call=call,
            )
            self._add(piece, f"task {task}")
            return
        state = str(call.input.get("status", "")).lower()
        if state in FINISHED or call.name == "complete_task":
            self._close(ApplicableKind.TO_DO, f"task {task}")
            self._close(ApplicableKind.TO_DO, f"update {task}")
        elif (ApplicableKind.TO_DO, f"task {task}") in self._open:
            piece = Applicable(
                ApplicableKind.TO_DO,
                *call.place,
                text=one_line(f"task {task}: {state or text}"),
                name=task,
                call=call,
            )
            self._add(piece, f"update {task}")


_NOTED = "noted "
_PROPOSED = "proposed"
_APPROVED = "approved"
_LIST = "list"
_MIN_SKILL_CHARS = 200
"""Characters from which on the result of a skill tool is the skill itself, and no receipt."""
_TASK_NUMBER = re.compile(r"#(\d+)")


# Words --------------------------------------------------------------------------------------------


def words_of_user(message: Message) -> str:
    """Return the texts of the user's *message* without skills, and without texts of a harness."""
    return "\n\n".join(text for text in texts(message) if is_of_user(text))


def is_of_user(text: str) -> bool:
    """Return True if *text* of the user's side is neither a skill nor written by a harness."""
    if is_blank(text) or skill_in(text) is not None or HARNESS_TEXT.fullmatch(text):
        return False
    return not is_blank(NOTES.sub("", text)) or _names_instructions(text)


# Skills -------------------------------------------------------------------------------------------


def skill_in(text: str) -> str | None:
    """Return the name or folder of the skill that *text* is; None if it is none."""
    for form in SKILL_TEXTS:
        match = form.fullmatch(text)
        if match is not None:
            return str(match.groupdict().get("name") or form.pattern[:40]).strip()
    return None


def skill_name(call: ToolCall) -> str:
    """Return the name of the skill that *call* of a skill tool loads."""
    for key in SKILL_KEYS:
        name = call.input.get(key)
        if isinstance(name, str) and name:
            return name
    return call.name


def governs(call: ToolCall | None, text: str) -> bool:
    """Return True if the result of *call* with *text* is a skill, a plan or words of the user.

    Such a result governs the agent at any age, so that it is not moved to a file like other text.
    """
    if call is None:
        return False
    if call.name in SKILL_TOOLS or call.name in PLAN_TOOLS or call.name in QUESTION_TOOLS:
        return True
    return skill_in(text) is not None


# Lists --------------------------------------------------------------------------------------------

_TASK_TEXT_KEYS = ("content", "step", "title", "subject", "task", "text", "description")
_LINES_OF_LIST = re.compile(r"^\s*[-*]\s*\[(?P<mark>.)\]\s*(?P<text>.+)$", re.MULTILINE)


def open_tasks(arguments: object) -> Iterator[str]:
    """Yield the text of each task in the input of a call that is not done, in their order."""
    if isinstance(arguments, str):
        for match in _LINES_OF_LIST.finditer(arguments):
            if match["mark"].lower() != "x":
                yield match["text"].strip()
        return
    if isinstance(arguments, list | tuple):
        for item in arguments:
            yield from open_tasks(item)
        return
    if not isinstance(arguments, Mapping):
        return
    state = str(arguments.get("status") or arguments.get("state") or "").lower()
    if state in FINISHED or arguments.get("completed") is True or arguments.get("done") is True:
        return
    for key in _TASK_TEXT_KEYS:
        text = arguments.get(key)
        if isinstance(text, str) and text and not _LINES_OF_LIST.search(text):
            yield text
            return
    for value in arguments.values():
        yield from open_tasks(value)


def _task_id(arguments: Mapping[str, object]) -> str:
    for key in TASK_KEYS:
        if key in arguments:
            return str(arguments[key]).lstrip("#")
    return ""


# Errors -------------------------------------------------------------------------------------------

_ERROR_LINES_EACH = 2  # at the beginning and at the end
_MAX_ERROR_LINE = 200
_MAX_ERROR_READ = 200_000
_ERROR_WORD = re.compile(
    r"error|fail|exception|fatal|panic|denied|not found|no such|cannot|can't|could not|assert|"
    r"undefined|unexpected|invalid|refused|timed out|reject|must\b|expected",
    re.IGNORECASE,
)


def error_lines(text: str) -> str:
    """Return the few lines of a failed result that say what went wrong, each shortened.

    They are the first and the last lines with a word for a failure, and the last line of all.
    Without such a word they are the first line and the last.
    """
    if len(text) > _MAX_ERROR_READ:
        half = _MAX_ERROR_READ // 2
        text = f"{text[:half]}\n{text[-half:]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    failure_lines = [line for line in lines if _ERROR_WORD.search(line)] or lines[:1]
    first_lines = failure_lines[:_ERROR_LINES_EACH]
    last_lines = failure_lines[-_ERROR_LINES_EACH:]
    short_lines = [line[:_MAX_ERROR_LINE] for line in [*first_lines, *last_lines, lines[-1]]]
    return "\n".join(dict.fromkeys(short_lines))


def error_line(text: str) -> str:
    """Return the last line of a failed result with a word for a failure, or else its last line."""
    lines = [line.strip() for line in text[-_MAX_ERROR_READ:].splitlines() if line.strip()]
    for line in reversed(lines):
        if _ERROR_WORD.search(line):
            return line[:_MAX_ERROR_LINE]
    return lines[-1][:_MAX_ERROR_LINE] if lines else ""


# Instruction files --------------------------------------------------------------------------------

_HEADING = re.compile(r"^\s*(?:\d+\s*[→│|:\t])?\s*(#{1,6}\s+\S.*|name:\s*\S.*)$", re.MULTILINE)
_CONTENTS_OF = re.compile(r"Contents of ([^\n:]+)")
_MAX_HEADING = 120
_MAX_CHARS_BEFORE_HEADING = 10_000


def is_instruction_file(path: str) -> bool:
    """Return True if the file at *path* gives an agent its instructions, by its name or folder."""
    plain_path = path.replace("\\", "/").lower()
    if posixpath.basename(plain_path) in INSTRUCTION_FILES:
        return True
    return any(f"/{folder}" in f"/{plain_path}" for folder in INSTRUCTION_FOLDERS)


def heading_of(text: str) -> str:
    """Return the first heading of an instruction file, or the name in its front matter, or ""."""
    match = _HEADING.search(text[:_MAX_CHARS_BEFORE_HEADING])
    return one_line(match[1])[:_MAX_HEADING] if match else ""


def _names_instructions(text: str) -> bool:
    """Return True if a reminder of a harness has the contents of an instruction file."""
    paths = _CONTENTS_OF.findall(text)
    return any(is_instruction_file(path.split(" (")[0].strip()) for path in paths)
