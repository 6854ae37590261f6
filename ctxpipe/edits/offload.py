"""Which tool results leave the context, and what stands in their place."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ..messages import MEDIA, ToolCall, ToolResult, as_dict, blocks, compact_json, kind, tool_calls, tool_results
from ..messages import field as read
from ..placeholders import previewed_reference, reference

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = [
    "Candidate",
    "Running",
    "Scan",
    "Selection",
    "characters",
    "is_placeholder",
    "newest",
    "passes",
    "prescan",
    "replaced",
    "result_characters",
    "stored_text",
]


@dataclass(frozen=True, slots=True)
class Scan:
    """Characters of a history: all of them, and those in tool results that may leave. Source: RG-3, RG-4."""

    total_chars: int
    offloadable_chars: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool result that may leave the context, with its size in characters and the call that it answers."""

    result: ToolResult
    chars: int
    call: ToolCall | None = None


# Measuring ----------------------------------------------------------------------------------------------------


def characters(message: Message) -> int:
    """The characters that the ratio gate counts for *message* (RG-3, A-05).

    Text and thinking their length, a tool call the compact JSON of its input, a tool result its content, media 0.
    """
    content = message["content"]
    if isinstance(content, str):
        return len(content)
    return sum(_block_characters(block) for block in blocks(message))


def _block_characters(block: Block) -> int:
    name = kind(block)
    measure = _CHARACTERS.get(name)
    if measure is not None:
        return measure(block)
    return 0 if name in MEDIA else len(compact_json(as_dict(block)))


_CHARACTERS: Mapping[str, Callable[[Block], int]] = {
    "text": lambda block: len(read(block, "text") or ""),
    "thinking": lambda block: len(read(block, "thinking") or ""),
    "redacted_thinking": lambda _block: 0,
    "tool_use": lambda block: len(compact_json(read(block, "input"))),
    "tool_result": lambda block: result_characters(read(block, "content")),
}


def result_characters(content: str | Sequence[Block] | None) -> int:
    """The size of a tool result's content: its length, of blocks that of their compact JSON (BO-15, BO-16).

    Images and documents count nothing.
    """
    if isinstance(content, str):
        return len(content)
    told = [block for block in content or () if kind(block) not in MEDIA]
    return len(compact_json(told)) if told else 0


def is_placeholder(content: object) -> bool:
    """Whether *content* is nothing but one of our placeholders, alone or in front of kept images (A-17)."""
    if not isinstance(content, str):
        first = content[0] if isinstance(content, list | tuple) and content else None
        content = read(first, "text") if kind(first) == "text" else None
    return reference(content) is not None


def is_text(content: str | Sequence[Block] | None) -> bool:
    """Whether a tool result holds text and nothing else (A-05)."""
    return isinstance(content, str) or (bool(content) and all(kind(block) == "text" for block in content or ()))


def stored_text(content: str | Sequence[Block] | None, *, indent: int | None) -> str:
    """What goes into the file: text as it is, blocks as JSON, indented or compact (A-04, A-06). Media stay behind."""
    if isinstance(content, str):
        return content
    told = [as_dict(block) for block in content or () if kind(block) not in MEDIA]
    if indent is None:
        return compact_json(told)
    return json.dumps(told, ensure_ascii=False, indent=indent, default=as_dict)


def replaced(content: str | Sequence[Block] | None, text: str) -> str | list[Any]:
    """*content* after offloading: *text*, and behind it the images and documents that stay (R14)."""
    media = [] if isinstance(content, str) else [block for block in content or () if kind(block) in MEDIA]
    return [{"type": "text", "text": text}, *media] if media else text


# The functions' rules -----------------------------------------------------------------------------------------


def offloadable(messages: Sequence[Message], min_chars: int) -> list[Candidate]:
    """Every textual tool result of at least *min_chars* characters that is no placeholder, oldest first (BO-1, BO-17)."""
    textual = (result for result in tool_results(messages) if is_text(result.content))
    sized = (Candidate(result, result_characters(result.content)) for result in textual)
    return [found for found in sized if found.chars >= max(min_chars, 1) and not is_placeholder(found.result.content)]


def prescan(messages: Sequence[Message], min_chars: int) -> Scan:
    """The ratio gate's two sums. Reads only. Source: RG-1, RG-3, RG-4, RG-18."""
    return Scan(sum(map(characters, messages)), sum(found.chars for found in offloadable(messages, min_chars)))


