"""From contexts as they were, turn by turn, to what was in them and what became of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from pathlib import PurePath
from typing import TypeAlias

from ..compacted import RESTORED, SUMMARY
from ..facts import result_text
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
    strings,
    tool_calls,
)
from ..messages import (
    field as field_of,
)
from ..reports import Compacted, Offloaded, Outcome, StageReport
from ..tokens import TokenCounter
from ..words import counted, one_line
from .references import stored_at
from .report import Action, BlockFate, Kind, Replaced

__all__ = ["Moment", "Story", "story"]

BIGGEST = 15
LABEL_CHARS = 48  # of a text, in the name of its block
EXCERPT_CHARS = 600  # of each block, where many left at once


@dataclass(frozen=True, slots=True)
class Moment:
    """A run of the pipeline before the model's *call*: the context before and after it, and what
    the stages report.
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
    """What *moments*, in order, tell. Tokens are raw ones times *tokens_per_raw*."""
    reader = _Reader(counter, system, tools, tokens_per_raw)
    for moment in moments:
        reader.read(moment)
    return Story(
        reader.tokens,
        {call: tuple(done) for call, done in reader.actions.items()},
        reader.biggest(),
    )


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
    _pieces: dict[int, tuple[Message, list[_Piece]]] = field(
        default_factory=dict
    )  # by the message's identity
    _calls: dict[str, str] = field(default_factory=dict)  # what was called, by the call's id
    _fates: dict[_Key, BlockFate] = field(default_factory=dict)
    _texts: dict[_Key, str] = field(default_factory=dict)
    _last: Sequence[Message] = ()

    def read(self, moment: Moment) -> None:
        """Take in the next moment."""
        for message in moment.before[common_prefix(self._last, moment.before) :]:
            self._meet(message, moment.call)
        self._last = moment.after
        self.actions.setdefault(moment.call, []).extend(self._acted(moment))
        self.tokens[moment.call] = self._by_kind(moment.after)

    def biggest(self) -> tuple[BlockFate, ...]:
        """The biggest blocks seen.

        Of those that say the same, only the first: the others are its readings.
        """
        first: dict[str, BlockFate] = {}
        for key, block in self._fates.items():
            first.setdefault(self._texts[key], block)
        return tuple(nlargest(BIGGEST, first.values(), key=lambda block: block.tokens))

    def _meet(self, message: Message, call: int) -> None:
        self._calls.update((made.id, _call(made)) for made in tool_calls([message]))
        for piece in self._of(message):
            tokens = piece.tokens * self.tokens_per_raw
            fate = BlockFate(piece.name, piece.kind, tokens, call + 1)
            self._fates.setdefault(piece.key, fate)
            self._texts.setdefault(piece.key, piece.text)

    # Tokens ---------------------------------------------------------------------------------------

    def _by_kind(self, messages: Sequence[Message]) -> Mapping[Kind, float]:
        found: dict[Kind, int] = {
            "system": self.counter.total([], system=self.system),
            "tools": self.counter.total([], tools=self.tools),
        }
        for message in messages:
            for piece in self._of(message):
                found[piece.kind] = found.get(piece.kind, 0) + piece.tokens
        return {name: tokens * self.tokens_per_raw for name, tokens in found.items() if tokens}

    def _of(self, message: Message) -> list[_Piece]:
        """The pieces of *message*, read once."""
        known = self._pieces.get(id(message))
        if known is None or known[0] is not message:
            known = self._pieces[id(message)] = message, list(self._read(message))
        return known[1]

    def _read(self, message: Message) -> Iterator[_Piece]:
        content = message["content"]
        if isinstance(content, str):
            yield self._text(message["role"], content)
        for block in blocks(message):
            yield self._block(message["role"], block)

    def _text(self, role: str, text: str) -> _Piece:
        of_ours = text.startswith((SUMMARY, RESTORED)) and role == "user"
        named: Kind = "summary" if of_ours else _SPOKEN.get(role, "user")
        return _Piece(
            ("text", text),
            named,
            f"{role}: {one_line(text, LABEL_CHARS)}",
            text,
            self.counter.text(text),
        )

    def _block(self, role: str, block: Block) -> _Piece:
        name, tokens = kind(block), self.counter.block(block)
        if name == "text":
            return self._text(role, str(field_of(block, "text") or ""))
        if name == "tool_use":
            call_id, told = str(field_of(block, "id")), compact_json(field_of(block, "input", {}))
            return _Piece(
                ("call", call_id),
                "calls",
                f"call of {self._calls.get(call_id, 'a tool')}",
                told,
                tokens,
            )
        if name == "tool_result":
            return self._result(
                ToolResult(0, 0, str(field_of(block, "tool_use_id")), field_of(block, "content")),
                tokens,
            )
        text = str(field_of(block, "thinking", "")) if name in THINKING else f"[{name}]"
        of: Kind = "thinking" if name in THINKING else _SPOKEN.get(role, "user")
        return _Piece(
            (name, f"{text}{id(block) if name not in THINKING else ''}"),
            of,
            f"{role}: {name}",
            text,
            tokens,
        )

    def _result(self, result: ToolResult, tokens: int) -> _Piece:
        named: Kind = "results" if stored_at(result.content) is None else "placeholders"
        name = f"result of {self._calls.get(result.tool_use_id, 'a tool')}"
        return _Piece(("result", result.tool_use_id), named, name, result_text(result), tokens)

    # Actions --------------------------------------------------------------------------------------

    def _acted(self, moment: Moment) -> Iterator[Action]:
        """What the stages did, each with what it replaced."""
        done = [report for report in moment.reports if report.outcome is Outcome.CHANGED]
        replaced: dict[int, list[Replaced]] = {id(report): [] for report in done}
        if done:
            for report, change in self._changes(moment, done):
                replaced[id(report)].append(change)
        for report in moment.reports:
            if report.outcome is not Outcome.SKIPPED:
                yield self._action(report, replaced.get(id(report), ()))

    def _action(self, report: StageReport, replaced: Sequence[Replaced]) -> Action:
        changed = report.outcome in {Outcome.CHANGED, Outcome.PLANNED}
        saved = report.tokens_saved * self.tokens_per_raw if changed else None
        told = report.reason or str(report.detail or "")
        return Action(report.stage, str(report.outcome), told, saved, tuple(replaced))

    def _changes(
        self, moment: Moment, done: Sequence[StageReport]
    ) -> Iterator[tuple[StageReport, Replaced]]:
        same = common_prefix(moment.before, moment.after)
        before = {
            piece.key: piece for message in moment.before[same:] for piece in self._of(message)
        }
        after = {piece.key: piece for message in moment.after[same:] for piece in self._of(message)}
        for key, piece in before.items():
            if key in after and after[key].text != piece.text:
                yield self._swapped(moment, done, piece, after[key])
        gone = [piece for key, piece in before.items() if key not in after]
        if gone:
            yield self._removed(
                moment, done, gone, [piece for key, piece in after.items() if key not in before]
            )

    def _swapped(
        self, moment: Moment, done: Sequence[StageReport], old: _Piece, new: _Piece
    ) -> tuple[StageReport, Replaced]:
        where = _pointer(new) or ""
        report = next(
            (r for r in done if isinstance(r.detail, Offloaded) and where in r.detail.files),
            done[-1],
        )
        self._fate(
            old, moment, f"moved to {PurePath(where).name}" if where else "shortened", report
        )
        return report, self._replaced(old.name, [old], [new], where)

    def _removed(
        self,
        moment: Moment,
        done: Sequence[StageReport],
        gone: Sequence[_Piece],
        new: Sequence[_Piece],
    ) -> tuple[StageReport, Replaced]:
        report = next((r for r in done if not isinstance(r.detail, Offloaded)), done[-1])
        verb = "summarised" if isinstance(report.detail, Compacted) else "removed"
        for piece in gone:
            self._fate(piece, moment, verb, report)
        where = getattr(report.detail, "archive", None) or ""
        return report, self._replaced(counted(len(gone), "block"), gone, new, where)

    def _fate(self, piece: _Piece, moment: Moment, fate: str, report: StageReport) -> None:
        known = self._fates.get(piece.key)
        if known is not None:
            self._fates[piece.key] = replace(
                known, fate=fate, until=moment.call + 1, stage=report.stage
            )

    def _replaced(
        self, name: str, old: Sequence[_Piece], new: Sequence[_Piece], where: str
    ) -> Replaced:
        before, after = (
            sum(piece.tokens for piece in pieces) * self.tokens_per_raw for pieces in (old, new)
        )
        return Replaced(name, _joined(old), _joined(new), where, before, after)


