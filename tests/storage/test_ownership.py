"""Nothing is deleted but what ctxpipe wrote, in folders that it made."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from histories import conversation, step, user
from hypothesis import given
from hypothesis import strategies as st
from processes import folder_of_another_user, python, python_killed_at, python_of_another_user

import ctxpipe
from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
    Stage,
    StorageError,
)
from ctxpipe.stages.compact.stage import Evidence
from ctxpipe.storage import Cleaned
from ctxpipe.storage.cleanup import delete_files, find_files
from ctxpipe.storage.generations import tombstone_name
from ctxpipe.storage.ownership import ROOT_MARK, SESSION_MARK, TOMBSTONES, StorageRoot
from ctxpipe.summarizers import ExtractiveSummarizer

MESSAGE = {"role": "user", "content": "hello"}
OURS_BY_NAME = [
    "docs/guide.md",
    "src/main.py",
    "s/tool-result-42.md",
    "s/compact-20260101T000000Z-1.json",
    "s/compact-paths.txt",
    "s/.ctxpipe-tmp-1-0-0",
    "s/.draft-1",
    "tool-result-42.md",
    ".ctxpipe-tmp-1-0-0",
    "a/b/c.md",
]


def write_old(root: Path, names: list[str], text: str = "mine"):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        os.utime(root / name, (0, 0))


def age(root: Path):
    for path in root.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)


def names_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


async def clean_up_everything(storage: LocalStorage):
    for records in (False, True):
        await storage.cleanup(max_age=0, records=records)
        await storage.cleanup(max_bytes=0, records=records)
        await storage.cleanup(max_bytes=0, max_age=0, records=records)


# Marks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
async def test_a_root_that_is_made_or_empty_is_marked_and_kept_out_of_git(tmp_path, exists):
    root = tmp_path / "root"
    if exists:
        root.mkdir()

    await LocalStorage(root).write([("s/a.md", "x")])

    assert json.loads((root / ROOT_MARK).read_text()) == {"form": 1, "version": ctxpipe.__version__}
    header, name = (root / "s" / SESSION_MARK).read_text().splitlines()
    assert (json.loads(header)["form"], json.loads(name)) == (1, "a.md")
    assert (root / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    "content", ["README.md", ".git/config", ".gitignore", "src/main.py", ".DS_Store"]
)
async def test_a_folder_with_other_content_is_used_and_never_marked(tmp_path, content):
    write_old(tmp_path, [content])

    for _ in range(2):
        await LocalStorage(tmp_path).write([("s/a.md", "x")])

    assert names_below(tmp_path) == {content, "s/a.md", f"s/{SESSION_MARK}"}


async def test_a_session_folder_that_was_there_is_never_marked(tmp_path):
    (tmp_path / "docs").mkdir()

    await LocalStorage(tmp_path).write([("docs/a.md", "x")])

    assert names_below(tmp_path) == {"docs/a.md"}


async def test_reading_marks_nothing(tmp_path):
    with pytest.raises(StorageError):
        await LocalStorage(tmp_path).read("s/a.md")
    await LocalStorage(tmp_path).records("s")
    await LocalStorage(tmp_path).cleanup(max_age=0)

    assert names_below(tmp_path) == set()


async def test_marks_are_neither_records_nor_texts(tmp_path):
    storage = LocalStorage(tmp_path)
    [text] = await storage.write([("s/a.md", "x")])

    assert await storage.records("s") == []
    assert await anyio.to_thread.run_sync(StorageRoot(str(tmp_path)).session_folders) == ["s"]
    assert (await storage.cleanup(max_bytes=0, max_age=0, records=True)).files == (text,)


def test_processes_that_make_the_root_at_once_all_succeed(tmp_path):
    script = """
import anyio, sys
from ctxpipe import LocalStorage
sys.stdin.read()
for turn in range(40):
    files = [(f"{sys.argv[2]}/a.md", "x"), ("both/a.md", "x")]
    anyio.run(LocalStorage(f"{sys.argv[1]}/{turn}").write, files)
