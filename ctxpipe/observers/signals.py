"""What to watch in a session whose old exchanges collapse: whether the agent misses them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .._threads.pieces import overlapping_pieces, text_digest
from .._threads.threads import in_thread_if
from ..messages import Message, ToolCall, compact_json, is_bulky, strings, texts, tool_calls
from ..placeholders.names import session_folder
from ..placeholders.notes import find_imitations, note_of
from ..stages.reports import Collapsed, Outcome
from ..tokens.memo import Memo
from . import Observer, Shaped, Signals

MOST_READ_BACK = 15.0
"""Steps read back per 100 calls; on recorded sessions there are five to seven."""
MOST_REPEATED = 1.5
"""Times the share of repeated calls before the first rewrite."""
LEAST_CALLS = 20
"""Model calls after the first rewrite from which on shares mean something."""
LEAST_REPEATED = 3
MOST_CALLS = 20_000
"""Calls of which one more is known as a repetition; of more, the older half is forgotten."""

REMEDY = "raise keep_recent of Collapse, or lower its min_value"
IMITATED = (
    "a reply imitates lines of the notes on earlier steps; if it does so instead of calling tools, "
    "do without Collapse"
)


class Watch(Observer):
    """Counts the `Signals` of one session from its new messages, and warns of each once."""

    def __post_init__(self) -> None:
        folder = re.escape(session_folder(self.session_id))
        self._step = re.compile(
            rf"{folder}[/\\]s[\d{{*?\[]|(?<![\w./\\-])s\d{{1,9}}(?:-[0-9a-f]{{8}})?\.md(?![\w-])"
        )
        self._made: Memo[bytes, bool] = Memo(MOST_CALLS)  # by digest: the calls so far
        self._warned: set[str] = set()
        self._has_resumed = False  # the history before the first turn has been read
        self._has_rewritten = False
        self._counts: Counter[str] = Counter()  # by the fields of `Signals`

    @property
    def signals(self) -> Signals:
        """What was counted so far."""
        return Signals(**self._counts)

    def findings(self) -> Mapping[str, object]:
        return {"signals": self.signals}

    async def shaped(self, context: Shaped) -> list[str]:
        """Count what a turn adds to its timeline; the warnings that are new.

        Others may have played what the timeline has before the first turn.
        """
        timeline, step = context.timeline, context.step
        if not self._has_resumed:
            self._has_resumed = True
            known = timeline.history[: step.known]
            await in_thread_if(is_bulky(known), self.learn, known)
            self._has_rewritten = any(map(note_of, timeline.context))
        if not step.agreement.is_cut:  # on another branch the same calls come again
            await in_thread_if(step.agreement.is_bulk is not False, self.learn, step.messages)
        for report in context.result.reports:
            if report.outcome is Outcome.CHANGED and isinstance(report.detail, Collapsed):
                self.note_rewrite()
        return self.new_warnings()

    def note_rewrite(self) -> None:
        """Old exchanges have collapsed: what comes now was said without them in sight."""
        self._has_rewritten = True

    def learn(self, messages: Sequence[Message]) -> None:
        """Count what is in *messages*, which are new in the history."""
        for message in messages:
            if message["role"] != "assistant":
                continue
            if self._has_rewritten:
                self._counts["calls"] += 1
                self._counts["imitations"] += sum(map(find_imitations, texts(message)))
            for call in tool_calls([message]):
                self._learn_call(call)

    def _learn_call(self, call: ToolCall) -> None:
        digest = text_digest(f"{call.name}\n{compact_json(call.input)}")
        when = "after" if self._has_rewritten else "before"
        self._counts[f"tool_calls_{when}"] += 1
        self._counts[f"repeated_{when}"] += self._made.get(digest) is not None
        self._made.put(digest, True, 1)
        if self._has_rewritten:
            self._counts["steps_read_back"] += any(map(self._names_step, strings(call.input)))

    def _names_step(self, text: str) -> bool:
        return any(self._step.search(piece) for piece in overlapping_pieces(text))

    def new_warnings(self) -> list[str]:
        """What a user should know now, each once."""
        fresh = [(name, text) for name, text in self._warnings() if name not in self._warned]
        self._warned.update(name for name, _ in fresh)
        return [text for _, text in fresh]

    def _warnings(self) -> Iterator[tuple[str, str]]:
        signals = self.signals
        if signals.imitations:
            yield "imitated", IMITATED
        if signals.calls < LEAST_CALLS:
            return
        rate = signals.read_back_rate
        if rate > MOST_READ_BACK:
            yield "read back", f"{rate:.0f} collapsed steps were read back per 100 calls: {REMEDY}"
        share, before = signals.repeat_share_after, signals.repeat_share_before
        if signals.repeated_after >= LEAST_REPEATED and share > MOST_REPEATED * before:
            shares = f"{share:.0%} of the calls repeat an earlier one, {before:.0%} before"
            yield "repeated", f"since old exchanges collapsed, {shares}: {REMEDY}"
