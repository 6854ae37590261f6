"""Write files that were lost again, from the history of a conversation."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ..errors import StorageError
from ..messages import strings
from ..placeholders.names import session_folder
from ..placeholders.notes import note_of
from ..placeholders.placeholders import (
    MAX_PREVIEW_CHARS,
    any_reference,
    is_batch,
    media_reference,
    references_inside,
)
from ..storage import TextReader, TextWriter
from .collapse.notes import texts_of_notes
from .media.selection import is_movable
from .media.selection import stored_text as media_text
from .reading.results import has_text, stored_text

if TYPE_CHECKING:
    from ..journal.timeline import Timeline


async def write_lost_files(timeline: Timeline, storage: TextReader) -> tuple[int, int]:
    """Write lost files again that the context of *timeline* points to, from its history.

    Returns the number of files written, and of files that are lost for good because the history
    does not have their text. Raises StorageError.
    """
    texts: dict[str, str] = {}
    for location, text in _texts_by_location(timeline):
        texts.setdefault(location, text)
    missing_locations = await _missing(storage, list(texts))
    if not isinstance(storage, TextWriter):
        return 0, len(missing_locations)
    # The files of a session from which this one was forked were deleted with it.
    folders = {session_folder(ancestor) for ancestor in timeline.ancestors}
    batch: list[tuple[str, str]] = []
    for location in missing_locations:
        key = _key(location)
        # A journal that refers to a file has an empty text instead, which is not the file's.
        if texts[location] and key.partition("/")[0] not in folders:
            batch.append((key, texts[location]))
    if batch:
        await storage.write(batch)
    return len(batch), len(missing_locations) - len(batch)


def _key(location: str) -> str:
    """Return the storage key of the file at *location*: its folder and name."""
    return "/".join(PurePosixPath(location.replace("\\", "/")).parts[-2:])


async def _missing(storage: TextReader, locations: Sequence[str]) -> list[str]:
    """Return the *locations* where the storage has no text."""
    find_missing = getattr(storage, "missing", None)
    if find_missing is not None:
        return list(await find_missing(locations))
    return [location for location in locations if await _is_missing(location, storage)]


async def _is_missing(location: str, storage: TextReader) -> bool:
    """Return True if there is no text at *location*; False also if it cannot be read now."""
    try:
        await storage.read(location, 0, 1)
    except StorageError as error:
        return error.errno == errno.ENOENT
    return False


def _texts_by_location(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """Yield the path in each placeholder of ctxpipe, with the text that it replaced."""
    starts = timeline.alignment.starts
    ends = timeline.alignment.ends
    for place, message in enumerate(timeline.context):
        start = starts[place]
        end = ends[place]
        if start == end or timeline.sent[place] is timeline.history[start]:
            continue  # part of the edit before, or the caller's own message
        if note_of(message):
            # The notes of one collapse follow each other, with the messages between them.
            after = place + 1
            while after < len(starts) and starts[after] == ends[after]:
                after += 1
            notes = [note for note in timeline.context[place:after] if note_of(note)]
            yield from texts_of_notes(timeline.history[start:end], notes).items()
        elif end - start == 1:
            original = timeline.history[start]
            yield from _texts_behind_placeholders(original["content"], message["content"])


def _texts_behind_placeholders(raw: Any, shaped: Any) -> Iterator[tuple[str, str]]:
    """Yield the path of each placeholder in *shaped*, with the text in its place in *raw*.

    Both are the content of the same message, before and after offloading.
    """
    pending = [(raw, shaped)]
    while pending:
        raw, shaped = pending.pop()
        if raw is shaped:
            continue
        path = any_reference(shaped, MAX_PREVIEW_CHARS)
        are_mappings = isinstance(raw, Mapping) and isinstance(shaped, Mapping)
        are_lists = isinstance(raw, list | tuple) and isinstance(shaped, list | tuple)
        media_path = media_reference(shaped.get("text")) if are_mappings else None
        if media_path is not None and is_movable(raw):
            yield media_path, media_text(raw)
        elif path is not None and not _mentions(raw, path):
            yield path, stored_text(raw, indent=2 if is_batch(shaped) else None)
        elif isinstance(raw, str) and isinstance(shaped, str):
            yield from _passages_behind_placeholders(raw, shaped)
        elif are_mappings:
            pending += [(raw[key], value) for key, value in shaped.items() if key in raw]
        elif are_lists:
            pending += _pairs(raw, shaped)


def _passages_behind_placeholders(raw: str, shaped: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each placeholder inside *shaped*, with the passage in its place in *raw*.

    The text between two placeholders is the same in both:

        raw       intro LONG PASSAGE middle OTHER PASSAGE end
        shaped    intro [placeholder 1] middle [placeholder 2] end

    A placeholder whose path is in *raw* too is content, such as a forged one in a web page that was
    shortened. Its path may be in the folder of another session.
    """
    if shaped == raw:
        return
    placeholders = [
        reference for reference in references_inside(shaped) if not _mentions(raw, reference[2])
    ]
    if not placeholders:
        return
    position = placeholders[0][0]
    ends = [*(start for start, _, _ in placeholders[1:]), len(shaped)]
    for (_, stop, path), end in zip(placeholders, ends, strict=True):
        text_after = shaped[stop:end]
        is_last = end == len(shaped)
        if not text_after and not is_last:
            return  # it is unknown where this passage ends and the next begins
        passage_end = raw.find(text_after, position)
        if is_last:
            passage_end = len(raw) - len(text_after)
        if passage_end < position:
            return
        yield path, raw[position:passage_end]
        position = passage_end + len(text_after)


def _mentions(raw: Any, path: str) -> bool:
    """Return True if a text in *raw* contains *path*."""
    return any(path in text for text in strings(raw))


def _pairs(raw: Any, shaped: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of elements of two lists, before and after texts were moved to files.

    A placeholder that replaced all texts of a result is paired with the whole list *raw*. Without
    it, lists of different length have no pairs.
    """
    first = shaped[0] if shaped else None
    is_result = any(has_text(block) for block in raw)
    if (
        is_result
        and isinstance(first, Mapping)
        and any_reference(first.get("text"), MAX_PREVIEW_CHARS)
    ):
        # A result of several blocks: the first now replaces all texts. Blocks without text, such as
        # images, come after it, and some of them may have been replaced too.
        others = [block for block in raw if not has_text(block)]
        return [(raw, first.get("text")), *zip(others, shaped[1:], strict=False)]
    if len(raw) == len(shaped):
        return list(zip(raw, shaped, strict=True))
    return []
