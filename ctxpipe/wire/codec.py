"""Interface of codecs, and conversion of foreign items to messages.

A *foreign item* is an element of another API's or framework's list: a chat message, a responses
item, a model object. A codec reads each item as blocks. This module groups the blocks into *units*:
messages that follow every rule of the Messages API, so that no repair changes them, each with the
indices of its items.

Items of an unknown type were written by the client, unless they arrived in a reply. Each becomes an
opaque block of the user in its own unit, so that it is neither summarized nor merged into a reply.
There are three exceptions: at the beginning of a request it belongs to the head; with the id of a
call it is that call or its result; between a call and the last result of the same reply it joins
the results, because the Messages API accepts nothing between the two.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from .._values import JsonDict, JsonObject
from ..messages import CALLS, THINKING, Message, as_blocks, kind
from ..messages import field as item_field
from ..messages.facts import MAX_TOOL_NAME
from ..messages.vocabulary import SYSTEM_ROLES
from ..placeholders.placeholders import OPENING
from .values import (
    arguments_object,
    client_block,
    instruction_block,
    opaque_block,
    result_block,
    text_block,
    use_block,
)

if TYPE_CHECKING:
    from .breakpoints import ItemMarks

Side: TypeAlias = Literal["system", "user", "assistant", "result"]
"""Author of an item; "result" is the answer to a call."""

Item: TypeAlias = Any
"""Foreign item, of any type."""

Sourced: TypeAlias = tuple[int | None, Item]
"""Index of the original item, None for a new item, and the item itself."""

Halves: TypeAlias = tuple[set[object], set[object]]
"""Ids of the calls in an item, and ids of the calls that the item answers."""

ANSWERED = frozenset({"user", "result"})
EMPTY = "[This message is empty.]"
MAX_HEAD_CHARS = 100_000
"""Maximum characters of unknown items in the head, unless the budget sets another limit."""
_ID = re.compile(r"[a-zA-Z0-9_-]{1,200}")
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Reading:
    """A foreign item as *blocks* of the Messages API; without blocks it becomes a text block.

    With *joins* the item forms one message with adjacent items of the same side, as results always
    do. *is_unknown* marks an item of the client that the codec cannot read. *call* is the id of a
    call that the item makes or answers, provided that the other half is in the same exchange;
    otherwise *side* and *blocks* describe the item.
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
        """Return the role and the blocks of *item*; unknown content becomes an opaque block."""


