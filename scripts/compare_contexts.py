"""Does this version of ctxpipe send the same contexts, byte for byte, as another one?

    python scripts/compare_contexts.py --beside FOLDER TRANSCRIPTS...
                                       [--limit 20] [--turns 120] [--lives 300]

The files of the other one are in FOLDER. Each transcript (a file, or all of a folder's) is played
turn by turn through one session: by a caller with his whole history, by one who goes on with the
context, and from a journal, with a new session every 7th turn. Then come random lives: appends,
cuts, branches, equal objects, moved cache marks, contexts adopted, new processes. Where the stages
of the two versions differ on purpose, ``--stages own`` plays simple ones that stand in this file
instead of the library's; ``coding``, ``lines`` and ``chat`` play those of the presets.

A turn whose contexts differ is of one of these classes:

    two gaps   the old context had two or more separate gaps when a part of the history was taken
               back, or a cache mark moved. Old versions took them for one gap, and with it threw
               away what stood between
    thinking   only the thinking differs that is taken out or that the API is asked to ignore, and
               the API, which binds it to the messages before it, accepts the new context
    undone     a message was taken back that a summary describes. Old versions kept the summary, or
               began again from the raw history; new ones return to the context before that summary.
               If it was not answered yet, later summaries do not describe the end any more
    adopted    a new process of an old version did not know that a context had been adopted as the
               history, and took our texts in it for the caller's words when it wrote a summary
    too long   the old version truncated once and left a context at its trigger or above, which the
               same stage makes shorter when it runs again; now it is repeated at once
    carried    the old compaction ended above its target, with answered words in it that take more
               than half of the target; those are cut now, or in a file
    after      the contexts of an earlier turn of the same conversation were different
    other      anything else; it is printed, and the exit code is 1

Beside them stands how many contexts of each version the API would refuse because of thinking, and
how many do not end with the newest message of the history.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import hashlib
import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import ctxpipe
from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Skip,
    SmartTruncate,
    presets,
)
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.stages.gates import RatioGate
from ctxpipe.summarizers import ExtractiveSummarizer, Retry
from ctxpipe.testing.rules import Model
from ctxpipe.testing.signatures import bare, sign, verify

HERE = Path(__file__).resolve()
MODES = ("history", "adopting", "journal")
CLASSES = ("two gaps", "thinking", "undone", "adopted", "too long", "carried", "after", "other")
FAULTS = ("refused", "without newest")
FIGURES = (
    "turns",
    "equal",
    *CLASSES,
    *(f"{fault}: {side}" for fault in FAULTS for side in ("old", "new")),
)
CUTS = ("cut", "branch", "adopt and cut")
ADOPTIONS = ("adopt", "adopt and cut")
THINKING = ("thinking", "redacted_thinking")
PRESETS = ("coding", "lines", "chat")
LIVES_AT_ONCE = 25
NEW_PROCESS = 7
SECONDS = 600  # for one transcript, or some lives, on one side
SHOWN = 300  # characters of a message on each side of the first difference
# of an archive, which names files itself
DIGEST = re.compile(r"\([0-9a-f]{8}(?:-[0-9a-f]{8}){3}\)")
TRIGGER, TRANSCRIPT_TRIGGER = (1_500, 3_000, 6_000), 12_000

Messages: TypeAlias = list[dict[str, Any]]


# Comparing ----------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("transcripts", nargs="*", type=Path, metavar="TRANSCRIPTS")
    parser.add_argument(
        "--beside", type=Path, metavar="FOLDER", help="the files of the other version"
    )
    parser.add_argument(
        "--limit", type=int, default=20, help="transcripts at most, spread over all"
    )
    parser.add_argument("--turns", type=int, default=120, help="turns of a transcript at most")
    parser.add_argument("--lives", type=int, default=300, help="random lives")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--stages", choices=("library", "own", *PRESETS), default="library")
    parser.add_argument("--play", help=argparse.SUPPRESS)  # what one side is asked to do, as JSON
    asked = parser.parse_args()
    if asked.play:
        print(json.dumps(asyncio.run(play(**json.loads(asked.play)))))
        return 0
    if asked.beside is None:
        parser.error("give the other version with --beside FOLDER")
    found: dict[str, Counter[str]] = {}
    done: Counter[str] = Counter()
    for what, conversations in played(asked):
        figures = found.setdefault(what, Counter())
        for name, old, new in conversations:
            classes = classify(name, old, new)
            figures.update([*classes, *["turns"] * len(classes)])
            figures.update(f"{fault}: old" for turn in old["turns"] for fault in turn["faults"])
            figures.update(f"{fault}: new" for turn in new["turns"] for fault in turn["faults"])
            done.update(report for turn in new["turns"] for report in turn["reports"])
            done["contexts of two gaps or more"] += sum(turn["gaps"] > 1 for turn in new["turns"])
    table(found)
    print(
        "\nin this version:",
        ", ".join(f"{times:,} × {what}" for what, times in sorted(done.items())),
    )
    return 1 if any(figures["other"] for figures in found.values()) else 0


def table(found: dict[str, Counter[str]]) -> None:
    found["in all"] = sum(found.values(), Counter())
    print("\n" + " " * 24 + "".join(f"{what.removeprefix('transcripts, '):>14}" for what in found))
    for name in FIGURES:
        print(f"{name:<24}" + "".join(f"{figures[name]:>14,}" for figures in found.values()))


def played(asked: argparse.Namespace) -> Iterator[tuple[str, list[tuple[str, Any, Any]]]]:
    """What was played, and what became of each conversation in both versions.

    Each conversation stands with its name.
    """
    work: list[tuple[str, dict[str, Any]]] = []
    for path in chosen(asked.transcripts, asked.limit):
        work += [
            (f"transcripts, {mode}", {"transcript": str(path), "mode": mode}) for mode in MODES
        ]
    for first in range(asked.seed, asked.seed + asked.lives, LIVES_AT_ONCE):
        last = min(first + LIVES_AT_ONCE, asked.seed + asked.lives)
        work.append(("random lives", {"seeds": list(range(first, last))}))
    with tempfile.TemporaryDirectory() as folder:
        for what, request in work:
            request |= {"turns": asked.turns, "stages": asked.stages}
            old, new = (
                on_one_side(version, request, Path(folder))
                for version in (asked.beside, HERE.parents[1])
            )
            print(f"{what}: {', '.join(new)[:80]}", file=sys.stderr)
            yield what, [(name, old[name], new[name]) for name in new]


def chosen(places: Sequence[Path], limit: int) -> list[Path]:
    """Up to *limit* of the files at *places*, evenly spread."""
    files = [
        path
        for place in places
        for path in (sorted(place.glob("*.jsonl")) if place.is_dir() else [place])
    ]
    step = max(1, -(-len(files) // limit)) if limit else len(files) + 1
    return [path.resolve() for path in files[::step]] if limit else []


def on_one_side(version: Path, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the *version* makes of the *request*; the files are at the same place for both."""
    root = folder / "files"
    root.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(version.resolve())}
    asked = json.dumps({**request, "version": str(version.resolve())})
    command = [sys.executable, str(HERE), "--play", asked]
    answer = subprocess.run(
        command, env=environment, cwd=root, stdout=subprocess.PIPE, timeout=SECONDS, check=True
    )
    shutil.rmtree(root)
    told: dict[str, Any] = json.loads(answer.stdout)
    return told


