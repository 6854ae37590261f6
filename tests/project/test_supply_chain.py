"""What users install: the wheel.

It is tried beside the newest and the oldest dependencies that it allows, and with no network.
"""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import anyio
import pytest
from places import ROOT
from readme import FIRST_PROGRAM

from ctxpipe.testing import MessagesServer

PERMISSIVE = ("MIT", "BSD", "Apache", "ISC", "PSF", "MPL-2.0", "MPL 2.0", "CNRI-Python")


def told(command: list[str], folder: Path) -> str:
    """What *command* prints."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pip(*arguments: str) -> str:
    return told([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], ROOT)


# These tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "api.example.com"])
def test_no_test_reaches_another_machine(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as stream, pytest.raises(AssertionError, match="not this machine"):
        stream.connect((host, 443))


async def test_nor_does_the_event_loop():
    with pytest.raises(AssertionError, match="not this machine"):
        await asyncio.open_connection("192.0.2.1", 443)


# The wheel ----------------------------------------------------------------------------------------


def test_the_wheel_holds_the_package_its_licences_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        facts = {
            name.partition(".dist-info/")[2] for name in archive.namelist() if ".dist-info/" in name
        }
    package = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "ctxpipe").rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    ranks = {
        "ctxpipe/tokens/vocab/cl100k_base.bin",
        "ctxpipe/tokens/vocab/o200k_base.bin",
        "ctxpipe/tokens/vocab/LICENSE-tiktoken",
    }
    licences = {"licenses/LICENSE", "licenses/ctxpipe/tokens/vocab/LICENSE-tiktoken"}

    assert held == package
    assert ranks | {"ctxpipe/py.typed", "ctxpipe/lab/assets/page.js"} <= held
    assert licences | {"METADATA", "entry_points.txt"} <= facts


# What stands beside it ----------------------------------------------------------------------------


def test_what_it_needs_fits_together(installed):
    assert "No broken requirements" in pip("--python", str(installed), "check")


LICENCES = """
from importlib.metadata import distributions
for found in distributions():
    facts = found.metadata
    classes = [c for c in facts.get_all("Classifier", ()) if c.startswith("License")]
    told = filter(None, [facts.get("License-Expression"), *classes])
    print(found.name, "|", *told, "|", (facts.get("License") or "").partition("\\n")[0])
"""


def test_what_it_brings_is_under_a_permissive_licence(installed, tmp_path):
    lines = told([str(installed), "-c", LICENCES], tmp_path).splitlines()

    assert len(lines) > 10
    assert [line for line in lines if not any(licence in line for licence in PERMISSIVE)] == []


SIZES = runpy.run_path(str(ROOT / "scripts" / "release" / "list_sizes.py"))
ROW = re.compile(r"^\| ([\w-]+) \| [\d.]+ \| .+ \|$", re.MULTILINE)
TOTAL = re.compile(r"^\| (\d+) packages \| ([\d.]+) \|", re.MULTILINE)
newest_only = pytest.mark.parametrize("installed", ["newest"], indirect=True)


@newest_only
def test_the_page_of_settings_has_the_reason_for_each_package(installed):
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    found = SIZES["installed_packages"](str(installed))
    megabytes = sum(one["bytes"] for one in found.values()) / 1e6
    [(count, told_megabytes)] = TOTAL.findall(page)

    assert set(ROW.findall(page)) == set(found)
    assert int(count) == len(found)
    assert megabytes == pytest.approx(float(told_megabytes), rel=0.1)


@newest_only
def test_each_package_is_needed_by_another(installed):
    found = SIZES["installed_packages"](str(installed))
    unneeded = [name for name in found if not SIZES["needed_by"](name, found)]

    assert unneeded == ["ctxpipe"]


# It works -----------------------------------------------------------------------------------------

WORK = """
import socket
def refuse(*args, **kwargs): raise AssertionError("the network was asked for")
socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = refuse
socket.getaddrinfo = refuse

import asyncio, ctxpipe
from ctxpipe import *
from ctxpipe.functions import *
from ctxpipe.providers.prices import prices_of
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.summarizers import ExtractiveSummarizer

ADD = "    def add(self, item):\\n        self.items.append(item)  # one of many\\n"
SOURCE = "class Basket:\\n" + ADD * 40

def turn(number, tool, given, result):
    call = {"type": "tool_use", "id": f"t{number}", "name": tool, "input": given}
    output = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [output]}]

async def main():
    storage = LocalStorage(".ctxpipe")
    history = [{"role": "user", "content": "Go."}]
    for n in range(30):
        history += turn(n, "bash", {"command": f"step {n}"}, f"line of {n}\\n" * 60)
    history += turn(30, "read_file", {"path": "basket.py"}, SOURCE)
    print(count_tokens(history) > 1000, round(prices_of(EXAMPLE_MODEL).read_ratio, 3))
    print("add" in fold_files([("basket.py", SOURCE)]).content)

    offloading = ContextPipeline([DirectOffload(storage, min_chars=500), BatchOffload(storage)])
    offloaded = await offloading.session("a", journal=storage).run(history)
    read, search, *_ = offload_tools(storage)
    print(len((await storage.read("a/t30.md")).text) == len(SOURCE))
    found = await search({"path": "a/t30.md", "pattern": "class B\\\\w+", "regex": True})
    print(found.split(": ", 1)[1])

    shortening = [Compact(ExtractiveSummarizer(), archive=storage), SmartTruncate(archive=storage)]
    compacted = await ContextPipeline(shortening).run(history, session_id="b", force=True)
    outcomes = [str(report.outcome) for report in offloaded.reports]
    print(outcomes, compacted.reports[0].outcome, ctxpipe.__file__)

asyncio.run(main())
"""


def test_counting_and_every_stage_work_with_no_network(installed, tmp_path):
    said = told(
        [str(installed), "-W", "error", "-W", "default::DeprecationWarning", "-c", WORK], tmp_path
    ).splitlines()

    assert said[:4] == ["True 0.1", "True", "True", "class Basket:"]
    assert said[4].startswith("['changed', 'changed'] changed")
    assert str(installed.parents[1]) in said[4], "another copy of the package was tested"


def test_the_demo_runs_without_any_extra(installed, tmp_path):
    said = told([str(installed.with_name("ctxpipe")), "demo"], tmp_path)

    assert "requests that break a rule of the API: 0\n" in said
    assert "the complete history can be read back: True\n" in said
    assert "[Tool result offloaded to file: " in said


async def test_the_first_program_of_the_readme_runs_without_any_extra(installed, tmp_path):
    async with MessagesServer(lambda _request: "Hello.") as server:
        environment = {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "test",
            "PATH": os.environ["PATH"],
        }
        done = await anyio.run_process(
            [str(installed), "-c", FIRST_PROGRAM], check=False, cwd=tmp_path, env=environment
        )
    assert done.stderr.decode() == ""
    assert done.stdout.decode().startswith("Message(")
    assert "text='Hello.'" in done.stdout.decode()
    assert not server.refused
