"""Text files below one folder: whole, private, and nowhere else."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import pytest
from anthropic.types import ToolUseBlock
from cancellation import cancelled
from histories import assistant, conversation, text, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st
from processes import (
    folder_of_another_user,
    python,
    python_killed_at,
    python_of_another_user,
    small_disk,
)

from ctxpipe import InvalidHistory, LocalStorage, SettingsError, StorageError
from ctxpipe.messages import Message
from ctxpipe.placeholders.names import content_hash, session_folder
from ctxpipe.placeholders.placeholders import BATCH, DIRECT, Preview, placeholder
from ctxpipe.storage import Page


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    return LocalStorage(root)


MARKS = (".ctxpipe-root", ".ctxpipe-session", ".gitignore")


def files_below(folder: Path) -> list[str]:
    """All files but the storage's own marks."""
    found = [path for path in folder.rglob("*") if not path.is_dir() and path.name not in MARKS]
    return sorted(str(path.relative_to(folder)) for path in found)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def any_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


# Settings -----------------------------------------------------------------------------------------


def test_making_one_touches_no_disk(root):
    LocalStorage(root).location("s/a.md")

    assert not root.exists()


async def test_a_later_change_of_the_folder_does_not_move_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("below")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert await storage.write([("s/a.md", "x")]) == [str(tmp_path / "below/s/a.md")]


# Writing ------------------------------------------------------------------------------------------


async def test_a_batch_lies_where_it_was_said_to_lie_in_order(storage, root):
    written = await storage.write([("s/b.md", "two"), ("s/a.md", "one"), ("t/a.md", "three")])

    assert written == [str(root / "s/b.md"), str(root / "s/a.md"), str(root / "t/a.md")]
    assert written == [storage.location(key) for key in ("s/b.md", "s/a.md", "t/a.md")]
    assert [Path(path).read_text() for path in written] == ["two", "one", "three"]
    assert files_below(root) == ["s/a.md", "s/b.md", "t/a.md"]


async def test_files_and_folders_are_private_whatever_the_umask(tmp_path, any_umask):
    for umask in (0, 0o022, 0o277, 0o777):
        root = tmp_path / f"{umask:o}" / "deeper"
        os.umask(umask)
        storage = LocalStorage(root)
        [written] = await storage.write([("s/a.md", "x")])
        saved = await storage.save("s", "compact", ["{}"])
        await storage.append("s", 0, "x")
        os.umask(0o022)

        assert [mode(path) for path in (written, saved, root / "s/journal.jsonl")] == [0o600] * 3
        assert [mode(path) for path in (root.parent, root, root / "s")] == [0o700] * 3


async def test_a_folder_that_was_there_before_keeps_its_mode(root):
    root.mkdir(mode=0o755)

    await LocalStorage(root).write([("s/a.md", "x")])

    assert (mode(root), mode(root / "s")) == (0o755, 0o700)


