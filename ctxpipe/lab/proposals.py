"""Proposals of texts to look for in the contexts of a recording, found by simple patterns.

The stages of a pipeline have their own way to recognize what governs an agent. This reader shares
no code with them, so that a fault of theirs shows in the figures. It misses texts and proposes some
that do not matter; a file of orders that was checked by a person is better.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .._values import leaves
from ..messages import Message, ToolCall, blocks, kind, result_text, texts, tool_calls, tool_results
from ..testing.whereabouts import has_words
from .orders import Order, transcript_key
from .transcripts import Transcript

MAX_LINES = 40
"""Most lines of one order."""

MIN_WORDS = 3
MAX_SENTENCE_CHARS = 400
MIN_SKILL_CHARS = 200

_SKILL_TOOL = re.compile(r"(?:load_|use_|read_|get_|activate_)?skills?(?:_tool)?", re.IGNORECASE)
_SKILL_TEXT = re.compile(r"\s*(?:Base directory for this skill:|<skill[ >])")
_PLAN_TOOL = re.compile(r"exit_?plan_?mode|present_plan|submit_plan|plan_exit", re.IGNORECASE)
_TO_DO_TOOL = re.compile(
    r"todo_?write|write_?todos?|update_?todos?|update_plan|set_?todo_?list|manage_todo_list",
    re.IGNORECASE,
)
_TASK_TEXTS = ("content", "step", "title", "task", "description", "text")
_FINISHED = re.compile(r"completed?|done|cancell?ed|finished", re.IGNORECASE)
_INSTRUCTION_FILE = re.compile(
    r"(?:^|[/\\])(?:AGENTS?\.md|CLAUDE(?:\.local)?\.md|GEMINI\.md|SKILL\.md|\.cursorrules"
    r"|copilot-instructions\.md)$",
    re.IGNORECASE,
)
_JOB = re.compile(
    r"(?:in (?:the )?background with ID|agentId|shell_id|bash_id|task_id|job(?: id)?)"
    r"[:=]?\s*[\"'`]?((?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{5,64})\b"
)
_JOB_END = re.compile(
    r"completed|finished|exited|killed|stopped|failed|terminated|exit code", re.IGNORECASE
)
_FAILURE = re.compile(
    r"\A\W*(?:error|exit code:? [1-9]|traceback|command failed|fatal)\b", re.IGNORECASE
)
_GUTTER = re.compile(r"^\s*\d+[→\t:|]")
"""Line number in front of a line of a file that was viewed."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")

# Words of the user that forbid, correct or require something, in a few languages.
_PROHIBITION = re.compile(
    r"\b(?:never|do not|don['’]t|must not|mustn['’]t|should not|shouldn['’]t|avoid|no longer)\b"
    r"|\b(?:niemals|nicht|keinesfalls|jamais|ne pas|nunca|não)\b"
    r"|不要|不得|禁止|切勿|しないで|하지 마",
    re.IGNORECASE,
)
_CORRECTION = re.compile(
    r"\A\W*(?:no|wrong|actually|wait|stop|rather|nein|non)\b"
    r"|\b(?:instead of|not what i|that['’]s wrong|i meant|revert|undo that|stattdessen|plutôt)\b"
    r"|不对|而不是|違います|ではなく",
    re.IGNORECASE,
)
_CONSTRAINT = re.compile(
    r"\b(?:must|always|only|make sure|ensure|required|immer|muss|nur|toujours|siempre)\b"
    r"|必须|务必|只能|必ず",
    re.IGNORECASE,
)
_FINDING = re.compile(
    r"\b(?:root cause|the (?:issue|problem|bug|cause|reason) (?:is|was)|turns out|confirmed"
    r"|(?:i|we) (?:found|decided|will use|chose)|the fix is)\b"
    r"|原因是|问题是|原因は",
    re.IGNORECASE,
)


def propose_orders(transcript: Transcript) -> list[Order]:
    """Return proposals of texts that the agent of *transcript* needs later, in their order."""
    reader = _Reader(transcript_key(transcript.name), transcript.calls)
    for message in transcript.messages:
        reader.read(message)
    return reader.orders()


