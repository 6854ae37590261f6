"""Where a compaction's evidence comes from: the raw messages, however often they were compacted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .._threads.threads import in_thread
from ..edits.compact import Facts, Source, after_summary, partition
from ..messages import Message
from ..placeholders.summaries import (
    acknowledged_count,
    archive_references,
    leading_count,
    summary_body,
    text_of,
)
from ..storage import Archive
from ..storage.records import message_redactor_of, redactor_of
from .archive import Archived, last_part, read_verified, records_by_name
from .protocol import Turn

RECENT = 3
"""How many earlier compactions are opened; what was before them is known from the last one."""
MOST_ARCHIVES = 100
"""How many are opened where they have kept no facts, as those of `compact_messages`."""


async def source_of(turn: Turn, archive: Archive | None, shown: Callable[[str], str]) -> Source:
    """The raw messages behind the context of *turn*, and the archives of its compactions.

    The archives are named by the paths that the model sees. In a session the messages are the
    caller's history, to the letter. Otherwise the context is all there is, and a summary at its
    beginning is believed only as far as it names archives of this very session, with the right
    digest: the messages in them take its place, and before those the facts that they have kept.
    What cannot be verified contributes nothing.
    """
    _, rest = partition(turn.messages)
    redact = redactor_of(archive)
    if turn.history is not None:
        _, history = partition(turn.history)
        # Otherwise it is a context that a caller has kept, and given to a session as its history.
        if not acknowledged_count(history):
            expanded = await _expand(rest, turn.session_id, archive)
            return Source(history, list(map(shown, expanded.archives)), is_raw=True, redact=redact)
    expanded = await _expand(rest, turn.session_id, archive)
    return Source(
        expanded.messages,
        list(map(shown, expanded.archives)),
        redact=redact,
        earlier=expanded.earlier,
    )


class _Expanded(NamedTuple):
    """Raw *messages*, the *archives* that some of them come from, and what is known before them."""

    messages: list[Message]
    archives: list[str]
    earlier: Facts


async def _expand(
    messages: Sequence[Message], session_id: str, archive: Archive | None
) -> _Expanded:
    """*messages* with what archives hold in place of the summary at the beginning.

    The archives are told oldest first.
    """
    later: list[list[Message]] = []
    names: list[str] = []
    redact = message_redactor_of(archive)
    candidates: Sequence[tuple[str, str]] = []
    if messages and summary_body(messages[0]) is not None:
        candidates = archive_references(text_of(messages[0]))
    # Listed once: a long session has many archives, and thousands of files beside them.
    records = await records_by_name(archive, session_id) if candidates else {}
    facts: Facts | None = None
    while candidates and len(names) < (RECENT if facts else MOST_ARCHIVES):
        name, found = await _first_verified(candidates, records, archive)
        if found is None or name in names:
            break
        later.append(await in_thread(after_summary, messages, found.messages, redact))
        names.append(name)
        messages = found.messages
        facts = found.facts
        candidates = found.before
    # The facts are those of the messages in the last archive, too.
    raw = [] if facts else list(messages[leading_count(messages) :])
    for part in reversed(later):
        raw += part
    return _Expanded(raw, names[::-1], facts or Facts())


async def _first_verified(
    candidates: Sequence[tuple[str, str]], records: Mapping[str, str], archive: Archive | None
) -> tuple[str, Archived | None]:
    """The first of the archives *candidates*, by path and digest, that is verified.

    Its record, one of the session's *records* by their names, and what it holds.
    """
    for path, digest in candidates:
        record = records.get(last_part(path))
        if record is None:
            continue
        found = await read_verified(archive, record, digest)
        if found is not None:
            return record, found
    return "", None
