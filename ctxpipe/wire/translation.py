"""Convert the foreign items of one conversation to messages, and its contexts back to items.

Unchanged items come back as the same objects. A message of a context is matched with a unit by its
content, that is, the ids of its calls and results or its texts. Object identity is not used,
because frameworks rebuild their objects, and a session returns the objects that it received first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import NamedTuple, TypeAlias, cast

from .._values import JsonDict, JsonObject, canonical_json
from ..errors import SettingsError
from ..messages import (
    CALLS,
    MEDIA,
    Message,
    as_blocks,
    as_dict,
    common_prefix,
    is_equal,
    is_opaque,
    kind,
    tool_calls,
)
from .codec import (
    Codec,
    Halves,
    Item,
    ItemReader,
    MessagesCodec,
    Reading,
    Sourced,
    Unit,
    head_blocks,
    head_length,
    make_units,
    opening_unit,
)
from .values import holds_own_media

WATCHED = 8
"""Number of newest items that are read again each turn, because a caller may edit them in place."""

Key: TypeAlias = tuple[str, str]
Place: TypeAlias = tuple[int, int]
"""Indices of a unit and of a block in it."""
_Block: TypeAlias = JsonDict
_Run: TypeAlias = tuple[int | None, list[_Block]]
"""Index of an item, or None, and its blocks."""


@dataclass(frozen=True, slots=True)
class Units:
    """The *items* of a turn and their units; the first *head* items are always sent unchanged.

    *messages* is the history for a session, *system* the content of the head as blocks.
    """

    items: Sequence[Item]
    head: int
    units: list[Unit] = field(repr=False)
    messages: list[Message] = field(repr=False)
    system: list[_Block] = field(repr=False)


class _Piece(NamedTuple):
    """A message of a context as items: the items of a unit, or the *new_items*.

    *sources* are the indices of the original items, in order. A new item with the same content as
    its original is None.
    """

    sources: Sequence[int]
    new_items: list[Sourced] | None = None

    @property
    def stop(self) -> int:
        """Index after the last original item."""
        return self.sources[-1] + 1 if self.sources else 0


class Translation:
    """Converts one conversation in the form of *codec*; each turn only reads the new items."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._items: list[Item] = []
        self._contents: list[object] = []  # the content of each item when it was read
        self._halves: list[Halves] = []  # the halves of each item
        self._head = 0
        self._frozen = 0  # the number of items in the head that are the provider's state
        self._has_own_media = False
        self._system: list[_Block] = []
        self._units: list[Unit] = []
        self._used: set[str] = set()
        self._places: dict[Key, list[Place]] = {}
        self._context: list[Message] = []  # the context of the last turn
        self._pieces: list[_Piece] = []  # the context of the last turn as pieces
        self._changed_items: Sequence[Item] = ()  # the items of the last turn that was changed
        self._sent: list[Item] = []  # the items that were sent instead

    # Items to messages ----------------------------------------------------------------------------

    def read(self, items: Sequence[Item]) -> Units:
        """Return *items* as units; items that were read in the last turn are not read again."""
        items = list(items)
        # The leading items of the last turn that have not been edited since.
        unchanged = common_prefix(self._items, items)
        unchanged = common_prefix(self._contents[:unchanged], _contents(items[:unchanged]))
        head = self._head_length(items, unchanged)
        is_other_head = head != self._head
        if is_other_head or unchanged < head:
            self._system = list(head_blocks(self._codec.read(item) for item in items[:head]))
        if is_other_head:
            unchanged = 0
        elif unchanged < head:  # only the head, which is never shaped, has changed
            unchanged = head + common_prefix(self._items[head:], items[head:])
        if unchanged < max(len(self._items), len(items)):
            self._read_from(items, head, unchanged)
        self._head = head
        messages = [unit.message for unit in self._units]
        return Units(items, head, list(self._units), messages, self._system)

    def _head_length(self, items: Sequence[Item], unchanged: int) -> int:
        """Return the number of leading items that are not shaped.

        These are the provider's state, and the system items after it. The first *unchanged* items
        are those of the last turn.
        """
        frozen = self._codec.frozen(items, unchanged)
        if not frozen:
            frozen = self._frozen if unchanged >= self._frozen else self._codec.frozen(items, 0)
        self._frozen = frozen
        return head_length(self._codec, items, frozen)

    def _read_from(self, items: list[Item], head: int, unchanged: int) -> None:
        """Read *items* again, except those whose units cannot have changed.

        The first *unchanged* items are those of the last turn.
        """
        keep = self._stable_count(min(unchanged, len(items) - WATCHED))
        stop = max(head, self._units[keep - 1].stop) if keep else head
        removed = self._units[keep:]
        self._forget(keep)
        contents = _contents(items)
        self._has_own_media |= any(map(holds_own_media, contents[stop:]))
        removed_messages = [unit.message for unit in removed]
        self._used.difference_update(call.id for call in tool_calls(removed_messages))
        new = make_units(self._codec, items, start=stop, used=self._used)
        if not keep and new and new[0].message["role"] != "user":
            new.insert(0, opening_unit())
        for place, old in enumerate(removed[: len(new)]):
            # An equal message stays the same object, as long as its items do.
            is_same = is_equal(old.message, new[place].message) and old == new[place]
            if old.stop > unchanged or not is_same:
                break
            new[place] = old
        for index, unit in enumerate(new, keep):
            for place, block in enumerate(as_blocks(unit.message)):
                self._places.setdefault(_key(block), []).append((index, place))
        self._units += new
        self._items = items
        self._contents = contents
        start = stop if keep else 0
        self._halves[start:] = [self._codec.halves(item) for item in items[start:]]
        # Pieces with new items, or with items rebuilt from new ones, are created again.
        valid_count = 0
        for piece in self._pieces:
            if piece.stop > unchanged:
                break
            valid_count += 1
        del self._pieces[valid_count:]
        del self._context[valid_count:]

    def _stable_count(self, unchanged: int) -> int:
        """Return the number of units that stay the same, whatever follows *unchanged* items.

        These are all units before the last assistant message in these items, and before the units
        in front of it that are not final, because the results of calls follow later.
        """
        keep = bisect_left(self._units, unchanged + 1, key=lambda unit: unit.stop)
        while keep and self._units[keep - 1].message["role"] != "assistant":
            keep -= 1
        keep = max(0, keep - 1)
        while keep and not self._units[keep - 1].is_final:
            keep -= 1
        return keep

    def _forget(self, keep: int) -> None:
        """Remove all units except the first *keep*."""
        for unit in self._units[keep:]:
            for block in as_blocks(unit.message):
                key = _key(block)
                places = self._places.get(key, [])
                while places and places[-1][0] >= keep:
                    places.pop()
                if not places:
                    self._places.pop(key, None)
        del self._units[keep:]

    # Messages to items ----------------------------------------------------------------------------

    def items(self, units: Units, context: list[Message]) -> list[Item]:
        """Return *context*, which a session has derived from *units*, as items.

        *units* is the last result of `read`. Unchanged items are the same objects.
        """
        items = self._items_of(units, context)
        return self._codec.sendable(items) if self._has_own_media else items

    def _items_of(self, units: Units, context: list[Message]) -> list[Item]:
        if is_equal(context, units.messages):
            return list(units.items)
        same = common_prefix(self._context, context)
        is_same_context = same == len(context) == len(self._context)
        if is_same_context and is_unchanged(units.items, self._changed_items):
            return list(self._sent)
        search = _UnitSearch(self._codec, units, self._places, end=len(units.units))
        self._pieces[same:] = search.pieces(context[same:])
        self._context = list(context)
        pairs: list[Sourced] = list(enumerate(units.items[: units.head]))
        previous: _Piece | None = None
        previous_count = 0  # the number of pairs of the previous piece
        for piece in self._pieces:
            piece_pairs = _pairs_of(piece, units.items)
            if previous is not None and _is_interleaved(previous, piece):
                start = len(pairs) - previous_count
                piece_pairs = _in_order([*pairs[start:], *piece_pairs])
                del pairs[start:]
            pairs += piece_pairs
            previous = piece
            previous_count = len(piece_pairs)
        self._changed_items = units.items
        self._sent = [item for _, item in self._codec.repair(pairs, units.items, self._halves)]
        return list(self._sent)


