"""The findings of a session's observers, as `Session.diagnostics` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .misses import CacheMiss, Tally


@dataclass(frozen=True, slots=True)
class Signals:
    """Counts that show whether an agent misses the old exchanges that were collapsed.

    All counts are 0 when the session object is created. The *rewrite* is the first one in which
    `Collapse` replaces exchanges by notes.

    Counted only after the rewrite: *calls*, the replies of the model; *steps_read_back*, its tool
    calls that name the file of a collapsed step; *imitations*, lines of its replies that have the
    form of a note. Counted both before and after the rewrite, in two fields each: *tool_calls*, all
    calls of tools; *repeated*, those of them with the tool and the input of an earlier call.
    History that other processes wrote counts as before the rewrite.
    """

    calls: int = 0
    steps_read_back: int = 0
    imitations: int = 0
    tool_calls_before: int = 0
    repeated_before: int = 0
    tool_calls_after: int = 0
    repeated_after: int = 0

    @property
    def read_back_rate(self) -> float:
        """Number of steps read back per 100 calls."""
        return 100 * self.steps_read_back / self.calls if self.calls else 0.0

    @property
    def repeat_share_before(self) -> float:
        """Share of repeated calls before the first rewrite, from 0 to 1."""
        return self.repeated_before / self.tool_calls_before if self.tool_calls_before else 0.0

    @property
    def repeat_share_after(self) -> float:
        """Share of repeated calls after the first rewrite, from 0 to 1."""
        return self.repeated_after / self.tool_calls_after if self.tool_calls_after else 0.0


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Findings of a session's observers, from the replies that the session has seen.

    *cache_misses* are the newest misses of the provider's prompt cache, at most 200, the oldest
    first. *cache_tally* has all misses by cause, the cause with the most tokens first. Costs are in
    dollars, by the ``prices=`` of the pipeline. Without these, they are by the prices that
    genai-prices lists for the model: the turn after the first miss looks them up, so costs are None
    before that turn, and if the model is not listed. *signals* show whether the agent misses
    collapsed exchanges, in a pipeline with a `Collapse` stage; a notice and a warning report once
    when a count is too high.
    """

    cache_misses: Sequence[CacheMiss] = ()
    cache_tally: Sequence[Tally] = ()
    signals: Signals = Signals()
