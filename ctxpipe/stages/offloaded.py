"""Find the original texts behind placeholders, and restore files that were lost."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .._threads.threads import in_thread_if
from ..errors import StorageError, storage_errors
from ..placeholders.names import session_folder
from ..storage import TextReader

_TEXT_BLOCKS = ('[{"type":"text"', '[{"type": "text"', '[\n  {\n    "type": "text"')


async def read_offloaded(
    storage: object, session_id: str, files: Mapping[str, str]
) -> dict[str, str]:
    """Return the text of each file in *files*, by placeholder.

    *files* has the name of a file by placeholder; it is read from the folder of *session_id* in
    *storage*. Files that cannot be read are left out.
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
    """Return the content of a stored *text*; text blocks, which are stored as JSON, are joined."""
    if not text.startswith(_TEXT_BLOCKS):
        return text
    try:
        return "".join(block["text"] for block in json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        return text  # a tool's text that looks like blocks
