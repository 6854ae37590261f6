"""A log record is one printable line, whatever an id, a path or an error in it holds."""

from __future__ import annotations

import ast
import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest
from syntax import modules

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe._logs import LOGGERS
from ctxpipe.lab import terminal

FORGED = "CRITICAL ctxpipe: all sessions of alice were deleted"
BREAKS = {
    "line feed": "\n",
    "carriage return": "\r",
    "escape": "\x1b[2J\x1b]0;title\x07",
    "C1 control": "\x9b2J",
    "next line": "\x85",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "bidi override": "\u202e",
    "bidi isolate": "\u2066",
    "null": "\0",
    "lone surrogate": "\ud83d",
    "zero width": "\u200b",
}
LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a plain handler of the package's logger writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ctxpipe")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


def check(text: str):
    lines = text.split("\n")
    assert lines.pop() == ""
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("CRITICAL") for line in lines)


@cache
def calls() -> list[tuple[str, str, int]]:
    """Each call of a logger in the package: where, its format and the number of its arguments."""
    found = []
    for module, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            if not isinstance(owner, ast.Name) or owner.id != "logger":
                continue
            if node.func.attr not in LEVELS:
                continue
            form, *arguments = node.args[node.func.attr == "log" :]
            assert isinstance(form, ast.Constant), ast.dump(node)
            where = f"{module}:{node.lineno}"
            found.append((where, str(form.value), len(arguments)))
    return found


def test_every_logger_of_the_package_is_one_of_those_that_are_filtered():
    names = set()
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger"):
                names.add(ast.unparse(node.args[0]) if node.args else "")
    root = ""  # a gateway gives it a handler, and no record
    assert names <= {*map(repr, LOGGERS), "'httpx2'", "name", root}
    assert len(calls()) > 30


@pytest.mark.parametrize("name", LOGGERS)
def test_whatever_a_call_of_a_logger_quotes_it_writes_one_line(log, name: str):
    # All characters in one text: each that is not escaped is found in the line.
    bad = "".join(f"bob{character}{FORGED}" for character in BREAKS.values())
    for where, form, number in calls():
        log.seek(0)
        log.truncate()
        texts = [bad] * number
        values = tuple(7 if is_number(form, place) else text for place, text in enumerate(texts))
        logging.getLogger(name).critical(form, *values)
        check(log.getvalue().removeprefix("CRITICAL "))
        assert log.getvalue().count("\n") == 1, where


def is_number(form: str, place: int) -> bool:
    return not form.split("%")[place + 1].startswith(("s", "r"))


@pytest.mark.parametrize("character", BREAKS.values(), ids=BREAKS)
async def test_a_session_whose_id_holds_it_forges_no_line(log, tmp_path, character: str):
    name = f"bob{character}{FORGED}"
    storage = LocalStorage(tmp_path)
    for text in ("one", "two"):  # another history: a notice
        session = ContextPipeline([]).session(name, journal=storage)
        await session.run([{"role": "user", "content": text}])

    check(log.getvalue())
    assert "the journal tells of another history" in log.getvalue()


def test_the_lines_of_a_traceback_are_indented(log):
    error = ValueError(f"of bob\n{FORGED}\x1b[2J")

    logging.getLogger("ctxpipe").debug("it failed with", exc_info=error)

    check(log.getvalue())
    assert f"  {FORGED}\\x1b[2J" in log.getvalue()


def test_a_printable_record_is_left_as_it_is(log):
    logging.getLogger("ctxpipe").warning("100 %s of „größe“ 漢 🙂 \\n", "%d")

    assert log.getvalue() == "WARNING ctxpipe: 100 %d of „größe“ 漢 🙂 \\n\n"


def test_a_record_that_cannot_be_formatted_raises_nothing(log, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)

    logging.getLogger("ctxpipe").warning("%d", "no number")

    assert log.getvalue() == ""


@pytest.mark.parametrize("module", ["ctxpipe.journal.memory", "ctxpipe.gateway.app", "ctxpipe"])
def test_the_filter_is_there_whatever_is_imported_first(module):
    script = (
        f"import logging, {module}\n"
        "logging.basicConfig(format='%(message)s')\n"
        "for name in ('ctxpipe', 'ctxpipe.gateway'):\n"
        "    logging.getLogger(name).warning('%s', 'a\\nb\\x1b')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stderr == "a\\nb\\x1b\n" * 2


@pytest.mark.parametrize("character", BREAKS.values(), ids=BREAKS)
def test_what_the_command_line_prints_holds_no_code_for_a_terminal(capsys, character: str):
    terminal.print_line(f"bob{character}{FORGED}")
    terminal.print_error(f"no session bob{character.replace(chr(10), '')}")

    printed = capsys.readouterr()
    check(printed.out)
    check(printed.err)
