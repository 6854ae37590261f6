"""A summary without a model: always available, always the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..compacted import own_words, placed, summary_body
from ..facts import (
    failed,
    is_about_file,
    result_text,
    results_by_id,
    shortened,
    target,
    touched_paths,
)
from ..messages import ToolCall, compact_json, texts, tool_calls, tool_results
from ..settings import COUNT, FLAG, SUMMARY_MAX_WORDS, check_settings, setting
from ..threads import in_thread
from .protocol import Summary

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["ExtractiveSummarizer"]

GOALS, FILES, CALLS = "Goals & Decisions", "File Operations", "Tool Calls"
STATUS, ERRORS = "Task Status", "Errors & Resolutions"

# Shares of the whole summary, by section (CR-9).
_SHARES: Mapping[str, float] = {GOALS: 0.25, FILES: 0.1, CALLS: 0.2, STATUS: 0.3, ERRORS: 0.15}
_CHARS_PER_WORD = 6
_USER = "The user: "
_COUNTS = "Calls since the last summary: "
_NONE, _ELSEWHERE = "none", "listed in the evidence below"
_ITEM_CHARS = 240

_DECISION = re.compile(
    r"\b(?:decided?|chose|choose|instead of|rather than|root cause|because|must not|turns out|"
    r"the (?:problem|fix|issue|cause|reason|plan) (?:is|was)|we(?:'ll| will| should| must))\b"
    r"|决定|选择|改用|因为|原因|问题是|方案",
    re.IGNORECASE,
)
_ERROR_LINE = re.compile(
    r"error|exception|fail|not found|denied|cannot|fatal|panic|错误|失败", re.IGNORECASE
)
_PLAN_TOOL = re.compile(r"todo|plan|task", re.IGNORECASE)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExtractiveSummarizer:
    """Collects from the messages themselves what an agent needs to go on: no model, no network, no
    cost, no chance.

    Under the five headings of CR-9 stand the user's requests in their own words, decisions, files
    read and written, commands and how they ended, errors and whether they were solved, the plan,
    the last actions and their results. The items of an earlier summary are carried on under the
    same headings, the newest winning the room. With *brief* the requests and the list of files are
    left to the evidence block that stands behind the summary.
    """

    max_words: int = setting(SUMMARY_MAX_WORDS)
    brief: bool = False

    def __post_init__(self) -> None:
        check_settings(self, max_words=COUNT, brief=FLAG)

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        text = await in_thread(self.summarise, messages)
        return Summary(text, writer=type(self).__name__)

    def summarise(self, messages: Sequence[Message]) -> str:
        """The summary's text."""
        found = {
            GOALS: [*([] if self.brief else _requests(messages)), *_decisions(messages)],
            FILES: [_ELSEWHERE] if self.brief else _files(messages),
            CALLS: _calls(messages),
            STATUS: _status(messages),
            ERRORS: _errors(messages),
        }
        earlier = _earlier_items(messages)
        if found[STATUS]:
            earlier.pop(STATUS, None)  # an old status is no status
        return "\n\n".join(
            _section(
                name,
                [*earlier.get(name, []), *items],
                int(self.max_words * _CHARS_PER_WORD * _SHARES[name]),
            )
            for name, items in found.items()
        )


def _section(name: str, items: Iterable[str], room: int) -> str:
    distinct = list(dict.fromkeys(items))
    asked = _fitting(
        [item for item in distinct if item.startswith(_USER)], room * 2 // 3, keep_first=True
    )
    others = _fitting(
        [item for item in distinct if not item.startswith(_USER)], room - sum(map(len, asked))
    )
    return "\n".join([f"## {name}", *(f"- {item}" for item in [*asked, *others] or [_NONE])])


# What is said -------------------------------------------------------------------------------------


def _requests(messages: Sequence[Message]) -> list[str]:
    asked = [words for words in map(own_words, messages) if words]
    return [f"{_USER}{_indented(shortened(words, 2 * _ITEM_CHARS))}" for words in asked]


def _decisions(messages: Sequence[Message]) -> list[str]:
    lines = (
        line.strip(" -*#>") for text in _assistant_texts(messages) for line in text.splitlines()
    )
    shown = (line[: 20 * _ITEM_CHARS] for line in lines)
    return [
        f"The agent: {_line(line)}" for line in shown if len(line) > 20 and _DECISION.search(line)
    ]


def _assistant_texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        if message["role"] == "assistant":
            yield from texts(message)


