"""``ctxpipe clean``: whatever its flags, no file goes that ctxpipe has not written."""

from __future__ import annotations

import itertools
import os
import pty
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from histories import assistant, conversation, tool_result, tool_use, user
from places import ROOT
from processes import prepared_python
from typer.testing import CliRunner

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, SmartTruncate, SQLiteJournal
from ctxpipe._cli import app

REPOSITORY = ROOT
HISTORY = conversation(
    user("go"),
    [assistant(tool_use("t1", "bash")), user(tool_result("t1", "data " * 600))],
    assistant("Done."),
)
HOME = {
    ".ssh/id_rsa": "PRIVATE KEY",
    "src/app.py": "print()",
    "photos/a.jpg": "JPEG",
    "Documents/README.md": "mine",
    "Documents/tool-result-of-the-vote.md": "mine",
    "Documents/compact-20260101T000000Z-1.json": '{"format": "compact disc"}',
    "Documents/journal.jsonl": '{"day": 1}\n0123456789abcdef {"tail": []}\n',
    "Documents/compact-paths.txt": "mine",
    "tool-result-42.md": "mine",
    "notes.md": "mine",
    "empty/.keep": "",
}


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["clean", *map(str, arguments)])


def write_old(root: Path, files: dict[str, str]):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    age(root)


def age(root: Path, days: int = 90):
    """Make everything below *root* that old."""
    then = root.stat().st_mtime - days * 86_400
    for path in root.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


async def converse(root: Path, session_id: str, *, journal: bool = True):
    storage = LocalStorage(root)
    pipeline = ContextPipeline(
        [DirectOffload(storage, min_chars=1000), SmartTruncate(archive=storage)]
    )
    await pipeline.session(session_id, journal=storage if journal else None).run(HISTORY[:3])


def sessions_below(root: Path, *names: str, journal: bool = True):
    for name in names:
        anyio.run(partial(converse, root, name, journal=journal))


# Files of others ----------------------------------------------------------------------------------


LIMITS = [(), ("--max-days", 0), ("--max-mb", 0), ("--max-days", 0, "--max-mb", 0)]
FLAGS = [("--records",), ("--yes",), ("--dry-run",)]
COMBINATIONS = [
    (*limits, *itertools.chain(*flags))
    for limits in LIMITS
    for count in range(len(FLAGS) + 1)
    for flags in itertools.combinations(FLAGS, count)
]
SESSIONS = [
    ("--session", name, *flags) for name in ("docs", "Documents") for flags in ((), ("--yes",))
]


@pytest.mark.parametrize("used", [False, True], ids=["never used by ctxpipe", "used as a root"])
def test_no_flags_delete_a_file_in_a_folder_like_a_home(tmp_path, used):
    write_old(tmp_path, HOME)
    if used:
        sessions_below(tmp_path, "job")
        age(tmp_path)

    for flags in [*COMBINATIONS, *SESSIONS]:
        done = run(tmp_path, *flags)
        assert done.exit_code in (0, 1, 2), (flags, done.output)
        assert not (done.exception and not isinstance(done.exception, SystemExit)), flags

    left = contents(tmp_path)
    assert {name: left.get(name) for name in HOME} == {
        name: text.encode() for name, text in HOME.items()
    }
    assert (tmp_path / ".ctxpipe-root").exists() is False
    assert (tmp_path / "Documents/.ctxpipe-session").exists() is False


def test_no_flags_delete_a_file_in_a_copy_of_this_repository(tmp_path):
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / name).is_file():
            shutil.copy(REPOSITORY / name, tmp_path / name)
    age(tmp_path)
    before = contents(tmp_path)

    for flags in [*COMBINATIONS, *SESSIONS]:
        run(tmp_path, *flags)

    assert contents(tmp_path) == before


