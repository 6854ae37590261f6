"""Replace old exchanges by notes: one line for each step, with the lines worth keeping.

A *step* is one tool call with its result, one long answer, or one long text of a harness (such as
the report of a background job). A *run* is the steps between two messages that stay; it becomes one
note. An example, where the user's words and the last exchange stay:

    user       "Fix the port"                          stays
    assistant  call a, call b                    step 1, step 2
    user       result of a, result of b
    assistant  a long answer without calls       step 3
    user       "Now the tests"                         stays
    assistant  call c                            step 4
    user       result of c
    assistant  call d                                  stays (recent)
    user       result of d

    becomes

    user       "Fix the port"
    user       note with the lines of steps 1 to 3
    user       "Now the tests"
    user       note with the line of step 4
    assistant  call d
    user       result of d

An exchange that governs the agent stays too (see `governing`).

`plan_collapse` finds the steps and runs. The stage writes the text of each step (`step_texts`) to a
file, and `collapse` returns the context with the notes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from ..._values import leaves
from ...messages import (
    Message,
    ToolCall,
    ToolResult,
    blocks,
    has_calls,
    has_results,
    strings,
    tool_calls,
    tool_results,
)
from ...messages.activity import is_failure, one_line
from ...placeholders.notes import StepsNote, note_of, step_line
from ...placeholders.summaries import safe_summary
from ...providers.agent_tools import COMMON_READING_TOOLS, view
from ..reading.atoms import Atom, atoms, content_text, message_texts
from ..reading.citations import without_dangling_citations
from ..reading.results import placeholder_files, text_of
from ..reading.subjects import LINE_CHARS, subject_line
from ..reading.views import viewed_path
from ..reading.what_applies import error_line, error_lines
from .excerpts import LeavingText, TextKind, choose_lines
from .exchanges import ANSWER_CHARS, answer_of, blocks_to_keep, exchange_length, reports_in
from .findings import sentences_to_keep
from .governing import Governing, job_line

if TYPE_CHECKING:
    from ...tokens import TokenCounter

MAX_SHARE = 0.5
"""Largest share of the leaving tokens that quoted lines may take."""

_SPOKEN_STEP = re.compile(r"^(\d{1,9}) (answered|reported): ", re.MULTILINE)


# Steps --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CollapseStep:
    """A numbered step of a note: a *call* and its *result*, or a text.

    *message* is the index of its message. *verb* is "answered" for a reply without calls,
    "reported" for a text of a harness, and "" for a call. *words* are that text; for the first call
    of a message they are what the assistant said before the call.
    """

    number: int
    message: int
    call: ToolCall | None = None
    result: ToolResult | None = None
    verb: Literal["", "answered", "reported"] = ""
    words: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class CollapsePlan:
    """The parts that ``messages[start:stop]`` become.

    Each of *parts* is a message that stays, or a run of steps that becomes a note.
    *leaving_indices* are the indices of the messages that do not stay unchanged. *governing* is
    what governs the agent at the end of *messages*.
    """

    messages: Sequence[Message] = field(repr=False)
    start: int
    stop: int
    parts: list[Message | list[CollapseStep]] = field(repr=False)
    leaving_indices: list[int]
    governing: Governing = field(default_factory=Governing)

    @property
    def steps(self) -> list[CollapseStep]:
        """All steps, in order."""
        steps: list[CollapseStep] = []
        for part in self.parts:
            if isinstance(part, list):
                steps += part
        return steps

    @property
    def note_count(self) -> int:
        """Number of notes, one for each run."""
        return sum(isinstance(part, list) for part in self.parts)

    @property
    def leaving_messages(self) -> list[Message]:
        """The messages that do not stay unchanged."""
        return [self.messages[index] for index in self.leaving_indices]


def plan_collapse(
    messages: Sequence[Message],
    start: int,
    stop: int,
    first_number: int,
    governing: Governing | None = None,
) -> CollapsePlan:
    """Return the steps of the exchanges in ``messages[start:stop]``, in runs.

    The steps are numbered from *first_number* on. What a person wrote, media, earlier notes and the
    exchanges that are *governing* the agent stay unchanged.
    """
    governing = governing or Governing()
    parts: list[Message | list[CollapseStep]] = []
    leaving_indices: list[int] = []
    run: list[CollapseStep] = []
    number = first_number
    index = start
    while index < stop:
        length = exchange_length(messages, index)
        if not length or governing.keeps(index, length):
            next_index = index + max(1, length)
            parts += messages[index:next_index]
            run = []
            index = next_index
            continue
        leaving_indices += range(index, index + length)
        if not run:
            parts.append(run)
        steps = list(_steps_at(messages, index, number))
        number += len(steps)
        run += steps
        last = messages[index + length - 1]
        remaining_blocks = blocks_to_keep(last) if last["role"] == "user" else []
        if remaining_blocks:
            parts.append(cast("Message", {"role": "user", "content": remaining_blocks}))
            run = []
        index += length
    return CollapsePlan(messages, start, stop, parts, leaving_indices, governing)


def _steps_at(messages: Sequence[Message], index: int, number: int) -> Iterator[CollapseStep]:
    """Yield the steps of the exchange at *index*, numbered from *number* on."""
    message = messages[index]
    if has_calls(message):
        after = index + 1
        results = {
            result.tool_use_id: result for result in tool_results(messages, after, after + 1)
        }
        words = answer_of(message)
        for call in tool_calls(messages, index, after):
            yield CollapseStep(number, index, call, results.get(call.id), words=words)
            number += 1
            words = ""
        if after == len(messages):
            return
        index = after
        message = messages[after]
    elif message["role"] == "assistant":
        yield CollapseStep(number, index, verb="answered", words=answer_of(message))
        return
    for report in reports_in(message):
        yield CollapseStep(number, index, verb="reported", words=report)
        number += 1


# The files of the steps ---------------------------------------------------------------------------


def find_offloaded_files(plan: CollapsePlan) -> dict[str, str]:
    """Return the file name of each placeholder in the steps of *plan*, by placeholder."""
    texts: list[tuple[str, str]] = []
    for step in plan.steps:
        if step.call is None or step.result is None:
            continue
        texts.append((step.call.id, text_of(step.result.content)))
        texts += [(step.call.id, text) for text in strings(step.call.input)]
    return placeholder_files(texts)


def step_texts(plan: CollapsePlan, offloaded_texts: Mapping[str, str]) -> list[str]:
    """Return the text of each step's file.

    It has the assistant's words, the tool's name and input, and the whole result.
    *offloaded_texts* has the whole text of each placeholder.
    """
    return [_step_text(step, offloaded_texts) for step in plan.steps]


def _step_text(step: CollapseStep, offloaded_texts: Mapping[str, str]) -> str:
    """Return the text of *step*: what the model said, its call with arguments, and the result.

    Texts in *offloaded_texts*, which are placeholders, are replaced by the original text.
    """
    if step.call is None:
        return step.words
    arguments = [offloaded_texts.get(text, text) for text in strings(step.call.input)]
    lines = [step.call.name, "\n".join(arguments), "---", _result_text(step, offloaded_texts)]
    text = "\n".join(lines)
    return f"{step.words}\n\n{text}" if step.words else text


def _result_text(step: CollapseStep, offloaded_texts: Mapping[str, str]) -> str:
    """Return the whole result of *step*; for a step without a call, its text."""
    if step.call is None:
        return step.words
    if step.result is None:
        return ""
    text = text_of(step.result.content)
    return offloaded_texts.get(text, text)


def texts_of_notes(raw: Sequence[Message], notes: Sequence[Message]) -> dict[str, str]:
    """Return the texts of the files that *notes* point to, by path.

    The texts are rebuilt from *raw*, the messages that the notes replaced. Returns an empty dict if
    the steps of the two do not correspond.
    """
    waiting = deque(_steps_of_notes(notes))
    texts: dict[str, str] = {}
    for step in _raw_steps(raw):
        if not waiting:
            return {}
        path, verb = waiting[0]
        if verb == step.verb:
            texts[path] = _step_text(step, {})
            waiting.popleft()
        elif step.verb != "answered":
            return {}  # only short answers, which stayed in the context, are missing in notes
    return {} if waiting else texts


def _steps_of_notes(notes: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """Yield the path of the file and the verb of each step in *notes*; "" for a missing verb."""
    for message in notes:
        note = note_of(message)
        if note is None:
            continue
        verbs = {
            int(number): verb for number, verb in _SPOKEN_STEP.findall(str(message["content"]))
        }
        for number in range(note.first, note.last + 1):
            yield note.path(number), verbs.get(number, "")


def _raw_steps(raw: Sequence[Message]) -> Iterator[CollapseStep]:
    """Yield every step of *raw*, also short answers. All steps have the number 0."""
    for index, message in enumerate(raw):
        if not has_results(message):  # results belong to the exchange before
            yield from _steps_at(raw, index, number=0)


# The notes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CollapsedContext:
    """The *messages* of the context after a collapse.

    *note_count* of them are new notes, which quote *line_count* lines. *freed_tokens* is the number
    of tokens saved, less those of the notes.
    """

    messages: list[Message] = field(repr=False)
    note_count: int
    line_count: int
    freed_tokens: int


def collapse(
    plan: CollapsePlan,
    offloaded_texts: Mapping[str, str],
    folder: str,
    suffix: str,
    min_value: float,
    counter: TokenCounter,
) -> CollapsedContext:
    """Return the context with a note for each run, and under each step the lines worth keeping.

    The file of step n is ``{folder}s{n}{suffix}.md``. A line is worth keeping if it has *min_value*
    expected uses per 1,000 tokens or more.
    """
    before = plan.messages[: plan.start]
    after = plan.messages[plan.stop :]
    leaving_tokens = sum(counter.message(message) for message in plan.leaving_messages)
    # What the context shows anyway, in its messages and in notes without quoted lines.
    notes_alone = _with_notes(plan, {}, offloaded_texts, folder, suffix)
    visible: set[Atom] = set()
    for message in [*before, *notes_alone, *after]:
        for text in message_texts(message):
            visible |= atoms(text)
    quoted_lines = choose_lines(
        list(_leaving_texts(plan, offloaded_texts)),
        visible,
        counter.text,
        min_value=min_value,
        max_tokens=MAX_SHARE * leaving_tokens,
    )
    replacement = _with_notes(plan, quoted_lines, offloaded_texts, folder, suffix)
    context = without_dangling_citations(plan.messages, [*before, *replacement, *after])
    # Counted here, in a worker thread: later the counter only looks these messages up.
    replaced_messages = plan.messages[plan.start : plan.stop]
    tokens_before = sum(counter.message(message) for message in replaced_messages)
    tokens_after = sum(counter.message(message) for message in replacement)
    return CollapsedContext(
        messages=context,
        note_count=plan.note_count,
        line_count=sum(len(lines) for lines in quoted_lines.values()),
        freed_tokens=tokens_before - tokens_after,
    )


def _with_notes(
    plan: CollapsePlan,
    quoted_lines: Mapping[int, Sequence[str]],
    offloaded_texts: Mapping[str, str],
    folder: str,
    suffix: str,
) -> list[Message]:
    """Return the parts of *plan* with a note in place of each run.

    *quoted_lines* are the lines under each step, by its number.
    """
    messages: list[Message] = []
    findings_before: set[str] = set()
    for part in plan.parts:
        if not isinstance(part, list):
            messages.append(part)
            continue
        lines: list[str] = []
        for step in part:
            lines.append(_line_of_step(step, plan.governing, offloaded_texts))
            new_findings = [line for line in _findings_of(step) if line not in findings_before]
            findings_before.update(new_findings)
            quoted = [*new_findings, *_governing_lines(step, plan.governing, offloaded_texts)]
            quoted += quoted_lines.get(step.number, ())
            lines += [f" {line}" for line in dict.fromkeys(quoted)]
        # The words of a tool are in a user's message now. A tag of ctxpipe in them must not pass
        # for the user's command or the harness's reminder.
        body = safe_summary("\n".join(lines))
        note = StepsNote(folder, first=part[0].number, last=part[-1].number, suffix=suffix)
        messages.append({"role": "user", "content": f"{note.heading}\n{body}"})
    return messages


def _line_of_step(
    step: CollapseStep, governing: Governing, offloaded_texts: Mapping[str, str]
) -> str:
    """Return the line of *step* in a note: number, tool and subject or beginning, and characters.

    *offloaded_texts* are original texts by the placeholders for them.
    """
    chars = len(_result_text(step, offloaded_texts))
    jobs_over = _jobs_ended_in(step, governing)
    if step.call is None:
        # The beginning of a skill follows on lines of its own.
        shown_chars = LINE_CHARS if step.words in governing.skill_heads else ANSWER_CHARS
        beginning = one_line(step.words[:shown_chars])
        return step_line(step.number, f"{step.verb}: {beginning}…", chars, jobs_over=jobs_over)
    return step_line(
        step.number,
        subject_line(step.call),
        chars,
        failed=is_failure(step.result),
        job=governing.jobs.get(step.result.place, "") if step.result else "",
        jobs_over=jobs_over,
    )


def _jobs_ended_in(step: CollapseStep, governing: Governing) -> list[str]:
    """Return the ids of the jobs that *step* has ended, or found to be over."""
    if step.call is None:
        return list(governing.jobs_over.get(step.message, ()))
    if step.result is None:
        return []
    values = {str(value) for _, value in leaves(step.call.input)}
    return [job for job in governing.jobs_over.get(step.result.message, ()) if job in values]


def _findings_of(step: CollapseStep) -> list[str]:
    """Return sentences with what the assistant found, besides those in the line of *step*."""
    if step.verb == "reported":
        return []
    start = ANSWER_CHARS if step.verb == "answered" else 0
    return [one_line(sentence) for sentence in sentences_to_keep(step.words, start)]


def _governing_lines(
    step: CollapseStep, governing: Governing, offloaded_texts: Mapping[str, str]
) -> list[str]:
    """Return the lines under *step* that stay for what they say, whatever names they have.

    They are a task that is not done, the user's words in a result, the heading of an instruction
    file, why the call failed (more of it while it has not succeeded since), the id of a running
    job, and the beginning of a skill that is too long to stay.
    """
    texts: list[str] = []
    text = _result_text(step, offloaded_texts)
    if step.call is not None:
        texts.append(governing.quoted_texts.get(step.call.place, ""))
    if step.result is not None:
        place = step.result.place
        if place in governing.quoted_texts:  # of a call that the user has refused, the reason
            texts.append(governing.quoted_texts[place])
        elif place in governing.open_errors:
            texts.append(error_lines(view(text).text))
        elif is_failure(step.result):
            texts.append(error_line(view(text).text))
        if place in governing.jobs:
            texts.append(job_line(governing.jobs[place], text))
    texts.append(governing.skill_heads.get(text, ""))
    lines = [one_line(line) for part in texts for line in part.splitlines()]
    return [line for line in lines if line]


def _leaving_texts(plan: CollapsePlan, offloaded_texts: Mapping[str, str]) -> Iterator[LeavingText]:
    """Yield the texts that leave, in the order of the conversation.

    The results of a message's calls come after all its calls.
    """
    message = -1
    results: list[LeavingText] = []
    for step in plan.steps:
        if step.message != message:
            yield from results
            results = []
            message = step.message
            if plan.messages[message]["role"] == "assistant":
                yield LeavingText(answer_of(plan.messages[message]), "text", step.number)
        if step.verb == "reported":
            yield LeavingText(step.words, "result", step.number)
        if step.call is None:
            continue
        call = blocks(plan.messages[message])[step.call.block]
        yield LeavingText(content_text(call), "call", step.number)
        path = viewed_path(step.call, COMMON_READING_TOOLS, True)
        kind: TextKind = "view" if path else "result"
        results.append(LeavingText(_result_text(step, offloaded_texts), kind, step.number))
    yield from results
