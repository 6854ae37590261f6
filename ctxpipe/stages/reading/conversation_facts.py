"""Facts about a conversation that are found without a model, and outlive a compaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..._text import last_within


@dataclass(frozen=True, slots=True)
class ConversationFacts:
    """Facts about a history, found without a model; in each collection the most recent is last.

    *paths* has for each path whether it was written, *commands* for each command line whether it
    failed the last time. *requests* are the user's own words, *orders* the ``<command>`` blocks in
    them. *archives* are the files with the raw messages, *digest* is that of the last one, *index*
    the file with further paths, *notes* are remarks about restored files. *needs_first_request* and
    *needs_last_request* are True if that request is nowhere else in the context. *redact* is
    applied to a request before it is cut.
    """

    paths: Mapping[str, bool] = field(default_factory=dict)
    commands: Mapping[str, bool] = field(default_factory=dict)
    identifiers: Sequence[str] = ()
    requests: Sequence[str] = ()
    archives: Sequence[str] = ()
    digest: str = ""
    index: str = ""
    notes: Sequence[str] = ()
    needs_first_request: bool = True
    needs_last_request: bool = False
    redact: Callable[[str], str] = str
    orders: Sequence[str] = ()


_MOST_PATHS = 5_000
_MOST_LINES = 500
_MOST_REQUEST_CHARS = 200_000


def facts_to_keep(facts: ConversationFacts) -> ConversationFacts:
    """Return the part of *facts* that an archive keeps for later compactions.

    It is some hundred times the evidence of one context. The first request and all orders stay.
    """
    return ConversationFacts(
        paths=dict(list(facts.paths.items())[-_MOST_PATHS:]),
        commands=dict(list(facts.commands.items())[-_MOST_LINES:]),
        identifiers=facts.identifiers[-_MOST_LINES:],
        requests=[*facts.requests[:1], *last_within(_MOST_REQUEST_CHARS, facts.requests[1:], len)],
        orders=facts.orders,
    )
