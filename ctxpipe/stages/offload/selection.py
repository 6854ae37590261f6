"""Decide which tool results and call inputs leave the context, and replace them by placeholders.

A *placeholder* is a short text that names the file with the whole text. The functions here do no
I/O: the stages `DirectOffload`, `BatchOffload` and `TrimReadBacks` write the files.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from ..._threads.pieces import overlapping_pieces
from ...messages import (
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
from ...messages import field as read
from ...placeholders.names import safe_name
from ...placeholders.placeholders import (
    MAX_PREVIEW_CHARS,
    any_reference,
    is_batch,
    media_reference,
    reference,
)
from ...providers.agent_tools import GUTTER

_Content: TypeAlias = "str | Sequence[Block] | None"  # of a tool result


@dataclass(frozen=True, slots=True)
class Scan:
    """Size of a history in characters, for a gate.

    *total_chars* counts all messages, *offloadable_chars* the tool results (and inputs of calls)
    that may leave the context.
    """

    total_chars: int
    offloadable_chars: int


@dataclass(frozen=True, slots=True)
class OffloadCandidate:
    """A tool result, or the input of a tool call, that may leave the context.

    *item* is the result, or the call with the input. *chars* is the number of characters that would
    leave.
    """

    item: ToolResult | ToolCall
    chars: int


# Measuring ----------------------------------------------------------------------------------------


def characters(message: Message) -> int:
    """Return the number of characters that the ratio gate counts for *message*.

    A text or thinking block counts its length, a tool call the compact JSON of its input, a tool
    result its content, and media nothing.
    """
    return sum(_block_characters(block) for block in as_blocks(message))


def _block_characters(block: Block) -> int:
    """Return the number of characters that the ratio gate counts for *block*.

    Images, documents and redacted thinking count 0; a block of another kind counts its compact
    JSON.
    """
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
    """Return the size of a tool result's content in characters.

    A string counts its length. Blocks count the length of their compact JSON, without images and
    documents.
    """
    if isinstance(content, str):
        return len(content)
    counted_blocks = [block for block in content or () if kind(block) not in MEDIA]
    return len(compact_json(counted_blocks)) if counted_blocks else 0


def document_characters(message: Message) -> int:
    """Return the number of characters of all text documents in *message*, also inside results.

    A document without text, such as a PDF in base64, counts 0. `characters` counts 0 for every
    document; the running totals for batch offloading add the two numbers.
    """
    chars = 0
    for block in as_blocks(message):
        for part in (block, *inner_blocks(block)):
            if kind(part) == "document":
                chars += len(block_text(part) or "")
    return chars


def is_placeholder(content: _Content) -> bool:
    """Return True if *content* is only a placeholder of ctxpipe, alone or before images."""
    return reference(_only_text(content)) is not None


def _only_text(content: _Content) -> str:
    """Return the first text of a tool result if it is the only one; otherwise ""."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = _parts_with_text(content)
    if len(parts) != 1 or parts[0] is not content[0] or kind(parts[0]) != "text":
        return ""
    return block_text(parts[0]) or ""


def is_text(content: _Content) -> bool:
    """Return True if a tool result is a string, or consists of text blocks only."""
    if isinstance(content, str):
        return True
    if not content:
        return False
    return all(kind(block) == "text" and has_text(block) for block in content)


def stored_text(content: _Content, *, indent: int | None) -> str:
    """Return the text of the file for a tool result.

    A string is stored unchanged. Text blocks are stored as JSON, compact if *indent* is None. If
    other blocks hold text too, such as search results, the file has the text of all blocks, with
    their sources.
    """
    if isinstance(content, str):
        return content
    parts = _parts_with_text(content)
    if any(kind(part) != "text" for part in parts):
        return _join_texts(parts)
    return as_json([as_dict(part) for part in parts], indent=indent, ensure_ascii=False)


def with_placeholder(content: _Content, text: str) -> str | list[Any]:
    """Return the *content* of a tool result after offloading.

    That is the placeholder *text*, followed by the images and other blocks without text. A cache
    mark on one of the old texts moves to the placeholder.
    """
    if isinstance(content, str) or content is None:
        return text
    others = [block for block in content if not has_text(block)]
    marks = []
    for block in _parts_with_text(content):
        mark = read(block, "cache_control")
        if mark:
            marks.append(mark)
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
    """Return the texts of *parts* in their order.

    If all parts are text blocks, their texts are joined directly. If one of them is another block,
    a blank line separates every two parts.
    """
    separator = "" if all(kind(part) == "text" for part in parts) else "\n\n"
    return separator.join([block_text(part) or "" for part in parts])


