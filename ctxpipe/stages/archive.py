"""Archive raw messages before they leave the context, and read them back."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._logs import logger
from .._threads.threads import in_thread
from ..errors import CtxpipeError, InvalidHistory, StorageError, safe_text, storage_errors
from ..messages import Message, ensure_messages, texts
from ..placeholders.names import content_hash
from ..placeholders.summaries import archive_references, text_of
from ..storage import Archive, TextReader
from ..storage.records import Record
from .reading.conversation_facts import ConversationFacts, facts_to_keep

if TYPE_CHECKING:
    import os


FORM = 1
"""Version of the format in which archives are written.

A newer version is refused; a bare list of messages can be read too.
"""

MAX_CHARACTERS = 256_000_000
"""Largest archive that is read because a context names it: many windows of any model."""
_GROUP = 8
_NAME = re.compile(r"compact-\d{8}T\d{6}Z-\d{1,9}\.json")
_DIGEST = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{8}){3}")


def archive_record(messages: Sequence[Message], facts: ConversationFacts | None = None) -> Record:
    """Return the record of *messages* for `Archive.save`.

    Plain messages are equal when `load_archive` returns them; model objects of the SDK become plain
    dicts as they would be sent, and tuples become lists. ``before`` has the archives that a summary
    at the beginning names, with their digests. *facts* are those of the whole conversation up to
    the end of *messages*, so that a later compaction need not read the archives before.
    """
    first_text = next(texts(messages[0]), "") if messages else ""
    references = archive_references(first_text) if isinstance(first_text, str) else []
    before: list[list[str]] = []
    for path, digest in references:
        name = last_part(path)
        # This is stored outside the messages, without redaction: so only texts that can be nothing
        # but a name and a digest of ctxpipe.
        if _NAME.fullmatch(name) and _DIGEST.fullmatch(digest):
            before.append([name, digest])
    record: dict[str, object] = {"form": FORM}
    if before:
        record["before"] = before
    if facts is not None:
        record["facts"] = _encode_facts(facts_to_keep(facts))
    return {**record, "messages": messages}


def _encode_facts(facts: ConversationFacts) -> dict[str, object]:
    """Return *facts* as values for JSON."""
    # Lists of pairs: as keys of an object, two paths could become equal when they are redacted.
    return {
        "paths": list(facts.paths.items()),
        "commands": list(facts.commands.items()),
        "identifiers": facts.identifiers,
        "requests": facts.requests,
        "orders": facts.orders,
    }


def _decode_facts(value: Any) -> ConversationFacts | None:
    """Return the facts in *value*, as read from JSON; None if it is no object.

    Raises KeyError, TypeError or ValueError if it has another form.
    """
    if not isinstance(value, Mapping):
        return None
    return ConversationFacts(
        paths={str(path): bool(written) for path, written in value["paths"]},
        commands={str(line): bool(failed) for line, failed in value["commands"]},
        identifiers=[str(name) for name in value["identifiers"]],
        requests=[str(text) for text in value["requests"]],
        orders=[str(text) for text in value["orders"]],
    )


async def save_raw(
    archive: Archive, session_id: str, name: str, record: Record, *, required: bool
) -> str | None:
    """Save *record* and return its location; None if it cannot be saved.

    Raises StorageError instead if the archive is *required*.
    """
    try:
        with storage_errors():
            return await archive.save(session_id, name, record)
    except StorageError as error:
        if required:
            raise
        # No traceback: it may quote anything.
        logger.error("the raw messages are not archived: %s", safe_text(error))  # noqa: TRY400
        return None


class ArchiveContent(NamedTuple):
    """The content of an archive: its *messages*, and the archives *before* it.

    *before* has the names and digests in the summary that the messages begin with. *facts* are
    those of the whole conversation up to the end of the messages; None if they were not stored.
    """

    messages: list[Message]
    before: list[tuple[str, str]]
    facts: ConversationFacts | None = None


def parse_archive(text: str, path: str | os.PathLike[str]) -> list[Message]:
    """Return the messages in the *text* of the archive at *path*, which is used for errors only.

    Raises StorageError if a newer ctxpipe wrote it, InvalidHistory if it has other content.
    """
    return _parse(text, path).messages


def _parse(text: str, path: str | os.PathLike[str]) -> ArchiveContent:
    """Return the archive in *text*: its messages, references to earlier archives, and facts.

    An older form is only a list of messages; the references are then those in its first message.
    Raises InvalidHistory, with *path*, if it is no archive.
    """
    references: Any = ()
    facts: ConversationFacts | None = None
    try:
        record: Any = json.loads(text)
        if isinstance(record, Mapping):
            ensure_known_form(record.get("form"), path)
            references = record.get("before", ())
            facts = _decode_facts(record.get("facts"))
            record = record.get("messages")
        messages: list[Message] = record
        ensure_messages(messages)
        before = [(str(name), str(digest)) for name, digest in references]
    except (TypeError, ValueError, KeyError, RecursionError) as error:  # also InvalidHistory
        reason = textwrap.shorten(str(error), 200)
        raise InvalidHistory(f"{path} is not an archive of messages: {reason}") from error
    if messages and not before:
        before = archive_references(text_of(messages[0]))
    return ArchiveContent(messages, before, facts)


def ensure_known_form(form: object, path: str | os.PathLike[str]) -> None:
    """Raise StorageError if *form* is newer than `FORM`, InvalidHistory if it is no version."""
    if not isinstance(form, int) or form < 1:
        raise InvalidHistory(f"its form is {textwrap.shorten(repr(form), 40)}, not {FORM}")
    if form > FORM:
        raise StorageError(
            f"{path} was written by a newer ctxpipe, in form {form}; update ctxpipe to read it"
        )


# Archives named in a context ----------------------------------------------------------------------


async def archive_digest(archive: Archive | None, path: str) -> str | None:
    """Return the digest of the stored text of the archive at *path*, which was just saved.

    Returns None if it cannot be read back.
    """
    text = await _archive_text(archive, path)
    return None if text is None else await in_thread(_digest, text)


async def _archive_text(archive: object, path: str) -> str | None:
    """Return the whole text of the archive at *path*; None if it cannot be read."""
    if not isinstance(archive, TextReader):
        return None
    try:
        with storage_errors():
            page = await archive.read(path, 0, MAX_CHARACTERS)
    except StorageError as error:
        logger.debug("an archive cannot be read: %s", error)
        return None
    return page.text if page.next_offset is None else None


async def records_by_name(archive: Archive | None, session_id: str) -> Mapping[str, str]:
    """Return the records of the session *session_id* by the last part of their paths.

    A context names an archive by a path that may have another form than the storage's. Returns an
    empty dict if the records cannot be listed.
    """
    if archive is None:
        return {}
    try:
        with storage_errors():
            records = await archive.records(session_id)
    except CtxpipeError as error:
        logger.debug("the archives of a session cannot be listed: %s", error)
        return {}
    return {last_part(record): record for record in records}


async def read_verified(archive: Archive | None, record: str, digest: str) -> ArchiveContent | None:
    """Return the content of *record*, one of `records_by_name`.

    Returns None if it cannot be read, or if its digest is not *digest*.
    """
    text = await _archive_text(archive, record)
    if text is None or await in_thread(_digest, text) != digest:
        return None
    try:
        return await in_thread(_parse, text, record)
    except CtxpipeError as error:
        logger.debug("an archive that the context names is not valid: %s", error)
        return None


def last_part(path: str) -> str:
    """Return the name of the file at *path*, which may have slashes of either kind."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _digest(text: str) -> str:
    """Return a digest of *text* in short groups: a redaction of long hex numbers keeps it."""
    return "-".join(textwrap.wrap(content_hash(text, 4 * _GROUP), _GROUP))
