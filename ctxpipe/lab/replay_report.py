"""From a conversation's replays to the report of its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..messages import Message, texts, tool_calls
from ..prices import Prices
from ..tokens import TokenCounter, as_counter
from .atoms import AtomIndex
from .costs import bill
from .policies import NONE, BudgetedPolicy
from .recall import ORACLES, Cut, Scored, cuts, mean_recall, shaped
from .replay import PipelineMaker, Replay, Settings, Step, replay
from .report import Fact, PageTurn, RecallPoint, Report
from .story import Moment, story
from .transcripts import Transcript
from .words import cost

__all__ = ["Pages", "label", "recall_points", "replayed_report", "report_of"]


@dataclass(frozen=True, slots=True)
class Pages:
    """Which reports are wanted of each file that is replayed: of the policy *ours* beside
    *baseline*.

    Costs are in dollars where *prices* are given. Made where the file is replayed: only that
    process has its contexts.
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
            names=(_shown(self.ours), _shown(self.baseline)),
        )


def _shown(policy: str) -> str:
    return "no management" if policy == NONE else policy


async def replayed_report(
    transcript: Transcript,
    make: PipelineMaker,
    baseline: PipelineMaker,
    *,
    settings: Settings | None = None,
    prices: Prices | None = None,
    recall: Sequence[RecallPoint] = (),
    names: tuple[str, str] = ("with ctxpipe", "without ctxpipe"),
) -> Report:
    """Replay *transcript* through the pipelines that *make* and *baseline* make, and tell both ways
    on one page.

    Without *prices*, costs are in input tokens, with them in dollars; *names* are those of the two
    ways. Raises what the pipelines raise.
    """
    index, moments = AtomIndex(), list[Moment]()
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
    """The report of one replay beside another of the same transcript; *moments* are those of the
    first.
    """
    settings, money = settings or Settings(), prices or Prices.relative()
    told = story(
        moments,
        as_counter(counter),
        system=transcript.system,
        tools=transcript.tools,
        tokens_per_raw=settings.tokens_per_raw,
    )
    replies = [transcript.messages[index] for index in transcript.replies]
    turns = tuple(
        PageTurn(
            told.tokens[step.call],
            other.prompt_tokens,
            _cost(step, money),
            _cost(other, money),
            label(replies[step.call]),
            told.actions[step.call],
        )
        for step, other in zip(ours.steps, theirs.steps, strict=True)
    )
    unit = "input tokens" if prices is None else "dollars"
    return Report(
        title=transcript.name.rpartition("/")[2],
        subtitle=f"{len(turns):,} turns replayed: {names[0]}, compared with {names[1]}",
        turns=turns,
        unit=unit,
        policy=names[0],
        baseline=names[1],
        facts=tuple(_facts(ours, theirs, money, unit)),
        recall=tuple(recall),
        blocks=told.blocks,
    )


def label(reply: Message) -> str:
    """What a reply does, in a few words: the tools it calls, or that it says something."""
    names = [call.name for call in tool_calls([reply])]
    if not names:
        return "an answer" if any(texts(reply)) else ""
    times = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in times.items())


def _cost(step: Step, prices: Prices) -> float:
    return bill(step.requests, prices).total


def _facts(ours: Replay, theirs: Replay, prices: Prices, unit: str) -> Iterator[Fact]:
    both = (ours, theirs)
    bills = [bill(one.requests, prices) for one in both]
    largest = [max((step.prompt_tokens for step in one.steps), default=0.0) for one in both]
    yield Fact("tokens sent in all", *(f"{one.prompt_tokens:,.0f}" for one in bills))
    yield Fact("largest context, tokens", *(f"{tokens:,.0f}" for tokens in largest))
    yield Fact(
        f"cost, {unit}", *(cost(one.total, dollars=unit == "dollars", places=4) for one in bills)
    )
    yield Fact("read from the prompt cache", *(f"{one.hit_rate:.1%}" for one in bills))
    yield Fact("of what replies used, in the context", *(f"{one.use.recall:.1%}" for one in both))
    yield Fact(
        "of what replies used, there or one reading call away",
        *(f"{one.use.one_hop:.1%}" for one in both),
    )
    yield Fact("requests to read something back", *(f"{one.refetches:,}" for one in bills))


# Recall against budget ----------------------------------------------------------------------------

SHARES = (0.1, 0.2, 0.35, 0.5, 0.75)
WAYS = ("keep last", "clear old results", "offload oldest", "offload, 450 characters shown")
ORACLE = "oracle blocks"


async def recall_points(
    transcript: Transcript, index: AtomIndex | None = None
) -> list[RecallPoint]:
    """What simple ways to keep to a budget still show of what is used later, and what could be
    shown at best.

    Empty where the conversation is too short to be cut anywhere.
    """
    found = list(cuts(transcript, index=index or AtomIndex()))
    if not found:
        return []
    points = list[RecallPoint]()
    for share in SHARES:
        tokens = sum(share * cut.tokens for cut in found) / len(found)
        points += [
            _point(way, tokens, [await _kept(cut, way, share) for cut in found]) for way in WAYS
        ]
        best = [ORACLES[ORACLE](cut, int(share * cut.tokens)) for cut in found]
        points.append(_point(ORACLE, tokens, best, oracle=True))
    return points


async def _kept(cut: Cut, way: str, share: float) -> Scored:
    return await shaped(cut, BudgetedPolicy(way, int(share * cut.tokens)))


def _point(
    way: str, tokens: float, scored: Iterable[Scored], *, oracle: bool = False
) -> RecallPoint:
    return RecallPoint(way, tokens, mean_recall(scored).visible, oracle)