# What was done ------------------------------------------------------------------------------------


def _files(messages: Sequence[Message]) -> list[str]:
    return [
        f"{'wrote' if written else 'read or named'} {path}"
        for path, written in touched_paths(messages).items()
    ]


def _calls(messages: Sequence[Message]) -> list[str]:
    results = results_by_id(messages)
    counts = Counter(call.name for call in tool_calls(messages))
    named = ", ".join(f"{name} ×{times}" for name, times in counts.most_common(12))
    telling = (
        call for call in tool_calls(messages) if not is_about_file(call)
    )  # files have a section of their own
    outcomes = [_outcome(call, results.get(call.id)) for call in telling]
    return [*outcomes, *([f"{_COUNTS}{named}"] if named else [])]


def _outcome(call: ToolCall, result: object) -> str:
    return f"{_action(call)} → {'failed' if failed(result) else 'ok'}{_tail(result_text(result))}"


def _tail(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return f": {_line(lines[-1], 120)}" if lines else ""


def _errors(messages: Sequence[Message]) -> list[str]:
    results = results_by_id(messages)
    last = {_action(call): failed(results.get(call.id)) for call in tool_calls(messages)}
    found = []
    for call in tool_calls(messages):
        result = results.get(call.id)
        if failed(result):
            state = "still failing" if last[_action(call)] else "worked later"
            found.append(f"{_action(call)}: {_error_line(result_text(result))} ({state})")
    return found


def _error_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if _ERROR_LINE.search(line)]
    return _line((telling or lines or ["no output"])[-1], 160)


def _status(messages: Sequence[Message]) -> list[str]:
    results = results_by_id(messages)
    calls = list(tool_calls(messages))
    plans = [call for call in calls if _PLAN_TOOL.search(call.name) and call.input]
    latest = [
        f"{_action(call)}: {'failed' if failed(results.get(call.id)) else 'done'}"
        for call in calls[-6:]
    ]
    said = [text for text in _assistant_texts(messages) if text.strip()]
    fresh = [result_text(result) for result in tool_results(messages[-1:])]
    return [
        *(
            f"the plan, as last noted: {_line(compact_json(call.input), 600)}"
            for call in plans[-1:]
        ),
        *(f"recently done: {action}" for action in latest),
        *(
            f"the agent said last: {_indented(shortened(text, 3 * _ITEM_CHARS))}"
            for text in said[-1:]
        ),
        *(
            f"result just received: {_indented(shortened(text, 2 * _ITEM_CHARS))}"
            for text in fresh[-2:]
            if text
        ),
    ]


def _action(call: ToolCall) -> str:
    return f"{call.name} `{_line(target(call), 160)}`"


# What was said in an earlier summary --------------------------------------------------------------


def _earlier_items(messages: Sequence[Message]) -> dict[str, list[str]]:
    """The items under the headings of the earlier summary that *messages* begin with, ours or a
    model's.
    """
    found: dict[str, list[str]] = {}
    for body in filter(None, map(summary_body, messages[: placed(messages)])):
        before, *parts = _HEADING.split(body)
        named = {GOALS: before} if before.strip() else {}
        for name, text in [*named.items(), *zip(parts[::2], parts[1::2], strict=True)]:
            found.setdefault(name.strip(), []).extend(_items(text))
    return found


def _items(text: str) -> Iterator[str]:
    for item in re.split(r"^(?=\S)(?:- )?", text, flags=re.MULTILINE):
        if item.strip() not in ("", _NONE, _ELSEWHERE) and not item.startswith(_COUNTS):
            yield item.strip()


# Text ---------------------------------------------------------------------------------------------


def _fitting(items: Sequence[str], room: int, *, keep_first: bool = False) -> list[str]:
    """As many of the last *items* as *room* characters hold, and with *keep_first* the first
    whatever its length.
    """
    first = list(items[:1]) if keep_first else []
    left = room - sum(map(len, first))
    kept: list[str] = []
    for item in reversed(items[len(first) :]):
        left -= len(item)
        if left < 0:
            break
        kept.append(item)
    return [*first, *reversed(kept)]


def _line(text: str, limit: int = _ITEM_CHARS) -> str:
    line = " ".join(text[: 20 * limit].split())
    return line if len(line) <= limit and len(text) <= 20 * limit else f"{line[: limit - 2]} …"


def _indented(text: str) -> str:
    return text.strip().replace("\n", "\n  ")
