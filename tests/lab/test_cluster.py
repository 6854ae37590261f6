"""A real Dask cluster of two worker processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from histories import assistant, conversation, step, user

from ctxpipe.errors import SettingsError
from ctxpipe.lab.batch import replay_files
from ctxpipe.lab.cluster import cluster
from ctxpipe.lab.policies import policies

distributed = pytest.importorskip(
    "distributed", reason="distributed, of the extra dask, is not installed"
)

MAKERS = policies(["none", "coding"])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local:
        yield local.scheduler_address


def written(folder: Path, name: str, words: str = "made") -> str:
    loop = [step(f"t{n}", "bash", {"command": "make"}, f"{words} {n}\n" * 30) for n in range(4)]
    history = conversation(user("Go."), *loop, assistant("Done."))
    path = folder / name
    path.write_text("\n".join(map(json.dumps, history)), "utf-8")
    return str(path)


def test_a_cluster_finds_what_one_process_does(address: str, tmp_path: Path):
    paths = [written(tmp_path, f"{n}.jsonl") for n in range(5)]
    with cluster(address) as hands:
        assert hands.at_once == 3
        done = replay_files(paths, MAKERS, executor=hands)
    assert done == replay_files(paths, MAKERS, processes=1)


def test_a_broken_file_stops_no_other_on_a_cluster(address: str, tmp_path: Path):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    paths = [str(empty), str(tmp_path / "none.jsonl"), written(tmp_path, "a.jsonl")]
    with cluster(address) as hands:
        done = replay_files(paths, MAKERS, executor=hands)
    assert [bool(file.error) for file in done] == [True, True, False]


@pytest.mark.filterwarnings("ignore:Sending large graph:UserWarning")
def test_a_long_file_reaches_its_worker_whole(address: str, tmp_path: Path):
    path = written(tmp_path, "long.jsonl", "a line of a log that goes on and on " * 500)
    with cluster(address) as hands:
        (done,) = replay_files([path], policies(["none"]), executor=hands)
    assert done == replay_files([path], policies(["none"]), processes=1)[0]


@pytest.mark.parametrize("wrong", ["nowhere", "foo://bar:1", "tcp://127.0.0.1:x"])
def test_an_address_that_is_none_is_a_misuse(wrong: str):
    with (
        pytest.raises(SettingsError, match=f"no Dask scheduler answers at {wrong}"),
        cluster(wrong),
    ):
        pytest.fail("there is no such cluster")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SettingsError, match=r"pip install 'ctxpipe\[dask\]'"), ExitStack() as stack:
        stack.enter_context(cluster("tcp://127.0.0.1:8786"))
