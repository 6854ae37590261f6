"""Policies: pipelines by name, to compare with each other on recorded conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TypeAlias

from ..config import OLD_EXCHANGES, Config, preset_stages, read_config
from ..errors import SettingsError
from ..messages import ToolResult, rewrite, tool_results
from ..pipeline import ContextPipeline
from ..providers.prices import Prices
from ..stages.compact.stage import Breaker, Compact, Restore
from ..stages.protocol import Change, Skip, Stage, Turn
from ..stages.reading.results import text_of
from ..summarizers import ExtractiveSummarizer
from ..tokens import Budget
from .workbench import Workbench

NONE = "none"
"""The policy that leaves every context as it is."""

WINDOW = 200_000
BUDGET = Budget(window=WINDOW, trigger=167_000)
"""Budget of the policies; it compacts where the most widespread coding agent does.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """Maker of the pipeline that a replay runs.

    The stages are those of *config* if it is set, otherwise those of the policy *name*, one of
    `POLICIES`. *prices* are the prices by which the stages decide when a rewrite pays. *budget* is
    that of a policy without a *config*. A call with a `Workbench` returns the pipeline.

    Raises SettingsError if there is neither a *config* nor a policy of this name.
    """

    name: str
    prices: Prices = field(default_factory=Prices.relative)
    config: Config | None = None
    budget: Budget = BUDGET

    def __post_init__(self) -> None:
        if self.config is None and self.name not in POLICIES:
            raise SettingsError(
                f"there is no policy {self.name!r}; give {', '.join(POLICIES)}, or a FILE.toml"
            )

    def __call__(self, bench: Workbench) -> ContextPipeline:
        """Return a new pipeline with the stages of this policy, for the replay on *bench*."""
        if self.config is None:
            stages = POLICIES[self.name](bench, self.prices)
            budget = self.budget
        else:
            budget = self.config.budget()
            stages = self.config.stages(
                bench.storage, files=bench.files, prices=self.prices, clock=bench.clock
            )
        return ContextPipeline(stages, budget=budget, counter=bench.counter)


def policies(names: Iterable[str], prices: Prices | None = None) -> dict[str, Policy]:
    """Return the policies of these *names*, by name.

    A name that ends in ``.toml`` is the path of a file that describes a pipeline. Raises
    SettingsError if there is no policy of a name, or a file does not describe a pipeline.
    """
    result = {}
    for name_or_path in names:
        name = name_or_path
        config = None
        if name_or_path.endswith(".toml"):
            config = read_config(name_or_path)
            # A file such as coding.toml keeps its suffix: the stem is the name of a preset.
            path = PurePath(name_or_path)
            name = path.name if path.stem in POLICIES else path.stem
        result[name] = Policy(name, prices or Prices.relative(), config)
    return result


def _compact(bench: Workbench) -> Compact:
    """Return the stage `Compact` of a replay, which asks no model for the summary."""
    return Compact(
        ExtractiveSummarizer(),
        archive=bench.storage,
        restore=Restore(files=bench.files, shell=True),  # noqa: S604  ctxpipe's field, no subprocess
        breaker=Breaker(clock=bench.clock),
    )


def _preset(name: str, bench: Workbench, prices: Prices) -> list[Stage]:
    return preset_stages(name, bench.storage, files=bench.files, prices=prices, clock=bench.clock)


_StageMaker: TypeAlias = Callable[[Workbench, Prices], list[Stage]]

# In raw tokens: the API counts 80,000 of them as 100,000, where its context editing begins by
# default.
POLICIES: Mapping[str, _StageMaker] = {
    NONE: lambda _bench, _prices: [],
    "compact": lambda bench, _prices: [_compact(bench)],
    "clear-old": lambda bench, _prices: [
        ClearOldResults(80_000, keep=3, at_least=16_000),
        _compact(bench),
    ],
    **{name: partial(_preset, name) for name in (*OLD_EXCHANGES, "chat")},
}
"""The functions that make the stages, by the name of the policy.

- "none": no stage
- "compact": only `Compact`, with summaries that need no model
- "clear-old": above 80,000 raw tokens, replaces all old tool results but the last three by a short
  text, if that frees 16,000 tokens, like the context editing of the API; then `Compact`
- "coding" and "lean": the preset for coding agents, with ``old_exchanges`` "calls" and "lines"
- "chat": the preset for chats
"""


# Context editing as in the API --------------------------------------------------------------------

CLEARED = "[Old tool result content cleared]"


@dataclass(frozen=True, slots=True)
class ClearOldResults:
    """Stage like the API's context editing: it clears old tool results above *trigger* raw tokens.

    All results but the last *keep* are replaced by a short placeholder, without a file. Nothing
    changes if that would free fewer than *at_least* raw tokens.
    """

    trigger: int
    keep: int = 3
    at_least: int = 1

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Replace old results by a placeholder, except the newest ``keep``.

        Returns Skip up to ``trigger`` tokens, or if fewer than ``at_least`` tokens could be freed.
        """
        tokens = await turn.raw_tokens()
        if tokens <= self.trigger:
            return Skip(f"{tokens:,} tokens, no more than {self.trigger:,}")
        results = list(tool_results(turn.messages))
        savings = clearable(turn, results[: max(0, len(results) - self.keep)])
        saved_tokens = sum(tokens for _, tokens in savings)
        if saved_tokens < self.at_least:
            return Skip(f"{saved_tokens:,} tokens could be freed, fewer than {self.at_least:,}")
        return clear_results(turn, savings)


def clear_results(turn: Turn, savings: Sequence[tuple[ToolResult, int]]) -> Change:
    """Replace the results of *savings*, as `clearable` returns them, with the API's placeholder."""
    return Change(rewrite(turn.messages, {result.place: CLEARED for result, _ in savings}))


def clearable(turn: Turn, results: Sequence[ToolResult]) -> list[tuple[ToolResult, int]]:
    """Return the *results* longer than the API's placeholder, each with the raw tokens it frees."""
    count = turn.counter.text
    placeholder_tokens = count(CLEARED)
    savings = []
    for result in results:
        tokens = count(text_of(result.content)) - placeholder_tokens
        if tokens > 0:
            savings.append((result, tokens))
    return savings
