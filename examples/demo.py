"""The output of `python -m examples.agent_loop`.

It shows progress while the agent works, then how many tokens ctxpipe saved.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.table import Table

from ctxpipe import LocalStorage, SettingsError, offload_tools
from ctxpipe.providers.agent_tools import READ_BACK_TOOLS
from ctxpipe.stages.reports import Offloaded
from ctxpipe.testing import MessagesServer
from ctxpipe.tokens import TokenCounter
from examples.agent_loop import SYSTEM, Turn, build_pipeline, run_agent
from examples.scripted_model import FAULTS, survey
from examples.tools import existing_folder, folder_tools

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import MessageParam

__all__ = ["main"]

PACKAGE = Path(__file__).resolve().parents[1] / "ctxpipe"
TASK = "What does each module here do? Read every one; say how they hang together."
ABOUT = (
    "An agent explores a folder. Every long tool result goes to a file, and a table shows what "
    "that saves."
)
EPILOG = (
    "With ANTHROPIC_API_KEY set it asks the API, which costs money. Without it, or with --demo, it "
    "asks a scripted model."
)

Row: TypeAlias = tuple[str, int | str, int | str]
"""What was added up, and how much of it there is with ctxpipe and without."""


@dataclass(slots=True)
class Tally:
    """Sums over the turns, with ctxpipe and without.

    Without it, every request would have the whole history.
    """

    counter: TokenCounter
    overhead: int
    full: list[MessageParam] = field(default_factory=list)
    turns: int = 0
    turns_without: int = 0
    calls: int = 0
    parallel: int = 0
    read_backs: int = 0
    sent: int = 0
    sent_without: int = 0
    largest: int = 0
    largest_without: int = 0
    answer: str = ""
    files: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    # this turn's context, without ctxpipe, and what it called
    _now: tuple[int, int, str] = (0, 0, "")

    def add(self, turn: Turn) -> None:
        """Count one turn."""
        if not self.full:
            self.full = list(turn.context)  # the task
        names = [block.name for block in turn.reply.content if block.type == "tool_use"]
        context = self.counter.total(turn.context) + self.overhead
        self.turns += 1
        self.calls += len(names)
        self.parallel += len(names) > 1
        self.sent += context
        self.largest = max(self.largest, context)
        self.answer = "".join(block.text for block in turn.reply.content if block.type == "text")
        details = [report.detail for report in turn.result.reports]
        self.files += [
            file for detail in details if isinstance(detail, Offloaded) for file in detail.files
        ]
        self._now = context, self._add_without(turn, names), ", ".join(names) or "answer"

    def _add_without(self, turn: Turn, names: Sequence[str]) -> int:
        full = self.counter.total(self.full) + self.overhead
        if reads_back(names):
            self.read_backs += len(names)
            return full
        self.turns_without += 1
        self.sent_without += full
        self.largest_without = max(self.largest_without, full)
        self.full.append({"role": "assistant", "content": turn.reply.content})
        if turn.answers:
            self.full.append({"role": "user", "content": turn.answers})
        return full

    @property
    def line(self) -> str:
        """The turn in one line."""
        context, without, names = self._now
        return (
            f"turn {self.turns:3}: {self.calls:3} calls, {context:7,} tokens instead of "
            f"{without:7,} ({names})"
        )


def reads_back(names: Sequence[str]) -> bool:
    """Return True if a turn only reads back what ctxpipe moved to files.

    Without ctxpipe there would be no such turn.
    """
    return bool(names) and READ_BACK_TOOLS.issuperset(names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent as the command line asks; return 0 if its answer is correct."""
    options = parse(arguments)
    try:
        return asyncio.run(run(options, Console()))
    except KeyboardInterrupt:
        print(f"\nStopped. What was offloaded so far lies in {options.storage}", file=sys.stderr)
        return 130


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.agent_loop", description=ABOUT, epilog=EPILOG
    )
    parser.add_argument("task", nargs="?", default=TASK, help="what the agent is asked")
    parser.add_argument(
        "--demo", action="store_true", help="a scripted model, even with ANTHROPIC_API_KEY set"
    )
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default=str(PACKAGE),  # as a text it is looked for, too
        help="what the tools may read (this package)",
    )
    parser.add_argument(
        "--storage", default="", help="where tool results go (a new temporary folder)"
    )
    parser.add_argument("--model", default="claude-opus-5", help="the model to ask (%(default)s)")
    parser.add_argument(
        "--max-turns", type=int, default=600, help="give up after that many (%(default)s)"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="wait out rate limits for minutes, not seconds"
    )
    options = parser.parse_args(arguments)
    options.storage = options.storage or tempfile.mkdtemp(prefix="ctxpipe-")
    try:
        LocalStorage(options.storage)
    except SettingsError as error:
        parser.error(str(error))
    return options


