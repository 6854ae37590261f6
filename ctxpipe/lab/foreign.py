"""The items of another API's conversation as messages, by the codec that the mounts use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidHistory
from ..wire import Codec, Translation, Units
from ..wire.usage import openai_usage
from ..wire.values import text_block
from .records import Entry, Format, Recording, seconds

__all__ = ["Items", "ensure_types", "request_of", "response_of"]

KINDS: Mapping[type, str] = {str: "text", list: "a list", Mapping: "an object"}


@dataclass(slots=True)
class Items:
    """The *items* of a conversation in the form of *codec*, and by index what is known of each.

    *given* is what the last request with the whole history has sent.
    """

    codec: Codec
    items: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)
    usages: dict[int, Mapping[str, object]] = field(default_factory=dict)
    models: dict[int, str] = field(default_factory=dict)
    given: list[Any] = field(default_factory=list)

    def add(self, item: Mapping[str, Any], time: object = None) -> None:
        """Add *item*, which is from *time*."""
        when = seconds(time)
        if when is not None:
            self.seconds[len(self.items)] = when
        self.items.append(item)

    def begin(self, given: list[Any], place: str) -> None:
        """Begin again, for a request that sends the whole history: *given*.

        What is known by index stays. Raises InvalidHistory, naming the *place*, where *given* does
        not continue what the request before has sent.
        """
        if given[: len(self.given)] != self.given:
            raise InvalidHistory(
                f"{place}: this request does not begin as the one before; "
                "give each conversation a file of its own"
            )
        self.given = given
        self.items.clear()

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
        request: Mapping[str, Any],
        dropped: Mapping[str, int] | None = None,
    ) -> Recording:
        """All of it as messages, as a mount would give them to a session.

        The instructions of the *request*, and what leading items say that are not shaped, are the
        system prompt.
        """
        units = Translation(self.codec).read(self.items)
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
    if not units.system:
        return instructions or None
    if isinstance(instructions, str) and instructions:
        return [text_block(instructions), *units.system]
    return units.system


# Requests and responses ---------------------------------------------------------------------------


def request_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request in *value*, or *value* itself, which may be one."""
    request = value.get("request", value)
    return request if isinstance(request, Mapping) else {}


def response_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The response in *value*, or *value* itself, which may be one."""
    response = value.get("response", value)
    return response if isinstance(response, Mapping) else {}


def ensure_types(
    item: Mapping[str, Any],
    names: Iterable[str],
    wanted: type,
    place: str,
) -> None:
    """Raise InvalidHistory, naming the *place*, where *item* has no *wanted* under one of *names*.

    It may have nothing there.
    """
    for name in names:
        value = item.get(name)
        if value is not None and not isinstance(value, wanted):
            found = type(value).__name__
            raise InvalidHistory(f"{place}: {found} as {name}, not {KINDS[wanted]}")
