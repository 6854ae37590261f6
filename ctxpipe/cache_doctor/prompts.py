"""A request as the prompt cache sees it: digests and sizes of its blocks, its settings and marks.

No text is kept. Digests are Python's own hashes: they are compared within one process only, and
those of a text are computed once.
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
from .misses import seconds_to_live

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
    message. *settings* are digests, too. *tools* are the tools' names, *head* counts the
    blocks before the messages.
    """

    model: str | None
    settings: Settings
    tools: tuple[str, ...]
    head: int
    keys: array[int] = field(repr=False)
    sums: array[int] = field(repr=False)
    chain: array[int] = field(repr=False)
    starts: array[int] = field(repr=False)
    marks: tuple[Mark, ...]
    messages: list[Message] = field(repr=False)
    images: tuple[int, ...] = ()  # messages that hold one
    is_summarized: bool = False  # by the server: it ignores what came before
    is_amended: bool = False
    given_tools: Sequence[object] = field(default=(), repr=False)
    seed: int = 0  # what the chain of the messages begins with

    @property
    def raw_tokens(self) -> int:
        """The raw tokens of all of it."""
        return self.sums[-1]

    def message_at(self, place: int) -> int:
        """The index of the message whose block is at *place*."""
        return bisect_right(self.starts, place) - 1

    def with_mark(self, place: int, seconds: float) -> Prompt:
        """The same prompt with a mark on the block at *place*."""
        mark = Mark(place, seconds)
        marks = (*self.marks, mark)
        return replace(self, marks=marks)


