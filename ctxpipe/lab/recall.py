"""Future-reference recall: how much of what the agent went on to use a shortened context still
shows.

A recorded conversation is cut before one of its calls and the context of that call is shaped. A
later reply that says something from before the cut, which nothing since has said again, used it;
whatever it used is either visible in the shaped context, in a file whose path is visible, in a file
view that could be repeated, or lost. Source: economics, 5. What a replay reports as `Use` is the
same question asked at every call: the online variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from ..messages import Message
from ..tokens import TokenCounter, as_counter
from .atoms import Atom, AtomIndex, atoms, weight
from .references import Context, Past, Store, Use, use_of
from .replay import PipelineMaker
from .transcripts import Transcript
from .workbench import ROOT, Workbench

__all__ = [
    "ORACLES",
    "BudgetedMaker",
    "Cut",
    "Recall",
    "Scored",
    "cuts",
    "mean_recall",
    "oracle_atoms",
    "oracle_blocks",
    "oracle_lines",
    "oracle_pointers",
    "shaped",
]

BudgetedMaker: TypeAlias = Callable[[int], PipelineMaker]
"""Makes, for a budget in raw tokens, what makes a pipeline that keeps to it."""

POINTER_TOKENS = 30
MIN_POINTED_CHARS = 100
MAX_LINE_CHARS = 3000


@dataclass(frozen=True, slots=True)
class Scored:
    """A shaped context: its raw tokens, and where in it stood what was used later."""

    tokens: int
    use: Use


@dataclass(frozen=True, slots=True)
class Recall:
    """Means over *cuts*: shares visible, one reading call away, and with views repeated.

    Tokens kept and fetched.
    """

    cuts: int
    visible: float
    one_hop: float
    with_reread: float
    tokens: float
    fetch_tokens: float


class Cut:
    """A conversation cut before its reply number *call*: the messages until then, and what is used
    of them later.
    """

    def __init__(
        self, transcript: Transcript, call: int, index: AtomIndex, counter: TokenCounter
    ) -> None:
        self.name = transcript.name
        self.call = call
        end = transcript.replies[call]
        self.history: list[Message] = transcript.messages[:end]
        self.index = index
        self.counter = counter
        self.past = Past(index)
        for message in self.history:
            self.past.learn(message)
        self.future: list[Atom] = sorted(_used(transcript.messages[end:], index, self.past))

    @cached_property
    def tokens(self) -> int:
        """The raw tokens of the history."""
        return self.counter.total(self.history)

    @cached_property
    def weight(self) -> float:
        """The weight of all that is used later."""
        return sum(map(weight, self.future))

    def use(self, visible: AbstractSet[Atom], pointed: AbstractSet[Atom] = frozenset()) -> Use:
        """Where what is used stands when *visible* is all that can be seen, and *pointed* what can
        be read.
        """
        seen = sum(weight(atom) for atom in self.future if atom in visible)
        hop = sum(weight(atom) for atom in self.future if atom in pointed and atom not in visible)
        return Use(visible=seen, pointer=hop, lost=self.weight - seen - hop)


def _used(future: Sequence[Message], index: AtomIndex, past: Past) -> set[Atom]:
    """What the replies in *future* use of the past, as long as nothing newer has said it."""
    found: set[Atom] = set()
    since: set[Atom] = set()
    for message in future:
        said = index.message(message)
        if message["role"] == "assistant":
            found.update(atom for atom in said if atom not in since and atom in past)
        since |= said
    return found


def cuts(
    transcript: Transcript,
    *,
    shares: Sequence[float] = (0.35, 0.55, 0.75),
    min_tokens: int = 15_000,
    min_calls: int = 6,
    min_weight: float = 5.0,
    index: AtomIndex | None = None,
    counter: TokenCounter | None = None,
) -> Iterator[Cut]:
    """*transcript* cut at these *shares* of its calls, where enough lies before the cut and enough
    of it is used.
    """
    index, counter = index or AtomIndex(), as_counter(counter)
    for call in (int(transcript.calls * share) for share in shares):
        if call < 4 or transcript.calls - call < min_calls:
            continue
        cut = Cut(transcript, call, index, counter)
        if cut.tokens >= min_tokens and cut.weight >= min_weight:
            yield cut


async def shaped(cut: Cut, make: PipelineMaker) -> Scored:
    """The history of *cut* in the hands of a pipeline that sees it for the first time."""
    bench = Workbench()
    bench.files.learn(cut.history)
    result = await make(bench).run(list(cut.history), session_id=cut.name)
    context = Context(cut.index, cut.name)
    context.update(result.messages)
    store = Store(cut.index, cut.counter, f"{ROOT}/")
    store.learn(bench.storage.texts)
    use, _ = use_of(cut.future, cut.past, context, store)
    return Scored(await cut.counter.count(result.messages), use)


def mean_recall(scored: Iterable[Scored]) -> Recall:
    """The means over *scored*, each context with the same say.

    What is fetched over those with pointers.
    """
    found = list(scored)
    fetched = [one.use.fetch_tokens for one in found if one.use.pointer]
    return Recall(
        len(found),
        _mean(one.use.recall for one in found),
        _mean(one.use.one_hop for one in found),
        _mean(one.use.with_reread for one in found),
        _mean(one.tokens for one in found),
        _mean(fetched),
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


# Bounds -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """Something that may be kept: its tokens, and what is used of it later."""

    tokens: int
    used: frozenset[Atom]


def oracle_blocks(cut: Cut, budget: int) -> Scored:
    """Whole blocks, chosen by one who knows the future: greedy weighted coverage, within 1 - 1/e of
    the best.
    """
    visible, tokens = _covering(_blocks(cut), budget)
    return Scored(tokens, cut.use(visible))


def oracle_pointers(cut: Cut, budget: int) -> Scored:
    """As `oracle_blocks`, with a pointer in place of each result: what one reading call leads to
    counts as well.
    """
    results = [
        s
        for s in cut.past.sources
        if s.role == "user" and s.call_id and len(s.text) >= MIN_POINTED_CHARS
    ]
    pointers = POINTER_TOKENS * len(results)
    visible, tokens = _covering(_blocks(cut), budget - pointers)
    pointed: set[Atom] = set().union(*(cut.index.text(source.text) for source in results))
    return Scored(tokens + pointers, cut.use(visible, pointed))


def oracle_lines(cut: Cut, budget: int) -> Scored:
    """Single lines: the bound for whatever only extracts."""
    future = frozenset(cut.future)
    lines: dict[frozenset[Atom], str] = {}
    for source in reversed(cut.past.sources):
        if not future.isdisjoint(cut.index.text(source.text)):
            for line in source.text.splitlines():
                lines.setdefault(future & atoms(line), line[:MAX_LINE_CHARS])
    pieces = [_Piece(cut.counter.text(line), used) for used, line in lines.items() if used]
    visible, tokens = _covering(pieces, budget)
    return Scored(tokens, cut.use(visible))


def oracle_atoms(cut: Cut, budget: int) -> Scored:
    """The very strings that are used, one to a line: the bound for whatever may rewrite."""
    pieces = [_Piece(cut.counter.text(f"{atom[1:]}\n"), frozenset({atom})) for atom in cut.future]
    visible, tokens = _covering(pieces, budget)
    return Scored(tokens, cut.use(visible))


ORACLES: Mapping[str, Callable[[Cut, int], Scored]] = {
    "oracle blocks": oracle_blocks,
    "oracle pointers": oracle_pointers,
    "oracle lines": oracle_lines,
    "oracle atoms": oracle_atoms,
}
"""What nobody can do better than, by the unit that is kept."""


def _blocks(cut: Cut) -> list[_Piece]:
    future = frozenset(cut.future)
    pieces = ((source.text, future & cut.index.text(source.text)) for source in cut.past.sources)
    return [_Piece(cut.counter.text(text), used) for text, used in pieces if used]


def _covering(pieces: Sequence[_Piece], budget: int) -> tuple[set[Atom], int]:
    """What the pieces cover that gain most per token, one after the other as they fit, and their
    tokens.
    """
    covered: set[Atom] = set()
    tokens = 0
    waiting = [(-_gain(piece, covered), index) for index, piece in enumerate(pieces)]
    heapify(waiting)
    while waiting:
        _, index = heappop(waiting)
        piece = pieces[index]
        gain = _gain(piece, covered)
        if gain <= 0 or tokens + piece.tokens > budget:
            continue
        if waiting and gain < -waiting[0][0]:
            heappush(
                waiting, (-gain, index)
            )  # it gains less than it did: another may be better now
            continue
        tokens += piece.tokens
        covered |= piece.used
    return covered, tokens


def _gain(piece: _Piece, covered: AbstractSet[Atom]) -> float:
    return sum(weight(atom) for atom in piece.used if atom not in covered) / max(1, piece.tokens)
