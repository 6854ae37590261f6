"""Rebuild a session by repeating the steps in its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..messages import Message
from ..messages.identity import says_the_same
from .earlier import has_only_grown
from .step import Step
from .timeline import Timeline


@dataclass(slots=True)
class JoinedSteps:
    """Steps that only add to the history, joined to a single *step*; None if there are none.

    *turn_ends* has the number of each turn, and *entry_ends* that of each entry, with the length of
    the history after it.
    """

    step: Step | None = None
    turn_ends: list[tuple[int, int]] = field(default_factory=list)
    entry_ends: list[tuple[int, int]] = field(default_factory=list)

    def add(self, step: Step, length: int) -> None:
        """Join *step*, after which the history has *length* messages."""
        self.turn_ends.append((step.turn, length))
        step.turn = 0
        joined = self.step
        if joined is None:
            step.messages = list(step.messages)  # they may be those of the entry
            self.step = step
            return
        edit_count = len(joined.edits)
        for number, described_count in step.summaries.items():
            joined.summaries[edit_count + number] = described_count
        joined.messages += step.messages
        joined.edits += step.edits
        joined.stale = step.stale
        joined.ancestors = step.ancestors or joined.ancestors
        joined.removals += step.removals


@dataclass(slots=True)
class Replay:
    """A session rebuilt from the entries of its journal, for the caller's *history*.

    *raw* is the raw history. It differs from that of the *timeline* if the caller has adopted a
    context as the history. *files* has the texts that are in files, by index of the message in
    *raw*. *hidden* contains the ids of messages that are not as they were sent.

    The caller has the first *agreed* messages of the timeline's history as well. *fitting* is the
    number of entries up to the latest one after which the caller had the whole history, which had
    *fitted* messages then. *abandoned* has a pair for each place at which the history lost replies
    of the model: the number of entries before it, and the number of turns of the next entry.

    To apply a step to the timeline takes longer the longer the history is, and most steps of a long
    journal only add a few messages and edit the newest ones. Such steps are joined and wait, so
    that they are applied at once. *timeline*, *agreed* and *fitting* follow with `finish`.
    """

    timeline: Timeline
    history: Sequence[Message]
    raw: list[Message] = field(default_factory=list)
    files: dict[int, list[Any]] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    is_adopted: bool = False
    agreed: int = 0
    fitting: int = 0
    fitted: int = 0
    abandoned: list[tuple[int, int]] = field(default_factory=list)
    _spans: list[int] = field(default_factory=lambda: [0])  # history[:n] is raw[: spans[n]]
    _waiting: JoinedSteps = field(default_factory=JoinedSteps)

    @property
    def has_hidden(self) -> bool:
        """True if messages of the context are not as they were sent."""
        return any(id(message) in self.hidden for message in self.timeline.context)

    @property
    def length(self) -> int:
        """Number of messages of the history after the steps so far."""
        return len(self._spans) - 1

    def add(self, step: Step, files: Mapping[str, list[Any]]) -> None:
        """Repeat *step*; *files* has the texts of its messages that are in files."""
        only_adds = self._only_adds(step)
        if not only_adds:
            self.finish()
        if step.adopted:
            self.is_adopted = True
            self._spans = [self._spans[end] for end in (0, *self.timeline.alignment.ends)]
            # The journal may lack texts of messages that only an earlier context has.
            self.timeline.earlier = []
        self._extend_raw(step, files)
        if not only_adds:
            self._apply(step)
            return
        self._waiting.add(step, self.length)
        if step.summaries:
            self.finish()  # the whole context is read for each, so it must not grow before that

    def end_entry(self, number: int) -> None:
        """Note that the steps so far are those of the first *number* entries."""
        self._waiting.entry_ends.append((number, self.length))
        if self._waiting.step is None:
            self.finish()

    def finish(self) -> None:
        """Apply the steps that wait, and find the latest entry that fits the caller's history."""
        waiting = self._waiting
        self._waiting = JoinedSteps()
        if waiting.step is not None:
            self._apply(waiting.step)
        for number, length in waiting.turn_ends:
            self.timeline.note_turn_end(number, length)
        for number, length in waiting.entry_ends:
            if self.agreed >= length:
                self.fitting = number
                self.fitted = length

    def loses_replies(self, step: Step) -> bool:
        """Return True if *step* takes replies of the model out of the history.

        A last message that only grows is not lost.
        """
        lost = self.raw[self._spans[step.unchanged_count] :]
        if lost and step.messages and has_only_grown(lost[0], step.messages[0]):
            lost = lost[1:]
        return any(message["role"] == "assistant" for message in lost)

    def _only_adds(self, step: Step) -> bool:
        """Return True if *step* leaves the history so far, and all summaries, as they are."""
        if step.adopted or step.undone_count or step.unchanged_count != self.length:
            return False
        if step.earlier is not None or step.turn_ends is not None:
            return False  # a snapshot
        earlier = self.timeline.earlier
        return not earlier or earlier[-1].described_count <= step.unchanged_count

    def _apply(self, step: Step) -> None:
        self.timeline.apply(step)
        ours = self.timeline.history
        agreed = 0 if step.adopted else min(self.agreed, step.unchanged_count)
        most = min(len(ours), len(self.history))
        while agreed < most and says_the_same(ours[agreed], self.history[agreed]):
            agreed += 1
        self.agreed = agreed

    def _extend_raw(self, step: Step, files: Mapping[str, list[Any]]) -> None:
        cut = self._spans[step.unchanged_count]
        if cut < len(self.raw):
            self.files = {index: texts for index, texts in self.files.items() if index < cut}
        self.raw[cut:] = step.messages
        new = range(cut, len(self.raw))
        for number, texts in files.items():
            self.files[new[int(number)]] = texts
        self._spans[step.unchanged_count + 1 :] = range(cut + 1, len(self.raw) + 1)
