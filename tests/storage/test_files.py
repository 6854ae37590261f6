"""Files of the project, read for the model.

Nothing leaks, nothing hangs, each refusal has its reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.errors import StorageError
from ctxpipe.storage.files import FileReader, FileText, LocalFiles
from ctxpipe.storage.secrets import is_secret

SECRET = "the outside"  # noqa: S105 -- it is a text, not a password
LIMIT = 100_000


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with a file in it, and things beside it that must never be shown."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("print('a')\n")
    (tmp_path / "outside.txt").write_text(SECRET)
    (tmp_path / "project-evil").mkdir()
    (tmp_path / "project-evil" / "x.txt").write_text(SECRET)
    return root


async def refusal(root: Path, path: str, max_bytes: int = LIMIT) -> StorageError:
    """Why *path* is refused, found out in a moment."""
    with anyio.fail_after(20), pytest.raises(StorageError) as caught:
        await LocalFiles(root).read(path, max_bytes)
    assert SECRET not in str(caught.value)
    assert str(caught.value.strerror)
    return caught.value


@pytest.mark.parametrize(
    "path", ["src/a.py", "./src/a.py", "src/../src/a.py", "src//a.py", "../project/src/a.py"]
)
async def test_every_spelling_of_a_file_inside_gives_its_text_and_its_one_real_path(project, path):
    real = str((project / "src" / "a.py").resolve())

    assert await LocalFiles(project).read(path, LIMIT) == FileText(real, "print('a')\n")
    assert await LocalFiles(project).read(str(project / path), LIMIT) == FileText(
        real, "print('a')\n"
    )


async def test_a_link_that_stays_inside_is_followed_to_the_real_path(project):
    (project / "link.py").symlink_to("src/a.py")
    (project / "folder").symlink_to("src")

    for path in ("link.py", "folder/a.py"):
        found = await LocalFiles(project).read(path, LIMIT)
        assert found == FileText(str((project / "src" / "a.py").resolve()), "print('a')\n")


async def test_a_root_that_is_a_link_itself_is_fine(project, tmp_path):
    (tmp_path / "alias").symlink_to(project)

    assert (await LocalFiles(tmp_path / "alias").read("src/a.py", LIMIT)).text == "print('a')\n"


# Hostile paths ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../outside.txt",
        "src/../../outside.txt",
        "./../outside.txt",
        "src/../src/../../outside.txt",
        "../project-evil/x.txt",
        "../../../../../../../../etc/passwd",
        "/etc/passwd",
        "//etc/passwd",
        "/proc/self/environ",
        "/proc/self/root/etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "/dev/tty",
        "..",
        "/",
        "src/../..",
    ],
)
async def test_no_path_leads_out(project, path):
    assert (await refusal(project, path)).errno == errno.EACCES


@pytest.mark.parametrize("prefix", ["-evil/x.txt", "-evil", "/../outside.txt"])
async def test_a_folder_that_begins_alike_is_another_folder(project, prefix):
    await refusal(project, str(project) + prefix)


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "src",
        "src/",
        "src/.",
        "src/a.py/x",
        "gone.py",
        "no/such/folder.py",
        "~/x",
        "src/a.py\n",
        "a\0b",
        "\0",
        "../outside.txt\0.py",
        "x" * 300,
        "d/" * 3000 + "x",
        "\udc80\udcff",
        "half a \ud83d pair",
        "C:\\x",
    ],
    ids=lambda path: repr(path)[:20],
)
async def test_odd_paths_are_refused_and_not_a_crash(project, path):
    await refusal(project, path)


def _link(target: str) -> Callable[[Path], None]:
    return lambda place: place.symlink_to(target)


def _chain(place: Path):
    (place.parent / "one").symlink_to("two")
    (place.parent / "two").symlink_to("../outside.txt")
    place.symlink_to("one")


def _loop(place: Path):
    (place.parent / "back").symlink_to(place.name)
    place.symlink_to("back")


def _socket(place: Path):
    with (
        contextlib.chdir(place.parent),
        contextlib.closing(socket.socket(socket.AF_UNIX)) as listening,
    ):
        listening.bind(place.name)


def _sparse(place: Path):
    with place.open("wb") as file:
        file.truncate(5 * 10**9)


@pytest.mark.parametrize(
    "make",
    [
        _link("../outside.txt"),
        _link("/etc/passwd"),
        _link("/dev/zero"),
        _link("../project-evil/x.txt"),
        _link("nowhere"),
        _link("."),
        _link("/proc/self/mem"),
        _chain,
        _loop,
        os.mkfifo,
        _socket,
        _sparse,
        Path.mkdir,
        lambda place: place.write_bytes(b"\xff\xfe\x00\xc8"),
        lambda place: place.write_bytes(b"text\0with a NUL"),
        lambda place: place.write_bytes(b"latin \xe9"),
        lambda place: place.write_bytes(b"x" * (LIMIT + 1)),
    ],
    ids=[
        "link out",
        "link to passwd",
        "link to a device",
        "link beside",
        "dangling link",
        "link to the folder",
        "link to memory",
        "chain of links",
        "loop",
        "pipe",
        "socket",
        "5 GB",
        "folder",
        "binary",
        "NUL",
        "latin-1",
        "one byte too long",
    ],
)
async def test_whatever_is_no_text_file_inside_is_refused(project, make: Callable[[Path], None]):
    make(project / "thing")

    await refusal(project, "thing")


async def test_a_folder_that_leads_out_is_not_entered(project):
    (project / "up").symlink_to("..")

    for path in ("up/outside.txt", "up/project-evil/x.txt", "src/../up/outside.txt"):
        await refusal(project, path)


async def test_a_device_below_the_root_is_refused_before_it_is_opened():
    for path in ("zero", "null", "tty", "full"):
        await refusal(Path("/dev"), path)


async def test_a_pipe_is_not_even_opened(project):
    os.mkfifo(project / "pipe")
    passed = False

    def write() -> None:
        nonlocal passed
        os.close(os.open(project / "pipe", os.O_WRONLY))  # waits until somebody opens the other end
        passed = True

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, write)
        for _ in range(20):
            await refusal(project, "pipe")
        let_through = passed
        os.close(os.open(project / "pipe", os.O_RDONLY))
    assert passed
    assert not let_through


async def test_a_file_without_a_size_is_read_up_to_the_limit():
    found = await LocalFiles("/proc/self").read("status", LIMIT)

    assert "Pid:" in found.text
    await refusal(Path("/proc/self"), "status", max_bytes=10)


async def test_a_file_of_exactly_the_limit_is_read(project):
    (project / "full.txt").write_text("x" * LIMIT)

    assert len((await LocalFiles(project).read("full.txt", LIMIT)).text) == LIMIT


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """What root may read is no test: the superuser becomes somebody else for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_file_that_may_not_be_read_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "locked.txt").write_text(SECRET)
        (root / "locked.txt").chmod(0)
        with as_nobody():
            assert (await refusal(root, "locked.txt")).errno == errno.EACCES


