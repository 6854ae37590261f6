"""The command ``ctxpipe trial``: whether shaping its context hurts or helps an agent."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..errors import CtxpipeError, SettingsError
from ..messages import tool_calls
from ..placeholders.names import content_hash
from ..providers.agent_tools import READ_BACK_TOOLS
from .commands import Preset, find_client, open_serving, serve, start
from .comparison import BARE, SHAPED, Row, Run, table
from .settings import Settings

if TYPE_CHECKING:
    from .serving import Serving

ROOT = ".ctxpipe"
READING = (f"{ROOT}/", *READ_BACK_TOOLS)
"""What a call names that opens what has left a context."""
PROMPT = "{prompt}"


def trial(
    file: Annotated[
        Path,
        typer.Argument(help="A TOML file: a table for each task, with folder, prompt and check."),
    ],
    command: Annotated[
        list[str],
        typer.Argument(
            help="The agent and its arguments, after --; {prompt} in them is the task's prompt.",
            metavar="-- AGENT",
        ),
    ],
    runs: Annotated[int, typer.Option(help="Runs of each task in each arm.", min=1)] = 10,
    jobs: Annotated[int, typer.Option(help="Runs at the same time.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of the order of the runs.")] = 0,
    budget: Annotated[
        float,
        typer.Option(help="Dollars: when all runs together have cost it, no other begins."),
    ] = math.inf,
    rows: Annotated[
        Path, typer.Option(help="The file of rows, one a run; those that it has are not run again.")
    ] = Path("trial.jsonl"),
    limit: Annotated[
        float, typer.Option(help="Seconds after which an agent, or a check, is ended.")
    ] = 3600,
    preset: Preset = "coding",
) -> None:
    """Try whether shaping hurts or helps an agent of yours: ctxpipe trial tasks.toml -- AGENT.

    Each task is run in two arms, bare and shaped, each time in a fresh copy of its folder, where
    its check, a shell command, then ends with status 0, or the run has failed. Both arms go through
    a gateway, of which the agent is told as by wrap; in the bare one it sends every request as it
    came. Dollars are by the usage that the API reports. At the end a table says what differs, and
    where the runs are too few to tell. Needs the extra gateway.
    """
    tasks = read_tasks(file)
    if not any(PROMPT in word for word in command):
        raise SettingsError(f"no argument of the agent has {PROMPT}, where the task's prompt goes")
    asked = content_hash(repr((command, preset, tasks)), 16)
    done = read_rows(rows, asked)
    program = os.path.abspath(shutil.which(command[0]) or command[0])  # they run elsewhere
    made = Trial([program, *command[1:]], preset, limit, tasks, asked, rows, done, budget)
    order = [run for run in run_order(tasks, runs, seed) if run not in done]
    try:
        made.play(order, jobs)
    finally:
        if done:
            print(*table(done), sep="\n")
    left = sum(run not in done for run in order)
    typer.echo(f"ctxpipe: runs left, for when it is started again: {left}", err=True)


# What is to be run --------------------------------------------------------------------------------


class Task(NamedTuple):
    """What an agent is asked to do in a copy of *folder*; the shell command *check* says if it did.

    In a file *folder* is below the file's own.
    """

    folder: Path
    prompt: str
    check: str


def read_tasks(path: Path) -> dict[str, Task]:
    """The tasks in the TOML file at *path*, by name. Raises SettingsError, naming what is wrong."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise SettingsError(f"{path} cannot be read: {reason}") from error
    tasks = {}
    for name, given in tables.items():
        has_texts = isinstance(given, dict) and {*map(type, given.values())} == {str}
        if not has_texts or {*given} != {*Task._fields}:
            raise SettingsError(
                f"{path}: {name} is {given}; give a table with the texts {', '.join(Task._fields)}"
            )
        folder = (path.parent / given.pop("folder")).resolve()
        if not folder.is_dir():
            raise SettingsError(f"{path}: {name} needs the folder {folder}, which is not there")
        tasks[name] = Task(folder, **given)
    return tasks


def run_order(names: Iterable[str], number: int, seed: int) -> list[Run]:
    """*number* runs of each task in both arms, a pair one after the other: it sees the same API."""
    chance = random.Random(seed)  # noqa: S311  an order, no secret
    pairs = list(itertools.product(names, range(1, number + 1)))
    chance.shuffle(pairs)
    return [(*pair, arm) for pair in pairs for arm in chance.sample((BARE, SHAPED), 2)]


