"""Checks of the items of every framework: they come back, paired, with their prefix."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ctxpipe import (
    BatchOffload,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    MemoryStorage,
    SmartTruncate,
)
from ctxpipe.messages import check, pending_calls
from ctxpipe.session import Session
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.wire import Codec, Translation

Storage: TypeAlias = LocalStorage | MemoryStorage


def offloading(storage: Storage) -> ContextPipeline:
    stages = (DirectOffload(storage, min_chars=300), BatchOffload(storage, gate=RatioGate(0.0)))
    return ContextPipeline(stages)


def truncating(storage: Storage) -> ContextPipeline:
    return ContextPipeline([SmartTruncate(storage, max_tokens=300)])


def compacting(storage: Storage) -> ContextPipeline:
    return ContextPipeline([Compact(ExtractiveSummarizer(), storage, breaker=Breaker(clock=float))])


PIPELINES = [offloading, truncating, compacting]


def check_untouched(codec: Codec, items: list[Any]):
    """Check that items which no stage changes come back as the very same objects."""
    before = copy.deepcopy(items)
    translation = Translation(codec)

    units = translation.read(items)
    same = translation.items(units, list(units.messages))
    equal = translation.items(units, copy.deepcopy(units.messages))

    assert not check(units.messages)
    assert [id(item) for item in same] == [id(item) for item in items]
    assert [id(item) for item in equal] == [id(item) for item in items]
    assert items == before


async def check_life(
    codec: Codec,
    session: Session,
    items: list[Any],
    ends: Sequence[int],
    forced: set[int],
    problems: Callable[[Sequence[Any]], list[str]],
):
    """Run a turn at each of *ends*, with all stages at work in those *forced*.

    The items that are sent have no *problems*, and continue those of the turn before. The history
    is not modified.
    """
    before = copy.deepcopy(items)
    translation = Translation(codec)
    sent: list[Any] = []
    for end in ends:
        units = translation.read(copy.deepcopy(items[:end]))
        if problems(items[:end]) or pending_calls(units.messages):
            continue
        result = await session.run(units.messages, system=units.system, force=end in forced)
        previous, sent = sent, translation.items(units, result.messages)

        assert problems(sent) == []
        assert not result.repaired
        if result.first_changed_index is None:
            assert sent[: len(previous)] == previous
    assert items == before


async def sent_items(folder: Path, codec: Codec, items: list[Any]) -> list[Any]:
    """Return what a process that finds its journal in *folder* sends for *items*."""
    storage = LocalStorage(folder, clock=float)
    session = offloading(storage).session("s", journal=storage)
    translation = Translation(codec)
    units = translation.read(items)
    result = await session.run(units.messages, system=units.system)
    return translation.items(units, result.messages)
