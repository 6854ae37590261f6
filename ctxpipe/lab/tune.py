"""The settings that cost least on recorded conversations, without showing the agent less than is
wanted.

Candidates are drawn before any conversation is seen, and lose their places by successive halving:
all of them on a few conversations, the best third on more, the best third of those on all. The same
is done once more for each fold with its conversations held out, so that what the choice costs can
be told from conversations it was not made on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any, TypeAlias

from ..errors import SettingsError
from ..prices import Prices
from ..stages.offload import WRITING_TOOLS
from .batch import FileReplay
from .config import ConfiguredPolicy
from .costs import bill
from .policies import NONE, WINDOW, Policy
from .replay import PipelineMaker, Replay

__all__ = [
    "Candidate",
    "Evaluate",
    "HeldOut",
    "Score",
    "Scored",
    "Tuned",
    "candidates",
    "front",
    "least_budget",
    "tune",
]

Evaluate: TypeAlias = Callable[[Sequence[str], Mapping[str, PipelineMaker]], Iterable[FileReplay]]
"""Replays files through makers, as `replay_files` does."""

SHARES = (1 / 9, 1 / 3, 1.0)
KEPT = 1 / 3
MOST = 1000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pipeline by the settings that matter; the default ones are those of the preset for coding
    agents.

    *direct_min_chars* None leaves direct offloading out. *preview* are the characters of head and tail that stay.
    *trigger* is the share of the *window* at which compaction begins.
    """

    direct_min_chars: int | None = 8000
    preview: tuple[int, int] = (400, 200)
    alpha: float = 2.0
    min_chars: int = 400
    keep_recent: int = 5
    inputs: bool = True
    trigger: float = 0.835
    window: int = WINDOW

    @property
    def name(self) -> str:
        """The settings in a few words."""
        head, tail = self.preview
        direct = "-" if self.direct_min_chars is None else f"{self.direct_min_chars}/{head}+{tail}"
        inputs = "inputs" if self.inputs else "-"
        return f"{direct} α{self.alpha:g} {self.min_chars} k{self.keep_recent} {inputs} {self.trigger:g}"

    def toml(self) -> str:
        """The pipeline as a file that ``--config`` reads."""
        return "\n".join(
            [f"[budget]\nwindow = {self.window}\ntrigger = {self.trigger}\n", *self._stages()]
        )

    def _stages(self) -> list[str]:
        head, tail = self.preview
        direct = (
            f"min_chars = {self.direct_min_chars}\npreview = {{ head = {head}, tail = {tail} }}\n"
        )
        inputs = ", ".join(f'"{tool}"' for tool in sorted(WRITING_TOOLS)) if self.inputs else ""
        batch = (
            f'gate = {{ use = "RentOrBuyGate", alpha = {self.alpha} }}\nmin_chars = {self.min_chars}\n'
            f"keep_recent = {self.keep_recent}\ninputs = [{inputs}]\nkeep_read_backs = false\n"
        )
        stages = {
            "BatchOffload": batch,
            "Compact": "restore = { shell = true }\n",
            "SmartTruncate": "shell = true\n",
        }
        if self.direct_min_chars is not None:
            stages = {"DirectOffload": direct, **stages}
        return [f'[[stage]]\nuse = "{name}"\n{settings}' for name, settings in stages.items()]


_VALUES: Mapping[str, Sequence[object]] = {
    "direct_min_chars": (None, 2000, 4000, 8000, 16_000, 32_000),
    "preview": ((400, 200), (1200, 400)),
    "alpha": (1.0, 2.0, 4.0, 8.0),
    "min_chars": (200, 400, 1000, 2000),
    "keep_recent": (2, 3, 5, 8, 12),
    "inputs": (True, False),
    "trigger": (0.5, 0.65, 0.835, 0.92),
}


def candidates(count: int, seed: int = 0, window: int = WINDOW) -> list[Candidate]:
    """So many different candidates, the preset first, the others drawn so that each value is tried
    about as often.
    """
    draw = random.Random(seed)  # noqa: S311  no secret
    found = dict.fromkeys([Candidate(window=window)])
    while len(found) < count:
        columns = {name: _shuffled(values, count, draw) for name, values in _VALUES.items()}
        for row in zip(*columns.values(), strict=True):
            found[_drawn(dict(zip(columns, row, strict=True)), window)] = None
    return list(found)[:count]