"""
    starter = """
import subprocess, sys
script, root = sys.argv[1:]
running = [
    subprocess.Popen([sys.executable, "-c", script, root, name], stdin=subprocess.PIPE)
    for name in "abc"
]
for process in running:
    process.stdin.close()
sys.exit(sum(process.wait() for process in running))
"""
    python(starter, script, tmp_path)

    for turn in range(40):
        found = names_below(tmp_path / str(turn))
        assert {
            "a/a.md",
            "b/a.md",
            "c/a.md",
            "both/a.md",
            f"a/{SESSION_MARK}",
            f"both/{SESSION_MARK}",
        } <= found
        assert {ROOT_MARK, ".gitignore"} <= found
        assert not [name for name in found if "tmp" in name]


def test_a_killed_maker_leaves_a_folder_that_works(tmp_path):
    script = """
import os, sys, time
link = os.link
def stuck(*names, **options):
    print("HALF", flush=True)
    time.sleep(60)
os.link = stuck
import anyio
from ctxpipe import LocalStorage
anyio.run(LocalStorage(sys.argv[1]).write, [("s/a.md", "x")])
"""
    root = tmp_path / "root"
    python_killed_at("HALF", script, root)
    assert not (root / ROOT_MARK).exists()

    anyio.run(LocalStorage(root).write, [("s/a.md", "x")])

    assert (root / ROOT_MARK).exists()
    assert (root / "s/a.md").read_text() == "x"


async def test_no_session_folder_is_there_before_its_mark(tmp_path):
    script = """
import os, sys, time
link = os.link
def stuck(temporary, name, **options):
    if name == ".ctxpipe-session":
        print("HALF", flush=True)
        time.sleep(60)
    link(temporary, name, **options)
os.link = stuck
import anyio
from ctxpipe import LocalStorage
anyio.run(LocalStorage(sys.argv[1]).write, [("s/a.md", "x")])
"""
    root = tmp_path / "root"
    await anyio.to_thread.run_sync(python_killed_at, "HALF", script, root)
    assert not (root / "s").exists()

    storage = LocalStorage(root)
    await storage.write([("s/a.md", "x")])
    await storage.delete("s")

    assert not (root / "s").exists()


@pytest.mark.parametrize(
    "call", ["mkdir", "link", "rename"], ids=["before its mark", "beside it", "before its name"]
)
def test_a_folder_that_a_killed_process_had_not_finished_is_cleaned_up(tmp_path, call: str):
    script = """
import os, sys, time
from pathlib import Path
root, call = Path(sys.argv[1]), sys.argv[2]
work = getattr(os, call)
def stuck(*names, **options):
    if call == "mkdir":
        work(*names, **options)
    if any(root.glob(".ctxpipe-tmp-*")):
        print("HALF", flush=True)
        time.sleep(60)
    return None if call == "mkdir" else work(*names, **options)
setattr(os, call, stuck)
import anyio
from ctxpipe import LocalStorage
anyio.run(LocalStorage(root).write, [("s/a.md", "x")])
"""
    root = tmp_path / "root"
    anyio.run(LocalStorage(root).write, [("other/a.md", "x")])
    python_killed_at("HALF", script, root, call)
    [unfinished] = root.glob(".ctxpipe-tmp-*")

    anyio.run(LocalStorage(root).cleanup)
    assert unfinished.exists()  # its process may be alive
    assert StorageRoot(str(root)).session_ids() == ["other"]
    anyio.run(LocalStorage(root, clock=lambda: time.time() + 7_200).cleanup)

    assert not unfinished.exists()


def test_what_others_have_put_into_a_folder_of_that_name_stays(tmp_path):
    folder = tmp_path / ".ctxpipe-tmp-1-0-0"
    anyio.run(LocalStorage(tmp_path).write, [("s/a.md", "x")])
    folder.mkdir()
    (folder / "mine.md").write_text("mine")

    anyio.run(LocalStorage(tmp_path, clock=lambda: time.time() + 7_200).cleanup)

    assert (folder / "mine.md").read_text() == "mine"


def test_what_is_written_after_a_deletion_killed_before_its_last_step_is_deletable(tmp_path):
    script = """
