"""Summaries without a model, extracted from the messages by fixed rules."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .._text import last_within, short_repr
from .._threads.threads import in_thread
from ..messages import (
    Message,
    ToolCall,
    compact_json,
    result_text,
    results_by_id,
    texts,
    tool_calls,
    tool_results,
)
from ..messages.activity import is_about_file, is_failure, target, touched_paths
from ..placeholders.placeholders import shorten
from ..placeholders.summaries import acknowledged_count, own_words, summary_body
from ..providers.agent_tools import PLAN_NAME
from ..settings import COUNT, FLAG, SUMMARY_MAX_WORDS, check_settings, setting
from .protocol import Summary

GOALS = "Goals & Decisions"
FILES = "File Operations"
CALLS = "Tool Calls"
STATUS = "Task Status"
ERRORS = "Errors & Resolutions"

# Share of the summary's characters, by section.
_SHARES: Mapping[str, float] = {GOALS: 0.25, FILES: 0.1, CALLS: 0.2, STATUS: 0.3, ERRORS: 0.15}
_CHARS_PER_WORD = 6
_USER = "The user: "
_COUNTS = "Calls since the last summary: "
_NONE = "none"
_ELSEWHERE = "listed in the evidence below"
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
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)

CallWithResult: TypeAlias = tuple[ToolCall, object]
"""A call and its result, None if it has none yet."""


@dataclass(frozen=True, slots=True, repr=False)
class ExtractiveSummarizer:
    """Summarizer that extracts the summary from the messages, without a model, cost or randomness.

    The summary has five sections: the user's requests in their own words, and decisions; the files
    read and written; commands and their outcomes; the plan and the last actions with their results;
    errors, and whether they were solved. It has at most about *max_words* words. Items of an
    earlier summary stay in the same section, except the plan and the last actions, which new ones
    replace. If there are too many items, the newest are kept.

    With *brief* the requests and the list of files are left out, because the evidence that
    `Compact` adds after the summary contains them.

    Raises SettingsError for an invalid setting.
    """

    max_words: int = setting(SUMMARY_MAX_WORDS)
    brief: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_settings(self, max_words=COUNT, brief=FLAG)

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        text = await in_thread(self.summarize, messages)
        return Summary(text, writer=type(self).__name__, dollars=0.0)

    def summarize(self, messages: Sequence[Message]) -> str:
        """Return the text of the summary: sections with goals, files, calls, status and errors.

        Items of an earlier summary in *messages* stay in their sections. Its plan and last actions
        (the status) stay only if *messages* have no newer ones. The text has about `max_words`
        words. It takes long for many messages; `__call__` runs it in a worker thread.
        """
        results = results_by_id(messages)
        calls = [(call, results.get(call.id)) for call in tool_calls(messages)]
        goals = _decisions(messages)
        files = [_ELSEWHERE]
        if not self.brief:
            goals = [*_requests(messages), *goals]
            files = []
            for path, is_written in touched_paths(messages).items():
                files.append(f"{'wrote' if is_written else 'read or named'} {path}")
        new = {
            GOALS: goals,
            FILES: files,
            CALLS: _calls(calls),
            STATUS: _status(messages, calls),
            ERRORS: _errors(calls),
        }
        old = _earlier_items(messages)
        if new[STATUS]:
            old.pop(STATUS, None)  # an old status is out of date
        max_chars = self.max_words * _CHARS_PER_WORD
        return "\n\n".join(
            _section(name, [*old[name], *items], int(max_chars * _SHARES[name]))
            for name, items in new.items()
        )


def _section(name: str, items: Iterable[str], max_chars: int) -> str:
    """Return the section *name* with the newest *items* that fit into *max_chars*.

    Equal items are listed once. The user's requests, which begin with "The user: ", come first.
    They may take up two thirds of *max_chars*; the first one stays even if it is longer. Without
    items the section says "none".
    """
    distinct_items = list(dict.fromkeys(items))
    requests = [item for item in distinct_items if item.startswith(_USER)]
    others = [item for item in distinct_items if not item.startswith(_USER)]
    selected_items = requests[:1]
    selected_items += last_within(
        max_chars * 2 // 3 - _total_chars(selected_items), requests[1:], len
    )
    selected_items += last_within(max_chars - _total_chars(selected_items), others, len)
    lines = [f"- {item}" for item in selected_items or [_NONE]]
    return "\n".join([f"## {name}", *lines])


def _total_chars(items: Iterable[str]) -> int:
    return sum(len(item) for item in items)


# Requests and decisions ---------------------------------------------------------------------------


def _requests(messages: Sequence[Message]) -> list[str]:
    """Return the beginning of what the user wrote in each message, as quotes."""
    requests = []
    for message in messages:
        words = own_words(message)
        if words:
            requests.append(_USER + _quote(words, 2 * _ITEM_CHARS))
    return requests


def _decisions(messages: Sequence[Message]) -> list[str]:
    """Return the lines of the model's texts that have words of a decision, such as "because"."""
    decisions: list[str] = []
    for text in _assistant_texts(messages):
        for line in text.splitlines():
            words = line.strip(" -*#>")[: 20 * _ITEM_CHARS]
            if len(words) > 20 and _DECISION.search(words):
                decisions.append(f"The agent: {_line(words)}")
    return decisions


