"""What a codec knows of one form of conversation, and how its items become messages of ours.

A *foreign item* is an element of another API's or framework's list: a chat message, a responses
item, a model object. A codec reads each as blocks. Here these become *units*: messages that keep
every rule of the Messages API, so that no repair touches them, each with the items behind it.

Items of a type that the codec does not know were written by the client, unless they arrived in a
reply. Each is an opaque block of the user, a unit of its own, so that it is neither summarized nor
merged into a reply. There are three exceptions: at the beginning of a request it belongs to the
head; with the id of a call it is that call or its result; between a call and the last result of the
same reply it goes with the results, since the Messages API takes nothing between the two.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Literal, TypeAlias, cast

from .._values import JsonDict, JsonObject
from ..messages import CALLS, THINKING, Message, as_blocks, kind
from ..messages import field as item_field
from ..messages.facts import MAX_TOOL_NAME
from ..placeholders.placeholders import OPENING
from .values import (
    arguments_object,
    client_block,
    opaque_block,
    result_block,
    text_block,
    use_block,
)

Side: TypeAlias = Literal["system", "user", "assistant", "result"]
"""Who says an item; "result" answers a call."""

Item: TypeAlias = Any
"""A foreign item, of whatever type."""

Sourced: TypeAlias = tuple[int | None, Item]
"""An item, and which of those given it is made of; None: of none."""

Halves: TypeAlias = tuple[set[object], set[object]]
"""The ids of the calls in an item, and of those that it answers."""

ANSWERED = frozenset({"user", "result"})
SYSTEM_ROLES = frozenset({"system", "developer"})
EMPTY = "[This message is empty.]"
MAX_HEAD_CHARS = 100_000
"""Characters of unknown items that may belong to the head, unless the budget says otherwise."""
_ID = re.compile(r"[a-zA-Z0-9_-]{1,200}")
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Reading:
    """A foreign item as *blocks* of ours; one without any says that it is empty.

    With *joins* it is one message with its neighbours of the same side. Results always are.
    *is_unknown* marks an item of the client's that the codec cannot read. *call* is the id of a
    call that the item makes or answers if its other half is in the same exchange; if not, the item
    is what *side* and *blocks* say.
    """

    side: Side
    blocks: list[JsonDict]
    joins: bool = False
    is_unknown: bool = False
    call: object = None

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
    max_head_chars: int = MAX_HEAD_CHARS
    """Characters of unknown items that may belong to the head; more of them are units."""
    is_from_reply: Callable[[Item], bool] | None = None
    """Tells whether an item of an unknown type arrived in a reply that ctxpipe has seen."""

    def for_conversations(
        self, max_head_chars: int, is_from_reply: Callable[[Item], bool]
    ) -> Codec:
        """Return a copy that knows the room for the head, and the items of earlier replies."""
        own = copy(self)
        own.max_head_chars = max_head_chars
        own.is_from_reply = is_from_reply
        return own

    def unknown(self, item: Item, name: object = None, call: object = None) -> Reading:
        """Read *item*, whose type the codec does not know.

        It is part of the reply that it arrived in, otherwise an opaque block of the user. *name* is
        its type, *call* the id of the call that it makes or answers.
        """
        if self.is_from_reply is not None and self.is_from_reply(item):
            return Reading("assistant", [opaque_block(item)], joins=True, call=call)
        return Reading("user", [client_block(item, name)], is_unknown=True, call=call)

    def is_answer(self, item: Item) -> bool:
        """Return True if *item*, which has the id of a call, is its result and not the call."""
        del item
        return False

    def answer_content(self, item: Item) -> object:
        """Return the content of *item*, the result of a call, for a tool_result."""
        return [client_block(item)]

    def steps_aside(self, items: Sequence[Item]) -> bool:
        """Return True if a request with *items* must be sent as it came."""
        del items
        return False

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
    """A *message* of ours for the foreign items at the indices *items*, in their order.

    *owners* says for each block which item it is of. *names* are the ids of calls that differ from
    those of the items, with the items' own. One that is not sound has a call without a result, or
    the reverse, for which the API refuses the items. One that *is_final* stays what it is whatever
    follows, and so do all units before it.
    """

    message: Message
    items: Sequence[int]
    owners: tuple[int, ...] = ()
    names: Mapping[str, object] = field(default_factory=dict)
    is_sound: bool = True
    is_final: bool = True

    @property
    def stop(self) -> int:
        """The index after its last item; 0 for a unit of no item."""
        return self.items[-1] + 1 if self.items else 0


@dataclass(slots=True)
class _Group:
    """Items that become one message: neighbours, and unknown items that go with the results.

    With *may_pair* one of them is a call if a result for it follows.
    """

    side: Side
    joins: bool
    items: list[int] = field(default_factory=list)
    blocks: list[JsonDict] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    names: dict[str, object] = field(default_factory=dict)
    is_sound: bool = True
    is_final: bool = False
    may_pair: bool = False

    def add(self, index: int, reading: Reading) -> None:
        """Add item *index*, which was read as *reading*."""
        self.items.append(index)
        self.blocks += reading.blocks
        self.owners += [index] * len(reading.blocks)
        self.may_pair |= reading.call is not None
        self.is_final |= not reading.is_unknown and reading.side != "assistant"


# Units --------------------------------------------------------------------------------------------


def make_units(codec: Codec, items: Sequence[Item], start: int, used: set[str]) -> list[Unit]:
    """The units of *items* from *start* on.

    *used* are the ids of the calls before, to which those of these items are added.
    """
    groups = _groups(_read_items(codec, items, start), start)
    for group in groups:
        _note_whether_final(group)
    for before, later in pairwise([None, *groups, None]):
        if before is not None and before.side == "assistant":
            _pair(codec, before, later, used)
        elif later is not None and later.side == "result":
            _make_opaque(codec, later, frozenset())
    for group in groups:
        _settle(group)
    _place_systems(groups)
    return [_as_unit(group) for group in groups]


def opening_unit() -> Unit:
    """A unit of no item, for a conversation that does not begin with the user."""
    return Unit(cast("Message", {"role": "user", "content": OPENING}), ())


def _groups(readings: Sequence[Reading], start: int) -> list[_Group]:
    """Return the groups of *readings*, the first of which is of item *start*."""
    groups: list[_Group] = []
    waiting: list[int] = []  # places of unknown items that go with the next results
    home = ""
    last: _Group | None
    for place, reading in enumerate(readings):
        last = groups[-1] if groups else None
        if reading.is_unknown:
            if not place or not readings[place - 1].is_unknown:
                home = _home_of_unknown(last, readings, place)
            if last is not None and home == "call":
                last.items.append(start + place)
            elif home == "results":
                waiting.append(place)
            else:
                groups.append(_Group("user", joins=False))
                groups[-1].add(start + place, reading)
            continue
        joins = reading.joins or reading.side == "result"
        if last is None or not (joins and last.joins and last.side == reading.side):
            last = _Group(reading.side, joins)
            groups.append(last)
        if reading.side == "result":
            for each in waiting:
                last.add(start + each, readings[each])
            waiting.clear()
        last.add(start + place, reading)
    return groups


def _home_of_unknown(last: _Group | None, readings: Sequence[Reading], place: int) -> str:
    """Return what the unknown items from *place* of *readings* on go with; *last* is before them.

    That is "results" where they are between a call and the last result of one reply: no message may
    come between these. It is "call" where that call is the last of all and still waits: it must
    stay the last message. Otherwise it is "", and each of them is a message.
    """
    if last is None:
        return ""
    calls = {block["id"] for block in last.blocks if kind(block) in CALLS}
    if last.side != "result" and not (last.side == "assistant" and calls):
        return ""
    has_known = False
    for later in range(place, len(readings)):
        reading = readings[later]
        if reading.is_unknown:
            continue
        if reading.side == "result":
            return "results"
        is_same_reply = reading.side == last.side and reading.joins and last.joins
        if not is_same_reply:
            return ""
        has_known = True
    is_waiting = last.side == "assistant" and not has_known
    return "call" if is_waiting else ""


def _note_whether_final(group: _Group) -> None:
    """Note in *group* whether it stays what it is whatever follows, as all before it then does.

    Words of the user and results are final. A call, and reasoning, may still be joined with what
    the model says later, and an unknown item may turn out to be a call, or between two halves.
    """
    if group.side != "assistant":
        return
    kinds = {kind(block) for block in group.blocks}
    says_more = bool(kinds - CALLS - THINKING)
    group.is_final = says_more and CALLS.isdisjoint(kinds) and not group.may_pair


# Calls and results of unknown items ---------------------------------------------------------------


def _read_items(codec: Codec, items: Sequence[Item], start: int) -> list[Reading]:
    """Read *items* from *start* on.

    One that may be a call or its result is that if the other half is in the same exchange.
    """
    readings = [codec.read(item) for item in items[start:]]
    if all(reading.call is None for reading in readings):
        return readings
    open_calls: set[object] = set()
    has_results = False  # in the exchange so far
    for place, reading in enumerate(readings):
        item = items[start + place]
        call = reading.call
        if call is not None and _is_half(codec, items, readings, place, open_calls):
            if codec.is_answer(item):
                block = result_block(call, codec.answer_content(item))
                readings[place] = Reading("result", [block])
            else:
                arguments = arguments_object(client_block(item)["json"])
                block = use_block(call, kind(item), arguments)
                readings[place] = Reading("assistant", [block], joins=True)
            reading = readings[place]  # noqa: PLW2901
        elif reading.is_unknown:
            continue
        if reading.side == "result":
            has_results = True
        elif reading.side != "assistant" or has_results:
            open_calls.clear()
            has_results = False
        for block in reading.blocks:
            if kind(block) in CALLS:
                open_calls.add(block["id"])
            open_calls.discard(block.get("tool_use_id"))
    return readings


def _is_half(
    codec: Codec,
    items: Sequence[Item],
    readings: Sequence[Reading],
    place: int,
    open_calls: AbstractSet[object],
) -> bool:
    """Return True if the item at *place* is a call with a result, or the result of a call.

    *readings* are those of the last of *items*, *open_calls* the ids of the calls before it that
    have no result yet.
    """
    start = len(items) - len(readings)
    call = readings[place].call
    is_answer = codec.is_answer(items[start + place])
    if is_answer and (call not in open_calls or not readings[place].is_unknown):
        return False
    if not is_answer and call in open_calls:
        return False  # it is about that call, and is neither half of it
    has_results = False
    for later in range(place + 1, len(readings)):
        reading = readings[later]
        has_answer = any(block.get("tool_use_id") == call for block in reading.blocks)
        if not is_answer and reading.is_unknown and reading.call == call:
            has_answer = codec.is_answer(items[start + later])
        if has_answer:
            return not is_answer  # a known result comes before an unknown one
        if reading.is_unknown:
            continue
        is_call = not {kind(block) for block in reading.blocks} - CALLS - THINKING
        is_call |= reading.call is not None
        has_results |= reading.side == "result"
        if reading.side != "result" and (has_results or not is_call):
            break
    return is_answer


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
    items: Sequence[int] = sorted(group.items)
    if items[-1] - items[0] + 1 == len(items):
        items = range(items[0], items[-1] + 1)
    return Unit(message, items, tuple(group.owners), group.names, group.is_sound, group.is_final)


def head_length(codec: Codec, items: Sequence[Item], start: int) -> int:
    """Return how many of *items* belong to the head, of which the first *start* certainly do.

    After these it goes on with what the system says, and with unknown items as long as they leave
    room for the conversation. One that speaks for the system may be twice as long: without its
    tools an agent is of no use in a small window either. An unknown item that the first reply
    answers is no part of it: it is what the model was asked, unless it speaks for the system.
    """
    end = start
    chars = 0
    reading: Reading | None = None
    while end < len(items):
        reading = codec.read(items[end])
        if reading.is_unknown:
            size = sum(len(block["json"]) for block in reading.blocks)
            speaks_for_system = item_field(items[end], "role") in SYSTEM_ROLES
            chars += size // 2 if speaks_for_system else size
        elif reading.side != "system":
            break
        if chars > codec.max_head_chars:
            break
        end += 1
    is_asked = end == len(items) or (reading is not None and reading.side == "assistant")
    if end > start and is_asked:
        last = items[end - 1]
        if codec.read(last).is_unknown and item_field(last, "role") not in SYSTEM_ROLES:
            end -= 1
    return end


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