def _pairs_of(piece: _Piece, items: Sequence[Item]) -> list[Sourced]:
    """Return the items of *piece*, each with its index among *items*, the items of this turn."""
    if piece.new_items is None:
        return [(source, items[source]) for source in piece.sources]
    pairs: list[Sourced] = []
    for source, item in piece.new_items:
        if item is None and source is not None:
            item = items[source]  # noqa: PLW2901
        pairs.append((source, item))
    return pairs


def _is_interleaved(before: _Piece, piece: _Piece) -> bool:
    """Return True if *piece* begins among the items of the piece *before* it.

    This happens if unknown items between calls have joined the results of these calls.
    """
    if not before.sources or not piece.sources:
        return False
    return before.sources[0] < piece.sources[0] < before.sources[-1]


def _in_order(pairs: Sequence[Sourced]) -> list[Sourced]:
    """Return *pairs* in the order of their sources; a pair without one stays after the previous."""
    keys: list[int] = []
    for source, _ in pairs:
        last = keys[-1] if keys else -1
        keys.append(last if source is None else source)
    order = sorted(range(len(pairs)), key=lambda place: keys[place])
    return [pairs[place] for place in order]


class Verbatim:
    """Translation of items that are messages already."""

    def read(self, items: Sequence[Item]) -> Units:
        """Return *items* as messages, without units."""
        messages = list(items)
        return Units(messages, 0, [], messages, [])

    def items(self, units: Units, context: list[Message]) -> list[Item]:
        """Return *context*, or the original messages if they are equal to it."""
        return units.messages if is_equal(context, units.messages) else context


