"""Reader for rollouts of codex, the files below ``~/.codex/sessions``.

A rollout has one item of OpenAI's responses API per line. It also has many lines that are not part
of the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ..._values import JsonObject
from ...messages import field, kind
from ...wire import ResponsesCodec
from ..records import FileRecord, Recording
from .items import Items
from .openai_responses import valid_item

LINES = frozenset({"compacted", "event_msg", "response_item", "session_meta", "turn_context"})
OTHER_LINES = frozenset({"inter_agent_communication", "token_usage_record", "world_state"})
"""Types of further lines that codex 0.171 and earlier versions write."""
NEVER_SENT = frozenset({"ghost_snapshot"})
"""Items that codex writes to the file but does not send to the API."""
COMPACTIONS = frozenset({"compaction", "compaction_summary", "context_compaction"})


def is_rollout_line(value: JsonObject) -> bool:
    """Return True if *value* is a line of a rollout."""
    return kind(value) in LINES and isinstance(value.get("payload"), Mapping)


def read(records: Iterable[FileRecord]) -> Recording:
    """Return the conversation that the user saw, and the number of omitted records of each kind.

    Omitted are the summaries of compactions (the file still has the messages that they summarize),
    turns that the user took back, and records that are not messages. Raises InvalidHistory, naming
    the record, for an item that is not valid.
    """
    rollout = _Rollout()
    for record in records:
        rollout.add(record)
    return rollout.recording()


class _Rollout:
    """The conversation in the lines that were added so far."""

    def __init__(self) -> None:
        self._codec = ResponsesCodec()
        self._items = Items(self._codec)
        self._instructions = ""
        self._model = ""
        self._turns: list[int] = []  # index of the user's item that began each turn
        self._omitted_counts: Counter[str] = Counter()
        self._unknown_counts: Counter[str] = Counter()

    def add(self, record: FileRecord) -> None:
        """Add the line *record*. Raises InvalidHistory if it is an item that is not valid."""
        payload = record.fields.get("payload")
        if kind(record.fields) not in LINES | OTHER_LINES:
            self._unknown_counts[str(kind(record.fields) or "no type")] += 1
            return
        match kind(record.fields), kind(payload):
            case "response_item", name if name in COMPACTIONS:
                self._omitted_counts["summary of a compaction"] += 1
                return
            case "response_item", name if name not in NEVER_SENT:
                item = valid_item(payload or {}, record.place)
                self._items.add(item, record.fields.get("timestamp"))
                return
            case "session_meta", _ if not self._instructions:
                # A fork has its own line first, and then those of the session that it forked.
                instructions = field(field(payload, "base_instructions"), "text")
                self._instructions = str(instructions or "")
            case "turn_context", _:
                self._model = str(field(payload, "model") or self._model)
            case "compacted", _:
                self._drop_summary(str(field(payload, "message") or ""))
            case "token_usage_record", _:
                self._note_usage(field(payload, "usage"))
            case "event_msg", "user_message":
                self._begin_turn()
            case "event_msg", "item_completed" if kind(field(payload, "item")) == "UserMessage":
                self._begin_turn()
            case "event_msg", "thread_rolled_back":
                self._take_back_turns(field(payload, "num_turns"))
            case "event_msg", "token_count":
                self._note_usage(field(field(payload, "info"), "last_token_usage"))
        self._omitted_counts["not a message"] += 1

    def recording(self) -> Recording:
        """Return the conversation in the lines that were added."""
        request = {"model": self._model, "instructions": self._instructions}
        return self._items.recording(request, self._omitted_counts, self._unknown_counts)

    def _begin_turn(self) -> None:
        """Record the place of the user's message, which precedes its event in the file."""
        last = self._last("user")
        if last is not None and last not in self._turns:
            self._turns.append(last)

    def _take_back_turns(self, count: object) -> None:
        """Drop the last *count* turns, which the user took back."""
        if not isinstance(count, int) or count <= 0 or not self._turns:
            return
        first_turns = self._turns[:-count]
        start = self._turns[len(first_turns)]
        self._drop_from(start, "taken back by the user")
        self._turns = first_turns

    def _drop_summary(self, compaction: str) -> None:
        """Drop the last reply if it is the summary in *compaction*, the text of a compaction.

        The file has the summary twice: as a reply, with its reasoning before it, and in the line of
        the compaction.
        """
        items = self._items.items
        last = self._last("assistant")
        if last is None or last + 1 != len(items):
            return
        text = self._codec.read(items[last].fields).blocks[0].get("text")
        if not text or text not in compaction:
            return
        start = last
        while start and kind(items[start - 1].fields) == "reasoning":
            start -= 1
        self._drop_from(start, "summary of a compaction")

    def _drop_from(self, start: int, reason: str) -> None:
        """Remove the items from index *start* on, and count them as omitted for *reason*."""
        self._omitted_counts[reason] += len(self._items.items) - start
        del self._items.items[start:]

    def _note_usage(self, usage: object) -> None:
        """Record *usage* for the newest reply, unless it has one: the file repeats usages."""
        last = self._last("assistant")
        if last is None or self._items.items[last].usage or not isinstance(usage, Mapping):
            return
        details = {
            "cached_tokens": usage.get("cached_input_tokens"),
            "cache_write_tokens": usage.get("cache_write_input_tokens"),
        }
        openai_usage = {**usage, "input_tokens_details": details}
        self._items.note_usage(self._items.items[last], openai_usage, self._model)

    def _last(self, side: str) -> int | None:
        """Return the index of the newest item of *side*, or None."""
        for index, item in reversed(list(enumerate(self._items.items))):
            if self._codec.read(item.fields).side == side:
                return index
        return None
