"""The walk of a turn: repair the context, ask the stages, finish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .._logs import find_tracer, logger, set_token_attributes, span_of
from .._threads.threads import in_thread, in_thread_if
from ..errors import safe_text
from ..journal.timeline import Step
from ..messages import Message, is_bulky, is_equal
from ..messages.thinking import index_after_thinking, mark_stale
from ..messages.vocabulary import tool_name
from ..providers.agent_tools import SEARCH_TOOL
from ..providers.prices import context_window
from ..stages.protocol import Stage, Tracked, Turn
from ..stages.reading.moved_texts import first_batch_placeholder
from ..stages.reports import Result, StageReport
from .align import align_with_last
from .finish import finish, messages_to_send
from .repair_step import repair_context
from .stages import ask_stages
from .state import Overhead, PipelineSettings, Request, State, model_of

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


async def run(
    step: Step,
    session_id: str,
    state: State,
    request: Request,
    stages: Mapping[int, Stage] | None = None,
    stages_again: Mapping[int, Stage] | None = None,
) -> Result:
    """Shape the context of *step* with the memory of *state*, which must be in no other run.

    The result is also noted in *step*. When *stages* are given, by their places, only these
    take part. Those *again* come first: they repeat what the model has seen before.
    """
    tracer = find_tracer()
    if tracer is None:
        return await _shape(step, session_id, state, request, stages, stages_again)
    with span_of(tracer, "run", session_id) as span:
        result = await _shape(step, session_id, state, request, stages, stages_again, tracer=tracer)
        set_token_attributes(span, result)
        span.set_attribute("ctxpipe.messages", len(result.messages))
        span.set_attribute("ctxpipe.repaired", len(result.repaired))
        return result


async def plan(
    settings: PipelineSettings, messages: list[Message], session_id: str, request: Request
) -> Result:
    """What `run` would do, with no write and no model call."""
    state = settings.new_state()
    step = await align_with_last(state, messages)
    return await _shape(step, session_id, state, request, is_plan=True)


async def _shape(
    step: Step,
    session_id: str,
    state: State,
    request: Request,
    stages: Mapping[int, Stage] | None = None,
    stages_again: Mapping[int, Stage] | None = None,
    *,
    is_plan: bool = False,
    tracer: Tracer | None = None,
) -> Result:
    step.same = min(step.same, state.agreed)  # a turn that failed may have left less
    state.rewind(step.same)
    start = max(0, step.same - 1)
    is_bulk = step.agreement.is_bulk
    if is_bulk is None or step.same < step.kept:
        is_bulk = is_bulky(step.context, start)
    messages, problems = await in_thread_if(is_bulk, repair_context, step, state, request)
    repaired = step.forget_changes()  # the model has seen it repaired, or not at all
    await _count_overhead(state, request.system, request.tools)
    count = partial(_count_tokens, state, session_id)
    tracked = Tracked(
        start,
        is_bulk,
        state.fact_sums,
        can_search=state.overhead.can_search,
        place_of=step.place_of,
        has_changing_end=step.agreement.has_changing_end,
        tokens_before=await count(messages) if request.force else 0,
    )
    turn_of = await _turn_maker(messages, session_id, state, request, step.agreement.raw, tracked)
    if not stages:
        stages = dict(enumerate(state.settings.stages))
    reports_again: list[StageReport] = []
    again = None
    if stages_again:
        messages, reports_again = await ask_stages(
            stages_again, turn_of, messages, count, step, state, is_plan=is_plan, tracer=tracer
        )
        again = step.forget_changes()
        _mark_batch_stale(step, messages)
    messages, reports = await ask_stages(
        stages, turn_of, messages, count, step, state, is_plan=is_plan, tracer=tracer
    )
    reports = [*reports_again, *reports]
    if step.touched.first is not None:
        # What was bulky may have left; only a repair reads all that comes before it.
        is_bulk = is_bulky(messages, 0 if problems else step.touched.first[0])
    options, context = await in_thread_if(
        is_bulk, finish, messages, step, state, request, bool(problems)
    )
    if reports and context is messages:
        after = reports[-1].tokens_after
    else:
        after = await count(context)
    changed = [place for place in (repaired, again, step.touched.first) if place is not None]
    return Result(
        messages_to_send(step, context),
        tuple(reports),
        problems,
        options,
        covered=len(step.agreement.history),
        first_changed_index=min(changed)[0] if changed else None,
        changed_end=len(context) - step.touched.tail if changed else None,
        tokens_before=reports[0].tokens_before if reports else after,
        tokens_after=after,
    )


def _mark_batch_stale(step: Step, messages: Sequence[Message]) -> None:
    """Note that thinking is stale after what has left once the model had seen it."""
    batch = first_batch_placeholder(messages[step.kept :])
    if batch is not None:
        mark_stale(step.stale, messages, (step.kept + batch[0], batch[1]))


async def _count_tokens(state: State, session_id: str, messages: Sequence[Message]) -> int:
    """The raw tokens of the context *messages*; 0 when the counter cannot count it.

    The ledger counts only what is new.
    """
    try:
        return (
            await state.ledger.total(messages, unchanged_count=state.ledger.unchanged_count)
            + state.overhead.tokens
        )
    except Exception as error:
        if state.settings.on_error == "raise":
            raise
        reason = safe_text(error)
        logger.warning("the context of session %r cannot be counted: %s", session_id[:40], reason)
        logger.debug("the counter failed with", exc_info=error)
        return 0


async def _turn_maker(
    messages: list[Message],
    session_id: str,
    state: State,
    request: Request,
    raw: Sequence[Message] | None,
    tracked: Tracked,
) -> partial[Turn]:
    """What makes a turn, which begins with *messages*, of the messages that a stage is to see."""
    model = model_of(state, request.options)
    if state.settings.budget.is_default and model and not context_window.cache_info().misses:
        await in_thread(context_window, model)  # it reads the list
    agent_model = request.agent_model
    if agent_model is not None and agent_model.name is None:
        agent_model = replace(agent_model, name=model)
    protected = 0
    if state.settings.thinking == "protect":
        protected = index_after_thinking(messages)
    return partial(
        Turn,
        session_id=session_id,
        force=request.force,
        budget=state.settings.budget_for(state, model),
        ledger=state.ledger,
        overhead=state.overhead.tokens,
        tracked=tracked,
        protected=protected,
        cache_expired=request.cache_expired,
        agent_model=agent_model,
        history=raw,
    )


async def _count_overhead(state: State, system: object, tools: Iterable[object] | None) -> None:
    """Note the system prompt and the tools; they are counted once as long as both stay the same."""
    known = state.overhead
    if not is_equal((known.system, known.tools), (system, tools)):
        # Lists of our own: agents add tools to theirs in place.
        if isinstance(system, list):
            system = list(system)
        if isinstance(tools, list):
            tools = list(tools)
        tokens = await state.settings.counter.count([], system=system, tools=tools)
        can_search = any(tool_name(tool).endswith(SEARCH_TOOL) for tool in tools or ())
        state.overhead = Overhead(system, tools, tokens, can_search)