async def test_the_same_text_again_is_not_written_again(storage):
    [path] = await storage.write([("s/a.md", "x" * 1000)])
    before = os.stat(path)

    assert await storage.write([("s/a.md", "x" * 1000)]) == [path]
    assert (os.stat(path).st_ino, os.stat(path).st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


async def test_another_text_goes_to_a_name_with_its_hash(storage, root):
    texts = ["one", "two", "three", "two", "one"]

    written = [path for words in texts for path in await storage.write([("s/a.md", words)])]

    named = {
        "one": "a.md",
        "two": f"a-{content_hash('two')}.md",
        "three": f"a-{content_hash('three')}.md",
    }
    assert written == [str(root / "s" / named[words]) for words in texts]
    assert [Path(path).read_text() for path in written] == texts


async def test_where_even_the_name_with_the_hash_is_taken_a_number_helps(storage, root):
    await storage.write(
        [("s/a.md", "one"), (f"s/a-{content_hash('two')}.md", "an id that looks like it")]
    )

    assert await storage.write([("s/a.md", "two")]) == [str(root / "s/a-1.md")]


async def test_with_numbers_each_text_of_a_batch_has_a_file_of_its_own(root):
    storage = LocalStorage(root, on_conflict="number")

    written = await storage.write(
        [("a.md", "same"), ("a.md", "same"), ("a-1.md", "x"), ("a.md", "other")]
    )

    assert [Path(path).name for path in written] == ["a.md", "a-1.md", "a-1-1.md", "a-2.md"]


async def test_with_numbers_a_later_batch_finds_the_same_bytes_again(root):
    storage = LocalStorage(root, on_conflict="number")
    first = await storage.write([("a.md", "one"), ("a.md", "two")])

    assert await storage.write([("a.md", "one"), ("a.md", "two")]) == first
    assert await storage.write([("a.md", "three")]) == [str(root / "a-2.md")]


async def test_overwriting_keeps_the_name_and_replaces_the_text(root):
    storage = LocalStorage(root, on_conflict="overwrite")

    first = await storage.write([("s/a.md", "long" * 100)])
    second = await storage.write([("s/a.md", "short")])

    assert first == second
    assert Path(first[0]).read_text() == "short"


async def test_what_goes_to_disk_is_redacted(root):
    storage = LocalStorage(root, redact=lambda text: text.replace("secret", "******"))

    [written] = await storage.write([("s/a.md", "a secret")])
    saved = await storage.save("s", "compact", [user("a secret"), "another secret"])

    assert Path(written).read_text() == "a ******"
    assert json.loads(Path(saved).read_text()) == [user("a ******"), "another ******"]
    assert await storage.write([("s/a.md", "a secret")]) == [written]


async def test_a_synced_storage_writes_the_same(root):
    for on_conflict in ("hash", "number", "overwrite"):
        storage = LocalStorage(
            root / on_conflict, fsync=True, on_conflict=cast("Literal['hash']", on_conflict)
        )

        [path] = await storage.write([("s/a.md", "x")])
        await storage.append("s", 0, "x")

        assert Path(path).read_text() == "x"
        assert files_below(root / on_conflict) == ["s/a.md", "s/journal.jsonl"]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "a", "a-1"]), st.text(max_size=3)),
        max_size=12,
    )
)
async def test_a_file_once_named_never_changes_its_bytes(
    writes: list[tuple[str, str, str]],
):
    with tempfile.TemporaryDirectory() as root:
        # Two storages as of two processes, and ids used again with other texts.
        storages = LocalStorage(root), LocalStorage(root)
        seen: dict[str, bytes] = {}
        for number, (session, name, words) in enumerate(writes):
            [path] = await storages[number % 2].write([(f"{session}/{name}.md", words)])
            seen.setdefault(path, words.encode())
            assert {path: Path(path).read_bytes() for path in seen} == seen


# Nowhere else -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", ".", "..", "/etc/x", "../x", "s/../../x", "s/..", "a\0b"])
async def test_a_key_that_leads_out_of_the_root_is_refused(storage, tmp_path, key):
    with pytest.raises(StorageError, match="does not name a text of the storage"):
        storage.location(key)
    with pytest.raises(StorageError):
        await storage.write([(key, "x")])
    assert files_below(tmp_path) == []


async def test_a_link_in_place_of_a_file_is_never_followed(storage, root, tmp_path):
    outside = tmp_path / "outside.md"
    outside.write_text("x")
    (root / "s").mkdir(parents=True)
    for name in ("a.md", "journal.jsonl"):
        (root / "s" / name).symlink_to(outside)

    for on_conflict in ("hash", "number"):
        with pytest.raises(StorageError) as failed:
            await LocalStorage(root, on_conflict=cast("Literal['hash']", on_conflict)).write(
                [("s/a.md", "x")]
            )
        assert failed.value.errno == errno.ELOOP
    with pytest.raises(StorageError):
        await storage.read("s/a.md")
    with pytest.raises(StorageError):
        await storage.append("s", 0, "y")
    with pytest.raises(StorageError):
        await storage.entries("s")
    assert outside.read_text() == "x"


