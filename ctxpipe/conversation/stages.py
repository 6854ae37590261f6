"""Ask the stages in order: judge, time and report what each proposes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from inspect import isawaitable
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from .._logs import logger
from .._threads.threads import in_thread_if
from ..edits.thinking import index_after_thinking
from ..errors import SessionDeleted, SettingsError, safe_text
from ..messages import Columns, Problem, check, common_prefix, ensure_messages, is_bulky
from ..messages.rules import mark_problems
from ..providers.prices import Prices, RewriteCost, rewrite_cost
from ..stages.protocol import Change, Intent, PlannedStage, Proposal, Skip, Stage, Turn
from ..stages.reports import Compacted, Offloaded, Outcome, Result, StageReport
from .open_calls import newest_reply
from .state import PipelineSettings, State
from .timeline import Step

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_Answer: TypeAlias = Change | Skip | Intent | None

_Verdict: TypeAlias = "tuple[Change | None, dict[str, Any]]"
"""The change, if it counts, and what the report says of the answer."""

_LEVELS = {
    Outcome.FAILED: logging.WARNING,
    Outcome.REFUSED: logging.WARNING,
    Outcome.SKIPPED: logging.DEBUG,
}


@dataclass(frozen=True, slots=True)
class Act:
    """What is done with the stages of a turn: they are asked to act, or only for their plans.

    *outcome* is that of an answer that counts. Only reports of what was done are emitted and
    traced.
    """

    ask: Callable[[Stage, Turn], Awaitable[_Answer]]
    outcome: Outcome
    emits: bool
    tracer: Tracer | None = None


async def ask_stages(
    act: Act, stages: Mapping[int, Stage], turn: Turn, tokens: int, step: Step, state: State
) -> tuple[Turn, list[StageReport], int]:
    """The turn after all *stages*, their reports, and the number of tokens left of *tokens*."""
    reports: list[StageReport] = []
    for place, stage in stages.items():
        stage_turn = replace(turn, memory=state.memories.setdefault(place, {}))
        if act.tracer is None:
            change, report = await _ask_stage(state.settings, act, stage, stage_turn, tokens)
        else:
            change, report = await _trace_stage(
                state.settings, act, stage, stage_turn, tokens, act.tracer
            )
        reports.append(report)
        tokens = report.tokens_after
        if change is None:
            continue
        is_summary = isinstance(change.detail, Compacted)
        state.edit(step, turn.messages, change.messages, paired=not is_summary)
        if change.stored:
            step.stored.append(change.stored)
        turn = replace(turn, messages=change.messages)
    return turn, reports, tokens


async def _trace_stage(
    settings: PipelineSettings, act: Act, stage: Stage, turn: Turn, tokens: int, tracer: Tracer
) -> tuple[Change | None, StageReport]:
    with span_of(tracer, stage_name(stage), turn.session_id) as span:
        change, report = await _ask_stage(settings, act, stage, turn, tokens)
        set_token_attributes(span, report)
        span.set_attribute("ctxpipe.outcome", report.outcome.value)
        if report.error is not None:
            span.set_attribute("error.type", type(report.error).__name__)
        return change, report


async def _ask_stage(
    settings: PipelineSettings, act: Act, stage: Stage, turn: Turn, tokens: int
) -> tuple[Change | None, StageReport]:
    """Ask one stage about a turn of *tokens*, and report on it.

    The change is None unless it counts.
    """
    started = perf_counter()
    change: Change | None = None
    try:
        change, facts = await _judge(settings, act, turn, tokens, await act.ask(stage, turn))
    except SessionDeleted:
        raise
    # The turn goes on without this stage; cancellation is no Exception.
    except Exception as error:  # noqa: BLE001
        facts = {"outcome": Outcome.FAILED, "reason": safe_text(error), "error": error}
    facts = {"tokens_before": tokens, "tokens_after": tokens, **facts}
    seconds = perf_counter() - started
    report = StageReport(stage_name(stage), turn.session_id, seconds=seconds, **facts)
    if act.emits:
        _emit(settings, report)
    if report.error is not None and settings.on_error == "raise":
        raise report.error
    return change, report


async def _judge(
    settings: PipelineSettings, act: Act, turn: Turn, tokens: int, answer: _Answer
) -> _Verdict:
    if isinstance(answer, Change):
        return await _judge_change(settings, act, turn, tokens, answer)
    if isinstance(answer, Intent):
        return None, {"outcome": act.outcome, "reason": answer.reason}
    skip = answer or Skip("")
    return None, {"outcome": Outcome.SKIPPED, "reason": skip.reason, "detail": skip.detail}


async def _judge_change(
    settings: PipelineSettings, act: Act, turn: Turn, tokens: int, proposal: Change
) -> _Verdict:
    facts: dict[str, Any] = {"outcome": Outcome.SKIPPED, "detail": proposal.detail}
    first = common_prefix(turn.messages, proposal.messages)
    if first == len(turn.messages) == len(proposal.messages):
        return None, {**facts, "reason": "the proposal changes nothing"}
    is_long = is_bulky(proposal.messages, first)
    await in_thread_if(is_long, ensure_messages, proposal.messages, first)
    saved = await _tokens_saved(turn, proposal, first)
    refusal = await _refusal(settings, turn, proposal, first, saved)
    if refusal:
        return None, {**facts, "outcome": Outcome.REFUSED, "reason": refusal}
    facts |= {"outcome": act.outcome, "tokens_after": tokens - saved, "first_changed_index": first}
    if settings.prices:
        facts["cost"] = await _cost(settings.prices, turn, proposal, first)
    return proposal, facts


async def _refusal(
    settings: PipelineSettings, turn: Turn, change: Change, first: int, saved: int
) -> str:
    """Why *change*, which saves *saved* tokens, must not count; "" when it may."""
    is_long = is_bulky(change.messages, first) or is_bulky(turn.messages, first)
    problem = await in_thread_if(is_long, _new_problem, turn, change, first)
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


def _new_problem(turn: Turn, change: Change, first: int) -> Problem | None:
    """The first rule of the API that *change*, whose first new message is *first*, would break."""
    start = max(0, first - 1)
    # What could not be encoded before is stored as it is; the end of the run repairs it.
    was_valid = not check(turn.messages, start)
    problems = check(change.messages, start, encoding=was_valid)
    if not problems:
        problems = mark_problems(change.messages, Columns(change.messages))
    return problems[0] if problems else None


async def _tokens_saved(turn: Turn, change: Change, first: int) -> int:
    """The raw tokens that *change*, which begins at message *first*, takes out.

    Only what changed is counted.
    """
    sums = await turn.prefix_sums()
    old, new = turn.messages, change.messages
    if len(old) != len(new):
        return sums[-1] - sums[first] - await turn.counter.count(new[first:])
    changed = [index for index in range(first, len(new)) if new[index] is not old[index]]
    before = sum(sums[index + 1] - sums[index] for index in changed)
    return before - await turn.counter.count([new[index] for index in changed])


async def _cost(prices: Prices, turn: Turn, change: Change, first: int) -> RewriteCost:
    """What the change does to the bill.

    The messages of the last request are in the provider's cache, unless it has expired.
    """
    before = list(await turn.prefix_sums())
    counts = await turn.counter.counts(change.messages[first:])
    after = [*before[:first], *accumulate(counts, initial=before[first])]
    sent = 0 if turn.cache_expired else newest_reply(turn.messages) or 0
    return rewrite_cost(
        prices, before, after, first, sent, overhead=turn.overhead, factor=turn.ledger.factor
    )


# The two acts -------------------------------------------------------------------------------------


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


RUN = Act(_ask, Outcome.CHANGED, emits=True)
PLAN = Act(_ask_for_plan, Outcome.PLANNED, emits=False)


# Reports ------------------------------------------------------------------------------------------


def stage_name(stage: object) -> str:
    """What a stage is called in reports: the name of the function, or of the object's class."""
    return getattr(stage, "__name__", None) or type(stage).__name__


