"""Stages in order, run once per turn: what a user builds and calls."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

from ._logs import logger
from .conversation import walk
from .conversation.align import align_with_last
from .conversation.commit import keep
from .conversation.conversation import CACHE_SECONDS, Conversation
from .conversation.gate import as_stages
from .conversation.stages import stage_name
from .conversation.state import PipelineSettings, Request, State, Thinking, Veto
from .errors import SettingsError
from .messages import Message, field
from .providers.prices import PRICES, Prices
from .session.session import Session, conversation_of
from .session.sessions import Held
from .settings import (
    COUNT,
    FUNCTION,
    SESSION_ID,
    Wanted,
    answers_at_once,
    excerpt,
    instance_of,
    one_of,
    takes_one,
)
from .stages.collapse import Collapse
from .stages.compact import Compact
from .stages.media import MediaOffload
from .stages.offload import BatchOffload, DirectOffload
from .stages.protocol import Stage
from .stages.read_backs import TrimReadBacks
from .stages.reports import Result, StageReport
from .stages.truncate import SmartTruncate
from .storage import JournalStorage
from .storage.generations import Generation
from .tokens import Budget, TokenCounter, as_counter
from .tokens.billed import check_usage
from .tokens.counter import COUNTING

__all__ = ["ContextPipeline"]

# What comes first leaves less for what comes after it: files cost nothing, a summary loses detail,
# and truncation loses all.
_FILING = (DirectOffload, TrimReadBacks, MediaOffload, BatchOffload, Collapse)
_LATER = {Compact: _FILING, SmartTruncate: (*_FILING, Compact)}
_RIVALS = frozenset({BatchOffload, Collapse})
_ONCE = (TrimReadBacks, MediaOffload, Collapse, Compact, SmartTruncate)

_BUDGET = instance_of(Budget, "a Budget such as Budget(window=200_000)").optional


def _is_list_of_stages(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | type)


_STAGES = Wanted(
    _is_list_of_stages, "a list of stages such as [DirectOffload(LocalStorage('.ctxpipe'))]"
)


class ContextPipeline:
    """Stages that shape an agent's context, run once per turn in the order they were added.

    *budget* says when the context is too long and what to bring it down to; *counter* counts, each
    distinct text once. *on_report* is called with each stage's report; an error in it is logged and
    ends there. *veto* may refuse a proposal before it counts. With ``on_error="raise"`` an error of
    a stage is raised instead of reported. At most *max_sessions* sessions are remembered, the
    longest unused is forgotten first, but none that is in use or holds what is in no journal yet:
    forgetting one costs time, nothing else. Where such sessions alone are too many and cannot be
    written, some are given up, each with a notice.

    Newer models bind thinking to the text before it by a signature. Where a stage has rewritten
    that text, *thinking* says what follows: with "keep" the blocks stay and
    ``Result.request_options`` asks the API to ignore those with a stale signature; with "strip"
    exactly these go (never inside an open tool loop); with "protect" nothing before them is
    rewritten.

    With *prices* (``prices_of(model)``) each report says what a change burns and saves in
    dollars.

    Raises SettingsError for an invalid setting.
    """

    def __init__(
        self,
        stages: Iterable[Stage] = (),
        *,
        budget: Budget | None = None,
        counter: TokenCounter | Callable[[str], int] | None = None,
        on_report: Callable[[StageReport], object] | None = None,
        veto: Veto | None = None,
        on_error: Literal["skip", "raise"] = "skip",
        thinking: Thinking = "keep",
        prices: Prices | None = None,
        max_sessions: int = 10_000,
    ) -> None:
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
        self._doubts: set[str] = set()  # that were warned of
        self._max_sessions = max_sessions
        self._states: OrderedDict[str, State] = OrderedDict()
        self._sessions = Held(max_sessions, lambda _: 1)
        for stage in stages:
            self.use(stage)

    def __repr__(self) -> str:
        names = ", ".join(map(stage_name, self._settings.stages))
        return f"<ContextPipeline: {names or 'no stages'}>"

    @property
    def budget(self) -> Budget:
        """When the context is too long, and what to bring it down to."""
        return self._settings.budget

    @property
    def max_sessions(self) -> int:
        """How many sessions are remembered at most."""
        return self._max_sessions

    @property
    def counter(self) -> TokenCounter:
        """The one counter behind every decision."""
        return self._settings.counter

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order in which they run."""
        return tuple(self._settings.stages)

    def use(self, stage: Stage) -> Self:
        """Add *stage* after the ones already here.

        An order that is valid and hardly meant is warned of in the log, once.

        Raises SettingsError for what can be no stage: a class, a function that is not async, or
        anything that cannot be called with a turn.
        """
        _check_stage(stage)
        for doubt in _doubts(self._settings.stages, stage):
            if doubt not in self._doubts:
                self._doubts.add(doubt)
                logger.warning("%s", doubt)
        self._settings.stages.append(stage)
        return self

    async def run(
        self,
        messages: list[Message],
        *,
        session_id: str,
        system: object = None,
        tools: Iterable[object] | None = None,
        force: bool = False,
        request: Mapping[str, object] | None = None,
    ) -> Result:
        """Shape *messages* for the next model call; go on with ``result.messages``.

        *messages* is never modified. When nothing is broken and no stage has anything to do, the
        result holds the very same list. *system* and *tools* of the request are counted into the
        context. With *force* the stages act even below their thresholds: the model has said that
        the context is too long. *request* are the call's own arguments where they concern thinking
        (thinking, betas, extra_headers, extra_body), which ``request_options`` of the result must
        carry on.

        It is not known here which model the agent uses, so `Compact` without a summarizer collects
        the summary from the messages, and warns once in a session: give it one that asks a model,
        as in ``Compact(AnthropicSummarizer(client), …)``.

        Raises InvalidHistory when *messages* is not a valid message list, before anything is
        written.
        """
        with self._claim(session_id) as state:
            given = Request(system, tools, request or {}, force)
            step = await align_with_last(state, messages)
            with Generation(session_id).running():
                result = await as_stages(walk.run(step, session_id, state, given))
            keep(state, step, result.messages)
            return result

    async def plan(
        self,
        messages: list[Message],
        *,
        session_id: str,
        system: object = None,
        tools: Iterable[object] | None = None,
        force: bool = False,
    ) -> Result:
        """What `run` would do, with no write and no model call.

        The reports say which stage would act on what; one that cannot know its outcome beforehand
        says so, and the stages after it are judged on the context without it. ``result.messages``
        is the context as far as known.
        """
        SESSION_ID.check("session_id", session_id)
        return await walk.plan(
            self._settings, messages, session_id, Request(system, tools, {}, force)
        )

    def observe(
        self,
        usage: object,
        messages: Sequence[Message],
        *,
        session_id: str,
        model: str | None = None,
    ) -> None:
        """Calibrate the session's estimates with the *usage* reported for *messages*.

        *usage* is an SDK object or a mapping; a whole reply will do as well. Raises SettingsError
        for what holds no usage.
        """
        check_usage(usage)
        if model is None:
            model = field(usage, "model")
        with self._claim(session_id) as state:
            state.ledger.observe(usage, messages, overhead=state.overhead.tokens, model=model)

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
        """The conversation *session_id*, which remembers what context a history has become.

        See `Session`. It is the same one each time, as long as it is one of the *max_sessions* used
        last. With *journal* the history and all that the session knows survive the process:
        entries hold the texts unless *history* is False, and are signed with *signing_key* (16
        bytes or more; of a list the first signs, all verify). With *lease_seconds* a turn waits up
        to that long for another process to end its own, which saves a second summary where the
        journal's storage can do that. *store_seconds* is how long a turn waits for all its stores
        together, by default STORE_SECONDS. With *verify* edits inside messages of earlier turns are
        noticed too. *cache_seconds* is how long the provider's prompt cache keeps; from
        an hour on, `Session.create` has it keep for an hour what is marked.

        Raises SettingsError for settings of the wrong type, and when the session is in use with
        another journal, or none.
        """
        SESSION_ID.check("session_id", session_id)
        with self._sessions.lock:
            known = self._sessions.find(session_id)
            if known is not None and journal is not None and known.journal != journal:
                raise SettingsError(
                    f"session {excerpt(session_id)} is in use with another journal, or without one"
                )
            if known is None:
                session = self.new_session(
                    session_id,
                    journal=journal,
                    verify=verify,
                    cache_seconds=cache_seconds,
                    clock=clock,
                    history=history,
                    signing_key=signing_key,
                    lease_seconds=lease_seconds,
                    store_seconds=store_seconds,
                )
                known = conversation_of(session)
            known.reopen()
            self._sessions.add(known)
            return Session(known)

    def new_session(self, session_id: str, **settings: Any) -> Session:
        """As `session`, but a new one, which the pipeline does not hold.

        Raises SettingsError.
        """
        return Session(Conversation(self._settings, session_id, **settings))

    @contextmanager
    def _claim(self, session_id: str) -> Iterator[State]:
        """What is remembered about the session.

        A second run at the same time starts without memory.
        """
        SESSION_ID.check("session_id", session_id)
        state = self._states.get(session_id)
        if state is None or state.busy:
            state = self._settings.new_state()
            self._states.setdefault(session_id, state)
        self._states.move_to_end(session_id)
        while len(self._states) > self._max_sessions:
            self._states.popitem(last=False)
        state.busy = True
        try:
            yield state
        finally:
            state.busy = False


def _doubts(stages: Sequence[Stage], new: Stage) -> Iterator[str]:
    """What is hardly meant where the stage *new* comes after *stages*."""
    name = stage_name(new)
    for stage in stages:
        other = stage_name(stage)
        if isinstance(new, _LATER.get(type(stage), ())):
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
            yield f"the stage {name} is there twice; the second finds little left to do"


def _check_stage(stage: object) -> None:
    """Raise SettingsError unless *stage* can be one."""
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
