"""Ask pip whether ctxpipe can be installed beside frameworks and SDKs; nothing is installed.

    python scripts/resolves.py                 # every one of them
    python scripts/resolves.py crewai litellm  # these
    python scripts/resolves.py --write         # every one, and the table of the documentation

Each is asked for alone, at its newest version: without that pip would find some old one that fits
anything. Prints a table; exits 1 unless each resolves. One that the index does not have, or that
does not resolve without ctxpipe either, is said to be so, and is no yes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "mounts" / "index.md"
BEGIN, END = "<!-- scripts/resolves.py -->", "<!-- end -->"
SECONDS = 600
CONFLICT = "The conflict is caused by:"

# What is installed beside ctxpipe, with the extra of ctxpipe that belongs to it.
BESIDE = {
    "ag2[openai,anthropic]": "openai",
    "agent-framework-core": "openai",
    "aider-chat": "openai",
    "autogen-agentchat": "openai",
    "browser-use": "openai",
    "claude-agent-sdk": "",
    "crewai": "openai",
    "deepagents": "langchain",
    "google-adk": "",
    "google-genai": "",
    "haystack-ai": "openai",
    "langchain": "langchain",
    "langgraph": "langchain",
    "litellm": "litellm",
    "llama-index-llms-openai": "openai",
    "mcp": "mcp",
    "openai-agents": "openai",
    "pydantic-ai-slim[anthropic,openai]": "pydantic-ai",
    "smolagents[openai]": "openai",
    "strands-agents[anthropic,openai]": "openai",
}


@dataclass(frozen=True)
class Answer:
    """What pip has said: the *versions* that it would install, or *why* it cannot."""

    versions: dict[str, str]
    why: str = ""


class Row(NamedTuple):
    """What came out for one *name*: "yes", "no", or "unknown" where ctxpipe is not the reason."""

    name: str
    extra: str
    version: str
    outcome: str
    note: str


def main(arguments: Sequence[str]) -> int:
    """The command; its exit code."""
    names = [name for name in arguments if not name.startswith("-")]
    chosen = [name for name in BESIDE if not names or bare(name) in names or name in names]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        for name in chosen:
            row = ask(name, wheel)
            rows.append(row)
            print(f"{row.name:<36}{row.version:<14}{row.outcome:<9}{row.note}", flush=True)
    agreed = sum(row.outcome == "yes" for row in rows)
    print(f"{agreed} of {len(rows)} resolve beside ctxpipe")
    if "--write" in arguments and not names:
        write(rows)
    return int(agreed < len(rows))


def build(folder: Path) -> Path:
    """The wheel of ctxpipe, from the tree, in *folder*."""
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT), check=True)
    [wheel] = folder.glob("ctxpipe-*.whl")
    return wheel


def ask(name: str, wheel: Path) -> Row:
    """Whether the newest version of *name* resolves beside the *wheel*."""
    extra = BESIDE[name]
    newest = resolve(name, "--no-deps")
    if newest.why:
        return Row(name, extra, "", "unknown", f"not in the index: {newest.why}")
    [version] = newest.versions.values()
    pinned = f"{name}=={version}"
    together = resolve(pinned, f"{wheel}[{extra}]" if extra else str(wheel))
    if not together.why:
        sdks = [
            f"{sdk} {together.versions[sdk]}"
            for sdk in ("anthropic", "openai")
            if sdk in together.versions
        ]
        return Row(name, extra, version, "yes", ", ".join(sdks))
    alone = resolve(pinned)
    if alone.why:
        return Row(name, extra, version, "unknown", f"not without ctxpipe either: {alone.why}")
    return Row(name, extra, version, "no", together.why)


def resolve(*wanted: str) -> Answer:
    """What pip would install, in an environment that has nothing yet, for what is *wanted*."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--dry-run", "--ignore-installed", "--report", str(report))
        try:
            done = pip("install", *options, *wanted)
        except subprocess.TimeoutExpired:
            return Answer({}, f"no answer within {SECONDS} seconds")
        if done.returncode:
            return Answer({}, reason(done.stdout + done.stderr))
        found: Any = json.loads(report.read_text("utf-8"))["install"]
    return Answer({item["metadata"]["name"].lower(): item["metadata"]["version"] for item in found})


def pip(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """What pip has said."""
    command = [sys.executable, "-m", "pip", arguments[0], "--disable-pip-version-check"]
    return subprocess.run(
        [*command, *arguments[1:]], capture_output=True, text=True, timeout=SECONDS, check=check
    )


def reason(output: str) -> str:
    """Of a conflict in pip's *output* the first line, and the first of ctxpipe; else the error."""
    lines = [line.strip() for line in output.splitlines()]
    if CONFLICT in lines:
        caused = list(takewhile(bool, lines[lines.index(CONFLICT) + 1 :]))
        ours = [line for line in caused[1:] if line.startswith("ctxpipe")]
        return "; ".join([*caused[:1], *ours[:1]])
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return errors[0].removeprefix("ERROR: ")[:200] if errors else "pip gives no reason"


def write(rows: Sequence[Row]) -> None:
    """Put the table of the *rows* into the documentation."""
    page = PAGE.read_text("utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{''.join(table(rows))}{END}{after}", "utf-8")


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table of the *rows*."""
    yield "| resolves | with | beside |\n|---|---|---|\n"
    outcomes: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        outcomes.setdefault((row.outcome, row.note), []).append(row)
    for (outcome, note), group in outcomes.items():
        names = ", ".join(f"`{row.name}` {row.version}" for row in group)
        yield f"| {outcome} | {note} | {names} |\n"


def bare(name: str) -> str:
    """*name* without its extras."""
    return re.sub(r"\[.*\]", "", name)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
