"""Sessions of a server: as many as fit into memory, and the others in their journals."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from ..errors import SettingsError
from ..settings import SESSION_ID, SIZE, Requirement
from ..storage.protocol import JOURNAL_STORAGE
from .session import Session, new_conversation
from .settings import SessionSettings
from .sizes import Size, size_of

if TYPE_CHECKING:
    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage
    from .conversation import Conversation

PIPELINE = Requirement(
    lambda value: callable(getattr(value, "new_session", None)) and not isinstance(value, type),
    "a ContextPipeline such as ContextPipeline(stages)",
)


class Sessions:
    """Sessions of a server, of which those used last stay in memory, up to *max_bytes* in total.

        sessions = Sessions(pipeline, journal=LocalStorage("journals"))
        result = await sessions.get(session_id).run(history)

    Above *max_bytes*, the sessions that were unused for the longest time are removed from memory.
    `get` reads a removed session from its *journal* again. A session with a running turn stays. A
    session with messages that are not in the journal yet stays until they are written, which
    happens on the running event loop. There is one exception: if the journal cannot be written, and
    such sessions alone exceed *max_bytes*, some are removed with their messages, each with a
    notice.

    The size of a session is an estimate: the memory of its messages, and a fixed number of bytes
    for each. System prompts and tools, of which a service has one for all sessions, are not
    included. The counts of texts, which all sessions share, have a limit of their own
    (``TokenCounter(memo_bytes=…)``). The other *settings* are those of `ContextPipeline.session`.

    Raises SettingsError for an invalid setting.
    """

    def __init__(
        self,
        pipeline: ContextPipeline,
        *,
        journal: JournalStorage,
        max_bytes: int = 1 << 30,
        **settings: Any,
    ) -> None:
        JOURNAL_STORAGE.check("journal", journal)
        SIZE.check("max_bytes", max_bytes)
        PIPELINE.check("pipeline", pipeline)
        self._pipeline = pipeline
        self._settings = SessionSettings(journal=journal, **settings)
        self._pool = ConversationPool(max_bytes, self._estimate_bytes)
        # A caller may still use a session that was removed from the pool.
        self._alive: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        self._estimates: WeakKeyDictionary[Conversation, Size] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._pool)

    def __repr__(self) -> str:
        return f"<Sessions: {len(self)} in memory, about {self.bytes:,} bytes>"

    @property
    def bytes(self) -> int:
        """Estimated size of the sessions in memory."""
        return self._pool.total

    def get(self, session_id: str) -> Session:
        """Return the session *session_id*, from memory or as a new object.

        A new object reads its journal in its first turn. The time that this takes does not depend
        on the number of sessions. Raises SettingsError for an invalid id.
        """
        SESSION_ID.check("session_id", session_id)
        with self._pool.lock:
            conversation = self._pool.find(session_id) or self._alive.get(session_id)
            if conversation is None:
                conversation = new_conversation(self._pipeline, session_id, self._settings)
                self._alive[session_id] = conversation
            conversation.access.reopen()
            self._pool.add(conversation)
            return Session(conversation)

    def forget(self, session_id: str) -> None:
        """Remove the session from memory, with all messages that are not in the journal yet.

        Summaries that are being written for it are cancelled. The session of the next `get` reads
        its journal in its first turn. Does nothing if the session is not in memory.
        """
        self._pool.remove(session_id)
        conversation = self._alive.pop(session_id, None)
        if conversation is not None:
            conversation.memory.cancel_summaries()

    async def delete(self, session_id: str) -> None:
        """Delete the session: its journal, its texts and archives, and its memory.

        Other processes that have the session in memory drop it before they write or send it again.

        Raises SettingsError for an invalid id, or if a storage of the pipeline has no method
        ``delete``; then nothing is deleted. Raises StorageError if a storage fails.
        """
        SESSION_ID.check("session_id", session_id)
        conversation = new_conversation(self._pipeline, session_id, self._settings)
        storages: list[Any] = conversation.memory.storages
        for storage in storages:
            if not callable(getattr(storage, "delete", None)):
                raise SettingsError(
                    f"{type(storage).__name__} has no delete(session_id), "
                    "so these sessions cannot be deleted"
                )
        self.forget(session_id)
        # The journal comes first: a session that still had it would write its texts again.
        for storage in storages:
            await storage.delete(session_id)

    def _estimate_bytes(self, conversation: Conversation) -> int:
        """Return the estimated memory of *conversation*, in bytes."""
        size = size_of(conversation, self._estimates.get(conversation, Size()))
        self._estimates[conversation] = size
        return size.bytes


RECHECKED_PER_CALL = 4
"""Number of conversations in use that each call checks again while memory is short."""


class ConversationPool:
    """Conversations by session id, with a total *size* of at most *limit*.

    If they exceed the limit, the conversations that were unused for the longest time are removed.
    A conversation that is in use, or has messages that are stored nowhere else, is not removed; its
    messages are written first. Only if those that cannot be written exceed the limit alone, some of
    them are removed with a notice.

    A call takes constant time: it looks only at conversations that have changed, at those that it
    removes, and at `RECHECKED_PER_CALL` others.
    """

    def __init__(self, limit: int, size: Callable[[Conversation], int]) -> None:
        self._limit = limit
        self._size = size
        # Conversations that may be removed, the longest unused first. A conversation that turns out
        # to be in use, or to have unsaved messages, moves from here to the next mapping.
        self._unused: OrderedDict[str, Conversation] = OrderedDict()
        self._needed: OrderedDict[str, Conversation] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._total = 0
        # Size of each conversation that cannot be written to its journal; 0 for the others.
        self._stuck: dict[str, int] = {}
        self._changed: dict[str, Conversation] = {}  # since the last call; any thread adds to it
        self.lock: AbstractContextManager[object] = threading.RLock()
        """Lock to hold between a `find` without a result and the `add` that follows it."""

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sizes

    @property
    def total(self) -> int:
        """Estimated bytes of all conversations together; those that changed are measured again."""
        while self._changed:
            session_id, conversation = self._changed.popitem()
            if session_id not in self and conversation.owned_history.has_unsaved:
                # It was removed while a caller still used it, and has new messages since.
                self._needed[session_id] = conversation
            elif conversation is not self._find(session_id):
                continue
            size = self._size(conversation)
            self._total += size - self._sizes.get(session_id, 0)
            self._sizes[session_id] = size
            self._stuck[session_id] = size if conversation.owned_history.is_stuck else 0
        return self._total

    def find(self, session_id: str) -> Conversation | None:
        """Return the conversation of the session *session_id*, or None if it is not in the pool."""
        _ = self.total  # takes back conversations that were removed while in use
        return self._find(session_id)

    def _find(self, session_id: str) -> Conversation | None:
        return self._unused.get(session_id) or self._needed.get(session_id)

    def add(self, conversation: Conversation) -> None:
        """Add *conversation* as the most recently used one; remove others until they fit."""
        session_id = conversation.session_id
        self._needed.pop(session_id, None)
        self._unused[session_id] = conversation
        self._unused.move_to_end(session_id)
        self._sizes.setdefault(session_id, 0)
        conversation.pool = self
        self._changed[session_id] = conversation
        # A weak reference, so that a removed conversation is freed as soon as no caller has it.
        conversation.memory.on_change = partial(self._note_change, ref(conversation))
        self._shrink()

    def _note_change(self, reference: ref[Conversation]) -> None:
        """Measure the conversation again in the next call; any thread calls this."""
        conversation = reference()
        if conversation is not None:
            self._changed[conversation.session_id] = conversation

    def remove(self, session_id: str) -> None:
        """Remove the conversation of *session_id*, even if it is in use."""
        self._unused.pop(session_id, None)
        self._needed.pop(session_id, None)
        self._stuck.pop(session_id, None)
        self._total -= self._sizes.pop(session_id, 0)

    def _shrink(self) -> None:
        """Remove the conversations used longest ago until the limit is met.

        The one used last stays, and so do those that are running or have messages that are not
        written yet. Only if those that cannot be written fill the limit alone, they are removed
        too.
        """
        if self.total <= self._limit:
            return
        for session_id in list(islice(self._needed, RECHECKED_PER_CALL)):
            conversation = self._needed.pop(session_id)
            self._unused[session_id] = conversation
            self._unused.move_to_end(session_id, last=False)
            is_full = self._total > self._limit
            is_full_of_stuck = is_full and sum(self._stuck.values()) >= self._limit
            if is_full_of_stuck and conversation.owned_history.is_stuck:
                conversation.owned_history.give_up()
                conversation.memory.on_change = None
                self.remove(session_id)
        while self.total > self._limit and len(self._unused) > 1:
            session_id, conversation = self._unused.popitem(last=False)
            if conversation.owned_history.is_running or conversation.owned_history.has_unsaved:
                self._needed[session_id] = conversation
                conversation.owned_history.flush_soon()
            else:
                self.remove(session_id)
