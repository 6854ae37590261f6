"""Run the stages over a turn, in order: guard, time and report each."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import isawaitable
from itertools import accumulate
from operator import is_
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from .._logs import logger
from .._threads.threads import in_thread, in_thread_if
from ..edits.diff import apply_edits
from ..edits.offload import first_batch_placeholder
from ..edits.repair import repair
from ..edits.thinking import Stale, drop_block, mark_stale, strip
from ..errors import InvalidHistory, SessionDeleted, SettingsError, safe_text
from ..messages import (
    THINKING,
    CacheMarks,
    Message,
    Problem,
    blocks,
    check,
    common_prefix,
    ensure_messages,
    has_thinking,
    is_bulky,
    is_equal,
)
from ..messages import field as read
from ..messages.identity import parse_from
from ..messages.rules import MarksBeside, is_for_hour
from ..placeholders.notes import note_of
from ..providers.prices import Prices, RewriteCost, context_window, rewrite_cost
from ..settings import FLAG, MAPPING, excerpt
from ..stages.protocol import Change, Intent, PlannedStage, Proposal, Skip, Stage, Tracked, Turn
from ..stages.reports import Compacted, Detail, Offloaded, Outcome, Result, StageReport
from ..tokens import Budget, Ledger, TokenCounter
from .timeline import Step

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from opentelemetry.trace import Span, Tracer


_MANY_COMPARED = 5_000  # messages that are compared one by one in a few milliseconds


Veto: TypeAlias = Callable[[Turn, Change], bool | str]
"""Looks at a proposal before it counts; True, or a sentence that says why, refuses it."""

Thinking: TypeAlias = Literal["keep", "strip", "protect"]
"""What becomes of thinking blocks after a rewritten message, which newer models refuse."""


_LEVELS = {
    Outcome.FAILED: logging.WARNING,
    Outcome.REFUSED: logging.WARNING,
    Outcome.SKIPPED: logging.DEBUG,
}


@dataclass(frozen=True, slots=True)
class Request:
    """What matters here of a model request, beside the messages."""

    system: object = field(default=None, repr=False)
    tools: Iterable[object] | None = field(default=None, repr=False)
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    force: bool = False
    cache_expired: bool = False
    client: AsyncAnthropic | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.tools, str | bytes | Mapping):
            raise SettingsError(
                f"tools is {excerpt(self.tools)}; "
                "give the list of tools that the request is sent with"
            )
        MAPPING.check("request", self.options)
        FLAG.check("force", self.force)


class Overhead(NamedTuple):
    """What was beside the messages in the last request, and its raw *tokens*."""

    system: object = None
    tools: Iterable[object] | None = None
    tokens: int = 0

    def __repr__(self) -> str:
        return f"Overhead({self.tokens:,} tokens)"


@dataclass(slots=True)
class Record:
    """What is remembered about one conversation, for speed and for circuit breakers.

    It never decides an outcome. The sums agree with the first *agreed* messages of what was kept
    last. *given* and *context* are what the last run returned, as it was sent and in plain form,
    and *stale* its thinking with stale signatures. A session knows these three better, and leaves
    them empty. *memories* are by the stage's place, *windows* by model: the size above which it has
    refused a request.
    """

    ledger: Ledger
    agreed: int = 0
    memories: dict[int, dict[object, object]] = field(default_factory=dict, repr=False)
    given: list[Message] = field(default_factory=list, repr=False)
    context: list[Message] = field(default_factory=list, repr=False)
    stale: Stale = field(default_factory=dict)
    marks: CacheMarks = field(default_factory=CacheMarks)
    overhead: Overhead = Overhead()
    windows: dict[str | None, int] = field(default_factory=dict)
    busy: bool = False

    def cut(self, length: int) -> None:
        """Tell every sum that the context has changed after its first *length* messages."""
        self.agreed = min(self.agreed, length)
        self.ledger.rewind(length)
        self.marks.rewind(length)
        for memory in self.memories.values():
            for record in memory.values():
                # To ask whether it is of a protocol takes forty times as long.
                rewind = getattr(record, "rewind", None)
                if rewind is not None:
                    rewind(length)

    def keep(self, length: int) -> None:
        """What the sums say holds: the next turn goes on from this context of *length* messages."""
        self.agreed = length

    def begin(self, messages: list[Message]) -> Step:
        """The step of a caller who goes on with the list returned last. Raises InvalidHistory."""
        untyped: object = messages  # whatever its type says
        if not isinstance(untyped, list):
            ensure_messages(untyped)  # raises
        # Agents add results to the last message in place.
        same = max(0, min(common_prefix(self.given, messages), len(self.given) - 1))
        ensure_messages(messages, same)
        plain = parse_from(messages, same)
        was_plain = all(map(is_, self.context[:same], self.given))
        if was_plain and all(map(is_, plain, messages[same:])):
            context = messages
        else:
            context = [*self.context[:same], *plain]
        return Step(
            known=0,
            adopted=False,
            messages=[],
            stale={place: block for place, block in self.stale.items() if place < same},
            given=messages,
            context=context,
            kept=same,
            same=same,
        )

    def end(self, step: Step, sent: list[Message]) -> None:
        """Remember what has become of *step*."""
        self.given = list(sent)  # the caller may append to his
        if step.given is step.context:
            self.context = self.given
        else:
            self.context = apply_edits(step.context, step.edits)
        self.stale = step.stale
        self.keep(len(sent))


def model_of(record: Record, options: Mapping[str, object]) -> str | None:
    """The model that a request with *options* goes to.

    Where they name none, it is the one that answered last.
    """
    model = options.get("model")
    return model if isinstance(model, str) else record.ledger.model


@dataclass(slots=True)
class Runner:
    """The stages and all that guards them.

    What is remembered about a conversation comes in as a `Record`.
    """

    budget: Budget
    counter: TokenCounter
    on_report: Callable[[StageReport], object] | None = None
    veto: Veto | None = None
    on_error: Literal["skip", "raise"] = "skip"
    thinking: Thinking = "keep"
    prices: Prices | None = None
    stages: list[Stage] = field(default_factory=list)

    def new_record(self) -> Record:
        """An empty memory for one conversation."""
        return Record(Ledger(self.counter))

    def budget_for(self, record: Record, options: Mapping[str, object]) -> Budget:
        """The budget of a request with *options*.

        It is lower where the model has refused less, and where the budget names no window and that
        of the model is known to be smaller.
        """
        model = model_of(record, options)
        window = record.windows.get(model, self.budget.window)
        if self.budget.is_default and model is not None:
            window = min(window, context_window(model) or window)
        return self.budget.within(window)

    async def run(
        self,
        step: Step,
        session_id: str,
        record: Record,
        request: Request,
        stages: Mapping[int, Stage] | None = None,
    ) -> Result:
        """Shape the context of *step* with the memory of *record*, which must be in no other run.

        The result is also noted in *step*. When *stages* are given, by their places, only these
        take part.
        """
        tracer = _tracer()
        if tracer is None:
            return await self._shape(step, session_id, record, request, _RUN, stages)
        act = replace(_RUN, tracer=tracer)
        with _span(tracer, "run", session_id) as span:
            result = await self._shape(step, session_id, record, request, act, stages)
            _set_token_attributes(span, result)
            span.set_attribute("ctxpipe.messages", len(result.messages))
            span.set_attribute("ctxpipe.repaired", len(result.repaired))
            return result

    async def plan(self, messages: list[Message], session_id: str, request: Request) -> Result:
        """What `run` would do, with no write and no model call."""
        record = self.new_record()
        step = await in_thread_if(is_long(messages), record.begin, messages)
        return await self._shape(step, session_id, record, request, _PLAN)

    async def _shape(
        self,
        step: Step,
        session_id: str,
        record: Record,
        request: Request,
        act: _Act,
        stages: Mapping[int, Stage] | None = None,
    ) -> Result:
        step.same = min(step.same, record.agreed)  # a turn that failed may have left less
        record.cut(step.same)
        start = max(0, step.same - 1)
        is_bulk = step.agreement.is_bulk
        if is_bulk is None or step.same < step.kept:
            is_bulk = is_bulky(step.context, start)
        messages, problems = await in_thread_if(is_bulk, self._repair, step, record, request)
        repaired = step.forget_changes()  # the model has seen it repaired, or not at all
        turn = await self._make_turn(
            messages, session_id, record, request, step.agreement.raw, Tracked(start, is_bulk)
        )
        before = await self._count_tokens(turn)
        if not stages:
            stages = dict(enumerate(self.stages))
        turn, reports, after = await self._ask_stages(act, stages, turn, before, step, record)
        if step.touched.first is not None:
            is_bulk = is_bulky(turn.messages)  # what was bulky may have left
        messages = turn.messages if isinstance(turn.messages, list) else list(turn.messages)
        options, context = await in_thread_if(
            is_bulk, self._finish, messages, step, record, request, bool(problems)
        )
        if context is not turn.messages:
            after = await self._count_tokens(replace(turn, messages=context))
        step.touched.first = _first_place(repaired, step.touched.first)
        first, end = _range_of_changes(step.touched.first, step, context)
        return Result(
            _messages_to_send(step, context),
            tuple(reports),
            problems,
            options,
            first_changed_index=first,
            changed_end=end,
            tokens_before=before,
            tokens_after=after,
        )

    def _repair(
        self, step: Step, record: Record, request: Request
    ) -> tuple[list[Message], tuple[Problem, ...]]:
        """The context of *step* repaired, and what was broken.

        Only what is new since the last run is looked at.
        """
        same = step.same
        context = apply_edits(step.context, step.edits) if step.edits else step.context
        if not step.kept and _index_after_thinking(context):
            place = _first_rewritten(context)
            if place is not None:
                mark_stale(step.stale, context, place)
        # A reply that was the last message may have called what is answered only now.
        start = same
        if same and context[same - 1]["role"] == "assistant":
            start = same - 1
        beside = _marks_beside(request)
        problems = check(context, start, marks=record.marks, beside=beside)
        for problem in problems:
            if problem.rule == "value":
                raise InvalidHistory(str(problem))  # it cannot be repaired
        # Lone surrogates stay for now: the stages store them as they are.
        repaired = context
        if problems:
            repaired = repair(context, encoding=False, beside=beside)
            _note_edits(step, record, context, repaired)
        return repaired, tuple(dict.fromkeys(problems))

    async def _ask_stages(
        self,
        act: _Act,
        stages: Mapping[int, Stage],
        turn: Turn,
        tokens: int,
        step: Step,
        record: Record,
    ) -> tuple[Turn, list[StageReport], int]:
        """The turn after all *stages*, their reports, and the number of tokens left of *tokens*."""
        reports: list[StageReport] = []
        for place, stage in stages.items():
            stage_turn = _with_memory(turn, record.memories.setdefault(place, {}))
            if act.tracer is None:
                change, report = await self._ask_stage(act, stage, stage_turn, tokens)
            else:
                change, report = await self._trace_stage(act, stage, stage_turn, tokens, act.tracer)
            reports.append(report)
            tokens = report.tokens_after
            if change is None:
                continue
            is_summary = isinstance(change.detail, Compacted)
            _note_edits(step, record, turn.messages, change.messages, paired=not is_summary)
            if change.stored:
                step.stored.append(change.stored)
            turn = replace(turn, messages=change.messages)
        return turn, reports, tokens

    def _finish(
        self, context: list[Message], step: Step, record: Record, request: Request, was_broken: bool
    ) -> tuple[Mapping[str, object], list[Message]]:
        """The options that the request needs, and the context to send, once the stages are done."""
        options, context = self._handle_stale_thinking(context, step, record, request)
        if was_broken:
            repaired = repair(context, beside=_marks_beside(request))
            _note_edits(step, record, context, repaired)
            context = repaired
        return options, context

    async def _count_tokens(self, turn: Turn) -> int:
        """The raw tokens of the context; 0 when the counter cannot count it.

        The ledger counts only what is new.
        """
        try:
            return await turn.raw_tokens()
        except Exception as error:
            if self.on_error == "raise":
                raise
            session, reason = turn.session_id[:40], safe_text(error)
            logger.warning("the context of session %r cannot be counted: %s", session, reason)
            logger.debug("the counter failed with", exc_info=error)
            return 0

    def _handle_stale_thinking(
        self, context: list[Message], step: Step, record: Record, request: Request
    ) -> tuple[Mapping[str, object], list[Message]]:
        """What the request needs because signatures of thinking are stale, and what to send."""
        if step.touched.first is not None:
            mark_stale(step.stale, context, step.touched.first)
        _forget_missing(step.stale, context)
        if not step.stale:
            return {}, context
        if self.thinking == "strip":
            context = self._strip_stale_thinking(context, step, record)
            if not step.stale:
                return {}, context
        return drop_block(request.options), context

    def _strip_stale_thinking(
        self, context: list[Message], step: Step, record: Record
    ) -> list[Message]:
        if strip(context, step.stale) is context:
            return context
        # What was thought after a block that goes was signed over it, too, and goes with it.
        mark_stale(step.stale, context, min(step.stale.items()))
        stripped = strip(context, step.stale)
        _note_edits(step, record, context, stripped)
        _forget_missing(step.stale, stripped)
        return stripped

    async def _trace_stage(
        self, act: _Act, stage: Stage, turn: Turn, tokens: int, tracer: Tracer
    ) -> tuple[Change | None, StageReport]:
        with _span(tracer, stage_name(stage), turn.session_id) as span:
            change, report = await self._ask_stage(act, stage, turn, tokens)
            _set_token_attributes(span, report)
            span.set_attribute("ctxpipe.outcome", report.outcome.value)
            if report.error is not None:
                span.set_attribute("error.type", type(report.error).__name__)
            return change, report

    async def _ask_stage(
        self, act: _Act, stage: Stage, turn: Turn, tokens: int
    ) -> tuple[Change | None, StageReport]:
        """Ask one stage about a turn of *tokens*, and report on it.

        The change is None unless it counts.
        """
        started = perf_counter()
        change: Change | None = None
        try:
            answer = await act.ask(stage, turn)
            change, report = await self._judge(act, stage, turn, tokens, answer, started)
        except SessionDeleted:
            raise
        # The turn goes on without this stage; cancellation is no Exception.
        except Exception as error:  # noqa: BLE001
            report = _failure_report(stage, turn, tokens, error, started)
        if act.emits:
            self._emit(report)
        if report.error is not None and self.on_error == "raise":
            raise report.error
        return change, report

    async def _judge(
        self, act: _Act, stage: Stage, turn: Turn, tokens: int, answer: _Answer, started: float
    ) -> tuple[Change | None, StageReport]:
        if isinstance(answer, Change):
            change, report = await self._judge_change(act, stage, turn, tokens, answer)
            return change, replace(report, seconds=perf_counter() - started)
        seconds = perf_counter() - started
        if isinstance(answer, Intent):
            return None, _report(stage, turn, tokens, act.outcome, seconds, answer.reason)
        if answer is None:
            answer = Skip("")
        return None, _report(
            stage, turn, tokens, Outcome.SKIPPED, seconds, answer.reason, answer.detail
        )

    async def _judge_change(
        self, act: _Act, stage: Stage, turn: Turn, tokens: int, proposal: Change
    ) -> tuple[Change | None, StageReport]:
        report = _report(
            stage,
            turn,
            tokens,
            Outcome.SKIPPED,
            0.0,
            "the proposal changes nothing",
            proposal.detail,
        )
        first = _first_difference(turn.messages, proposal.messages)
        if first == len(turn.messages) == len(proposal.messages):
            return None, report
        is_long = is_bulky(proposal.messages, first)
        await in_thread_if(is_long, ensure_messages, proposal.messages, first)
        saved = await _tokens_saved(turn, proposal, first)
        refusal = await self._refusal(turn, proposal, first, saved)
        if refusal:
            return None, replace(report, outcome=Outcome.REFUSED, reason=refusal)
        cost = None
        if self.prices:
            cost = await _cost(self.prices, turn, proposal, first)
        return proposal, replace(
            report,
            outcome=act.outcome,
            reason="",
            tokens_after=tokens - saved,
            first_changed_index=first,
            cost=cost,
        )

    async def _refusal(self, turn: Turn, change: Change, first: int, saved: int) -> str:
        """Why *change*, which saves *saved* tokens, must not count; "" when it may."""
        is_long = is_bulky(change.messages, first) or is_bulky(turn.messages, first)
        problem = await in_thread_if(is_long, _new_problem, turn, change, first)
        if problem is not None:
            return f"it would break a rule of the Messages API: {problem}"
        if first < turn.protected and _index_after_thinking(change.messages) > first:
            return "it would rewrite a message before kept thinking, which is protected"
        if not change.may_grow and saved <= 0:
            return "it would not save a single token"
        if not self.veto:
            return ""
        verdict = self.veto(turn, change)
        if isinstance(verdict, str):
            return verdict
        return "vetoed" if verdict else ""

    def _emit(self, report: StageReport) -> None:
        self._log(report)
        if self.on_report is None:
            return
        try:
            self.on_report(report)
        except Exception as error:
            # No traceback: its text may quote anything.
            logger.error("on_report failed, and the turn goes on: %s", safe_text(error))  # noqa: TRY400
            logger.debug("on_report failed with", exc_info=error)

    def _log(self, report: StageReport) -> None:
        writing = report.detail if isinstance(report.detail, Offloaded) else None
        level = _LEVELS.get(report.outcome, logging.INFO)
        if writing is not None and writing.failed:
            level = logging.WARNING
        if logger.isEnabledFor(level):
            logger.log(level, "%s", report)
        if not logger.isEnabledFor(logging.DEBUG):
            return
        # Texts of errors and paths of files, for whoever asks for them.
        if report.error is not None:
            logger.debug("%s failed with", report.stage, exc_info=report.error)
        elif writing is not None and (writing.files or writing.failed):
            logger.debug("%s wrote %s; failed: %s", report.stage, writing.files, writing.failed)

    async def _make_turn(
        self,
        messages: list[Message],
        session_id: str,
        record: Record,
        request: Request,
        raw: Sequence[Message] | None = None,
        tracked: Tracked | None = None,
    ) -> Turn:
        model = model_of(record, request.options)
        if self.budget.is_default and model is not None and not context_window.cache_info().misses:
            await in_thread(context_window, model)  # it reads the list
        protected = 0
        if self.thinking == "protect":
            protected = _index_after_thinking(messages)
        return Turn(
            messages,
            session_id,
            request.force,
            self.budget_for(record, request.options),
            record.ledger,
            await self._overhead(record, request.system, request.tools),
            tracked=tracked,
            protected=protected,
            cache_expired=request.cache_expired,
            client=request.client,
            history=raw,
        )

    async def _overhead(
        self, record: Record, system: object, tools: Iterable[object] | None
    ) -> int:
        """Raw tokens of the system prompt and the tools.

        They are counted once as long as both stay the same.
        """
        known = record.overhead
        if not is_equal((known.system, known.tools), (system, tools)):
            # Lists of our own: agents add tools to theirs in place.
            if isinstance(system, list):
                system = list(system)
            if isinstance(tools, list):
                tools = list(tools)
            tokens = await self.counter.count([], system=system, tools=tools)
            record.overhead = Overhead(system, tools, tokens)
        return record.overhead.tokens


def _marks_beside(request: Request) -> MarksBeside:
    """The cache marks of the tools, the system prompt and the request as a whole.

    That of the request counts as its last.
    """
    marks: list[object] = []
    for part in (request.tools, request.system):
        if isinstance(part, list | tuple):
            marks += [mark for item in part if (mark := read(item, "cache_control"))]
    number = len(marks) + bool(read(request.options, "cache_control"))
    return MarksBeside(number, not all(map(is_for_hour, marks)))


def _with_memory(turn: Turn, memory: dict[object, object]) -> Turn:
    # Four times as fast as dataclasses.replace, and once per stage and turn.
    return Turn(
        turn.messages,
        turn.session_id,
        turn.force,
        turn.budget,
        turn.ledger,
        turn.overhead,
        memory,
        turn.tracked,
        turn.protected,
        turn.cache_expired,
        turn.client,
        turn.history,
    )


def is_long(messages: object, known: int = 0) -> bool:
    """Whether comparing *messages* with *known* ones would hold up the event loop.

    No, where it is no list.
    """
    if not isinstance(messages, list):
        return False
    return len(messages) > _MANY_COMPARED or is_bulky(messages, max(0, known - 1))


def _new_problem(turn: Turn, change: Change, first: int) -> Problem | None:
    """The first rule of the API that *change*, whose first new message is *first*, would break."""
    start = max(0, first - 1)
    # What could not be encoded before is stored as it is; the end of the run repairs it.
    was_valid = not check(turn.messages, start)
    problems = check(change.messages, start, encoding=was_valid)
    if not problems:
        problems = CacheMarks().problems(change.messages)
    return problems[0] if problems else None


def _first_difference(before: Sequence[Message], after: Sequence[Message]) -> int:
    """The first index at which the lists differ; their length when they are the same."""
    if before is after:
        return len(before)
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new and not is_equal(old, new):
            return index
    return min(len(before), len(after))


def _first_place(
    repaired: tuple[int, int] | None, changed: tuple[int, int] | None
) -> tuple[int, int] | None:
    """The first place that repair or a stage has changed, None when neither has."""
    if repaired is None or changed is None:
        return repaired or changed
    return min(repaired, changed)


def _range_of_changes(
    first_place: tuple[int, int] | None, step: Step, context: list[Message]
) -> tuple[int | None, int | None]:
    """The messages of *context* that have changed, half-open; (None, None) when none has."""
    if first_place is None:
        return None, None
    return first_place[0], len(context) - step.touched.tail


def _note_edits(
    step: Step,
    record: Record,
    before: Sequence[Message],
    after: list[Message],
    *,
    paired: bool = True,
) -> None:
    """Tell *step* and *record* from where on *after* differs from *before*."""
    if after is before:
        return
    edits = step.edit(before, after, paired=paired)
    record.cut(edits[-1].start if edits else len(before))


def _messages_to_send(step: Step, context: list[Message]) -> list[Message]:
    """What to send for *context*: the caller's own objects wherever no edit has touched them."""
    if step.given is step.context:
        return context
    if not step.edits:
        return step.given
    return apply_edits(step.given, step.edits)


