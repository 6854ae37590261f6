"""The official client, in memory and over stdio, reads what was offloaded, and nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.memory import create_client_server_memory_streams
from places import ROOT
from processes import prepared_python
from readme import command_of, reader_environment

from ctxpipe import LocalStorage, SettingsError
from ctxpipe.adapters.mcp import offload_server
from ctxpipe.adapters.mcp_command import main

TEXT = "first\nsecond error\n" * 50


@asynccontextmanager
async def talk(root: Path) -> AsyncIterator[ClientSession]:
    """A client of the server, in its own process."""
    server = offload_server(LocalStorage(root))
    async with (
        create_client_server_memory_streams() as (client, (read, write)),
        anyio.create_task_group() as group,
    ):
        group.start_soon(server.run, read, write, server.create_initialization_options())
        async with ClientSession(*client) as session:
            await session.initialize()
            yield session
        group.cancel_scope.cancel()


@asynccontextmanager
async def talk_to_process(command: str, *options: str, cwd: Path) -> AsyncIterator[ClientSession]:
    """A client of ``ctxpipe mcp``, started as a client starts it."""
    server = StdioServerParameters(
        command=command, args=[*options], env=reader_environment(PYTHONPATH=str(ROOT)), cwd=cwd
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def store(root: Path, key: str = "job/t1.md") -> str:
    [path] = await LocalStorage(root).write([(key, TEXT)])
    return path


async def call(session: ClientSession, tool: str, **arguments: Any) -> tuple[str, bool]:
    """What *tool* says, and whether that is an error."""
    result: Any = await session.call_tool(tool, arguments)
    [content] = result.content
    return content.text, bool(result.is_error)


async def test_the_tools_are_listed_as_reading_ones(tmp_path):
    async with talk(tmp_path) as session:
        listed = (await session.list_tools()).tools

    assert [tool.name for tool in listed] == [
        "read_offloaded",
        "search_offloaded",
        "search_history",
    ]
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
    assert listed[0].input_schema["required"] == ["path"]


async def test_what_was_offloaded_is_read_and_searched(tmp_path):
    path = await store(tmp_path)

    async with talk(tmp_path) as session:
        page, failed = await call(session, "read_offloaded", path=path, limit=12)
        found, _ = await call(session, "search_offloaded", path=path, pattern="error", limit=1)

    assert page.startswith("first\nsecond")
    assert "Read on with offset=12" in page
    assert not failed
    assert "second error" in found


@pytest.mark.parametrize("elsewhere", ["/etc/passwd", "../secret.md", "job/none.md", "x\0y", ""])
async def test_what_lies_elsewhere_is_refused(tmp_path, elsewhere):
    root = tmp_path / "root"
    await store(root)
    (tmp_path / "secret.md").write_text("secret")

    async with talk(root) as session:
        for tool in ("read_offloaded", "search_offloaded"):
            said, failed = await call(session, tool, path=elsewhere, pattern="s")
            assert failed
            assert "root" not in said.replace(elsewhere, "")


async def test_another_session_is_refused_where_one_is_named(tmp_path):
    mine, other = await store(tmp_path, "mine/t.md"), await store(tmp_path, "other/t.md")

    command = [*prepared_python(), "-m", "ctxpipe", "mcp", str(tmp_path), "--session", "mine"]

    async with talk_to_process(*command, cwd=tmp_path) as session:
        assert not (await call(session, "read_offloaded", path=mine))[1]
        assert (await call(session, "read_offloaded", path=other))[1]


async def test_an_unknown_tool_and_wrong_arguments_are_errors_that_the_model_reads(tmp_path):
    async with talk(tmp_path) as session:
        assert "no tool" in (await call(session, "moon"))[0]
        assert "path is missing" in (await call(session, "read_offloaded"))[0]


async def test_a_client_that_goes_ends_the_server(tmp_path):
    process = await anyio.open_process(
        [*prepared_python(), "-m", "ctxpipe", "mcp", str(tmp_path)],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )
    assert process.stdin is not None
    await process.stdin.aclose()

    with anyio.fail_after(60):
        assert await process.wait() == 0
    await process.aclose()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [((".", "--session", ""), b"session_id is ''"), (("notes.md",), b"notes.md' is a file")],
)
async def test_a_wrong_argument_ends_with_its_reason(
    tmp_path, wrong: tuple[str, ...], reason: bytes
):
    (tmp_path / "notes.md").write_text("Mine.")
    done = await anyio.run_process(
        [*prepared_python(), "-m", "ctxpipe", "mcp", *wrong],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        check=False,
    )

    assert done.returncode == 2
    assert reason in done.stderr


async def test_a_root_that_does_not_exist_yet_is_reported_when_the_server_starts(tmp_path):
    done = await anyio.run_process(
        [*prepared_python(), "-m", "ctxpipe", "mcp", "texts"],
        input=b"",
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
    )

    assert f"there is no folder {tmp_path / 'texts'} yet" in done.stderr.decode()


def test_a_root_that_cannot_be_written_is_refused(read_only_folder, capsys):
    with pytest.raises(SystemExit):
        main([str(read_only_folder)])

    assert "may not write to" in capsys.readouterr().err


def test_a_storage_that_cannot_be_read_from_is_refused():
    with pytest.raises(SettingsError, match="TextReader"):
        offload_server("x")  # type: ignore[arg-type]


async def test_the_program_of_the_page_reads_what_was_offloaded(tmp_path):
    path = await store(tmp_path / ".ctxpipe")

    async with talk_to_process(*command_of("mcp"), cwd=tmp_path) as session:
        page, failed = await call(session, "read_offloaded", path=path, limit=12)

    assert page.startswith("first\nsecond")
    assert not failed


async def test_a_conversation_is_searched_by_a_path_of_it(tmp_path):
    path = await store(tmp_path)
    await store(tmp_path, "other/t.md")

    async with talk(tmp_path) as session:
        found, failed = await call(session, "search_history", query="second", path=path)
        said, is_refused = await call(session, "search_history", query="second")

    assert found.startswith(f"{path}, offset 0:\nfirst\nsecond error")
    assert str(tmp_path / "other") not in found
    assert (failed, is_refused, said) == (False, True, "path is missing; give a text")


async def test_a_named_session_is_searched_without_a_path(tmp_path):
    await store(tmp_path, "mine/t.md")
    command = [*prepared_python(), "-m", "ctxpipe", "mcp", str(tmp_path), "--session", "mine"]

    async with talk_to_process(*command, cwd=tmp_path) as session:
        listed = (await session.list_tools()).tools
        found, _ = await call(session, "search_history", query="second error")

    assert listed[2].input_schema["required"] == ["query"]
    assert "second error" in found
