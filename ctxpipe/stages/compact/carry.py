"""Share one budget among the answered content that passes a compaction verbatim.

A compaction replaces the answered part of a history by its summary. Some of it must not be
summarized: pinned messages, the request that is being worked on, blocks that ctxpipe does not know,
references to files. Each such piece is a `Candidate`. `select` gives them their share of the
budget, in the order of `CarryKind`; within a kind the newest come first. Restored files and the
evidence get the rest. Candidates that are left out go to a file, which the context names in one
line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import cast

from ...messages import (
    MEDIA,
    OPAQUE,
    Block,
    Message,
    as_blocks,
    blocks,
    compact_json,
    inner_blocks,
    is_opaque,
    kind,
    program,
    tool_results,
    without_surrogates,
)
from ...messages import field as read
from ...messages.activity import one_line
from ...messages.facts import is_server_result
from ...messages.vocabulary import INSTRUCTION
from ...placeholders.summaries import CARRIED_LINE, SHORT_REPLY

_REFERENCE_SOURCES = frozenset({"file", "url"})
_MAX_NAME = 80  # characters of a name in the context
_MAX_LINE = 1_000  # characters of the names of all that was left out
_NAMES_OF_A_KIND = 20
_COMMON_KINDS = ("tool_use", "tool_result", "text", "thinking", "redacted_thinking")


class CarryKind(IntEnum):
    """Kinds of carried content, in the order in which they get their share of the budget."""

    LEADING = 1
    """An unknown block at the beginning of the request: it may define tools."""
    SYSTEM = 2
    """A system message from the middle of the history that still applies."""
    PIN = 3
    """A message that the caller has pinned; a call with its results."""
    REQUEST = 4
    """The user's newest request, if it is answered in part. It is shortened, never left out."""
    ATTACHMENT = 5
    """An unknown block or a reference in the message of that request."""
    BLOCK = 6
    """An unknown block, a reference to a file, or an exchange that loads tools."""


