"""Programs of the README and of the pages, to be run: the first ones, and those of the adapters."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from places import ROOT

from ctxpipe import ContextPipeline

README = (ROOT / "README.md").read_text("utf-8")
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST_PROGRAM: str = PROGRAM.findall(README)[0]
LOOP_PROGRAMS: list[str] = PROGRAM.findall((ROOT / "docs" / "loop.md").read_text("utf-8"))
[SESSION_PROGRAM] = [program for program in LOOP_PROGRAMS if "pipeline.session(" in program]
"""The program of docs/loop.md that keeps the whole history, with a shell as its tool."""


def adapter_programs() -> dict[str, str]:
    """Return the program or the command in each section of "One line each", by the page it links.

    A command is without its prompt.
    """
    page = (ROOT / "docs" / "adapters" / "index.md").read_text("utf-8")
    sections = page.split("\n## One line each\n")[1].split("\n## ")[0].split("\n### ")[1:]
    programs: dict[str, str] = {}
    for section in sections:
        links = re.findall(r"\]\(([\w/.-]+)\.md", section)
        [code] = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        programs[Path(links[0]).name] = code.removeprefix("$ ")
    return programs


def run_adapter_program(page: str, pipeline: ContextPipeline, **names: Any) -> dict[str, Any]:
    """Run the program of the section that links to *page* with *pipeline* and other *names*.

    Returns the names that it defines.
    """
    defined = {"pipeline": pipeline, **names}
    exec(adapter_programs()[page], defined)  # noqa: S102  the page's
    return defined


def command_of(page: str) -> list[str]:
    """Return the command of the section that links to *page*."""
    return shlex.split(adapter_programs()[page])


def reader_environment(**settings: str) -> dict[str, str]:
    """The environment of a reader who has installed ctxpipe, with *settings*."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **settings}
