"""Move tool results to files: of one message, or all long ones of a history."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import cast

from .._text import short_repr
from ..errors import InvalidHistory
from ..messages import Message, MessageLike, ToolResult, ensure_messages, rewrite, tool_results
from ..placeholders.names import safe_name, session_folder
from ..placeholders.placeholders import BATCH, DIRECT
from ..settings import OFFLOAD_CHAR_THRESHOLD, OFFLOAD_RATIO_THRESHOLD
from ..stages.offload.selection import Scan, characters, passes
from ..stages.reading.results import is_placeholder, is_text, result_characters, stored_text
from ..storage import LocalStorage, TextWriter


@dataclass(frozen=True, slots=True, repr=False)
class OffloadedMessage:
    """The result of `offload_tool_result`.

    *freed_chars* is the net saving: the characters of the texts that left, less those of the
    placeholders. (In `OffloadResult` the placeholders are not subtracted.) *files* has the absolute
    path of each file, *file* is the first of them. If all results had to stay (those with images,
    and placeholders), *message* is the same object, *files* is empty and *file* is None.
    """

    message: Message = field(repr=False)
    freed_chars: int = 0
    files: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def file(self) -> str | None:
        """The absolute path of the first file that was written."""
        return self.files[0] if self.files else None


@dataclass(frozen=True, slots=True, repr=False)
class OffloadResult:
    """The result of `offload_tool_results`.

    *freed_chars* is the number of characters of the texts that left; those of the placeholders are
    not subtracted. *files* are absolute paths in message order.
    """

    messages: list[Message] = field(repr=False)
    offloaded_count: int = 0
    freed_chars: int = 0
    files: tuple[str, ...] = ()

    __repr__ = short_repr


async def offload_tool_result(
    message: MessageLike,
    *,
    session_id: str,
    output_dir: str | os.PathLike[str],
    writer: TextWriter | None = None,
) -> OffloadedMessage:
    """Write each tool result of *message* to a file, and replace it by a placeholder.

    The file is ``<output_dir>/<session_id>/<tool_use_id>.md``. No threshold is checked: the caller
    has decided. A result with images stays, and so does one that is a placeholder already. If
    *message* has only such results, nothing is written. A second result with the same id overwrites
    the file of the first. *message* is not modified.

    *writer* is a storage to use in place of the files below *output_dir*.

    Raises InvalidHistory if *message* has no tool result at all, StorageError if a file cannot be
    written.
    """
    ensure_messages([message])
    [message] = cast("list[Message]", [message])
    if not any(tool_results([message])):
        raise InvalidHistory("message 0 has no tool_result block, so there is nothing to offload")
    writer = writer or LocalStorage(output_dir, on_conflict="overwrite", must_be_writable=False)
    results = movable([message])
    if not results:
        return OffloadedMessage(message)
    files = await _write_results(
        writer, results, f"{session_folder(session_id)}/{{}}.md", indent=None
    )
    pointers = [DIRECT.format(file) for file in files]
    [rewritten] = _point_to([message], results, pointers)
    placeholder_chars = sum(len(pointer) for pointer in pointers)
    freed_chars = total_characters(results) - placeholder_chars
    return OffloadedMessage(rewritten, freed_chars, files)


async def offload_tool_results(
    messages: Sequence[MessageLike],
    *,
    output_dir: str | os.PathLike[str],
    ratio: float | Decimal | None = None,
    min_chars: int | None = None,
    writer: TextWriter | None = None,
) -> OffloadResult:
    """Write all long tool results to files, if together they are a large share of the messages.

    A result is long if it has *min_chars* (100) characters or more. If all long results together
    have *ratio* (0.2) or more of the characters of all messages, each is moved to a file. Otherwise
    the very same list is returned and no file is written. The file is
    ``<output_dir>/tool-result-<id>.md``; if an id repeats, the next free number is added. *writer*
    is a storage to use in place of the files below *output_dir*. *messages* is not modified;
    messages without such a result are the same objects in the returned list.

    Raises InvalidHistory before anything is written, StorageError if a file cannot be written,
    SettingsError if an environment variable is not a number.
    """
    ensure_messages(messages)
    messages = cast("list[Message]", messages)
    min_chars = OFFLOAD_CHAR_THRESHOLD(min_chars)
    share = OFFLOAD_RATIO_THRESHOLD(ratio)
    results = offloadable(messages, min_chars)
    scan = scan_of(messages, results)
    if not passes(scan, share):
        return OffloadResult(messages)
    writer = writer or LocalStorage(output_dir, on_conflict="number", must_be_writable=False)
    files = await _write_results(writer, results, "tool-result-{}.md", indent=2)
    pointers = [BATCH.format(f"./{os.path.basename(file)}") for file in files]
    rewritten = _point_to(messages, results, pointers)
    return OffloadResult(rewritten, len(results), scan.offloadable_chars, files)


async def _write_results(
    writer: TextWriter, results: Sequence[ToolResult], name: str, indent: int | None
) -> tuple[str, ...]:
    """Write each of *results* to a file; return the locations from *writer*, in the same order.

    *name* is a key with an optional folder; the safe form of the result's id replaces its ``{}``.
    *indent* is that of the JSON in which blocks are stored; None means compact. Raises StorageError
    if a file cannot be written.
    """
    keys = [name.format(safe_name(result.tool_use_id)) for result in results]
    texts = [stored_text(result.content, indent=indent) for result in results]
    return tuple(await writer.write(list(zip(keys, texts, strict=True))))


def _point_to(
    messages: list[Message], results: Iterable[ToolResult], pointers: Iterable[str]
) -> list[Message]:
    """Return *messages* with one of *pointers* as the content of each of *results*."""
    places = [result.place for result in results]
    return rewrite(messages, dict(zip(places, pointers, strict=True)))


def movable(messages: Sequence[Message]) -> list[ToolResult]:
    """Return every tool result that consists of text and is no placeholder, oldest first."""
    texts = [result for result in tool_results(messages) if is_text(result.content)]
    return [result for result in texts if not is_placeholder(result.content)]


def offloadable(messages: Sequence[Message], min_chars: int) -> list[ToolResult]:
    """Return the `movable` results that have *min_chars* characters or more."""
    limit = max(min_chars, 1)
    return [result for result in movable(messages) if result_characters(result.content) >= limit]


def total_characters(results: Iterable[ToolResult]) -> int:
    """Return the size of the contents of all *results* in characters."""
    return sum(result_characters(result.content) for result in results)


def scan_of(messages: Sequence[Message], results: Iterable[ToolResult]) -> Scan:
    """Return the two sums for the gate: of *messages*, and of the *results* that may leave."""
    total_chars = sum(characters(message) for message in messages)
    return Scan(total_chars, total_characters(results))
