"""The vocabulary: Anthropic messages, the questions a stage may ask of them, and the rules they must keep.

A message is a plain dict, compatible with ``anthropic.types.MessageParam``. Its content is text or a list of
blocks; a block is a mapping or a model object of the anthropic SDK (people append ``reply.content`` unchanged).
"""

from __future__ import annotations

import copy
import json
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .errors import InvalidHistory

if TYPE_CHECKING:
    from anthropic.types import MessageParam as Message
else:  # importing anthropic takes seconds; at run time a message is a plain dict
    Message = dict[str, Any]

__all__ = [
    "Block",
    "CacheMarks",
    "Message",
    "Problem",
    "ToolCall",
    "ToolResult",
    "as_blocks",
    "as_dict",
    "blocks",
    "check",
    "common_prefix",
    "compact_json",
    "ensure_messages",
    "field",
    "has_calls",
    "has_results",
    "has_thinking",
    "kind",
    "pending_calls",
    "rewrite",
    "same_at_end",
    "split_system",
    "strings",
    "texts",
    "tool_calls",
    "tool_results",
    "user_texts",
    "without_surrogates",
]

Block: TypeAlias = object
"""A content block: a mapping, or a model object of the anthropic SDK. Read it with `field`."""

THINKING = frozenset({"thinking", "redacted_thinking"})
MEDIA = frozenset({"image", "document"})
SPOKEN = frozenset({"text", "thinking"})  # blocks that hold their text under the name of their type
ROLES = frozenset({"user", "assistant", "system"})
MAX_CACHE_MARKS = 4
SURROGATE = "a lone surrogate"
_MAPPINGS = (dict, Mapping)  # nearly always a dict, which is six times as fast to tell


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool_use block, and where it stands: message and block index."""

    message: int
    block: int
    id: str
    name: str
    input: Mapping[str, object]

    @property
    def place(self) -> tuple[int, int]:
        """Message and block index: the key that `rewrite` takes."""
        return self.message, self.block


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool_result block, and where it stands. *content* is as the message holds it: text, blocks or None."""

    message: int
    block: int
    tool_use_id: str
    content: str | Sequence[Block] | None
    is_error: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """Message and block index: the key that `rewrite` takes."""
        return self.message, self.block


# Reading -----------------------------------------------------------------------------------------------------


def field(block: Block, name: str, default: Any = None) -> Any:
    """Read *name* from a block, be it a mapping or a model object of the SDK."""
    if isinstance(block, _MAPPINGS):
        return block.get(name, default)
    return getattr(block, name, default)


def kind(block: Block) -> str:
    """The block's type, such as "text" or "tool_use"; "" when it has none."""
    name = block.get("type", "") if isinstance(block, dict) else field(block, "type", "")
    return name if isinstance(name, str) else str(name)


def blocks(message: Message) -> Sequence[Block]:
    """The content blocks of *message*; bare text has none."""
    content = message["content"]
    return () if isinstance(content, str) else content  # type: ignore[return-value]  # the SDK's type is an iterable


def as_blocks(message: Message) -> Sequence[Block]:
    """The content of *message* as blocks; bare text is one text block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else blocks(message)


def has_thinking(message: Message) -> bool:
    """Whether *message* carries a thinking block."""
    return any(kind(block) in THINKING for block in blocks(message))


def has_calls(message: Message) -> bool:
    """Whether *message* calls a tool."""
    return any(kind(block) == "tool_use" for block in blocks(message))


def has_results(message: Message) -> bool:
    """Whether *message* holds the result of a tool call."""
    return any(kind(block) == "tool_result" for block in blocks(message))


def texts(message: Message) -> Iterator[str]:
    """The texts that *message* says: bare text, or its text blocks."""
    content = message["content"]
    if isinstance(content, str):
        yield content
        return
    for block in blocks(message):
        if kind(block) == "text":
            yield field(block, "text") or ""


def user_texts(messages: Sequence[Message]) -> Iterator[tuple[int, str]]:
    """What the user wrote, with the index of the message: never the text of a tool result."""
    for index, message in enumerate(messages):
        if message["role"] == "user":
            for text in texts(message):
                if text and not text.isspace():
                    yield index, text


def tool_calls(messages: Sequence[Message], start: int = 0, stop: int | None = None) -> Iterator[ToolCall]:
    """Every tool call of the messages from *start* up to *stop*, oldest first."""
    for index in range(start, len(messages) if stop is None else stop):
        if messages[index]["role"] != "assistant":
            continue
        for place, block in enumerate(blocks(messages[index])):
            if kind(block) == "tool_use":
                call_input = field(block, "input")
                yield ToolCall(
                    index,
                    place,
                    str(field(block, "id", "")),
                    str(field(block, "name", "")),
                    call_input if isinstance(call_input, Mapping) else {},
                )


def tool_results(messages: Sequence[Message], start: int = 0, stop: int | None = None) -> Iterator[ToolResult]:
    """Every tool result of the messages from *start* up to *stop*, oldest first."""
    for index in range(start, len(messages) if stop is None else stop):
        if messages[index]["role"] != "user":
            continue
        for place, block in enumerate(blocks(messages[index])):
            if kind(block) == "tool_result":
                yield ToolResult(
                    index,
                    place,
                    str(field(block, "tool_use_id", "")),
                    field(block, "content"),
                    bool(field(block, "is_error", False)),
                )


def pending_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls of the last message that still wait for their results."""
    return list(tool_calls(messages, max(0, len(messages) - 1)))


