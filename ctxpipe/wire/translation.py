"""The foreign items of one conversation as messages, turn by turn, and contexts as items again.

What is unchanged comes back as the very items of this turn. A message of a context is found among
the units by what it says: by the ids of its calls and results, or by its texts, and never because
it is the same object, for frameworks rebuild their objects and a session answers with those that
it saw first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from ..messages import as_blocks, as_dict, common_prefix, is_equal, kind
from ..messages.values import canonical_json
from .codec import Codec, Item, Unit, head_blocks, make_units, opening_unit

if TYPE_CHECKING:
    from ..messages import Message

__all__ = ["Translation", "Units"]

WATCHED = 8
"""So many of the newest items are read again each turn: a caller may edit them in place."""

Key: TypeAlias = tuple[str, str]
Place: TypeAlias = tuple[int, int]
"""Unit and block."""


@dataclass(frozen=True, slots=True)
class Units:
    """The *items* of a turn, of which the first *head* are sent as they are, and their units.

    *messages* are what a session is given, *system* what the head says.
    """

    items: Sequence[Item]
    head: int
    units: list[Unit] = field(repr=False)
    messages: list[Message] = field(repr=False)
    system: list[dict[str, Any]] = field(repr=False)


class _Made(NamedTuple):
    """An *item* made of the one at *source*, or of none; where *item* is None, that one itself."""

    source: int | None
    item: Item | None


class _Piece(NamedTuple):
    """A message of a context as items: those of a unit, or others that were *made*.

    The items that they are or come from are from *start* up to *stop*.
    """

    start: int
    stop: int
    made: list[_Made] | None = None


class Translation:
    """Remembers one conversation in the form of *codec*, so that a turn costs what is new."""

    __slots__ = (
        "_codec",
        "_contents",
        "_context",
        "_given",
        "_head",
        "_items",
        "_pieces",
        "_places",
        "_sent",
        "_system",
        "_units",
        "_used",
    )

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._items: list[Item] = []
        self._contents: list[object] = []  # of each item, as it was read
        self._head = 0
        self._system: list[dict[str, Any]] = []
        self._units: list[Unit] = []
        self._used: set[str] = set()
        self._places: dict[Key, list[Place]] = {}
        self._context: list[Message] = []  # that of the last turn
        self._pieces: list[_Piece] = []  # the same as items
        self._given: Sequence[Item] = ()  # the items of the last turn that a stage has changed
        self._sent: list[Item] = []  # what they became

    # There ----------------------------------------------------------------------------------------

    def read(self, items: Sequence[Item]) -> Units:
        """*items* as units; what was read in the last turn is not read again."""
        items = list(items)
        known = self._count_known(items)
        head = self._head_length(items, known)
        if head != self._head or known < head:
            readings = [self._codec.read(item) for item in items[:head]]
            self._system = list(head_blocks(readings))
        if head != self._head:
            known = 0
        elif known < head:  # only what is never shaped has changed
            known = head + common_prefix(self._items[head:], items[head:])
        if known < len(self._items) or known < len(items):
            self._read_from(items, head, known)
        self._head = head
        messages = [unit.message for unit in self._units]
        return Units(items, head, list(self._units), messages, self._system)

    def _count_known(self, items: list[Item]) -> int:
        """How many of *items* are those of the last turn, and were not edited."""
        known = common_prefix(self._items, items)
        now = _contents(items[:known])
        if not is_equal(now, self._contents[:known]):
            known = common_prefix(cast("Any", self._contents[:known]), cast("Any", now))
        return known

    def _head_length(self, items: Sequence[Item], known: int) -> int:
        """How many leading items are not shaped: what is frozen, and the system's after it."""
        unchanged = min(known, len(self._items))
        head = self._codec.frozen(items, unchanged)
        if not head and unchanged >= self._head:
            head = self._head
        elif not head:
            head = self._codec.frozen(items, 0)
        while head < len(items) and self._codec.read(items[head]).side == "system":
            head += 1
        return head

    def _read_from(self, items: list[Item], head: int, known: int) -> None:
        """Read *items* again, but those of which nothing can have changed."""
        keep = self._stable_count(min(known, len(items) - WATCHED))
        stop = self._units[keep - 1].stop if keep else head
        removed = self._units[keep:]
        self._forget(keep)
        for unit in removed:
            self._used.difference_update(_call_ids(unit.message))
        new = make_units(self._codec, items, stop, self._used)
        if not keep and new and new[0].message["role"] != "user":
            new.insert(0, opening_unit(head))
        for place, unit in enumerate(new):
            # The same message is the same object, as long as its items are.
            old = removed[place] if place < len(removed) else unit
            if old.stop <= known and is_equal(old.message, unit.message) and old == unit:
                new[place] = old
            else:
                break
        self._add(new)
        self._items = items
        self._contents = _contents(items)
        self._drop_pieces(known)

    def _stable_count(self, known: int) -> int:
        """How many units are the same whatever follows the first *known* items.

        That is all before the last assistant's message in these: whether its calls are answered is
        said after it.
        """
        keep = bisect_left(self._units, known + 1, key=lambda unit: unit.stop)
        while keep and self._units[keep - 1].message["role"] != "assistant":
            keep -= 1
        return max(0, keep - 1)

    def _forget(self, keep: int) -> None:
        """Forget all but the first *keep* units."""
        for unit in self._units[keep:]:
            for block in as_blocks(unit.message):
                key = _key(block)
                places = self._places.get(key, [])
                while places and places[-1][0] >= keep:
                    places.pop()
                if not places:
                    self._places.pop(key, None)
        del self._units[keep:]

    def _add(self, units: Sequence[Unit]) -> None:
        for unit in units:
            index = len(self._units)
            self._units.append(unit)
            for place, block in enumerate(as_blocks(unit.message)):
                self._places.setdefault(_key(block), []).append((index, place))

    def _drop_pieces(self, known: int) -> None:
        """Forget the pieces with items that are new, or rebuilt from such."""
        for place, piece in enumerate(self._pieces):
            if piece.stop > known:
                del self._pieces[place:]
                del self._context[place:]
                return

    # And back -------------------------------------------------------------------------------------

    def items(self, units: Units, context: list[Message]) -> list[Item]:
        """The items that say *context*, which a session has made of *units*.

        *units* are those that `read` gave last. Where nothing has changed, the items are those of
        the turn, each the very same object.
        """
        if len(context) == len(units.messages) and is_equal(context, units.messages):
            return list(units.items)
        same = common_prefix(self._context, context)
        if same == len(context) == len(self._context) and is_unchanged(units.items, self._given):
            return list(self._sent)
        pieces = self._pieces[:same]
        new = list(_Search(self._codec, units, self._places).pieces(context[same:]))
        self._pieces = pieces + new
        self._context = list(context)
        items = list(units.items[: units.head])
        sources: list[int | None] = list(range(units.head))
        for piece in self._pieces:
            if piece.made is None:
                items += units.items[piece.start : piece.stop]
                sources += range(piece.start, piece.stop)
                continue
            for source, item in piece.made:
                if item is None and source is not None:
                    items.append(units.items[source])
                else:
                    items.append(item)
                sources.append(source)
        self._given = units.items
        self._sent = self._codec.repair(items, sources, units.items)
        return list(self._sent)


