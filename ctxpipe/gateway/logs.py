"""Log lines of the gateway as JSON objects, for programs that collect logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

FIELDS = "ctxpipe_fields"
"""Attribute of a log record with fields of its own, such as those of a turn."""


class JsonLines(logging.Formatter):
    """Formats each record as a JSON object on one line.

    It has the time in UTC, the level, the logger and the message, and the fields that the record
    brings: a turn has its tenant, session, model, tokens, dollars and what was removed.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as JSON."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_text:
            line["traceback"] = record.exc_text
        elif record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def formatter_of(log_format: LogFormat) -> logging.Formatter:
    """Return the formatter of *log_format*: lines of text with a time, or JSON objects."""
    return JsonLines() if log_format == "json" else logging.Formatter("%(asctime)s %(message)s")
