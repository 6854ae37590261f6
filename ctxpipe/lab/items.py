"""The items of another API's conversation as messages, by the codec that the adapters use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._values import JsonObject
from ..errors import InvalidHistory
from ..wire import Codec, Translation
from ..wire.codec import Unit
from ..wire.usage import openai_usage
from ..wire.values import text_block
from .records import Entry, Format, Recording, seconds


@dataclass(slots=True)
class Item:
    """An item of a conversation: its *fields*, when it is from, the reply's usage and model."""

    fields: JsonObject
    seconds: float | None = None
    usage: JsonObject | None = None
    model: str = ""


class Items:
    """The *items* of a conversation in the form of *codec*."""

    def __init__(self, codec: Codec) -> None:
        self.items: list[Item] = []
        self._codec = codec
        self._known: list[Item] = []  # of the request before, by place
        self._given: list[Any] = []  # what the last request with the whole history has sent

    def add(self, fields: JsonObject, time: object = None) -> None:
        """Add the item with these *fields*, which is from *time*.

        What is known of the item that had its place in the request before is known of it too.
        """
        item = Item(fields)
        if len(self.items) < len(self._known):
            item = replace(self._known[len(self.items)], fields=fields)
        when = seconds(time)
        item.seconds = item.seconds if when is None else when
        self.items.append(item)

    def begin(self, given: list[Any], place: str) -> None:
        """Begin again, for a request that sends the whole history: *given*.

        Raises InvalidHistory, naming the *place*, where *given* does not continue what the request
        before has sent.
        """
        if given[: len(self._given)] != self._given:
            raise InvalidHistory(
                f"{place}: this request does not begin as the one before; "
                "give each conversation a file of its own"
            )
        self._given = given
        self._known, self.items = self.items, []

    def note_usage(self, item: Item, usage: object, model: object) -> None:
        """Note the *usage* and the *model* of the reply that *item* is part of."""
        item.usage = openai_usage(usage) or item.usage
        if isinstance(model, str):
            item.model = model or item.model

    def recording(self, form: Format, request: JsonObject, dropped: Mapping[str, int]) -> Recording:
        """All of it as messages, as an adapter would give them to a session.

        The instructions of the *request*, and what leading items say that are not shaped, are the
        system prompt.
        """
        units = Translation(self._codec).read([item.fields for item in self.items])
        system = request.get("instructions") or None
        if units.system:
            own = [text_block(system)] if isinstance(system, str) else []
            system = [*own, *units.system]
        beside = {"model": request.get("model"), "tools": request.get("tools"), "system": system}
        return Recording(form, list(map(self._entry, units.units)), beside, dropped)

    def _entry(self, unit: Unit) -> Entry:
        """The first time of its items, and the last usage and model."""
        items = [self.items[index] for index in unit.items]
        return Entry(
            unit.message,
            next((item.seconds for item in items if item.seconds is not None), None),
            next((item.usage for item in reversed(items) if item.usage), None),
            next((item.model for item in reversed(items) if item.model), ""),
        )


# Requests and responses ---------------------------------------------------------------------------


def request_of(value: JsonObject, name: str = "request") -> JsonObject:
    """The request in *value*, or what else has the *name*; or *value* itself, which may be one."""
    request = value.get(name, value)
    return request if isinstance(request, Mapping) else {}
