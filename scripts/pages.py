"""The pages of the documentation, block by block, and how a block is run.

A comment before a block says what is not run as it stands:

- ``<!-- not run: why -->``: by nothing here;
- ``<!-- make first-hour: why -->``: by scripts/first_hour.sh only.

A block of kind "text" right behind a Python block is what that prints, lines behind a command are
what the command prints. "…" stands for any text of a line; a line that is "…", for any lines.
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
START = re.compile(r"^  - Start:\n((?:   .*\n)+)", re.MULTILINE)


class Deviation(Exception):
    """Something is not as a page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; *promised* is what the page says that it prints."""

    page: Path
    line: int
    kind: str
    code: str
    mark: str | None
    follows: bool
    promised: str | None = None

    @property
    def where(self) -> str:
        """The page and the line."""
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}"

    @property
    def is_program(self) -> bool:
        """Whether it is a program of its own; the others of a page follow on each other."""
        return self.kind == "python" and "asyncio.run(" in self.code

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands of a console block, each with what it is said to print."""
        commands: list[tuple[str, str]] = []
        for line in self.code.splitlines(keepends=True):
            if line.startswith("$ "):
                commands.append((line[2:].partition("  #")[0].strip(), ""))
            else:
                command, promised = commands[-1]
                commands[-1] = command, promised + line
        return commands


def blocks_of(page: Path) -> list[Block]:
    """The blocks of *page*, in order."""
    text, end = page.read_text("utf-8"), 0
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        follows = not text[end : match.start()].strip()
        found.append(Block(page, line, match["kind"], match["code"], match["mark"], follows))
        end = match.end()
    return [with_promise(block, found[place + 1 :]) for place, block in enumerate(found)]


def with_promise(block: Block, later: Sequence[Block]) -> Block:
    """*block* with what the text right behind it promises."""
    if block.kind == "python" and later and later[0].kind == "text" and later[0].follows:
        return replace(block, promised=later[0].code)
    return block


def first_hour_pages() -> list[Path]:
    """The README, the pages of "Start" in mkdocs.yml, and others with blocks for the first hour."""
    pages = start_pages()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        marks = {block.mark for block in blocks_of(page)}
        if "make first-hour" in marks and page not in pages:
            pages.append(page)
    return pages


def start_pages() -> list[Path]:
    """The README and the pages of "Start" in mkdocs.yml, in order."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    found = START.search(navigation)
    if found is None:
        raise Deviation("mkdocs.yml has no section Start")
    return [
        ROOT / "README.md",
        *(ROOT / "docs" / name for name in re.findall(r"\S+\.md", found[1])),
    ]


def ensure_promised(where: str, said: str, promised: str, folder: Path) -> None:
    """Raise Deviation where *said* is not what the page at *where* promises.

    Pages write /project for *folder*.
    """
    for place in (os.path.realpath(folder), str(folder)):
        said = said.replace(place, "/project")
    if not re.fullmatch(pattern_of(promised), said):
        raise Deviation(f"{where} promises\n{promised}\nand this was printed\n{said}")


def pattern_of(promised: str) -> str:
    """The regular expression of all texts that *promised* stands for."""
    lines = []
    for line in promised.splitlines(keepends=True):
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*")
        else:
            lines.append(re.escape(line).replace("…", ".*"))
    return "".join(lines)


class Prompt:
    """A prompt in a process of its own, which runs Python blocks: ``async with Prompt(…)``.

    *python* is the command of the interpreter. When it ends it raises Deviation where a function
    that a block defines was never called, or a coroutine never awaited.
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
        """Run *block*. Raises Deviation where it fails, or prints something else than promised."""
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
        if block.promised is not None:
            ensure_promised(block.where, answer["printed"], block.promised, self.folder)

    async def _answer(self, where: str) -> dict[str, Any]:
        assert self._process is not None  # noqa: S101  it was asked something
        assert self._process.stdout is not None  # noqa: S101  a pipe
        line = await self._process.stdout.readline()
        if not line:
            raise Deviation(f"{where} ended the prompt\n{self._said_in_errors()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _said_in_errors(self) -> str:
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
        uncalled = (await self._answer("the last block"))["uncalled"]
        await process.wait()
        if uncalled:
            raise Deviation(f"defined, and never called: {', '.join(uncalled)}")
        said = self._said_in_errors()
        if "was never awaited" in said:
            raise Deviation(f"something was never awaited\n{said}")
