"""What fills a context: tokens by kind and by tool, and the largest blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import nlargest
from typing import Any

from ..edits.offload import is_placeholder
from ..messages import Message, blocks, field, kind, result_text, tool_calls, tool_results
from ..tokens import TokenCounter
from ..words import count_phrase, one_line
from .transcripts import Transcript

__all__ = [
    "Block",
    "Contents",
    "contents",
    "largest_blocks",
    "tokens_by_kind",
    "tokens_by_tool",
    "total_contents",
]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a context: where it is, what it is, its tokens and how it begins.

    *file* is the name of the conversation, where that is known.
    """

    message: int
    what: str
    tokens: int
    begins: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """What fills one conversation, or several together.

    *kinds* are the raw tokens by the kind of block, *tools* each tool's name, calls and tokens, the
    largest first. *format* is "" for several.
    """

    format: str
    messages: int
    calls: int
    repaired: int
    kinds: dict[str, int]
    tools: list[tuple[str, int, int]]
    largest: list[Block]

    @property
    def tokens(self) -> int:
        """All of its raw tokens."""
        return sum(self.kinds.values())

    def as_json(self) -> dict[str, Any]:
        """The same by name; a block begins with one line of its text."""
        blocks = [{**asdict(block), "begins": one_line(block.begins)} for block in self.largest]
        return {**asdict(self), "tokens": self.tokens, "largest": blocks}

    def __str__(self) -> str:
        parts = [
            self.format,
            count_phrase(self.messages, "message"),
            count_phrase(self.calls, "call"),
            count_phrase(self.tokens, "token"),
        ]
        if self.repaired:
            parts.append(f"{count_phrase(self.repaired, 'fault')} repaired")
        return ", ".join(filter(None, parts))


def contents(transcript: Transcript, counter: TokenCounter, most: int) -> Contents:
    """What fills *transcript*, with its *most* largest blocks."""
    messages = transcript.messages
    kinds = tokens_by_kind(messages, counter)
    return Contents(
        format=transcript.format,
        messages=len(messages),
        calls=transcript.calls,
        repaired=len(transcript.repaired),
        kinds=dict(kinds.most_common()),
        tools=tokens_by_tool(messages, counter),
        largest=[
            replace(block, file=transcript.name)
            for block in largest_blocks(messages, counter, most)
        ],
    )


def total_contents(all_contents: Iterable[Contents], most: int) -> Contents:
    """*all_contents* together, with the *most* largest blocks of all."""
    known = list(all_contents)
    kinds: Counter[str] = Counter()
    tools: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    blocks: list[Block] = []
    for one in known:
        kinds.update(one.kinds)
        for name, count, tokens in one.tools:
            calls[name] += count
            tools[name] += tokens
        blocks += one.largest
    return Contents(
        format="",
        messages=sum(one.messages for one in known),
        calls=sum(one.calls for one in known),
        repaired=sum(one.repaired for one in known),
        kinds=dict(kinds.most_common()),
        tools=[(name, calls[name], tokens) for name, tokens in tools.most_common()],
        largest=_largest(blocks, most),
    )


def tokens_by_kind(messages: Sequence[Message], counter: TokenCounter) -> Counter[str]:
    """Raw tokens by the kind of block that holds them."""
    tokens: Counter[str] = Counter()
    for message in messages:
        if isinstance(message["content"], str):
            tokens[f"{message['role']} text"] += counter.message(message)
        for block in blocks(message):
            tokens[_what(message, block)] += counter.block(block)
    return tokens


def _what(message: Message, block: object) -> str:
    name = kind(block)
    if name == "tool_result" and is_placeholder(field(block, "content")):
        return "placeholder"
    if name == "text":
        return f"{message['role']} text"
    return name.replace("_", " ")


def tokens_by_tool(
    messages: Sequence[Message],
    counter: TokenCounter,
) -> list[tuple[str, int, int]]:
    """For each tool its name, its calls, and the raw tokens of their inputs and results.

    The largest first.
    """
    names = _tool_names(messages)
    calls: Counter[str] = Counter(names.values())
    tokens: Counter[str] = Counter()
    for message in messages:
        for block in blocks(message):
            if kind(block) == "tool_use":
                name = str(field(block, "name"))
                tokens[name] += counter.block(block)
            elif kind(block) == "tool_result":
                name = names.get(str(field(block, "tool_use_id")), "?")
                tokens[name] += counter.block(block)
    return [(name, calls[name], amount) for name, amount in tokens.most_common()]


def _tool_names(messages: Sequence[Message]) -> dict[str, str]:
    return {call.id: call.name for call in tool_calls(messages)}


def largest_blocks(
    messages: Sequence[Message],
    counter: TokenCounter,
    most: int,
) -> list[Block]:
    """The *most* largest blocks, by raw tokens."""
    names = _tool_names(messages)
    tools = {}
    for result in tool_results(messages):
        tools[result.place] = names.get(result.tool_use_id, "?")
    found = []
    for index, message in enumerate(messages):
        content = message["content"]
        if isinstance(content, str):
            what = f"{message['role']} text"
            tokens = counter.message(message)
            found.append(Block(index, what, tokens, content))
        for place, block in enumerate(blocks(message)):
            tool = tools.get((index, place))
            if kind(block) == "tool_use":
                tool = field(block, "name")
            what = _what(message, block)
            if tool:
                what = f"{what} of {tool}"
            tokens = counter.block(block)
            found.append(Block(index, what, tokens, _beginning(block)))
    return _largest(found, most)


def _largest(blocks: Iterable[Block], most: int) -> list[Block]:
    return nlargest(most, blocks, key=lambda block: block.tokens)


def _beginning(block: object) -> str:
    if kind(block) == "tool_result":
        return result_text(block)
    for name in ("text", "thinking", "input"):
        value = field(block, name)
        if value:
            return str(value)
    return ""
