"""Opened where it was named and nowhere else, without waiting, on whatever file system."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from contextlib import chdir, closing
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import anyio
import pytest
from histories import conversation, step, user
from processes import new_python

from ctxpipe import (
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SettingsError,
    StorageError,
    offload_tools,
)
from ctxpipe.errors import CtxpipeError
from ctxpipe.functions import load_archive, offload_tool_results
from ctxpipe.placeholders.names import session_folder
from ctxpipe.storage import LocalFiles

Act: TypeAlias = Callable[[LocalStorage], Awaitable[object]]

SECRET = "PRIVATE KEY"  # noqa: S105 -- it is a text
MESSAGE = {"role": "user", "content": "hello"}

ACTS: dict[str, Act] = {
    "write": lambda storage: storage.write([("s/new.md", "x")]),
    "read": lambda storage: storage.read("s/id_rsa"),
    "read a path": lambda storage: storage.read(os.path.join(storage.root, "s/id_rsa")),
    "save": lambda storage: storage.save("s", "compact", [MESSAGE]),
    "append": lambda storage: storage.append("s", 0, "x"),
    "entries": lambda storage: storage.entries("s"),
    "set aside": lambda storage: storage.set_aside("s"),
    "records": lambda storage: storage.records("s"),
    "cleanup": lambda storage: storage.cleanup(max_bytes=0, max_age=0, records=True),
    "delete": lambda storage: storage.delete("s"),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user's that has nothing to do with ctxpipe, old enough to be cleaned up."""
    home = tmp_path / "home"
    (home / "s").mkdir(parents=True)
    for name in ("s/id_rsa", "s/t1.md", "s/journal.jsonl"):
        (home / name).write_text(SECRET)
        os.utime(home / name, (0, 0))
    return home


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


# The root stays the same folder -------------------------------------------------------------------


def _to_link(root: Path, outside: Path):
    shutil.rmtree(root)
    root.symlink_to(outside)


def _to_relative_link(root: Path, outside: Path):
    root.rename(root.with_name("away"))
    root.symlink_to(os.path.relpath(outside, root.parent))


def _to_chain_of_links(root: Path, outside: Path):
    shutil.rmtree(root)
    root.with_name("other").symlink_to(outside)
    root.symlink_to("other")


def _to_other_folder(root: Path, outside: Path):
    root.rename(root.with_name("away"))
    outside.rename(root)
    outside.symlink_to(root)


def _parent_to_link(root: Path, outside: Path):
    root.parent.rename(root.parent.with_name("away"))
    outside.joinpath("root").mkdir()
    for path in list(outside.iterdir()):
        if path.name != "root":
            path.rename(outside / "root" / path.name)
    root.parent.symlink_to(outside)


SWAPS = [_to_link, _to_relative_link, _to_chain_of_links, _to_other_folder, _parent_to_link]


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
@pytest.mark.parametrize("swap", SWAPS)
async def test_a_root_with_another_folder_in_its_place_is_refused(
    tmp_path, outside, swap: Callable[[Path, Path], None], act: Act
):
    root = tmp_path / "workspace" / "root"
    storage = LocalStorage(root)
    await storage.write([("s/t1.md", "ours")])
    swap(root, outside)
    before = contents(outside)

    with pytest.raises(StorageError, match="no longer the folder that it was at first") as refused:
        await act(storage)

    assert str(root) in str(refused.value)
    assert "make a new object" in str(refused.value)
    assert contents(outside) == before


@pytest.mark.parametrize("swap", SWAPS)
async def test_the_models_tools_and_a_session_share_the_pin(
    tmp_path, outside, swap: Callable[[Path, Path], None]
):
    root = tmp_path / "workspace" / "root"
    storage = LocalStorage(root)
    session = ContextPipeline([DirectOffload(storage)]).session("s", journal=storage)
    history = conversation(user("go"), step("t1", "x", result="data " * 600))
    await session.run(history)
    swap(root, outside)
    before = contents(outside)

    for tool in offload_tools(storage):
        with pytest.raises(CtxpipeError) as refused:
            await tool({"path": "s/id_rsa", "pattern": "."})
        assert SECRET not in str(refused.value)
    await session.run([*history, *step("t2", "x", result="more " * 600)])

    assert contents(outside) == before


