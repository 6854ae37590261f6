"""A chat service of several workers, each of which can answer any turn of any session.

The journals are in PostgreSQL and the texts in an S3 bucket. No worker has data that another one
needs.

    python -m examples.service --port 8001 --postgres postgresql://… --bucket texts
    python -m examples.service --port 8002 --postgres postgresql://… --bucket texts

A turn is ``POST /sessions/NAME/turns`` with ``{"after": 3, "messages": […]}``: the messages that
follow the first three. The answer is a stream of server-sent events: "text" with parts of the
reply, then "done" with its content and the new number of messages, or "error". A client that
receives no "done" sends the turn again, with ``"again": true``, to any worker: no message is
recorded twice, and a recorded reply is not requested again. If two workers answer the same turn,
because the first one is slow or was killed, the first reply in the journal counts, and the other
worker sends "error". ``GET /sessions/NAME`` returns the
complete history, and ``DELETE`` removes all stored data of the session.

With ``--root FOLDER`` everything is stored in a folder, for the workers of one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import uvicorn
from obstore.store import S3Store
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    ObjectStorage,
    PostgresJournal,
    Sessions,
    SmartTruncate,
)
from ctxpipe.summarizers import AnthropicSummarizer

MODEL = os.environ.get("ANTHROPIC_MODEL", "claude-opus-5")
LEASE_SECONDS = 10.0  # two workers then do not write the same summary
STORE_SECONDS = 30.0  # the journal is the only copy of a history, so a turn rather waits for it


class Service:
    """The turns of all sessions; this worker has some of the sessions in memory."""

    def __init__(self, texts: Any, journal: Any, client: anthropic.AsyncAnthropic) -> None:
        window = int(os.environ.get("CTXPIPE_WINDOW", "200000"))
        self.texts = texts
        self.journal = journal
        self.client = client
        self.pipeline = ContextPipeline(
            [
                DirectOffload(texts, min_chars=2000),
                BatchOffload(texts),
                Compact(AnthropicSummarizer(client), archive=texts),
                SmartTruncate(archive=texts),
            ],
            budget=Budget(window=window),
        )
        self.sessions = Sessions(
            self.pipeline,
            journal=journal,
            max_bytes=1 << 28,
            lease_seconds=LEASE_SECONDS,
            store_seconds=STORE_SECONDS,
        )
        self.running: set[asyncio.Task[None]] = set()

    async def answer(self, name: str, turn: Mapping[str, Any]) -> AsyncIterator[str]:
        """Yield the events of one turn; the turn continues after the client disconnects."""
        events: asyncio.Queue[str] = asyncio.Queue()
        task = asyncio.create_task(self._run(name, turn, events))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        while event := await events.get():
            yield event

    async def _run(self, name: str, turn: Mapping[str, Any], events: asyncio.Queue[str]) -> None:
        try:
            done = await self._turn(name, turn, events)
            events.put_nowait(as_event("done", done))
        except Exception as error:  # noqa: BLE001  the client receives every failure
            events.put_nowait(as_event("error", {"error": type(error).__name__}))
        finally:
            events.put_nowait("")

    async def _turn(
        self, name: str, turn: Mapping[str, Any], events: asyncio.Queue[str]
    ) -> dict[str, Any]:
        messages = turn["messages"]
        after = turn["after"]
        session = self.sessions.get(name)
        if turn.get("again"):
            recorded = await self.history(name)
            if len(recorded) > after + len(messages):
                reply = recorded[after + len(messages)]
                return {"content": reply["content"], "known": after + len(messages) + 1}
            messages = messages[len(recorded) - after :]
        session.append(*messages)
        async with session.stream(self.client, model=MODEL, max_tokens=4096) as stream:
            async for text in stream.text_stream:
                events.put_nowait(as_event("text", text))
            reply = await stream.get_final_message()
        # The reply is in the journal now: text that the client has received is never lost.
        content = reply.to_dict()["content"]
        return {"content": content, "known": after + len(turn["messages"]) + 1}

    async def history(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the recorded history of a session, by all workers that have written it."""
        session = self.pipeline.new_session(name, journal=self.journal, store_seconds=STORE_SECONDS)
        messages: list[dict[str, Any]] = json.loads(json.dumps(await session.history()))
        return messages

    async def delete(self, name: str) -> None:
        await self.texts.delete(name)
        if self.journal is not self.texts:
            await self.journal.delete(name)


def as_event(kind: str, data: object) -> str:
    """Return the text of a server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def application(service: Service) -> Starlette:
    async def turn(request: Request) -> Response:
        events = service.answer(request.path_params["name"], await request.json())
        return StreamingResponse(events, media_type="text/event-stream")

    async def history(request: Request) -> Response:
        return JSONResponse(await service.history(request.path_params["name"]))

    async def delete(request: Request) -> Response:
        await service.delete(request.path_params["name"])
        return Response(status_code=204)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.gather(*service.running)
        if isinstance(service.journal, PostgresJournal):
            await service.journal.aclose()

    routes = [
        Route("/sessions/{name}/turns", turn, methods=["POST"]),
        Route("/sessions/{name}", history, methods=["GET"]),
        Route("/sessions/{name}", delete, methods=["DELETE"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def shared_storage(postgres: str, bucket: str, endpoint: str | None) -> tuple[Any, Any]:
    """Return a storage of texts in an S3 bucket, and one of journals in PostgreSQL.

    The credentials of the bucket are in the environment.
    """
    options: dict[str, Any] = {}
    if endpoint:  # not Amazon's, such as that of a test
        options = {"endpoint": endpoint, "client_options": {"allow_http": True}}
    texts = ObjectStorage(S3Store(bucket, **options))
    return texts, PostgresJournal(postgres, texts=texts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--postgres")
    parser.add_argument("--bucket", default="ctxpipe")
    parser.add_argument("--endpoint")
    parser.add_argument("--root", default=".ctxpipe")
    arguments = parser.parse_args()
    folder = LocalStorage(arguments.root)
    storages: tuple[Any, Any] = folder, folder
    if arguments.postgres:
        storages = shared_storage(arguments.postgres, arguments.bucket, arguments.endpoint)
    uvicorn.run(
        application(Service(*storages, anthropic.AsyncAnthropic())),
        host="127.0.0.1",
        port=arguments.port,
        log_level="warning",
    )
