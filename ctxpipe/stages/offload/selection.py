"""Decide which old tool results and call inputs may leave the context, and measure the history."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate

from ...messages import (
    Block,
    Message,
    as_blocks,
    as_dict,
    block_text,
    compact_json,
    inner_blocks,
    kind,
    tool_calls,
)
from ...messages import field as read
from ..reading.candidates import OffloadCandidate, OffloadRules, long_results
from ..reading.pins import is_pinned_exchange
from ..reading.results import result_characters


@dataclass(frozen=True, slots=True)
class Scan:
    """Size of a history in characters, for a gate.

    *total_chars* counts all messages, *offloadable_chars* the tool results (and inputs of calls)
    that may leave the context.
    """

    total_chars: int
    offloadable_chars: int


def characters(message: Message) -> int:
    """Return the number of characters that the ratio gate counts for *message*.

    A text or thinking block counts its length, a tool call the compact JSON of its input, a tool
    result its content, and media nothing.
    """
    return sum(_block_characters(block) for block in as_blocks(message))


def _block_characters(block: Block) -> int:
    """Return the number of characters that the ratio gate counts for *block*.

    Images, documents and redacted thinking count 0; a block of another kind counts its compact
    JSON.
    """
    match kind(block):
        case "text" | "thinking" as name:
            return len(read(block, name) or "")
        case "redacted_thinking" | "image" | "document":
            return 0
        case "tool_use":
            return len(compact_json(read(block, "input")))
        case "tool_result":
            return result_characters(read(block, "content"))
    return len(compact_json(as_dict(block)))


def document_characters(message: Message) -> int:
    """Return the number of characters of all text documents in *message*, also inside results.

    A document without text, such as a PDF in base64, counts 0. `characters` counts 0 for every
    document; the running totals for batch offloading add the two numbers.
    """
    chars = 0
    for block in as_blocks(message):
        for part in (block, *inner_blocks(block)):
            if kind(part) == "document":
                chars += len(block_text(part) or "")
    return chars


def passes(scan: Scan, ratio: Decimal | float) -> bool:
    """Return True if the offloadable characters are at least *ratio* times all characters.

    The ratio is compared without rounding. Without offloadable characters the answer is False.
    """
    if scan.total_chars == 0 or scan.offloadable_chars == 0:
        return False
    return scan.offloadable_chars >= Decimal(str(ratio)) * scan.total_chars


def _message_index(candidate: OffloadCandidate) -> int:
    return candidate.item.message


class CandidateIndex:
    """The candidates of one conversation and running sums for the gate.

    It lives from turn to turn, so that a turn costs its new messages only. Call `rewind` when
    earlier messages change.
    """

    __slots__ = ("_candidates", "_sums", "_totals")

    def __init__(self) -> None:
        self._totals = array("I", [0])  # at n: characters of the first n messages
        self._candidates: list[OffloadCandidate] = []
        self._sums = array("I", [0])  # at n: characters of the first n candidates

    @property
    def message_count(self) -> int:
        """Number of messages that the sums include."""
        return len(self._totals) - 1

    def rewind(self, length: int) -> None:
        """Forget all but the first *length* messages."""
        candidate_count = bisect_left(self._candidates, length, key=_message_index)
        del self._totals[length + 1 :]
        del self._candidates[candidate_count:]
        del self._sums[candidate_count + 1 :]

    def extend(self, messages: Sequence[Message], rules: OffloadRules) -> None:
        """Add the sums and candidates of the messages after the first `message_count` ones.

        *messages* is the whole history.
        """
        start = self.message_count
        sizes = [characters(message) + document_characters(message) for message in messages[start:]]
        new_candidates = candidates(messages, start, rules)
        # Nothing can fail from here on: a message added in part would never be completed.
        total = self._totals.pop()
        self._totals.extend(accumulate(sizes, initial=total))
        self._candidates += new_candidates
        chars = self._sums.pop()
        new_chars = [candidate.chars for candidate in new_candidates]
        self._sums.extend(accumulate(new_chars, initial=chars))

    def between(self, start: int, end: int) -> tuple[Scan, Callable[[], list[OffloadCandidate]]]:
        """Return the gate's sums if the candidates from message *start* up to *end* may leave.

        The second value returns these candidates when it is called.
        """
        first = bisect_left(self._candidates, start, key=_message_index)
        stop = bisect_left(self._candidates, end, lo=first, key=_message_index)
        scan = Scan(self._totals[-1], self._sums[stop] - self._sums[first])
        return scan, lambda: self._candidates[first:stop]


def candidates(
    messages: Sequence[Message], start: int, rules: OffloadRules
) -> list[OffloadCandidate]:
    """Return the results and inputs that may leave by *rules*, the oldest first.

    The messages before index *start* are skipped.
    """
    all_candidates: list[OffloadCandidate] = []
    for result, call, chars in long_results(messages, start, rules.least_chars):
        if rules.is_candidate(result, call, chars):
            all_candidates.append(OffloadCandidate(result, chars))
    if rules.input_tools:
        for call in tool_calls(messages, start):
            candidate = rules.input_candidate(call)
            if candidate is not None:
                all_candidates.append(candidate)
    if rules.pin is not None:
        all_candidates = [
            candidate
            for candidate in all_candidates
            if not is_pinned_exchange(messages, candidate.item.message, rules.pin)
        ]
    return sorted(all_candidates, key=_message_index)
