"""What becomes of old exchanges: a file for each step, and a note for each run of them.

A *step* is one tool call with its result, one long answer, or one long text of a harness. A *run*
is the exchanges between two messages that stay.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import TYPE_CHECKING, Literal, cast

from ..messages import (
    Message,
    ToolCall,
    ToolResult,
    blocks,
    has_calls,
    has_results,
    results_by_id,
    strings,
    tool_calls,
)
from ..placeholders.notes import Note, note_of, step_line
from ..placeholders.summaries import safe_summary
from ..providers.agent_tools import COMMON_READING_TOOLS
from .activity import is_failure, one_line, target
from .atoms import Atom, atoms, content_text, message_texts
from .citations import without_dangling_citations
from .excerpts import Passage, PassageKind, choose_lines
from .exchanges import (
    ANSWER_CHARS,
    answer_of,
    blocks_to_keep,
    exchange_length,
    reports_in,
)
from .offload import placeholder_files, text_of
from .views import viewed_path

if TYPE_CHECKING:
    from ..tokens import TokenCounter

MOST_READ_CHARS = 2_000  # of the words of which the beginning stays
LINE_CHARS = 100  # of what a call was about: longer lines made a note no more useful
MAX_SHARE = 0.5  # of what leaves: the lines that are quoted

_SAID = re.compile(r"^(\d{1,9}) (answered|reported): ", re.MULTILINE)
_SEARCH_ARGUMENTS = ("pattern", "query", "regex", "glob", "search_term", "q")


# Steps --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One step, by its *number*: a *call* and its *result*, or a text that somebody *said*.

    Its *verb* is "answered" for a reply without calls, and "reported" for a harness's text. With
    the first call of a message stands what the assistant said before it.
    """

    number: int
    message: int
    call: ToolCall | None = None
    result: ToolResult | None = None
    verb: Literal["", "answered", "reported"] = ""
    said: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Layout:
    """What *messages* from *start* up to *stop* become: messages that stay, and runs for a note.

    *leaving* are the indexes of those that do not stay as they are.
    """

    messages: Sequence[Message] = field(repr=False)
    start: int
    stop: int
    parts: list[Message | list[Step]] = field(repr=False)
    leaving: list[int]

    @property
    def steps(self) -> list[Step]:
        """All steps, in order."""
        runs = (part for part in self.parts if isinstance(part, list))
        return list(chain.from_iterable(runs))


def lay_out(messages: Sequence[Message], start: int, stop: int, first_number: int) -> Layout:
    """The steps of the exchanges from *start* up to *stop*, numbered from *first_number* on.

    What a person wrote, media and earlier notes stay as they are.
    """
    parts: list[Message | list[Step]] = []
    leaving: list[int] = []
    run: list[Step] = []
    number = first_number
    index = start
    while index < stop:
        length = exchange_length(messages, index)
        if not length:
            parts.append(messages[index])
            run = []
            index += 1
            continue
        leaving += range(index, index + length)
        if not run:
            parts.append(run)
        steps = list(_steps_at(messages, index, number))
        number += len(steps)
        run += steps
        last = messages[index + length - 1]
        kept = blocks_to_keep(last) if last["role"] == "user" else []
        if kept:
            parts.append(cast("Message", {"role": "user", "content": kept}))
            run = []
        index += length
    return Layout(messages, start, stop, parts, leaving)


def _steps_at(messages: Sequence[Message], index: int, number: int) -> Iterator[Step]:
    """The steps of the exchange at *index*, numbered from *number* on."""
    message = messages[index]
    if has_calls(message):
        after = index + 1
        results = results_by_id(messages[after : after + 1])
        said = answer_of(message)
        for call in tool_calls(messages, index, after):
            yield Step(number, index, call, results.get(call.id), said=said)
            number += 1
            said = ""
        if after == len(messages):
            return
        index, message = after, messages[after]
    elif message["role"] == "assistant":
        yield Step(number, index, verb="answered", said=answer_of(message))
        return
    for own_number, report in enumerate(reports_in(message), number):
        yield Step(own_number, index, verb="reported", said=report)


# What was offloaded before ------------------------------------------------------------------------


def find_offloaded_files(layout: Layout) -> dict[str, str]:
    """By placeholder: the name of the file that it points to, where it can be one of the step's."""
    texts: list[tuple[str, str]] = []
    for step in layout.steps:
        if step.call is not None and step.result is not None:
            said = text_of(step.result.content), *strings(step.call.input)
            texts += zip(repeat(step.call.id), said)
    return placeholder_files(texts)


def leaving_messages(layout: Layout) -> list[Message]:
    """The messages that do not stay as they are."""
    return [layout.messages[index] for index in layout.leaving]


def step_texts(layout: Layout, whole: Mapping[str, str]) -> list[str]:
    """What the file of each step says: the assistant's words, tool, input, and the whole result.

    *whole* are the texts behind placeholders.
    """
    return [_step_text(step, whole) for step in layout.steps]


def _step_text(step: Step, whole: Mapping[str, str]) -> str:
    if step.call is None:
        return step.said
    given = "\n".join([whole.get(text, text) for text in strings(step.call.input)])
    text = f"{step.call.name}\n{given}\n---\n{_result_text(step, whole)}"
    return f"{step.said}\n\n{text}" if step.said else text


def _result_text(step: Step, whole: Mapping[str, str]) -> str:
    if step.result is None:
        return "" if step.call else step.said
    text = text_of(step.result.content)
    return whole.get(text, text)


