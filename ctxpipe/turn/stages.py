"""Ask the stages of a turn in their order, and report on each.

A stage gets a read-only `Turn` with the context as the stages before it have left it. Its answer is
a `Change`, a `Skip` or None. `judge` decides on a change; if it is accepted, it becomes the context
of the turn. Each answer becomes a `StageReport`, which is logged (`report_log`) and passed to the
caller's ``on_report``. A stage that raises an error is reported as failed, and the turn continues
without it, unless the setting ``on_error`` is "raise".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING

from .._logs import describe, span_of
from .._threads.threads import in_thread
from ..errors import CtxpipeError, InvalidHistory, SessionDeleted, SettingsError, safe_text
from ..messages import is_equal
from ..messages.thinking import index_after_thinking, mark_stale
from ..messages.vocabulary import tool_name
from ..providers.agent_tools import SEARCH_TOOL
from ..providers.prices import context_window
from ..stages.protocol import (
    Change,
    Intent,
    PlannedStage,
    Skip,
    Stage,
    Tracked,
    Turn,
    stage_name,
)
from ..stages.reading.moved_texts import first_batch_placeholder
from ..stages.reports import Compacted, Outcome, StageReport
from ..summarizers.retry import is_own_cancellation
from .judge import judge
from .report_log import publish
from .state import Overhead, model_of

if TYPE_CHECKING:
    from .state import TurnRun


async def ask_stages(run: TurnRun) -> None:
    """Ask the stages in their order. Each sees the context as the stages before it have left it."""
    await _count_overhead(run)
    turn_of = await _turn_maker(run)
    if run.repeated_stages:
        await _ask_each(run, run.repeated_stages, turn_of)
        run.end_part()
        _mark_batch_stale(run)
    stages = run.stages or dict(enumerate(run.state.settings.stages))
    await _ask_each(run, stages, turn_of)


async def _count_overhead(run: TurnRun) -> None:
    """Count the system prompt and the tools of the request, if they are not those of the last."""
    request = run.request
    state = run.state
    last = state.overhead
    if is_equal((last.system, last.tools), (request.system, request.tools)):
        return
    system = request.system
    tools = request.tools
    # Copies, because agents add tools to their list in place.
    if isinstance(system, list):
        system = list(system)
    if isinstance(tools, list):
        tools = list(tools)
    try:
        tokens = await state.settings.counter.count([], system=system, tools=tools)
    except InvalidHistory as error:
        raise SettingsError(
            f"system or tools of the request cannot be sent: {error.__cause__ or error}; "
            "in place of a Tool of ctxpipe give its definition, tool.definition"
        ) from error
    can_search = any(tool_name(tool).endswith(SEARCH_TOOL) for tool in tools or ())
    state.overhead = Overhead(system, tools, tokens, can_search)


async def _turn_maker(run: TurnRun) -> Callable[..., Turn]:
    """Return the function that makes the turn of a stage from the messages that it sees."""
    step = run.step
    state = run.state
    settings = state.settings
    request = run.request
    tracked = Tracked(
        max(0, step.same_count - 1),
        step.exceeds_inline_limit,
        state.fact_sums,
        can_search=state.overhead.can_search,
        place_of=step.place_of,
        has_changing_end=step.agreement.has_changing_end,
        tokens_before=await run.count(run.messages) if request.force else 0,
    )
    model = model_of(state, request.options)
    if settings.budget.is_default and model and not context_window.cache_info().misses:
        await in_thread(context_window, model)  # reads the list of models
    budget = settings.budget_for(state, model)
    if _may_estimate(run):
        state.ledger.allow_estimates(budget.window)
    agent_model = request.agent_model
    if agent_model is not None and agent_model.name is None:
        agent_model = replace(agent_model, name=model)
    protected = 0
    if settings.thinking == "protect":
        protected = index_after_thinking(run.messages)
    return partial(
        Turn,
        session_id=run.session_id,
        force=request.force,
        budget=budget,
        ledger=state.ledger,
        overhead=state.overhead.tokens,
        tracked=tracked,
        protected=protected,
        cache_expired=request.cache_expired,
        agent_model=agent_model,
        history=step.agreement.raw,
    )


def _may_estimate(run: TurnRun) -> bool:
    """Return True if the turn may estimate the tokens of text that its stages remove.

    Only a conversation that begins with an old history has so much of it. A forced turn measures
    what the model has refused.
    """
    if run.turn != 1 or run.request.force:
        return False
    return any(message["role"] == "assistant" for message in run.messages)


def _mark_batch_stale(run: TurnRun) -> None:
    """Mark thinking as stale if it comes after the first text that was moved to a file again."""
    step = run.step
    batch = first_batch_placeholder(run.messages[step.retained_count :])
    if batch is not None:
        mark_stale(step.stale, run.messages, (step.retained_count + batch[0], batch[1]))


async def _ask_each(
    run: TurnRun, stages: Mapping[int, Stage], turn_of: Callable[..., Turn]
) -> None:
    """Ask *stages*, apply their changes to the context, and add their reports to those of the turn.

    Raises the error of a stage if the setting ``on_error`` is "raise".
    """
    step = run.step
    settings = run.state.settings
    tokens: int | None = None  # counted after the first answer: removed text is never counted
    for place, stage in stages.items():
        turn = turn_of(run.messages, memory=run.state.memories.setdefault(place, {}))
        if run.tracer is None:
            change, report = await _ask_stage(run, stage, turn, tokens)
        else:
            with span_of(run.tracer, stage_name(stage), run.session_id) as span:
                change, report = await _ask_stage(run, stage, turn, tokens)
                describe(span, report)
        if not run.is_plan:  # a plan only returns its reports
            publish(report, settings)
        run.reports.append(report)
        # After an estimate the ledger is asked again: what it has now may be exact.
        tokens = None if report.is_estimate else report.tokens_after
        if report.error is not None and settings.on_error == "raise":
            raise report.error
        if report.outcome is not Outcome.SKIPPED or report.detail is not None:
            # The session may have been deleted while the stage worked. If the stage stored nothing,
            # no storage has noticed that, and the turn asks before it ends.
            step.touched.is_stored = change is not None and change.stored is not None
        if change is not None:
            _apply_change(run, change, report.first_changed_index or 0)


def _apply_change(run: TurnRun, change: Change, first: int) -> None:
    """Make *change*, which begins at message *first*, part of the turn."""
    step = run.step
    is_summary = isinstance(change.detail, Compacted) or change.described_count is not None
    if is_summary:
        described_count = change.described_count
        if described_count is None:
            described_count = len(step.agreement.history)
        step.summaries[len(step.edits)] = described_count
    run.edit(change.messages, first=first, paired=not is_summary)
    if change.stored:
        step.stored.append(change.stored)


async def _ask_stage(
    run: TurnRun, stage: Stage, turn: Turn, tokens: int | None
) -> tuple[Change | None, StageReport]:
    """Ask one stage, and return its change, if it is accepted, and the report.

    *tokens* is the size of the context, or None if it is not counted yet. For a plan the stage
    answers without writing anything or calling a model.
    """
    started = perf_counter()
    change: Change | None = None
    report = StageReport(
        stage_name(stage), run.session_id, Outcome.SKIPPED, seconds=0, turn=run.turn
    )
    try:
        answer = await _answer_of(_plan_of(stage) if run.is_plan else stage, turn)
        if isinstance(answer, Change):
            change, report = await judge(run, turn, answer, report)
        else:
            report = _with_answer(report, answer, is_plan=run.is_plan)
    except SessionDeleted:
        raise
    except Exception as error:  # noqa: BLE001  the turn goes on without this stage
        report = replace(report, outcome=Outcome.FAILED, reason=safe_text(error), error=error)
    seconds = perf_counter() - started
    if change is not None:
        return change, replace(report, seconds=seconds)
    is_estimate = False
    if tokens is None:
        tokens = await run.count(turn.messages)
        is_estimate = run.state.ledger.is_estimate
    report = replace(report, tokens_before=tokens, tokens_after=tokens, is_estimate=is_estimate)
    return None, replace(report, seconds=seconds)


def _plan_of(stage: Stage) -> Callable[[Turn], Awaitable[object]]:
    """Return the function that answers for *stage* in a plan."""
    return stage.plan if isinstance(stage, PlannedStage) else _no_plan


async def _no_plan(_turn: Turn) -> Intent:
    """Answer for a stage that has no plan of its own."""
    return Intent("it cannot say in advance: it has no plan of its own")


async def _answer_of(stage: Callable[[Turn], object], turn: Turn) -> object:
    """Return what *stage* answers.

    Raises SettingsError if the stage returns something that cannot be awaited, and CtxpipeError if
    something that the stage waited for was cancelled and the turn itself was not.
    """
    awaitable = stage(turn)
    if not (isinstance(awaitable, CoroutineType) or isawaitable(awaitable)):
        name = type(awaitable).__name__
        raise SettingsError(
            f"its answer, {name}, cannot be awaited; write the stage as `async def`"
        )
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        if is_own_cancellation():
            raise
        raise CtxpipeError("what the stage waited for was cancelled") from error


def _with_answer(report: StageReport, answer: object, *, is_plan: bool) -> StageReport:
    """Return *report* on a stage with an *answer* other than a change.

    Raises SettingsError if *answer* is not what a stage may return.
    """
    if answer is None:
        return report
    if isinstance(answer, Skip):
        return replace(report, reason=answer.reason, detail=answer.detail)
    if isinstance(answer, Intent) and is_plan:
        return replace(report, outcome=Outcome.PLANNED, reason=answer.reason)
    raise SettingsError(
        f"a stage answers with a Change, a Skip or None, not with {type(answer).__name__}"
    )