def classify(name: str, old: Any, new: Any) -> list[str]:
    """The class of each turn of a conversation; what is "other" is printed."""
    classes: list[str] = []
    before: Any = {"sent": [], "gaps": 0}
    moves: list[str] = []
    is_after = False
    is_undone = False
    for number, (then, now) in enumerate(zip(old["turns"], new["turns"], strict=True)):
        moves.append(now["move"])
        if then["sent"] == now["sent"] and then["options"] == now["options"]:
            classes.append("equal")
        elif is_after:
            classes.append("after")
        elif then["spoken"] == now["spoken"] and "refused" not in now["faults"]:
            classes.append("thinking")
        elif before["gaps"] > 1 and keeps_more(before, then, now):
            classes.append("two gaps")
        elif is_undone or (now["undone"] and now["move"] in CUTS):
            classes.append("undone")
        elif was_adopted_elsewhere(moves) and "Compact changed" in then["reports"]:
            classes.append("adopted")
        elif then["is_too_long"] and now["tokens"] < then["tokens"]:
            classes.append("too long")
        elif then["is_over_target"] and now["tokens"] < then["tokens"]:
            classes.append("carried")
        else:
            classes.append("other")
            show(name, number, old, new)
        is_after = is_after or then["sent"] != now["sent"]
        is_undone = is_undone or now["undone"]
        before = then
    return classes


def was_adopted_elsewhere(moves: Sequence[str]) -> bool:
    """Whether a new process came after a context was adopted."""
    first = next((number for number, move in enumerate(moves) if move in ADOPTIONS), len(moves))
    return "new process" in moves[first:]


