"""Find the old exchanges of a conversation, and the tokens that would leave with each.

An *exchange* is an assistant message with calls together with the user message that has their
results. A long answer without calls is an exchange by itself, and so is a user message with a long
text that a harness wrote.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...messages import (
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
from ...messages import field as read
from ...providers.agent_tools import HARNESS_TEXT
from ..reading.payoff import CandidateTable
from ..reading.what_applies import skill_in
from .governing import Governing

if TYPE_CHECKING:
    from ...messages import FactSums, Message
    from ...tokens import TokenCounter

ANSWER_CHARS = 600
"""Characters that stay of a long reply without calls, or of a harness's text.

On recorded sessions notes were no more useful with more of them, or with the assistant's words
before its calls.
"""
MIN_ANSWER_CHARS = 900
"""A reply or text becomes a step if it has more characters than this."""

# Estimates for the gate, before the lines of the notes are chosen.
CHARS_PER_TOKEN = 4  # of the words that stay
STEP_TOKENS = 25  # in the line of a step


def exchange_length(messages: Sequence[Message], index: int) -> int:
    """Return the number of messages from *index* on that are an exchange and may leave.

    Returns 0 if they have to stay. The API wants some content back unchanged: calls of server tools
    and of their programs, blocks of unknown kinds, and results with anything but text and media.
    What follows a system message in the middle stays too: a note there would put a system message
    between two user messages, which the API refuses.
    """
    message = messages[index]
    if index and messages[index - 1]["role"] == "system":
        return 0
    if message["role"] == "user":
        return int(bool(reports_in(message)) and not has_results(message))
    if message["role"] != "assistant" or not all(_is_plain(block) for block in blocks(message)):
        return 0
    if has_calls(message):
        return 2 if _is_answered(messages, index) else 0
    return int(len(answer_of(message)) > MIN_ANSWER_CHARS)


def _is_answered(messages: Sequence[Message], index: int) -> bool:
    """Return True if the next message has exactly one result for each call at *index*.

    Returns False if two calls have the same id, or if a result contains any block besides texts,
    images and documents. Returns True if there are neither calls nor results.
    """
    results = list(tool_results(messages[index + 1 : index + 2]))
    result_ids = sorted(result.tool_use_id for result in results)
    call_ids = sorted(call.id for call in tool_calls(messages, index, index + 1))
    if call_ids != result_ids or len(set(call_ids)) < len(call_ids):
        return False
    for result in results:
        for part in inner_blocks(result):
            if kind(part) not in MEDIA and not is_text_part(part):
                return False
    return True


def _is_plain(block: Block) -> bool:
    """Return True if *block* of a reply may leave with its exchange, by its kind.

    That is a text, thinking, or a call that no program of the server made.
    """
    name = kind(block)
    if name == "tool_use":
        return program(block) is None
    return name == "text" or name in THINKING


def answer_of(message: Message) -> str:
    """Return the texts of *message*, each on lines of its own."""
    return "\n".join(texts(message))


def reports_in(message: Message) -> list[str]:
    """Return the long texts in a user's *message* that a harness wrote, loaded skills too."""
    return [text for text in texts(message) if _is_report(text)]


def _is_report(text: str) -> bool:
    if len(text) <= MIN_ANSWER_CHARS:
        return False
    return HARNESS_TEXT.fullmatch(text) is not None or skill_in(text) is not None


def blocks_to_keep(message: Message) -> list[Block]:
    """Return the blocks that stay of a user's message: the user's own, and media in results."""
    remaining_blocks: list[Block] = []
    for block in blocks(message):
        if kind(block) == "text" and _is_report(read(block, "text") or ""):
            continue
        if kind(block) != "tool_result":
            remaining_blocks.append(block)
            continue
        remaining_blocks += [part for part in inner_blocks(block) if not is_text_part(part)]
    return remaining_blocks


class ExchangeIndex:
    """The old exchanges of one conversation, and the tokens that would leave with each.

    It lives from turn to turn: each exchange is read once, when it becomes old.
    """

    __slots__ = ("_freed_tokens", "message_count", "places")

    def __init__(self) -> None:
        self.message_count: int = 0
        """Number of messages that were read."""
        self.places: array[int] = array("q")
        """Index of the first message of each exchange."""
        self._freed_tokens = array("q")

    def rewind(self, length: int) -> None:
        """Forget all but the first *length* messages."""
        # The last message before a change may be a call, and its result may have changed.
        self.message_count = min(self.message_count, max(0, length - 1))
        count = bisect_left(self.places, self.message_count)
        del self.places[count:]
        del self._freed_tokens[count:]

    def extend(
        self, messages: Sequence[Message], end: int, sums: Sequence[int], counter: TokenCounter
    ) -> None:
        """Add the exchanges up to message *end*.

        ``sums[n]`` is the number of tokens of the first n messages.
        """
        self.rewind(end + 1)  # in a conversation that became shorter, some are recent again
        index = self.message_count
        while index < end:
            length = exchange_length(messages, index)
            if length:
                stop = index + length
                all_tokens = sums[stop] - sums[index]
                freed_tokens = all_tokens - _remaining_tokens(messages, index, counter)
                if freed_tokens > 0:
                    self.places.append(index)
                    self._freed_tokens.append(freed_tokens)
            index += max(1, length)
        self.message_count = end

    def without(self, messages: Sequence[Message], governing: Governing) -> ExchangeIndex:
        """Return an index of the exchanges that may leave; those of *governing* stay."""
        index = ExchangeIndex()
        index.message_count = self.message_count
        for place, freed_tokens in zip(self.places, self._freed_tokens, strict=True):
            if not governing.keeps(place, exchange_length(messages, place)):
                index.places.append(place)
                index._freed_tokens.append(freed_tokens)
        return index

    def table(self, fact_sums: FactSums, sums: Sequence[int], keep_recent: int) -> CandidateTable:
        """Return the exchanges as candidates for `best_eviction`.

        *fact_sums* and *sums* are those of the context. The *keep_recent* calls after each exchange
        count as free.
        """
        reads = fact_sums.reads([place + 1 for place in self.places], keep_recent)
        starts = [sums[place] for place in self.places]
        return CandidateTable(self._freed_tokens, reads, starts, sums[fact_sums.messages_sent])


def _remaining_tokens(messages: Sequence[Message], index: int, counter: TokenCounter) -> int:
    """Return an estimate of the tokens that stay of the exchange at *index* when it is collapsed.

    They are those of its lines in a note and of the blocks that stay whole. Lines that the note
    quotes do not count.
    """
    message = messages[index]
    text_tokens = STEP_TOKENS + ANSWER_CHARS // CHARS_PER_TOKEN
    tokens = 0
    if has_calls(message):
        tokens = STEP_TOKENS * len(list(tool_calls([message])))
        message = messages[index + 1]
    elif message["role"] == "assistant":
        return text_tokens
    tokens += text_tokens * len(reports_in(message))
    return tokens + sum(counter.block(block) for block in blocks_to_keep(message))
