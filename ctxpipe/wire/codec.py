"""What a codec knows of one form of conversation, and how its items become messages of ours.

A *foreign item* is an element of another API's or framework's list: a chat message, a responses
item, a model object. A codec reads each as blocks. Here these become *units*: messages that keep
every rule of the Messages API, so that no repair touches them, each with the items behind it.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Literal, TypeAlias, cast

from .._values import JsonDict, JsonObject
from ..messages import CALLS, THINKING, Message, as_blocks, kind
from ..messages.facts import MAX_TOOL_NAME
from ..placeholders.placeholders import OPENING
from .values import opaque_block, text_block

Side: TypeAlias = Literal["system", "user", "assistant", "result"]
"""Who says an item; "result" answers a call."""

Item: TypeAlias = Any
"""A foreign item, of whatever type."""

Sourced: TypeAlias = tuple[int | None, Item]
"""An item, and which of those given it is made of; None: of none."""

Halves: TypeAlias = tuple[set[object], set[object]]
"""The ids of the calls in an item, and of those that it answers."""

ANSWERED = frozenset({"user", "result"})
EMPTY = "[This message is empty.]"
_ID = re.compile(r"[a-zA-Z0-9_-]{1,200}")
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Reading:
    """A foreign item as *blocks* of ours; one without any says that it is empty.

    With *joins* it is one message with its neighbours of the same side. Results always are.
    """

    side: Side
    blocks: list[JsonDict]
    joins: bool = False

    def __post_init__(self) -> None:
        if not self.blocks:
            object.__setattr__(self, "blocks", [text_block(EMPTY)])


class ItemReader(ABC):
    """Reads the items of one form of conversation."""

    @abstractmethod
    def read(self, item: Item) -> Reading:
        """*item* as blocks; what is unknown becomes an opaque text block of its side."""


class Codec(ItemReader):
    """One form of conversation: its items to blocks, and back."""

    refuses_halves: bool = True
    """Whether the API refuses a call without its result, and the reverse."""

    @abstractmethod
    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """A copy of *item* with these *blocks* as its content; its blocks have its own ids."""

    @abstractmethod
    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Items that say *blocks*, which ctxpipe wrote itself."""

    def opaque(self, block: JsonObject) -> JsonDict:
        """What is read instead of *block*, a call without its result or the reverse."""
        return opaque_block(block)

    def sendable(self, items: Sequence[Item]) -> list[Item]:
        """*items* with the images and documents of ours in them in the form of this API.

        They are in results: a caller hands on what `read_offloaded` answers.
        """
        return list(items)

    def is_summary(self, item: Item) -> bool:
        """Whether the provider has compacted in *item* what came before."""
        del item
        return False

    def frozen(self, items: Sequence[Item], start: int) -> int:
        """How many leading items are the provider's own state, which nobody may shape.

        Only items from *start* on are searched for the end of it; 0 where it is not among them.
        """
        places = (index for index in reversed(range(start, len(items))))
        return next((index + 1 for index in places if self.is_summary(items[index])), 0)

    def halves(self, item: Item) -> Halves:
        """The ids of the calls in *item*, and of those that it answers."""
        blocks = self.read(item).blocks
        calls = {block["id"] for block in blocks if kind(block) in CALLS}
        return calls, {block["tool_use_id"] for block in blocks if kind(block) == "tool_result"}

    def repair(
        self, pairs: Sequence[Sourced], given: Sequence[Item], halves: Sequence[Halves]
    ) -> list[Sourced]:
        """*pairs*, without what is invalid now that others of *given* have left.

        That is a result without its call, and a call without its result. *halves* are those of each
        item that was given.
        """
        known = dict(zip(map(id, given), halves, strict=True))
        own = [known.get(id(item)) or self.halves(item) for _, item in pairs]
        calls, results = _all_of(own)
        calls_given, results_given = _all_of(halves)
        lost_calls, lost_results = calls_given - calls, results_given - results
        if lost_calls.isdisjoint(results) and lost_results.isdisjoint(calls):
            return list(pairs)
        kept: list[Sourced] = []
        for (source, item), (own_calls, own_results) in zip(pairs, own, strict=True):
            if lost_results.isdisjoint(own_calls) and lost_calls.isdisjoint(own_results):
                kept.append((source, item))
                continue
            blocks = self.read(item).blocks
            left = [block for block in blocks if block.get("id") not in lost_results]
            left = [block for block in left if block.get("tool_use_id") not in lost_calls]
            if any(kind(block) not in THINKING for block in left):
                kept.append((source, self.rebuild(item, left)))
        return kept