def _assistant_texts(messages: Sequence[Message]) -> Iterator[str]:
    """Yield all texts of the assistant in *messages*."""
    for message in messages:
        if message["role"] == "assistant":
            yield from texts(message)


# Calls and their outcomes -------------------------------------------------------------------------


def _calls(calls: Sequence[CallWithResult]) -> list[str]:
    """Return the outcome of each call except those about files, and the number of calls by tool."""
    lines = [_outcome(call, result) for call, result in calls if not is_about_file(call)]
    if calls:
        most = Counter(call.name for call, _ in calls).most_common(12)
        lines.append(_COUNTS + ", ".join([f"{name} ×{times}" for name, times in most]))
    return lines


def _outcome(call: ToolCall, result: object) -> str:
    """Return the action of *call*, whether it failed, and the last line of its *result*."""
    text = f"{_action(call)} → {'failed' if is_failure(result) else 'ok'}"
    lines = result_text(result).rstrip().splitlines()
    if lines:
        text += f": {_line(lines[-1], 120)}"
    return text


def _errors(calls: Sequence[CallWithResult]) -> list[str]:
    """Return each failed call with its error, and whether the same call worked later."""
    still_fails = {_action(call): is_failure(result) for call, result in calls}
    errors: list[str] = []
    for call, result in calls:
        if is_failure(result):
            action = _action(call)
            state = "still failing" if still_fails[action] else "worked later"
            errors.append(f"{action}: {_error_line(result)} ({state})")
    return errors


def _error_line(result: object) -> str:
    """Return the last line of *result* that reports an error, or else its last line."""
    lines = [line for line in result_text(result).splitlines() if line.strip()]
    error_lines = [line for line in lines if _ERROR_LINE.search(line)]
    candidates = error_lines or lines or ["no output"]
    return _line(candidates[-1], 160)


def _status(messages: Sequence[Message], calls: Sequence[CallWithResult]) -> list[str]:
    """Return the last plan, the last six actions, the last reply and the newest results."""
    lines: list[str] = []
    plans = [call.input for call, _ in calls if PLAN_NAME.search(call.name) and call.input]
    if plans:
        plan = _line(compact_json(plans[-1]), 600)
        lines.append(f"the plan, as last noted: {plan}")
    for call, result in calls[-6:]:
        outcome = "failed" if is_failure(result) else "done"
        lines.append(f"recently done: {_action(call)}: {outcome}")
    replies = [text for text in _assistant_texts(messages) if text.strip()]
    if replies:
        lines.append(f"the agent said last: {_quote(replies[-1], 3 * _ITEM_CHARS)}")
    result_texts = [result_text(result) for result in tool_results(messages[-1:])]
    quotes = [_quote(text, 2 * _ITEM_CHARS) for text in result_texts[-2:] if text]
    lines += [f"result just received: {quote}" for quote in quotes]
    return lines


def _action(call: ToolCall) -> str:
    return f"{call.name} `{_line(target(call), 160)}`"


# The earlier summary ------------------------------------------------------------------------------


def _earlier_items(messages: Sequence[Message]) -> defaultdict[str, list[str]]:
    """Return the items of an earlier summary at the beginning of *messages*, by heading.

    A model or this module wrote it.
    """
    items: defaultdict[str, list[str]] = defaultdict(list)
    if acknowledged_count(messages):
        # Text before the first heading counts as goals.
        parts = [GOALS, *_HEADING.split(summary_body(messages[0]) or "")]
        for heading, text in zip(parts[::2], parts[1::2], strict=True):
            items[heading.strip()] += _items(text)
    return items


def _items(text: str) -> Iterator[str]:
    """Yield the entries of a section of an extract, without bullets.

    Entries that only say that there is nothing, or that count what was left out, are skipped.
    """
    for part in re.split(r"^(?=\S)(?:- )?", text, flags=re.MULTILINE):
        item = part.strip()
        if item not in ("", _NONE, _ELSEWHERE) and not part.startswith(_COUNTS):
            yield item


# Text ---------------------------------------------------------------------------------------------


def _line(text: str, limit: int = _ITEM_CHARS) -> str:
    """Return *text* on one line; a longer one is cut after *limit* characters, with "…"."""
    line = " ".join(text[: 20 * limit].split())
    if len(text) <= 20 * limit and len(line) <= limit:
        return line
    return f"{line[: limit - 2]} …"


def _quote(text: str, limit: int) -> str:
    """Return *text*, shortened to *limit* characters and indented as a list item."""
    return shorten(text, limit).strip().replace("\n", "\n  ")
