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
from typing import Protocol, runtime_checkable

from .agent_tools import WRITING_TOOLS
from .markers.placeholders import Preview
from .prices import Prices
from .stage import Stage
from .stages.collapse import Collapse
from .stages.compact import Breaker, Compact, Restore
from .stages.gates import RentOrBuyGate
from .stages.offload import BatchOffload, DirectOffload
from .stages.read_backs import TrimReadBacks
from .stages.restore import ReadText
from .stages.truncate import SmartTruncate
from .storage import Archive, TextReader, TextWriter
from .storage.files import FileReader
from .summarizers import Summarizer

__all__ = ["ReadableStorage", "Storage", "chat", "coding_agent", "coding_agent_lean"]


@runtime_checkable
class Storage(TextWriter, Archive, Protocol):
    """Keeps texts and archives, as `LocalStorage` does."""


@runtime_checkable
class ReadableStorage(Storage, TextReader, Protocol):
    """A `Storage` that returns what it keeps, as `LocalStorage` does."""


def coding_agent(
    storage: Storage,
    *,
    work_dir: str | os.PathLike[str] | None,
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    files: FileReader | ReadText | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """The stages for an agent with long loops and large results that works on files with commands.

    *prices* of the model (`prices_of`) decide when rewriting the cached context pays; by default
    reading from the cache costs 0.1 of the input price and writing to it 1.25. *summarize* is
    that of `Compact`, *clock* that of its `Breaker`.

    *work_dir* is the folder of the agent's files: after a compaction those that it read last are
    read again. With None no file is read, unless *files* reads them from elsewhere; see `Restore`.
    """
    restore = None
    if work_dir is not None or files is not None:
        restore = Restore(work_dir, files, shell=True)  # noqa: S604  our field; no shell is started
    return [
        # 8,000 characters are the 7 % of the results that hold more than half of the text; the head
        # and tail that stay visible often answer the next question.
        DirectOffload(storage, min_chars=8000, preview=Preview(head=400, tail=200)),
        TrimReadBacks(storage),
        # An agent makes four fifths of its use of a result within five calls. What it read back
        # grows old as fast as anything else.
        BatchOffload(
            storage,
            gate=RentOrBuyGate(prices or Prices.relative()),
            min_chars=400,
            keep_recent=5,
            inputs=WRITING_TOOLS,
            min_input_chars=1000,
            keep_read_backs=False,
            reference="absolute",
        ),
        Compact(summarize, archive=storage, restore=restore, breaker=Breaker(clock=clock)),
        SmartTruncate(archive=storage, shell=True),  # noqa: S604  our field
    ]


def coding_agent_lean(
    storage: ReadableStorage,
    *,
    work_dir: str | os.PathLike[str] | None,
    memory_first: bool = False,
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    files: FileReader | ReadText | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """As `coding_agent`, but old exchanges collapse into a line per call with its best lines.

    On recorded sessions that costs less and shows more; live sessions have yet to confirm it, and
    what to watch in them is counted by the session (`Session.signals`). With *memory_first*
    exchanges stay for ten calls instead of seven, and only results of 20,000 characters go to a
    file at once: a few points dearer, and more in sight.
    """
    restore = None
    if work_dir is not None or files is not None:
        restore = Restore(work_dir, files, shell=True)  # noqa: S604  our field; no shell is started
    return [
        DirectOffload(
            storage,
            min_chars=20_000 if memory_first else 8000,
            preview=Preview(head=400, tail=200),
        ),
        TrimReadBacks(storage),
        Collapse(
            storage,
            prices=prices or Prices.relative(),
            keep_recent=10 if memory_first else 7,
        ),
        Compact(summarize, archive=storage, restore=restore, breaker=Breaker(clock=clock)),
        SmartTruncate(archive=storage, shell=True),  # noqa: S604  our field
    ]


def chat(
    storage: Storage,
    *,
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """The stages for an assistant that talks with a person and looks up records and pages.

    As `coding_agent`, but a result stays for ten calls, since a person returns to it later than a
    program does; the first line of what was offloaded stays readable; and no files are read again
    after a compaction.
    """
    return [
        DirectOffload(storage, min_chars=8000, preview=Preview(head=1200, tail=400)),
        TrimReadBacks(storage),
        BatchOffload(
            storage,
            gate=RentOrBuyGate(prices or Prices.relative(), free_calls=10),
            min_chars=800,
            keep_recent=10,
            preview=Preview(head=160, tail=0),
            keep_read_backs=False,
            reference="absolute",
        ),
        Compact(summarize, archive=storage, breaker=Breaker(clock=clock)),
        SmartTruncate(archive=storage),
    ]
