"""One conversation: the loop keeps its history, the session keeps the context."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from .clients import check_client
from .edits.projection import Projection
from .errors import SettingsError, StorageError, safe_text
from .journal import JOURNAL_STORAGE, Journal, JournalStorage, State
from .messages import ensure_messages, field, is_bulky
from .refusals import LEAST_SHARE, Refusal, as_refusal, read_refusal
from .reports import Result
from .runner import Request, Runner, model_of
from .settings import FLAG, FUNCTION, NUMBER, SESSION_ID, excerpt
from .stages.compact import Compact
from .storage import TextReader
from .threads import in_thread_if
from .tokens.billed import cached_tokens
from .tokens.ledger import is_possible
from .undo import goes_one_by_one, restored, shortened, undo_of
from .words import counted

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic.lib.streaming import AsyncMessageStream
    from anthropic.types import Message as Reply

    from .edits.projection import Opening
    from .messages import Message
    from .stage import Stage
    from .undo import Undo

__all__ = ["Session"]

logger = logging.getLogger("ctxpipe")

T = TypeVar("T")

_MISSING = object()

CACHE_SECONDS = 300.0  # how long the provider keeps a prompt that nobody reads
BETA = "anthropic-beta"
REDACTED = "messages in the journal were redacted or changed on disk, so a context that was sent is not known again"
NOTABLE_DRIFT = 0.01  # of the factor that bills have shown: then the journal is told
FAR_BELOW = 0.5  # of the trigger: a context this short is not what an API finds too long
NOTABLE_CHANGE = 0.1  # of the trigger: after that another attempt to shorten may help


class Session:
    """What must be remembered about one conversation; made by `ContextPipeline.session`.

    The caller keeps its full history and hands it in each turn; the session remembers which context its beginning has
    become. So a turn costs what is new, the context's beginning stays byte for byte the same, and no summary is made
    twice. Runs of one session wait for each other. A session without its memory is still correct.
    """

    def __init__(
        self,
        runner: Runner,
        session_id: str,
        *,
        journal: JournalStorage | None = None,
        verify: bool = False,
        cache_seconds: float = CACHE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        SESSION_ID.check("session_id", session_id)
        JOURNAL_STORAGE.optional.check("journal", journal)
        FLAG.check("verify", verify)
        NUMBER.check("cache_seconds", cache_seconds)
        FUNCTION.check("clock", clock)
        self.session_id = session_id
        self._runner = runner
        self._record = runner.new_record()
        self._verify = verify
        self._projection = Projection(verify=verify)
        self._is_adopted = False  # whether the caller has ever gone on with our context as his history
        self._undos: list[Undo] = []
        self._undos_are_whole = True
        self._journal = Journal(journal, session_id) if journal is not None else None
        self._resumed = journal is None
        self._factor_told = self._record.ledger.factor
        self._lock = asyncio.Lock()  # anyio's costs four times as much, on every turn
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._cached_at: float | None = None
        self._client: AsyncAnthropic | None = None  # what a summarizer without a client asks with
        self._recovered_at: int | None = None  # tokens of the context refused last, while no answer has come since
        self._pending: list[str] = []  # notices for the next result
        self._untold: int | None = None  # from where on the context changed, until a result has told it

    def __repr__(self) -> str:
        known = counted(len(self._projection.history), "message")
        return f"<Session {excerpt(self.session_id)}: {known} known>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held open: every change is in the journal once `run` has returned."""

    @property
    def journal(self) -> JournalStorage | None:
        """Where the session writes down what it knows, None when it does not."""
        return self._journal.storage if self._journal else None

    def sibling(self) -> Session:
        """Another conversation under the same id and into the same files, which knows nothing of this one.

        For the side questions and sub-agents of a loop. It keeps no journal.
        """
        return Session(
            self._runner,
            self.session_id,
            verify=self._verify,
            cache_seconds=self._cache_seconds,
            clock=self._clock,
        )

    # The turn -----------------------------------------------------------------------------------------------------

    async def run(
        self,
        history: list[Message],
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
        client: AsyncAnthropic | None = None,
    ) -> Result:
        """The context for *history*: the remembered one, and what was appended since.

        Messages that are appended while this runs belong to the next turn (``result.covered`` says how many are in
        this one). A history that was shortened, branched or rebuilt is noticed and told in ``result.notices``. The
        arguments are those of `ContextPipeline.run`; nothing of *history* is modified. *client*, the one that the
        context is sent with, is lent to a summarizer that has none of its own, now and in later turns.

        Raises InvalidHistory when *history* has not the shape of messages, SettingsError for other arguments that make
        no sense.
        """
        if client is not None:
            check_client(client)
        async with self._lock:
            self._client = lendable(client) or self._client
            asked = Request(system, tools, request or {}, force, self._is_cold(), self._client)
            return await self._run(history, asked)

    async def compact(self, history: list[Message] | None = None, *, focus: str = "") -> Result:
        """Compact now, whatever the budget says: the `Compact` stage of the pipeline alone.

        *history* defaults to what was handed in last. The summary attends to *focus* where its summariser can be told
        so. Why nothing was done, if so, is in the reports.

        Raises SettingsError when the pipeline has no `Compact` stage, InvalidHistory as `run` does.
        """
        found = [(place, stage) for place, stage in enumerate(self._runner.stages) if isinstance(stage, Compact)]
        if not found:
            raise SettingsError("there is nothing to compact with: the pipeline has no Compact stage")
        if history is None and not self._projection.history:
            raise SettingsError("there is nothing to compact yet: run the session first, or give the history")
        stages = {place: stage.focused(focus) if focus else stage for place, stage in found}
        async with self._lock:
            last = self._record.overhead
            asked = Request(last.system, last.tools, force=True, cold=self._is_cold(), client=self._client)
            return await self._run(self._projection.history if history is None else history, asked, stages)

    async def _run(self, history: list[Message], asked: Request, stages: Mapping[int, Stage] | None = None) -> Result:
        ensure_messages(history, sys.maxsize)  # that it is a list; each message is looked at once, later
        notices = await self._resume(history) + self._pending
        self._pending = []
        reads_many = self._projection.reads_all and is_bulky(history)
        opening = await in_thread_if(reads_many, self._projection.begin, history)
        self._is_adopted = self._is_adopted or opening.adopted
        if not self._is_adopted:
            asked = replace(asked, history=opening.history)
        if opening.diverged:
            notices.append(
                f"the history differs from the known one; message {opening.fresh} and those behind it are new"
            )
        if opening.cut:
            self._record.cut(opening.kept)
        if opening.fresh < opening.known:  # a change is taken back that the model has answered behind
            self._record.unbind((opening.kept, 0), len(opening.context))
        if self._untold is not None:  # who was not told of a change may have gone on with what stood there before
            self._record.unbind((self._untold, 0), len(opening.context))
        with _stages_are_asking():
            result = await self._runner.run(opening.context, self.session_id, self._record, asked, opening.same, stages)
        # What has changed is hashed, so that it can be taken back later.
        is_long = bool(self._record.steps) or is_bulky(opening.history, opening.known)
        changed = await in_thread_if(is_long, self._remember, opening, result.messages)
        places = [place for place in (self._untold, result.first_changed_index) if place is not None]
        self._untold = min(places, default=None)  # a turn that is cancelled from here on is told of by the next one
        if self._journal and (changed or self._has_drifted):
            notices += await self._written(self._journal)
        covered, first, self._untold = len(opening.history), self._untold, None
        return Result(  # dataclasses.replace takes four times as long, on every turn
            result.messages,
            result.reports,
            result.repaired,
            result.request_options,
            covered,
            tuple(notices),
            first,
            result.changed_end,
            result.tokens_before,
            result.tokens_after,
        )

    def _remember(self, opening: Opening, context: list[Message]) -> bool:
        """Take in what the turn has made of the history; whether that is worth a line in the journal."""
        steps, self._record.steps = self._record.steps, []
        match = opening.match
        for step in steps:
            if not goes_one_by_one(step):
                match = match.behind(step.before, step.after, len(opening.history))
        undos = list(map(undo_of, steps))
        kept = self._undos
        if opening.cut:
            in_front = not opening.adopted and opening.known < self._projection.match.history
            kept = shortened(self._undos, opening.kept, in_front=in_front)
        if self._journal:
            self._journal.follow(opening, undos, anew=kept != self._undos)
        self._undos_are_whole = self._undos_are_whole or not opening.kept
        self._undos = [*kept, *undos]
        self._projection.end(opening, context, match)
        return bool(steps) or opening.cut

    # Reading the bill ---------------------------------------------------------------------------------------------

    def observe(self, usage: object, sent: Sequence[Message] | None = None, *, model: str | None = None) -> None:
        """Learn from a reply's *usage* (an SDK object or a mapping): the real token count, and the cache's state.

        The whole reply may be given instead; it says more where the server has run tools or cleared results. *sent*
        are the messages that it bills, by default the context of the last run. Raises SettingsError for what holds no
        usage.
        """
        check_usage(usage)
        model = field(usage, "model") if model is None else model
        model = model if isinstance(model, str) else None
        self._recovered_at = None
        billed = self._projection.context if sent is None else sent
        self._record.ledger.observe(usage, billed, overhead=self._record.overhead.tokens, model=model)
        self._cached_at = self._clock() if cached_tokens(usage) else None

    def _is_cold(self) -> bool:
        """Whether the provider's prompt cache is known to hold nothing of this conversation any more."""
        return self._cached_at is not None and self._clock() - self._cached_at > self._cache_seconds

    # The loop's body ----------------------------------------------------------------------------------------------

    async def create(self, client: AsyncAnthropic, *, messages: list[Message], **request: Any) -> Reply:
        """Run, call the model with the context, observe; after "prompt is too long" once more, shortened by force.

        *client* is an ``AsyncAnthropic``, or its ``beta`` for requests with ``betas=``. *messages* is the whole
        history, the other arguments are those of ``client.messages.create``, whose answer comes back, a stream
        included. Raises what the client raises; SettingsError, before anything is sent, for a client that is not
        async. A request that did not get smaller is never sent again.
        """

        async def send(context: Result) -> Any:
            return await client.messages.create(messages=context.messages, **{**request, **context.request_options})

        reply, sent = await self._answered(send, client, messages, request)
        if request.get("stream"):
            observe_stream(reply, lambda begun: learn(self, begun, sent))
        else:
            learn(self, reply, sent)
        return cast("Reply", reply)

    @asynccontextmanager
    async def stream(
        self, client: AsyncAnthropic, *, messages: list[Message], **request: Any
    ) -> AsyncIterator[AsyncMessageStream[Any]]:
        """As `create`, with the client's stream helper: ``async with session.stream(client, …) as stream``."""
        async with AsyncExitStack() as opened:

            async def send(context: Result) -> Any:
                arguments = {**request, **context.request_options}
                return await opened.enter_async_context(client.messages.stream(messages=context.messages, **arguments))

            stream, sent = await self._answered(send, client, messages, request)
            try:
                yield stream
            finally:
                with suppress(AssertionError):  # so the SDK says that nothing of the stream was read
                    learn(self, stream.current_message_snapshot, sent)

    async def _answered(
        self,
        send: Callable[[Result], Awaitable[T]],
        client: AsyncAnthropic,
        messages: list[Message],
        request: dict[str, Any],
    ) -> tuple[T, Result]:
        """What *send* answers, and the context that it was given last."""
        check_client(client)
        arguments = _arguments(client, request)
        context = await self.run(messages, **arguments, client=client)
        try:
            return await send(context), context
        except Exception as error:
            refusal = as_refusal(error)
            if refusal is None:
                raise
            shorter = await self.recover(refusal, messages, context, **arguments)
            if shorter is None:
                raise
        return await send(shorter), shorter

    async def recover(
        self,
        refusal: Refusal | str,
        history: list[Message],
        sent: Result,
        *,
        system: object = None,
        tools: Sequence[object] | None = None,
        request: Mapping[str, object] | None = None,
    ) -> Result | None:
        """A shorter context than *sent*, which a model has refused as too long, in the words *refusal*.

        None when asking again would be of no use: no stage found anything to take out, the context is far below its
        budget and the refusal names no numbers that say otherwise, or the last attempt has not helped and the context
        is still as long. Numbers that cannot be those of *sent*, as in words that an error quotes, are not believed.
        What the refusal tells of the real number of tokens is learnt. A window that is smaller than
        the budget's lowers the budget of this session for that model, which the result's notices tell. The other
        arguments are those of `run`.
        """
        if isinstance(refusal, str):
            refusal = read_refusal(None, refusal) or Refusal("an unknown provider")
        options = request or {}
        tokens = self._record.ledger.estimate(sent.tokens_after, sent.messages)
        model = model_of(self._record, options)
        if not self._can_be_about(refusal, sent.tokens_after, model):
            refusal = Refusal(refusal.provider)
        self._lower_budget(refusal, model)
        trigger = self._runner.budget_for(self._record, options).trigger
        if not refusal.has_numbers and tokens < FAR_BELOW * trigger:
            return None
        if self._recovered_at is not None and abs(tokens - self._recovered_at) < NOTABLE_CHANGE * trigger:
            return None
        self._recovered_at = tokens
        overhead = self._record.overhead.tokens
        if refusal.tokens is not None:
            told = {"input_tokens": refusal.tokens}
            self._record.ledger.observe(told, sent.messages, overhead=overhead, model=model)
        result = await self.run(history, system=system, tools=tools, force=True, request=request)
        # Compare the messages alone: the caller may have named the system prompt and tools only once.
        shorter = result.tokens_after - self._record.overhead.tokens < sent.tokens_after - overhead
        return result if shorter else None

    def _can_be_about(self, refusal: Refusal, raw: int, model: str | None) -> bool:
        """Whether the prompt that *refusal* speaks of can be one of *raw* tokens, and its window that of *model*.

        Our count may be far too low, as for pictures, until a bill has shown that it is not. What *model* has been
        paid to read is not more than its window.
        """
        billed = max((bill[2] for bill in self._record.ledger.bills if bill[0] == model), default=0)
        if refusal.window is not None and refusal.window < billed:
            return False
        tokens = refusal.tokens
        if tokens is None:
            return True
        return tokens >= LEAST_SHARE * raw and (is_possible(raw, tokens) or not self._record.ledger.bills)

    def _lower_budget(self, refusal: Refusal, model: str | None) -> None:
        """Remember the window that *refusal* names for *model*, where it is smaller than what the budget counts on."""
        known = self._record.windows.get(model, self._runner.budget.window)
        if refusal.window is None:
            return
        reserved = self._runner.budget.reserve_output or 0  # which the budget keeps free in any window
        window = refusal.window - max(0, refusal.answer_tokens - reserved)
        if window >= known:
            return
        self._record.windows[model] = window
        named = f"the window of {model or 'the model'} is {window} tokens, not {known}"
        self._pending.append(self._warned(f"{named}: the budget of this session is lowered"))

    # Going on in another process ----------------------------------------------------------------------------------

    async def _resume(self, history: list[Message]) -> list[str]:
        """Take up what the journal knows about *history*, once; what had to be left out is told."""
        if self._resumed or self._journal is None:
            return []
        ensure_messages(history)
        try:
            found = await self._journal.find(history)
        except StorageError as error:
            self._resumed = True
            return [self._warned(f"the journal cannot be read, the session begins anew: {safe_text(error)}")]
        self._resumed = True
        notices = []
        if found.damaged:
            notices.append(self._warned("the journal is damaged; what cannot be trusted was left out"))
        if found.redacted:
            notices.append(
                self._warned(REDACTED if found.state is not None else f"{REDACTED}; the session begins anew")
            )
        if found.state is not None:
            self._take_up(found.state, found.is_whole)
        elif found.lines and not found.redacted:
            notices.append(self._warned("the journal tells of another history; the session begins anew"))
        return notices

    def _take_up(self, state: State, is_whole: bool) -> None:
        self._projection.resume(state.history, state.context, state.match)
        self._undos, self._undos_are_whole = list(state.undos), is_whole
        self._record.unbound = state.unbound
        self._record.ledger.learn(state.bills)
        self._factor_told = self._record.ledger.factor

    @property
    def _has_drifted(self) -> bool:
        """Whether bills have shown another price of tokens than the journal knows."""
        return abs(self._record.ledger.factor - self._factor_told) > NOTABLE_DRIFT * self._factor_told

    async def _written(self, journal: Journal) -> list[str]:
        """Write down what is known; what went wrong, if anything."""
        now, record = self._projection, self._record
        state = State(now.history, now.context, now.match, self._undos, record.unbound, record.ledger.bills)
        factor = record.ledger.factor
        try:
            await journal.write(state)
        except StorageError as error:
            return [self._warned(f"the journal cannot be written: {safe_text(error)}")]
        self._factor_told = factor
        return []

    def _warned(self, text: str) -> str:
        logger.warning("session %s: %s", self.session_id, text)
        return text

    async def restore_history(self, storage: TextReader | None = None) -> list[Message]:
        """The raw history, rebuilt from the context, the files and the archives, and checked by hash.

        *storage* holds the files, by default the journal's. In a new process, `run` comes first: with the history, or
        with the context that was adopted as history. Cache marks may differ. Raises StorageError, naming the message,
        when a file or an archive is missing or was changed; SettingsError when there is no storage to read from.
        """
        reader = storage or self.journal
        if reader is None:
            raise SettingsError("a session without a journal needs the storage that holds its files")
        async with self._lock:
            if not self._resumed:
                raise StorageError("nothing is known yet: run the session first, then its history can be restored")
            if not self._undos_are_whole:
                raise StorageError("the journal is damaged: not every change of this session can be taken back")
            return await restored(self._projection.context, self._undos, reader)


