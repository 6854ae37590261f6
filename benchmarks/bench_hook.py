"""Time that Claude Code waits at each tool call for the hook, a process of its own.

    python benchmarks/bench_hook.py

Limit: 200 ms. The baseline, of the same run, is a Python that does nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median
from time import perf_counter

from benchmarks.figures import add_figure, recording

RUNS = 20
LIMIT = 200  # milliseconds
HOOK = ("-m", "ctxpipe", "claude-code", "hook")
LONG = "a line of output\n" * 4_000  # 68,000 characters
SHORT = "a line of output\n"


def main() -> None:
    """Print the table."""
    print(f"median of {RUNS} processes\n")
    nothing = milliseconds(["-c", "pass"], "")
    print(f"  {'python -c pass':<28} {nothing:>6.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        show("hook, a short result", event(folder, SHORT), nothing)
        show("hook, a result to a file", event(folder, LONG), nothing)


def event(folder: str, output: str) -> str:
    """Return the event that Claude Code passes to the hook for a command with this *output*."""
    told = {
        "session_id": "job",
        "tool_use_id": "toolu_1",
        "cwd": folder,
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "make"},
        "tool_response": {"stdout": output, "stderr": ""},
    }
    return json.dumps(told)


def show(what: str, told: str, nothing: float) -> None:
    """Print how long the hook takes for what it is *told*, and whether that is within the limit."""
    taken = milliseconds(HOOK, told)
    held = "within" if taken <= LIMIT else "OVER"
    ratio = taken / nothing
    print(f"  {what:<28} {taken:>6.0f} ms, {ratio:.1f} x python -c pass; {held} {LIMIT} ms")
    add_figure(what, taken, "ms")


def milliseconds(arguments: Sequence[str], told: str) -> float:
    """The median wall time of a Python with these *arguments* that is *told* this."""
    times: list[float] = []
    for _ in range(RUNS):
        begun = perf_counter()
        subprocess.run(
            [sys.executable, *arguments], input=told, text=True, check=True, capture_output=True
        )
        times.append(perf_counter() - begun)
    return median(times) * 1e3


if __name__ == "__main__":
    with recording(__file__):
        main()
