"""Access to a session: locks, leases, exchanges, deletion, and closing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from typing import TYPE_CHECKING

from ..errors import SessionDeleted, StorageError, storage_errors
from ..storage.generations import GONE
from ..storage.waiting import store_allowance
from .gate import Exchanges, SessionGate

if TYPE_CHECKING:
    from ..messages import Message
    from .memory import SessionMemory


class Access:
    """Lets one caller after another work with the *memory* of a session."""

    def __init__(self, memory: SessionMemory) -> None:
        self._memory = memory
        self._gate = SessionGate(memory.session_id)
        self._exchanges = Exchanges(memory.session_id)
        self._open_blocks = 0  # number of ``async with`` blocks that have not ended

    # Opening and closing --------------------------------------------------------------------------

    def reopen(self) -> None:
        """Allow the session to be used again after it was closed."""
        self._gate.is_closed = False

    def enter_block(self) -> None:
        """Begin an ``async with`` block."""
        self.reopen()
        self._open_blocks += 1

    async def leave_block(self) -> None:
        """End an ``async with`` block; the last one closes the session.

        Then no summary is written in the background any more.
        """
        self._open_blocks -= 1
        self._gate.is_closed = self._open_blocks == 0
        if self._gate.is_closed:
            for summary in self._memory.cancel_summaries():
                await summary.wait()

    def ensure_open(self) -> None:
        """Raise SettingsError if the session is closed."""
        self._gate.ensure_open()

    # One after another ----------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True during a turn, or an exchange, and while one waits."""
        return self._gate.is_busy or self._exchanges.is_busy

    @property
    def is_free_here(self) -> bool:
        """True if the running event loop may use the session, and need not wait for a turn."""
        return self._gate.is_free_here

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the work before this block; run the block alone, with one store allowance.

        The block must look for a deletion itself. Raises SettingsError if the session is closed, or
        in use by another event loop.
        """
        with self.store_allowance():
            work = await self._gate.enter()
            try:
                yield
            finally:
                work.leave()

    @asynccontextmanager
    async def alone(self, *, insists: bool = False) -> AsyncIterator[None]:
        """Do the same as `turn`, and look for a deletion before the block and in it.

        With *insists* stores that are unavailable are called too, because the block needs what they
        contain. Raises SessionDeleted if the conversation was deleted; then it is forgotten.
        """
        with self.store_allowance(insists=insists):
            work = await self._gate.enter()
            try:
                with self._memory.journal.generation.running():
                    await self.ensure_not_deleted()
                    yield
            except SessionDeleted:
                self._memory.forget_deleted()
                raise
            finally:
                work.leave()

    def store_allowance(self, *, insists: bool = False) -> AbstractContextManager[None]:
        """Limit the time that a block may wait for its stores; see `ctxpipe.storage.waiting`."""
        return store_allowance(self._memory.settings.store_seconds, insists=insists)

    def lease(self) -> AbstractAsyncContextManager[None]:
        """Let no other process run a turn of the session during a block.

        Does nothing without the setting *lease_seconds*.
        """
        seconds = self._memory.settings.lease_seconds
        if seconds is None:
            return nullcontext()
        return self._memory.journal.lease(seconds)

    async def ensure_not_deleted(self, *, is_later_turn: bool = False) -> None:
        """Raise SessionDeleted if the conversation was deleted and its journal cannot report it.

        *is_later_turn* is True at the beginning of each turn but the first. Without a journal, such
        a turn asks no storage as long as nothing has left the context: then the caller has all of
        it, and nothing of the deleted conversation can come back. The answer of the first turn is
        what a later deletion is compared with.
        """
        memory = self._memory
        if memory.journal.storage is not None:
            must_ask = not memory.journal.is_read
        else:
            has_offloaded = bool(memory.timeline.placeholders)
            is_callers = memory.timeline.is_untouched and not (memory.is_owner or has_offloaded)
            must_ask = not (is_later_turn and is_callers)
        if not must_ask:
            return
        for storage in memory.storages:
            ensure = getattr(storage, "ensure_not_deleted", None)
            if ensure is not None and storage is not memory.journal.storage:
                # A storage that fails here reports it where it is used.
                with suppress(StorageError), storage_errors():
                    await ensure(memory.session_id)

    # Exchanges ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def exchange(self, claim: Message | None = None) -> AsyncIterator[bool]:
        """Let the block alone use the history that the session owns, up to the reply.

        *claim* is the message that the block's request answers; requests that came earlier leave it
        to this one. The value is True if the block has waited for another exchange. Raises
        SettingsError if it would wait for itself, and SessionDeleted if the conversation was
        deleted while it waited, with the messages appended for it.
        """
        generation = self._memory.journal.generation
        async with self._exchanges.enter(claim) as has_waited:
            if generation is not self._memory.journal.generation:
                raise SessionDeleted(GONE)
            yield has_waited

    def inside_exchange(self) -> AbstractContextManager[None]:
        """Mark a block, also in another thread, as part of the exchange that is running."""
        return self._exchanges.inside()

    def before_claims(self, messages: Sequence[Message]) -> list[Message]:
        """Return the *messages* that no waiting exchange is to answer (see `Exchanges`)."""
        return self._exchanges.before_claims(messages)

    def before_any_claim(self, messages: Sequence[Message]) -> list[Message]:
        """Return the *messages* before the first one that a waiting exchange is to answer."""
        return list(messages[: self._exchanges.count_unclaimed(messages)])