def _all_of(halves: Iterable[Halves]) -> Halves:
    calls, results = set[object](), set[object]()
    for own_calls, own_results in halves:
        calls |= own_calls
        results |= own_results
    return calls, results


@dataclass(frozen=True, slots=True)
class Unit:
    """A *message* of ours for the foreign items from *start* up to *stop*.

    *owners* says for each block which item it is of. *names* are the ids of calls that differ from
    those of the items, with the items' own. One that is not sound has a call without a result, or
    the reverse, for which the API refuses the items.
    """

    message: Message
    start: int
    stop: int
    owners: tuple[int, ...] = ()
    names: Mapping[str, object] = field(default_factory=dict)
    is_sound: bool = True


@dataclass(slots=True)
class _Group:
    """Neighbouring items that become one message."""

    side: Side
    start: int
    stop: int
    blocks: list[JsonDict]
    owners: list[int]
    names: dict[str, object] = field(default_factory=dict)
    is_sound: bool = True


# Units --------------------------------------------------------------------------------------------


def make_units(codec: Codec, items: Sequence[Item], start: int, used: set[str]) -> list[Unit]:
    """The units of *items* from *start* on.

    *used* are the ids of the calls before, to which those of these items are added.
    """
    groups = _groups(codec, items, start)
    for before, group in pairwise([None, *groups, None]):
        if before is not None and before.side == "assistant":
            _pair(codec, before, group, used)
        elif group is not None and group.side == "result":
            _make_opaque(codec, group, frozenset())
    for group in groups:
        _settle(group)
    _place_systems(groups)
    return [_as_unit(group) for group in groups]


def opening_unit(start: int) -> Unit:
    """A unit of no item, for a conversation that does not begin with the user."""
    return Unit(cast("Message", {"role": "user", "content": OPENING}), start, start)


def _groups(codec: Codec, items: Sequence[Item], start: int) -> list[_Group]:
    groups: list[_Group] = []
    last_joins = False
    for index in range(start, len(items)):
        reading = codec.read(items[index])
        owners = [index] * len(reading.blocks)
        joins = reading.joins or reading.side == "result"
        if groups and joins and last_joins and groups[-1].side == reading.side:
            groups[-1].stop = index + 1
            groups[-1].blocks += reading.blocks
            groups[-1].owners += owners
        else:
            groups.append(_Group(reading.side, index, index + 1, reading.blocks, owners))
        last_joins = joins
    return groups


def _pair(codec: Codec, group: _Group, later: _Group | None, used: set[str]) -> None:
    """Give each call of *group* that the results *later* answer an id of its own.

    Results whose ids are of no call answer those that have none, in order. Other calls become
    opaque, unless they are the last of all: these still wait.
    """
    answers = {} if later is None else _answers(later)
    calls = {block["id"] for block in group.blocks if kind(block) in CALLS}
    others = [place for own in answers if own not in calls for place in answers[own]]
    answered: set[int] = set()
    for place, block in enumerate(group.blocks):
        if kind(block) not in CALLS:
            continue
        own = block["id"]
        waiting = answers.get(own) or others
        if not waiting and later is not None:
            group.blocks[place] = codec.opaque(block)
            group.is_sound &= not codec.refuses_halves
            continue
        name = _unique_id(own, used)
        tool = block["name"][:MAX_TOOL_NAME] or "unknown_tool"
        group.blocks[place] = {**block, "id": name, "name": tool}
        group.names |= {name: own} if name != own else {}
        if waiting and later is not None:
            answer = waiting.pop(0)
            answered.add(answer)
            named = later.blocks[answer]["tool_use_id"]
            later.blocks[answer] = {**later.blocks[answer], "tool_use_id": name}
            later.names |= {name: named} if name != named else {}
    if later is not None and later.side == "result":
        _make_opaque(codec, later, answered)


