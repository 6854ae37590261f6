"""Worker processes: what they answer, how they are stopped, and that none outlives its parent."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from jobs import die, fail_after_one, hoard, measure, spin, spin_in_c
from places import SUPPORT
from processes import new_python

from ctxpipe._threads import processes
from ctxpipe._threads.processes import Answers, in_process
from ctxpipe._threads.worker import READY, Job, serve


@pytest.fixture(autouse=True)
def importable_by_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(SUPPORT))


async def run(work: processes.Work, *texts: str, seconds: float = 10.0) -> Answers:
    return await in_process(work, texts, seconds=seconds, memory_bytes=2**30)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for_end(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


# Answers ------------------------------------------------------------------------------------------


async def test_texts_arrive_whole_whatever_their_length_and_characters(
    monkeypatch,
):
    texts = ["", "\ud800 é \u2028\n\0", "漢" * 3_000_000]

    answers = await run(measure, *texts)

    assert answers == Answers([[len(text), text[-3:]] for text in texts], "done")


async def test_a_worker_that_fails_leaves_what_it_answered_before():
    assert await run(fail_after_one) == Answers(["one"], "failed")


@pytest.mark.parametrize("work", [spin_in_c, spin])
async def test_a_worker_is_stopped_when_its_time_is_over(work: processes.Work):
    assert (await run(work, seconds=0.2)).end == "late"


@pytest.mark.parametrize("work", [hoard, die])
async def test_a_worker_that_takes_all_memory_or_crashes_has_failed(work: processes.Work):
    assert await run(work) == Answers([], "failed")


@pytest.mark.parametrize(
    "script", [None, "exit 3", "echo hello", "echo hello; exec sleep 60", "exec cat"]
)
async def test_where_no_worker_starts_that_is_said(script: str | None, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_START_SECONDS", 0.3)
    executable = tmp_path / "python"
    if script:
        executable.write_text(f"#!/bin/sh\n{script}\n")
        executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))

    assert await run(measure, "x" * 10**6, seconds=0.1) == Answers([], "unavailable")


async def test_many_at_once_answer_each_for_itself():
    answers: dict[int, Answers] = {}

    async def ask(number: int):
        answers[number] = await run(measure, "x" * number)

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(ask, number)

    assert {number: each.items for number, each in answers.items()} == {
        n: [[n, "x" * min(n, 3)]] for n in range(6)
    }


def test_the_job_is_read_before_it_is_begun_and_answered_line_by_line():
    job = Job("jobs", "measure", 2, 1.0, 2**30, os.getpid())
    given = [pickle.dumps(part) for part in ("ab", "c", None, None)]
    answers = io.BytesIO()

    serve(job, io.BytesIO(b"".join(given)), answers)

    assert answers.getvalue() == READY + b'\n[3, "abc"]\n[0, ""]\n'


def test_a_worker_imports_nothing_that_its_job_does_not_need():
    heavy = (
        "{'anyio', 'asyncio', 'anthropic', 'tiktoken', 'opentelemetry', 'tenacity', 'regex', "
        "'ast_grep_py'}"
    )
    modules = "ctxpipe._threads.worker, ctxpipe.folding.definitions, ctxpipe.stages.reading.search"

    assert new_python(f"import sys, {modules}; print({heavy} & sys.modules.keys())") == "set()"


# Nothing is left behind ---------------------------------------------------------------------------


@pytest.mark.parametrize("work", [spin, spin_in_c])
async def test_a_cancelled_call_leaves_no_process(work: processes.Work, tmp_path):
    file = tmp_path / "pid"
    async with anyio.create_task_group() as group:
        group.start_soon(run, work, str(file))
        while not (file.exists() and file.read_text()):  # noqa: ASYNC110 - another process writes it
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()

    with pytest.raises(ProcessLookupError):  # not even a zombie
        os.kill(int(file.read_text()), 0)


@pytest.mark.parametrize("work", [fail_after_one, die])
async def test_a_worker_that_failed_leaves_no_zombie(work: processes.Work, tmp_path):
    await run(work, str(tmp_path / "pid"))

    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


PARENT = """
import sys, anyio, threading
sys.path.insert(0, {tests!r})
import jobs
from ctxpipe._threads.processes import in_process

async def main():
    await in_process(jobs.{work}, [sys.argv[1]], seconds={seconds}, memory_bytes=2**30)

{start}
"""
STARTS = {
    "a loop": "anyio.run(main)",
    "a loop in a thread": (
        "thread = threading.Thread(target=anyio.run, args=(main,)); thread.start(); thread.join()"
    ),
    "a loop after a fork": "import os; pid = os.fork(); pid and os._exit(0); anyio.run(main)",
}


@pytest.mark.parametrize("work", ["spin", "spin_in_c"])
@pytest.mark.parametrize("start", STARTS)
def test_a_worker_ends_when_its_parent_is_killed(work, start: str, tmp_path):
    file = tmp_path / "pid"
    script = PARENT.format(tests=str(SUPPORT), work=work, seconds=60, start=STARTS[start])
    with subprocess.Popen([sys.executable, "-c", script, str(file)]):
        while not (file.exists() and file.read_text()):
            time.sleep(0.02)
        worker = int(file.read_text())
        parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)

        assert wait_for_end(worker, 10)


def test_a_worker_that_hears_of_no_death_ends_by_its_own_alarm(tmp_path):
    """As on systems that do not tell a process of its parent's death, while C code runs."""
    file = tmp_path / "pid"
    job = Job("jobs", "spin_in_c", 1, 1.0, 2**30, os.getpid())
    command = [
        sys.executable,
        "-c",
        "import ctxpipe._threads.worker as w; w._ask_for_end_with_parent = lambda: None; w.main()",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    given = pickle.dumps(job) + pickle.dumps(str(file)) + pickle.dumps(None)
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert worker.stdin is not None
    worker.stdin.write(given)
    worker.stdin.flush()

    assert worker.wait(30) in (-signal.SIGALRM, -signal.SIGKILL)
    worker.communicate()


def test_a_program_that_ends_in_the_middle_leaves_no_worker(tmp_path):
    file = tmp_path / "pid"
    start = f"""
async def leave():
    async with anyio.create_task_group() as group:
        group.start_soon(main)
        while not (os.path.exists({str(file)!r}) and open({str(file)!r}).read()):
            await anyio.sleep(0.02)
        os._exit(0)
import os
anyio.run(leave)
"""
    script = PARENT.format(tests=str(SUPPORT), work="spin_in_c", seconds=60, start=start)
    subprocess.run([sys.executable, "-c", script, str(file)], check=True, timeout=60)

    assert wait_for_end(int(file.read_text()), 10)
