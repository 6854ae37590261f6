"""What shapes the requests of a gateway: one pipeline for each size of window."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from ..config import preset_stages, read_config
from ..errors import SettingsError
from ..pipeline import ContextPipeline
from ..providers.prices import Prices
from ..stages.compact import Compact, Evidence
from ..stages.protocol import Stage
from ..stages.truncate import SmartTruncate
from ..summarizers import AgentSummarizer, ExtractiveSummarizer, Summarizer
from ..tokens import Budget
from ..tokens.memo import Memo

WINDOW = 200_000
LONG_WINDOW = 1_000_000
LONG_CONTEXT = "context-1m"
"""How the beta is called that gives a model its long window."""
MAX_LEARNED = 10_000
"""So many windows of models are remembered; a client may name any model."""
MAX_PIPELINES = 200
"""So many pipelines are kept for new conversations; one that goes on has its own."""


PRESETS = ("coding", "lean", "chat")


class Pipelines:
    """The pipelines of one gateway, each with the window of the models that it serves.

    *preset* is a name of PRESETS, or a TOML file. Without *storage* no text leaves a context for a
    file: only what compacts and truncates is left. *pin* and *prices* are those of the presets.
    With *summary_model* the upstream is asked for summaries, by that model; without it no model is.

    Raises SettingsError for a preset that does not exist or cannot be read.
    """

    def __init__(
        self,
        preset: str,
        storage: Any,
        *,
        window: int | None = None,
        prices: Prices | None = None,
        work_dir: str | PathLike[str] | None = None,
        pin: Sequence[str] = (),
        summary_model: str | None = None,
    ) -> None:
        self._window = window
        self._learned: Memo[tuple[str | None, str], int] = Memo(MAX_LEARNED)
        self._made: Memo[int | None, ContextPipeline] = Memo(MAX_PIPELINES)
        summarize: Summarizer = ExtractiveSummarizer()
        if summary_model is not None:
            summarize = AgentSummarizer(summary_model)
        self._stages = _stages(preset, storage, prices, work_dir, pin or None, summarize)

    def of(self, model: str | None, betas: str) -> ContextPipeline:
        """The pipeline for requests to *model* with *betas*, the value of their header."""
        window = self._window or (LONG_WINDOW if LONG_CONTEXT in betas else None)
        learned = self._learned.get((model, betas))
        if learned is not None:
            window = min(learned, window or WINDOW)
        pipeline = self._made.get(window)
        if pipeline is None:
            pipeline = ContextPipeline(self._stages, budget=Budget(window))
            self._made.put(window, pipeline, 1)
        return pipeline

    def learn_window(self, model: str | None, betas: str, window: int) -> None:
        """Take *window* tokens, which a refusal has named, for later conversations."""
        known = self._learned.get((model, betas))
        self._learned.put((model, betas), min(known or window, window), 1)


def _stages(
    preset: str,
    storage: Any,
    prices: Prices | None,
    work_dir: str | PathLike[str] | None,
    pin: Sequence[str] | None,
    summarize: Summarizer,
) -> list[Stage]:
    if storage is None:
        return [
            Compact(summarize, require_archive=False, evidence=Evidence(pin=pin)),
            SmartTruncate(require_archive=False, pin=pin),
        ]
    if preset.endswith(".toml"):
        if pin:
            raise SettingsError(f"pin is a setting of stages: write it in {preset}")
        return read_config(preset).stages(
            storage, work_dir=work_dir, prices=prices, summarize=summarize
        )
    if preset not in PRESETS:
        names = ", ".join(PRESETS)
        raise SettingsError(f"there is no preset {preset!r}; there are {names}, or a FILE.toml")
    return preset_stages(
        preset, storage, work_dir=work_dir, prices=prices, summarize=summarize, pin=pin
    )
