"""The gateway as an ASGI application: checks each request and routes it by its path."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Container, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import anyio
import httpx2
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .._text import one_line
from ..errors import SettingsError
from ..session.turns import NO_COMPACT
from ..settings import EXAMPLE_MODEL, excerpt
from ..wire.exchange import log_errors
from ..wire.formats import format_of
from .bill import find_prices
from .budget import PAYMENT_REQUIRED
from .guard import BodyTimeLimit, Guard, Refused, check_size, error_body
from .journals import journal_kind
from .metrics import GatewayMetrics, TenantTotals, as_json, as_text, snapshot
from .page import headers as page_headers
from .page import write_page
from .readiness import Readiness, checks_of
from .record import GatewayRecord, logger
from .relay import Relay
from .settings import ANTHROPIC, GatewaySettings
from .shaping import Shaper
from .tokens import NO_TOKEN, Token, parse_tokens
from .upstream import Upstream, reply_with, until_gone

READING_PATH = "/mcp"
"""Path of the tools that read offloaded texts back (Model Context Protocol)."""
COMPACT = re.compile(r"/ctxpipe/sessions/(.+)/compact")
"""Path that requests a compaction of one conversation at its next turn."""
CLEAN_UP_SECONDS = 3600.0
"""Interval of the clean-ups."""
PROBES = frozenset({"/livez", "/readyz"})
"""Paths that anyone may ask whether the gateway runs, and whether it can do its work."""
PAGES = frozenset({"/", "/healthz", "/metrics", "/metrics.json"})
"""Paths of pages about the gateway; a client sees the numbers of its own tenant only."""
VERSION = "/v1"
"""Version in the paths of Anthropic's API, which some clients expect in the base URL."""
ANTHROPIC_RESOURCES = frozenset({"messages", "models", "files", "complete", "skills"})
"""First path segments after the version; Anthropic's other paths (/api/…) have no version."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
UNAUTHORIZED = 401
REQUEST_TIMEOUT = 408
UPGRADE_REQUIRED = 426


class Gateway:
    """A reverse proxy that shapes requests for model messages. Its ASGI application is `app`.

    Each request is sent to the upstream that the settings name for its path prefix. Requests for a
    new message are shaped first; if shaping fails, they are sent unchanged. The gateway contacts no
    other server, and neither stores nor logs an API key. While *is_off* is True, every request is
    sent unchanged. *has_reader* is True if texts are offloaded to files and the ``mcp`` package is
    installed: then ``/mcp`` serves tools that read those texts.

    Raises SettingsError if a setting is invalid.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings: GatewaySettings = settings
        self._records: defaultdict[str, GatewayRecord] = defaultdict(GatewayRecord)
        self._labels: dict[str, str] = {}
        self.is_off = False
        self._has_refused_websocket = False
        tokens = parse_tokens(settings.tokens)
        self._guard = Guard(tokens)
        self._shapers: dict[str, Shaper] = {}  # by owner, as the records and the readers
        self._readers: dict[str, ASGIApp] = {}
        shaper = self.shaper(next(iter(tokens), NO_TOKEN))  # checks the settings
        self.has_reader: bool = shaper.storage is not None and find_spec("mcp") is not None
        self._upstream = Upstream(settings)
        self._readiness = Readiness(checks_of(self._upstream, shaper))
        self.app: Starlette = Starlette(
            routes=[Route("/{path:path}", self._answer, methods=METHODS)],
            middleware=[Middleware(BodyTimeLimit, seconds=settings.timeout_body)],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._refuse, Exception: _admit},
        )
        self.app.router.redirect_slashes = False

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Prepare the shapers, with prices and tokenizer, before the first request.

        At the end the connections to the upstream and the shapers are closed.
        """
        # Both read files at their first use. Any model with a listed price will do here.
        await to_thread.run_sync(find_prices, EXAMPLE_MODEL)
        for shaper in self._shapers.values():
            await shaper.warm()
        cleaner = asyncio.create_task(self._clean_up())
        try:
            yield
        finally:
            cleaner.cancel()
            await self._upstream.close()
            for shaper in self._shapers.values():
                await shaper.close()

    async def _clean_up(self) -> None:
        """Delete what is too old, of each tenant, now and every CLEAN_UP_SECONDS; never returns.

        An error is logged, and the next round tries again.
        """
        while self.settings.max_days is not None:
            for token in self._guard.tokens or (NO_TOKEN,):
                with log_errors("what is too old could not be deleted"):
                    await self.shaper(token).clean_up()
            await anyio.sleep(CLEAN_UP_SECONDS)

    @property
    def record(self) -> GatewayRecord:
        """The totals of all clients. Lists single turns only if the gateway has no tokens."""
        if not self.settings.tokens:
            return self._records[""]
        return GatewayRecord.of_all(self._records.values())

    def _record_of(self, token: Token) -> GatewayRecord:
        """Return the record of the tenant of *token*."""
        self._labels[token.owner] = token.label
        return self._records[token.owner]

    @property
    def token_count(self) -> int:
        """Number of tokens that are accepted, expired ones included."""
        return len(self._guard.tokens)

    def reload(self, tokens: Sequence[str]) -> None:
        """Accept *tokens* from now on instead of the previous ones, and read the pipeline again.

        Tokens have the form of lines in a token file. Requests that were accepted are completed.
        Conversations that are in memory keep the pipeline with which they began. Any thread may
        call this.

        Raises SettingsError if a token or the pipeline is invalid; then nothing has changed. That
        is also so if *tokens* are missing now, or were missing before: the address depends on them.
        """
        settings = replace(self.settings, tokens=tokens)
        if bool(tokens) != bool(self.settings.tokens):
            raise SettingsError("tokens can be replaced, but not introduced or abolished")
        guard = Guard(parse_tokens(tokens))
        shapers = list(self._shapers.values())
        new_pipelines = [shaper.new_pipelines() for shaper in shapers]
        for shaper, pipelines in zip(shapers, new_pipelines, strict=True):
            shaper.pipelines = pipelines
        self.settings = settings
        self._guard = guard

    def shaper(self, token: Token = NO_TOKEN) -> Shaper:
        """Return the shaper for the tenant of *token*, and create it at the first call."""
        if token.owner not in self._shapers:
            self._shapers[token.owner] = Shaper(self.settings, token)
        return self._shapers[token.owner]

    async def _answer(self, request: Request) -> ASGIApp:
        """Return the response to *request*; no error of the client or the upstream is raised.

        A refusal is counted, logged, and answered with its status. An upstream that does not answer
        is reported with status 502. If the client has left, the response is empty.
        """
        if _asks_for_websocket(request):
            return self._refuse_websocket(request)
        _add_version(request.scope, self.settings.upstreams)
        path = request.scope[
            "path"
        ]  # not `request.url`: it contains the Host header, which the client chooses
        if request.method in {"GET", "HEAD"} and path in PROBES:
            return await self._probe(request, path)
        try:
            return await self._route(request, path)
        except Refused as refusal:
            # The token is set if the guard accepted it; otherwise the refusal has no tenant.
            token = getattr(request.state, "token", NO_TOKEN)
            outcome = "over budget" if refusal.status == PAYMENT_REQUIRED else "refused"
            self._record_of(token).outcomes[outcome] += 1
            _log(request, f"refused, status {refusal.status}: {refusal}")
            return _error(refusal.status, str(refusal), path)
        except ClientDisconnect:
            _log(request, "the client left before the reply")
            return Response()
        except httpx2.HTTPError as error:
            self._record_of(getattr(request.state, "token", NO_TOKEN)).outcomes["failed"] += 1
            logger.warning("the upstream does not answer: %s", type(error).__name__)
            return _error(502, "the upstream does not answer", path)

    def _refuse_websocket(self, request: Request) -> Response:
        """Return status 426: after any other status clients retry for several seconds.

        This is called before the guard, because clients also retry after a refusal by the guard.
        The response reveals nothing about the gateway.
        """
        if not self._has_refused_websocket:
            self._has_refused_websocket = True
            logger.warning(
                "a client asked for a WebSocket, which this gateway does not serve; it was "
                "answered 426, and clients continue by HTTP then (this is logged once)"
            )
        response = _error(
            UPGRADE_REQUIRED, "there are no WebSockets: ask by HTTP", request.scope["path"]
        )
        response.headers["upgrade"] = "HTTP/1.1"  # RFC 9110 requires it in every 426 response
        response.headers["connection"] = "upgrade"
        return response

    async def _refuse(self, request: Request, error: Exception) -> Response:
        """Return an error response if Starlette cannot route the request (method or target)."""
        self._record_of(NO_TOKEN).outcomes["refused"] += 1  # no token has been checked yet
        status = error.status_code if isinstance(error, HTTPException) else 400
        _log(request, f"refused, status {status}")
        return _error(status, "there is nothing to ask in this way", request.scope["path"])

    async def _route(self, request: Request, path: str) -> ASGIApp:
        """Return the response to *request*: a page, the reader, a compaction, or a relayed reply.

        The record of the client's token counts the requests that pass through unshaped. Raises
        Refused if the guard does not accept the request, httpx2.HTTPError if the upstream fails.
        """
        is_page = request.method == "GET" and path in PAGES
        is_reading = path == READING_PATH and self.has_reader
        compact_match = COMPACT.fullmatch(path) if request.method == "POST" else None
        is_internal = bool(is_page or is_reading or compact_match)
        token = self._guard.check(request, is_page=is_page, is_internal=is_internal)
        request.state.token = token
        record = self._record_of(token)  # visible to clients of this tenant only
        if is_page:
            return await self._page(request, path, token)
        if is_reading:
            return await self._reader(request, token)
        if compact_match:
            return self._compact(compact_match[1], self.shaper(token))
        wire_format = format_of(request.method, path, self.settings.observation)
        if wire_format is None:
            record.outcomes["passed"] += 1
            return await self._pass(request)
        relay = Relay(wire_format, request, self._upstream, self.shaper(token))
        return await relay.answer(record, is_off=self.is_off, show_texts=self.settings.show_texts)

    async def _probe(self, request: Request, path: str) -> Response:
        """Return status 200 if the gateway runs, or for ``/readyz`` if each check passes, else 503.

        The query may exclude checks by name. This is called before the guard, because those who
        send probes have no token. The response has the names of the checks and nothing else.
        """
        if path == "/livez":
            return JSONResponse({"status": "ok"})
        excluded_names = request.query_params.getlist("exclude")
        results = await self._readiness.results()
        checks = {name: "ok" if is_passed else "failed" for name, is_passed in results.items()}
        is_ready = all(results[name] for name in results if name not in excluded_names)
        status = "ready" if is_ready else "not ready"
        return JSONResponse({"status": status, "checks": checks}, 200 if is_ready else 503)

    async def _page(self, request: Request, path: str, token: Token) -> Response:
        """Return the response to a request for one of the PAGES, that at *path*.

        Its numbers are those of the tenant of *token*. Pages are written in a thread: thousands of
        turns or samples would block the open streams.
        """
        record = self._record_of(token)
        if path == "/healthz":
            return JSONResponse(self._health(record))
        if path == "/":
            record = replace(record, turns=record.turns.copy())
            page = await to_thread.run_sync(write_page, record)
            return HTMLResponse(page, headers=page_headers())
        metrics = GatewayMetrics(self._totals(token), await self._readiness.results())
        if path == "/metrics.json":
            return JSONResponse(await to_thread.run_sync(as_json, metrics))
        accept = request.headers.get("accept", "")
        content, media_type = await to_thread.run_sync(as_text, metrics, accept)
        return Response(content, headers={"content-type": media_type})

    def _totals(self, token: Token) -> list[TenantTotals]:
        """Return the totals of the tenant of *token*, or of all tenants for an operator's token."""
        owners = list(self._records) if token.is_operator else [token.owner]
        totals = []
        for owner in owners:
            label = self._labels.get(owner, "")
            tenant = TenantTotals(label, snapshot(self._records[owner]))
            shaper = self._shapers.get(owner)
            if shaper is not None:
                count = sum(1 for _ in shaper.conversations)
                tenant = replace(
                    tenant,
                    conversations=count,
                    conversation_bytes=shaper.conversations.bytes,
                )
            totals.append(tenant)
        return totals

    async def _reader(self, request: Request, token: Token) -> ASGIApp:
        """Return the application with the tools that read the texts of the tenant of *token*.

        Raises Refused if the method is not POST, or the body is announced as too large.
        """
        if request.method != "POST":
            raise Refused(405, "the reading tools keep no stream open: ask by POST")
        check_size(int(request.headers.get("content-length", "0")))
        storage = self.shaper(token).storage
        if token.owner not in self._readers:
            # The import takes most of a second, so it waits until a client uses these tools.
            adapter = await to_thread.run_sync(import_module, "ctxpipe.adapters.mcp")
            self._readers[token.owner] = adapter.offload_app(storage)
        return self._readers[token.owner]

    def _compact(self, name: str, shaper: Shaper) -> Response:
        """Request a compaction at the next turn of each conversation that is called *name*.

        Raises Refused if there is no such conversation, or if it cannot be compacted.
        """
        if shaper.is_dry or self.is_off:
            raise Refused(400, "nothing is compacted while every request is sent unchanged")
        sessions = [
            dialog.session
            for dialog in shaper.conversations
            if name in {dialog.name, dialog.session.session_id}
        ]
        if not sessions:
            raise Refused(
                404, f"no session {excerpt(name)} has asked since the gateway was started"
            )
        if not sessions[0].turns.can_compact:
            raise Refused(400, NO_COMPACT)
        for session in sessions:
            session.turns.compact_next()
        return JSONResponse({"compact": [session.session_id for session in sessions]}, 202)

    def _health(self, record: GatewayRecord) -> dict[str, object]:
        """Return the JSON object of ``/healthz``: status, number of turns, and shared processes."""
        sharing = "one: give --journal, and several on one port share their sessions"
        if self.settings.journal is not None:
            kind = journal_kind(self.settings.journal)
            sharing = f"one of any number on this port: their sessions are in {kind}"
        return {
            "status": "off" if self.is_off else "ok",
            "turns": record.number,
            "not_shaped": record.outcomes["not shaped"],
            "processes": sharing,
        }

    async def _pass(self, request: Request) -> Response:
        """Send a request that is not for a new message, and stream it byte for byte."""
        is_read = anyio.Event()

        async def body() -> AsyncIterator[bytes]:
            """Yield the body of the client's request, and report when it was read."""
            async for chunk in request.stream():
                yield chunk
            is_read.set()

        has_body = not {"content-length", "transfer-encoding"}.isdisjoint(request.headers)
        if not has_body:
            is_read.set()
        ask = partial(self._upstream.ask, request, body() if has_body else None)
        response = await until_gone(request, ask, is_read)
        _log(request, f"passed, status {response.status_code}")
        return reply_with(response, response.aiter_raw())


