"""Stages for common kinds of agents: plain lists, to be read and changed.

    stages = presets.coding_agent(LocalStorage(".ctxpipe"), work_dir=".")
    pipeline = ContextPipeline(stages, budget=Budget(window=200_000))

``benchmarks/bench_costs.py`` prints what these stages save on recorded sessions, and with
``--ablate`` what each of the numbers below saves. Paths are absolute, since an agent cannot resolve
one that is relative to a folder it does not know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

from .edits.compact import Pin
from .errors import SettingsError
from .placeholders.placeholders import Preview
from .providers.agent_tools import COMMON_READING_TOOLS, SUB_AGENT_TOOLS, WRITING_TOOLS
from .providers.prices import Prices
from .stages.collapse import Collapse
from .stages.compact import Breaker, Compact, Evidence, Restore
from .stages.gates import RentOrBuyGate
from .stages.media import MediaOffload
from .stages.offload import BatchOffload, DirectOffload
from .stages.protocol import Stage
from .stages.read_backs import TrimReadBacks
from .stages.restore import ReadText
from .stages.truncate import SmartTruncate
from .storage import Archive, TextWriter
from .storage.files import FileReader
from .summarizers import AgentSummarizer, Summarizer

__all__ = ["Storage", "chat", "coding_agent"]


OldExchanges: TypeAlias = Literal["calls", "lines", "more_lines"]
"""How much of old exchanges `coding_agent` keeps in sight."""

LEAST_VALUES = {"lines": 3.0, "more_lines": 2.5}
"""`Collapse.min_value` of each."""

REPORTS = dict.fromkeys(SUB_AGENT_TOOLS, 20_000)
"""What a sub-agent has found out stays whole up to so many characters, until it is old."""


@runtime_checkable
class Storage(TextWriter, Archive, Protocol):
    """Keeps texts and archives, as `LocalStorage` does."""


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
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """The stages for an agent with long loops and large results that works on files with commands.

    *old_exchanges* says how much of them stays in sight. With "calls" their long results and inputs
    go to files, and calls and words stay. With "lines" whole exchanges collapse into a line for
    each call with its best lines, with "more_lines" those lines are more; *storage* must then also
    be a `TextReader`. On recorded sessions that costs less, but no live run has confirmed it;
    `Session.diagnostics` count what to watch.

    *prices* of the model (`prices_of`) decide when rewriting the cached context pays; by default
    reading from the cache costs 0.1 of the input price and writing to it 1.25. *summarize* is
    that of `Compact`, *clock* that of its `Breaker`. *pin* chooses messages that stay word for word
    near the limit, too, as rules do: a function, or texts, one of which the user says in them.

    *work_dir* is the folder of the agent's files: after a compaction those that it read last are
    read again. With None no file is read, unless *files* reads them from elsewhere; see `Restore`.

    Raises SettingsError for another *old_exchanges*, or for both *summarize* and *summary_model*.
    """
    restore = None
    if work_dir is not None or files is not None:
        restore = Restore(work_dir, files, shell=True)  # noqa: S604  our field; no shell is started
    prices = prices or Prices.relative()
    stay_longer = REPORTS
    if old_exchanges == "calls":
        # An agent makes four fifths of its use of a result within five calls. What it read back
        # grows old as fast as anything else.
        when_old: Stage = BatchOffload(
            storage,
            gate=RentOrBuyGate(prices),
            min_chars=400,
            keep_recent=5,
            inputs=WRITING_TOOLS,
            keep_read_backs=False,
        )
    elif old_exchanges in LEAST_VALUES:
        least = LEAST_VALUES[old_exchanges]
        when_old = Collapse(storage, prices=prices, keep_recent=4, min_value=least)
        # Most of what is missed once they are gone is code.
        stay_longer = REPORTS | dict.fromkeys(COMMON_READING_TOOLS, 30_000)
    else:
        choices = ", ".join(map(repr, get_args(OldExchanges)))
        raise SettingsError(f"old_exchanges is {old_exchanges!r}; give one of {choices}")
    return [
        # 8,000 characters are the 7 % of the results that hold more than half of the text; the head
        # and tail that stay visible often answer the next question.
        DirectOffload(
            storage, min_chars=8000, preview=Preview(head=400, tail=200), per_tool=stay_longer
        ),
        TrimReadBacks(storage),
        MediaOffload(storage),
        when_old,
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
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """The stages for an assistant that talks with a person and looks up records and pages.

    As `coding_agent`, but a result stays for ten calls, since a person returns to it later than a
    program does; the first line of what was offloaded stays readable; and no files are read again
    after a compaction.
    """
    return [
        DirectOffload(
            storage, min_chars=8000, preview=Preview(head=1200, tail=400), per_tool=REPORTS
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
        ),
        Compact(
            _summarizer(summarize, summary_model),
            archive=storage,
            evidence=Evidence(pin=pin),
            breaker=Breaker(clock=clock),
        ),
        SmartTruncate(archive=storage, pin=pin),
    ]


def _summarizer(summarize: Summarizer | None, summary_model: str | None) -> Summarizer | None:
    """Return what `Compact` asks for a summary. Raises SettingsError where two are named."""
    if summary_model is None:
        return summarize
    if summarize is not None:
        raise SettingsError(
            "summarize and summary_model are both given; name the model in the summarizer"
        )
    return AgentSummarizer(summary_model)
