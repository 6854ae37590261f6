"""Which tool results leave the context, and what replaces them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import accumulate, islice, starmap
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from .._threads.pieces import overlapping_pieces
from ..messages import (
    MEDIA,
    Block,
    Message,
    ToolCall,
    ToolResult,
    as_blocks,
    as_dict,
    as_json,
    block_text,
    compact_json,
    inner_blocks,
    is_text_part,
    kind,
    rebuilt,
    rewrite,
    source_of,
    strings,
    tool_calls,
    tool_results,
    with_content,
    without_surrogates,
)
from ..messages import field as read
from ..placeholders.names import safe_name
from ..placeholders.placeholders import (
    MAX_SHOWN,
    any_reference,
    is_batch,
    media_reference,
    reference,
)
from ..providers.agent_tools import GUTTER

_Content: TypeAlias = "str | Sequence[Block] | None"  # of a tool result


@dataclass(frozen=True, slots=True)
class Scan:
    """Characters of a history: all of them, and those in tool results that may leave."""

    total_chars: int
    offloadable_chars: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool result, or the input of a tool call, that may leave the context.

    *chars* is what would leave.
    """

    item: ToolResult | ToolCall
    chars: int


# Measuring ----------------------------------------------------------------------------------------


def characters(message: Message) -> int:
    """The characters that the ratio gate counts for *message*.

    Text and thinking their length, a tool call the compact JSON of its input, a tool result its
    content, media 0.
    """
    return sum(map(_block_characters, as_blocks(message)))


def _block_characters(block: Block) -> int:
    match kind(block):
        case "text" | "thinking" as name:
            return len(read(block, name) or "")
        case "redacted_thinking" | "image" | "document":
            return 0
        case "tool_use":
            return len(compact_json(read(block, "input")))
        case "tool_result":
            return result_characters(read(block, "content"))
    return len(compact_json(as_dict(block)))


def result_characters(content: _Content) -> int:
    """The size of a tool result's content: the length of a text, of blocks that of their JSON.

    The JSON is compact; images and documents count nothing.
    """
    if isinstance(content, str):
        return len(content)
    counted = [block for block in content or () if kind(block) not in MEDIA]
    return len(compact_json(counted)) if counted else 0


def document_characters(message: Message) -> int:
    """Return the characters of the documents in *message* that consist of text.

    `characters` counts none for a document, as the requirement has it.
    """
    chars = 0
    for block in as_blocks(message):
        for part in (block, *inner_blocks(block)):
            if kind(part) == "document":
                chars += len(block_text(part) or "")
    return chars


def is_placeholder(content: _Content) -> bool:
    """Whether *content* is only one of our placeholders, alone or before kept images."""
    return reference(_only_text(content)) is not None


