"""A request as the prompt cache sees it: digests and sizes of its blocks, its settings and marks.

No text is kept. Digests are Python's own hashes: they are compared within one process only, and
those of a text are computed once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from ..messages import (
    Block,
    Message,
    as_blocks,
    cache_marks,
    common_prefix,
    compact_json,
    kind,
)
from ..messages import field as read
from ..messages.identity import MARK, without_mark
from ..messages.vocabulary import begins_with
from ..tokens import TokenCounter
from ..tokens.billed import part_after_summary, server_summary
from .cache import Mark, seconds_to_live

BETA_HEADER = "anthropic-beta"


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

    Documented: another model changes the whole prefix; a switch of speed leaves that of the tools;
    tool choice, thinking and whether there are images leave that of the system prompt, too.
    Assumed, since a beta may add instructions: other betas change all of it.
    """

    model: int
    betas: int
    speed: int
    tool_choice: int
    thinking: int
    has_images: bool = False


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
    marks: tuple[Mark, ...]
    own_marks: int = 0  # so many of them are on a block, and not on the whole request
    starts: array[int] = field(default_factory=lambda: array("q"), repr=False)
    messages: list[Message] = field(default_factory=list, repr=False)
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

    def stop_of(self, messages: int) -> int:
        """The number of blocks up to the end of so many *messages*."""
        return self.starts[messages] if messages < len(self.starts) else len(self.keys)


def as_prompt(
    sent: Sent, counter: TokenCounter, last: Prompt | None = None, *, exactly: bool = False
) -> Prompt:
    """*sent* as a `Prompt`. Long new texts are estimated, unless they are to be counted *exactly*.

    The messages that it shares with *last* are taken from there, and not read again; a change
    inside of them is not noticed then.
    """
    size = counter.block if exactly else counter.block_estimate
    messages, known, is_summarized = _after_summary(sent.messages, last)
    head = _head(sent, counter, size, last)
    keys, sums, starts = head.keys[:], head.sums[:], array("q")
    marks, images = list(head.marks), list[int]()
    if last is not None and known:
        first, stop = last.head, last.stop_of(known)
        shift, more = head.head - first, sums[-1] - last.sums[first]
        keys.extend(last.keys[first:stop])
        sums.extend([tokens + more for tokens in last.sums[first + 1 : stop + 1]])
        starts.extend([start + shift for start in last.starts[:known]])
        images += [index for index in last.images if index < known]
        own = [mark for mark in last.marks[: last.own_marks] if first <= mark.place < stop]
        marks += [replace(mark, place=mark.place + shift) for mark in own]
    for index in range(known, len(messages)):
        message = messages[index]
        content = as_blocks(message)
        starts.append(len(keys))
        marks += _marks(message, len(keys))
        keys.extend(_key(message["role"], block) for block in content)
        sums.extend(accumulate(map(size, content), initial=sums.pop()))
        if any(map(has_image, content)):
            images.append(index)
    settings = head.settings._replace(has_images=bool(images))
    chain = head.chain[:]
    seed = hash((chain[-1] if chain else head.seed, settings[2:]))
    if last is not None and last.seed == seed:
        chain.extend(last.chain[last.head : last.stop_of(known)])
    value = chain[-1] if len(chain) > head.head else seed
    for key in keys[len(chain) :]:
        value = hash((value, key))
        chain.append(value)
    own_marks = len(marks)
    automatic = sent.option(MARK)
    place = len(keys) - 1
    if automatic and keys and all(mark.place != place for mark in marks):
        marks.append(_mark(automatic, place))
    return replace(
        head,
        settings=settings,
        keys=keys,
        sums=sums,
        chain=chain,
        marks=tuple(marks),
        own_marks=own_marks,
        starts=starts,
        messages=messages,
        images=tuple(images),
        is_summarized=is_summarized,
        is_amended=sent.is_amended,
        seed=seed,
    )


def _after_summary(
    messages: Sequence[Message], last: Prompt | None
) -> tuple[list[Message], int, bool]:
    """*messages* from the newest summary by the server on: it ignores all before.

    And how many of these are those of *last*, and whether there is a summary.
    """
    now = list(messages)
    before = [] if last is None else last.messages
    known = _common_length(before, now)
    start = known
    if last is not None and last.is_summarized:
        start = 0  # what was sent is longer than what was kept of it
    for index in range(len(now) - 1, start - 1, -1):
        message = now[index]
        if message["role"] == "assistant" and server_summary(message) is not None:
            rest = [part_after_summary(message), *now[index + 1 :]]
            return rest, _common_length(before, rest), True
    return now, known, False


