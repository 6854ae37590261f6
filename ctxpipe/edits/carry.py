"""One budget for everything answered that passes a compaction word for word.

A compaction replaces the answered part of a history by its summary. Some of it must not be
summarized: pinned messages, the request under way, blocks that ctxpipe does not know, references to
files. Each such piece is a `Candidate`. `select` gives them their share of one budget, in the order
of `CarryKind`; within a kind the newest come first. Restored files and the evidence get what is
left. What is not chosen goes to a file, and the context names that file in one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import cast

from ..messages import (
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
    without_surrogates,
)
from ..messages import field as read
from ..messages.facts import is_server_result
from ..placeholders.summaries import KEPT, SEEN
from .activity import one_line

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
    """A system message from the middle of the history that is still in force."""
    PIN = 3
    """What the caller has pinned, a call with its results."""
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
    """A piece of the history that a compaction may carry on.

    *index* and *place* are the message and block at which it begins. *origin* is the message that
    it is a block of, None for whole messages. *name* is what a report calls it, *target* what it
    refers to. *is_answered* is False for words that the model has not answered: they are always in
    the context, and do not count. *shorten* makes a shorter candidate of so many characters, of its
    *chars*.
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
        """Return it with so many characters; itself if it cannot be shortened."""
        if self.shorten is None:
            return self
        return replace(self.shorten(chars), chars=chars, shorten=self.shorten)

    @property
    def key(self) -> tuple[int, int]:
        """Where it is in the history."""
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
    """Return True if a compaction carries *block* of a user's message on as it is."""
    return is_opaque(block) or is_reference(block)


def blocks_to_carry(messages: Sequence[Message]) -> list[Candidate]:
    """Return the blocks and exchanges of *messages* to be carried on, in their order.

    They are unknown blocks and references in the user's messages, and the exchanges that loaded
    tools by reference.
    """
    candidates: list[Candidate] = []
    is_leading = True
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            candidates += _tool_loads(messages, index)
        if message["role"] != "user" or isinstance(message["content"], str):
            is_leading = False
            continue
        for place, block in enumerate(blocks(message)):
            is_leading = is_leading and is_opaque(block)
            if is_carried(block):
                carry_kind = CarryKind.LEADING if is_leading else CarryKind.BLOCK
                candidates.append(
                    Candidate(
                        carry_kind,
                        index,
                        place,
                        [_only(message, [block])],
                        name=block_kind(block),
                        target=_target(block),
                        origin=message,
                    )
                )
    return candidates


def attach(candidates: Iterable[Candidate], index: int) -> list[Candidate]:
    """Return *candidates*, the blocks of message *index* as attachments of the request in it."""
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
    searched: list[Block] = []
    before: Block | None = None
    for block in blocks(message):
        loaded = _tools_found(block)
        call = _call_of(message, block) if loaded else None
        if loaded and kind(block) == OPAQUE:
            call = before  # without an id: a search is right before what it found
        if call is not None:
            searched += [call, block]
            names += loaded
        before = block if kind(block) == OPAQUE else None
    if not names:
        return
    pieces = [_only(message, [*searched, *calls])]
    if results:
        pieces.append(_only(messages[index + 1], results))
    target = one_line(" ".join(names)[:_MAX_NAME])
    yield Candidate(CarryKind.BLOCK, index, 0, pieces, "tool_reference", target)


def _call_of(message: Message, result: Block) -> Block | None:
    """Return the call in *message* that *result* answers."""
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


def _only(message: Message, chosen: Sequence[Block]) -> Message:
    """Return *message* with the *chosen* blocks alone; the same object if these are all."""
    if len(chosen) == len(blocks(message)):
        return message
    return cast("Message", {"role": message["role"], "content": list(chosen)})


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


# What is carried ----------------------------------------------------------------------------------

_LEAST_REQUEST_CHARS = 1_000


