"""Rollouts of codex, the files below ``~/.codex/sessions``.

They hold the items of OpenAI's responses API, one to a line, and much beside the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..messages import kind
from ..wire import ResponsesCodec
from .foreign import Items
from .openai_responses import valid_item
from .records import Record, Recording

LINES = frozenset({"compacted", "event_msg", "response_item", "session_meta", "turn_context"})
NEVER_SENT = frozenset({"ghost_snapshot"})
COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})


def is_rollout_line(value: Mapping[str, Any]) -> bool:
    """Whether *value* is a line of a rollout."""
    return kind(value) in LINES and isinstance(value.get("payload"), Mapping)


def read(records: Iterable[Record]) -> Recording:
    """The conversation as the user saw it, and what was left out of it, by kind.

    Left out are the summaries of compactions (the file has what they summarize), turns that the
    user took back, and records that are no messages. Raises InvalidHistory for an item that is
    none, naming its record.
    """
    rollout = _Rollout()
    for record in records:
        rollout.add(record)
    return rollout.recording()


class _Rollout:
    """What the lines up to now have told."""

    def __init__(self) -> None:
        self._codec = ResponsesCodec()
        self._items = Items(self._codec)
        self._instructions = ""
        self._model = ""
        self._turns: list[int] = []  # the items with which the user began them
        self._dropped: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        """Read the line *record*."""
        line = record.fields
        payload = line.get("payload")
        if not isinstance(payload, Mapping):
            payload = {}
        match line.get("type"):
            case "response_item" if kind(payload) in COMPACTIONS:
                self._dropped["summary of a compaction"] += 1
                return
            case "response_item" if kind(payload) not in NEVER_SENT:
                self._items.add(valid_item(payload, record.place), line.get("timestamp"))
                return
            case "session_meta":
                self._start(payload)
            case "turn_context":
                self._model = str(payload.get("model") or self._model)
            case "compacted":
                self._drop_summary(payload)
            case "token_usage_record":
                self._bill(payload.get("usage"))
            case "event_msg":
                self._note(payload)
        self._dropped["not a message"] += 1

    def recording(self) -> Recording:
        """All that was read."""
        request = {"model": self._model, "instructions": self._instructions}
        return self._items.recording("codex rollout", request, self._dropped)

    def _start(self, session: Mapping[str, Any]) -> None:
        # A fork has its own line first, and then those of the session that it is from.
        instructions = session.get("base_instructions")
        if isinstance(instructions, Mapping) and not self._instructions:
            self._instructions = str(instructions.get("text") or "")

    def _note(self, event: Mapping[str, Any]) -> None:
        item = event.get("item")
        match event.get("type"):
            case "user_message":
                self._begin_turn()
            case "item_completed" if kind(item) == "UserMessage":
                self._begin_turn()
            case "thread_rolled_back":
                self._take_back(event.get("num_turns"))
            case "token_count":
                info = event.get("info")
                if isinstance(info, Mapping):
                    self._bill(info.get("last_token_usage"))

    def _begin_turn(self) -> None:
        """Note where the user's message is, which comes before the event that tells of it."""
        last = self._last("user")
        if last is not None and last not in self._turns:
            self._turns.append(last)

    def _take_back(self, turns: object) -> None:
        if not isinstance(turns, int) or turns < 1 or not self._turns:
            return
        start = self._turns[-turns:][0]
        self._dropped["taken back by the user"] += len(self._items.items) - start
        self._items.cut(start)
        del self._turns[-turns:]

    def _drop_summary(self, compaction: Mapping[str, Any]) -> None:
        """Drop the reply that is the summary; the file also has it as the message of *compaction*.

        The reply comes last, with its reasoning before it.
        """
        last = self._last("assistant")
        if last is None or last + 1 != len(self._items.items):
            return
        said = self._codec.read(self._items.items[last]).blocks[0].get("text")
        if not said or said not in str(compaction.get("message") or ""):
            return
        start = last
        while start and kind(self._items.items[start - 1]) == "reasoning":
            start -= 1
        self._dropped["summary of a compaction"] += last + 1 - start
        self._items.cut(start)

    def _bill(self, usage: object) -> None:
        """Note *usage* for the newest reply; it is told more than once."""
        last = self._last("assistant")
        if last is not None and last not in self._items.usages:
            self._items.bill(last, _usage(usage), self._model)

    def _last(self, side: str) -> int | None:
        """The index of the newest item of *side*."""
        items: Sequence[Mapping[str, Any]] = self._items.items
        for index in reversed(range(len(items))):
            if self._codec.read(items[index]).side == side:
                return index
        return None


def _usage(usage: object) -> object:
    """A bill under codex's names as one of the API."""
    if not isinstance(usage, Mapping):
        return None
    details = {
        "cached_tokens": usage.get("cached_input_tokens"),
        "cache_write_tokens": usage.get("cache_write_input_tokens"),
    }
    return {**usage, "input_tokens_details": details}