def _common_length(before: list[Message], now: list[Message]) -> int:
    """How many leading messages are equal."""
    return len(before) if begins_with(now, before) else common_prefix(before, now)


# What precedes the messages -----------------------------------------------------------------------


def _head(
    sent: Sent, counter: TokenCounter, size: Callable[[Block], int], last: Prompt | None
) -> Prompt:
    """The tools and the system prompt of *sent*, and its settings."""
    model = sent.option("model")
    tools, blocks = list(sent.tools or ()), _system_blocks(sent.system)
    system = array("q", [_key("system", block) for block in blocks])
    if last is not None and _has_head(last, tools, system):
        names, keys, sums = last.tools, last.keys[: last.head], last.sums[: last.head + 1]
    else:
        names = tuple(map(_tool_name, tools))
        keys = array("q", [_key("tools", tool) for tool in tools]) + system
        sizes = [counter.total((), tools=[without_mark(tool)]) for tool in tools]
        sums = array("q", accumulate([*sizes, *map(size, blocks)], initial=0))
    settings = Settings(
        model=hash(model),
        betas=hash(frozenset(_betas(sent.options))),
        speed=_setting(sent.option("speed")),
        tool_choice=_setting(sent.option("tool_choice")),
        thinking=_setting(sent.option("thinking")),
    )
    seed = value = hash(settings[:2])
    chain = array("q")
    for place, key in enumerate(keys):
        if place == len(tools):
            value = hash((value, settings.speed))
        value = hash((value, key))
        chain.append(value)
    return Prompt(
        model=model if isinstance(model, str) else None,
        settings=settings,
        tools=names,
        head=len(keys),
        keys=keys,
        sums=sums,
        chain=chain,
        marks=(*_marks_in(tools, 0), *_marks_in(blocks, len(tools))),
        given_tools=tools,
        seed=seed,
    )


def _has_head(last: Prompt, tools: list[object], system: array[int]) -> bool:
    """Whether *last* has these very tools, and the system prompt with the keys *system*.

    Equal tools do not count: they may have other keys in front.
    """
    if len(last.given_tools) != len(tools):
        return False
    pairs = zip(last.given_tools, tools, strict=True)
    return all(one is other for one, other in pairs) and system == last.keys[len(tools) : last.head]


def _system_blocks(system: object) -> Sequence[Block]:
    if isinstance(system, str):
        return [{"type": "text", "text": system}]
    return system if isinstance(system, Sequence) else ()


def _tool_name(tool: object) -> str:
    name = read(tool, "name") or read(tool, "type")
    return name if isinstance(name, str) else "a tool"


def _setting(value: object) -> int:
    return hash(compact_json(value)) if value else 0  # what the SDK calls "not given" is falsy


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
            yield from filter(None, map(str.strip, value.split(",")))


# Blocks -------------------------------------------------------------------------------------------


def _key(role: str, block: Block) -> int:
    """A digest of *block*, in which neither its cache mark nor the order of its fields counts."""
    return hash((role, _fields_key(block)))


def _fields_key(block: Block) -> int:
    return hash(
        tuple((name, _value_key(value)) for name, value in sorted(without_mark(block).items()))
    )


def _value_key(value: object) -> int:
    if isinstance(value, str):
        return hash(value)
    if isinstance(value, dict) and all(type(item) is str for item in value.values()):
        return hash(tuple(value.items()))  # such as the source of an image, as long as that may be
    if isinstance(value, list | tuple) and value and all(map(kind, value)):
        return hash(tuple(map(_fields_key, value)))
    return hash(compact_json(value))


def has_image(block: Block) -> bool:
    """Whether *block* is an image, or a result with one in it."""
    content = read(block, "content")
    parts = content if isinstance(content, list | tuple) else ()
    return any(kind(part) == "image" for part in (block, *parts))


def _marks(message: Message, start: int) -> list[Mark]:
    """The marks of *message*, whose first block is at *start*; one on a block for each."""
    found: dict[int, Mark] = {}
    for (place, _), mark in cache_marks(message):
        found[place] = _mark(mark, start + place)
    return list(found.values())


def _marks_in(items: Sequence[object], start: int) -> Iterator[Mark]:
    for place, item in enumerate(items, start):
        mark = read(item, MARK)
        if mark:
            yield _mark(mark, place)


def _mark(given: object, place: int) -> Mark:
    return Mark(place, seconds_to_live(read(given, "ttl")))
