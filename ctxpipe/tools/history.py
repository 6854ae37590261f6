"""Ranked full-text search in the texts that have left the context of one conversation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anyio import create_task_group

from .._threads.threads import in_thread
from ..errors import SessionDeleted, StorageError, storage_errors
from ..messages import Message, strings, without_surrogates
from ..placeholders.names import session_folder
from ..stages.media.selection import is_media_file
from ..storage.generations import Generation
from ..storage.references import reference_of, visible_path
from .index import MAX_INDEX_CHARS, Hit, Index

if TYPE_CHECKING:
    from ..session.conversation import Conversation

NO_HITS = "[Nothing else that has left the context matches.]"
"""Answer of a search that finds nothing."""
_MAX_HITS = 5
_MAX_TEXT_CHARS = 1_000_000
"""Maximum number of characters that are searched, from the beginning of each text."""
_BATCH_SIZE = 64
"""Maximum number of texts that are in memory at the same time, in addition to the index."""


@dataclass(slots=True)
class History:
    """The texts in *storage*, with one full-text index for each session.

    With *conversation* a search omits passages that the present context contains. An index holds
    only what the storage returns, which is redacted, and is rebuilt when one of its texts no longer
    exists. It is a file if the storage supports that; otherwise the index of the last session stays
    in memory until the session is deleted.
    """

    storage: Any
    conversation: Conversation | None = None
    _contents: dict[str, tuple[Generation, bytes]] = field(default_factory=dict)

    async def search(self, session_id: str, query: str) -> str:
        """Return the passages of the session that match *query* best, each with path and offset.

        Raises StorageError if the texts cannot be read.
        """
        query = without_surrogates(query).replace("\0", " ")
        while True:
            try:
                with storage_errors():
                    return await self._search(session_id, query)
            except SessionDeleted:
                self._contents.clear()

    async def _search(self, session_id: str, query: str) -> str:
        """Search in the index of the session, after its new texts were added."""
        generation, content = self._contents.get(session_id, (Generation(session_id), b""))
        with generation.running():
            await self.storage.ensure_not_deleted(session_id)
            files = await self.storage.contents(session_id)
            search = _Search(self.storage, session_id, files, query, self._context_messages())
            if not hasattr(self.storage, "index_path"):
                try:
                    answer, content = await search.in_memory(content)
                except sqlite3.Error:  # it has a text that no longer exists
                    answer, content = await search.in_memory(b"")
                self._contents = {session_id: (generation, content)}
                return answer
            file_answer = await search.in_file()
            if file_answer is not None:
                return file_answer
            answer, _ = await search.in_memory(b"")  # the next search tries the file again
            return answer

    def _context_messages(self) -> Sequence[Message]:
        """Return the present context of the conversation."""
        return self.conversation.memory.sent if self.conversation else ()


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for *query* in the files called *names*, without what *messages* contain."""

    storage: Any
    session_id: str
    names: Sequence[str]
    query: str
    messages: Sequence[Message]

    async def in_file(self) -> str | None:
        """Return the answer from the index in a file, or None if there can be no such file.

        A file that is missing, damaged, or has texts that were deleted is replaced by a new one.
        """
        path = ""
        for is_new in (False, True):
            if is_new and not (path or self.names):
                break  # no file for a session without texts, which may have been deleted
            with suppress(StorageError, sqlite3.Error):
                path = await self.storage.index_path(self.session_id, is_new=is_new)
                if path:
                    with closing(await in_thread(Index, path)) as index:
                        return await self._answer(index)
        return None

    async def in_memory(self, content: bytes) -> tuple[str, bytes]:
        """Return the answer from the index with *content* and new texts, and its content then."""
        with closing(await in_thread(Index, None, content)) as index:
            answer = await self._answer(index)
            return answer, await in_thread(index.content)

    async def _answer(self, index: Index) -> str:
        """Add new texts to *index*, and return the best passages in it.

        Raises `sqlite3.Error` if the index cannot be used, or has a text that no longer exists.
        """
        folder = session_folder(self.session_id)
        new_files = [name for name in self.names if name not in index.names]
        if len(self.names) - len(new_files) < len(index.names):
            raise sqlite3.DatabaseError("the index has a text that no longer exists")
        new_names = [name for name in sorted(new_files) if not is_media_file(name)]
        for start in range(0, len(new_names), _BATCH_SIZE):
            texts = await self._read(folder, new_names[start : start + _BATCH_SIZE])
            await in_thread(index.add, texts)
        hits = await in_thread(_best_hits, index, self.query, self.messages)
        answer = "\n\n".join(self._format(folder, hit) for hit in hits)
        answer = answer or NO_HITS
        if index.is_full:
            answer += f"\n[Only {MAX_INDEX_CHARS:,} characters were searched.]"
        return answer

    async def _read(self, folder: str, names: Iterable[str]) -> dict[str, str]:
        """Return the texts called *names*, without unreadable ones: the next search tries again."""
        texts: dict[str, str] = {}

        async def read(name: str) -> None:
            """Add the text *name* to *texts*; skip it if it cannot be read."""
            with suppress(StorageError), storage_errors():
                page = await self.storage.read(f"{folder}/{name}", 0, _MAX_TEXT_CHARS)
                texts[name] = page.text

        async with create_task_group() as group:
            for name in names:
                group.start_soon(read, name)
        return texts

    def _format(self, folder: str, hit: Hit) -> str:
        """Return *hit* as text for the model: path, offset in characters, and excerpt."""
        location = self.storage.location(f"{folder}/{hit.name}")
        path = visible_path(reference_of(self.storage), folder, location)
        return f"{path}, offset {hit.offset}:\n{hit.text}"


def _best_hits(index: Index, query: str, messages: Iterable[Message]) -> list[Hit]:
    """Return the best hits in *index* with different texts, none of which *messages* contain."""
    context = "\n".join(text for message in messages for text in strings(message))
    hits: dict[str, Hit] = {}
    for hit in index.find(query):
        if not all(line in context for line in hit.text.split("\n")):
            hits.setdefault(hit.text, hit)
        if len(hits) == _MAX_HITS:
            break
    return list(hits.values())
