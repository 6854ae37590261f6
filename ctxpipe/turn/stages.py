"""Ask the stages of a turn in their order, and report on each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from .._logs import describe, logger, span_of
from .._threads.threads import in_thread
from ..errors import CtxpipeError, InvalidHistory, SessionDeleted, SettingsError, safe_text
from ..messages import is_equal
from ..messages.thinking import index_after_thinking, mark_stale
from ..messages.vocabulary import tool_name
from ..providers.agent_tools import SEARCH_TOOL
from ..providers.prices import context_window
from ..stages.protocol import Change, Intent, PlannedStage, Skip, Stage, Tracked, Turn
from ..stages.reading.moved_texts import first_batch_placeholder
from ..stages.reports import Compacted, Offloaded, Outcome, StageReport
from ..summarizers.retry import is_own_cancellation
from .judge import judge
from .state import Overhead, model_of

if TYPE_CHECKING:
    from .run import TurnRun

_LEVELS = {
    Outcome.FAILED: logging.WARNING,
    Outcome.REFUSED: logging.WARNING,
    Outcome.SKIPPED: logging.DEBUG,
}


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
        budget=settings.budget_for(state, model),
        ledger=state.ledger,
        overhead=state.overhead.tokens,
        tracked=tracked,
        protected=protected,
        cache_expired=request.cache_expired,
        agent_model=agent_model,
        history=step.agreement.raw,
    )


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

    For a plan the stages report what they would do; these reports are not logged, and not passed
    to ``on_report``.
    """
    step = run.step
    settings = run.state.settings
    is_debugging = logger.isEnabledFor(logging.DEBUG)
    tokens: int | None = None  # counted after the first answer: removed text is never counted
    for place, stage in stages.items():
        turn = turn_of(run.messages, memory=run.state.memories.setdefault(place, {}))
        if run.tracer is None:
            change, report = await _ask_stage(run, stage, turn, tokens)
        else:
            with span_of(run.tracer, stage_name(stage), run.session_id) as span:
                change, report = await _ask_stage(run, stage, turn, tokens)
                describe(span, report)
        if not run.is_plan:
            # A stage that had nothing to do is logged only for debugging.
            if is_debugging or report.detail is not None or report.outcome is not Outcome.SKIPPED:
                _log(report, settings.logged_failures)
            if settings.on_report is not None:
                _hand_over(report, settings.on_report)
        run.reports.append(report)
        tokens = report.tokens_after
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
    run: TurnRun, stage: Callable[[Turn], Any], turn: Turn, tokens: int | None
) -> tuple[Change | None, StageReport]:
    """Ask one stage, and return its change, if it is accepted, and the report.

    *tokens* is the size of the context, or None if it is not counted yet. For a plan the stage
    answers without writing anything or calling a model.
    """
    started = perf_counter()
    change: Change | None = None
    acted = Outcome.PLANNED if run.is_plan else Outcome.CHANGED
    facts: dict[str, Any] = {"outcome": Outcome.SKIPPED}
    try:
        answers = stage
        if run.is_plan:
            answers = stage.plan if isinstance(stage, PlannedStage) else _no_plan
        answer = await _answer_of(answers, turn)
        if isinstance(answer, Change):
            change, judged = await judge(run, turn, answer)
            facts |= judged
        elif isinstance(answer, Skip):
            facts |= {"reason": answer.reason, "detail": answer.detail}
        elif run.is_plan and isinstance(answer, Intent):
            facts |= {"outcome": acted, "reason": answer.reason}
        elif answer is not None:
            raise SettingsError(  # noqa: TRY301
                f"a stage answers with a Change, a Skip or None, not with {type(answer).__name__}"
            )
        if change is not None:
            facts["outcome"] = acted
    except SessionDeleted:
        raise
    except Exception as error:  # noqa: BLE001  the turn goes on without this stage
        facts |= {"outcome": Outcome.FAILED, "reason": safe_text(error), "error": error}
    seconds = perf_counter() - started
    if change is None:
        if tokens is None:
            tokens = await run.count(turn.messages)
        facts |= {"tokens_before": tokens, "tokens_after": tokens}
    report = StageReport(stage_name(stage), run.session_id, seconds=seconds, turn=run.turn, **facts)
    return change, report


async def _answer_of(stage: Callable[[Turn], Any], turn: Turn) -> object:
    """Return what *stage* answers.

    Raises SettingsError if the stage returns something that cannot be awaited, and CtxpipeError if
    something that the stage waited for was cancelled and the turn itself was not.
    """
    asked = stage(turn)
    if not (isinstance(asked, CoroutineType) or isawaitable(asked)):
        name = type(asked).__name__
        raise SettingsError(
            f"its answer, {name}, cannot be awaited; write the stage as `async def`"
        )
    try:
        return await asked
    except asyncio.CancelledError as error:
        if is_own_cancellation():
            raise
        raise CtxpipeError("what the stage waited for was cancelled") from error


async def _no_plan(_turn: Turn) -> Intent:
    """Answer for a stage that has no plan of its own."""
    return Intent("it cannot say beforehand: it has no plan of its own")


# Reports ------------------------------------------------------------------------------------------


def stage_name(stage: object) -> str:
    """Return the name of a stage in reports: that of the function, or of the object's class."""
    return getattr(stage, "__name__", None) or type(stage).__name__


def _hand_over(report: StageReport, on_report: Callable[[StageReport], object]) -> None:
    """Pass *report* to the caller's *on_report*; an error in it is logged."""
    try:
        on_report(report)
    except Exception as error:
        # No traceback: its text may quote anything.
        logger.error("on_report failed, and the turn goes on: %s", safe_text(error))  # noqa: TRY400
        logger.debug("on_report failed with", exc_info=error)


def _storage_failure(report: StageReport) -> str:
    """Return why the storage failed in *report*, without the name of the file; "" if it did not."""
    if isinstance(report.error, OSError):
        return str(report.error.errno)
    if isinstance(report.detail, Offloaded) and report.detail.failed:
        return report.detail.failed[-1].rpartition(": ")[2]
    return ""


def _log(report: StageReport, logged_failures: dict[str, str]) -> None:
    """Log *report*. Texts of errors and paths of files are logged only for debugging.

    A failure with the cause of the stage's last one, in any session of the pipeline, such as a full
    disk, is logged only for debugging as well. *logged_failures* has these causes, by stage.
    """
    offloaded = report.detail if isinstance(report.detail, Offloaded) else None
    level = _LEVELS.get(report.outcome, logging.INFO)
    if offloaded is not None and offloaded.failed:
        level = logging.WARNING
    cause = _storage_failure(report)
    if cause and logged_failures.get(report.stage) == cause:
        level = logging.DEBUG
    elif cause:
        logged_failures[report.stage] = cause
    elif report.outcome is Outcome.CHANGED:
        logged_failures.pop(report.stage, None)
    logger.log(level, "%s", report)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    if report.error is not None:
        logger.debug("%s failed with", report.stage, exc_info=report.error)
    elif offloaded is not None and (offloaded.files or offloaded.failed):
        files = offloaded.files
        logger.debug("%s wrote %s; failed: %s", report.stage, files, offloaded.failed)
