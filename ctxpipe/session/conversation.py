"""A conversation, without any SDK: the memory of a session, and the objects that work with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..settings import SESSION_ID, TURN
from .access import Access
from .memory import SessionMemory
from .owned_history import OwnedHistory
from .turns import Turns
from .usage import SessionUsage

if TYPE_CHECKING:
    from ..stages.offload.shared_decisions import SharedDecisions
    from ..storage import JournalStorage
    from ..turn.state import PipelineSettings
    from .sessions import ConversationPool
    from .settings import SessionSettings


class Conversation:
    """A conversation of a pipeline with the settings *pipeline*.

    `Session` is its public side. Adapters, the gateway and the tools use these objects directly:
    *turns* shape histories, *owned_history* keeps messages that are appended, *usage* calibrates
    the estimates, *access* lets one caller after another in, and *memory* is what all of them
    remember. Each uses only those that are created before it.

    Raises SettingsError for an invalid *session_id*.
    """

    def __init__(
        self, pipeline: PipelineSettings, session_id: str, settings: SessionSettings
    ) -> None:
        SESSION_ID.check("session_id", session_id)
        self.session_id: str = session_id
        self.memory: SessionMemory = SessionMemory(pipeline, session_id, settings)
        self.usage: SessionUsage = SessionUsage(self.memory)
        self.access: Access = Access(self.memory)
        self.owned_history: OwnedHistory = OwnedHistory(self.memory, self.access)
        self.pool: ConversationPool | None = None
        """The pool that keeps this conversation in memory, if one does."""
        self.turns: Turns = Turns(self.memory, self.access, self.usage, self.owned_history)

    @property
    def journal(self) -> JournalStorage | None:
        """Storage of the journal; None without a journal."""
        return self.memory.journal.storage

    def fork(self) -> Conversation:
        """Return a copy without a journal, for a history that continues in two ways.

        It has the same id, and writes to the same files.
        """
        settings = self.memory.settings.without_journal()
        fork = Conversation(self.memory.pipeline, self.session_id, settings)
        fork.memory.copy_from(self.memory)
        return fork

    async def fork_at(self, session_id: str, at: int | None) -> Conversation:
        """Return a new conversation *session_id*, as `Session.fork` explains."""
        TURN.optional.check("at", at)
        fork = Conversation(self.memory.pipeline, session_id, self.memory.settings)
        async with self.access.exchange(), self.owned_history.caught_up():
            history, _ = self.owned_history.newest()
            if at is not None:
                _, length = self.memory.find_turn(at, history)
                history = history[:length]
            async with fork.access.alone(insists=True):
                await fork.memory.begin_as_fork(self.memory, history)
        return fork

    def share(self, decisions: SharedDecisions) -> None:
        """Use the *decisions* to move texts to files of all conversations of one name."""
        self.memory.decisions = decisions