def _cut_line(request: Candidate) -> str:
    return f"of the newest request {request.chars} characters are in the context"


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates that a context carries, in their order, and those left out.

    *used* are the raw *tokens* of the former. *cuts* says what was shortened.
    """

    chosen: Sequence[Candidate]
    left_out: Sequence[Candidate]
    tokens: Mapping[Candidate, int] = field(repr=False)
    used: int = 0
    cuts: Sequence[str] = ()

    def lighter(self, tokens: int) -> Selection | None:
        """Return a selection of at least *tokens* tokens less, the least important pieces first.

        The request is shortened once all else has gone. None if there is nothing left to do.
        """
        freed = 0
        dropped: set[Candidate] = set()
        for candidate in reversed(_by_importance(self.chosen)):
            if freed >= tokens:
                break
            if candidate.is_answered and candidate.kind != CarryKind.REQUEST:
                freed += self.tokens[candidate]
                dropped.add(candidate)
        if not dropped:
            return self._with_short_request()
        chosen = [candidate for candidate in self.chosen if candidate not in dropped]
        left_out = [*self.left_out, *dropped]
        left_out.sort(key=_key)
        return replace(self, chosen=chosen, left_out=left_out, used=self.used - freed)

    def _with_short_request(self) -> Selection | None:
        chosen = list(self.chosen)
        for place, candidate in enumerate(chosen):
            if candidate.shorten is not None and candidate.chars > _LEAST_REQUEST_CHARS:
                chosen[place] = candidate.shorter(_LEAST_REQUEST_CHARS)
                return replace(self, chosen=chosen, cuts=[_cut_line(chosen[place])])
        return None


NOTHING_CARRIED = Selection((), (), {})


def select(candidates: Sequence[Candidate], tokens: Sequence[int], room: int) -> Selection:
    """Return which of *candidates*, of these *tokens*, get a part of *room* tokens.

    A piece that does not fit is left out, and smaller ones after it still get their part: one huge
    block costs no reference of a few bytes. Unknown blocks at the beginning count as any other
    unknown blocks if they do not fit together. Blocks of a pinned message come with the message.
    """
    sizes = dict(zip(candidates, tokens, strict=True))
    leading = [one for one in candidates if one.kind == CarryKind.LEADING]
    if sum(sizes[one] for one in leading) > room:
        for one in leading:
            sizes[replace(one, kind=CarryKind.BLOCK)] = sizes.pop(one)
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
        own_blocks = _block_ids(candidate.messages)
        if candidate.kind in BLOCK_KINDS and own_blocks and own_blocks <= pinned_blocks:
            continue
        if used + size <= room:
            chosen.append(candidate)
            used += size
        elif candidate.shorten is not None:
            share = max(0, room - used) * 9 // 10  # less the words that stand for what is cut
            chars = max(_LEAST_REQUEST_CHARS, candidate.chars * share // size)
            shorter = candidate.shorter(chars)
            chosen.append(shorter)
            cuts.append(_cut_line(shorter))
            used = max(used, room)
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
    def rank(candidate: Candidate) -> tuple[int, int, int]:
        return candidate.kind, -candidate.index, -candidate.place

    return sorted(candidates, key=rank)


def with_frame(candidate: Candidate) -> list[Message]:
    """Return the messages of *candidate* with the lines that may have to stand around them."""
    first = [_user_line()] if candidate.messages[0]["role"] == "assistant" else []
    last = [_assistant_reply()] if candidate.messages[-1]["role"] == "user" else []
    if candidate.kind not in (CarryKind.PIN, CarryKind.ATTACHMENT, CarryKind.BLOCK):
        return list(candidate.messages)
    return [*first, *candidate.messages, *last]


def arrange(candidates: Iterable[Candidate]) -> list[Message]:
    """Return the messages of *candidates*, in order, as a valid piece that begins with the user.

    Blocks that follow each other, and the request, become one message; where blocks are a whole
    message, it is the very same object. A short reply of the assistant, or a line of the user,
    stands between messages of the same role.
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
    """Return the candidates, those that are blocks of one message together."""
    grouped: list[list[Candidate]] = []
    for candidate in candidates:
        origin = candidate.origin
        if grouped and origin is not None and grouped[-1][0].origin is origin:
            grouped[-1].append(candidate)
        else:
            grouped.append([candidate])
    return grouped


def _messages_of(group: Sequence[Candidate]) -> Sequence[Message]:
    origin = group[0].origin
    if origin is None:
        return group[0].messages
    return [_only(origin, [block for one in group for block in blocks(one.messages[0])])]


def _user_line() -> Message:
    return {"role": "user", "content": KEPT}


def _assistant_reply() -> Message:
    return {"role": "assistant", "content": SEEN}


def with_reply(messages: Sequence[Message]) -> list[Message]:
    """Return *messages*, which begin with the user, with a reply after the user's last one."""
    if messages and messages[-1]["role"] == "user":
        return [*messages, _assistant_reply()]
    return list(messages)


# What is left out ---------------------------------------------------------------------------------


def omission_names(candidates: Iterable[Candidate]) -> str:
    """Return the names of *candidates* by kind: "2 container_upload (file_1, file_2)"."""
    targets: dict[str, list[str]] = {}
    for candidate in candidates:
        targets.setdefault(candidate.name, []).append(candidate.target)
    phrases: list[str] = []
    for name, found in targets.items():
        known = [target for target in found if target]
        shown = ", ".join(known[-_NAMES_OF_A_KIND:])
        if len(known) > _NAMES_OF_A_KIND:
            shown = f"…, {shown}"
        phrases.append(f"{len(found)} {name} ({shown})" if shown else f"{len(found)} {name}")
    text = ", ".join(phrases)
    return text if len(text) <= _MAX_LINE else f"{text[: _MAX_LINE - 2]} …"


OMISSIONS_FORM = 1


def omissions_text(
    candidates: Sequence[Candidate], before: str, as_stored: Callable[[Message], Message]
) -> str:
    """Return the text of the file with *candidates*: a line of JSON for each, after a first line.

    The first line has the form of the file and the path of the file *before* it, if there is one.
    *as_stored* gives a message as it may be stored, without secrets.
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
    """Return how many blocks of each kind are in *before* and not in *after*.

    Blocks inside results count, too, other than texts. The kinds that are seldom seen come first.
    """
    staying: set[int] = set()
    for message in after:
        staying.add(id(message))
        staying.update(map(id, blocks(message)))
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
