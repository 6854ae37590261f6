"""A conversation with texts that govern an agent, and a file of orders for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from histories import assistant, conversation, step, text, tool_result, tool_use, user

from ctxpipe.messages import Message

SKILL = "Base directory for this skill: /skills/release\n\n" + "\n".join(
    f"Rule {n}: never push tag number {n} before the changelog names it." for n in range(12)
)
PLAN = "# The plan\n" + "\n".join(f"{n}. Migrate table number {n} of the store." for n in range(12))
PROHIBITION = "Never force-push to the main branch."
JOB = "bx7f2q9"
ERROR = "AssertionError: the tag must not be pushed twice"


def rules_conversation(calls: int = 40, lines: int = 60) -> list[Message]:
    """Return a conversation of *calls* replies: skill, plan, job and error first, then views."""
    parts: list[Any] = [
        user(f"Release the next version. {PROHIBITION}"),
        assistant(tool_use("t0", "Skill", {"skill": "release"})),
        user(tool_result("t0", "Launching skill: release"), text(SKILL)),
        step("t1", "ExitPlanMode", {"plan": PLAN}, "User has approved your plan."),
        step(
            "t2",
            "Bash",
            {"command": "npm run dev"},
            f"Command running in background with ID: {JOB}",
        ),
        assistant(tool_use("t3", "Bash", {"command": "pytest -q"})),
        user(tool_result("t3", f"F\n{ERROR}", is_error=True)),
    ]
    for number in range(4, calls - 2):
        content = "\n".join(f"value_{number}_{k} = compute_{k}()" for k in range(lines))
        parts.append(step(f"t{number}", "Bash", {"command": f"cat src/file{number}.py"}, content))
    parts.append(step("t-again", "Bash", {"command": "pytest -q"}, "1 passed"))
    parts.append(step("t-job", "BashOutput", {"bash_id": JOB}, "listening"))
    return conversation(*parts)


def write_recording(folder: Path, name: str = "session", calls: int = 40) -> Path:
    """Write the conversation to a file in *folder*, and return its path."""
    path = folder / f"{name}.jsonl"
    lines = [json.dumps(message) for message in rules_conversation(calls)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def order_line(**changes: Any) -> dict[str, Any]:
    """Return an order for the conversation, with *changes*; a value of None removes the key."""
    order: dict[str, Any] = {
        "transcript": "session",
        "kind": "prohibition",
        "from_call": 0,
        "until_call": 38,
        "lines": [PROHIBITION],
        **changes,
    }
    return {key: value for key, value in order.items() if value is not None}


def write_orders(folder: Path, *orders: Mapping[str, Any]) -> Path:
    """Write *orders* to a file in *folder*, and return its path."""
    path = folder / "orders.txt"
    path.write_text("\n".join(json.dumps(order) for order in orders), "utf-8")
    return path