def translation_of(codec: ItemReader) -> Translation | Verbatim:
    """Return a new translation for *codec*. Raises SettingsError if *codec* is no `Codec`."""
    if isinstance(codec, MessagesCodec):
        return Verbatim()
    if isinstance(codec, Codec):
        return Translation(codec)
    name = type(codec).__name__
    raise SettingsError(f"{name} is no codec: derive it from ctxpipe.wire.codec.Codec")


def _contents(items: Sequence[Item]) -> list[object]:
    """Return the part of each item that is another object after an edit in place."""
    return [
        item.get("content", item.get("output", item.get("parts"))) if type(item) is dict else None
        for item in items
    ]


def _key(block: object) -> Key:
    """Return the lookup key of a block: kind and id for calls and results, kind and text or data.

    Equal blocks have equal keys.
    """
    plain = cast("JsonObject", block)
    match kind(block):
        case "tool_use":
            return "call", plain["id"]
        case "tool_result":
            return "result", plain["tool_use_id"]
        case "text":
            return "text", plain["text"]
        case "opaque":
            return "opaque", plain["json"]
        case "image" | "document" as name:
            source = plain["source"]
            return name, source.get("data") or source.get("url") or source.get("file_id") or ""
    return "other", canonical_json(plain)


# Matching contexts with units ---------------------------------------------------------------------


