"""Everything ctxpipe raises on purpose."""

from __future__ import annotations

import os
import re

from .words import one_line

__all__ = [
    "CtxpipeError",
    "InvalidHistory",
    "SettingsError",
    "StorageError",
    "SummaryFailed",
    "TranscriptError",
    "VocabularyError",
]


class CtxpipeError(Exception):
    """Base of every error that ctxpipe raises."""


class InvalidHistory(CtxpipeError, ValueError):
    """A history has not the shape of Anthropic messages; the text names the index."""


class SettingsError(CtxpipeError, ValueError):
    """A setting, given in code or in the environment, makes no sense; the text names it."""


class StorageError(CtxpipeError, OSError):
    """Text could not be written to, or read from, a storage.

    The cause is the operating system's error.
    """


class SummaryFailed(CtxpipeError):
    """The summariser gave up; the history stays as it was."""


class TranscriptError(CtxpipeError, ValueError):
    """A recorded conversation cannot be read; the text names the file and the line."""


class VocabularyError(CtxpipeError, OSError):
    """A rank file of the tokenizer is missing or damaged.

    The text names it and says how to mend it.
    """


MAX_ERROR_CHARS = 160
_READ = 2_000  # characters: a path may be of megabytes
_FOLDERS = re.compile(
    r"(?<![\w…])(?:/[^/\s'\":]+)+/"
)  # of a path: their names may say whose conversation it is


def safe_text(error: BaseException) -> str:
    """What may be told of *error* in a log, a report or a span: never text of the conversation.

    An error that our own code has raised on purpose is told in its words, the folders of a path
    left out. Any other may quote what it was given, so only its type, what the operating system
    calls it, and the line that raised it are told.
    """
    name = type(error).__name__
    if isinstance(error, OSError) and isinstance(error.errno, int):
        name += f": {os.strerror(error.errno)}"
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return name
    module = str(frame.tb_frame.f_globals.get("__name__"))
    if isinstance(error, CtxpipeError) and module.partition(".")[0] == __package__:
        return one_line(_FOLDERS.sub("…/", str(error)[:_READ]), MAX_ERROR_CHARS)
    file = os.path.basename(frame.tb_frame.f_code.co_filename)
    return f"{name} ({file}, line {frame.tb_lineno})"
