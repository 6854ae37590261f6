"""``scripts/trace_turn.py`` counts calls as its description says."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import ROOT

from ctxpipe._threads.threads import in_thread
from ctxpipe.messages import is_bulky
from scripts.trace_turn import Trace, is_upward, layer_heights, lines_of

HEIGHTS = layer_heights([["session"], ["turn"], ["stages", "journal"], ["messages", "_threads"]])


@pytest.mark.parametrize(
    ("caller", "callee", "upward"),
    [
        ("session/session.py", "turn/align.py", False),
        ("turn/align.py", "turn/stages.py", False),
        ("stages/offload/stage.py", "turn/state.py", True),
        ("stages/offload/stage.py", "journal/timeline.py", False),
        ("messages/facts.py", "session/session.py", True),
        ("session/session.py", "__init__.py", True),
    ],
)
def test_a_call_is_upward_if_the_package_called_is_in_a_higher_layer(
    caller: str, callee: str, upward: bool
):
    assert is_upward(caller, callee, HEIGHTS) is upward


async def test_a_coroutine_that_waits_is_one_call():
    trace = Trace(HEIGHTS)

    with trace:
        await in_thread(str)

    assert trace.call_counts["_threads/threads.py"] == len(
        [function for function in trace.functions if function.startswith("_threads/threads.py")]
    )
    assert "_threads/threads.py: in_thread" in trace.functions


def test_only_calls_between_the_beginning_and_the_end_of_a_trace_count():
    trace = Trace(HEIGHTS)

    with trace:
        pass
    is_bulky([])

    assert trace.figures["calls"] == 0


def test_the_longest_chain_begins_with_the_function_that_was_called_first():
    trace = Trace(HEIGHTS)

    with trace:
        is_bulky([{"role": "user", "content": "a"}])

    assert trace.longest_chain[0] == "_threads/bulk.py: is_bulky"
    assert trace.figures["deep"] == len(trace.longest_chain)


def test_names_are_printed_on_request():
    trace = Trace(HEIGHTS)
    with trace:
        is_bulky([])

    short = lines_of("run", trace, with_names=False)
    long = lines_of("run", trace, with_names=True)

    assert long[: len(short)] == short
    assert "    _threads/bulk.py: is_bulky" in long


def test_an_unknown_mode_is_an_error_that_names_the_modes():
    command = [sys.executable, "scripts/trace_turn.py", "fly"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert "unknown mode 'fly': choose from run, create, gateway" in ran.stderr
