"""Four tools for an agent that reads a folder: list_dir, read_file, grep and run_python."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
import regex

from ctxpipe.tools import Tool, ToolInputError

if TYPE_CHECKING:
    from anthropic.types import ToolParam

__all__ = ["existing_folder", "folder_tools"]

MAX_MATCHES = 200
SECONDS = 20.0  # for one search, or one program
HIDDEN = ("__pycache__", "node_modules", "build", "dist")

T = TypeVar("T")


def folder_tools(folder: str | os.PathLike[str]) -> list[Tool]:
    """Return the tools, which read only below *folder*.

    They raise ToolInputError with a text that the model can act on.
    """
    root = Path(folder).resolve()
    homes = tuple(f"{Path(home).resolve()}{os.sep}" for home in (root, sys.prefix, sys.base_prefix))

    async def list_dir(arguments: Mapping[str, object]) -> str:
        return await in_thread(lambda: listing(root, inside(root, arguments.get("path", "."))))

    async def read_file(arguments: Mapping[str, object]) -> str:
        return await in_thread(lambda: text_of(inside(root, arguments.get("path"))) or "[empty]")

    async def grep(arguments: Mapping[str, object]) -> str:
        pattern = arguments.get("pattern")
        path = arguments.get("path", ".")
        return await in_thread(
            lambda: "\n".join(matches(root, inside(root, path), str(pattern))) or "[no match]"
        )

    async def run_python(arguments: Mapping[str, object]) -> str:
        return await run(root, GUARD.format(homes=homes), str(arguments.get("code", "")))

    return [
        Tool(
            definition(
                "list_dir", "List every file below a folder, with its size in bytes.", ("path",)
            ),
            list_dir,
        ),
        Tool(definition("read_file", "Read a text file.", ("path",)), read_file),
        Tool(
            definition(
                "grep", "Find the lines that match a regular expression.", ("pattern", "path")
            ),
            grep,
        ),
        Tool(
            definition(
                "run_python",
                "Run a Python program in the folder; it may read but not write.",
                ("code",),
            ),
            run_python,
        ),
    ]


def existing_folder(text: str) -> Path:
    """Return the folder that *text* names, for a command line."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return path


def definition(name: str, description: str, arguments: tuple[str, ...]) -> ToolParam:
    """Return the definition of a tool whose arguments are texts; a path may be left out."""
    properties = {argument: {"type": "string"} for argument in arguments}
    required = [argument for argument in arguments if argument != "path" or name == "read_file"]
    schema: dict[str, object] = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "input_schema": schema}


async def in_thread(work: Callable[[], T]) -> T:
    """Run *work* on the disk in a thread; the model receives an error of the disk as a text."""
    try:
        return await anyio.to_thread.run_sync(work)
    except OSError as error:
        text = str(error.strerror or error)
        raise ToolInputError(f"{text}: {error.filename}" if error.filename else text) from error


def inside(root: Path, path: object) -> Path:
    """Return *path* below *root*, with links followed."""
    if not isinstance(path, str) or "\0" in path:
        raise ToolInputError(f"path is {path!r}; give a path such as 'src/main.py'")
    found = (root / path).resolve()
    if not found.is_relative_to(root):
        raise ToolInputError(f"{path} lies outside the folder")
    return found


def files(start: Path) -> Iterator[Path]:
    """Yield the files at or below *start*, sorted, without hidden files and links."""
    if start.is_file():
        yield start
    for folder, names, entries in os.walk(start):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in HIDDEN)
        for entry in sorted(entries):
            path = Path(folder, entry)
            if not entry.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def text_of(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")  # read_text would turn \r\n into \n


def listing(root: Path, start: Path) -> str:
    lines = [f"{path.relative_to(root).as_posix()} {path.stat().st_size}" for path in files(start)]
    return "\n".join(lines) or "[no files]"


def matches(root: Path, start: Path, pattern: str) -> Iterator[str]:
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise ToolInputError(f"pattern is no regular expression: {error}") from error
    found = 0
    for path in files(start):
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if not compiled.search(line, timeout=SECONDS):
                continue
            found += 1
            if found > MAX_MATCHES:
                yield f"[only the first {MAX_MATCHES} matches are shown]"
                return
            yield f"{path.relative_to(root).as_posix()}:{number}: {line}"


# Running programs ---------------------------------------------------------------------------------

# Stops honest mistakes. It is no sandbox: run programs that you do not trust in a container.
GUARD = """
import os, sys
def guard(event, arguments, homes={homes!r}):
    path = arguments[0] if event in ("open", "os.listdir", "os.scandir") else None
    if isinstance(path, (str, bytes)):
        if not f"{{os.path.realpath(os.fsdecode(path))}}/".startswith(homes):
            raise PermissionError(f"outside the folder: {{path}}")
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            raise PermissionError(f"read only: {{path}}")
    elif event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.fork",
                           "os.posix_spawn", "os.kill", "os.remove", "os.rename", "os.rmdir",
                           "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
                           "os.chown", "shutil.", "ctypes.")):
        raise PermissionError(f"not allowed here: {{event}}")
sys.addaudithook(guard)
exec(compile(sys.stdin.read(), "program.py", "exec"), {{"__name__": "__main__"}})
"""


async def run(root: Path, guard: str, code: str) -> str:
    """Return what a program prints, and how it ended.

    The program has no environment variables, and so no keys.
    """
    try:
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                [sys.executable, "-I", "-B", "-u", "-c", guard],
                input=code.encode(),
                stdout=PIPE,
                stderr=STDOUT,
                check=False,
                cwd=root,
                env={"PYTHONIOENCODING": "utf-8"},
            )
    except TimeoutError:
        raise ToolInputError(f"the program ran longer than {SECONDS:g} s") from None
    printed = done.stdout.decode(errors="replace")
    printed = printed or "[no output]"
    return printed if done.returncode == 0 else f"{printed}\n[exit code {done.returncode}]"
