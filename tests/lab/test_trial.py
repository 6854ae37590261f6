"""``ctxpipe trial``, with agents whose model is played by a script."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from gateways import key
from models import MODEL
from places import ROOT
from processes import prepared_python
from recorded import NIGHTLY
from typer.testing import CliRunner, Result

from ctxpipe._cli import app
from ctxpipe.lab.trial import run_order
from ctxpipe.providers.prices import find_prices
from ctxpipe.testing import Failure, MessagesServer, Reply, RequestBody, answer_with, tool_use
from scripts.pages import blocks_of

AGENT = ROOT / "tests" / "support" / "trial_agent.py"
RUNS = 40 if NIGHTLY else 2
ARMS = ("bare", "shaped")
FACT = "the password is swordfish"
LINES = [f"line {number} says nothing of interest" for number in range(400)]

Script = Callable[[RequestBody], Reply]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of tasks: one, whose notes are long."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("\n".join([*LINES, FACT, *LINES]))
    write_tasks(tmp_path, find={})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tasks(folder: Path, **tasks: dict[str, str]):
    """Tasks that succeed by the word swordfish, but for what each has of its own."""
    lines = []
    for name, given in tasks.items():
        task = {"folder": "work", "prompt": "Find it.", "check": "grep -q swordfish answer.txt"}
        lines += [
            f"[{name}]",
            *(f"{key} = {json.dumps(one)}" for key, one in (task | given).items()),
        ]
    (folder / "tasks.toml").write_text("\n".join(lines))


def arguments(*options: object, agent: Iterable[str] | None = None) -> list[str]:
    own = [*prepared_python(), str(AGENT), MODEL, "{prompt}"]
    return ["trial", "tasks.toml", *map(str, options), "--", *(own if agent is None else agent)]


async def trial(script: Script, *options: object, agent: Iterable[str] | None = None) -> Result:
    """``ctxpipe trial`` in this process, before an API that plays *script*."""
    async with MessagesServer(script) as api:
        environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": key()}
        asked = arguments(*options, agent=agent)
        result = await to_thread.run_sync(lambda: CliRunner().invoke(app, asked, env=environment))
    print(result.stdout)
    assert [request.problems for request in api.refused] == []
    return result


def rows(path: Path = Path("trial.jsonl")) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def runs(found: Iterable[dict[str, Any]]) -> Counter[tuple[str, int, str]]:
    return Counter((row["task"], row["number"], row["arm"]) for row in found)


def figure(result: Result, name: str) -> list[str]:
    """The cells of a line of the table."""
    [line] = [line for line in result.stdout.splitlines() if line.startswith(name)]
    return re.split(r"\s{2,}", line.strip())


# The model ----------------------------------------------------------------------------------------


def says_it_at_once(body: RequestBody) -> Reply:
    return answer_with("swordfish")


def forgets(body: RequestBody) -> Reply:
    """Reads the notes and answers with what is in sight."""
    if len(body["messages"]) == 1:
        return answer_with(tool_use("read_file", {"path": "notes.txt"}))
    return answer_with("swordfish" if FACT in json.dumps(body["messages"]) else "I cannot see it.")


def reads_back(body: RequestBody) -> Reply:
    """The same, but it opens what a placeholder names."""
    sent = json.dumps(body["messages"])
    path = re.search(r"/[^\" ]+/\.ctxpipe/[^\" ]+\.md", sent)
    if len(body["messages"]) == 3 and FACT not in sent and path:
        return answer_with(tool_use("read_file", {"path": path[0]}))
    return forgets(body)


class Flaky:
    """Every third answer is wrong, in whichever arm."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _body: RequestBody) -> Reply:
        self.asked += 1
        return answer_with("sword" if self.asked % 3 == 0 else "swordfish")


# What it reports ----------------------------------------------------------------------------------


async def test_where_shaping_cannot_matter_both_arms_are_equal_to_the_cent(folder):
    result = await trial(says_it_at_once, "--runs", RUNS, "--jobs", 4)
    assert result.exit_code == 0, result.output
    assert runs(rows()) == {("find", n + 1, arm): 1 for n in range(RUNS) for arm in ARMS}
    assert figure(result, "success")[1:4] == ["1", "1", "0"]
    assert figure(result, "dollars")[3:6] == ["0", "0", "0"]
    assert {row["turns"] for row in rows()} == {1}
    assert {row["dollars"] for row in rows()} == {rows()[0]["dollars"]}
    assert rows()[0]["dollars"] > 0
    assert "too few to tell" in figure(result, "success")[-1]


async def test_an_agent_that_does_not_read_back_fails_and_that_is_told(folder):
    result = await trial(forgets, "--runs", max(RUNS, 6), "--jobs", 4)
    assert figure(result, "success")[1:4] == ["1", "0", "-1"]
    assert figure(result, "success")[-1] == "worse"
    assert figure(result, "dollars")[-1] == "better"
    assert {row["read_backs"] for row in rows()} == {0}


