"""The server that runs a gateway on a socket."""

from __future__ import annotations

import asyncio
import gc
import json
import select
import socket
import sys
import time
from contextlib import closing, suppress

import anyio
import h11
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import READING_PATH, Gateway
from .guard import MAX_HEAD, error_body
from .settings import GatewaySettings

BACKLOG = 2048
HEAD_SECONDS = 10.0
"""Maximum time for receiving the head of a request."""
QUIET_SECONDS = 15.0
"""Time for which idle connections stay open after the gateway is stopped.

A proxy that is short of processor time notices late that a connection was closed, and loses the
request that it sends on it. A connection that a proxy uses in this time announces its end, so only
those are left that it does not need. The time is shorter than DRAIN_SECONDS.
"""
COLLECTION_SECONDS = 1.0
"""Interval of the check whether garbage can be collected."""
MAX_COLLECTION_DELAY_SECONDS = 600.0
"""Time after which garbage is collected even while replies are open."""
NEVER = 1 << 30
_BAD_REQUEST = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
SWITCH_SECONDS = 0.00001
"""Maximum time that a worker thread keeps the interpreter lock while the event loop waits for it.

It must be shorter than the time between two calls that release the lock, as digests of texts do:
each such call restarts the loop's wait, but takes the lock back at once.
"""


class Serving:
    """A gateway on a listening socket. `run` serves until `stop` is called or a signal arrives.

    Raises OSError if the address cannot be listened on, SettingsError if a setting is invalid.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.gateway: Gateway = Gateway(settings)
        family = socket.AF_INET6 if ":" in settings.address[0] else socket.AF_INET
        self._socket = socket.create_server(
            settings.address,
            family=family,
            backlog=BACKLOG,
            # Gateways with one journal may share a port; the system distributes the connections.
            reuse_port=settings.journal is not None and hasattr(socket, "SO_REUSEPORT"),
        )
        # The connections inherit this option. asyncio sets it only for sockets with an explicit
        # protocol; without it a small chunk waits 40 ms for the previous one's acknowledgement.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            http=_Protocol,
            h11_max_incomplete_event_size=MAX_HEAD,
            ws="none",
            proxy_headers=False,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=settings.timeout_keep_alive,
            timeout_graceful_shutdown=settings.drain_seconds,
        )
        config.load()  # here, because it imports modules, which would block the event loop
        self._server = _Server(config)

    @property
    def url(self) -> str:
        """The URL at which the gateway listens."""
        host, port = self._socket.getsockname()[:2]
        if ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{port}"

    @property
    def reader_url(self) -> str | None:
        """The URL of the tools that read offloaded texts, None if there are no such tools."""
        return f"{self.url}{READING_PATH}" if self.gateway.has_reader else None

    @property
    def is_running(self) -> bool:
        """True once the gateway answers requests."""
        return self._server.started

    def wait(self, seconds: float) -> bool:
        """Block the calling thread until the gateway answers requests, at most *seconds*.

        Return True if it does. `run` must be running in another thread.
        """
        deadline = time.monotonic() + seconds
        while not self.is_running and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.is_running

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; while the gateway ends, announce that the connection will be closed.

        Otherwise the client would use it again, and that request would be lost.
        """

        async def send_last(message: Message) -> None:
            """Send *message*, with the header that announces the end of the connection."""
            if message["type"] == "http.response.start" and self._server.should_exit:
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await self.gateway.app(scope, receive, send_last)

    async def run(self) -> None:
        """Serve requests until `stop` is called or a signal arrives."""
        with closing(self._socket):
            await self._server.serve(sockets=[self._socket])

    async def run_alone(self) -> None:
        """Serve like `run`, and tune the interpreter for a process that only runs this gateway.

        Full garbage collections run between requests, because a collection visits all cached
        conversations and blocks every stream. Threads that work on large bodies yield the
        interpreter lock to the event loop sooner than by default.
        """
        threshold = gc.get_threshold()
        interval = sys.getswitchinterval()
        gc.set_threshold(*threshold[:2], NEVER)
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._collect_garbage)
                await self.run()
                tasks.cancel_scope.cancel()
        finally:
            gc.unfreeze()
            gc.set_threshold(*threshold)
            sys.setswitchinterval(interval)

    async def _collect_garbage(self) -> None:
        """Collect garbage while no request is open, so that collections delay no stream.

        If requests are always open, a collection happens every MAX_COLLECTION_DELAY_SECONDS. Runs
        until it is cancelled.
        """
        # uvicorn has no event for this.
        while not self.is_running:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        gc.collect()
        gc.freeze()  # no later collection visits the objects that exist now
        last_collection = time.monotonic()
        while True:
            await anyio.sleep(COLLECTION_SECONDS)
            is_due = time.monotonic() - last_collection > MAX_COLLECTION_DELAY_SECONDS
            is_idle = not self._server.server_state.tasks
            if is_due or (is_idle and gc.get_count()[2]):
                gc.collect()
                last_collection = time.monotonic()

    def stop(self) -> None:
        """End `run`; open replies get the `drain_seconds` of the settings to complete."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """A server that accepts all connections that clients have opened before it stops listening."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all connections; those that wait to be accepted are answered first.

        The system would reset them if the socket were closed.
        """
        loop = asyncio.get_running_loop()
        waiting: list[socket.socket] = []
        for listener in sockets or []:
            with suppress(BlockingIOError):
                while True:
                    connection, _ = listener.accept()
                    waiting.append(connection)
        for server in self.servers:
            server.close()
        for connection in waiting:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._new_protocol, connection)
        await super().shutdown(sockets)

    def _new_protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn creates it."""
        return _Protocol(self.config, self.server_state, self.lifespan.state)


class _Protocol(H11Protocol):
    """HTTP with a time limit for heads, and with errors for invalid HTTP in the form of the API."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first head."""
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        """Process *data*, and start or cancel the time limit for the head."""
        super().data_received(data)
        self._time_head()

    def _time_head(self) -> None:
        """Close the connection if a head is still incomplete after HEAD_SECONDS."""
        if self.conn.their_state is not h11.IDLE:
            if self._head_timer is not None:
                self._head_timer.cancel()
            self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def shutdown(self) -> None:
        """Close the connection once it has been idle; called when the gateway ends.

        A client may be sending a request on it, which would be lost. So it stays open for
        QUIET_SECONDS, or until the reply to such a request has announced its end.
        """
        seconds = min(QUIET_SECONDS, self.config.timeout_graceful_shutdown or 0)
        self.loop.call_later(seconds, self._close_once_idle)

    def _close_once_idle(self) -> None:
        """Close the connection; try later if a request has arrived or is being answered."""
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        has_arrived = bool(select.select([connection.fileno()], [], [], 0)[0])
        if has_arrived or (self.cycle is not None and not self.cycle.response_complete):
            self.loop.call_later(QUIET_SECONDS, self._close_once_idle)
            return
        # At once: the transport closes in a later iteration of the event loop, and a request that
        # arrives until then would be lost.
        with suppress(OSError):  # the client has left
            connection.shutdown(socket.SHUT_WR)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Return False, without uvicorn's warning: the gateway itself answers 426."""
        return False

    def send_400_response(self, msg: str) -> None:
        """Send *msg* as an error, unless a reply has started, and close the connection."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = json.dumps(error_body(400, msg, ""))
            self.transport.write(
                f"{_BAD_REQUEST}content-length: {len(body)}\r\n\r\n{body}".encode()
            )
        self.transport.close()
