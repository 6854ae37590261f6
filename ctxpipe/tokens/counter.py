"""The token counter: exact, memoized, never on the event loop for long."""

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
from ..messages import Block, Message, compact_json, field
from ..settings import (
    COMPACT_THRESHOLD_RATIO,
    CONTEXT_TOKEN_LIMIT,
    FUNCTION,
    SIZE,
    Wanted,
)
from . import parts
from .encoders import Encoder, Function, Tiktoken
from .memo import Memo
from .parts import Part

if TYPE_CHECKING:
    import tiktoken

Counting: TypeAlias = "TokenCounter | Callable[[str], int]"
"""What may be given as a counter: ours, or a function from a text to its number of tokens."""


def _is_encoding(value: object) -> bool:
    if isinstance(value, type):
        return False
    return isinstance(value, str) or hasattr(value, "decode_bytes") or FUNCTION.accepts(value)


_ENCODING = Wanted(
    _is_encoding, "the name of an encoding, a tiktoken.Encoding, or a function that is not async"
)
COUNTING = Wanted(
    lambda value: isinstance(value, TokenCounter) or _is_encoding(value),
    f"a TokenCounter, {_ENCODING.words}",
)
"""What may be given as a counter, to be checked early."""

T = TypeVar("T")

MEMO_BYTES = 64 * 2**20
# Some 2 ms of counting English, 5 ms of Chinese; a thread hop takes 0.1 ms.
HOP_CHARS = 16_384
_ENTRY_BYTES = 200  # a dict entry, the number and the tuple that holds it
_KEPT_CHARS = 1_000  # of a text that is its own key: encoding takes forty times as long as a digest


