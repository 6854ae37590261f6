"""Find the content that must not be summarized: unknown blocks, references, loaded tools.

Each such piece is a `Candidate` of a `CarryKind`. A compaction carries it over as far as its budget
allows; truncation removes it last. To recognize another kind of content, add it to `CarryKind`,
write a function from the messages to its candidates, and call it in `compact.pieces`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import cast

from ...messages import (
    MEDIA,
    OPAQUE,
    Block,
    Message,
    blocks,
    inner_blocks,
    is_opaque,
    kind,
    program,
    tool_results,
)
from ...messages import field as read
from ...messages.activity import one_line
from ...messages.facts import is_server_result
from ...messages.identity import digest
from ...messages.vocabulary import INSTRUCTION, SYSTEM_ROLES
from .removed import MAX_NAME_CHARS, block_kind

_REFERENCE_SOURCES = frozenset({"file", "url"})


class CarryKind(IntEnum):
    """Kinds of carried content, in the order in which they get their share of the budget."""

    LEADING = 1
    """An unknown block at the beginning of the request: it may define tools."""
    SYSTEM = 2
    """A system message from the middle of the history that still applies."""
    INSTRUCTION = 3
    """Words of the system that are a block in a message of the user, as other APIs have them."""
    TOOLS = 4
    """A block that defines tools, a reference to a tool, or an exchange that loads tools."""
    PIN = 5
    """A message that the caller has pinned; a call with its results."""
    REQUEST = 6
    """The user's newest request, if it is answered in part. It is shortened, never left out."""
    ATTACHMENT = 7
    """An unknown block or a reference in the message of that request."""
    PLAN = 8
    """The plan, or the to-do list; both with their calls."""
    SKILL = 9
    """A loaded skill."""
    WORDS = 10
    """Earlier words of the user."""
    ERROR = 11
    """A call that has failed and not succeeded since, or the note about it."""
    JOB = 12
    """A call that started a job which goes on running, or the note about it."""
    BLOCK = 13
    """An unknown block, or a reference to a file."""


BLOCK_KINDS = frozenset(
    {
        CarryKind.LEADING,
        CarryKind.INSTRUCTION,
        CarryKind.TOOLS,
        CarryKind.ATTACHMENT,
        CarryKind.BLOCK,
    }
)
"""Kinds of the candidates that `blocks_to_carry` finds."""

TEXT_KINDS = frozenset({CarryKind.PLAN, CarryKind.SKILL, CarryKind.WORDS})
"""Kinds of candidates that still apply, of which each may be a single text."""

SYSTEM_KINDS = frozenset({CarryKind.SYSTEM, CarryKind.INSTRUCTION, CarryKind.TOOLS})
"""Kinds of words of the system and of definitions of tools: they are the last to be removed."""

GOVERNING_KINDS = TEXT_KINDS | {CarryKind.ERROR, CarryKind.JOB}
"""Kinds of the candidates that still apply (see `what_applies`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A piece of the history that a compaction may carry over.

    *index* and *place* are the message and block at which it begins. *origin* is the message that
    it is a block of, None for whole messages. *name* is its name in reports, *target* the file or
    address that it refers to. *is_answered* is False for words that the model has not answered,
    and for a system prompt: they are always in the context and do not count. *shorten* returns a
    shorter candidate with a number of characters; *chars* is the current number, *whole_chars* that
    of the whole piece. Within a kind, candidates of a lower *tier* come first.
    """

    kind: CarryKind
    index: int
    place: int
    messages: Sequence[Message] = field(repr=False)
    name: str
    target: str = ""
    origin: Message | None = field(default=None, repr=False)
    is_answered: bool = True
    chars: int = 0
    shorten: Callable[[int], Candidate] | None = field(default=None, repr=False)
    whole_chars: int = 0
    tier: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.target}".rstrip()

    def shorter(self, chars: int) -> Candidate:
        """Return the candidate with *chars* characters; itself if it cannot be shortened."""
        if self.shorten is None:
            return self
        whole_chars = self.whole_chars or self.chars
        shorter = self.shorten(chars)
        return replace(shorter, chars=chars, whole_chars=whole_chars, shorten=self.shorten)

    def whole(self) -> Candidate:
        """Return the candidate with all its characters."""
        return self.shorter(self.whole_chars) if self.is_cut else self

    @property
    def is_cut(self) -> bool:
        """True if a part of the piece is left out."""
        return self.chars < self.whole_chars

    @property
    def key(self) -> tuple[int, int]:
        """Place in the history: message and block index."""
        return self.index, self.place