_SPOKEN: Mapping[str, Kind] = {"system": "system", "assistant": "assistant", "user": "user"}


def _pointer(piece: _Piece) -> str | None:
    """The file that *piece* names in place of what it said.

    A call names it in one of the texts of its input.
    """
    said = strings(json.loads(piece.text)) if piece.key[0] == "call" else [piece.text]
    return next(filter(None, map(stored_at, said)), None)


def _call(call: ToolCall) -> str:
    """The tool, and the beginning of what it was given."""
    given = next((text for text in strings(call.input) if text.strip()), "")
    # What tells one path from another stands at its end.
    told = one_line(given, LABEL_CHARS) if " " in given else _end(given)
    return f"{call.name}: {told}" if given else call.name


def _joined(pieces: Sequence[_Piece]) -> str:
    """The text of one piece; of several the beginning of each, under its name."""
    if len(pieces) == 1:
        return pieces[0].text
    return "\n\n".join(f"— {_speaker(piece)}\n{_excerpt(piece)}" for piece in pieces)


def _speaker(piece: _Piece) -> str:
    """Who says it; the beginning of a text need not be told twice."""
    return piece.name.partition(":")[0] if piece.key[0] == "text" else piece.name


def _excerpt(piece: _Piece) -> str:
    if piece.kind == "summary" or len(piece.text) <= EXCERPT_CHARS:
        return piece.text
    return f"{piece.text[:EXCERPT_CHARS]} … {len(piece.text) - EXCERPT_CHARS:,} more characters"


def _end(text: str, chars: int = LABEL_CHARS) -> str:
    """How *text* ends, in so many characters; a path is cut between its segments."""
    if len(text) <= chars:
        return text
    end = text[-chars:]
    whole = end.find("/")
    return f"…{end[whole if 0 <= whole < chars // 2 else 0 :]}"
