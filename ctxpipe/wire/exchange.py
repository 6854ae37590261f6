"""One request of a conversation, whoever sends it: what to send, and what to learn of the reply.

An exchange does no I/O. It is given items, or bytes, and says what to send instead; what it awaits
is the session alone. Who drives it sends, and tells it what came back.

Whatever goes wrong here, the request is sent as it came: an error of ours is a line in the log.
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
from .._threads.threads import in_thread, in_thread_if
from .._values import JsonDict, JsonObject
from ..conversation.conversation import Conversation
from ..conversation.gate import is_asked_by_a_stage
from ..edits.breakpoints import MARKS
from ..errors import SettingsError, safe_text
from ..messages import Message, as_blocks, field, kind, pending_calls
from ..pipeline import ContextPipeline
from ..placeholders.names import UNNAMED, content_hash
from ..providers.refusals import MAX_TEXT, REFUSING, Refusal, read_refusal
from ..session.client import BETA
from ..session.session import conversation_of
from ..session.sessions import PIPELINE
from ..settings import FUNCTION, SESSION_ID, TEXT, excerpt
from ..stages.reports import Result
from ..storage import JournalStorage
from ..storage.protocol import JOURNAL_STORAGE
from ..summarizers import AgentModel
from ..tokens import Budget
from ..tokens.billed import has_usage
from .body import Body, TooDeep, read_body
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
from .translation import is_unchanged
from .values import text_block

UNSHAPED = "the context could not be shaped; the original request is sent"
NOT_SHORTENED = "the context could not be shortened; the provider's answer is passed on"
NOT_LEARNT = "the usage of a reply could not be read; the reply is passed on"
OPEN_CALLS = "a request ends with calls that have no result; it is sent as it came"
COMPACTED_BY_PROVIDER = "it asks the provider for a compaction"
NOT_OURS = "not for us to shape"

NO_ARGUMENTS: JsonObject = {"request": {}}
BULK = 200_000  # bytes of a body that are read in a thread, not on the event loop
MAX_HELD = 1 << 20  # bytes of a stream's beginning that are held back
STREAM = "text/event-stream"
ANY_EVENT = (b'"type"',)
_BEGINNING = frozenset({"response.created", "response.in_progress", "response.queued"})
_REFUSED = frozenset({"error", "response.failed"})


class Found(NamedTuple):
    """Where a request belongs: the *name* of its conversation, and what makes the session of it.

    *max_head_chars* limits the unknown items at the beginning of the request that are never shaped.
    """

    name: str
    open_session: OpenSession
    max_head_chars: int


FindConversation: TypeAlias = "Callable[[JsonObject], Found]"
"""Finds the conversation in the values of a request."""


def max_head_chars(budget: Budget) -> int:
    """Return how many characters of unknown items may stay in front of every context.

    That is half of the target of *budget*, at four characters a token: definitions of tools have as
    many. The densest JSON has two, and is all of the target then, which still fits the window.
    """
    return 2 * budget.target


class Mount:
    """What the requests of one adapter have in common: its settings, and its conversations.

    *session_id* names the conversation, finds its name in a request, or is None: then it is taken
    from where the framework keeps it, for the values of a request at *names*. *journal* is where
    sessions write down what they know. *cache_breakpoints* are those of `HttpExchange`,
    *observation* is that of `format_of`. *summary_model* names the model that is to write
    summaries, for an adapter that lends the agent's own.

    Raises SettingsError for invalid settings.
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
        self._names = names
        self.conversations: Conversations = Conversations(max_sessions=pipeline.max_sessions)

    async def begin(
        self,
        codec: ItemReader,
        items: Sequence[Item],
        arguments: JsonObject = NO_ARGUMENTS,
        *,
        request: Any = None,
        found: Iterable[object] = (),
        agent_model: AgentModel | None = None,
        state_id: str = "",
    ) -> Exchange | None:
        """The exchange of *items* in the form of *codec*; None where they are sent as they came.

        *arguments* are those of `Session.run`. *request* is what a function for the name is given,
        *found* where else the framework keeps that name. *agent_model* is lent to a summarizer
        without a model of its own. *state_id* is that of `Exchange.begin`.
        """
        exchange = Exchange(self.conversations)
        with log_errors(UNSHAPED):
            place = self.find(request, found)
            await exchange.begin(
                place, codec, items, arguments, state_id=state_id, agent_model=agent_model
            )
        return exchange if exchange.is_shaped else None

    def find(self, request: Any, found: Iterable[object] = ()) -> Found:
        """Find the conversation of *request*; *found* is where else its name may be."""
        found = [*found, *texts_at(request, *self._names)]
        name = conversation_name(self._session_id, request, found)
        open_session = partial(self._open_session, name)
        return Found(name, open_session, max_head_chars(self._pipeline.budget))

    def _open_session(self, name: str, session_id: str, is_held: bool) -> Conversation:
        # What bears the name is the pipeline's own session, so that others find it there.
        is_own = session_id == name and not is_held
        make = self._pipeline.session if is_own else self._pipeline.new_session
        return conversation_of(make(session_id, journal=self._journal))


