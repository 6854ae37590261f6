"""Count the signals that show whether an agent misses its collapsed exchanges."""

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
from .findings import Signals
from .observers import Observer, ShapedContext

MAX_READ_BACK_RATE = 15.0
"""Steps read back per 100 calls above which a warning is given (recorded sessions: 5 to 7)."""
MAX_REPEAT_GROWTH = 1.5
"""Factor between the shares of repeated calls after and before the first rewrite."""
MIN_CALLS = 20
"""Model calls after the first rewrite below which shares mean nothing."""
MIN_REPEATED_CALLS = 3
MAX_REMEMBERED_CALLS = 20_000
"""Calls that are remembered to recognize repetitions; above, the older half is forgotten."""

REMEDY = "raise keep_recent of Collapse, or lower its min_value"
IMITATED = (
    "a reply imitates lines of the notes on earlier steps; if it does so instead of calling tools, "
    "remove Collapse from the pipeline"
)


class CollapseWatch(Observer):
    """Counts the `Signals` of one session from its new messages and warns once about each."""

    def __post_init__(self) -> None:
        folder = re.escape(session_folder(self.session_id))
        self._step = re.compile(
            rf"{folder}[/\\]s[\d{{*?\[]|(?<![\w./\\-])s\d{{1,9}}(?:-[0-9a-f]{{8}})?\.md(?![\w-])"
        )
        self._earlier_calls: Memo[bytes, bool] = Memo(MAX_REMEMBERED_CALLS)  # by digest
        self._warned_signals: set[str] = set()
        self._has_resumed = False  # the history before the first turn has been read
        self._has_rewritten = False
        self._counts: Counter[str] = Counter()  # by the fields of `Signals`

    @property
    def signals(self) -> Signals:
        """Counts so far."""
        return Signals(**self._counts)

    def findings(self) -> Mapping[str, object]:
        return {"signals": self.signals}

    async def shaped(self, context: ShapedContext) -> list[str]:
        """Count the signals in the messages of a turn and return the new warnings.

        In the first turn this includes the history that other processes may have written.
        """
        earlier = context.earlier
        if not self._has_resumed:
            self._has_resumed = True
            earlier_messages = earlier.history[: context.known_count]
            await in_thread_if(is_bulky(earlier_messages), self.count, earlier_messages)
            self._has_rewritten = any(note_of(message) for message in earlier.context)
        if not context.is_rewound:  # on another branch the same calls come again
            await in_thread_if(context.exceeds_inline_limit, self.count, context.new_messages)
        for report in context.result.reports:
            if report.outcome is Outcome.CHANGED and isinstance(report.detail, Collapsed):
                self.begin_after_rewrite()
        return self.new_warnings()

    def begin_after_rewrite(self) -> None:
        """Count the next messages as messages after a rewrite."""
        self._has_rewritten = True

    def count(self, messages: Sequence[Message]) -> None:
        """Count calls, repeated calls and imitated notes in the model's replies in *messages*.

        *messages* are new in the history. Only tool calls are counted before the first rewrite too.
        """
        for message in messages:
            if message["role"] != "assistant":
                continue
            if self._has_rewritten:
                self._counts["calls"] += 1
                for text in texts(message):
                    self._counts["imitations"] += find_imitations(text)
            for call in tool_calls([message]):
                self._count_call(call)

    def _count_call(self, call: ToolCall) -> None:
        """Count *call*, and whether it repeats an earlier one or reads a collapsed step."""
        digest = text_digest(f"{call.name}\n{compact_json(call.input)}")
        is_repeated = self._earlier_calls.get(digest) is not None
        period = "after" if self._has_rewritten else "before"
        self._counts[f"tool_calls_{period}"] += 1
        self._counts[f"repeated_{period}"] += is_repeated
        self._earlier_calls.put(digest, True, 1)
        if self._has_rewritten:
            reads_back = any(self._names_step(text) for text in strings(call.input))
            self._counts["steps_read_back"] += reads_back

    def _names_step(self, text: str) -> bool:
        """Return True if *text* names the file of a collapsed step."""
        return any(self._step.search(piece) for piece in overlapping_pieces(text))

    def new_warnings(self) -> list[str]:
        """Return a sentence for each signal that deserves a warning and has had none yet."""
        sentences: list[str] = []
        for signal, sentence in self._warnings():
            if signal not in self._warned_signals:
                self._warned_signals.add(signal)
                sentences.append(sentence)
        return sentences

    def _warnings(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each signal that is too high, and the warning about it."""
        signals = self.signals
        if signals.imitations:
            yield "imitated", IMITATED
        if signals.calls < MIN_CALLS:
            return
        rate = signals.read_back_rate
        if rate > MAX_READ_BACK_RATE:
            yield "read back", f"{rate:.0f} collapsed steps were read back per 100 calls: {REMEDY}"
        if signals.repeated_after < MIN_REPEATED_CALLS:
            return
        share_after = signals.repeat_share_after
        share_before = signals.repeat_share_before
        if share_after > MAX_REPEAT_GROWTH * share_before:
            shares = (
                f"{share_after:.0%} of the calls repeat an earlier one, {share_before:.0%} before"
            )
            yield "repeated", f"since old exchanges collapsed, {shares}: {REMEDY}"