def is_reference(block: Block) -> bool:
    """Return True if *block* only refers to a file that is stored elsewhere, or to a tool."""
    name = kind(block)
    if name in ("container_upload", "tool_reference"):
        return True
    if name not in MEDIA:
        return False
    source = read(block, "source")
    if kind(source) not in _REFERENCE_SOURCES:
        return False
    return not str(read(source, "url", "")).startswith("data:")


def is_carried(block: Block) -> bool:
    """Return True if *block* is one that a compaction does not summarize, by its kind.

    That is a block of a kind that ctxpipe does not know, or a reference to a file or tool. It is
    only a candidate: whether it stays in the context depends on the budget.
    """
    return is_opaque(block) or is_reference(block)


def blocks_to_carry(messages: Sequence[Message]) -> list[Candidate]:
    """Return the blocks and exchanges of *messages* to carry over, in their order.

    They are unknown blocks and references in the user's messages, and the exchanges that loaded
    tools by reference. An unknown block about a call, such as its progress, goes with the call once
    that is answered. Words of the system that are repeated are carried once, at their last place.
    """
    candidates: list[Candidate] = []
    answered_calls = {result.tool_use_id for result in tool_results(messages)}
    last_instructions = _last_instructions(messages)
    is_leading = True
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            candidates += _tool_loads(messages, index)
        if message["role"] != "user" or isinstance(message["content"], str):
            is_leading = False
            continue
        for place, block in enumerate(blocks(message)):
            is_leading = is_leading and is_opaque(block)
            for part in inner_blocks(block):
                # References to tools are carried with their call, by `_tool_loads`.
                if is_reference(part) and kind(part) != "tool_reference":
                    candidates.append(_reference_in_result(part, index, place))
            if not is_carried(block) or _call_id(block) in answered_calls:
                continue
            if last_instructions.get(_instruction(block), (index, place)) == (index, place):
                carry_kind = CarryKind.LEADING if is_leading else kind_of_block(block)
                # At the beginning they are the system prompt, which no budget may remove.
                is_system_prompt = is_leading and _instruction(block) != ""
                candidates.append(
                    Candidate(
                        carry_kind,
                        index,
                        place,
                        [with_only(message, [block])],
                        name=block_kind(block),
                        target=_target(block),
                        origin=message,
                        is_answered=not is_system_prompt,
                    )
                )
    return candidates


def system_messages_in_force(messages: Sequence[Message]) -> list[Candidate]:
    """Return the system messages in *messages* that still apply, each once, at its last place."""
    candidates: list[Candidate] = []
    seen_digests: set[bytes] = set()
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message["role"] != "system" or "clear_at" in message:
            continue
        message_digest = digest(message)
        if message_digest not in seen_digests:
            seen_digests.add(message_digest)
            candidates.append(Candidate(CarryKind.SYSTEM, index, 0, [message], "system message"))
    return candidates[::-1]


def _reference_in_result(part: Block, index: int, place: int) -> Candidate:
    """Return a candidate for *part* of a tool's result, which the user passes on by itself."""
    alone = cast("Message", {"role": "user", "content": [part]})
    name = block_kind(part)
    return Candidate(CarryKind.BLOCK, index, place, [alone], name, _target(part), alone)


def _last_instructions(messages: Sequence[Message]) -> dict[str, tuple[int, int]]:
    """Return for all words of the system in the user's messages the last place where they are."""
    places: dict[str, tuple[int, int]] = {}
    for index, message in enumerate(messages):
        if message["role"] == "user":
            for place, block in enumerate(blocks(message)):
                places[_instruction(block)] = (index, place)
    places.pop("", None)
    return places


