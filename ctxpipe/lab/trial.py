"""The command ``ctxpipe trial``: measures whether shaping helps or harms an agent."""

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
from ..gateway.commands import find_client, open_serving, serve, start
from ..gateway.options import Preset
from ..gateway.settings import GatewaySettings
from ..messages import tool_calls
from ..placeholders.names import content_hash
from ..providers.agent_tools import READ_BACK_TOOLS
from .comparison import BARE, SHAPED, TrialRow, TrialRun, table

if TYPE_CHECKING:
    from ..gateway.serving import Serving

ROOT = ".ctxpipe"
READING_MARKERS = (f"{ROOT}/", *READ_BACK_TOOLS)
"""Texts in a tool call that show that it opens an offloaded text."""
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
    seed: Annotated[int, typer.Option(help="Seed for the order of the runs.")] = 0,
    budget: Annotated[
        float,
        typer.Option(
            help="Limit in dollars: no run is started once all runs together have cost so much."
        ),
    ] = math.inf,
    rows: Annotated[
        Path, typer.Option(help="The file of rows, one for each run; runs in it are not repeated.")
    ] = Path("trial.jsonl"),
    limit: Annotated[
        float, typer.Option(help="Seconds after which an agent, or a check, is stopped.")
    ] = 3600,
    preset: Preset = "coding",
) -> None:
    """Test whether shaping helps or harms an agent of yours: ctxpipe trial tasks.toml -- AGENT.

    Each task is run in two arms, bare and shaped, each time in a fresh copy of its folder. A run
    succeeds if the task's check, a shell command, then ends with status 0. Both arms use a gateway,
    which the agent finds as with wrap; in the bare arm it sends every request unchanged. Dollars
    are calculated from the usage that the API reports. At the end a table compares the arms, and
    shows where there are too few runs to decide. Needs the extra gateway.
    """
    tasks = read_tasks(file)
    if not any(PROMPT in word for word in command):
        raise SettingsError(f"no argument of the agent has {PROMPT}, where the task's prompt goes")
    digest = content_hash(repr((command, preset, tasks)), 16)
    completed_rows = read_rows(rows, digest)
    program = shutil.which(command[0]) or command[0]
    if os.sep in program:
        program = os.path.abspath(program)  # because the runs have other working folders
    agent_trial = Trial(
        command=[program, *command[1:]],
        preset=preset,
        limit_seconds=limit,
        tasks=tasks,
        digest=digest,
        path=rows,
        completed_rows=completed_rows,
        budget=budget,
    )
    order = [run for run in run_order(tasks, runs, seed) if run not in completed_rows]
    try:
        agent_trial.play(order, jobs)
    finally:
        if completed_rows:
            print(*table(completed_rows), sep="\n")
    remaining = sum(run not in completed_rows for run in order)
    typer.echo(f"ctxpipe: runs left, for when it is started again: {remaining}", err=True)


# The runs -----------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A task for an agent: *prompt* is carried out in a copy of *folder*.

    The shell command *check* ends with status 0 if the agent succeeded. In a TOML file *folder* is
    relative to the folder of that file.
    """

    folder: Path
    prompt: str
    check: str


def read_tasks(path: Path) -> dict[str, Task]:
    """Return the tasks in the TOML file at *path*, by name.

    Raises SettingsError if the file, one of its tables or a folder is invalid.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise SettingsError(f"{path} cannot be read: {reason}") from error
    tasks = {}
    for name, table_values in tables.items():
        if not _is_task(table_values):
            fields = ", ".join(Task._fields)
            raise SettingsError(
                f"{path}: {name} is {table_values}; give a table with the texts {fields}"
            )
        folder = (path.parent / table_values["folder"]).resolve()
        if not folder.is_dir():
            raise SettingsError(f"{path}: {name} needs the folder {folder}, which does not exist")
        tasks[name] = Task(folder, table_values["prompt"], table_values["check"])
    return tasks


def _is_task(value: object) -> bool:
    """Return True if *value* is a table with exactly the fields of a task, all of them texts."""
    if not isinstance(value, dict) or set(value) != set(Task._fields):
        return False
    return all(isinstance(text, str) for text in value.values())


def run_order(names: Iterable[str], number: int, seed: int) -> list[TrialRun]:
    """Return *number* runs of each task in both arms, in random order.

    The two runs of a pair follow each other, so that they meet the API in the same state.
    """
    generator = random.Random(seed)  # noqa: S311  an order, no secret
    pairs = list(itertools.product(names, range(1, number + 1)))
    generator.shuffle(pairs)
    return [(*pair, arm) for pair in pairs for arm in generator.sample((BARE, SHAPED), 2)]


