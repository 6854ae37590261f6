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
from operator import is_
from typing import NamedTuple, cast

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
from ..messages.rules import is_for_hour
from ..messages.vocabulary import begins_with
from ..providers.prices import FIVE_MINUTES, HOUR
from ..tokens import TokenCounter
from ..tokens.billed import part_after_summary, server_summary
from .cache import Mark

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
    has_images: bool


class Part(NamedTuple):
    """Blocks of a prompt that are read together: the tools, the system prompt, or one message.

    *keys* are their digests, *sizes* their raw tokens; the places of their *marks* are counted from
    the first of them.
    """

    keys: Sequence[int]
    sizes: Sequence[int]
    marks: Sequence[Mark]
    has_image: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """The blocks of a prompt in the order in which they are cached: tools, system, messages.

    *keys* are their digests; *chain* those of all up to each, with the settings that they depend
    on; *sums* the raw tokens of the first 0, 1, 2 … blocks. *starts* has the first block of each of
    the *parts*: the *tools*, the system prompt, and each message. *settings* are digests, too.
    *head* counts the blocks before the messages. *marks* are those *placed* on blocks, and one that
    is asked for with the request. *first_image* is the first part with one, or their number.
    """

    model: str | None
    settings: Settings
    tools: Sequence[object] = field(repr=False)
    head: int
    keys: array[int] = field(repr=False)
    sums: array[int] = field(repr=False)
    chain: array[int] = field(repr=False)
    starts: array[int] = field(repr=False)
    marks: tuple[Mark, ...]
    placed: list[Mark] = field(repr=False)
    first_image: int
    messages: list[Message] = field(repr=False)
    parts: list[Part] = field(repr=False)
    is_summarized: bool  # by the server: it ignores what came before
    is_amended: bool

    @property
    def raw_tokens(self) -> int:
        """The raw tokens of all of it."""
        return self.sums[-1]

    def message_at(self, place: int) -> int:
        """The index of the message whose block is at *place*."""
        return bisect_right(self.starts, place) - 3


def as_prompt(
    sent: Sent, counter: TokenCounter, last: Prompt | None = None, *, exactly: bool = False
) -> Prompt:
    """*sent* as a `Prompt`. Long new texts are estimated, unless they are to be counted *exactly*.

    The messages that it shares with *last* are taken from there, and not read again; a change
    inside of them is not noticed then.
    """
    size = counter.block if exactly else counter.block_estimate
    messages, known, is_summarized = _after_summary(sent.messages, last)
    tools = list(sent.tools or ())
    system = sent.system if isinstance(sent.system, Sequence) else ()
    before = cast("Message", {"role": "system", "content": system})
    parts = [_tools_part(tools, counter, last), _part(before, size)]
    head = sum(len(part.keys) for part in parts)
    keys, sums, chain, starts = array("q"), array("q", [0]), array("q"), array("q")
    placed: list[Mark] = []
    same = 0  # parts that lie where they lay in *last*
    first_image = None
    if last is not None:
        if parts == last.parts[:2]:
            same = 2 + known
            starts = last.starts[:same]
            stop = last.starts[same] if same < len(last.parts) else len(last.keys)
            keys, sums, chain = last.keys[:stop], last.sums[: stop + 1], last.chain[:stop]
            placed = [mark for mark in last.placed if mark.place < stop]
            first_image = last.first_image if last.first_image < same else None
        parts += last.parts[2 : 2 + known]
    parts += [_part(message, size) for message in messages[known:]]
    for index in range(same, len(parts)):
        part = parts[index]
        place = len(keys)
        starts.append(place)
        keys.extend(part.keys)
        sums.extend(accumulate(part.sizes, initial=sums.pop()))
        placed += [replace(mark, place=place + mark.place) for mark in part.marks]
        if part.has_image and first_image is None:
            first_image = index
    automatic = sent.option(MARK)
    place = len(keys) - 1
    marks = placed
    if automatic and keys and all(mark.place != place for mark in placed):
        marks = [*placed, _mark(automatic, place)]
    model = sent.option("model")
    settings = Settings(
        model=hash(model),
        betas=hash(frozenset(_betas(sent.options))),
        speed=_setting(sent.option("speed")),
        tool_choice=_setting(sent.option("tool_choice")),
        thinking=_setting(sent.option("thinking")),
        has_images=first_image is not None,
    )
    if last is None or last.settings != settings:
        chain = array("q")
    _extend(chain, keys, len(tools), head, settings)
    return Prompt(
        model=model if isinstance(model, str) else None,
        settings=settings,
        tools=tools,
        head=head,
        keys=keys,
        sums=sums,
        chain=chain,
        starts=starts,
        marks=tuple(marks),
        placed=placed,
        first_image=len(parts) if first_image is None else first_image,
        messages=messages,
        parts=parts,
        is_summarized=is_summarized,
        is_amended=sent.is_amended,
    )


def _extend(
    chain: array[int], keys: Sequence[int], tools: int, head: int, settings: Settings
) -> None:
    """Extend *chain*, digests of all blocks up to each, to all that have *keys*.

    So many blocks are *tools*, and so many, the *head*, come before the messages.
    """
    value = chain[-1] if chain else hash(settings[:2])
    for place in range(len(chain), len(keys)):
        if place == tools:
            value = hash((value, settings.speed))
        if place == head:
            value = hash((value, settings[3:]))
        value = hash((value, keys[place]))
        chain.append(value)


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


# Parts --------------------------------------------------------------------------------------------


def _tools_part(tools: list[object], counter: TokenCounter, last: Prompt | None) -> Part:
    """The *tools*, taken from *last* where it has the very same objects.

    Equal tools do not count: they may have other keys in front.
    """
    marks = [_mark(read(tool, MARK), at) for at, tool in enumerate(tools) if read(tool, MARK)]
    if last is not None and len(last.tools) == len(tools) and all(map(is_, last.tools, tools)):
        return last.parts[0]._replace(marks=marks)
    keys = [_key("tools", tool) for tool in tools]
    sizes = [counter.total((), tools=[without_mark(tool)]) for tool in tools]
    return Part(keys, sizes, marks)


def _part(message: Message, size: Callable[[Block], int]) -> Part:
    content = as_blocks(message)
    # One for each block: a result may have a mark in it besides its own.
    marks = {place: _mark(mark, place) for (place, _), mark in cache_marks(message)}
    return Part(
        [_key(message["role"], block) for block in content],
        list(map(size, content)),
        list(marks.values()),
        any(map(has_image, content)),
    )


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


def _mark(given: object, place: int) -> Mark:
    return Mark(place, HOUR if is_for_hour(given) else FIVE_MINUTES)
