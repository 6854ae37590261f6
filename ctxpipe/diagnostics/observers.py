"""Observers: they follow the requests of a conversation and take no part in its turns.

The session calls its observers and does not depend on any of them. The default observers, and
those that a stage names in its attribute ``observers``, are imported when the first conversation
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Protocol

from ..messages import Message
from ..providers.prices import Prices
from ..stages.protocol import Stage, Stored
from ..stages.reports import Result
from ..tokens import TokenCounter

DEFAULT_OBSERVERS = (
    "ctxpipe.diagnostics.cache_watch:CacheWatch",
    "ctxpipe.diagnostics.reader_watch:ReaderWatch",
)


class EarlierTurns(Protocol):
    """History and context of the turns before, as observers read them."""

    @property
    def history(self) -> Sequence[Message]:
        """Messages of the caller."""

    @property
    def context(self) -> Sequence[Message]:
        """The context that the last turn returned."""

    @property
    def placeholders(self) -> Mapping[int, str]:
        """Placeholders of all texts that have left the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedContext:
    """A context that a turn has made for a request: the messages of *result*.

    *system*, *tools* and *options* are those of the request. The first *known_count* messages of
    the history of *earlier* are still valid, and *new_messages* follow them. *is_rewound* is True
    if the caller went back in the history, so that they are on another branch of the conversation;
    *exceeds_inline_limit* is True if reading them would block the event loop. *stored* are texts
    that the turn has written to files.

    The messages differ from those of the previous context from index *rewritten_from* on; None if
    it only grew. The caller edited the history from index *edited_from* of the context on; None if
    the caller only appended to it.
    """

    result: Result
    system: object
    tools: Iterable[object] | None
    options: Mapping[str, object]
    earlier: EarlierTurns
    known_count: int
    new_messages: Sequence[Message]
    is_rewound: bool
    exceeds_inline_limit: bool
    stored: Sequence[Stored]
    rewritten_from: int | None
    edited_from: int | None


@dataclass(eq=False)
class Observer:
    """Base of the observers: follows the requests of one conversation.

    Each request is identified by its list of messages. A subclass overrides the events it needs.
    *prices* are those of the pipeline, None if it has none. *clock* returns seconds.
    """

    session_id: str
    counter: TokenCounter
    prices: Prices | None
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Set up the observer's own records."""

    async def shaped(self, context: ShapedContext) -> Iterable[str]:  # noqa: ARG002
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


def create_observers(
    session_id: str,
    stages: Iterable[Stage],
    counter: TokenCounter,
    prices: Prices | None,
    clock: Callable[[], float],
) -> list[Observer]:
    """Create the observers of a new conversation: the default ones, and those of its *stages*."""
    names = [*DEFAULT_OBSERVERS]
    for stage in stages:
        names += getattr(stage, "observers", ())
    observers: list[Observer] = []
    for name in dict.fromkeys(names):
        observer_class: type[Observer] = resolve_name(name)
        observers.append(observer_class(session_id, counter, prices, clock))
    return observers
