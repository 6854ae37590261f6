"""A request as the prompt cache sees it: digests and sizes of its blocks, its settings and marks.

No text is kept but that of the system prompt, whose changes are to be located. Digests are Python's
own hashes: they are compared within one process only, and those of a text are computed once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from ..messages import (
    Block,
    Message,
    as_blocks,
    as_dict,
    cache_marks,
    common_prefix,
    compact_json,
    is_equal,
    kind,
)
from ..messages import field as read
from ..tokens import TokenCounter
from ..tokens.billed import part_after_summary, server_summary
from .rules import seconds_to_live

__all__ = ["Mark", "Prompt", "Sent", "as_prompt"]

BETA_HEADER = "anthropic-beta"
MARK = "cache_control"


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, and when it was sent, in *seconds* of any clock.

    *options* are the other fields of its body, and ``betas`` or ``extra_headers``. Its messages are
    rewritten by a stage from number *rewritten_from* on, and by the caller from *edited_from* on.
    *are_marks_known* is False where cache marks may have been placed afterwards, *is_amended* says
    that the pipeline has added to the options what its own changes need.
    """

    messages: Sequence[Message]
    seconds: float
    system: object = field(default=None, repr=False)
    tools: Iterable[object] | None = field(default=None, repr=False)
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    rewritten_from: int | None = None
    edited_from: int | None = None
    are_marks_known: bool = True
    is_amended: bool = False

    def option(self, name: str) -> object:
        """The field *name* of the body; what ``extra_body`` has of that name replaces it."""
        extra = self.options.get("extra_body")
        if isinstance(extra, Mapping) and name in extra:
            return extra[name]
        return self.options.get(name)


