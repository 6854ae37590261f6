"""The token counter, which remembers counts and never blocks the event loop for long.

Raw tokens are those that tiktoken counts, by default with the encoding cl100k_base. A provider
counts more of them, by a factor and a fixed part that the `Ledger` measures.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from .._threads.bulk import weight
from .._threads.pieces import text_digest
from .._threads.threads import in_thread
from ..messages import Block, Message, MessageLike, compact_json, field
from ..settings import COMPACT_THRESHOLD_RATIO, CONTEXT_TOKEN_LIMIT, FUNCTION, SIZE, Requirement
from . import parts
from .encoders import MIN_SAMPLED_CHARS, Encoder, Function, Tiktoken
from .memo import Memo
from .parts import Part

if TYPE_CHECKING:
    import tiktoken

Counting: TypeAlias = "TokenCounter | Callable[[str], int]"
"""A counter: a `TokenCounter`, or a function that returns the number of tokens of a text."""


def _is_encoding(value: object) -> bool:
    """Return True if *value* is the name of an encoding, an encoding, or a function."""
    if isinstance(value, type):
        return False
    return isinstance(value, str) or hasattr(value, "decode_bytes") or FUNCTION.accepts(value)


_ENCODING = Requirement(
    _is_encoding, "the name of an encoding, a tiktoken.Encoding, or a function that is not async"
)
COUNTING = Requirement(
    lambda value: isinstance(value, TokenCounter) or _is_encoding(value),
    f"a TokenCounter, {_ENCODING.words}",
)
"""The check of an argument that is a counter."""

T = TypeVar("T")

MEMO_BYTES = 64 * 2**20
# Counting so many characters takes about 2 ms for English and 5 ms for Chinese. Handing the work to
# a thread takes 0.1 ms.
HOP_CHARS = 16_384
_ENTRY_BYTES = 200  # a dict entry, the number and the tuple that holds it
# A longer text has its digest as its key in the memo: a digest takes 1/40 of the time of encoding.
_MAX_KEY_CHARS = 1_000


class TokenCounter:
    """Counter of the tokens of texts, blocks and messages.

    *encoding* is the name of an encoding that ships with the package ("cl100k_base",
    "o200k_base"), any ``tiktoken.Encoding``, or a function that returns the number of tokens of a
    text, which may be called in a worker thread. Raises SettingsError for an unknown name. The
    encoding is loaded when it is first needed.

    No text raises an error, and a text that looks like a special token is counted as text. Counts
    of texts are remembered up to *memo_bytes*, so that a text is usually encoded only once.
    """

    def __init__(
        self,
        encoding: str | tiktoken.Encoding | Callable[[str], int] = "cl100k_base",
        *,
        memo_bytes: int = MEMO_BYTES,
    ) -> None:
        _ENCODING.check("encoding", encoding)
        SIZE.check("memo_bytes", memo_bytes)
        self._encoder: Encoder = Function(encoding) if callable(encoding) else Tiktoken(encoding)
        self._memo: Memo[str | bytes, int] = Memo(memo_bytes)
        self.encoded_chars: int = 0
        """Number of characters encoded so far, without texts whose count was remembered.
        """

    def __repr__(self) -> str:
        return f"TokenCounter({self._encoder!r})"

    @property
    def memo_bytes(self) -> int:
        """The number of bytes that remembered counts take now."""
        return self._memo.bytes

    async def warm(self) -> None:
        """Load the encoding in a worker thread, before it is needed.

        Loading blocks all threads for about 100 ms.
        """
        if not self._encoder.ready:
            await in_thread(self._encoder.load, abandon_on_cancel=True)

    # Counting -------------------------------------------------------------------------------------

    def text(self, text: str, /) -> int:
        """Return the raw tokens of *text*."""
        return self._sum((text,))

    def block(self, block: Block, /) -> int:
        """Return the raw tokens of one content block."""
        return self._sum(parts.content_parts([block]))

    def block_estimate(self, block: Block, /) -> int:
        """Return the raw tokens of *block*; an estimate of them if counting would take long.

        A long text that was not counted before is estimated at one token per four characters.
        """
        tokens, new_texts = self._split(parts.content_parts([block]))
        for text in new_texts:
            is_short = len(text) <= HOP_CHARS and self._encoder.ready
            tokens += self.text(text) if is_short else len(text) // 4
        return tokens

    def message(self, message: MessageLike, /) -> int:
        """Return the raw tokens of a message's content; nothing is added for its frame."""
        return self._sum(parts.content_parts(field(message, "content")))

    def estimate(
        self, message: Message, new_message: Message, tokens_per_char: float, enough_tokens: int
    ) -> tuple[int, int]:
        """Return an estimate of the tokens of *message*, and a lower bound of them.

        It is used when *new_message* replaces *message* in the context. A long text that
        *new_message* does not contain is not encoded: the estimate is its characters x
        *tokens_per_char*. For the lower bound such a text is read only until *enough_tokens* are
        found.
        """
        remaining_parts = parts.content_parts(field(new_message, "content"))
        estimate = 0
        min_tokens = 0
        for part in parts.content_parts(field(message, "content")):
            tokens: int | None
            if not isinstance(part, str):
                tokens = part
            elif len(part) <= _MAX_KEY_CHARS or part in remaining_parts:
                tokens = self.text(part)
            elif len(part) <= HOP_CHARS:
                tokens = self._look_up(part)
            else:
                tokens = None
            if tokens is not None:
                estimate += tokens
                min_tokens += tokens
            elif isinstance(part, str):
                estimate += math.ceil(len(part) * tokens_per_char)
                min_tokens += self._encoder.at_least(part, enough_tokens)
        return estimate, min_tokens

    def total(
        self,
        messages: Iterable[MessageLike],
        *,
        system: object = None,
        tools: Iterable[object] | None = None,
    ) -> int:
        """Return the raw tokens of *messages*, the system prompt and the tool definitions."""
        return self._sum(self._parts(messages, system, tools))

    async def count(
        self,
        messages: Iterable[MessageLike],
        *,
        system: object = None,
        tools: Iterable[object] | None = None,
    ) -> int:
        """Return the same number as `total`, counting large contents in a worker thread."""
        messages = list(messages)
        tools = list(tools or ())
        total = partial(self.total, messages, system=system, tools=tools)
        return await self._run([*messages, system, *tools], total)

    async def counts(self, messages: Iterable[MessageLike]) -> list[int]:
        """Return the raw tokens of each message, counting large contents in a worker thread."""
        messages = list(messages)
        return await self._run(messages, lambda: [self.message(message) for message in messages])

    async def texts(self, texts: Sequence[str]) -> list[int]:
        """Return the raw tokens of each text, counting large texts in a worker thread."""
        return await self._run(texts, lambda: [self.text(text) for text in texts])

    async def _run(self, values: Sequence[object], count: Callable[[], T]) -> T:
        """Return the result of *count*, called in a worker thread if *values* are large."""
        if self._encoder.ready and weight(values, HOP_CHARS) <= HOP_CHARS:
            return count()
        # All texts in one call of a thread: a call per text costs more than counting a text. A
        # cancelled turn does not wait for the count: the thread continues, and only fills the memo.
        return await in_thread(count, abandon_on_cancel=True)

    def estimating(self) -> TokenCounter | None:
        """Return a counter that estimates the tokens of long texts; None if that saves no time.

        An estimate depends on the text alone, not on what was counted before. Short texts are
        counted exactly.
        """
        if not self._encoder.can_estimate:
            return None
        return TokenCounter(self._estimate_text)

    def _estimate_text(self, text: str) -> int:
        if len(text) < MIN_SAMPLED_CHARS:
            return self.text(text)
        return self._encoder.estimate(text)

    # Comparison with a limit ----------------------------------------------------------------------

    def over(
        self,
        what: str | Iterable[MessageLike],
        limit: int,
        *,
        system: object = None,
        tools: Iterable[object] | None = None,
    ) -> bool:
        """Return True if *what*, a text or messages, has more than *limit* raw tokens.

        Usually bounds are enough to decide. Otherwise texts are encoded, one after the other, until
        the limit is exceeded.
        """
        if isinstance(what, str):
            if self._encoder.at_least(what, limit + 1) > limit:
                return True
            content: Iterable[Part] = (what,)
        else:
            content = self._parts(what, system, tools)
        tokens, new_texts = self._split(content)
        if tokens + sum(self._encoder.at_most(text) for text in new_texts) <= limit:
            return False
        if tokens + sum(self._encoder.at_least(text, limit + 1) for text in new_texts) > limit:
            return True
        for text in new_texts:
            if tokens > limit:
                break
            tokens += self.text(text)  # not _encode: the same text may come twice
        return tokens > limit

    # Internals ------------------------------------------------------------------------------------

    def _parts(
        self, messages: Iterable[MessageLike], system: object, tools: Iterable[object] | None
    ) -> Iterator[Part]:
        """Yield the texts of messages, system prompt and tools, and the token counts of media.

        A tool counts as its compact JSON.
        """
        for message in messages:
            yield from parts.content_parts(field(message, "content"))
        yield from parts.content_parts(system)
        for tool in tools or ():
            yield compact_json(tool)

    def _sum(self, content: Iterable[Part]) -> int:
        """Return the tokens of *content*, encoding texts whose count is not remembered."""
        # A loop, because this takes most of the time of a turn in which no stage acts.
        total = 0
        for part in content:
            if not isinstance(part, str):
                total += part
                continue
            key = _key_of(part)
            tokens = self._memo.get(key)
            total += self._encode(part, key) if tokens is None else tokens
        return total

    def _look_up(self, text: str) -> int | None:
        """Return the remembered number of tokens of *text*, or None."""
        return self._memo.get(_key_of(text))

    def _encode(self, text: str, key: str | bytes | None = None) -> int:
        """Return the number of tokens of *text* by encoding it, and remember it.

        *key* is its key in the memo, if the caller has it.
        """
        tokens = self._encoder.count(text)
        self.encoded_chars += len(text)
        if key is None:
            key = _key_of(text)
        self._memo.put(key, tokens, sys.getsizeof(key) + _ENTRY_BYTES)
        return tokens

    def _split(self, content: Iterable[Part]) -> tuple[int, list[str]]:
        """Return the tokens of the parts whose count is remembered, and the other texts."""
        total = 0
        new_texts: list[str] = []
        for part in content:
            if not isinstance(part, str):
                total += part
                continue
            tokens = self._look_up(part)
            if tokens is None:
                new_texts.append(part)
            else:
                total += tokens
        return total, new_texts


