"""The cache marks of previous messages, which a caller moves from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..messages import Message, cache_marks
from ..messages.identity import parse, with_marks
from .step import Marked, Step

if TYPE_CHECKING:
    from .timeline import Timeline

RECENT = 64
"""Number of the newest messages whose cache marks may be moved in place."""


def find_changed_marks(timeline: Timeline, step: Step) -> Iterator[tuple[int, Marked]]:
    """Yield the messages of the context whose cache marks change in *step*, with their index."""
    history = step.agreement.history
    form_changes = step.agreement.form_changes
    if step.adopted:
        for index in form_changes:
            now = history[index]
            yield index, (parse(now), now)
        return
    known = min(len(history), len(timeline.history))
    recent = range(max(0, known - RECENT), known)
    for index in {*form_changes, *recent}:
        place = timeline.alignment.place_of_single(index)
        if place is None or place >= step.retained_count:
            continue
        now = history[index]
        if timeline.sent[place] is timeline.history[index]:
            if index in form_changes:
                yield place, (parse(now), now)
            continue
        before = timeline.context[place]
        message = with_marks(before, now)
        if message is not before:
            yield place, (message, message)


def note_returned_marks(timeline: Timeline, step: Step) -> None:
    """Report the cache marks that are in old messages again as a change of *step*.

    A mark that exceeded the limit of the API is removed; it comes back once there are fewer marks.
    A mark that the caller has moved is not reported.
    """
    moved = step.agreement.form_changes
    for place, (message, _) in step.agreement.mark_changes.items():
        is_moved = step.adopted or timeline.alignment.starts[place] in moved
        if is_moved or _mark_count(message) <= _mark_count(timeline.context[place]):
            continue
        step.touched.add((place, 0), len(step.context) - place - 1)


def _mark_count(message: Message) -> int:
    """Return the number of cache marks in *message*; 0 if the caller has emptied it."""
    try:
        return len(list(cache_marks(message)))
    except (KeyError, TypeError):
        return 0
