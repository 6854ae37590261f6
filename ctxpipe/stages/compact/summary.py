"""Write the summary of a compaction, or continue an earlier attempt at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..._logs import logger
from ..._threads.threads import in_thread
from ...messages import Message
from ...summarizers import (
    AgentSummarizer,
    ExtractiveSummarizer,
    FinishedParts,
    Retry,
    Summarizer,
    summarize_with_retry,
)
from ...summarizers.agent import warning_without_model, with_agent_model
from ...summarizers.protocol import Summary
from ...summarizers.retry import FinishedSummary, digest_of
from ..protocol import Turn
from .background import PendingSummary, answer_boundary
from .breaker import Attempts
from .layout import can_keep
from .split_context import SplitContext


def summarizer_for(turn: Turn, configured: Summarizer | None) -> Summarizer:
    """Return the *configured* summarizer, or else one that uses the model of the agent.

    An extractive summarizer becomes brief, because the evidence has the same facts.
    """
    writer = with_agent_model(configured or AgentSummarizer(), turn.agent_model, turn.budget.window)
    if isinstance(writer, ExtractiveSummarizer):
        # The evidence has its facts in a better form, so its summary need not repeat them.
        return replace(writer, brief=True)
    return writer


def warn_without_model(turn: Turn, configured: Summarizer | None, writer: Summarizer) -> str:
    """Return a warning if *writer* is used for lack of a model; "" if it was *configured*.

    The first warning of a session is logged.
    """
    was_chosen = isinstance(configured, ExtractiveSummarizer)
    if was_chosen or not isinstance(writer, ExtractiveSummarizer):
        return ""
    attempts = turn.recall(Attempts)
    warning = warning_without_model(configured, turn.agent_model)
    if not attempts.warned:
        logger.warning("session %r: %s", turn.session_id[:40], warning)
    attempts.warned = True
    return warning


class WrittenSummary(NamedTuple):
    """A summary of a context.

    It covers the first *covered_count* messages after the head, all of them if that is None.
    *described_count* is the number of messages of the history that the summary and the evidence
    describe; None for all of them. There are fewer if the caller replaces messages at its end in
    each request: otherwise each turn would undo the summary.
    """

    summary: Summary
    covered_count: int | None = None
    described_count: int | None = None


async def write_summary(
    turn: Turn, context: SplitContext, writer: Summarizer, retry: Retry, *, background: bool
) -> WrittenSummary:
    """Return a summary of *context*, the context of *turn*. There are four cases:

    1. With *background*, a summary from the background is ready, and the messages since then fit:
       it is used. If they do not fit, they are summarized after it.
    2. The caller replaces messages at the end of the history: only the answered ones are
       summarized.
    3. The summarizer is free: everything is summarized, without records of earlier attempts.
    4. Otherwise everything is summarized. The record of an attempt that failed or was cancelled
       lets the next one continue, so that nothing is paid for twice.
    """
    rest = context.rest
    boundary: tuple[int, int] | None = None
    if turn.tracked is not None and turn.tracked.has_changing_end:
        boundary = answer_boundary(turn, context)
    # A free summary is always written again, so that it is the same in every process.
    is_free = isinstance(writer, ExtractiveSummarizer)
    parts = None if is_free else turn.recall(FinishedParts)
    if parts is not None:
        _use_current_client(parts, writer)
    pending = turn.memory.get(PendingSummary)
    covered_count = pending.place(turn, context) if background and pending else 0
    if pending and covered_count:
        summary = await pending.summary(turn)
        if summary is None:  # it failed, or the history was edited
            pending.cancel()
            del turn.memory[PendingSummary]
        elif await can_keep(turn, context, covered_count):
            described_count = None
            if boundary is not None:
                answered_count, place = boundary
                described_count = answered_count if place == covered_count else pending.count
            return WrittenSummary(summary, covered_count, described_count)
        else:
            covered_digest = await in_thread(digest_of, rest[:covered_count])
            parts = FinishedParts(writer, writer, covered_count, covered_digest, summary)
            turn.memory[FinishedParts] = parts
    if boundary is not None:
        answered_count, place = boundary
        if place and await can_keep(turn, context, place):
            summary = await summarize_with_retry(writer, rest[:place], retry)
            return WrittenSummary(summary, place, answered_count)
    if parts is None:
        return WrittenSummary(await summarize_with_retry(writer, rest, retry))
    return WrittenSummary(await _continue_summary(turn, rest, writer, retry, parts))


def _use_current_client(parts: FinishedParts, writer: Summarizer) -> None:
    """Give the summarizer of *parts* the agent's model of *writer*, if both use that model.

    The client of an earlier request may be closed by now, or its key expired.
    """
    earlier_writer = parts.writer
    if isinstance(writer, AgentSummarizer) and isinstance(earlier_writer, AgentSummarizer):
        parts.writer = replace(earlier_writer, agent_model=writer.agent_model)


async def _continue_summary(
    turn: Turn, rest: Sequence[Message], writer: Summarizer, retry: Retry, parts: FinishedParts
) -> Summary:
    """Return the summary of *rest*, which continues *parts* or the last finished summary.

    If the last finished summary is that of the same messages by the same summarizer, it is returned
    unchanged.
    """
    finished_summary: FinishedSummary | None = turn.memory.get(FinishedSummary)
    if (
        finished_summary is not None
        and finished_summary.summarizer == writer
        and finished_summary.count <= len(rest)
    ):
        beginning_digest = await in_thread(digest_of, rest[: finished_summary.count])
        if beginning_digest == finished_summary.digest and finished_summary.summary is not None:
            if finished_summary.count == len(rest):
                return finished_summary.summary
            parts = finished_summary
    digest = await in_thread(digest_of, rest)
    summary = await summarize_with_retry(writer, rest, retry, parts)
    # Stored with no await after the summary: if the turn is cancelled, it is not paid for again.
    turn.memory[FinishedSummary] = FinishedSummary(writer, writer, len(rest), digest, summary)
    return summary