def has_text(block: Block) -> bool:
    """Return True if *block* holds text other than the placeholder of an image or document."""
    return is_text_part(block) and media_reference(block_text(block)) is None


MOST_COMPARED = 10_000_000
"""Largest number of characters of a text that `contains_excerpt` compares."""

_STEP_CHARS = 2**18


def placeholder_file(call_id: str, text: str) -> str | None:
    """Return the name of the file that the placeholder *text* points to, without its folder.

    *text* is a result of the call *call_id*, or a part of its input. Returns None if it is no
    placeholder. A tool may print a text that looks like a placeholder, so the result is also None
    if the name of the file does not contain *call_id* in its safe form. Look for the file only in
    the folder of the same session.
    """
    path = any_reference(text, MAX_PREVIEW_CHARS)
    if path is None:
        return None
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return name if safe_name(without_surrogates(call_id)) in name else None


def placeholder_files(texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the name of the file of each placeholder in *texts*, by placeholder.

    Each of *texts* is a pair of a call's id and a text.
    """
    files: dict[str, str] = {}
    for call_id, text in texts:
        name = placeholder_file(call_id, text)
        if name is not None:
            files[text] = name
    return files


# Texts that were replaced before ------------------------------------------------------------------


Placeholders: TypeAlias = dict[int, str]
"""The placeholder of each text that left before, by `lookup_key`.

A caller who passes the original history again gets the same placeholders for the same texts.
"""


def lookup_key(call_id: str, text: str) -> int:
    """Return the key of *text* in a `Placeholders` mapping; it is valid in this process only.

    *call_id* is the id of the call, "" for a text of a user's message.
    """
    return hash((call_id, text))


def note_placeholders(
    placeholders: Placeholders, before: Sequence[Message], after: Sequence[Message]
) -> None:
    """Add to *placeholders* each text of *before* that *after* has a placeholder for."""
    for moved in find_moved_texts(before, after):
        placeholders[lookup_key(moved.call_id, moved.text)] = moved.placeholder


class Moved(NamedTuple):
    """A tool result, or a text in the input of a call, that was replaced by a placeholder.

    *content* is the content of the result; None for a text of an input.
    """

    call_id: str
    text: str
    placeholder: str
    content: _Content = None


def find_moved_texts(before: Sequence[Message], after: Sequence[Message]) -> Iterator[Moved]:
    """Yield the texts of *before* that are replaced by placeholders in *after*.

    Results come first, then inputs of calls; both are matched by the id of the call.
    """
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
    placeholders: Placeholders,
    messages: list[Message],
    start: int,
    history: Sequence[Message],
    stop: int,
) -> list[Message]:
    """Return *messages* with the texts in *placeholders* replaced again from message *start* on.

    A result or an input is not replaced if its call id also occurs in *history* before message
    *stop*: it is a different call with the same id. A user's message that repeats a replaced
    result gets the placeholder too.
    """
    results = _results_to_replace(placeholders, messages, start)
    if results:
        earlier_ids = {earlier.tool_use_id for earlier in tool_results(history, 0, stop)}
        for result in tool_results(messages, start):
            if result.tool_use_id in earlier_ids:
                results.pop(result.place, None)
    inputs = _inputs_to_replace(placeholders, messages, start)
    if inputs:
        earlier_ids = {earlier.id for earlier in tool_calls(history, 0, stop)}
        for call in tool_calls(messages, start):
            if call.id in earlier_ids:
                inputs.pop(call.place, None)
    edited = rewrite(messages, results) if results else messages
    edited = rewrite(edited, inputs, key="input") if inputs else edited
    return _repeat_messages(placeholders, edited, start)


def _results_to_replace(
    placeholders: Placeholders, messages: Sequence[Message], start: int
) -> dict[tuple[int, int], object]:
    """Return the new contents of the results from message *start* on, by their places.

    Results without a text in *placeholders* are left out. A place is (message index, block index).
    """
    contents: dict[tuple[int, int], object] = {}
    for result in tool_results(messages, start):
        text = placeholders.get(lookup_key(result.tool_use_id, text_of(result.content)))
        if text is not None:
            contents[result.place] = with_placeholder(result.content, text)
    return contents


def _inputs_to_replace(
    placeholders: Placeholders, messages: Sequence[Message], start: int
) -> dict[tuple[int, int], object]:
    """Return the new inputs of the calls from message *start* on, by their places.

    A text in the input is replaced if *placeholders* has one for it. Calls without such a text are
    left out. A place is (message index, block index).
    """
    inputs: dict[tuple[int, int], object] = {}
    for call in tool_calls(messages, start):
        replacements: dict[str, str] = {}
        for text in strings(call.input):
            placeholder = placeholders.get(lookup_key(call.id, text))
            if placeholder is not None:
                replacements[text] = placeholder
        if replacements:
            inputs[call.place] = rebuilt(call.input, partial(_replace_string, replacements))
    return inputs


def _replace_string(replacements: Mapping[str, str], value: object) -> object:
    """Return the replacement of *value* if it is a string that has one; otherwise *value*."""
    return replacements.get(value, value) if isinstance(value, str) else value


def _repeat_messages(
    placeholders: Placeholders, messages: list[Message], start: int
) -> list[Message]:
    """Return *messages* with whole texts in *placeholders* replaced from message *start* on."""
    edited: list[Message] | None = None
    for index in range(start, len(messages)):
        message = messages[index]
        content = message["content"]
        if isinstance(content, str):
            placeholder = placeholders.get(lookup_key("", content))
            if placeholder is not None:
                edited = edited or list(messages)
                edited[index] = with_content(message, placeholder)
            continue
        updates: dict[tuple[int, int], object] = {}
        for place, block in enumerate(content or ()):
            text = read(block, "text") if kind(block) == "text" else None
            if not isinstance(text, str):
                continue
            placeholder = placeholders.get(lookup_key("", text))
            if placeholder is not None:
                updates[0, place] = placeholder
        if updates:
            edited = edited or list(messages)
            [edited[index]] = rewrite([message], updates, key="text")
    return edited or messages


def contains_excerpt(stored: str, text: str, start: int, end: int) -> bool:
    """Return True if *stored* contains ``text[start:end]``, unchanged or with numbered lines.

    Returns False if either text has more than `MOST_COMPARED` characters: comparing them would
    block the interpreter for too long.
    """
    if max(len(stored), len(text)) > MOST_COMPARED:
        return False
    if text[start:end] in stored:
        return True
    # Compare whole lines: a tool that shows a file may have added line numbers.
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    part = text[first:] if last < 0 else text[first:last]
    lines = [line.rstrip() for line in _lines(part)]
    stored_lines = _frame(line.rstrip() for line in _lines(stored))
    if _frame(lines) in stored_lines:
        return True
    return _frame([GUTTER.sub("", line) for line in lines]) in stored_lines


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of *text* as `str.splitlines` does.

    Works in steps, since one call for a long text would block the interpreter.
    """
    start = 0
    while start < len(text):
        line_break = text.find("\n", start + _STEP_CHARS)
        end = line_break + 1 if line_break >= 0 else len(text)
        yield from text[start:end].splitlines()
        start = end


def _frame(lines: Iterable[str]) -> str:
    """Return *lines*, each between line breaks, so that a search finds whole lines only."""
    return "\n" + "".join(f"{line}\n" for line in lines)


def passes(scan: Scan, ratio: Decimal | float) -> bool:
    """Return True if the offloadable characters are at least *ratio* times all characters.

    The ratio is compared without rounding. Without offloadable characters the answer is False.
    """
    if scan.total_chars == 0 or scan.offloadable_chars == 0:
        return False
    return scan.offloadable_chars >= Decimal(str(ratio)) * scan.total_chars


@dataclass(frozen=True, slots=True)
class OffloadRules:
    """The rules for which blocks a stage may offload, before its gate decides whether they leave.

    A result may leave if it has *min_chars* characters or more. *per_tool* overrides that limit by
    tool name (None: never). Results of *exempt_tools* never leave, nor does the result of a call
    that reads an offloaded file back; *file_pattern* matches the path of such a file. The inputs of
    *input_tools* may leave if one of their texts has *min_input_chars* characters or more.
    """

    min_chars: int
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    exempt_tools: AbstractSet[str] = frozenset()
    file_pattern: re.Pattern[str] | None = None
    input_tools: AbstractSet[str] = frozenset()
    min_input_chars: int = 1000

    @property
    def least_chars(self) -> int:
        """The lowest limit of all tools: no shorter result is a candidate."""
        limits = [limit for limit in self.per_tool.values() if limit is not None]
        return max(1, min([self.min_chars, *limits]))

    def result_candidate(
        self, result: ToolResult, call: ToolCall | None
    ) -> OffloadCandidate | None:
        """Return *result* as a candidate; None if it is too short or must stay.

        *call* is the call that it answers, None if there is none.
        """
        candidate = candidate_of(result)
        limit = self._limit_for(call)
        if limit is None or candidate.chars < max(limit, 1):
            return None
        if not self.can_leave(result, call) or self.is_read_back(call):
            return None
        return candidate

    def _limit_for(self, call: ToolCall | None) -> int | None:
        """Return the least characters of a result of *call* that may leave; None if none may."""
        return self.per_tool.get(call.name if call else "", self.min_chars)

    def can_leave(self, result: ToolResult, call: ToolCall | None) -> bool:
        """Return True unless *result* has to stay at any length.

        It stays if a program of the server made its *call*, if its tool is never offloaded, if it
        loads tools, or if it is a placeholder already.
        """
        if call is not None and call.program is not None:
            return False  # the result goes to a program, which would take a placeholder for data
        if self._limit_for(call) is None or is_placeholder(result.content) or holds_tools(result):
            return False
        return placeholder_file(result.tool_use_id, _only_text(result.content)) is None

    def is_read_back(self, call: ToolCall | None) -> bool:
        """Return True if *call* reads an offloaded file back, or its tool is an exempt one."""
        if call is not None and call.name in self.exempt_tools:
            return True
        return self.read_back_path(call) is not None

    def input_candidate(self, call: ToolCall) -> OffloadCandidate | None:
        """Return the input of *call* as a candidate; None if it has no long text or must stay.

        It must stay unless its tool is one of ``input_tools``, and if a program of the server made
        it.
        """
        if call.program is not None or call.name not in self.input_tools:
            return None
        chars = sum(len(text) for text in self.long_texts(call))
        return OffloadCandidate(call, chars) if chars else None

    def long_texts(self, call: ToolCall) -> list[str]:
        """Return the texts in the call's input that are long enough to leave, no placeholders."""
        return [
            text
            for text in strings(call.input)
            if len(text) >= self.min_input_chars and any_reference(text, MAX_PREVIEW_CHARS) is None
        ]

    def read_back_path(self, call: ToolCall | None) -> str | None:
        """Return the path of an offloaded file in the call's input, such as in a shell command.

        Returns None if the input names none.
        """
        if self.file_pattern is None or call is None:
            return None
        for text in strings(call.input):
            for piece in overlapping_pieces(text):
                match = self.file_pattern.search(piece)
                if match:
                    return match[0]
        return None


def holds_tools(result: ToolResult) -> bool:
    """Return True if *result* loads tools, which the model would lose with it."""
    return any(kind(part) == "tool_reference" for part in inner_blocks(result))


def candidate_of(result: ToolResult) -> OffloadCandidate:
    """Return *result* as a candidate, with the characters that its file would have.

    Blocks count as compact JSON; a result without text counts 0.
    """
    if not text_of(result.content):
        return OffloadCandidate(result, 0)
    return OffloadCandidate(result, len(stored_text(result.content, indent=None)))


def index_after_last_reply(messages: Sequence[Message]) -> int:
    """Return the index of the message after the last reply, 0 without a reply.

    The model has not seen the results from there on yet.
    """
    start = len(messages)
    while start and messages[start - 1]["role"] != "assistant":
        start -= 1
    return start


def results_with_calls(
    messages: Sequence[Message], start: int, min_chars: int
) -> Iterator[tuple[ToolResult, ToolCall | None]]:
    """Yield each tool result of *min_chars* or more from message *start* on, and its call."""
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
    """A tool result that was read from an offloaded file, its call, and the path in the call."""

    result: ToolResult
    call: ToolCall
    path: str


def long_read_backs(messages: Sequence[Message], start: int, rules: OffloadRules) -> list[ReadBack]:
    """Return the read-backs from message *start* on that are longer than *rules* allow.

    A result for a program is left out, as it must be whole, and so is one that was shortened
    before.
    """
    max_chars = rules.min_chars
    read_backs: list[ReadBack] = []
    for result, call in results_with_calls(messages, start, max_chars):
        if call is None or call.program is not None:
            continue
        text = text_of(result.content)
        if len(text) <= max_chars:
            continue
        path = rules.read_back_path(call)
        if path is not None and any_reference(text, max_chars) is None:
            read_backs.append(ReadBack(result, call, path))
    return read_backs


def first_batch_placeholder(messages: Sequence[Message]) -> tuple[int, int] | None:
    """Return the place of the first placeholder of batch offloading, or None if there is none.

    The place is (message index, block index) of a tool result, or of a call with such a text in its
    input. The model saw the original text when it wrote what follows. Placeholders of direct
    offloading have other words and are skipped: they replaced a text before the model saw it.
    """
    places: list[tuple[int, int]] = []
    for result in tool_results(messages):
        if is_batch(_only_text(result.content)):
            places.append(result.place)
            break
    for call in tool_calls(messages):
        if any(is_batch(text) for text in strings(call.input)):
            places.append(call.place)
            break
    return min(places, default=None)


def _message_index(candidate: OffloadCandidate) -> int:
    return candidate.item.message


class CandidateIndex:
    """The candidates of one conversation and running sums for the gate.

    It lives from turn to turn, so that a turn costs its new messages only. Call `rewind` when
    earlier messages change.
    """

    __slots__ = ("_candidates", "_sums", "_totals")

    def __init__(self) -> None:
        self._totals = array("I", [0])  # at n: characters of the first n messages
        self._candidates: list[OffloadCandidate] = []
        self._sums = array("I", [0])  # at n: characters of the first n candidates

    @property
    def message_count(self) -> int:
        """Number of messages that the sums include."""
        return len(self._totals) - 1

    def rewind(self, length: int) -> None:
        """Forget all but the first *length* messages."""
        candidate_count = bisect_left(self._candidates, length, key=_message_index)
        del self._totals[length + 1 :]
        del self._candidates[candidate_count:]
        del self._sums[candidate_count + 1 :]

    def extend(self, messages: Sequence[Message], rules: OffloadRules) -> None:
        """Add the sums and candidates of the messages after the first `message_count` ones.

        *messages* is the whole history.
        """
        start = self.message_count
        sizes = [characters(message) + document_characters(message) for message in messages[start:]]
        new_candidates = candidates(messages, start, rules)
        # Nothing can fail from here on: a message added in part would never be completed.
        total = self._totals.pop()
        self._totals.extend(accumulate(sizes, initial=total))
        self._candidates += new_candidates
        chars = self._sums.pop()
        new_chars = [candidate.chars for candidate in new_candidates]
        self._sums.extend(accumulate(new_chars, initial=chars))

    def between(self, start: int, end: int) -> tuple[Scan, Callable[[], list[OffloadCandidate]]]:
        """Return the gate's sums if the candidates from message *start* up to *end* may leave.

        The second value returns these candidates when it is called.
        """
        first = bisect_left(self._candidates, start, key=_message_index)
        stop = bisect_left(self._candidates, end, lo=first, key=_message_index)
        scan = Scan(self._totals[-1], self._sums[stop] - self._sums[first])
        return scan, lambda: self._candidates[first:stop]


def candidates(
    messages: Sequence[Message], start: int, rules: OffloadRules
) -> list[OffloadCandidate]:
    """Return the results and inputs that may leave by *rules*, the oldest first.

    The messages before index *start* are skipped.
    """
    all_candidates: list[OffloadCandidate] = []
    for result, call in results_with_calls(messages, start, rules.least_chars):
        candidate = rules.result_candidate(result, call)
        if candidate is not None:
            all_candidates.append(candidate)
    if rules.input_tools:
        for call in tool_calls(messages, start):
            candidate = rules.input_candidate(call)
            if candidate is not None:
                all_candidates.append(candidate)
    return sorted(all_candidates, key=_message_index)
