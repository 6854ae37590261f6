"""Ways to treat a context, by name, to be compared with each other on recorded conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TypeAlias

from ..config import OLD_EXCHANGES, Config, preset_stages, read_config
from ..edits.offload import text_of
from ..errors import SettingsError
from ..messages import ToolResult, rewrite, tool_results
from ..pipeline import ContextPipeline
from ..providers.prices import Prices
from ..stages.compact import Breaker, Compact, Restore
from ..stages.protocol import Change, Skip, Stage, Turn
from ..summarizers import ExtractiveSummarizer
from ..tokens import Budget
from .workbench import Workbench

NONE = "none"
"""The policy that leaves every context as it is."""

WINDOW = 200_000
BUDGET = Budget(window=WINDOW, trigger=167_000)
"""The tokens at which the most widespread coding agent compacts."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Makes the pipeline of one replay: the stages of *name*, or those that *config* describes.

    Raises SettingsError for a name that does not exist.
    """

    name: str
    prices: Prices = field(default_factory=Prices.relative)
    config: Config | None = None

    def __post_init__(self) -> None:
        if self.config is None and self.name not in POLICIES:
            raise SettingsError(
                f"there is no policy {self.name!r}; there are {', '.join(POLICIES)}"
            )

    def __call__(self, bench: Workbench) -> ContextPipeline:
        if self.config is None:
            stages, budget = POLICIES[self.name](bench, self.prices), BUDGET
        else:
            budget = self.config.budget()
            stages = self.config.stages(
                bench.storage, files=bench.files, prices=self.prices, clock=bench.clock
            )
        return ContextPipeline(stages, budget=budget, counter=bench.counter)


def policies(names: Iterable[str], prices: Prices | None = None) -> dict[str, Policy]:
    """The policies of these *names*; one that ends in ``.toml`` is a file that describes it.

    Raises SettingsError for a name that does not exist, or a file that describes none.
    """
    found = {}
    for given in names:
        name, config = given, None
        if given.endswith(".toml"):
            config = read_config(given)
            # A file such as coding.toml keeps its suffix: the stem is the name of a preset.
            path = PurePath(given)
            name = path.name if path.stem in POLICIES else path.stem
        found[name] = Policy(name, prices or Prices.relative(), config)
    return found


def _compact(bench: Workbench) -> Compact:
    return Compact(
        ExtractiveSummarizer(),
        archive=bench.storage,
        restore=Restore(files=bench.files, shell=True),  # noqa: S604  our field
        breaker=Breaker(clock=bench.clock),
    )


def _preset(name: str, bench: Workbench, prices: Prices) -> list[Stage]:
    return preset_stages(name, bench.storage, files=bench.files, prices=prices, clock=bench.clock)


_Stages: TypeAlias = Callable[[Workbench, Prices], list[Stage]]

# In raw tokens: 80,000 are billed as 100,000, where the API's context editing begins by default.
POLICIES: Mapping[str, _Stages] = {
    NONE: lambda _bench, _prices: [],
    "compact": lambda bench, _prices: [_compact(bench)],
    "clear-old": lambda bench, _prices: [
        ClearOldResults(80_000, keep=3, at_least=16_000),
        _compact(bench),
    ],
    **{name: partial(_preset, name) for name in (*OLD_EXCHANGES, "chat")},
}
"""The stages behind each name."""


# Context editing, as the API does it --------------------------------------------------------------

CLEARED = "[Old tool result content cleared]"


@dataclass(frozen=True, slots=True)
class ClearOldResults:
    """Context editing: above *trigger* tokens, clear every result but the last *keep*.

    Only if that frees *at_least* tokens.
    """

    trigger: int
    keep: int = 3
    at_least: int = 1

    async def __call__(self, turn: Turn) -> Change | Skip:
        tokens = await turn.raw_tokens()
        if tokens <= self.trigger:
            return Skip(f"{tokens:,} tokens, no more than {self.trigger:,}")
        results = list(tool_results(turn.messages))
        chosen = clearable(turn, results[: max(0, len(results) - self.keep)])
        freed = sum(freed for _, freed in chosen)
        if freed < self.at_least:
            return Skip(f"{freed:,} tokens could be freed, fewer than {self.at_least:,}")
        return clear_results(turn, chosen)


def clear_results(turn: Turn, chosen: Sequence[tuple[ToolResult, int]]) -> Change:
    """Put the API's words in the place of the results *chosen*."""
    return Change(rewrite(turn.messages, {result.place: CLEARED for result, _ in chosen}))


def clearable(turn: Turn, results: Sequence[ToolResult]) -> list[tuple[ToolResult, int]]:
    """Those of *results* that are longer than the API's words, each with the tokens it frees."""
    count = turn.counter.text
    freed = [(result, count(text_of(result.content)) - count(CLEARED)) for result in results]
    return [(result, tokens) for result, tokens in freed if tokens > 0]
