"""The programs of the page on the laboratory that replay many files: on Dask, Ray and Spark.

CTXPIPE_ENGINES names a Python that has Ray and Spark; without it only Dask's program is run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from recorded import NIGHTLY, lines

from ctxpipe.lab.batch import replay_file
from ctxpipe.lab.policies import policies
from ctxpipe.lab.report import figures
from ctxpipe.providers.prices import Prices
from scripts.pages import blocks_of

PAGE = ROOT / "docs" / "laboratory.md"
SECONDS = 120
PRINTED = """
import json
print(json.dumps([[path, error, [one.cost for one in found]] for path, error, found in rows]))
"""


def program(beginning: str) -> str:
    """The block of the page that begins with this line."""
    [found] = [block.code for block in blocks_of(PAGE) if block.code.startswith(beginning)]
    return found


ROW = program("from pathlib import Path\n\nfrom ctxpipe.lab.batch import replay_file")


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Two recordings, and one that cannot be read."""
    written = []
    for number in range(2):
        file = tmp_path / f"{number}.jsonl"
        messages = [
            {"role": "user", "content": "Go. " * (number + 1)},
            {"role": "assistant", "content": "Done."},
        ]
        file.write_text(lines(*messages))
        written.append(str(file))
    broken = tmp_path / "broken.jsonl"
    broken.write_text("Hello.")
    return [*written, str(broken)]


def python_with(module: str) -> str:
    """A Python that has *module*; without one the test is skipped."""
    named = os.environ.get("CTXPIPE_ENGINES")
    if named:
        return named
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: CTXPIPE_ENGINES names a Python that has it")
    return sys.executable


def run(python: str, code: str, paths: list[str]) -> list[Any]:
    """What *code*, a program of the page, has in its rows for *paths*."""
    script = f"{ROW}\npaths = {paths!r}\n{code}\n{PRINTED}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python}
    done = subprocess.run(
        [python, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return rows


def expected(paths: list[str]) -> list[object]:
    """The rows of the same files, replayed here."""
    makers = policies(["none", "coding"])
    files = [replay_file(path, makers) for path in paths]
    prices = Prices.relative()
    return [
        [file.path, file.error, [one.cost for one in figures([file.replays], prices)]]
        for file in files
    ]


@contextmanager
def scheduler() -> Iterator[str]:
    """The address of a Dask scheduler with one worker."""
    distributed: Any = importlib.import_module("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.skipif(not NIGHTLY, reason="it starts three processes, in the nightly profile")
def test_the_program_for_dask_gives_the_rows_of_each_file(paths: list[str]):
    with scheduler() as address:
        code = program("from dask.distributed").replace("tcp://scheduler:8786", address)
        rows = run(sys.executable, code, paths)

    assert rows == expected(paths)
    assert [bool(error) for _, error, _ in rows] == [False, False, True]


@pytest.mark.parametrize(
    ("module", "beginning"), [("ray", "import ray"), ("pyspark", "from pyspark.sql")]
)
def test_the_programs_for_ray_and_spark_give_the_rows_of_each_file(
    module: str, beginning: str, paths: list[str]
):
    rows = run(python_with(module), program(beginning), paths)

    assert rows == expected(paths)


def test_a_replay_of_a_file_is_a_function_of_its_content_alone(paths: list[str], monkeypatch):
    makers = policies(["none", "coding"])
    monkeypatch.chdir(Path(paths[0]).parent)
    before = sorted(Path.cwd().iterdir())

    by_path = replay_file(paths[1], makers)
    by_content = replay_file(paths[1], makers, raw=Path(paths[1]).read_bytes())

    assert by_path == by_content == replay_file(paths[1], makers)
    assert sorted(Path.cwd().iterdir()) == before
    assert pickle.loads(pickle.dumps(by_path)) == by_path  # noqa: S301
    assert pickle.loads(pickle.dumps(replay_file)) is replay_file  # noqa: S301