def _forget_missing(stale: Stale, context: Sequence[Message]) -> None:
    """Forget stale thinking that is no longer in *context*."""
    for index, start in list(stale.items()):
        later = blocks(context[index])[start:]
        if not any(read(block, "type") in THINKING for block in later):
            del stale[index]


def _first_rewritten(context: Sequence[Message]) -> tuple[int, int] | None:
    """The first place where a placeholder or a note may be something else than the model saw."""
    note = next((index for index, message in enumerate(context) if note_of(message)), None)
    place = first_batch_placeholder(context)
    if note is None:
        return place
    return min((note, 0), place or (note, 0))


def _index_after_thinking(messages: Sequence[Message]) -> int:
    """The index after the last message that carries thinking, 0 when none does."""
    for end in range(len(messages), 0, -1):
        if has_thinking(messages[end - 1]):
            return end
    return 0


async def _tokens_saved(turn: Turn, change: Change, first: int) -> int:
    """The raw tokens that *change*, which begins at message *first*, takes out.

    Only what changed is counted.
    """
    sums = await turn.prefix_sums()
    old, new = turn.messages, change.messages
    if len(old) != len(new):
        return sums[-1] - sums[first] - await turn.counter.count(new[first:])
    before = 0
    changed: list[Message] = []
    for index in range(first, len(new)):
        if new[index] is not old[index]:
            before += sums[index + 1] - sums[index]
            changed.append(new[index])
    return before - await turn.counter.count(changed)


