"""The report of a conversation's replays: by turn, by tool, and by its biggest blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
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
from .replay import Moment, ReplayResult
from .report import Action, BlockFate, CostShare, PageTurn, PolicyRun, Replaced, Report, figures
from .transcripts import Transcript

MAX_BLOCKS = 15
"""Number of biggest blocks in a report."""

EXCERPT_CHARS = 600
"""Characters shown of each block if an action replaced several blocks."""

FATES: Mapping[type, str] = {Compacted: "summarized", Collapsed: "shortened to a line of a note"}


def narrate(
    transcript: Transcript,
    replays: Mapping[str, tuple[ReplayResult, Sequence[Moment]]],
    prices: Prices | None = None,
) -> Report:
    """Return the report of *replays*, the replay of *transcript* and its moments by policy.

    The first policy is the baseline. Costs are in dollars with *prices*, else in input tokens.
    """
    counter = TokenCounter()
    report_prices = prices or Prices.relative()
    by_policy = {name: replay for name, (replay, _) in replays.items()}
    runs = []
    for row in figures([by_policy], report_prices):
        replay, moments = replays[row.policy]
        narrator = _Narrator(transcript, counter, report_prices, replay)
        for moment in moments:
            narrator.add(moment)
        turns = list(narrator.turns.values())
        runs.append(PolicyRun(row, turns, narrator.shares(), narrator.biggest()))
    cache = None
    with suppress(TranscriptError):  # the transcript has no usage
        cache = cache_report(transcript, counter, prices).tallies
    return Report(
        title=transcript.name.rpartition("/")[2],
        runs=runs,
        labels=[_label(transcript.messages[index]) for index in transcript.replies],
        cache=cache,
        format=transcript.format,
        agent=transcript.agent,
    )


def _label(reply: Message) -> str:
    """Return a description of *reply* in a few words: its tool calls, or "an answer".

    Returns "" if it has neither calls nor text.
    """
    call_counts = Counter(call.name for call in tool_calls([reply]))
    if not call_counts:
        return "an answer" if any(texts(reply)) else ""
    return ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in call_counts.items())


class _Narrator:
    """Collector of the turns, costs and blocks of one *replay*, moment by moment.

    Its tokens are those of the counter times ``tokens_per_raw`` of the replay.
    """

    def __init__(
        self, transcript: Transcript, counter: TokenCounter, prices: Prices, replay: ReplayResult
    ) -> None:
        self.turns: dict[int, PageTurn] = {}
        self._prices = prices
        self._tokens_per_raw = replay.tokens_per_raw
        self._pieces = Pieces(counter)
        # What stands in for a prefix that was not recorded counts as the system prompt.
        tools_tokens = counter.total([], tools=transcript.tools) * replay.tokens_per_raw
        self._overhead: dict[Kind, float] = {
            "system": max(0.0, replay.prefix.tokens - tools_tokens),
            "tools": tools_tokens,
        }
        self._shares: dict[str, CostShare] = {}
        self._blocks: dict[Key, BlockFate] = {}
        self._texts: set[str] = set()  # a block with the text of an earlier one is not listed again
        self._counted: set[Key] = set()
        self._sent: set[object] = set()  # keys of the parts of earlier prompts
        self._last_context: Sequence[Message] = ()
        for kind, tokens in self._overhead.items():
            self._share(KINDS[kind]).tokens += tokens

    def add(self, moment: Moment) -> None:
        """Add the blocks, actions, tokens and cost of the next *moment* to the page."""
        turn = self.turns.setdefault(moment.call, PageTurn())
        for message in moment.before[common_prefix(self._last_context, moment.before) :]:
            self._pieces.learn(message)
            for piece in self._pieces.of(message):
                if piece.text not in self._texts:
                    self._texts.add(piece.text)
                    fate = BlockFate(piece.name, piece.kind, self._tokens(piece), moment.call + 1)
                    self._blocks[piece.key] = fate
        self._last_context = moment.after
        self._add_actions(moment, turn)
        turn.tokens = self._add_costs(moment)
        turn.cost += bill(moment.requests, self._prices).total

    def shares(self) -> list[CostShare]:
        """Return the share of each tool and kind in the cost, the most expensive first."""
        shares = (share for share in self._shares.values() if share.sent or share.cost)
        return sorted(shares, key=lambda share: (-share.cost, share.name))

    def biggest(self) -> list[BlockFate]:
        """Return the `MAX_BLOCKS` blocks with the most tokens, or all if fewer, biggest first."""
        return nlargest(MAX_BLOCKS, self._blocks.values(), key=lambda block: block.tokens)

    def _tokens(self, *pieces: Piece) -> float:
        """Return the tokens of *pieces* together."""
        return sum(piece.tokens for piece in pieces) * self._tokens_per_raw

    # Costs ----------------------------------------------------------------------------------------

    def _share(self, name: str) -> CostShare:
        """Return the share of a tool or kind; create it if needed."""
        return self._shares.setdefault(name, CostShare(name))

    def _add_costs(self, moment: Moment) -> dict[Kind, float]:
        """Add the cost of each part of the last request to its share; return the tokens by kind.

        The beginning of the prompt is at the price of a cache read, as far as it was read from the
        cache. The rest is at the average price of the tokens that were not.
        """
        prices = self._prices
        *summaries, request = moment.requests
        for summary in summaries:  # they are not a part of the conversation
            share = self._share(KINDS["summary"])
            share.sent += summary.use.prompt
            share.cost += bill([summary], prices).total
        use = request.use
        cliff = prices.cliff(use.prompt)
        uncached_cost = use.written * prices.cache_write + use.fresh * prices.input
        uncached_price = uncached_cost / (use.written + use.fresh) if uncached_cost else 0.0
        kinds: dict[Kind, float] = {}
        position = 0.0
        for key, kind, share, tokens in self._prompt(moment.after):
            kinds[kind] = kinds.get(kind, 0.0) + tokens
            read_tokens = min(max(use.read - position, 0.0), tokens)
            uncached_tokens = tokens - read_tokens
            part_cost = read_tokens * prices.read + uncached_tokens * uncached_price
            share.cost += cliff.prompt * part_cost
            if key in self._sent:
                share.carrying += cliff.prompt * part_cost
            self._sent.add(key)
            share.sent += tokens
            position += tokens
        for message in moment.reply:
            self._pieces.learn(message)
        for piece in self._parts(moment.reply):
            self._owner(piece).cost += self._tokens(piece) * prices.output * cliff.output
        return {kind: tokens for kind, tokens in kinds.items() if tokens}

    def _prompt(
        self, messages: Sequence[Message]
    ) -> Iterator[tuple[object, Kind, CostShare, float]]:
        """Yield the key, the kind, the share and the tokens of each part of a prompt, in order."""
        for kind, tokens in self._overhead.items():
            yield kind, kind, self._share(KINDS[kind]), tokens
        for piece in self._parts(messages):
            yield piece.key, piece.kind, self._owner(piece), self._tokens(piece)

    def _parts(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """Yield the pieces of *messages*, in order."""
        for message in messages:
            yield from self._pieces.of(message)

    def _owner(self, piece: Piece) -> CostShare:
        """Return the share of the tool or the kind that *piece* belongs to.

        Counts the piece in that share the first time.
        """
        share = self._share(piece.tool or KINDS[piece.kind])
        if piece.key not in self._counted:
            self._counted.add(piece.key)
            share.calls += piece.key[0] == "call"
            if piece.kind != "placeholders":  # the block that it replaces was counted
                share.tokens += self._tokens(piece)
        return share

    # Actions --------------------------------------------------------------------------------------

    def _add_actions(self, moment: Moment, turn: PageTurn) -> None:
        """Add an action for each stage that did not skip, with the texts that it replaced.

        The replaced texts are found by comparing the contexts before and after the run.
        """
        changes: list[tuple[StageReport, int]] = []  # with the index of the action
        for report in moment.reports:
            if report.outcome is Outcome.SKIPPED:
                continue
            reason = report.reason or str(report.detail or "")
            action = Action(report.stage, str(report.outcome), reason)
            if report.outcome is Outcome.CHANGED:
                changes.append((report, len(turn.actions)))
                action.tokens_saved = report.tokens_saved * self._tokens_per_raw
            turn.actions.append(action)
        if not changes:
            return
        shared_count = common_prefix(moment.before, moment.after)
        before = {piece.key: piece for piece in self._parts(moment.before[shared_count:])}
        after = {piece.key: piece for piece in self._parts(moment.after[shared_count:])}
        removed_pieces = []
        for key, old in before.items():
            if key not in after:
                removed_pieces.append(old)
            elif after[key].text != old.text:
                where, index = _find_mover(changes, after[key].text)
                fate = f"moved to {PurePath(where).name}" if where else "shortened"
                self._replace([old], [after[key]], where, fate, moment.call, index)
        if removed_pieces:
            # A stage that offloads removes no block: the first other stage did, if there is one.
            report, index = changes[-1]
            for change in changes:
                if not isinstance(change[0].detail, Offloaded):
                    report, index = change
                    break
            new_pieces = [piece for key, piece in after.items() if key not in before]
            where = getattr(report.detail, "archive", None) or ""
            fate = FATES.get(type(report.detail), "removed")
            self._replace(removed_pieces, new_pieces, where, fate, moment.call, index)

    def _replace(
        self,
        old: Sequence[Piece],
        new: Sequence[Piece],
        where: str,
        fate: str,
        call: int,
        index: int,
    ) -> None:
        """Record that the action *index* of the turn *call* replaced *old* with *new*.

        *where* is the file with the whole original, or "". The blocks of *old* that are listed get
        *fate*, with the turn and the action in which they left.
        """
        name = old[0].name if len(old) == 1 else count_phrase(len(old), "block")
        change = Replaced(
            name, _text(old), _text(new), where, self._tokens(*old), self._tokens(*new)
        )
        self.turns[call].actions[index].replaced.append(change)
        for piece in old:
            block = self._blocks.get(piece.key)
            if block is not None:
                block.fate = fate
                block.until = call + 1
                block.action = index


def _find_mover(changes: Sequence[tuple[StageReport, int]], text: str) -> tuple[str, int]:
    """Return the file that the placeholder *text* names, and the action that wrote the file.

    Returns "" and the last action if *text* names none of the files of *changes*.
    """
    for report, index in changes:
        if isinstance(report.detail, Offloaded):
            for file in report.detail.files:
                # A placeholder has the storage's reference to the file, which ends in the key.
                key = "/".join(PurePath(file).parts[-2:])
                if key in text:
                    return key, index
    return "", changes[-1][1]


def _text(pieces: Sequence[Piece]) -> str:
    """Return the text of a single piece, or the beginning of each piece under its name."""
    if len(pieces) == 1:
        return pieces[0].text
    parts = []
    for piece in pieces:
        omitted_chars = len(piece.text) - EXCERPT_CHARS
        text = piece.text
        if omitted_chars > 0 and piece.kind not in ("summary", "files"):
            text = f"{text[:EXCERPT_CHARS]} … {omitted_chars:,} more characters"
        parts.append(f"— {piece.name}\n{text}")
    return "\n\n".join(parts)
