"""The documentation is run: its examples, against a scripted API on a socket.

`test_feature_pages` compares its settings with the code.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from histories import conversation, step, user
from places import ROOT
from processes import prepared_python
from sdks import needs_middleware

from ctxpipe.config import read_config
from ctxpipe.messages import compact_json, tool_results
from ctxpipe.testing import MessagesServer, OpenAIServer, answer_with, tool_use
from scripts.pages import Block, Prompt, blocks_of

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = [block for block in BLOCKS if block.mark is None]


def each(blocks: list[Block]) -> Any:
    return pytest.mark.parametrize("block", blocks, ids=[block.where for block in blocks])


@pytest.fixture(autouse=True, scope="module")
def nothing_blocks_the_loop() -> None:
    """Not here: a page sets things up at a prompt, where the loop waits for the reader anyway."""


def test_no_block_escapes_the_tests():
    fences = sum(page.read_text("utf-8").count("```") for page in PAGES)

    assert fences == 2 * len(BLOCKS) > 0
    assert {block.kind for block in BLOCKS} <= {"python", "console", "toml", "text"}


def test_the_programs_are_well_formatted_and_narrow_enough_for_a_page(tmp_path):
    written = [block for block in BLOCKS if block.kind == "python" and block.mark != "not run"]
    for number, block in enumerate(written):
        (tmp_path / f"{block.page.stem}_{block.line}_{number}.py").write_text(block.code, "utf-8")
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--isolated",
        "--check",
        "--diff",
        str(tmp_path),
    ]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


# Python -------------------------------------------------------------------------------------------


def model(request: Mapping[str, Any]) -> Any:
    """A model that looks at the folder once, where it is given a shell, and then is polite."""
    has_shell = any(tool.get("name") == "bash" for tool in request.get("tools") or ())
    if has_shell and not any(tool_results(request["messages"])):
        return answer_with(tool_use("bash", {"command": "ls"}))
    return "Hello."


def environment_of(server: MessagesServer, openai: OpenAIServer) -> dict[str, str]:
    """What a reader has set, with the servers in the place of the APIs."""
    return {
        **os.environ,
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "test",
        "OPENAI_BASE_URL": openai.base_url,
        "OPENAI_API_KEY": "test",
    }


async def run_at_a_prompt(blocks: Iterable[Block], folder: Path):
    async with (
        MessagesServer(model) as server,
        OpenAIServer(model) as openai,
        Prompt(folder, environment_of(server, openai), prepared_python()) as prompt,
    ):
        for block in blocks:
            await prompt.run(block)
    assert not server.refused
    assert not openai.refused


@each([block for block in RUN if block.is_program])
async def test_a_program_runs_as_it_stands_and_prints_what_the_page_says(block: Block, tmp_path):
    await run_at_a_prompt([block], tmp_path)


SESSIONS = sorted({block.page for block in RUN if block.kind == "python" and not block.is_program})


def each_page(pages: list[Path]) -> Any:
    marks = {"middleware.md": [needs_middleware]}
    return pytest.mark.parametrize(
        "page", [pytest.param(it, id=it.name, marks=marks.get(it.name, [])) for it in pages]
    )


@each_page(SESSIONS)
async def test_the_examples_of_a_page_run_in_order_and_print_what_the_page_says(
    page: Path, tmp_path
):
    examples = [b for b in RUN if b.page == page and b.kind == "python" and not b.is_program]
    await run_at_a_prompt(examples, tmp_path)


# The shell ----------------------------------------------------------------------------------------

COMMANDS = [
    (block.where, line.removeprefix("$ ").partition("  #")[0].strip())
    for block in RUN
    if block.kind == "console"
    for line in block.code.splitlines()
    if line.startswith("$ ")
]


BILL = {
    "usage": {
        "input_tokens": 9,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 9_000,
    }
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded session and a storage, as the pages name them.

    With a second session, each command would start processes, which tests/test_cli.py covers.
    """
    folder = tmp_path_factory.mktemp("recordings")
    steps = (
        step(f"call{n}", "bash", {"command": f"step {n}"}, f"line {n}\n" * 900) for n in range(4)
    )
    lines = []
    for message in conversation(user("Go."), *steps):
        bill = BILL if message["role"] == "assistant" else {}
        lines.append(compact_json({**message, **bill}) + "\n")
    (folder / "session.jsonl").write_text("".join(lines), "utf-8")
    order = {"transcript": "session", "kind": "finding", "at_call": 3, "lines": ["line 1"]}
    (folder / "orders.ndjson").write_text(compact_json(order), "utf-8")
    (folder / ".ctxpipe").mkdir()
    (folder / "mine.toml").write_text(
        next(block.code for block in RUN if "[[stage]]" in block.code), "utf-8"
    )
    return folder


@pytest.mark.parametrize(
    "command", dict.fromkeys(c for _, c in COMMANDS if c.startswith("ctxpipe "))
)
def test_a_command_of_ours_runs(command: str, recordings, tmp_path):
    program = tmp_path / "ctxpipe"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(prepared_python())} -m ctxpipe "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    # By a shell, as a reader would: it expands the patterns.
    done = subprocess.run(  # noqa: S602
        command,
        shell=True,
        check=False,
        cwd=recordings,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("where", "command"), [pair for pair in COMMANDS if not pair[1].startswith("ctxpipe ")]
)
def test_any_other_command_names_what_exists(where: str, command: str):
    word, *rest = shlex.split(command)
    match word:
        case "make":
            assert re.search(rf"^{rest[0]}:", MAKEFILE, re.MULTILINE)
        case "pip":
            ours = [name for name in rest if name.startswith("ctxpipe")]
            extras = re.findall(r"\[(.*?)\]", " ".join(ours))
            assert ours
            assert all(
                extra in PROJECT["optional-dependencies"]
                for extra in ",".join(extras).split(",")
                if extra
            )
        case "python" | ".venv/bin/python":
            named = [part for part in rest if part.endswith(".py")]
            modules = [rest[i + 1] for i, part in enumerate(rest) if part == "-m"]
            assert all((ROOT / file).exists() for file in named)
            assert all(importlib.util.find_spec(module) for module in modules)
            assert named or modules
        case _:
            pytest.fail(f"{where}: no test knows what {word} is")


@each([block for block in RUN if "[[stage]]" in block.code])
def test_a_configuration_is_one_that_the_laboratory_reads(block: Block, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(block.code, "utf-8")
    read_config(file)