async def test_overwriting_replaces_a_link_and_not_what_it_points_to(root, tmp_path):
    outside = tmp_path / "outside.md"
    outside.write_text("precious")
    (root / "s").mkdir(parents=True)
    (root / "s/a.md").symlink_to(outside)

    [path] = await LocalStorage(root, on_conflict="overwrite").write([("s/a.md", "x")])

    assert (Path(path).read_text(), Path(path).is_symlink(), outside.read_text()) == (
        "x",
        False,
        "precious",
    )


async def test_a_link_in_place_of_a_session_folder_is_never_followed(storage, root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("x")
    root.mkdir()
    (root / "s").symlink_to(outside)

    for attempt in (
        storage.write([("s/b.md", "x")]),
        storage.read("s/a.md"),
        storage.save("s", "compact", ["{}"]),
        storage.append("s", 0, "x"),
        storage.entries("s"),
        storage.set_aside("s"),
        storage.records("s"),
    ):
        with pytest.raises(StorageError):
            await attempt
    assert await storage.cleanup(max_bytes=0) == await storage.cleanup(max_age=0)
    assert files_below(outside) == ["a.md"]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
async def test_what_is_no_file_neither_blocks_nor_leaks_a_descriptor(storage, root, kind):
    (root / "s").mkdir(parents=True)
    (root / "s/a.md").mkdir() if kind == "folder" else os.mkfifo(root / "s/a.md")
    with pytest.raises(StorageError, match="not a regular file"):
        await storage.write([("s/a.md", "x")])
    before = open_descriptors()

    for _ in range(5):
        with pytest.raises(StorageError, match="not a regular file"):
            await storage.write([("s/a.md", "x")])
        with pytest.raises(StorageError, match="no stored text"):
            await storage.read("s/a.md")

    assert open_descriptors() == before


# When it cannot -----------------------------------------------------------------------------------


async def test_a_root_that_is_a_file_is_an_error_with_its_cause(tmp_path):
    (tmp_path / "root").write_text("a file")

    storage = LocalStorage(tmp_path / "root", must_be_writable=False)

    with pytest.raises(StorageError, match=r"cannot open the folder .*: Not a directory") as failed:
        await storage.write([("s/a.md", "x")])

    assert isinstance(failed.value.__cause__, NotADirectoryError)
    assert failed.value.errno == errno.ENOTDIR


@pytest.mark.parametrize("root", ["file", "file/below", "link"])
def test_a_root_that_cannot_be_a_folder_is_refused_where_the_storage_is_made(tmp_path, root):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")

    with pytest.raises(SettingsError, match=r"is a file; give a folder|is a link to nothing"):
        LocalStorage(tmp_path / root)


@pytest.mark.parametrize("root", [".", "new", "new/below"])
def test_a_root_without_permission_to_write_is_refused_unless_it_serves_for_reading(
    read_only_folder, root
):
    with pytest.raises(SettingsError, match=r"may not write to .*; give a folder to which it may"):
        LocalStorage(read_only_folder / root)

    LocalStorage(read_only_folder / root, must_be_writable=False)


async def test_a_vanished_root_is_made_anew(storage, root):
    [path] = await storage.write([("s/a.md", "x")])
    shutil.rmtree(root)

    assert await storage.write([("s/a.md", "y")]) == [path]
    assert Path(path).read_text() == "y"


async def test_a_full_disk_is_an_error_and_leaves_no_half_file(tmp_path):
    with small_disk(tmp_path, kilobytes=64) as disk:
        storage = LocalStorage(disk)
        [small] = await storage.write([("s/small.md", "x" * 1000)])

        with pytest.raises(StorageError, match="No space left on device") as failed:
            await storage.write([("s/large.md", "x" * 200_000)])
        with pytest.raises(StorageError, match="No space left on device"):
            await storage.save("s", "compact", ("x" * 1000 for _ in range(200)))

        assert failed.value.errno == errno.ENOSPC
        assert isinstance(failed.value.__cause__, OSError)
        assert files_below(disk) == ["s/small.md"]
        assert await storage.write([("s/small.md", "x" * 1000)]) == [small]


def test_a_folder_without_permission_is_an_error():
    script = """
import anyio, os, sys
from ctxpipe import LocalStorage, StorageError
root = sys.argv[1]
async def tried(attempt):
    try:
        await attempt
    except StorageError as error:
        print(type(error.__cause__).__name__, error.errno)
async def main():
    storage = LocalStorage(root)
    await storage.write([("s/a.md", "x")])
    os.chmod(root + "/s", 0o500)
    await tried(storage.write([("s/b.md", "x")]))
    await tried(storage.append("s", 0, "x"))
    print(await storage.write([("s/a.md", "x")]) == [root + "/s/a.md"])
    os.chmod(root, 0o500)
    await tried(storage.write([("t/b.md", "x")]))
    os.chmod(root, 0o000)
    await tried(storage.write([("s/a.md", "x")]))
    await tried(storage.read("s/a.md"))
    os.chmod(root, 0o700)
    os.chmod(root + "/s", 0o700)
anyio.run(main)
"""
    with folder_of_another_user() as folder:
        told = python_of_another_user(script, folder)

    assert told.splitlines() == [
        "PermissionError 13",
        "PermissionError 13",
        "True",
        "PermissionError 13",
        "PermissionError 13",
        "StorageError 2",
    ]


async def test_a_record_whose_making_fails_is_not_there(storage, root):
    def chunks() -> Iterator[str]:
        yield "["
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await storage.save("s", "compact", chunks())

    assert files_below(root) == []


# Other processes ----------------------------------------------------------------------------------


def test_a_killed_writer_leaves_no_half_file_and_its_draft_is_swept(root):
    script = """
import anyio, sys, time
from ctxpipe import LocalStorage
def chunks():
    yield "half of it"
    print("HALF", flush=True)
    time.sleep(60)
anyio.run(LocalStorage(sys.argv[1]).save, "s", "compact", chunks())
"""
    python_killed_at("HALF", script, root)
    [draft] = files_below(root)
    assert Path(draft).name.startswith(".ctxpipe-tmp-")

    anyio.run(LocalStorage(root).write, [("s/a.md", "x")])
    fresh = files_below(root)
    os.utime(root / draft, (0, 0))
    anyio.run(LocalStorage(root).write, [("s/b.md", "x")])

    assert fresh == [draft, "s/a.md"]  # somebody may still be writing it
    assert files_below(root) == ["s/a.md", "s/b.md"]


def test_processes_that_write_the_same_key_at_once_never_mix_their_texts(root):
    script = """
import anyio, json, sys
from ctxpipe import LocalStorage
async def main(root, name):
    storage = LocalStorage(root)
    for number in range(200):
        [mine] = await storage.write([(f"s/{number}.md", name * 50_000)])
        [both] = await storage.write([(f"s/both-{number}.md", "the same")])
        if open(mine).read() != name * 50_000 or open(both).read() != "the same":
            print("broken", mine, both)
anyio.run(main, *sys.argv[1:])
"""
    starter = """
import subprocess, sys
script, root = sys.argv[1:]
running = [subprocess.Popen([sys.executable, "-c", script, root, name]) for name in "ABC"]
sys.exit(sum(process.wait() for process in running))
"""
    assert python(starter, script, root) == ""

    found = {path.name: set(path.read_text()) for path in (root / "s").glob("*.md")}
    assert all(len(held) == 1 for name, held in found.items() if not name.startswith("both"))
    assert len(found) == 200 * 4  # each of three texts once for every number, and one for all three


async def test_a_file_that_appears_while_we_write_is_kept(root):
    def meanwhile(text: str) -> str:
        (root / "s").mkdir(parents=True, exist_ok=True)
        (root / "s/a.md").write_text("theirs")
        return text

    [path] = await LocalStorage(root, redact=meanwhile).write([("s/a.md", "ours")])

    assert (Path(path).read_text(), (root / "s/a.md").read_text()) == ("ours", "theirs")


@pytest.mark.parametrize(
    ("theirs", "ours_at"), [("ours", "a.md"), ("theirs", f"a-{content_hash('ours')}.md")]
)
@pytest.mark.parametrize("links", [True, False])
async def test_when_another_process_is_faster_its_file_stays(
    root, monkeypatch, theirs, ours_at, links
):
    link = os.link

    def late(draft: str, name: str, **options: Any):
        if name == "a.md":  # the other one comes in between our look and our claim
            (root / "s/a.md").write_text(theirs)
        if not links:
            raise OSError(errno.ENOTSUP, "Operation not supported")
        link(draft, name, **options)

    monkeypatch.setattr(os, "link", late)

    assert await LocalStorage(root).write([("s/a.md", "ours")]) == [str(root / "s" / ours_at)]
    assert (root / "s/a.md").read_text() == theirs
    assert set(files_below(root)) == {"s/a.md", f"s/{ours_at}"}


async def test_a_disk_that_fails_when_the_file_is_named_leaves_no_draft(root, monkeypatch):
    await LocalStorage(root).write([("s/b.md", "x")])

    def fail(*_: object, **__: object):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "link", fail)

    with pytest.raises(StorageError, match=r"cannot write .*: Input/output error"):
        await LocalStorage(root).write([("s/a.md", "x")])
    assert files_below(root) == ["s/b.md"]


