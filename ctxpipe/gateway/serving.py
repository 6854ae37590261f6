"""Runs a gateway on a socket."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import time
from contextlib import closing

import anyio
import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import READING, Gateway
from .guard import MAX_HEAD, error_body
from .settings import Settings

BACKLOG = 2048
HEAD_SECONDS = 10.0
"""How long the head of a request may take."""
GRACE_SECONDS = 5
"""How long replies under way may take after the gateway is told to stop."""
COLLECTION_SECONDS = 1.0
"""How often it is asked whether garbage may be collected."""
LONGEST_WAIT = 600.0
"""Seconds after which it is collected while replies are under way, too."""
NEVER = 1 << 30
_BAD_REQUEST = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
SWITCH_SECONDS = 0.00001
"""How long a worker thread may keep the interpreter from the event loop.

It has to be shorter than the time between two calls that release the interpreter, as digests of
texts do: each of them starts the loop's waiting anew, but takes the interpreter back at once.
"""


class Serving:
    """A gateway that listens; `run` serves until `stop`, or a signal.

    Raises OSError where the address cannot be listened on, SettingsError as `Gateway` does.
    """

    def __init__(self, settings: Settings) -> None:
        self.gateway: Gateway = Gateway(settings)
        family = socket.AF_INET6 if ":" in settings.address[0] else socket.AF_INET
        self._socket = socket.create_server(
            settings.address,
            family=family,
            backlog=BACKLOG,
            # Others with the same journal may listen there; the system deals out the connections.
            reuse_port=settings.journal is not None and hasattr(socket, "SO_REUSEPORT"),
        )
        # Its connections inherit it. asyncio sets it only where a socket names its protocol, and
        # without it a small chunk waits until the client has acknowledged the one before: 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            self.gateway.app,
            http=_Protocol,
            h11_max_incomplete_event_size=MAX_HEAD,
            ws="none",
            proxy_headers=False,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        config.load()  # it imports, which waits for other threads that do: not on the event loop
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """The address at which it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def reader_url(self) -> str | None:
        """The address of the tools that read back, None where there are none."""
        return f"{self.url}{READING}" if self.gateway.has_reader else None

    @property
    def is_running(self) -> bool:
        """Whether requests are answered by now."""
        return self._server.started

    def wait(self, seconds: float) -> bool:
        """Wait in another thread until requests are answered; whether they are."""
        end = time.monotonic() + seconds
        while not self.is_running and time.monotonic() < end:
            time.sleep(0.01)
        return self.is_running

    async def run(self) -> None:
        """Serve until `stop`."""
        with closing(self._socket):
            await self._server.serve(sockets=[self._socket])

    async def run_alone(self) -> None:
        """As `run`, in a process that does nothing else: garbage is collected between requests.

        A full collection goes through all that is remembered, and every stream waits for its end.
        And threads that work on large bodies give way to the event loop sooner than is usual.
        """
        threshold, interval = gc.get_threshold(), sys.getswitchinterval()
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
        # uvicorn says it in no other way.
        while not self.is_running:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        gc.collect()
        gc.freeze()  # what is loaded by now stays
        collected = time.monotonic()
        while True:
            await anyio.sleep(COLLECTION_SECONDS)
            is_due = time.monotonic() - collected > LONGEST_WAIT
            is_idle = not self._server.server_state.tasks
            if is_due or (is_idle and gc.get_count()[2]):
                gc.collect()
                collected = time.monotonic()

    def stop(self) -> None:
        """End `run`, with the replies that are under way."""
        self._server.should_exit = True


class _Protocol(H11Protocol):
    """HTTP whose refusal of what is no HTTP has the API's form too, and whose heads have an end."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        """Go on with the head, or with what follows it."""
        super().data_received(data)
        self._time_head()

    def _time_head(self) -> None:
        """Close the connection HEAD_SECONDS after a head was begun that is not whole by then."""
        if self.conn.their_state is not h11.IDLE:
            if self._head_timer is not None:
                self._head_timer.cancel()
            self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _should_upgrade(self) -> bool:
        """Return False, without uvicorn's warning: the gateway itself answers 426."""
        return False

    def send_400_response(self, msg: str) -> None:
        """Say *msg*, unless a reply has begun, and close the connection."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = json.dumps(error_body(400, msg, ""))
            self.transport.write(
                f"{_BAD_REQUEST}content-length: {len(body)}\r\n\r\n{body}".encode()
            )
        self.transport.close()