class Exchange:
    """One request. Once it *is_shaped*, *items* are to be sent instead of those that were *given*.

    *result* is that of the session of *dialog*, *arguments* those that it was run with. *reason*
    says why a request is sent as it came; one that *is_held* continues what the provider holds.
    """

    dialog: Dialog
    result: Result
    items: Sequence[Item]
    given: Sequence[Item]
    arguments: JsonDict

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self.is_shaped: bool = False
        self.is_held: bool = False
        self.reason: str = ""

    async def begin(
        self,
        place: Found,
        codec: ItemReader,
        items: Sequence[Item],
        arguments: JsonObject,
        body: Body | None = None,
        *,
        state_id: str = "",
        agent_model: AgentModel | None = None,
    ) -> None:
        """Shape *items*, a request of the conversation at *place*; raises what a session raises.

        They are not shaped while a stage asks for a summary, where the user has said nothing in
        them, where the provider is asked to compact them, and where calls at their end still wait.
        Those that continue what the provider holds as *state_id* are shaped by themselves.
        """
        if is_asked_by_a_stage() or not items:
            return
        name, open_session, most_chars = place
        self.reason = NOT_OURS
        if isinstance(codec, Codec):
            if codec.steps_aside(items):
                self.reason = COMPACTED_BY_PROVIDER
                return
            codec = self._conversations.bind(codec, most_chars)
        self.is_held = bool(state_id)
        if state_id:
            session_id, calls = self._conversations.recall(state_id, cast("Codec", codec), items)
            session_id = session_id or name or f"{UNNAMED}-{content_hash(state_id)}"
            session = open_session(session_id, True).fork()  # no journal has what the provider has
            self._conversations.share(session, name)
            dialog = Dialog(name, session, codec, Beginning(b""))
        else:
            calls = []
            found = await self._conversations.find(name, codec, items, open_session, body)
            if found is None:
                return
            dialog = found
        self.dialog, self.given = dialog, items
        async with dialog.lock:  # a translation remembers one turn
            units = dialog.translation.read([*calls, *items])
            if pending_calls(units.messages):
                self.reason = OPEN_CALLS
                self._conversations.warn_once(OPEN_CALLS)
                return
            self.arguments = {**arguments, "system": _join(arguments.get("system"), units.system)}
            history = units.messages[: _start_of_begun_answer(units.messages, codec)]
            self.begun: list[Message] = units.messages[len(history) :]
            result = await dialog.session.run(history, **self.arguments, agent_model=agent_model)
            self.result = self._with_begun_answer(result)
            sent = dialog.translation.items(units, self.result.messages)
            first = len(calls)
            self.items = sent[first:] if is_unchanged(sent[:first], calls) else items
        self.reason = ""
        self.is_shaped = True
        dialog.saved += self.result.tokens_saved

    def _with_begun_answer(self, result: Result) -> Result:
        """Return *result* with the answer behind it that the request has the model go on with."""
        if not self.begun:
            return result
        return replace(result, messages=[*result.messages, *self.begun])

    @property
    def session(self) -> Conversation:
        """The session of the conversation."""
        return self.dialog.session

    @property
    def is_changed(self) -> bool:
        """Whether other items are sent than those that were given."""
        return not is_unchanged(self.items, self.given)

    @property
    def model(self) -> str | None:
        """The model that is asked."""
        model = self.arguments["request"].get("model")
        return model if isinstance(model, str) else None

    async def refused(self, refusal: Refusal | None) -> bool:
        """Whether there is a shorter request to send after *refusal*.

        There is none when that is None, when nothing can be left out, and after an error of ours.
        """
        if refusal is None or not self.is_shaped or self.is_held:
            return False
        sent = self.result
        with log_errors(NOT_SHORTENED):
            dialog = self.dialog
            async with dialog.lock:
                units = dialog.translation.read(self.given)
                history = units.messages[: len(units.messages) - len(self.begun)]
                shorter = await dialog.session.recover(refusal, history, sent, **self.arguments)
                if shorter is not None:
                    shorter = self._with_begun_answer(shorter)
                    self.items = dialog.translation.items(units, shorter.messages)
                    self.result = shorter
                    dialog.saved += shorter.tokens_saved
        return self.result is not sent

    def rewrite(self, body: JsonObject, breakpoints: int | None) -> JsonDict:
        """A request for a message with what is to be sent instead of that in *body*.

        *breakpoints* are those of `HttpExchange`.
        """
        changed = {**body, **self.result.request_options.get("extra_body", {})}
        if self.is_changed:
            changed["messages"] = self.items
        return self.session.mark(self.result, changed, breakpoints)

    def remember(self, items: object) -> None:
        """Remember *items* of a reply: sent back by the client, they are part of that reply."""
        if isinstance(items, list | tuple):
            with log_errors(NOT_LEARNT):
                self._conversations.remember_items(items)

    def learn(self, reply: object) -> None:
        """Learn what *reply*, or the usage of one, says was billed for what was sent."""
        if reply is None:
            return
        with log_errors(NOT_LEARNT):
            self._conversations.remember(reply, self.dialog.codec, self.session.session_id)
            # Others leave the usage out, or answer with no message at all. What the provider holds
            # is billed with what was sent.
            if has_usage(reply) and not self.is_held:
                model = None if isinstance(field(reply, "model"), str) else self.model
                self.session.observe(reply, self.result.messages, model=model)