async def test_without_hard_links_it_still_works(root, monkeypatch):
    def no_links(*_: object, **__: object):
        raise OSError(errno.EPERM, "Operation not permitted")  # as a FAT file system answers

    monkeypatch.setattr(os, "link", no_links)
    storage = LocalStorage(root)

    written = [
        path for words in ("one", "two", "one") for path in await storage.write([("s/a.md", words)])
    ]

    assert [Path(path).read_text() for path in written] == ["one", "two", "one"]
    assert files_below(root) == [f"s/a-{content_hash('two')}.md", "s/a.md"]


def test_a_thousand_sessions_at_once_need_few_descriptors(root):
    script = """
import anyio, resource, sys
from functools import partial
from ctxpipe import LocalStorage
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
async def at_once(act):
    async with anyio.create_task_group() as tasks:
        for number in range(1000):
            tasks.start_soon(act, f"s{number}")
async def main(root):
    storage = LocalStorage(root)
    await at_once(lambda session: storage.write([(f"{session}/a.md", "x" * 5000)]))
    await at_once(lambda session: storage.append(session, 0, "x" * 100))
    await at_once(lambda session: storage.read(f"{session}/a.md"))
anyio.run(main, *sys.argv[1:])
"""
    python(script, root)

    assert len(files_below(root)) == 2000


