"""Ranked full-text search in the texts that have left the context of one conversation."""

from __future__ import annotations

from collections.abc import Iterable
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
from .index import MAX_INDEX_CHARS, Hit, Index, open_index

if TYPE_CHECKING:
    from ..session.conversation import Conversation

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
    exists. It is saved in a file if the storage supports that; otherwise the index of the last
    session stays in memory until the session is deleted.
    """

    storage: Any
    conversation: Conversation | None = None
    _indexes: dict[str, tuple[Generation, bytes]] = field(default_factory=dict)

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
                self._indexes.clear()

    async def _search(self, session_id: str, query: str) -> str:
        """Update the index of the session with new texts, search in it, and save it."""
        generation, content = self._indexes.get(session_id, (Generation(session_id), b""))
        folder = session_folder(session_id)
        with generation.running():
            await self.storage.ensure_not_deleted(session_id)
            if hasattr(self.storage, "load_index"):
                content = await self.storage.load_index(session_id)
            files = await self.storage.contents(session_id)
            names = [name for name in files if not is_media_file(name)]
            with closing(await in_thread(open_index, content, names)) as index:
                new_names = [name for name in names if name not in index.names]
                for start in range(0, len(new_names), _BATCH_SIZE):
                    texts = await self._read(folder, new_names[start : start + _BATCH_SIZE])
                    await in_thread(index.add, texts)
                context = self.conversation.memory.sent if self.conversation else ()
                hits = await in_thread(_best_hits, index, query, context)
                if new_names:
                    await self._save(generation, await in_thread(index.content))
                is_full = index.is_full
        answer = "\n\n".join(self._format(folder, hit) for hit in hits)
        answer = answer or "[Nothing else that has left the context matches.]"
        if is_full:
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

    async def _save(self, generation: Generation, content: bytes) -> None:
        """Save the index *content* in the storage, or in memory if the storage cannot save it."""
        if hasattr(self.storage, "save_index"):
            with suppress(StorageError):  # the next search builds it again
                await self.storage.save_index(generation.session_id, content)
        else:
            self._indexes = {generation.session_id: (generation, content)}

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
