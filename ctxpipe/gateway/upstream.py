"""Transport of requests to the upstream and of its replies to the client.

Headers that apply to one connection only ("hop-by-hop", RFC 9110) are removed in both directions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from io import BytesIO
from typing import TypeAlias, TypeVar

import httpx2
from anyio import CancelScope, Event
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import SettingsError
from .guard import Refused, check_size
from .record import logger
from .settings import GatewaySettings

T = TypeVar("T")

Headers: TypeAlias = list[tuple[str, str]]

CONNECT_SECONDS = 10.0
# Attempts after the first one to connect to an upstream. On a busy machine CONNECT_SECONDS may be
# over although the upstream has accepted the connection. Nothing was sent by then, so another
# attempt is safe. The HTTP library has no such option for a proxy.
CONNECT_RETRIES = 1
ANSWER_SECONDS = 600.0
# Less than the shortest common limit of servers: vLLM, LiteLLM and others with uvicorn close a
# connection that was idle for 5 seconds, and a request that is just being sent on it would be lost.
IDLE_SECONDS = 2.0
OWN = "x-ctxpipe"
"""Prefix of the headers for the gateway itself, which are not sent to the upstream."""

_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    }
)
_NOT_SENT = frozenset({"host", "content-length", "expect"})
# The HTTP library adds these headers if the client did not send them.
_LIBRARY_HEADERS = ("accept", "accept-encoding", "user-agent", "connection")


class Upstream:
    """An HTTP client that sends requests to the upstreams of *settings* only.

    It follows no redirects, uses no proxy from the environment, and stores no cookies. Raises
    SettingsError if the certificates in *settings* cannot be read.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        # At a lower level httpx2 logs every URL, and in some APIs the URL contains a key.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._upstreams = {prefix.rstrip("/"): url for prefix, url in settings.upstreams.items()}
        certificates = read_certificates(settings)
        proxy: httpx2.Proxy | None = None
        if settings.proxy is not None:
            is_tls = settings.proxy.startswith("https:")
            proxy = httpx2.Proxy(settings.proxy, ssl_context=certificates if is_tls else None)
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=100,
                    keepalive_expiry=IDLE_SECONDS,
                ),
                verify=certificates,
                proxy=proxy,
                retries=CONNECT_RETRIES,
            ),
            timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
            # No cookies: the next request may come from another client.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )

    async def close(self) -> None:
        """Close all connections to the upstreams."""
        await self._client.aclose()

    async def reach(self) -> None:
        """Ask each upstream for nothing; any answer will do. Raises httpx2.HTTPError."""
        for url in self._upstreams.values():
            response = await self._client.head(url)
            await response.aclose()

    async def ask(
        self,
        request: Request,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Headers | None = None,
    ) -> httpx2.Response:
        """Send *request* with this *content*, and return the response when its head has arrived.

        *headers* replace those of the request. Raises Refused as `send` does.
        """
        if headers is None:
            headers = list(request.headers.items())
        upstream_headers = headers_for_upstream(request.headers, headers)
        length = request.headers.get("content-length")
        if length is not None and isinstance(content, AsyncIterator):
            # Without the length the HTTP library would send the body with chunked encoding.
            upstream_headers.append(("content-length", length))
        return await self.send(request.method, target_of(request), content, upstream_headers)

    async def send(
        self,
        method: str,
        target: str,
        content: bytes | AsyncIterator[bytes] | None,
        headers: Headers,
    ) -> httpx2.Response:
        """Send a request with exactly these *headers*; return the response when its head arrived.

        *target* is the path with the query. Raises Refused if the path has no upstream, or cannot
        be part of a URL.
        """
        # As bytes, because a header may contain any byte.
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        url = self._url(target)
        try:
            request = self._client.build_request(method, url, headers=raw, content=content)
        except httpx2.InvalidURL as error:
            raise Refused(400, "the target cannot be sent on") from error
        header_names = {name.lower() for name, _ in headers}
        for name in _LIBRARY_HEADERS:
            if name not in header_names:
                request.headers.pop(name, None)
        return await self._client.send(request, stream=True)

    def _url(self, target: str) -> str:
        """Return the URL for *target* (path and query) at the upstream with the longest prefix.

        Raises Refused if no upstream has a prefix of *target*.
        """
        for prefix in sorted(self._upstreams, key=len, reverse=True):
            if target.startswith(f"{prefix}/"):
                return self._upstreams[prefix].rstrip("/") + target[len(prefix) :]
        path = target.partition("?")[0]
        raise Refused(404, f"no upstream is named for {path[:80]}")


