"""The report of a conversation's replays: turn by turn, by tool, and by its biggest blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import chain
from pathlib import PurePath

from .._text import count_phrase
from ..errors import TranscriptError
from ..messages import Message, common_prefix, texts, tool_calls
from ..providers.prices import Prices
from ..stages.reports import Collapsed, Compacted, Offloaded, Outcome, StageReport
from ..tokens import TokenCounter
from ..tokens.spent import KINDS, Key, Kind, Piece, Pieces
from .cache import cache_report
from .costs import bill
from .replay import Moment, Replay
from .report import Action, BlockFate, CostShare, PageTurn, Replaced, Report, Run, figures
from .transcripts import Transcript

BIGGEST = 15
EXCERPT_CHARS = 600
"""Characters shown of each block, where many left at once."""

FATES: Mapping[type, str] = {Compacted: "summarized", Collapsed: "shortened to a line of a note"}


def narrate(
    transcript: Transcript,
    replays: Mapping[str, tuple[Replay, Sequence[Moment]]],
    prices: Prices | None = None,
) -> Report:
    """The report of *replays* of *transcript* by policy, with what they were watched to do.

    The first policy is the baseline. Costs are in dollars where *prices* are given.
    """
    counter = TokenCounter()
    unit = prices or Prices.relative()
    by_policy = {name: replay for name, (replay, _) in replays.items()}
    runs = []
    for row in figures([by_policy], unit):
        narrator = _Narrator(transcript, counter, unit, by_policy[row.policy].tokens_per_raw)
        for moment in replays[row.policy][1]:
            narrator.read(moment)
        runs.append(Run(row, list(narrator.turns.values()), narrator.shares(), narrator.biggest()))
    cache = None
    with suppress(TranscriptError):  # no usage, so no causes of misses
        cache = cache_report(transcript, counter, prices).tallies
    return Report(
        title=transcript.name.rpartition("/")[2],
        runs=runs,
        labels=[_label(transcript.messages[place]) for place in transcript.replies],
        cache=cache,
    )


def _label(reply: Message) -> str:
    """A reply in a few words: the tools it calls, or that it is an answer."""
    times = Counter(call.name for call in tool_calls([reply]))
    if not times:
        return "an answer" if any(texts(reply)) else ""
    return ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in times.items())


class _Narrator:
    """Reads the moments of one replay. Tokens are raw ones times *tokens_per_raw*."""

    def __init__(
        self, transcript: Transcript, counter: TokenCounter, prices: Prices, tokens_per_raw: float
    ) -> None:
        self.turns: dict[int, PageTurn] = {}
        self._prices = prices
        self._tokens_per_raw = tokens_per_raw
        self._pieces = Pieces(counter)
        self._overhead: dict[Kind, float] = {
            "system": counter.total([], system=transcript.system) * tokens_per_raw,
            "tools": counter.total([], tools=transcript.tools) * tokens_per_raw,
        }
        self._shares: dict[str, CostShare] = {}
        self._blocks: dict[Key, BlockFate] = {}
        self._texts: set[str] = set()  # of the blocks: a text that is read again is one block
        self._counted: set[Key] = set()
        self._last: Sequence[Message] = ()
        for kind, tokens in self._overhead.items():
            self._share(KINDS[kind]).tokens += tokens

    def read(self, moment: Moment) -> None:
        """Take in the next moment."""
        turn = self.turns.setdefault(moment.call, PageTurn())
        for message in moment.before[common_prefix(self._last, moment.before) :]:
            self._pieces.learn(message)
            for piece in self._pieces.of(message):
                if piece.text not in self._texts:
                    self._texts.add(piece.text)
                    fate = BlockFate(piece.name, piece.kind, self._tokens(piece), moment.call + 1)
                    self._blocks[piece.key] = fate
        self._last = moment.after
        self._read_actions(moment, turn)
        turn.tokens = self._spend(moment)
        turn.cost += bill(moment.requests, self._prices).total

    def shares(self) -> list[CostShare]:
        """The share of each tool and kind in the cost, the most expensive first."""
        shares = (share for share in self._shares.values() if share.sent or share.cost)
        return sorted(shares, key=lambda share: (-share.cost, share.name))

    def biggest(self) -> list[BlockFate]:
        """The biggest blocks seen."""
        return nlargest(BIGGEST, self._blocks.values(), key=lambda block: block.tokens)

    def _tokens(self, *pieces: Piece) -> float:
        return sum(piece.tokens for piece in pieces) * self._tokens_per_raw

    # Costs ----------------------------------------------------------------------------------------

    def _share(self, name: str) -> CostShare:
        return self._shares.setdefault(name, CostShare(name))

    def _spend(self, moment: Moment) -> dict[Kind, float]:
        """Give each part of the last request its share of the cost; return its tokens by kind.

        What is in front of a prompt is read from the cache, and the rest is written to it.
        """
        prices = self._prices
        *summaries, request = moment.requests
        for summary in summaries:  # they are no part of the conversation
            share = self._share(KINDS["summary"])
            share.sent += summary.use.prompt
            share.cost += bill([summary], prices).total
        use = request.use
        cliff = prices.cliff(use.prompt)
        amount = use.written * prices.cache_write + use.fresh * prices.input
        unread = amount / (use.written + use.fresh) if amount else 0.0
        kinds: dict[Kind, float] = {}
        position = 0.0
        for kind, share, tokens in self._prompt(moment.after):
            kinds[kind] = kinds.get(kind, 0.0) + tokens
            read = min(max(use.read - position, 0.0), tokens)
            share.cost += cliff.prompt * (read * prices.read + (tokens - read) * unread)
            share.sent += tokens
            position += tokens
        for message in moment.reply:
            self._pieces.learn(message)
        for piece in self._parts(moment.reply):
            self._owner(piece).cost += self._tokens(piece) * prices.output * cliff.output
        return {kind: tokens for kind, tokens in kinds.items() if tokens}

    def _prompt(self, messages: Sequence[Message]) -> Iterator[tuple[Kind, CostShare, float]]:
        """Each part of a prompt with *messages*, in order: its kind, who causes it, its tokens."""
        for kind, tokens in self._overhead.items():
            yield kind, self._share(KINDS[kind]), tokens
        for piece in self._parts(messages):
            yield piece.kind, self._owner(piece), self._tokens(piece)

    def _parts(self, messages: Sequence[Message]) -> Iterator[Piece]:
        return chain.from_iterable(map(self._pieces.of, messages))

    def _owner(self, piece: Piece) -> CostShare:
        """The share of the tool or the kind that is responsible for *piece*."""
        share = self._share(piece.tool or KINDS[piece.kind])
        if piece.key not in self._counted:
            self._counted.add(piece.key)
            share.calls += piece.key[0] == "call"
            if piece.kind != "placeholders":  # in place of a block that was counted
                share.tokens += self._tokens(piece)
        return share

    # Actions --------------------------------------------------------------------------------------

    def _read_actions(self, moment: Moment, turn: PageTurn) -> None:
        """Note what each stage did, and by what differs between the contexts what it replaced."""
        changed: list[tuple[StageReport, int]] = []
        for report in moment.reports:
            if report.outcome is Outcome.SKIPPED:
                continue
            reason = report.reason or str(report.detail or "")
            action = Action(report.stage, str(report.outcome), reason)
            if report.outcome is Outcome.CHANGED:
                changed.append((report, len(turn.actions)))
                action.tokens_saved = report.tokens_saved * self._tokens_per_raw
            turn.actions.append(action)
        if not changed:
            return
        same = common_prefix(moment.before, moment.after)
        before = {piece.key: piece for piece in self._parts(moment.before[same:])}
        after = {piece.key: piece for piece in self._parts(moment.after[same:])}
        removed = []
        for key, old in before.items():
            if key not in after:
                removed.append(old)
            elif after[key].text != old.text:
                where, index = _mover(changed, after[key].text)
                fate = f"moved to {PurePath(where).name}" if where else "shortened"
                self._replace([old], [after[key]], where, fate, moment.call, index)
        if removed:
            others = (one for one in changed if not isinstance(one[0].detail, Offloaded))
            report, index = next(others, changed[-1])
            added = [piece for key, piece in after.items() if key not in before]
            where = getattr(report.detail, "archive", None) or ""
            fate = FATES.get(type(report.detail), "removed")
            self._replace(removed, added, where, fate, moment.call, index)

    def _replace(
        self,
        old: Sequence[Piece],
        new: Sequence[Piece],
        where: str,
        fate: str,
        call: int,
        index: int,
    ) -> None:
        """Note that the turn's action *index* has put *new* in the place of *old*."""
        name = old[0].name if len(old) == 1 else count_phrase(len(old), "block")
        change = Replaced(
            name, _text(old), _text(new), where, self._tokens(*old), self._tokens(*new)
        )
        self.turns[call].actions[index].replaced.append(change)
        for piece in old:
            block = self._blocks.get(piece.key)
            if block is not None:
                block.fate, block.until, block.action = fate, call + 1, index


def _mover(changed: Sequence[tuple[StageReport, int]], text: str) -> tuple[str, int]:
    """The file that *text* now names, and which action moved the former text there.

    The last one and "", where no file of theirs is named.
    """
    for report, index in changed:
        if isinstance(report.detail, Offloaded):
            for file in report.detail.files:
                # A text names it as the storage refers to it, which ends in the key.
                key = "/".join(PurePath(file).parts[-2:])
                if key in text:
                    return key, index
    return "", changed[-1][1]


def _text(pieces: Sequence[Piece]) -> str:
    """The text of one piece; of several the beginning of each, under its name."""
    if len(pieces) == 1:
        return pieces[0].text
    parts = []
    for piece in pieces:
        rest = len(piece.text) - EXCERPT_CHARS
        text = piece.text
        if rest > 0 and piece.kind != "summary":
            text = f"{text[:EXCERPT_CHARS]} … {rest:,} more characters"
        parts.append(f"— {piece.name}\n{text}")
    return "\n\n".join(parts)
