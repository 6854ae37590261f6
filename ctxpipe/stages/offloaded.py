"""The texts behind placeholders, as they were before they went to files."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from .._threads.threads import in_thread_if
from ..edits.collapse import texts_of_notes
from ..edits.media import is_movable
from ..edits.media import stored_text as media_text
from ..edits.offload import has_text, stored_text
from ..errors import StorageError, storage_errors
from ..placeholders.names import session_folder
from ..placeholders.notes import note_of
from ..placeholders.placeholders import (
    MAX_SHOWN,
    any_reference,
    is_batch,
    media_reference,
    references_inside,
)
from ..storage import TextReader, TextWriter

if TYPE_CHECKING:
    from ..conversation.timeline import Timeline

_TEXT_BLOCKS = ('[{"type":"text"', '[{"type": "text"', '[\n  {\n    "type": "text"')


async def read_offloaded(
    storage: object, session_id: str, files: Mapping[str, str]
) -> dict[str, str]:
    """By placeholder: the text in its file, by name, in the session's own folder of *storage*.

    What cannot be read is left out.
    """
    texts: dict[str, str] = {}
    if not isinstance(storage, TextReader):
        return texts
    folder = session_folder(session_id)
    for placeholder, name in files.items():
        try:
            with storage_errors():
                page = await storage.read(f"{folder}/{name}")
        except StorageError:
            continue
        texts[placeholder] = await in_thread_if(len(page.text) > 100_000, _plain, page.text)
    return texts


def _plain(text: str) -> str:
    """What a stored *text* says: several text blocks are stored as their JSON."""
    if not text.startswith(_TEXT_BLOCKS):
        return text
    try:
        return "".join(block["text"] for block in json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        return text  # a tool's own


async def write_lost_files(timeline: Timeline, storage: TextReader) -> tuple[int, int]:
    """Write each file again that the context of *timeline* points to, that is gone, and that its
    history holds.

    How many were written, and how many are gone for good. Raises StorageError.
    """
    texts: dict[str, str] = {}
    for where, text in _pointers(timeline):
        texts.setdefault(where, text)
    gone = await _missing(storage, list(texts))
    if not isinstance(storage, TextWriter):
        return 0, len(gone)
    # A journal that refers to a file has an empty text in its place: that is not the file's.
    batch = [(_key(where), texts[where]) for where in gone if texts[where]]
    if batch:
        await storage.write(batch)
    return len(batch), len(gone) - len(batch)


def _key(where: str) -> str:
    return "/".join(PurePosixPath(where.replace("\\", "/")).parts[-2:])


async def _missing(storage: TextReader, locations: Sequence[str]) -> list[str]:
    """Those of *locations* at which there is no text."""
    ask = getattr(storage, "missing", None)
    if ask is not None:
        return list(await ask(locations))
    return [where for where in locations if await _is_gone(where, storage)]


async def _is_gone(where: str, storage: TextReader) -> bool:
    try:
        await storage.read(where, 0, 1)
    except StorageError as error:
        return error.errno == errno.ENOENT
    return False


def _pointers(timeline: Timeline) -> Iterator[tuple[str, str]]:
    """Each path in a placeholder of ours, with the text for which it stands."""
    starts = timeline.starts
    ends = timeline.ends
    for place, message in enumerate(timeline.context):
        start, end = starts[place], ends[place]
        if start == end or timeline.sent[place] is timeline.history[start]:
            continue  # part of the edit before, or the caller's own
        if note_of(message):
            after = place + 1
            while after < len(starts) and starts[after] == ends[after]:
                after += 1
            notes = [one for one in timeline.context[place:after] if note_of(one)]
            yield from texts_of_notes(timeline.history[start:end], notes).items()
        elif end - start == 1:
            original = timeline.history[start]
            yield from _texts_behind_placeholders(original["content"], message["content"])


def _texts_behind_placeholders(raw: Any, shown: Any) -> Iterator[tuple[str, str]]:
    """Where *shown* has a placeholder and *raw* a text."""
    pending = [(raw, shown)]
    while pending:
        raw, shown = pending.pop()
        if raw is shown:
            continue
        where = any_reference(shown, MAX_SHOWN)
        are_mappings = isinstance(raw, Mapping) and isinstance(shown, Mapping)
        are_lists = isinstance(raw, list | tuple) and isinstance(shown, list | tuple)
        note = media_reference(shown.get("text")) if are_mappings else None
        if note is not None and is_movable(raw):
            yield note, media_text(raw)
        elif where is not None and shown != raw:
            yield where, stored_text(raw, indent=2 if is_batch(shown) else None)
        elif isinstance(raw, str) and isinstance(shown, str):
            yield from _passages_behind_placeholders(raw, shown)
        elif are_mappings:
            pending += [(raw[key], held) for key, held in shown.items() if key in raw]
        elif are_lists:
            pending += _pairs(raw, shown)


def _passages_behind_placeholders(raw: str, shown: str) -> Iterator[tuple[str, str]]:
    """Yield the paths of placeholders inside *shown*, with the passages of *raw* in their places.

    What is between two placeholders is the same in both texts.
    """
    placeholders = list(references_inside(shown)) if shown != raw else []
    if not placeholders:
        return
    position = placeholders[0][0]
    ends = [*(start for start, _, _ in placeholders[1:]), len(shown)]
    for (_, stop, path), end in zip(placeholders, ends, strict=True):
        after = shown[stop:end]
        is_last = end == len(shown)
        if not (after or is_last):
            return  # nobody knows where one passage ends and the next begins
        found = len(raw) - len(after) if is_last else raw.find(after, position)
        if found < position:
            return
        yield path, raw[position:found]
        position = found + len(after)


def _pairs(raw: Any, shown: Any) -> list[tuple[Any, Any]]:
    first = shown[0] if shown else None
    is_result = any(has_text(block) for block in raw)
    if is_result and isinstance(first, Mapping) and any_reference(first.get("text"), MAX_SHOWN):
        # A result of several blocks, of which the first now stands for all texts; others are after
        # it, such as images, of which some may have left, too.
        others = [block for block in raw if not has_text(block)]
        both = zip(others, shown[1:], strict=False)
        return [(raw, first.get("text")), *both]
    if len(raw) == len(shown):
        return list(zip(raw, shown, strict=True))
    return []
