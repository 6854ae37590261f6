"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the package."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from places import PACKAGE, ROOT
from processes import new_python

RECIPES = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(?:python|toml)\n(.*?)^```", RECIPES, re.MULTILINE | re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package, to be worked on."""
    shutil.copytree(
        PACKAGE,
        tmp_path / "ctxpipe",
        ignore=shutil.ignore_patterns("__pycache__", "vocab"),
    )
    return tmp_path


def insert(file: Path, before: str, text: str):
    """Write *text* before the only place where *before* stands in *file*."""
    source = file.read_text("utf-8")
    assert source.count(before) == 1
    file.write_text(source.replace(before, text + before), "utf-8")


DART = """
typedef Compare = int Function(int a, int b);
abstract class Animal {
  Animal(this.name);
  String get label => name;
  static int count() { return 1; }
}
mixin Walks on Animal { void walk() {} }
enum Color { red, green }
int add(int a, int b) => a + b;
"""


def test_a_language_is_one_table_in_a_file(copy):
    [entry] = [block for block in BLOCKS if "[languages." in block]
    table = copy / "ctxpipe/folding/languages.toml"
    table.write_text(f"{table.read_text('utf-8')}\n{entry}", "utf-8")
    script = """
import sys; sys.path.insert(0, sys.argv[1])
from ctxpipe.folding.definitions import definitions
found = definitions("a.dart", sys.argv[2])
print(*(f"{one.line} {one.type} {one.name}" for one in found), sep="; ")
"""
    assert new_python(script, copy, DART) == (
        "2 type Compare; 3 class Animal; 4 function Animal; 5 function label; 6 function count; "
        "8 interface Walks; 8 function walk; 9 type Color; 10 function add"
    )


def test_a_reader_is_a_module_and_a_question(copy):
    [module] = [block for block in BLOCKS if "is_protocol_line" in block]
    (copy / "ctxpipe/lab/readers/protocol.py").write_text(module, "utf-8")
    table = copy / "ctxpipe/lab/readers/table.py"
    line = '    Reader("protocol", protocol.is_protocol_line, protocol.read),\n'
    insert(table, '    Reader("Claude Code session"', line)
    insert(table, "    spans,\n)", "    protocol,\n")
    lines = [
        {"speaker": "person", "says": "Go.", "at": "2026-11-21T10:15:00Z"},
        {"speaker": "agent", "says": "Done.", "at": "2026-11-21T10:16:00Z"},
    ]
    script = """
import sys; sys.path.insert(0, sys.argv[1])
from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
found = parse_transcript(sys.argv[2])
print(found.format, found.calls, found.seconds[1] - found.seconds[0], end=" / ")
try: parse_transcript(sys.argv[2].replace("agent", "nobody"), "talk.jsonl")
except TranscriptError as error: print(error)
"""
    told = new_python(script, copy, "\n".join(map(json.dumps, lines)))

    assert told == "protocol 1 60.0 / talk.jsonl, line 2: unknown speaker 'nobody'"
