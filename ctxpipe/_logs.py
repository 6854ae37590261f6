"""Log records on one line each, and spans of OpenTelemetry."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

from ._text import escape_unprintable

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from .stages.reports import Result, StageReport

logger: logging.Logger = logging.getLogger("ctxpipe")

LOGGERS = ("ctxpipe", "ctxpipe.gateway")
"""Loggers of this package; each needs the filter, since a record passes its own logger's only."""

_FORMATTER = logging.Formatter()


class _OneLine(logging.Filter):
    """Escapes unprintable characters, such as line breaks, terminal codes and bidi overrides.

    The lines of a traceback, which quotes the text of an error, are indented.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape line breaks and control characters in the message and traceback of *record*.

        Returns True: no record is dropped. A record that cannot be formatted stays unchanged.
        """
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  logging itself reports a record that cannot be formatted
            return True
        if not message.isprintable():
            record.msg = escape_unprintable(message)
            record.args = None
        if record.exc_info and not record.exc_text:
            lines = _FORMATTER.formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(f"  {escape_unprintable(line)}" for line in lines)
        return True


def keep_records_on_one_line() -> None:
    """Attach the filter to the loggers of this package."""
    one_line = _OneLine()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(one_line)


@cache
def _is_set_by_environment() -> bool:
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


def find_tracer() -> Tracer | None:
    """Return OpenTelemetry's tracer, or None if no SDK is configured.

    Without an SDK even a span that does nothing would cost 10 µs.
    """
    # A program that configures an SDK has imported the module. Importing it here would block the
    # event loop for 60 ms and more in the first turn of every other program.
    if "opentelemetry.trace" not in sys.modules and not _is_set_by_environment():
        return None
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer("ctxpipe")


def describe(span: Span, report: StageReport) -> None:
    """Set the tokens and the outcome in the *report* of a stage as attributes of its *span*.

    The tokens are those before, after and saved. `ctxpipe.is_estimate` is set only if they are
    estimates, `error.type` (the name of the class) only if the stage failed.
    """
    set_token_attributes(span, report)
    span.set_attribute("ctxpipe.outcome", report.outcome.value)
    if report.is_estimate:
        span.set_attribute("ctxpipe.is_estimate", True)
    if report.error is not None:
        span.set_attribute("error.type", type(report.error).__name__)


def span_of(tracer: Tracer, name: str, session_id: str) -> AbstractContextManager[Span]:
    """Start a span for a turn, or for one of its stages.

    ``gen_ai.conversation.id`` is the name of the semantic conventions for generative AI.
    """
    # The text of an error may quote the conversation, so it must not be in a trace. The caller gets
    # it with the error.
    return tracer.start_as_current_span(
        f"ctxpipe.{name}",
        attributes={"ctxpipe.session_id": session_id, "gen_ai.conversation.id": session_id},
        record_exception=False,
        set_status_on_exception=False,
    )


def set_token_attributes(span: Span, source: StageReport | Result) -> None:
    """Set the tokens before and after on *span*."""
    span.set_attribute("ctxpipe.tokens_before", source.tokens_before)
    span.set_attribute("ctxpipe.tokens_after", source.tokens_after)
    span.set_attribute("ctxpipe.tokens_saved", source.tokens_saved)
