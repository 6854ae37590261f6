"""Shape one request of a conversation, and read the usage in its reply.

An exchange does no I/O. It takes the items or the bytes of a request and returns those to send
instead; it awaits the session only. The caller sends the request and passes the response on.

If an internal error occurs, it is logged, and the request is sent unchanged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from json import JSONDecodeError
from typing import Any, NamedTuple, TypeAlias, cast

from .._logs import logger
from .._threads.threads import in_thread
from .._values import JsonDict, JsonObject
from ..errors import SettingsError, safe_text
from ..messages import Message, as_blocks, field, kind, pending_calls
from ..pipeline import ContextPipeline
from ..placeholders.names import UNNAMED, content_hash
from ..providers.refusals import MAX_TEXT, REFUSING, Refusal, read_refusal
from ..session.breakpoints import MARKS
from ..session.client import BETA
from ..session.conversation import Conversation
from ..session.gate import is_asked_by_a_stage
from ..session.session import conversation_of, new_conversation
from ..session.sessions import PIPELINE
from ..session.settings import SessionSettings
from ..settings import FUNCTION, SESSION_ID, TEXT, excerpt
from ..stages.reports import Result
from ..storage import JournalStorage
from ..storage.protocol import JOURNAL_STORAGE
from ..summarizers import AgentModel
from ..tokens import Budget
from ..tokens.billed import has_usage
from ..turn.state import Request
from .body import Body, TooDeep, continue_body, longest_overlap, read_body
from .body_index import nearest
from .breakpoints import marking_rules, place_breakpoints
from .codec import Codec, Item, ItemReader, MessagesCodec
from .conversations import (
    Beginning,
    Conversations,
    Dialog,
    OpenSession,
    SessionName,
    conversation_name,
    texts_at,
)
from .encodings import content_encodings, decode
from .formats import MESSAGES, Format
from .translation import Units, is_unchanged
from .values import text_block

UNSHAPED = "the context could not be shaped; the original request is sent"
NOT_SHORTENED = "the context could not be shortened; the provider's answer is passed on"
USAGE_UNREAD = "the usage of a reply could not be read; the reply is passed on"
OPEN_CALLS = "a request ends with calls that have no result; it is sent unchanged"
COMPACTED_BY_PROVIDER = "it asks the provider for a compaction"
NOT_SHAPEABLE = "a request of this kind is not shaped"
"""Reason of a request that is sent unchanged without an error."""

NO_ARGUMENTS: JsonObject = {"request": {}}
MAX_PARSED_BYTES = 200_000
"""Maximum number of new bytes of a body that are parsed on the event loop; more in a thread."""
MAX_COMPARED_BYTES = 4_000_000
"""Maximum size of a body that is compared with others on the event loop; larger in a thread."""
MAX_HELD_BYTES = 1 << 20
"""Maximum number of bytes at the beginning of a stream that are held back from the client."""
STREAM = "text/event-stream"
ANY_EVENT = (b'"type"',)
_BEGINNING = frozenset({"response.created", "response.in_progress", "response.queued"})
_REFUSED = frozenset({"error", "response.failed"})


class SessionSource(NamedTuple):
    """The *name* of a request's conversation, and the function that opens its session.

    *max_head_chars* limits the unknown items at the beginning of the request that are never shaped.
    """

    name: str
    open_session: OpenSession
    max_head_chars: int


FindConversation: TypeAlias = "Callable[[JsonObject], SessionSource]"
"""Function from the values of a request to the source of its session."""


def max_head_chars(budget: Budget) -> int:
    """Return the maximum size, in characters, of the unknown items in front of every context.

    It is half of the target of *budget*, at four characters a token, the density of tool
    definitions. The densest JSON has two characters a token: then it is the whole target, which
    still fits the window.
    """
    return 2 * budget.target


class Adapter:
    """The settings and the conversations of one adapter.

    *session_id* is the conversation's name, a function that finds the name in a request, or None:
    then the name is looked up where the framework stores it, in a request's values at the paths
    *names*. *journal* stores the sessions. *cache_breakpoints* is the setting of `HttpExchange`,
    *observation* that of `format_of`. *summary_model* names the model that writes summaries; None
    selects the agent's own model.

    Raises SettingsError if a setting is invalid.
    """

    def __init__(
        self,
        pipeline: ContextPipeline,
        session_id: SessionName | None = None,
        journal: JournalStorage | None = None,
        names: Iterable[str] = (),
        cache_breakpoints: int | None = None,
        observation: str = "",
        summary_model: str | None = None,
    ) -> None:
        PIPELINE.check("pipeline", pipeline)
        is_name = SESSION_ID.accepts(session_id) or FUNCTION.accepts(session_id)
        if session_id is not None and not is_name:
            raise SettingsError(
                f"session_id is {excerpt(session_id)};"
                " give a name, a function that finds it in a request, or None"
            )
        JOURNAL_STORAGE.optional.check("journal", journal)
        MARKS.optional.check("cache_breakpoints", cache_breakpoints)
        TEXT.check("observation", observation)
        TEXT.optional.check("summary_model", summary_model)
        self.summary_model = summary_model
        self.breakpoints = cache_breakpoints
        self.observation = observation
        self._pipeline = pipeline
        self._session_id = session_id
        self._journal = journal
        self._session_settings = SessionSettings(journal=journal)
        self._names = names
        self.conversations: Conversations = Conversations(max_sessions=pipeline.max_sessions)

    async def begin(
        self,
        codec: ItemReader,
        items: Sequence[Item],
        arguments: JsonObject = NO_ARGUMENTS,
        *,
        request: Any = None,
        names: Iterable[object] = (),
        agent_model: AgentModel | None = None,
        state_id: str = "",
    ) -> Exchange | None:
        """Shape *items* in the form of *codec*; return None if they must be sent unchanged.

        *arguments* are those of `Session.run`. *request* is the argument of a function that finds
        the conversation's name; *names* are further values in which the framework may store that
        name. A summarizer without a model of its own uses *agent_model*. *state_id* is the argument
        of `Exchange.shape`.
        """
        exchange = Exchange(self.conversations, self.breakpoints)
        with log_errors(UNSHAPED):
            source = self.find(request, names)
            await exchange.shape(
                source, codec, items, arguments, state_id=state_id, agent_model=agent_model
            )
        return exchange if exchange.is_shaped else None

    def find(self, request: Any, names: Iterable[object] = ()) -> SessionSource:
        """Find the conversation of *request*. *names* are further values that may be its name."""
        candidates = [*names, *texts_at(request, *self._names)]
        name = conversation_name(self._session_id, request, candidates)
        open_session = partial(self._open_session, name)
        return SessionSource(name, open_session, max_head_chars(self._pipeline.budget))

    def _open_session(self, name: str, session_id: str, *, is_id_used: bool) -> Conversation:
        """Return the conversation with *session_id*.

        It is registered in the pipeline if its id is the plain name *name* and *is_id_used* is
        False. Otherwise it is a new one that only this adapter has.
        """
        # The session with the name itself is registered in the pipeline, where others can find it.
        if session_id == name and not is_id_used:
            return conversation_of(self._pipeline.session(session_id, journal=self._journal))
        return new_conversation(self._pipeline, session_id, self._session_settings)


class Exchange:
    """A request of a conversation. Once it *is_shaped*, *items* replace the *original_items*.

    *result* is the result of the session of *dialog*, which was run for *request*. *reason* says
    why a request is sent unchanged. *is_stored_by_provider* is True if the request continues a
    conversation that the provider stores, so that it does not contain the whole history.
    """

    dialog: Dialog
    result: Result
    items: Sequence[Item]
    original_items: Sequence[Item]
    request: Request
    _codec: ItemReader

    def __init__(self, conversations: Conversations, breakpoints: int | None = None) -> None:
        self._conversations = conversations
        self._breakpoints = breakpoints
        self.is_shaped: bool = False
        self.is_stored_by_provider: bool = False
        self.reason: str = ""

    async def shape(
        self,
        source: SessionSource,
        codec: ItemReader,
        items: Sequence[Item],
        arguments: JsonObject,
        body: Body | None = None,
        *,
        state_id: str = "",
        agent_model: AgentModel | None = None,
    ) -> None:
        """Shape *items*, a request of the conversation that *source* describes.

        The result is in `items`, and `is_shaped` becomes True. *codec* reads the items. *arguments*
        are those of `Session.run`, without the history. *body* is the body with the items, None if
        they were passed as objects. *agent_model* is the model that may write summaries.

        Nothing is shaped while a stage requests a summary, if there are no items or no message of
        the user among them, if they ask the provider for a compaction, and if they end with calls
        that have no result yet. Items that continue the state *state_id*, which the provider
        stores, are shaped on their own.

        Raises every error of a session.
        """
        if is_asked_by_a_stage() or not items:
            return
        self.reason = NOT_SHAPEABLE
        if isinstance(codec, Codec):
            if not codec.is_shapeable(items):
                self.reason = COMPACTED_BY_PROVIDER
                return
            codec = self._conversations.bind(codec, source.max_head_chars)
        self._codec = codec
        self.is_stored_by_provider = bool(state_id)
        dialog: Dialog | None
        calls: list[Item] = []
        if state_id:
            dialog, calls = self._continue_state(source, cast("Codec", codec), items, state_id)
        else:
            dialog = await self._conversations.find(
                source.name, codec, items, source.open_session, body
            )
        if dialog is None:
            return
        self.dialog = dialog
        self.original_items = items
        async with dialog.lock:  # a translation remembers one turn
            units = dialog.translation.read([*calls, *items])
            if pending_calls(units.messages):
                self.reason = OPEN_CALLS
                self._conversations.warn_once(OPEN_CALLS)
                return
            self.request = Request(
                _join(arguments.get("system"), units.system),
                arguments.get("tools"),
                arguments.get("request") or {},
                agent_model=agent_model,
            )
            history = units.messages[: _start_of_prefill(units, codec)]
            self.prefill: list[Message] = units.messages[len(history) :]
            result = await dialog.session.turns.run(history, self.request)
            self.result = self._with_prefill(result)
            new_items = dialog.translation.items(units, self.result.messages)
            first = len(calls)
            self.items = items
            if is_unchanged(new_items[:first], calls):
                self.items = self._mark(new_items[first:])
        self.reason = ""
        self.is_shaped = True
        dialog.saved_tokens += self.result.tokens_saved

    def _continue_state(
        self, source: SessionSource, codec: Codec, items: Sequence[Item], state_id: str
    ) -> tuple[Dialog, list[Item]]:
        """Return a conversation for *items*, which continue the provider's state *state_id*.

        Its session is a fork without a journal, opened by *source*. The second value has the calls
        of the results in *items*; the provider stores these calls. *codec* reads the items.
        """
        session_id, calls = self._conversations.recall(state_id, codec, items)
        session_id = session_id or source.name or f"{UNNAMED}-{content_hash(state_id)}"
        # A fork: no journal has the part of the history that the provider stores.
        session = source.open_session(session_id, is_id_used=True).fork()
        self._conversations.share(session, source.name)
        return Dialog(source.name, session, codec, Beginning(b"")), calls

    def _mark(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return *items* with cache breakpoints, if the adapter places them in these items.

        A request for the Messages API gets its breakpoints in `rewrite`.
        """
        if not self._breakpoints or not isinstance(self._codec, Codec):
            return items
        previous = self.dialog.sent_items
        self.dialog.sent_items = items
        rules = marking_rules(self.model)
        marks = self._codec.marks()
        if rules is None or marks is None:
            return items
        return place_breakpoints(items, previous, self._breakpoints, marks, rules)

    def _with_prefill(self, result: Result) -> Result:
        """Return *result* followed by the beginning of an answer that the model is to continue."""
        if not self.prefill:
            return result
        return replace(result, messages=[*result.messages, *self.prefill])

    @property
    def session(self) -> Conversation:
        """Session of the conversation."""
        return self.dialog.session

    @property
    def is_changed(self) -> bool:
        """True if the items to send differ from the original items."""
        return not is_unchanged(self.items, self.original_items)

    @property
    def model(self) -> str | None:
        """Model of the request; None if it names none."""
        model = self.request.options.get("model")
        return model if isinstance(model, str) else None

    async def shorten(self, refusal: Refusal | None) -> bool:
        """Shorten the request after *refusal*; return True if there is a shorter one to send.

        Returns False without a *refusal*, if nothing can be left out, and after an internal error.
        """
        if refusal is None or not self.is_shaped or self.is_stored_by_provider:
            return False
        refused_result = self.result
        with log_errors(NOT_SHORTENED):
            dialog = self.dialog
            async with dialog.lock:
                units = dialog.translation.read(self.original_items)
                history = units.messages[: len(units.messages) - len(self.prefill)]
                shorter = await dialog.session.turns.recover(
                    refusal, history, refused_result, self.request
                )
                if shorter is not None:
                    shorter = self._with_prefill(shorter)
                    self.items = self._mark(dialog.translation.items(units, shorter.messages))
                    self.result = shorter
                    dialog.saved_tokens += shorter.tokens_saved
        return self.result is not refused_result

    def rewrite(self, body: JsonObject, breakpoints: int | None) -> JsonDict:
        """Return *body*, a Messages API request, with the shaped messages and request options.

        *breakpoints* is the setting of `HttpExchange`.
        """
        new_body = {**body, **self.result.request_options.get("extra_body", {})}
        if self.is_changed:
            new_body["messages"] = self.items
        return self.session.usage.mark(self.result, new_body, breakpoints)

    def remember(self, items: object) -> None:
        """Remember *items* of a reply, to recognize them when the client sends them back."""
        if isinstance(items, list | tuple):
            with log_errors(USAGE_UNREAD):
                self._conversations.remember_items(items)

    def calibrate(self, reply: object) -> None:
        """Calibrate token counts by the usage that *reply* reports for the context sent.

        Nothing happens if *reply* is None, has no usage, or includes a history that the provider
        stores. The reply is remembered, so that a later request with it is recognized. Errors are
        logged, not raised.
        """
        if reply is None:
            return
        with log_errors(USAGE_UNREAD):
            self._conversations.remember(reply, self.dialog.codec, self.session.session_id)
            # Not every reply reports usage, or is a message. If the provider stores the history,
            # the usage includes that history.
            if has_usage(reply) and not self.is_stored_by_provider:
                model = None if isinstance(field(reply, "model"), str) else self.model
                self.session.usage.observe(reply, self.result.messages, model=model)


