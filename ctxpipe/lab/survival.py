"""Measurement of the texts that must stay in a context: where each is, call by call.

A `Survey` follows the replay of one policy. At each call for which an order is looked for, and
after each compaction, it looks where the lines of the order are: in the context, in a file that the
context leads to, or in neither. It looks before anything is read back for that call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ..pipeline import ContextPipeline
from ..placeholders.names import session_folder
from ..stages.reports import Compacted, Outcome, Truncated
from ..testing.whereabouts import FileIndex, WordIndex, line_shares, needle_of
from .orders import Look, Order
from .replay import SESSION_ID, Moment, PipelineMaker, Watch
from .workbench import Workbench


class Survey:
    """The looks for *orders* in the replay of one policy.

    *words* is shared by the replays of one transcript. *texts* are the files that the policy has
    written, by key.
    """

    def __init__(self, orders: Sequence[Order], words: WordIndex, texts: Mapping[str, str]) -> None:
        self.looks: list[Look] = []
        self._orders = orders
        self._needles = [[needle_of(line) for line in order.lines] for order in orders]
        self._words = words
        self._files = FileIndex(words, texts, session_folder(SESSION_ID))
        self._by_call: dict[int, list[int]] = {}
        for index, order in enumerate(orders):
            for call in order.looks:
                self._by_call.setdefault(call, []).append(index)
        self._last_call = -1

    def watch(self, moment: Moment) -> None:
        """Look for the orders of the call of *moment*."""
        call = moment.call
        if call != self._last_call:  # the first run for the call, before anything is read back
            self._last_call = call
            for index in self._by_call.get(call, ()):
                self._look(index, moment, after_compaction=False)
        if is_compaction(moment):
            for index, order in enumerate(self._orders):
                if order.from_call <= call <= order.until_call:
                    self._look(index, moment, after_compaction=True)

    def _look(self, index: int, moment: Moment, *, after_compaction: bool) -> None:
        """Look for the order *index* in the context of *moment*."""
        context = moment.after

        def is_in_file(needle: str) -> bool:
            return self._files.file_with(needle, context) is not None

        shares = line_shares(self._needles[index], context, self._words, is_in_file)
        self.looks.append(Look(self._orders[index], moment.call, after_compaction, *shares))


def is_compaction(moment: Moment) -> bool:
    """Return True if a stage summarized or truncated the context of *moment*."""
    for report in moment.reports:
        if report.outcome is Outcome.CHANGED and isinstance(report.detail, Compacted | Truncated):
            return True
    return False


class Surveys:
    """The surveys of the replays of one transcript, by policy.

    Give `replay_all` the *makers* and the *watches* of this object: the makers are those of the
    policies, which also begin the surveys, and the watches look for the orders.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        makers: Mapping[str, PipelineMaker],
    ) -> None:
        self.makers: dict[str, PipelineMaker] = {
            name: partial(self._make, name, make) for name, make in makers.items()
        }
        self.watches: dict[str, Watch] = {name: partial(self._watch, name) for name in makers}
        self._orders = orders
        self._words = WordIndex()
        self._surveys: dict[str, Survey] = {}

    def looks(self, name: str) -> tuple[Look, ...]:
        """Return all looks in the replay of the policy *name*."""
        return tuple(self._surveys[name].looks)

    def _make(self, name: str, make: PipelineMaker, bench: Workbench) -> ContextPipeline:
        """Return the pipeline that *make* makes, and begin the survey of the policy *name*."""
        texts = bench.storage.stored
        self._surveys[name] = Survey(self._orders, self._words, texts)
        return make(bench)

    def _watch(self, name: str, moment: Moment) -> None:
        """Pass *moment* to the survey of the policy *name*."""
        self._surveys[name].watch(moment)
