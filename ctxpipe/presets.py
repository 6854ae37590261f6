"""Stages for common kinds of agents: plain lists, to be read and changed.

    stages = presets.coding_agent(LocalStorage(".ctxpipe"), work_dir=".")
    pipeline = ContextPipeline(stages, budget=Budget(window=200_000))

``benchmarks/bench_costs.py`` prints what these stages save on recorded sessions, and ``--ablate``
what each of the numbers below is worth. Paths are absolute: an agent cannot resolve one that is
relative to a folder it does not know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from .placeholders import Preview
from .prices import Prices
from .stage import Stage
from .stages.compact import Compact, Restore
from .stages.gates import RentOrBuyGate
from .stages.offload import WRITING_TOOLS, BatchOffload, DirectOffload
from .stages.truncate import SmartTruncate
from .storage import Archive, TextWriter
from .storage.files import FileReader
from .summarizers import Summarizer

__all__ = ["Storage", "chat", "coding_agent"]


@runtime_checkable
class Storage(TextWriter, Archive, Protocol):
    """Keeps texts and archives, as `LocalStorage` does."""


def coding_agent(
    storage: Storage,
    *,
    work_dir: str | os.PathLike[str] | None,
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    files: FileReader | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """The stages for an agent that reads and writes files and runs commands: long loops, bulky
    results.

    *prices* of the model (`prices_of`) say when rewriting the cached context pays; without them reading costs a tenth
    of the input price and writing 1.25 of it. *summarize* and *clock* are those of `Compact`.

    *work_dir* is the folder of the agent's files: after a compaction those that it has read last are read again. None
    reads none, unless *files* reads them from elsewhere; see `Restore`.
    """
    restore = None
    if work_dir is not None or files is not None:
        restore = Restore(work_dir, files, shell=True)  # noqa: S604  our field; no shell is started
    return [
        # 8,000 characters are the 7 % of the results that hold more than half of the text; the head
        # and tail that stay visible often answer the next question.
        DirectOffload(storage, min_chars=8000, preview=Preview(head=400, tail=200)),
        # Four fifths of what an agent uses of a result it uses within five calls. What it read back
        # is old again as soon as anything else.
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
        Compact(summarize, archive=storage, restore=restore, clock=clock),
        SmartTruncate(archive=storage, shell=True),  # noqa: S604  our field
    ]


def chat(
    storage: Storage,
    *,
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """The stages for an assistant that talks with a person and looks things up: records, pages, few
    files.

    As `coding_agent`, but a result stays for ten calls, since a person comes back to it later than
    a program does; the first line of what left stays readable; and no files are brought back from
    disk after a compaction.
    """
    return [
        DirectOffload(storage, min_chars=8000, preview=Preview(head=1200, tail=400)),
        BatchOffload(
            storage,
            gate=RentOrBuyGate(prices or Prices.relative(), free_calls=10),
            min_chars=800,
            keep_recent=10,
            preview=Preview(head=160, tail=0),
            keep_read_backs=False,
            reference="absolute",
        ),
        Compact(summarize, archive=storage, clock=clock),
        SmartTruncate(archive=storage),
    ]
