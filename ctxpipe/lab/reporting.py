"""From a replay to the page's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..messages import Message, texts, tool_calls
from ..prices import Prices
from ..tokens import TokenCounter, as_counter
from .atoms import AtomIndex
from .costs import Bill, bill
from .moments import Moment, story
from .replay import PipelineMaker, Replay, Settings, Step, replay
from .report import Fact, PageTurn, RecallPoint, Report
from .transcripts import Transcript

__all__ = ["label", "replayed_report", "report_of"]


async def replayed_report(
    transcript: Transcript,
    make: PipelineMaker,
    baseline: PipelineMaker,
    *,
    settings: Settings | None = None,
    prices: Prices | None = None,
    recall: Sequence[RecallPoint] = (),
    names: tuple[str, str] = ("with ctxpipe", "without"),
) -> Report:
    """Replay *transcript* through the pipelines that *make* and *baseline* make, and tell both ways on one page.

    Without *prices*, costs are in input tokens, with them in dollars; *names* are those of the two ways. Raises what
    the pipelines raise.
    """
    index, moments = AtomIndex(), list[Moment]()
    ours = await replay(transcript, make, settings, index, moments.append)
    theirs = await replay(transcript, baseline, settings, index)
    return report_of(transcript, ours, theirs, moments, settings=settings, prices=prices, recall=recall, names=names)


def report_of(
    transcript: Transcript,
    ours: Replay,
    theirs: Replay,
    moments: Iterable[Moment],
    *,
    settings: Settings | None = None,
    prices: Prices | None = None,
    recall: Sequence[RecallPoint] = (),
    names: tuple[str, str] = ("with ctxpipe", "without"),
    counter: TokenCounter | None = None,
) -> Report:
    """The report of one replay beside another of the same transcript; *moments* are those of the first."""
    settings, money = settings or Settings(), prices or Prices.relative()
    told = story(
        moments,
        as_counter(counter),
        system=transcript.system,
        tools=transcript.tools,
        tokens_per_raw=settings.tokens_per_raw,
    )
    replies = [message for message in transcript.messages if message["role"] == "assistant"]
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


def _facts(ours: Replay, theirs: Replay, prices: Prices, unit: str) -> Iterable[Fact]:
    bills = [bill(one.requests, prices) for one in (ours, theirs)]
    largest = [max((step.prompt_tokens for step in one.steps), default=0.0) for one in (ours, theirs)]
    yield Fact("tokens sent in all", *(f"{one.prompt_tokens:,.0f}" for one in bills))
    yield Fact("largest context, tokens", *(f"{tokens:,.0f}" for tokens in largest))
    yield Fact(f"cost, {unit}", *(_amount(one, unit) for one in bills))
    yield Fact("from the prompt cache", *(f"{one.hit_rate:.1%}" for one in bills))
    yield Fact("of what replies used, in the context", *(f"{one.use.recall:.1%}" for one in (ours, theirs)))
    yield Fact(
        "of what replies used, there or one reading call away", *(f"{one.use.one_hop:.1%}" for one in (ours, theirs))
    )
    yield Fact("requests to read something back", *(f"{one.refetches:,}" for one in bills))


def _amount(one: Bill, unit: str) -> str:
    return f"${one.total:,.4f}" if unit == "dollars" else f"{one.total:,.0f}"