def strings(value: object) -> Iterator[str]:
    """Every string inside a message, a block or the input of a call; the keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)
    elif hasattr(value, "model_dump"):
        yield from strings(as_dict(value))


def split_system(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """The head (leading system messages) and everything after it. Source: CR-1, CR-2, A-29."""
    body = _head_length(messages)
    return list(messages[:body]), list(messages[body:])


def _head_length(messages: Sequence[Message]) -> int:
    return next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))


def as_dict(block: Block) -> dict[str, Any]:
    """A plain, shallow dict of *block*; a model object of the SDK as it would be sent."""
    if isinstance(block, Mapping):
        return dict(block)
    dump = getattr(block, "model_dump", None)
    if dump is None:
        raise InvalidHistory(f"a content block is {type(block).__name__}, neither a mapping nor an SDK object")
    return cast("dict[str, Any]", dump(mode="json", exclude_unset=True, by_alias=True))


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=as_dict)


def compact_json(value: object) -> str:
    """*value* as JSON without spaces, non-ASCII as it is, key order kept. Source: A-04."""
    return _ENCODER.encode(value)


def common_prefix(before: Sequence[Message], after: Sequence[Message]) -> int:
    """How many leading messages are equal. Whole slices compare in C, about 10 ns a message for the same objects."""
    low, high = 0, min(len(before), len(after))
    if before[:high] == after[:high]:
        return high
    while low < high - 1:  # the first `low` are equal, the first `high` are not
        middle = (low + high) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle
    return low


def same_at_end(before: Sequence[Message], after: Sequence[Message], most: int) -> int:
    """How many of the last messages, at most *most*, are the very same objects."""
    same = 0
    while same < most and before[-1 - same] is after[-1 - same]:
        same += 1
    return same


# Rewriting ---------------------------------------------------------------------------------------------------


def rewrite(
    messages: Sequence[Message], updates: Mapping[tuple[int, int], object], *, key: str = "content"
) -> list[Message]:
    """A copy of *messages* with new values under *key* in the blocks at the given places (message, block).

    Only that key of those blocks changes; is_error, cache_control and unknown keys stay (A-16). Changed messages are
    deep copies, all others the same objects as before (BO-4).
    """
    edited = list(messages)
    for index in {place[0] for place in updates}:
        message = messages[index]
        content = [
            _with(block, key, updates[index, place]) if (index, place) in updates else copy.deepcopy(block)
            for place, block in enumerate(blocks(message))
        ]
        edited[index] = cast("Message", _with(message, "content", content))
    return edited


def _with(block: Block, key: str, value: object) -> dict[str, Any]:
    """A deep copy of *block* with another *value* under *key*, in the same order: equal bytes stay equal."""
    plain = as_dict(block)
    return {name: value if name == key else copy.deepcopy(held) for name, held in plain.items()} | {key: value}


# Rules -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule of the Messages API that message *index* breaks."""

    index: int
    text: str

    def __str__(self) -> str:
        return f"message {self.index}: {self.text}"