BLOCK_KINDS = frozenset({CarryKind.LEADING, CarryKind.ATTACHMENT, CarryKind.BLOCK})
"""Kinds of the candidates that `blocks_to_carry` finds."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A piece of the history that a compaction may carry over.

    *index* and *place* are the message and block at which it begins. *origin* is the message that
    it is a block of, None for whole messages. *name* is its name in reports, *target* the file or
    address that it refers to. *is_answered* is False for words that the model has not answered,
    and for a system prompt: they are always in the context and do not count. *shorten* returns a
    shorter candidate with a number of characters; *chars* is the current number.
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

    def __str__(self) -> str:
        return f"{self.name} {self.target}".rstrip()

    def shorter(self, chars: int) -> Candidate:
        """Return the candidate with *chars* characters; itself if it cannot be shortened."""
        if self.shorten is None:
            return self
        return replace(self.shorten(chars), chars=chars, shorten=self.shorten)

    @property
    def key(self) -> tuple[int, int]:
        """Place in the history: message and block index."""
        return self.index, self.place


# What may be carried ------------------------------------------------------------------------------


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
                carry_kind = CarryKind.LEADING if is_leading else CarryKind.BLOCK
                # At the beginning they are the system prompt, which no budget may remove.
                is_system_prompt = is_leading and _instruction(block) != ""
                candidates.append(
                    Candidate(
                        carry_kind,
                        index,
                        place,
                        [_only(message, [block])],
                        name=block_kind(block),
                        target=_target(block),
                        origin=message,
                        is_answered=not is_system_prompt,
                    )
                )
    return candidates


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


def _instruction(block: Block) -> str:
    """Return the words of the system that *block* represents; "" if it represents none."""
    if kind(block) != OPAQUE or read(block, "kind") != INSTRUCTION:
        return ""
    return str(read(block, "json"))


def _call_id(block: Block) -> str:
    """Return the id of the call that an unknown *block* is about; "" if it is about none."""
    return str(read(block, "call", "")) if kind(block) == OPAQUE else ""


def attach(candidates: Iterable[Candidate], index: int) -> list[Candidate]:
    """Return *candidates*; blocks of message *index* become attachments of the request in it."""
    attached: list[Candidate] = []
    for candidate in candidates:
        is_block = candidate.kind == CarryKind.BLOCK and candidate.origin is not None
        if is_block and candidate.index == index:
            attached.append(replace(candidate, kind=CarryKind.ATTACHMENT))
        else:
            attached.append(candidate)
    return attached


def without_leading_blocks(
    pinned_pieces: Iterable[Candidate], candidates: Iterable[Candidate]
) -> list[Candidate]:
    """Return *pinned_pieces* without the blocks among *candidates* that are before the summary.

    Such a block would be in the context twice. A pinned message of nothing else is left out.
    """
    leading_counts: Counter[int] = Counter()
    for candidate in candidates:
        if candidate.kind == CarryKind.LEADING:
            leading_counts[candidate.index] += 1
    pieces: list[Candidate] = []
    for piece in pinned_pieces:
        count = leading_counts[piece.index]
        if count == 0:
            pieces.append(piece)
            continue
        message, *results = piece.messages
        other_blocks = blocks(message)[count:]
        if other_blocks:
            messages = [_only(message, other_blocks), *results]
            pieces.append(replace(piece, place=count, messages=messages))
    return pieces


def _block_ids(messages: Iterable[Message]) -> set[int]:
    return {id(block) for message in messages for block in blocks(message)}


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
    pieces = [_only(message, [*searches, *calls])]
    if results:
        pieces.append(_only(messages[index + 1], results))
    target = one_line(" ".join(names)[:_MAX_NAME])
    yield Candidate(CarryKind.BLOCK, index, 0, pieces, "tool_reference", target)


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


def _only(message: Message, content: Sequence[Block]) -> Message:
    """Return *message* with only the blocks *content*; the same object if these are all."""
    if len(content) == len(blocks(message)):
        return message
    return cast("Message", {"role": message["role"], "content": list(content)})


def block_kind(block: Block) -> str:
    """Return the type of *block*; for an opaque block the foreign type that it represents."""
    name = kind(block)
    if name == OPAQUE:
        name = str(read(block, "kind", OPAQUE))
    return one_line(name[:_MAX_NAME])


def _target(block: Block) -> str:
    """Return the file or address that *block* refers to; "" for an unknown block."""
    if is_opaque(block):
        return ""
    source = read(block, "source", block)
    target = read(source, "file_id") or read(source, "url") or read(source, "tool_name") or ""
    return one_line(str(target)[:_MAX_NAME])


# The choice ---------------------------------------------------------------------------------------

_LEAST_REQUEST_CHARS = 1_000


def _cut_line(request: Candidate) -> str:
    return f"of the newest request {request.chars} characters are in the context"


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates that a context carries, in their order, and those left out.

    *used* are the raw *tokens* of the former. *cuts* are remarks on shortened requests.
    """

    chosen: Sequence[Candidate]
    left_out: Sequence[Candidate]
    tokens: Mapping[Candidate, int] = field(repr=False)
    used: int = 0
    cuts: Sequence[str] = ()

    def lighter(self, tokens: int) -> Selection | None:
        """Return a selection with at least *tokens* tokens less.

        The least important pieces are left out first; the request is shortened last. Returns None
        if nothing can be left out or shortened any more.
        """
        freed_tokens = 0
        removed: set[Candidate] = set()
        for candidate in reversed(_by_importance(self.chosen)):
            if freed_tokens >= tokens:
                break
            if candidate.is_answered and candidate.kind != CarryKind.REQUEST:
                freed_tokens += self.tokens[candidate]
                removed.add(candidate)
        if not removed:
            return self._with_short_request()
        chosen = [candidate for candidate in self.chosen if candidate not in removed]
        left_out = [*self.left_out, *removed]
        left_out.sort(key=_key)
        return replace(self, chosen=chosen, left_out=left_out, used=self.used - freed_tokens)

    def _with_short_request(self) -> Selection | None:
        """Return the selection with its user's request shortened; None if it is short already."""
        chosen = list(self.chosen)
        for place, candidate in enumerate(chosen):
            if candidate.shorten is not None and candidate.chars > _LEAST_REQUEST_CHARS:
                chosen[place] = candidate.shorter(_LEAST_REQUEST_CHARS)
                return replace(self, chosen=chosen, cuts=[_cut_line(chosen[place])])
        return None


