"""Real agents, each run once against a scripted API: bare, or through a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateways import key

from ctxpipe.testing import MessagesServer, Model, RequestBody, answer, text, thinking, tool_use

PACKAGES = Path(__file__).parents[1] / "clients" / "node_modules"
SECONDS = 120
ROUNDS = 4
LINES = 200
TASK = "Look around, then say done."


@dataclass(frozen=True)
class Client:
    """How an agent is run: its *binary*, the *arguments* with the task, and what it reads before.

    *configure* writes its settings into a home folder and adds to its environment; *tool* runs a
    command, and *window* is one that it cannot end its task in without help.
    """

    binary: Path
    arguments: tuple[str, ...]
    configure: Callable[[Path], Mapping[str, str]]
    tool: str
    window: int
    thinks: bool = False


def _claude(home: Path) -> Mapping[str, str]:
    return {
        "ANTHROPIC_API_KEY": key(),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


def _opencode(home: Path) -> Mapping[str, str]:
    options = {"baseURL": "{env:ANTHROPIC_BASE_URL}/v1", "apiKey": key()}
    settings = {
        "provider": {"anthropic": {"options": options}},
        "permission": "allow",
        "autoupdate": False,
        "share": "disabled",
    }
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(json.dumps(settings))
    return {}


CLIENTS: Mapping[str, Client] = {
    "claude": Client(
        PACKAGES / "@anthropic-ai/claude-code-linux-x64/claude",
        ("-p", TASK, "--allowedTools", "Bash", "--output-format", "json"),
        _claude,
        "Bash",
        24_000,
        thinks=True,
    ),
    "opencode": Client(
        PACKAGES / "opencode-linux-x64/bin/opencode",
        ("run", "-m", "anthropic/claude-opus-4-5", TASK),
        _opencode,
        "bash",
        16_000,
    ),
}


@dataclass(frozen=True)
class Run:
    """What a client has done."""

    status: int
    output: str
    error: str
    api: MessagesServer

    @property
    def refused(self) -> list[str]:
        """The rules that its requests have broken."""
        return [problem for request in self.api.requests for problem in request.problems]

    @property
    def cached(self) -> float:
        """The share of the prompts after the first that was read from the cache."""
        bills = [request.usage for request in self.api.requests if request.usage is not None]
        later = [bill for bill in bills if bill.total > bills[0].total or bill is not bills[0]]
        read = sum(bill.cache_read_input_tokens for bill in later)
        return read / sum(bill.total for bill in later)


async def run_client(name: str, home: Path, *, is_wrapped: bool, window: int = 200_000) -> Run:
    """Run the client *name* in the empty folder *home*."""
    client = CLIENTS[name]
    work = home / "work"
    work.mkdir(parents=True)
    async with MessagesServer(_script(client), model=Model(window=window)) as api:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": api.url,
            **client.configure(home),
        }
        command = [str(client.binary), *client.arguments]
        if is_wrapped:
            environment["PYTHONPATH"] = os.pathsep.join(sys.path)
            command = [sys.executable, "-m", "ctxpipe", "wrap", "--", *command]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            output, error = await asyncio.wait_for(process.communicate(), SECONDS)
        except TimeoutError:
            process.kill()
            output, error = await process.communicate()
    return Run(process.returncode or 0, output.decode(), error.decode(), api)


def _script(client: Client) -> Callable[[RequestBody], Any]:
    """A model that has two commands run at a time, a few times over, and is done."""

    def reply(body: RequestBody) -> Any:
        if not body.get("tools"):
            return "A title"
        done = _results(body) // 2
        thought = [thinking(f"round {done}")] if client.thinks else []
        if done >= ROUNDS:
            return answer(*thought, text("Done."))
        calls = [_call(client.tool, f"{side} {done}") for side in ("left", "right")]
        return answer(*thought, *calls)

    return reply


def _results(body: RequestBody) -> int:
    number = 0
    for message in body["messages"]:
        content = message["content"]
        if isinstance(content, list):
            number += sum(block.get("type") == "tool_result" for block in content)
    return number


def _call(tool: str, what: str) -> dict[str, object]:
    line = f"line $i of {what} with some words to fill it"
    command = f'for i in $(seq {LINES}); do echo "{line}"; done'
    return tool_use(tool, {"command": command, "description": what})
