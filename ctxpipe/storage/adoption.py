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

__all__ = ["adopt", "find_adoptable"]

_ARCHIVE = re.compile(r"(?:compact|truncate)-\d{8}T\d{6}Z-\d+\.json")
# Added to a name that was in use: the hash of the text, which can be checked.
_HASH_SUFFIX = re.compile(r"-([0-9a-f]{8})\Z")
_INPUT_SUFFIX = re.compile(r"-input-\d+\Z")
_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}
_PATHS = "compact-paths.txt"
_RECORD_BYTES = 1 << 30

_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def find_adoptable(root: StorageRoot) -> dict[str, Mark]:
    """What is proven to be ctxpipe's in each session folder that has no mark, by folder."""
    marks: dict[str, Mark] = {}
    for folder in root.session_folders():
        files = _proven_files(root, folder)
        if files:
            marks[folder] = Mark(files)
    return marks


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
            records = _read_records(descriptor, names)
            stems = _text_stems(records.values())
            texts = {name for name in names if _is_named_after(descriptor, name, stems)}
    except StorageError:
        return frozenset()
    proven = texts | records.keys()
    has_archive = any(map(_ARCHIVE.fullmatch, records))
    if has_archive and _PATHS in names:
        proven.add(_PATHS)
    return frozenset(proven)


def _read_records(folder: int, names: Iterable[str]) -> dict[str, list[Any]]:
    """The messages in each of the files that is a record."""
    records: dict[str, list[Any]] = {}
    for name in names:
        messages = _read_messages(folder, name)
        if messages is not None:
            records[name] = messages
    return records


def _read_messages(folder: int, name: str) -> list[Any] | None:
    """The messages in a record; None for any other file."""
    try:
        if name == JOURNAL:
            return _journal_messages(_read_text(folder, name))
        if _ARCHIVE.fullmatch(name):
            messages = json.loads(_read_text(folder, name))
            if isinstance(messages, dict):
                messages = messages["messages"]
            ensure_messages(messages)
            return messages or None  # an empty list says no more than the name
    except (OSError, *_DAMAGED):
        pass
    return None


def _read_text(folder: int, name: str) -> str:
    content = read_bytes(folder, name, _RECORD_BYTES) or b""
    return content.decode()


def _journal_messages(text: str) -> list[Any] | None:
    """The messages in the lines whose check sum is right; None when there is no such line."""
    lines = text.split("\n")
    entries = list(filter(None, map(parse_line, lines)))
    if not entries:
        return None
    return [message for entry in entries for message in entry["tail"]]


def _text_stems(records: Iterable[Iterable[Any]]) -> set[str]:
    """What texts are named after: the ids of the tool calls in *records*."""
    stems: set[str] = set()
    for messages in records:
        for tool_id in _tool_ids(messages):
            name = safe_name(tool_id)
            stems |= {name, f"tool-result-{name}"}
    return stems


def _tool_ids(messages: Iterable[Any]) -> Iterator[str]:
    """The ids of the tool calls and results that are blocks of *messages*."""
    for message in messages:
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for block in content:
            if not isinstance(block, dict):
                continue
            key = _ID_KEYS.get(str(block.get("type")))
            if key and isinstance(block.get(key), str):
                yield block[key]


def _is_named_after(folder: int, name: str, stems: AbstractSet[str]) -> bool:
    """Whether the file *name* is a text that is named after one of *stems*."""
    if not name.endswith(".md"):
        return False
    stem = name.removesuffix(".md")
    if stem in stems or _INPUT_SUFFIX.sub("", stem) in stems:
        return True
    suffix = _HASH_SUFFIX.search(stem)
    if suffix is None:
        return False
    base = stem[: suffix.start()]
    bases = {base, _INPUT_SUFFIX.sub("", base)}
    if stems.isdisjoint(bases):
        return False
    return _is_hash_of(folder, name, suffix[1])


def _is_hash_of(folder: int, name: str, digits: str) -> bool:
    try:
        return content_hash(_read_text(folder, name)) == digits
    except (OSError, ValueError):
        return False