NOTHING_CARRIED = Selection((), (), {})


def select(candidates: Sequence[Candidate], tokens: Sequence[int], max_tokens: int) -> Selection:
    """Return the *candidates* that get a part of *max_tokens*; *tokens* are those of each.

    A piece that does not fit is left out, and smaller ones after it still get their part: one huge
    block does not cost a reference of a few bytes its place. Unknown blocks at the beginning count
    as any other unknown blocks if they do not fit together. Blocks of a pinned message come with
    the message.
    """
    sizes = dict(zip(candidates, tokens, strict=True))
    leading = [
        candidate
        for candidate in candidates
        if candidate.kind == CarryKind.LEADING and candidate.is_answered
    ]
    if sum(sizes[candidate] for candidate in leading) > max_tokens:
        for candidate in leading:
            sizes[replace(candidate, kind=CarryKind.BLOCK)] = sizes.pop(candidate)
    chosen: list[Candidate] = []
    left_out: list[Candidate] = []
    cuts: list[str] = []
    pinned_blocks: set[int] = set()
    used = 0
    for candidate in _by_importance(sizes):
        size = sizes[candidate]
        if not candidate.is_answered:
            chosen.append(candidate)
            continue
        block_ids = _block_ids(candidate.messages)
        if candidate.kind in BLOCK_KINDS and block_ids and block_ids <= pinned_blocks:
            continue
        if used + size <= max_tokens:
            chosen.append(candidate)
            used += size
        elif candidate.shorten is not None:
            share = max(0, max_tokens - used) * 9 // 10  # the rest is for the remark on the cut
            chars = max(_LEAST_REQUEST_CHARS, candidate.chars * share // size)
            shorter = candidate.shorter(chars)
            chosen.append(shorter)
            cuts.append(_cut_line(shorter))
            used = max(used, max_tokens)
        else:
            left_out.append(candidate)
            continue
        if candidate.kind == CarryKind.PIN:
            pinned_blocks |= _block_ids(candidate.messages)
    chosen.sort(key=_key)
    left_out.sort(key=_key)
    return Selection(chosen, left_out, sizes, used, cuts)


def _key(candidate: Candidate) -> tuple[int, int]:
    return candidate.key


def _by_importance(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return *candidates* by kind, as in `CarryKind`; within a kind the newest come first."""

    def rank(candidate: Candidate) -> tuple[int, int, int]:
        return candidate.kind, -candidate.index, -candidate.place

    return sorted(candidates, key=rank)


def with_frame(candidate: Candidate) -> list[Message]:
    """Return the messages of *candidate* with the lines that may be needed before and after it."""
    first = [_user_line()] if candidate.messages[0]["role"] == "assistant" else []
    last = [_assistant_reply()] if candidate.messages[-1]["role"] == "user" else []
    if candidate.kind not in (CarryKind.PIN, CarryKind.ATTACHMENT, CarryKind.BLOCK):
        return list(candidate.messages)
    return [*first, *candidate.messages, *last]


def arrange(candidates: Iterable[Candidate]) -> list[Message]:
    """Return the messages of *candidates*, in order, as a valid piece that begins with the user.

    Blocks that follow each other, and the request, become one message; if the blocks are a whole
    message, it is the very same object. Between two messages of the same role, a short reply of the
    assistant, or a line of the user, is added.
    """
    arranged: list[list[Message]] = []  # those of a list become one message
    is_open = False  # blocks may be added to the last message
    last_role = "assistant"
    for group in _groups(candidates):
        pieces = _messages_of(group)
        can_join = group[0].origin is not None or group[0].kind == CarryKind.REQUEST
        if can_join and is_open:
            arranged[-1] += pieces
            continue
        for message in pieces:
            role = message["role"]
            if role == last_role:
                arranged.append([_user_line() if role == "assistant" else _assistant_reply()])
            arranged.append([message])
            last_role = role
        is_open = last_role == "user" and group[0].kind != CarryKind.PIN
    return [_as_one(messages) for messages in arranged]


def _as_one(messages: Sequence[Message]) -> Message:
    """Return one message with the blocks of all *messages*; the same object if it is only one."""
    if len(messages) == 1:
        return messages[0]
    content = [block for message in messages for block in as_blocks(message)]
    return cast("Message", {"role": messages[0]["role"], "content": content})


def _groups(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return the candidates in groups: neighboring blocks of one message are one group."""
    groups: list[list[Candidate]] = []
    for candidate in candidates:
        origin = candidate.origin
        if groups and origin is not None and groups[-1][0].origin is origin:
            groups[-1].append(candidate)
        else:
            groups.append([candidate])
    return groups


def _messages_of(group: Sequence[Candidate]) -> Sequence[Message]:
    """Return the messages of *group*, the chosen candidates of one message.

    Blocks of one message become one message that has only them.
    """
    origin = group[0].origin
    if origin is None:
        return group[0].messages
    return [_only(origin, [block for one in group for block in blocks(one.messages[0])])]


def _user_line() -> Message:
    return {"role": "user", "content": CARRIED_LINE}


def _assistant_reply() -> Message:
    return {"role": "assistant", "content": SHORT_REPLY}


def with_reply(messages: Sequence[Message]) -> list[Message]:
    """Return *messages* with a short fixed reply at the end, if the last one is the user's."""
    if messages and messages[-1]["role"] == "user":
        return [*messages, _assistant_reply()]
    return list(messages)


# Omissions ----------------------------------------------------------------------------------------


def omission_names(candidates: Iterable[Candidate]) -> str:
    """Return the names of *candidates* by kind: "2 container_upload (file_1, file_2)"."""
    targets_by_name: dict[str, list[str]] = {}
    for candidate in candidates:
        targets_by_name.setdefault(candidate.name, []).append(candidate.target)
    phrases: list[str] = []
    for name, all_targets in targets_by_name.items():
        targets = [target for target in all_targets if target]
        listed = ", ".join(targets[-_NAMES_OF_A_KIND:])
        if len(targets) > _NAMES_OF_A_KIND:
            listed = f"…, {listed}"
        count = f"{len(all_targets)} {name}"
        phrases.append(f"{count} ({listed})" if listed else count)
    text = ", ".join(phrases)
    return text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE - 2]} …"


