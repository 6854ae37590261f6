"""Ranked search in all that has left the context of one conversation."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from anyio import create_task_group

from .._threads.threads import in_thread
from ..edits.media import is_media_file
from ..errors import SessionDeleted, StorageError, storage_errors
from ..messages import Message, strings, without_surrogates
from ..placeholders.names import session_folder
from ..storage.generations import Generation
from ..storage.references import reference_of, visible_path
from .index import MOST_CHARS, Hit, Index, open_index

if TYPE_CHECKING:
    from ..conversation.conversation import Conversation

_SHOWN = 5
_TEXT_CHARS = 1_000_000
"""So much of a text is searched, from its beginning."""
_AT_ONCE = 64
"""So many texts are in memory at the same time, beside the index."""


@dataclass(slots=True)
class History:
    """What *storage* has of sessions, with an index of it for each.

    What the context of *conversation* says, where that is known, is not found. An index has only
    what the storage gives back, which is redacted, and is built anew when one of its texts is
    gone. It is kept in a file where the storage has such; else in memory, that of the last session
    alone, until the session is deleted.
    """

    storage: Any
    conversation: Conversation | None = None
    _kept: dict[str, tuple[Generation, bytes]] = field(default_factory=dict)

    async def search(self, session_id: str, query: str) -> str:
        """The passages of the session that answer *query* best, each with its place.

        Raises StorageError.
        """
        query = without_surrogates(query).replace("\0", " ")
        while True:
            try:
                with storage_errors():
                    return await self._search(session_id, query)
            except SessionDeleted:
                self._kept.clear()

    async def _search(self, session_id: str, query: str) -> str:
        generation, content = self._kept.get(session_id, (Generation(session_id), b""))
        folder = session_folder(session_id)
        with generation.running():
            await self.storage.ensure_not_deleted(session_id)
            if hasattr(self.storage, "load_index"):
                content = await self.storage.load_index(session_id)
            found = await self.storage.contents(session_id)
            names = [name for name in found if not is_media_file(name)]
            with closing(await in_thread(open_index, content, names)) as index:
                new = [name for name in names if name not in index.names]
                for start in range(0, len(new), _AT_ONCE):
                    texts = await self._read(folder, new[start : start + _AT_ONCE])
                    await in_thread(index.add, texts)
                sight = self.conversation.sent if self.conversation else ()
                hits = await in_thread(_best_hits, index, query, sight)
                if new:
                    await self._keep(generation, await in_thread(index.content))
                is_full = index.is_full
        answer = "\n\n".join(self._format(folder, hit) for hit in hits)
        answer = answer or "[Nothing else that has left the context matches.]"
        return answer + f"\n[Only {MOST_CHARS:,} characters were searched.]" * is_full

    async def _read(self, folder: str, names: Iterable[str]) -> dict[str, str]:
        """The texts called so, without those that cannot be read: the next question tries again."""
        texts: dict[str, str] = {}

        async def read(name: str) -> None:
            with suppress(StorageError), storage_errors():
                page = await self.storage.read(f"{folder}/{name}", 0, _TEXT_CHARS)
                texts[name] = page.text

        async with create_task_group() as group:
            for name in names:
                group.start_soon(read, name)
        return texts

    async def _keep(self, generation: Generation, content: bytes) -> None:
        if hasattr(self.storage, "save_index"):
            with suppress(StorageError):  # the next question builds it anew
                await self.storage.save_index(generation.session_id, content)
        else:
            self._kept = {generation.session_id: (generation, content)}

    def _format(self, folder: str, hit: Hit) -> str:
        location = self.storage.location(f"{folder}/{hit.name}")
        path = visible_path(reference_of(self.storage), folder, location)
        return f"{path}, offset {hit.offset}:\n{hit.text}"


def _best_hits(index: Index, query: str, messages: Iterable[Message]) -> list[Hit]:
    """The best of *index* that say different things, none of which *messages* say."""
    sight = "\n".join(chain.from_iterable(map(strings, messages)))
    hits: dict[str, Hit] = {}
    for hit in index.find(query):
        if not all(line in sight for line in hit.text.split("\n")):
            hits.setdefault(hit.text, hit)
        if len(hits) == _SHOWN:
            break
    return list(hits.values())
