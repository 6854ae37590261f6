"""Other processes for tests: another Python beside this one, and another user than root."""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

NOBODY = 65534
# Everything is imported before: the interpreter may lie where only root can read.
BECOMING_ANOTHER_USER = f"""
import os, aiofiles, anyio, concurrent.futures.thread, functools
from ctxpipe import *
from ctxpipe.functions import *
from ctxpipe.tokens import TokenCounter
anyio.run(TokenCounter().warm)
anyio.run(functools.partial(ContextPipeline().run, [], session_id="s"))
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
"""


def python(script: str, *arguments: object, seconds: float = 120) -> str:
    """Return what *script* prints, run by a prepared Python for at most *seconds*."""
    return printed(prepared_python(), script, *arguments, seconds=seconds)


def new_python(script: str, *arguments: object, seconds: float = 120) -> str:
    """Return what *script* prints, run by a new interpreter: for tests of imports and memory."""
    return printed([sys.executable], script, *arguments, seconds=seconds)


def printed(python: list[str], script: str, *arguments: object, seconds: float) -> str:
    command = [*python, "-c", script, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def python_of_another_user(script: str, *arguments: object) -> str:
    """Return what *script* prints, run by a user to whom permissions apply: not by root."""
    return python(BECOMING_ANOTHER_USER + script, *arguments)


STARTING = threading.Lock()


def prepared_python() -> list[str]:
    """The command of a Python that has imported the SDKs already: in the place of `sys.executable`.

    For programs as users write them. What an import loads or how texts are hashed needs a new one.
    All processes of a run share one, which ends with the last of them.
    """
    with STARTING:  # threads of one process must not wait for each other when it ends
        return shared_python()


@cache
def shared_python() -> list[str]:
    file = str(Path(__file__).with_name("prepared_python.py"))
    folder = Path(tempfile.gettempdir(), "prepared-python")  # of this run: see conftest.py
    folder.mkdir(exist_ok=True)
    address = str(folder / "socket")
    users = folder / "users"  # a pipe: each user has it open, and the server reads its end
    server = None
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_read(users):
            used = os.open(users, os.O_WRONLY)
        else:
            for path in (users, folder / "socket"):  # of a server that has ended
                path.unlink(missing_ok=True)
            os.mkfifo(users)
            end_of_users = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
            used = os.open(users, os.O_WRONLY)
            server = subprocess.Popen(
                [sys.executable, file, address],
                stdin=end_of_users,
                stdout=subprocess.PIPE,
                text=True,
            )
            os.close(end_of_users)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"

    @atexit.register
    def end() -> None:
        os.close(used)
        if server is not None:  # what it took counts for this process, if it ends soon
            with suppress(subprocess.TimeoutExpired):
                server.communicate(timeout=20)

    return [sys.executable, "-I", "-S", file, address]


def is_read(pipe: Path) -> bool:
    """Return True if *pipe* exists, and a process reads it."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@contextmanager
def folder_of_another_user() -> Iterator[Path]:
    """A folder that belongs to the user of `python_of_another_user` and that it can reach."""
    with tempfile.TemporaryDirectory() as folder:
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


def python_killed_at(mark: str, script: str, *arguments: object):
    """Run *script* and kill it, unasked and unprepared, once it has printed *mark*."""
    command = [*prepared_python(), "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == mark:
                process.kill()
        assert process.wait() == -signal.SIGKILL


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """A real file system of *kilobytes*, mounted in *folder*."""
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
