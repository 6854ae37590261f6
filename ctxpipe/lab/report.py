"""The report of replays, which the tables, the JSON output and the HTML page show."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .._text import as_dollars, as_number, as_percent, as_ratio, short_repr
from ..diagnostics.misses import Tally
from ..providers.prices import HOUR, Prices
from ..tokens.spent import Kind
from .costs import Bill, bill, with_all_marks, with_hour_marks
from .references import Use
from .replay import ReplayResult


@dataclass(frozen=True, slots=True, repr=False)
class Replaced:
    """A replacement in the context: the *original* and the *placeholder*, with their tokens.

    *placeholder* is "" if the original was removed. *where* is the file with the whole original,
    or "".
    """

    name: str
    original: str = field(repr=False)
    placeholder: str = field(repr=False)
    where: str = ""
    tokens_before: float = 0.0
    tokens_after: float = 0.0

    __repr__ = short_repr


@dataclass(slots=True, repr=False)
class Action:
    """The action of a stage in a turn: *outcome* in one word, *reason* in a sentence."""

    stage: str
    outcome: str
    reason: str = ""
    tokens_saved: float | None = None
    replaced: list[Replaced] = field(default_factory=list)

    __repr__ = short_repr


@dataclass(slots=True, repr=False)
class PageTurn:
    """A turn: the tokens of its prompt by kind, its cost, and the actions of the stages."""

    tokens: Mapping[Kind, float] = field(default_factory=dict)
    cost: float = 0.0
    actions: list[Action] = field(default_factory=list)

    __repr__ = short_repr


@dataclass(slots=True)
class BlockFate:
    """A block among the biggest of a conversation, and its *fate* in words.

    The block comes into the context in *turn* (counted from 1). It leaves in the turn *until*, by
    the action with the index *action* in that turn; None means that it stays to the end.
    """

    name: str
    kind: Kind
    tokens: float
    turn: int
    fate: str = "still in the context"
    until: int | None = None
    action: int | None = None


@dataclass(slots=True)
class CostShare:
    """The share of one tool, or one kind of text, in the cost.

    *calls* counts the calls of the tool. *tokens* counts each of its texts once, *sent* in every
    prompt that contains it. *cost* is the part of the cost that they cause. *carrying* is the part
    of *cost* for sending texts again, in the prompts after the first one that contains them.
    """

    name: str
    calls: int = 0
    tokens: float = 0.0
    sent: float = 0.0
    cost: float = 0.0
    carrying: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a policy for one conversation, or for all.

    `FIGURES` explains each figure; costs are in the unit of the prices. *low* and *high* are the
    ends of the interval of the ratio (see `ratio_interval`), None for few sessions.
    """

    policy: str
    calls: int
    cost: float
    ratio: float
    marked: float
    hits: float
    peak: float
    fetched: int
    seen: float
    strict: float
    found: float
    hour: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class PolicyRun:
    """The replay of a conversation under one policy, for the page."""

    figures: Figures
    turns: Sequence[PageTurn] = ()
    shares: Sequence[CostShare] = ()
    blocks: Sequence[BlockFate] = ()

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The replays of one conversation under some policies; the first policy is the baseline.

    *title* is the heading of the page. *runs* has one replay for each policy. *labels* describe the
    model's reply of each turn in a few words. *cache* has a row for each cause of prompt cache
    misses in the recording, or is None without usage in the recording. *format* is that of the
    file, and *agent* the name of the subagent whose conversation it is, "" for the main agent.
    """

    title: str
    runs: Sequence[PolicyRun]
    labels: Sequence[str] = ()
    cache: Sequence[Tally] | None = None
    format: str = ""
    agent: str = ""

    __repr__ = short_repr


# Figures of the tables, of JSON and of the page ---------------------------------------------------

FIGURES: Mapping[str, str] = {
    "ratio": "the cost divided by that of the first policy",
    "marked": "the ratio with cache marks before and after each change",
    "hour": "the cost with cache marks for an hour, divided by the cost",
    "hits": "the share of the prompts that came from the cache",
    "peak": "the largest prompt, in tokens as billed",
    "fetched": "requests made to read something back",
    "seen": "the share of what the replies used that the context showed",
    "strict": "the same without the lines that a stage has chosen to keep",
    "found": "the same with what the context named the place of",
}
"""The explanation of each figure of a replay, by the name it has in tables, JSON and the page."""

DOLLARS = "dollars"
"""The unit of costs in dollars; any other unit means input tokens."""

HEADINGS: Sequence[str] = ("policy", "calls", "cost", *FIGURES)

BOOTSTRAPS = 1_000
"""Number of samples of sessions from which an interval is read."""
MIN_SESSIONS = 5
"""Number of sessions from which on an interval says anything."""


_FORMATS: Mapping[str, Callable[[float], str]] = {
    **dict.fromkeys(FIGURES, as_percent),
    **dict.fromkeys(("ratio", "marked", "hour"), as_ratio),
    **dict.fromkeys(("peak", "fetched"), as_number),
}


def cost(amount: float, unit: str) -> str:
    """Return *amount* as a text: in dollars if that is the *unit*, else in whole input tokens."""
    return as_dollars(amount) if unit == DOLLARS else as_number(amount)


def cells(row: Figures, unit: str) -> tuple[str, ...]:
    """Return the texts of *row*, one for each of the `HEADINGS`."""
    texts = [write(getattr(row, name)) for name, write in _FORMATS.items()]
    return (row.policy, as_number(row.calls), cost(row.cost, unit), *texts)


def figures(conversations: Iterable[Mapping[str, ReplayResult]], prices: Prices) -> list[Figures]:
    """Return a row for each policy, over all *conversations*.

    Each of *conversations* has its replays by policy; it is empty if it could not be replayed. The
    first policy is the baseline of the ratios.
    """
    groups: dict[str, list[ReplayResult]] = {}
    for replays in conversations:
        for name, replay in replays.items():
            groups.setdefault(name, []).append(replay)
    rows: list[Figures] = []
    for name, group in groups.items():
        requests = [request for replay in group for request in replay.requests]
        session_costs = [bill(replay.requests, prices) for replay in group]
        costs = sum(session_costs, Bill())
        all_marks_costs = bill(with_all_marks(requests), prices)
        hour_marks_costs = bill(with_hour_marks(requests), replace(prices, ttl_seconds=HOUR))
        if not rows:
            baseline = costs
            baseline_costs = session_costs
            all_marks_baseline = all_marks_costs
        use = sum((replay.use for replay in group), Use())
        low, high = ratio_interval(session_costs, baseline_costs)
        prompts = [step.prompt_tokens for replay in group for step in replay.steps]
        row = Figures(
            policy=name,
            calls=len(prompts),
            cost=costs.total,
            ratio=_ratio(costs, baseline),
            low=low,
            high=high,
            marked=_ratio(all_marks_costs, all_marks_baseline),
            hits=costs.hit_rate,
            peak=max(prompts, default=0.0),
            fetched=costs.refetches,
            seen=use.recall,
            strict=use.strict_recall,
            found=use.with_reread,
            hour=_ratio(hour_marks_costs, costs),
        )
        rows.append(row)
    return rows


def _ratio(costs: Bill, baseline: Bill) -> float:
    """Return *costs* divided by *baseline*, or 1 if the baseline costs nothing."""
    return costs.total / baseline.total if baseline.total else 1.0


def ratio_interval(
    costs: Sequence[Bill], baseline: Sequence[Bill]
) -> tuple[float | None, float | None]:
    """Return the interval of the ratio of two sums of costs, both with one bill for each session.

    Sessions are drawn again and again with replacement, as many as there are. The interval has nine
    of ten of the ratios of these samples. The draws are the same in each call. Returns None twice
    for fewer than `MIN_SESSIONS` sessions.
    """
    count = len(costs)
    if count < MIN_SESSIONS:
        return None, None
    totals = [each.total for each in costs]
    baseline_totals = [each.total for each in baseline]
    draws = random.Random(1)  # noqa: S311  no secret
    ratios: list[float] = []
    for _ in range(BOOTSTRAPS):
        sample = draws.choices(range(count), k=count)
        total = sum(baseline_totals[index] for index in sample)
        ratios.append(sum(totals[index] for index in sample) / total if total else 1.0)
    ratios.sort()
    return ratios[BOOTSTRAPS // 20], ratios[-BOOTSTRAPS // 20]