def _only_text(content: _Content) -> str:
    """The text that a tool result begins with, when it is the only one; otherwise ""."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = _parts_with_text(content)
    if len(parts) != 1 or parts[0] is not content[0] or kind(parts[0]) != "text":
        return ""
    return block_text(parts[0]) or ""


def is_text(content: _Content) -> bool:
    """Whether a tool result holds text blocks, or a text, and nothing else."""
    if isinstance(content, str):
        return True
    if not content:
        return False
    return all(kind(block) == "text" and has_text(block) for block in content)


def stored_text(content: _Content, *, indent: int | None) -> str:
    """Return what the file of a tool result holds.

    A text is stored as it is and text blocks as JSON, compact without *indent*. Where other blocks
    hold text, too, such as search results, it is the text of all of them, with their sources.
    """
    if isinstance(content, str):
        return content
    parts = _parts_with_text(content)
    if any(kind(part) != "text" for part in parts):
        return _join_texts(parts)
    return as_json(list(map(as_dict, parts)), indent=indent, ensure_ascii=False)


def with_placeholder(content: _Content, text: str) -> str | list[Any]:
    """*content* after offloading: *text*, followed by the images and other blocks.

    A cache mark on one of the old texts moves to the new one.
    """
    if isinstance(content, str) or content is None:
        return text
    others = [block for block in content if not has_text(block)]
    marks = [read(block, "cache_control") for block in _parts_with_text(content)]
    marks = [mark for mark in marks if mark]
    if not others and not marks:
        return text
    first = {"type": "text", "text": text}
    if marks:
        first["cache_control"] = marks[-1]
    return [first, *others]


def text_of(content: _Content) -> str:
    """Return the text of a tool result, without that of placeholders of images and documents."""
    if isinstance(content, str):
        return content
    return _join_texts(_parts_with_text(content))


def sources_in(content: _Content) -> list[str]:
    """Return where the search results and documents of a tool result come from, each once."""
    if content is None or isinstance(content, str):
        return []
    sources = [source_of(part) for part in _parts_with_text(content)]
    return list(dict.fromkeys(source for source in sources if source))


def _parts_with_text(content: Iterable[Block] | None) -> list[Block]:
    return [block for block in content or () if has_text(block)]


def _join_texts(parts: Sequence[Block]) -> str:
    """Return the texts of *parts*: text blocks continue each other, others are paragraphs."""
    separator = "" if all(kind(part) == "text" for part in parts) else "\n\n"
    return separator.join([block_text(part) or "" for part in parts])


def has_text(block: Block) -> bool:
    """Whether *block* holds text, and is not the placeholder of an image or document beside it."""
    return is_text_part(block) and media_reference(block_text(block)) is None


MOST_COMPARED = 10_000_000  # characters
_STEP_CHARS = 2**18


def placeholder_file(call_id: str, text: str) -> str | None:
    """The name of the file that *text*, a result of this call or a part of it, was moved to.

    None for a text that is no placeholder. A tool may print a placeholder of its own: so only a
    name counts that the call's own id leads to; look for it in the session's folder alone.
    """
    path = any_reference(text, MAX_SHOWN)
    if path is None:
        return None
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return name if safe_name(without_surrogates(call_id)) in name else None


def placeholder_files(texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """By placeholder in *texts*, each with its call's id before it: the name of the file."""
    files: dict[str, str] = {}
    for call_id, text in texts:
        name = placeholder_file(call_id, text)
        if name is not None:
            files[text] = name
    return files


# What has left once -------------------------------------------------------------------------------


Placeholders: TypeAlias = dict[int, str]
"""By `lookup_key`: what replaces a text that has left once."""


def lookup_key(call_id: str, text: str) -> int:
    """Return the key of *text* in `Placeholders`: of the call with that id, "" for a message."""
    return hash((call_id, text))


def note_placeholders(
    known: Placeholders, before: Sequence[Message], after: Sequence[Message]
) -> None:
    """Add to *known* the texts of *before* of which *after* has the placeholders."""
    for moved in find_moved_texts(before, after):
        known[lookup_key(moved.call_id, moved.text)] = moved.placeholder


class Moved(NamedTuple):
    """A result, or a text in the input of a call, that was replaced by a placeholder.

    *content* is that of the result; None for a text of an input.
    """

    call_id: str
    text: str
    placeholder: str
    content: _Content = None


def find_moved_texts(before: Sequence[Message], after: Sequence[Message]) -> Iterator[Moved]:
    """Yield the texts of *before* in whose places *after* has placeholders."""
    places: dict[str, str] = {}
    for result in tool_results(after):
        text = _only_text(result.content)
        if placeholder_file(result.tool_use_id, text) is not None:
            places[result.tool_use_id] = text
    if places:
        for result in tool_results(before):
            text = text_of(result.content)
            if text and places.get(result.tool_use_id, text) != text:
                yield Moved(
                    result.tool_use_id, text, places[result.tool_use_id], content=result.content
                )
    calls = {call.id: call for call in tool_calls(after)}
    if not calls:
        return
    for call in tool_calls(before):
        other = calls.get(call.id)
        if other is None or other.input is call.input:
            continue
        for text, new in zip(strings(call.input), strings(other.input), strict=False):
            if new != text and placeholder_file(call.id, new) is not None:
                yield Moved(call.id, text, new)