def passes(scan: Scan, ratio: Decimal | float) -> bool:
    """The three skip checks of the ratio gate, in their order, compared exactly (RG-5 … RG-7, A-08)."""
    if scan.total_chars == 0 or scan.offloadable_chars == 0:
        return False
    return scan.offloadable_chars >= Decimal(str(ratio)) * scan.total_chars


# The stages' rules --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """Which results a stage may offload at all, whatever its gate says.

    *min_chars* in characters, *per_tool* overrides it by tool name (None: never), *exempt_tools* are never
    offloaded, nor is the result of a call that reads an offloaded file back (*ours* finds its path; A-27).
    """

    min_chars: int
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    exempt_tools: AbstractSet[str] = frozenset()
    ours: re.Pattern[str] | None = None
    previewed: bool = False

    def candidate(self, result: ToolResult, call: ToolCall | None) -> Candidate | None:
        """The candidate that *result* is, None when it must stay."""
        name = call.name if call else ""
        limit = self.per_tool.get(name, self.min_chars)
        if limit is None or name in self.exempt_tools or is_placeholder(result.content):
            return None
        if self.is_read_back(call) or self._is_previewed(result):
            return None
        chars = result_characters(result.content)
        return Candidate(result, chars, call) if chars >= max(limit, 1) else None

    def is_read_back(self, call: ToolCall | None) -> bool:
        """Whether *call* names an offloaded file somewhere in its input, in a shell command for example."""
        return bool(self.ours and call and any(self.ours.search(text) for text in strings(call.input)))

    def _is_previewed(self, result: ToolResult) -> bool:
        where = previewed_reference(result.content) if self.previewed else None
        return where is not None and result.tool_use_id in where


def strings(value: object) -> Iterator[str]:
    """Every string inside a JSON-like *value*, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)


def newest(messages: Sequence[Message]) -> int:
    """Where the trailing run of user messages begins: the results in it have not been seen by the model yet."""
    start = len(messages)
    while start and messages[start - 1]["role"] == "user":
        start -= 1
    return start


def answered(messages: Sequence[Message], start: int) -> Iterator[tuple[ToolResult, ToolCall | None]]:
    """Each tool result from message *start* on, with the call that it answers."""
    calls: dict[str, ToolCall] = {}
    index = -1
    for result in tool_results(messages, start):
        if result.message != index:
            index = result.message
            calls = {call.id: call for call in tool_calls(messages, max(0, index - 1), index)}
        yield result, calls.get(result.tool_use_id)


def protected_from(messages: Sequence[Message], keep_recent: int) -> int:
    """The index from which on results are protected: the model has answered fewer than *keep_recent* times since."""
    index, replies = len(messages), 0
    while index and replies < keep_recent:
        index -= 1
        replies += messages[index]["role"] == "assistant"
    # Results stand in the user messages behind the reply that was counted last.
    return index if replies == keep_recent else 0


class Running:
    """The sums behind the gate for one conversation, kept from turn to turn: a turn costs its new messages only.

    Whoever changes the messages below it says so with `rewind`.
    """

    __slots__ = ("_candidates", "_places", "_sums", "_totals")

    def __init__(self) -> None:
        self._totals = array("q", [0])  # characters of the first n messages
        self._candidates: list[Candidate] = []
        self._places = array("q")  # the candidates' message indices
        self._sums = array("q", [0])  # characters of the first n candidates

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        if known + 1 < len(self._totals):
            del self._totals[known + 1 :]
            count = bisect_left(self._places, known)
            del self._candidates[count:], self._places[count:], self._sums[count + 1 :]

    def extend(self, messages: Sequence[Message], selection: Selection) -> None:
        """Take in the messages behind those that are known."""
        known = len(self._totals) - 1
        total = self._totals[-1]
        for index in range(known, len(messages)):
            total += characters(messages[index])
            self._totals.append(total)
        for result, call in answered(messages, known):
            if found := selection.candidate(result, call):
                self._candidates.append(found)
                self._places.append(result.message)
                self._sums.append(self._sums[-1] + found.chars)

    def scan(self, end: int) -> Scan:
        """The gate's sums, candidates counted up to message *end*."""
        return Scan(self._totals[-1], self._sums[bisect_left(self._places, end)])

    def candidates(self, end: int) -> list[Candidate]:
        """The candidates before message *end*, oldest first."""
        return self._candidates[: bisect_left(self._places, end)]
