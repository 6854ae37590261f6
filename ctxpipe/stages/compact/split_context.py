"""The context of a turn, as a compaction divides it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ...messages import Message, has_thinking
from ...messages.vocabulary import head_length
from ..protocol import Turn
from ..reading.unanswered import open_tail


class SplitContext:
    """The parts of the context of *turn*; each is found once, when it is first needed.

    head | rest: answered messages | unanswered messages
    """

    def __init__(self, turn: Turn) -> None:
        self._messages = turn.messages
        self._protected_count = turn.protected

    @cached_property
    def head(self) -> list[Message]:
        """The system messages at the beginning."""
        return list(self._messages[: head_length(self._messages)])

    @cached_property
    def rest(self) -> list[Message]:
        """The messages after the head."""
        return list(self._messages[len(self.head) :])

    @cached_property
    def tail(self) -> int:
        """The index in *rest* of the first message that the model has not answered."""
        return open_tail(self.rest)

    def has_protected_thinking(self, start: int) -> bool:
        """Return True if a message of *rest* from *start* on has thinking that binds those before.

        Its signature covers their text, so they must not be rewritten.
        """
        unanswered: Sequence[Message] = self.rest[start:]
        return self._protected_count > 0 and any(has_thinking(message) for message in unanswered)