def as_prompt(
    sent: Sent,
    counter: TokenCounter,
    last: Prompt | None = None,
) -> Prompt:
    """*sent* as a `Prompt`.

    The messages that it shares with *last* are taken from there, and not read again; a change
    inside of them is not noticed then.
    """
    messages, known, is_summarized = _after_summary(sent.messages, last)
    head = _Head(sent, counter, last)
    head_blocks = len(head.keys)
    keys, sums, starts, marks, images = _reuse_columns(last, known, head)
    for index in range(known, len(messages)):
        message = messages[index]
        role = message["role"]
        content = as_blocks(message)
        start = len(keys)
        starts.append(start)
        keys.extend(_key(role, block) for block in content)
        sizes = map(counter.block_estimate, content)
        sums.extend(accumulate(sizes, initial=sums.pop()))
        marks += _marks(message, start)
        if any(map(_has_image, content)):
            images.append(index)
    settings = head.settings._replace(has_images=bool(images))
    before_messages = head.seed
    if head.chain:
        before_messages = head.chain[-1]
    seed = hash((before_messages, settings[3:]))
    chain = array("q", head.chain)
    if last is not None and last.seed == seed:
        same = len(keys)
        if known < len(starts):
            same = starts[known]
        same_in_messages = same - head_blocks
        stop = last.head + same_in_messages
        chain.extend(last.chain[last.head : stop])
    _extend_chain(chain, keys, seed, head_blocks)
    automatic = sent.option(MARK)
    if automatic and keys:
        seconds = seconds_to_live(read(automatic, "ttl"))
        last_block = len(keys) - 1
        marks.append(Mark(last_block, seconds))
    return Prompt(
        model=head.model,
        settings=settings,
        tools=head.tools,
        head=head_blocks,
        keys=keys,
        sums=sums,
        chain=chain,
        starts=starts,
        marks=(*head.marks, *marks),
        messages=messages,
        images=tuple(images),
        is_summarized=is_summarized,
        is_amended=sent.is_amended,
        given_tools=head.given_tools,
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
    before: list[Message] = []
    if last is not None:
        before = last.messages
    known = _common_length(before, now)
    start = known
    if last is not None and last.is_summarized:
        start = 0  # what was sent is longer than what was kept of it
    for index in range(len(now) - 1, start - 1, -1):
        message = now[index]
        if message["role"] != "assistant":
            continue
        if server_summary(message) is None:
            continue
        rest = [
            part_after_summary(message),
            *now[index + 1 :],
        ]
        known = _common_length(before, rest)
        return rest, known, True
    return now, known, False


def _common_length(
    before: list[Message],
    now: list[Message],
) -> int:
    """How many leading messages are equal."""
    if not before:
        return 0
    # In place: a slice touches every message, and so costs more than the comparison.
    rest = now[len(before) :]
    del now[len(before) :]
    are_equal = is_equal(now, before)
    now += rest
    if are_equal:
        return len(before)
    return common_prefix(before, now)


def _reuse_columns(
    last: Prompt | None,
    known: int,
    head: _Head,
) -> tuple[
    array[int],
    array[int],
    array[int],
    list[Mark],
    list[int],
]:
    """What a prompt with *head* has in common with the first *known* messages of *last*."""
    keys = array("q", head.keys)
    sums = array("q", head.sums)
    starts = array("q")
    if last is None or not known:
        return keys, sums, starts, [], []
    first = last.head
    stop = len(last.keys)
    if known < len(last.starts):
        stop = last.starts[known]
    keys.extend(last.keys[first:stop])
    shift = len(head.keys) - first
    more = sums[-1] - last.sums[first]
    same_starts = last.starts[:known]
    same_sums = last.sums[first + 1 : stop + 1]
    if shift or more:
        starts.extend(start + shift for start in same_starts)
        sums.extend(tokens + more for tokens in same_sums)
    else:
        starts.extend(same_starts)
        sums.extend(same_sums)
    marks = []
    for mark in last.marks:
        is_known = first <= mark.place < stop
        if is_known and _is_own(last, mark):
            place = mark.place + shift
            marks.append(Mark(place, mark.seconds))
    images = [index for index in last.images if index < known]
    return keys, sums, starts, marks, images


def _is_own(prompt: Prompt, mark: Mark) -> bool:
    index = prompt.message_at(mark.place)
    message = prompt.messages[index]
    start = prompt.starts[index]
    return mark in _marks(message, start)


def _extend_chain(
    chain: array[int],
    keys: Sequence[int],
    seed: int,
    head: int,
) -> None:
    """Add to *chain* what it lacks; that of the messages begins with *seed*."""
    start = len(chain)
    value = seed
    if start != head:
        value = chain[-1]
    for key in keys[start:]:
        value = hash((value, key))
        chain.append(value)


# What precedes the messages -----------------------------------------------------------------------


class _Head:
    """The tools and the system prompt of a request, and its settings."""

    def __init__(
        self,
        sent: Sent,
        counter: TokenCounter,
        last: Prompt | None,
    ) -> None:
        model = sent.option("model")
        self.model = None
        if isinstance(model, str):
            self.model = model
        self.settings = _settings(sent, self.model)
        tools = list(sent.tools or ())
        blocks = _system_blocks(sent.system)
        self.given_tools = tools
        system = array("q", (_key("system", block) for block in blocks))
        self.seed = hash(self.settings[:2])
        self.marks = (
            *_marks_in(tools, 0),
            *_marks_in(blocks, len(tools)),
        )
        self.chain = array("q")
        if last is not None and _has_head(last, tools, system):
            self.tools = last.tools
            self.keys = last.keys[: last.head]
            self.sums = last.sums[: last.head + 1]
            has_same_settings = self.settings[:3] == last.settings[:3]
            if has_same_settings:
                self.chain = last.chain[: last.head]
                return
        else:
            self.tools = tuple(map(_tool_name, tools))
            self.keys = array("q", (_key("tools", tool) for tool in tools)) + system
            sizes = [counter.total((), tools=[tool]) for tool in tools]
            sizes += map(counter.block_estimate, blocks)
            self.sums = array("q", accumulate(sizes, initial=0))
        value = self.seed
        for place, key in enumerate(self.keys):
            if place == len(tools):
                value = hash((value, self.settings.speed))
            value = hash((value, key))
            self.chain.append(value)


def _has_head(last: Prompt, tools: list[object], system: array[int]) -> bool:
    """Whether *last* has these very tools, and the system prompt with the keys *system*.

    Equal tools do not count: they may have other keys in front.
    """
    if len(last.given_tools) != len(tools):
        return False
    pairs = zip(last.given_tools, tools, strict=True)
    if not all(one is other for one, other in pairs):
        return False
    return system == last.keys[len(tools) : last.head]


def _system_blocks(system: object) -> Sequence[Block]:
    if isinstance(system, str):
        return [{"type": "text", "text": system}]
    if isinstance(system, Sequence):
        return system
    return ()


def _tool_name(tool: object) -> str:
    name = read(tool, "name") or read(tool, "type")
    if isinstance(name, str):
        return name
    return "a tool"


def _settings(sent: Sent, model: str | None) -> Settings:
    betas = frozenset(_betas(sent.options))
    speed = sent.option("speed")
    tool_choice = sent.option("tool_choice")
    thinking = sent.option("thinking")
    return Settings(
        model=hash(model),
        betas=hash(betas),
        speed=_setting(speed),
        tool_choice=_setting(tool_choice),
        thinking=_setting(thinking),
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
        if str(name).lower() != BETA_HEADER:
            continue
        if not isinstance(value, str):
            continue
        for part in value.split(","):
            beta = part.strip()
            if beta:
                yield beta


# Blocks -------------------------------------------------------------------------------------------


def _key(role: str, block: Block) -> int:
    """A digest of *block*, in which neither its cache mark nor the order of its fields counts."""
    items: list[object] = [role]
    fields = _fields(block)
    for name, value in sorted(fields.items()):
        if value is None or name == MARK:
            continue
        items.append(name)
        items.append(_value_key(role, value))
    return hash(tuple(items))


def _value_key(role: str, value: object) -> int:
    if isinstance(value, str):
        return hash(value)
    if isinstance(value, dict) and _has_texts_only(value):
        # Such as the source of an image, as long as that may be.
        return hash(tuple(value.items()))
    if isinstance(value, list | tuple) and value and all(map(kind, value)):
        blocks = []
        for block in value:
            fields = _fields(block)
            items = sorted(fields.items())
            blocks.append(tuple(map(_inner_value, items)))
        count = str(len(blocks))
        return hash((role, count, *blocks))
    return hash(compact_json(value))


def _has_texts_only(value: dict[object, object]) -> bool:
    return all(type(item) is str for item in value.values())


def _inner_value(item: tuple[str, object]) -> tuple[str, int]:
    name, value = item
    if name == MARK or value is None:
        return ("", 0)
    if isinstance(value, str):
        return (name, hash(value))
    if isinstance(value, dict) and _has_texts_only(value):
        items = tuple(value.items())
        return (name, hash(items))
    return (name, hash(compact_json(value)))


def _fields(block: Block) -> Mapping[str, object]:
    if isinstance(block, dict):
        return block
    return as_dict(block)


def _has_image(block: Block) -> bool:
    if kind(block) == "image":
        return True
    content = read(block, "content")
    if not isinstance(content, list | tuple):
        return False
    return any(kind(part) == "image" for part in content)


def _marks(message: Message, start: int) -> list[Mark]:
    """The marks of *message*, whose first block is at *start*; one on a block for each."""
    found: dict[int, Mark] = {}
    content = as_blocks(message)
    for place, inner in cache_marks(message):
        block = content[place]
        if inner is not None:
            parts = read(block, "content")
            block = parts[inner]
        mark = read(block, MARK)
        seconds = seconds_to_live(read(mark, "ttl"))
        found[place] = Mark(start + place, seconds)
    return list(found.values())


def _marks_in(
    items: Sequence[object],
    start: int,
) -> Iterator[Mark]:
    for place, item in enumerate(items, start):
        mark = read(item, MARK)
        if mark:
            seconds = seconds_to_live(read(mark, "ttl"))
            yield Mark(place, seconds)