def read_rows(path: Path, digest: str) -> dict[TrialRun, TrialRow]:
    """Return the valid rows in the file at *path*, which is created if it does not exist.

    Raises SettingsError if a line is no row, or belongs to a trial with another *digest*.
    """
    path.touch()
    rows = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = TrialRow(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise SettingsError(f"{path}, line {number}: this is not a row of a trial") from error
        if row.asked != digest:
            raise SettingsError(
                f"{path} has rows of another agent, other tasks or other settings: "
                "name another file by --rows"
            )
        if not row.invalid:
            rows[row.task, row.number, row.arm] = row
    return rows


# The trial ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A trial of the agent *command* on *tasks*, with contexts shaped by *preset*.

    Each run adds a row to *completed_rows* and to the file at *path*; the output of agents and
    checks goes to a log file next to it. *budget* is in dollars; *limit_seconds* applies to each
    run of the agent and of a check. *digest* identifies the agent, the tasks and the preset.
    *stop_event* ends the processes of the runs.
    """

    command: Sequence[str]
    preset: str
    limit_seconds: float
    tasks: Mapping[str, Task]
    digest: str
    path: Path
    completed_rows: dict[TrialRun, TrialRow]
    budget: float
    stop_event: threading.Event = field(default_factory=threading.Event)

    def play(self, runs: Sequence[TrialRun], jobs: int) -> None:
        """Carry out *runs*, at most *jobs* at the same time, until the budget is spent.

        Raises CtxpipeError if the first run is invalid, SettingsError if there is a budget and the
        price of a turn is unknown.
        """
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in as_completed([pool.submit(self._add_row, run) for run in runs]):
                    future.result()
            finally:
                self.stop_event.set()  # otherwise the pool waits for the runs in progress

    def _add_row(self, run: TrialRun) -> None:
        """Carry out *run* in a temporary folder and store its row, unless the trial is stopped.

        Nothing is run once the budget is spent. Raises CtxpipeError if the first run was not valid,
        and SettingsError if there is a budget and the price of a turn is not known.
        """
        rows = list(self.completed_rows.values())  # a copy: other threads add rows
        spent_dollars = sum(row.dollars or 0 for row in rows)
        if self.stop_event.is_set() or spent_dollars >= self.budget:
            return
        with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            row = self._row(run, Path(temporary, "work"))
        if self.stop_event.is_set():
            return
        with self.path.open("a", encoding="utf-8") as file:  # each line is one write
            file.write(json.dumps(row._asdict()) + "\n")
        typer.echo(f"ctxpipe: {row}", err=True)
        if not row.invalid:
            self.completed_rows[run] = row
        elif not self.completed_rows:
            raise CtxpipeError("the first run was not valid, so the trial ends")
        if row.dollars is None and self.budget < math.inf:
            raise SettingsError("--budget cannot be kept: the price of a turn is not known")

    def _row(self, run: TrialRun, folder: Path) -> TrialRow:
        """Run the agent on a copy of the task in *folder*, check the result, and return the row.

        *folder* must not exist. The agent's requests go through a gateway of its own; in the bare
        arm it only measures them.
        """
        name, _, arm = run
        task = self.tasks[name]
        shutil.copytree(task.folder, folder, symlinks=True)
        command = [word.replace(PROMPT, task.prompt) for word in self.command]
        agent = Path(command[0]).stem
        client = find_client(agent, os.environ)
        settings = GatewaySettings(
            client.upstreams(os.environ), folder / ROOT, preset=self.preset, dry_run=arm == BARE
        )
        serving = open_serving(settings)
        with serve(serving, serving.run):
            words = client.command(command, serving.url, serving.reader_url)
            start_time = time.monotonic()
            self._execute(words, folder, client.environment(serving.url))
            seconds = time.monotonic() - start_time
        status = self._execute(["/bin/sh", "-c", task.check], folder, {})
        record = serving.gateway.record
        errors = sum(turn.status >= 400 for turn in record.turns)
        invalid = ""
        if not record.number:
            invalid = f"not valid: {record}; {client.past_gateway(agent)}; see {self.path}.log"
        return TrialRow(
            *run,
            success=status == 0,
            dollars=record.dollars if record.priced_turns + errors == record.number else None,
            turns=record.number,
            seconds=seconds,
            read_backs=_read_backs(serving),
            refused=errors,
            asked=self.digest,
            invalid=invalid,
        )

    def _execute(self, command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> int:
        """Run *command* in *folder*, kill processes that it leaves behind, and return its status.

        *variables* are added to the environment. The status is that of Popen.
        """
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
        deadline = time.monotonic() + self.limit_seconds
        while process.poll() is None and time.monotonic() < deadline:
            if self.stop_event.wait(0.05):
                break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _read_backs(serving: Serving) -> int:
    """Return the number of tool calls that open offloaded texts in the conversations."""
    call_ids = set()
    for dialog in serving.gateway.shaper().conversations:
        for call in tool_calls(dialog.session.memory.history):
            call_text = call.name + str(call.input)
            if any(marker in call_text for marker in READING_MARKERS):
                call_ids.add(call.id)
    return len(call_ids)
