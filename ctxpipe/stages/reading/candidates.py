"""Find the tool results and call inputs that may be moved to files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from ..._threads.pieces import overlapping_pieces
from ...messages import Message, ToolCall, ToolResult, strings, tool_calls, tool_results
from ...placeholders.placeholders import MAX_PREVIEW_CHARS, any_reference
from .pins import Pin
from .results import holds_tools, is_placeholder, only_text, placeholder_file, stored_text, text_of
from .what_applies import governs


@dataclass(frozen=True, slots=True)
class OffloadCandidate:
    """A tool result, or the input of a tool call, that may leave the context.

    *item* is the result, or the call with the input. *chars* is the number of characters that would
    leave.
    """

    item: ToolResult | ToolCall
    chars: int


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
    pin: Pin | None = None

    @property
    def least_chars(self) -> int:
        """The lowest limit of all tools: no shorter result is a candidate."""
        limits = [limit for limit in self.per_tool.values() if limit is not None]
        return max(1, min([self.min_chars, *limits]))

    def is_candidate(self, result: ToolResult, call: ToolCall | None, chars: int) -> bool:
        """Return True if *result* may leave, of which *chars* characters would go to a file.

        *call* is the call that it answers, None if there is none.
        """
        limit = self._limit_for(call)
        if limit is None or chars < max(limit, 1):
            return False
        return self.can_leave(result, call) and not self.stays_if_it_fits(result, call)

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
        return placeholder_file(result.tool_use_id, only_text(result.content)) is None

    def stays_if_it_fits(self, result: ToolResult, call: ToolCall | None) -> bool:
        """Return True if *result* stays at any length, as long as the context window holds it.

        It does if it governs the agent, such as a skill, unless ``per_tool`` has a limit for its
        tool. It also does if *call* reads an offloaded file back, or its tool is an exempt one.
        """
        if call is None:
            return False
        if call.name in self.exempt_tools or self.read_back_path(call) is not None:
            return True
        return call.name not in self.per_tool and governs(call, text_of(result.content))

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


def file_chars(result: ToolResult) -> int:
    """Return the number of characters that the file of *result* would have.

    Blocks count as compact JSON; a result without text counts 0.
    """
    if not text_of(result.content):
        return 0
    return len(stored_text(result.content, indent=None))


class LongResult(NamedTuple):
    """A tool result, the call that it answers, and the characters that its file would have."""

    result: ToolResult
    call: ToolCall | None
    chars: int


def long_results(messages: Sequence[Message], start: int, min_chars: int) -> Iterator[LongResult]:
    """Yield each tool result of *min_chars* or more from message *start* on."""
    calls: dict[str, ToolCall] = {}
    index = -1
    for result in tool_results(messages, start):
        chars = file_chars(result)
        if chars < min_chars:
            continue  # most results are short: their calls need not be looked up
        if result.message != index:
            index = result.message
            calls = {call.id: call for call in tool_calls(messages, max(0, index - 1), index)}
        yield LongResult(result, calls.get(result.tool_use_id), chars)
