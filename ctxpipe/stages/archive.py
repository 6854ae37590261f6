"""Raw messages set aside before they leave the context, and read back."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidHistory, StorageError
from ..messages import as_dict, ensure_messages, is_encodable
from ..storage.finishing import finished

if TYPE_CHECKING:
    import os

    from ..messages import Message

__all__ = ["archive_text", "load_archive", "parse_archive"]


def archive_text(messages: Sequence[Message]) -> Iterator[str]:
    """*messages* as indented JSON, one message at a time, so that no second copy of a history is ever held.

    Plain messages come back equal from `load_archive`; model objects of the SDK are written as they would be sent and
    come back as plain dicts, tuples as lists. Source: UP-10, CR-55, CR-56.
    """
    separator = "["
    for message in messages:
        yield f"{separator}\n  {_indented(message)}"
        separator = ","
    yield "\n]\n" if messages else "[]\n"


def _indented(message: Message) -> str:
    text = _json(message, ensure_ascii=False)
    if not is_encodable(text):  # a lone surrogate has no UTF-8 form, but JSON can say it
        text = _json(message, ensure_ascii=True)
    return text.replace("\n", "\n  ")  # JSON strings hold no line breaks


def _json(message: Message, *, ensure_ascii: bool) -> str:
    return json.dumps(message, indent=2, ensure_ascii=ensure_ascii, default=as_dict)


async def load_archive(path: str | os.PathLike[str]) -> list[Message]:
    """The messages that a compaction or truncation set aside at *path*, as they were.

    Raises StorageError when there is no such file, InvalidHistory when it holds something else.
    """
    try:
        text = await finished(_read(path))
    except OSError as error:
        raise StorageError(error.errno, f"cannot read the archive {path}: {error.strerror}") from error
    return parse_archive(text, path)


async def _read(path: str | os.PathLike[str]) -> str:
    import aiofiles  # here: it takes as long to import as the rest of this package

    async with aiofiles.open(path, encoding="utf-8") as file:
        return await file.read()


def parse_archive(text: str, path: str | os.PathLike[str]) -> list[Message]:
    """The messages in an archive's *text*. Raises InvalidHistory, naming its *path*, when it holds something else."""
    try:
        messages: list[Message] = json.loads(text)
        ensure_messages(messages)
    except (ValueError, RecursionError) as error:  # InvalidHistory is a ValueError
        raise InvalidHistory(f"{path} is no archive of messages: {textwrap.shorten(str(error), 200)}") from error
    return messages