async def test_a_vanished_root_is_not_made_anew_behind_a_link(tmp_path, outside):
    root = tmp_path / "workspace" / "root"
    storage = LocalStorage(root)
    await storage.write([("s/t1.md", "ours")])
    shutil.rmtree(root.parent)
    root.parent.symlink_to(outside)
    before = contents(outside)

    with pytest.raises(StorageError, match="no longer the folder"):
        await storage.write([("s/t1.md", "ours")])

    assert contents(outside) == before
    assert not (outside / "root").exists()


async def test_a_root_that_leads_nowhere_is_not_made(tmp_path):
    (tmp_path / "root").symlink_to(tmp_path / "nowhere")

    storage = LocalStorage(tmp_path / "root", must_be_writable=False)

    with pytest.raises(StorageError):
        await storage.write([("s/a.md", "x")])

    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_a_root_that_is_a_link_to_somebody_elses_files_is_refused(
    tmp_path, outside, act: Act
):
    (tmp_path / "root").symlink_to(outside)
    before = contents(outside)

    with pytest.raises(
        StorageError, match=r"is a link to .*home, which has files that are not ctxpipe's"
    ):
        await act(LocalStorage(tmp_path / "root"))

    assert contents(outside) == before


async def test_a_root_that_is_a_link_to_an_empty_folder_or_one_of_ours_is_fine(
    tmp_path,
):
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "disk")

    for words in ("one", "two"):
        [path] = await LocalStorage(tmp_path / "root").write([(f"s/{words}.md", words)])
        assert Path(path).read_text() == words


async def test_the_function_writes_where_it_is_told_and_marks_nothing(tmp_path, outside):
    (tmp_path / "out").symlink_to(outside)
    history = conversation(user("go"), step("t1", "x", result="data " * 600))

    await offload_tool_results(history, output_dir=tmp_path / "out")
    await offload_tool_results(history, output_dir=tmp_path / "new")

    assert (outside / "tool-result-t1.md").exists()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tool-result-t1.md"]


@pytest.mark.parametrize("swap", SWAPS)
async def test_files_of_the_project_are_read_from_the_same_folder_only(
    tmp_path, outside, swap: Callable[[Path, Path], None]
):
    root = tmp_path / "workspace" / "root"
    root.mkdir(parents=True)
    (root / "a.txt").write_text("ours")
    files = LocalFiles(root)
    assert (await files.read("a.txt", 100)).text == "ours"
    swap(root, outside)

    for path in ("s/id_rsa", "a.txt", str(outside / "s/id_rsa")):
        with pytest.raises(StorageError) as refused:
            await files.read(path, 100)
        assert SECRET not in str(refused.value)


# Only regular files, and no waiting ---------------------------------------------------------------


def _socket(path: Path):
    with chdir(path.parent), closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(path.name)


def _link_to_a_pipe(path: Path):
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a pipe": _link_to_a_pipe,
}


@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
async def test_a_turn_beside_special_files_of_our_names_ends(
    tmp_path, make: Callable[[Path], object]
):
    storage = LocalStorage(tmp_path)
    (tmp_path / "s").mkdir()
    for name in ("journal.jsonl", "t1.md", ".ctxpipe-session"):
        (tmp_path / "s/pipe").unlink(missing_ok=True)
        make(tmp_path / "s" / name)
    history = conversation(user("go"), step("t1", "x", result="data " * 600))

    with anyio.fail_after(20):
        result = (
            await ContextPipeline([DirectOffload(storage)])
            .session("s", journal=storage)
            .run(history)
        )
        await storage.cleanup(max_bytes=0, max_age=0, records=True)

    assert result.messages == history


@pytest.mark.parametrize(
    "make", [SPECIAL["pipe"], SPECIAL["socket"], SPECIAL["folder"], SPECIAL["link to a device"]]
)
async def test_an_archive_that_is_no_file_is_an_error_at_once(
    tmp_path, make: Callable[[Path], object]
):
    make(tmp_path / "compact.json")

    with anyio.fail_after(30), pytest.raises(StorageError, match="cannot read the archive"):
        await load_archive(tmp_path / "compact.json")


