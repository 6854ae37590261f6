"""What others do with a long context, written plainly: something to compare with. Tokens are raw.

Each is a stage like any other. They keep calls and results together and the first request in place,
because the API would refuse the context otherwise; beyond that they take no care: nothing is
stored, nothing points anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..edits.offload import Candidate, Scan, protected_from, said
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
    """A sliding window: the first request, and as many of the last messages as *max_tokens* hold."""

    max_tokens: int

    async def __call__(self, turn: Turn) -> Change | Skip:
        sums = await turn.prefix_sums()
        return _without_middle(turn, sums, self.max_tokens, opening=0)


@dataclass(frozen=True, slots=True)
class DropMiddle:
    """The beginning, up to the share *head* of *max_tokens*, and the end."""

    max_tokens: int
    head: float = 0.25

    async def __call__(self, turn: Turn) -> Change | Skip:
        sums = await turn.prefix_sums()
        return _without_middle(
            turn, sums, self.max_tokens, opening=int(self.max_tokens * self.head)
        )


def _without_middle(
    turn: Turn, sums: Sequence[int], max_tokens: int, opening: int
) -> Change | Skip:
    if sums[-1] <= max_tokens:
        return Skip(f"{sums[-1]} tokens, no more than {max_tokens}")
    messages = list(turn.messages)
    cuts = [index for index in range(len(messages)) if not _has_results(messages[index])]
    least = len(split_system(messages)[0]) + 1  # the first request stays
    first = max((cut for cut in cuts if sums[cut] <= opening), default=0)
    first = max(first, least)
    room = max_tokens - sums[first]
    last = next((cut for cut in cuts if cut >= first and sums[-1] - sums[cut] <= room), cuts[-1])
    if last <= first:
        return Skip("nothing can be left out")
    return Change(messages[:first] + messages[last:])


def _has_results(message: Message) -> bool:
    return any(kind(block) == "tool_result" for block in blocks(message))


# Emptying results ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClearOldResults:
    """Above *trigger* tokens empty every result but the last *keep*, if that frees *at_least*:
    context editing.

    With *target* the oldest are emptied only until the context fits it.
    """

    trigger: int
    keep: int = 3
    at_least: int = 1
    target: int | None = None

    async def __call__(self, turn: Turn) -> Change | Skip:
        tokens = await turn.raw_tokens()
        if tokens <= self.trigger:
            return Skip(f"{tokens} tokens, no more than {self.trigger}")
        results = list(tool_results(turn.messages))
        old = [
            result for result in results[: len(results) - self.keep] if result.content != CLEARED
        ]
        chosen = _until(turn, old, None if self.target is None else tokens - self.target)
        freed = sum(freed for _, freed in chosen)
        if freed < self.at_least:
            return Skip(f"{freed} tokens could be freed, fewer than {self.at_least}")
        return Change(rewrite(turn.messages, {result.place: CLEARED for result, _ in chosen}))


@dataclass(frozen=True, slots=True)
class MaskOldResults:
    """Each turn empty the results older than *keep_calls* calls: observation masking."""

    keep_calls: int = 10
    min_chars: int = 100

    async def __call__(self, turn: Turn) -> Change | Skip:
        end = protected_from(turn.messages, self.keep_calls)
        old = [
            result
            for result in tool_results(turn.messages, 0, end)
            if len(said(result.content)) >= self.min_chars
        ]
        chosen = _until(turn, old, None)
        if not chosen:
            return Skip("no old result is left to mask")
        return Change(rewrite(turn.messages, {result.place: CLEARED for result, _ in chosen}))


def _until(
    turn: Turn, results: Sequence[ToolResult], tokens: int | None
) -> list[tuple[ToolResult, int]]:
    """The oldest results with what each frees, until they free *tokens* (None: all of them)."""
    chosen, freed, cleared = [], 0, turn.counter.text(CLEARED)
    for result in results:
        if tokens is not None and freed >= tokens:
            break
        saved = turn.counter.text(said(result.content)) - cleared
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
            excess -= turn.counter.block(
                blocks(turn.messages[candidate.item.message])[candidate.item.block]
            )
            excess += self.placeholder_tokens
        return chosen or f"the context fits {self.max_tokens} tokens"


@dataclass(frozen=True, slots=True)
class OffloadInputs:
    """The inputs of the oldest calls, whatever their tool, go into files until the context fits
    *max_tokens*.
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