def offload_again(
    known: Placeholders, messages: list[Message], start: int, history: Sequence[Message], stop: int
) -> list[Message]:
    """Return *messages* with the *known* placeholders from message *start* on.

    The result and the input of a call stay that is in *history* before message *stop*: it is
    another one. A message of the user that repeats a result has the text that is *known* for it.
    """
    results: dict[tuple[int, int], object] = {}
    for result in tool_results(messages, start):
        text = known.get(lookup_key(result.tool_use_id, text_of(result.content)))
        if text is not None:
            results[result.place] = with_placeholder(result.content, text)
    inputs: dict[tuple[int, int], object] = {}
    for call in tool_calls(messages, start):
        texts = {text: known.get(lookup_key(call.id, text)) for text in strings(call.input)}
        replaced = {text: new for text, new in texts.items() if new is not None}
        if replaced:
            inputs[call.place] = rebuilt(call.input, partial(_replacement, replaced))
    if results:
        answered = {other.tool_use_id for other in tool_results(history, 0, stop)}
        for result in tool_results(messages, start):
            if result.tool_use_id in answered:
                results.pop(result.place, None)
    if inputs:
        called = {other.id for other in tool_calls(history, 0, stop)}
        for call in tool_calls(messages, start):
            if call.id in called:
                inputs.pop(call.place, None)
    edited = rewrite(messages, results) if results else messages
    edited = rewrite(edited, inputs, key="input") if inputs else edited
    return _repeat_messages(known, edited, start)


def _replacement(replaced: Mapping[str, str], value: object) -> object:
    return replaced.get(value, value) if isinstance(value, str) else value


def _repeat_messages(known: Placeholders, messages: list[Message], start: int) -> list[Message]:
    """Return *messages* with the *known* texts of whole text blocks from message *start* on."""
    edited: list[Message] | None = None
    for index in range(start, len(messages)):
        message = messages[index]
        content = message["content"]
        if isinstance(content, str):
            new = known.get(lookup_key("", content))
            if new is not None:
                edited = edited or list(messages)
                edited[index] = with_content(message, new)
            continue
        updates: dict[tuple[int, int], object] = {}
        for place, block in enumerate(content or ()):
            text = read(block, "text") if kind(block) == "text" else None
            if isinstance(text, str) and (new := known.get(lookup_key("", text))) is not None:
                updates[0, place] = new
        if updates:
            edited = edited or list(messages)
            [edited[index]] = rewrite([message], updates, key="text")
    return edited or messages


def contains_excerpt(stored: str, text: str, start: int, end: int) -> bool:
    """Whether *stored* holds *text* from *start* to *end*, as it is or with its lines numbered.

    False for texts of more than `MOST_COMPARED` characters: to compare them would block the
    interpreter for too long.
    """
    if max(len(stored), len(text)) > MOST_COMPARED:
        return False
    if text[start:end] in stored:
        return True
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    part = text[first:] if last < 0 else text[first:last]
    lines = list(map(str.rstrip, _lines(part)))
    stored_lines = _frame(map(str.rstrip, _lines(stored)))
    if _frame(lines) in stored_lines:
        return True
    return _frame([GUTTER.sub("", line) for line in lines]) in stored_lines


def _lines(text: str) -> Iterator[str]:
    """What `str.splitlines` gives, in steps: one call would block the interpreter."""
    start = 0
    while start < len(text):
        found = text.find("\n", start + _STEP_CHARS)
        end = found + 1 if found >= 0 else len(text)
        yield from text[start:end].splitlines()
        start = end


def _frame(lines: Iterable[str]) -> str:
    """*lines* with a line break before and after each, so that only whole lines are found."""
    return "\n" + "".join(f"{line}\n" for line in lines)


# The functions' rules -----------------------------------------------------------------------------


def movable(messages: Sequence[Message]) -> list[ToolResult]:
    """Every textual tool result that is no placeholder, oldest first."""
    texts = [result for result in tool_results(messages) if is_text(result.content)]
    return [result for result in texts if not is_placeholder(result.content)]


def offloadable(messages: Sequence[Message], min_chars: int) -> list[ToolResult]:
    """Those of the `movable` results that have *min_chars* or more."""
    return [one for one in movable(messages) if result_characters(one.content) >= max(min_chars, 1)]


def total_characters(results: Iterable[ToolResult]) -> int:
    """The size of the content of all *results*."""
    return sum(result_characters(result.content) for result in results)