def _arguments(client: AsyncAnthropic, request: dict[str, Any]) -> dict[str, Any]:
    """What `Session.run` is to know of a *request*; what the SDK calls "not given" is falsy, and None here."""
    tools = request.get("tools") or None
    if tools is not None and not isinstance(tools, Sequence):
        tools = request["tools"] = list(tools)  # an iterator can be read once only
    headers = dict(request.get("extra_headers") or {})
    default = getattr(client, "default_headers", {}).get(BETA)
    if isinstance(default, str) and not any(name.lower() == BETA for name in headers):
        headers[BETA] = default  # what is added to it must not replace it
    return {"system": request.get("system") or None, "tools": tools, "request": {**request, "extra_headers": headers}}


def lendable(client: object) -> AsyncAnthropic | None:
    """The client of the API that *client* is, or is a part of, such as ``client.beta``; None for any other.

    A synchronous one would hold the loop, and those of other clouds know the model under another name.
    """
    sdk = sys.modules.get("anthropic")  # who has a client has imported it
    for found in (client, getattr(client, "_client", None)):
        if sdk is not None and isinstance(found, sdk.AsyncAnthropic):
            return cast("AsyncAnthropic", found)
    return None


_asked_by_a_stage: ContextVar[bool] = ContextVar("ctxpipe_asked_by_a_stage", default=False)