def _answers(group: _Group) -> dict[object, list[int]]:
    """Where in *group* the results of each call are."""
    answers: dict[object, list[int]] = {}
    if group.side != "result":
        return answers
    for place, block in enumerate(group.blocks):
        if kind(block) == "tool_result":
            answers.setdefault(block["tool_use_id"], []).append(place)
    return answers


def _make_opaque(codec: Codec, group: _Group, answered: AbstractSet[int]) -> None:
    """*group* of results, of which only those at *answered* answer a call; these come first."""
    if len(answered) == len(group.blocks):
        return
    for place, block in enumerate(group.blocks):
        if place not in answered and kind(block) == "tool_result":
            group.blocks[place] = codec.opaque(block)
            group.is_sound &= not codec.refuses_halves
    order = sorted(range(len(group.blocks)), key=lambda place: place not in answered)
    group.blocks = [group.blocks[place] for place in order]
    group.owners = [group.owners[place] for place in order]


def _unique_id(own: object, used: set[str]) -> str:
    """The id of a call whose own is *own*, in the form of the Messages API, and like no other."""
    name = own if isinstance(own, str) else repr(own)
    if not _ID.fullmatch(name):
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{_NOT_IN_ID.sub('_', name)[:40]}_{digest[:16]}"
    number = 1
    unique = name
    while unique in used:
        number += 1
        unique = f"{name}-{number}"
    used.add(unique)
    return unique


def _settle(group: _Group) -> None:
    """Make what may not be where it is opaque: thinking at the end of a reply."""
    if group.side == "assistant":
        for place in reversed(range(len(group.blocks))):
            if kind(group.blocks[place]) not in THINKING:
                break
            group.blocks[place] = opaque_block(group.blocks[place])
    elif group.side == "result" and not any("tool_use_id" in block for block in group.blocks):
        group.side = "user"


def _place_systems(groups: Sequence[_Group]) -> None:
    """Have the user say what the system says where the Messages API takes no system message."""
    others = (group.side for group in groups if group.side != "system")
    sides: list[Side] = ["assistant", *others, "assistant"]
    passed = 0
    for group in groups:
        if group.side != "system":
            passed += 1
        elif sides[passed] not in ANSWERED or sides[passed + 1] != "assistant":
            group.side = "user"


def _as_unit(group: _Group) -> Unit:
    role = "user" if group.side == "result" else group.side
    content: object = group.blocks
    if list(map(kind, group.blocks)) == ["text"]:
        content = group.blocks[0]["text"]
    message = cast("Message", {"role": role, "content": content})
    return Unit(message, group.start, group.stop, tuple(group.owners), group.names, group.is_sound)


def head_blocks(readings: Iterable[Reading]) -> Iterator[JsonDict]:
    """What leading items say that are never shaped, as the blocks of a system prompt."""
    for block in chain.from_iterable(reading.blocks for reading in readings):
        yield text_block(block["text"]) if kind(block) == "text" else opaque_block(block)


class MessagesCodec(ItemReader):
    """What a message says."""

    def read(self, item: Item) -> Reading:
        """The blocks of *item*."""
        role = item["role"]
        side: Side = role if role in ("assistant", "system") else "user"
        return Reading(side, cast("list[JsonDict]", as_blocks(item)))
