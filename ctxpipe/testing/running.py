"""Server (uvicorn) in the caller's event loop; importing this imports starlette and uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ACCEPT_TURNS = 5  # of the loop: accept, transport, connection_made, and some to spare
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Running:
    """Running server."""

    server: uvicorn.Server
    listener: socket.socket

    @property
    def url(self) -> str:
        """URL of the server, with its port."""
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}"

    def abort(self, request: Request) -> None:
        """Break the connection of *request*; nothing more is sent."""
        if request.client is None:
            return
        client = tuple(request.client)
        for connection in self.server.server_state.connections:
            if getattr(connection, "client", None) == client:
                connection.transport.abort()
                return

    async def stop(self) -> None:
        """Close the socket and every connection, and wait for all tasks of the server."""
        state = self.server.server_state
        # First stop accepting connections, and complete those that are being accepted: asyncio
        # (3.11) loses a connection if its server is closed between accept and connection_made; its
        # socket then stays open, and its client waits for ever.
        with contextlib.suppress(NotImplementedError):  # loops that do not watch file descriptors
            asyncio.get_running_loop().remove_reader(self.listener)
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for server in self.server.servers:
            server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        # The loop closes an aborted socket in its next turn, without a signal.
        while state.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)


def application(endpoints: Mapping[str, Endpoint]) -> Starlette:
    """Return the ASGI application with *endpoints* (path → handler of POST)."""
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]
    handlers = {404: _unknown, 405: _unknown, ClientDisconnect: _ignore_disconnect}
    return Starlette(routes=routes, exception_handlers=handlers)


async def start(endpoints: Mapping[str, Endpoint]) -> Running:
    """Serve *endpoints* (path → handler of POST) on a free port of 127.0.0.1."""
    config = uvicorn.Config(
        application(endpoints),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Not server.serve(), which handles the signals of the process and checks ten times a second
    # whether to stop.
    listener = socket.create_server(("127.0.0.1", 0), backlog=config.backlog)
    # Connections inherit this option; without it, a reply waits 40 ms for the acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await server.startup(sockets=[listener])
    return Running(server, listener)


async def _ignore_disconnect(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Return an empty response if a client disconnects before its request is complete."""
    return Response()


async def _unknown(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Return the response with status 404 for a path that the server does not have."""
    body = {"type": "error", "error": {"type": "not_found_error", "message": "Not found"}}
    return JSONResponse(body, status_code=404)