# Reading ------------------------------------------------------------------------------------------


@given(st.text(max_size=40), st.integers(0, 50), st.integers(0, 50) | st.none())
async def test_a_page_is_a_slice(words: str, offset: int, limit: int | None):
    with tempfile.TemporaryDirectory() as root:
        storage = LocalStorage(root)
        await storage.write([("s/a.md", words)])

        page = await storage.read("s/a.md", offset, limit)

    assert page.text == words[offset:][:limit]
    assert (page.offset, page.total) == (min(offset, len(words)), len(words))


@pytest.mark.parametrize("how", ["task", "scope"])
async def test_reading_can_be_cancelled_at_any_await(storage, how: Literal["task", "scope"]):
    await storage.write([("s/a.md", "text")])
    read = [await cancelled(storage.read("s/a.md"), at, how) for at in range(1, 30)]

    gc.collect()  # what was left half done would be told of here, and is an error
    assert read[0] is None
    assert read[-1] == Page("text", 0, 4)


@pytest.mark.parametrize("limits", [{"offset": -1}, {"limit": -1}])
async def test_a_page_of_a_nonsensical_size_is_refused_by_name(storage, limits: dict[str, int]):
    with pytest.raises(SettingsError, match=f"{next(iter(limits))} is -1; give a whole number"):
        await storage.read("s/a.md", **limits)


