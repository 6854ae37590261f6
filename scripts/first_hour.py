"""Do what the README and the pages of "Start" tell a new user to do, in their order.

scripts/first_hour.sh calls this with a wheel, an empty environment, an empty folder and a clone.
Exits with 1 at the first deviation, which it prints.
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
from ctxpipe.testing import MessagesServer, OpenAIServer, answer, tool_use

sys.path.append(str(Path(__file__).parents[1]))  # last: ctxpipe is that of the wheel

from scripts.pages import Block, Deviation, Prompt, blocks_of, ensure_promised, first_hour_pages

COMMAND_SECONDS = 1800  # `make test` in a clone installs everything first
FIRST = {
    "ctxpipe demo": "result",
    "ctxpipe replay session.jsonl --html report.html": "report",
}
"""Commands of the README, and what a new user has for the first time after each."""


@dataclass
class Hour:
    """The user's machine: an environment with *python*, a *folder* for projects, and a *clone*."""

    python: Path
    folder: Path
    clone: Path
    variables: dict[str, str]
    without: Sequence[str] = ()
    project: Path = Path()
    began: float = field(default_factory=time.monotonic)
    in_clone: float = 0.0
    background: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def read(self, page: Path) -> None:
        """Do what *page* says, in a project of its own. Raises Deviation."""
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

    def _prompt(self) -> Prompt:
        return Prompt(self.project, self.variables, [str(self.python)])

    async def _run_python(self, block: Block, prompt: Prompt) -> None:
        print(f"  {block.where}", flush=True)
        if not block.is_program:
            await prompt.run(block)
            return
        async with self._prompt() as program:
            await program.run(block)

    async def _run_commands(self, block: Block) -> None:
        for command, promised in block.commands:
            if command in self.without:
                print(f"  {block.where}: {command} is left out", flush=True)
                continue
            print(f"  {block.where}: {command}", flush=True)
            if command.endswith("&"):
                await self._start(block.where, command.removesuffix("&"), promised)
            else:
                await self._run_command(block.where, command, promised)

    def _place(self, command: str) -> tuple[Path, dict[str, str]]:
        """Where *command* is run, and with which variables: `make` in the clone, as it is."""
        if shlex.split(command)[0] == "make":
            return self.clone, dict(os.environ)
        return self.project, self.variables

    async def _run_command(self, where: str, command: str, promised: str) -> None:
        folder, variables = self._place(command)
        started = time.monotonic()
        process = await asyncio.create_subprocess_shell(
            command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=variables,
        )
        async with asyncio.timeout(COMMAND_SECONDS):
            said, errors = await process.communicate()
        ended = time.monotonic()
        if folder == self.clone:
            self.in_clone += ended - started
        if command in FIRST:
            seconds = ended - self.began - self.in_clone
            print(f"    the first {FIRST[command]}: after {seconds:.0f} s, without those of make")
        if process.returncode:
            texts = (said + errors).decode("utf-8", "replace")
            raise Deviation(f"{where}: {command} exits with {process.returncode}\n{texts}")
        if promised:
            ensure_promised(where, said.decode(), promised, self.project)

    async def _start(self, where: str, command: str, promised: str) -> None:
        """Start *command*, which serves until it is stopped; its first lines are promised."""
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
            said = [await process.stdout.readline() for _ in promised.splitlines()]
        ensure_promised(where, b"".join(said).decode(), promised, self.project)

    async def end(self) -> None:
        """Stop what is still running."""
        for process in self.background:
            process.terminate()
            await process.wait()


def model(request: Mapping[str, Any]) -> Any:
    """A model that calls the first tool that it is given once, and then is polite."""
    tools = [tool for tool in request.get("tools") or () if tool.get("name") in ARGUMENTS]
    if tools and not any(tool_results(request["messages"])):
        name = tools[0]["name"]
        return answer(tool_use(name, ARGUMENTS[name]))
    return "Hello."


ARGUMENTS: dict[str, dict[str, Any]] = {"bash": {"command": "ls"}, "read_log": {"day": 1}}
"""What the pages' tools are called with."""


def write_recordings(folder: Path) -> None:
    """Two recorded conversations, which a new user has."""
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
    """The variables of the user's shell; pip finds the wheel beside what the index has."""
    links = [str(options.wheel.parent), os.environ.get("PIP_FIND_LINKS", "")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {
        **kept,
        **servers,
        "HOME": str(options.folder.parent),
        "PATH": f"{options.environment / 'bin'}:{os.environ['PATH']}",
        "PIP_FIND_LINKS": " ".join(links),
        "PIP_QUIET": "1",
        "VIRTUAL_ENV": str(options.environment),
    }


def ensure_from_wheel(wheel: Path, python: Path) -> None:
    """Raise Deviation where what pip has installed is not what is in *wheel*."""
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".dist-info/" not in name and archive.read(name) != (packages / name).read_bytes():
                raise Deviation(f"{packages / name} is not that of {wheel}")


async def first_hour(options: argparse.Namespace) -> None:
    """Read every page. Raises Deviation."""
    async with MessagesServer(model) as messages, OpenAIServer(model) as openai:
        servers = {
            "ANTHROPIC_BASE_URL": messages.url,
            "ANTHROPIC_API_KEY": "test",
            "OPENAI_BASE_URL": openai.base_url,
            "OPENAI_API_KEY": "test",
        }
        python = options.environment / "bin" / "python"
        variables = variables_of(options, servers)
        hour = Hour(python, options.folder, options.clone, variables, options.without)
        try:
            for page in options.pages or first_hour_pages():
                print(page.name, flush=True)
                await hour.read(page)
            ensure_from_wheel(options.wheel, python)
        finally:
            await hour.end()
        refused = [*messages.refused, *openai.refused]
    if refused:
        raise Deviation(f"{len(refused)} requests were refused; the first: {refused[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("wheel", "environment", "folder", "clone"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--without", action="append", default=[], metavar="COMMAND")
    parser.add_argument("pages", nargs="*", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    try:
        asyncio.run(first_hour(options))
    except Deviation as deviation:
        raise SystemExit(f"\n{deviation}") from None
    print(f"All is as the pages say, after {(time.monotonic() - started) / 60:.0f} minutes.")


if __name__ == "__main__":
    main()