class Codec(ItemReader):
    """Converts the items of one form of conversation to blocks, and back."""

    refuses_halves: bool = True
    """True if the API refuses a call without its result, or a result without its call."""
    max_head_chars: int = MAX_HEAD_CHARS
    """Maximum characters of unknown items in the head; further items become units."""
    is_from_reply: Callable[[Item], bool] | None = None
    """Predicate that is True for an item of an unknown type that arrived in an earlier reply."""

    def marks(self) -> ItemMarks | None:
        """Return how items have cache breakpoints; None if they cannot have any."""
        return None

    def for_conversations(
        self, max_head_chars: int, is_from_reply: Callable[[Item], bool]
    ) -> Codec:
        """Return a copy with these two settings."""
        codec = copy(self)
        codec.max_head_chars = max_head_chars
        codec.is_from_reply = is_from_reply
        return codec

    def read_unknown(self, item: Item, name: object = None, call: object = None) -> Reading:
        """Read *item*, whose type the codec does not know.

        An item that arrived in a reply is part of that reply; any other is an opaque block of the
        user. *name* is its type, *call* the id of the call that it makes or answers.
        """
        if self.is_from_reply is not None and self.is_from_reply(item):
            return Reading("assistant", [opaque_block(item)], joins=True, call=call)
        block = client_block(item, name)
        if isinstance(call, str):
            block["call"] = call
        return Reading("user", [block], is_unknown=True, call=call)

    def is_answer(self, item: Item) -> bool:
        """Return True if *item*, which has the id of a call, is the result and not the call."""
        del item
        return False

    def answer_content(self, item: Item) -> object:
        """Return the content of *item*, the result of a call, for a tool_result block."""
        return [client_block(item)]

    def is_shapeable(self, items: Sequence[Item]) -> bool:
        """Return False if a request with *items* must be sent unchanged."""
        del items
        return True

    @abstractmethod
    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """Return a copy of *item* with *blocks* as its content; ids in *blocks* are the item's."""

    @abstractmethod
    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Return new items with the contents of *blocks*, which ctxpipe has written."""

    def replace_half(self, block: JsonObject) -> JsonDict:
        """Return the replacement for *block*, a call without its result or the reverse."""
        return opaque_block(block)

    def convert_media(self, items: Sequence[Item]) -> list[Item]:
        """Return *items* with images and documents of the Messages API converted to this API.

        Results may contain such blocks, because a caller forwards the answers of `read_offloaded`.
        """
        return list(items)

    def is_summary(self, item: Item) -> bool:
        """Return True if *item* is the provider's compaction of everything before it."""
        del item
        return False

    def frozen_count(self, items: Sequence[Item], start: int) -> int:
        """Return the number of leading items that are the provider's state and never shaped.

        Only the items from *start* on are searched for its end; returns 0 if it is not among them.
        """
        for index in reversed(range(start, len(items))):
            if self.is_summary(items[index]):
                return index + 1
        return 0

    def halves(self, item: Item) -> Halves:
        """Return the ids of the calls in *item*, and the ids of the calls that it answers."""
        blocks = self.read(item).blocks
        calls = {block["id"] for block in blocks if kind(block) in CALLS}
        return calls, {block["tool_use_id"] for block in blocks if kind(block) == "tool_result"}

    def repair(
        self, pairs: Sequence[Sourced], original_items: Sequence[Item], halves: Sequence[Halves]
    ) -> list[Sourced]:
        """Return *pairs* without the blocks that are invalid because other items have left.

        These are results whose call has left, and calls whose result has left. *halves* are those
        of the *original_items*.
        """
        halves_by_item: dict[int, Halves] = {}  # by the identity of the item
        for item, item_halves in zip(original_items, halves, strict=True):
            halves_by_item[id(item)] = item_halves
        new_halves = [halves_by_item.get(id(item)) or self.halves(item) for _, item in pairs]
        calls, results = _union(new_halves)
        original_calls, original_results = _union(halves)
        lost_calls = original_calls - calls
        lost_results = original_results - results
        if lost_calls.isdisjoint(results) and lost_results.isdisjoint(calls):
            return list(pairs)
        valid_pairs: list[Sourced] = []
        for (source, item), (item_calls, item_results) in zip(pairs, new_halves, strict=True):
            if lost_results.isdisjoint(item_calls) and lost_calls.isdisjoint(item_results):
                valid_pairs.append((source, item))
                continue
            valid_blocks = []
            for block in self.read(item).blocks:
                is_lost = block.get("id") in lost_results or block.get("tool_use_id") in lost_calls
                if not is_lost:
                    valid_blocks.append(block)
            if any(kind(block) not in THINKING for block in valid_blocks):
                valid_pairs.append((source, self.rebuild(item, valid_blocks)))
        return valid_pairs


def _union(halves: Iterable[Halves]) -> Halves:
    """Return all calls and all results of several items, as two sets."""
    calls: set[object] = set()
    results: set[object] = set()
    for item_calls, item_results in halves:
        calls |= item_calls
        results |= item_results
    return calls, results


@dataclass(frozen=True, slots=True)
class Unit:
    """A *message* for the foreign items at the indices *items*, in their order.

    *owners* has the index of its item for each block. *names* maps ids of calls in the message to
    the ids in the items, if they differ. If *is_valid* is False, the unit has a call without a
    result or the reverse, so the API would refuse the items. Later items change neither a unit that
    *is_final* nor the units before it.
    """

    message: Message
    items: Sequence[int]
    owners: tuple[int, ...] = ()
    names: Mapping[str, object] = field(default_factory=dict)
    is_valid: bool = True
    is_final: bool = True

    @property
    def stop(self) -> int:
        """Index after its last item; 0 for a unit without items."""
        return self.items[-1] + 1 if self.items else 0


