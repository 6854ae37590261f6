"""Figures of replays in rows: what the command line prints, and writes as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..edits.offload import is_placeholder
from ..facts import result_text
from ..messages import Message, blocks, field, kind, tool_calls, tool_results
from ..prices import Prices
from ..tokens import TokenCounter
from .batch import FileReplay
from .calibration import Calibration
from .costs import Bill, bill
from .references import Use
from .replay import Replay
from .tune import Score, Scored, Tuned, front

__all__ = [
    "Block",
    "Figures",
    "calibrated",
    "calibration_json",
    "figures",
    "file_json",
    "largest_blocks",
    "summed",
    "tokens_by_kind",
    "tokens_by_tool",
    "tuned_json",
]


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one conversation, or on all.

    Tokens as billed; recall is that of what the replies used.
    """

    policy: str
    calls: int
    cost: float
    relative: float
    hit_rate: float
    largest: float
    refetches: int
    visible: float
    reachable: float

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def figures(replays: Mapping[str, Replay], prices: Prices, baseline: str) -> list[Figures]:
    """A row for each policy; *relative* is its cost in that of *baseline*."""
    bills = {name: bill(replay.requests, prices) for name, replay in replays.items()}
    return [_row(name, [replays[name]], bills[name], bills[baseline].total) for name in replays]


def summed(files: Iterable[FileReplay], prices: Prices, baseline: str) -> list[Figures]:
    """The same over all *files* that could be read."""
    read = [file.replays for file in files if file.replays]
    names = list(read[0]) if read else []
    bills = {
        name: sum((bill(replays[name].requests, prices) for replays in read), Bill())
        for name in names
    }
    return [
        _row(name, [replays[name] for replays in read], bills[name], bills[baseline].total)
        for name in names
    ]


def calibrated(files: Iterable[FileReplay]) -> Calibration | None:
    """The bills of all *files* that tell some, beside what was simulated; None where none does."""
    known = [file.calibration for file in files if file.calibration]
    return sum(known[1:], known[0]) if known else None


def calibration_json(one: Calibration) -> dict[str, float]:
    """The same by name, for JSON."""
    return {
        **asdict(one),
        "billed_hit_rate": one.billed_hit_rate,
        "simulated_hit_rate": one.simulated_hit_rate,
    }


def file_json(file: FileReplay) -> dict[str, Any]:
    """What was read of a file, for JSON."""
    return {
        "format": file.format,
        "model": file.model,
        "calls": file.calls,
        "faults_mended": file.repaired,
        "left_out": dict(file.dropped),
        "calibration": calibration_json(file.calibration) if file.calibration else None,
    }


def _row(name: str, replays: Sequence[Replay], total: Bill, baseline: float) -> Figures:
    use = sum((replay.use for replay in replays), Use())
    return Figures(
        policy=name,
        calls=sum(len(replay.steps) for replay in replays),
        cost=total.total,
        relative=total.total / baseline if baseline else 1.0,
        hit_rate=total.hit_rate,
        largest=max(
            (step.prompt_tokens for replay in replays for step in replay.steps), default=0.0
        ),
        refetches=total.refetches,
        visible=use.recall,
        reachable=use.with_reread,
    )


# Tuning -------------------------------------------------------------------------------------------


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """What tuning found, for JSON."""
    chosen = tuned.chosen.candidate
    return {
        "chosen": _scored_json(tuned.chosen),
        "toml": chosen.toml() if chosen else "",
        "reached": tuned.reached,
        "front": [_scored_json(one) for one in front(tuned.tried)],
        "tried": [_scored_json(one) for one in tuned.tried],
        "held_out": [
            {
                "settings": asdict(fold.chosen),
                **_score_json(fold.score),
                "cost_without": fold.without.cost,
            }
            for fold in tuned.folds
        ],
        "replays": tuned.replays,
        "errors": list(tuned.errors),
    }


def _scored_json(one: Scored) -> dict[str, Any]:
    return {"settings": asdict(one.candidate) if one.candidate else None, **_score_json(one.score)}


def _score_json(score: Score) -> dict[str, float]:
    return {"cost": score.cost, "visible": score.recall, "reachable": score.reachable}


# What fills a context -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a context: where it stands, what it is, its tokens and how it begins."""

    message: int
    what: str
    tokens: int
    begins: str


def tokens_by_kind(messages: Sequence[Message], counter: TokenCounter) -> Counter[str]:
    """Raw tokens by what holds them."""
    found: Counter[str] = Counter()
    for message in messages:
        if isinstance(message["content"], str):
            found[f"{message['role']} text"] += counter.message(message)
        for block in blocks(message):
            found[_what(message, block)] += counter.block(block)
    return found


def _what(message: Message, block: object) -> str:
    name = kind(block)
    if name == "tool_result" and is_placeholder(field(block, "content")):
        return "placeholder"
    return f"{message['role']} text" if name == "text" else name.replace("_", " ")


def tokens_by_tool(
    messages: Sequence[Message], counter: TokenCounter
) -> list[tuple[str, int, int]]:
    """For each tool its name, its calls, and the raw tokens of their inputs and results.

    The largest first.
    """
    names = {call.id: call.name for call in tool_calls(messages)}
    calls: Counter[str] = Counter(names.values())
    tokens: Counter[str] = Counter()
    for message in messages:
        for block in blocks(message):
            if kind(block) == "tool_use":
                tokens[str(field(block, "name"))] += counter.block(block)
            elif kind(block) == "tool_result":
                tokens[names.get(str(field(block, "tool_use_id")), "?")] += counter.block(block)
    return [(name, calls[name], amount) for name, amount in tokens.most_common()]


def largest_blocks(messages: Sequence[Message], counter: TokenCounter, most: int) -> list[Block]:
    """The *most* largest blocks, by raw tokens."""
    names = {call.id: call.name for call in tool_calls(messages)}
    results = {
        result.place: names.get(result.tool_use_id, "?") for result in tool_results(messages)
    }
    found = []
    for index, message in enumerate(messages):
        if isinstance(message["content"], str):
            found.append(
                Block(
                    index, f"{message['role']} text", counter.message(message), message["content"]
                )
            )
        for place, block in enumerate(blocks(message)):
            tool = results.get((index, place)) or (
                field(block, "name") if kind(block) == "tool_use" else None
            )
            what = f"{_what(message, block)}{f' of {tool}' if tool else ''}"
            found.append(Block(index, what, counter.block(block), _beginning(block)))
    return sorted(found, key=lambda block: -block.tokens)[:most]


def _beginning(block: object) -> str:
    if kind(block) == "tool_result":
        return result_text(block)
    return str(field(block, "text") or field(block, "thinking") or field(block, "input") or "")
