"""The examples for durable engines, with the engines, which `make examples` installs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from places import ROOT

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.testing import MessagesServer

REASON = "the engines are not installed: make examples installs them in a new environment"
for engine in ("dbos", "temporalio", "langgraph.checkpoint.sqlite.aio"):
    pytest.importorskip(engine, reason=REASON)

from examples.durable.agent import scripted_model  # noqa: E402

CALLS = 12
SIZES = re.compile(r"([\d,]+) bytes of history without ctxpipe, ([\d,]+) with it")


async def output_of(name: str, *arguments: object) -> str:
    """Run an example; return what it prints."""
    command = [sys.executable, "-m", f"examples.durable.{name}", *map(str, arguments)]
    done = await anyio.run_process(command, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def sizes_of(name: str, calls: int) -> tuple[int, int]:
    """Run an example; return the sizes that it prints, without and with ctxpipe."""
    printed = SIZES.search(await output_of(name, "--calls", calls))
    assert printed
    plain_bytes, ctxpipe_bytes = (int(size.replace(",", "")) for size in printed.groups())
    return plain_bytes, ctxpipe_bytes


@pytest.mark.parametrize("name", ["dbos_workflow", "langgraph_state", "temporal_activity"])
async def test_without_ctxpipe_the_history_of_an_engine_grows_with_the_square_of_the_calls(name):
    plain_short, short = await sizes_of(name, CALLS)
    plain_long, long = await sizes_of(name, 3 * CALLS)

    assert plain_long > 5 * plain_short
    assert long < 4 * short


async def test_a_workflow_of_temporal_without_ctxpipe_is_ended_by_the_server():
    printed = await output_of("temporal_activity", "--calls", 60, "--chars", 40_000)

    assert re.search(r"^PlainAgent was ended after model call \d\d: ", printed, re.MULTILINE)
    assert "\nAgent was ended" not in printed


async def test_a_workflow_of_dbos_whose_worker_is_killed_asks_for_each_reply_once(tmp_path):
    def start(url: str) -> subprocess.Popen[bytes]:
        program = str(ROOT / "tests" / "support" / "dbos_worker.py")
        command = [sys.executable, program, str(tmp_path), url]
        return subprocess.Popen(
            command, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    worker: list[subprocess.Popen[bytes]] = []
    reply_to = scripted_model(CALLS)

    async def reply(body: Any) -> Any:
        if server.calls in (5, 9):
            worker[-1].kill()
            await anyio.sleep_forever()  # the connection is broken by then
        return reply_to(body)

    async with MessagesServer(reply) as server:
        codes: list[int] = []
        while not codes or codes[-1] == -9:
            worker.append(start(server.url))
            out, errors = await anyio.to_thread.run_sync(worker[-1].communicate)
            codes.append(worker[-1].returncode)

        assert codes == [-9, -9, 0], errors
        assert server.calls == CALLS + 2
    assert out.split() == [str(2 * CALLS).encode()]
    history = await history_in(tmp_path)
    assert [message["role"] for message in history] == ["user", "assistant"] * CALLS


async def history_in(root: Path) -> list[Any]:
    storage = LocalStorage(root)
    return await ContextPipeline().session("job", journal=storage).history()