@dataclass(slots=True)
class _Group:
    """Items that become one message: adjacent items, and unknown items that join the results.

    With *may_pair* one of them is a call if a result for it follows.
    """

    side: Side
    joins: bool
    items: list[int] = field(default_factory=list)
    blocks: list[JsonDict] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    names: dict[str, object] = field(default_factory=dict)
    is_valid: bool = True
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


def make_units(codec: Codec, items: Sequence[Item], start: int, used_ids: set[str]) -> list[Unit]:
    """Return the units of *items* from *start* on.

    *used_ids* has the ids of the earlier calls; the ids of the calls in these items are added to
    it.
    """
    groups = _groups(_read_items(codec, items, start), start)
    for group in groups:
        _set_final(group)
    for before, later in pairwise([None, *groups, None]):
        if before is not None and before.side == "assistant":
            _pair(codec, before, later, used_ids)
        elif later is not None and later.side == "result":
            _make_opaque(codec, later, frozenset())
    for group in groups:
        _make_valid(group)
    _move_systems_to_user(groups, items)
    return [_as_unit(group) for group in groups]


def opening_unit() -> Unit:
    """Return a unit without items, for a conversation that does not begin with the user."""
    return Unit(cast("Message", {"role": "user", "content": OPENING}), ())


# Adjacent items of one side become a group, which is one message. An unknown item is a group of its
# own, unless it is between a call and its result: there it joins the results. For example:
#
#     item  read as              group
#     0     user text            0 user
#     1     assistant call a     1 assistant
#     2     assistant call b     1 assistant
#     3     unknown              2 results (it joins the next results)
#     4     result of a          2 results
#     5     result of b          2 results
#     6     unknown              3 user (no call is waiting)


def _groups(readings: Sequence[Reading], start: int) -> list[_Group]:
    """Return the groups of *readings*, the first of which belongs to item *start*."""
    groups: list[_Group] = []
    waiting: list[int] = []  # places of unknown items that join the next results
    target = "none"  # the group that unknown items join
    last: _Group | None
    for place, reading in enumerate(readings):
        last = groups[-1] if groups else None
        if reading.is_unknown:
            if not place or not readings[place - 1].is_unknown:
                target = _group_of_unknown(last, readings, place)
            if last is not None and target == "call":
                last.items.append(start + place)
            elif target == "results":
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
            for earlier in waiting:
                last.add(start + earlier, readings[earlier])
            waiting.clear()
        last.add(start + place, reading)
    return groups


def _group_of_unknown(
    last: _Group | None, readings: Sequence[Reading], place: int
) -> Literal["results", "call", "none"]:
    """Return which group the unknown items from *place* on join; *last* is the group before them.

    It is "results" if the items are between a call and the last result of the same reply, because
    no message may come between these. It is "call" if that call is the last known item and has no
    result yet, because it must stay the last message. It is "none" otherwise: then each item
    becomes its own message.
    """
    if last is None:
        return "none"
    calls = {block["id"] for block in last.blocks if kind(block) in CALLS}
    if last.side != "result" and not (last.side == "assistant" and calls):
        return "none"
    has_known_items = False
    for later in range(place, len(readings)):
        reading = readings[later]
        if reading.is_unknown:
            continue
        if reading.side == "result":
            return "results"
        is_same_reply = reading.side == last.side and reading.joins and last.joins
        if not is_same_reply:
            return "none"
        has_known_items = True
    if last.side == "assistant" and not has_known_items:
        return "call"
    return "none"