def texts_of_notes(raw: Sequence[Message], notes: Sequence[Message]) -> dict[str, str]:
    """By path: what the files of *notes* say, which replace the messages *raw*.

    Which answers are steps is told by the notes. Empty where the numbers do not fit.
    """
    waiting = deque(_steps_of_notes(notes))
    found: dict[str, str] = {}
    for step in _raw_steps(raw):
        if not waiting:
            return {}
        path, verb = waiting[0]
        if verb == step.verb:
            found[path] = _step_text(step, {})
            waiting.popleft()
        elif step.verb != "answered":
            return {}  # only answers may be missing in the notes: short ones stayed
    return {} if waiting else found


def _steps_of_notes(notes: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """The path of the file of each step of *notes*, and its verb."""
    for message in notes:
        note = note_of(message)
        if note is None:
            continue
        verbs = {int(number): verb for number, verb in _SAID.findall(str(message["content"]))}
        for number in range(note.first, note.last + 1):
            yield note.path(number), verbs.get(number, "")


def _raw_steps(raw: Sequence[Message]) -> Iterator[Step]:
    """Every step of *raw*, short answers among them; no number counts."""
    for index, message in enumerate(raw):
        if not has_results(message):  # those are of the exchange before
            yield from _steps_at(raw, index, 0)


# The notes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The context after a collapse: its *messages*, how many of them are new *notes*.

    *lines* of the steps are quoted in them. *freed_tokens* are net of the notes.
    """

    messages: list[Message] = field(repr=False)
    notes: int
    lines: int
    freed_tokens: int


def collapse(
    layout: Layout,
    whole: Mapping[str, str],
    folder: str,
    suffix: str,
    min_value: float,
    counter: TokenCounter,
) -> Rewritten:
    """The context with a note for each run, and under each step the lines worth keeping.

    The file of step n is ``{folder}s{n}{suffix}.md``. A line is worth keeping with *min_value*
    expected uses per 1,000 tokens.
    """
    before = layout.messages[: layout.start]
    after = layout.messages[layout.stop :]
    bare = [*before, *_with_notes(layout, {}, whole, folder, suffix), *after]
    leaving_tokens = sum(map(counter.message, leaving_messages(layout)))
    chosen = choose_lines(
        list(_passages(layout, whole)),
        set[Atom]().union(*map(atoms, chain.from_iterable(map(message_texts, bare)))),
        counter.text,
        min_value=min_value,
        max_tokens=MAX_SHARE * leaving_tokens,
    )
    parts = _with_notes(layout, chosen, whole, folder, suffix)
    context = without_dangling_citations(layout.messages, [*before, *parts, *after])
    # Counted here, in a worker thread: what is asked of it later is a look-up.
    tokens_before = sum(map(counter.message, layout.messages[layout.start : layout.stop]))
    return Rewritten(
        messages=context,
        notes=sum(isinstance(part, list) for part in layout.parts),
        lines=sum(map(len, chosen.values())),
        freed_tokens=tokens_before - sum(map(counter.message, parts)),
    )


def _with_notes(
    layout: Layout,
    chosen: Mapping[int, Sequence[str]],
    whole: Mapping[str, str],
    folder: str,
    suffix: str,
) -> list[Message]:
    messages: list[Message] = []
    for part in layout.parts:
        if not isinstance(part, list):
            messages.append(part)
            continue
        lines: list[str] = []
        for step in part:
            lines.append(_line_of_step(step, whole))
            lines += [f" {quoted}" for quoted in chosen.get(step.number, ())]
        # What a tool has said stands in a message of the user's now: a tag of ours in it must not
        # pass for the user's command or the harness's reminder.
        body = safe_summary("\n".join(lines))
        note = Note(folder, first=part[0].number, last=part[-1].number, suffix=suffix)
        messages.append({"role": "user", "content": f"{note.heading}\n{body}"})
    return messages


def _line_of_step(step: Step, whole: Mapping[str, str]) -> str:
    chars = len(_result_text(step, whole))
    if step.call is None:
        beginning = one_line(step.said[:ANSWER_CHARS])
        return step_line(step.number, f"{step.verb}: {beginning}…", chars)
    name = one_line(step.call.name[:MOST_READ_CHARS])
    subject = one_line(_subject(step.call)[: LINE_CHARS + MOST_READ_CHARS])
    if len(subject) > LINE_CHARS:
        subject = f"{subject[:LINE_CHARS]}…"
    return step_line(step.number, f"{name} {subject}", chars, failed=is_failure(step.result))


def _subject(call: ToolCall) -> str:
    """What *call* is about: its command or path, and what it looks for there."""
    place = target(call)
    for name in _SEARCH_ARGUMENTS:
        wanted = call.input.get(name)
        if isinstance(wanted, str) and wanted not in place:
            return f"{one_line(wanted[:MOST_READ_CHARS])} in {place}"
    return place


def _passages(layout: Layout, whole: Mapping[str, str]) -> Iterator[Passage]:
    """What leaves, in the order in which it was said."""
    message = -1
    late: list[Passage] = []  # the results of a message, which follow all its calls
    for step in layout.steps:
        if step.message != message:
            yield from late
            late = []
            message = step.message
            if layout.messages[message]["role"] == "assistant":
                yield Passage(answer_of(layout.messages[message]), "text", step.number)
        if step.verb == "reported":
            yield Passage(step.said, "result", step.number)
        if step.call is None:
            continue
        call = blocks(layout.messages[message])[step.call.block]
        yield Passage(content_text(call), "call", step.number)
        path = viewed_path(step.call, COMMON_READING_TOOLS, True)
        kind: PassageKind = "view" if path else "result"
        late.append(Passage(_result_text(step, whole), kind, step.number))
    yield from late
