"""Which tool results leave the context, and what stands in their place."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from ..messages import (
    MEDIA,
    ToolCall,
    ToolResult,
    as_dict,
    as_json,
    blocks,
    compact_json,
    kind,
    strings,
    tool_calls,
    tool_results,
    without_surrogates,
)
from ..messages import field as read
from ..names import safe_name
from ..pieces import overlapping_pieces
from ..placeholders import BATCH, MAX_SHOWN, any_reference, previewed_reference, reference

if TYPE_CHECKING:
    from ..messages import Block, Message

__all__ = [
    "Candidate",
    "Running",
    "Scan",
    "Selection",
    "characters",
    "is_batch",
    "is_placeholder",
    "newest",
    "passes",
    "prescan",
    "replaced",
    "result_characters",
    "scanned",
    "stored_text",
]


@dataclass(frozen=True, slots=True)
class Scan:
    """Characters of a history: all of them, and those in tool results that may leave.

    Source: RG-3, RG-4.
    """

    total_chars: int
    offloadable_chars: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool result, or the input of a tool call, that may leave the context; *chars* is what would
    leave.
    """

    item: ToolResult | ToolCall
    chars: int

    @property
    def id(self) -> str:
        """The id of the tool call that this is part of."""
        return self.item.id if isinstance(self.item, ToolCall) else self.item.tool_use_id


# Measuring ----------------------------------------------------------------------------------------


def characters(message: Message) -> int:
    """The characters that the ratio gate counts for *message* (RG-3, A-05).

    Text and thinking their length, a tool call the compact JSON of its input, a tool result its
    content, media 0.
    """
    content = message["content"]
    return (
        len(content) if isinstance(content, str) else sum(map(_block_characters, blocks(message)))
    )


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
    """The size of a tool result's content: its length, of blocks that of their compact JSON (BO-15,
    BO-16).

    Images and documents count nothing.
    """
    if isinstance(content, str):
        return len(content)
    told = [block for block in content or () if kind(block) not in MEDIA]
    return len(compact_json(told)) if told else 0


def is_placeholder(content: object) -> bool:
    """Whether *content* is nothing but one of our placeholders, alone or in front of kept images
    (A-17).
    """
    return reference(_only_text(content)) is not None


def _only_text(content: object) -> str:
    """The one text that stands in a tool result, at its beginning; "" when it opens otherwise, or
    there are more.
    """
    if isinstance(content, str):
        return content
    texts = (
        [block for block in content if kind(block) == "text"]
        if isinstance(content, list | tuple)
        else []
    )
    return (
        (read(texts[0], "text") or "")
        if len(texts) == 1 and texts[0] is cast("Any", content)[0]
        else ""
    )


def is_text(content: str | Sequence[Block] | None) -> bool:
    """Whether a tool result holds text and nothing else (A-05)."""
    return isinstance(content, str) or (
        bool(content) and all(kind(block) == "text" for block in content or ())
    )


def stored_text(content: str | Sequence[Block] | None, *, indent: int | None) -> str:
    """What goes into the file: text as it is, text blocks as JSON, indented or compact (A-04,
    A-06).
    """
    if isinstance(content, str):
        return content
    told = [as_dict(block) for block in content or () if kind(block) == "text"]
    return as_json(told, indent=indent, ensure_ascii=False)


def replaced(content: str | Sequence[Block] | None, text: str) -> str | list[Any]:
    """*content* after offloading: *text*, and behind it the images and whatever else is no text
    (R14).

    A mark for the cache on one of the texts goes with them (R5).
    """
    if isinstance(content, str) or content is None:
        return text
    kept = [block for block in content if kind(block) != "text"]
    marks = [
        mark
        for block in content
        if kind(block) == "text" and (mark := read(block, "cache_control"))
    ]
    if not kept and not marks:
        return text
    return [{"type": "text", "text": text} | ({"cache_control": marks[-1]} if marks else {}), *kept]


def said(content: str | Sequence[Block] | None) -> str:
    """What a tool result says: its text, or its text blocks one behind the other."""
    if isinstance(content, str):
        return content
    return "".join(read(block, "text") or "" for block in content or () if kind(block) == "text")


MOST_COMPARED = 10_000_000  # characters
_STEP_CHARS = 2**18
_GUTTER = re.compile(r"^[ \t]*[0-9]{1,9}(?:[→│|:] ?|\t)")


def lies_in(stored: str, text: str, start: int, end: int) -> bool:
    """Whether what *text* says from *start* to *end* stands in *stored*: as it is, or in lines that
    are numbered.

    Of texts above some megabytes it says no: to compare them would hold the interpreter for too
    long.
    """
    if max(len(stored), len(text)) > MOST_COMPARED:
        return False
    if text[start:end] in stored:
        return True
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    lines = [line.rstrip() for line in _lines(text[first : last if last >= 0 else None])]
    held = _framed(map(str.rstrip, _lines(stored)))
    return _framed(lines) in held or _framed(_GUTTER.sub("", line) for line in lines) in held


