"""Ask the stages in order: judge, time and report what each proposes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from itertools import accumulate
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeAlias

from .._logs import describe, logger, span_of
from .._threads.threads import in_thread_if
from ..errors import CtxpipeError, SessionDeleted, SettingsError, safe_text
from ..journal.timeline import Step
from ..messages import FactSums, Message, Problem, check, common_prefix, ensure_messages, is_bulky
from ..messages.thinking import index_after_thinking
from ..providers.prices import Prices, RewriteCost, rewrite_cost
from ..stages.protocol import Change, Intent, PlannedStage, Skip, Stage, Turn
from ..stages.reading.unanswered import index_after_last_reply
from ..stages.reports import Compacted, Offloaded, Outcome, StageReport
from ..summarizers.retry import is_own_cancellation
from .repair import encodable
from .state import PipelineSettings, State

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Count: TypeAlias = Callable[[Sequence[Message]], Awaitable[int]]
"""Counts the tokens of a context, system prompt and tools included."""

_LEVELS = {
    Outcome.FAILED: logging.WARNING,
    Outcome.REFUSED: logging.WARNING,
    Outcome.SKIPPED: logging.DEBUG,
}


async def ask_stages(
    stages: Mapping[int, Stage],
    turn_of: Callable[..., Turn],
    messages: list[Message],
    count: Count,
    step: Step,
    state: State,
    *,
    is_plan: bool,
    tracer: Tracer | None,
) -> tuple[list[Message], list[StageReport]]:
    """The context after all *stages*, and their reports.

    Each sees the turn that *turn_of* makes of the *messages* so far and its own memory. For a plan
    they are asked what they would do; only reports of what was done are emitted. Messages are only
    *count*-ed once a stage has answered: what it takes out need not be.
    """
    settings = state.settings
    is_debugging = logger.isEnabledFor(logging.DEBUG)
    reports: list[StageReport] = []
    tokens: int | None = None
    for place, stage in stages.items():
        turn = turn_of(messages, memory=state.memories.setdefault(place, {}))
        if tracer is None:
            change, report = await _ask_stage(settings, stage, turn, tokens, count, is_plan)
        else:
            with span_of(tracer, stage_name(stage), turn.session_id) as span:
                change, report = await _ask_stage(settings, stage, turn, tokens, count, is_plan)
                describe(span, report)
        if not is_plan:
            # Who does not debug is told of no stage that had nothing to do.
            if is_debugging or report.detail is not None or report.outcome is not Outcome.SKIPPED:
                _log(report)
            if settings.on_report is not None:
                _hand_over(report, settings.on_report)
        reports.append(report)
        tokens = report.tokens_after
        if report.error is not None and settings.on_error == "raise":
            raise report.error
        has_acted = report.outcome is not Outcome.SKIPPED or report.detail is not None
        if has_acted:  # that took time, in which the session may have been deleted
            step.touched.is_stored = change is not None and change.stored is not None
        if change is None:
            continue
        is_summary = isinstance(change.detail, Compacted) or change.described_count is not None
        if is_summary:
            described_count = change.described_count
            if described_count is None:
                described_count = len(step.agreement.history)
            step.summaries[len(step.edits)] = described_count
        state.edit(step, messages, change.messages, paired=not is_summary)
        if change.stored:
            step.stored.append(change.stored)
        messages = change.messages
    return messages, reports


async def _ask_stage(
    settings: PipelineSettings,
    stage: Callable[[Turn], Any],
    turn: Turn,
    tokens: int | None,
    count: Count,
    is_plan: bool,
) -> tuple[Change | None, StageReport]:
    """Ask one stage about a turn of *tokens*, None before the first *count*, and report on it.

    For a plan it answers with no write and no model call. The change is None unless it counts.
    """
    started = perf_counter()
    change: Change | None = None
    acted = Outcome.PLANNED if is_plan else Outcome.CHANGED
    facts: dict[str, Any] = {"outcome": Outcome.SKIPPED}
    try:
        answers = stage
        if is_plan:
            answers = stage.plan if isinstance(stage, PlannedStage) else _no_plan
        answer = await _answer_of(answers, turn)
        if isinstance(answer, Change):
            change, judged = await _judge(settings, turn, answer)
            facts |= judged
        elif isinstance(answer, Skip):
            facts |= {"reason": answer.reason, "detail": answer.detail}
        elif is_plan and isinstance(answer, Intent):
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
            tokens = await count(turn.messages)
        facts |= {"tokens_before": tokens, "tokens_after": tokens}
    return change, StageReport(stage_name(stage), turn.session_id, seconds=seconds, **facts)


async def _answer_of(stage: Callable[[Turn], Any], turn: Turn) -> object:
    """Return what *stage* answers.

    Raises SettingsError where it is no async function, and CtxpipeError where something that it
    has waited for was cancelled: the turn itself was not.
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
    return Intent("it cannot say beforehand: it has no plan of its own")