def test_the_command_itself_leaves_a_folder_like_a_home_alone(tmp_path):
    write_old(tmp_path, HOME)

    command = [*prepared_python(), "-m", "ctxpipe", "clean", str(tmp_path)]
    command += ["--max-days", "0", "--records", "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 2
    assert "carries no mark of ctxpipe" in done.stderr
    assert set(contents(tmp_path)) == set(HOME)


# Our own files ------------------------------------------------------------------------------------


def test_what_is_too_old_goes_and_nothing_else(tmp_path):
    sessions_below(tmp_path, "old", journal=False)
    age(tmp_path)
    sessions_below(tmp_path, "new", journal=False)
    (tmp_path / "old/figures.csv").write_text("mine", "utf-8")

    done = run(tmp_path, "--max-days", 1, "--yes")

    assert done.exit_code == 0
    assert "files deleted: 1, bytes freed: 3,000" in done.stdout
    assert not (tmp_path / "old/t1.md").exists()
    assert (tmp_path / "old/figures.csv").exists()
    assert (tmp_path / "new/t1.md").exists()


def test_a_dry_run_lists_what_would_go_and_deletes_nothing(tmp_path):
    sessions_below(tmp_path, "job")
    age(tmp_path)
    before = contents(tmp_path)

    done = run(tmp_path, "--max-days", 1, "--records", "--dry-run")

    assert done.exit_code == 0
    assert str(tmp_path / "job/t1.md") in done.stdout
    assert str(tmp_path / "job/journal.jsonl") in done.stdout
    assert "files that would be deleted: 2" in done.stdout
    assert contents(tmp_path) == before


def test_without_a_terminal_it_wants_yes(tmp_path):
    sessions_below(tmp_path, "job", journal=False)
    age(tmp_path)

    done = run(tmp_path, "--max-days", 1)

    assert done.exit_code == 2
    assert "add --yes" in done.stderr
    assert (tmp_path / "job/t1.md").exists()


@pytest.mark.parametrize(("answer", "goes", "code"), [("", False, 1), ("y", True, 0)])
def test_at_a_terminal_it_asks(tmp_path, answer, goes, code):
    sessions_below(tmp_path, "job", journal=False)
    age(tmp_path)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        command = [*prepared_python(), "-m", "ctxpipe", "clean", str(tmp_path), "--max-days", "1"]
        done = subprocess.run(
            command, stdin=theirs, capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        os.close(ours)
        os.close(theirs)

    assert "Delete 1 files (3,000 bytes)" in done.stderr
    assert done.returncode == code
    assert (tmp_path / "job/t1.md").exists() is not goes


# One session --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["job", "Tenant/Job", "a" * 200])
def test_one_session_goes_wholly(tmp_path, name):
    sessions_below(tmp_path, name, "another")

    assert run(tmp_path, "--session", name, "--yes").exit_code == 0

    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        ".ctxpipe-deleted",
        "another",
    ]


def test_a_session_that_is_not_there_is_no_error(tmp_path):
    sessions_below(tmp_path, "job")

    assert "files deleted: 0" in run(tmp_path, "--session", "nobody").stdout


def test_a_file_that_stays_is_named_and_the_exit_code_says_so(tmp_path):
    sessions_below(tmp_path, "job")
    (tmp_path / "job/guide.md").write_text("mine")

    done = run(tmp_path, "--session", "job", "--yes")

    assert done.exit_code == 1
    assert f"not deleted: {tmp_path}/job/guide.md" in done.stdout
    assert set(contents(tmp_path / "job")) == {".ctxpipe-session", "guide.md"}


def test_a_prefix_deletes_whole_components_and_lists_them(tmp_path):
    names = ("cust1", "cust1/a", "cust1/b/c", "cust10", "cust10/a")
    sessions_below(tmp_path, *names)

    listed = run(tmp_path, "--prefix", "cust1/", "--dry-run")
    asked = run(tmp_path, "--prefix", "cust1/")
    done = run(tmp_path, "--prefix", "cust1/", "--yes")

    for name in names:
        assert (f"session '{name}'\n" in listed.stdout) is (not name.startswith("cust10"))
    assert "add --yes" in asked.stderr
    assert done.exit_code == 0, done.output
    left = anyio.run(LocalStorage(tmp_path).sessions)
    assert left == ["cust10", "cust10/a"]


@pytest.mark.parametrize("prefix", ["", "/"])
def test_an_empty_prefix_is_refused(tmp_path, prefix):
    sessions_below(tmp_path, "job")

    assert run(tmp_path, "--prefix", prefix, "--yes").exit_code == 2
    assert anyio.run(LocalStorage(tmp_path).sessions) == ["job"]


def test_a_journal_elsewhere_is_deleted_with_the_texts_or_named(tmp_path):
    root, path = tmp_path / "texts", tmp_path / "journal.sqlite"

    async def converse_elsewhere() -> None:
        storage = LocalStorage(root)
        async with SQLiteJournal(path, texts=storage) as journal:
            pipeline = ContextPipeline([DirectOffload(storage, min_chars=1000)])
            for name in ("cust1/a", "cust1/b"):
                await pipeline.session(name, journal=journal).run(HISTORY[:3])

    async def entries() -> list[str]:
        async with SQLiteJournal(path) as journal:
            return [*await journal.entries("cust1/a"), *await journal.entries("cust1/b")]

    anyio.run(converse_elsewhere)
    alone = run(root, "--session", "cust1/a", "--yes")
    done = run(root, "--prefix", "cust1", "--journal", f"sqlite:///{path}", "--yes")

    assert alone.exit_code == 1
    assert "the journal of 'cust1/a', which is not here" in alone.stdout
    assert done.exit_code == 0, done.output
    assert anyio.run(entries) == []
    assert not [name for name in contents(root) if name.startswith("cust1")]


def test_a_journal_that_is_not_where_the_command_looks_is_named_and_no_success(
    tmp_path,
):
    root, path = tmp_path / "texts", tmp_path / "journal.sqlite"

    async def converse_elsewhere() -> None:
        storage = LocalStorage(root)
        async with SQLiteJournal(path, texts=storage) as journal:
            pipeline = ContextPipeline([DirectOffload(storage, min_chars=1000)])
            await pipeline.session("cust1/a", journal=journal).run(HISTORY[:3])

    anyio.run(converse_elsewhere)
    done = run(root, "--session", "cust1/a", "--journal", f"sqlite:///{path}.bak", "--yes")

    assert done.exit_code == 1
    assert "the journal of 'cust1/a', which is not there either" in done.stdout


def test_a_session_is_deleted_without_limits_beside_it(tmp_path):
    sessions_below(tmp_path, "job")

    for more in (("--max-days", 1), ("--max-mb", 1), ("--records",)):
        done = run(tmp_path, "--session", "job", *more, "--yes")
        assert done.exit_code == 2
        assert "leave out" in done.stderr


# What version 0.1 left ----------------------------------------------------------------------------


def test_a_folder_of_others_behind_a_link_is_not_cleaned(tmp_path):
    home = tmp_path / "home"
    write_old(home, HOME)
    (tmp_path / ".ctxpipe").symlink_to(home)
    before = contents(home)

    done = run(tmp_path / ".ctxpipe", "--max-days", 0, "--records", "--yes")

    assert done.exit_code == 1
    assert f"is a link to {home}" in done.stderr
    assert contents(home) == before


# Misuse -------------------------------------------------------------------------------------------


def test_it_wants_to_know_what_may_go(tmp_path):
    assert run(tmp_path).exit_code == 2
    assert run(tmp_path / "none", "--max-days", 1).exit_code == 2
    for nonsense in ("nan", "inf", "-1"):
        refused = run(tmp_path, "--max-mb", nonsense)
        assert refused.exit_code == 2
        assert refused.stderr.startswith("ctxpipe: --max-mb is ")


def test_names_with_control_characters_are_printed_escaped(tmp_path):
    anyio.run(LocalStorage(tmp_path).write, [("job/\x1b[2J\n.md", "x")])
    age(tmp_path)

    printed = run(tmp_path, "--max-days", 1, "--dry-run").stdout

    assert "\x1b" not in printed
    assert "\\x1b[2J\\n.md" in printed