def _contents(items: Sequence[Item]) -> list[object]:
    """What would be another object if an item had been edited in place."""
    return [item.get("content") if type(item) is dict else None for item in items]


def _call_ids(message: Message) -> Iterator[str]:
    for block in as_blocks(message):
        if kind(block) == "tool_use":
            yield cast("Any", block)["id"]


def _key(block: object) -> Key:
    """What a block is found by."""
    plain = cast("Mapping[str, Any]", block)
    match kind(block):
        case "tool_use":
            return "call", plain["id"]
        case "tool_result":
            return "result", plain["tool_use_id"]
        case "text":
            return "text", plain["text"]
        case "image":
            source = plain["source"]
            return "image", source.get("data") or source.get("url") or ""
    return "other", canonical_json(plain)


# Looking for owners -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """Finds whose the messages of a context are, from the last one to the first.

    A context usually ends as its history does; of equal messages the last one is meant.
    """

    codec: Codec
    units: Units
    places: Mapping[Key, Sequence[Place]]
    end: int = 0

    def pieces(self, messages: Sequence[Message]) -> Iterator[_Piece]:
        """Each of *messages* as a piece."""
        self.end = len(self.units.units)
        found = [self._piece(message) for message in reversed(messages)]
        return reversed(found)

    def _piece(self, message: Message) -> _Piece:
        blocks = [as_dict(block) for block in as_blocks(message)]
        for index in self._candidates(blocks[0]) if blocks else ():
            unit = self.units.units[index]
            if message["role"] == unit.message["role"] and as_blocks(unit.message) == blocks:
                self.end = index
                return _Piece(unit.start, unit.stop)
        return self._rebuilt(message["role"], blocks)

    def _candidates(self, block: Mapping[str, Any]) -> Iterator[int]:
        """The units with *block*: those before the last one that was found, the nearest first."""
        places = self.places.get(_key(block), ())
        before = bisect_left(places, (self.end, 0))
        for index, _ in chain(reversed(places[:before]), places[before:]):
            yield index

    def _rebuilt(self, role: str, blocks: Sequence[dict[str, Any]]) -> _Piece:
        """A message that is none of the units, as items: rebuilt ones, originals, and new ones."""
        owners = self._owners(role, blocks)
        runs: list[tuple[int | None, list[dict[str, Any]]]] = []
        for block, owner in zip(blocks, owners, strict=True):
            item = None if owner is None else self._item_of(owner)
            if item is not None and any(run[0] == item for run in runs):
                next(run for run in runs if run[0] == item)[1].append(block)
            elif runs and runs[-1][0] == item:
                runs[-1][1].append(block)
            else:
                runs.append((item, [block]))
        names = self._names(owners)
        made: list[_Made] = []
        start, stop = len(self.units.items), 0
        for item, said in runs:
            if item is None:
                made += [_Made(None, new) for new in self.codec.new(role, said)]
                continue
            start, stop = min(start, item), max(stop, item + 1)
            made.append(_Made(item, self._rebuild(item, said, names)))
        found = [owner[0] for owner in owners if owner is not None]
        if found:
            self.end = min(found)
        return _Piece(min(start, stop), stop, made)

    def _owners(self, role: str, blocks: Sequence[Mapping[str, Any]]) -> list[Place | None]:
        """Where each of *blocks* comes from: by its id, else near those, else the last that says
        the same.
        """
        owners: list[Place | None] = [None] * len(blocks)
        near: set[int] = set()
        for place, block in enumerate(blocks):
            if kind(block) in ("tool_use", "tool_result"):
                owners[place] = next(iter(self.places.get(_key(block), ())), None)
            owner = owners[place]
            if owner is not None:
                near.add(owner[0])
        taken = set(owners)
        for place, block in enumerate(blocks):
            if owners[place] is None:
                owner = self._nearest(role, block, near, taken)
                owners[place] = owner
                taken.add(owner)
        return owners

    def _nearest(
        self, role: str, block: Mapping[str, Any], near: set[int], taken: set[Place | None]
    ) -> Place | None:
        places = self.places.get(_key(block), ())
        free = [
            owner
            for owner in places
            if owner not in taken and self.units.units[owner[0]].message["role"] == role
        ]
        for owner in free:
            if owner[0] in near:
                return owner
        earlier = [owner for owner in free if owner[0] < self.end]
        return earlier[-1] if earlier and not near else None

    def _item_of(self, owner: Place) -> int | None:
        index, place = owner
        owners = self.units.units[index].owners
        return owners[place] if owners else None

    def _names(self, owners: Sequence[Place | None]) -> dict[str, object]:
        """The items' own ids of calls, where ours differ."""
        names: dict[str, object] = {}
        for owner in owners:
            if owner is not None:
                names |= self.units.units[owner[0]].names
        return names

    def _rebuild(
        self, index: int, blocks: list[dict[str, Any]], names: Mapping[str, object]
    ) -> Item | None:
        """Item *index* with *blocks*; None where it says these already."""
        item = self.units.items[index]
        own = [_with_own_id(block, names) for block in blocks]
        if own == self.codec.read(item).blocks:
            return None
        return self.codec.rebuild(item, own)


def _with_own_id(block: dict[str, Any], names: Mapping[str, object]) -> dict[str, Any]:
    for key in ("id", "tool_use_id"):
        if block.get(key) in names:
            return {**block, key: names[block[key]]}
    return block


def is_unchanged(items: Sequence[Item], given: Sequence[Item]) -> bool:
    """Whether *items* are the very objects that were *given*."""
    return len(items) == len(given) and all(map(is_, items, given))
