from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest
from histories import assistant, conversation, step, user
from places import ROOT
from recorded import NIGHTLY

from ctxpipe._threads.threads import is_alone
from ctxpipe.errors import SettingsError
from ctxpipe.lab.batch import Workers, cluster, replay_files, with_subagents, workers
from ctxpipe.lab.narration import narrate
from ctxpipe.lab.policies import policies
from ctxpipe.lab.workbench import Workbench
from ctxpipe.pipeline import ContextPipeline

WITHOUT_DASK = "distributed, of the extra dask, is not installed"
MAKERS = policies(["none", "coding"])


@dataclass(frozen=True, slots=True)
class Dying:
    """A pipeline that takes its process with it."""

    def __call__(self, _bench: Workbench) -> ContextPipeline:
        os._exit(9)


@dataclass(frozen=True, slots=True)
class Failing:
    """A pipeline that cannot be made."""

    def __call__(self, _bench: Workbench) -> ContextPipeline:
        raise RuntimeError("out of luck")


def written(folder: Path, name: str, steps: int = 4) -> str:
    loop = [
        step(f"t{n}", "bash", {"command": f"make part_{n}"}, f"part_{n} is made\n" * 30)
        for n in range(steps)
    ]
    history = conversation(user("Make all parts."), *loop, assistant("Done."))
    path = folder / name
    path.write_text("\n".join(map(json.dumps, history)), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    """Two processes, started once for all that is only asked of them."""
    with workers(2) as hands:
        yield hands


def test_results_have_the_order_of_the_files(two, tmp_path):
    paths = [written(tmp_path, f"{n}.jsonl", steps) for n, steps in enumerate((1, 5, 3))]
    done = replay_files(paths, MAKERS, executor=two)
    assert [file.path for file in done] == paths
    assert [file.calls for file in done] == [2, 6, 4]


def test_a_file_is_replayed_without_a_thread(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing else waits for the event loop")

    monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)
    [done] = replay_files([written(tmp_path, "long.jsonl", 300)], MAKERS)
    assert not done.error
    assert not is_alone.get()


def test_several_processes_give_the_same_results_as_one(two, tmp_path):
    paths = [written(tmp_path, f"{n}.jsonl", n) for n in (2, 3, 4)]
    assert replay_files(paths, MAKERS, executor=two) == replay_files(paths, MAKERS)


def test_a_file_that_cannot_be_read_does_not_stop_the_others(two, tmp_path):
    paths = [str(tmp_path / "none.jsonl"), written(tmp_path, "a.jsonl")]
    for executor in (None, two):
        broken, sound = replay_files(paths, MAKERS, executor=executor)
        assert "No such file" in broken.error
        assert not sound.error


def test_far_workers_get_the_contents_and_a_missing_file_does_not_stop_the_others(two, tmp_path):
    missing = [str(tmp_path / f"none-{n}.jsonl") for n in range(5)]
    paths = [*missing, written(tmp_path, "a.jsonl")]
    done = replay_files(paths, MAKERS, executor=Workers(two.pool, 2, far=True))
    assert [bool(file.error) for file in done] == [True] * 5 + [False]


def test_an_error_of_a_pipeline_is_reported_as_that_of_the_file(tmp_path):
    (file,) = replay_files([written(tmp_path, "a.jsonl")], {"failing": Failing()})
    assert file.error.endswith("a.jsonl could not be replayed: RuntimeError: out of luck")


def test_the_death_of_a_worker_is_reported_as_an_error_of_the_file(tmp_path):
    paths = [written(tmp_path, f"{n}.jsonl") for n in range(4)]
    with workers(2) as hands:
        done = replay_files(paths, {"dying": Dying()}, executor=hands)
    assert all("a worker process died" in file.error for file in done)


def test_the_subagents_of_a_file_are_replayed_with_it():
    path = str(ROOT / "tests/lab/readers/recordings/copilot-subagent.jsonl")
    [file] = replay_files([path], MAKERS, reporter=partial(narrate, prices=None))

    main, subagent = with_subagents([file])
    assert (main.path, subagent.path) == (path, f"{path}#1")
    assert (main.calls, subagent.calls) == (2, 2)
    assert all(set(each.replays) == {"none", "coding"} for each in (main, subagent))
    assert main.report is not None
    assert subagent.report is not None
    assert (main.report.agent, subagent.report.agent) == ("", "general-purpose")


def test_progress_is_called_once_for_each_file(two, tmp_path):
    paths = [
        written(tmp_path, "a.jsonl"),
        written(tmp_path, "b.jsonl"),
        str(tmp_path / "none.jsonl"),
    ]
    heard: list[str] = []
    replay_files(
        [*paths, paths[0]], MAKERS, executor=two, progress=lambda file: heard.append(file.path)
    )
    assert sorted(heard) == sorted(paths)


# Pages --------------------------------------------------------------------------------------------


def test_a_report_is_returned_from_another_process_if_a_page_is_requested(two, tmp_path):
    paths = [written(tmp_path, "a.jsonl"), written(tmp_path, "b.jsonl")]
    done = replay_files(paths, MAKERS, reporter=narrate, executor=two)
    assert [file.report and file.report.title for file in done] == ["a.jsonl", "b.jsonl"]
    assert all(file.report and len(file.report.labels) == 5 for file in done)


# On a real Dask cluster of two worker processes ---------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not NIGHTLY:
        pytest.skip("it starts a cluster, in the nightly profile")
    distributed = pytest.importorskip(
        "distributed", reason="distributed, of the extra dask, is not installed"
    )
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local:
        yield local.scheduler_address


@pytest.mark.filterwarnings("ignore:Sending large graph:UserWarning")
def test_a_cluster_gives_the_same_results_as_one_process_even_for_long_files(address, tmp_path):
    paths = [written(tmp_path, f"{n}.jsonl", 1 + 100 * (n == 4)) for n in range(5)]
    makers = policies(["none"])
    with cluster(address) as hands:
        assert hands.at_once == 3
        done = replay_files(paths, makers, executor=hands)
    assert done == replay_files(paths, makers)


def test_a_broken_file_does_not_stop_the_others_on_a_cluster(address, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    paths = [str(empty), str(tmp_path / "none.jsonl"), written(tmp_path, "a.jsonl")]
    with cluster(address) as hands:
        done = replay_files(paths, MAKERS, executor=hands)
    assert [bool(file.error) for file in done] == [True, True, False]


@pytest.mark.parametrize("wrong", ["nowhere", "foo://bar:1", "tcp://127.0.0.1:x"])
def test_an_invalid_address_of_a_cluster_is_refused(wrong):
    pytest.importorskip("distributed", reason=WITHOUT_DASK)
    with (
        pytest.raises(SettingsError, match=f"no Dask scheduler answers at {wrong}"),
        cluster(wrong),
    ):
        pytest.fail("there is no such cluster")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SettingsError, match=r"pip install 'ctxpipe\[dask\]'"), cluster("x"):
        pytest.fail("there is no such cluster")
