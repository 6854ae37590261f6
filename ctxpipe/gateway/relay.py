"""One request for a message: shaped, sent, recovered once, and its reply back chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial

import httpx2
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from .._text import one_line
from ..messages import Message, texts
from ..session.client import BETA
from ..stages.reports import Compacted
from ..wire.exchange import HttpExchange, ask, log_errors
from ..wire.formats import Format
from ..wire.questions import HttpAnswer, http_model, question_headers
from .guard import Refused
from .record import Leaving, Record, Turn, What, dollars, logger
from .shaping import Shaper
from .upstream import (
    Headers,
    Upstream,
    headers_for_upstream,
    read_whole,
    reply_with,
    target_of,
    until_gone,
)

SWITCH = "x-ctxpipe"
"""With the value "off" a request passes as it came."""
SAVED = "x-ctxpipe-saved"
"""The header that says how many tokens the context has less than the history."""
MAX_SHOWN = 300  # characters of a text on the page


class Relay:
    """A *request* in the format *known* on its way to the upstream, and the reply on its way back.

    Whatever goes wrong with its context, the request is sent as it came, and the reply goes back as
    it comes: an error of ours is a line in the log.
    """

    def __init__(self, known: Format, request: Request, upstream: Upstream, shaper: Shaper) -> None:
        lend = None
        if shaper.summary_model is not None:
            headers = headers_for_upstream(
                request.headers, question_headers(request.headers.items())
            )
            send = partial(_ask_question, upstream, target_of(request), headers)
            lend = partial(http_model, send=send)
        self._exchange = HttpExchange(
            shaper.conversations,
            known,
            shaper.find(request.headers),
            is_dry=shaper.is_dry,
            lend=lend,
        )
        self._request = request
        self._upstream = upstream
        self._shaper = shaper
        self._opened = AsyncExitStack()
        self._started = time.monotonic()

    async def answer(self, record: Record, *, is_off: bool, show_texts: bool) -> Response:
        """The reply, whose turn *record* counts once it is over. Raises Refused."""
        exchange, headers = self._exchange, self._request.headers
        exchange.raw = await read_whole(self._request)
        if is_off or headers.get(SWITCH) == "off":
            exchange.reason = "switched off"
        else:
            encoding = ", ".join(headers.getlist("content-encoding"))
            await exchange.begin_bytes(exchange.raw, headers.get(BETA, ""), encoding)
        if exchange.is_too_deep:
            raise Refused(400, exchange.reason)
        async with self._opened:
            asking = partial(ask, exchange, self._send)
            response, chunks = await until_gone(self._request, asking)
            self._shaper.learn_window(exchange, headers)
            saved: dict[str, str] = {}
            if exchange.is_shaped:
                saved[SAVED] = str(exchange.dialog.saved)
            turn = self._turn(response.status_code, show_texts=show_texts)
            chunks = self._count(self._opened.pop_all(), chunks, turn, record)
        reply = reply_with(response, chunks, saved)
        reply.background = BackgroundTask(self._add_kinds, turn)  # nobody waits for it
        return reply

    async def _send(self) -> httpx2.Response:
        exchange, request = self._exchange, self._request
        headers = exchange.headers(request.headers.items())
        response = await self._upstream.ask(request, exchange.content(), headers)
        self._opened.push_async_callback(response.aclose)
        return response

    async def _count(
        self, opened: AsyncExitStack, chunks: AsyncIterator[bytes], turn: Turn, record: Record
    ) -> AsyncIterator[bytes]:
        """The *chunks* of the reply; when it is over, *record* counts its *turn*."""
        async with opened:
            try:
                async for chunk in chunks:
                    yield chunk
            finally:
                turn.seconds = time.monotonic() - self._started
                if self._exchange.is_shaped:
                    turn.dollars = self._dollars(turn.model)
                    self._exchange.session.stop_lending(self._exchange.agent_model)
                record.add(turn)
                logger.info("%s", turn)

    def _dollars(self, model: str) -> float | None:
        """What the reply has cost, and the summaries before it; None where that is not known."""
        details = [report.detail for report in self._exchange.result.reports]
        total = dollars(model, self._exchange.usage)
        for detail in details:
            if isinstance(detail, Compacted) and detail.model:
                if total is None or detail.dollars is None:
                    return None
                total += detail.dollars
        return total

    async def _add_kinds(self, turn: Turn) -> None:
        """Add to *turn* what the tokens that were sent are spent on, as far as that can be told."""
        if self._exchange.is_shaped:
            with log_errors("what a context is spent on could not be told"):
                turn.kinds = await self._shaper.kinds(self._exchange)

    def _turn(self, status: int, *, show_texts: bool) -> Turn:
        """What is to be told of the exchange, as far as it is known when the reply begins."""
        exchange, owner = self._exchange, self._shaper.owner
        if not exchange.is_shaped:
            return Turn("", "", "not shaped", reason=exchange.reason, status=status, owner=owner)
        what: What = "unchanged"
        if exchange.is_recovered:
            what = "recovered"
        elif exchange.is_rewritten:
            what = "shaped"
        result = exchange.result
        left = [
            Leaving(report.stage, report.tokens_saved, str(report.detail or ""))
            for report in result.reports
            if report.tokens_saved
        ]
        return Turn(
            exchange.session.session_id,
            exchange.model or "",
            what,
            sent=result.tokens_after,
            whole=result.tokens_after + exchange.dialog.saved,
            left=left,
            status=status,
            text=_last_words(exchange.session.known) if show_texts else "",
            owner=owner,
        )


async def _ask_question(
    upstream: Upstream,
    target: str,
    headers: Headers,
    known: Format,
    model: str | None,
    content: bytes,
) -> HttpAnswer:
    """Ask where a request with this *target* and these *headers* goes for a summary."""
    response = await upstream.send("POST", known.question_target(target, model), content, headers)
    try:
        return HttpAnswer(response.status_code, response.headers, await response.aread())
    finally:
        await response.aclose()


def _last_words(messages: Sequence[Message]) -> str:
    """The beginning of what the user has said last in *messages*, in one line."""
    for message in reversed(messages):
        said = texts(message) if message["role"] == "user" else ()
        found = next(filter(str.strip, said), "")
        if found:
            return one_line(found, MAX_SHOWN)
    return ""