def _set_final(group: _Group) -> None:
    """Set whether *group* is final: no later item can change it, nor the groups before it.

    Messages of the user and results are final. A call, and reasoning, may still be merged with
    later words of the model, and an unknown item may prove to be a call, or between two halves.
    """
    if group.side != "assistant":
        return
    kinds = {kind(block) for block in group.blocks}
    has_text = bool(kinds - CALLS - THINKING)
    group.is_final = has_text and CALLS.isdisjoint(kinds) and not group.may_pair


# Calls and results of unknown items ---------------------------------------------------------------


def _read_items(codec: Codec, items: Sequence[Item], start: int) -> list[Reading]:
    """Read *items* from *start* on.

    An item that may be a call or a result is read as one if its other half is in the same exchange.
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

    *readings* belong to the last of *items*. *open_calls* has the ids of the earlier calls without
    a result.
    """
    start = len(items) - len(readings)
    call = readings[place].call
    is_answer = codec.is_answer(items[start + place])
    if is_answer and (call not in open_calls or not readings[place].is_unknown):
        return False
    if not is_answer and call in open_calls:
        return False  # it refers to that call, and is neither half of it
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


def _pair(codec: Codec, group: _Group, later: _Group | None, used_ids: set[str]) -> None:
    """Give each call of *group* that has a result in *later* a unique id.

    Results with ids of no call answer the calls without results, in order. Other calls become
    opaque, unless *later* is None: then they wait for their results.
    """
    answers = {} if later is None else _answers(later)
    calls = {block["id"] for block in group.blocks if kind(block) in CALLS}
    spare_results: list[int] = []  # places of results with ids of no call
    for answered_id, places in answers.items():
        if answered_id not in calls:
            spare_results += places
    answer_places: set[int] = set()
    for place, block in enumerate(group.blocks):
        if kind(block) not in CALLS:
            continue
        original_id = block["id"]
        waiting = answers.get(original_id) or spare_results
        if not waiting and later is not None:
            group.blocks[place] = codec.replace_half(block)
            group.is_valid &= not codec.refuses_halves
            continue
        name = _unique_id(original_id, used_ids)
        tool = block["name"][:MAX_TOOL_NAME] or "unknown_tool"
        group.blocks[place] = {**block, "id": name, "name": tool}
        if name != original_id:
            group.names[name] = original_id
        if waiting and later is not None:
            answer = waiting.pop(0)
            answer_places.add(answer)
            answered_id = later.blocks[answer]["tool_use_id"]
            later.blocks[answer] = {**later.blocks[answer], "tool_use_id": name}
            if name != answered_id:
                later.names[name] = answered_id
    if later is not None and later.side == "result":
        _make_opaque(codec, later, answer_places)


def _answers(group: _Group) -> dict[object, list[int]]:
    """Return the indices of the result blocks in *group*, by the id of their call."""
    answers: dict[object, list[int]] = {}
    if group.side != "result":
        return answers
    for place, block in enumerate(group.blocks):
        if kind(block) == "tool_result":
            answers.setdefault(block["tool_use_id"], []).append(place)
    return answers


def _make_opaque(codec: Codec, group: _Group, answer_places: AbstractSet[int]) -> None:
    """Make the results in *group* opaque that answer no call.

    The results at *answer_places* do, and are moved to the front.
    """
    if len(answer_places) == len(group.blocks):
        return
    for place, block in enumerate(group.blocks):
        if place not in answer_places and kind(block) == "tool_result":
            group.blocks[place] = codec.replace_half(block)
            group.is_valid &= not codec.refuses_halves
    order = sorted(range(len(group.blocks)), key=lambda place: place not in answer_places)
    group.blocks = [group.blocks[place] for place in order]
    group.owners = [group.owners[place] for place in order]