def _lines(text: str) -> Iterator[str]:
    """What `str.splitlines` gives, in steps: one call would hold the interpreter."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _STEP_CHARS) + 1 or len(text)
        yield from text[start:end].splitlines()
        start = end


def _framed(lines: Iterable[str]) -> str:
    return "\n" + "".join(f"{line}\n" for line in lines)


# The functions' rules -----------------------------------------------------------------------------


def offloadable(messages: Sequence[Message], min_chars: int) -> list[Candidate]:
    """Every textual tool result of *min_chars* or more that is no placeholder, oldest first (BO-1,
    BO-17).
    """
    textual = (
        r for r in tool_results(messages) if is_text(r.content) and not is_placeholder(r.content)
    )
    sized = (Candidate(result, result_characters(result.content)) for result in textual)
    return [found for found in sized if found.chars >= max(min_chars, 1)]


def prescan(messages: Sequence[Message], min_chars: int) -> Scan:
    """The ratio gate's two sums. Reads only. Source: RG-1, RG-3, RG-4, RG-18."""
    return scanned(messages, offloadable(messages, min_chars))


def scanned(messages: Sequence[Message], found: Iterable[Candidate]) -> Scan:
    """The gate's two sums, once the results that may leave are *found*."""
    return Scan(sum(map(characters, messages)), sum(candidate.chars for candidate in found))


def passes(scan: Scan, ratio: Decimal | float) -> bool:
    """The three skip checks of the ratio gate, in their order, compared exactly (RG-5 … RG-7,
    A-08).
    """
    if scan.total_chars == 0 or scan.offloadable_chars == 0:
        return False
    return scan.offloadable_chars >= Decimal(str(ratio)) * scan.total_chars