def read_certificates(settings: GatewaySettings) -> ssl.SSLContext:
    """Return the certificates of authorities that an upstream or the proxy may have.

    These are the usual ones and those that *settings* names. Raises SettingsError if they cannot be
    read.
    """
    certificates = httpx2.create_ssl_context(trust_env=False)
    locations: list[tuple[str | None, str | None]] = []  # files and folders
    if settings.ca_file is not None:
        locations.append((str(settings.ca_file), None))
    if settings.environment_certificates:
        file = os.environ.get("SSL_CERT_FILE")
        folder = os.environ.get("SSL_CERT_DIR")
        if not file and not folder:
            raise SettingsError(
                "neither SSL_CERT_FILE nor SSL_CERT_DIR is set, which --environment-certificates "
                "reads"
            )
        locations.append((file or None, folder or None))
    for file, folder in locations:
        try:
            certificates.load_verify_locations(file, folder)
        except OSError as error:  # an ssl.SSLError is one
            raise SettingsError(
                f"the certificates in {file or folder} cannot be read: {error.strerror or error}; "
                "give a file in PEM format"
            ) from error
    return certificates


def headers_for_upstream(
    client_headers: Mapping[str, str], headers: Iterable[tuple[str, str]]
) -> Headers:
    """Return the *headers* that are sent to the upstream.

    The client's own headers name further ones that apply to one connection only.
    """
    excluded_names = _hop_by_hop(client_headers) | _NOT_SENT
    upstream_headers: Headers = []
    for name, value in headers:
        if name.lower() not in excluded_names and not name.lower().startswith(OWN):
            upstream_headers.append((name, value))
    return upstream_headers


def target_of(request: Request) -> str:
    """Return the path and the query of *request*, exactly as the client sent them."""
    path: str = request.scope["raw_path"].decode("ascii")
    query: str = request.scope["query_string"].decode("ascii")
    return f"{path}?{query}" if query else path


async def read_whole(request: Request) -> bytes:
    """Return the body of *request*. Raises Refused if it has more than MAX_BODY bytes."""
    check_size(int(request.headers.get("content-length", "0")))
    body = BytesIO()  # its getvalue() makes no copy
    async for chunk in request.stream():
        body.write(chunk)
        check_size(body.tell())
    return body.getvalue()


async def until_gone(
    request: Request, work: Callable[[], Awaitable[T]], is_read: Event | None = None
) -> T:
    """Return the result of *work*, and cancel it if the client disconnects before it ends.

    *is_read* is set when the body of *request* has been read; with None it has been read already.
    Raises ClientDisconnect if the client disconnects.
    """

    async def watch() -> None:
        """Cancel the block when the client disconnects.

        If *is_read* is given, watching begins after the body of the request was read.
        """
        if is_read is not None:
            await is_read.wait()
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the empty message at the end of a request without a body
        scope.cancel()

    # Not a task group, which would wrap the exceptions of *work* in a group.
    with CancelScope() as scope:
        watcher = asyncio.create_task(watch())
        try:
            return await work()
        finally:
            watcher.cancel()
    raise ClientDisconnect


def _hop_by_hop(headers: Mapping[str, str]) -> frozenset[str]:
    """Return the names of headers that apply to one connection only."""
    connection_options = headers.get("connection", "").split(",")
    return _HOP_BY_HOP | {name.strip().lower() for name in connection_options}


class _Reply(StreamingResponse):
    """A streamed reply. If the upstream breaks off, the server closes the client's connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply to the client; log a warning if the upstream breaks off."""
        try:
            await super().__call__(scope, receive, send)
        except httpx2.HTTPError as error:
            logger.warning("the upstream's reply breaks off: %s", type(error).__name__)


def reply_with(
    response: httpx2.Response,
    chunks: AsyncIterator[bytes],
    extra_headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the reply to the client: status and headers of *response*, and *chunks* as its body.

    Headers that concern only the connection to the upstream are left out; *extra_headers* are
    added.
    """
    reply = _Reply(chunks, response.status_code)
    excluded_names = _hop_by_hop(response.headers)
    reply_headers: list[tuple[bytes, bytes]] = []
    for name, value in response.headers.raw:
        if name.decode("latin-1").lower() not in excluded_names:
            reply_headers.append((name.lower(), value))
    for extra_name, extra_value in (extra_headers or {}).items():
        reply_headers.append((extra_name.encode(), extra_value.encode()))
    reply.raw_headers = reply_headers
    return reply
