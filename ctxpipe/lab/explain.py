"""Why the most expensive turns of a replay cost what they cost, and what they carried in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nlargest
from typing import Any

from ..atoms import Atom, AtomIndex
from ..messages import Message
from ..prices import Prices
from ..reports import Outcome
from ..tokens import TokenCounter, as_counter
from ..words import as_percent, count_phrase
from .costs import Request, bill
from .pieces import Piece, Pieces
from .replay import Replay, Settings, Step
from .replay_report import label
from .report import KINDS
from .story import Moment
from .transcripts import Transcript

__all__ = ["Expensive", "ExpensiveTurn", "Explained", "UnusedBlock", "explain"]

MOST_TURNS = 10
MOST_BLOCKS = 3

_WITH_WORDS = frozenset({"text", "call", "result"})
"""Keys of pieces whose words tell whether they were used; those of thinking and images do not."""


@dataclass(frozen=True, slots=True)
class Expensive:
    """The explanation wanted of each file that is replayed: of *policy*, by *prices*.

    It is made where the file is replayed: only that process has its contexts.
    """

    policy: str
    prices: Prices

    def explain(
        self,
        transcript: Transcript,
        replay: Replay,
        moments: Iterable[Moment],
        settings: Settings | None,
        index: AtomIndex,
    ) -> Explained:
        """The most expensive turns of *replay*, which showed its *moments*."""
        turns = explain(transcript, replay, moments, self.prices, settings, index)
        return Explained(self.policy, turns)


@dataclass(frozen=True, slots=True)
class Explained:
    """The most expensive turns of one *policy*, the most expensive first."""

    policy: str
    turns: tuple[ExpensiveTurn, ...]

    def as_json(self) -> dict[str, Any]:
        """The same by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class UnusedBlock:
    """A block that no reply used from a turn on: its name, its kind, and its tokens as billed."""

    name: str
    kind: str
    tokens: float


@dataclass(frozen=True, slots=True)
class ExpensiveTurn:
    """One model call with all requests made for it: what it cost, why, and what it carried.

    *turn* is counted from 1, *share* that of the whole conversation's cost. Tokens are as billed:
    those of all its requests, *read* from the cache, *written* to it, *fresh* and of the *output*;
    and *unused*, those of the last context which no reply used from this turn on, with the largest
    *blocks* of them.
    """

    turn: int
    label: str
    cost: float
    share: float
    read: float
    written: float
    fresh: float
    output: float
    reasons: tuple[str, ...]
    context: float
    unused: float
    blocks: tuple[UnusedBlock, ...]


def explain(
    transcript: Transcript,
    replay: Replay,
    moments: Iterable[Moment],
    prices: Prices,
    settings: Settings | None = None,
    index: AtomIndex | None = None,
    counter: TokenCounter | None = None,
    *,
    most: int = MOST_TURNS,
) -> tuple[ExpensiveTurn, ...]:
    """The *most* expensive turns of *replay*, which showed its *moments*; the first is the worst.

    A block counts as used by a reply that says one of its atoms again. Blocks without any, such as
    "ok", are used by nobody; thinking and images, of which nobody can tell, are left out.
    """
    reader = _Reader(
        transcript,
        replay,
        list(moments),
        prices,
        (settings or Settings()).tokens_per_raw,
        index or AtomIndex(),
        as_counter(counter),
    )
    return reader.turns(most)


class _Reader:
    def __init__(
        self,
        transcript: Transcript,
        replay: Replay,
        moments: Sequence[Moment],
        prices: Prices,
        tokens_per_raw: float,
        index: AtomIndex,
        counter: TokenCounter,
    ) -> None:
        self.transcript = transcript
        self.replay = replay
        self.prices = prices
        self.tokens_per_raw = tokens_per_raw
        self.index = index
        self.contexts: dict[int, Sequence[Message]] = {}  # what was sent, by call
        self.pieces = Pieces(counter)
        for moment in moments:
            self.contexts[moment.call] = moment.after
            for message in moment.after:
                self.pieces.learn(message)
        self.last_use = self._last_uses()

    def _last_uses(self) -> Mapping[Atom, int]:
        """The last call whose reply says an atom."""
        last: dict[Atom, int] = {}
        for call, place in enumerate(self.transcript.replies):
            for atom in self.index.message(self.transcript.messages[place]):
                last[atom] = call
        return last

    def turns(self, most: int) -> tuple[ExpensiveTurn, ...]:
        costs = {step.call: self._cost(step.requests) for step in self.replay.steps}
        total = sum(costs.values())
        worst = nlargest(most, self.replay.steps, key=lambda step: costs[step.call])
        return tuple(self._turn(step, costs[step.call], total) for step in worst)

    def _cost(self, requests: Sequence[Request]) -> float:
        return bill(requests, self.prices).total

    def _turn(self, step: Step, cost: float, total: float) -> ExpensiveTurn:
        reply = self.transcript.messages[self.transcript.replies[step.call]]
        unused = list(self._waste(step.call))
        largest = nlargest(MOST_BLOCKS, unused, key=lambda piece: piece.tokens)
        return ExpensiveTurn(
            turn=step.call + 1,
            label=label(reply),
            cost=cost,
            share=cost / total if total else 0.0,
            read=sum(request.use.read for request in step.requests),
            written=sum(request.use.written for request in step.requests),
            fresh=sum(request.use.fresh for request in step.requests),
            output=sum(request.output for request in step.requests),
            reasons=tuple(self._reasons(step)),
            context=step.prompt_tokens,
            unused=self._tokens(unused),
            blocks=tuple(self._block(piece) for piece in largest),
        )

    def _tokens(self, pieces: Iterable[Piece]) -> float:
        return self.tokens_per_raw * sum(piece.tokens for piece in pieces)

    def _block(self, piece: Piece) -> UnusedBlock:
        return UnusedBlock(piece.name, KINDS[piece.kind], self._tokens([piece]))

    def _waste(self, call: int) -> Iterator[Piece]:
        """The blocks of the context of *call* that neither its reply nor a later one uses."""
        for message in self.contexts.get(call, ()):
            for piece in self.pieces.of(message):
                if piece.key[0] in _WITH_WORDS and not self._is_used(piece, call):
                    yield piece

    def _is_used(self, piece: Piece, call: int) -> bool:
        found = self.index.text(piece.text)
        return any(self.last_use.get(atom, -1) >= call for atom in found)

    # Why ------------------------------------------------------------------------------------------

    def _reasons(self, step: Step) -> Iterator[str]:
        rewritings = list(self._rewritings(step))
        yield from rewritings
        purposes = Counter(request.purpose for request in step.requests)
        if purposes["summary"]:
            yield "a summary was written"
        if purposes["refetch"]:
            yield f"{count_phrase(purposes['refetch'], 'request')} to read back"
        if step.call and not rewritings and not step.requests[0].use.read:
            yield "nothing was in the cache"
        whole = bill(step.requests, self.prices)
        parts = {
            "reading from the cache": whole.read,
            "writing to the cache": whole.written,
            "tokens outside the cache": whole.fresh,
            "the reply": whole.output,
        }
        largest = max(parts, key=parts.__getitem__)
        share = parts[largest] / whole.total if whole.total else 1.0
        yield f"{as_percent(share)} for {largest}"

    def _rewritings(self, step: Step) -> Iterator[str]:
        """What stages have changed of what had been sent before, and from where on."""
        sent = self.replay.steps[step.call - 1].messages if step.call else 0
        for report in step.reports:
            start = report.first_changed_index
            if report.outcome is Outcome.CHANGED and start is not None and start < sent:
                yield f"{report.stage} rewrote from message {start} on"
