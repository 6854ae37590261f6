"""Spans of OpenTelemetry, where the program has configured it."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from .stages.reports import Result, StageReport


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


def describe(span: Span, report: StageReport) -> None:
    """Say in *span* how a stage has ended."""
    set_token_attributes(span, report)
    span.set_attribute("ctxpipe.outcome", report.outcome.value)
    if report.error is not None:
        span.set_attribute("error.type", type(report.error).__name__)


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
