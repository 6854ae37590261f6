"""Read the code blocks of the documentation, and run them.

A block runs exactly as it is on the page, unless there is a comment above it:

- ``<!-- not run: why -->``: nothing runs the block;
- ``<!-- make first-hour: why -->``: only scripts/release/first_hour.sh runs it.

Pages also show the output. A block of kind "text" right after a Python block is the output of that
block; the lines after a command are the output of the command. In an output "…" matches any text
within a line, and a line that is only "…" matches any number of lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parents[1]
PROMPT = Path(__file__).with_name("page_prompt.py")
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>not run|make first-hour): (?P<why>[^\n]+) -->\n)?"
    r"```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FILE_NAME = re.compile(r"`(?P<name>[\w-]+\.(?:py|toml))`:\n+\Z")
START_SECTIONS = ("Start", "Features", "On the SDKs", "In a framework", "In front of any client")
"""Sections of the navigation in mkdocs.yml that a new user reads first."""


@dataclass(frozen=True)
class Job:
    """Something that a new user wants to do, and the page that says how.

    *text* is part of the block that does it, or of a command.
    """

    name: str
    page: str
    text: str


JOBS = (
    Job("install", "README.md", "pip install ctxpipe"),
    Job("run the demo", "README.md", "ctxpipe demo"),
    Job("run the demo of a clone", "README.md", "make demo"),
    Job("write the explicit loop", "README.md", "await pipeline.run(messages"),
    Job("write a loop with a session", "docs/loop.md", "session.create("),
    Job("add the anthropic middleware", "docs/middleware.md", "ctxpipe_middleware("),
    Job(
        "use the openai client", "docs/adapters/openai.md", "await client.chat.completions.create("
    ),
    Job("use the OpenAI Agents SDK", "docs/adapters/openai.md", "await Runner.run("),
    Job("use pydantic-ai", "docs/adapters/pydantic-ai.md", "await agent.run("),
    Job("wrap a program", "docs/gateway.md", "ctxpipe wrap -- python agent.py"),
    Job("write a stage", "docs/write-a-stage.md", "class MaskEmails:"),
    Job("write a storage", "docs/extend.md", "class DictStorage:"),
    Job("write a summarizer", "docs/extend.md", "Compact(count_the_messages"),
    Job(
        "replay recordings", "docs/laboratory.md", "ctxpipe replay *.jsonl --compare none,mine.toml"
    ),
    Job("correct a wrong setting", "docs/settings.md", "except SettingsError as error:"),
)
"""Jobs of a trial with a new user, in their order."""


class Deviation(Exception):
    """A block fails, or prints something else than its page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    *line* is the line of its opening fence. *follows* is True if no text is between this block and
    the one before. *file* is the name that the page gives to the block, as the last word before it:
    "`agent.py`:". *expected* is the output on the page, None if the page shows none.
    """

    page: Path
    line: int
    kind: str
    code: str
    mark: str | None
    follows: bool
    file: str | None = None
    expected: str | None = None

    @property
    def where(self) -> str:
        """Page and line, such as "docs/index.md:14"."""
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}"

    @property
    def is_program(self) -> bool:
        """True if it is a complete program. The other Python blocks of a page share their names."""
        return self.kind == "python" and "asyncio.run(" in self.code

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Commands of a console block, each with its output on the page ("" for none)."""
        commands: list[tuple[str, str]] = []
        for line in self.code.splitlines(keepends=True):
            if line.startswith("$ "):
                commands.append((line[2:].partition("  #")[0].strip(), ""))
            else:
                command, expected = commands[-1]
                commands[-1] = (command, expected + line)
        return commands


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of *page*, in order."""
    text = page.read_text("utf-8")
    end_of_previous = 0
    blocks: list[Block] = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        follows = not text[end_of_previous : match.start()].strip()
        named = FILE_NAME.search(text, end_of_previous, match.start())
        file = named["name"] if named else None
        block = Block(page, line, match["kind"], match["code"], match["mark"], follows, file)
        if follows and block.kind == "text" and blocks and blocks[-1].kind == "python":
            blocks[-1] = replace(blocks[-1], expected=block.code)
        blocks.append(block)
        end_of_previous = match.end()
    return blocks


def first_hour_pages() -> list[Path]:
    """Return the pages of `start_pages` and `JOBS`, then others with blocks for this check only."""
    pages = start_pages()
    for job in JOBS:
        if ROOT / job.page not in pages:
            pages.append(ROOT / job.page)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        marks = {block.mark for block in blocks_of(page)}
        if "make first-hour" in marks and page not in pages:
            pages.append(page)
    return pages


def start_pages() -> list[Path]:
    """Return the README and the pages of `START_SECTIONS` in mkdocs.yml, in order."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = [ROOT / "README.md"]
    for section in START_SECTIONS:
        found = re.search(rf"^  - {section}:\n((?:   .*\n)+)", navigation, re.MULTILINE)
        if found is None:
            raise Deviation(f"mkdocs.yml has no section {section}")
        pages += [ROOT / "docs" / name for name in re.findall(r"\S+\.md", found[1])]
    return pages


