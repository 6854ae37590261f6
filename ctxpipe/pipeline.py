"""Run the stages over a turn, in order: guard, time and report each."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from .edits.repair import repair
from .errors import SettingsError
from .messages import CacheMarks, check, ensure_messages
from .reports import Outcome, Result, StageReport
from .stage import Change, Intent, PlannedStage, Proposal, Rewindable, Skip, Stage, Turn
from .tokens import Budget, Ledger, TokenCounter, as_counter

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from .messages import Message

__all__ = ["ContextPipeline", "Veto"]

logger = logging.getLogger("ctxpipe")

Veto: TypeAlias = Callable[[Turn, Change], bool | str]
"""Looks at a proposal before it counts; True, or a sentence that says why, refuses it."""

_Request: TypeAlias = tuple[object, Iterable[object] | None]
"""The system prompt and the tools of the request."""

_LEVELS = {Outcome.FAILED: logging.WARNING, Outcome.REFUSED: logging.WARNING, Outcome.SKIPPED: logging.DEBUG}


@dataclass(slots=True)
class _Session:
    """What is remembered about one conversation, for speed and for breakers: never what decides an outcome."""

    ledger: Ledger
    memories: list[dict[object, object]]
    context: list[Message] = field(default_factory=list)  # as the last run returned it
    marks: CacheMarks = field(default_factory=CacheMarks)
    overhead: tuple[object, object, int] = (None, None, 0)
    busy: bool = False

    def rewind(self, known: int) -> None:
        """Tell every record that the context has changed behind the first *known* messages."""
        self.ledger.rewind(known)
        self.marks.rewind(known)
        del self.context[known:]
        for memory in self.memories:
            for record in memory.values():
                if isinstance(record, Rewindable):
                    record.rewind(known)


class ContextPipeline:
    """Stages that shape an agent's context, run once per turn in the order in which they were added. Source: PL-1.

    *budget* says when the context is too long and what to bring it down to; *counter* counts, each distinct text once.
    *on_report* is called with each stage's report; an error in it is logged and ends there. *veto* may refuse a
    proposal before it counts. With ``on_error="raise"`` an error of a stage is raised instead of reported. At most
    *max_sessions* sessions are remembered, the longest unused goes first; forgetting one costs time, nothing else.
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
        max_sessions: int = 10_000,
    ) -> None:
        if on_error not in ("skip", "raise"):
            raise SettingsError(f"on_error is {on_error!r}, not 'skip' or 'raise'")
        if max_sessions < 1:
            raise SettingsError(f"max_sessions is {max_sessions}; at least 1 is needed")
        self.budget = budget if budget is not None else Budget()
        self.counter = as_counter(counter)
        self._stages: list[Stage] = []
        self._on_report = on_report
        self._veto = veto
        self._on_error = on_error
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        for stage in stages:
            self.use(stage)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order in which they run."""
        return tuple(self._stages)

    def use(self, stage: Stage) -> Self:
        """Add *stage* behind the ones already here. Raises SettingsError when it is not callable."""
        if not callable(stage):
            raise SettingsError(f"a stage is an async callable (turn) -> proposal, and {stage!r} is not callable")
        self._stages.append(stage)
        self._sessions.clear()  # what was remembered belongs to the former stages
        return self

    async def run(
        self,
        messages: list[Message],
        *,
        session_id: str,
        system: object = None,
        tools: Iterable[object] | None = None,
        force: bool = False,
    ) -> Result:
        """Shape *messages* for the next model call; go on with ``result.messages``.

        *messages* is never modified. When nothing is broken and no stage has anything to do, the result holds the
        very same list. *system* and *tools* of the request are counted into the context. With *force* the stages act
        even below their thresholds: the model has said that the context is too long.

        Raises InvalidHistory when *messages* has not the shape of messages, before anything is written.
        """
        with _span("ctxpipe.run", session_id), self._claimed(session_id) as session:
            return await self._run(messages, session_id, session, (system, tools), force)

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

        The reports say which stage would act on what; one that cannot know its outcome beforehand says so, and the
        stages behind it are judged on the context without it. ``result.messages`` is the context as far as known.
        """
        session = self._new_session()
        ensure_messages(messages)
        turn = Turn(
            repair(messages),
            session_id,
            force,
            self.budget,
            session.ledger,
            await self._overhead(session, system, tools),
        )
        reports = []
        for stage in self._stages:
            started = perf_counter()
            plan = await _plan(stage, turn)
            reports.append(_planned(stage, turn, plan, perf_counter() - started))
            if isinstance(plan, Change):
                turn = replace(turn, messages=plan.messages)
        return Result(list(turn.messages), tuple(reports), tuple(check(messages)))

    def observe(self, usage: object, messages: Sequence[Message], *, session_id: str, model: str | None = None) -> None:
        """Calibrate the session's estimates with the *usage* that the API reported for *messages*."""
        with self._claimed(session_id) as session:
            session.ledger.observe(usage, messages, overhead=session.overhead[2], model=model)

    # One run ------------------------------------------------------------------------------------------------------

    async def _run(
        self,
        given: list[Message],
        session_id: str,
        session: _Session,
        request: _Request,
        force: bool,
    ) -> Result:
        known = _common_prefix(session.context, given)
        session.rewind(known)
        ensure_messages(given, known)
        problems = (*check(given, max(0, known - 1)), *session.marks.problems(given))
        # What cannot be encoded stays for now: the stages store it as it is.
        messages = repair(given, encoding=False) if problems else given
        session.rewind(_first_difference(given, messages))
        overhead = await self._overhead(session, *request)
        turn = Turn(messages, session_id, force, self.budget, session.ledger, overhead, tracked=True)
        reports: list[StageReport] = []
        for stage, memory in zip(self._stages, session.memories, strict=True):
            change, report = await self._step(stage, replace(turn, memory=memory))
            reports.append(report)
            if change is not None:
                session.rewind(report.first_changed_index or 0)
                turn = replace(turn, messages=change.messages)
        context = messages = turn.messages if isinstance(turn.messages, list) else list(turn.messages)
        if problems:
            context = repair(messages)
            session.rewind(_first_difference(messages, context))
        session.context += context[len(session.context) :]
        return Result(context, tuple(reports), tuple(dict.fromkeys(problems)))

    async def _step(self, stage: Stage, turn: Turn) -> tuple[Change | None, StageReport]:
        """Ask one stage, and report on it; the change is None unless it counts."""
        started = perf_counter()
        change: Change | None = None
        with _span(f"ctxpipe.{_name(stage)}", turn.session_id) as span:
            try:
                proposal = await stage(turn)
                change, report = await self._judged(stage, turn, proposal)
            except Exception as error:  # noqa: BLE001  the turn goes on without this stage; cancellation is no Exception
                report = StageReport(_name(stage), turn.session_id, Outcome.FAILED, 0.0, str(error), error=error)
            report = replace(report, seconds=perf_counter() - started)
            span.set_attribute("ctxpipe.outcome", report.outcome.value)
        self._tell(report)
        if report.error is not None and self._on_error == "raise":
            raise report.error
        return change, report

    async def _judged(self, stage: Stage, turn: Turn, proposal: Proposal) -> tuple[Change | None, StageReport]:
        report = StageReport(_name(stage), turn.session_id, Outcome.SKIPPED, 0.0)
        if not isinstance(proposal, Change):
            reason, detail = (proposal.reason, proposal.detail) if isinstance(proposal, Skip) else ("", None)
            return None, replace(report, reason=reason, detail=detail)
        first = _first_difference(turn.messages, proposal.messages)
        if first == len(turn.messages) == len(proposal.messages):
            return None, replace(report, reason="the proposal changes nothing", detail=proposal.detail)
        refusal = await self._refusal(turn, proposal, first)
        if refusal:
            return None, replace(report, outcome=Outcome.REFUSED, reason=refusal, detail=proposal.detail)
        return proposal, replace(
            report,
            outcome=Outcome.CHANGED,
            detail=proposal.detail,
            tokens_saved=proposal.tokens_saved,
            first_changed_index=first,
        )

    async def _refusal(self, turn: Turn, change: Change, first: int) -> str:
        """Why *change* must not count, "" when it may."""
        ensure_messages(change.messages, first)
        problems = check(change.messages, max(0, first - 1), encoding=False)
        if problems:
            return f"it would break a rule of the Messages API: {problems[0]}"
        if not change.may_grow and not await _shrinks(turn, change, first):
            return "it would not save a single token"
        verdict = self._veto(turn, change) if self._veto else False
        return verdict if isinstance(verdict, str) else "vetoed" if verdict else ""

    def _tell(self, report: StageReport) -> None:
        level = _LEVELS.get(report.outcome, logging.INFO)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", report, exc_info=report.error)
        if self._on_report is None:
            return
        try:
            self._on_report(report)
        except Exception:
            logger.exception("on_report failed; the turn goes on")

    # Sessions -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _claimed(self, session_id: str) -> Iterator[_Session]:
        """What is remembered about the session; a second run at the same time starts without memory."""
        session = self._sessions.get(session_id)
        if session is None or session.busy:
            session = self._new_session()
            self._sessions.setdefault(session_id, session)
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)
        session.busy = True
        try:
            yield session
        finally:
            session.busy = False

    def _new_session(self) -> _Session:
        return _Session(Ledger(self.counter), [{} for _ in self._stages])

    async def _overhead(self, session: _Session, system: object, tools: Iterable[object] | None) -> int:
        """Raw tokens of the system prompt and the tools, counted once as long as they stay the same (A-64)."""
        if session.overhead[:2] != (system, tools):
            session.overhead = (system, tools, await self.counter.count([], system=system, tools=tools))
        return session.overhead[2]