def _key_of(text: str) -> str | bytes:
    """Return the key of *text* in the memo: a digest if it is long."""
    return text if len(text) <= _MAX_KEY_CHARS else text_digest(text)


def as_counter(counter: Counting | None) -> TokenCounter:
    """Return *counter* as a `TokenCounter`; for None, the one that the whole process shares."""
    if counter is None:
        return _default_counter()
    if isinstance(counter, TokenCounter):
        return counter
    return TokenCounter(counter)


@functools.cache
def _default_counter() -> TokenCounter:
    return TokenCounter()


def count_tokens(
    messages: Iterable[MessageLike],
    system: object = None,
    tools: Iterable[object] | None = None,
    *,
    counter: Counting | None = None,
) -> int:
    """Return the raw tokens of *messages*, *system* and *tools* together, as tiktoken counts them.

    *system* is a text or a list of text blocks, *tools* are the tool definitions. *counter* counts
    the texts, by default tiktoken's encoding cl100k_base. Long texts block the calling thread while
    they are encoded; in async code use ``await TokenCounter().count(messages)``.
    """
    return as_counter(counter).total(messages, system=system, tools=tools)


def conservative(tokens: int) -> int:
    """Return ceil(1.5 x tokens), a cautious estimate of the tokens that the API counts.

    *tokens* are raw tokens (counted by tiktoken). The API usually counts up to 1.5 times as many;
    for some languages, and for images, more. Compare the result with a limit as long as the API has
    not reported the usage of a request; later, `Ledger.estimate` is closer.
    """
    return -(-3 * tokens // 2)


def should_compact(
    messages: Sequence[MessageLike],
    *,
    context_token_limit: int | None = None,
    compact_threshold_ratio: float | Decimal | None = None,
    counter: Counting | None = None,
    system: object = None,
    tools: Iterable[object] | None = None,
) -> bool:
    """Return True if *messages*, *system* and *tools* have limit x ratio raw tokens or more.

    The limit is *context_token_limit*, by default CONTEXT_TOKEN_LIMIT (200,000). The ratio is
    *compact_threshold_ratio*, by default COMPACT_THRESHOLD_RATIO (0.92). The product is compared
    exactly. Without messages the result is False. The stage `Compact` compares an estimate of the
    API's count instead of raw tokens.

    Raises SettingsError if the limit or the ratio is not a valid number.
    """
    if not messages:
        return False
    ratio = Fraction(COMPACT_THRESHOLD_RATIO(compact_threshold_ratio))
    threshold = math.ceil(CONTEXT_TOKEN_LIMIT(context_token_limit) * ratio)
    return as_counter(counter).over(messages, threshold - 1, system=system, tools=tools)
