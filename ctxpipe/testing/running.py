"""uvicorn in the caller's event loop. Importing this module imports starlette and uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

__all__ = ["Running", "start"]

ACCEPT_TURNS = 5  # of the loop: accept, transport, connection_made, and some to spare
Endpoint = Callable[[Request], Awaitable[Response]]


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone and stops at once, not at its next tick."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.up.set()
        await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await _accept_no_more(sockets or [])
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
        # The loop closes an aborted socket in its next turn; nothing signals the end of it.
        while self.server_state.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _accept_no_more(sockets: Iterable[socket.socket]) -> None:
    """Let every connection that is being accepted come to life.

    asyncio (3.11) forgets a connection whose server is closed between accept and connection_made: its socket stays
    open, and its client waits for ever.
    """
    with contextlib.suppress(NotImplementedError):  # loops that do not watch file descriptors
        for listener in sockets:
            asyncio.get_running_loop().remove_reader(listener)
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is up."""

    url: str
    _server: _Server
    _task: asyncio.Task[None]

    def abort(self, request: Request) -> None:
        """Break the connection that *request* came in by, with nothing more sent."""
        for connection in self._server.server_state.connections:
            if request.client is not None and getattr(connection, "client", None) == tuple(request.client):
                connection.transport.abort()
                return

    async def stop(self) -> None:
        """Close the socket and every connection; return when nothing of the server is left."""
        self._server.stopping.set()
        await self._task


async def start(endpoints: Mapping[str, Endpoint]) -> Running:
    """Serve *endpoints* (POST) on a free port of 127.0.0.1."""
    routes = [Route(path, _until_gone(endpoint), methods=["POST"]) for path, endpoint in endpoints.items()]
    app = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, backlog=2048)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="ctxpipe.testing server")
    up = asyncio.create_task(server.up.wait())
    await asyncio.wait({task, up}, return_when=asyncio.FIRST_COMPLETED)
    if not up.done():
        up.cancel()
        task.result()  # raises what went wrong
    return Running(f"http://127.0.0.1:{listener.getsockname()[1]}", server, task)


def _until_gone(endpoint: Endpoint) -> Endpoint:
    """*endpoint*, which need not care for clients that go away before they have sent their request."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response()

    return answered


async def _unknown(request: Request, error: Exception) -> Response:  # noqa: ARG001 -- starlette's signature
    body: dict[str, Any] = {"type": "error", "error": {"type": "not_found_error", "message": "Not found"}}
    return JSONResponse(body, status_code=404)
