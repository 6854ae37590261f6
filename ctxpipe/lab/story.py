"""What was in the contexts, turn by turn, and what became of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from pathlib import PurePath

from ..messages import (
    Message,
    common_prefix,
    strings,
)
from ..reports import Collapsed, Compacted, Offloaded, Outcome, StageReport
from ..tokens import TokenCounter
from ..words import count_phrase
from .pieces import Key, Piece, Pieces
from .references import location_in
from .report import Action, BlockFate, Kind, Replaced

__all__ = ["Moment", "Story", "story"]

BIGGEST = 15
EXCERPT_CHARS = 600
"""Characters shown of each block, where many left at once."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A run of the pipeline before the model's *call*.

    The context before and after it, and what the stages report.
    """

    call: int
    before: Sequence[Message]
    after: Sequence[Message]
    reports: Sequence[StageReport] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """By call: the tokens of the context by kind, and what the stages did.

    And what became of the biggest blocks.
    """

    tokens: Mapping[int, Mapping[Kind, float]]
    actions: Mapping[int, tuple[Action, ...]]
    blocks: tuple[BlockFate, ...]


def story(
    moments: Iterable[Moment],
    counter: TokenCounter,
    *,
    system: object = None,
    tools: Sequence[object] | None = None,
    tokens_per_raw: float = 1.0,
) -> Story:
    """The story of *moments*, in their order. Tokens are raw ones times *tokens_per_raw*."""
    reader = _Reader(counter, system, tools, tokens_per_raw)
    for moment in moments:
        reader.read(moment)
    actions = {call: tuple(steps) for call, steps in reader.actions.items()}
    return Story(reader.tokens, actions, reader.biggest())


@dataclass(frozen=True, slots=True)
class _Act:
    """What a stage reports of a turn, its index among the turn's actions, and what it replaced."""

    report: StageReport
    index: int
    replaced: list[Replaced] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    counter: TokenCounter
    system: object
    tools: Sequence[object] | None
    tokens_per_raw: float
    tokens: dict[int, Mapping[Kind, float]] = field(default_factory=dict)
    actions: dict[int, list[Action]] = field(default_factory=dict)
    _fates: dict[Key, BlockFate] = field(default_factory=dict)
    _texts: dict[Key, str] = field(default_factory=dict)
    _last: Sequence[Message] = ()
    _pieces: Pieces = field(init=False)

    def __post_init__(self) -> None:
        self._pieces = Pieces(self.counter)

    def read(self, moment: Moment) -> None:
        """Take in the next moment."""
        known = common_prefix(self._last, moment.before)
        for message in moment.before[known:]:
            self._add(message, moment.call)
        self._last = moment.after
        actions = self.actions.setdefault(moment.call, [])
        actions += self._moment_actions(moment, len(actions))
        self.tokens[moment.call] = self._by_kind(moment.after)

    def biggest(self) -> tuple[BlockFate, ...]:
        """The biggest blocks seen.

        Of those with the same text, only the first: the others read it again.
        """
        first: dict[str, BlockFate] = {}
        for key, block in self._fates.items():
            first.setdefault(self._texts[key], block)
        biggest = nlargest(BIGGEST, first.values(), key=lambda block: block.tokens)
        return tuple(biggest)

    def _add(self, message: Message, call: int) -> None:
        self._pieces.learn(message)
        for piece in self._pieces.of(message):
            tokens = piece.tokens * self.tokens_per_raw
            fate = BlockFate(piece.name, piece.kind, tokens, call + 1)
            self._fates.setdefault(piece.key, fate)
            self._texts.setdefault(piece.key, piece.text)

    # Tokens ---------------------------------------------------------------------------------------

    def _by_kind(self, messages: Sequence[Message]) -> Mapping[Kind, float]:
        system = self.counter.total([], system=self.system)
        tools = self.counter.total([], tools=self.tools)
        raw: Counter[Kind] = Counter({"system": system, "tools": tools})
        for message in messages:
            for piece in self._pieces.of(message):
                raw[piece.kind] += piece.tokens
        return {of: tokens * self.tokens_per_raw for of, tokens in raw.items() if tokens}

    # Actions --------------------------------------------------------------------------------------

    def _moment_actions(self, moment: Moment, first: int) -> list[Action]:
        """What the stages did, each with what it replaced.

        *first* is the index, in the turn, of the first of them.
        """
        acts: list[_Act] = []
        for report in moment.reports:
            if report.outcome is not Outcome.SKIPPED:
                acts.append(_Act(report, first + len(acts)))
        changed = [act for act in acts if act.report.outcome is Outcome.CHANGED]
        if changed:
            self._explain_changes(moment, changed)
        return [self._action(act.report, act.replaced) for act in acts]

    def _action(self, report: StageReport, replaced: Sequence[Replaced]) -> Action:
        saved = None
        if report.outcome in {Outcome.CHANGED, Outcome.PLANNED}:
            saved = report.tokens_saved * self.tokens_per_raw
        what = report.reason or str(report.detail or "")
        return Action(
            report.stage,
            str(report.outcome),
            what,
            saved,
            tuple(replaced),
        )

    def _explain_changes(self, moment: Moment, changed: Sequence[_Act]) -> None:
        """Say of each of *changed* what it replaced, by what differs between the contexts."""
        same = common_prefix(moment.before, moment.after)
        before = self._by_key(moment.before[same:])
        after = self._by_key(moment.after[same:])
        removed = []
        for key, old in before.items():
            new = after.get(key)
            if new is None:
                removed.append(old)
            elif new.text != old.text:
                self._swap(moment, changed, old, new)
        if removed:
            added = [piece for key, piece in after.items() if key not in before]
            self._remove(moment, changed, removed, added)

    def _by_key(self, messages: Sequence[Message]) -> dict[Key, Piece]:
        pieces = {}
        for message in messages:
            for piece in self._pieces.of(message):
                pieces[piece.key] = piece
        return pieces

    def _swap(
        self,
        moment: Moment,
        changed: Sequence[_Act],
        old: Piece,
        new: Piece,
    ) -> None:
        where = _pointer(new) or ""
        act = changed[-1]
        for one in changed:
            detail = one.report.detail
            if isinstance(detail, Offloaded) and where in detail.files:
                act = one
                break
        fate = "shortened"
        if where:
            fate = f"moved to {PurePath(where).name}"
        self._set_fate(old, moment, fate, act)
        act.replaced.append(self._replacement(old.name, [old], [new], where))

    def _remove(
        self,
        moment: Moment,
        changed: Sequence[_Act],
        removed: Sequence[Piece],
        added: Sequence[Piece],
    ) -> None:
        others = (act for act in changed if not isinstance(act.report.detail, Offloaded))
        act = next(others, changed[-1])
        detail = act.report.detail
        fate = "removed"
        if isinstance(detail, Compacted):
            fate = "summarized"
        if isinstance(detail, Collapsed):
            fate = "shortened to a line of a note"
        for piece in removed:
            self._set_fate(piece, moment, fate, act)
        where = getattr(detail, "archive", None) or ""
        name = count_phrase(len(removed), "block")
        act.replaced.append(self._replacement(name, removed, added, where))

    def _set_fate(
        self,
        piece: Piece,
        moment: Moment,
        fate: str,
        act: _Act,
    ) -> None:
        known = self._fates.get(piece.key)
        if known is not None:
            until = moment.call + 1
            self._fates[piece.key] = replace(
                known,
                fate=fate,
                until=until,
                action=act.index,
            )

    def _replacement(
        self,
        name: str,
        old: Sequence[Piece],
        new: Sequence[Piece],
        where: str,
    ) -> Replaced:
        return Replaced(
            name,
            original=_text_of(old),
            placeholder=_text_of(new),
            where=where,
            tokens_before=self._tokens(old),
            tokens_after=self._tokens(new),
        )

    def _tokens(self, pieces: Sequence[Piece]) -> float:
        return sum(piece.tokens for piece in pieces) * self.tokens_per_raw


def _pointer(piece: Piece) -> str | None:
    """The file that *piece* names in place of its former text.

    A call names it in one of the texts of its input.
    """
    texts: Iterable[str] = [piece.text]
    if piece.key[0] == "call":
        texts = strings(json.loads(piece.text))
    locations = map(location_in, texts)
    return next(filter(None, locations), None)


def _text_of(pieces: Sequence[Piece]) -> str:
    """The text of one piece; of several the beginning of each, under its name."""
    if len(pieces) == 1:
        return pieces[0].text
    parts = [f"— {_speaker(piece)}\n{_excerpt(piece)}" for piece in pieces]
    return "\n\n".join(parts)


def _speaker(piece: Piece) -> str:
    """Who says it, without the beginning of a text, which follows."""
    if piece.key[0] == "text":
        return piece.name.partition(":")[0]
    return piece.name


def _excerpt(piece: Piece) -> str:
    rest = len(piece.text) - EXCERPT_CHARS
    if piece.kind == "summary" or rest <= 0:
        return piece.text
    return f"{piece.text[:EXCERPT_CHARS]} … {rest:,} more characters"
