"""Scripted APIs that the SDKs' asynchronous clients reach without a socket.

For tests of what is said, not of how it is carried. The `ASGITransport` of httpx and httpx2 hands a
response over only when it is complete, so nothing could be tested of a stream that is left or
broken off.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import anthropic
import anyio
from starlette.requests import Request
from starlette.types import ASGIApp

from ctxpipe.adapters.http_client import library_of
from ctxpipe.testing import MessagesServer
from ctxpipe.testing.running import application
from ctxpipe.testing.scripted import ScriptedServer

if TYPE_CHECKING:
    from httpx2 import AsyncBaseTransport, AsyncByteStream
else:
    # Of both libraries: one SDK may send with httpx, another with httpx2.
    LIBRARIES = [import_module(name) for name in ("httpx", "httpx2") if find_spec(name)]

    class AsyncBaseTransport(*(http.AsyncBaseTransport for http in LIBRARIES)):
        pass

    class AsyncByteStream(*(http.AsyncByteStream for http in LIBRARIES)):
        pass


Message = MutableMapping[str, Any]


@asynccontextmanager
async def messages_api(
    server: MessagesServer, **client: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    """*server*, and a client of it that tries once."""
    async with (
        in_memory(server) as transport,
        anthropic.AsyncAnthropic(
            base_url=server.url,
            http_client=library_of(anthropic).AsyncClient(transport=transport, timeout=None),
            **{"api_key": "test", "max_retries": 0, **client},
        ) as talking,
    ):
        yield server, talking


@asynccontextmanager
async def in_memory(server: ScriptedServer) -> AsyncIterator[AsyncBaseTransport]:
    """*server* for the length of the block, and what sends to its ``url``."""
    async with AsyncExitStack() as stack:
        stack.push_async_exit(server)
        transport = InMemoryTransport(application(dict.fromkeys(server._paths, server._receive)))
        server._one_at_a_time = anyio.CapacityLimiter(1)
        server._running = transport  # type: ignore[assignment]
        yield transport


class InMemoryTransport(AsyncBaseTransport):
    """Carries requests to *app* and its answers back, each chunk as soon as it is sent.

    For the server it is what `ctxpipe.testing.running.Running` is on a socket.
    """

    url = "http://in-memory"

    def __init__(self, app: ASGIApp):
        self._app = app
        self._exchanges: dict[int, _Exchange] = {}
        self._numbers = itertools.count(1)
        self._context = contextvars.copy_context()  # a server sees nothing of its client's

    async def handle_async_request(self, request: Any) -> Any:
        number = next(self._numbers)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port),
            "client": ("in-memory", number),
            "root_path": "",
        }
        http = sys.modules[type(request).__module__]
        exchange = _Exchange(http, await request.aread(), request.extensions["timeout"]["read"])
        self._exchanges[number] = exchange
        exchange.start(self._app, scope, self._context)
        try:
            start = await exchange.next_message()
        except BaseException:
            exchange.break_off()
            raise
        return http.Response(start["status"], headers=start["headers"], stream=exchange)

    def abort(self, request: Request):
        """Break the connection of *request*; nothing more is sent."""
        assert request.client is not None
        self._exchanges[request.client.port].break_off()

    async def stop(self) -> None:
        """Break every connection; return when nothing of the server is left."""
        for exchange in self._exchanges.values():
            exchange.break_off()
        tasks = [exchange.task for exchange in self._exchanges.values()]
        await asyncio.gather(*tasks, return_exceptions=True)


class _Exchange(AsyncByteStream):
    """A request on its way to an application, and the answer on its way back."""

    task: asyncio.Task[None]

    def __init__(self, http: Any, body: bytes, timeout: float | None):
        self._http = http
        self._request: list[Message] = [{"type": "http.request", "body": body}]
        self._timeout = timeout
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()  # None: the connection is gone
        self._is_broken = asyncio.Event()

    def start(self, app: ASGIApp, scope: Message, context: contextvars.Context):
        work: Any = app(scope, self._receive, self._send)
        self.task = asyncio.get_running_loop().create_task(work, context=context)
        self.task.add_done_callback(lambda _: self._sent.put_nowait(None))

    async def _receive(self) -> Message:
        if self._request:
            return self._request.pop()
        await self._is_broken.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message):
        if not self._is_broken.is_set():
            self._sent.put_nowait(message)

    def break_off(self) -> None:
        """End the connection, whichever side does: the other learns it."""
        self._is_broken.set()
        self._sent.put_nowait(None)

    async def next_message(self) -> Message:
        try:
            async with asyncio.timeout(self._timeout):
                message = await self._sent.get()
        except TimeoutError as error:
            raise self._http.ReadTimeout("nothing came in time") from error
        if message is None:
            raise self._http.RemoteProtocolError("the server broke the connection")
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next_message()
            more = message.get("more_body", False)
            yield message["body"]

    async def aclose(self) -> None:
        self.break_off()