@asynccontextmanager
async def connect(
    options: argparse.Namespace,
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, MessagesServer | None]]:
    """The SDK's client, to the API or to the scripted model."""
    import anthropic  # noqa: PLC0415 -- it takes seconds, and --help needs none of it

    retries = 12 if options.keep_going else 2
    if os.environ.get("ANTHROPIC_API_KEY") and not options.demo:
        async with anthropic.AsyncAnthropic(max_retries=retries) as client:
            yield client, None
        return
    async with (
        MessagesServer(survey) as server,
        anthropic.AsyncAnthropic(
            base_url=server.url, api_key="none", max_retries=retries
        ) as client,
    ):
        yield client, server


async def run(options: argparse.Namespace, console: Console) -> int:
    import anthropic  # noqa: PLC0415

    started = time.monotonic()
    storage = LocalStorage(options.storage)
    session_id = time.strftime("%Y-%m-%d-%H%M%S")
    tools = [*folder_tools(options.folder), *offload_tools(storage, session_id=session_id)]
    definitions = [tool.definition for tool in tools]
    async with connect(options) as (client, server):
        pipeline = build_pipeline(client, storage, options.folder)
        overhead = pipeline.counter.total([], system=SYSTEM, tools=definitions)
        tally = Tally(pipeline.counter, overhead)
        who = "A scripted model" if server else options.model
        console.print(f"{who} works on {options.folder}: {options.task}", soft_wrap=True)
        turns = run_agent(
            client, pipeline, tools, options.task, model=options.model, session_id=session_id
        )
        try:
            await watch(turns, tally, console, options.max_turns)
        except anthropic.APIError as error:
            tally.faults.append(f"turn {tally.turns + 1} failed: {error}")
        refused = len(server.refused) if server else None
    if tally.turns:
        console.print(f"\n{tally.answer}\n", markup=False, highlight=False, soft_wrap=True)
        sums = rows(tally, refused, time.monotonic() - started)
        console.print(table(tally, sums))
        console.print(f"The files are in {storage.root}", soft_wrap=True, highlight=False)
        request = {"system": SYSTEM, "tools": definitions, "messages": tally.full}
        await record(Path(storage.root) / f"{session_id}.json", request, tally, console)
    tally.faults += [fault for fault in FAULTS if server and fault in tally.answer]
    for fault in tally.faults:
        print(fault, file=sys.stderr)
    return 1 if tally.faults else 0


async def record(path: Path, request: dict[str, Any], tally: Tally, console: Console) -> None:
    """Write the history as it is without ctxpipe, and print how to see it turn by turn."""
    text = json.dumps(request, default=lambda block: block.to_dict())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # nothing may have been offloaded
        await asyncio.to_thread(path.write_text, text, "utf-8")
    except OSError as error:
        tally.faults.append(f"{path} could not be written: {error.strerror or error}")
        return
    line = f"Turn by turn: ctxpipe replay {path} --html page.html"
    console.print(line, soft_wrap=True, highlight=False)


async def watch(
    turns: AsyncGenerator[Turn], tally: Tally, console: Console, max_turns: int
) -> None:
    """Count and show every turn, until there is an answer or there were too many."""
    async with contextlib.aclosing(turns):
        with progress(console) as show:
            async for turn in turns:
                tally.add(turn)
                show(tally)
                if tally.turns >= max_turns and turn.answers:
                    tally.faults.append(f"no answer after {max_turns} turns")
                    return


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Callable[[Tally], None]]:
    """Show a line that changes on a terminal, or else a line for every tenth turn."""

    def print_tenth(tally: Tally) -> None:
        if tally.turns % 10 == 0:
            console.print(tally.line, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield print_tenth
        return
    with console.status("") as status:
        yield lambda tally: status.update(tally.line)


def rows(tally: Tally, refused: int | None, seconds: float) -> list[Row]:
    size = sum(os.path.getsize(file) for file in tally.files)
    return [
        ("turns", tally.turns, tally.turns_without),
        ("tool calls and results", tally.calls, tally.calls - tally.read_backs),
        ("turns with parallel calls", tally.parallel, tally.parallel),
        ("tokens sent in all", tally.sent, tally.sent_without),
        ("largest context, tokens", tally.largest, tally.largest_without),
        ("tool results read back", tally.read_backs, 0),
        ("files written", len(tally.files), 0),
        ("bytes in them", size, 0),
        ("requests refused", "unknown" if refused is None else refused, ""),
        ("seconds", f"{seconds:.1f}", ""),
    ]


def table(tally: Tally, sums: Sequence[Row]) -> Table:
    shown = Table(
        title=f"{1 - tally.sent / tally.sent_without:.0%} fewer tokens sent", title_justify="left"
    )
    shown.add_column("")
    shown.add_column("with ctxpipe", justify="right")
    shown.add_column("without", justify="right")
    for name, with_it, without in sums:
        shown.add_row(name, grouped(with_it), grouped(without))
    return shown


def grouped(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"
