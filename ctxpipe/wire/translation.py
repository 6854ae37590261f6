"""The foreign items of one conversation as messages, turn by turn, and contexts as items again.

What is unchanged comes back as the very items of this turn. A message of a context is found among
the units by what it says: by the ids of its calls and results, or by its texts, and never because
it is the same object, for frameworks rebuild their objects and a session answers with those that
it saw first.
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
"""So many of the newest items are read again each turn: a caller may edit them in place."""

Key: TypeAlias = tuple[str, str]
Place: TypeAlias = tuple[int, int]
"""Unit and block."""
_Block: TypeAlias = JsonDict
_Run: TypeAlias = tuple[int | None, list[_Block]]
"""An item, or none, and blocks of it."""


@dataclass(frozen=True, slots=True)
class Units:
    """The *items* of a turn, of which the first *head* are sent as they are, and their units.

    *messages* are what a session is given, *system* what the head says.
    """

    items: Sequence[Item]
    head: int
    units: list[Unit] = field(repr=False)
    messages: list[Message] = field(repr=False)
    system: list[_Block] = field(repr=False)


class _Piece(NamedTuple):
    """A message of a context as items: those of a unit, or others that were *made*.

    *sources* are the indices of the items that they are or come from, in order. What was made of an
    item and says the same is None.
    """

    sources: Sequence[int]
    made: list[Sourced] | None = None

    @property
    def stop(self) -> int:
        """The index after the last item that it comes from."""
        return self.sources[-1] + 1 if self.sources else 0


class Translation:
    """Remembers one conversation in the form of *codec*, so that a turn costs what is new."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._items: list[Item] = []
        self._contents: list[object] = []  # of each item, as it was read
        self._halves: list[Halves] = []  # of each item, too
        self._head = 0
        self._frozen = 0  # so many items of the head are the provider's own state
        self._has_own_media = False
        self._system: list[_Block] = []
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
        # Those of the last turn that nobody has edited.
        known = common_prefix(self._items, items)
        known = common_prefix(self._contents[:known], _contents(items[:known]))
        head = self._head_length(items, known)
        is_other_head = head != self._head
        if is_other_head or known < head:
            self._system = list(head_blocks(map(self._codec.read, items[:head])))
        if is_other_head:
            known = 0
        elif known < head:  # only what is never shaped has changed
            known = head + common_prefix(self._items[head:], items[head:])
        if known < max(len(self._items), len(items)):
            self._read_from(items, head, known)
        self._head = head
        messages = [unit.message for unit in self._units]
        return Units(items, head, list(self._units), messages, self._system)

    def _head_length(self, items: Sequence[Item], known: int) -> int:
        """How many leading items are not shaped: what is frozen, and the system's after it."""
        frozen = self._codec.frozen(items, known)
        if not frozen:
            frozen = self._frozen if known >= self._frozen else self._codec.frozen(items, 0)
        self._frozen = frozen
        return head_length(self._codec, items, frozen)

    def _read_from(self, items: list[Item], head: int, known: int) -> None:
        """Read *items* again, but those of which nothing can have changed."""
        keep = self._stable_count(min(known, len(items) - WATCHED))
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
            # The same message is the same object, as long as its items are.
            is_same = is_equal(old.message, new[place].message) and old == new[place]
            if old.stop > known or not is_same:
                break
            new[place] = old
        for index, unit in enumerate(new, keep):
            for place, block in enumerate(as_blocks(unit.message)):
                self._places.setdefault(_key(block), []).append((index, place))
        self._units += new
        self._items, self._contents = items, contents
        start = stop if keep else 0
        self._halves[start:] = map(self._codec.halves, items[start:])
        # The pieces with items that are new, or rebuilt from such, are made anew.
        stays = [piece.stop <= known for piece in self._pieces]
        kept = stays.index(False) if False in stays else len(stays)
        del self._pieces[kept:], self._context[kept:]

    def _stable_count(self, known: int) -> int:
        """How many units are the same whatever follows the first *known* items.

        That is all before the last assistant's message in these, and before those in front of it
        that are not final: whether calls are answered is said after them.
        """
        keep = bisect_left(self._units, known + 1, key=lambda unit: unit.stop)
        while keep and self._units[keep - 1].message["role"] != "assistant":
            keep -= 1
        keep = max(0, keep - 1)
        while keep and not self._units[keep - 1].is_final:
            keep -= 1
        return keep

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

    # And back -------------------------------------------------------------------------------------

    def items(self, units: Units, context: list[Message]) -> list[Item]:
        """The items that say *context*, which a session has made of *units*.

        *units* are those that `read` gave last. Where nothing has changed, the items are those of
        the turn, each the very same object.
        """
        items = self._items_of(units, context)
        return self._codec.sendable(items) if self._has_own_media else items

    def _items_of(self, units: Units, context: list[Message]) -> list[Item]:
        if is_equal(context, units.messages):
            return list(units.items)
        same = common_prefix(self._context, context)
        is_same_context = same == len(context) == len(self._context)
        if is_same_context and is_unchanged(units.items, self._given):
            return list(self._sent)
        search = _Search(self._codec, units, self._places, end=len(units.units))
        self._pieces[same:] = search.pieces(context[same:])
        self._context = list(context)
        pairs: list[Sourced] = list(enumerate(units.items[: units.head]))
        before: _Piece | None = None
        number = 0  # of the pairs that the piece before has given
        for piece in self._pieces:
            own = _pairs_of(piece, units.items)
            if before is not None and _is_woven(before, piece):
                own = _in_order([*pairs[len(pairs) - number :], *own])
                del pairs[len(pairs) - number :]
            pairs += own
            before = piece
            number = len(own)
        self._given = units.items
        self._sent = [item for _, item in self._codec.repair(pairs, units.items, self._halves)]
        return list(self._sent)


