"""The sessions of a server: as many as fit into memory, the others in their journals."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ..errors import SettingsError
from ..messages.bulk import weight
from ..settings import SESSION_ID, SIZE
from ..storage.protocol import JOURNAL_STORAGE

if TYPE_CHECKING:
    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage
    from .session import Session

__all__ = ["Sessions"]

MESSAGE_BYTES = 120
"""What a session remembers beside each message: `benchmarks/bench_session.py` prints it."""


class Sessions:
    """The sessions of *pipeline* in *journal*, of which at most *max_bytes* stay in memory.

    The longest unused go first, but never one with a turn running. One that was let go is read from
    its journal when it is asked for again. The bytes are an estimate: the characters of its
    messages, and a fixed part for each. Other settings are those of `ContextPipeline.session`.

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
        if not callable(getattr(pipeline, "new_session", None)):
            raise SettingsError(
                "pipeline of Sessions is none; "
                "give a ContextPipeline such as ContextPipeline(stages)"
            )
        self._pipeline = pipeline
        self._settings = {"journal": journal, **settings}
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, Session] = OrderedDict()
        self._alive: WeakValueDictionary[str, Session] = (
            WeakValueDictionary()
        )  # somebody may still have one in use
        self._bytes: dict[
            str, tuple[int, int]
        ] = {}  # messages that were weighed, and what they weigh

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<Sessions: {len(self)} in memory, about {self.bytes:,} bytes>"

    @property
    def bytes(self) -> int:
        """What the sessions in memory take, about."""
        for session_id, session in self._held.items():
            self._weigh(session_id, session)
        return sum(size for _, size in self._bytes.values())

    def get(self, session_id: str) -> Session:
        """The session *session_id*: the one in memory, or one that its journal is read for at its
        first turn.

        Raises SettingsError for an id that is none.
        """
        SESSION_ID.check("session_id", session_id)
        session = self._held.pop(session_id, None) or self._alive.get(session_id)
        if session is None:
            session = self._pipeline.new_session(session_id, **self._settings)
            self._alive[session_id] = session
        self._held[session_id] = session
        self._shrink()
        return session

    def _shrink(self) -> None:
        """Let go of the longest unused, until the rest fits."""
        held = self.bytes
        for session_id in list(self._held)[:-1]:
            if held <= self._max_bytes:
                return
            if not self._held[session_id].is_running:
                del self._held[session_id]
                held -= self._bytes.pop(session_id)[1]

    def _weigh(self, session_id: str, session: Session) -> None:
        messages = session.known
        counted, size = self._bytes.get(session_id, (0, 0))
        if counted > len(messages):
            counted, size = 0, 0
        if counted < len(messages) or not counted:
            new = len(messages) - counted
            size += weight(messages[counted:]) + new * MESSAGE_BYTES
            self._bytes[session_id] = len(messages), size