# File systems -------------------------------------------------------------------------------------


UNSUPPORTED = [
    *(
        errno.EPERM,
        errno.ENOTSUP,
        errno.EOPNOTSUPP,
        errno.EMLINK,
        errno.ENOSYS,
        errno.EACCES,
        errno.EINVAL,
    ),
    *(errno.EXDEV, errno.ENOTTY, errno.EREMOTEIO, errno.EPROTO),
]
FAULTS = [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ESTALE]


def fail_always(call: str, number: int, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)


@pytest.mark.parametrize("number", UNSUPPORTED, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["link", "fchmod", "fsync"])
async def test_a_file_system_without_that_call_keeps_texts_and_records(
    tmp_path, monkeypatch, call, number: int
):
    fail_always(call, number, monkeypatch)
    storage = LocalStorage(tmp_path / "root", fsync=True)

    written = [
        path for words in ("one", "two", "one") for path in await storage.write([("s/a.md", words)])
    ]
    saved = [await storage.save("s", "compact", [MESSAGE]) for _ in range(2)]
    grown = [await storage.append("s", number, str(number)) for number in range(2)]

    assert [Path(path).read_text() for path in written] == ["one", "two", "one"]
    assert [await load_archive(path) for path in saved] == [[MESSAGE], [MESSAGE]]
    assert len(set(saved)) == 2
    assert grown == [True, True]
    assert await storage.entries("s") == ["0", "1"]
    assert (tmp_path / "root/s/.ctxpipe-session").read_text().startswith('{"form": 1')
    assert (await storage.delete("s")).files


@pytest.mark.parametrize("number", FAULTS, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["link", "fsync", "fchmod"])
async def test_a_real_fault_stays_an_error_and_leaves_nothing(
    tmp_path, monkeypatch, call, number: int
):
    storage = LocalStorage(tmp_path, fsync=True)
    await storage.write([("s/a.md", "x")])
    before = contents(tmp_path)
    fail_always(call, number, monkeypatch)

    for act in (ACTS["write"], ACTS["save"]):
        with pytest.raises(StorageError) as failed:
            await act(storage)
        assert failed.value.errno == number

    left = {name for name in contents(tmp_path) if call != "fsync" or "new.md" not in name}
    assert left == set(before)


async def test_without_links_nobody_takes_a_name_that_another_is_taking(tmp_path, monkeypatch):
    fail_always("link", errno.EPERM, monkeypatch)
    locations: dict[str, str] = {}

    async def write(number: int):
        words = f"{number} " * 5000
        [locations[words]] = await LocalStorage(tmp_path).write([("s/a.md", words)])

    async with anyio.create_task_group() as tasks:
        for number in range(24):
            tasks.start_soon(write, number)

    assert {words: Path(path).read_text() for words, path in locations.items()} == {
        words: words for words in locations
    }


async def test_without_links_a_name_that_cannot_be_filled_is_given_back(tmp_path, monkeypatch):
    storage = LocalStorage(tmp_path)
    await storage.write([("s/a.md", "x")])
    fail_always("link", errno.EPERM, monkeypatch)
    fail_always("rename", errno.EIO, monkeypatch)

    with pytest.raises(StorageError, match="Input/output error"):
        await storage.write([("s/b.md", "y")])

    assert sorted(path.name for path in (tmp_path / "s").glob("[!.]*")) == ["a.md"]
    assert list((tmp_path / "s").glob(".ctxpipe-tmp-*")) == []


# A disk that ignores case -------------------------------------------------------------------------


