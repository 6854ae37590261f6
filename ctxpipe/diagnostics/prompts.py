"""Read a request as the prompt cache sees it: digests and sizes of blocks, settings and marks.

No text is stored. Digests are Python's own hashes: they are compared within one process only, and
Python computes the hash of a text once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple, cast

from ..messages import Block, Message, as_blocks, cache_marks, common_prefix, compact_json, kind
from ..messages import field as read
from ..messages.identity import MARK, without_mark
from ..messages.rules import is_for_hour
from ..messages.vocabulary import begins_with
from ..providers.prices import FIVE_MINUTES, HOUR
from ..tokens import TokenCounter
from ..tokens.billed import part_after_summary, server_summary
from .prompt_cache import CacheMark

BETA_HEADER = "anthropic-beta"


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request, and the time when it was sent, in *seconds* of any clock.

    *options* are the other fields of its body, and ``betas`` or ``extra_headers``. *rewritten_from*
    is the index of the first message that a stage rewrote, *edited_from* of the first that the
    caller edited. *are_marks_known* is False if cache marks may have been placed afterwards.
    *is_amended* is True if the pipeline added options that its own changes need.
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
        """Return the field *name* of the body; ``extra_body`` takes precedence."""
        extra = self.options.get("extra_body")
        if isinstance(extra, Mapping) and name in extra:
            return extra[name]
        return self.options.get(name)


class PromptSettings(NamedTuple):
    """Digests of the request's settings, in the order in which the prefix depends on them.

    Documented: another model changes the whole prefix. A switch of speed leaves the prefix of the
    tools. Tool choice, thinking and the presence of images also leave that of the system prompt.
    Assumed, since a beta may add instructions: other betas change the whole prefix.
    """

    model: int
    betas: int
    speed: int
    tool_choice: int
    thinking: int
    has_images: bool


class PromptPart(NamedTuple):
    """Blocks of a prompt that belong together: the tools, the system prompt, or one message.

    *keys* are their digests, *sizes* their raw tokens. The places of the *marks* are relative to
    the first of these blocks.
    """

    keys: Sequence[int]
    sizes: Sequence[int]
    marks: Sequence[CacheMark]
    has_image: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """Blocks of a prompt in the order in which they are cached: tools, system, messages.

    *keys* are the digests of the blocks. *chain* has for each block a digest of all blocks up to
    it, with the settings that they depend on. *sums* are the raw tokens of the first 0, 1, 2 …
    blocks. The parts of a prompt are the tools, the system prompt and each message; *starts* has
    the first block of each, and *head_parts* are the first two. *head* is the number of blocks
    before the messages. *block_marks* are the marks on blocks, *marks* the same and the one that
    the request asks for as a whole. *first_image* is the index of the first part with an image, or
    the number of parts.
    """

    model: str | None
    settings: PromptSettings
    tools: Sequence[object] = field(repr=False)
    head: int
    keys: array[int] = field(repr=False)
    sums: array[int] = field(repr=False)
    chain: array[int] = field(repr=False)
    starts: array[int] = field(repr=False)
    marks: tuple[CacheMark, ...]
    block_marks: list[CacheMark] = field(repr=False)
    first_image: int
    messages: list[Message] = field(repr=False)
    head_parts: tuple[PromptPart, PromptPart] = field(repr=False)
    is_summarized: bool  # by the server, which ignores everything before its summary
    is_amended: bool

    @property
    def raw_tokens(self) -> int:
        """Raw tokens of the whole prompt."""
        return self.sums[-1]

    def message_at(self, place: int) -> int:
        """Return the index of the message whose block is at *place*."""
        return bisect_right(self.starts, place) - 3


class _Blocks:
    """The blocks of a prompt that is being read, in the arrays of `Prompt`.

    Arrays, and no object for each message: a process may hold a million messages.
    """

    def __init__(self) -> None:
        self.keys = array("q")
        self.sums = array("q", [0])
        self.starts = array("q")
        self.marks: list[CacheMark] = []
        self.first_image: int | None = None

    @classmethod
    def of_first(cls, count: int, prompt: Prompt) -> _Blocks:
        """Return the blocks of the first *count* parts of *prompt*."""
        stop = _end_of_part(count, prompt)
        blocks = cls()
        blocks.keys = prompt.keys[:stop]
        blocks.sums = prompt.sums[: stop + 1]
        blocks.starts = prompt.starts[:count]
        blocks.marks = [mark for mark in prompt.block_marks if mark.place < stop]
        blocks.first_image = prompt.first_image if prompt.first_image < count else None
        return blocks

    def add(self, part: PromptPart) -> None:
        """Add the blocks of the next part."""
        place = len(self.keys)
        if part.has_image and self.first_image is None:
            self.first_image = len(self.starts)
        self.starts.append(place)
        self.keys.extend(part.keys)
        self.sums.extend(accumulate(part.sizes, initial=self.sums.pop()))
        self.marks += [replace(mark, place=place + mark.place) for mark in part.marks]

    def add_messages(self, count: int, prompt: Prompt) -> None:
        """Add the blocks of the first *count* messages of *prompt*, whose head is another one."""
        head = prompt.head
        stop = _end_of_part(2 + count, prompt)
        added_places = len(self.keys) - head
        added_tokens = self.sums[-1] - prompt.sums[head]
        self.starts.extend(start + added_places for start in prompt.starts[2 : 2 + count])
        self.keys.extend(prompt.keys[head:stop])
        self.sums.extend(tokens + added_tokens for tokens in prompt.sums[head + 1 : stop + 1])
        for mark in prompt.block_marks:
            if head <= mark.place < stop:
                self.marks.append(replace(mark, place=mark.place + added_places))
        if self.first_image is None and 2 <= prompt.first_image < 2 + count:
            self.first_image = prompt.first_image


def _end_of_part(count: int, prompt: Prompt) -> int:
    """Return the number of blocks in the first *count* parts of *prompt*."""
    return prompt.starts[count] if count < len(prompt.starts) else len(prompt.keys)


def as_prompt(
    sent: SentRequest, counter: TokenCounter, last: Prompt | None = None, *, exactly: bool = False
) -> Prompt:
    """Read *sent* as a `Prompt`. Long new texts are estimated unless *exactly* is True.

    Messages that *sent* shares with the prompt *last* are not read again, so a change inside one of
    them is not noticed.
    """
    size = counter.block if exactly else counter.block_estimate
    messages, shared_count, is_summarized = _after_summary(sent.messages, last)
    tools = list(sent.tools or ())
    system = sent.system if isinstance(sent.system, Sequence) else ()
    before = cast("Message", {"role": "system", "content": system})
    head_parts = (_tools_part(tools, counter, last), _part(before, size))
    blocks = _Blocks()
    chain = array("q")
    if last is not None and head_parts == last.head_parts:
        blocks = _Blocks.of_first(2 + shared_count, last)
        chain = last.chain[: len(blocks.keys)]
    else:
        for part in head_parts:
            blocks.add(part)
        if last is not None:
            blocks.add_messages(shared_count, last)
    head = sum(len(part.keys) for part in head_parts)
    for message in messages[shared_count:]:
        blocks.add(_part(message, size))
    keys = blocks.keys
    block_marks = blocks.marks
    automatic = sent.option(MARK)
    place = len(keys) - 1
    marks = block_marks
    if automatic and keys and all(mark.place != place for mark in block_marks):
        marks = [*block_marks, _mark(automatic, place)]
    model = sent.option("model")
    settings = PromptSettings(
        model=hash(model),
        betas=hash(frozenset(_betas(sent.options))),
        speed=_setting(sent.option("speed")),
        tool_choice=_setting(sent.option("tool_choice")),
        thinking=_setting(sent.option("thinking")),
        has_images=blocks.first_image is not None,
    )
    if last is None or last.settings != settings:
        chain = array("q")
    _extend(chain, keys, tool_count=len(tools), head=head, settings=settings)
    return Prompt(
        model=model if isinstance(model, str) else None,
        settings=settings,
        tools=tools,
        head=head,
        keys=keys,
        sums=blocks.sums,
        chain=chain,
        starts=blocks.starts,
        marks=tuple(marks),
        block_marks=block_marks,
        first_image=len(blocks.starts) if blocks.first_image is None else blocks.first_image,
        messages=messages,
        head_parts=head_parts,
        is_summarized=is_summarized,
        is_amended=sent.is_amended,
    )


def _extend(
    chain: array[int], keys: Sequence[int], *, tool_count: int, head: int, settings: PromptSettings
) -> None:
    """Extend *chain*, which has a digest of all blocks up to each, to the blocks of all *keys*.

    The first *tool_count* blocks are tools, and *head* blocks come before the messages.
    """
    value = chain[-1] if chain else hash(settings[:2])
    for place in range(len(chain), len(keys)):
        if place == tool_count:
            value = hash((value, settings.speed))
        if place == head:
            value = hash((value, settings[3:]))
        value = hash((value, keys[place]))
        chain.append(value)


def _after_summary(
    messages: Sequence[Message], last: Prompt | None
) -> tuple[list[Message], int, bool]:
    """Return *messages* from the newest summary by the server on: it ignores everything before.

    The second value is the number of these messages that *last* also begins with, the third is True
    if there is a summary.
    """
    now = list(messages)
    before = [] if last is None else last.messages
    shared_count = _common_length(before, now)
    start = shared_count
    if last is not None and last.is_summarized:
        start = 0  # *last* holds only the messages after its summary
    for index in range(len(now) - 1, start - 1, -1):
        message = now[index]
        if message["role"] == "assistant" and server_summary(message) is not None:
            rest = [part_after_summary(message), *now[index + 1 :]]
            return rest, _common_length(before, rest), True
    # The older ones of equal messages, which the conversation holds anyway.
    return [*before[:shared_count], *now[shared_count:]], shared_count, False


def _common_length(before: list[Message], now: list[Message]) -> int:
    """Return the number of leading messages that are equal."""
    if begins_with(now, before):
        return len(before)
    return common_prefix(before, now)


# Parts --------------------------------------------------------------------------------------------


def _tools_part(tools: list[object], counter: TokenCounter, last: Prompt | None) -> PromptPart:
    """Read *tools*, or take them from *last* if it has the very same objects.

    Equal objects do not count: their keys may be in another order.
    """
    marks = [_mark(read(tool, MARK), place) for place, tool in enumerate(tools) if read(tool, MARK)]
    if last is not None and len(last.tools) == len(tools):
        are_same = all(old is new for old, new in zip(last.tools, tools, strict=True))
        if are_same:
            return last.head_parts[0]._replace(marks=marks)
    keys = [_key("tools", tool) for tool in tools]
    sizes = [counter.total((), tools=[without_mark(tool)]) for tool in tools]
    return PromptPart(keys, sizes, marks)


def _part(message: Message, size: Callable[[Block], int]) -> PromptPart:
    """Return the keys, sizes and cache marks of the blocks of *message*.

    *size* returns the raw tokens of a block.
    """
    content = as_blocks(message)
    # One mark per block: a result may have a mark inside it besides its own.
    marks = {place: _mark(mark, place) for (place, _), mark in cache_marks(message)}
    return PromptPart(
        keys=[_key(message["role"], block) for block in content],
        sizes=[size(block) for block in content],
        marks=list(marks.values()),
        has_image=any(has_image(block) for block in content),
    )


def _setting(value: object) -> int:
    """Return a hash of *value* that is valid in this process; 0 for a falsy value.

    The SDK's value for an argument that is not set is falsy too.
    """
    return hash(compact_json(value)) if value else 0


def _betas(options: Mapping[str, object]) -> Iterator[str]:
    """Yield the betas of a request, from the argument ``betas`` and from the header."""
    betas = options.get("betas")
    if isinstance(betas, list | tuple):
        for beta in betas:
            yield str(beta)
    headers = options.get("extra_headers")
    if not isinstance(headers, Mapping):
        return
    for name, value in headers.items():
        if str(name).lower() != BETA_HEADER or not isinstance(value, str):
            continue
        for beta in value.split(","):
            if beta.strip():
                yield beta.strip()


# Blocks -------------------------------------------------------------------------------------------


def _key(role: str, block: Block) -> int:
    """Return a digest of *block* that ignores its cache mark and the order of its fields."""
    return hash((role, _fields_key(block)))


def _fields_key(block: Block) -> int:
    """Return a hash of the fields of *block* without its cache mark, valid in this process."""
    fields = sorted(without_mark(block).items())
    return hash(tuple((name, _value_key(value)) for name, value in fields))


def _value_key(value: object) -> int:
    """Return a hash of a field's *value*, equal for equal values; it is valid in this process."""
    if isinstance(value, str):
        return hash(value)
    # The source of an image, for example: its data can be long and is hashed once.
    if isinstance(value, dict) and all(type(item) is str for item in value.values()):
        return hash(tuple(value.items()))
    if isinstance(value, list | tuple) and value and all(kind(item) for item in value):
        return hash(tuple(_fields_key(item) for item in value))
    return hash(compact_json(value))


def has_image(block: Block) -> bool:
    """Return True if *block* is an image, or a result with one in it."""
    content = read(block, "content")
    parts = content if isinstance(content, list | tuple) else ()
    return any(kind(part) == "image" for part in (block, *parts))


def _mark(cache_control: object, place: int) -> CacheMark:
    return CacheMark(place, HOUR if is_for_hour(cache_control) else FIVE_MINUTES)