import os, sys, time
def stuck(*names, **options):
    print("HALF", flush=True)
    time.sleep(60)
os.rmdir = stuck
import anyio
from ctxpipe import LocalStorage
anyio.run(LocalStorage(sys.argv[1]).delete, "s")
"""
    anyio.run(LocalStorage(tmp_path).write, [("s/a.md", "x")])
    python_killed_at("HALF", script, tmp_path)
    assert list((tmp_path / "s").iterdir()) == []  # without its mark

    anyio.run(LocalStorage(tmp_path).write, [("s/secret.md", "y")])
    anyio.run(LocalStorage(tmp_path).delete, "s")

    assert not (tmp_path / "s").exists()


def test_a_folder_that_a_killed_deletion_has_left_is_cleaned_up(tmp_path):
    anyio.run(LocalStorage(tmp_path).write, [("s/a.md", "x")])
    anyio.run(LocalStorage(tmp_path).delete, "s")
    (tmp_path / "s").mkdir()  # as after the last step but one
    (tmp_path / "mine").mkdir()

    anyio.run(LocalStorage(tmp_path, clock=lambda: time.time() + 7_200).cleanup)

    assert not (tmp_path / "s").exists()
    assert (tmp_path / "mine").exists()


# Newer and damaged marks --------------------------------------------------------------------------

NEWER = json.dumps({"form": 2, "folders": "elsewhere"})


@pytest.mark.parametrize(
    "act",
    [
        lambda storage: storage.write([("s/b.md", "x")]),
        lambda storage: storage.read("s/a.md"),
        lambda storage: storage.save("s", "compact", [MESSAGE]),
        lambda storage: storage.append("s", 0, "x"),
        lambda storage: storage.entries("s"),
        lambda storage: storage.set_aside("s"),
        lambda storage: storage.records("s"),
        lambda storage: storage.cleanup(max_age=0),
        lambda storage: storage.delete("s"),
    ],
    ids=["write", "read", "save", "append", "entries", "set aside", "records", "cleanup", "delete"],
)
async def test_a_root_of_a_newer_form_is_refused_and_left_alone(
    tmp_path, act: Callable[[Any], Any]
):
    await LocalStorage(tmp_path).write([("s/a.md", "x")])
    (tmp_path / ROOT_MARK).write_text(NEWER)
    before = names_below(tmp_path)

    with pytest.raises(
        StorageError, match=r"was made by a newer ctxpipe \(form 2, this one knows 1\); update"
    ) as refused:
        await act(LocalStorage(tmp_path))

    assert str(tmp_path) in str(refused.value)
    assert (tmp_path / ROOT_MARK).read_text() == NEWER
    assert names_below(tmp_path) == before


async def test_a_session_of_a_newer_form_is_neither_written_nor_deleted(tmp_path):
    await LocalStorage(tmp_path).write([("s/a.md", "x")])
    (tmp_path / "s" / SESSION_MARK).write_text(NEWER)
    age(tmp_path)
    before = names_below(tmp_path)
    storage = LocalStorage(tmp_path)

    for _ in range(2):
        for act in (
            storage.write([("s/b.md", "x")]),
            storage.append("s", 0, "x"),
            storage.delete("s"),
        ):
            with pytest.raises(StorageError, match="newer ctxpipe"):
                await act
        with pytest.raises(StorageError, match="newer ctxpipe"):
            await storage.cleanup(max_age=0)

    assert names_below(tmp_path) == before


DAMAGED = [
    "",
    "\n",
    "{",
    "[]",
    "{}",
    "null",
    "1",
    '{"form": "1"}',
    '{"form": 1.0}',
    '{"form": true}',
    '{"form": 0}',
    '{"form": null}',
    '{"form": 1\n}',
    "[" * 100_000,
    "\x00" * 64,
    '"form"',
]


@pytest.mark.parametrize("mark", DAMAGED, ids=lambda mark: repr(mark)[:24])
async def test_a_mark_that_is_damaged_gives_no_right_to_delete(tmp_path, mark: str):
    write_old(tmp_path, ["s/a.md", "tool-result-1.md"])
    (tmp_path / ROOT_MARK).write_text(mark)
    (tmp_path / "s" / SESSION_MARK).write_text(mark)
    before = names_below(tmp_path)
    storage = LocalStorage(tmp_path)

    await clean_up_everything(storage)
    with pytest.raises(StorageError, match="carries no mark of ctxpipe"):
        await storage.delete("s")
    await storage.write([("s/new.md", "x")])

    assert names_below(tmp_path) == {*before, "s/new.md"}
    assert (tmp_path / "s" / SESSION_MARK).read_text() == mark


async def test_a_file_of_ours_that_claims_a_terabyte_is_not_read_whole(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.write([("s/a.md", "x")])
    await storage.delete("other")
    [grave] = [path for path in (tmp_path / TOMBSTONES).iterdir() if path.name != SESSION_MARK]
    grave = grave.rename(grave.with_name(tombstone_name("s")))
    for path in (tmp_path / "s" / SESSION_MARK, grave):
        os.truncate(path, 2**40)

    await storage.write([("s/b.md", "y")])
    await storage.ensure_not_deleted("s")

    assert (await storage.read("s/b.md")).text == "y"


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
async def test_a_mark_that_is_no_file_gives_no_right_to_delete(tmp_path, kind):
    await LocalStorage(tmp_path / "other").write([("s/a.md", "x")])
    root = tmp_path / "root"
    write_old(root, ["s/a.md"])
    mark = root / "s" / SESSION_MARK
    match kind:
        case "pipe":
            os.mkfifo(mark)
        case "folder":
            mark.mkdir()
        case _:
            mark.symlink_to(tmp_path / "other/s" / SESSION_MARK)

    with anyio.fail_after(30):
        await clean_up_everything(LocalStorage(root))

    assert (root / "s/a.md").read_text() == "mine"


# Files of others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [[], ["s/b.md"], ["docs/t1.md", "job/t1.md"]])
async def test_a_name_like_ours_proves_nothing(tmp_path, beside: list[str]):
    write_old(tmp_path, OURS_BY_NAME)
    storage = LocalStorage(tmp_path)
    await storage.write([(key, "ours") for key in beside])
    age(tmp_path)

    await clean_up_everything(storage)
    for name in ("docs", "s", "src", "a"):
        with pytest.raises(StorageError, match="carries no mark of ctxpipe"):
            await storage.delete(name)
    await LocalStorage(tmp_path).write([(key, "ours") for key in beside])

    assert {
        name for name in names_below(tmp_path) if (tmp_path / name).read_text() == "mine"
    } == set(OURS_BY_NAME)


async def test_files_of_others_in_our_folders_stay_with_the_folder(tmp_path):
    storage = LocalStorage(tmp_path)
    await storage.write([("s/a.md", "x")])
    theirs = ["s/data.csv", "s/.env", "s/deeper/b.md", "s/archive.json", "s/notes.txt"]
    write_old(tmp_path, theirs)
    (tmp_path / "s/link.md").symlink_to(tmp_path / "s/data.csv")
    age(tmp_path)

    await clean_up_everything(storage)
    deleted = await storage.delete("s")

    assert deleted.files == ()
    assert {*theirs, "s/link.md", f"s/{SESSION_MARK}"} <= names_below(tmp_path)


@pytest.mark.parametrize("session", ["docs", "s"])
async def test_files_that_others_put_into_a_folder_that_we_made_stay(tmp_path, session):
    storage = LocalStorage(tmp_path)
    await storage.write([(f"{session}/t1.md", "ours"), ("tool-result-1.md", "ours")])
    await storage.append(session, 0, "x")
    theirs = ["docs/guide.md", *OURS_BY_NAME, "s/a.md", "docs/truncate-20260101T000000Z-1.json"]
    write_old(tmp_path, theirs)
    age(tmp_path)

    await clean_up_everything(storage)
    await storage.delete(session)

    kept = [name for name in theirs if not Path(name).name.startswith(".ctxpipe-tmp-")]
    assert {name: (tmp_path / name).read_text() for name in kept} == dict.fromkeys(kept, "mine")
    assert not (tmp_path / session / "t1.md").exists()
    assert not (tmp_path / session / "journal.jsonl").exists()


@pytest.mark.parametrize(
    "name", [".ctxpipe-tmp-notes", ".ctxpipe-tmp-1", ".ctxpipe-tmp-1-2-3.md", ".ctxpipe-tmp-"]
)
async def test_a_name_that_begins_like_a_temporary_file_is_none(tmp_path, name):
    await LocalStorage(tmp_path).write([("s/a.md", "x")])
    write_old(tmp_path, [name, f"s/{name}"])
    age(tmp_path)

    await clean_up_everything(LocalStorage(tmp_path))
    await LocalStorage(tmp_path).write([("s/b.md", "x")])
    await LocalStorage(tmp_path).delete("s")

    assert (tmp_path / name).read_text() == (tmp_path / "s" / name).read_text() == "mine"


@pytest.mark.parametrize("folder", ["s", ""])
async def test_a_mark_that_is_another_file_by_a_second_name_is_not_written_to(tmp_path, folder):
    storage = LocalStorage(tmp_path / "root")
    await storage.write([(f"{folder}/a.md".lstrip("/"), "x")])
    mark = tmp_path / "root" / folder / (SESSION_MARK if folder else ROOT_MARK)
    theirs = tmp_path / "theirs"
    theirs.write_text("mine")
    mark.unlink()
    os.link(theirs, mark)

    await storage.write([(f"{folder}/b.md".lstrip("/"), "y")])
    await clean_up_everything(storage)

    assert theirs.read_text() == "mine"
    assert (mark.parent / "b.md").read_text() == "y"


async def test_a_torn_line_of_the_mark_costs_one_name(tmp_path):
    await LocalStorage(tmp_path).write([("s/a.md", "x")])
    with (tmp_path / "s" / SESSION_MARK).open("a") as mark:
        mark.write('\n"b.m')
    await LocalStorage(tmp_path).write([("s/c.md", "x")])

    deleted = await LocalStorage(tmp_path).delete("s")

    assert sorted(Path(path).name for path in deleted.files) == ["a.md", "c.md"]


@pytest.mark.parametrize(
    "name", ["report.md", "mine.log", "übersicht.md", "half \ud83d.md", "a b\n.md"]
)
async def test_a_file_of_any_name_that_was_written_here_is_known(tmp_path, name):
    storage = LocalStorage(tmp_path)
    [text] = await storage.write([(f"s/{name.replace(chr(0xD83D), '')}", "x")])

    assert (await storage.delete("s")).files == (text,)


def test_a_folder_that_nobody_may_look_into_is_left_out():
    script = """
