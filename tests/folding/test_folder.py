from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from places import SOURCES

from ctxpipe._threads import processes
from ctxpipe.folding import folder
from ctxpipe.folding.fold import Section, format_file
from ctxpipe.folding.folder import Folder
from ctxpipe.functions import fold_files
from ctxpipe.tokens import TokenCounter

FILES = [
    (path.name, path.read_text("utf-8"))
    for path in sorted(SOURCES.iterdir())
    if path.stem.lower() != "forms"
]
FILES = [(path, text) for path, text in FILES if not path.endswith(".names")]


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    folder._memo.cache_clear()
    yield
    folder._memo.cache_clear()


def functions(count: int, prefix: str = "f") -> str:
    return "".join(
        f"def {prefix}{number}(x):\n    return x + {number}\n" for number in range(count)
    )


def executable(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ctxpipe"]


# What comes back ----------------------------------------------------------------------------------


async def test_each_file_is_returned_as_a_block():
    assert await Folder().fold(FILES) == list(fold_files(FILES).folded)


async def test_a_file_that_cannot_be_folded_or_gets_no_shorter_gives_none():
    files = [
        ("a.txt", "def f(): pass\n" * 50),
        ("a.py", "x = 1\n" * 50),
        ("b.py", "def b(): pass"),
        ("c.py", ""),
    ]

    assert await Folder().fold([*files, ("d.py", functions(20))]) == [
        None,
        None,
        None,
        None,
        fold_files([("d.py", functions(20))]).content,
    ]


async def test_a_block_as_long_as_its_file_gives_none():
    block = format_file("e.py", [Section("functions", ("b",), 1)])
    as_long = "def b(): pass".ljust(len(block), "\n")

    assert await Folder().fold([("e.py", as_long), ("e.py", f"{as_long}\n")]) == [None, block]


async def test_no_files_give_no_texts():
    assert await Folder().fold([]) == []


async def test_the_same_text_may_have_two_paths_and_two_languages():
    text = "class A {\n  m() {\n    return 'a text that is long enough';\n  }\n}\n" * 3

    one, other, script = await Folder().fold([("a.js", text), ("b.js", text), ("b.php", text)])

    assert one is not None
    assert other == one.replace("a.js", "b.js")
    assert ("2 | m" in one, "2 | m" in (script or "")) == (True, False)


async def test_the_budget_is_for_all_files_together():
    files = [("a.py", functions(40)), ("b.py", functions(40, "g"))]
    folder = Folder(max_tokens=126, merge_functions=False)

    texts = await folder.fold(files, count=lambda text: len(text.split()))

    assert sum(text.count(" | ") for text in texts if text) == 40  # 252 words, twice too many


async def test_the_folders_own_counter_is_the_default():
    counter = TokenCounter(len)
    files = [("a.py", functions(40))]

    (text,) = await Folder(max_tokens=100, merge_functions=False, counter=counter).fold(files)

    assert text is not None
    assert text.count(" | ") < 40
    assert counter.encoded_chars == len(fold_files(files, merge_functions=False).content)


async def test_without_a_limit_nothing_is_counted():
    counter = TokenCounter(len)

    await Folder(max_tokens=None, counter=counter).fold([("a.py", functions(40))])

    assert counter.encoded_chars == 0


async def test_a_folder_has_the_options_of_fold_files():
    files = [("a.py", functions(80))]

    assert await Folder(merge_functions=False).fold(files) == list(
        fold_files(files, merge_functions=False).folded
    )
    assert await Folder(max_line_span=10).fold(files) == list(
        fold_files(files, max_line_span=10).folded
    )


# The worker process -------------------------------------------------------------------------------


async def test_a_worker_process_folds_to_the_same_texts(caplog):
    odd = [("a.py", "def f():\n    return '\ud800 é \u2028'\n" * 9)]

    texts = await Folder().fold([*FILES, *odd])

    assert texts == list(fold_files([*FILES, *odd]).folded)
    assert said(caplog) == []


async def test_all_files_go_to_one_worker(monkeypatch, tmp_path):
    monkeypatch.setattr(
        sys, "executable", executable(tmp_path / "python", f'echo "$$" >> {tmp_path}/ran; exit 1')
    )

    await Folder().fold(
        [("tiny.py", "def f(): pass"), ("b.py", functions(60)), ("no source.txt", "x")]
    )

    assert len((tmp_path / "ran").read_text().split()) == 1


async def test_no_process_is_started_for_files_that_are_not_source_code(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", executable(tmp_path / "python", f"touch {tmp_path}/ran"))

    assert await Folder().fold([("a.txt", "def f(): pass\n" * 50)]) == [None]

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("extension", "unit"),
    [("swift", "/*"), ("lua", "#if 1\n"), ("sh", "def f():\n "), ("kt", "A B;\n"), ("hs", "\\")],
)
async def test_no_source_is_parsed_in_this_process(extension, unit, monkeypatch, caplog):
    def parse(*_: object):
        raise AssertionError("the parser holds the interpreter")

    monkeypatch.setattr(folder, "PARSE_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr("ast_grep_py.SgRoot", parse)

    for chars in (600, 29_900):
        await Folder().fold([(f"a.{extension}", (unit * chars)[:chars])])

    assert set(said(caplog)) <= {"a file cannot be folded: the parser failed or took too long"}


async def test_a_text_is_parsed_once_for_all_folders(monkeypatch, caplog):
    first = await Folder().fold(FILES)
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    again = await Folder(max_tokens=None).fold(
        [(f"elsewhere/{path}", text) for path, text in FILES]
    )

    assert [text and text.replace("elsewhere/", "") for text in again] == first
    assert said(caplog) == []


@pytest.mark.parametrize("script", [None, "exit 3", "echo hello"])
async def test_if_no_worker_starts_no_file_is_folded_and_a_warning_is_logged(
    script: str | None,
    monkeypatch,
    caplog,
    tmp_path,
):
    python = executable(tmp_path / "python", script) if script else "/no/such/python"
    monkeypatch.setattr(sys, "executable", python)

    texts = await Folder().fold(FILES)

    assert texts == [None] * len(FILES)
    assert len(said(caplog)) == 1
    assert said(caplog)[0].startswith("no worker process can be started")


@pytest.mark.parametrize("end", ["exit 1", "kill -9 $$", "exec sleep 60"])
async def test_a_text_on_which_the_worker_fails_or_hangs_stays_and_the_rest_is_tried_again(
    end, monkeypatch, caplog, tmp_path
):
    files = [("first.py", functions(9)), ("bad.py", functions(8)), ("last.py", functions(7))]
    reply = 'echo ready; echo \'[["function", "f", 1]]\''
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", executable(tmp_path / "python", f"{reply}; {end}"))
        patched.setattr(folder, "PARSE_TIMEOUT_SECONDS", 0.5)
        patched.setattr(processes, "_START_SECONDS", 0.5)

        texts = await Folder().fold(files)

    assert [text is None for text in texts] == [False, True, True]
    assert said(caplog) == ["a file cannot be folded: the parser failed or took too long"]
    again = await Folder().fold(files)
    assert [text is None for text in again] == [False, True, False]


async def test_a_cancelled_fold_leaves_no_process_behind(monkeypatch, tmp_path):
    pid = tmp_path / "pid"
    monkeypatch.setattr(
        sys, "executable", executable(tmp_path / "python", f"echo $$ > {pid}; exec sleep 60")
    )
    async with anyio.create_task_group() as group:
        group.start_soon(Folder().fold, FILES)
        while not (pid.exists() and pid.read_text()):  # noqa: ASYNC110 - another process writes it
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()

    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIG_DFL)


SCRIPT = """
import sys, anyio
from ctxpipe.folding.folder import Folder

with open(sys.argv[1], "a") as log:
    log.write("ran ")

text = "def f(x):\\n    return x + 1\\n" * 100
print(anyio.run(Folder().fold, [("a.py", text)])[0].splitlines()[2])
"""


def test_a_script_without_a_guard_runs_once(tmp_path):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SCRIPT)

    ran = subprocess.run(
        [sys.executable, script, log], capture_output=True, text=True, timeout=60, check=True
    )

    assert ran.stdout == "1 | f\n"
    assert log.read_text() == "ran "


def test_no_module_in_the_current_folder_is_run(tmp_path):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SCRIPT)
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("pickle", "json", "anyio", "ctxpipe", "ast_grep_py"):
        (repository / f"{name}.py").write_text(
            f"open({str(log)!r}, 'a').write('{name} ')\nraise SystemExit(1)\n"
        )

    command = [sys.executable, str(script), str(log)]
    ran = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, timeout=60, check=True
    )

    assert (ran.stdout, ran.stderr) == ("1 | f\n", "")
    assert log.read_text() == "ran "
