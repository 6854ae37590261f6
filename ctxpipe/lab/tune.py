"""The settings that cost least on recorded conversations and still show the agent enough.

Candidates are drawn before any conversation is seen, and eliminated by successive halving: all of
them are tried on a few conversations, the best third on more, the best third of those on all. The
same is done once more for each fold with its conversations held out, so that the choice can be
tested on conversations it was not made on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any, TypeAlias

from ..agent_tools import WRITING_TOOLS
from ..errors import SettingsError
from ..prices import Prices
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
SURVIVING_SHARE = 1 / 3
MAX_CANDIDATES = 1000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pipeline by the settings that matter; the defaults are those of the coding preset.

    *direct_min_chars* None leaves direct offloading out. *preview* are the characters of head and
    tail that stay. With *collapse* old exchanges leave by `Collapse`, else old results by
    `BatchOffload`; *min_value* is what a line must be worth to stay in sight, in a note or in a
    placeholder (None: placeholders show none), and *text_chars* how much of the assistant's own
    words a note keeps. *trigger* is the share of the *window* at which compaction begins.
    """

    direct_min_chars: int | None = 8000
    preview: tuple[int, int] = (400, 200)
    alpha: float = 2.0
    min_chars: int = 400
    keep_recent: int = 5
    inputs: bool = True
    trigger: float = 0.835
    window: int = WINDOW
    collapse: bool = False
    min_value: float | None = None
    text_chars: int = 200

    @property
    def name(self) -> str:
        """The settings in a few words."""
        direct = "-"
        if self.direct_min_chars is not None:
            head, tail = self.preview
            direct = f"{self.direct_min_chars}/{head}+{tail}"
        old = f"α{self.alpha:g} k{self.keep_recent}"
        lines = "-" if self.min_value is None else f"v{self.min_value:g}"
        if self.collapse:
            return f"{direct} collapse {old} {lines} {self.text_chars} {self.trigger:g}"
        inputs = "inputs" if self.inputs else "-"
        return f"{direct} {old} {self.min_chars} {inputs} {lines} {self.trigger:g}"

    def toml(self) -> str:
        """The pipeline as a file that ``--config`` reads."""
        budget = f"[budget]\nwindow = {self.window}\ntrigger = {self.trigger}\n"
        return "\n".join([budget, *self._stages()])

    def _stages(self) -> list[str]:
        stages = {}
        if self.direct_min_chars is not None:
            head, tail = self.preview
            stages["DirectOffload"] = (
                f"min_chars = {self.direct_min_chars}\n"
                f"preview = {{ head = {head}, tail = {tail} }}\n"
            )
            stages["TrimReadBacks"] = ""
        if self.collapse:
            stages["Collapse"] = self._collapse()
        else:
            stages["BatchOffload"] = self._batch_offload()
        stages["Compact"] = "restore = { shell = true }\n"
        stages["SmartTruncate"] = "shell = true\n"
        sections: list[str] = []
        for name, settings in stages.items():
            header = f'[[stage]]\nuse = "{name}"\n'
            sections.append(header + settings)
        return sections

    def _collapse(self) -> str:
        settings = f"alpha = {self.alpha}\nkeep_recent = {self.keep_recent}\n"
        if self.min_value is not None:
            settings += f"min_value = {self.min_value}\n"
        return f"{settings}text_chars = {self.text_chars}\n"

    def _batch_offload(self) -> str:
        inputs = ""
        if self.inputs:
            tools = [f'"{tool}"' for tool in sorted(WRITING_TOOLS)]
            inputs = ", ".join(tools)
        excerpt = ""
        if self.min_value is not None:
            excerpt = f"excerpt = {{ min_value = {self.min_value} }}\n"
        return (
            f'gate = {{ use = "RentOrBuyGate", alpha = {self.alpha} }}\n'
            f"min_chars = {self.min_chars}\n"
            f"keep_recent = {self.keep_recent}\n"
            f"inputs = [{inputs}]\n"
            "keep_read_backs = false\n"
            f"{excerpt}"
        )