async def test_a_file_that_comes_and_goes_is_read_or_refused_but_never_anything_else(
    project,
):
    place, done = project / "flicker", False

    def swap() -> None:
        while not done:
            place.write_text("inside")
            place.unlink()
            place.symlink_to("../outside.txt")
            place.unlink()

    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, swap)
        try:
            for _ in range(300):
                with contextlib.suppress(StorageError):
                    assert (await LocalFiles(project).read("flicker", LIMIT)).text in ("", "inside")
        finally:
            done = True


@given(st.text(st.sampled_from("./a\\~\0 \ud83dü-"), max_size=30))
async def test_no_made_up_path_leads_out(path: str):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "outside").mkdir()
        (Path(folder) / "outside" / "a").write_text(SECRET)
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "a").write_text("inside")
        (Path(folder) / "in" / "~").symlink_to("../outside")

        with contextlib.suppress(StorageError):
            assert (await LocalFiles(Path(folder) / "in").read(path, LIMIT)).text == "inside"


async def test_no_descriptor_is_left_open(project):
    os.mkfifo(project / "pipe")
    before = len(os.listdir("/proc/self/fd"))

    for path in ("src/a.py", "pipe", "src", "../outside.txt", "gone", "src/a.py/x"):
        with contextlib.suppress(StorageError):
            await LocalFiles(project).read(path, LIMIT)

    assert len(os.listdir("/proc/self/fd")) == before


async def test_text_comes_as_its_bytes_say(project):
    (project / "odd.txt").write_bytes("\ufeffa\r\nb\rü🙂\n".encode())

    assert (await LocalFiles(project).read("odd.txt", LIMIT)).text == "\ufeffa\r\nb\rü🙂\n"


# Secrets ------------------------------------------------------------------------------------------


async def test_a_denied_file_is_refused_under_every_name(project):
    (project / ".env").write_text("TOKEN=1")
    (project / "harmless.txt").symlink_to(".env")
    files = LocalFiles(project, deny=is_secret)

    for path in (".env", "src/../.env", "harmless.txt"):
        with pytest.raises(StorageError, match="not to be shown"):
            await files.read(path, LIMIT)
    assert (await LocalFiles(project).read(".env", LIMIT)).text == "TOKEN=1"


# Settings -----------------------------------------------------------------------------------------


async def test_a_later_change_of_the_folder_does_not_move_the_root(project, tmp_path):
    with contextlib.chdir(project):
        files = LocalFiles("src")

    assert (await files.read("a.py", LIMIT)).text == "print('a')\n"
    assert isinstance(files, FileReader)


def test_a_file_that_was_read_keeps_its_mode(project):
    before = stat.S_IMODE((project / "src" / "a.py").stat().st_mode)

    anyio.run(LocalFiles(project).read, "src/a.py", LIMIT)

    assert stat.S_IMODE((project / "src" / "a.py").stat().st_mode) == before
