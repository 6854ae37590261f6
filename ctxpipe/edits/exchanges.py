"""Which exchanges of a conversation are old, and what would leave with each.

An *exchange* is an assistant message with calls and the user message with their results; a long
answer is one by itself, and so is a user message with a long text that a harness wrote.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from ..messages import (
    MEDIA,
    THINKING,
    Block,
    blocks,
    has_calls,
    has_results,
    inner_blocks,
    is_text_part,
    kind,
    program,
    texts,
    tool_calls,
    tool_results,
)
from ..messages import field as read
from ..providers.agent_tools import HARNESS_TEXT
from .gates import CandidateTable

if TYPE_CHECKING:
    from ..messages import Columns, Message
    from ..tokens import TokenCounter

# What stays of an exchange, in characters. More words, or the assistant's before its calls, made a
# note no more useful on recorded sessions.
ANSWER_CHARS = 600  # of a long reply without calls, or of a harness's text
LONG_ANSWER = 900  # what is no longer is not worth a step of its own

# As far as the gate is concerned:
CHARS_PER_TOKEN = 4  # of the words that stay
STEP_TOKENS = 25  # in the line of a step


def exchange_length(messages: Sequence[Message], index: int) -> int:
    """How many messages from *index* on are an exchange that may become part of a note, or 0.

    Whatever the API wants back as it was stays: calls of server tools and of their programs, blocks
    of unknown kinds, and results that hold anything but text and media. So does what
    follows a system message in the middle: a note there would put a system message between two of
    the user's, which the API refuses.
    """
    message = messages[index]
    if index and messages[index - 1]["role"] == "system":
        return 0
    if message["role"] == "user":
        return int(bool(reports_in(message)) and not has_results(message))
    if message["role"] != "assistant" or not all(map(_is_plain, blocks(message))):
        return 0
    if has_calls(message):
        return 2 if _is_answered(messages, index) else 0
    return int(len(answer_of(message)) > LONG_ANSWER)


def _is_answered(messages: Sequence[Message], index: int) -> bool:
    """Whether the next message holds a plain result of each call of message *index*, once."""
    results = list(tool_results(messages[index + 1 : index + 2]))
    answered = sorted(result.tool_use_id for result in results)
    called = sorted(call.id for call in tool_calls(messages, index, index + 1))
    if called != answered or len(set(called)) < len(called):
        return False
    parts = chain.from_iterable(map(inner_blocks, results))
    return all(kind(part) in MEDIA or is_text_part(part) for part in parts)


def _is_plain(block: Block) -> bool:
    """Whether *block* is a text, thinking, or a call that is no program's."""
    name = kind(block)
    if name == "tool_use":
        return program(block) is None
    return name == "text" or name in THINKING


def answer_of(message: Message) -> str:
    """What *message* says, its texts on lines of their own."""
    return "\n".join(texts(message))


def reports_in(message: Message) -> list[str]:
    """The long texts of a user's *message* that a harness wrote."""
    return list(filter(_is_report, texts(message)))


def _is_report(text: str) -> bool:
    return len(text) > LONG_ANSWER and HARNESS_TEXT.fullmatch(text) is not None


def blocks_to_keep(message: Message) -> list[Block]:
    """What stays of a user's message: the user's own blocks, and the media in results."""
    kept: list[Block] = []
    for block in blocks(message):
        if kind(block) == "text" and _is_report(read(block, "text") or ""):
            continue
        if kind(block) != "tool_result":
            kept.append(block)
            continue
        kept += [part for part in inner_blocks(block) if not is_text_part(part)]
    return kept


class ExchangeIndex:
    """The exchanges of one conversation that are old, and what would leave with each.

    Each is looked at once, when it gets old.
    """

    __slots__ = ("_freed", "known", "places")

    def __init__(self) -> None:
        self.known: int = 0
        """How many messages were looked at."""
        self.places: array[int] = array("q")
        """The first message of each exchange."""
        self._freed = array("q")  # tokens

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        # The call before the first message that changed may have another result now.
        self.known = min(self.known, max(0, known - 1))
        count = bisect_left(self.places, self.known)
        del self.places[count:]
        del self._freed[count:]

    def extend(
        self, messages: Sequence[Message], end: int, sums: Sequence[int], counter: TokenCounter
    ) -> None:
        """Know the exchanges up to *end*; the first 0, 1, 2 … messages have *sums* tokens."""
        self.rewind(end + 1)  # a conversation that was cut makes some recent again
        index = self.known
        while index < end:
            length = exchange_length(messages, index)
            if length:
                stop = index + length
                freed = sums[stop] - sums[index] - _tokens_that_stay(messages, index, counter)
                if freed > 0:
                    self.places.append(index)
                    self._freed.append(freed)
            index += max(1, length)
        self.known = end

    def table(self, columns: Columns, sums: Sequence[int], keep_recent: int) -> CandidateTable:
        """The exchanges for `best_eviction`, in a context of these *columns* and *sums*.

        The first *keep_recent* calls after each are free.
        """
        reads = columns.reads([place + 1 for place in self.places], keep_recent)
        starts = [sums[place] for place in self.places]
        return CandidateTable(self._freed, reads, starts, sums[columns.messages_sent])


def _tokens_that_stay(messages: Sequence[Message], index: int, counter: TokenCounter) -> int:
    """What stays of the exchange at *index*, as far as it is known before its lines are chosen."""
    message = messages[index]
    said = STEP_TOKENS + ANSWER_CHARS // CHARS_PER_TOKEN
    tokens = 0
    if has_calls(message):
        tokens = STEP_TOKENS * len(list(tool_calls([message])))
        message = messages[index + 1]
    elif message["role"] == "assistant":
        return said
    tokens += said * len(reports_in(message))
    return tokens + sum(map(counter.block, blocks_to_keep(message)))