async def _judge(
    settings: PipelineSettings, turn: Turn, proposal: Change
) -> tuple[Change | None, dict[str, Any]]:
    """The *proposal*, if it counts, and what the report says of it."""
    facts: dict[str, Any] = {"detail": proposal.detail}
    first = common_prefix(turn.messages, proposal.messages)
    if first == len(turn.messages) == len(proposal.messages):
        return None, {**facts, "reason": "the proposal changes nothing"}
    is_long = is_bulky(proposal.messages, first) or is_bulky(turn.messages, first)
    await in_thread_if(is_long, ensure_messages, proposal.messages, first)
    proposal = await in_thread_if(is_long, _with_encodable_texts, turn, proposal, first)
    savings = await turn.ledger.savings(turn.messages, proposal.messages, first)
    fact_sums = await turn.fact_sums()
    problem = await in_thread_if(is_long, _new_problem, turn, proposal, fact_sums, first)
    refusal = _refusal(settings, turn, proposal, first, savings.saved, problem)
    if refusal:
        return None, {**facts, "outcome": Outcome.REFUSED, "reason": refusal}
    before = savings.sums[-1] + turn.overhead
    facts |= {
        "tokens_before": before,
        "tokens_after": before - savings.saved,
        "is_estimate": savings.is_estimate,
        "first_changed_index": first,
    }
    if settings.prices:
        facts["cost"] = await _cost(settings.prices, turn, proposal, first, savings.sums)
    return proposal, facts


def _refusal(
    settings: PipelineSettings,
    turn: Turn,
    change: Change,
    first: int,
    saved: int,
    problem: Problem | None,
) -> str:
    """Why *change*, which saves *saved* tokens, must not count; "" when it may."""
    if problem is not None:
        return f"it would break a rule of the Messages API: {problem}"
    if first < turn.protected and index_after_thinking(change.messages) > first:
        return "it would rewrite a message before kept thinking, which is protected"
    if not change.may_grow and saved <= 0:
        return "it would not save a single token"
    if not settings.veto:
        return ""
    verdict = settings.veto(turn, change)
    if isinstance(verdict, str):
        return verdict
    return "vetoed" if verdict else ""


def _with_encodable_texts(turn: Turn, change: Change, first: int) -> Change:
    """*change* with U+FFFD for each lone surrogate in what the stage has written.

    A stage quotes the history as it is: a path, a command, the words of the user. Here alone is
    that made fit to be sent, whatever the stage. The messages before the *first* stay.
    """
    given = {id(message) for message in turn.messages[first:]}
    messages = list(change.messages)
    is_changed = False
    for index in range(first, len(messages)):
        if id(messages[index]) in given:
            continue
        message = encodable(messages[index])
        is_changed = is_changed or message is not messages[index]
        messages[index] = message
    return replace(change, messages=messages) if is_changed else change


def _new_problem(turn: Turn, change: Change, fact_sums: FactSums, first: int) -> Problem | None:
    """The first rule of the API that *change* would break; messages before the *first* stay."""
    start = max(0, first - 1)
    known = fact_sums.of_first(start)
    problems = check(change.messages, start, fact_sums=known)
    if problems and check(turn.messages, start, fact_sums=fact_sums):
        # What could not be encoded before is stored as it is; the end of the run repairs it.
        problems = check(change.messages, start, encoding=False, fact_sums=known)
    return problems[0] if problems else None


async def _cost(
    prices: Prices, turn: Turn, change: Change, first: int, before: Sequence[int]
) -> RewriteCost:
    """What the change does to the bill.

    The messages of the last request are in the provider's cache, unless it has expired.
    """
    counts = await turn.counter.counts(change.messages[first:])
    after = [*before[:first], *accumulate(counts, initial=before[first])]
    sent = 0 if turn.cache_expired else max(0, index_after_last_reply(turn.messages) - 1)
    return rewrite_cost(
        prices, before, after, first, sent, overhead=turn.overhead, factor=turn.ledger.factor
    )


# Reports ------------------------------------------------------------------------------------------


def stage_name(stage: object) -> str:
    """What a stage is called in reports: the name of the function, or of the object's class."""
    return getattr(stage, "__name__", None) or type(stage).__name__


def _hand_over(report: StageReport, on_report: Callable[[StageReport], object]) -> None:
    try:
        on_report(report)
    except Exception as error:
        # No traceback: its text may quote anything.
        logger.error("on_report failed, and the turn goes on: %s", safe_text(error))  # noqa: TRY400
        logger.debug("on_report failed with", exc_info=error)


def _log(report: StageReport) -> None:
    writing = report.detail if isinstance(report.detail, Offloaded) else None
    level = _LEVELS.get(report.outcome, logging.INFO)
    if writing is not None and writing.failed:
        level = logging.WARNING
    logger.log(level, "%s", report)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    # Texts of errors and paths of files, for whoever asks for them.
    if report.error is not None:
        logger.debug("%s failed with", report.stage, exc_info=report.error)
    elif writing is not None and (writing.files or writing.failed):
        logger.debug("%s wrote %s; failed: %s", report.stage, writing.files, writing.failed)
