"""The report of a page, from the replays of a conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..atoms import AtomIndex
from ..cache_doctor import Tally
from ..errors import TranscriptError
from ..messages import Message, texts, tool_calls
from ..prices import Prices
from ..tokens import TokenCounter, as_counter
from ..words import as_number, as_percent, as_ratio
from .cache import cache_report
from .costs import bill, with_all_marks
from .policies import NONE, BudgetedPolicy
from .recall import ORACLES, Cut, Scored, cuts, mean_recall, run_pipeline
from .replay import PipelineMaker, Replay, Settings, Step, replay
from .report import Fact, PageTurn, RecallPoint, Report
from .story import Moment, story
from .transcripts import Transcript
from .words import FIGURES, cost

__all__ = ["Pages", "label", "recall_points", "replay_and_report", "report_of"]


@dataclass(frozen=True, slots=True)
class Pages:
    """The reports wanted of each file that is replayed: of the policy *ours* beside *baseline*.

    Costs are in dollars where *prices* are given. Reports are made where the file is replayed: only
    that process has its contexts.
    """

    ours: str
    baseline: str
    prices: Prices | None = None

    async def report(
        self,
        transcript: Transcript,
        replays: Mapping[str, Replay],
        moments: Iterable[Moment],
        settings: Settings | None,
        index: AtomIndex,
    ) -> Report:
        """The report of *transcript*; *moments* are those of the replay through *ours*."""
        return report_of(
            transcript,
            replays[self.ours],
            replays[self.baseline],
            moments,
            settings=settings,
            prices=self.prices,
            recall=await recall_points(transcript, index),
            names=(_display_name(self.ours), _display_name(self.baseline)),
        )


def _display_name(policy: str) -> str:
    return "no management" if policy == NONE else policy


async def replay_and_report(
    transcript: Transcript,
    make: PipelineMaker,
    baseline: PipelineMaker,
    *,
    settings: Settings | None = None,
    prices: Prices | None = None,
    recall: Sequence[RecallPoint] = (),
    names: tuple[str, str] = ("with ctxpipe", "without ctxpipe"),
) -> Report:
    """Replay *transcript* through the pipelines of *make* and *baseline*, and report both.

    Without *prices*, costs are in input tokens, with them in dollars; *names* are those of the two
    policies. Raises what the pipelines raise.
    """
    index = AtomIndex()
    moments: list[Moment] = []
    ours = await replay(transcript, make, settings, index, moments.append)
    theirs = await replay(transcript, baseline, settings, index)
    return report_of(
        transcript,
        ours,
        theirs,
        moments,
        settings=settings,
        prices=prices,
        recall=recall,
        names=names,
    )


def report_of(
    transcript: Transcript,
    ours: Replay,
    theirs: Replay,
    moments: Iterable[Moment],
    *,
    settings: Settings | None = None,
    prices: Prices | None = None,
    recall: Sequence[RecallPoint] = (),
    names: tuple[str, str] = ("with ctxpipe", "without ctxpipe"),
    counter: TokenCounter | None = None,
) -> Report:
    """The report of one replay beside another of the same transcript.

    *moments* are those of the first.
    """
    settings = settings or Settings()
    effective_prices = prices or Prices.relative()
    unit = "dollars" if prices else "input tokens"
    found = story(
        moments,
        as_counter(counter),
        system=transcript.system,
        tools=transcript.tools,
        tokens_per_raw=settings.tokens_per_raw,
    )
    turns = []
    for step, other in zip(ours.steps, theirs.steps, strict=True):
        reply = transcript.messages[transcript.replies[step.call]]
        turn = PageTurn(
            tokens=found.tokens[step.call],
            tokens_without=other.prompt_tokens,
            cost=_cost(step, effective_prices),
            cost_without=_cost(other, effective_prices),
            label=label(reply),
            actions=found.actions[step.call],
        )
        turns.append(turn)
    return Report(
        title=transcript.name.rpartition("/")[2],
        subtitle=f"{len(turns):,} turns replayed: {names[0]}, compared with {names[1]}",
        turns=tuple(turns),
        unit=unit,
        policy=names[0],
        baseline=names[1],
        facts=tuple(_facts(ours, theirs, effective_prices, unit)),
        recall=tuple(recall),
        blocks=found.blocks,
        cache=_tally_recording(transcript, as_counter(counter), prices),
    )


def _tally_recording(
    transcript: Transcript, counter: TokenCounter, prices: Prices | None
) -> tuple[Tally, ...] | None:
    """Why the cache missed as it was recorded; None where the transcript holds no bills."""
    if not transcript.usages:
        return None
    try:
        return cache_report(transcript, counter, prices).tallies
    except TranscriptError:  # they do not tell of the cache
        return None


def label(reply: Message) -> str:
    """What a reply does, in a few words: the tools it calls, or that it is an answer."""
    times = Counter(call.name for call in tool_calls([reply]))
    if not times:
        return "an answer" if any(texts(reply)) else ""
    parts = []
    for name, count in times.items():
        part = name
        if count > 1:
            part = f"{name} ×{count}"
        parts.append(part)
    return ", ".join(parts)


def _cost(step: Step, prices: Prices) -> float:
    return bill(step.requests, prices).total


def _facts(
    ours: Replay,
    theirs: Replay,
    prices: Prices,
    unit: str,
) -> Iterator[Fact]:
    both = (ours, theirs)
    bills = [bill(one.requests, prices) for one in both]
    costs = [one.total for one in bills]
    marked = [bill(with_all_marks(one.requests), prices).total for one in both]
    is_dollars = unit == "dollars"
    figures = {
        "ratio": [as_ratio(ratio) for ratio in _ratios(costs)],
        "marked": [as_ratio(ratio) for ratio in _ratios(marked)],
        "hits": [as_percent(one.hit_rate) for one in bills],
        "peak": [as_number(_largest_prompt(one)) for one in both],
        "fetched": [as_number(one.refetches) for one in bills],
        "seen": [as_percent(one.use.recall) for one in both],
        "strict": [as_percent(one.use.strict_recall) for one in both],
        "found": [as_percent(one.use.with_reread) for one in both],
    }
    yield Fact("tokens sent in all", *(as_number(one.prompt_tokens) for one in bills))
    yield Fact(f"cost, {unit}", *(cost(total, dollars=is_dollars) for total in costs))
    for name, values in figures.items():
        yield Fact(f"{name}: {FIGURES[name]}", *values)


def _ratios(costs: Sequence[float]) -> list[float]:
    """Each of *costs* divided by the last, which is the baseline's."""
    baseline = costs[-1]
    return [one / baseline if baseline else 1.0 for one in costs]


