"""Who causes the cost of a conversation: each tool, and each kind of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..messages import Message
from ..prices import Prices
from ..tokens import TokenCounter
from .costs import Request, bill
from .pieces import Key, Piece, Pieces
from .report import KINDS, CostShare

__all__ = ["Exchange", "cost_shares", "total_shares"]

SYSTEM, TOOLS, SUMMARY = KINDS["system"], KINDS["tools"], KINDS["summary"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request as it was billed, the messages in it, and the reply.

    Both are empty of a request for a summary, which is no part of the conversation.
    """

    request: Request
    messages: Sequence[Message] = ()
    reply: Sequence[Message] = ()


def cost_shares(
    exchanges: Iterable[Exchange],
    counter: TokenCounter,
    prices: Prices,
    *,
    system: object = None,
    tools: Sequence[object] | None = None,
    tokens_per_raw: float = 1.0,
) -> tuple[CostShare, ...]:
    """What each tool and each kind of text has cost in *exchanges*, the most expensive first.

    The shares add up to the bill: what is in front of a prompt is read from the cache, the rest is
    written to it, and a reply costs what its blocks do. Tokens are raw ones times *tokens_per_raw*.
    """
    overhead = (
        (SYSTEM, tokens_per_raw * counter.total([], system=system)),
        (TOOLS, tokens_per_raw * counter.total([], tools=tools)),
    )
    reader = _Reader(Pieces(counter), prices, overhead, tokens_per_raw)
    for exchange in exchanges:
        reader.read(exchange)
    return reader.shares()


def total_shares(groups: Iterable[Iterable[CostShare]]) -> tuple[CostShare, ...]:
    """The shares of several conversations, added up by their names."""
    totals: dict[str, CostShare] = {}
    for group in groups:
        for share in group:
            known = totals.get(share.name, CostShare(share.name))
            totals[share.name] = replace(
                known,
                calls=known.calls + share.calls,
                tokens=known.tokens + share.tokens,
                sent=known.sent + share.sent,
                cost=known.cost + share.cost,
            )
    return _most_expensive_first(totals.values())


def _most_expensive_first(shares: Iterable[CostShare]) -> tuple[CostShare, ...]:
    return tuple(sorted(shares, key=lambda share: (-share.cost, share.name)))


@dataclass(slots=True)
class _Reader:
    pieces: Pieces
    prices: Prices
    overhead: Sequence[tuple[str, float]]
    tokens_per_raw: float
    calls: Counter[str] = field(default_factory=Counter)
    tokens: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    _seen: set[Key] = field(default_factory=set)
    _by_name: dict[int, tuple[Message, dict[str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tokens in self.overhead:
            _add(self.tokens, name, tokens)

    def read(self, exchange: Exchange) -> None:
        """Take in the next request."""
        request = exchange.request
        if not exchange.messages:
            _add(self.sent, SUMMARY, request.use.prompt)
            _add(self.cost, SUMMARY, bill([request], self.prices).total)
            return
        position = 0.0
        for name, tokens in self.overhead:
            position = self._send(name, tokens, position, request)
        for message in exchange.messages:
            for name, tokens in self._tokens(message).items():
                position = self._send(name, tokens, position, request)
        price = self.prices.output * self.prices.cliff(request.use.prompt).output
        for message in exchange.reply:
            for name, tokens in self._tokens(message).items():
                _add(self.cost, name, tokens * price)

    def shares(self) -> tuple[CostShare, ...]:
        """What was found."""
        names = dict.fromkeys([*self.tokens, *self.sent, *self.cost])
        shares = [
            CostShare(
                name,
                self.calls[name],
                self.tokens.get(name, 0.0),
                self.sent.get(name, 0.0),
                self.cost.get(name, 0.0),
            )
            for name in names
        ]
        return _most_expensive_first(share for share in shares if share.sent or share.cost)

    def _send(self, name: str, tokens: float, position: float, request: Request) -> float:
        """Bill *tokens* that begin at *position* of the prompt; return where they end."""
        use = request.use
        read = min(max(use.read - position, 0.0), tokens)
        rest = use.written + use.fresh
        amount = use.written * self.prices.cache_write + use.fresh * self.prices.input
        price = amount / rest if rest else 0.0
        cliff = self.prices.cliff(use.prompt).prompt
        _add(self.cost, name, cliff * (read * self.prices.read + (tokens - read) * price))
        _add(self.sent, name, tokens)
        return position + tokens

    def _tokens(self, message: Message) -> dict[str, float]:
        """The tokens of *message* by the tool or the kind that is responsible for them."""
        known = self._by_name.get(id(message))
        if known is not None and known[0] is message:
            return known[1]
        self.pieces.learn(message)
        found: dict[str, float] = {}
        for piece in self.pieces.of(message):
            name = piece.tool or KINDS[piece.kind]
            tokens = self.tokens_per_raw * piece.tokens
            _add(found, name, tokens)
            if piece.key not in self._seen:
                self._learn(name, piece, tokens)
        self._by_name[id(message)] = (message, found)
        return found

    def _learn(self, name: str, piece: Piece, tokens: float) -> None:
        """Count a block that was not there before; a placeholder stands for one that was."""
        self._seen.add(piece.key)
        self.calls[name] += piece.key[0] == "call"
        if piece.kind != "placeholders":
            _add(self.tokens, name, tokens)


def _add(amounts: dict[str, float], name: str, amount: float) -> None:
    amounts[name] = amounts.get(name, 0.0) + amount
