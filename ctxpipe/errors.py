"""Everything ctxpipe raises on purpose."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ._text import one_line

__all__ = [
    "CtxpipeError",
    "InvalidHistory",
    "SessionDeleted",
    "SettingsError",
    "StorageError",
    "SummaryFailed",
    "TranscriptError",
    "VocabularyError",
]


class CtxpipeError(Exception):
    """Base of every error that ctxpipe raises."""


class InvalidHistory(CtxpipeError, ValueError):
    """A history is not a valid list of Anthropic messages; the text names the index."""


class SessionDeleted(CtxpipeError):
    """The conversation was deleted while a session held it: the session has dropped its memory.

    Nothing of it is sent or written again. What is handed in next begins a new conversation.
    """


class SettingsError(CtxpipeError, ValueError):
    """A setting, given in code or in the environment, is invalid; the text names it."""


class StorageError(CtxpipeError, OSError):
    """Text could not be written to, or read from, a storage.

    The cause is the operating system's error.
    """


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise whatever a storage raises in the block as a StorageError.

    One of a user's own may raise anything, and the code around it catches StorageError alone.
    """
    try:
        yield
    except (SessionDeleted, StorageError):
        raise
    except Exception as error:
        cause = _first_leaf(error)
        number = getattr(cause, "errno", None)
        if not isinstance(number, int):
            number = errno.EIO
        raise StorageError(number, f"the storage raised {safe_text(cause)}") from error


class SummaryFailed(CtxpipeError):
    """The summarizer gave up; the history stays as it was."""


class TranscriptError(CtxpipeError, ValueError):
    """A recorded conversation cannot be read; the text names the file and the line."""


class VocabularyError(CtxpipeError, OSError):
    """A rank file of the tokenizer is missing or damaged.

    The text names it and says how to repair it.
    """


MAX_ERROR_CHARS = 160
_MAX_SEARCHED_CHARS = 2_000  # a path may be of megabytes
# The folders of a path: their names may say whose conversation it is.
_FOLDERS = re.compile(r"(?<![\w…])(?:/[^/\s'\":]+)+/")


def safe_text(error: BaseException) -> str:
    """What a log, a report or a span may say about *error*: never text of the conversation.

    For an error that our own code raised on purpose this is its text without the folders of paths.
    Any other may quote its input, so this is only its type, the operating system's name for it, and
    the line that raised it.
    """
    error = _first_leaf(error)
    name = type(error).__name__
    if isinstance(error, OSError) and isinstance(error.errno, int):
        name += f": {os.strerror(error.errno)}"
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return name
    is_ours = str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0] == __package__
    if is_ours and isinstance(error, CtxpipeError):
        return one_line(_FOLDERS.sub("…/", str(error)[:_MAX_SEARCHED_CHARS]), MAX_ERROR_CHARS)
    file = os.path.basename(frame.tb_frame.f_code.co_filename)
    return f"{name} ({file}, line {frame.tb_lineno})"


def _first_leaf(error: BaseException) -> BaseException:
    """*error*, or the first one in a group: a group alone says nothing."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
