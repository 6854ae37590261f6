"""The report of a page, from the replays of a conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ..atoms import AtomIndex
from ..cache_doctor import Tally
from ..errors import TranscriptError
from ..messages import Message, texts, tool_calls
from ..prices import Prices
from ..tokens import TokenCounter, as_counter
from ..words import as_number, count_phrase
from .cache import cache_report
from .cost_shares import Exchange, cost_shares
from .costs import bill
from .figures import figures
from .policies import NONE
from .replay import PipelineMaker, Replay, Settings, replay
from .report import FIGURES, Fact, Figures, PageTurn, Report, Run, cost, figure
from .story import Moment, story
from .transcripts import Transcript

__all__ = [
    "Pages",
    "Walk",
    "display_name",
    "label",
    "replay_and_report",
    "report_of",
]


@dataclass(frozen=True, slots=True)
class Pages:
    """The reports wanted of each file that is replayed; the first policy is the baseline.

    Costs are in dollars where *prices* are given. Reports are made where the file is replayed: only
    that process has its contexts.
    """

    prices: Prices | None = None

    def report(
        self,
        transcript: Transcript,
        replays: Mapping[str, Replay],
        moments: Mapping[str, Sequence[Moment]],
        settings: Mapping[str, Settings | None],
    ) -> Report:
        """The report of *transcript*, from its replays by policy, and the *moments* of each."""
        walks = {}
        for name, made in replays.items():
            own = settings.get(name) or Settings()
            walks[name] = Walk(made, moments[name], own)
        return report_of(transcript, walks, prices=self.prices)


@dataclass(frozen=True, slots=True)
class Walk:
    """A replay, the runs of its pipeline, and how it was made."""

    replay: Replay
    moments: Sequence[Moment]
    settings: Settings = field(default_factory=Settings)


async def replay_and_report(
    transcript: Transcript,
    makers: Mapping[str, PipelineMaker],
    *,
    settings: Settings | None = None,
    prices: Prices | None = None,
) -> Report:
    """Replay *transcript* through each of *makers*, of which the first is the baseline.

    Without *prices*, costs are in input tokens, with them in dollars. Raises what the pipelines
    raise.
    """
    index = AtomIndex()
    effective_settings = settings or Settings()
    walks = {}
    for name, make in makers.items():
        moments: list[Moment] = []
        made = await replay(transcript, make, effective_settings, index, moments.append)
        walks[name] = Walk(made, moments, effective_settings)
    return report_of(transcript, walks, prices=prices)


def report_of(
    transcript: Transcript,
    walks: Mapping[str, Walk],
    *,
    prices: Prices | None = None,
    counter: TokenCounter | None = None,
) -> Report:
    """The report of replays of one transcript, by policy; the first is the baseline."""
    counter = as_counter(counter)
    effective_prices = prices or Prices.relative()
    unit = "dollars" if prices else "input tokens"
    replays = {name: walk.replay for name, walk in walks.items()}
    rows = figures(replays, effective_prices, next(iter(walks)))
    runs = []
    for row, walk in zip(rows, walks.values(), strict=True):
        runs.append(_run(transcript, row, walk, effective_prices, counter))
    names = [run.policy for run in runs]
    labels = [label(transcript.messages[place]) for place in transcript.replies]
    turns = count_phrase(len(labels), "turn")
    return Report(
        title=transcript.name.rpartition("/")[2],
        runs=tuple(runs),
        labels=tuple(labels),
        subtitle=f"{turns} replayed: {', '.join(names[1:])}, compared with {names[0]}",
        unit=unit,
        facts=tuple(_facts(rows, replays.values(), unit)),
        cache=_tally_recording(transcript, counter, prices),
    )


def display_name(policy: str) -> str:
    """What a reader is told in place of the name "none"."""
    return "no management" if policy == NONE else policy


def _run(
    transcript: Transcript,
    row: Figures,
    walk: Walk,
    prices: Prices,
    counter: TokenCounter,
) -> Run:
    tokens_per_raw = walk.settings.tokens_per_raw
    found = story(
        walk.moments,
        counter,
        system=transcript.system,
        tools=transcript.tools,
        tokens_per_raw=tokens_per_raw,
    )
    shares = cost_shares(
        _exchanges(transcript, walk),
        counter,
        prices,
        system=transcript.system,
        tools=transcript.tools,
        tokens_per_raw=tokens_per_raw,
    )
    turns = []
    for step in walk.replay.steps:
        cost_of_turn = bill(step.requests, prices).total
        turns.append(PageTurn(found.tokens[step.call], cost_of_turn, found.actions[step.call]))
    name = display_name(row.policy)
    return Run(name, tuple(turns), replace(row, policy=name), shares, found.blocks)


def _exchanges(transcript: Transcript, walk: Walk) -> Iterator[Exchange]:
    """Every request of a replay, with what was sent and what was answered."""
    moments: dict[int, list[Moment]] = {}
    for moment in walk.moments:
        moments.setdefault(moment.call, []).append(moment)
    for step in walk.replay.steps:
        own = moments[step.call]
        replies = [after.before[len(before.after) :] for before, after in pairwise(own)]
        last = transcript.messages[transcript.replies[step.call]]
        replies.append([last])
        # A run of the pipeline is followed by one request; only those for summaries have none.
        sends = iter(zip(own, replies, strict=True))
        for request in step.requests:
            if request.purpose == "summary":
                yield Exchange(request)
                continue
            moment, reply = next(sends)
            yield Exchange(request, moment.after, reply[:1])


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


def _facts(
    rows: Sequence[Figures],
    replays: Iterable[Replay],
    unit: str,
) -> Iterator[Fact]:
    """A row for each figure: what it is, and its value under each policy."""
    sent = [sum(request.use.prompt for request in one.requests) for one in replays]
    costs = [cost(row.cost, dollars=unit == "dollars") for row in rows]
    yield Fact(f"cost, {unit}", tuple(costs))
    for name, meaning in FIGURES.items():
        values = tuple(figure(row, name) for row in rows)
        yield Fact(f"{name}: {meaning}", values)
    yield Fact("tokens sent in all", tuple(map(as_number, sent)))
