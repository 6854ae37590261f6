"""Find the ``<command>`` blocks that the user wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...messages import Message
from ...placeholders.summaries import commands_in_force, own_words

_COMMAND = re.compile(r"<command(?:\s[^<>]*)?>.*?</command>", re.DOTALL)
_END = "</command>"


def extract_commands(messages: Iterable[Message]) -> list[str]:
    """Return the ``<command>`` blocks that the user wrote in *messages*, each once, oldest first.

    Those that an earlier compaction carried over come first. Tool results and the assistant's words
    do not count. A text in the form of a summary is trusted here; `gather_facts` trusts none.
    """
    return commands_in(commands_in_force(message) or own_words(message) for message in messages)


def commands_in(texts: Iterable[str]) -> list[str]:
    """Return the distinct commands between the tags in *texts*, in their order."""
    commands_found: list[str] = []
    for text in texts:
        # Stop at the last end tag: after it, the pattern would read from each start tag to the
        # end of the text.
        stop = text.rfind(_END) + len(_END)
        commands_found += _COMMAND.findall(text, 0, stop)
    return list(dict.fromkeys(commands_found))
