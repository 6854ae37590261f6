"""Observers: they follow the requests of a conversation and take no part in its turns.

The session calls its observers and does not depend on any of them. The default observers, and
those that a stage names in its attribute ``observers``, are imported when the first conversation
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from ..messages import Message
from ..stages.reports import Result

if TYPE_CHECKING:
    from ..journal.timeline import Step, Timeline
    from ..turn.state import PipelineSettings, Request
    from . import CacheMiss, Tally

DEFAULT_OBSERVERS = (
    "ctxpipe.diagnostics.cache_watch:CacheWatch",
    "ctxpipe.diagnostics.readers:ReaderWatch",
)


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

    *cache_misses* are the newest misses of the provider's prompt cache. *cache_tally* has all
    misses by cause, the cause with the most tokens first. Costs are in dollars, by the ``prices=``
    of the pipeline. Without these, they are by the prices that genai-prices lists for the model:
    the turn after the first miss looks them up, so costs are None before that turn, and if the
    model is not listed. *signals* show whether the agent misses collapsed exchanges, in a pipeline
    with a `Collapse` stage; a notice and a warning report once when a count is too high.
    """

    cache_misses: Sequence[CacheMiss] = ()
    cache_tally: Sequence[Tally] = ()
    signals: Signals = Signals()


@dataclass(frozen=True, slots=True)
class Shaped:
    """A context that a turn has made for a request, with the turn's *timeline* and *step*.

    Its messages differ from those of the previous context from index *rewritten_from* on; None if
    it only grew.
    """

    timeline: Timeline
    step: Step
    request: Request
    result: Result
    rewritten_from: int | None


@dataclass(eq=False)
class Observer:
    """Base of the observers: follows the requests of one conversation.

    Each request is identified by its list of messages. A subclass overrides the events it needs.
    """

    settings: PipelineSettings
    session_id: str
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Set up the observer's own records."""

    async def shaped(self, context: Shaped) -> Iterable[str]:  # noqa: ARG002
        """Handle a new *context*, which is probably sent next; return notices for its result."""
        return ()

    def sent(self, messages: Sequence[Message], body: Mapping[str, object]) -> None:
        """Handle a request that is sent in *body*.

        It is not called if the caller sends the request without the session.
        """

    def refused(self, messages: Sequence[Message]) -> None:
        """Handle a request that the provider refused, or that failed."""

    def billed(self, usage: object, messages: Sequence[Message] | None, model: str | None) -> None:
        """Handle the *usage* of a reply. If *messages* is None, it belongs to the last request."""

    def findings(self) -> Mapping[str, object]:
        """Return the findings so far, by the fields of `Diagnostics`."""
        return {}


def observers_of(
    settings: PipelineSettings, session_id: str, clock: Callable[[], float]
) -> list[Observer]:
    """Create the observers of a new conversation: the default ones, and those of its stages."""
    names = [*DEFAULT_OBSERVERS]
    for stage in settings.stages:
        names += getattr(stage, "observers", ())
    observers: list[Observer] = []
    for name in dict.fromkeys(names):
        observer_class: type[Observer] = resolve_name(name)
        observers.append(observer_class(settings, session_id, clock))
    return observers