def ensure_messages(messages: object, start: int = 0) -> None:
    """Raise InvalidHistory, naming the index, unless *messages* from *start* on have the shape of messages."""
    if not isinstance(messages, list):
        raise InvalidHistory(f"a history is a list of messages, not {type(messages).__name__}")
    for index in range(start, len(messages)):
        _ensure_message(index, messages[index])


def _ensure_message(index: int, message: object) -> None:
    if not isinstance(message, _MAPPINGS):
        raise InvalidHistory(f"message {index} is {type(message).__name__}, not a mapping with role and content")
    for key in ("role", "content"):
        if key not in message:
            raise InvalidHistory(f"message {index} has no {key}")
    if not isinstance(message["role"], str) or message["role"] not in ROLES:
        raise InvalidHistory(f"message {index} has the role {message['role']!r}, not one of {sorted(ROLES)}")
    content = message["content"]
    if isinstance(content, str):
        return
    if not isinstance(content, list | tuple):
        raise InvalidHistory(f"message {index} has {type(content).__name__} as content, not text or a list of blocks")
    for place, block in enumerate(content):
        fault = _block_fault(block)
        if fault:
            raise InvalidHistory(f"block {place} of message {index} {fault}")


def _block_fault(block: object) -> str:
    """What keeps *block* from being read as a content block, "" when nothing does."""
    if not (isinstance(block, _MAPPINGS) or hasattr(block, "model_dump")):
        return f"is {type(block).__name__}, not a mapping"
    name = kind(block)
    if name in SPOKEN and not isinstance(field(block, name), str | None):
        return f"has {type(field(block, name)).__name__} as {name}, not text"
    content = field(block, "content") if name == "tool_result" else None
    if content is None or isinstance(content, str):
        return ""
    if not isinstance(content, list | tuple):
        return f"is a tool_result with {type(content).__name__} as content, not text or a list of blocks"
    return next((f"holds a block that {fault}" for fault in map(_block_fault, content) if fault), "")


def check(
    messages: Sequence[Message], start: int = 0, *, encoding: bool = True, marks: CacheMarks | None = None
) -> list[Problem]:
    """The rules of the Messages API that *messages* break, from message *start* on; empty when they are sound.

    A call still waiting for its result, in the last message, is no problem; without *encoding* lone surrogates are
    none either (the stages still want to store them as they are). *marks* knows how many cache_control marks there
    are before *start*; without it they are counted only in a check of the whole. Source: promise 2 of the design, R1,
    R8.
    """
    head = _head_length(messages)
    found: list[Problem] = []
    if start <= head < len(messages) and messages[head]["role"] != "user":
        found.append(Problem(head, "the first message is not the user's"))
    for index in range(start, len(messages)):
        if index < head:  # the head stays as it is, as long as it can be sent at all
            found += [Problem(index, SURROGATE)] if encoding and not _is_sound(messages[index]["content"]) else []
            continue
        kinds = [kind(block) for block in blocks(messages[index])]
        problems = _message_problems(messages[index], kinds, encoding) + _pairing_problems(messages, index, kinds)
        if problems:
            found += [Problem(index, text) for text in problems]
    if start and marks is None:
        return found
    return found + (marks or CacheMarks()).problems(messages)


class CacheMarks:
    """The cache_control marks of one conversation, counted from turn to turn at the cost of the new messages."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums = array("L", [0])  # marks in the first n messages

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        del self._sums[known + 1 :]

    def problems(self, messages: Sequence[Message]) -> list[Problem]:
        """The problem of having too many marks, if *messages* have it."""
        if self._extended(messages) > MAX_CACHE_MARKS:
            self.rewind(0)  # marks are often moved in place from turn to turn: only a fresh count can tell
            if self._extended(messages) > MAX_CACHE_MARKS:
                first = bisect_right(self._sums, 0) - 1
                return [Problem(first, f"the first of more than {MAX_CACHE_MARKS} cache_control marks")]
        return []

    def _extended(self, messages: Sequence[Message]) -> int:
        for index in range(len(self._sums) - 1, len(messages)):
            self._sums.append(self._sums[-1] + len(list(cache_marks(messages[index]))))
        return self._sums[-1]


def cache_marks(message: Message) -> Iterator[tuple[int, int | None]]:
    """Where *message* is marked for the cache: the block's index, and the inner one where a tool result holds it."""
    for place, block in enumerate(blocks(message)):
        content = field(block, "content")  # of a tool result
        if isinstance(content, list | tuple):
            yield from ((place, inner) for inner, held in enumerate(content) if field(held, "cache_control"))
        if field(block, "cache_control"):
            yield place, None