class Settings(NamedTuple):
    """Digests of what is set beside the blocks, in the order in which the prefix depends on it.

    Model and betas come before the tools, speed before the system prompt, the others before the
    messages.
    """

    model: int
    betas: int
    speed: int
    tool_choice: int
    thinking: int
    has_images: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A cache mark on the block at *place*; what it writes lives *seconds* after its last use."""

    place: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """The blocks of a prompt in the order in which they are cached: tools, system, messages.

    *keys* are their digests; *chain* those of all up to each, with the settings that they depend
    on; *sums* the raw tokens of the first 0, 1, 2 … blocks. *starts* has the first block of each
    message. *settings* are digests, too. *tools* are the tools' names.
    """

    model: str | None
    settings: Settings
    tools: tuple[str, ...]
    system: tuple[str, ...] = field(repr=False)
    keys: array[int] = field(repr=False)
    sums: array[int] = field(repr=False)
    chain: array[int] = field(repr=False)
    starts: array[int] = field(repr=False)
    marks: tuple[Mark, ...]
    messages: list[Message] = field(repr=False)
    images: tuple[int, ...] = ()  # messages that hold one
    is_summarized: bool = False  # by the server: it ignores what came before
    is_amended: bool = False
    given: tuple[object, object] = field(default=(None, None), repr=False)
    seed: int = 0  # what the chain of the messages begins with

    @property
    def head(self) -> int:
        """How many blocks precede the messages."""
        return len(self.tools) + len(self.system)

    @property
    def raw_tokens(self) -> int:
        """The raw tokens of all of it."""
        return self.sums[-1]

    def message_at(self, place: int) -> int:
        """The index of the message whose block is at *place*."""
        return bisect_right(self.starts, place) - 1

    def with_mark(self, place: int, seconds: float) -> Prompt:
        """The same prompt with a mark on the block at *place*."""
        return replace(self, marks=(*self.marks, Mark(place, seconds)))


def as_prompt(sent: Sent, counter: TokenCounter, last: Prompt | None = None) -> Prompt:
    """*sent* as a `Prompt`.

    The messages that it shares with *last* are taken from there, and not read again; a change
    inside of them is not noticed then.
    """
    messages, known, is_summarized = _after_summary(sent.messages, last)
    head = _Head(sent, counter, last)
    keys, sums, starts, marks, images = _reuse_columns(last, known, head)
    for index in range(known, len(messages)):
        message = messages[index]
        starts.append(len(keys))
        content = as_blocks(message)
        keys.extend(_key(message["role"], block) for block in content)
        sums.extend(accumulate(map(counter.block_estimate, content), initial=sums.pop()))
        marks += _marks(message, starts[-1])
        if any(map(_has_image, content)):
            images.append(index)
    settings = head.settings._replace(has_images=bool(images))
    seed = hash((head.chain[-1] if head.chain else head.seed, settings[3:]))
    chain = array("q", head.chain)
    if last is not None and last.seed == seed:
        same = starts[known] if known < len(starts) else len(keys)
        chain.extend(last.chain[last.head : last.head + same - len(head.keys)])
    _extend_chain(chain, keys, seed, len(head.keys))
    automatic = sent.option(MARK)
    if automatic and keys:
        marks.append(Mark(len(keys) - 1, seconds_to_live(read(automatic, "ttl"))))
    return Prompt(
        model=head.model,
        settings=settings,
        tools=head.tools,
        system=head.system,
        keys=keys,
        sums=sums,
        chain=chain,
        starts=starts,
        marks=(*head.marks, *marks),
        messages=messages,
        images=tuple(images),
        is_summarized=is_summarized,
        is_amended=sent.is_amended,
        given=(head.given_tools, sent.system),
        seed=seed,
    )


def _after_summary(
    messages: Sequence[Message],
    last: Prompt | None,
) -> tuple[list[Message], int, bool]:
    """*messages* from the newest summary by the server on: it ignores all before.

    And how many of these are those of *last*, and whether there is a summary.
    """
    now = list(messages)
    known = 0 if last is None else _known(last.messages, now)
    start = known
    if last is not None and last.is_summarized:
        start = 0  # what was sent is longer than what was kept of it
    for index in range(len(now) - 1, start - 1, -1):
        message = now[index]
        if message["role"] == "assistant" and server_summary(message) is not None:
            rest = [part_after_summary(message), *now[index + 1 :]]
            return rest, 0 if last is None else _known(last.messages, rest), True
    return now, known, False


def _known(before: list[Message], now: list[Message]) -> int:
    """How many leading messages are equal."""
    # In place: a slice touches every message, and so costs more than the comparison.
    rest = now[len(before) :]
    del now[len(before) :]
    are_equal = is_equal(now, before)
    now += rest
    return len(before) if are_equal else common_prefix(before, now)


def _reuse_columns(
    last: Prompt | None,
    known: int,
    head: _Head,
) -> tuple[array[int], array[int], array[int], list[Mark], list[int]]:
    """What a prompt with *head* has in common with the first *known* messages of *last*."""
    keys = array("q", head.keys)
    sums = array("q", head.sums)
    starts = array("q")
    if last is None or not known:
        return keys, sums, starts, [], []
    stop = len(last.keys)
    if known < len(last.starts):
        stop = last.starts[known]
    keys.extend(last.keys[last.head : stop])
    shift = len(head.keys) - last.head
    more = sums[-1] - last.sums[last.head]
    if shift or more:
        starts.extend(start + shift for start in last.starts[:known])
        sums.extend(tokens + more for tokens in last.sums[last.head + 1 : stop + 1])
    else:
        starts.extend(last.starts[:known])
        sums.extend(last.sums[last.head + 1 : stop + 1])
    own = (mark for mark in last.marks if last.head <= mark.place < stop and _is_own(last, mark))
    marks = [Mark(mark.place + shift, mark.seconds) for mark in own]
    return keys, sums, starts, marks, [index for index in last.images if index < known]


def _is_own(prompt: Prompt, mark: Mark) -> bool:
    index = prompt.message_at(mark.place)
    return mark in _marks(prompt.messages[index], prompt.starts[index])


def _extend_chain(chain: array[int], keys: Sequence[int], seed: int, head: int) -> None:
    """Add to *chain* what it lacks; that of the messages begins with *seed*."""
    start = len(chain)
    value = seed if start == head else chain[-1]
    for key in keys[start:]:
        value = hash((value, key))
        chain.append(value)


# What precedes the messages -----------------------------------------------------------------------


class _Head:
    """The tools and the system prompt of a request, and its settings."""

    def __init__(self, sent: Sent, counter: TokenCounter, last: Prompt | None) -> None:
        model = sent.option("model")
        self.model = model if isinstance(model, str) else None
        self.settings = _settings(sent, self.model)
        tools = list(sent.tools or ())
        blocks = [] if sent.system is None else _system_blocks(sent.system)
        self.given_tools = tools
        self.system = tuple(str(read(block, "text") or "") for block in blocks)
        self.seed = hash(self.settings[:2])
        self.marks = tuple(_marks_in(tools, 0)) + tuple(_marks_in(blocks, len(tools)))
        self.chain = array("q")
        if last is not None and _are_the_same(last.given[0], tools) and self.system == last.system:
            self.tools = last.tools
            self.keys = last.keys[: last.head]
            self.sums = last.sums[: last.head + 1]
            if self.settings[:3] == last.settings[:3]:
                self.chain = last.chain[: last.head]
                return
        else:
            self.tools = tuple(map(_tool_name, tools))
            self.keys = array("q", (_key("tools", tool) for tool in tools))
            self.keys.extend(_key("system", block) for block in blocks)
            sizes = [counter.total((), tools=[tool]) for tool in tools]
            sizes += map(counter.block_estimate, blocks)
            self.sums = array("q", accumulate(sizes, initial=0))
        value = self.seed
        for place, key in enumerate(self.keys):
            if place == len(tools):
                value = hash((value, self.settings.speed))
            value = hash((value, key))
            self.chain.append(value)


def _are_the_same(before: object, tools: list[object]) -> bool:
    """Whether these are the very tools of *before*; equal ones may have other keys in front."""
    if not isinstance(before, list) or len(before) != len(tools):
        return False
    return all(one is other for one, other in zip(before, tools, strict=True))


def _system_blocks(system: object) -> Sequence[Block]:
    if isinstance(system, str):
        return [{"type": "text", "text": system}]
    if isinstance(system, Sequence):
        return system
    return ()


def _tool_name(tool: object) -> str:
    name = read(tool, "name") or read(tool, "type")
    return name if isinstance(name, str) else "a tool"


def _settings(sent: Sent, model: str | None) -> Settings:
    return Settings(
        hash(model),
        hash(frozenset(_betas(sent.options))),
        _setting(sent.option("speed")),
        _setting(sent.option("tool_choice")),
        _setting(sent.option("thinking")),
    )


def _setting(value: object) -> int:
    if not value:  # what the SDK calls "not given" is falsy
        return 0
    return hash(compact_json(value))


def _betas(options: Mapping[str, object]) -> Iterator[str]:
    """The betas of a request: in the argument of their name, or in a header."""
    named = options.get("betas")
    if isinstance(named, list | tuple):
        yield from map(str, named)
    headers = options.get("extra_headers")
    if not isinstance(headers, Mapping):
        return
    for name, value in headers.items():
        if str(name).lower() == BETA_HEADER and isinstance(value, str):
            yield from (beta.strip() for beta in value.split(",") if beta.strip())


# Blocks -------------------------------------------------------------------------------------------


def _key(role: str, block: Block) -> int:
    """A digest of *block*, in which neither its cache mark nor the order of its fields counts."""
    items: list[object] = [role]
    for name, value in sorted(_fields(block).items()):
        if value is None or name == MARK:
            continue
        items += (name, _value_key(role, value))
    return hash(tuple(items))


def _value_key(role: str, value: object) -> int:
    if isinstance(value, str):
        return hash(value)
    if isinstance(value, dict) and all(type(item) is str for item in value.values()):
        return hash(tuple(value.items()))  # such as the source of an image, as long as that may be
    if isinstance(value, list | tuple) and value and all(map(kind, value)):
        inner = [[_inner_value(part) for part in sorted(_fields(item).items())] for item in value]
        return hash((role, str(len(inner)), *map(tuple, inner)))
    return hash(compact_json(value))


def _inner_value(item: tuple[str, object]) -> tuple[str, int]:
    name, value = item
    if name == MARK or value is None:
        return ("", 0)
    if isinstance(value, str):
        return (name, hash(value))
    if isinstance(value, dict) and all(type(item) is str for item in value.values()):
        return (name, hash(tuple(value.items())))
    return (name, hash(compact_json(value)))


def _fields(block: Block) -> Mapping[str, object]:
    return block if isinstance(block, dict) else as_dict(block)


def _has_image(block: Block) -> bool:
    if kind(block) == "image":
        return True
    content = read(block, "content")
    return isinstance(content, list | tuple) and any(kind(part) == "image" for part in content)


def _marks(message: Message, start: int) -> list[Mark]:
    """The marks of *message*, whose first block is at *start*; one on a block for each."""
    found: dict[int, Mark] = {}
    content = as_blocks(message)
    for place, inner in cache_marks(message):
        block = content[place]
        if inner is not None:
            block = read(block, "content")[inner]
        seconds = seconds_to_live(read(read(block, MARK), "ttl"))
        found[place] = Mark(start + place, seconds)
    return list(found.values())


def _marks_in(items: Sequence[object], start: int) -> Iterator[Mark]:
    for place, item in enumerate(items, start):
        mark = read(item, MARK)
        if mark:
            yield Mark(place, seconds_to_live(read(mark, "ttl")))
