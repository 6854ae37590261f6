"""A tool by which the model asks for a summary of its context."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..session import Session
from ..words import count_phrase
from .tool import Tool, ToolInputError

if TYPE_CHECKING:
    from anthropic.types import ToolParam

__all__ = ["compaction_tools"]

LEAST_TURNS = 10
"""Between two summaries that the model asks for: each loses detail, and is paid for."""
LEAST_FILL = 0.2
"""Of the budget's trigger: a summary of less saves little."""
FOCUS_CHARS = 2_000

_COMPACT: ToolParam = {
    "name": "compact_context",
    "description": (
        "Have the conversation so far replaced by a summary before your next turn, for example when"
        " a part of the task is done and its details are no longer needed. The raw messages are"
        " kept in files that the summary names."
    ),
    "input_schema": {
        "type": "object",
        "properties": {
            "focus": {
                "type": "string",
                "description": "What the summary should keep, in a sentence or two.",
            },
        },
        "required": ["focus"],
    },
}


def compaction_tools(session: Session) -> list[Tool]:
    """The tool `compact_context` of *session*; none where its pipeline cannot compact."""
    if not session.can_compact:
        return []
    return [Tool(_COMPACT, _Compaction(session).ask)]


@dataclass(slots=True)
class _Compaction:
    session: Session
    asked_at: int | None = None  # the turn before the last summary that was asked for

    async def ask(self, arguments: Mapping[str, object]) -> str:
        focus = arguments.get("focus")
        if not isinstance(focus, str):
            raise ToolInputError("focus is missing; give a text")
        if len(focus) > FOCUS_CHARS:
            raise ToolInputError(f"focus has {len(focus)} characters; give at most {FOCUS_CHARS}")
        refusal = self._refusal()
        if refusal:
            raise ToolInputError(f"the context is not compacted: {refusal}")
        self.session.compact_next(focus.strip())
        self.asked_at = self.session.turns
        return "The conversation so far will be replaced by a summary before your next turn."

    def _refusal(self) -> str:
        """Why not now; "" where nothing is against it."""
        session = self.session
        if session.is_compaction_due:
            return "a summary is due before the next turn already"
        if self.asked_at is not None:
            wait = self.asked_at + LEAST_TURNS - session.turns
            if wait > 0:
                turns = count_phrase(wait, "turn")
                return f"the last summary is not long ago; ask again in {turns}"
        if session.fill < LEAST_FILL:
            return (
                f"it fills {session.fill:.0%} of its budget, and below {LEAST_FILL:.0%} a summary"
                " would save little"
            )
        return ""
