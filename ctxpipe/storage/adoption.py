"""Folders without a mark, as version 0.1 left them: journals and archives prove whose they are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from ..errors import StorageError
from ..messages import ensure_messages
from ..names import content_hash, safe_name
from .atomic import read_bytes
from .cleanup import JOURNAL
from .ownership import ROOT_MARK, SESSION_MARK, Mark, StorageRoot, write_mark
from .records import parse_line

__all__ = ["adopt", "find_unmarked"]

_ARCHIVE = re.compile(r"(?:compact|truncate)-\d{8}T\d{6}Z-\d+\.json")
_TAKEN = re.compile(
    r"-([0-9a-f]{8})\Z"
)  # the name was in use: of the text, so that it can be checked
_INPUT = re.compile(r"-input-\d+\Z")
_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}
_PATHS = "compact-paths.txt"
_RECORD_BYTES = 1 << 30

_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def find_unmarked(root: StorageRoot) -> dict[str, Mark]:
    """What is proven to be ctxpipe's in each session folder that has no mark, by folder."""
    found = {folder: Mark(_proven_files(root, folder)) for folder in root.session_folders()}
    return {folder: mark for folder, mark in found.items() if mark.files}


def adopt(root: StorageRoot, found: Mapping[str, Mark]) -> None:
    """Mark the root, and the folders *found* in it with their files. Raises StorageError."""
    for folder, mark in found.items():
        with root.folder(folder) as descriptor:
            write_mark(descriptor, SESSION_MARK, mark.files)
    with root.folder("") as descriptor:
        write_mark(descriptor, ROOT_MARK, ())


def _proven_files(root: StorageRoot, folder: str) -> frozenset[str]:
    """The records in *folder* that can be read, and the texts named after tool calls in them."""
    try:
        with root.folder(folder) as descriptor:
            if root.read_mark(folder, descriptor) is not None:
                return frozenset()
            names = os.listdir(descriptor)
            read = {name: _messages(descriptor, name) for name in names}
            records = {name: messages for name, messages in read.items() if messages is not None}
            ids = {safe_name(name) for messages in records.values() for name in _tool_ids(messages)}
            stems = ids | {f"tool-result-{name}" for name in ids}
            texts = {
                name for name in names if not stems.isdisjoint(_bases(descriptor, name, stems))
            }
    except StorageError:
        return frozenset()
    index = {_PATHS} & set(names) if any(_ARCHIVE.fullmatch(name) for name in records) else set()
    return frozenset(records) | texts | index


def _messages(folder: int, name: str) -> list[Any] | None:
    """The messages in a record; None for any other file."""
    try:
        if name == JOURNAL:
            return _journal_messages(_text(folder, name))
        if _ARCHIVE.fullmatch(name):
            archive = json.loads(_text(folder, name))
            messages: list[Any] = archive["messages"] if isinstance(archive, dict) else archive
            ensure_messages(messages)
            return messages or None  # an empty list says no more than the name
    except (OSError, *_DAMAGED):
        pass
    return None


def _text(folder: int, name: str) -> str:
    return (read_bytes(folder, name, _RECORD_BYTES) or b"").decode()


def _journal_messages(text: str) -> list[Any] | None:
    """The messages in the lines whose check sum is right; None when there is no such line."""
    entries = [entry for line in text.split("\n") if (entry := parse_line(line))]
    return [item for entry in entries for item in entry["tail"]] if entries else None


def _tool_ids(messages: Iterable[Any]) -> Iterator[str]:
    """The ids of the tool calls and results that are blocks of *messages*."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            key = _ID_KEYS.get(str(block.get("type"))) if isinstance(block, dict) else None
            if key and isinstance(block.get(key), str):
                yield block[key]


def _bases(folder: int, name: str, stems: AbstractSet[str]) -> set[str]:
    """What the text file *name* may be named after, of *stems*; nothing for any other file."""
    if not name.endswith(".md"):
        return set()
    stem = name[: -len(".md")]
    found = {stem, _INPUT.sub("", stem)}
    if taken := _TAKEN.search(stem):
        base = stem[: taken.start()]
        bases = {base, _INPUT.sub("", base)}
        if not stems.isdisjoint(bases) and _is_hash_of(folder, name, taken[1]):
            found |= bases
    return found


def _is_hash_of(folder: int, name: str, digits: str) -> bool:
    try:
        return content_hash(_text(folder, name)) == digits
    except (OSError, ValueError):
        return False