def read_rows(path: Path, asked: str) -> dict[Run, Row]:
    """The valid rows in the file at *path*, which is made where there is none.

    Raises SettingsError where they are of another trial than *asked*.
    """
    path.touch()
    rows = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = Row(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{path}, line {number}: this is no row of a trial") from error
        if row.asked != asked:
            raise SettingsError(
                f"{path} has rows of another agent, other tasks or other settings: "
                "name another file by --rows"
            )
        if not row.invalid:
            rows[row.task, row.number, row.arm] = row
    return rows


# Running it ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """Runs *tasks* by the agent *command*, shaped by *preset*, until it is *stopped*.

    What is *done* grows by each run, and so does the file at *path*; what agents and checks print
    is in another beside it. *budget* is in dollars, *limit* in seconds for one run of the agent or
    of a check. *asked* is the digest of the agent, the tasks and the preset.
    """

    command: Sequence[str]
    preset: str
    limit: float
    tasks: Mapping[str, Task]
    asked: str
    path: Path
    done: dict[Run, Row]
    budget: float
    stopped: threading.Event = field(default_factory=threading.Event)

    def play(self, runs: Sequence[Run], jobs: int) -> None:
        """Run *runs*, so many *jobs* of them at a time, as long as the budget lasts."""
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in as_completed([pool.submit(self._run, run) for run in runs]):
                    future.result()
            finally:
                self.stopped.set()  # else the pool would wait for what is under way

    def _run(self, run: Run) -> None:
        """Run a task in a fresh copy of its folder, and keep the row, unless it was stopped."""
        spent = sum(row.dollars or 0 for row in list(self.done.values()))  # others add to it
        if self.stopped.is_set() or spent >= self.budget:
            return
        with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            row = self._row(run, Path(temporary, "work"))
        if self.stopped.is_set():
            return
        with self.path.open("a", encoding="utf-8") as file:  # a line is one write
            file.write(json.dumps(row._asdict()) + "\n")
        typer.echo(f"ctxpipe: {row}", err=True)
        if not row.invalid:
            self.done[run] = row
        elif not self.done:
            raise CtxpipeError("the first run was not valid, so the trial ends")
        if row.dollars is None and self.budget < math.inf:
            raise SettingsError("--budget cannot be kept: the price of a turn is not known")

    def _row(self, run: Run, folder: Path) -> Row:
        """The row of *run* in the new *folder*."""
        name, _, arm = run
        task = self.tasks[name]
        shutil.copytree(task.folder, folder, symlinks=True)
        command = [word.replace(PROMPT, task.prompt) for word in self.command]
        agent = Path(command[0]).stem
        client = find_client(agent, os.environ)
        settings = Settings(
            client.upstreams(os.environ), folder / ROOT, preset=self.preset, dry_run=arm == BARE
        )
        serving = open_serving(settings)
        with serve(serving, serving.run):
            words = client.command(command, serving.url, serving.reader_url)
            began = time.monotonic()
            self._execute(words, folder, client.environment(serving.url))
            seconds = time.monotonic() - began
        status = self._execute(["/bin/sh", "-c", task.check], folder, {})
        record = serving.gateway.record
        errors = sum(turn.status >= 400 for turn in record.turns)
        invalid = ""
        if not record.number:
            invalid = f"not valid: {record}; {client.past_gateway(agent)}; see {self.path}.log"
        return Row(
            *run,
            success=status == 0,
            dollars=record.dollars if record.priced + errors == record.number else None,
            turns=record.number,
            seconds=seconds,
            read_backs=_read_backs(serving),
            refused=errors,
            asked=self.asked,
            invalid=invalid,
        )

    def _execute(self, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> int:
        """Run *command* in *folder*, and end what it leaves running; its status as Popen has it."""
        with open(f"{self.path}.log", "ab") as log:
            process = start(
                command,
                cwd=folder,
                env={**os.environ, **variables, "PWD": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + self.limit
        while process.poll() is None and time.monotonic() < end:
            if self.stopped.wait(0.05):
                break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _read_backs(serving: Serving) -> int:
    """How many calls in the conversations of *serving* open what has left a context."""
    found = set()
    for dialog in serving.gateway.shaper().conversations:
        for call in tool_calls(dialog.session.known):
            said = call.name + str(call.input)
            if any(mark in said for mark in READING):
                found.add(call.id)
    return len(found)
