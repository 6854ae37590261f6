"""The sessions of a server: as many as fit into memory, the others in their journals."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from .._threads.bulk import weight
from ..errors import SettingsError
from ..settings import SESSION_ID, SIZE, Requirement
from ..storage.protocol import JOURNAL_STORAGE
from .session import Session, conversation_of

if TYPE_CHECKING:
    from ..conversation.conversation import Conversation
    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage

PIPELINE = Requirement(
    lambda value: callable(getattr(value, "new_session", None)) and not isinstance(value, type),
    "a ContextPipeline such as ContextPipeline(stages)",
)

MESSAGE_BYTES = 120
"""What a session remembers beside each message: `benchmarks/bench_session.py` prints it."""


class Sessions:
    """The sessions of *pipeline* in *journal*, of which at most *max_bytes* stay in memory.

    The longest unused go first, but never one with a turn running, nor one that holds what was
    appended and is not in the journal yet: that is written first, on the running event loop. Only
    where the journal fails, and the unwritten alone take more than *max_bytes*, it is given up,
    with a notice. One that was let go is read from its journal when it is asked for again. The
    bytes are an estimate: the characters of its messages, and a fixed part for each. Other settings
    are those of `ContextPipeline.session`.

    Raises SettingsError for invalid settings.
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
        self._settings = {"journal": journal, **settings}
        self._held = Held(max_bytes, self._weigh)
        # Somebody may still have one in use that was let go.
        self._alive: WeakValueDictionary[str, Conversation] = WeakValueDictionary()
        # Messages that were weighed, and what they weigh.
        self._weighed: WeakKeyDictionary[Conversation, tuple[int, int]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<Sessions: {len(self)} in memory, about {self.bytes:,} bytes>"

    @property
    def bytes(self) -> int:
        """What the sessions in memory take, about."""
        return self._held.total

    def get(self, session_id: str) -> Session:
        """The session *session_id*: the one in memory, or one that its journal is read for at its
        first turn.

        However many there are, this looks at a few of them. Raises SettingsError for an id that is
        none.
        """
        SESSION_ID.check("session_id", session_id)
        with self._held.lock:
            conversation = self._held.find(session_id) or self._alive.get(session_id)
            if conversation is None:
                conversation = self._new_conversation(session_id)
                self._alive[session_id] = conversation
            conversation.reopen()
            self._held.add(conversation)
            return Session(conversation)

    def _new_conversation(self, session_id: str) -> Conversation:
        return conversation_of(self._pipeline.new_session(session_id, **self._settings))

    def forget(self, session_id: str) -> None:
        """Let go of the session, with what it has not written; the next `get` reads its journal."""
        self._held.remove(session_id)
        conversation = self._alive.pop(session_id, None)
        if conversation is not None:
            conversation.cancel_summaries()

    async def delete(self, session_id: str) -> None:
        """Delete the session: its journal, the texts and archives of the stages, and what is here.

        Whoever else holds it, in any process, drops it. Raises SettingsError, before anything is
        deleted, where a storage cannot delete; StorageError.
        """
        SESSION_ID.check("session_id", session_id)
        storages: list[Any] = self._new_conversation(session_id).storages
        if not all(callable(getattr(storage, "delete", None)) for storage in storages):
            raise SettingsError("a storage of these sessions has no delete(session_id)")
        self.forget(session_id)
        # The journal first: a session that still had it would write its texts again.
        for storage in storages:
            await storage.delete(session_id)

    def _weigh(self, conversation: Conversation) -> int:
        known, appended = conversation.known, conversation.appended
        counted, size = self._weighed.get(conversation, (0, 0))
        count = len(known) + len(appended)
        if counted > count:
            counted, size = 0, 0
        new = [*known[counted:], *appended[max(0, counted - len(known)) :]]
        size += weight(new) + len(new) * MESSAGE_BYTES if new else 0
        self._weighed[conversation] = count, size
        return size


LOOKS = 4
"""With each call so many of those that could not go are looked at again, where memory is short."""


class Held:
    """The conversations of sessions by id, together at most *limit* in *size*.

    None goes that is in use, or that holds what is nowhere else: this is written first. Where what
    cannot be written reaches the limit alone, some go all the same, each with a notice. A call
    looks only at those that have changed, that go, and at a few others.
    """

    def __init__(self, limit: int, size: Callable[[Conversation], int]) -> None:
        self._limit = limit
        self._size = size
        self._unused: OrderedDict[str, Conversation] = OrderedDict()  # the longest unused first
        # Those that could not go when they should.
        self._needed: OrderedDict[str, Conversation] = OrderedDict()
        self._stuck: dict[str, int] = {}  # the sizes of those that cannot be written; 0 for others
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._changed: dict[str, Conversation] = {}  # any thread adds to it
        # For who finds a session, and adds it where there is none.
        self.lock: AbstractContextManager[object] = threading.RLock()

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sizes

    @property
    def total(self) -> int:
        """The size of all together."""
        while self._changed:
            session_id, conversation = self._changed.popitem()
            if session_id not in self and conversation.has_unsaved:
                self._needed[session_id] = conversation  # let go while a caller still had it in use
            elif conversation is not self._find(session_id):
                continue
            size = self._size(conversation)
            self._total += size - self._sizes.get(session_id, 0)
            self._sizes[session_id] = size
            self._stuck[session_id] = size if conversation.is_stuck else 0
        return self._total

    def find(self, session_id: str) -> Conversation | None:
        """The conversation of the session *session_id*, if it is held."""
        _ = self.total  # finds those that were let go too early
        return self._find(session_id)

    def _find(self, session_id: str) -> Conversation | None:
        return self._unused.get(session_id) or self._needed.get(session_id)

    def add(self, conversation: Conversation) -> None:
        """Hold *conversation* as the one used last, and let go of others until the rest fits."""
        session_id = conversation.session_id
        self._needed.pop(session_id, None)
        self._unused[session_id] = conversation
        self._unused.move_to_end(session_id)
        self._sizes.setdefault(session_id, 0)
        self._changed[session_id] = conversation
        conversation.on_change = self._changed.__setitem__
        self._shrink()

    def remove(self, session_id: str) -> None:
        """Hold *session_id* no longer, whatever it is doing."""
        self._unused.pop(session_id, None)
        self._needed.pop(session_id, None)
        self._stuck.pop(session_id, None)
        self._total -= self._sizes.pop(session_id, 0)

    def _shrink(self) -> None:
        if self.total <= self._limit:
            return
        for session_id in list(islice(self._needed, LOOKS)):
            conversation = self._needed.pop(session_id)
            self._unused[session_id] = conversation
            self._unused.move_to_end(session_id, last=False)
            is_short = self._total > self._limit <= sum(self._stuck.values())
            if is_short and conversation.is_stuck:
                conversation.give_up()
                conversation.on_change = None
                self.remove(session_id)
        while self.total > self._limit and len(self._unused) > 1:
            session_id, conversation = self._unused.popitem(last=False)
            if conversation.is_running or conversation.has_unsaved:
                self._needed[session_id] = conversation
                conversation.flush_soon()
            else:
                self.remove(session_id)
