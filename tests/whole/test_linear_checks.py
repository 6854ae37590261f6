"""To check, repair and scan a history takes work in proportion to its length, counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from histories import MARK, assistant, system, text, tool_result, tool_use, user
from recorded import NIGHTLY

from ctxpipe.functions.offload import offloadable, scan_of
from ctxpipe.messages import Message, check
from ctxpipe.turn.repair import repair

SHORT, LONG = (30, 120) if NIGHTLY else (15, 60)


def instructions(work: Callable[[], object]) -> int:
    """The bytecode instructions that *work* takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


# Python 3.12 counts no instruction of the first work that is traced.
instructions(lambda: None)


def server_use(number: int) -> dict[str, Any]:
    return {
        "type": "server_tool_use",
        "id": f"srvtoolu_{number}",
        "name": "web_search",
        "input": {"query": "x"},
    }


def server_result(number: int) -> dict[str, Any]:
    return {
        "type": "web_search_tool_result",
        "tool_use_id": f"srvtoolu_{number}",
        "content": [],
    }


def program_call(number: int, program: int) -> dict[str, Any]:
    caller = {"type": "code_execution_20250825", "tool_id": f"srvtoolu_{program}"}
    return {**tool_use(f"p{number}"), "caller": caller}


def calls(number: int, name: str = "p{}") -> Message:
    return assistant(*(tool_use(name.format(index)) for index in range(number)))


def results(number: int, name: str = "p{}", *, is_error: bool = False) -> Message:
    names = [name.format(index) for index in range(number)]
    return user(*(tool_result(one, "yes", is_error=is_error) for one in names))


def search_loop(number: int, *, answered: bool) -> list[Message]:
    """A turn of many messages, with a call of a server tool in each of the assistant's."""
    messages: list[Message] = [user("go")]
    for index in range(number):
        blocks = [server_use(index)]
        if answered:
            blocks.append(server_result(index))
        messages += [assistant(*blocks, tool_use(f"t{index}")), user(tool_result(f"t{index}"))]
    return [*messages, user("more")]


def programs(number: int) -> list[Message]:
    """Calls of a program which the user, in many messages, does not answer."""
    called = [program_call(index, 0) for index in range(number)]
    return [user("go"), assistant(server_use(0), *called), *[user("and") for _ in called]]


SHAPES: dict[str, Callable[[int], list[Message]]] = {
    "valid calls": lambda number: [user("go"), calls(number), results(number)],
    "calls without results": lambda number: [user("go"), calls(number), user("go")],
    "results without calls": lambda number: [user("go"), assistant("x"), results(number)],
    "calls of one id": lambda number: [user("go"), calls(number, "p"), results(number, "p")],
    "failed results of one id": lambda number: [
        user("go"),
        calls(number, "p"),
        results(number, "p", is_error=True),
    ],
    "ids that look like numbered ones": lambda number: [
        user("go"),
        assistant(
            *(tool_use(f"p-{index}") for index in range(number)), *calls(number, "p")["content"]
        ),
        user("go"),
    ],
    "user messages in a row": lambda number: [user("go")] * number,
    "replies in a row": lambda number: [user("go"), *[assistant("x") for _ in range(number)]],
    "system messages in a row": lambda number: [
        user("go"),
        assistant("x"),
        *[system("be brief") for _ in range(number)],
        user("go"),
    ],
    "server tools in one turn": lambda number: search_loop(number, answered=True),
    "unanswered server tools in one turn": lambda number: search_loop(number, answered=False),
    "orphaned results of server tools": lambda number: [
        user("go"),
        *[assistant(server_result(index), "x") for index in range(number)],
    ],
    "calls of a program": programs,
    "cache marks in one message": lambda number: [
        user(*({**text("x"), **MARK} for _ in range(number)))
    ],
    "cache marks in one result": lambda number: [
        user("go"),
        assistant(tool_use("a")),
        user(tool_result("a", [{**text("x"), **MARK} for _ in range(number)])),
    ],
    "empty replies": lambda number: [
        user("go"),
        *[assistant("") for _ in range(number)],
        user("x"),
    ],
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_history_four_times_as_long_is_checked_with_four_times_the_work(
    shape: Callable[[int], list[Message]],
):
    short, long = (instructions(lambda n=n: check(shape(n))) for n in (SHORT, LONG))  # type: ignore[misc]

    assert long < 5 * short


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_history_four_times_as_long_is_repaired_with_four_times_the_work(
    shape: Callable[[int], list[Message]],
):
    short, long = (instructions(lambda n=n: repair(shape(n))) for n in (SHORT, LONG))  # type: ignore[misc]

    assert long < 5 * short
    assert check(repair(shape(LONG))) == []


def test_a_history_four_times_as_long_is_scanned_for_results_with_four_times_the_work():
    def scan(number: int) -> None:
        history = [user("go"), calls(number), results(number)]
        scan_of(history, offloadable(history, 1))

    short, long = (instructions(lambda n=n: scan(n)) for n in (SHORT, LONG))  # type: ignore[misc]

    assert long < 5 * short