async def test_every_form_of_a_path_that_we_print_is_understood(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    real = tmp_path / "real"
    real.mkdir()
    root.symlink_to(real)  # the root itself may be a link: the user has named it
    storage = LocalStorage(root)
    [path] = await storage.write([("s/a.md", "x")])

    for form in (
        path,
        "s/a.md",
        "./s/a.md",
        "root/s/a.md",
        "./root/s/a.md",
        str(real / "s/a.md"),
        "/sandbox/files/s/a.md",
        "C:\\sandbox\\s\\a.md",
    ):
        assert (await storage.read(form)).text == "x", form


@pytest.mark.parametrize(
    "location",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "../outside.md",
        "s/../../outside.md",
        "s",
        "a\0b",
        "\ud83d.md",
        "x" * 5000,
    ],
)
async def test_nothing_is_read_outside_of_the_root(storage, tmp_path, location):
    (tmp_path / "outside.md").write_text("secret")
    await storage.write([("s/a.md", "x")])

    with pytest.raises(StorageError, match="there is no stored text"):
        await storage.read(location)
    with pytest.raises(StorageError, match="there is no stored text"):
        await anyio.to_thread.run_sync(storage.key, location)


# Records ------------------------------------------------------------------------------------------


async def test_records_are_numbered_by_session_and_stem(root):
    storage = LocalStorage(
        root, clock=lambda: datetime(2026, 11, 20, 17, 24, tzinfo=UTC).timestamp()
    )

    saved = [
        await storage.save(*record, ["{}"])
        for record in (
            ("s", "compact"),
            ("s", "compact"),
            ("t", "compact"),
            ("s", "truncate"),
            ("s", "compact"),
        )
    ]

    assert [Path(path).relative_to(root).as_posix() for path in saved] == [
        "s/compact-20261120T172400Z-1.json",
        "s/compact-20261120T172400Z-2.json",
        "t/compact-20261120T172400Z-1.json",
        "s/truncate-20261120T172400Z-1.json",
        "s/compact-20261120T172400Z-3.json",
    ]


async def test_records_are_listed_by_session_oldest_first_without_the_texts(storage, root):
    await storage.write([("s/a.md", "x")])
    saved = [await storage.save("s", "z", ["1"]), await storage.save("s", "a", ["2"])]
    await storage.append("s", 0, "x")
    saved.append(str(root / "s/journal.jsonl"))
    await storage.save("t", "a", ["3"])
    for age, path in enumerate(saved):
        os.utime(path, (1000 + age, 1000 + age))

    assert await storage.records("s") == saved
    assert await storage.records("nobody") == []


async def test_hostile_names_of_sessions_and_records_stay_inside(storage, root):
    for hostile in ("../../x", "/etc", "", "a/b"):
        saved = await storage.save(hostile, hostile, ["{}"])
        assert Path(saved).parent == root / session_folder(hostile)
        assert await storage.records(hostile) == [saved]


# Cleaning up --------------------------------------------------------------------------------------


async def aged(storage: LocalStorage, ages: dict[str, int], size: int = 100) -> list[str]:
    """Texts of *size* bytes under the given keys, so many seconds old at 1,000,000."""
    written = await storage.write([(key, key[-1] * size) for key in ages])
    for path, age in zip(written, ages.values(), strict=True):
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    return written