_VALUES: Mapping[str, Sequence[object]] = {
    "direct_min_chars": (None, 2000, 4000, 8000, 16_000, 32_000),
    "preview": ((400, 200), (1200, 400)),
    "alpha": (1.0, 2.0, 4.0, 8.0),
    "min_chars": (200, 400, 1000, 2000),
    "keep_recent": (2, 3, 5, 8, 12),
    "inputs": (True, False),
    "trigger": (0.5, 0.65, 0.835, 0.92),
    "collapse": (True, False),
    "min_value": (None, 2.0, 3.0, 4.0, 6.0),
    "text_chars": (0, 200),
}

LEAN = Candidate(collapse=True, keep_recent=7, min_value=3.0)
"""The settings of the lean coding preset."""


def candidates(
    count: int,
    seed: int = 0,
    window: int = WINDOW,
) -> list[Candidate]:
    """*count* different candidates, the coding preset first and the lean one second.

    The others are drawn so that each value of a setting is tried about equally often.
    """
    draw = random.Random(seed)  # noqa: S311  no secret
    coding = Candidate(window=window)
    lean = replace(LEAN, window=window)
    found = dict.fromkeys([coding, lean])
    while len(found) < count:
        columns = [_shuffle(values, count, draw) for values in _VALUES.values()]
        for row in zip(*columns, strict=True):
            values = dict(zip(_VALUES, row, strict=True))
            candidate = _candidate(values, window)
            found[candidate] = None
    return list(found)[:count]


def _candidate(values: Mapping[str, Any], window: int) -> Candidate:
    candidate = Candidate(**values, window=window)
    # Candidates must not differ by a setting of a stage that they lack.
    usual = Candidate()
    if candidate.direct_min_chars is None:
        candidate = replace(candidate, preview=usual.preview)
    if not candidate.collapse:
        return replace(candidate, text_chars=usual.text_chars)
    min_value = candidate.min_value
    if min_value is None:
        min_value = LEAN.min_value
    return replace(
        candidate,
        min_chars=usual.min_chars,
        inputs=usual.inputs,
        min_value=min_value,
    )


def _shuffle(
    values: Sequence[object],
    count: int,
    draw: random.Random,
) -> list[object]:
    """A column of *count* values, each as often as any other, in random order."""
    order = draw.sample(values, len(values))
    column = list(islice(cycle(order), count))
    draw.shuffle(column)
    return column


# Scores -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Score:
    """What a policy cost on some conversations, and where the replies found what they used.

    A short form of `Use`.
    """

    cost: float = 0.0
    used: float = 0.0
    seen: float = 0.0
    found: float = 0.0
    doubtful: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.cost + other.cost,
            self.used + other.used,
            self.seen + other.seen,
            self.found + other.found,
            self.doubtful + other.doubtful,
        )

    @property
    def recall(self) -> float:
        """The share of what was used that the context showed."""
        return self._share(self.seen)

    @property
    def strict_recall(self) -> float:
        """The same by the second yardstick of a replay."""
        return self._share(self.seen - self.doubtful)

    @property
    def reachable(self) -> float:
        """As `recall`, including what the context named the place of."""
        return self._share(self.found)

    def _share(self, amount: float) -> float:
        if not self.used:
            return 1.0
        return amount / self.used


