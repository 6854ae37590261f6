"""Future-reference recall: how much of what is used later a shortened context still shows.

A recorded conversation is cut before one of its calls and the pipeline is run on the context of
that call. A later reply that says something from before the cut, which nothing since has said
again, used it; whatever it used is either visible in the resulting context, in a file whose path is
visible, in a file view that could be repeated, or lost. What a replay reports as `Use` is the same
question asked at every call: the online variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from ctxpipe.lab.references import Context, Past, Store, Use, use_of
from ctxpipe.lab.replay import PipelineMaker
from ctxpipe.lab.transcripts import Transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message
from ctxpipe.stages.reading.atoms import Atom, AtomIndex, atoms, weight
from ctxpipe.tokens import TokenCounter, as_counter

__all__ = [
    "ORACLES",
    "BudgetedMaker",
    "Cut",
    "Recall",
    "Scored",
    "cuts",
    "lines_around",
    "mean_recall",
    "one_hop",
    "oracle_atoms",
    "oracle_blocks",
    "oracle_lines",
    "oracle_pointers",
    "run_pipeline",
    "score_context",
]

BudgetedMaker: TypeAlias = Callable[[int], PipelineMaker]
"""For a budget in raw tokens, the maker of a pipeline that keeps to it."""

POINTER_TOKENS = 30
MIN_POINTED_CHARS = 100
MAX_LINE_CHARS = 3000
LEAST_PAGED = 3000  # characters; a shorter text is read back whole


@dataclass(frozen=True, slots=True)
class Scored:
    """A resulting context: its raw tokens, and where in it what was used later is."""

    tokens: int
    use: Use


@dataclass(frozen=True, slots=True)
class Recall:
    """Means over *cuts*: shares visible, one reading call away, and with views repeated.

    And the tokens kept.
    """

    cuts: int
    visible: float
    one_hop: float
    with_reread: float
    tokens: float


class Cut:
    """A conversation cut before its reply number *call*.

    The messages until then, and what is used of them later.
    """

    def __init__(
        self,
        transcript: Transcript,
        call: int,
        index: AtomIndex,
        counter: TokenCounter,
    ) -> None:
        self.name: str = transcript.name
        self.call = call
        end = transcript.replies[call]
        self.history: list[Message] = transcript.messages[:end]
        self.index = index
        self.counter = counter
        self.past: Past = Past(index)
        self.past.learn(self.history)
        later = transcript.messages[end:]
        self.future: list[Atom] = sorted(_future_uses(later, index, self.past))

    @cached_property
    def tokens(self) -> int:
        """The raw tokens of the history."""
        return self.counter.total(self.history)

    @cached_property
    def weight(self) -> float:
        """The weight of all that is used later."""
        return sum(map(weight, self.future))

    def use(self, visible: AbstractSet[Atom], pointed: AbstractSet[Atom] = frozenset()) -> Use:
        """Return what is used, by its place: *visible*, or in files to be read (*pointed*)."""
        seen = hop = 0.0
        for atom in self.future:
            if atom in visible:
                seen += weight(atom)
            elif atom in pointed:
                hop += weight(atom)
        lost = self.weight - seen - hop
        return Use(visible=seen, pointer=hop, lost=lost)


def _future_uses(
    future: Sequence[Message],
    index: AtomIndex,
    past: Past,
) -> set[Atom]:
    """Return what the replies in *future* use of the past, as long as nothing newer has said it."""
    used: set[Atom] = set()
    repeated: set[Atom] = set()
    for message in future:
        atoms_said = index.message(message)
        if message["role"] == "assistant":
            used |= set(past.uses_of(message)) - repeated
        repeated |= atoms_said
    return used


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
    """*transcript* cut at these *shares* of its calls.

    Where enough is before the cut, and enough of that is used.
    """
    index = index or AtomIndex()
    counter = as_counter(counter)
    calls = transcript.calls
    for share in shares:
        call = int(calls * share)
        if call < 4 or calls - call < min_calls:
            continue
        cut = Cut(transcript, call, index, counter)
        if cut.tokens >= min_tokens and cut.weight >= min_weight:
            yield cut


async def run_pipeline(cut: Cut, make: PipelineMaker) -> Scored:
    """The history of *cut* after a pipeline that sees it for the first time."""
    bench = Workbench()
    bench.files.learn(cut.history)
    pipeline = make(bench)
    result = await pipeline.run(list(cut.history), session_id=cut.name)
    context = Context(cut.index, cut.name)
    context.update(result.messages)
    store = Store(cut.index, bench.storage.stored)
    use, _ = use_of(cut.future, cut.past, context, store)
    return Scored(await cut.counter.count(result.messages), use)


def score_context(cut: Cut, messages: Sequence[Message]) -> Scored:
    """Score what *messages*, a context before the call of *cut*, show of what is used later."""
    context = Context(cut.index, cut.name)
    context.update(list(messages))
    shown = {atom for atom in cut.future if atom in context}
    return Scored(cut.counter.total(messages), cut.use(shown))


def mean_recall(scored: Iterable[Scored]) -> Recall:
    """The means over *scored*, each context with the same weight."""
    contexts = list(scored)
    uses = [one.use for one in contexts]
    return Recall(
        len(contexts),
        visible=_mean(use.recall for use in uses),
        one_hop=_mean(map(one_hop, uses)),
        with_reread=_mean(use.with_reread for use in uses),
        tokens=_mean(one.tokens for one in contexts),
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
    """Whole blocks, chosen with knowledge of the future.

    Greedy weighted coverage, within 1 - 1/e of the best.
    """
    visible, tokens = _cover(_blocks(cut), budget)
    return Scored(tokens, cut.use(visible))


def oracle_pointers(cut: Cut, budget: int) -> Scored:
    """Return the context of `oracle_blocks` with a pointer in place of each result.

    What one reading call leads to counts as well.
    """
    results = []
    for source in cut.past.sources:
        is_result = source.role == "user" and source.call_id
        if is_result and len(source.text) >= MIN_POINTED_CHARS:
            results.append(source.text)
    pointers = POINTER_TOKENS * len(results)
    visible, tokens = _cover(_blocks(cut), budget - pointers)
    pointed: set[Atom] = set().union(*map(cut.index.text, results))
    return Scored(tokens + pointers, cut.use(visible, pointed))


def oracle_lines(cut: Cut, budget: int) -> Scored:
    """Single lines: the bound for whatever only extracts."""
    future = frozenset(cut.future)
    lines: dict[frozenset[Atom], str] = {}
    for source in reversed(cut.past.sources):
        if future.isdisjoint(cut.index.text(source.text)):
            continue
        for line in source.text.splitlines():
            lines.setdefault(future & atoms(line), line[:MAX_LINE_CHARS])
    lines.pop(frozenset(), None)
    pieces = []
    for used, line in lines.items():
        tokens = cut.counter.text(line)
        pieces.append(_Piece(tokens, used))
    visible, total = _cover(pieces, budget)
    return Scored(total, cut.use(visible))


def oracle_atoms(cut: Cut, budget: int) -> Scored:
    """The very strings that are used, one to a line: the bound for whatever may rewrite."""
    pieces = []
    for atom in cut.future:
        tokens = cut.counter.text(f"{atom[1:]}\n")
        pieces.append(_Piece(tokens, frozenset({atom})))
    visible, total = _cover(pieces, budget)
    return Scored(total, cut.use(visible))


ORACLES: Mapping[str, Callable[[Cut, int], Scored]] = {
    "oracle blocks": oracle_blocks,
    "oracle pointers": oracle_pointers,
    "oracle lines": oracle_lines,
    "oracle atoms": oracle_atoms,
}
"""Upper bounds of recall, by the unit that is kept."""


def _blocks(cut: Cut) -> list[_Piece]:
    future = frozenset(cut.future)
    pieces = []
    for source in cut.past.sources:
        used = future & cut.index.text(source.text)
        if used:
            tokens = cut.counter.text(source.text)
            pieces.append(_Piece(tokens, used))
    return pieces


def _cover(pieces: Sequence[_Piece], budget: int) -> tuple[set[Atom], int]:
    """Greedily take the pieces that gain most per token and fit.

    Returns what they cover, and their tokens.
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
            # It gains less than before: another piece may be better now.
            heappush(waiting, (-gain, index))
            continue
        tokens += piece.tokens
        covered |= piece.used
    return covered, tokens


def _gain(piece: _Piece, covered: AbstractSet[Atom]) -> float:
    total = sum(weight(atom) for atom in piece.used if atom not in covered)
    return total / max(1, piece.tokens)


def one_hop(use: Use) -> float:
    """The share of what was used in the context or one reading call away."""
    return (use.visible + use.pointer) / use.total if use.total else 1.0


# Reading back by pages ----------------------------------------------------------------------------


def lines_around(text: str, wanted: AbstractSet[Atom], lines: int) -> str:
    """Return *lines* on each side of every line of *text* that has one of the *wanted* atoms.

    The whole *text* where it is short, or where no line holds one.
    """
    if len(text) < LEAST_PAGED:
        return text
    all_lines = text.splitlines(keepends=True)
    shown: set[int] = set()
    for number, line in enumerate(all_lines):
        if not wanted.isdisjoint(atoms(line)):
            shown.update(range(max(0, number - lines), number + lines + 1))
    return "".join(line for number, line in enumerate(all_lines) if number in shown) or text
