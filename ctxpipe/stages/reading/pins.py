"""Find the messages and tool results that the caller has pinned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...errors import SettingsError
from ...messages import (
    Message,
    has_calls,
    has_results,
    result_text,
    texts,
    tool_calls,
    tool_results,
)
from ...messages.vocabulary import head_length
from ...placeholders.summaries import acknowledged_count, is_connective
from ...settings import NAMES, check_settings

Pin: TypeAlias = "Callable[[Message], bool] | Collection[str]"
"""Choice of messages that stay unchanged: a function, or texts to look for in the user's words.

`Pins` is such a function, which also finds the results of tools.
"""


@dataclass(frozen=True, slots=True)
class Pins:
    """Choice of messages and tool results that stay unchanged, for every ``pin=``.

    A message of the user is chosen if it contains one of *words*. A call and its result are chosen
    if the tool is one of *tools*, or if the result contains one of *results*. A web page can
    contain any text, so prefer *tools* to *results* where pages are read.

    Raises SettingsError if one of them is no collection of texts, or all are empty.
    """

    words: Collection[str] = ()
    tools: Collection[str] = ()
    results: Collection[str] = ()

    def __post_init__(self) -> None:
        check_settings(self, words=NAMES, tools=NAMES, results=NAMES)
        if not (self.words or self.tools or self.results):
            raise SettingsError(
                "Pins() chooses nothing; give words=, tools= or results=, such as tools=['Skill']"
            )

    def __call__(self, message: Message, /) -> bool:
        """Return True if *message* is chosen, or one of its calls or results."""
        if _says_any(message, self.words):
            return True
        if any(call.name in self.tools for call in tool_calls([message])):
            return True
        for result in tool_results([message]) if self.results else ():
            text = result_text(result)
            if any(pinned in text for pinned in self.results):
                return True
        return False


def is_pinned(message: Message, pin: Pin) -> bool:
    """Return True if *pin* chooses *message*."""
    return pin(message) if callable(pin) else _says_any(message, pin)


def is_pinned_exchange(messages: Sequence[Message], index: int, pin: Pin | None) -> bool:
    """Return True if *pin* chooses message *index*, or the call or the results next to it."""
    if pin is None:
        return False
    places = [index]
    if index > 0 and has_results(messages[index]):
        places.append(index - 1)
    if index + 1 < len(messages) and has_calls(messages[index]):
        places.append(index + 1)
    return any(is_pinned(messages[place], pin) for place in places)


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
        if is_pinned(message, pin):
            pinned.add(index)
    last = len(messages) - 1
    for index in sorted(pinned):
        message = messages[index]
        if index < last and has_calls(message):
            pinned.add(index + 1)
        if index > 0 and has_results(message):
            pinned.add(index - 1)
    return pinned
