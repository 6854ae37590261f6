"""The errors that ctxpipe raises."""

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
    """Base class of every error that ctxpipe raises on purpose; catch it to catch them all."""


class InvalidHistory(CtxpipeError, ValueError):
    """Error for a history that is not a valid list of messages; its text names the index.

    Valid are the messages of Anthropic's Messages API.
    """


class SessionDeleted(CtxpipeError):
    """Error of a session whose conversation was deleted while the session was in use.

    The session has dropped its memory: no message of the deleted conversation is sent or written
    again. The session object stays usable. The next messages that it gets begin a new conversation
    of the same name.
    """


class SettingsError(CtxpipeError, ValueError):
    """Error for an invalid setting in code or in the environment; its text names the setting."""


class StorageError(CtxpipeError, OSError):
    """Error of a storage: a text could not be written or read.

    Its ``__cause__`` is the error of the operating system, or of the driver of the storage.
    """


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn every error of a storage in the block into a StorageError.

    A storage of the user may raise any error, and callers catch only StorageError.
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
    """Error after all attempts to get a summary have failed; the history stays unchanged."""


class TranscriptError(CtxpipeError, ValueError):
    """Error for a recording that cannot be read; its text names the file and the line."""


class VocabularyError(CtxpipeError, OSError):
    """Error for a rank file of the tokenizer that is missing or damaged.

    Its text names the file and says how to repair it.
    """


MAX_ERROR_CHARS = 160
_MAX_SEARCHED_CHARS = 2_000  # a path may be of megabytes
# The folders of a path: their names may say whose conversation it is.
_FOLDERS = re.compile(r"(?<![\w…])(?:/[^/\s'\":]+)+/")


def safe_text(error: BaseException) -> str:
    """Describe *error* for a log, a report or a span, without any text of the conversation.

    For an error that ctxpipe itself raised this is its text, without the folders of paths. Other
    errors may quote their input: for these it is only the type, the operating system's name for it,
    and the line that raised it.
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
    package = str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0]
    if package == __package__ and isinstance(error, CtxpipeError):
        return one_line(_FOLDERS.sub("…/", str(error)[:_MAX_SEARCHED_CHARS]), MAX_ERROR_CHARS)
    file = os.path.basename(frame.tb_frame.f_code.co_filename)
    return f"{name} ({file}, line {frame.tb_lineno})"


def _first_leaf(error: BaseException) -> BaseException:
    """Return *error*, or the first error in a group, since a group has no reason of its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
