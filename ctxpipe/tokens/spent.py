"""The tokens of a context by the kind of its blocks, with names for a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, cast

from .._text import one_line
from ..messages import (
    THINKING,
    Block,
    Message,
    ToolCall,
    as_blocks,
    block_text,
    compact_json,
    kind,
    result_text,
    strings,
    tool_calls,
)
from ..messages import field as field_of
from ..placeholders.notes import note_of
from ..placeholders.placeholders import any_reference
from ..placeholders.summaries import RESTORED, SUMMARY
from .counter import TokenCounter

Kind: TypeAlias = Literal[
    "system",
    "tools",
    "user",
    "assistant",
    "thinking",
    "calls",
    "results",
    "placeholders",
    "files",
    "summary",
    "carried",
]
"""A kind of content that tokens of a context are spent on."""

KINDS: Mapping[Kind, str] = {
    "system": "system prompt",
    "tools": "tool definitions",
    "user": "user text",
    "assistant": "assistant text",
    "thinking": "thinking",
    "calls": "tool calls",
    "results": "tool results",
    "placeholders": "placeholders",
    "files": "restored files",
    "summary": "summaries and notes",
}
"""Each kind's name for a reader, from the bottom of the stack to its top."""

CARRIED: Kind = "carried"
"""Kind of messages that a compaction has carried over from the part that it summarized. Only their
place in the context tells them from new ones, so a piece by itself never has this kind."""

LABEL_CHARS = 48
"""The maximum number of characters of a text in the name of its block."""

Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A block with a name for a reader.

    *tool* is the name of the tool if the block is a call or a result. The *key* does not change
    when the block is replaced by a placeholder.
    """

    key: Key
    kind: Kind
    name: str
    text: str
    tokens: int
    tool: str = ""


class Pieces:
    """The pieces of messages, each computed once. Their tokens are raw counts."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._calls: dict[str, tuple[str, str]] = {}  # label and tool by the id of a call
        self._pieces_by_id: dict[int, tuple[Message, list[Piece]]] = {}  # by the message's identity

    def learn(self, message: Message) -> None:
        """Record the names of the calls in *message*, which also name their results."""
        for call in tool_calls([message]):
            self._calls[call.id] = (_call_label(call), call.name)

    def of(self, message: Message) -> list[Piece]:
        """Return the pieces of *message*, which must not change any more."""
        if id(message) not in self._pieces_by_id:
            # The message is stored, too: as long as it exists, no other one has its identity.
            role = message["role"]
            pieces = [self._block(role, block) for block in as_blocks(message)]
            self._pieces_by_id[id(message)] = (message, pieces)
        return self._pieces_by_id[id(message)][1]

    def _block(self, role: str, block: Block) -> Piece:
        """Return the piece of *block*, which belongs to a message with this *role*."""
        name = kind(block)
        tokens = self._counter.block(block)
        if name == "text":
            return _text(role, str(field_of(block, "text") or ""), tokens)
        if name in _ID_KEYS:
            return self._call_or_result(block, name, tokens)
        label = f"{role}: {name}"
        if name in THINKING:
            text = str(field_of(block, "thinking", ""))
            return Piece((name, text), "thinking", label, text, tokens)
        content = block_text(block)
        if content is not None:
            return Piece((name, content), cast("Kind", role), label, content, tokens)
        # A block without text can be distinguished only by its identity.
        text = f"[{name}]"
        return Piece((name, f"{text}{id(block)}"), cast("Kind", role), label, text, tokens)

    def _call_or_result(self, block: Block, name: str, tokens: int) -> Piece:
        """Return the piece of *block*, a tool_use or tool_result as *name* says."""
        call_id = str(field_of(block, _ID_KEYS[name]))
        call_label, tool = self._calls.get(call_id, ("a tool", "a tool"))
        if name == "tool_use":
            text = compact_json(field_of(block, "input", {}))
            return Piece(("call", call_id), "calls", f"call of {call_label}", text, tokens, tool)
        result_kind: Kind = "results"
        if any_reference(field_of(block, "content")) is not None:
            result_kind = "placeholders"
        text = result_text(block)
        return Piece(
            ("result", call_id), result_kind, f"result of {call_label}", text, tokens, tool
        )


_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}


def _text(role: str, text: str, tokens: int) -> Piece:
    """Return the piece of a text block; one that ctxpipe wrote has the kind "summary"."""
    text_kind = cast("Kind", role)
    message = cast("Message", {"role": role, "content": text})
    if role == "user" and text.startswith(RESTORED):
        text_kind = "files"
    elif role == "user" and (text.startswith(SUMMARY) or note_of(message)):
        text_kind = "summary"
    name = f"{role}: {one_line(text, LABEL_CHARS)}"
    return Piece(("text", text), text_kind, name, text, tokens)


def _call_label(call: ToolCall) -> str:
    """Return the name of the tool, and the beginning or end of the first text in its input."""
    argument = next((text for text in strings(call.input) if text.strip()), "")
    if not argument:
        return call.name
    if " " in argument:
        return f"{call.name}: {one_line(argument, LABEL_CHARS)}"
    # Paths differ at their ends.
    return f"{call.name}: {_end(argument)}"


def _end(text: str) -> str:
    """Return *text*, or "…" and its last characters if it is longer than `LABEL_CHARS`.

    A path is cut between two of its segments if possible.
    """
    if len(text) <= LABEL_CHARS:
        return text
    end = text[-LABEL_CHARS:]
    slash = end.find("/")
    if 0 <= slash < LABEL_CHARS // 2:
        end = end[slash:]
    return f"…{end}"


class TokensByKind:
    """Function of no arguments: raw tokens of a request by kind, computed at the first call.

    The messages at the indices *carried* have the kind "carried", whatever is in them. Kinds that
    the request lacks are missing. A pickled object has the numbers only.
    """

    __slots__ = ("_carried", "_counter", "_messages", "_system", "_tools", "_totals")

    def __init__(
        self,
        counter: TokenCounter,
        messages: Sequence[Message],
        system: object,
        tools: Iterable[object] | None,
        carried: range = range(0),
    ) -> None:
        self._counter = counter
        self._messages = messages
        self._carried = carried
        self._system = system
        self._tools = tools
        self._totals: dict[Kind, int] | None = None

    def __call__(self) -> dict[Kind, int]:
        """Return the tokens by kind."""
        if self._totals is None:
            self._totals = self._count()
        return dict(self._totals)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to create a function that returns the same numbers."""
        return partial, (dict, self())

    def _count(self) -> dict[Kind, int]:
        pieces = Pieces(self._counter)
        totals: Counter[Kind] = Counter()
        totals["system"] = self._counter.total([], system=self._system)
        totals["tools"] = self._counter.total([], tools=self._tools)
        for index, message in enumerate(self._messages):
            is_carried = index in self._carried
            for piece in pieces.of(message):
                totals[CARRIED if is_carried else piece.kind] += piece.tokens
        return {kind: totals[kind] for kind in (*KINDS, CARRIED) if totals[kind]}
