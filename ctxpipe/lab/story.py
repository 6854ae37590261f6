"""What was in the contexts, turn by turn, and what became of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from pathlib import PurePath
from typing import TypeAlias

from ..markers.summaries import RESTORED, SUMMARY
from ..messages import (
    THINKING,
    Block,
    Message,
    ToolCall,
    ToolResult,
    blocks,
    common_prefix,
    compact_json,
    kind,
    result_text,
    strings,
    tool_calls,
)
from ..messages import (
    field as field_of,
)
from ..reports import Compacted, Offloaded, Outcome, StageReport
from ..tokens import TokenCounter
from ..words import count_phrase, one_line
from .references import location_in
from .report import Action, BlockFate, Kind, Replaced

__all__ = ["Moment", "Story", "story"]

BIGGEST = 15
LABEL_CHARS = 48
"""Characters of a text in the name of its block."""
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


_Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block as the page names it. The key stays when the block is replaced by a placeholder."""

    key: _Key
    kind: Kind
    name: str
    text: str
    tokens: int


@dataclass(slots=True)
class _Reader:
    counter: TokenCounter
    system: object
    tools: Sequence[object] | None
    tokens_per_raw: float
    tokens: dict[int, Mapping[Kind, float]] = field(default_factory=dict)
    actions: dict[int, list[Action]] = field(default_factory=dict)
    # By the message's identity.
    _pieces: dict[int, tuple[Message, list[_Piece]]] = field(default_factory=dict)
    # What was called, by the call's id.
    _calls: dict[str, str] = field(default_factory=dict)
    _fates: dict[_Key, BlockFate] = field(default_factory=dict)
    _texts: dict[_Key, str] = field(default_factory=dict)
    _last: Sequence[Message] = ()

    def read(self, moment: Moment) -> None:
        """Take in the next moment."""
        known = common_prefix(self._last, moment.before)
        for message in moment.before[known:]:
            self._add(message, moment.call)
        self._last = moment.after
        actions = self.actions.setdefault(moment.call, [])
        actions.extend(self._moment_actions(moment))
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
        for made in tool_calls([message]):
            self._calls[made.id] = _call_label(made)
        for piece in self._pieces_of(message):
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
            for piece in self._pieces_of(message):
                raw[piece.kind] += piece.tokens
        return {of: tokens * self.tokens_per_raw for of, tokens in raw.items() if tokens}

    def _pieces_of(self, message: Message) -> list[_Piece]:
        """The pieces of *message*, read once."""
        known = self._pieces.get(id(message))
        if known is not None and known[0] is message:
            return known[1]
        pieces = list(self._read(message))
        self._pieces[id(message)] = (message, pieces)
        return pieces

    def _read(self, message: Message) -> Iterator[_Piece]:
        content = message["content"]
        if isinstance(content, str):
            yield self._text(message["role"], content)
        for block in blocks(message):
            yield self._block(message["role"], block)

    def _text(self, role: str, text: str) -> _Piece:
        of: Kind = _SPEAKERS.get(role, "user")
        if role == "user" and text.startswith((SUMMARY, RESTORED)):
            of = "summary"
        name = f"{role}: {one_line(text, LABEL_CHARS)}"
        tokens = self.counter.text(text)
        return _Piece(("text", text), of, name, text, tokens)

    def _block(self, role: str, block: Block) -> _Piece:
        name = kind(block)
        tokens = self.counter.block(block)
        if name == "text":
            return self._text(role, str(field_of(block, "text") or ""))
        if name == "tool_use":
            return self._call(block, tokens)
        if name == "tool_result":
            return self._result(block, tokens)
        label = f"{role}: {name}"
        if name in THINKING:
            text = str(field_of(block, "thinking", ""))
            return _Piece((name, text), "thinking", label, text, tokens)
        # Other blocks have no text to tell them apart by, only their identity.
        text = f"[{name}]"
        key = (name, f"{text}{id(block)}")
        return _Piece(key, _SPEAKERS.get(role, "user"), label, text, tokens)

    def _call(self, block: Block, tokens: int) -> _Piece:
        call_id = str(field_of(block, "id"))
        name = f"call of {self._calls.get(call_id, 'a tool')}"
        text = compact_json(field_of(block, "input", {}))
        return _Piece(("call", call_id), "calls", name, text, tokens)

    def _result(self, block: Block, tokens: int) -> _Piece:
        call_id = str(field_of(block, "tool_use_id"))
        result = ToolResult(0, 0, call_id, field_of(block, "content"))
        of: Kind = "results"
        if location_in(result.content) is not None:
            of = "placeholders"
        name = f"result of {self._calls.get(call_id, 'a tool')}"
        return _Piece(
            ("result", call_id),
            of,
            name,
            result_text(result),
            tokens,
        )

    # Actions --------------------------------------------------------------------------------------

    def _moment_actions(self, moment: Moment) -> Iterator[Action]:
        """What the stages did, each with what it replaced."""
        changed = [report for report in moment.reports if report.outcome is Outcome.CHANGED]
        replaced: dict[int, list[Replaced]] = {id(report): [] for report in changed}
        if changed:
            for report, change in self._changes(moment, changed):
                replaced[id(report)].append(change)
        for report in moment.reports:
            if report.outcome is not Outcome.SKIPPED:
                own = replaced.get(id(report), ())
                yield self._action(report, own)

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

    def _changes(
        self,
        moment: Moment,
        changed: Sequence[StageReport],
    ) -> Iterator[tuple[StageReport, Replaced]]:
        """What differs between the contexts, with the report of the stage that changed it."""
        same = common_prefix(moment.before, moment.after)
        before = self._by_key(moment.before[same:])
        after = self._by_key(moment.after[same:])
        removed = []
        for key, old in before.items():
            new = after.get(key)
            if new is None:
                removed.append(old)
            elif new.text != old.text:
                yield self._swap(moment, changed, old, new)
        if removed:
            added = [piece for key, piece in after.items() if key not in before]
            yield self._remove(moment, changed, removed, added)

    def _by_key(self, messages: Sequence[Message]) -> dict[_Key, _Piece]:
        pieces = {}
        for message in messages:
            for piece in self._pieces_of(message):
                pieces[piece.key] = piece
        return pieces

    def _swap(
        self,
        moment: Moment,
        changed: Sequence[StageReport],
        old: _Piece,
        new: _Piece,
    ) -> tuple[StageReport, Replaced]:
        where = _pointer(new) or ""
        report = changed[-1]
        for one in changed:
            if isinstance(one.detail, Offloaded) and where in one.detail.files:
                report = one
                break
        fate = "shortened"
        if where:
            fate = f"moved to {PurePath(where).name}"
        self._set_fate(old, moment, fate, report)
        replacement = self._replacement(old.name, [old], [new], where)
        return report, replacement

    def _remove(
        self,
        moment: Moment,
        changed: Sequence[StageReport],
        removed: Sequence[_Piece],
        added: Sequence[_Piece],
    ) -> tuple[StageReport, Replaced]:
        others = (report for report in changed if not isinstance(report.detail, Offloaded))
        report = next(others, changed[-1])
        fate = "removed"
        if isinstance(report.detail, Compacted):
            fate = "summarized"
        for piece in removed:
            self._set_fate(piece, moment, fate, report)
        where = getattr(report.detail, "archive", None) or ""
        name = count_phrase(len(removed), "block")
        return report, self._replacement(name, removed, added, where)

    def _set_fate(
        self,
        piece: _Piece,
        moment: Moment,
        fate: str,
        report: StageReport,
    ) -> None:
        known = self._fates.get(piece.key)
        if known is not None:
            until = moment.call + 1
            self._fates[piece.key] = replace(
                known,
                fate=fate,
                until=until,
                stage=report.stage,
            )

    def _replacement(
        self,
        name: str,
        old: Sequence[_Piece],
        new: Sequence[_Piece],
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

    def _tokens(self, pieces: Sequence[_Piece]) -> float:
        return sum(piece.tokens for piece in pieces) * self.tokens_per_raw


_SPEAKERS: Mapping[str, Kind] = {"system": "system", "assistant": "assistant", "user": "user"}


def _pointer(piece: _Piece) -> str | None:
    """The file that *piece* names in place of its former text.

    A call names it in one of the texts of its input.
    """
    texts: Iterable[str] = [piece.text]
    if piece.key[0] == "call":
        texts = strings(json.loads(piece.text))
    locations = map(location_in, texts)
    return next(filter(None, locations), None)


def _call_label(call: ToolCall) -> str:
    """The tool, and a part of the first text in its input."""
    texts = (text for text in strings(call.input) if text.strip())
    argument = next(texts, "")
    if not argument:
        return call.name
    if " " in argument:
        return f"{call.name}: {one_line(argument, LABEL_CHARS)}"
    # Paths differ at their ends.
    return f"{call.name}: {_end(argument)}"


def _text_of(pieces: Sequence[_Piece]) -> str:
    """The text of one piece; of several the beginning of each, under its name."""
    if len(pieces) == 1:
        return pieces[0].text
    parts = [f"— {_speaker(piece)}\n{_excerpt(piece)}" for piece in pieces]
    return "\n\n".join(parts)


def _speaker(piece: _Piece) -> str:
    """Who says it, without the beginning of a text, which follows."""
    if piece.key[0] == "text":
        return piece.name.partition(":")[0]
    return piece.name


def _excerpt(piece: _Piece) -> str:
    rest = len(piece.text) - EXCERPT_CHARS
    if piece.kind == "summary" or rest <= 0:
        return piece.text
    return f"{piece.text[:EXCERPT_CHARS]} … {rest:,} more characters"


def _end(text: str, chars: int = LABEL_CHARS) -> str:
    """The last *chars* characters of *text*; a path is cut between its segments."""
    if len(text) <= chars:
        return text
    end = text[-chars:]
    slash = end.find("/")
    if 0 <= slash < chars // 2:
        end = end[slash:]
    return f"…{end}"