async def test_one_that_does_succeeds_and_its_read_backs_are_counted(folder):
    result = await trial(reads_back, "--runs", RUNS, "--jobs", 4)
    assert figure(result, "success")[1:4] == ["1", "1", "0"]
    assert {(row["arm"], row["read_backs"], row["turns"]) for row in rows()} == {
        ("bare", 0, 2),
        ("shaped", 1, 3),
    }


async def test_of_a_flaky_agent_it_says_how_many_more_runs_would_tell(folder):
    result = await trial(Flaky(), "--runs", RUNS)
    failed = Counter(row["arm"] for row in rows() if not row["success"])
    assert failed.total() == 2 * RUNS // 3
    assert re.search(r"too few to tell, \d+ more pairs would", figure(result, "success")[-1])


async def test_dollars_are_those_of_the_usage_in_the_replies(folder):
    await trial(reads_back, "--runs", 1)
    lines = (folder / "trial.jsonl.log").read_text().splitlines()
    usages = [json.loads(line) for line in lines]  # as the agent was told
    prices = find_prices(MODEL)
    assert prices is not None
    billed = sum(
        usage["input_tokens"] * prices.input + usage["output_tokens"] * prices.output
        for usage in usages
    )
    assert sum(row["dollars"] for row in rows()) == pytest.approx(billed)
    assert sum(row["turns"] for row in rows()) == len(usages) == 5


async def test_a_request_that_the_api_refuses_is_counted(folder):
    def refuse(body: RequestBody) -> Reply:
        return Failure(400, "invalid_request_error", "no")

    await trial(refuse, "--runs", 1)
    assert [(row["success"], row["refused"], row["dollars"]) for row in rows()] == [
        (False, 1, 0),
        (False, 1, 0),
    ]


async def test_each_run_has_a_fresh_copy_of_the_folder_and_leaves_nothing_there(folder):
    before = sorted(folder.rglob("*"))
    write_tasks(folder, find={"check": "test ! -e left.txt && touch left.txt"})
    await trial(says_it_at_once, "--runs", 1)
    assert [row["success"] for row in rows()] == [True, True]
    made = {folder / "trial.jsonl", folder / "trial.jsonl.log"}
    assert {*folder.rglob("*")} == {*before} | made


def test_the_seed_decides_the_order_and_the_arms_of_a_pair_follow_each_other():
    order = run_order(["one", "other"], 5, seed=1)
    assert order == run_order(["one", "other"], 5, seed=1)
    assert order != run_order(["one", "other"], 5, seed=2)
    assert len({*order}) == 20
    for first, second in zip(order[::2], order[1::2], strict=True):
        assert (first[:2], {first[2], second[2]}) == (second[:2], {*ARMS})


async def test_progress_is_a_line_a_run(folder):
    result = await trial(says_it_at_once, "--runs", 1)
    first, *_ = result.stderr.splitlines()
    assert re.fullmatch(r"ctxpipe: find, run 1, (bare|shaped): passed; turns: 1, \$0\.\d+", first)


# Stopping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_stopped_in_the_middle_and_started_again_no_run_counts_twice(folder, number):
    total = RUNS + 2
    async with MessagesServer(reads_back) as api:
        os.environ.update(ANTHROPIC_BASE_URL=api.url, ANTHROPIC_API_KEY=key())
        command = [*prepared_python(), "-m", "ctxpipe", *arguments("--runs", total, "--jobs", 2)]
        started = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert started.stderr is not None
        for _ in range(total):
            await started.stderr.readline()
        started.send_signal(number)
        output, _ = await started.communicate()
    before = rows()
    assert total <= len(before) < 2 * total
    is_interrupted = number == signal.SIGINT
    assert started.returncode == (130 if is_interrupted else -signal.SIGKILL)
    assert (b"success" in output) == is_interrupted

    result = await trial(reads_back, "--runs", total, "--jobs", 2)
    assert result.exit_code == 0, result.output
    assert rows()[: len(before)] == before
    assert runs(rows()) == {("find", n + 1, arm): 1 for n in range(total) for arm in ARMS}


async def test_a_budget_stops_it_and_the_rows_so_far_are_reported(folder):
    await trial(says_it_at_once, "--runs", 1)
    cost = rows()[0]["dollars"]
    result = await trial(says_it_at_once, "--runs", 5, "--budget", 3.5 * cost)
    assert result.exit_code == 0
    assert len(rows()) == 4
    assert "again: 6\n" in result.stderr
    assert figure(result, "success")[1:3] == ["1", "1"]


async def test_a_budget_cannot_be_kept_where_no_price_is_known(folder):
    agent = [*prepared_python(), str(AGENT), "a-model-of-mine", "{prompt}"]
    result = await trial(says_it_at_once, "--budget", 5, agent=agent)
    assert result.exit_code == 2
    assert "the price of a turn is not known" in result.stderr


