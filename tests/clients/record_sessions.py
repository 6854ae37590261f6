"""Renew the recorded sessions of agents, which the readers of the laboratory are tested with.

    python tests/clients/record_sessions.py [NAME]...

`make record-clients` runs it. Each agent is run against a scripted API on this machine, in an empty
home folder, and leaves its session there: in tests/lab/readers/recordings. The file is the one that
the program has written, with three changes: paths of this machine are replaced, texts above
`MAX_CHARS` characters lose their end, and lists of tools keep the first.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

from clients import (  # noqa: E402
    CLIENTS,
    PROGRAMS,
    TASK,
    has_tools,
    look_around,
    only_file,
    result_count,
    run_client,
    session_file,
)
from gateways import key  # noqa: E402

from ctxpipe.testing import MessagesServer, answer_with, text, tool_use  # noqa: E402

FOLDER = TESTS / "lab" / "readers" / "recordings"
ROUNDS = 2
MAX_CHARS = 200
KEPT_CHARS = 60
COUNT = "COUNT THE FILES"
SUBAGENT_FILE = ".claude/projects/*/*/subagents/agent-*.jsonl"


def command(what: str) -> str:
    """A command with three lines of output."""
    return f"seq -f 'line %g of {what}' 3"


def delegates(name: str, delegate: dict[str, Any]) -> Callable[[Any], Any]:
    """Return the script for an agent that lets a subagent count, by the call *delegate*."""

    def reply(body: Any) -> Any:
        if not has_tools(body):
            return "A title"
        sent = json.dumps(body["messages"])
        if COUNT in sent and TASK not in sent:
            if result_count(body) == 0:
                return answer_with(CLIENTS[name].call(command("a folder")))
            return "There are three files."
        return answer_with(delegate) if result_count(body) == 0 else "Done."

    return reply


async def session(name: str, home: Path) -> bytes:
    """The session that the client *name* leaves."""
    await run(name, home)
    return await asyncio.to_thread(session_file(name), home)


async def run(name: str, home: Path, **settings: Any) -> None:
    """Run the client *name* in *home*."""
    done = await run_client(
        name, home, **({"script": look_around(CLIENTS[name], command, ROUNDS, ROUNDS)} | settings)
    )
    if done.status or done.refused:
        raise SystemExit(f"{name} has failed: {done.status} {done.refused} {done.error}")


async def claude_with_subagent(home: Path) -> None:
    """Claude Code, whose agent has a subagent count."""
    call = {"description": "Count", "prompt": COUNT, "subagent_type": "general-purpose"}
    delegate = tool_use("Agent", call | {"run_in_background": False})
    arguments = ["-p", TASK, "--allowedTools", "Bash,Agent"]
    await run("claude", home, script=delegates("claude", delegate), arguments=arguments)


async def claude_main(home: Path) -> bytes:
    await claude_with_subagent(home)
    return only_file(".claude/projects/*/*.jsonl")(home)


async def claude_subagent(home: Path) -> bytes:
    await claude_with_subagent(home)
    return only_file(SUBAGENT_FILE)(home)


async def claude_rewound(home: Path) -> bytes:
    """A session of Claude Code that is resumed at its first reply, with another prompt."""
    read = session_file("claude")

    def reply(body: Any) -> Any:
        if not has_tools(body):
            return "A title"
        words = json.dumps(body["messages"])
        said = [word for word in ("The one of the shop.", "TAKEN BACK", TASK) if word in words]
        return {TASK: "Which folder?", "TAKEN BACK": "TAKEN BACK"}.get(said[0], "Done.")

    async with MessagesServer(reply) as api:  # one for all, so that no two replies have an id
        await run("claude", home, running=api)
        lines = [json.loads(line) for line in read(home).splitlines()]
        [first] = [line for line in lines if line["type"] == "assistant"]
        resume = ["--resume", first["sessionId"]]
        await run("claude", home, running=api, arguments=[*resume, "-p", "TAKEN BACK"])
        back = [*resume, "--resume-session-at", first["uuid"], "-p", "The one of the shop."]
        await run("claude", home, running=api, arguments=back)
    return read(home)


async def copilot_subagent(home: Path) -> bytes:
    """A session of Copilot CLI whose agent has a subagent count; it is one file."""
    call = {"description": "Count", "name": "count", "prompt": COUNT, "mode": "sync"}
    delegate = tool_use("task", call | {"agent_type": "general-purpose"})
    await run("copilot", home, script=delegates("copilot", delegate))
    return session_file("copilot")(home)


async def mini_with_tools(home: Path) -> bytes:
    """A trajectory of mini-swe-agent with tool calls, which is its default."""
    commands = [command("it"), "printf 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\nDone.\\n'"]
    script = [answer_with(text("A look."), tool_use("bash", {"command": one})) for one in commands]
    arguments = ["-c", "mini.yaml", "-m", "openai/gpt-5.2", "-y", "--exit-immediately", "-t", TASK]
    await run("mini-swe-agent", home, script=script, arguments=arguments)
    return session_file("mini-swe-agent")(home)


def traced(form: str) -> Callable[[Path], Awaitable[bytes]]:
    """The spans of an agent of Pydantic AI, in one of the forms of traced_agent.py."""

    async def spans(home: Path) -> bytes:
        first = [tool_use("bash", {"command": command(side)}) for side in ("left", "right")]
        second = [text("A look."), tool_use("bash", {"command": command("all")})]
        file = home / "spans"
        script: list[Any] = [answer_with(*first), answer_with(*second), "Done."]
        async with MessagesServer(script) as api:
            environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": key()}
            process = await asyncio.create_subprocess_exec(
                str(PROGRAMS / "python"),
                str(TESTS / "clients" / "traced_agent.py"),
                *(TASK, str(file), form),
                env={"PATH": os.environ["PATH"], "HOME": str(home), **environment},
            )
            if await process.wait():
                raise SystemExit("the traced agent has failed")
        return file.read_bytes()

    return spans


def plain(name: str) -> Callable[[Path], Awaitable[bytes]]:
    return lambda home: session(name, home)


SESSIONS: Mapping[str, Callable[[Path], Awaitable[bytes]]] = {
    "claude.jsonl": plain("claude"),
    "claude-main.jsonl": claude_main,
    "claude-subagent.jsonl": claude_subagent,
    "claude-rewound.jsonl": claude_rewound,
    "codex.jsonl": plain("codex"),
    "opencode.json": plain("opencode"),
    "gemini.jsonl": plain("gemini"),
    "copilot.jsonl": plain("copilot"),
    "copilot-chat.jsonl": plain("copilot-chat"),
    "copilot-subagent.jsonl": copilot_subagent,
    "pi.jsonl": plain("pi"),
    "mini-swe-agent.json": plain("mini-swe-agent"),
    "mini-swe-agent-tools.json": mini_with_tools,
    "spans-otlp.jsonl": traced("otlp"),
    "spans-console.json": traced("console"),
}


# What is changed in a file ------------------------------------------------------------------------


def anonymous(raw: bytes, home: Path) -> str:
    """The session *raw* without paths of this machine, and with short texts."""
    written = raw.decode()
    work = home / "work"
    replaced = {
        str(work): "/tmp/project",
        str(work).replace("/", "-"): "-tmp-project",
        str(home): "/home/user",
        str(PROGRAMS.parent): "/usr/local",
        platform.release(): "6.0.0",
        platform.node(): "machine",
    }
    for found, name in replaced.items():
        written = written.replace(found, name)
    try:
        return json.dumps(short(json.loads(written)), ensure_ascii=False, indent=1) + "\n"
    except json.JSONDecodeError:
        pass
    values = []
    decoder = json.JSONDecoder()
    while written.strip():
        value, end = decoder.raw_decode(written.lstrip())
        values.append(short(value))
        written = written.lstrip()[end:]
    is_lines = "\n{" in raw.decode() and not raw.startswith(b"{\n")
    indent = None if is_lines or raw.startswith(b'{"') else 4
    lines = [json.dumps(value, ensure_ascii=False, indent=indent) for value in values]
    return "\n".join(lines) + "\n"


def short(value: Any) -> Any:
    """*value* with texts of at most `MAX_CHARS` characters."""
    if isinstance(value, dict):
        return {name: short(cut_tools(name, one)) for name, one in value.items()}
    if isinstance(value, list):
        return [short(one) for one in value]
    if not isinstance(value, str) or len(value) <= MAX_CHARS:
        return value
    if value[0] in "{[":
        try:
            return json.dumps(short(json.loads(value)))
        except ValueError:
            pass
    return f"{value[:KEPT_CHARS]}… {{{{{len(value)} characters}}}}"


def cut_tools(name: str, value: Any) -> Any:
    return value[:1] if name == "tools" and isinstance(value, list) else value


async def main(names: list[str]) -> None:
    """Record the sessions of these *names*, one after the other."""
    FOLDER.mkdir(exist_ok=True)
    for name in names or SESSIONS:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            written = anonymous(await SESSIONS[name](home), home)
        (FOLDER / name).write_text(written, encoding="utf-8")
        print(f"{name}: {len(written):,} characters")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