class TokenCounter:
    """Counts texts, blocks and messages in tokens of tiktoken.

    *encoding* is the name of an encoding that ships with the package ("cl100k_base",
    "o200k_base"), any ``tiktoken.Encoding``, or a function from a text to its number of tokens,
    which may be called in a worker thread. Raises SettingsError for a name that does not exist.
    Nothing is loaded before it is needed.

    No text makes it raise; text that looks like a special token is text. Each distinct text is
    encoded once: the counts of the texts used last are kept, by digests of those that are long, up
    to *memo_bytes*.
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
        self._known: Memo[str | bytes, int] = Memo(memo_bytes)
        self.encoded_chars: int = 0
        """How many characters were encoded so far; the memo avoids encoding a text twice."""

    def __repr__(self) -> str:
        return f"TokenCounter({self._encoder!r})"

    @property
    def memo_bytes(self) -> int:
        """The bytes that the remembered texts take at present."""
        return self._known.bytes

    async def warm(self) -> None:
        """Load the encoding ahead, in a worker thread.

        The load holds the interpreter for about 100 ms.
        """
        if not self._encoder.ready:
            await in_thread(self._encoder.load, abandon_on_cancel=True)

    # Counting -------------------------------------------------------------------------------------

    def text(self, text: str, /) -> int:
        """The raw tokens of *text*."""
        return self._sum((text,))

    def block(self, block: Block, /) -> int:
        """The raw tokens of one content block."""
        return self._sum(parts.content_parts([block]))

    def block_estimate(self, block: Block, /) -> int:
        """The raw tokens of *block*, without a long wait.

        A long text that was not counted lately is taken to have a token for each four characters.
        """
        tokens, unknown = self._split(parts.content_parts([block]))
        for text in unknown:
            is_short = len(text) <= HOP_CHARS and self._encoder.ready
            tokens += self._learn(text) if is_short else len(text) // 4
        return tokens

    def message(self, message: Message, /) -> int:
        """The raw tokens of a message's content; nothing is added for its frame."""
        return self._sum(parts.content_parts(field(message, "content")))

    def estimate(
        self, message: Message, kept: Message, per_char: float, enough: int
    ) -> tuple[int, int]:
        """About how many tokens *message* has, and how many it has at least, up to *enough*.

        A long text that is not in *kept* is not encoded: it is taken to have *per_char* tokens for
        each character.
        """
        stays = parts.content_parts(field(kept, "content"))
        exact = about = least = 0
        for part in parts.content_parts(field(message, "content")):
            if not isinstance(part, str):
                exact += part
            elif len(part) <= _KEPT_CHARS or part in stays:
                exact += self.text(part)
            else:
                known = self._look_up(part) if len(part) <= HOP_CHARS else None
                about += math.ceil(len(part) * per_char) if known is None else known
                least += self._encoder.at_least(part, enough) if known is None else known
        return exact + about, exact + least

    def total(
        self,
        messages: Iterable[Message],
        *,
        system: object = None,
        tools: Iterable[object] | None = None,
    ) -> int:
        """The raw tokens of *messages*, the system prompt and the tool definitions."""
        return self._sum(self._parts(messages, system, tools))

    async def count(
        self,
        messages: Iterable[Message],
        *,
        system: object = None,
        tools: Iterable[object] | None = None,
    ) -> int:
        """The same number as `total`.

        Much text is counted in a worker thread, in one hop.
        """
        messages, tools = list(messages), list(tools or ())
        total = partial(self.total, messages, system=system, tools=tools)
        return await self._run([*messages, system, *tools], total)

    async def counts(self, messages: Iterable[Message]) -> list[int]:
        """The tokens of each message, as with `count`."""
        messages = list(messages)
        return await self._run(messages, partial(list, map(self.message, messages)))

    async def texts(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, as with `count`."""
        return await self._run(texts, partial(list, map(self.text, texts)))

    async def _run(self, values: Sequence[object], count: Callable[[], T]) -> T:
        if self._encoder.ready and weight(values, HOP_CHARS) <= HOP_CHARS:
            return count()
        # All in one hop: a hop per text costs more than the text. A cancelled turn does not wait
        # for the count: the thread goes on and only fills the memo.
        return await in_thread(count, abandon_on_cancel=True)

    # Questions that need no full count ------------------------------------------------------------

    def over(
        self,
        what: str | Iterable[Message],
        limit: int,
        *,
        system: object = None,
        tools: Iterable[object] | None = None,
    ) -> bool:
        """Whether *what* has more than *limit* tokens.

        Bounds are tried first; then text after text is encoded until the answer is certain.
        """
        if isinstance(what, str):
            if self._encoder.at_least(what, limit + 1) > limit:
                return True
            content: Iterable[Part] = (what,)
        else:
            content = self._parts(what, system, tools)
        tokens, unknown = self._split(content)
        if tokens + sum(map(self._encoder.at_most, unknown)) <= limit:
            return False
        if tokens + sum(self._encoder.at_least(text, limit + 1) for text in unknown) > limit:
            return True
        for text in unknown:
            if tokens > limit:
                break
            tokens += self._learn(text)
        return tokens > limit

    # Within ---------------------------------------------------------------------------------------

    def _parts(
        self, messages: Iterable[Message], system: object, tools: Iterable[object] | None
    ) -> Iterator[Part]:
        for message in messages:
            yield from parts.content_parts(field(message, "content"))
        yield from parts.content_parts(system)
        for tool in tools or ():
            yield compact_json(tool)

    def _sum(self, content: Iterable[Part]) -> int:
        # A loop: in a turn with nothing to do this is most of what is called.
        tokens = 0
        for part in content:
            if not isinstance(part, str):
                tokens += part
                continue
            known = self._look_up(part)
            tokens += self._learn(part) if known is None else known
        return tokens

    def _look_up(self, text: str) -> int | None:
        """The tokens of *text*, None unless they are remembered: by a digest where it is long."""
        return self._known.get(text if len(text) <= _KEPT_CHARS else text_digest(text))

    def _learn(self, text: str) -> int:
        tokens = self._encoder.count(text)
        self.encoded_chars += len(text)
        key = text if len(text) <= _KEPT_CHARS else text_digest(text)
        self._known.put(key, tokens, sys.getsizeof(key) + _ENTRY_BYTES)
        return tokens

    def _split(self, content: Iterable[Part]) -> tuple[int, list[str]]:
        """The tokens of what is known, and the texts that are not."""
        known = 0
        unknown: list[str] = []
        for part in content:
            if not isinstance(part, str):
                known += part
                continue
            tokens = self._look_up(part)
            if tokens is None:
                unknown.append(part)
            else:
                known += tokens
        return known, unknown


def as_counter(counter: Counting | None) -> TokenCounter:
    """*counter* as a `TokenCounter`; None is one instance that the whole process shares."""
    if counter is None:
        return _default_counter()
    if isinstance(counter, TokenCounter):
        return counter
    return TokenCounter(counter)


@functools.cache
def _default_counter() -> TokenCounter:
    return TokenCounter()


def count_tokens(
    messages: Iterable[Message],
    system: object = None,
    tools: Iterable[object] | None = None,
    *,
    counter: Counting | None = None,
) -> int:
    """The raw tokens of *messages*, and of the system prompt and the tools where given."""
    return as_counter(counter).total(messages, system=system, tools=tools)


def conservative(tokens: int) -> int:
    """ceil(1.5 x *tokens*): enough for what the API may make of them."""
    return -(-3 * tokens // 2)


def should_compact(
    messages: Sequence[Message],
    *,
    context_token_limit: int | None = None,
    compact_threshold_ratio: float | Decimal | None = None,
    counter: Counting | None = None,
    system: object = None,
    tools: Iterable[object] | None = None,
) -> bool:
    """Whether the raw tokens reach limit x ratio, compared exactly; never for an empty list.

    The limit comes from CONTEXT_TOKEN_LIMIT (200,000) and the ratio from COMPACT_THRESHOLD_RATIO
    (0.92) where they are not given. Raises SettingsError if either is not a number.
    """
    if not messages:
        return False
    ratio = Fraction(COMPACT_THRESHOLD_RATIO(compact_threshold_ratio))
    threshold = math.ceil(CONTEXT_TOKEN_LIMIT(context_token_limit) * ratio)
    return as_counter(counter).over(messages, threshold - 1, system=system, tools=tools)