def scan_of(messages: Sequence[Message], found: Iterable[ToolResult]) -> Scan:
    """The gate's two sums, given the results *found* that may leave."""
    return Scan(sum(map(characters, messages)), total_characters(found))


def passes(scan: Scan, ratio: Decimal | float) -> bool:
    """Whether the ratio gate lets *scan* pass: its three checks, compared exactly."""
    if scan.total_chars == 0 or scan.offloadable_chars == 0:
        return False
    return scan.offloadable_chars >= Decimal(str(ratio)) * scan.total_chars


# The stages' rules --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """What a stage may offload at all, whatever its gate says.

    *min_chars* in characters, *per_tool* overrides it by tool name (None: never), *exempt_tools*
    are never offloaded, nor is the result of a call that reads an offloaded file back (*ours* finds
    its path). The inputs of *input_tools* may go where one of their texts has
    *min_input_chars* or more.
    """

    min_chars: int
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    exempt_tools: AbstractSet[str] = frozenset()
    ours: re.Pattern[str] | None = None
    input_tools: AbstractSet[str] = frozenset()
    min_input_chars: int = 1000

    @property
    def least_chars(self) -> int:
        """Below it no result is a candidate, whatever its tool."""
        limits = [limit for limit in self.per_tool.values() if limit is not None]
        return max(1, min([self.min_chars, *limits]))

    def result(self, result: ToolResult, call: ToolCall | None) -> Candidate | None:
        """*result* as a candidate, None when it must stay."""
        candidate = candidate_of(result)
        limit = self._limit(call)
        if limit is None or candidate.chars < max(limit, 1):
            return None
        if not self.may_leave(result, call) or self.is_read_back(call):
            return None
        return candidate

    def _limit(self, call: ToolCall | None) -> int | None:
        """Return the least characters of a result of *call*; None if none may leave."""
        return self.per_tool.get(call.name if call else "", self.min_chars)

    def may_leave(self, result: ToolResult, call: ToolCall | None) -> bool:
        """Return True unless *result*, whatever its length, has to stay as it is."""
        if call is not None and call.program is not None:
            return False  # a program reads it, and would take the placeholder for its data
        if self._limit(call) is None or is_placeholder(result.content) or holds_tools(result):
            return False
        return placeholder_file(result.tool_use_id, _only_text(result.content)) is None

    def is_read_back(self, call: ToolCall | None) -> bool:
        """Return True if *call* reads an offloaded file back."""
        if call is not None and call.name in self.exempt_tools:
            return True
        return self.read_back(call) is not None

    def input(self, call: ToolCall) -> Candidate | None:
        """The input of *call* as a candidate, None when it must stay."""
        if call.program is not None or call.name not in self.input_tools:
            return None
        chars = sum(map(len, self.long_texts(call)))
        return Candidate(call, chars) if chars else None

    def long_texts(self, call: ToolCall) -> list[str]:
        """The texts in the call's input that are long enough to leave, except placeholders."""
        return [
            text
            for text in strings(call.input)
            if len(text) >= self.min_input_chars and any_reference(text, MAX_SHOWN) is None
        ]

    def read_back(self, call: ToolCall | None) -> str | None:
        """The path of an offloaded file that the call's input names, such as in a shell command."""
        if self.ours is None or call is None:
            return None
        for text in strings(call.input):
            for piece in overlapping_pieces(text):
                match = self.ours.search(piece)
                if match:
                    return match[0]
        return None


def holds_tools(result: ToolResult) -> bool:
    """Return True if *result* loads tools: without it the model would not have them."""
    return any(kind(part) == "tool_reference" for part in inner_blocks(result))


def candidate_of(result: ToolResult) -> Candidate:
    """*result* as a candidate, with the characters of its texts."""
    if not text_of(result.content):
        return Candidate(result, 0)
    return Candidate(result, len(stored_text(result.content, indent=None)))


def newest(messages: Sequence[Message]) -> int:
    """The index after the last reply: the model has not seen the results from there on yet."""
    start = len(messages)
    while start and messages[start - 1]["role"] != "assistant":
        start -= 1
    return start