def _unique_id(original_id: object, used_ids: set[str]) -> str:
    """Return a valid id of the Messages API for *original_id*; it is added to *used_ids*."""
    name = original_id if isinstance(original_id, str) else repr(original_id)
    if not _ID.fullmatch(name):
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{_NOT_IN_ID.sub('_', name)[:40]}_{digest[:16]}"
    number = 1
    unique = name
    while unique in used_ids:
        number += 1
        unique = f"{name}-{number}"
    used_ids.add(unique)
    return unique


def _make_valid(group: _Group) -> None:
    """Make thinking at the end of a reply opaque, and results without an id the user's."""
    if group.side == "assistant":
        for place in reversed(range(len(group.blocks))):
            if kind(group.blocks[place]) not in THINKING:
                break
            group.blocks[place] = opaque_block(group.blocks[place])
    elif group.side == "result" and not any("tool_use_id" in block for block in group.blocks):
        group.side = "user"


def _move_systems_to_user(groups: Sequence[_Group], items: Sequence[Item]) -> None:
    """Turn system messages into the user's where the Messages API accepts no system message.

    It accepts them only between the user and the assistant. Elsewhere they are opaque, so that a
    compaction carries them on instead of summarizing them with the user's words.
    """
    others = (group.side for group in groups if group.side != "system")
    sides: list[Side] = ["assistant", *others, "assistant"]
    position = 0  # in *sides*, of the last group that is not a system message
    for group in groups:
        if group.side != "system":
            position += 1
        elif sides[position] not in ANSWERED or sides[position + 1] != "assistant":
            group.side = "user"
            group.blocks = [instruction_block(items[index]) for index in group.items]
            group.owners = list(group.items)


def _as_unit(group: _Group) -> Unit:
    """Return *group* as a unit: one message, with the indices of its items in ascending order.

    Results become a message of the user. A single text block becomes a plain text as content.
    Indices without a gap become a range.
    """
    role = "user" if group.side == "result" else group.side
    content: object = group.blocks
    if len(group.blocks) == 1 and kind(group.blocks[0]) == "text":
        content = group.blocks[0]["text"]
    message = cast("Message", {"role": role, "content": content})
    items: Sequence[int] = sorted(group.items)
    if items[-1] - items[0] + 1 == len(items):
        items = range(items[0], items[-1] + 1)
    return Unit(message, items, tuple(group.owners), group.names, group.is_valid, group.is_final)


def head_length(codec: Codec, items: Sequence[Item], start: int) -> int:
    """Return the number of *items* that belong to the head; the first *start* always do.

    The head continues with system items, and with unknown items as long as they leave space for the
    conversation. Unknown items with a role of the system may be twice as long: without its tools an
    agent is useless in a small window too. An unknown item that the first reply follows is the
    prompt, not part of the head, unless it has a role of the system.
    """
    end = start
    chars = 0
    reading: Reading | None = None
    while end < len(items):
        reading = codec.read(items[end])
        if reading.is_unknown:
            size = sum(len(block["json"]) for block in reading.blocks)
            if item_field(items[end], "role") in SYSTEM_ROLES:
                size //= 2
            chars += size
        elif reading.side != "system":
            break
        if chars > codec.max_head_chars:
            break
        end += 1
    is_before_reply = reading is not None and reading.side == "assistant"
    if end > start and (end == len(items) or is_before_reply):
        last = items[end - 1]
        if codec.read(last).is_unknown and item_field(last, "role") not in SYSTEM_ROLES:
            end -= 1
    return end


def head_blocks(readings: Iterable[Reading]) -> Iterator[JsonDict]:
    """Yield the contents of the head, which is never shaped, as blocks of a system prompt."""
    for reading in readings:
        for block in reading.blocks:
            if kind(block) == "text":
                yield text_block(block["text"])
            else:
                yield opaque_block(block)


class MessagesCodec(ItemReader):
    """Reads messages of the Messages API, which need no conversion."""

    def read(self, item: Item) -> Reading:
        """Return the blocks of *item*."""
        role = item["role"]
        side: Side = role if role in ("assistant", "system") else "user"
        return Reading(side, cast("list[JsonDict]", as_blocks(item)))