def _emit(settings: PipelineSettings, report: StageReport) -> None:
    _log(report)
    if settings.on_report is None:
        return
    try:
        settings.on_report(report)
    except Exception as error:
        # No traceback: its text may quote anything.
        logger.error("on_report failed, and the turn goes on: %s", safe_text(error))  # noqa: TRY400
        logger.debug("on_report failed with", exc_info=error)


def _log(report: StageReport) -> None:
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


@cache
def _is_set_by_environment() -> bool:
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


def find_tracer() -> Tracer | None:
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


def span_of(tracer: Tracer, name: str, session_id: str) -> AbstractContextManager[Span]:
    """A span of a turn, or of one stage of it."""
    # The text of an error may quote the conversation: the caller gets it with the error, a trace
    # must not.
    return tracer.start_as_current_span(
        f"ctxpipe.{name}",
        attributes={"ctxpipe.session_id": session_id},
        record_exception=False,
        set_status_on_exception=False,
    )


def set_token_attributes(span: Span, source: StageReport | Result) -> None:
    """Say in *span* how many tokens there were before and after."""
    span.set_attribute("ctxpipe.tokens_before", source.tokens_before)
    span.set_attribute("ctxpipe.tokens_after", source.tokens_after)
    span.set_attribute("ctxpipe.tokens_saved", source.tokens_saved)