import anyio, os, sys
from ctxpipe import LocalStorage
root = sys.argv[1]
async def main():
    storage = LocalStorage(root + "/store")
    await storage.write([("s/a.md", "x")])
    os.mkdir(root + "/store/lost+found", 0o000)
    print(len((await storage.cleanup(max_age=-0.0, max_bytes=0)).files))
anyio.run(main)
"""
    with folder_of_another_user() as folder:
        assert python_of_another_user(script, folder) == "1"


@st.composite
def trees(draw: st.DrawFn) -> list[str]:
    """Files of somebody's, many with names like ours."""
    folder = st.sampled_from(["", "s/", "docs/", "s/deep/", "job-1/"])
    name = st.sampled_from(
        [
            *("a.md", "t1.md", "journal.jsonl", "compact-20260101T000000Z-1.json"),
            *("compact-paths.txt", "tool-result-1.md", ".ctxpipe-tmp-1", ".gitignore", "x.py"),
            "tool-result-t1-1.md",
        ]
    )
    return sorted({draw(folder) + draw(name) for _ in range(draw(st.integers(1, 8)))})


@given(
    trees(), st.lists(st.sampled_from(["write", "save", "append", "clean", "delete"]), max_size=8)
)
async def test_whatever_is_done_the_files_that_were_there_stay(tree: list[str], acts: list[str]):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_old(root, tree)
        for number, act in enumerate(acts):
            storage, session = LocalStorage(root), ("s", "docs", "new")[number % 3]
            try:
                match act:
                    case "write":
                        await storage.write(
                            [(f"{session}/t1.md", f"text {number}"), ("tool-result-t1.md", "text")]
                        )
                    case "save":
                        await storage.save(session, "compact", [MESSAGE])
                    case "append" if f"{session}/journal.jsonl" not in tree:
                        await storage.append(session, 0, "x")
                    case "clean":
                        age(root)
                        await clean_up_everything(storage)
                    case "delete":
                        await storage.delete(session)
            except StorageError:
                pass  # in a folder that is not ours

        assert {name: (root / name).read_text() for name in tree} == dict.fromkeys(tree, "mine")