class _Reader:
    """Reader of one transcript, message by message.

    *last_call* is the last call of the transcript, *call* the number of replies before the message.
    """

    def __init__(self, name: str, calls: int) -> None:
        self._name = name
        self._last_call = calls - 1
        self._call = 0
        self._orders: list[Order] = []
        self._tools: dict[str, ToolCall] = {}
        self._plan: tuple[int, tuple[str, ...]] | None = None
        self._to_do: tuple[int, tuple[str, ...]] | None = None
        self._errors: dict[str, tuple[int, str]] = {}  # the call and the line, by tool and input
        self._jobs: dict[str, int] = {}  # the call at which each id is new
        self._seen: set[tuple[str, ...]] = set()

    def orders(self) -> list[Order]:
        """Return the proposals, after the last message was read."""
        self._end_plan(self._last_call)
        for job in list(self._jobs):
            self._end_job(job, self._last_call)
        return sorted(self._orders, key=lambda order: (order.from_call, order.until_call))

    def read(self, message: Message) -> None:
        """Read the next message of the transcript."""
        if message["role"] == "assistant":
            for call in tool_calls([message]):
                self._read_call(call)
            for text in texts(message):
                self._add_sentences(text, {"finding": _FINDING}, self._call + 1)
            self._call += 1
            return
        for result in tool_results([message]):
            self._read_result(
                self._tools.get(result.tool_use_id), result_text(result), bool(result.is_error)
            )
        has_results = any(kind(block) == "tool_result" for block in blocks(message))
        for text in texts(message):
            self._read_user_text(text, has_results=has_results)

    # Calls and results ----------------------------------------------------------------------------

    def _read_call(self, call: ToolCall) -> None:
        """Read a tool call of the reply with the number of the current call."""
        self._tools[call.id] = call
        if _PLAN_TOOL.fullmatch(call.name):
            plan = call.input.get("plan")
            if isinstance(plan, str):
                self._set_plan(plan)
        if _TO_DO_TOOL.fullmatch(call.name):
            self._update_to_do(call)
        error = self._errors.pop(_call_key(call), None)
        if error is not None:
            self._add_event("error of a call tried again", error[0], self._call, [error[1]])
        arguments = [str(value) for _, value in leaves(call.input)]
        for job, from_call in list(self._jobs.items()):
            if any(_has_id(text, job) for text in arguments):
                self._add_event("running job used", from_call, self._call, [job])

    def _read_result(self, call: ToolCall | None, text: str, is_error: bool) -> None:
        """Read the result of *call*, whose text comes before the current call."""
        name = call.name if call else ""
        is_long = len(text) >= MIN_SKILL_CHARS and not is_error
        if (_SKILL_TOOL.fullmatch(name) and is_long) or _SKILL_TEXT.match(text):
            self._add("skill text", self._call, self._last_call, _long_lines(text))
        if call is not None and not is_error and _reads_instructions(call):
            self._add("instruction file", self._call, self._last_call, _long_lines(text))
        if call is not None and (is_error or _FAILURE.search(text[:200])):
            line = _last_line(text)
            if line:
                self._errors[_call_key(call)] = (self._call, line)
        for job in list(self._jobs):
            if _has_id(text, job) and _JOB_END.search(text):
                self._end_job(job, self._call)
        for match in _JOB.finditer(text[:4_000]):
            self._jobs.setdefault(match[1], self._call)

    def _set_plan(self, plan: str) -> None:
        """Begin the range of *plan*, which ends that of the plan before it."""
        self._end_plan(self._call)
        self._plan = (self._call + 1, _long_lines(plan))

    def _end_plan(self, call: int) -> None:
        """Add the plan that applied until *call*, if there is one."""
        if self._plan is not None:
            self._add("plan document", self._plan[0], call, self._plan[1])
        self._plan = None

    def _update_to_do(self, call: ToolCall) -> None:
        """Add the newest to-do list as needed for the update *call*, and keep the new one."""
        if self._to_do is not None:
            self._add_event("to-do list", self._to_do[0], self._call, self._to_do[1])
        self._to_do = None
        open_tasks = tuple(_open_tasks(call.input))
        if open_tasks:
            self._to_do = (self._call, open_tasks)

    def _end_job(self, job: str, call: int) -> None:
        """Add the range of the id *job*, which was running until *call*."""
        self._add("running job", self._jobs.pop(job), call, (job,))

    # Texts ----------------------------------------------------------------------------------------

    def _read_user_text(self, text: str, *, has_results: bool) -> None:
        """Read a text on the user's side; beside results it may come from the agent's client."""
        if _SKILL_TEXT.match(text):
            self._add("skill text", self._call, self._last_call, _long_lines(text))
            return
        if text.lstrip().startswith(("<", "[", "Caveat:")) or (has_results and len(text) > 2_000):
            return
        patterns = {
            "prohibition": _PROHIBITION,
            "correction": _CORRECTION,
            "other constraint": _CONSTRAINT,
        }
        if self._call == 0:
            del patterns["correction"]  # there is nothing to correct yet
        self._add_sentences(text, patterns, self._call)

    def _add_sentences(self, text: str, patterns: Mapping[str, re.Pattern[str]], call: int) -> None:
        """Add each sentence of *text* that matches one of *patterns*, under the first kind."""
        for sentence in _sentences(text):
            for order_kind, pattern in patterns.items():
                if pattern.search(sentence):
                    self._add(order_kind, call, self._last_call, (sentence,))
                    break

    # Orders ---------------------------------------------------------------------------------------

    def _add(self, order_kind: str, from_call: int, until_call: int, lines: Sequence[str]) -> None:
        """Add an order with *lines* that have words, unless the same lines were added before."""
        usable_lines = tuple(line for line in lines if has_words(line))
        if not usable_lines or until_call < from_call or (order_kind, *usable_lines) in self._seen:
            return
        self._seen.add((order_kind, *usable_lines))
        self._orders.append(Order(self._name, order_kind, usable_lines, from_call, until_call))

    def _add_event(
        self, order_kind: str, from_call: int, at_call: int, lines: Iterable[str]
    ) -> None:
        """Add an order that is needed at one call."""
        usable_lines = tuple(line for line in lines if has_words(line))
        if usable_lines and from_call <= at_call:
            self._orders.append(
                Order(self._name, order_kind, usable_lines, from_call, at_call, is_event=True)
            )