def results_with_calls(
    messages: Sequence[Message], start: int, min_chars: int
) -> Iterator[tuple[ToolResult, ToolCall | None]]:
    """Each tool result of *min_chars* or more from message *start* on, with its call."""
    calls: dict[str, ToolCall] = {}
    index = -1
    for result in tool_results(messages, start):
        if candidate_of(result).chars < min_chars:
            continue  # most results are short: their calls need not be looked up
        if result.message != index:
            index = result.message
            calls = {call.id: call for call in tool_calls(messages, max(0, index - 1), index)}
        yield result, calls.get(result.tool_use_id)


class ReadBack(NamedTuple):
    """A tool result that was read from an offloaded file, its call, and the path that it names."""

    result: ToolResult
    call: ToolCall
    path: str


def long_read_backs(
    messages: Sequence[Message], start: int, selection: Selection
) -> list[ReadBack]:
    """What was read back from message *start* on and is longer than *selection* allows.

    What a program reads must be whole, and what was shortened already is not shortened again.
    """
    max_chars = selection.min_chars
    found: list[ReadBack] = []
    for result, call in results_with_calls(messages, start, max_chars):
        if call is None or call.program is not None:
            continue
        text = text_of(result.content)
        if len(text) <= max_chars:
            continue
        path = selection.read_back(call)
        if path is not None and any_reference(text, max_chars) is None:
            found.append(ReadBack(result, call, path))
    return found


def first_batch_placeholder(messages: Sequence[Message]) -> tuple[int, int] | None:
    """The place of the first block that batch offloading replaced.

    The model saw the original when it wrote what follows. Direct offloading leaves no such trace:
    it acts before the model has seen anything.
    """
    results = (each.place for each in tool_results(messages) if is_batch(_only_text(each.content)))
    inputs = (
        each.place for each in tool_calls(messages) if any(map(is_batch, strings(each.input)))
    )
    return min([*islice(results, 1), *islice(inputs, 1)], default=None)


_PLACE = attrgetter("item.message")  # of a candidate


class CandidateIndex:
    """The sums behind the gate for one conversation, kept from turn to turn.

    A turn costs its new messages only. Whoever changes earlier messages reports it with `rewind`.
    """

    __slots__ = ("_candidates", "_sums", "_totals")

    def __init__(self) -> None:
        self._totals = array("I", [0])  # characters of the first n messages
        self._candidates: list[Candidate] = []
        self._sums = array("I", [0])  # characters of the first n candidates

    @property
    def known(self) -> int:
        """How many messages the sums include."""
        return len(self._totals) - 1

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        count = bisect_left(self._candidates, known, key=_PLACE)
        del self._totals[known + 1 :]
        del self._candidates[count:]
        del self._sums[count + 1 :]

    def extend(self, messages: Sequence[Message], selection: Selection) -> None:
        """Add the messages after those that are known."""
        known = self.known
        new = messages[known:]
        sizes = [characters(message) + document_characters(message) for message in new]
        found = candidates(messages, known, selection)
        # From here on nothing can fail: a half-known message would never be completed.
        total = self._totals.pop()
        self._totals.extend(accumulate(sizes, initial=total))
        self._candidates += found
        chars = self._sums.pop()
        self._sums.extend(accumulate((candidate.chars for candidate in found), initial=chars))

    def between(self, start: int, end: int) -> tuple[Scan, Callable[[], list[Candidate]]]:
        """The gate's sums, with the candidates from message *start* up to *end*; and these."""
        first = bisect_left(self._candidates, start, key=_PLACE)
        stop = bisect_left(self._candidates, end, lo=first, key=_PLACE)
        scan = Scan(self._totals[-1], self._sums[stop] - self._sums[first])
        return scan, lambda: self._candidates[first:stop]


def candidates(messages: Sequence[Message], start: int, selection: Selection) -> list[Candidate]:
    """The candidates from message *start* on, oldest first."""
    results = results_with_calls(messages, start, selection.least_chars)
    found: list[Candidate | None] = list(starmap(selection.result, results))
    if selection.input_tools:
        found += map(selection.input, tool_calls(messages, start))
    return sorted(filter(None, found), key=_PLACE)
