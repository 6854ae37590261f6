"""The durable loop, killed with -9 again and again, ends with the history of one that was not."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from places import ROOT
from processes import prepared_python

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.messages import Message
from ctxpipe.testing import MessagesServer, Reply, RequestBody, answer_with, tool_use

KILLS = int(os.environ.get("CTXPIPE_KILLS", "4"))
STEPS = 12


def reply(body: RequestBody) -> Reply:
    """What a model says that has seen so many messages: the same, however often it is asked."""
    count = len(body["messages"])
    if count > 2 * STEPS:
        return answer_with("All is read.")
    calls = [
        tool_use("read_file", {"path": "long.txt"}, f"toolu_{count}_{n}")
        for n in range(1 + count % 3 // 2)
    ]
    return answer_with(f"Step {count}.", *calls)


def start(server: MessagesServer, folder: Path, state: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "test",
        "PYTHONPATH": str(ROOT),
    }
    command = [
        *prepared_python(),
        "-m",
        "examples.durable_loop",
        "Read it.",
        "--folder",
        str(folder),
        "--state",
        str(state),
    ]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def kept(state: Path) -> list[Message]:
    storage = LocalStorage(state)
    return await ContextPipeline().session("durable", journal=storage).history()


async def test_a_loop_that_is_killed_at_any_moment_ends_with_the_history_of_one_that_is_not(
    tmp_path,
):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "long.txt").write_text("a line of a long file\n" * 400)
    chance = random.Random(13)

    async with MessagesServer(reply) as server:
        began = time.monotonic()
        whole = start(server, folder, tmp_path / "whole")
        out, errors = await anyio.to_thread.run_sync(whole.communicate)
        seconds = time.monotonic() - began
        assert whole.returncode == 0, errors
        expected = await kept(tmp_path / "whole")

        killed = 0
        while True:
            process = start(server, folder, tmp_path / "killed")
            if killed < KILLS:
                await anyio.sleep(chance.uniform(0.3, 1) * seconds)
                killed += process.poll() is None
                process.kill()
            again, errors = await anyio.to_thread.run_sync(process.communicate)
            if process.returncode == 0:
                break
            assert process.returncode == -9, errors

        assert not server.refused
    assert again == out
    assert _plain(await kept(tmp_path / "killed")) == _plain(expected)
    assert len(expected) == 2 * STEPS + 2


def _plain(history: list[Message]) -> list[Any]:
    return list(map(json.loads, map(json.dumps, history)))
