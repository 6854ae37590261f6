"""Recordings of OpenAI's responses API: its items, or requests, alone or with their responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidHistory
from ..messages import kind
from ..wire import ResponsesCodec, Translation, Units
from ..wire.openai_responses import ANSWERED, OUTPUT
from ..wire.usage import openai_usage
from ..wire.values import text_block
from .records import Entry, Format, Record, Recording, seconds

__all__ = ["Items", "is_response_record", "read"]

ITEMS = ANSWERED | {name + OUTPUT for name in ANSWERED} | {"item_reference", "reasoning"}
PARTS = frozenset({"input_file", "input_image", "input_text", "output_text"})
STORED = ("previous_response_id", "conversation")
"""Where a request names items that the provider has kept, which it does not send again."""
TEXTS = ("type", "role", "id", "call_id")
LISTS = ("summary", "content")


def is_response_record(value: Mapping[str, Any]) -> bool:
    """Whether *value* is an item, a request or a response in the form of this API."""
    return _is_item(value) or bool(_is_request(value) or _is_response(value))


def read(records: Sequence[Record]) -> Recording:
    """The conversation of *records*, which are its items, or requests with or without responses.

    Raises InvalidHistory, naming the record, where they are neither, or several conversations.
    """
    items = Items()
    if any(_is_item(record.fields) for record in records):
        dropped: Counter[str] = Counter()
        for record in records:
            fields = record.fields
            if "type" in fields or "role" in fields:
                items.add(fields, record.place, fields.get("timestamp"))
            else:  # as in rollouts of codex from before there were kinds of lines
                dropped["not a message"] += 1
        return items.recording("OpenAI responses", dropped=dropped)
    request: Mapping[str, Any] = {}
    for record in records:
        request = _request(record)
        items.add_request(request, record.place)
        items.add_response(_response(record), record.place)
    return items.recording("OpenAI responses", request)


@dataclass(slots=True)
class Items:
    """The items of a conversation, and by their index what is known of them.

    *given* is what the last request has sent, without what the provider had kept.
    """

    items: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    usages: dict[int, Mapping[str, object]] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    given: list[Any] = field(default_factory=list)

    def add(self, item: object, place: str, time: object = None) -> None:
        """Add *item*. Raises InvalidHistory, naming the *place*, where it is none."""
        when = seconds(time)
        if when is not None:
            self.seconds[len(self.items)] = when
        self.items.append(_valid_item(item, place))

    def add_request(self, request: Mapping[str, Any], place: str) -> None:
        """Add what is new in the input of *request*.

        Raises InvalidHistory, naming the *place*, where it is of another conversation.
        """
        new = _input(request, place)
        is_whole = not any(request.get(name) for name in STORED)
        if is_whole:
            if new[: len(self.given)] != self.given:
                raise InvalidHistory(
                    f"{place}: this input does not begin with that of the request before; "
                    "give each conversation a file of its own"
                )
            self.given = new
            self.items.clear()
        for item in new:
            self.add(item, place)

    def add_response(self, response: Mapping[str, Any], place: str) -> None:
        """Add the output of *response*, with its bill."""
        start = len(self.items)
        output = response.get("output") or []
        if not isinstance(output, list):
            raise InvalidHistory(f"{place}: {type(output).__name__} as output, not a list of items")
        for item in output:
            self.add(item, place, response.get("created_at"))
        self.bill(start, response.get("usage"), response.get("model"))

    def bill(self, index: int, usage: object, model: object) -> None:
        """Note what the reply was billed that the item at *index* is of, and its model."""
        billed = openai_usage(usage)
        if billed is not None:
            self.usages[index] = billed
        if isinstance(model, str) and model:
            self.models[index] = model

    def cut(self, start: int) -> None:
        """Forget the items from *start* on."""
        del self.items[start:]
        for known in (self.seconds, self.usages, self.models):
            for index in [index for index in known if index >= start]:
                del known[index]

    def recording(
        self,
        form: Format,
        request: Mapping[str, Any] | None = None,
        dropped: Mapping[str, int] | None = None,
    ) -> Recording:
        """All of it as messages, as a mount would give them to a session."""
        request = request or {}
        units = Translation(ResponsesCodec()).read(self.items)
        beside = {
            "model": request.get("model"),
            "tools": request.get("tools"),
            "system": _system(request.get("instructions"), units),
        }
        return Recording(
            form,
            [self._entry(units, index) for index in range(len(units.units))],
            request=beside,
            dropped=dropped or {},
        )

    def _entry(self, units: Units, index: int) -> Entry:
        unit = units.units[index]
        places = range(unit.start, unit.stop)
        times = [self.seconds[place] for place in places if place in self.seconds]
        usages = [self.usages[place] for place in places if place in self.usages]
        models = [self.models[place] for place in places if place in self.models]
        return Entry(
            unit.message,
            seconds=times[0] if times else None,
            usage=usages[-1] if usages else None,
            model=models[-1] if models else "",
        )


def _system(instructions: object, units: Units) -> object:
    """What is sent before the messages; None where nothing is."""
    if not units.system:
        return instructions or None
    if isinstance(instructions, str) and instructions:
        return [text_block(instructions), *units.system]
    return units.system


# Requests and responses ---------------------------------------------------------------------------


def _request(record: Record) -> Mapping[str, Any]:
    """The request in *record*, or that it is. Raises InvalidHistory where there is none."""
    request = record.fields.get("request", record.fields)
    if isinstance(request, Mapping) and "input" in request:
        return request
    raise InvalidHistory(
        f"{record.place}: a response without the request that it answers; record both, as "
        '{"request": {"input": …}, "response": {"output": …}}'
    )


def _response(record: Record) -> Mapping[str, Any]:
    """The response in *record*, or that it is; empty where there is none."""
    response = record.fields.get("response", record.fields)
    return response if isinstance(response, Mapping) else {}


def _input(request: Mapping[str, Any], place: str) -> list[Any]:
    given = request["input"]
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if isinstance(given, list):
        return given
    raise InvalidHistory(
        f"{place}: {type(given).__name__} as input, neither text nor a list of items"
    )


def _is_request(value: Mapping[str, Any]) -> bool:
    request = value.get("request", value)
    return isinstance(request, Mapping) and "input" in request and "messages" not in request


def _is_response(value: Mapping[str, Any]) -> bool:
    response = value.get("response", value)
    return isinstance(response, Mapping) and response.get("object") == "response"


# Items --------------------------------------------------------------------------------------------


def _is_item(value: Mapping[str, Any]) -> bool:
    if kind(value) in ITEMS:
        return True
    content = value.get("content")
    if not isinstance(content, list):
        return False
    return any(kind(part) in PARTS for part in content)


def _valid_item(item: object, place: str) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise InvalidHistory(f"{place}: an item is {type(item).__name__}, not an object")
    if "type" not in item and "role" not in item:
        raise InvalidHistory(f"{place}: an item has neither a type nor a role")
    _ensure(item, TEXTS, str, place)
    if item.get("type") == "reasoning":
        _ensure(item, LISTS, list, place)
    return item


def _ensure(item: Mapping[str, Any], names: Iterable[str], wanted: type, place: str) -> None:
    for name in names:
        value = item.get(name)
        if value is not None and not isinstance(value, wanted):
            found = type(value).__name__
            raise InvalidHistory(f"{place}: {found} as {name} of an item, not {wanted.__name__}")
