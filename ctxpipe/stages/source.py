"""Where the evidence of a compaction comes from: the raw messages, however often they were
compacted before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from ..compacted import leading, placed, summary_body, text_of
from ..edits.compact import Source, after_summary, named_archives, partition
from ..errors import StorageError
from ..storage.records import message_redactor_of, redactor_of
from ..threads import in_thread
from .archive import Archived, verified_archive

if TYPE_CHECKING:
    from ..messages import Message
    from ..stage import Turn
    from ..storage import Archive

__all__ = ["source_of"]

MOST_ARCHIVES = 100
"""So many compactions of one conversation are looked through.

What lies further back is not in the evidence.
"""
NAMED = 3
"""So many earlier archives are named where the raw history is at hand."""


async def source_of(turn: Turn, archive: Archive | None, shown: Callable[[str], str]) -> Source:
    """The raw messages behind the context of *turn*, and the archives of its compactions by the
    paths the model sees.

    In a session that is the caller's history, to the letter. Else the context is all there is, and
    a summary at its beginning is believed only as far as it names archives of this very session,
    with the right digest: the messages in them take its place. What cannot be verified gives
    nothing.
    """
    _, rest = partition(turn.messages)
    redact = redactor_of(archive)
    if turn.history is not None:
        _, history = partition(turn.history)
        if not placed(
            history
        ):  # else it is a context that a caller has kept, and handed to a session of its own
            _, archives = await _behind(rest, turn.session_id, archive, shown, NAMED)
            return Source(history, archives, is_raw=True, redact=redact)
    messages, archives = await _behind(rest, turn.session_id, archive, shown, MOST_ARCHIVES)
    return Source(messages, archives, redact=redact)


async def _behind(
    messages: Sequence[Message],
    session_id: str,
    archive: Archive | None,
    shown: Callable[[str], str],
    most: int,
) -> tuple[list[Message], list[str]]:
    """*messages* with what archives hold in the place of the summary they begin with, and those
    archives.
    """
    later: list[list[Message]] = []
    names: list[str] = []
    redacted = message_redactor_of(archive)
    named = (
        named_archives(text_of(messages[0]))
        if messages and summary_body(messages[0]) is not None
        else []
    )
    while len(names) < most and named:
        name, found = await _archived(named, session_id, archive)
        if found is None or name in names:
            break
        later.append(await in_thread(after_summary, messages, found.messages, redacted))
        names.append(name)
        messages, named = found
    oldest = messages[leading(messages) :]
    raw = [message for part in [oldest, *reversed(later)] for message in part]
    return raw, [shown(name) for name in reversed(names)]


async def _archived(
    named: Sequence[tuple[str, str]], session_id: str, archive: Archive | None
) -> tuple[str, Archived | None]:
    """The first of the archives *named*, by path and digest, that is verified.

    Its record, and what it holds.
    """
    if archive is None:
        return "", None
    try:
        records = {PurePath(record).name: record for record in await archive.records(session_id)}
    except StorageError:
        return "", None
    for path, digest in named:
        record = records.get(path.replace("\\", "/").rpartition("/")[2])
        found = await verified_archive(archive, session_id, path, digest) if record else None
        if record and found is not None:
            return record, found
    return "", None