def kind_of_block(block: Block) -> CarryKind:
    """Return the kind of *block*, which `is_carried`, wherever it is in the history.

    An item of another API that defines tools, or that has the role of the system, governs the
    model, also if ctxpipe does not know its type.
    """
    if _instruction(block):
        return CarryKind.INSTRUCTION
    item = _item(block)
    if kind(block) == "tool_reference" or isinstance(read(item, "tools"), list | tuple):
        return CarryKind.TOOLS
    role = read(item, "role")
    if isinstance(role, str) and role in SYSTEM_ROLES:
        return CarryKind.INSTRUCTION
    return CarryKind.BLOCK


def _item(block: Block) -> object:
    """Return the item that an opaque *block* represents; any other block itself."""
    if kind(block) != OPAQUE:
        return block
    text = str(read(block, "json"))
    if '"tools":' in text or '"role":' in text:  # most items have neither, and may be long
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return None


def _instruction(block: Block) -> str:
    """Return the words of the system that *block* represents; "" if it represents none."""
    if kind(block) != OPAQUE or read(block, "kind") != INSTRUCTION:
        return ""
    return str(read(block, "json"))


def _call_id(block: Block) -> str:
    """Return the id of the call that an unknown *block* is about; "" if it is about none."""
    return str(read(block, "call", "")) if kind(block) == OPAQUE else ""


def _tool_loads(messages: Sequence[Message], index: int) -> Iterator[Candidate]:
    """Yield the calls of message *index* that loaded tools, with their results, as one piece."""
    message = messages[index]
    names: list[str] = []
    calls: list[Block] = []
    results: list[Block] = []
    answers = blocks(messages[index + 1]) if index + 1 < len(messages) else ()
    for answer in answers:
        tools = [part for part in inner_blocks(answer) if kind(part) == "tool_reference"]
        if not tools or kind(answer) != "tool_result":
            continue
        call = _call_of(message, answer)
        if call is not None and program(call) is None:
            calls.append(call)
            results.append(answer)
            names += [str(read(tool, "tool_name")) for tool in tools]
    searches: list[Block] = []
    previous: Block | None = None
    for block in blocks(message):
        tool_names = _tools_found(block)
        call = _call_of(message, block) if tool_names else None
        if tool_names and kind(block) == OPAQUE:
            call = previous  # it has no id, but a search comes right before its result
        if call is not None:
            searches += [call, block]
            names += tool_names
        previous = block if kind(block) == OPAQUE else None
    if not names:
        return
    pieces = [with_only(message, [*searches, *calls])]
    if results:
        pieces.append(with_only(messages[index + 1], results))
    target = one_line(" ".join(names)[:MAX_NAME_CHARS])
    yield Candidate(CarryKind.TOOLS, index, 0, pieces, "tool_reference", target)


def _call_of(message: Message, result: Block) -> Block | None:
    """Return the block of *message* with the id that *result* answers, or None."""
    call_id = read(result, "tool_use_id")
    if call_id is None:
        return None
    for block in blocks(message):
        if read(block, "id") == call_id:
            return block
    return None


def _tools_found(block: Block) -> list[str]:
    """Return the names of the tools that *block*, the result of a server's search, has loaded."""
    if kind(block) == OPAQUE:
        return [str(name) for name in read(block, "tools") or ()]
    if not is_server_result(kind(block)):
        return []
    references = read(read(block, "content"), "tool_references") or ()
    return [str(read(reference, "tool_name")) for reference in references]


def with_only(message: Message, content: Sequence[Block]) -> Message:
    """Return *message* with only the blocks *content*; the same object if these are all."""
    if len(content) == len(blocks(message)):
        return message
    return cast("Message", {"role": message["role"], "content": list(content)})


def _target(block: Block) -> str:
    """Return the file or address that *block* refers to; "" for an unknown block."""
    if is_opaque(block):
        return ""
    source = read(block, "source", block)
    target = read(source, "file_id") or read(source, "url") or read(source, "tool_name") or ""
    return one_line(str(target)[:MAX_NAME_CHARS])