@pytest.fixture
def dated(root: Path) -> LocalStorage:
    return LocalStorage(root, clock=lambda: 1_000_000.0)


async def test_without_limits_nothing_is_cleaned_up(dated, root):
    assert await dated.cleanup() == await dated.cleanup(max_bytes=0)
    assert not root.exists()

    await aged(dated, {"s/a.md": 10**6})

    assert (await dated.cleanup()).files == ()


async def test_what_is_too_old_goes(dated, root):
    [old, _, _] = await aged(dated, {"s/old.md": 101, "s/due.md": 100, "t/new.md": 1})

    cleaned = await dated.cleanup(max_age=100)

    assert (cleaned.files, cleaned.bytes) == ((old,), 100)
    assert files_below(root) == ["s/due.md", "t/new.md"]


async def test_the_oldest_go_until_the_rest_fits(dated, root):
    [second, first, _, _] = await aged(
        dated, {"s/b.md": 30, "s/a.md": 40, "t/c.md": 20, "s/d.md": 10}
    )

    cleaned = await dated.cleanup(max_bytes=200)

    assert cleaned.files == (first, second)
    assert files_below(root) == ["s/d.md", "t/c.md"]


async def test_a_folder_goes_when_it_has_been_empty_for_an_hour(dated, root):
    await aged(dated, {"s/a.md": 10, "t/b.md": 10, "u/c.md": 1})

    await dated.cleanup(max_age=5)
    os.utime(root / "s", (996_399, 996_399))
    os.utime(root / "t", (996_401, 996_401))
    os.utime(root / "u", (0, 0))
    await dated.cleanup()

    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["t", "u"]


LIVE = "s/tool-result-live.md"


@pytest.mark.parametrize(
    "history",
    [
        [user(tool_result("live", placeholder(DIRECT, f"/elsewhere/{LIVE}")))],
        [user(tool_result("live", placeholder(BATCH, f"./{LIVE}")))],
        [user(tool_result("live", placeholder(BATCH, f"C:\\{LIVE}".replace("/", "\\"))))],
        [
            user(
                tool_result(
                    "live", placeholder(DIRECT, f"/root [1]/{LIVE}", "x" * 99, Preview(5, 5))
                )
            )
        ],
        [
            user(
                tool_result(
                    "live", [text(placeholder(DIRECT, f"/elsewhere/{LIVE}")), {"type": "image"}]
                )
            )
        ],
        [
            assistant(
                tool_use("live", "write", {"edits": [{"new": placeholder(BATCH, f"./{LIVE}")}]})
            )
        ],
        [
            {
                "role": "user",
                "content": (
                    f"It said {placeholder(BATCH, f'./{LIVE}')} and {placeholder(BATCH, './x.md')}"
                ),
            }
        ],
        [
            {
                "role": "assistant",
                "content": [
                    ToolUseBlock(
                        type="tool_use",
                        id="a",
                        name="w",
                        input={"text": placeholder(BATCH, f"./{LIVE}")},
                    )
                ],
            }
        ],
    ],
)
async def test_a_file_that_a_living_history_names_is_never_deleted(
    dated, root, history: list[Message]
):
    await aged(dated, {LIVE: 10**5, "s/dead.md": 10**5})

    await dated.cleanup(max_bytes=0, max_age=0, live=[conversation(user("go")), history])

    assert files_below(root) == [LIVE]


async def test_records_go_only_when_asked(dated, root):
    await aged(dated, {"s/a.md": 100})
    record = await dated.save("s", "compact", ["{}"])
    await dated.append("s", 0, "{}")
    for path in (record, root / "s/journal.jsonl"):
        os.utime(path, (0, 0))

    assert [Path(path).name for path in (await dated.cleanup(max_age=50)).files] == ["a.md"]
    assert len((await dated.cleanup(max_age=50, records=True)).files) == 2
    assert files_below(root) == []


