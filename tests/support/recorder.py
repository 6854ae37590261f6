"""Keeps the requests that a client sends, as it sends them: headers, and the decoded body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ctxpipe.gateway.serving import Serving
from ctxpipe.gateway.settings import GatewaySettings
from ctxpipe.wire.encodings import decode


@dataclass(frozen=True)
class Sent:
    """Request that was sent: *body* is its decoded JSON, None if it has none."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: Any


@dataclass
class Recorder:
    """A gateway before an API, in whose way the requests of a client are kept."""

    requests: list[Sent] = field(default_factory=list)

    @asynccontextmanager
    async def before(self, api_url: str, root: Path) -> AsyncIterator[str]:
        """The URL at which a client is recorded whose requests go to *api_url*.

        A gateway sends them on, so that what the API cannot read, compressed bodies and handshakes
        of WebSockets, is answered as users of a gateway have it.
        """
        serving = await asyncio.to_thread(Serving, GatewaySettings({"": api_url}, root))
        serving.gateway.app.add_middleware(_Keeping, recorder=self)
        running = asyncio.create_task(serving.run())
        while not serving.is_running and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            yield serving.url
        finally:
            serving.stop()
            await running


class _Keeping:
    """ASGI middleware that hands each request to *recorder* once its body has come."""

    def __init__(self, app: ASGIApp, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        chunks: list[bytes] = []

        async def keep() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                chunks.append(message.get("body", b""))
            return message

        try:
            await self._app(scope, keep, send)
        finally:
            body = _json(b"".join(chunks), dict(headers).get("content-encoding", ""))
            self._recorder.requests.append(Sent(scope["method"], target, headers, body))


def _json(raw: bytes, encoding: str) -> Any:
    try:
        return json.loads(decode(raw, encoding))
    except ValueError:
        return None