def _asks_for_websocket(request: Request) -> bool:
    """Return True if *request* is a WebSocket handshake. Other upgrades (h2c) may be ignored."""
    if request.method != "GET":  # the only method that RFC 6455 allows
        return False
    for value in request.headers.getlist("upgrade"):
        protocols = [protocol.strip().lower() for protocol in value.split(",")]
        if any(protocol.partition("/")[0] == "websocket" for protocol in protocols):
            return True
    return False


async def _admit(request: Request, error: Exception) -> Response:
    """Return status 500 for an unexpected error in the gateway itself; the server logs it."""
    return _error(500, f"an error of its own: {type(error).__name__}", request.scope["path"])


def _log(request: Request, text: str) -> None:
    """Log method and path of *request* and *text*, at the level INFO."""
    # The raw path, which has no line breaks, without the query: that may contain a key.
    path = request.scope["raw_path"].decode("latin-1")
    logger.info("%s %s: %s", request.method, one_line(path), text)


def _error(status: int, text: str, path: str) -> Response:
    """Return the error response with *status* and *text*, in the form of the API at *path*."""
    headers: dict[str, str] = {}
    if status == UNAUTHORIZED:
        headers["www-authenticate"] = "Basic"
    if status == REQUEST_TIMEOUT:
        headers["connection"] = "close"  # the rest of the body may still come
    return JSONResponse(error_body(status, text, path), status, headers)


def _add_version(scope: MutableMapping[str, Any], prefixes: Container[str]) -> None:
    """Rewrite ``/anthropic/messages`` in the ASGI *scope* to ``/anthropic/v1/messages``.

    Anthropic's own SDK expects a base URL without the version, the AI SDK one with it, and both
    read it from ANTHROPIC_BASE_URL. Therefore both paths mean the same below the prefix of
    Anthropic's API, if it is one of *prefixes*.
    """
    if ANTHROPIC not in prefixes:
        return
    raw: bytes = scope["raw_path"]
    prefix = f"{ANTHROPIC}/".encode()
    if not raw.startswith(prefix):
        return
    resource = raw[len(prefix) :].partition(b"/")[0]
    if resource.decode("latin-1") in ANTHROPIC_RESOURCES:
        version = VERSION.encode()
        scope["raw_path"] = ANTHROPIC.encode() + version + raw[len(ANTHROPIC) :]
        scope["path"] = ANTHROPIC + VERSION + scope["path"][len(ANTHROPIC) :]
