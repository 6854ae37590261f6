"""Ways to treat a context, by name, to be compared with each other on recorded conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .. import presets
from ..errors import SettingsError
from ..markers.placeholders import Preview
from ..pipeline import ContextPipeline
from ..prices import Prices
from ..stage import Stage
from ..stages.compact import Breaker, Compact, Restore
from ..stages.gates import RatioGate, RentOrBuyGate
from ..stages.offload import BatchOffload
from ..stages.truncate import SmartTruncate
from ..summarizers import ExtractiveSummarizer
from ..tokens import Budget, Ledger
from .baselines import (
    ClearOldResults,
    DropMiddle,
    KeepLast,
    MaskOldResults,
    OffloadInputs,
    OldestUntil,
)
from .workbench import Workbench

__all__ = ["BUDGETED", "NONE", "POLICIES", "BudgetedPolicy", "Policy", "policies"]

NONE = "none"
"""The policy that leaves every context as it is."""

WINDOW = 200_000
TRIGGER = 167_000
"""Tokens at which the most widespread coding agent compacts, in a window of 200,000."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Makes the pipeline of one replay: the stages of *name*, with *budget* and *prices*.

    Raises SettingsError for a name that does not exist.
    """

    name: str
    prices: Prices = field(default_factory=Prices.relative)
    budget: Budget = field(default_factory=lambda: Budget(window=WINDOW, trigger=TRIGGER))

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise SettingsError(
                f"there is no policy {self.name!r}; there are {', '.join(POLICIES)}"
            )

    def __call__(self, bench: Workbench) -> ContextPipeline:
        stages = POLICIES[self.name](bench, self.prices)
        return ContextPipeline(stages, budget=self.budget)


def policies(names: Iterable[str], prices: Prices | None = None) -> dict[str, Policy]:
    """The policies of these *names*. Raises SettingsError for a name that does not exist."""
    return {name: Policy(name, prices or Prices.relative()) for name in names}


def _compact(bench: Workbench) -> Compact:
    return Compact(
        ExtractiveSummarizer(),
        archive=bench.storage,
        restore=Restore(files=bench.files, shell=True),  # noqa: S604  our field
        breaker=Breaker(clock=bench.clock),
    )


def _ratio_gate(bench: Workbench, _: Prices) -> list[Stage]:
    """The gate of the requirements: everything old leaves when it is a fifth of the context."""
    gate = RatioGate(0.2)
    offload = BatchOffload(
        bench.storage,
        gate,
        keep_recent=5,
        reference="absolute",
    )
    return [offload, _compact(bench)]


def _rent_or_buy(bench: Workbench, prices: Prices) -> list[Stage]:
    """As `_ratio_gate`, except for the gate."""
    gate = RentOrBuyGate(prices)
    return [
        BatchOffload(
            bench.storage,
            gate,
            min_chars=400,
            keep_recent=5,
            reference="absolute",
        ),
        _compact(bench),
    ]


def _coding(
    bench: Workbench, prices: Prices, old_exchanges: Literal["calls", "lines"] = "calls"
) -> list[Stage]:
    return presets.coding_agent(
        bench.storage,
        work_dir=None,
        old_exchanges=old_exchanges,
        prices=prices,
        summarize=ExtractiveSummarizer(),
        files=bench.files,
        clock=bench.clock,
    )


def _lean(bench: Workbench, prices: Prices) -> list[Stage]:
    return _coding(bench, prices, "lines")


def _chat(bench: Workbench, prices: Prices) -> list[Stage]:
    return presets.chat(
        bench.storage,
        prices=prices,
        summarize=ExtractiveSummarizer(),
        clock=bench.clock,
    )


_Stages: TypeAlias = Callable[[Workbench, Prices], list[Stage]]

# In raw tokens: 80,000 are billed as 100,000, where the API's context editing begins by default.
POLICIES: Mapping[str, _Stages] = {
    NONE: lambda _bench, _prices: [],
    "keep-last": lambda _bench, _prices: [KeepLast(80_000)],
    "drop-middle": lambda _bench, _prices: [DropMiddle(80_000)],
    "clear-old": lambda bench, _prices: [
        ClearOldResults(80_000, keep=3, at_least=16_000),
        _compact(bench),
    ],
    "mask": lambda _bench, _prices: [MaskOldResults(keep_calls=10)],
    "compact": lambda bench, _prices: [_compact(bench)],
    "fixed-ratio": _ratio_gate,
    "rent-or-buy": _rent_or_buy,
    "coding": _coding,
    "lean": _lean,
    "chat": _chat,
}
"""The stages behind each name."""


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
    """How the stages count *raw_tokens* before they have seen a bill."""
    return Ledger().estimate(raw_tokens, ())


def _offload(
    bench: Workbench,
    max_tokens: int,
    preview: Preview | None = None,
) -> list[Stage]:
    gate = OldestUntil(max_tokens)
    offload = BatchOffload(
        bench.storage,
        gate,
        reference="absolute",
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
        ClearOldResults(tokens, keep=1, target=tokens),
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
