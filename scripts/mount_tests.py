"""Test each mount in an environment of its own, with the oldest and the newest version it allows.

    python scripts/mount_tests.py                    # every mount
    python scripts/mount_tests.py openai langchain   # these
    python scripts/mount_tests.py --examples         # run their examples instead
    python scripts/mount_tests.py --together         # all in one environment, with every extra

Prints a table: what each framework does with ctxpipe, or why it cannot; then what the same agent
sends bare and with ctxpipe. Exits 1 when a test has failed or was skipped, a column has no test, or
an example has failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET  # the file is pytest's own
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv" / "adapters"
TOOLS = ("pytest>=8.3", "hypothesis>=6.130", "blockbuster>=1.5.27")


@dataclass(frozen=True)
class Mount:
    """A mount: its *package*, the *oldest* version, and what its tests need beside it.

    *cannot* says why the framework cannot do what some columns ask for. A framework on the openai
    SDK has a *row* in the page's table, by whose name it is found there, and shares its tests.
    """

    name: str
    package: str
    oldest: str
    extra: str = ""
    beside: tuple[str, ...] = ()
    cannot: tuple[tuple[tuple[str, ...], str], ...] = ()
    row: str = ""

    @property
    def tests(self) -> list[str]:
        """Where its tests are."""
        name = self.name.replace("-", "_")
        if self.row and not (ROOT / "tests" / "adapters" / f"test_{name}.py").exists():
            name = "frameworks"
        return sorted(map(str, (ROOT / "tests" / "adapters").glob(f"test_{name}*.py")))


# Of a test's name: the column that it proves.
COLUMNS = {
    "rounds": ("rounds", "whatever_was_said", "tool_runner_works"),
    "store": ("store_keeps", "callers_history_stays"),
    "placeholders": ("placeholders", "go_to_files", "goes_to_a_file", "read_and_searched"),
    "signatures": ("signature", "thinking"),
    "usage": ("usage", "billed", "learns"),
    "overflow": ("overflow", "too_long", "recover"),
    "streamed": ("stream",),
    "sub-agent": ("sub_agent", "side_question"),
    "resumed": ("new_process", "another_process", "journal"),
}
MOUNTS = (
    Mount("anthropic", "anthropic", "2.11.0", beside=("anthropic[bedrock,vertex]",)),
    Mount("openai", "openai", "1.66.2", "openai"),  # from 1.60 on without responses
    Mount(
        "mcp",
        "mcp",
        "2.0.0",
        "mcp",
        cannot=(
            (
                tuple(column for column in COLUMNS if column != "placeholders"),
                "it reads what was offloaded, and sees no conversation",
            ),
        ),
    ),
    Mount(
        "langchain",
        "langchain",
        "1.3.0",
        "langchain",
        beside=(
            "langchain-openai",
            "langchain-anthropic",
            "langchain-google-genai",
            "langchain-deepseek",
            "langchain-openrouter",
            "langgraph",
        ),
    ),
    Mount(
        "deepagents",
        "deepagents",
        "0.7.0",
        "langchain",
        beside=("langchain-openai", "langchain-anthropic", "langgraph"),
    ),
    Mount(
        "pydantic-ai",
        "pydantic-ai-slim",
        "2.64.0",
        "pydantic-ai",
        beside=("openai", "google-genai"),
    ),
    Mount(
        "litellm",
        "litellm",
        "1.83.0",
        "litellm",
        cannot=((("overflow",), "only the caller's next attempt: no hook sends again"),),
    ),
    Mount("google-genai", "google-genai", "2.20.0", "gateway", beside=("google-genai",)),
    Mount(
        "google-adk",
        "google-adk",
        "2.0.0",
        "gateway",
        beside=("google-adk",),
        cannot=((("usage", "sub-agent", "resumed"), "as google-genai, which it asks by"),),
    ),
    Mount("openai-agents", "openai-agents", "0.20.0", "openai", row="OpenAI Agents SDK"),
    Mount("crewai", "crewai", "1.15.30", "openai", row="CrewAI"),
    Mount(
        "llama-index",
        "llama-index-core",
        "0.14.25",
        "openai",
        beside=("llama-index-llms-openai",),
        row="LlamaIndex",
    ),
    Mount(
        "autogen",
        "autogen-agentchat",
        "0.7.5",
        "openai",
        beside=("autogen-ext[openai]",),
        row="AutoGen",
    ),
    Mount(
        "agent-framework",
        "agent-framework-core",
        "1.23.0",
        "openai",
        beside=("agent-framework-openai",),
        row="agent-framework",
    ),
    Mount(
        "smolagents",
        "smolagents",
        "1.24.0",
        "openai",
        cannot=(
            (
                ("placeholders", "signatures", "usage", "sub-agent", "resumed"),
                "it says calls and results as texts",
            ),
        ),
        row="smolagents",
    ),
    Mount("strands", "strands-agents", "1.58.0", "openai", row="Strands"),
    Mount("haystack", "haystack-ai", "3.1.1", "openai", row="Haystack"),
    Mount("ag2", "ag2", "1.1.0", "openai", row="AG2"),
)


EXAMPLES = {
    "anthropic": "anthropic_runner",
    "openai": "openai_chat",
    "mcp": "mcp_reader",
    "langchain": "langchain_agent",
    "pydantic-ai": "pydantic_ai_agent",
    "litellm": "litellm_calls",
}
SHELL = ROOT / "examples" / "mounts" / "claude_code.sh"


def main(arguments: Sequence[str]) -> int:
    """The command; its exit code."""
    names = [name for name in arguments if not name.startswith("-")]
    if "--examples" in arguments:
        return run_examples(names)
    if "--together" in arguments:
        return run_together()
    return run_tests(names)


def run_examples(names: Sequence[str]) -> int:
    """Run the examples of the mounts with these *names*, or all; 1 when one has failed."""
    failed = 0
    python = sys.executable
    for mount in MOUNTS:
        if mount.name in EXAMPLES and (not names or mount.name in names):
            python = environment(mount, "newest")
            print(f"== {mount.name}", flush=True)
            module = f"examples.mounts.{EXAMPLES[mount.name]}"
            done = subprocess.run([python, "-m", module], cwd=ROOT, check=False)
            failed |= done.returncode
    if not names or "claude-code" in names:
        print("== claude-code", flush=True)
        settings = {**os.environ, "PYTHON": python}
        failed |= subprocess.run(["sh", SHELL], cwd=ROOT, check=False, env=settings).returncode
    return int(bool(failed))


def run_tests(names: Sequence[str]) -> int:
    """Test the mounts with these *names*, or all; 1 when a test has failed or was skipped."""
    chosen = [mount for mount in MOUNTS if not names or mount.name in names]
    print(f"{'mount':<14}{'version':<10}", *(f"{column:<13}" for column in COLUMNS), "tests")
    failed = False
    for mount in chosen:
        for which in ("oldest", "newest"):
            cells, tests, is_green = row(mount, which)
            failed = failed or not is_green
            print(f"{mount.name:<14}{version(mount, which):<10}", *cells, tests, flush=True)
    for mount in chosen:
        for columns, why in mount.cannot:
            print(f"{mount.name}, {', '.join(columns)}: {why}")
    print()
    compared = [compare(mount) for mount in chosen if is_compared(mount)]
    return int(failed or not all(compared))


def is_compared(mount: Mount) -> bool:
    """Whether the benchmark of the mounts has an agent for *mount*."""
    return mount.name != "mcp" and mount.extra != "gateway" and not mount.row


def compare(mount: Mount) -> bool:
    """Print what the newest version sends bare, and with ctxpipe; whether that could be run."""
    command = [environment(mount, "newest"), str(ROOT / "benchmarks" / "bench_mounts.py")]
    return subprocess.run([*command, mount.name], cwd=ROOT, check=False).returncode == 0


def run_together() -> int:
    """Test all mounts beside each other, and list what each extra brings; 1 when one has failed."""
    mounts = [mount for mount in MOUNTS if not mount.row]  # these want different SDKs
    beside = sorted({package for mount in mounts for package in mount.beside})
    python = make_environment("together", [*beside, "deepagents"], "all,testing")
    checks = (["-m", "pip", "check"], [str(ROOT / "scripts" / "list_licenses.py")])
    failed = 0
    for check in checks:
        failed |= subprocess.run([python, *check], cwd=ROOT, check=False).returncode
    for mount in mounts:
        outcomes = run_mount(python, mount, "together")
        passed = sum(outcome for _, outcome in outcomes)
        print(f"{mount.name:<14}{passed}/{len(outcomes)} tests", flush=True)
        failed |= not 0 < passed == len(outcomes)
    return int(bool(failed))


def row(mount: Mount, which: str) -> tuple[list[str], str, bool]:
    """What the tests of *mount* have shown, by column, and in one word."""
    python = environment(mount, which)
    outcomes = run_mount(python, mount, which)
    impossible = {column for columns, _ in mount.cannot for column in columns}
    cells: list[str] = []
    for column, words in COLUMNS.items():
        own = [passed for name, passed in outcomes if any(word in name for word in words)]
        cells.append(cell(own, is_possible=column not in impossible))
    passed = sum(passed for _, passed in outcomes)
    is_green = 0 < passed == len(outcomes) and "MISSING" not in cells
    return [f"{text:<13}" for text in cells], f"{passed}/{len(outcomes)}", is_green


def run_mount(python: str, mount: Mount, which: str) -> list[tuple[str, bool]]:
    """The name of each test of *mount*, and whether it has passed; a failure is printed."""
    report = FOLDER / f"{mount.name}-{which}.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *mount.tests]
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [python, "-m", "pytest", *options], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
    return list(read(report))


def cell(outcomes: Sequence[bool], *, is_possible: bool) -> str:
    """What the tests of a column have shown; "—" where the framework cannot do what it asks for."""
    if outcomes:
        return "green" if all(outcomes) else "FAILED"
    return "MISSING" if is_possible else "—"


def read(report: Path) -> Iterator[tuple[str, bool]]:
    """The name of each test, and whether it has passed; one that was skipped has not."""
    if not report.exists():
        return
    for case in ET.parse(report).iter("testcase"):  # noqa: S314
        bad = any(child.tag in ("failure", "error", "skipped") for child in case)
        yield str(case.get("name")), not bad


def environment(mount: Mount, which: str) -> str:
    """The Python of the environment of *mount*, made where there is none."""
    wanted = mount.package if which == "newest" else f"{mount.package}=={mount.oldest}"
    extras = ",".join(filter(None, ("testing", mount.extra)))
    return make_environment(f"{mount.name}-{which}", [*mount.beside, wanted], extras)


def make_environment(name: str, packages: Sequence[str], extras: str) -> str:
    """The Python of the environment *name* with *packages*, made where there is none."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if stamp.exists():
        return str(python)
    venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    needed = [*TOOLS, *packages, "--editable", f".[{extras}]"]
    subprocess.run([*install, *needed], cwd=ROOT, check=True)
    stamp.touch()
    return str(python)


def version(mount: Mount, which: str) -> str:
    """The version of the package of *mount* that is installed."""
    code = f"from importlib.metadata import version; print(version({mount.package!r}))"
    python = FOLDER / f"{mount.name}-{which}" / "bin" / "python"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
