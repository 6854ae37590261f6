"""The pipeline: stages in order, run once per turn."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Never, Self, cast

from ._logs import logger
from .errors import SettingsError
from .journal.memory import Memory
from .messages import Message, MessageLike, field
from .providers.prices import PRICES, Prices
from .session.conversation import Conversation
from .session.gate import mark_stage_requests
from .session.session import Session
from .session.sessions import ConversationPool
from .session.settings import CACHE_SECONDS, SessionSettings
from .settings import (
    COUNT,
    FUNCTION,
    SESSION_ID,
    Requirement,
    answers_at_once,
    excerpt,
    instance_of,
    one_of,
    takes_one,
)
from .stages.collapse.stage import Collapse
from .stages.compact.stage import Compact
from .stages.media.stage import MediaOffload
from .stages.offload.stage import BatchOffload, DirectOffload
from .stages.protocol import Stage, stage_name
from .stages.read_backs.stage import TrimReadBacks
from .stages.reports import Result, StageReport
from .stages.truncate.stage import SmartTruncate
from .storage import JournalStorage
from .storage.generations import Generation
from .tokens import Budget, TokenCounter, as_counter
from .tokens.billed import check_usage
from .tokens.counter import COUNTING
from .turn.run import run_turn
from .turn.state import PipelineSettings, Request, State, Thinking, TurnRun, Veto, observe_cut

__all__ = ["ContextPipeline"]

# An earlier stage leaves less for the later ones. Files cost nothing, a summary loses detail, and
# truncation loses everything, so they should run in this order.
_STAGES_WITH_FILES = (DirectOffload, TrimReadBacks, MediaOffload, BatchOffload, Collapse)
_STAGES_BEFORE = {Compact: _STAGES_WITH_FILES, SmartTruncate: (*_STAGES_WITH_FILES, Compact)}
_RIVALS = frozenset({BatchOffload, Collapse})
_ONCE = (TrimReadBacks, MediaOffload, Collapse, Compact, SmartTruncate)

_BUDGET = instance_of(Budget, "a Budget such as Budget(window=200_000)").optional


def _is_list_of_stages(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | type)


_STAGES = Requirement(
    _is_list_of_stages, "a list of stages such as [DirectOffload(LocalStorage('.ctxpipe'))]"
)


class ContextPipeline:
    """Stages that shape an agent's context, run once per turn in the order they were added.

    *budget* defines when the context is too long (the *trigger*) and the size to reduce it to (the
    *target*). *counter* counts tokens, each distinct text once. *on_report* is called with each
    stage's report; an error in it is logged. ``veto(turn, change)`` is called with each change that
    a stage proposes, and refuses it by returning True, or a sentence with the reason. With
    ``on_error="skip"`` an error of a stage is reported, and the turn continues without that stage;
    with ``"raise"`` it is raised.

    At most *max_sessions* sessions are remembered. The session that was unused for the longest time
    is forgotten first, which costs time only. A session that is in use is not forgotten. One whose
    messages are not in a journal yet is first written. There is one exception: if such sessions
    alone are more than *max_sessions*, and cannot be written because the journal fails or there is
    none, some are forgotten with their messages, each with a notice.

    Newer models sign their thinking together with the text before it. *thinking* decides what
    happens to thinking blocks if a stage has rewritten that text. With "keep" the blocks stay, and
    ``Result.request_options`` asks the API to ignore those whose signature is no longer valid. With
    "strip" the blocks whose signature is no longer valid are removed, except in the messages since
    the last request of the user: there the API requires the thinking before a tool call. With
    "protect" nothing before a thinking block is rewritten.

    With *prices* (``prices_of(model)``) each report has the cost and the saving of a change in
    dollars.

    Raises SettingsError for an invalid setting.
    """

    def __init__(
        self,
        stages: Iterable[Stage] = (),
        *more_stages: Never,
        budget: Budget | None = None,
        counter: TokenCounter | Callable[[str], int] | None = None,
        on_report: Callable[[StageReport], object] | None = None,
        veto: Veto | None = None,
        on_error: Literal["skip", "raise"] = "skip",
        thinking: Thinking = "keep",
        prices: Prices | None = None,
        max_sessions: int = 10_000,
    ) -> None:
        if more_stages:
            names = ", ".join(stage_name(stage) for stage in (stages, *more_stages))
            raise SettingsError(
                f"the stages {names} are separate arguments; give one list, "
                "ContextPipeline([…]), or add each with .use(…)"
            )
        _STAGES.check("stages", stages)
        _BUDGET.check("budget", budget)
        COUNTING.optional.check("counter", counter)
        FUNCTION.optional.check("on_report", on_report)
        FUNCTION.optional.check("veto", veto)
        one_of("skip", "raise").check("on_error", on_error)
        one_of("keep", "strip", "protect").check("thinking", thinking)
        PRICES.optional.check("prices", prices)
        COUNT.check("max_sessions", max_sessions)
        self._settings = PipelineSettings(
            Budget() if budget is None else budget,
            as_counter(counter),
            on_report,
            veto,
            on_error,
            thinking,
            prices,
        )
        self._logged_doubts: set[str] = set()
        self._max_sessions = max_sessions
        self._memories: OrderedDict[str, OwnMemory] = OrderedDict()
        self._in_use: set[str] = set()  # names of the sessions that `run` is shaping now
        self._sessions = ConversationPool(max_sessions, lambda _: 1)
        for stage in stages:
            self.use(stage)

    def __repr__(self) -> str:
        names = ", ".join(stage_name(stage) for stage in self._settings.stages)
        return f"<ContextPipeline: {names or 'no stages'}>"

    @property
    def budget(self) -> Budget:
        """Limits of the context: when it is too long, and the size to reduce it to."""
        return self._settings.budget

    @property
    def max_sessions(self) -> int:
        """Largest number of sessions that are remembered."""
        return self._max_sessions

    @property
    def counter(self) -> TokenCounter:
        """Token counter of all stages."""
        return self._settings.counter

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Stages, in the order in which they run."""
        return tuple(self._settings.stages)

    def use(self, stage: Stage) -> Self:
        """Add *stage* after the existing ones, and return the pipeline.

        Logs a warning once if the stages are registered in an unusual order.

        Raises SettingsError if *stage* cannot be a stage: a class, a function that is not async, or
        an object that cannot be called with a turn.
        """
        _check_stage(stage)
        for doubt in _doubts(self._settings.stages, stage):
            if doubt not in self._logged_doubts:
                self._logged_doubts.add(doubt)
                logger.warning("%s", doubt)
        self._settings.stages.append(stage)
        return self

    async def run(
        self,
        messages: Sequence[MessageLike],
        *,
        session_id: str,
        system: object = None,
        tools: Iterable[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
    ) -> Result:
        """Shape *messages* for the next model call, and return the context to send.

        Continue the conversation with ``result.messages``: append the reply and the tool results to
        them for the next turn. *messages* is never modified. If it is valid and no stage has
        anything to do, the result holds the very same list.

        *system* and *tools* of the request count as part of the context. With *force* the stages
        act below their thresholds too; use it after the model has refused the context as too long.
        *request* has those arguments of the call that concern thinking (thinking, betas,
        extra_headers, extra_body); ``request_options`` of the result then includes them.

        The pipeline does not know the agent's model. So `Compact` without a summarizer extracts the
        summary from the messages, and warns once per session. Give it one that asks a model:
        ``Compact(AnthropicSummarizer(client), …)``.

        Raises InvalidHistory if *messages* is not a valid message list, before anything is written,
        and SettingsError for an invalid *session_id*. Errors of stages are reported in
        ``result.reports``; with ``on_error="raise"`` they are raised.
        """
        with self._claim(session_id) as memory:
            turn_request = Request(system, tools, request or {}, force)
            run = memory.new_turn(messages, turn_request)
            with Generation(session_id).running(), mark_stage_requests():
                result = await run_turn(run)
            memory.apply(run)
            return result

    async def plan(
        self,
        messages: Sequence[MessageLike],
        *,
        session_id: str,
        system: object = None,
        tools: Iterable[object] | None = None,
        force: bool = False,
    ) -> Result:
        """Return what `run` would do, without writing anything or calling a model.

        The reports describe what each stage would change. A stage whose outcome only acting can
        show (a summary) reports that it would act, and the stages after it see the context without
        its change. ``result.messages`` is the context with all changes that can be planned. The
        arguments and errors are those of `run`.
        """
        SESSION_ID.check("session_id", session_id)
        memory = OwnMemory.empty(self._settings, session_id)
        run = memory.new_turn(messages, Request(system, tools, {}, force))
        run.is_plan = True
        return await run_turn(run)

    def observe(
        self,
        usage: object,
        messages: Sequence[MessageLike],
        *,
        session_id: str,
        model: str | None = None,
    ) -> None:
        """Calibrate the session's token estimates with the *usage* that a reply reports.

        Call it after each reply, so that the stages act when the API's own count reaches a limit.
        *usage* is an SDK object, a mapping, or the whole reply. *messages* are those of the
        request. *model* is the model that replied, by default the one that *usage* names. Raises
        SettingsError if *usage* contains no usage.
        """
        check_usage(usage)
        if model is None:
            model = field(usage, "model")
        with self._claim(session_id) as memory:
            state = memory.state
            sent = cast("list[Message]", messages)
            notice = observe_cut(usage, sent, state, self._settings.budget, model)
            if notice:
                logger.warning("session %s: %s", session_id, notice)
            state.ledger.observe(usage, sent, overhead=state.overhead.tokens, model=model)

    def session(
        self,
        session_id: str,
        *,
        journal: JournalStorage | None = None,
        verify: bool = False,
        cache_seconds: float = CACHE_SECONDS,
        clock: Callable[[], float] = time.time,
        history: bool = True,
        signing_key: bytes | Sequence[bytes] | None = None,
        lease_seconds: float | None = None,
        store_seconds: float | None = None,
    ) -> Session:
        """Return the session *session_id*, which keeps the context of a conversation between turns.

        Sessions of the same id share one conversation while it is among the *max_sessions*
        used last. See `Session`.

        With *journal* the history and the session's memory survive the process. If *history* is
        False, the journal contains no texts of messages, and the caller must keep the history. The
        entries of the journal are signed with *signing_key* (16 bytes or more; with a list of keys
        the first signs and all verify). With *lease_seconds* a turn waits up to that time while
        another process runs a turn of the same session, so that the two do not pay for the same
        summary twice. This needs a journal whose storage supports leases. *store_seconds* is the
        time that a turn waits for all its stores together, by default STORE_SECONDS (2 s). If
        *verify* is True, edits inside messages of earlier turns are noticed too, which costs time
        for each of them. *cache_seconds* is the lifetime of the provider's prompt cache. From one
        hour on, `Session.create` asks for a lifetime of an hour at its breakpoints.

        Raises SettingsError if a setting has the wrong type, or the session is in use with another
        journal or without one.
        """
        SESSION_ID.check("session_id", session_id)
        settings = SessionSettings(
            journal=journal,
            verify=verify,
            cache_seconds=cache_seconds,
            clock=clock,
            history=history,
            signing_key=signing_key,
            lease_seconds=lease_seconds,
            store_seconds=store_seconds,
        )
        with self._sessions.lock:
            conversation = self._sessions.find(session_id)
            has_other_journal = (
                conversation is not None and journal is not None and conversation.journal != journal
            )
            if has_other_journal:
                raise SettingsError(
                    f"session {excerpt(session_id)} is in use with another journal, or without one"
                )
            if conversation is None:
                conversation = Conversation(self._settings, session_id, settings)
            conversation.access.reopen()
            self._sessions.add(conversation)
            return Session(conversation)

    def new_session(self, session_id: str, **settings: Any) -> Session:
        """Create a session that the pipeline does not remember; the caller stores it.

        A second call with the same *session_id* returns an independent session. *settings* are
        those of `session`. Raises SettingsError for an invalid setting.
        """
        return Session(Conversation(self._settings, session_id, SessionSettings(**settings)))

    @contextmanager
    def _claim(self, session_id: str) -> Iterator[OwnMemory]:
        """Yield the memory of a session; a second run at the same time gets a copy.

        The copy is not remembered.
        """
        SESSION_ID.check("session_id", session_id)
        memory = self._memories.get(session_id)
        if memory is not None and session_id in self._in_use:
            yield memory.copy()
            return
        if memory is None:
            memory = OwnMemory.empty(self._settings, session_id)
            self._memories[session_id] = memory
        self._memories.move_to_end(session_id)
        self._in_use.add(session_id)
        self._forget_unused()
        try:
            yield memory
        finally:
            self._in_use.discard(session_id)

    def _forget_unused(self) -> None:
        """Forget the sessions that were unused for the longest time, if there are too many."""
        while len(self._memories) > self._max_sessions:
            unused = next((name for name in self._memories if name not in self._in_use), None)
            if unused is None:
                return
            del self._memories[unused]


@dataclass(slots=True)
class OwnMemory:
    """Memory of one session of `ContextPipeline.run`, whose caller continues with the context.

    *replaced* is the first message of the last input that the stages replaced, with its index in
    the input, which had *input_count* messages. *has_warned* is True once a warning was logged that
    it came back.
    """

    state: State
    journal: Memory
    session_id: str
    replaced: tuple[int, Message] | None = dataclasses.field(default=None, repr=False)
    input_count: int = 0
    has_warned: bool = False

    @classmethod
    def empty(cls, settings: PipelineSettings, session_id: str) -> Self:
        """Return the memory of a new session."""
        state = settings.new_state()
        return cls(state, Memory(session_id, state, adopts=True), session_id)

    def copy(self) -> Self:
        """Return a copy for a turn that runs at the same time as another one."""
        copied = self.empty(self.state.settings, self.session_id)
        copied.journal.timeline.apply(self.journal.timeline.snapshot())
        copied.state.ledger.load(self.state.ledger.samples)
        return copied

    def new_turn(self, messages: Sequence[MessageLike], request: Request) -> TurnRun:
        """Return the turn that continues this session with *messages*."""
        history = cast("list[Message]", messages)
        self._warn_of_full_history(history)
        return TurnRun(self.session_id, history, request, self.state, self.journal)

    def apply(self, run: TurnRun) -> None:
        """Make the context of *run* the history. Its notices are for sessions only."""
        self.journal.apply(run.step)
        self.journal.notices.take()
        self.input_count = len(run.history)
        first_changed = run.result.first_changed_index
        if first_changed is None or run.problems:
            self.replaced = None
        elif first_changed < len(run.history):
            self.replaced = (first_changed, run.history[first_changed])
        self.state.end_turn(len(self.journal.timeline.context))

    def _warn_of_full_history(self, messages: Sequence[Message]) -> None:
        """Log a warning, once, if *messages* still have what the stages removed in the last turn.

        A caller who passes the complete history in each turn pays for each summary again.
        """
        if self.has_warned or self.replaced is None:
            return
        index, message = self.replaced
        # The same input again is a second attempt, for example after a refusal.
        if len(messages) > self.input_count and messages[index] == message:
            self.has_warned = True
            logger.warning(
                "session %s: message %d of the history is what the last turn has replaced, so all "
                "that was removed comes back, and is removed and paid for again; continue with "
                "result.messages, or use pipeline.session(…).run, which takes the full history",
                self.session_id[:40],
                index,
            )


def _doubts(stages: Sequence[Stage], new: Stage) -> Iterator[str]:
    """Yield a warning for each problem with adding the stage *new* after *stages*."""
    name = stage_name(new)
    for stage in stages:
        other = stage_name(stage)
        if isinstance(new, _STAGES_BEFORE.get(type(stage), ())):
            yield (
                f"the stage {other} comes before {name}, and leaves it little to do; "
                f"add {other} after it"
            )
        elif {type(stage), type(new)} == _RIVALS:
            yield (
                f"the stages {other} and {name} both remove old results, and hinder each other; "
                "use one of them"
            )
        elif type(stage) is type(new) and isinstance(new, _ONCE):
            yield f"the stage {name} is registered twice; the second one has little left to do"


def _check_stage(stage: object) -> None:
    """Raise SettingsError unless *stage* can be called as a stage."""
    rule = (
        "a stage is an async function of one argument, the turn, "
        "or an object that can be called like one"
    )
    if isinstance(stage, type):
        name = stage.__name__
        raise SettingsError(f"a stage is the class {name}; give an object of it: {name}(…)")
    if not callable(stage):
        hint = ""
        if isinstance(stage, Iterable | ContextPipeline):
            hint = "; add its stages one by one"
        raise SettingsError(f"{rule}, and {excerpt(stage)} is not callable{hint}")
    if not takes_one(stage):
        raise SettingsError(f"{rule}, and {stage_name(stage)} cannot be called with one argument")
    if answers_at_once(stage, "Change", "Intent", "Skip"):
        raise SettingsError(f"the stage {stage_name(stage)} is not async; write `async def`")
