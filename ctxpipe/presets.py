"""Stages for common kinds of agents: plain lists that can be read and changed.

    stages = presets.coding_agent(LocalStorage(".ctxpipe"), work_dir=".")
    pipeline = ContextPipeline(stages, budget=Budget(window=200_000))

``benchmarks/bench_costs.py`` prints the savings of these stages on recorded sessions, and with
``--ablate`` the effect of each number below. Paths are absolute, since an agent cannot resolve a
path that is relative to a folder it does not know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeAlias, cast, get_args, runtime_checkable

from ._lazy import import_on_use
from .errors import SettingsError
from .placeholders.placeholders import Preview
from .providers.agent_tools import COMMON_READING_TOOLS, SUB_AGENT_TOOLS, WRITING_TOOLS
from .providers.prices import Prices
from .settings import MAPPING
from .stages.collapse.stage import Collapse
from .stages.compact.restore import ReadText
from .stages.compact.stage import Breaker, Compact, Evidence, Restore
from .stages.media.stage import MediaOffload
from .stages.offload.gates import RentOrBuyGate
from .stages.offload.stage import BatchOffload, DirectOffload
from .stages.protocol import Stage
from .stages.read_backs.stage import TrimReadBacks
from .stages.reading.pins import Pin
from .stages.truncate.stage import SmartTruncate
from .storage import Archive, TextWriter
from .storage.files import FileReader
from .summarizers import AgentSummarizer, Summarizer

__all__ = ["Storage", "chat", "coding_agent"]

_RENAMED = {
    "ReadableStorage": "ctxpipe.presets.Storage",
    "coding_agent_lean": 'ctxpipe.presets.coding_agent(…, old_exchanges="lines")',
}
__getattr__: Callable[[str], object] = import_on_use(__name__, {}, renamed=_RENAMED)

OldExchanges: TypeAlias = Literal["calls", "lines"]
"""Amount of old exchanges that `coding_agent` keeps in the context."""

REPORTS = dict.fromkeys(sorted(SUB_AGENT_TOOLS), 20_000)
"""Characters up to which the result of a sub-agent stays in the context until it is old."""


@runtime_checkable
class Storage(TextWriter, Archive, Protocol):
    """A storage of texts and archives, such as `LocalStorage`."""


def coding_agent(
    storage: Storage,
    *,
    work_dir: str | os.PathLike[str] | None,
    old_exchanges: OldExchanges = "calls",
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    summary_model: str | None = None,
    files: FileReader | ReadText | None = None,
    pin: Pin | None = None,
    per_tool: Mapping[str, int | None] | None = None,
    clock: Callable[[], float] = time.time,
) -> list[Stage]:
    """Return the stages for an agent that works on files with commands, in long loops.

    *old_exchanges* decides how much of old exchanges stays in the context. With "calls" their long
    results and inputs go to files, and calls and words stay. With "lines" whole exchanges are
    collapsed into one line for each call and its most useful lines. *storage* must then also be a
    `TextReader`. On recorded sessions this costs less, but no live run has confirmed it;
    `Session.diagnostics` has counts to watch.

    *prices* are those of the model (`prices_of`); by them the stages decide when it pays to rewrite
    the cached context. By default reading from the cache costs 0.1 and writing to it 1.25 of the
    input price. *summarize* is the summarizer of `Compact`. *summary_model* is used instead of it:
    the name of a model that writes the summaries through the agent's own client. *clock* is that
    of the `Breaker`: a wall clock, because a journal passes its pauses to other processes. *pin*
    chooses messages and tool results that stay word for word, such as rules: a list of texts that
    the user says in them, `Pins` with names of tools or texts of results, or a function.

    *per_tool* has other limits for results of single tools, by name; they are added to those of the
    preset. ``{"grep": 20_000}`` leaves its results in the context up to 20,000 characters until
    they are old. ``{"read_schema": None}`` leaves them there, however long and old they are, until
    the whole context is too long; only "lines" collapses old ones with their exchange.

    *work_dir* is the folder of the agent's files. After a compaction the files that the agent read
    last are read again. With None no file is read, unless *files* reads them from another place
    (see `Restore`).

    Raises SettingsError if *old_exchanges* is unknown, or if both *summarize* and *summary_model*
    are set.
    """
    choices = get_args(OldExchanges)
    if old_exchanges not in choices:
        names = ", ".join(repr(name) for name in choices)
        raise SettingsError(f"old_exchanges is {old_exchanges!r}; give one of {names}")
    restore = None
    if work_dir is not None or files is not None:
        restore = Restore(work_dir, files, shell=True)  # noqa: S604  our field; no shell is started
    prices = prices or Prices.relative()
    limits = REPORTS
    own_limits = _own_limits(per_tool)
    if old_exchanges == "calls":
        # Four fifths of the uses of a result happen within five calls. Texts that were read back
        # age as fast as others.
        old_results: Stage = BatchOffload(
            storage,
            gate=RentOrBuyGate(prices),
            min_chars=400,
            keep_recent=5,
            inputs=WRITING_TOOLS,
            keep_read_backs=False,
            per_tool=_never_moved(own_limits),
            pin=pin,
        )
    else:
        old_results = Collapse(storage, prices=prices, keep_recent=4, min_value=3.0, pin=pin)
        # Most texts that an agent misses later are code.
        limits = REPORTS | dict.fromkeys(COMMON_READING_TOOLS, 30_000)
    return [
        # Results of 8,000 characters or more are 7 % of all results and hold more than half of the
        # text. The head and tail that stay visible often answer the next question.
        DirectOffload(
            storage,
            min_chars=8000,
            preview=Preview(head=400, tail=200),
            per_tool={**limits, **own_limits},
            pin=pin,
        ),
        TrimReadBacks(storage),
        MediaOffload(storage),
        old_results,
        Compact(
            _summarizer(summarize, summary_model),
            archive=storage,
            restore=restore,
            evidence=Evidence(pin=pin),
            breaker=Breaker(clock=clock),
        ),
        SmartTruncate(archive=storage, pin=pin, shell=True),  # noqa: S604  our field
    ]


def chat(
    storage: Storage,
    *,
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    summary_model: str | None = None,
    pin: Pin | None = None,
    per_tool: Mapping[str, int | None] | None = None,
    clock: Callable[[], float] = time.time,
) -> list[Stage]:
    """Return the stages for an assistant that talks with a person and looks up records and pages.

    They differ from those of `coding_agent`: a result stays for ten calls of the model, since a
    person returns to it later than a program does; the first line of an offloaded text stays
    readable; and no files are read again after a compaction. The parameters are those of
    `coding_agent`.
    """
    own_limits = _own_limits(per_tool)
    return [
        DirectOffload(
            storage,
            min_chars=8000,
            preview=Preview(head=1200, tail=400),
            per_tool={**REPORTS, **own_limits},
            pin=pin,
        ),
        TrimReadBacks(storage),
        MediaOffload(storage),
        BatchOffload(
            storage,
            gate=RentOrBuyGate(prices or Prices.relative(), free_calls=10),
            min_chars=800,
            keep_recent=10,
            preview=Preview(head=160, tail=0),
            keep_read_backs=False,
            per_tool=_never_moved(own_limits),
            pin=pin,
        ),
        Compact(
            _summarizer(summarize, summary_model),
            archive=storage,
            evidence=Evidence(pin=pin),
            breaker=Breaker(clock=clock),
        ),
        SmartTruncate(archive=storage, pin=pin),
    ]


def _own_limits(per_tool: object) -> Mapping[str, int | None]:
    """Return the caller's limits by tool. Raises SettingsError if they are no mapping."""
    if per_tool is None:
        return {}
    MAPPING.check("per_tool", per_tool)
    return cast("Mapping[str, int | None]", per_tool)


def _never_moved(limits: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return those of *limits* that leave all results of a tool in the context."""
    return {tool: limit for tool, limit in limits.items() if limit is None}


def _summarizer(summarize: Summarizer | None, summary_model: str | None) -> Summarizer | None:
    """Return the summarizer for `Compact`. Raises SettingsError if both arguments are set."""
    if summary_model is None:
        return summarize
    if summarize is not None:
        raise SettingsError(
            "summarize and summary_model are both given; name the model in the summarizer"
        )
    return AgentSummarizer(summary_model)
