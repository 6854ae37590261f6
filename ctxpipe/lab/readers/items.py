"""Conversion of another API's conversation into messages, by the codec that the adapters use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..._values import JsonObject
from ...errors import InvalidHistory
from ...wire import Codec, Translation
from ...wire.codec import Unit
from ...wire.usage import openai_usage
from ...wire.values import text_block
from ..records import RecordedMessage, Recording, seconds


@dataclass(slots=True)
class Item:
    """An item of a conversation: its *fields*, its time, and the usage and model of its reply."""

    fields: JsonObject
    seconds: float | None = None
    usage: JsonObject | None = None
    model: str = ""


class Items:
    """The *items* of a conversation, in the form that *codec* reads.

    Clients of these APIs send the complete history with each request. A file of several requests
    therefore has most items more than once: `begin` starts again for each request, and `add` takes
    over the time, usage and model of the item at the same place of the request before.
    """

    def __init__(self, codec: Codec) -> None:
        self.items: list[Item] = []
        self._codec = codec
        self._previous_items: list[Item] = []
        self._previous_input: list[Any] = []

    def add(self, fields: JsonObject, time: object = None) -> None:
        """Add the item with these *fields* and this *time*.

        Time, usage and model of the item at the same place of the previous request are kept.
        """
        item = Item(fields)
        place = len(self.items)
        if place < len(self._previous_items):
            item = replace(self._previous_items[place], fields=fields)
        item_seconds = seconds(time)
        if item_seconds is not None:
            item.seconds = item_seconds
        self.items.append(item)

    def begin(self, request_input: list[Any], place: str) -> None:
        """Start again for a request that sends the complete history, *request_input*.

        Raises InvalidHistory, naming the *place*, if it does not continue the input of the previous
        request.
        """
        if request_input[: len(self._previous_input)] != self._previous_input:
            raise InvalidHistory(
                f"{place}: this request does not begin as the one before; "
                "give each conversation a file of its own"
            )
        self._previous_input = request_input
        self._previous_items = self.items
        self.items = []

    def note_usage(self, item: Item, usage: object, model: object) -> None:
        """Record the *usage* and the *model* of the reply that *item* is part of."""
        item.usage = openai_usage(usage) or item.usage
        if isinstance(model, str):
            item.model = model or item.model

    def recording(
        self,
        request: JsonObject,
        omitted_counts: Mapping[str, int] | None = None,
        unknown_counts: Mapping[str, int] | None = None,
        record_count: int | None = None,
    ) -> Recording:
        """Return all items as messages, as an adapter would pass them to a session.

        The system prompt consists of the instructions of the *request*, a text or blocks, and of
        the leading items that are not part of the context. The counts are those of `Recording`.

        Raises InvalidHistory if the instructions are neither a text nor blocks.
        """
        units = Translation(self._codec).read([item.fields for item in self.items])
        system = request.get("instructions") or None
        if units.system:
            instructions = [text_block(system)] if isinstance(system, str) else system or []
            if not isinstance(instructions, list):
                raise InvalidHistory("the instructions are neither text nor a list of blocks")
            system = [*instructions, *units.system]
        other_fields = {
            "model": request.get("model"),
            "tools": request.get("tools"),
            "system": system,
        }
        entries = [self._entry(unit) for unit in units.units]
        return Recording(
            entries, other_fields, omitted_counts or {}, unknown_counts or {}, record_count
        )

    def _entry(self, unit: Unit) -> RecordedMessage:
        """Return the message of *unit*, with the first time and the last usage of its items."""
        items = [self.items[index] for index in unit.items]
        return RecordedMessage(
            unit.message,
            next((item.seconds for item in items if item.seconds is not None), None),
            next((item.usage for item in reversed(items) if item.usage), None),
            next((item.model for item in reversed(items) if item.model), ""),
        )


# Requests and responses ---------------------------------------------------------------------------


def request_of(value: JsonObject, name: str = "request") -> JsonObject:
    """Return the object under *name* in *value*, or *value* itself if it has none.

    A file may hold bare requests, or objects like ``{"request": …, "response": …}``. Returns an
    empty object if there is something else under *name*.
    """
    request = value.get(name, value)
    return request if isinstance(request, Mapping) else {}
