"""Scripted conversations with texts that an agent needs later, and the file of these orders.

    python benchmarks/scripted_orders.py FOLDER [--conversations 12] [--calls 120]
    ctxpipe survive FOLDER/recordings --orders FOLDER/orders.ndjson

Recordings have few running jobs that are used again much later. Here each conversation starts jobs
and sub-agents in the words of several agents, loads skills, approves a plan, has rules of the user,
to-do lists and errors of calls that are made again, and reads files until it is compacted. Nothing
in it is taken from a recording, and all of it follows from the number of the conversation.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ctxpipe.lab.orders import Order
from ctxpipe.messages import Message

VOCABULARY = (
    "account archive balance batch cache channel cluster column cursor device digest domain driver "
    "entry event export feature filter folder gateway handle header import index invoice journal "
    "ledger limit mailbox marker metric mirror module notice offset option order packet payload "
    "period policy portal prefix quota record region report request reserve router sample schema "
    "segment server session shard signal snapshot source stream ticket token tracker update vector "
    "volume window worker"
)
WORDS = VOCABULARY.split()
CONVERSATIONS = 12
CALLS = 120
FORBIDDEN = (
    "Never edit the files below vendor/{}.",
    "Do not run the migration of the {} table without asking me.",
    "不要修改 {} 目录里的文件。",
    "You must not push to the branch {}.",
    "{} のテストを削除しないでください。",
)
CORRECTIONS = (
    "No, I meant the other {}, leave the first one as it is.",
    "That is wrong: the {} has to be read once, not in a loop.",
    "Actually keep the old {} until the release, I was mistaken.",
)

JobWords = Callable[[str, str], tuple[str, Mapping[str, Any], str, str]]
"""Function from the id of a job and a word to the tool, its input, its result, and a later tool."""


def _shell(job: str, word: str) -> tuple[str, Mapping[str, Any], str, str]:
    command = {"command": f"npm run watch:{word}", "run_in_background": True}
    return "Bash", command, f"Command running in background with ID: {job}", "BashOutput"


def _agent(job: str, word: str) -> tuple[str, Mapping[str, Any], str, str]:
    result = (
        f"Async agent launched successfully.\nagentId: {job} (internal ID - do not mention to "
        "user.)\nThe agent is working in the background."
    )
    call = {"description": f"Check the {word}", "prompt": word, "run_in_background": True}
    return "Task", call, result, "TaskOutput"


def _process(job: str, word: str) -> tuple[str, Mapping[str, Any], str, str]:
    result = f"Chunk ID: 3\nProcess running with session ID {job}\nOutput:\nstarting {word}"
    return "exec_command", {"cmd": f"make serve-{word}"}, result, "write_stdin"


JOBS: tuple[tuple[JobWords, str, Callable[[random.Random], str]], ...] = (
    (_shell, "bash_id", lambda draw: f"b{draw.randrange(36**6):06x}"[:8]),
    (_agent, "task_id", lambda draw: f"a{draw.randrange(16**6):06x}"),
    (_process, "session_id", lambda draw: str(draw.randrange(10_000, 99_999))),
)
"""Calls with which agents start a job, the key of the id in a later call, and its form."""


class Job(NamedTuple):
    """A job that runs since a call, and the *tool* and the *key* of a call that asks for it."""

    since: int
    id: str
    tool: str
    key: str


@dataclass
class Script:
    """A conversation that is being written, and its orders; *draw* is its source of chance."""

    name: str
    draw: random.Random
    calls: int
    messages: list[Message] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    listed_at: int = 0
    """The call after the newest to-do list."""

    @property
    def call(self) -> int:
        """The number of replies so far."""
        return sum(message["role"] == "assistant" for message in self.messages)

    def word(self) -> str:
        return f"{self.draw.choice(WORDS)}_{self.draw.randrange(100)}"

    def say(self, text: str) -> None:
        """Add a text of the user, to the last message if that is one with results."""
        block = {"type": "text", "text": text}
        if self.messages and self.messages[-1]["role"] == "user":
            content: Any = self.messages[-1]["content"]
            content.append(block)
        else:
            self._add("user", [block])

    def use(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        result: str,
        *,
        say: str = "",
        is_error: bool = False,
    ) -> None:
        """Add a call and its result."""
        call_id = f"toolu_{len(self.messages):04d}"
        blocks: list[dict[str, Any]] = [{"type": "text", "text": say}] if say else []
        use = {"type": "tool_use", "id": call_id, "name": tool, "input": dict(arguments)}
        self._add("assistant", [*blocks, use])
        answer: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": result}
        if is_error:
            answer["is_error"] = True
        self._add("user", [answer])

    def _add(self, role: str, content: list[dict[str, Any]]) -> None:
        self.messages.append({"role": role, "content": content})  # type: ignore[misc, arg-type]

    def order(self, kind: str, *lines: str, since: int | None = None) -> None:
        """Add an order from now on, or one that the last call needs since the call *since*."""
        if since is not None:
            at_call = self.call - 1
            self.orders.append(Order(self.name, kind, lines, since, at_call, is_event=True))
        elif self.call < self.calls:
            self.orders.append(Order(self.name, kind, lines, self.call, self.calls - 1))

    def view(self) -> None:
        """Read a file of the size that agents read."""
        name = self.word()
        lines = []
        for number in range(1, self.draw.randrange(60, 260)):
            first, second = self.word(), self.word()
            lines.append(f"{number:5}→    {first} = load_{second}({number}, '{self.word()}')")
        finding = ""
        if self.draw.random() < 0.15:
            finding = f"The root cause is that {self.word()} is closed before {self.word()} ends."
        self.use("Read", {"file_path": f"/app/src/{name}.py"}, "\n".join(lines), say=finding)
        if finding:
            self.order("finding", finding)


def conversation(number: int, calls: int) -> Script:
    """Return the conversation with this *number*, of so many model *calls*."""
    script = Script(f"scripted-{number:02d}", random.Random(number), calls)
    draw = script.draw
    rule = draw.choice(FORBIDDEN).format(script.word())
    script.say(f"Bring the {script.word()} service to the next release. {rule}")
    script.order("prohibition", rule)
    _load_skill(script, number)
    _approve_plan(script, number)
    tasks = _list_tasks(script, [])
    failed: list[tuple[int, Mapping[str, Any], str]] = []
    jobs: list[Job] = []
    while script.call < calls:
        chance = draw.random()
        if chance < 0.04:
            jobs.append(_start_job(script))
        elif chance < 0.08 and jobs:
            _use_job(script, draw.choice(jobs))
        elif chance < 0.11:
            failed.append(_fail(script))
        elif chance < 0.14 and failed:
            _retry(script, failed.pop(0))
        elif chance < 0.17:
            tasks = _list_tasks(script, tasks)
        elif chance < 0.19:
            text = draw.choice(FORBIDDEN + CORRECTIONS).format(script.word())
            script.say(text)
            kind = "correction" if any(text.startswith(c[:5]) for c in CORRECTIONS) else ""
            script.order(kind or "prohibition", text)
        else:
            script.view()
    for job in (job for job in jobs if job.since < calls):
        script.orders.append(
            Order(script.name, "running job", (job.id,), job.since, script.calls - 1)
        )
    return script


def _load_skill(script: Script, number: int) -> None:
    """Load a skill in the way of one of three agents."""
    name = script.word()
    rules = [f"Rule {n}: check the {script.word()} before the {script.word()}." for n in range(40)]
    text = "\n".join([f"# How to work on {name}", *rules])
    if number % 3 == 0:
        script.use("Skill", {"skill": name}, f"Launching skill: {name}")
        script.say(f"Base directory for this skill: /skills/{name}\n\n{text}")
    elif number % 3 == 1:
        body = f'<skill_content name="{name}">\n{text}\n</skill_content>'
        script.use("skill", {"name": name}, body)
    else:
        script.use("load_skill", {"skill_name": name}, text)
    script.order("skill text", *rules)


def _approve_plan(script: Script, number: int) -> None:
    """Have a plan approved in the way of one of two agents."""
    steps = [f"{n}. Move the {script.word()} behind the {script.word()}." for n in range(1, 25)]
    plan = "\n".join(["# The plan", *steps])
    tool = ("ExitPlanMode", "exit_plan_mode")[number % 2]
    script.use(tool, {"plan": plan}, "User has approved your plan. You can now start coding.")
    script.order("plan document", *steps)


def _list_tasks(script: Script, tasks: list[str]) -> list[str]:
    """Write the to-do list again with its first task finished; *tasks* are those open before."""
    open_tasks = [*tasks[1:], f"Rename the {script.word()} to {script.word()}"]
    todos = [{"content": text, "status": "pending", "activeForm": text} for text in open_tasks]
    script.use("TodoWrite", {"todos": todos}, "Todos have been modified successfully.")
    if tasks:
        script.order("to-do list", *tasks, since=script.listed_at)
    script.listed_at = script.call
    return open_tasks


def _start_job(script: Script) -> Job:
    """Start a job."""
    words, key, new_id = script.draw.choice(JOBS)
    job = new_id(script.draw)
    tool, arguments, result, later_tool = words(job, script.word())
    script.use(tool, arguments, result)
    return Job(script.call, job, later_tool, key)


def _use_job(script: Script, job: Job) -> None:
    """Ask for the output of a running job."""
    script.use(job.tool, {job.key: job.id}, "<status>running</status>\nnothing new")
    script.order("running job used", job.id, since=job.since)


def _fail(script: Script) -> tuple[int, Mapping[str, Any], str]:
    """Run a command that fails; return the call after it, its input and the line of the error."""
    arguments = {"command": f"pytest -q tests/test_{script.word()}.py"}
    error = f"AssertionError: {script.word()} must be closed before {script.word()}"
    noise = "\n".join(f"tests/test_{script.word()}.py ...." for _ in range(40))
    script.use("Bash", arguments, f"Exit code 1\n{noise}\n{error}", is_error=True)
    return script.call, arguments, error


def _retry(script: Script, failed: tuple[int, Mapping[str, Any], str]) -> None:
    """Run the command again that has failed."""
    since, arguments, error = failed
    script.use("Bash", arguments, "1 passed in 0.42s")
    script.order("error of a call tried again", error, since=since)


def write(folder: Path, conversations: int, calls: int) -> None:
    """Write the recordings and the file of orders below *folder*."""
    recordings = folder / "recordings"
    recordings.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(conversations):
        script = conversation(number, calls)
        messages = [json.dumps(message, ensure_ascii=False) for message in script.messages]
        path = recordings / f"{script.name}.jsonl"
        path.write_text("\n".join(messages) + "\n", encoding="utf-8")
        lines += [json.dumps(order.as_json(), ensure_ascii=False) for order in script.orders]
    (folder / "orders.ndjson").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=CONVERSATIONS)
    parser.add_argument("--calls", type=int, default=CALLS)
    given = parser.parse_args()
    write(given.folder, given.conversations, given.calls)


if __name__ == "__main__":
    main()
