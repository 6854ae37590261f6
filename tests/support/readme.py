"""The README's first program, and its table of adapters, to be run."""

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
FIRST_PROGRAM: str = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[0]


def adoption_rows() -> dict[str, str]:
    """What each row of the README's table of adapters has a reader write, by the page it links to.

    Lines of Python, or one command.
    """
    table = README.split("\n## Adopt it where your agent is\n")[1].split("\n## ")[0]
    rows: dict[str, str] = {}
    for row in re.findall(r"^\| .+ \| (.*`.+) \|$", table, re.MULTILINE):
        [page] = re.findall(r"\]\(docs/([\w/-]+)\.md", row)
        rows[Path(page).name] = "\n".join(re.findall(r"`([^`]+)`", row))
    return rows


def run_row(page: str, pipeline: ContextPipeline, **names: Any) -> dict[str, Any]:
    """What the row that links to *page* defines, run with *pipeline* and other *names*."""
    defined = {"pipeline": pipeline, **names}
    exec(adoption_rows()[page], defined)  # noqa: S102  the README's
    return defined


def command_of(page: str) -> list[str]:
    """The command in the row that links to *page*."""
    return shlex.split(adoption_rows()[page])


def reader_environment(**settings: str) -> dict[str, str]:
    """The environment of a reader who has installed ctxpipe, with *settings*."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **settings}