class HttpExchange(Exchange):
    """One request in bytes, in a *format*, and the reply to it, chunk by chunk.

    ``await begin_bytes(raw)``, send `content`; call `begin_answer` with the answer's head, `feed`
    with each chunk, and `end`: `ask` does so. While the exchange *is_undecided*, what was fed is to
    be held back: it may be a *refusal*, and `retry` says whether `content` is to be sent again. One
    that *is_dry* sends what came, and learns nothing. *find* says whose the request is. *lend*
    makes the model that is lent to a summarizer, of the request's format and values.
    *breakpoints* is how many cache breakpoints are placed where they pay off; None: those around
    what was rewritten that cost nothing.
    """

    def __init__(
        self,
        conversations: Conversations,
        known: Format,
        find: FindConversation,
        *,
        is_dry: bool = False,
        breakpoints: int | None = None,
        lend: Callable[[Format, JsonObject], AgentModel] | None = None,
    ) -> None:
        super().__init__(conversations)
        self._lend = lend
        self.agent_model: AgentModel | None = None
        self.format = known
        self.is_dry = is_dry
        self._find = find
        self._breakpoints = breakpoints
        self.raw: bytes = b""
        self._decoded = b""
        self._content = b""
        self.usage: dict[str, int] = {}
        self.refusal: Refusal | None = None
        self.is_undecided: bool = False
        self.is_recovered: bool = False
        self.is_too_deep: bool = False  # its body, to be read by anybody

    async def begin_bytes(self, raw: bytes, beta: str = "", encoding: str = "") -> None:
        """Shape the request in *raw*.

        *beta* and *encoding* are the values of its headers anthropic-beta and content-encoding.
        """
        self.raw = raw
        try:
            if content_encodings(encoding):
                raw = await in_thread(decode, raw, encoding)
            self._decoded = raw
            last = self._conversations.bodies()
            body = await in_thread_if(len(raw) > BULK, read_body, raw, self.format.key, *last)
            self.reason: str = NOT_OURS
            if body is None or not self.format.is_shapeable(body.values, body.items):
                return
            if not all(isinstance(item, dict) for item in body.items):
                return
            self.body = body
            arguments = self.format.arguments(body.values)
            if self._lend is not None:
                self.agent_model = self._lend(self.format, body.values)
            place = self._find({**body.values, **arguments["request"]})
            if beta:
                arguments["request"]["extra_headers"] = {BETA: beta}
            await self.begin(
                place,
                self.format.codec,
                body.items,
                arguments,
                body,
                state_id=self.format.state_id(body.values),
                agent_model=self.agent_model,
            )
            if self.is_shaped:
                self._write()
        except TooDeep as error:
            self.reason, self.is_too_deep = str(error), True
        except JSONDecodeError:
            self.reason = "its body is not valid JSON"
        except Exception as error:  # noqa: BLE001  it is logged, and the request is sent as it came
            self.reason = warn(UNSHAPED, error)
            self.is_shaped = False

    def _write(self) -> None:
        """Write the `content`."""
        values: JsonObject = {}
        if self.format is MESSAGES:
            before = self.body.values
            after = self.rewrite({**before, "messages": self.given}, self._breakpoints)
            self.items: Sequence[Item] = after.pop("messages")
            values = {name: new for name, new in after.items() if new is not before.get(name)}
        if self.is_changed or values:
            self._content = self.body.write(self.items, values)

    def content(self) -> bytes:
        """Return the body to send: the client's own bytes where nothing is changed.

        A body that was decoded goes out as it is then, whether it is changed or not, so that an
        upstream is sent one form only.
        """
        if self.is_dry or not self.is_shaped:
            return self.raw
        return self._content or self._decoded

    @property
    def is_rewritten(self) -> bool:
        """Return True if something else is sent than what the client has said."""
        return self.is_shaped and not self.is_dry and bool(self._content)

    def headers(self, given: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers to send with `content`; the names in *given* are in small letters."""
        added: dict[str, str] = {"accept-encoding": "identity"}  # the usage is read from plain text
        if self.is_shaped and not self.is_dry and self.format is MESSAGES:
            added |= self.result.request_options.get("extra_headers", {})
        removed = set(added)
        if self.content() is not self.raw:
            removed.add("content-encoding")
        retained = [(name, value) for name, value in given if name not in removed]
        return [*retained, *added.items()]

    # The reply ------------------------------------------------------------------------------------

    def begin_answer(self, status: int, content_type: str) -> None:
        """An answer begins."""
        is_stream = STREAM in content_type
        is_refusing = status in REFUSING
        may_refuse = is_refusing or (is_stream and self.format.may_refuse_late and status < 400)
        self.is_undecided = self.is_shaped and may_refuse
        self._status, self._size, self._refusal = status, 0, b""
        wanted = ANY_EVENT if self.is_undecided else self.format.read_events
        self._reader = ReplyReader(is_stream=is_stream and not is_refusing, wanted=wanted)

    def feed(self, chunk: bytes) -> None:
        """Read the next *chunk* of the answer, and learn from the usage in it."""
        if not self._reads_reply:
            return
        self._size += len(chunk)
        if self._status in REFUSING:
            self._refusal += chunk[: MAX_TEXT - len(self._refusal)]
            return
        self._read(self._reader.feed(chunk))
        if self.is_undecided and self._size > MAX_HELD:
            self._decide()

    def end(self) -> None:
        """The answer is over."""
        if self._reads_reply and self._status not in REFUSING:
            self._read(self._reader.end())

    @property
    def _reads_reply(self) -> bool:
        """Return True if the reply has usage or items to learn.

        Its items are learned even if the request was sent as it came: the next one may hold them.
        """
        return self.is_shaped or self.format.has_items

    def _read(self, events: Iterable[JsonObject]) -> None:
        with log_errors(NOT_LEARNT):
            for event in events:
                self.remember(self.format.items_in(event))
                if not self.is_shaped:
                    continue
                usage = self.format.usage_in(event) or {}
                self.usage |= {name: part for name, part in usage.items() if isinstance(part, int)}
                # At once: a client may stop reading after the last event.
                if not self.is_dry:  # else another context is billed
                    self.learn(self.format.reply_in(event))
                if self.is_undecided and event.get("type") not in _BEGINNING:
                    if event.get("type") in _REFUSED:
                        self._refusal = json.dumps(event).encode()
                    self._decide()

    def _decide(self) -> None:
        self.is_undecided = False
        self._reader.wanted = self.format.read_events

    async def retry(self) -> bool:
        """Whether what was held back is a refusal, and there is a shorter `content` to send."""
        self.is_undecided = False
        if self._refusal:
            status = self._status if self._status in REFUSING else None
            self.refusal = refusal_in(status, self._refusal)
        if self.is_dry or not await self.refused(self.refusal):
            return False
        self._write()
        self.is_recovered = True
        return True


def refusal_in(status: int | None, answer: bytes) -> Refusal | None:
    """What an *answer* says of a prompt that is too long, None where it is about something else."""
    return read_refusal(status, answer[:MAX_TEXT].decode("utf-8", "replace"))


async def ask(
    exchange: HttpExchange, send: Callable[[], Awaitable[Any]]
) -> tuple[Any, AsyncIterator[bytes]]:
    """The response, of httpx or httpx2, that *send* gives to what *exchange* sends, and its body.

    After "too long" that is the response to a shorter request.
    """
    response, chunks = await _send(exchange, send)
    held: list[bytes] = []
    while exchange.is_undecided and (chunk := await anext(chunks, None)) is not None:
        held.append(chunk)
        exchange.feed(chunk)
    if await exchange.retry():
        await response.aclose()
        held.clear()
        response, chunks = await _send(exchange, send)
    return response, _pass_on(exchange, held, chunks)


async def _send(
    exchange: HttpExchange, send: Callable[[], Awaitable[Any]]
) -> tuple[Any, AsyncIterator[bytes]]:
    response = await send()
    exchange.begin_answer(response.status_code, response.headers.get("content-type", ""))
    return response, aiter(response.stream)


async def _pass_on(
    exchange: HttpExchange, held: Iterable[bytes], rest: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    for chunk in held:
        yield chunk
    async for chunk in rest:
        exchange.feed(chunk)
        yield chunk
    exchange.end()


def _start_of_begun_answer(messages: Sequence[Message], codec: ItemReader) -> int:
    """Return where in *messages*, those of a request, the answer begins that it ends with.

    The model goes on with it, so it has not been answered and stays as it is. Its length if there
    is none. Thinking, calls and what servers have done need the session, which knows what may not
    be rewritten before them.
    """
    start = len(messages)
    while start and messages[start - 1]["role"] == "assistant":
        is_text = all(kind(block) == "text" for block in as_blocks(messages[start - 1]))
        if isinstance(codec, MessagesCodec) and not is_text:
            break
        start -= 1
    return start or len(messages)


def _join(system: object, head: list[JsonDict]) -> object:
    """The *system* prompt of a request, and what its leading items say."""
    if not head:
        return system
    if not system:
        return head
    before: Any = [text_block(system)] if isinstance(system, str) else system
    return [*before, *head]


# Failing open -------------------------------------------------------------------------------------


@contextmanager
def log_errors(consequence: str) -> Iterator[None]:
    """Log an error of ours, with its *consequence*, instead of raising it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  logged by `warn`
        warn(consequence, error)


def warn(consequence: str, error: Exception) -> str:
    """Log *error*, and its *consequence*, in one warning; the error without any text of others."""
    text = safe_text(error)
    logger.warning("%s: %s", consequence, text)
    logger.debug("the error was", exc_info=error)
    return text


MAX_KEPT = 32 * 1024 * 1024  # bytes of a reply, or of a line of a stream; more is not read
_DATA = b"data:"


class ReplyReader:
    """The objects in a reply: the data of a stream's events, or the last one of a whole reply.

    Of a stream only events that contain one of *wanted* are parsed.
    """

    def __init__(self, *, is_stream: bool = True, wanted: Sequence[bytes] = (b"",)) -> None:
        self.wanted: Sequence[bytes] = wanted
        self._is_stream = is_stream
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[JsonDict]:
        """The objects that *chunk* completes."""
        self._rest += chunk.replace(b"\r", b"\n")  # a line may end with either, or with both
        if len(self._rest) > MAX_KEPT + len(chunk):
            self._rest.clear()
        if not self._is_stream:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line.startswith(_DATA) and any(mark in line for mark in self.wanted):
                yield from _parse(line[len(_DATA) :])

    def end(self) -> Iterator[JsonDict]:
        """What is left when the reply is over."""
        if self._is_stream:
            yield from self.feed(b"\n")
        else:
            yield from _parse(self._rest)


def _parse(text: bytes | bytearray) -> Iterator[JsonDict]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return  # "[DONE]", or what is no JSON
    for last in data[-1:] if isinstance(data, list) else [data]:
        if isinstance(last, dict):
            yield last