def _common_prefix(before: list[Message], after: list[Message]) -> int:
    """How many leading messages are equal. Equal lists compare in C, at about 10 ns a message."""
    low, high = 0, min(len(before), len(after))
    if before == after[:high] if len(before) == high else before[:high] == after[:high]:
        return high
    while low < high:  # the first half is equal, or the difference lies in it
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _first_difference(before: Sequence[Message], after: Sequence[Message]) -> int:
    """The first index at which the lists differ; their length when they are the same."""
    if before is after:
        return len(before)
    pairs = enumerate(zip(before, after, strict=False))
    return next((i for i, (old, new) in pairs if old is not new and old != new), min(len(before), len(after)))


async def _shrinks(turn: Turn, change: Change, first: int) -> bool:
    """Whether the change saves tokens. Only what changed is looked at, and of the old text no more than is needed."""
    before, after = list(turn.messages[first:]), change.messages[first:]
    if len(before) == len(after):
        pairs = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
        before, after = [old for old, _ in pairs], [new for _, new in pairs]
    return turn.counter.over(before, await turn.counter.count(after))


async def _plan(stage: Stage, turn: Turn) -> Change | Skip | Intent | None:
    planned: object = stage
    if isinstance(planned, PlannedStage):
        return await planned.plan(turn)
    return Intent("it cannot say beforehand: it has no plan of its own")


def _planned(stage: Stage, turn: Turn, plan: Change | Skip | Intent | None, seconds: float) -> StageReport:
    report = StageReport(_name(stage), turn.session_id, Outcome.SKIPPED, seconds)
    if isinstance(plan, Change):
        first = _first_difference(turn.messages, plan.messages)
        return replace(report, outcome=Outcome.PLANNED, detail=plan.detail, first_changed_index=first)
    if isinstance(plan, Intent):
        return replace(report, outcome=Outcome.PLANNED, reason=plan.reason)
    return replace(report, reason=plan.reason, detail=plan.detail) if plan else report


def _name(stage: Stage) -> str:
    return getattr(stage, "__name__", None) or type(stage).__name__


@cache
def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer("ctxpipe")


@contextmanager
def _span(name: str, session_id: str) -> Iterator[Span]:
    """An OpenTelemetry span; it does nothing as long as no SDK is configured."""
    with _tracer().start_as_current_span(name, attributes={"ctxpipe.session_id": session_id}) as span:
        yield span
