"""Follow the README and the pages of "Start" like a new user, in their order, then other jobs.

scripts/release/first_hour.sh runs this with a wheel, an empty environment, an empty folder and a
clone. Exits with 1 at the first deviation from a page, and prints it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxpipe.messages import tool_results
from ctxpipe.testing import MessagesServer, OpenAIServer, answer_with, tool_use

# At the end of the path, so that ctxpipe is imported from the wheel.
sys.path.append(str(Path(__file__).parents[2]))

from scripts.pages import (
    JOBS,
    ROOT,
    Block,
    Deviation,
    Job,
    Prompt,
    blocks_of,
    ensure_output,
    first_hour_pages,
)

TIMEOUT_SECONDS = 1800  # of a command: `make test` in a clone installs everything first
FIRST = {
    "ctxpipe demo": "result",
    "ctxpipe replay session.jsonl --html report.html": "report",
}
"""Commands of the README with which a new user gets the first result, and the first report."""


@dataclass
class Hour:
    """The machine of the user: an environment, a folder for projects, and a clone.

    *without* are commands to skip. *seconds_in_clone* counts the time that `make` took. *done* has
    the places of the jobs whose block or command has run.
    """

    python: Path
    folder: Path
    clone: Path
    variables: dict[str, str]
    without: Sequence[str] = ()
    project: Path = Path()
    start_time: float = field(default_factory=time.monotonic)
    seconds_in_clone: float = 0.0
    done: dict[Job, str] = field(default_factory=dict)
    background: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def read(self, page: Path) -> None:
        """Run the blocks of *page* in a new project. Raises Deviation."""
        self.project = self.folder / "-".join(page.with_suffix("").parts[-2:])
        self.project.mkdir()
        write_recordings(self.project)
        async with AsyncExitStack() as stack:
            prompt = await stack.enter_async_context(self._prompt())
            for block in blocks_of(page):
                if block.mark == "not run":
                    print(f"  {block.where}: not run", flush=True)
                elif block.kind == "console":
                    await self._run_commands(block)
                elif block.kind == "python":
                    await self._run_python(block, prompt)
                if block.file:
                    (self.project / block.file).write_text(block.code)

    def _note(self, block: Block, text: str) -> None:
        """Record the jobs that *text*, a block or a command that has run, does."""
        for job in JOBS:
            if block.page == ROOT / job.page and job.text in text:
                self.done.setdefault(job, block.where)

    def _prompt(self) -> Prompt:
        return Prompt(self.project, self.variables, [str(self.python)])

    async def _run_python(self, block: Block, prompt: Prompt) -> None:
        print(f"  {block.where}", flush=True)
        if not block.is_program:
            await prompt.run(block)
        else:
            async with self._prompt() as program:
                await program.run(block)
        self._note(block, block.code)

    async def _run_commands(self, block: Block) -> None:
        for command, expected in block.commands:
            if command in self.without:
                print(f"  {block.where}: {command} is skipped", flush=True)
                continue
            print(f"  {block.where}: {command}", flush=True)
            if command.endswith("&"):
                await self._start_server(block.where, command.removesuffix("&"), expected)
            else:
                await self._run_command(block.where, command, expected)
            self._note(block, command)

    def _surroundings(self, command: str) -> tuple[Path, dict[str, str]]:
        """Return the folder and the variables for *command*: `make` runs in the clone."""
        if shlex.split(command)[0] == "make":
            return self.clone, dict(os.environ)
        return self.project, self.variables

    async def _run_command(self, where: str, command: str, expected: str) -> None:
        folder, variables = self._surroundings(command)
        start_time = time.monotonic()
        process = await asyncio.create_subprocess_shell(
            command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=variables,
        )
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output, errors = await process.communicate()
        end_time = time.monotonic()
        if folder == self.clone:
            self.seconds_in_clone += end_time - start_time
        if command in FIRST:
            seconds = end_time - self.start_time - self.seconds_in_clone
            print(f"    the first {FIRST[command]}: after {seconds:.0f} s, not counting make")
        if process.returncode:
            texts = (output + errors).decode("utf-8", "replace")
            raise Deviation(f"{where}: {command} exits with {process.returncode}\n{texts}")
        if expected:
            ensure_output(where, output.decode(), expected, self.project)

    async def _start_server(self, where: str, command: str, expected: str) -> None:
        """Start *command*, which runs until it is stopped, and compare its first lines."""
        process = await asyncio.create_subprocess_exec(
            str(self.python.with_name(shlex.split(command)[0])),
            *shlex.split(command)[1:],
            stdout=asyncio.subprocess.PIPE,
            cwd=self.project,
            env=self.variables,
        )
        self.background.append(process)
        assert process.stdout is not None  # noqa: S101  a pipe
        async with asyncio.timeout(60):
            lines = [await process.stdout.readline() for _ in expected.splitlines()]
        ensure_output(where, b"".join(lines).decode(), expected, self.project)

    async def stop_servers(self) -> None:
        """Stop the commands that are still running."""
        for process in self.background:
            process.terminate()
            await process.wait()


def model(request: Mapping[str, Any]) -> Any:
    """Answer like a model that calls the first tool in `ARGUMENTS` once, then ends its turn."""
    tools = [tool for tool in request.get("tools") or () if tool.get("name") in ARGUMENTS]
    if tools and not any(tool_results(request["messages"])):
        name = tools[0]["name"]
        return answer_with(tool_use(name, ARGUMENTS[name]))
    return "Hello."


ARGUMENTS: dict[str, dict[str, Any]] = {"bash": {"command": "ls"}, "read_log": {"day": 1}}
"""Arguments for the tools of the pages, by name."""


def write_recordings(folder: Path) -> None:
    """Write two recorded conversations, which the pages expect."""
    for name in ("session.jsonl", "other.jsonl"):
        lines: list[dict[str, Any]] = [{"role": "user", "content": f"Go, {name}."}]
        for number in range(4):
            call_id = f"toolu_{number}"
            command = {"command": f"step {number}"}
            call = {"type": "tool_use", "id": call_id, "name": "bash", "input": command}
            text = f"line {number}\n" * 900
            result = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            lines.append({"role": "assistant", "content": [call]})
            lines.append({"role": "user", "content": [result]})
        lines.append({"role": "assistant", "content": "Done."})
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def variables_of(options: argparse.Namespace, servers: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the user's shell. pip finds the wheel in addition to the index."""
    links = [str(options.wheel.parent), os.environ.get("PIP_FIND_LINKS", "")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {
        **inherited,
        **servers,
        "HOME": str(options.folder.parent),
        "PATH": f"{options.environment / 'bin'}:{os.environ['PATH']}",
        "PIP_FIND_LINKS": " ".join(links),
        "PIP_QUIET": "1",
        "VIRTUAL_ENV": str(options.environment),
    }


def ensure_from_wheel(wheel: Path, python: Path) -> None:
    """Raise Deviation if an installed file differs from the file in *wheel*."""
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".dist-info/" not in name and archive.read(name) != (packages / name).read_bytes():
                raise Deviation(f"{packages / name} is not the file of {wheel}")


def report_jobs(hour: Hour, pages: Sequence[Path]) -> None:
    """Print where each job of *pages* was done. Raises Deviation for a job that was not."""
    for job in JOBS:
        if ROOT / job.page not in pages:
            continue
        if job in hour.done:
            print(f"{job.name}: {hour.done[job]}")
        elif job.text not in hour.without:
            raise Deviation(f"{job.page}: no block that ran has {job.text!r}, to {job.name}")


async def follow_pages(options: argparse.Namespace) -> None:
    """Run the blocks of every page. Raises Deviation."""
    async with MessagesServer(model) as messages, OpenAIServer(model) as openai:
        servers = {
            "ANTHROPIC_BASE_URL": messages.url,
            "ANTHROPIC_API_KEY": "test",
            "OPENAI_BASE_URL": openai.base_url,
            "OPENAI_API_KEY": "test",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        python = options.environment / "bin" / "python"
        variables = variables_of(options, servers)
        pages = [page.resolve() for page in options.pages] or first_hour_pages()
        hour = Hour(python, options.folder, options.clone, variables, options.without)
        try:
            for page in pages:
                print(page.name, flush=True)
                await hour.read(page)
            ensure_from_wheel(options.wheel, python)
            report_jobs(hour, pages)
        finally:
            await hour.stop_servers()
        refusals = [*messages.refused, *openai.refused]
    if refusals:
        raise Deviation(f"{len(refusals)} requests were refused; the first: {refusals[0]}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("wheel", "environment", "folder", "clone"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--without", action="append", default=[], metavar="COMMAND")
    parser.add_argument("pages", nargs="*", type=Path)
    options = parser.parse_args()
    start_time = time.monotonic()
    try:
        asyncio.run(follow_pages(options))
    except Deviation as deviation:
        raise SystemExit(f"\n{deviation}") from None
    minutes = (time.monotonic() - start_time) / 60
    print(f"Everything is as the pages say, after {minutes:.0f} minutes.")


if __name__ == "__main__":
    main()
