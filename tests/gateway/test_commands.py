import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from gateways import Upstream, conversation, key, replies
from models import MODEL
from processes import prepared_python
from readme import command_of, reader_environment

from ctxpipe.gateway.commands import log_file
from ctxpipe.testing import MessagesServer

AGENT = """
import json, os, sys, urllib.request
body = json.load(open(sys.argv[1]))
request = urllib.request.Request(
    os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
    json.dumps(body).encode(),
    {"x-api-key": sys.argv[2], "anthropic-version": "2023-06-01"},
)
reply = json.load(urllib.request.urlopen(request))
print(reply["content"][0]["text"])
sys.exit(7)
"""


async def ctxpipe(*arguments: str, **settings: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(*prepared_python(), "-m", "ctxpipe", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **settings,  # type: ignore[arg-type]
    )


def write_agent(folder: Path) -> list[str]:
    """A program that asks once, through whatever its environment names."""
    body = {"model": MODEL, "max_tokens": 9, "messages": conversation(1)}
    (folder / "agent.py").write_text(AGENT)
    (folder / "body.json").write_text(json.dumps(body))
    return [sys.executable, "agent.py", "body.json", key()]


async def test_the_address_is_the_first_line_and_the_sum_the_last(tmp_path):
    async with MessagesServer(replies(1)) as api:
        started = await ctxpipe(
            *("gateway", "--upstream", api.url, "--listen", "127.0.0.1:0"),
            *("--root", str(tmp_path / "root")),
        )
        assert started.stdout is not None
        url = json.loads(await started.stdout.readline())["listening"]
        agent = await asyncio.create_subprocess_exec(
            *write_agent(tmp_path), cwd=tmp_path, env={**os.environ, "ANTHROPIC_BASE_URL": url}
        )
        assert await agent.wait() == 7
        started.send_signal(signal.SIGINT)
        _, error = await started.communicate()
    lines = error.decode().splitlines()
    assert "turn 1 of unnamed-" in lines[0]
    assert lines[-1].startswith("ctxpipe gateway: 1 turn, ")
    assert key() not in error.decode()


@pytest.mark.parametrize(
    "command", [("gateway", "--upstream", "http://127.0.0.1:9"), ("wrap", "true")]
)
async def test_a_root_that_is_a_file_is_told_before_anything_begins(tmp_path, command):
    (tmp_path / "root").touch()
    started = await ctxpipe(*command, "--root", str(tmp_path / "root"))
    output, error = await started.communicate()
    assert (started.returncode, output) == (2, b"")
    assert b"Invalid value for '--root'" in error


async def test_wrap_passes_output_and_exit_status_through(tmp_path):
    async with MessagesServer(replies(1)) as api:
        wrapped = await ctxpipe(
            *("wrap", "--", *write_agent(tmp_path)),
            cwd=tmp_path,
            env={**os.environ, "ANTHROPIC_BASE_URL": api.url},
        )
        output, error = await wrapped.communicate()
    assert output == b"reply 0\n"
    assert wrapped.returncode == 7
    assert error.startswith(b"ctxpipe: 1 turn, ")
    assert len(error.splitlines()) == 1
    assert "shaped" in (tmp_path / ".ctxpipe" / "gateway.log").read_text()
    assert str(tmp_path) in json.dumps(api.requests[0].body["messages"])


def test_the_log_of_wrap_leaves_its_root_marked_and_out_of_git(tmp_path):
    log_file(tmp_path / "root").close()
    assert (tmp_path / "root" / ".gitignore").read_text() == "*\n"


async def test_the_program_of_the_page_runs_the_agent_behind_a_gateway(tmp_path):
    agent = tmp_path / "bin" / "claude"
    agent.parent.mkdir()
    agent.write_text(f"#!/bin/sh\nexec {shlex.join(write_agent(tmp_path))}\n")
    agent.chmod(0o755)
    async with MessagesServer(replies(1)) as api:
        settings = reader_environment(ANTHROPIC_BASE_URL=api.url)
        settings["PATH"] = f"{agent.parent}:{settings['PATH']}"
        done = await anyio.run_process(
            command_of("gateway"), check=False, cwd=tmp_path, env=settings
        )
    assert done.stdout == b"reply 0\n"
    assert done.stderr.startswith(b"ctxpipe: 1 turn, ")
    assert str(tmp_path) in json.dumps(api.requests[0].body["messages"])


async def test_wrap_prints_nothing_while_the_agent_runs(tmp_path):
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nevent")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(break_off, "127.0.0.1", 0) as api:
        wrapped = await ctxpipe(
            *("wrap", "--", "/bin/sh", "-c", f"{shlex.join(write_agent(tmp_path))} 2>/dev/null"),
            cwd=tmp_path,
            env={
                **os.environ,
                "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{api.sockets[0].getsockname()[1]}",
            },
        )
        _, error = await wrapped.communicate()
    assert error.decode().startswith("ctxpipe: 1 turn, ")
    assert len(error.splitlines()) == 1
    assert "breaks off" in (tmp_path / ".ctxpipe" / "gateway.log").read_text()


async def test_wrap_says_in_one_line_that_an_agent_goes_past_the_gateway(tmp_path):
    wrapped = await ctxpipe("wrap", "--", sys.executable, "-c", "", cwd=tmp_path)
    _, error = await wrapped.communicate()
    [line] = error.decode().splitlines()
    assert line.startswith("ctxpipe: no turn went through the gateway; python")
    assert "ANTHROPIC_BASE_URL or OPENAI_BASE_URL" in line


async def test_wrap_says_first_what_to_write_where_only_the_agent_s_settings_have_the_url(tmp_path):
    agent = tmp_path / "cline"
    agent.write_text("#!/bin/sh\necho runs >&2\n")
    agent.chmod(0o755)
    wrapped = await ctxpipe("wrap", "--", str(agent), cwd=tmp_path)
    _, error = await wrapped.communicate()
    first, second, _ = error.decode().splitlines()
    assert "cline auth --provider NAME --baseurl ADDRESS" in first
    assert second == "runs"


async def test_wrap_passes_a_signal_on_and_ends_with_the_agent(tmp_path):
    script = "import time; print('up', flush=True); time.sleep(60)"
    wrapped = await ctxpipe("wrap", "--", sys.executable, "-c", script, cwd=tmp_path)
    assert wrapped.stdout is not None
    await wrapped.stdout.readline()
    wrapped.terminate()
    await wrapped.communicate()
    assert wrapped.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gateway", "--upstream", "nonsense"], "give a URL"),
        (["gateway", "--upstream", "http://a", "--listen", "0.0.0.0:0"], "--token-file"),
        (["gateway", "--upstream", "http://a", "--listen", "nowhere"], "127.0.0.1:8787"),
        (["gateway", "--upstream", "http://a", "--preset", "best"], "coding, lean, chat"),
        (["gateway", "--upstream", "http://a", "--token-file", "none"], "cannot be read"),
        (["wrap", "--", "no-such-agent"], "cannot be run: no program on the PATH has this name"),
    ],
)
async def test_what_is_wrong_is_said_in_one_sentence(tmp_path, arguments, said):
    run = await ctxpipe(*arguments, cwd=tmp_path)
    _, error = await run.communicate()
    assert run.returncode == 2
    assert said in error.decode()
    assert len(error.splitlines()) == 1


async def test_a_token_file_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("a token of some length\n")
    path.chmod(0o644)
    run = await ctxpipe("gateway", "--upstream", "http://a", "--token-file", str(path))
    _, error = await run.communicate()
    assert "chmod 600" in error.decode()


async def test_a_port_in_use_is_said(tmp_path):
    async with Upstream() as api:
        run = await ctxpipe(
            *("gateway", "--upstream", api.url, "--listen", api.url.removeprefix("http://")),
            cwd=tmp_path,
        )
        _, error = await run.communicate()
    assert run.returncode == 2
    assert "give another port with --listen" in error.decode()