# The stages' rules --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """What a stage may offload at all, whatever its gate says.

    *min_chars* in characters, *per_tool* overrides it by tool name (None: never), *exempt_tools* are never
    offloaded, nor is the result of a call that reads an offloaded file back (*ours* finds its path;
    A-27). The inputs of *input_tools* may go where one of their texts has *min_input_chars* or more
    (R20).
    """

    min_chars: int
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    exempt_tools: AbstractSet[str] = frozenset()
    ours: re.Pattern[str] | None = None
    input_tools: AbstractSet[str] = frozenset()
    min_input_chars: int = 1000
    least_chars: int = field(init=False)  # below it no result is a candidate, whatever its tool

    def __post_init__(self) -> None:
        limits = (limit for limit in (self.min_chars, *self.per_tool.values()) if limit is not None)
        object.__setattr__(self, "least_chars", max(1, min(limits)))

    def result(self, result: ToolResult, call: ToolCall | None) -> Candidate | None:
        """*result* as a candidate, None when it must stay."""
        if call is not None and call.program is not None:
            return None  # a program reads it, and would take the placeholder for its data
        name = call.name if call else ""
        limit = self.per_tool.get(name, self.min_chars)
        if limit is None or name in self.exempt_tools or is_placeholder(result.content):
            return None
        found = measured(result)
        if found.chars < max(limit, 1) or self.read_back(call) or _is_own_preview(result):
            return None
        return found

    def input(self, call: ToolCall) -> Candidate | None:
        """The input of *call* as a candidate, None when it must stay."""
        if call.name not in self.input_tools or call.program is not None:
            return None
        chars = sum(map(len, self.long_texts(call)))
        return Candidate(call, chars) if chars else None

    def long_texts(self, call: ToolCall) -> list[str]:
        """The texts in the call's input that are long enough to leave and are not placeholders
        already.
        """
        found = (text for text in strings(call.input) if len(text) >= self.min_input_chars)
        return [text for text in found if any_reference(text, MAX_SHOWN) is None]

    def read_back(self, call: ToolCall | None) -> str | None:
        """The path of an offloaded file that the call's input names somewhere, in a shell command
        for example.
        """
        if self.ours is None or call is None:
            return None
        matches = (
            self.ours.search(piece)
            for text in strings(call.input)
            for piece in overlapping_pieces(text)
        )
        return next((match[0] for match in matches if match), None)


def measured(result: ToolResult) -> Candidate:
    """*result* as a candidate, with the characters of its texts."""
    content = result.content
    chars = (
        len(content)
        if isinstance(content, str)
        else len(stored_text(content, indent=None))
        if content
        else 0
    )
    return Candidate(result, chars if said(content) else 0)


def _is_own_preview(result: ToolResult) -> bool:
    """Whether it opens with our placeholder and a preview: the path must be the one that this id
    leads to (A-17).
    """
    where = previewed_reference(_only_text(result.content), MAX_SHOWN)
    name = safe_name(without_surrogates(result.tool_use_id))
    return where is not None and name in where.replace("\\", "/").rsplit("/", 1)[-1]


def newest(messages: Sequence[Message]) -> int:
    """The index behind the last reply: the results from there on have not been seen by the model
    yet.
    """
    start = len(messages)
    while start and messages[start - 1]["role"] != "assistant":
        start -= 1
    return start


def answered(
    messages: Sequence[Message], start: int, min_chars: int = 0
) -> Iterator[tuple[ToolResult, ToolCall | None]]:
    """Each tool result of *min_chars* or more from message *start* on, with the call that it
    answers.
    """
    calls: dict[str, ToolCall] = {}
    index = -1
    for result in tool_results(messages, start):
        if min_chars and measured(result).chars < min_chars:
            continue  # most results are short: their calls need not be looked up
        if result.message != index:
            index = result.message
            calls = {call.id: call for call in tool_calls(messages, max(0, index - 1), index)}
        yield result, calls.get(result.tool_use_id)


def rewritten_before(messages: Sequence[Message]) -> tuple[int, int] | None:
    """The place of the first block that batch offloading replaced: what the model said behind it
    saw the text.

    Direct offloading leaves no such trace: it acts before the model has seen anything.
    """
    results = (r.place for r in tool_results(messages) if is_batch(_only_text(r.content)))
    inputs = (c.place for c in tool_calls(messages) if any(map(is_batch, strings(c.input))))
    return min(
        (place for place in (next(results, None), next(inputs, None)) if place), default=None
    )


def is_batch(text: str) -> bool:
    """Whether *text* is a placeholder of batch offloading."""
    return text.startswith(BATCH.split("{}")[0]) and any_reference(text, MAX_SHOWN) is not None


def protected_from(messages: Sequence[Message], keep_recent: int) -> int:
    """The index from which on results are protected: the model has answered fewer than
    *keep_recent* times since.

    A reply that nothing follows is always protected: tools are still to read the inputs of its
    calls.
    """
    index, replies = len(messages), 0
    while index and replies < keep_recent:
        index -= 1
        replies += messages[index]["role"] == "assistant"
    if replies < keep_recent:
        return 0
    # Results stand in the user messages behind the reply that was counted last.
    return (
        index - 1
        if index and index == len(messages) and messages[-1]["role"] == "assistant"
        else index
    )


class Running:
    """The sums behind the gate for one conversation, kept from turn to turn: a turn costs its new
    messages only.

    Whoever changes the messages below it says so with `rewind`.
    """

    __slots__ = ("_candidates", "_places", "_sums", "_totals")

    def __init__(self) -> None:
        self._totals = array("q", [0])  # characters of the first n messages
        self._candidates: list[Candidate] = []
        self._places = array("q")  # the candidates' message indices
        self._sums = array("q", [0])  # characters of the first n candidates

    @property
    def known(self) -> int:
        """How many messages have been taken in."""
        return len(self._totals) - 1

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        if known + 1 < len(self._totals):
            del self._totals[known + 1 :]
            count = bisect_left(self._places, known)
            del self._candidates[count:], self._places[count:], self._sums[count + 1 :]

    def extend(self, messages: Sequence[Message], selection: Selection) -> None:
        """Take in the messages behind those that are known."""
        known = self.known
        sizes = [characters(messages[index]) for index in range(known, len(messages))]
        pairs = answered(messages, known, selection.least_chars)
        results = (selection.result(result, call) for result, call in pairs)
        inputs = map(selection.input, tool_calls(messages, known)) if selection.input_tools else ()
        found = sorted(
            filter(None, (*results, *inputs)), key=lambda candidate: candidate.item.message
        )
        # From here on nothing can fail: a record that knows a message by half would never make it
        # good.
        self._totals.extend(accumulate(sizes, initial=self._totals.pop()))
        for candidate in found:
            self._candidates.append(candidate)
            self._places.append(candidate.item.message)
            self._sums.append(self._sums[-1] + candidate.chars)

    def scan(self, start: int, end: int) -> Scan:
        """The gate's sums, with the candidates from message *start* up to *end*."""
        first, last = bisect_left(self._places, start), bisect_left(self._places, end)
        return Scan(self._totals[-1], max(0, self._sums[last] - self._sums[first]))

    def candidates(self, start: int, end: int) -> list[Candidate]:
        """The candidates from message *start* up to *end*, oldest first."""
        return self._candidates[bisect_left(self._places, start) : bisect_left(self._places, end)]