def _call_key(call: ToolCall) -> str:
    """Return a text that is equal for calls of the same tool with the same input."""
    return f"{call.name} {json.dumps(call.input, sort_keys=True, default=str)}"


def _has_id(text: str, job: str) -> bool:
    """Return True if *text* contains the id *job* as a word of its own."""
    return job in text and re.search(rf"(?<![\w-]){re.escape(job)}(?![\w-])", text) is not None


def _reads_instructions(call: ToolCall) -> bool:
    """Return True if an argument of *call* is the path of a file with instructions."""
    return any(
        isinstance(value, str) and _INSTRUCTION_FILE.search(value) is not None
        for _, value in leaves(call.input)
    )


def _open_tasks(value: object) -> Iterator[str]:
    """Yield the texts of the tasks in the input of a call that are not finished."""
    pending = [value]
    while pending:
        item = pending.pop(0)
        if isinstance(item, list):
            pending += item
        elif isinstance(item, Mapping):
            status = item.get("status")
            names = [name for name in _TASK_TEXTS if isinstance(item.get(name), str)]
            if isinstance(status, str) and names:
                if not _FINISHED.fullmatch(status):
                    yield item[names[0]]
            else:
                pending += [inner for inner in item.values() if isinstance(inner, list | Mapping)]


def _long_lines(text: str) -> tuple[str, ...]:
    """Return the first lines of *text* that have enough words to be recognized."""
    lines = []
    for line in text.splitlines():
        if len(re.findall(r"\w+", line)) >= MIN_WORDS:
            lines.append(_GUTTER.sub("", line).strip()[:MAX_SENTENCE_CHARS])
        if len(lines) == MAX_LINES:
            break
    return tuple(lines)


def _last_line(text: str) -> str:
    """Return the last line of *text* that has a word, or ""."""
    for line in reversed(text.splitlines()):
        if has_words(line):
            return line.strip()[:MAX_SENTENCE_CHARS]
    return ""


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of *text* that are long enough to be recognized, and not too long."""
    for part in _SENTENCE_END.split(text):
        sentence = part.strip()
        is_long = len(re.findall(r"\w+", sentence)) >= MIN_WORDS or len(sentence.encode()) >= 24
        if is_long and len(sentence) <= MAX_SENTENCE_CHARS:
            yield sentence
