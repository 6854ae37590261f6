"""The service of several workers: any of them answers any turn, and one may die in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from processes import prepared_python
from services import S3, Postgres, absent

from benchmarks.bench_service import Worker, environment_of, post
from ctxpipe.testing import MessagesServer, RequestBody, answer_with, tool_use
from ctxpipe.testing.replies import Answer

LONG = "a long line of a result\n" * 300


@pytest.fixture(params=["a folder", "PostgreSQL and S3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], S3 | None]:
    """The arguments of a worker, and the S3 that it needs."""
    if find_spec("obstore") is None:
        absent("there is no obstore: pip install 'ctxpipe[object-store]'")
    if request.param == "a folder":
        return ["--root", str(tmp_path / "root")], None
    postgres: Postgres = request.getfixturevalue("postgres")
    s3: S3 = request.getfixturevalue("s3")
    return ["--postgres", postgres.url, "--bucket", S3.BUCKET, "--endpoint", s3.url], s3


def reply(body: RequestBody) -> Answer:
    number = len(body["messages"])
    return answer_with(f"Step {number}.", tool_use("read", {}, f"toolu_{number}"), seconds=0.3)


@asynccontextmanager
async def workers_of(
    where: tuple[list[str], S3 | None], count: int = 2
) -> AsyncIterator[tuple[list[Worker], MessagesServer]]:
    command, s3 = where
    async with MessagesServer(reply) as server:
        environment = environment_of(server.url, s3)
        workers = [Worker(command, environment, python=prepared_python()) for _ in range(count)]
        try:
            for worker in workers:
                worker.start()
            with anyio.fail_after(60):
                for worker in workers:
                    await worker.is_up()
            yield workers, server
        finally:
            for worker in workers:
                worker.kill()


async def get(worker: Worker, name: str, method: str = "GET") -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(f"{method} /sessions/{name} HTTP/1.0\r\n\r\n".encode())
    content = await reader.read()
    writer.close()
    body = content.partition(b"\r\n\r\n")[2]
    return json.loads(body) if body else None


def results_for(content: list[Any], text: str) -> dict[str, Any]:
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call in calls]
    return {"role": "user", "content": blocks}


async def converse(name: str, turns: int, choose: Callable[[int], Worker]) -> list[dict[str, Any]]:
    """The history as the caller knows it after so many turns."""
    history: list[dict[str, Any]] = []
    message: dict[str, Any] = {"role": "user", "content": "Read."}
    for turn in range(turns):
        body = {"after": len(history), "messages": [message]}
        done = await post(choose(turn).port, f"/sessions/{name}/turns", body)
        history += [message, {"role": "assistant", "content": done["content"]}]
        assert done["known"] == len(history)
        message = results_for(done["content"], f"{turn} {LONG}")
    return history


async def test_any_worker_answers_any_turn(where):
    async with workers_of(where) as (workers, server):
        history = await converse("any", 6, lambda turn: workers[turn % 2])

        for worker in workers:
            assert await get(worker, "any") == history
        sent = [json.dumps(request.body["messages"]) for request in server.requests]
        assert LONG[:100] not in sent[-1]
        assert not server.refused
        await get(workers[0], "any", "DELETE")
        assert await get(workers[1], "any") == []


async def test_a_worker_that_dies_in_a_turn_costs_that_turn_its_latency(
    where,
):
    async with workers_of(where) as (workers, server):
        history = await converse("dies", 3, lambda _: workers[0])
        message = results_for(history[-1]["content"], LONG)
        body: dict[str, Any] = {"after": len(history), "messages": [message]}
        turn = asyncio.create_task(post(workers[0].port, "/sessions/dies/turns", body))
        while len(server.requests) < 4:  # noqa: ASYNC110  the model is asked; nothing signals it
            await asyncio.sleep(0.01)
        workers[0].kill()
        with pytest.raises(OSError):
            await turn
        again = {**body, "again": True}
        with anyio.fail_after(60):
            done = await post(workers[1].port, "/sessions/dies/turns", again)

        expected = [*history, message, {"role": "assistant", "content": done["content"]}]
        assert await get(workers[1], "dies") == expected
        assert not server.refused


async def test_a_reply_that_was_recorded_is_not_asked_for_again(
    where,
):
    async with workers_of(where) as (workers, server):
        history = await converse("again", 2, lambda _: workers[0])
        body = {"after": 2, "messages": history[2:3], "again": True}
        done = await post(workers[1].port, "/sessions/again/turns", body)

        assert done["content"] == history[3]["content"]
        assert len(server.requests) == 2
        assert await get(workers[1], "again") == history
