"""Convert the foreign items of one conversation to messages, and its contexts back to items.

The items of a chat, for example, become these units, each with a message for the session:

    item  chat message                     unit  message
    0     system "You are a coder."        -     (the head: never shaped)
    1     user "Run the tests."            0     user: text
    2     assistant, calls "a" and "b"     1     assistant: call a, call b
    3     tool, result of "a"              2     user: result a (item 3), result b (item 4)
    4     tool, result of "b"

The session returns a context, in which a stage may have replaced the content of result a by a
placeholder. The messages for units 0 and 1 are unchanged, so items 1 and 2 are sent: the same
objects. The last message equals no unit, so its blocks are traced back to their items: item 4 is
sent as the same object, and item 3 as a copy with the new content. A message that comes from no
item, such as a summary, becomes a new item.

Messages and blocks are matched by content, that is, by the ids of calls and results and by texts.
Object identity is not used, because frameworks rebuild their objects, and a session returns the
objects that it received first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
from .values import has_media_blocks

WATCHED = 8
"""Number of newest items that are read again each turn, because a caller may edit them in place."""

Key: TypeAlias = tuple[str, str]
Place: TypeAlias = tuple[int, int]
"""Indices of a unit and of a block in it."""
_Block: TypeAlias = JsonDict


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
        self._frozen_count = 0  # the number of items in the head that are the provider's state
        self._has_media_blocks = False
        self._system: list[_Block] = []
        self._units: list[Unit] = []
        self._used_ids: set[str] = set()
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
        same_count = common_prefix(self._items, items)
        same_count = common_prefix(self._contents[:same_count], _contents(items[:same_count]))
        head = self._head_length(items, same_count)
        is_other_head = head != self._head
        if is_other_head or same_count < head:
            self._system = list(head_blocks(self._codec.read(item) for item in items[:head]))
        if is_other_head:
            same_count = 0
        elif same_count < head:  # only the head, which is never shaped, has changed
            same_count = head + common_prefix(self._items[head:], items[head:])
        if same_count < max(len(self._items), len(items)):
            self._read_from(items, head, same_count)
        self._head = head
        messages = [unit.message for unit in self._units]
        return Units(items, head, list(self._units), messages, self._system)

    def _head_length(self, items: Sequence[Item], same_count: int) -> int:
        """Return the number of leading items that are not shaped.

        These are the provider's state, and the system items after it. The first *same_count* items
        are those of the last turn.
        """
        frozen_count = self._codec.frozen_count(items, same_count)
        if not frozen_count and same_count >= self._frozen_count:
            frozen_count = self._frozen_count
        elif not frozen_count:
            frozen_count = self._codec.frozen_count(items, 0)
        self._frozen_count = frozen_count
        return head_length(self._codec, items, frozen_count)

    def _read_from(self, items: list[Item], head: int, same_count: int) -> None:
        """Read *items* again, except those whose units cannot have changed.

        The first *same_count* items are those of the last turn.
        """
        stable_count = self._stable_count(min(same_count, len(items) - WATCHED))
        start = head
        if stable_count:
            start = max(head, self._units[stable_count - 1].stop)
        old_units = self._units[stable_count:]
        self._remove_units(stable_count)
        contents = _contents(items)
        self._has_media_blocks |= any(has_media_blocks(content) for content in contents[start:])

        new_units = make_units(self._codec, items, start=start, used_ids=self._used_ids)
        if not stable_count and new_units and new_units[0].message["role"] != "user":
            new_units.insert(0, opening_unit())
        for place, old in enumerate(old_units[: len(new_units)]):
            # An equal message stays the same object, as long as its items do.
            new = new_units[place]
            is_same = is_equal(old.message, new.message) and old == new
            if old.stop > same_count or not is_same:
                break
            new_units[place] = old
        for index, unit in enumerate(new_units, stable_count):
            for place, block in enumerate(as_blocks(unit.message)):
                self._places.setdefault(_key(block), []).append((index, place))
        self._units += new_units

        self._items = items
        self._contents = contents
        if not stable_count:
            start = 0
        self._halves[start:] = [self._codec.halves(item) for item in items[start:]]
        # Pieces with new items, or with items rebuilt from new ones, are created again.
        valid_count = 0
        for piece in self._pieces:
            if piece.stop > same_count:
                break
            valid_count += 1
        del self._pieces[valid_count:]
        del self._context[valid_count:]

    def _stable_count(self, same_count: int) -> int:
        """Return the number of units that later items cannot change.

        The first *same_count* items are those of the last turn. The stable units are those before
        the last assistant message in these items, without the last ones that are not final: the
        results of their calls may follow.
        """
        count = bisect_left(self._units, same_count + 1, key=lambda unit: unit.stop)
        while count and self._units[count - 1].message["role"] != "assistant":
            count -= 1
        count = max(0, count - 1)
        while count and not self._units[count - 1].is_final:
            count -= 1
        return count

    def _remove_units(self, start: int) -> None:
        """Remove the units from index *start* on, with the ids and the places of their blocks."""
        for unit in self._units[start:]:
            self._used_ids.difference_update(call.id for call in tool_calls([unit.message]))
            for block in as_blocks(unit.message):
                key = _key(block)
                places = self._places.get(key, [])
                while places and places[-1][0] >= start:
                    places.pop()
                if not places:
                    self._places.pop(key, None)
        del self._units[start:]

    # Messages to items ----------------------------------------------------------------------------

    def items(self, units: Units, context: list[Message]) -> list[Item]:
        """Return *context*, which a session has derived from *units*, as items.

        *units* is the last result of `read`. Unchanged items are the same objects.
        """
        items = self._items_of(units, context)
        return self._codec.convert_media(items) if self._has_media_blocks else items

    def _items_of(self, units: Units, context: list[Message]) -> list[Item]:
        """Return the items to send for *context*, the messages that a session has returned.

        An unchanged context gives the original items. Otherwise a message that equals a unit gives
        the unit's items, any other message gives new items. The result of the last call is used
        again as far as the context is the same.
        """
        if is_equal(context, units.messages):
            return list(units.items)
        same = common_prefix(self._context, context)
        is_same_context = same == len(context) == len(self._context)
        if is_same_context and is_unchanged(units.items, self._changed_items):
            return list(self._sent)
        matcher = _ContextMatcher(self._codec, units, self._places, end=len(units.units))
        self._pieces[same:] = matcher.match(context[same:])
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
    """Return a new translation for the items of *codec*.

    The items of a `MessagesCodec` are messages already: for it the result is a `Verbatim`. Raises
    SettingsError if *codec* is neither a `MessagesCodec` nor a `Codec`.
    """
    if isinstance(codec, MessagesCodec):
        return Verbatim()
    if isinstance(codec, Codec):
        return Translation(codec)
    name = type(codec).__name__
    raise SettingsError(f"{name} is not a codec; derive it from ctxpipe.wire.codec.Codec")


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


class _ItemBlocks(NamedTuple):
    """The *blocks* of a message that come from the item at index *item*; None for new blocks."""

    item: int | None
    blocks: list[_Block]


# A message of a context is traced back to its items in three steps.
#
# 1. If it equals a unit, its items are those of the unit.
# 2. Otherwise each block gets its origin, the place of a block in a unit. Calls and results are
#    found by their ids, all other blocks by their contents. If a text occurs several times, the
#    unit of the message's calls and results comes first. For the example above, where "[file x]"
#    replaced the content of result a:
#
#        context  user: result a "[file x]", result b "ok"
#        origins  (unit 2, block 0), (unit 2, block 1)
#        items    3, 4
#
# 3. The blocks of each item are compared with those that the item has. Equal ones mean that the
#    item is sent as the same object; otherwise the codec rebuilds it with the new blocks. Blocks
#    without an origin become new items.


@dataclass(slots=True)
class _ContextMatcher:
    """Matches the messages of a context with units, from the last message to the first.

    A context usually ends like its history, so among equal units the last one is chosen. *places*
    has the place of each block of the units, by key. *end* is the index of the unit that was
    matched last, so the earlier messages are expected before it.
    """

    codec: Codec
    units: Units
    places: Mapping[Key, Sequence[Place]]
    end: int

    def match(self, messages: Sequence[Message]) -> Iterator[_Piece]:
        """Return an iterator of *messages* as pieces."""
        return reversed([self._match_message(message) for message in reversed(messages)])

    def _match_message(self, message: Message) -> _Piece:
        """Return the original items of the unit that equals *message*, or new items for it.

        If several units are equal, the nearest before the last match comes first. An invalid unit
        is not used.
        """
        role = message["role"]
        blocks = [as_dict(block) for block in as_blocks(message)]
        # Units with its first block: those before the last match first, beginning with the nearest.
        places = self.places.get(_key(blocks[0]), ()) if blocks else ()
        before = bisect_left(places, (self.end, 0))
        for index, _ in chain(reversed(places[:before]), places[before:]):
            unit = self.units.units[index]
            if unit.message["role"] == role and as_blocks(unit.message) == blocks:
                if not unit.is_valid:
                    break
                self.end = index
                return _Piece(unit.items)
        return self._assemble(role, blocks)

    def _assemble(self, role: str, blocks: Sequence[_Block]) -> _Piece:
        """Return a message that equals no unit as a piece of rebuilt, original and new items."""
        origins = self._find_origins(role, blocks)
        unit_indices = [origin[0] for origin in origins if origin is not None]
        names: dict[str, object] = {}  # the original ids of calls whose ids differ in the message
        for unit in unit_indices:
            names |= self.units.units[unit].names
        pairs: list[Sourced] = []
        for item, item_blocks in self._group_by_item(blocks, origins):
            if item is None:
                pairs += [(None, new) for new in self.codec.new(role, item_blocks)]
            else:
                pairs.append((item, self._new_item(item, item_blocks, names, unit_indices)))
        pairs = _in_order(pairs)
        self.end = min(unit_indices, default=self.end)
        return _Piece([source for source, _ in pairs if source is not None], pairs)

    def _group_by_item(
        self, blocks: Sequence[_Block], origins: Sequence[Place | None]
    ) -> list[_ItemBlocks]:
        """Return the blocks grouped by item; blocks without an item are grouped when adjacent."""
        groups: list[_ItemBlocks] = []
        group_of: dict[int | None, _ItemBlocks] = {}
        for block, origin in zip(blocks, origins, strict=True):
            item = None
            if origin is not None:
                owners = self.units.units[origin[0]].owners
                item = owners[origin[1]] if owners else None
            group = group_of.get(item)
            if group is None or (item is None and group is not groups[-1]):
                group = group_of[item] = _ItemBlocks(item, [])
                groups.append(group)
            group.blocks.append(block)
        return groups

    # The origins of blocks ------------------------------------------------------------------------

    def _find_origins(self, role: str, blocks: Sequence[_Block]) -> list[Place | None]:
        """Return the place that each of *blocks* comes from, None for new blocks."""
        origins: list[Place | None] = [None] * len(blocks)
        for index, block in enumerate(blocks):
            if kind(block) in ("tool_use", "tool_result"):
                places = self.places.get(_key(block), ())
                if places:
                    origins[index] = places[0]
        used_places = set(origins)
        preferred_units = {origin[0] for origin in origins if origin is not None}
        for index, block in enumerate(blocks):
            if origins[index] is None:
                origin = self._find_equal_block(role, block, preferred_units, used_places)
                origins[index] = origin
                used_places.add(origin)
        # Only for the user: other messages may be merged with those that follow them.
        if role == "user":
            self._add_rewritten_texts(blocks, origins)
        return origins

    def _find_equal_block(
        self,
        role: str,
        block: _Block,
        preferred_units: set[int],
        used_places: set[Place | None],
    ) -> Place | None:
        """Return the place of a block that equals *block*; None if there is none.

        A place in the *preferred_units*, those of the message's calls and results, is chosen first;
        then the last place before the units that are matched already. If there are preferred units,
        only blocks that a compaction carries out of their message may come from another unit.
        """
        earlier_place: Place | None = None
        last_place: Place | None = None
        for place in self.places.get(_key(block), ()):
            unit = place[0]
            if place in used_places or self.units.units[unit].message["role"] != role:
                continue
            if unit in preferred_units:
                return place
            if unit < self.end:
                earlier_place = place
            last_place = place
        if _is_carried(block):
            return earlier_place or last_place
        return None if preferred_units else earlier_place

    def _add_rewritten_texts(self, blocks: Sequence[_Block], origins: list[Place | None]) -> None:
        """Set the origin of each rewritten text whose message is otherwise unchanged.

        If all other blocks have the same unit, and the same index in it as in the message, the text
        replaces the text at its index: its item is rebuilt, so the fields of the item that are no
        blocks are preserved.
        """
        units = {origin[0] for origin in origins if origin is not None}
        if len(units) != 1 or None not in origins:
            return
        [unit] = units
        unit_blocks = as_blocks(self.units.units[unit].message)
        if len(unit_blocks) != len(blocks):
            return
        for index, origin in enumerate(origins):
            if origin is not None and origin != (unit, index):
                return
        for index, origin in enumerate(origins):
            if origin is None and kind(unit_blocks[index]) == kind(blocks[index]) == "text":
                origins[index] = (unit, index)

    # Items with new blocks ------------------------------------------------------------------------

    def _new_item(
        self,
        index: int,
        blocks: list[_Block],
        names: Mapping[str, object],
        unit_indices: Iterable[int],
    ) -> Item | None:
        """Return item *index* with *blocks* as its content, None if it has that content already.

        *unit_indices* are the units that may contain the item. *names* has the original ids of
        calls.
        """
        item = self.units.items[index]
        if any(_has_blocks(self.units.units[unit], index, blocks) for unit in unit_indices):
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
    """Return True if a compaction carries *block* out of its message.

    These are unknown blocks, and references to files that are stored elsewhere.
    """
    if kind(block) in MEDIA:
        return kind(block["source"]) != "base64"
    return is_opaque(block)


def _has_blocks(unit: Unit, index: int, blocks: Sequence[_Block]) -> bool:
    """Return True if the blocks of item *index* in *unit* are equal to *blocks*."""
    if not unit.is_valid:
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
    """Return *block* with the id of its call as it is in the items.

    *names* maps the ids in messages to those in items; an id that is missing there stays.
    """
    for key in ("id", "tool_use_id"):
        name = block.get(key)
        if name is not None and name in names:
            return {**block, key: names[name]}
    return block


def is_unchanged(items: Sequence[Item], original_items: Sequence[Item]) -> bool:
    """Return True if *items* are the same objects as *original_items*."""
    if len(items) != len(original_items):
        return False
    return all(item is original for item, original in zip(items, original_items, strict=True))
