"""What others do with a long context, written plainly, as something to compare with.

Each is a stage like any other; tokens are raw. They keep calls and results together and the first
request in place, because the API would refuse the context otherwise; beyond that they take no
care: nothing is stored, and nothing points anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..edits.offload import Candidate, Scan, protected_from, text_of
from ..messages import (
    Message,
    ToolResult,
    blocks,
    kind,
    rewrite,
    split_system,
    tool_calls,
    tool_results,
)
from ..stage import Change, Skip, Turn
from ..stages.offload import BatchOffload
from ..storage import TextWriter

__all__ = [
    "ClearOldResults",
    "DropMiddle",
    "KeepLast",
    "MaskOldResults",
    "OffloadInputs",
    "OldestUntil",
]

CLEARED = "[Old tool result content cleared]"


# Dropping messages --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepLast:
    """A sliding window: the first request, and as many of the last messages as fit *max_tokens*."""

    max_tokens: int

    async def __call__(self, turn: Turn) -> Change | Skip:
        sums = await turn.prefix_sums()
        return _drop_middle(turn, sums, self.max_tokens, opening=0)


@dataclass(frozen=True, slots=True)
class DropMiddle:
    """The beginning, up to the share *head* of *max_tokens*, and the end."""

    max_tokens: int
    head: float = 0.25

    async def __call__(self, turn: Turn) -> Change | Skip:
        sums = await turn.prefix_sums()
        opening = int(self.max_tokens * self.head)
        return _drop_middle(turn, sums, self.max_tokens, opening)


def _drop_middle(
    turn: Turn,
    sums: Sequence[int],
    max_tokens: int,
    opening: int,
) -> Change | Skip:
    """Drop what does not fit between the first *opening* tokens and the end."""
    if sums[-1] <= max_tokens:
        return Skip(f"{sums[-1]:,} tokens, no more than {max_tokens:,}")
    messages = list(turn.messages)
    cuts = [index for index, message in enumerate(messages) if not _has_results(message)]
    least = len(split_system(messages)[0]) + 1  # the first request stays
    first = max((cut for cut in cuts if sums[cut] <= opening), default=0)
    first = max(first, least)
    budget = max_tokens - sums[first]
    last = cuts[-1]
    for cut in cuts:
        if cut >= first and sums[-1] - sums[cut] <= budget:
            last = cut
            break
    if last <= first:
        return Skip("nothing can be left out")
    return Change(messages[:first] + messages[last:])


def _has_results(message: Message) -> bool:
    return any(kind(block) == "tool_result" for block in blocks(message))


# Clearing results ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClearOldResults:
    """Context editing: above *trigger* tokens, clear every result but the last *keep*.

    Only if that frees *at_least* tokens. With *target* the oldest are cleared only until the
    context fits it.
    """

    trigger: int
    keep: int = 3
    at_least: int = 1
    target: int | None = None

    async def __call__(self, turn: Turn) -> Change | Skip:
        tokens = await turn.raw_tokens()
        if tokens <= self.trigger:
            return Skip(f"{tokens:,} tokens, no more than {self.trigger:,}")
        results = list(tool_results(turn.messages))
        old = results[: max(0, len(results) - self.keep)]
        old = [result for result in old if result.content != CLEARED]
        excess = None
        if self.target is not None:
            excess = tokens - self.target
        chosen = _oldest_until(turn, old, excess)
        freed = sum(freed for _, freed in chosen)
        if freed < self.at_least:
            return Skip(f"{freed:,} tokens could be freed, fewer than {self.at_least:,}")
        return _clear(turn, chosen)


@dataclass(frozen=True, slots=True)
class MaskOldResults:
    """Observation masking: each turn clear the results older than *keep_calls* calls."""

    keep_calls: int = 10
    min_chars: int = 100

    async def __call__(self, turn: Turn) -> Change | Skip:
        end = protected_from(turn.messages, self.keep_calls)
        results = tool_results(turn.messages, 0, end)
        old = [result for result in results if len(text_of(result.content)) >= self.min_chars]
        chosen = _oldest_until(turn, old, None)
        if not chosen:
            return Skip("no old result is left to mask")
        return _clear(turn, chosen)


def _clear(turn: Turn, chosen: Sequence[tuple[ToolResult, int]]) -> Change:
    replacements = {result.place: CLEARED for result, _ in chosen}
    return Change(rewrite(turn.messages, replacements))


def _oldest_until(
    turn: Turn,
    results: Sequence[ToolResult],
    tokens: int | None,
) -> list[tuple[ToolResult, int]]:
    """The oldest results with what each frees, until they free *tokens* (None: all of them)."""
    chosen = []
    freed = 0
    cleared = turn.counter.text(CLEARED)
    for result in results:
        if tokens is not None and freed >= tokens:
            break
        tokens_before = turn.counter.text(text_of(result.content))
        saved = tokens_before - cleared
        if saved > 0:
            chosen.append((result, saved))
            freed += saved
    return chosen


# Offloading without a price -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OldestUntil:
    """A gate for `BatchOffload`: the oldest results, until the context fits *max_tokens*."""

    max_tokens: int
    placeholder_tokens: int = 30

    async def __call__(
        self, turn: Turn, _scan: Scan, candidates: Callable[[], Sequence[Candidate]], /
    ) -> Sequence[Candidate] | str:
        excess = await turn.raw_tokens() - self.max_tokens
        chosen = []
        for candidate in candidates():
            if excess <= 0:
                break
            chosen.append(candidate)
            message = turn.messages[candidate.item.message]
            block = blocks(message)[candidate.item.block]
            excess -= turn.counter.block(block)
            excess += self.placeholder_tokens
        return chosen or f"the context fits {self.max_tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class OffloadInputs:
    """Move the inputs of the oldest calls into files until the context fits *max_tokens*.

    Whatever their tool.
    """

    storage: TextWriter
    max_tokens: int
    min_chars: int = 300

    async def __call__(self, turn: Turn) -> Change | Skip:
        stage = BatchOffload(
            self.storage,
            OldestUntil(self.max_tokens),
            reference="absolute",
            inputs={call.name for call in tool_calls(turn.messages)},
            min_input_chars=self.min_chars,
        )
        return await stage(turn)
