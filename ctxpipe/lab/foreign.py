"""The items of another API's conversation as messages, by the codec that the mounts use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidHistory
from ..wire import Codec, Translation, Units
from ..wire.usage import openai_usage
from ..wire.values import text_block
from .records import Entry, Format, Recording, seconds

TEXT_OR_LIST = (str, list)
KINDS: Mapping[Any, str] = {
    str: "text",
    list: "a list",
    Mapping: "an object",
    TEXT_OR_LIST: "text or a list",
}


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
        self, form: Format, request: Mapping[str, Any], dropped: Mapping[str, int] | None = None
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


def request_of(value: Mapping[str, Any], name: str = "request") -> Mapping[str, Any]:
    """The request in *value*, or what else has the *name*; or *value* itself, which may be one."""
    request = value.get(name, value)
    return request if isinstance(request, Mapping) else {}


def valid_object(value: object, place: str, what: str = "", /, **types: Any) -> Mapping[str, Any]:
    """*value*, which is an object; it has nothing under the names of *types*, or what these say.

    Raises InvalidHistory, naming the *place* and *what* it is there, otherwise.
    """
    if not isinstance(value, Mapping):
        beginning = f"{what} is " if what else ""
        raise InvalidHistory(f"{place}: {beginning}{type(value).__name__}, not an object")
    for name, wanted in types.items():
        found = value.get(name)
        if found is not None and not isinstance(found, wanted):
            raise InvalidHistory(f"{place}: {type(found).__name__} as {name}, not {KINDS[wanted]}")
    return value
