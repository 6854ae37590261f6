"""What runs the pages' blocks finds what is wrong with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from places import ROOT
from processes import prepared_python

from scripts.pages import (
    JOBS,
    Deviation,
    Prompt,
    blocks_of,
    ensure_output,
    first_hour_pages,
    start_pages,
)
from scripts.release.first_hour import FIRST


@pytest.fixture(autouse=True, scope="module")
def nothing_blocks_the_loop() -> None:
    """Not here: it makes files and processes, as a script does."""


async def run_page(text: str, folder: Path):
    """Run the Python blocks of a page that says *text*."""
    page = folder / "page.md"
    page.write_text(text, "utf-8")
    async with Prompt(folder, os.environ, prepared_python()) as prompt:
        for block in blocks_of(page):
            if block.kind == "python":
                await prompt.run(block)


def page_of(*parts: str) -> str:
    """A page of Python blocks; a part that begins with "> " is what the block before prints."""
    blocks = []
    for part in parts:
        kind = "text" if part.startswith("> ") else "python"
        blocks.append(f"```{kind}\n{part.removeprefix('> ')}\n```\n")
    return "\n".join(blocks)


async def test_blocks_follow_on_each_other_and_may_await(tmp_path):
    await run_page(
        page_of(
            "import asyncio\nnumber = 3",
            "number = await asyncio.sleep(0, number + 1)\nprint(number)",
            "> 4",
        ),
        tmp_path,
    )


async def test_a_program_has_names_of_its_own_and_starts_its_loop(tmp_path):
    program = "import asyncio\nasync def main(): print('x' in globals())\nasyncio.run(main())"

    await run_page(page_of("x = 1", program, "> False"), tmp_path)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (["print(1)", "> 2"], "shows"),
        (["1 / 0"], "ZeroDivisionError"),
        (["raise SystemExit"], "fails"),
        (["import os\nos._exit(3)"], "ended the process"),
        (["def build():\n    return 1"], "never called: build"),
        (["async def ask(prompt): ...", "made = [ask]"], "never called: ask"),
        (["class Stage:\n    def plan(self): ..."], "never called: Stage.plan"),
        (["async def run(): ...", "run()"], "never called: run"),
        (["import asyncio\nasyncio.sleep(0)"], "never awaited"),
        (["import asyncio\nwaiting = asyncio.sleep(0)"], "never awaited"),
    ],
)
async def test_a_page_that_is_wrong_is_a_deviation(parts: list[str], said, tmp_path):
    with pytest.raises(Deviation, match=said):
        await run_page(page_of(*parts), tmp_path)


def test_an_ellipsis_stands_for_anything_on_its_line(tmp_path):
    ensure_output("here", "took 3.1 ms\nin /x\n", "took … ms\nin …\n", tmp_path)

    with pytest.raises(Deviation):
        ensure_output("here", "took 3.1 ms\nor so\n", "took …\n", tmp_path)


def test_a_line_of_an_ellipsis_stands_for_any_lines(tmp_path):
    ensure_output("here", "first\na\nb\nlast\n", "first\n…\nlast\n", tmp_path)


def test_the_folder_is_called_project(tmp_path):
    ensure_output("here", f"in {tmp_path}/x\n", "in /project/x\n", tmp_path)


def test_commands_have_what_is_said_below_them(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ one --flag  # why\nanswer\n$ two &\n```\n")

    [block] = blocks_of(page)

    assert block.commands == [("one --flag", "answer\n"), ("two &", "")]


def test_a_block_is_a_file_if_its_name_is_the_last_word_before_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Write `a.py`. It runs:\n\n```python\n1\n```\n\nThen `b.toml`:\n\n```toml\nx = 1\n```\n"
    )

    assert [block.file for block in blocks_of(page)] == [None, "b.toml"]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_the_page_of_a_job_has_a_block_for_it_that_the_first_hour_runs(job):
    texts = []
    for block in blocks_of(ROOT / job.page):
        if block.mark == "not run":
            continue
        if block.kind == "console":
            texts += [command for command, _ in block.commands]
        elif block.kind == "python":
            texts.append(block.code)

    assert any(job.text in text for text in texts)
    assert ROOT / job.page in first_hour_pages()


def test_the_first_hour_reads_the_readme_then_every_page_of_the_first_sections():
    names = [page.relative_to(ROOT).as_posix() for page in start_pages()]

    assert names[:3] == ["README.md", "docs/index.md", "docs/loop.md"]
    assert names[3:5] == ["docs/concepts.md", "docs/write-a-stage.md"]
    for folder in ("docs/features", "docs/adapters"):
        assert {f"{folder}/{page.name}" for page in (ROOT / folder).glob("*.md")} <= {*names}
    assert {"docs/middleware.md", "docs/gateway.md"} <= {*names}


def test_the_first_hour_reaches_a_result_and_a_report_once_each():
    blocks = [block for page in first_hour_pages() for block in blocks_of(page)]
    consoles = [block for block in blocks if block.kind == "console"]
    commands = [command for block in consoles for command, _ in block.commands]

    assert sorted(command for command in commands if command in FIRST) == sorted(FIRST)


def test_every_block_for_the_first_hour_is_on_a_page_that_it_reads():
    pages = [
        page for page in (ROOT / "docs").rglob("*.md") if "<!-- make first-hour" in page.read_text()
    ]

    assert len(pages) > 2
    assert set(pages) <= set(first_hour_pages())
