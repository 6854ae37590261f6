"""Which lines of what batch offloading moves out stay in sight, in its placeholders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..agent_tools import COMMON_READING_TOOLS
from ..atoms import Atom, atoms, message_texts, path_atom
from ..markers.placeholders import MAX_SHOWN, Excerpt
from ..messages import ToolCall, ToolResult, tool_calls
from .collapse import path_atoms
from .excerpts import Passage, PassageKind, choose_lines
from .offload import text_of
from .views import viewed_path

if TYPE_CHECKING:
    from ..messages import Message
    from .offload import Candidate

__all__ = ["placeholder_excerpts"]


def placeholder_excerpts(
    before: Sequence[Message],
    after: Sequence[Message],
    leaving: Sequence[tuple[Candidate, str]],
    count: Callable[[str], int],
    excerpt: Excerpt,
    keep_recent: int,
) -> list[str]:
    """What follows the placeholder of each text that is *leaving*; "" where no line is worth it.

    *after* is the context *before* with bare placeholders in it: what it shows is not shown again.
    The last *keep_recent* exchanges tell which files are being worked on. *count* gives the tokens
    of a text. The same input, the same lines.
    """
    touched = path_atoms(after[-2 * keep_recent :])
    passages = _passages(before, leaving, touched)
    tokens = sum(count(text) for _, text in leaving)
    chosen = choose_lines(
        passages,
        _visible(after),
        count,
        min_value=excerpt.min_value,
        max_tokens=excerpt.max_share * tokens,
    )
    found: list[str] = []
    for step, (_, text) in enumerate(leaving):
        shown = excerpt.of(chosen.get(step, ()), len(text.splitlines()))
        # A longer one would be taken for a tool's own text.
        found.append(shown if len(shown) <= MAX_SHOWN else "")
    return found


def _visible(messages: Sequence[Message]) -> set[Atom]:
    visible: set[Atom] = set()
    for message in messages:
        for text in message_texts(message):
            visible |= atoms(text)
    return visible


def _passages(
    before: Sequence[Message],
    leaving: Sequence[tuple[Candidate, str]],
    touched: set[Atom],
) -> list[Passage]:
    """What leaves, in the order in which it was said."""
    steps = sorted(enumerate(leaving), key=lambda step: step[1][0].item.place)
    passages: list[Passage] = []
    for step, (candidate, text) in steps:
        item = candidate.item
        if isinstance(item, ToolCall):
            passages.append(Passage(text, "call", step, item.message))
        else:
            passages.append(_result_passage(before, item, step, touched))
    return passages


def _result_passage(
    before: Sequence[Message],
    result: ToolResult,
    step: int,
    touched: set[Atom],
) -> Passage:
    kind: PassageKind = "result"
    is_touched = False
    for call in tool_calls(before, max(0, result.message - 1), result.message):
        if call.id != result.tool_use_id:
            continue
        path = viewed_path(call, COMMON_READING_TOOLS, True)
        if path:
            kind = "view"
            is_touched = path_atom(path) in touched
    return Passage(text_of(result.content), kind, step, result.message, is_touched)
