"""The figures of policies: what each costs, and what it leaves in sight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..prices import Prices
from .costs import Bill, bill, with_all_marks
from .references import Use
from .replay import Replay
from .report import Figures

__all__ = ["figures", "total_figures"]


def figures(
    replays: Mapping[str, Replay],
    prices: Prices,
    baseline: str,
) -> list[Figures]:
    """A row for each policy; *ratio* is its cost divided by that of *baseline*."""
    groups = {name: [replay] for name, replay in replays.items()}
    return _rows(groups, prices, baseline)


def total_figures(
    conversations: Iterable[Mapping[str, Replay]],
    prices: Prices,
    baseline: str,
) -> list[Figures]:
    """The same over all *conversations*, each of which was replayed through the same policies."""
    read = [replays for replays in conversations if replays]
    if not read:
        return []
    groups = {name: [replays[name] for replays in read] for name in read[0]}
    return _rows(groups, prices, baseline)


@dataclass(frozen=True, slots=True)
class _Bills:
    """What one policy costs in all, with the marks of the replay and with all four."""

    own: Bill
    marked: Bill

    @classmethod
    def of(cls, replays: Iterable[Replay], prices: Prices) -> _Bills:
        own = Bill()
        marked = Bill()
        for replay in replays:
            own += bill(replay.requests, prices)
            marked += bill(with_all_marks(replay.requests), prices)
        return cls(own, marked)


def _rows(
    groups: Mapping[str, Sequence[Replay]],
    prices: Prices,
    baseline: str,
) -> list[Figures]:
    bills = {name: _Bills.of(replays, prices) for name, replays in groups.items()}
    rows = []
    for name, replays in groups.items():
        row = _row(name, replays, bills[name], bills[baseline])
        rows.append(row)
    return rows


def _row(
    name: str,
    replays: Sequence[Replay],
    bills: _Bills,
    baseline: _Bills,
) -> Figures:
    total = bills.own
    use = sum((replay.use for replay in replays), Use())
    prompts = [step.prompt_tokens for replay in replays for step in replay.steps]
    return Figures(
        policy=name,
        calls=len(prompts),
        cost=total.total,
        ratio=_ratio(total, baseline.own),
        marked=_ratio(bills.marked, baseline.marked),
        hits=total.hit_rate,
        peak=max(prompts, default=0.0),
        fetched=total.refetches,
        seen=use.recall,
        strict=use.strict_recall,
        found=use.with_reread,
    )


def _ratio(one: Bill, other: Bill) -> float:
    return one.total / other.total if other.total else 1.0