async def test_drafts_go_only_when_nobody_can_be_writing_them(dated, root):
    await dated.write([("s/a.md", "x")])
    for name, age in (("1", 3601), ("2", 3599)):
        (root / f"s/.ctxpipe-tmp-{name}-0-0").write_text("half")
        os.utime(root / f"s/.ctxpipe-tmp-{name}-0-0", (1_000_000 - age, 1_000_000 - age))

    await dated.cleanup()

    assert files_below(root) == ["s/.ctxpipe-tmp-2-0-0", "s/a.md"]


async def test_files_that_are_not_ours_stay(dated, root):
    await aged(dated, {"tool-result-a.md": 100, "s/b.md": 100})
    theirs = ["README.md", ".gitattributes", "data.csv", "s/.keep", "s/figures.csv"]
    for name in theirs:
        (root / name).write_text("precious")
        os.utime(root / name, (0, 0))
    (root / "s/link.md").symlink_to(root / "README.md")

    await dated.cleanup(max_bytes=0, max_age=0, records=True)

    assert files_below(root) == sorted([*theirs, "s/link.md"])


async def test_cleaning_up_while_others_write_and_clean_up_harms_nobody(root):
    storages = [LocalStorage(root) for _ in range(4)]

    async def work(storage: LocalStorage, session: str):
        for number in range(20):
            await storage.write([(f"{session}/{number}.md", "x" * 500)])
            await storage.cleanup(max_bytes=2000)

    async with anyio.create_task_group() as tasks:
        for number, storage in enumerate(storages):
            tasks.start_soon(work, storage, f"s{number}")

    assert sum((root / name).stat().st_size for name in files_below(root)) <= 2500


@pytest.mark.parametrize("live", [[user("hi")], ["a text"], [None], [{"messages": []}]])
async def test_live_is_a_list_of_histories(storage, live):
    with pytest.raises(InvalidHistory, match="a history is a list of messages"):
        await storage.cleanup(max_age=1, live=live)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_age", age) for age in (-0.5, float("nan"), "30d", True)),
        *(("max_bytes", size) for size in (-1, "2GB", 1.5)),
    ],
)
async def test_an_invalid_limit_is_refused_by_name(storage, name, value):
    with pytest.raises(SettingsError, match=f"{name} is "):
        await storage.cleanup(**{name: value})


@pytest.mark.parametrize("session_id", [None, 5, "", object()])
async def test_a_session_is_deleted_by_its_name_only(storage, session_id):
    with pytest.raises(SettingsError, match="session_id is "):
        await storage.delete(session_id)


# Missing texts ------------------------------------------------------------------------------------


async def test_only_regular_files_below_the_root_are_there(root, storage, tmp_path):
    [location] = await storage.write([("s/a.md", "text")])
    outside = tmp_path / "outside.md"
    outside.write_text("secret")
    (root / "s" / "link.md").symlink_to(outside)
    (root / "s" / "folder.md").mkdir()
    there = [location, "s/a.md", "./s/a.md", "/mnt/results/s/a.md"]
    gone = [str(root / "s" / name) for name in ("link.md", "folder.md", "b.md")]
    gone += ["../outside.md", str(outside), "t/a.md", "", "s/a\0.md"]

    assert await storage.missing([*there, *gone]) == gone


async def test_of_a_root_that_does_not_exist_everything_is_missing(storage, root):
    assert await storage.missing(["s/a.md"]) == ["s/a.md"]
    assert not root.exists()


@given(st.lists(st.sampled_from(["s/a.md", "s/b.md", "t/a.md", "t/c.md"]), unique=True))
async def test_missing_is_what_cannot_be_read(written):
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder)
        await storage.write([(key, "text") for key in written])
        keys = ["s/a.md", "s/b.md", "t/a.md", "t/c.md"]
        unread = []
        for key in keys:
            try:
                await storage.read(key)
            except StorageError:
                unread.append(key)
        assert await storage.missing(keys) == unread
