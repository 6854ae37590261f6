"""Everything ctxpipe raises on purpose."""

from __future__ import annotations

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
    """Text could not be written to, or read from, a storage; the cause is the operating system's error."""


class SummaryFailed(CtxpipeError):
    """The summariser gave up; the history stays as it was."""


class TranscriptError(CtxpipeError, ValueError):
    """A recorded conversation cannot be read; the text names the file and the line."""


class VocabularyError(CtxpipeError, OSError):
    """A rank file of the tokenizer is missing or damaged; the text names it and says how to mend it."""