OMISSIONS_FORM = 1


def omissions_text(
    candidates: Sequence[Candidate], before: str, as_stored: Callable[[Message], Message]
) -> str:
    """Return the text of the file with *candidates*: a line of JSON for each, after a first line.

    The first line has the version of the format and the path of the file *before* it, if there is
    one. *as_stored* returns a message as it may be stored, without secrets.
    """
    first: dict[str, object] = {"form": OMISSIONS_FORM}
    if before:
        first["before"] = before
    lines = [compact_json(first)]
    for candidate in candidates:
        messages = [as_stored(message) for message in candidate.messages]
        lines.append(compact_json({"name": str(candidate), "messages": messages}))
    return without_surrogates("".join(f"{line}\n" for line in lines))


def count_removed(before: Sequence[Message], after: Sequence[Message]) -> dict[str, int]:
    """Return the number of blocks of each kind that are in *before* and not in *after*.

    Blocks inside results count too, except texts. Rare kinds come first.
    """
    staying: set[int] = set()
    for message in after:
        staying.add(id(message))
        staying.update(id(block) for block in blocks(message))
    counts: Counter[str] = Counter()
    for message in before:
        if id(message) in staying:
            continue
        for block in as_blocks(message):
            if id(block) in staying:
                continue
            counts[block_kind(block)] += 1
            for part in inner_blocks(block):
                if kind(part) != "text":
                    counts[block_kind(part)] += 1
    common = [name for name in _COMMON_KINDS if name in counts]
    seldom = sorted(name for name in counts if name not in common)
    return {name: counts[name] for name in [*seldom, *common]}
