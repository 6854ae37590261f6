"""Simple versions of what others do with a long context, to compare ctxpipe with.

Each is a stage like any other; tokens are raw. They keep calls and results together and the first
request in place, because the API would refuse the context otherwise; beyond that they take no
care: nothing is stored, and nothing points anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ctxpipe.errors import SettingsError
from ctxpipe.lab.policies import BUDGET, POLICIES, clear_results, clearable
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message, blocks, kind, split_system, tool_calls, tool_results
from ctxpipe.pipeline import ContextPipeline
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.offload.gates import RatioGate, RentOrBuyGate
from ctxpipe.stages.offload.selection import Scan
from ctxpipe.stages.offload.stage import BatchOffload
from ctxpipe.stages.protocol import Change, Skip, Stage, Turn
from ctxpipe.stages.reading.candidates import OffloadCandidate
from ctxpipe.stages.reading.results import text_of
from ctxpipe.stages.truncate.stage import SmartTruncate
from ctxpipe.storage import TextWriter
from ctxpipe.tokens import Budget, Ledger

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
class MaskOldResults:
    """Observation masking: each turn clear the results older than *keep_calls* calls."""

    keep_calls: int = 10
    min_chars: int = 100

    async def __call__(self, turn: Turn) -> Change | Skip:
        end = (await turn.fact_sums()).recent_from(self.keep_calls)
        results = tool_results(turn.messages, 0, end)
        old = [result for result in results if len(text_of(result.content)) >= self.min_chars]
        chosen = clearable(turn, old)
        if not chosen:
            return Skip("no old result is left to mask")
        return clear_results(turn, chosen)


@dataclass(frozen=True, slots=True)
class ClearUntil:
    """Clear the oldest results but the last, until the context fits *max_tokens*."""

    max_tokens: int

    async def __call__(self, turn: Turn) -> Change | Skip:
        excess = await turn.raw_tokens() - self.max_tokens
        chosen = []
        for result, freed in clearable(turn, list(tool_results(turn.messages))[:-1]):
            if excess <= 0:
                break
            chosen.append((result, freed))
            excess -= freed
        if not chosen:
            return Skip(f"no old result is left to clear, or the context fits {self.max_tokens:,}")
        return clear_results(turn, chosen)


# Offloading without a price -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OldestUntil:
    """A gate for `BatchOffload`: the oldest results, until the context fits *max_tokens*."""

    max_tokens: int
    placeholder_tokens: int = 30

    async def __call__(
        self, turn: Turn, _scan: Scan, candidates: Callable[[], Sequence[OffloadCandidate]], /
    ) -> Sequence[OffloadCandidate] | str:
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

    async def __call__(self, turn: Turn) -> Change | Skip:
        stage = BatchOffload(
            self.storage,
            OldestUntil(self.max_tokens),
            inputs={call.name for call in tool_calls(turn.messages)},
        )
        return await stage(turn)


# By name -----------------------------------------------------------------------------------------


def _ratio_gate(bench: Workbench, prices: Prices) -> list[Stage]:
    """The gate of the requirements: everything old leaves when it is a fifth of the context."""
    gate = RatioGate(0.2)
    offload = BatchOffload(
        bench.storage,
        gate,
        keep_recent=5,
    )
    return [offload, *POLICIES["compact"](bench, prices)]


def _rent_or_buy(bench: Workbench, prices: Prices) -> list[Stage]:
    """Return the stages of `_ratio_gate` with another gate."""
    gate = RentOrBuyGate(prices)
    return [
        BatchOffload(
            bench.storage,
            gate,
            min_chars=400,
            keep_recent=5,
        ),
        *POLICIES["compact"](bench, prices),
    ]


BASELINES: Mapping[str, Callable[[Workbench, Prices], list[Stage]]] = {
    "fixed-ratio": _ratio_gate,
    "rent-or-buy": _rent_or_buy,
    "keep-last": lambda _bench, _prices: [KeepLast(80_000)],
    "drop-middle": lambda _bench, _prices: [DropMiddle(80_000)],
    "mask": lambda _bench, _prices: [MaskOldResults(keep_calls=10)],
}
"""Policies of the benchmarks alone; raw tokens, as those of `POLICIES`."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Makes the pipeline of one replay: the stages of *name*, one of `BASELINES`."""

    name: str
    prices: Prices = field(default_factory=Prices.relative)

    def __call__(self, bench: Workbench) -> ContextPipeline:
        stages = BASELINES[self.name](bench, self.prices)
        return ContextPipeline(stages, budget=BUDGET)


# To a budget --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BudgetedPolicy:
    """Makes pipelines that bring a context down to *max_tokens* raw tokens, as *name* says.

    Raises SettingsError for a name that does not exist.
    """

    name: str
    max_tokens: int

    def __post_init__(self) -> None:
        if self.name not in BUDGETED:
            names = ", ".join(BUDGETED)
            raise SettingsError(
                f"there is no way {self.name!r} to keep to a budget; there are {names}"
            )

    def __call__(self, bench: Workbench) -> ContextPipeline:
        estimated = _estimate(self.max_tokens)
        budget = Budget(
            window=100 * estimated,
            trigger=estimated + 1,
            target=estimated,
        )
        stages = BUDGETED[self.name](bench, self.max_tokens)
        return ContextPipeline(stages, budget=budget)


def _estimate(raw_tokens: int) -> int:
    """Return the estimate that the stages make of *raw_tokens* before any usage was reported."""
    return Ledger().estimate(raw_tokens)


def _offload(
    bench: Workbench,
    max_tokens: int,
    preview: Preview | None = None,
) -> list[Stage]:
    gate = OldestUntil(max_tokens)
    offload = BatchOffload(
        bench.storage,
        gate,
        preview=preview,
    )
    return [offload, KeepLast(max_tokens)]


def _offload_inputs(bench: Workbench, max_tokens: int) -> list[Stage]:
    results, last = _offload(bench, max_tokens)
    return [results, OffloadInputs(bench.storage, max_tokens), last]


BUDGETED: Mapping[str, Callable[[Workbench, int], list[Stage]]] = {
    "keep last": lambda _bench, tokens: [KeepLast(tokens)],
    "drop middle": lambda _bench, tokens: [DropMiddle(tokens)],
    "clear old results": lambda _bench, tokens: [
        ClearUntil(tokens),
        KeepLast(tokens),
    ],
    "smart truncate": lambda _bench, tokens: [
        SmartTruncate(max_tokens=_estimate(tokens), require_archive=False)
    ],
    "offload oldest": _offload,
    "offload, then inputs": _offload_inputs,
    "offload, 450 characters shown": lambda bench, tokens: _offload(
        bench,
        tokens,
        Preview(300, 150),
    ),
}
"""Ways to bring a context down to a budget, for `recall`: the oldest leaves first."""
