"""Tuning over scores that are written down, and once over real replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ctxpipe.errors import SettingsError
from ctxpipe.lab.batch import FileReplay, replay_files
from ctxpipe.lab.config import ConfiguredPolicy, read_config
from ctxpipe.lab.costs import CacheUse, Request
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.references import Use
from ctxpipe.lab.replay import PipelineMaker, Replay, Step
from ctxpipe.lab.tune import LEAN, Candidate, Score, Scored, candidates, front, least_budget, tune
from ctxpipe.lab.workbench import Workbench
from ctxpipe.prices import Prices
from ctxpipe.stages.collapse import Collapse
from ctxpipe.stages.offload import BatchOffload

PRICES = Prices.relative()
FILES = [f"{n}.jsonl" for n in range(9)]


class Written:
    """Conversations whose costs and recalls follow a rule on the pipeline's settings."""

    def __init__(
        self, rule: Callable[[int, str], tuple[float, float]], broken: Sequence[str] = ()
    ) -> None:
        self.rule = rule
        self.broken = broken
        self.seen: Counter[tuple[str, str]] = Counter()

    def __call__(
        self, paths: Sequence[str], makers: Mapping[str, PipelineMaker]
    ) -> list[FileReplay]:
        self.seen.update((path, name) for path in paths for name in makers)
        return [self._file(path, makers) for path in paths]

    def _file(self, path: str, makers: Mapping[str, PipelineMaker]) -> FileReplay:
        if path in self.broken:
            return FileReplay(path, error=f"{path} is empty")
        return FileReplay(path, {name: self._replay(make, path) for name, make in makers.items()})

    def _replay(self, make: PipelineMaker, path: str) -> Replay:
        cost, recall = 100.0, 1.0
        stages = make(Workbench()).stages
        old = [stage for stage in stages if isinstance(stage, BatchOffload | Collapse)]
        if old:
            cost, recall = self.rule(old[0].keep_recent, path)
        request = Request(0, "reply", CacheUse(0, 0, cost), 0.0)
        return Replay(
            path, (Step(0, cost, 1, (request,), (), Use(visible=recall, lost=1 - recall)),)
        )


def dearer_with_more(keep: int, path: str) -> tuple[float, float]:
    return 10.0 * keep, min(1.0, 0.80 + keep / 50)  # 2: .84, 3: .86, 5: .90, 8: .96, 12: 1.0


def test_the_preset_in_toml_is_the_preset():
    bench = Workbench()
    ours = ConfiguredPolicy("preset", Candidate().toml(), PRICES)(bench)
    preset = Policy("coding", PRICES)(bench)
    assert (ours.budget.window, ours.budget.trigger) == (
        preset.budget.window,
        preset.budget.trigger,
    )
    assert ours.stages[:2] == preset.stages[:2]
    assert list(map(type, ours.stages)) == list(map(type, preset.stages))


def test_the_lean_preset_in_toml_is_the_lean_preset():
    bench = Workbench()
    ours = ConfiguredPolicy("lean", LEAN.toml(), PRICES)(bench)
    preset = Policy("coding-lean", PRICES)(bench)
    assert ours.stages[:2] == preset.stages[:2]
    assert list(map(type, ours.stages)) == list(map(type, preset.stages))


def test_what_is_chosen_is_read_back_by_config(tmp_path: Path):
    kinds = set()
    for number, candidate in enumerate(candidates(30)):
        path = tmp_path / f"{number}.toml"
        path.write_text(candidate.toml(), "utf-8")
        [stage] = [
            stage
            for stage in read_config(path, PRICES)(Workbench()).stages
            if isinstance(stage, BatchOffload | Collapse)
        ]
        kinds.add(type(stage))
        assert isinstance(stage, Collapse) == candidate.collapse
        assert stage.keep_recent == candidate.keep_recent
        if isinstance(stage, Collapse):
            own = (candidate.alpha, candidate.min_value, candidate.text_chars)
            assert (stage.alpha, stage.min_value, stage.text_chars) == own
        else:
            value = stage.excerpt.min_value if stage.excerpt else None
            assert (stage.min_chars, value) == (candidate.min_chars, candidate.min_value)
    assert kinds == {BatchOffload, Collapse}


def test_candidates_are_different_begin_with_the_presets_and_try_each_value_about_as_often():
    found = candidates(200)
    assert len(set(found)) == 200
    assert found[:2] == [Candidate(), LEAN]
    counts = Counter(candidate.keep_recent for candidate in found[2:])
    assert set(counts) == {2, 3, 5, 8, 12}
    assert max(counts.values()) <= 2 * min(counts.values())
    assert 60 <= sum(candidate.collapse for candidate in found) <= 140