# Our own ------------------------------------------------------------------------------------------


async def test_clean_up_knows_every_file_that_stages_and_sessions_write(tmp_path):
    storage = LocalStorage(tmp_path)
    offloading: list[Stage] = [
        DirectOffload(storage, min_chars=2000),
        BatchOffload(storage, keep_recent=0, min_chars=100, inputs={"write"}),
    ]
    cutting: list[Stage] = [
        Compact(ExtractiveSummarizer(), archive=storage, evidence=Evidence(tokens=50)),
        SmartTruncate(archive=storage, max_tokens=2000),
    ]
    history = conversation(user("go"))
    for number in range(40):
        given = {"path": f"src/module_{number}.py", "text": f"line {number}\n" * 200}
        history += step(f"t{number}", "write", given, f"result {number} " * (40 + number * 10))
    await ContextPipeline(offloading).session("s", journal=storage).run(history)
    for stage in cutting:
        await ContextPipeline([stage], budget=Budget(6000)).run(history, session_id="s", force=True)

    written = {path.name for path in (tmp_path / "s").iterdir()} - {SESSION_MARK}
    assert any(name.startswith("compact-2") for name in written)
    assert any(name.startswith("truncate-2") for name in written)
    assert "journal.jsonl" in written

    deleted = await storage.delete("s")
    assert len(deleted.files) == len(written)
    assert not (tmp_path / "s").exists()


