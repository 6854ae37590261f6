"""Forwarding of one request for a message: shape and send it, and stream the reply back.

After a refusal because of its length, a shorter request is sent once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial

import httpx2
from anyio import CancelScope
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from .._text import one_line
from ..messages import Message, texts
from ..session.client import BETA
from ..stages.reports import Compacted
from ..storage.waiting import store_allowance
from ..wire.exchange import HttpExchange, ask, log_errors
from ..wire.formats import Format
from ..wire.questions import HttpAnswer, http_model, question_headers
from .bill import bill_of
from .budget import UNNAMED
from .guard import Refused
from .kinds import UNCOUNTED
from .logs import FIELDS
from .names import session_name
from .record import GatewayRecord, GatewayTurn, StageRemoval, TurnOutcome, logger
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
"""The request header that switches shaping off for one request, with the value "off"."""
SAVED = "x-ctxpipe-saved"
"""The reply header with the number of tokens that shaping saved in this request."""
BUDGET = "x-ctxpipe-budget"
"""The reply header with the dollars that the session had spent before this request."""
MAX_TEXT_CHARS = 300  # on the page


class Relay:
    """Sends one *request* in *wire_format* to the upstream, and its reply back to the client.

    If an error occurs while the request is shaped, it is logged, and the request and the reply pass
    unchanged.
    """

    def __init__(
        self, wire_format: Format, request: Request, upstream: Upstream, shaper: Shaper
    ) -> None:
        make_agent_model = None
        if shaper.summary_model is not None:
            headers = headers_for_upstream(
                request.headers, question_headers(request.headers.items())
            )
            send = partial(_ask_question, upstream, target_of(request), headers)
            make_agent_model = partial(http_model, send=send)
        self._exchange = HttpExchange(
            shaper.conversations,
            wire_format,
            shaper.find(request.headers),
            is_dry=shaper.is_dry,
            breakpoints=shaper.breakpoints,
            make_agent_model=make_agent_model,
        )
        self._request = request
        self._upstream = upstream
        self._shaper = shaper
        self._open_responses = AsyncExitStack()
        self._start_time = time.monotonic()
        self._added_seconds = 0.0
        self._session = ""

    async def answer(self, record: GatewayRecord, *, is_off: bool, show_texts: bool) -> Response:
        """Send the request and return the reply, which adds a turn to *record* when it ends.

        With *is_off* the request is not shaped; *show_texts* stores the user's last text with the
        turn. Raises Refused if the body is too large or nested too deeply, or if the session has
        spent its budget.
        """
        exchange = self._exchange
        headers = self._request.headers
        raw = await read_whole(self._request)
        encoding = ", ".join(headers.getlist("content-encoding"))
        read_time = time.monotonic()
        await exchange.read_bytes(raw, encoding)
        values = {} if exchange.body is None else exchange.body.values
        self._session = session_name(headers, values)
        with store_allowance():  # one for the budget and the turn
            extra_headers = await self._check_budget()
            if is_off or headers.get(SWITCH) == "off":
                exchange.reason = "switched off"
            elif exchange.is_too_deep:
                raise Refused(400, exchange.reason)
            else:
                await exchange.shape_body(headers.get(BETA, ""))
            if not self._session:
                self._session = exchange.session.session_id if exchange.is_shaped else UNNAMED
                extra_headers = await self._check_budget()
        self._added_seconds = time.monotonic() - read_time
        async with self._open_responses:
            send = partial(ask, exchange, self._send)
            response, chunks = await until_gone(self._request, send)
            self._shaper.learn_window(exchange, headers)
            if exchange.is_shaped:
                extra_headers[SAVED] = str(exchange.dialog.saved_tokens)
            turn = self._turn(response.status_code, show_texts=show_texts)
            if exchange.is_shaped:
                with log_errors(UNCOUNTED):
                    turn.kinds = self._shaper.kinds(exchange)
            chunks = self._count(self._open_responses.pop_all(), response, chunks, turn, record)
        reply = reply_with(response, chunks, extra_headers)
        if exchange.is_shaped:
            # After the reply, so that counting delays no client.
            reply.background = BackgroundTask(self._shaper.count_kinds, exchange)
        return reply

    async def _check_budget(self) -> dict[str, str]:
        """Return a reply header with what the session has spent; none without a budget or a name.

        Raises Refused if the session has spent its budget.
        """
        budget = self._shaper.budget
        if budget is None or not self._session:
            return {}
        spent = await budget.check(self._session)
        return {BUDGET: f"spent={spent:.4f}, limit={budget.dollars:g}"}

    async def _send(self) -> httpx2.Response:
        """Send the request upstream as it is now; return the response, whose body is not read yet.

        The response is closed at the end of the relay. Raises httpx2.HTTPError.
        """
        exchange = self._exchange
        headers = exchange.headers(self._request.headers.items())
        response = await self._upstream.ask(self._request, exchange.content(), headers)
        self._open_responses.push_async_callback(response.aclose)
        return response

    async def _count(
        self,
        open_responses: AsyncExitStack,
        response: httpx2.Response,
        chunks: AsyncIterator[bytes],
        turn: GatewayTurn,
        record: GatewayRecord,
    ) -> AsyncIterator[bytes]:
        """Yield the *chunks* of the reply in *response*; complete *turn*, and add it to *record*.

        The turn gets its seconds and its dollars, and is logged, before the client has the whole
        reply: its next request is checked with the sum of its session. That happens also if the
        client leaves.
        """
        missing_bytes = _content_length(response)
        last_chunk = b""
        async with open_responses:
            try:
                async for chunk in chunks:
                    missing_bytes -= len(chunk)
                    if missing_bytes == 0:
                        last_chunk = chunk
                    else:
                        yield chunk
            finally:
                turn.seconds = time.monotonic() - self._start_time
                turn.bill = bill_of(turn.model, self._exchange.usage, self._compactions())
                if self._exchange.is_shaped:
                    self._exchange.session.turns.forget_agent_model(self._exchange.agent_model)
                record.add(turn)
                logger.info("%s", turn, extra={FIELDS: turn.fields()})
                if self._shaper.budget is not None and turn.status < 400:
                    with CancelScope(shield=True):
                        await self._shaper.budget.add(self._session, turn.bill.dollars, turn.model)
            if last_chunk:
                yield last_chunk

    def _compactions(self) -> list[Compacted]:
        """Return the reports of the compactions in this turn."""
        if not self._exchange.is_shaped:
            return []
        details = [report.detail for report in self._exchange.result.reports]
        return [detail for detail in details if isinstance(detail, Compacted)]

    def _turn(self, status: int, *, show_texts: bool) -> GatewayTurn:
        """Return the turn's outcome, tokens, removals and status, when the reply begins.

        Seconds and dollars are not known yet. With *show_texts* it has the beginning of the user's
        last text.
        """
        exchange = self._exchange
        tenant = self._shaper.label
        if not exchange.is_shaped:
            return GatewayTurn(
                "",
                exchange.model_name,
                "not shaped",
                reason=exchange.reason,
                status=status,
                added_seconds=self._added_seconds,
                tenant=tenant,
            )
        outcome: TurnOutcome = "unchanged"
        if exchange.is_recovered:
            outcome = "recovered"
        elif exchange.is_rewritten:
            outcome = "shaped"
        result = exchange.result
        removals = [
            StageRemoval(report.stage, report.tokens_saved, str(report.detail or ""))
            for report in result.reports
            if report.tokens_saved
        ]
        return GatewayTurn(
            exchange.session.session_id,
            exchange.model or "",
            outcome,
            sent_tokens=result.tokens_after,
            history_tokens=result.tokens_after + exchange.dialog.saved_tokens,
            removals=removals,
            compactions=len(self._compactions()),
            status=status,
            added_seconds=self._added_seconds,
            text=_last_words(exchange.session.memory.history) if show_texts else "",
            tenant=tenant,
        )


async def _ask_question(
    upstream: Upstream,
    target: str,
    headers: Headers,
    wire_format: Format,
    model: str | None,
    content: bytes,
) -> HttpAnswer:
    """Request a summary at the upstream of the agent's request, which has this *target*.

    *content* is the body in *wire_format*; with *model* another model than the request's is called.
    """
    question_target = wire_format.question_target(target, model)
    response = await upstream.send("POST", question_target, content, headers)
    try:
        return HttpAnswer(response.status_code, response.headers, await response.aread())
    finally:
        await response.aclose()


def _content_length(response: httpx2.Response) -> int:
    """Return the number of bytes in the body of *response*, -1 if it ends without being counted."""
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() else -1


def _last_words(messages: Sequence[Message]) -> str:
    """Return the beginning of the user's last text in *messages*, in one line."""
    for message in reversed(messages):
        if message["role"] != "user":
            continue
        for text in texts(message):
            if text.strip():
                return one_line(text, MAX_TEXT_CHARS)
    return ""
