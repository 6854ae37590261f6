"""The pipelines that shape the requests of a gateway, one for each size of context window."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from ..config import preset_stages, read_config
from ..errors import SettingsError
from ..pipeline import ContextPipeline
from ..providers.prices import Prices
from ..stages.compact.stage import Compact, Evidence
from ..stages.protocol import Stage
from ..stages.truncate.stage import SmartTruncate
from ..summarizers import AgentSummarizer, ExtractiveSummarizer, Summarizer
from ..tokens import Budget
from ..tokens.memo import Memo

WINDOW = 200_000
LONG_WINDOW = 1_000_000
LONG_CONTEXT = "context-1m"
"""Beginning of the beta's name that gives a model its long context window."""
MAX_WINDOWS = 10_000
"""Maximum number of models whose windows are remembered; a client may name any model."""
MAX_PIPELINES = 200
"""Maximum number of pipelines cached for new conversations; a conversation keeps its own."""

PRESETS = ("coding", "lean", "chat")


class Pipelines:
    """The pipelines of one gateway, each with the window of the models that it serves.

    *preset* is one of PRESETS, or the path of a TOML file. Without *storage* nothing is offloaded
    to files, and the pipelines only compact and truncate. *pin* and *prices* are passed to the
    preset. Summaries are written by *summary_model* at the upstream; if it is None, they are
    collected from the conversation and no model is called.

    Raises SettingsError if the preset does not exist or cannot be read.
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
        self._model_windows: Memo[tuple[str | None, str], int] = Memo(MAX_WINDOWS)
        self._pipelines: Memo[int | None, ContextPipeline] = Memo(MAX_PIPELINES)
        summarize: Summarizer = ExtractiveSummarizer()
        if summary_model is not None:
            summarize = AgentSummarizer(summary_model)
        self._stages = _stages(preset, storage, prices, work_dir, pin or None, summarize)

    def of(self, model: str | None, betas: str) -> ContextPipeline:
        """Return the pipeline for requests to *model*. *betas* is the value of the beta header."""
        window = self._window or (LONG_WINDOW if LONG_CONTEXT in betas else None)
        model_window = self._model_windows.get((model, betas))
        if model_window is not None:
            window = min(model_window, window or WINDOW)
        pipeline = self._pipelines.get(window)
        if pipeline is None:
            pipeline = ContextPipeline(self._stages, budget=Budget(window))
            self._pipelines.put(window, pipeline, size=1)
        return pipeline

    def learn_window(self, model: str | None, betas: str, window: int) -> None:
        """Use the *window* that a refusal named, in tokens, for later conversations."""
        previous_window = self._model_windows.get((model, betas))
        smaller_window = min(previous_window or window, window)
        self._model_windows.put((model, betas), smaller_window, size=1)


def _stages(
    preset: str,
    storage: Any,
    prices: Prices | None,
    work_dir: str | PathLike[str] | None,
    pin: Sequence[str] | None,
    summarize: Summarizer,
) -> list[Stage]:
    """Return the stages of *preset*, the name of a preset or the path of a TOML file.

    Without *storage* the preset is ignored: two stages summarize and truncate without an archive.
    *work_dir* and *pin* are settings of the stages. Raises SettingsError for an unknown or invalid
    preset, and for *pin* with a TOML file.
    """
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
        raise SettingsError(f"there is no preset {preset!r}; give {names}, or a FILE.toml")
    return preset_stages(
        preset, storage, work_dir=work_dir, prices=prices, summarize=summarize, pin=pin
    )