async def test_a_journal_protects_its_session_as_long_as_it_is_young(tmp_path):
    now = time.time()
    storage = LocalStorage(tmp_path, clock=lambda: now)
    for session, days in (("young", 1), ("old", 40)):
        await storage.write([(f"{session}/a.md", "x" * 100)])
        await storage.append(session, 0, "x")
        age(tmp_path / session)
        os.utime(tmp_path / session / "journal.jsonl", (now - days * 86_400, now - days * 86_400))

    assert (await storage.cleanup(max_bytes=0, records=True)).files == ()
    cleaned = await storage.cleanup(max_age=30 * 86_400, max_bytes=0, records=True)

    assert {str(Path(path).relative_to(tmp_path)) for path in cleaned.files} == {
        "old/a.md",
        "old/journal.jsonl",
    }


async def test_a_file_that_was_written_again_since_it_was_looked_at_stays(tmp_path):
    storage = LocalStorage(tmp_path)
    [path] = await storage.write([("s/a.md", "x")])
    age(tmp_path)
    root = StorageRoot(str(tmp_path))
    found = await anyio.to_thread.run_sync(find_files, root)
    os.utime(path)

    assert await anyio.to_thread.run_sync(delete_files, root, found) == Cleaned()
    assert Path(path).exists()


# One session --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s", "Tenant/S", "../s", "漢字", "a" * 300, "con"])
async def test_deleting_a_session_leaves_nothing_of_it_and_all_of_the_others(tmp_path, name):
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline([DirectOffload(storage)])
    for session in (name, "other"):
        history = conversation(user("go"), step("t1", "x", result="data " * 600))
        await pipeline.session(session, journal=storage).run(history)
        await storage.save(session, "compact", [MESSAGE])
    others = {path.read_bytes() for path in (tmp_path / "other").iterdir()}

    deleted = await storage.delete(name)

    assert len(deleted.files) == 3
    assert deleted.bytes > 3000
    assert not any(Path(path).exists() for path in deleted.files)
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"other", TOMBSTONES}
    assert {path.read_bytes() for path in (tmp_path / "other").iterdir()} == others
    assert await storage.delete(name) == Cleaned()