@pytest.fixture
def folding_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose entries are found whatever their case, as on macOS and Windows.

    Names keep theirs, the first wins.

    The kernel's own file systems fold case only where they were built for it, so the calls are led
    to the entry.
    """
    listdir = os.listdir

    def found(name: Any, folder: int | None) -> Any:
        if folder is None or not isinstance(name, str):
            return name
        same = [entry for entry in listdir(folder) if entry.casefold() == name.casefold()]
        return same[0] if same else name

    def lead(call: str, keyword: str = "dir_fd"):
        inner = getattr(os, call)
        monkeypatch.setattr(
            os,
            call,
            lambda name, *more, **options: inner(
                found(name, options.get(keyword)), *more, **options
            ),
        )

    for call in ("open", "mkdir", "stat", "access", "unlink", "rmdir"):
        lead(call)
    for call in ("link", "rename", "replace"):
        inner = getattr(os, call)

        def led(source: str, target: str, inner: Any = inner, **options: Any):
            inner(source, found(target, options.get("dst_dir_fd")), **options)

        monkeypatch.setattr(os, call, led)
    return tmp_path / "folding"


async def test_the_disk_of_these_tests_ignores_case(folding_disk):
    storage = LocalStorage(folding_disk)
    await storage.write([("s/A.md", "x")])

    assert (await storage.read("S/a.MD")).text == "x"


@pytest.mark.parametrize("taken", ["hash", "number", "overwrite"])
@pytest.mark.parametrize(
    "names", [("toolu_A", "toolu_a"), ("a", "A"), ("call_Xy", "call_xY", "CALL_XY")]
)
async def test_no_two_texts_get_one_file_on_a_disk_that_ignores_case(
    folding_disk, taken, names: tuple[str, ...]
):
    storage = LocalStorage(folding_disk, on_conflict=cast("Literal['hash']", taken))
    locations = {}
    for name in names:
        [locations[name]] = await storage.write([(f"s/{name}.md", f"text of {name}")])

    assert len({location.casefold() for location in locations.values()}) == len(names)
    assert {name: (await storage.read(path)).text for name, path in locations.items()} == {
        name: f"text of {name}" for name in names
    }


async def test_the_function_that_overwrites_gives_each_id_its_own_file_again_and_again(
    folding_disk,
):
    storage = LocalStorage(folding_disk, on_conflict="overwrite")
    paths = [
        await storage.write([(f"s/{name}.md", f"{name} {turn}")])
        for turn in range(2)
        for name in ("T", "t")
    ]

    assert paths[:2] == paths[2:]
    assert [(await storage.read(path)).text for [path] in paths[2:]] == ["T 1", "t 1"]


async def test_sessions_that_differ_in_case_share_nothing_on_such_a_disk(
    folding_disk,
):
    storage = LocalStorage(folding_disk)
    for name in ("Alice", "alice"):
        await storage.write([(f"{session_folder(name)}/t1.md", f"secret of {name}")])
        await storage.append(name, 0, f"entry of {name}")

    assert not set(await storage.records("Alice")) & set(await storage.records("alice"))
    await storage.delete("Alice")
    assert await storage.entries("alice") == ["entry of alice"]
    assert (await storage.read("alice/t1.md")).text == "secret of alice"


# Windows ------------------------------------------------------------------------------------------


def test_where_files_cannot_be_opened_below_a_folder_the_storage_says_so(
    monkeypatch,
):
    monkeypatch.setattr(os, "supports_dir_fd", set())

    for make in (LocalStorage, LocalFiles):
        with pytest.raises(SettingsError, match=rf"{make.__name__} needs Linux or macOS.*WSL"):
            make(".ctxpipe")


def test_the_package_can_be_imported_on_windows():
    script = """
import os, sys
flags = "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_NOCTTY", "O_CLOEXEC"
for name in (*flags, "fchmod", "geteuid", "mkfifo"):
    delattr(os, name)
os.supports_dir_fd, os.supports_fd = set(), set()
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
import ctxpipe, ctxpipe.testing, ctxpipe.tools, ctxpipe.presets
for make in (ctxpipe.LocalStorage, ctxpipe.storage.LocalFiles):
    try:
        make(".ctxpipe")
    except ctxpipe.SettingsError as error:
        print(str(error)[:30])
"""
    assert new_python(script).splitlines() == [
        "LocalStorage needs Linux or ma",
        "LocalFiles needs Linux or macO",
    ]
