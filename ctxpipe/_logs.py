"""Log records on one line each, whatever the ids, paths and texts in them hold."""

from __future__ import annotations

import logging

from ._text import escape_unprintable

logger: logging.Logger = logging.getLogger("ctxpipe")

LOGGERS = ("ctxpipe", "ctxpipe.gateway")
"""The loggers of this package: a record passes the filters of its own logger alone."""

_FORMATTER = logging.Formatter()


class _OneLine(logging.Filter):
    """Escapes what is not printable, such as line breaks, terminal codes and bidi overrides.

    The lines of a traceback, which quotes an error's text, are indented.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  logging itself reports a record that cannot be formatted
            return True
        if not message.isprintable():
            record.msg, record.args = escape_unprintable(message), None
        if record.exc_info and not record.exc_text:
            lines = _FORMATTER.formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(f"  {escape_unprintable(line)}" for line in lines)
        return True


def keep_records_on_one_line() -> None:
    """Attach the filter to the loggers of this package."""
    one_line = _OneLine()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(one_line)