def _drawn(values: Mapping[str, Any], window: int) -> Candidate:
    candidate = Candidate(**values, window=window)
    return (
        candidate if candidate.direct_min_chars else replace(candidate, preview=Candidate().preview)
    )


def _shuffled(values: Sequence[object], count: int, draw: random.Random) -> list[object]:
    column = list(islice(cycle(draw.sample(values, len(values))), count))
    draw.shuffle(column)
    return column


# Scores -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """What a policy cost on some conversations, and where stood what the replies used: `Use`, in
    short.
    """

    cost: float = 0.0
    used: float = 0.0
    seen: float = 0.0
    found: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.cost + other.cost,
            self.used + other.used,
            self.seen + other.seen,
            self.found + other.found,
        )

    @property
    def recall(self) -> float:
        """The share of what was used that the context showed."""
        return self.seen / self.used if self.used else 1.0

    @property
    def reachable(self) -> float:
        """The same with what the context named the place of."""
        return self.found / self.used if self.used else 1.0


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate and its score on all conversations; *candidate* None is no management at all."""

    candidate: Candidate | None
    score: Score


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What was chosen without some conversations cost on those, beside what no management does."""

    chosen: Candidate
    score: Score
    without: Score


@dataclass(frozen=True, slots=True)
class Tuned:
    """The *chosen* settings; everything that was tried on all conversations; and each fold's test
    of its choice.

    *reached* tells whether the choice shows as much as was asked for. *errors* are those of files that were left out.
    """

    chosen: Scored
    tried: tuple[Scored, ...]
    folds: tuple[HeldOut, ...]
    reached: bool
    replays: int
    conversations: int
    errors: tuple[str, ...] = ()


def front(scored: Iterable[Scored]) -> list[Scored]:
    """Those that no other beats in cost and in recall at once, the cheapest first."""
    best: list[Scored] = []
    for one in sorted(scored, key=lambda one: (one.score.cost, -one.score.recall)):
        if not best or one.score.recall > best[-1].score.recall:
            best.append(one)
    return best


# Searching ----------------------------------------------------------------------------------------


def tune(
    paths: Sequence[str],
    evaluate: Evaluate,
    *,
    prices: Prices,
    recall: float = 0.9,
    folds: int = 3,
    budget: int = 400,
    seed: int = 0,
    window: int = WINDOW,
) -> Tuned:
    """The settings that cost least on the conversations at *paths* and show *recall* of what the
    replies use.

    At most *budget* conversations are replayed through some pipeline, by *evaluate*. Deterministic
    for a *seed*. Where no candidate shows enough, the one that shows most is chosen. Raises
    SettingsError when the budget is too small, or no conversation can be replayed.
    """
    if not 0 <= recall <= 1:
        raise SettingsError(f"recall is {recall!r}; give a share from 0 to 1")
    files = sorted(set(paths))
    random.Random(seed).shuffle(files)  # noqa: S311  no secret
    if budget < least_budget(len(files), folds):
        raise SettingsError(
            f"{budget} replays are too few; {least_budget(len(files), folds)} are the least"
        )
    search = _Search(evaluate, prices, recall)
    search.try_all(files, [Candidate(window=window)], {NONE: Policy(NONE, prices)})
    files = [path for path in files if path not in search.errors]
    if not files:
        raise SettingsError(f"nothing to tune by: {next(iter(search.errors.values()))}")
    runs = _runs(files, folds)
    left = budget - search.replays
    count = max((count for count in range(1, MOST) if _planned(count, runs) <= left), default=1)
    return search.tuned(runs, candidates(count, seed, window))


def least_budget(files: int, folds: int) -> int:
    """The fewest replays by which anything can be learned: nothing, the preset and two others on
    every file.
    """
    return 2 * files + _planned(3, _runs([str(n) for n in range(files)], folds))


def _runs(files: Sequence[str], folds: int) -> list[list[str]]:
    """The files to choose by: all, then those outside each fold.

    A single file cannot be held out.
    """
    folds = min(folds, len(files)) if len(files) > 1 else 0
    return [
        list(files),
        *([path for i, path in enumerate(files) if i % folds != fold] for fold in range(folds)),
    ]


def _shown(run: Sequence[str], share: float) -> Sequence[str]:
    return run[: math.ceil(share * len(run))]


def _united(runs: Sequence[Sequence[str]], share: float) -> list[str]:
    return list(dict.fromkeys(path for run in runs for path in _shown(run, share)))


def _kept(count: int) -> int:
    return max(1, math.ceil(count * KEPT))


def _planned(count: int, runs: Sequence[Sequence[str]]) -> int:
    """The most replays that so many candidates can take, the preset's not counted: no two runs may
    agree.
    """
    replays, known, each = 0, 0, count
    for share in SHARES:
        files = len(_united(runs, share))
        replays += min(count, each * len(runs)) * (files - known)
        known, each = files, _kept(each)
    return replays


@dataclass(slots=True)
class _Search:
    evaluate: Evaluate
    prices: Prices
    floor: float
    scores: dict[tuple[str, str], Score] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    replays: int = 0

    def try_all(
        self,
        files: Sequence[str],
        tried: Iterable[Candidate],
        more: Mapping[str, PipelineMaker] | None = None,
    ) -> None:
        """Score what is *tried* on each of *files* it has not been tried on."""
        makers: dict[str, PipelineMaker] = dict(more or {})
        for candidate in tried:
            makers[candidate.name] = ConfiguredPolicy(candidate.name, candidate.toml(), self.prices)
        fresh = {
            path: {n: m for n, m in makers.items() if (n, path) not in self.scores}
            for path in files
        }
        for chosen in dict.fromkeys(tuple(names) for names in fresh.values() if names):
            self._replay(
                [path for path in files if tuple(fresh[path]) == chosen],
                {n: makers[n] for n in chosen},
            )

    def _replay(self, files: Sequence[str], makers: Mapping[str, PipelineMaker]) -> None:
        self.replays += len(files) * len(makers)
        for file in self.evaluate(files, makers):
            if file.error:
                self.errors[file.path] = file.error
            for name in makers:
                self.scores[name, file.path] = (
                    self._score(file.replays[name]) if not file.error else Score()
                )

    def _score(self, replay: Replay) -> Score:
        use = replay.use
        return Score(
            bill(replay.requests, self.prices).total, use.total, use.visible, use.total - use.lost
        )

    def total(self, name: str, files: Iterable[str]) -> Score:
        """The score over those of *files* that every pipeline could be tried on."""
        return sum((self.scores[name, path] for path in files if path not in self.errors), Score())

    def ranked(self, tried: Iterable[Candidate], files: Sequence[str]) -> list[Candidate]:
        """The best first: those that show enough by what they cost, the others by what they show."""
        # By name last: sets have no order, and the same call is to have the same answer.
        return sorted(
            tried,
            key=lambda candidate: (self._rank(self.total(candidate.name, files)), candidate.name),
        )

    def _rank(self, score: Score) -> tuple[bool, float]:
        enough = score.recall >= self.floor
        return not enough, score.cost if enough else -score.recall

    def tuned(self, runs: Sequence[Sequence[str]], tried: Sequence[Candidate]) -> Tuned:
        """Halve the candidates, for each of *runs* by its own files.

        The preset keeps its place to the end.
        """
        alive = [list(tried) for _ in runs]
        for place, share in enumerate(SHARES):
            if place:
                alive = [
                    self._better(left, _shown(run, SHARES[place - 1]))
                    for left, run in zip(alive, runs, strict=True)
                ]
            self.try_all(_united(runs, share), dict.fromkeys(c for left in alive for c in left))
        preset, everything = tried[0], runs[0]
        chosen = [
            self.ranked({preset, *left}, run)[0] for left, run in zip(alive, runs, strict=True)
        ]
        finalists = dict.fromkeys([preset, *(candidate for left in alive for candidate in left)])
        score = self.total(chosen[0].name, everything)
        return Tuned(
            Scored(chosen[0], score),
            (
                Scored(None, self.total(NONE, everything)),
                *(Scored(c, self.total(c.name, everything)) for c in finalists),
            ),
            tuple(
                self._held_out(run, everything, best)
                for run, best in zip(runs[1:], chosen[1:], strict=True)
            ),
            score.recall >= self.floor,
            self.replays,
            sum(path not in self.errors for path in everything),
            tuple(self.errors.values()),
        )

    def _better(self, left: Sequence[Candidate], files: Sequence[str]) -> list[Candidate]:
        return self.ranked(left, files)[: _kept(len(left))]

    def _held_out(
        self, run: Sequence[str], everything: Sequence[str], chosen: Candidate
    ) -> HeldOut:
        files = [path for path in everything if path not in run]
        return HeldOut(chosen, self.total(chosen.name, files), self.total(NONE, files))
