"""Observers: what follows the requests of a conversation, and takes no part in its turns.

The walk calls them and knows none of them: those that are used by default, and those that a
stage names under ``observers``, are imported when the first conversation begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from ..messages import Message
from ..stages.reports import Result

if TYPE_CHECKING:
    from ..conversation.state import PipelineSettings, Request
    from ..conversation.timeline import Step, Timeline
    from ..prompt_cache import CacheMiss, Tally

DEFAULT_OBSERVERS = (
    "ctxpipe.prompt_cache.watch:CacheWatch",
    "ctxpipe.observers.readers:ReaderWatch",
)


@dataclass(frozen=True, slots=True)
class Signals:
    """What a session has counted since it was opened, where old exchanges collapse.

    Since its first rewrite: *calls* of the model, the *steps_read_back*, which are tool calls that
    name the file of a collapsed step, and the *imitations*, which are lines of replies in the
    form of a note. Before it and after it: all *tool_calls*, and those *repeated*, with the tool
    and the input of an earlier one. What a journal tells of other processes counts as before it.
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
        """Steps read back per 100 calls."""
        return 100 * self.steps_read_back / self.calls if self.calls else 0.0

    @property
    def repeat_share_before(self) -> float:
        """The share of repeated calls before the first rewrite."""
        return self.repeated_before / self.tool_calls_before if self.tool_calls_before else 0.0

    @property
    def repeat_share_after(self) -> float:
        """The share of repeated calls after the first rewrite."""
        return self.repeated_after / self.tool_calls_after if self.tool_calls_after else 0.0


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What the observers of a session have found, by the replies that it was shown.

    *cache_misses* are the newest misses of the provider's prompt cache, *cache_tally* all of them
    by cause, those of most tokens first. Costs are in dollars, and None where nobody knows the
    prices of the model: give the pipeline ``prices=``. They are looked up with the next turn.
    *signals* are what to watch where old exchanges collapse, in a pipeline with a `Collapse` stage;
    a notice and a warning say once when a count is too high.
    """

    cache_misses: Sequence[CacheMiss] = ()
    cache_tally: Sequence[Tally] = ()
    signals: Signals = Signals()


@dataclass(frozen=True, slots=True)
class Shaped:
    """A context that a turn has made of *timeline*, by *step*, for a request.

    Its messages differ from those of the context before from number *rewritten_from* on.
    """

    timeline: Timeline
    step: Step
    request: Request
    result: Result
    rewritten_from: int | None


@dataclass(eq=False)
class Observer:
    """Follows the requests of one conversation, each known by its list of messages.

    What a subclass has no use for does nothing.
    """

    settings: PipelineSettings
    session_id: str
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Begin with nothing seen."""

    async def shaped(self, context: Shaped) -> Iterable[str]:  # noqa: ARG002
        """A context is ready, and probably sent next; sentences for the notices of its result."""
        return ()

    def sent(self, messages: Sequence[Message], body: Mapping[str, object]) -> None:
        """The request goes out in *body*; not called where the caller sends it on his own."""

    def refused(self, messages: Sequence[Message]) -> None:
        """The request was refused, or has failed."""

    def billed(self, usage: object, messages: Sequence[Message] | None, model: str | None) -> None:
        """The *usage* of the reply to the request; None for *messages*: to the last one."""

    def findings(self) -> Mapping[str, object]:
        """What it has found so far, by the fields of `Diagnostics`."""
        return {}


def observers_of(
    settings: PipelineSettings, session_id: str, clock: Callable[[], float]
) -> list[Observer]:
    """The observers of a new conversation: the default ones, and those of its stages."""
    names = [*DEFAULT_OBSERVERS]
    for stage in settings.stages:
        names += getattr(stage, "observers", ())
    kinds: Iterable[type[Observer]] = map(resolve_name, dict.fromkeys(names))
    return [kind(settings, session_id, clock) for kind in kinds]