async def test_an_agent_that_takes_too_long_is_ended_with_what_it_has_started(folder):
    agent = ["/bin/sh", "-c", f"sleep 600 & echo $! > {folder}/pid; wait", "{prompt}"]
    await trial(says_it_at_once, "--limit", 1, agent=agent)
    pid = (folder / "pid").read_text().strip()
    found = await to_thread.run_sync(
        lambda: subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, check=False)
    )
    assert found.stdout[:1] in {b"", b"Z"}  # a zombie where nobody asks for its status


PAGE = ROOT / "docs" / "laboratory.md"


async def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    tasks, command = (
        block.code
        for block in blocks_of(PAGE)
        if "ctxpipe trial" in block.code or "check =" in block.code
    )
    (tmp_path / "tasks.toml").write_text(tasks)
    (tmp_path / "shop").mkdir()
    test = "import unittest\nclass T(unittest.TestCase):\n    def test_totals(self): ..."
    (tmp_path / "shop" / "test_totals.py").write_text(test)
    agent = tmp_path / "claude"  # it is asked with the options of the real one
    own = shlex.join([*prepared_python(), str(AGENT), MODEL])
    agent.write_text(f'#!/bin/sh\nexec {own} "$2"\n')
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.removeprefix("$ ctxpipe trial "))
    words[words.index("--runs") + 1] = "1"
    [name, *options] = words[: words.index("--")]
    assert name == "tasks.toml"
    result = await trial(says_it_at_once, *options, agent=words[words.index("--") + 1 :])
    assert result.exit_code == 0, result.output
    assert [row["success"] for row in rows()] == [True, True]


# What is wrong ------------------------------------------------------------------------------------


async def test_an_agent_that_goes_past_the_gateway_makes_no_failure_of_it(folder):
    result = await trial(says_it_at_once, agent=[sys.executable, "-c", "print(5)", "{prompt}"])
    assert result.exit_code == 1
    assert "not valid: no turn went through the gateway; python" in result.stderr
    assert "ANTHROPIC_BASE_URL" in result.stderr
    assert (folder / "trial.jsonl.log").read_text().startswith("5\n")
    [row] = rows()
    assert row["invalid"]


async def test_a_run_that_was_not_valid_counts_as_nothing_and_is_run_again(folder):
    mark = folder / "mark"
    own = shlex.join([*prepared_python(), str(AGENT), MODEL, "x"])
    script = f"if [ -e {mark} ]; then rm {mark}; else {own}; fi"
    agent = ["/bin/sh", "-c", script, "{prompt}"]
    await trial(says_it_at_once, "--runs", 1, agent=agent)
    mark.touch()
    result = await trial(says_it_at_once, "--runs", 2, agent=agent)
    assert "again: 1\n" in result.stderr
    result = await trial(says_it_at_once, "--runs", 2, agent=agent)
    assert figure(result, "success")[1:3] == ["1", "1"]
    assert sum(bool(row["invalid"]) for row in rows()) == 1
    assert runs(row for row in rows() if not row["invalid"]).total() == 4


async def test_rows_of_another_agent_are_no_rows_of_this_one(folder):
    await trial(says_it_at_once, "--runs", 1)
    result = await trial(says_it_at_once, "--runs", 1, "--preset", "lean")
    assert result.exit_code == 2
    assert "--rows" in result.stderr


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (None, "tasks.toml cannot be read: No such file or directory"),
        ("one = [", "cannot be read"),
        ("prompt = 'x'", "prompt is x"),
        (
            "[one]\nfolder = 'work'\nprompt = 'x'",
            "give a table with the texts folder, prompt, check",
        ),
        ("[one]\nfolder = 'work'\nprompt = 'x'\ncheck = 'true'\nchek = 'x'", "'chek'"),
        (
            "[one]\nfolder = 'work'\nprompt = 3\ncheck = 'true'",
            "give a table with the texts folder, prompt, check",
        ),
        ("[one]\nfolder = 'gone'\nprompt = 'x'\ncheck = 'true'", "which does not exist"),
    ],
)
def test_what_is_wrong_with_the_tasks_is_said_in_one_sentence(folder, tasks, said):
    path = folder / "tasks.toml"
    path.unlink()
    if tasks is not None:
        path.write_text(tasks)
    result = CliRunner().invoke(app, arguments())
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (["no-such-agent", "{prompt}"], "no-such-agent cannot be run: no program on the PATH"),
        (["claude"], "no argument of the agent"),
    ],
)
def test_what_is_wrong_with_the_agent_is_said(folder, agent, said):
    result = CliRunner().invoke(app, arguments(agent=agent))
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (folder / "trial.jsonl").exists() or rows() == []


def test_what_is_no_row_is_named(folder):
    (folder / "trial.jsonl").write_text('{"task": "find"}\n')
    result = CliRunner().invoke(app, arguments())
    assert result.exit_code == 2
    assert "trial.jsonl, line 1" in result.stderr