def keeps_more(before: Any, then: Any, now: Any) -> bool:
    """Whether a cut leaves as much of *before* as *then* did, or only cache marks differ."""
    if then["unmarked"] == now["unmarked"]:
        return True
    return now["move"] in CUTS and common(before["sent"], now["sent"]) >= common(
        before["sent"], then["sent"]
    )


def common(one: Sequence[object], other: Sequence[object]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def show(name: str, number: int, old: Any, new: Any) -> None:
    then, now = old["turns"][number], new["turns"][number]
    index = common(then["sent"], now["sent"])
    print(f"\n{name}, turn {number} ({then['move']}), message {index}")
    versions = [
        side["texts"][turn["sent"][index]]
        if index < len(turn["sent"])
        else side["texts"][turn["options"]]
        for side, turn in ((old, then), (new, now))
    ]
    place = max(0, common(*versions) - SHOWN // 3)
    for side, turn, text in zip(("old", "new"), (then, now), versions, strict=True):
        print(
            f"  {side}: {len(turn['sent'])} messages, {turn['gaps']} gaps, {turn['summaries']} "
            "summaries so far"
        )
        print(f"         {'; '.join(turn['reports'])}")
        print(f"         {text[place : place + SHOWN]}")


# Playing, on one side: here and below ctxpipe is whatever version PYTHONPATH leads to -------------


async def play(
    version: str,
    stages: str,
    turns: int,
    transcript: str = "",
    mode: str = "",
    seeds: Sequence[int] = (),
) -> dict[str, Any]:
    """Turns and texts of each conversation asked for."""
    if not Path(ctxpipe.__file__).is_relative_to(version):
        raise SystemExit(f"{ctxpipe.__file__} is not of {version}")
    logging.getLogger("ctxpipe").setLevel(logging.CRITICAL)  # the summarizer fails on purpose
    if not transcript:
        return {f"life {seed}": await Life(seed, stages).told() for seed in seeds}
    caller = Caller(
        Setting(stages=stages, trigger=TRANSCRIPT_TRIGGER), journalled=mode == "journal"
    )
    await tell(caller, Path(transcript), mode, turns)
    return {f"{Path(transcript).stem}, {mode}": caller.told()}


async def tell(caller: Caller, transcript: Path, mode: str, turns: int) -> None:
    """Every turn of a transcript, up to so many."""
    messages: Any = read_transcript(transcript).messages
    replies = [
        index for index, message in enumerate(messages) if message["role"] == "assistant" and index
    ]
    history: Messages = messages[: replies[0]]
    for number, (start, stop) in enumerate(pairwise([*replies[:turns], len(messages)])):
        if mode == "journal" and number % NEW_PROCESS == NEW_PROCESS - 1:
            caller.begin_anew()
        sent = await caller.turn(history, "append")
        history = [*(sent if mode == "adopting" else history), *signed(sent, messages[start:stop])]


@dataclass(frozen=True)
class Setting:
    """What the pipelines of one conversation are built with."""

    stages: str
    trigger: int
    target_share: float = 0.5
    thinking: str = "keep"
    min_chars: int = 1_000
    ratio: float = 0.2
    verify: bool = False
    bad_days: bool = True

    @property
    def target(self) -> int:
        """What a compaction aims at, in tokens."""
        return int(self.trigger * self.target_share)


@dataclass
class Caller:
    """Somebody with one session, and what was sent for him in each turn."""

    setting: Setting
    journalled: bool
    turns: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    summaries: int = 0
    is_doubled: bool = False
    before: Messages = field(default_factory=list)
    name: str = "conversation"

    def __post_init__(self) -> None:
        self.root = Path.cwd() / self.name
        self.begin_anew()

    def told(self) -> dict[str, Any]:
        return {"turns": self.turns, "texts": self.texts}

    def now(self) -> float:
        return 1_000_000.0 + 60 * len(self.turns)

    def begin_anew(self) -> None:
        """Another process: another pipeline, and a session that knows what is in the journal."""
        storage: Any = LocalStorage(self.root, clock=self.now)
        setting = self.setting
        trigger, target = setting.trigger, setting.target
        self.pipeline = ContextPipeline(
            self.own_stages() if setting.stages == "own" else self.library_stages(storage),
            budget=Budget(window=2 * trigger, trigger=trigger, target=target),
            counter=self.token_count,
            thinking=setting.thinking,  # type: ignore[arg-type]
        )
        journal = storage if self.journalled else None
        self.session = self.pipeline.session(
            "s", journal=journal, verify=setting.verify, clock=self.now
        )

    def library_stages(self, storage: Any) -> list[Any]:
        setting = self.setting
        given: dict[str, Any] = {"summarize": self.summarize, "clock": self.now}
        if setting.stages == "chat":
            return presets.chat(storage, **given)
        if setting.stages in PRESETS:
            if setting.stages == "lines":
                given["old_exchanges"] = "lines"
            return presets.coding_agent(storage, work_dir=None, **given)
        breaker: dict[str, Any] = {
            "retry": Retry(max_retries=0),
            "cooldown_seconds": 120,
            "clock": self.now,
        }
        direct: list[Any] = [DirectOffload(storage, min_chars=4 * setting.min_chars)]
        if hasattr(ctxpipe, "TrimReadBacks"):  # older versions have all this in two stages
            from ctxpipe.stages.compact import Breaker  # noqa: PLC0415

            breaker = {"breaker": Breaker(**breaker)}
            direct.append(ctxpipe.TrimReadBacks(storage))
        return [
            *direct,
            BatchOffload(storage, RatioGate(setting.ratio), min_chars=setting.min_chars),
            Compact(self.summarize, storage, **breaker),
            SmartTruncate(storage, max_tokens=int(setting.trigger * setting.target_share)),
        ]

    def own_stages(self) -> list[Any]:
        setting = self.setting
        return [
            Shorten(setting.min_chars),
            Summarize(self, setting.trigger),
            Truncate(setting.trigger),
        ]

    @property
    def summarizer_is_down(self) -> bool:
        """The summarizer has bad days, so that the context is truncated as well."""
        return self.setting.bad_days and len(self.turns) // 6 % 3 == 1

    async def summarize(self, messages: Sequence[Any], /) -> Any:
        if self.summarizer_is_down:
            raise RuntimeError("the model is not there")
        self.summaries += 1
        return await ExtractiveSummarizer(max_words=200)(messages)

    async def turn(self, history: Messages, move: str) -> Messages:
        """The context for *history*, noted down; *history* itself where the turn fails."""
        sent, reports, options = history, ["failed"], {}
        tokens = 0
        notices: Sequence[str] = ()
        try:
            result: Any = await self.session.run(history)  # type: ignore[arg-type]
            sent, options = result.messages, result.request_options
            tokens = result.tokens_after
            notices = result.notices
            reports = [f"{report.stage} {report.outcome.value}" for report in result.reports]
        except Exception as error:  # noqa: BLE001  that, too, is to be the same
            options = {"error": type(error).__name__}
        self.is_doubled = self.is_behind_summary(history, sent, reports)
        texts = [self.text(message) for message in [*sent, {"request_options": dict(options)}]]
        digests = [digest(text) for text in texts]
        self.texts |= dict(zip(digests, texts, strict=True))
        self.turns.append(
            {
                "sent": digests[:-1],
                "options": digests[-1],
                "spoken": digest(
                    self.text([[message["role"], *spoken(message)] for message in sent])
                ),
                "unmarked": digest(self.text([bare(message) for message in sent])),
                "gaps": gaps(history, sent) + self.is_doubled,
                "move": move,
                "undone": any("is undone" in notice for notice in notices),
                "reports": reports,
                "summaries": self.summaries,
                "tokens": tokens,
                "is_too_long": "SmartTruncate changed" in reports
                and tokens >= self.setting.trigger,
                "is_over_target": "Compact changed" in reports and tokens > self.setting.target,
                "faults": [
                    *["refused"] * is_refused(sent, options),
                    *["without newest"] * (move in CUTS and ends_early(history, sent)),
                ],
            }
        )
        return sent

    def is_behind_summary(self, history: Messages, sent: Messages, reports: Sequence[str]) -> bool:
        """Whether messages right behind a summary went later than what it stands for.

        They are two gaps that look like one.
        """
        if "Compact changed" in reports or "Summarize changed" in reports:
            return False
        before, self.before = self.before, [message for message in sent if message not in history]
        is_truncated = "SmartTruncate changed" in reports or "Truncate changed" in reports
        return self.is_doubled or (
            is_truncated and any(message in before for message in self.before)
        )

    def text(self, message: object) -> str:
        """*message* as JSON, without what only the place and the bytes of files say."""
        return DIGEST.sub(
            "(digest)", json.dumps(message, default=as_sent).replace(str(self.root), "ROOT")
        )

    def token_count(self, text: str) -> int:
        return token_count(text.replace(str(self.root), "ROOT"))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def is_refused(sent: Messages, options: Mapping[str, Any]) -> bool:
    """Whether the API would refuse thinking in it as bound to other messages."""
    body, headers = options.get("extra_body", {}), options.get("extra_headers", {})
    plain = json.loads(json.dumps(sent, default=as_sent))
    return bool(
        verify({"messages": plain, **body}, Model(), headers.get("anthropic-beta", "")).problems
    )


def signed(seen: Messages, messages: Messages) -> Messages:
    """*messages* that follow, each reply's thinking signed.

    It is signed as by a model that has *seen* what was before it.
    """
    made: Messages = []
    for message in messages:
        blocks = blocks_of(message)
        is_bound = any(block["type"] in THINKING for block in blocks)
        made.append(
            {**message, "content": sign({"messages": [*seen, *made]}, blocks)}
            if is_bound
            else message
        )
    return made


def as_sent(block: Any) -> Any:
    return block.model_dump()


def token_count(text: str) -> int:
    return len(text) // 4 + 1


def gaps(history: Messages, context: Messages) -> int:
    """How many separate parts of *history* have no message of their own in *context*."""
    places: dict[object, list[int]] = {}
    for index, message in enumerate(history):
        places.setdefault(meaning(message), []).append(index)
    last, found = -1, 0
    for message in context:
        place = next((place for place in places.get(meaning(message), ()) if place > last), None)
        if place is not None:
            found, last = found + (place > last + 1), place
    return found + (last + 1 < len(history))


def ends_early(history: Messages, context: Messages) -> bool:
    """Whether *context* ends with another message of the *history* than the newest."""
    last = meaning(context[-1])
    return last != meaning(history[-1]) and last in map(meaning, history)


def meaning(message: dict[str, Any]) -> object:
    """What stays of a message when its long texts are in files: ids, and the words of others."""
    blocks = blocks_of(message)
    return message["role"], *(
        block.get("id") or block.get("tool_use_id") or block.get("text") or block["type"]
        for block in blocks
    )


def blocks_of(message: Any) -> Messages:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def spoken(message: Any) -> Messages:
    """The blocks of *message* that are no thinking."""
    return [block for block in blocks_of(message) if block["type"] not in THINKING]


# Stages of our own: they do the same in every version ---------------------------------------------


def size(messages: Sequence[Any]) -> int:
    return sum(token_count(json.dumps(message)) for message in messages)


def changed_or_skipped(messages: Sequence[Any] | None) -> Any:
    return Skip("nothing to do") if messages is None else Change(list(messages))


@dataclass(frozen=True)
class Shorten:
    """Long results that are not the newest become a line, a few at a time."""

    min_chars: int

    async def __call__(self, turn: Any) -> Any:
        messages = list(turn.messages)
        long = [
            index
            for index, message in enumerate(messages[:-1])
            if any(map(self.is_long, message["content"]))
        ]
        for index in long:
            blocks = [
                {**block, "content": f"[{len(block['content'])} characters]"}
                if self.is_long(block)
                else block
                for block in messages[index]["content"]
            ]
            messages[index] = {**messages[index], "content": blocks}
        return changed_or_skipped(messages if len(long) > 2 else None)

    def is_long(self, block: Any) -> bool:
        is_result = (
            isinstance(block, dict)
            and block["type"] == "tool_result"
            and isinstance(block["content"], str)
        )
        return is_result and len(block["content"]) >= self.min_chars


@dataclass(frozen=True)
class Summarize:
    """Above the trigger the first three quarters become one message."""

    caller: Caller
    trigger: int

    async def __call__(self, turn: Any) -> Any:
        places = replies(turn.messages, 0.75)
        if size(turn.messages) < self.trigger or self.caller.summarizer_is_down or not places:
            return changed_or_skipped(None)
        self.caller.summaries += 1
        old, kept = turn.messages[: places[0]], turn.messages[places[0] :]
        said = digest(json.dumps([bare(message) for message in old], default=as_sent))
        return changed_or_skipped(
            [{"role": "user", "content": f"Summary {said} of {len(old)} messages."}, *kept]
        )


@dataclass(frozen=True)
class Truncate:
    """Above the trigger whole turns of the middle go."""

    trigger: int

    async def __call__(self, turn: Any) -> Any:
        first, last = replies(turn.messages, 0.3)[:1], replies(turn.messages, 0.6)[:1]
        if size(turn.messages) < self.trigger or not first or not last or first == last:
            return changed_or_skipped(None)
        return changed_or_skipped([*turn.messages[: first[0]], *turn.messages[last[0] :]])


def replies(messages: Sequence[Any], share: float) -> list[int]:
    """The replies after so great a share of *messages*."""
    start = max(2, int(share * len(messages)))
    return [
        index for index in range(start, len(messages)) if messages[index]["role"] == "assistant"
    ]


# Random lives -------------------------------------------------------------------------------------


class Life:
    """A caller who does what callers do.

    All of it follows from the seed and the contexts that he adopts.
    """

    def __init__(self, seed: int, stages: str) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.said = 0
        pick = self.random.choice
        setting = Setting(
            stages=stages,
            trigger=pick(TRIGGER),
            target_share=pick((0.3, 0.5, 0.8)),
            thinking=pick(("keep", "keep", "strip", "protect")),
            min_chars=pick((60, 300, 1_000)),
            ratio=pick((0.05, 0.2, 0.5)),
            verify=pick((False, False, True)),
            bad_days=pick((False, True)),
        )
        self.caller = Caller(setting, journalled=pick((False, True)), name=f"life-{seed}")
        self.history: Messages = [{"role": "user", "content": self.words()}]
        self.sent = list(self.history)

    async def told(self) -> dict[str, Any]:
        moves = (
            ["append"] * 20
            + ["branch", "cut", "rebuild", "mark"]
            + self.random.choice(
                (
                    ["adopt", "adopt and cut"],
                    ["new process"] * 2,
                    ["adopt", "adopt and cut", "new process"],
                )
            )
        )
        for _ in range(self.random.randrange(20, 100)):
            move = self.random.choice(moves)
            self.make(move)
            self.sent = list(await self.caller.turn(self.history, move))
        return self.caller.told()

    def make(self, move: str) -> None:
        if move in ("adopt", "adopt and cut"):
            self.history = list(self.sent)
        if move == "rebuild":
            self.history = copy.deepcopy(self.history)
        if move == "mark":
            self.mark()
        if (
            move == "new process" and self.caller.journalled
        ):  # else nobody would know what thinking is bound to
            self.caller.begin_anew()
        if move in ("cut", "branch", "adopt and cut"):
            self.cut()
        else:
            known = len(self.history)
            for _ in range(self.random.choice((1, 1, 1, 3))):
                self.history += signed([*self.sent, *self.history[known:]], self.exchange())
        if move == "branch":
            self.history[-1:] = [
                {"role": "user", "content": [*blocks_of(self.history[-1]), text(self.words())]}
            ]

    def cut(self) -> None:
        """Back to anything that the user has said, a result included."""
        places = [
            index + 1 for index, message in enumerate(self.history) if message["role"] == "user"
        ]
        self.history = self.history[: self.random.choice(places or [1])]

    def mark(self) -> None:
        """The cache mark is moved to the newest message, in equal objects or in place."""
        if self.random.randrange(2):
            self.history = copy.deepcopy(self.history)
        blocks = [
            block
            for message in self.history
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        for block in blocks:
            block.pop("cache_control", None)
        for block in blocks[-1:]:
            block["cache_control"] = {"type": "ephemeral"}

    def exchange(self) -> Messages:
        """A reply, and what follows it: results of its calls, or the user's words."""
        calls = [self.call() for _ in range(self.random.choice((0, 1, 1, 1, 2)))]
        thinking = [{"type": "thinking", "thinking": self.words(), "signature": ""}] * (
            self.said % 4 == 0
        )
        said = [text(self.words())] if not calls or self.random.randrange(2) else []
        if not calls:
            return [reply([*thinking, *said]), {"role": "user", "content": self.words()}]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": self.words(400)}
            for call in calls
        ]
        return [reply([*thinking, *said, *calls]), {"role": "user", "content": results}]

    def call(self) -> dict[str, Any]:
        self.said += 1
        return {
            "type": "tool_use",
            "id": f"toolu_{self.said}",
            "name": "bash",
            "input": {"command": self.words(8)},
        }

    def words(self, most: int = 30) -> str:
        """A new text."""
        self.said += 1
        return f"number {self.said}" + " and so on" * self.random.randrange(most)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def reply(blocks: Messages) -> dict[str, Any]:
    return {"role": "assistant", "content": blocks}


if __name__ == "__main__":
    sys.exit(main())