def test_candidates_have_different_names_and_differ_by_no_setting_of_a_stage_they_lack():
    found = candidates(300)
    assert len({candidate.name for candidate in found}) == 300
    assert len({candidate.toml() for candidate in found}) == 300


def test_the_cheapest_that_shows_enough_is_chosen():
    tuned = tune(FILES, Written(dearer_with_more), prices=PRICES, recall=0.95, budget=400)
    assert tuned.chosen.candidate
    assert tuned.chosen.candidate.keep_recent == 8
    assert tuned.reached


def test_where_none_shows_enough_the_one_that_shows_most_is_chosen():
    tuned = tune(
        FILES,
        Written(lambda keep, _: (keep, 0.5 + keep / 100)),
        prices=PRICES,
        recall=0.95,
        budget=400,
    )
    assert tuned.chosen.candidate
    assert tuned.chosen.candidate.keep_recent == 12
    assert not tuned.reached


def test_no_conversation_is_replayed_twice_and_the_budget_holds():
    for budget in (100, 150, 400):
        written = Written(dearer_with_more)
        tuned = tune(FILES, written, prices=PRICES, budget=budget)
        assert set(written.seen.values()) == {1}
        assert tuned.replays == written.seen.total() <= budget


def test_each_fold_is_tested_on_conversations_it_did_not_choose_by():
    # Keeping two calls is free on every conversation but one, where it shows nothing.
    written = Written(
        lambda keep, path: (
            1.0 if keep == 2 else 50.0,
            0.0 if keep == 2 and path == "4.jsonl" else 1.0,
        )
    )
    tuned = tune(FILES, written, prices=PRICES, recall=0.95, folds=9, budget=2000)
    assert len(tuned.folds) == 9
    missed = [fold for fold in tuned.folds if fold.score.recall == 0.0]
    assert [fold.chosen.keep_recent for fold in missed] == [2]
    assert sum(fold.without.cost for fold in tuned.folds) == 900


def test_the_same_seed_finds_the_same_and_the_order_of_files_is_no_matter():
    first = tune(FILES, Written(dearer_with_more), prices=PRICES, budget=200, seed=3)
    again = tune(FILES[::-1], Written(dearer_with_more), prices=PRICES, budget=200, seed=3)
    assert first == again


def test_a_broken_file_is_told_and_left_out():
    tuned = tune(FILES, Written(dearer_with_more, broken=["3.jsonl"]), prices=PRICES, budget=400)
    assert tuned.errors == ("3.jsonl is empty",)
    assert tuned.conversations == 8


def test_one_conversation_can_be_tuned_to_but_not_tested_on():
    tuned = tune(FILES[:1], Written(dearer_with_more), prices=PRICES, budget=40)
    assert tuned.folds == ()
    assert tuned.chosen.candidate


def test_a_budget_too_small_to_learn_anything_is_refused_with_the_least_that_is_not():
    least = least_budget(9, 3)
    with pytest.raises(SettingsError, match=f"{least} are the least"):
        tune(FILES, Written(dearer_with_more), prices=PRICES, budget=least - 1)
    assert tune(FILES, Written(dearer_with_more), prices=PRICES, budget=least).replays <= least


def test_nothing_but_broken_files_is_a_misuse():
    with pytest.raises(SettingsError, match=r"nothing to tune by: .* is empty"):
        tune(FILES, Written(dearer_with_more, broken=FILES), prices=PRICES)


def test_a_recall_above_one_is_refused():
    with pytest.raises(SettingsError, match=r"recall is 1\.5"):
        tune(FILES, Written(dearer_with_more), prices=PRICES, recall=1.5)


def test_the_front_holds_what_no_other_beats_in_both():
    cheap, middle, worse, dear = (
        Scored(Candidate(keep_recent=keep), Score(cost, 1.0, seen, seen))
        for keep, cost, seen in ((1, 1.0, 0.5), (2, 2.0, 0.8), (3, 3.0, 0.7), (4, 4.0, 0.9))
    )
    assert front([dear, worse, middle, cheap]) == [cheap, middle, dear]


@pytest.mark.shared
def test_real_conversations_get_cheaper_by_tuning(shared: Path):
    paths = [
        str(shared / "transcripts" / f"{name}.jsonl")
        for name in ("mini-django-11564", "sweagent-sphinx-11445")
    ]

    def evaluate(files: Sequence[str], makers: Mapping[str, PipelineMaker]) -> list[FileReplay]:
        return replay_files(files, makers, processes=1)

    tuned = tune(paths, evaluate, prices=PRICES, recall=0.8, folds=2, budget=20)
    without = next(one.score.cost for one in tuned.tried if one.candidate is None)
    assert tuned.chosen.score.cost < without
    assert tuned.chosen.score.recall >= 0.8
