"""The README is run: its programs against a scripted API on a socket, its numbers against the settings."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import anyio
import pytest

from ctxpipe import settings
from ctxpipe.testing import MessagesServer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PROGRAMS = re.findall(r"<!-- run -->\n```python\n(.*?)```", README, re.DOTALL)


def test_every_python_block_is_marked_to_be_run():
    assert README.count("```python") == len(PROGRAMS) > 0


@pytest.mark.parametrize("program", PROGRAMS, ids=[str(n) for n in range(1, len(PROGRAMS) + 1)])
async def test_the_program_runs_as_it_stands(program: str, tmp_path: Path):
    async with MessagesServer(lambda _request: "Hello.") as server:
        environment = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "test", "PATH": ""}
        done = await anyio.run_process([sys.executable, "-c", program], check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert not server.refused


def test_the_table_of_settings_names_every_variable_with_its_default():
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (\S+) \|$", README, re.MULTILINE))
    known = [value for value in vars(settings).values() if isinstance(value, settings.Setting)]
    assert rows == {setting.name: str(setting.default) for setting in known}


def test_every_dependency_has_its_reason():
    declared = (ROOT / "pyproject.toml").read_text("utf-8")
    names = re.findall(r'^  "([a-z0-9-]+)>=', declared, re.MULTILINE)
    typing_only = {name for name in names if name.startswith("types-")}
    assert [name for name in names if name not in README and name not in typing_only] == []