def ensure_output(where: str, output: str, expected: str, folder: Path) -> None:
    """Raise Deviation if *output* is not what the page at *where* shows.

    Pages write /project for the path of *folder*.
    """
    for path in (os.path.realpath(folder), str(folder)):
        output = output.replace(path, "/project")
    if not re.fullmatch(output_pattern(expected), output):
        raise Deviation(f"{where} shows\n{expected}\nbut this was printed\n{output}")


def output_pattern(expected: str) -> str:
    """Return the regular expression of the outputs that *expected* allows."""
    lines = []
    for line in expected.splitlines(keepends=True):
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*")
        else:
            lines.append(re.escape(line).replace("…", ".*"))
    return "".join(lines)


class Prompt:
    """A process that runs Python blocks one after the other: ``async with Prompt(…) as prompt``.

    It starts with the first block, in *folder* and with the variables of *environment*. *python* is
    the command of the interpreter. Raises Deviation at the end if a function that a block defines
    was never called, or a coroutine was never awaited.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        python: Sequence[str] = (sys.executable,),
    ):
        self.folder = folder
        self._environment = dict(environment)
        self._python = python
        self._process: asyncio.subprocess.Process | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed at the end

    async def __aenter__(self) -> Self:
        return self

    async def run(self, block: Block) -> None:
        """Run *block*. Raises Deviation if it fails, or prints something else than expected."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *self._python,
                str(PROMPT),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._errors,
                cwd=self.folder,
                env=self._environment,
                limit=10_000_000,
            )
        assert self._process.stdin is not None  # noqa: S101  a pipe
        request = {"code": "\n" * block.line + block.code, "program": block.is_program}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        answer = await self._answer(block.where)
        if answer["error"] is not None:
            raise Deviation(f"{block.where} fails\n{answer['error']}")
        if block.expected is not None:
            ensure_output(block.where, answer["printed"], block.expected, self.folder)

    async def _answer(self, where: str) -> dict[str, Any]:
        assert self._process is not None  # noqa: S101  a request was sent
        assert self._process.stdout is not None  # noqa: S101  a pipe
        line = await self._process.stdout.readline()
        if not line:
            raise Deviation(f"{where} ended the process\n{self._error_output()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _error_output(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._errors:
            if self._process is None:
                return
            if error is None:
                await self._end(self._process)
            elif self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None  # noqa: S101  a pipe
        process.stdin.close()
        answer = await self._answer("the last block")
        await process.wait()
        if answer["uncalled"]:
            names = ", ".join(answer["uncalled"])
            raise Deviation(f"defined, but never called: {names}")
        errors = self._error_output()
        if "was never awaited" in errors:
            raise Deviation(f"a coroutine was never awaited\n{errors}")
