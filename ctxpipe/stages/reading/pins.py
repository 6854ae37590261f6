"""Find the messages that the caller has pinned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from ...messages import Message, has_calls, has_results, texts
from ...messages.vocabulary import head_length
from ...placeholders.summaries import acknowledged_count, is_connective

Pin: TypeAlias = "Callable[[Message], bool] | Collection[str]"
"""Choice of messages that stay unchanged: a function, or texts to look for in the user's words."""


def _says_any(message: Message, pinned_texts: Collection[str]) -> bool:
    """Return True if *message* is the user's and contains one of *pinned_texts*."""
    if message["role"] != "user":
        return False
    return any(pinned in text for text in texts(message) for pinned in pinned_texts)


def pinned_indices(messages: Sequence[Message], pin: Pin | None) -> set[int]:
    """Return the indices of the messages that *pin* chooses, and of their calls and results.

    Messages that a compaction put there are never pinned, nor are system messages: `replacements`
    keeps those that still apply.
    """
    if pin is None:
        return set()
    first = head_length(messages)
    of_compaction = range(first, first + acknowledged_count(messages[first:]))
    pinned: set[int] = set()
    for index, message in enumerate(messages):
        if index in of_compaction or message["role"] == "system" or is_connective(message):
            continue
        is_pinned = pin(message) if callable(pin) else _says_any(message, pin)
        if is_pinned:
            pinned.add(index)
    last = len(messages) - 1
    for index in sorted(pinned):
        message = messages[index]
        if index < last and has_calls(message):
            pinned.add(index + 1)
        if index > 0 and has_results(message):
            pinned.add(index - 1)
    return pinned
