"""Messages put together from the entries of a session file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

from ..._values import JsonDict, JsonObject
from ...messages import Message, as_blocks, blocks, kind
from ..records import RecordedMessage, seconds


class RecordedConversation:
    """The messages of a conversation, in the order in which they were added.

    The results of one reply are one message, and so are texts of the user that follow each other.
    """

    def __init__(self) -> None:
        self.entries: list[RecordedMessage] = []

    def add_user(self, content: Iterable[JsonDict], time: object) -> None:
        """Add *content* of the user, if there is any."""
        self._add("user", list(content), seconds(time))

    def add_result(self, block: JsonDict, time: object) -> None:
        """Add the tool result *block* to the results of the last reply."""
        self._add("user", [block], seconds(time))

    def add_reply(
        self, content: Iterable[JsonDict], time: object, usage: JsonObject | None, model: str
    ) -> bool:
        """Add a reply with its *usage* and *model*; return False if it has no *content*."""
        message_blocks = list(content)
        if not message_blocks:
            return False
        message = _message("assistant", message_blocks)
        self.entries.append(RecordedMessage(message, seconds(time), usage, model))
        return True

    def _add(self, role: str, content: Sequence[JsonDict], time: float | None) -> None:
        if not content:
            return
        last = self.entries[-1] if self.entries else None
        if last is None or last.message["role"] != role:
            self.entries.append(RecordedMessage(_message(role, content), time))
            return
        joined = [*as_blocks(last.message), *content]
        joined.sort(key=lambda block: kind(block) != "tool_result")
        self.entries[-1] = replace(last, message=_message(role, joined))


def is_results(message: Message) -> bool:
    """Return True if *message* has blocks, and all of them are tool results."""
    content = blocks(message)
    return bool(content) and all(kind(block) == "tool_result" for block in content)


def _message(role: str, content: Sequence[object]) -> Message:
    return cast("Message", {"role": role, "content": list(content)})
