"""Raw messages saved before they leave the context, and read back."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._logs import logger
from .._threads.threads import in_thread, run_to_completion
from ..edits.compact import Facts, facts_to_keep
from ..errors import CtxpipeError, InvalidHistory, StorageError, safe_text, storage_errors
from ..messages import Message, ensure_messages, texts
from ..placeholders.names import content_hash
from ..placeholders.summaries import archive_references, text_of
from ..storage import Archive, TextReader
from ..storage.folders import open_file
from ..storage.records import Record

if TYPE_CHECKING:
    import os


FORM = 1
"""The form in which archives are written.

A newer one is refused; a bare list of messages is read, too.
"""

# Of an archive that a context names: more than many windows of any model.
MAX_CHARACTERS = 256_000_000
_GROUP = 8
_NAME = re.compile(r"compact-\d{8}T\d{6}Z-\d{1,9}\.json")
_DIGEST = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{8}){3}")


def archive_record(messages: Sequence[Message], facts: Facts | None = None) -> Record:
    """The record that keeps *messages*, for `Archive.save`.

    Plain messages come back equal from `load_archive`; model objects of the SDK are written as they
    would be sent and come back as plain dicts, tuples as lists. The archives that a summary at the
    beginning names, with their digests, are kept as ``before``. *facts* are those of the whole
    conversation up to their end, so that a later compaction need not open the archives before.
    """
    first = next(texts(messages[0]), "") if messages else ""
    named = archive_references(first) if isinstance(first, str) else []
    before: list[list[str]] = []
    for path, digest in named:
        name = last_part(path)
        # It is kept beside the messages, where nobody redacts it: so only what can be nothing else
        # than a name of ours.
        if _NAME.fullmatch(name) and _DIGEST.fullmatch(digest):
            before.append([name, digest])
    record: dict[str, object] = {"form": FORM}
    if before:
        record["before"] = before
    if facts is not None:
        record["facts"] = _encode_facts(facts_to_keep(facts))
    return {**record, "messages": messages}


def _encode_facts(facts: Facts) -> dict[str, object]:
    # Pairs: as keys two paths could become one when they are redacted.
    return {
        "paths": list(facts.paths.items()),
        "commands": list(facts.commands.items()),
        "identifiers": facts.identifiers,
        "requests": facts.requests,
        "orders": facts.orders,
    }


def _decode_facts(value: Any) -> Facts | None:
    if not isinstance(value, Mapping):
        return None
    return Facts(
        paths={str(path): bool(written) for path, written in value["paths"]},
        commands={str(line): bool(failed) for line, failed in value["commands"]},
        identifiers=list(map(str, value["identifiers"])),
        requests=list(map(str, value["requests"])),
        orders=list(map(str, value["orders"])),
    )


async def save_raw(
    archive: Archive, session_id: str, name: str, record: Record, *, required: bool
) -> str | None:
    """The place of the raw messages; None when they cannot be saved, unless that is *required*."""
    try:
        with storage_errors():
            return await archive.save(session_id, name, record)
    except StorageError as error:
        if required:
            raise
        # No traceback: it may quote anything.
        logger.error("the raw messages are not archived: %s", safe_text(error))  # noqa: TRY400
        return None


async def load_archive(
    path: str | os.PathLike[str], storage: TextReader | None = None
) -> list[Message]:
    """The messages that a compaction or truncation saved at *path*, as they were.

    With *storage* they are read from there: an archive that is in no file has a URL. Without it the
    file is opened wherever *path* leads: give it no path that a model or a tool has named. Raises
    StorageError when there is no such file, when it is a pipe or device, or when a newer ctxpipe
    wrote it, InvalidHistory when it holds something else.
    """
    if storage is not None:
        return parse_archive((await storage.read(str(path))).text, path)
    try:
        text = await run_to_completion(_read(path))
    except OSError as error:
        raise StorageError(
            error.errno, f"cannot read the archive {path}: {error.strerror}"
        ) from error
    return parse_archive(text, path)


async def _read(path: str | os.PathLike[str]) -> str:
    import aiofiles  # here: it takes as long to import as the rest of this package

    async with aiofiles.open(path, encoding="utf-8", opener=open_file) as file:
        return await file.read()


class Archived(NamedTuple):
    """What an archive holds: its *messages*, and the archives *before* it.

    The latter are named, with their digests, by the summary that the messages begin with. *facts*
    are those of the whole conversation up to the end of the messages, where they were kept.
    """

    messages: list[Message]
    before: list[tuple[str, str]]
    facts: Facts | None = None


def parse_archive(text: str, path: str | os.PathLike[str]) -> list[Message]:
    """The messages in an archive's *text*; errors name its *path*.

    Raises StorageError when a newer ctxpipe wrote it, InvalidHistory when it holds something else.
    """
    return _parse(text, path).messages


def _parse(text: str, path: str | os.PathLike[str]) -> Archived:
    names: Any = ()
    facts: Facts | None = None
    try:
        record: Any = json.loads(text)
        if isinstance(record, Mapping):
            ensure_known_form(record.get("form"), path)
            names = record.get("before", ())
            facts = _decode_facts(record.get("facts"))
            record = record.get("messages")
        messages: list[Message] = record
        ensure_messages(messages)
        before = [(str(name), str(digest)) for name, digest in names]
    except (TypeError, ValueError, KeyError, RecursionError) as error:  # InvalidHistory, too
        reason = textwrap.shorten(str(error), 200)
        raise InvalidHistory(f"{path} is no archive of messages: {reason}") from error
    if messages and not before:
        before = archive_references(text_of(messages[0]))
    return Archived(messages, before, facts)


def ensure_known_form(form: object, path: str | os.PathLike[str]) -> None:
    """Raise StorageError for a *form* newer than this version knows, InvalidHistory for none."""
    if not isinstance(form, int) or form < 1:
        raise InvalidHistory(f"its form is {textwrap.shorten(repr(form), 40)}, not {FORM}")
    if form > FORM:
        raise StorageError(
            f"{path} was written by a newer ctxpipe, in form {form}; update ctxpipe to read it"
        )


# Archives that a context names --------------------------------------------------------------------


async def archive_digest(archive: Archive | None, path: str) -> str | None:
    """The digest of the archive just saved at *path*, over what is stored.

    None when it cannot be read back.
    """
    text = await _archive_text(archive, path)
    return None if text is None else await in_thread(_digest, text)


async def _archive_text(archive: object, path: str) -> str | None:
    """The whole text of the archive at *path*; None where it cannot be read."""
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
    """The records of the session *session_id*, by the last part of their paths.

    A context names an archive by a path of which the model may see another form. None where they
    cannot be listed.
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


async def read_verified(archive: Archive | None, record: str, digest: str) -> Archived | None:
    """What *record*, one of `records_by_name`, holds; None where it has not this *digest*."""
    text = await _archive_text(archive, record)
    if text is None or await in_thread(_digest, text) != digest:
        return None
    try:
        return await in_thread(_parse, text, record)
    except CtxpipeError as error:
        logger.debug("an archive that the context names is not believed: %s", error)
        return None


def last_part(path: str) -> str:
    """The name of the file at *path*, written with slashes of either kind."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _digest(text: str) -> str:
    """A digest in short groups: who redacts long runs of hex leaves it alone."""
    return "-".join(textwrap.wrap(content_hash(text, 4 * _GROUP), _GROUP))