def _largest_prompt(replay: Replay) -> float:
    return max((step.prompt_tokens for step in replay.steps), default=0.0)


# Recall against budget ----------------------------------------------------------------------------

SHARES = (0.1, 0.2, 0.35, 0.5, 0.75)
WAYS = ("keep last", "clear old results", "offload oldest", "offload, 450 characters shown")
ORACLE = "oracle blocks"


async def recall_points(
    transcript: Transcript,
    index: AtomIndex | None = None,
) -> list[RecallPoint]:
    """What policies that keep to a budget still show of what is used later, and the best possible.

    Empty where the conversation is too short to be cut anywhere.
    """
    found = list(cuts(transcript, index=index or AtomIndex()))
    if not found:
        return []
    points: list[RecallPoint] = []
    for share in SHARES:
        total = sum(share * cut.tokens for cut in found)
        tokens = total / len(found)
        for way in WAYS:
            scored = [await _score(cut, way, share) for cut in found]
            points.append(_point(way, tokens, scored))
        best = [ORACLES[ORACLE](cut, int(share * cut.tokens)) for cut in found]
        points.append(_point(ORACLE, tokens, best, oracle=True))
    return points


async def _score(cut: Cut, way: str, share: float) -> Scored:
    budget = int(share * cut.tokens)
    return await run_pipeline(cut, BudgetedPolicy(way, budget))


def _point(
    way: str,
    tokens: float,
    scored: Iterable[Scored],
    *,
    oracle: bool = False,
) -> RecallPoint:
    return RecallPoint(way, tokens, mean_recall(scored).visible, oracle)