@dataclass(slots=True)
class _UnitSearch:
    """Matches the messages of a context with units, from the last message to the first.

    A context usually ends like its history, so among equal units the last one is chosen.
    """

    codec: Codec
    units: Units
    places: Mapping[Key, Sequence[Place]]
    end: int

    def pieces(self, messages: Sequence[Message]) -> Iterator[_Piece]:
        """Return an iterator of *messages* as pieces."""
        return reversed([self._piece(message) for message in reversed(messages)])

    def _piece(self, message: Message) -> _Piece:
        role = message["role"]
        blocks = [as_dict(block) for block in as_blocks(message)]
        # Units with its first block: those before the last match first, beginning with the nearest.
        places = self.places.get(_key(blocks[0]), ()) if blocks else ()
        before = bisect_left(places, (self.end, 0))
        for index, _ in chain(reversed(places[:before]), places[before:]):
            unit = self.units.units[index]
            if unit.message["role"] == role and as_blocks(unit.message) == blocks:
                if not unit.is_sound:
                    break
                self.end = index
                return _Piece(unit.items)
        return self._rebuilt(role, blocks)

    def _rebuilt(self, role: str, blocks: Sequence[_Block]) -> _Piece:
        """Return a message that equals no unit as a piece of rebuilt, original and new items."""
        owners = self._owners(role, blocks)
        unit_indices = [owner[0] for owner in owners if owner is not None]
        names: dict[str, object] = {}  # the original ids of calls whose ids differ in the message
        for unit in unit_indices:
            names |= self.units.units[unit].names
        pairs: list[Sourced] = []
        for item, item_blocks in self._runs(blocks, owners):
            if item is None:
                pairs += [(None, new) for new in self.codec.new(role, item_blocks)]
            else:
                pairs.append((item, self._rebuild(item, item_blocks, names, unit_indices)))
        pairs = _in_order(pairs)
        self.end = min(unit_indices, default=self.end)
        return _Piece([source for source, _ in pairs if source is not None], pairs)

    def _runs(self, blocks: Sequence[_Block], owners: Sequence[Place | None]) -> list[_Run]:
        """Return the blocks grouped by item; blocks without an item are grouped when adjacent."""
        runs: list[_Run] = []
        run_of: dict[int | None, _Run] = {}
        for block, owner in zip(blocks, owners, strict=True):
            item = None
            if owner is not None:
                owners_of = self.units.units[owner[0]].owners
                item = owners_of[owner[1]] if owners_of else None
            run = run_of.get(item)
            if run is None or (item is None and run is not runs[-1]):
                run = run_of[item] = (item, [])
                runs.append(run)
            run[1].append(block)
        return runs

    def _owners(self, role: str, blocks: Sequence[_Block]) -> list[Place | None]:
        """Where each of *blocks* comes from: by its id, else near those, else the last that says
        the same.
        """
        owners: list[Place | None] = [None] * len(blocks)
        for place, block in enumerate(blocks):
            if kind(block) in ("tool_use", "tool_result"):
                owners[place] = next(iter(self.places.get(_key(block), ())), None)
        taken = set(owners)
        near = {owner[0] for owner in owners if owner is not None}
        for place, block in enumerate(blocks):
            if owners[place] is None:
                nearest = self._nearest(role, block, near, taken)
                owners[place] = nearest
                taken.add(nearest)
        if role == "user":  # other messages join what follows them, and get other neighbours
            self._keep_rewritten(blocks, owners)
        return owners

    def _keep_rewritten(self, blocks: Sequence[_Block], owners: list[Place | None]) -> None:
        """Give each text that was rewritten between blocks which stay to the item that had it.

        All other blocks of the message are those of one unit, each in its place.
        """
        units = {owner[0] for owner in owners if owner is not None}
        if len(units) != 1 or None not in owners:
            return
        [unit] = units
        own = as_blocks(self.units.units[unit].message)
        if len(own) != len(blocks):
            return
        if any(owner not in (None, (unit, place)) for place, owner in enumerate(owners)):
            return
        for place, owner in enumerate(owners):
            if owner is None and kind(own[place]) == kind(blocks[place]) == "text":
                owners[place] = (unit, place)

    def _nearest(
        self, role: str, block: _Block, near: set[int], taken: set[Place | None]
    ) -> Place | None:
        earlier: Place | None = None
        other: Place | None = None
        for owner in self.places.get(_key(block), ()):
            index = owner[0]
            if owner in taken or self.units.units[index].message["role"] != role:
                continue
            if index in near:
                return owner
            if index < self.end:
                earlier = owner
            other = owner
        if _is_carried(block):
            # A compaction takes it out of its message, whose other blocks may be anywhere.
            return earlier or other
        return None if near else earlier

    def _rebuild(
        self,
        index: int,
        blocks: list[_Block],
        names: Mapping[str, object],
        unit_indices: Iterable[int],
    ) -> Item | None:
        """Return item *index* with *blocks* as its content, None if it has that content already.

        *unit_indices* are the units that may contain the item.
        """
        item = self.units.items[index]
        if any(_says(self.units.units[unit], index, blocks) for unit in unit_indices):
            return None
        reading = self.codec.read(item)
        new_blocks = [_with_original_id(block, names) for block in blocks]
        if new_blocks == reading.blocks:
            return None
        if _has_lost_its_half(reading, new_blocks):
            role = "user" if reading.side == "result" else "assistant"
            return self.codec.new(role, new_blocks)[0]
        return self.codec.rebuild(item, new_blocks)


def _is_carried(block: _Block) -> bool:
    """Return True if *block* is unknown, or refers to a file that is stored elsewhere."""
    if kind(block) in MEDIA:
        return kind(block["source"]) != "base64"
    return is_opaque(block)


def _says(unit: Unit, index: int, blocks: Sequence[_Block]) -> bool:
    """Return True if the blocks of item *index* in *unit* are equal to *blocks*."""
    if not unit.is_sound:
        return False
    unit_blocks = as_blocks(unit.message)
    item_blocks = [unit_blocks[place] for place, owner in enumerate(unit.owners) if owner == index]
    return item_blocks == blocks


def _has_lost_its_half(reading: Reading, blocks: Sequence[_Block]) -> bool:
    """Return True if *reading* is one half of a call that *blocks* replace with a text."""
    halves = {*CALLS, "tool_result"}
    if len(reading.blocks) != 1 or kind(reading.blocks[0]) not in halves:
        return False
    return kind(blocks[0]) not in halves


def _with_original_id(block: _Block, names: Mapping[str, object]) -> _Block:
    for key in ("id", "tool_use_id"):
        name = block.get(key)
        if name is not None and name in names:
            return {**block, key: names[name]}
    return block


def is_unchanged(items: Sequence[Item], original_items: Sequence[Item]) -> bool:
    """Return True if *items* are the same objects as *original_items*."""
    if len(items) != len(original_items):
        return False
    return all(map(is_, items, original_items))
