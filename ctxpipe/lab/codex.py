"""Rollouts of codex, the files below ``~/.codex/sessions``.

They hold the items of OpenAI's responses API, one to a line, and much beside the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .._values import JsonObject
from ..messages import field, kind
from ..wire import ResponsesCodec
from .items import Items
from .openai_responses import valid_item
from .records import Record, Recording

LINES = frozenset({"compacted", "event_msg", "response_item", "session_meta", "turn_context"})
NEVER_SENT = frozenset({"ghost_snapshot"})
COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})


def is_rollout_line(value: JsonObject) -> bool:
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
    """The conversation as of the lines read so far."""

    def __init__(self) -> None:
        self._codec = ResponsesCodec()
        self._items = Items(self._codec)
        self._instructions = ""
        self._model = ""
        self._turns: list[int] = []  # the items with which the user began them
        self._dropped: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        """Read the line *record*."""
        payload = record.fields.get("payload")
        match kind(record.fields), kind(payload):
            case "response_item", name if name in COMPACTIONS:
                self._dropped["summary of a compaction"] += 1
                return
            case "response_item", name if name not in NEVER_SENT:
                item = valid_item(payload or {}, record.place)
                self._items.add(item, record.fields.get("timestamp"))
                return
            case "session_meta", _ if not self._instructions:
                # A fork has its own line first, and then those of the session that it is from.
                instructions = field(field(payload, "base_instructions"), "text")
                self._instructions = str(instructions or "")
            case "turn_context", _:
                self._model = str(field(payload, "model") or self._model)
            case "compacted", _:
                self._drop_summary(str(field(payload, "message") or ""))
            case "token_usage_record", _:
                self._bill(field(payload, "usage"))
            case "event_msg", "user_message":
                self._begin_turn()
            case "event_msg", "item_completed" if kind(field(payload, "item")) == "UserMessage":
                self._begin_turn()
            case "event_msg", "thread_rolled_back":
                turns = field(payload, "num_turns")
                if isinstance(turns, int) and turns > 0 and self._turns:
                    self._drop_from(self._turns[-turns:][0], "taken back by the user")
                    del self._turns[-turns:]
            case "event_msg", "token_count":
                self._bill(field(field(payload, "info"), "last_token_usage"))
        self._dropped["not a message"] += 1

    def recording(self) -> Recording:
        """All that was read."""
        request = {"model": self._model, "instructions": self._instructions}
        return self._items.recording("codex rollout", request, self._dropped)

    def _begin_turn(self) -> None:
        """Note where the user's message is, which comes before its event."""
        last = self._last("user")
        if last is not None and last not in self._turns:
            self._turns.append(last)

    def _drop_summary(self, compaction: str) -> None:
        """Drop the reply that is the summary; the file has it again in the text of a *compaction*.

        The reply comes last, with its reasoning before it.
        """
        items = self._items.items
        last = self._last("assistant")
        if last is None or last + 1 != len(items):
            return
        said = self._codec.read(items[last].fields).blocks[0].get("text")
        if not said or said not in compaction:
            return
        while last and kind(items[last - 1].fields) == "reasoning":
            last -= 1
        self._drop_from(last, "summary of a compaction")

    def _drop_from(self, start: int, reason: str) -> None:
        self._dropped[reason] += len(self._items.items) - start
        del self._items.items[start:]

    def _bill(self, usage: object) -> None:
        """Note *usage* for the newest reply; the file says it more than once."""
        last = self._last("assistant")
        if last is None or self._items.items[last].usage or not isinstance(usage, Mapping):
            return
        details = {
            "cached_tokens": usage.get("cached_input_tokens"),
            "cache_write_tokens": usage.get("cache_write_input_tokens"),
        }
        billed = {**usage, "input_tokens_details": details}
        self._items.note_usage(self._items.items[last], billed, self._model)

    def _last(self, side: str) -> int | None:
        """The index of the newest item of *side*."""
        for index, item in reversed(list(enumerate(self._items.items))):
            if self._codec.read(item.fields).side == side:
                return index
        return None
