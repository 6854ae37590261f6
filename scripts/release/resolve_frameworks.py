"""Ask pip whether ctxpipe can be installed together with frameworks and SDKs. Installs nothing.

    python scripts/release/resolve_frameworks.py                 # all of them
    python scripts/release/resolve_frameworks.py crewai litellm  # some of them
    python scripts/release/resolve_frameworks.py --write         # all, and write the documentation

pip resolves ctxpipe with one framework at a time, at the framework's newest version; otherwise pip
would choose an old version that fits. Prints a table with "yes", "no", or "unknown" (the index does
not have the framework, or it does not resolve without ctxpipe either). Exits with 1 unless all are
"yes".
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

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adapters" / "index.md"
BEGIN = "<!-- scripts/release/resolve_frameworks.py -->"
END = "<!-- end -->"
TIMEOUT_SECONDS = 600
CONFLICT = "The conflict is caused by:"

# The requirement of each framework, and the extra of ctxpipe that belongs to it.
FRAMEWORKS = {
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
class Resolution:
    """The versions that pip would install, by package; or the reason why it cannot."""

    versions: dict[str, str]
    conflict: str = ""


class Row(NamedTuple):
    """The outcome for one framework: "yes", "no", or "unknown" if ctxpipe is not the reason."""

    name: str
    extra: str
    version: str
    outcome: str
    note: str


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns the exit status."""
    names = [name for name in arguments if not name.startswith("-")]
    selected = [
        name for name in FRAMEWORKS if not names or without_extras(name) in names or name in names
    ]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        for name in selected:
            row = check_framework(name, wheel)
            rows.append(row)
            print(f"{row.name:<36}{row.version:<14}{row.outcome:<9}{row.note}", flush=True)
    yes_count = sum(row.outcome == "yes" for row in rows)
    print(f"{yes_count} of {len(rows)} resolve together with ctxpipe")
    if "--write" in arguments and not names:
        write_table(rows)
    return int(yes_count < len(rows))


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the work tree in *folder*, and return its path."""
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT), check=True)
    [wheel] = folder.glob("ctxpipe-*.whl")
    return wheel


def check_framework(name: str, wheel: Path) -> Row:
    """Resolve the newest version of the framework *name* together with *wheel*."""
    extra = FRAMEWORKS[name]
    newest = resolve(name, "--no-deps")
    if newest.conflict:
        return Row(name, extra, "", "unknown", f"not in the index: {newest.conflict}")
    [version] = newest.versions.values()
    requirement = f"{name}=={version}"
    together = resolve(requirement, f"{wheel}[{extra}]" if extra else str(wheel))
    if not together.conflict:
        sdks = [
            f"{sdk} {together.versions[sdk]}"
            for sdk in ("anthropic", "openai")
            if sdk in together.versions
        ]
        return Row(name, extra, version, "yes", ", ".join(sdks))
    alone = resolve(requirement)
    if alone.conflict:
        return Row(name, extra, version, "unknown", f"not without ctxpipe either: {alone.conflict}")
    return Row(name, extra, version, "no", together.conflict)


def resolve(*requirements: str) -> Resolution:
    """Return what pip would install for *requirements* in an empty environment."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--dry-run", "--ignore-installed", "--report", str(report))
        try:
            completed = pip("install", *options, *requirements)
        except subprocess.TimeoutExpired:
            return Resolution({}, f"no answer within {TIMEOUT_SECONDS} seconds")
        if completed.returncode:
            return Resolution({}, conflict_of(completed.stdout + completed.stderr))
        packages: Any = json.loads(report.read_text("utf-8"))["install"]
    metadata = [package["metadata"] for package in packages]
    return Resolution({facts["name"].lower(): facts["version"] for facts in metadata})


def pip(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run pip and capture its output. Raises TimeoutExpired."""
    command = [sys.executable, "-m", "pip", arguments[0], "--disable-pip-version-check"]
    return subprocess.run(
        [*command, *arguments[1:]],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=check,
    )


def conflict_of(output: str) -> str:
    """Return the reason for the failure in pip's *output*.

    For a conflict that is its first line, and the first line about ctxpipe; otherwise the error.
    """
    lines = [line.strip() for line in output.splitlines()]
    if CONFLICT in lines:
        causes = list(takewhile(bool, lines[lines.index(CONFLICT) + 1 :]))
        causes_in_ctxpipe = [line for line in causes[1:] if line.startswith("ctxpipe")]
        return "; ".join([*causes[:1], *causes_in_ctxpipe[:1]])
    for line in lines:
        if line.startswith("ERROR: "):
            return line.removeprefix("ERROR: ")[:200]
    return "pip gives no reason"


def write_table(rows: Sequence[Row]) -> None:
    """Write the table of *rows* into the documentation."""
    page = PAGE.read_text("utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{''.join(table(rows))}{END}{after}", "utf-8")


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table; frameworks with the same outcome and note share a line."""
    yield "| resolves | with | beside |\n|---|---|---|\n"
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.outcome, row.note), []).append(row)
    for (outcome, note), group in groups.items():
        names = ", ".join(f"`{row.name}` {row.version}" for row in group)
        yield f"| {outcome} | {note} | {names} |\n"


def without_extras(name: str) -> str:
    """Return the requirement *name* without its extras."""
    return re.sub(r"\[.*\]", "", name)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