def _pairs_of(piece: _Piece, items: Sequence[Item]) -> list[Sourced]:
    """The items of *piece*, each with its index among *items*, those of this turn."""
    if piece.made is None:
        return [(source, items[source]) for source in piece.sources]
    pairs: list[Sourced] = []
    for source, made in piece.made:
        item = items[source] if made is None and source is not None else made
        pairs.append((source, item))
    return pairs


def _is_woven(before: _Piece, piece: _Piece) -> bool:
    """Return True if *piece* begins among the items of the piece *before* it.

    So it is with results that unknown items go with which were between the calls.
    """
    if not before.sources or not piece.sources:
        return False
    return before.sources[0] < piece.sources[0] < before.sources[-1]


def _in_order(pairs: Sequence[Sourced]) -> list[Sourced]:
    """*pairs* in the order of their sources; one without a source stays behind its neighbor."""
    keys: list[int] = []
    for source, _ in pairs:
        last = keys[-1] if keys else -1
        keys.append(last if source is None else source)
    order = sorted(range(len(pairs)), key=lambda place: keys[place])
    return [pairs[place] for place in order]


class Verbatim:
    """A translation of what needs none: the items are messages."""

    def read(self, items: Sequence[Item]) -> Units:
        """*items* as they are."""
        messages = list(items)
        return Units(messages, 0, [], messages, [])

    def items(self, units: Units, context: list[Message]) -> list[Item]:
        """*context*; where it says what the messages do, these themselves."""
        return units.messages if is_equal(context, units.messages) else context


def translation_of(codec: ItemReader) -> Translation | Verbatim:
    """What translates one conversation in the form of *codec*. Raises SettingsError."""
    if isinstance(codec, MessagesCodec):
        return Verbatim()
    if isinstance(codec, Codec):
        return Translation(codec)
    name = type(codec).__name__
    raise SettingsError(f"{name} is no codec: derive it from ctxpipe.wire.codec.Codec")


def _contents(items: Sequence[Item]) -> list[object]:
    """What would be another object if an item had been edited in place."""
    return [
        item.get("content", item.get("output", item.get("parts"))) if type(item) is dict else None
        for item in items
    ]


def _key(block: object) -> Key:
    """What a block is found by."""
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


# Looking for owners -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """Finds whose the messages of a context are, from the last one to the first.

    A context usually ends as its history does; of equal messages the last one is meant.
    """

    codec: Codec
    units: Units
    places: Mapping[Key, Sequence[Place]]
    end: int

    def pieces(self, messages: Sequence[Message]) -> Iterator[_Piece]:
        """Each of *messages* as a piece."""
        return reversed([self._piece(message) for message in reversed(messages)])

    def _piece(self, message: Message) -> _Piece:
        role = message["role"]
        blocks = [as_dict(block) for block in as_blocks(message)]
        # Units with its first block: those before the last one that was found, the nearest first.
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
        """A message that is none of the units, as items: rebuilt ones, originals, and new ones."""
        owners = self._owners(role, blocks)
        found = [owner[0] for owner in owners if owner is not None]
        names: dict[str, object] = {}  # the items' own ids of calls, where ours differ
        for unit in found:
            names |= self.units.units[unit].names
        made: list[Sourced] = []
        for item, said in self._runs(blocks, owners):
            if item is None:
                made += [(None, new) for new in self.codec.new(role, said)]
            else:
                made.append((item, self._rebuild(item, said, names, found)))
        made = _in_order(made)
        self.end = min(found, default=self.end)
        return _Piece([source for source, _ in made if source is not None], made)

    def _runs(self, blocks: Sequence[_Block], owners: Sequence[Place | None]) -> list[_Run]:
        """The blocks of each item together, and those of none with their neighbours."""
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
        found: Iterable[int],
    ) -> Item | None:
        """Item *index* with *blocks*; None where it says these already. *found* are its units."""
        item = self.units.items[index]
        if any(_says(self.units.units[unit], index, blocks) for unit in found):
            return None
        reading = self.codec.read(item)
        own = [_with_own_id(block, names) for block in blocks]
        if own == reading.blocks:
            return None
        if _has_lost_its_half(reading, own):
            role = "user" if reading.side == "result" else "assistant"
            return self.codec.new(role, own)[0]
        return self.codec.rebuild(item, own)


def _is_carried(block: _Block) -> bool:
    """Return True if *block* is unknown, or refers to a file that is stored elsewhere."""
    if kind(block) in MEDIA:
        return kind(block["source"]) != "base64"
    return is_opaque(block)


def _says(unit: Unit, index: int, blocks: Sequence[_Block]) -> bool:
    """Return True if item *index*, as *unit* has it, says just *blocks*."""
    if not unit.is_sound:
        return False
    own = as_blocks(unit.message)
    said = [own[place] for place, owner in enumerate(unit.owners) if owner == index]
    return said == blocks


def _has_lost_its_half(reading: Reading, blocks: Sequence[_Block]) -> bool:
    """Whether *reading* is a call without a result, or the reverse, which *blocks* say as text."""
    pair = {*CALLS, "tool_result"}
    own = kind(reading.blocks[0])
    return len(reading.blocks) == 1 and own in pair and kind(blocks[0]) not in pair


def _with_own_id(block: _Block, names: Mapping[str, object]) -> _Block:
    for key in ("id", "tool_use_id"):
        name = block.get(key)
        if name is not None and name in names:
            return {**block, key: names[name]}
    return block


def is_unchanged(items: Sequence[Item], given: Sequence[Item]) -> bool:
    """Whether *items* are the very objects that were *given*."""
    if len(items) != len(given):
        return False
    return all(map(is_, items, given))