@dataclass(frozen=True, slots=True)
class Scored:
    """A candidate and its score on all conversations; *candidate* None is no management at all."""

    candidate: Candidate | None
    score: Score


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The test of a choice on conversations it was made without, beside no management."""

    chosen: Candidate
    score: Score
    without: Score


@dataclass(frozen=True, slots=True)
class Tuned:
    """The *chosen* settings, all that was tried on all conversations, and each fold's test.

    *reached* tells whether the choice shows as much as was asked for. *errors* are those of files
    that were left out.
    """

    chosen: Scored
    tried: tuple[Scored, ...]
    folds: tuple[HeldOut, ...]
    reached: bool
    replays: int
    conversations: int
    errors: tuple[str, ...] = ()


def front(scored: Iterable[Scored]) -> list[Scored]:
    """Those that no other beats in both cost and recall, the cheapest first."""

    def cost_then_recall(one: Scored) -> tuple[float, float]:
        return one.score.cost, -one.score.recall

    best: list[Scored] = []
    most_shown = -1.0
    for one in sorted(scored, key=cost_then_recall):
        recall = one.score.recall
        if recall > most_shown:
            best.append(one)
            most_shown = recall
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
    """The cheapest settings on the conversations at *paths* that show *recall* of what is used.

    At most *budget* conversations are replayed through some pipeline, by *evaluate*. Deterministic
    for a *seed*. Where no candidate shows enough, the one that shows most is chosen. Raises
    SettingsError when the budget is too small, or no conversation can be replayed.
    """
    if not 0 <= recall <= 1:
        raise SettingsError(f"recall is {recall!r}; give a share from 0 to 1")
    files = sorted(set(paths))
    random.Random(seed).shuffle(files)  # noqa: S311  no secret
    least = least_budget(len(files), folds)
    if budget < least:
        raise SettingsError(f"{budget} replays are too few; {least} are the least")
    search = _Search(evaluate, prices, recall)
    preset = Candidate(window=window)
    search.try_all(files, [preset], {NONE: Policy(NONE, prices)})
    files = [path for path in files if path not in search.errors]
    if not files:
        first_error = next(iter(search.errors.values()))
        raise SettingsError(f"nothing to tune by: {first_error}")
    runs = _runs(files, folds)
    left = budget - search.replays
    count = _affordable_count(left, runs)
    tried = candidates(count, seed, window)
    return search.run(runs, tried)


def least_budget(files: int, folds: int) -> int:
    """The fewest replays that can tell anything.

    They try no management, the preset and two other candidates on every file.
    """
    names = [str(number) for number in range(files)]
    runs = _runs(names, folds)
    return 2 * files + _max_replays(3, runs)


def _runs(files: Sequence[str], folds: int) -> list[list[str]]:
    """The files to choose by: all of them, then for each fold those outside it.

    A single file cannot be held out.
    """
    runs = [list(files)]
    if len(files) > 1:
        folds = min(folds, len(files))
        for fold in range(folds):
            others = _outside_fold(files, fold, folds)
            runs.append(others)
    return runs


def _outside_fold(
    files: Sequence[str],
    fold: int,
    folds: int,
) -> list[str]:
    return [path for index, path in enumerate(files) if index % folds != fold]


def _first_share(run: Sequence[str], share: float) -> Sequence[str]:
    count = math.ceil(share * len(run))
    return run[:count]


def _union(runs: Sequence[Sequence[str]], share: float) -> list[str]:
    """The first *share* of every run, each file once."""
    paths: dict[str, None] = {}
    for run in runs:
        first = _first_share(run, share)
        paths.update(dict.fromkeys(first))
    return list(paths)


def _survivor_count(count: int) -> int:
    survivors = math.ceil(count * SURVIVING_SHARE)
    return max(1, survivors)


def _affordable_count(budget: int, runs: Sequence[Sequence[str]]) -> int:
    """The most candidates that *budget* replays suffice for, at least 1."""
    affordable = 1
    for count in range(1, MAX_CANDIDATES):
        if _max_replays(count, runs) <= budget:
            affordable = count
    return affordable


def _max_replays(count: int, runs: Sequence[Sequence[str]]) -> int:
    """The most replays that *count* candidates can take, the preset's not counted.

    That is when no two runs agree on any candidate.
    """
    replays = 0
    known = 0
    each = count
    for share in SHARES:
        files = len(_union(runs, share))
        tried = min(count, each * len(runs))
        replays += tried * (files - known)
        known = files
        each = _survivor_count(each)
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
            name = candidate.name
            makers[name] = ConfiguredPolicy(name, candidate.toml(), self.prices)
        # Files that lack the same scores are replayed together.
        groups: dict[tuple[str, ...], list[str]] = {}
        for path in files:
            names = tuple(name for name in makers if (name, path) not in self.scores)
            if names:
                groups.setdefault(names, []).append(path)
        for names, group in groups.items():
            missing = {name: makers[name] for name in names}
            self._replay(group, missing)

    def _replay(
        self,
        files: Sequence[str],
        makers: Mapping[str, PipelineMaker],
    ) -> None:
        self.replays += len(files) * len(makers)
        for file in self.evaluate(files, makers):
            if file.error:
                self.errors[file.path] = file.error
            for name in makers:
                score = Score()
                if not file.error:
                    score = self._score(file.replays[name])
                self.scores[name, file.path] = score

    def _score(self, replay: Replay) -> Score:
        use = replay.use
        cost = bill(replay.requests, self.prices).total
        return Score(
            cost,
            used=use.total,
            seen=use.visible,
            found=use.total - use.lost,
            doubtful=use.doubtful,
        )

    def total(self, name: str, files: Iterable[str]) -> Score:
        """The score over those of *files* that every pipeline could be tried on."""
        total = Score()
        for path in files:
            if path not in self.errors:
                total += self.scores[name, path]
        return total

    def ranking(
        self,
        tried: Iterable[Candidate],
        files: Sequence[str],
    ) -> list[Candidate]:
        """The best first: those that show enough by cost, the others by what they show."""

        def key(candidate: Candidate) -> tuple[bool, float, str]:
            score = self.total(candidate.name, files)
            # By name last: sets have no order, and the same call must have the same answer.
            if score.recall >= self.floor:
                return False, score.cost, candidate.name
            return True, -score.recall, candidate.name

        return sorted(tried, key=key)

    def run(
        self,
        runs: Sequence[Sequence[str]],
        tried: Sequence[Candidate],
    ) -> Tuned:
        """Halve the candidates, for each of *runs* by its own files.

        The preset stays to the end.
        """
        alive = [list(tried) for _ in runs]
        previous_share = 0.0
        for share in SHARES:
            if previous_share:
                for index, run in enumerate(runs):
                    seen = _first_share(run, previous_share)
                    alive[index] = self._survivors(alive[index], seen)
            files = _union(runs, share)
            self.try_all(files, _distinct(alive))
            previous_share = share
        preset = tried[0]
        chosen = []
        for remaining, run in zip(alive, runs, strict=True):
            ranking = self.ranking({preset, *remaining}, run)
            chosen.append(ranking[0])
        finalists = _distinct([[preset], *alive])
        return self._result(runs, chosen, finalists)

    def _result(
        self,
        runs: Sequence[Sequence[str]],
        chosen: Sequence[Candidate],
        finalists: Iterable[Candidate],
    ) -> Tuned:
        everything = runs[0]
        best = chosen[0]
        score = self.total(best.name, everything)
        without = self.total(NONE, everything)
        scored = [Scored(None, without)]
        for candidate in finalists:
            total = self.total(candidate.name, everything)
            scored.append(Scored(candidate, total))
        folds: list[HeldOut] = []
        for run, fold_best in zip(runs[1:], chosen[1:], strict=True):
            held_out = self._test(run, everything, fold_best)
            folds.append(held_out)
        replayed = [path for path in everything if path not in self.errors]
        return Tuned(
            chosen=Scored(best, score),
            tried=tuple(scored),
            folds=tuple(folds),
            reached=score.recall >= self.floor,
            replays=self.replays,
            conversations=len(replayed),
            errors=tuple(self.errors.values()),
        )

    def _survivors(
        self,
        remaining: Sequence[Candidate],
        files: Sequence[str],
    ) -> list[Candidate]:
        count = _survivor_count(len(remaining))
        return self.ranking(remaining, files)[:count]

    def _test(
        self,
        run: Sequence[str],
        everything: Sequence[str],
        chosen: Candidate,
    ) -> HeldOut:
        """The test of *chosen* on the files outside of *run*."""
        files = [path for path in everything if path not in run]
        score = self.total(chosen.name, files)
        without = self.total(NONE, files)
        return HeldOut(chosen, score, without)


def _distinct(groups: Iterable[Iterable[Candidate]]) -> list[Candidate]:
    found: dict[Candidate, None] = {}
    for group in groups:
        found.update(dict.fromkeys(group))
    return list(found)