async def test_a_deleted_session_may_begin_anew(tmp_path):
    storage = LocalStorage(tmp_path)
    for words in ("one", "two"):
        [path] = await storage.write([("s/a.md", words)])
        assert Path(path).read_text() == words
        assert (tmp_path / "s" / SESSION_MARK).exists()
        await storage.delete("s")


async def test_a_folder_that_somebody_writes_into_while_it_is_dropped_keeps_its_mark(
    tmp_path, monkeypatch
):
    storage = LocalStorage(tmp_path)
    [path] = await storage.write([("s/a.md", "x")])
    rmdir = os.rmdir

    def late(name: str, **options: Any):
        Path(path).write_text("a new text")
        rmdir(name, **options)

    monkeypatch.setattr(os, "rmdir", late)
    await storage.delete("s")

    assert names_below(tmp_path / "s") == {"a.md", SESSION_MARK}


async def test_a_folder_that_is_being_dropped_is_not_written_to(tmp_path, monkeypatch):
    """Without a session, too: what is written between the mark and the folder is in no list."""
    storage = LocalStorage(tmp_path)
    await storage.write([("s/a.md", "x")])
    rmdir, refused = os.rmdir, list[StorageError]()

    def late(name: str, **options: Any):
        if name == "s":
            try:
                LocalStorage(tmp_path).write_blocking([("s/b.md", "y")])
            except StorageError as error:
                refused.append(error)
        rmdir(name, **options)

    monkeypatch.setattr(os, "rmdir", late)
    await storage.delete("s")
    monkeypatch.undo()

    assert len(refused) == 1
    assert not (tmp_path / "s").exists()
    await storage.write([("s/b.md", "y")])
    await storage.delete("s")
    assert not (tmp_path / "s").exists()


async def test_a_folder_that_cannot_be_dropped_is_still_known_as_that_of_its_session(
    tmp_path, monkeypatch
):
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline([])
    await pipeline.session("Cust 1/a", journal=storage).run(conversation(user("hello")))
    [folder] = [path for path in tmp_path.iterdir() if (path / SESSION_MARK).exists()]
    rmdir = os.rmdir

    def late(name: str, **options: Any):
        if name == folder.name:
            (folder / "theirs.txt").write_text("mine")
        rmdir(name, **options)

    monkeypatch.setattr(os, "rmdir", late)
    await storage.delete("Cust 1/a")

    assert await storage.sessions("Cust 1") == ["Cust 1/a"]
