"""Find the tool calls that are removed with their results, and the file views that stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ...messages import (
    THINKING,
    Message,
    blocks,
    kind,
    result_text,
    tool_calls,
    tool_results,
    with_content,
)
from ...messages import field as read
from ...placeholders.placeholders import MAX_PREVIEW_CHARS, any_reference, is_folded
from ...providers.agent_tools import READING_TOOLS, ReadingTools
from ..reading.results import is_text
from ..reading.views import viewed_path
from .parts import EditableRegion, Part, fits, without_moving_thinking

_MAX_FOLDED_CHARS = 50_000  # a longer text is not taken for a folded file


@dataclass(frozen=True, slots=True)
class FileView:
    """The result of a call that looked at a file.

    *place* is its message and block index, *text* what the model saw; "" if it was not only text.
    """

    place: tuple[int, int]
    path: str
    text: str

    @property
    def is_foldable(self) -> bool:
        """True if the text is a file's text that has not been offloaded or folded yet."""
        if not self.text or any_reference(self.text, MAX_PREVIEW_CHARS) is not None:
            return False
        return len(self.text) > _MAX_FOLDED_CHARS or not is_folded(self.text)


def file_views(
    messages: Sequence[Message], tools: ReadingTools = READING_TOOLS, shell: bool = False
) -> list[FileView]:
    """Return every file view that has a result, oldest first.

    The result for a program is no view: the model has not seen it.
    """
    paths: dict[tuple[int, str], str] = {}
    for call in tool_calls(messages):
        if call.program is None:
            path = viewed_path(call, tools, shell)
            if path is not None:
                paths[call.message + 1, call.id] = path
    views: list[FileView] = []
    for result in tool_results(messages):
        path = paths.get((result.message, result.tool_use_id))
        if path is not None:
            text = result_text(result) if is_text(result.content) else ""
            views.append(FileView(result.place, path, text))
    return views


def filter_calls(
    messages: Sequence[Message], region: EditableRegion, views: AbstractSet[tuple[int, int]]
) -> tuple[list[Part], int]:
    """Remove each tool call in the middle with its result, except file views.

    *views* are the places of the results of file views. All text stays. Thinking is removed with
    its call if nothing else is left of the message, or if a join would move it. A call stays if its
    removal would change a message that must stay, or move thinking that may not move. Returns what
    is left, and the number of calls removed.
    """
    # From the last to the first: whether a call can go depends on what is left after it.
    parts: list[Part] = []
    removed_count = 0
    index = len(messages) - 1
    while index >= 0:
        call_ids = _removable_calls(messages, index - 1, region, views)
        if call_ids:
            rest = _without_calls(messages, index - 1, call_ids)
            neighbors = [*rest, *parts[-1:]]
            if index >= 2:
                neighbors.insert(0, Part(index - 2, messages[index - 2]))
            if fits(neighbors, region):
                parts += reversed(rest)
                removed_count += len(call_ids)
                index -= 2
                continue
        parts.append(Part(index, messages[index]))
        index -= 1
    parts.reverse()
    if removed_count:
        parts = without_moving_thinking(parts)
    return parts, removed_count


def _removable_calls(
    messages: Sequence[Message],
    index: int,
    region: EditableRegion,
    views: AbstractSet[tuple[int, int]],
) -> AbstractSet[str]:
    """Return the ids of the calls of message *index*, without file views and programs' calls.

    Returns none if the message or the one with the results must not be edited.
    """
    for place in (index, index + 1):
        if place not in region.middle or place in region.pinned:
            return frozenset()
    results = tool_results(messages, index + 1, index + 2)
    viewing = {result.tool_use_id for result in results if result.place in views}
    own_calls = {call.id for call in tool_calls(messages, index, index + 1) if call.program is None}
    return own_calls - viewing


def _without_calls(
    messages: Sequence[Message], index: int, call_ids: Collection[str]
) -> list[Part]:
    """Return what is left of the message *index* and of its results without *call_ids*."""
    parts: list[Part] = []
    for place, name, key in ((index, "tool_use", "id"), (index + 1, "tool_result", "tool_use_id")):
        remaining = [
            block
            for block in blocks(messages[place])
            if kind(block) != name or str(read(block, key)) not in call_ids
        ]
        while remaining and kind(remaining[-1]) in THINKING:
            remaining.pop()
        if remaining:
            parts.append(Part(place, with_content(messages[place], remaining)))
    return parts
