"""Requests on to the upstream, and its replies back: what passes, and what is of one hop only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TypeAlias

import httpx2
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from .body import Refused
from .guard import MAX_BODY, too_large

__all__ = ["Headers", "Upstream", "limit", "reply_with"]

Headers: TypeAlias = list[tuple[str, str]]

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 600.0
OWN = "x-ctxpipe"
"""How the headers begin that are for the gateway, and go no further."""

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    }
)
_NOT_SENT = _HOP_BY_HOP | {"host", "content-length", "expect"}
# The HTTP library adds these of its own where the client has sent none.
_ADDED = ("accept", "accept-encoding", "user-agent", "connection")


class Upstream:
    """Sends requests to *upstreams*, the URLs by the beginnings of paths, and nowhere else.

    No redirect is followed, and no proxy of the environment is taken.
    """

    def __init__(self, upstreams: Mapping[str, str]) -> None:
        self._upstreams = {prefix.rstrip("/"): url for prefix, url in upstreams.items()}
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections that are kept open."""
        await self._client.aclose()

    async def ask(
        self,
        request: Request,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Headers | None = None,
    ) -> httpx2.Response:
        """The answer to *request* with this *content*, of which only the head has been read.

        *headers* replace those of the request. Raises Refused for a path that has no upstream.
        """
        connection = request.headers.get("connection", "")
        dropped = _NOT_SENT | {name.strip().lower() for name in connection.split(",")}
        kept: Headers = []
        for name, value in request.headers.items() if headers is None else headers:
            if name.lower() not in dropped and not name.lower().startswith(OWN):
                kept.append((name, value))
        url = self._url(request)
        asked = self._client.build_request(request.method, url, headers=kept, content=content)
        given = {name.lower() for name, _ in kept}
        for name in _ADDED:
            if name not in given:
                asked.headers.pop(name, None)
        return await self._client.send(asked, stream=True)

    def _url(self, request: Request) -> str:
        """The upstream's address, and the path of *request* behind it, as text."""
        target: bytes = request.scope["raw_path"]
        path = target.decode("ascii", "replace").partition("?")[0]
        for prefix in sorted(self._upstreams, key=len, reverse=True):
            if path.startswith(f"{prefix}/"):
                query = f"?{request.url.query}" if request.url.query else ""
                return self._upstreams[prefix].rstrip("/") + path[len(prefix) :] + query
        raise Refused(404, f"no upstream is named for {path[:80]}")


async def limit(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """*chunks*, as long as they are no more than MAX_BODY bytes. Raises Refused."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > MAX_BODY:
            raise too_large()
        yield chunk


def reply_with(
    response: httpx2.Response,
    chunks: AsyncIterator[bytes],
    more: Mapping[str, str] | None = None,
) -> Response:
    """*response* for the client, with these *chunks* as its body and *more* headers."""
    reply = StreamingResponse(chunks, response.status_code)
    kept: list[tuple[bytes, bytes]] = []
    for name, value in response.headers.raw:
        if name.decode("latin-1").lower() not in _HOP_BY_HOP:
            kept.append((name.lower(), value))
    added = [(name.encode(), value.encode()) for name, value in (more or {}).items()]
    reply.raw_headers = [*kept, *added]
    return reply