class HttpExchange(Exchange):
    """A request as bytes, in a *format*, and the reply to it, chunk by chunk.

    Call ``await shape_bytes(raw)`` and send `content`; then call `begin_answer` with the head of
    the answer, `feed` with each chunk, and `end`. The function `ask` does all this. While the
    exchange *is_undecided*, the chunks must be held back, because the answer may be a *refusal*;
    `retry` then returns True if a shorter `content` must be sent.

    With *is_dry* the original bytes are sent, and the usage is ignored. *find* finds the request's
    conversation. *make_agent_model* creates the agent's model for summarizers, from the request's
    format and values. *breakpoints* is the maximum number of cache breakpoints to add where they
    save most; with None only those around rewritten messages are added that cost nothing.
    """

    def __init__(
        self,
        conversations: Conversations,
        wire_format: Format,
        find: FindConversation,
        *,
        is_dry: bool = False,
        breakpoints: int | None = None,
        make_agent_model: Callable[[Format, JsonObject], AgentModel] | None = None,
    ) -> None:
        super().__init__(conversations, breakpoints)
        self._make_agent_model = make_agent_model
        self.agent_model: AgentModel | None = None
        self.format = wire_format
        self.is_dry = is_dry
        self._find = find
        self.raw: bytes = b""
        self.body: Body | None = None
        self._decoded = b""
        self._content = b""
        self.usage: dict[str, int] = {}
        self.refusal: Refusal | None = None
        self.is_undecided: bool = False
        self.is_recovered: bool = False
        self.is_too_deep: bool = False  # True if the body nests too deeply to be parsed

    async def read_bytes(self, raw: bytes, encoding: str = "") -> None:
        """Read the request in *raw*, so that its model and its name are known, and shape nothing.

        *encoding* is the value of the header content-encoding. An error is logged.
        """
        self.raw = raw
        try:
            if content_encodings(encoding):
                raw = await in_thread(decode, raw, encoding)
            self._decoded = raw
            self.body = await self._parse(raw)
            self.reason: str = NOT_SHAPEABLE
        except TooDeep as error:
            self.reason = str(error)
            self.is_too_deep = True
        except JSONDecodeError:
            self.reason = "its body is not valid JSON"
        except Exception as error:  # noqa: BLE001  logged; the request is sent unchanged
            self.reason = warn(UNSHAPED, error)

    async def _parse(self, raw: bytes) -> Body | None:
        """Parse the body in *raw*, in a worker thread if much of it is new or it is very large."""
        key = self.format.key
        earlier_bodies = self._conversations.bodies(key)
        if len(raw) > MAX_COMPARED_BYTES:
            return await in_thread(_read_body, raw, key, earlier_bodies)
        overlap = longest_overlap(raw, nearest(earlier_bodies, raw))
        new_bytes = len(raw) if overlap is None else len(raw) - overlap.size
        if new_bytes > MAX_PARSED_BYTES:
            return await in_thread(continue_body, raw, key, overlap)
        return continue_body(raw, key, overlap)

    async def shape_bytes(self, raw: bytes, beta: str = "", encoding: str = "") -> None:
        """Shape the request in *raw*.

        *beta* and *encoding* are the values of the headers anthropic-beta and content-encoding. An
        error is logged, and then `content` returns *raw*.
        """
        await self.read_bytes(raw, encoding)
        await self.shape_body(beta)

    async def shape_body(self, beta: str = "") -> None:
        """Shape the request that `read_bytes` has read; *beta* is that of `shape_bytes`."""
        body = self.body
        if body is None:
            return
        try:
            if not self.format.is_shapeable(body.values, body.items):
                return
            if not {type(item) for item in body.items} <= {dict}:
                return
            arguments = self.format.arguments(body.values)
            if self._make_agent_model is not None:
                self.agent_model = self._make_agent_model(self.format, body.values)
            source = self._find({**body.values, **arguments["request"]})
            if beta:
                arguments["request"]["extra_headers"] = {BETA: beta}
            await self.shape(
                source,
                self.format.codec,
                body.items,
                arguments,
                body,
                state_id=self.format.state_id(body.values),
                agent_model=self.agent_model,
            )
            if self.is_shaped:
                self._write_content(body)
        except Exception as error:  # noqa: BLE001  logged; the request is sent unchanged
            self.reason = warn(UNSHAPED, error)
            self.is_shaped = False

    def _write_content(self, body: Body) -> None:
        """Set the `content` to *body* with the shaped items and the request options."""
        values: JsonObject = {}
        if self.format is MESSAGES:
            before = body.values
            after = self.rewrite({**before, "messages": self.original_items}, self._breakpoints)
            self.items: Sequence[Item] = after.pop("messages")
            values = {name: new for name, new in after.items() if new is not before.get(name)}
        if self.is_changed or values:
            self._content = body.write(self.items, values)

    def content(self) -> bytes:
        """Return the body to send.

        In a dry run, and if the items were not shaped, these are the client's own bytes. Otherwise
        it is the changed body, or the client's body if shaping has changed nothing. In both cases
        an encoded body is sent decoded, so that an upstream receives the same form in each turn.
        """
        if self.is_dry or not self.is_shaped:
            return self.raw
        return self._content or self._decoded

    @property
    def model_name(self) -> str:
        """Model that the body or the path names, "" if neither does; also if nothing is shaped."""
        return self.format.model_in({} if self.body is None else self.body.values) or ""

    @property
    def is_rewritten(self) -> bool:
        """True if the body to send differs from the client's in more than its encoding."""
        return self.is_shaped and not self.is_dry and bool(self._content)

    def headers(self, client_headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers to send with `content`.

        The names in *client_headers* are in lower case.
        """
        # The usage is read from plain text.
        new_headers: dict[str, str] = {"accept-encoding": "identity"}
        if self.is_shaped and not self.is_dry and self.format is MESSAGES:
            new_headers |= self.result.request_options.get("extra_headers", {})
        dropped_names = set(new_headers)
        if self.content() is not self.raw:
            dropped_names.add("content-encoding")
        headers = [(name, value) for name, value in client_headers if name not in dropped_names]
        return [*headers, *new_headers.items()]

    # The reply ------------------------------------------------------------------------------------

    def begin_answer(self, status: int, content_type: str) -> None:
        """Reset what was read, for an answer with this HTTP *status* and *content_type*.

        A refusal is held back until `retry` has decided whether a shorter request is sent.
        """
        is_stream = STREAM in content_type
        is_refusing = status in REFUSING
        may_refuse = is_refusing or (is_stream and self.format.may_refuse_late and status < 400)
        self.is_undecided = self.is_shaped and may_refuse
        self._status = status
        self._size = 0
        self._refusal = b""
        event_marks = ANY_EVENT if self.is_undecided else self.format.read_events
        self._reader = ReplyReader(is_stream=is_stream and not is_refusing, event_marks=event_marks)

    def feed(self, chunk: bytes) -> None:
        """Read usage and items in the next *chunk* of the answer; of a refusal keep the text.

        Nothing is raised for a chunk that cannot be read.
        """
        self._size += len(chunk)
        if self._status in REFUSING:
            self._refusal += chunk[: MAX_TEXT - len(self._refusal)]
            return
        self._read(self._reader.feed(chunk))
        if self.is_undecided and self._size > MAX_HELD_BYTES:
            self._decide()

    def end(self) -> None:
        """Read the rest of the answer, which is complete."""
        if self._status not in REFUSING:
            self._read(self._reader.end())

    def _read(self, events: Iterable[JsonObject]) -> None:
        """Read the reply's *events*: record new items, and the usage.

        Items are remembered even if the request was sent unchanged: the next request may contain
        them. Errors are logged, never raised. The session of a shaped request calibrates its token
        counts by the usage, except in a dry run. The first event that is no beginning decides
        whether the reply is a late refusal.
        """
        with log_errors(USAGE_UNREAD):
            for event in events:
                self.remember(self.format.items_in(event))
                usage = self.format.usage_in(event) or {}
                self.usage |= {name: part for name, part in usage.items() if isinstance(part, int)}
                if not self.is_shaped:
                    continue
                # Immediately, because a client may stop reading after the last event. In a dry run
                # the usage is that of another context.
                if not self.is_dry:
                    self.calibrate(self.format.reply_in(event))
                if self.is_undecided and event.get("type") not in _BEGINNING:
                    if event.get("type") in _REFUSED:
                        self._refusal = json.dumps(event).encode()
                    self._decide()

    def _decide(self) -> None:
        """Stop holding back the answer: it is no refusal."""
        self.is_undecided = False
        self._reader.event_marks = self.format.read_events

    async def retry(self) -> bool:
        """Return True if the held answer is a refusal and there is a shorter `content` to send."""
        self.is_undecided = False
        if self._refusal:
            status = self._status if self._status in REFUSING else None
            self.refusal = refusal_in(status, self._refusal)
        if self.is_dry or self.body is None or not await self.shorten(self.refusal):
            return False
        self._write_content(self.body)
        self.is_recovered = True
        return True


def _read_body(raw: bytes, key: str, earlier_bodies: Sequence[Body]) -> Body | None:
    """Parse *raw*; *earlier_bodies*, in the order of their bytes, may have the same objects."""
    return read_body(raw, key, *nearest(earlier_bodies, raw))


def refusal_in(status: int | None, answer: bytes) -> Refusal | None:
    """Return the refusal of a prompt that is too long in *answer*, None for any other answer."""
    return read_refusal(status, answer[:MAX_TEXT].decode("utf-8", "replace"))


async def ask(
    exchange: HttpExchange, send: Callable[[], Awaitable[Any]]
) -> tuple[Any, AsyncIterator[bytes]]:
    """Send the request of *exchange* with *send*; return the response and its body.

    After a refusal because of the length it is the response to a shorter request. Responses are
    those of httpx or httpx2.
    """
    response, chunks = await _send(exchange, send)
    held_chunks: list[bytes] = []
    while exchange.is_undecided and (chunk := await anext(chunks, None)) is not None:
        held_chunks.append(chunk)
        exchange.feed(chunk)
    if await exchange.retry():
        await response.aclose()
        held_chunks.clear()
        response, chunks = await _send(exchange, send)
    return response, _pass_on(exchange, held_chunks, chunks)


async def _send(
    exchange: HttpExchange, send: Callable[[], Awaitable[Any]]
) -> tuple[Any, AsyncIterator[bytes]]:
    """Send the request with *send*; return the response and an iterator over its body."""
    response = await send()
    exchange.begin_answer(response.status_code, response.headers.get("content-type", ""))
    return response, aiter(response.stream)


async def _pass_on(
    exchange: HttpExchange, held_chunks: Iterable[bytes], rest: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """Yield the *held_chunks* of a reply, then *rest*, which the exchange reads too."""
    for chunk in held_chunks:
        yield chunk
    async for chunk in rest:
        exchange.feed(chunk)
        yield chunk
    exchange.end()


def _start_of_prefill(units: Units, codec: ItemReader) -> int:
    """Return the index of the first assistant message at the end of *units*, or their number.

    The model continues these messages of a request, so they have not been answered and stay
    unchanged. Thinking, calls and blocks of server tools are left to the session, which knows what
    must not be rewritten before them.
    """
    messages = units.messages
    start = len(messages)
    while start and messages[start - 1]["role"] == "assistant":
        is_text = all(kind(block) == "text" for block in as_blocks(messages[start - 1]))
        if isinstance(codec, MessagesCodec) and not is_text:
            break
        start -= 1
    # Without a prompt there is no answer to continue: after a hand-off, the history of another
    # agent can be a single assistant message. The opening message before it then has no items.
    has_prompt = any(unit.items for unit in units.units[:start])
    return start if has_prompt else len(messages)


def _join(system: object, head: list[JsonDict]) -> object:
    """Return the *system* prompt of a request followed by the blocks of its *head*."""
    if not head:
        return system
    if not system:
        return head
    before: Any = [text_block(system)] if isinstance(system, str) else system
    return [*before, *head]


# Failing open -------------------------------------------------------------------------------------


@contextmanager
def log_errors(consequence: str) -> Iterator[None]:
    """Log an internal error, with its *consequence*, instead of raising it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  logged by `warn`
        warn(consequence, error)


def warn(consequence: str, error: Exception) -> str:
    """Log *error* and its *consequence* in one warning; return the error without foreign text."""
    text = safe_text(error)
    logger.warning("%s: %s", consequence, text)
    logger.debug("the error was", exc_info=error)
    return text


MAX_REPLY_BYTES = 32 * 1024 * 1024
"""Maximum size of a reply, or of a line of a stream, that is parsed."""
_DATA = b"data:"


class ReplyReader:
    """Parses the JSON objects in a reply: the data of a stream's events, or a whole reply.

    If a whole reply is a list, its last element is the object. In a stream only events that contain
    one of *event_marks* are parsed.
    """

    def __init__(self, *, is_stream: bool = True, event_marks: Sequence[bytes] = (b"",)) -> None:
        self.event_marks: Sequence[bytes] = event_marks
        self._is_stream = is_stream
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[JsonDict]:
        """Yield the JSON objects of the events that *chunk* completes; none for a whole reply.

        Events without one of the `event_marks` are skipped.
        """
        self._rest += chunk.replace(b"\r", b"\n")  # a line may end with either, or with both
        if len(self._rest) > MAX_REPLY_BYTES + len(chunk):
            self._rest.clear()
        if not self._is_stream:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line.startswith(_DATA) and any(mark in line for mark in self.event_marks):
                yield from _parse(line[len(_DATA) :])

    def end(self) -> Iterator[JsonDict]:
        """Yield the objects that the end of the reply completes."""
        if self._is_stream:
            yield from self.feed(b"\n")
        else:
            yield from _parse(self._rest)


def _parse(text: bytes | bytearray) -> Iterator[JsonDict]:
    """Yield the JSON object in *text*, the last one of a list; nothing if there is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return  # "[DONE]", or no JSON
    if isinstance(data, list) and data:
        data = data[-1]
    if isinstance(data, dict):
        yield data
