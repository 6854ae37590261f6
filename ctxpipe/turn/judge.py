"""Judge the change that a stage proposes: it must be valid, save tokens, and not be vetoed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..messages import FactSums, Problem, check, common_prefix, ensure_messages, is_bulky
from ..messages.thinking import index_after_thinking
from ..providers.prices import Prices, RewriteCost, rewrite_cost
from ..stages.protocol import Change, Turn
from ..stages.reading.unanswered import index_after_last_reply
from ..stages.reports import Outcome, StageReport
from .repair import encodable
from .state import PipelineSettings

if TYPE_CHECKING:
    from .state import TurnRun


async def judge(
    run: TurnRun, turn: Turn, proposal: Change, report: StageReport
) -> tuple[Change | None, StageReport]:
    """Return the *proposal*, or None if it is not accepted, and *report* with the reason.

    Lone surrogates in the texts that the stage wrote are replaced. Raises InvalidHistory if the
    proposal is not a list of messages, which is a fault in the stage.
    """
    settings = run.state.settings
    step = run.step
    report = replace(report, detail=proposal.detail)
    first = common_prefix(turn.messages, proposal.messages)
    if first == len(turn.messages) == len(proposal.messages):
        return None, replace(report, reason="the proposal changes nothing")
    if not step.exceeds_inline_limit:
        # A change may rewrite much more than is new in the turn, or add much. Then the rest of the
        # turn works in a worker thread, so that the event loop is not blocked.
        rewrites_much = is_bulky(proposal.messages, first) or is_bulky(turn.messages, first)
        step.exceeds_inline_limit = rewrites_much
    await run.call(ensure_messages, proposal.messages, first)
    proposal = await run.call(_with_encodable_texts, turn, proposal, first)
    savings = await turn.ledger.savings(turn.messages, proposal.messages, first)
    fact_sums = await turn.fact_sums()
    problem = await run.call(_new_problem, turn, proposal, fact_sums, first)
    refusal = _refusal(settings, turn, proposal, first, savings.saved, problem)
    if refusal:
        return None, replace(report, outcome=Outcome.REFUSED, reason=refusal)
    cost: RewriteCost | None = None
    if settings.prices:
        cost = await _cost(settings.prices, turn, proposal, first, savings.sums)
    tokens_before = savings.sums[-1] + turn.overhead
    accepted_report = replace(
        report,
        outcome=Outcome.PLANNED if run.is_plan else Outcome.CHANGED,
        tokens_before=tokens_before,
        tokens_after=tokens_before - savings.saved,
        is_estimate=savings.is_estimate,
        first_changed_index=first,
        cost=cost,
    )
    return proposal, accepted_report


def _refusal(
    settings: PipelineSettings,
    turn: Turn,
    change: Change,
    first: int,
    saved: int,
    problem: Problem | None,
) -> str:
    """Return why *change* must not be used; "" if it may be.

    It changes the context from message *first* on and saves *saved* tokens. *problem* is the rule
    that it would break.
    """
    if problem is not None:
        return f"it would break a rule of the Messages API: {problem}"
    # Messages before the index `turn.protected` are followed by thinking that is protected.
    if first < turn.protected and index_after_thinking(change.messages) > first:
        return "it would rewrite a message before kept thinking, which is protected"
    if not change.may_grow and saved <= 0:
        return "it would not save a single token (Change(…, may_grow=True) allows that)"
    if not settings.veto:
        return ""
    verdict = settings.veto(turn, change)
    if isinstance(verdict, str):
        return verdict
    return "vetoed" if verdict else ""


def _with_encodable_texts(turn: Turn, change: Change, first: int) -> Change:
    """Return *change* with U+FFFD for each lone surrogate in the messages that the stage has made.

    A stage quotes the history unchanged: a path, a command, the user's words. So this is done here
    for all stages. The messages before index *first* are those of the turn.
    """
    previous_ids = {id(message) for message in turn.messages[first:]}
    messages = list(change.messages)
    is_changed = False
    for index in range(first, len(messages)):
        if id(messages[index]) in previous_ids:
            continue
        message = encodable(messages[index])
        is_changed = is_changed or message is not messages[index]
        messages[index] = message
    return replace(change, messages=messages) if is_changed else change


def _new_problem(turn: Turn, change: Change, fact_sums: FactSums, first: int) -> Problem | None:
    """Return the first rule of the API that *change* would break; None if it breaks no rule.

    The messages before index *first* are those of the turn.
    """
    start = max(0, first - 1)  # the last unchanged message may have calls whose results change
    # The check adds what it reads to the sums; those of the turn must describe its own messages.
    sums_of_unchanged = fact_sums.of_first(start)
    problems = check(change.messages, start, fact_sums=sums_of_unchanged)
    if problems and check(turn.messages, start, fact_sums=fact_sums):
        # The context has problems already. After the repair of the history these are lone
        # surrogates, which are replaced at the end of the turn. So they are no reason to refuse.
        problems = check(change.messages, start, encoding=False, fact_sums=sums_of_unchanged)
    return problems[0] if problems else None


async def _cost(
    prices: Prices, turn: Turn, change: Change, first: int, sums_before: Sequence[int]
) -> RewriteCost:
    """Return what *change*, which begins at message *first*, costs and saves.

    The messages of the last request are in the provider's cache, unless that has expired.
    *sums_before* are the raw tokens of the first 0, 1, 2 … messages before the change.
    """
    sums_after = list(sums_before[: first + 1])
    for count in await turn.counter.counts(change.messages[first:]):
        sums_after.append(sums_after[-1] + count)
    sent_count = 0
    if not turn.cache_expired:
        # The last request had the messages before the last reply.
        sent_count = max(0, index_after_last_reply(turn.messages) - 1)
    return rewrite_cost(
        prices,
        sums_before,
        sums_after,
        first,
        sent_count,
        overhead=turn.overhead,
        factor=turn.ledger.factor,
    )