async def _cost(prices: Prices, turn: Turn, change: Change, first: int) -> RewriteCost:
    """What the change does to the bill.

    The messages of the last request are in the provider's cache, unless it has expired.
    """
    before = list(await turn.prefix_sums())
    counts = await turn.counter.counts(change.messages[first:])
    after = [*before[:first], *accumulate(counts, initial=before[first])]
    sent = 0 if turn.cache_expired else _last_reply(turn.messages)
    return rewrite_cost(
        prices, before, after, first, sent, overhead=turn.overhead, factor=turn.ledger.factor
    )


def _last_reply(messages: Sequence[Message]) -> int:
    """The index of the last reply, 0 when there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "assistant":
            return index
    return 0


# The two acts -------------------------------------------------------------------------------------

_Answer: TypeAlias = Change | Skip | Intent | None


@dataclass(frozen=True, slots=True)
class _Act:
    """What is done with the stages of a turn: they are asked to act, or only for their plans.

    *outcome* is that of an answer that counts. Only reports of what was done are emitted and
    traced.
    """

    ask: Callable[[Stage, Turn], Awaitable[_Answer]]
    outcome: Outcome
    emits: bool
    tracer: Tracer | None = None


async def _ask(stage: Stage, turn: Turn) -> Proposal:
    awaitable: object = stage(turn)  # whatever its type says
    if not isawaitable(awaitable):
        name = type(awaitable).__name__
        raise SettingsError(
            f"its answer, {name}, cannot be awaited; write the stage as `async def`"
        )
    answer: object = await awaitable
    if isinstance(answer, Change | Skip | None):
        return answer
    raise _wrong_answer(answer)


async def _ask_for_plan(stage: Stage, turn: Turn) -> _Answer:
    untyped: object = stage
    if not isinstance(untyped, PlannedStage):
        return Intent("it cannot say beforehand: it has no plan of its own")
    answer: object = await untyped.plan(turn)
    if isinstance(answer, Change | Skip | Intent | None):
        return answer
    raise _wrong_answer(answer)


def _wrong_answer(answer: object) -> SettingsError:
    return SettingsError(
        f"a stage answers with a Change, a Skip or None, not with {type(answer).__name__}"
    )


_RUN = _Act(_ask, Outcome.CHANGED, emits=True)
_PLAN = _Act(_ask_for_plan, Outcome.PLANNED, emits=False)


# Reports ------------------------------------------------------------------------------------------


def _report(
    stage: Stage,
    turn: Turn,
    tokens: int,
    outcome: Outcome,
    seconds: float,
    reason: str,
    detail: Detail | None = None,
) -> StageReport:
    """The report on a stage that leaves the context of *tokens* as it is."""
    return StageReport(
        stage_name(stage), turn.session_id, outcome, seconds, reason, detail, tokens, tokens
    )


def _failure_report(
    stage: Stage, turn: Turn, tokens: int, error: Exception, started: float
) -> StageReport:
    seconds = perf_counter() - started
    report = _report(stage, turn, tokens, Outcome.FAILED, seconds, safe_text(error))
    return replace(report, error=error)


def stage_name(stage: object) -> str:
    """What a stage is called in reports: the name of the function, or of the object's class."""
    return getattr(stage, "__name__", None) or type(stage).__name__


@cache
def _is_set_by_environment() -> bool:
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


def _tracer() -> Tracer | None:
    """OpenTelemetry's tracer.

    None as long as no SDK is configured, since even a span that does nothing costs 10 µs.
    """
    # Whoever configures an SDK in code has imported the module. To import it here would hold the
    # event loop for 60 ms and more in the first turn of every program, for nothing.
    if "opentelemetry.trace" not in sys.modules and not _is_set_by_environment():
        return None
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer("ctxpipe")


def _span(tracer: Tracer, name: str, session_id: str) -> AbstractContextManager[Span]:
    # The text of an error may quote the conversation: the caller gets it with the error, a trace
    # must not.
    return tracer.start_as_current_span(
        f"ctxpipe.{name}",
        attributes={"ctxpipe.session_id": session_id},
        record_exception=False,
        set_status_on_exception=False,
    )


def _set_token_attributes(span: Span, source: StageReport | Result) -> None:
    span.set_attribute("ctxpipe.tokens_before", source.tokens_before)
    span.set_attribute("ctxpipe.tokens_after", source.tokens_after)
    span.set_attribute("ctxpipe.tokens_saved", source.tokens_saved)