def is_blank(text: object) -> bool:
    """Whether a text block with *text* would be refused as empty."""
    return not text or (isinstance(text, str) and text.isspace())


def _message_problems(message: Message, kinds: Sequence[str], encoding: bool) -> list[str]:
    """What is wrong with *message* alone, whose blocks are of these *kinds*."""
    content = message["content"]
    if not content or (isinstance(content, str) and is_blank(content)):
        return ["it is empty"]
    if isinstance(content, str):
        return [] if not encoding or is_encodable(content) else [SURROGATE]
    problems = _order_problems(message["role"], kinds)
    for name, block in zip(kinds, blocks(message), strict=True):
        if name == "text" and is_blank(field(block, "text")):
            problems.append("an empty text block")
        if encoding and name not in THINKING and not _is_sound(block):
            problems.append(SURROGATE)
    return problems


def _order_problems(role: str, kinds: Sequence[str]) -> list[str]:
    problems = []
    if role != "assistant" and "tool_use" in kinds:
        problems.append(f"a tool_use in a {role} message")
    if role != "user" and "tool_result" in kinds:
        problems.append(f"a tool_result in a {role} message")
    if any(name != "tool_result" for name in kinds[: kinds.count("tool_result")]):
        problems.append("a tool_result after another block")
    if role == "assistant" and kinds[-1] in THINKING:
        problems.append("it ends in a thinking block")
    if role != "assistant" and not THINKING.isdisjoint(kinds):
        problems.append(f"a thinking block in a {role} message")
    return problems


def _pairing_problems(messages: Sequence[Message], index: int, kinds: Sequence[str]) -> list[str]:
    """Which calls and results of message *index*, whose blocks are of these *kinds*, are without the other half."""
    problems = []
    if "tool_use" in kinds and index + 1 < len(messages):
        calls = _ids(messages[index], "tool_use", "id")
        if len(calls) > 1 and len(set(calls)) < len(calls):
            problems += [f"the id {name!r} for more than one tool_use" for name in _more(calls, list(set(calls)))]
        unanswered = _more(calls, _ids(messages[index + 1], *_RESULT))
        problems += [f"the tool_use {name!r} has no tool_result in the next message" for name in unanswered]
    if "tool_result" in kinds:
        before = _ids(messages[index - 1], "tool_use", "id") if index else []
        orphans = _more(_ids(messages[index], *_RESULT), before)
        problems += [f"the tool_result {name!r} has no tool_use in the message before" for name in orphans]
    return problems


_RESULT = ("tool_result", "tool_use_id")


def _ids(message: Message, block_kind: str, name: str) -> list[str]:
    return [str(field(block, name, "")) for block in blocks(message) if kind(block) == block_kind]


def _more(ours: Sequence[str], theirs: Sequence[str]) -> Iterable[str]:
    """The ids that are in *ours* more often than in *theirs*."""
    return () if ours == theirs else Counter(ours) - Counter(theirs)


def is_encodable(text: str) -> bool:
    """Whether *text* can be sent as UTF-8: it holds no lone surrogate."""
    if text.isascii():  # constant time for the common case
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_surrogates(text: str) -> str:
    """*text* with each lone surrogate replaced by U+FFFD, since the client library refuses to send one (A-15)."""
    return text if is_encodable(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_sound(value: object) -> bool:
    """Whether every string inside *value* can be encoded."""
    if isinstance(value, str):
        return is_encodable(value)
    if isinstance(value, _MAPPINGS):
        return _are_sound(value) and _are_sound(value.values())
    if isinstance(value, list | tuple):
        return _are_sound(value)
    # An SDK model keeps its fields in the one, and those that it does not know in the other.
    return all(_is_sound(getattr(value, name, None) or {}) for name in ("__dict__", "__pydantic_extra__"))


def _are_sound(values: Iterable[object]) -> bool:
    # Nearly all are plain ASCII: a call for each would cost more than all other rules together.
    for value in values:  # noqa: SIM110  a generator costs as much again
        if not (isinstance(value, str) and value.isascii()) and not _is_sound(value):
            return False
    return True
