"""Read the raw messages behind a context again, from the archives that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..._threads.threads import in_thread
from ...messages import Message, split_system
from ...placeholders.summaries import (
    acknowledged_count,
    archive_references,
    leading_count,
    summary_body,
    text_of,
)
from ...storage import Archive
from ...storage.records import message_redactor_of, redactor_of
from ...summarizers.retry import digest_of
from ..archive import ArchiveContent, last_part, read_verified, records_by_name
from ..protocol import Turn
from ..reading.conversation_facts import ConversationFacts
from .source import Source, after_summary
from .split_context import SplitContext

MAX_OPENED_ARCHIVES = 3
"""Number of earlier archives that are read; the last one has the facts of everything before."""


MAX_OPENED_WITHOUT_FACTS = 100
"""Number of archives that are read if they have no facts, like those of `compact_messages`."""


async def source_of(
    turn: Turn,
    context: SplitContext,
    archive: Archive | None,
    visible_path_of: Callable[[str], str],
) -> Source:
    """Return the raw messages behind the *context* of *turn*, and the archives of its compactions.

    *visible_path_of* returns the path of an archive as the model sees it. In a session the messages
    are the caller's history, unchanged. Otherwise they are read from the context. A summary at its
    beginning is trusted only as far as it names archives of this session with the right digest: it
    is replaced by the messages in them, and by the facts in the oldest of them. A summary that
    cannot be verified contributes nothing.
    """
    source = await _expand(context.rest, turn.session_id, archive, visible_path_of)
    if turn.history is not None:
        head, history = split_system(turn.history)
        # A history that begins with a summary is a context that the caller has stored.
        if not acknowledged_count(history):
            return Source(
                history,
                source.archives,
                is_raw=True,
                head_count=len(head),
                redact=source.redact,
            )
    return source


async def _expand(
    messages: Sequence[Message],
    session_id: str,
    archive: Archive | None,
    visible_path_of: Callable[[str], str],
) -> Source:
    """Return *messages* with the content of archives in place of the summary at the beginning.

    Each archive begins with the summary of the one before, so they are followed backwards:

        context      summary 2 (names archive 2), messages c
        archive 2    summary 1 (names archive 1), messages b
        archive 1    messages a

    becomes a, b, c. The archives in the source are in the order 1, 2.
    """
    later_parts: list[list[Message]] = []
    names: list[str] = []
    redact = message_redactor_of(archive)
    candidates: Sequence[tuple[str, str]] = []
    if messages and summary_body(messages[0]) is not None:
        candidates = archive_references(text_of(messages[0]))
    # Listed once: a long session has many archives, among thousands of other files.
    records = await records_by_name(archive, session_id) if candidates else {}
    facts: ConversationFacts | None = None
    while candidates:
        limit = MAX_OPENED_ARCHIVES if facts else MAX_OPENED_WITHOUT_FACTS
        if len(names) >= limit:
            break
        name, content = await _first_verified(candidates, records, archive)
        if content is None or name in names:
            break
        later_parts.append(await in_thread(after_summary, messages, content.messages, redact))
        names.append(name)
        messages = content.messages
        facts = content.facts
        candidates = content.before
    # The facts include those of the messages in the last archive.
    raw = [] if facts else list(messages[leading_count(messages) :])
    for part in reversed(later_parts):
        raw += part
    archives = [visible_path_of(name) for name in reversed(names)]
    earlier = facts or ConversationFacts()
    return Source(raw, archives, redact=redactor_of(archive), earlier=earlier)


async def _first_verified(
    candidates: Sequence[tuple[str, str]], records: Mapping[str, str], archive: Archive | None
) -> tuple[str, ArchiveContent | None]:
    """Return the record and the content of the first archive in *candidates* that is verified.

    *candidates* are paths and digests, *records* those of the session by their names.
    """
    for path, digest in candidates:
        record = records.get(last_part(path))
        if record is None:
            continue
        content = await read_verified(archive, record, digest)
        if content is not None:
            return record, content
    return "", None


async def digest_of_rest(context: SplitContext) -> str:
    """Return the digest of the messages of *context* that can be summarized."""
    return (await in_thread(digest_of, context.rest)).hex()