def is_asked_by_a_stage() -> bool:
    """Whether a request is made by a stage, for a summary: its session would wait for itself."""
    return _asked_by_a_stage.get()


@contextmanager
def _stages_are_asking() -> Iterator[None]:
    token = _asked_by_a_stage.set(True)
    try:
        yield
    finally:
        _asked_by_a_stage.reset(token)


def observe_stream(stream: AsyncStream[Any], tell: Callable[[Any], None]) -> None:
    """Have *stream* tell of the message that it begins with, and of what the server has cleared, once that is read."""

    async def observed(events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        begun: Any = None
        async for event in events:
            if field(event, "type") == "message_start":
                begun = field(event, "message")
                tell(begun)
            elif cleared := field(event, "context_management"):
                told = {name: field(begun, name) for name in ("usage", "model")}
                tell({**told, "context_management": cleared})
            yield event

    vars(stream)["_iterator"] = observed(stream._iterator)  # noqa: SLF001  it offers no hook of its own


def learn(session: Session, reply: object, sent: Result) -> None:
    """Have *session* observe *reply*, the answer to *sent*.

    Gateways leave the usage out, or answer with no message at all: that teaches nothing, and the reply, which is paid,
    is the caller's all the same.
    """
    if _has_usage(reply):
        session.observe(reply, sent.messages)


def _has_usage(given: object) -> bool:
    held = field(given, "usage")
    return field(given if held is None else held, "input_tokens", _MISSING) is not _MISSING


def check_usage(given: object) -> None:
    """Raise SettingsError unless *given* is the usage of a reply, or a whole reply."""
    if not _has_usage(given):
        raise SettingsError(
            f"usage is {type(given).__name__} without input_tokens; give the usage of a reply: observe(reply.usage)"
        )
