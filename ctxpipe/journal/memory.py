"""The timeline of a session and its journal: a turn is in both, or it has not happened."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import copy
from functools import partial
from typing import Any

from .._text import count_phrase
from .._threads.threads import in_thread
from ..errors import SettingsError, StorageError, safe_text
from ..messages import Message, common_prefix, ensure_messages
from ..messages.identity import says_the_same
from ..settings import excerpt
from ..stages.lost_files import write_lost_files
from ..stages.reports import Removal
from ..storage import JournalStorage
from ..storage.generations import Generation
from ..storage.sealed import DAMAGED, Entry, Journal, JournalRefused
from .branches import (
    JournalBranch,
    ends_of,
    find_abandoned_lines,
    path_of,
    path_to,
    replay_branches,
)
from .notices import Notices
from .packing import Packing
from .replay import Replay
from .saved_values import JournaledState, load_values, values_of
from .step import Step
from .timeline import Timeline

REDACTED = (
    "messages in the journal are redacted, so the context that was sent cannot be rebuilt "
    "word for word"
)
NOT_RESTORABLE = (
    "the context is adopted as the history and there is no journal: give the session journal=, "
    "or hand in the full history, else history() cannot give the raw messages back"
)
ANOTHER_HISTORY = "the journal tells of another history; the session begins anew"
DIVERGED = "the history differs from the previous one"
UNDONE = "a summary of what has gone is undone: the context is as it was before it"
REFUSED = "entry {} is refused, though nobody is seen to have written it"
DELETED = "the conversation was deleted; what is handed in since then begins a new one"
REPLACED = "the journal was replaced; this session goes on from what it knows"
UNKNOWN = "the history that this session owns is in its journal, which cannot be read now"


class Outdated(Exception):
    """The history of a turn lacks messages that other processes have written."""


class Memory:
    """The timeline of a session, and the journal from which another process can continue it.

    The *state* is written with the turns. *notices* are those of the next result. The timeline is
    built from the first *base* entries of the journal. Entries that other processes write to the
    same branch are taken over if the caller's history continues them. Otherwise the next entry of
    this session begins a branch. This also happens if other processes have begun another history
    since the caller asked for this one.

    *appended* are messages that are in no turn yet. Any thread may add messages at the end. The
    first *taken* of them are part of the running turn, and are removed once it is written.

    With *adopts* the caller continues with the context, so that each turn makes it the history.

    With *must_continue* the history of the running turn was made from this journal. If it lacks
    entries of its branch, it is not another history but an old one, and `catch_up` raises Outdated.
    """

    def __init__(
        self,
        session_id: str,
        state: JournaledState,
        journal: JournalStorage | None = None,
        keys: Sequence[bytes] = (),
        *,
        texts: bool = True,
        verify: bool = False,
        adopts: bool = False,
    ) -> None:
        self.notices: Notices = Notices(session_id)
        self._new_timeline = partial(Timeline, verify=verify, adopts=adopts, placeholders={})
        self.timeline: Timeline = self._new_timeline()
        self.is_adopted: bool = adopts
        """Whether the caller has continued with a context as the history, at least once."""
        self.unreported: int | None = None
        """Index of the first message of the context that another process has changed."""
        self.generation: Generation = Generation(session_id, has_journal=journal is not None)
        self._session_id = session_id
        self._state = state
        self.storage: JournalStorage | None = journal
        """The storage of the journal, if there is one."""
        self._journal = Journal(journal, session_id, keys) if journal else None
        self._packing = Packing(journal, session_id, texts=texts)
        self.is_read: bool = journal is None
        """Whether the journal has been read, if there is one."""
        self._seen: int | None = None  # number of entries when the caller asked for the history
        self._base = 0
        self._seal = ""  # of the entry with index base - 1
        self._branch = ""
        self.appended: list[Message] = []
        self.taken: int = 0
        self.must_continue: bool = False
        self._doubtful = 0  # number of appended messages in the last entry, until it is confirmed
        self._found = ""  # the seal of such an entry that is in the journal but not in the timeline
        self.is_behind: bool = False
        """Whether the branch has entries that the history does not continue."""
        self._is_shared = False  # True if other processes write to this branch
        self._refused_at: int | None = None  # number of the entry that was refused last
        self.unwritten: list[dict[str, Any]] = []
        """Turns that could not be written yet."""
        self._saved = values_of(state)._replace(attempts={})

    # Reading --------------------------------------------------------------------------------------

    async def catch_up(self, history: list[Message]) -> None:
        """Take over the entries of other processes, as far as *history* continues them.

        A journal that cannot be read now is read in a later turn. Raises Outdated with
        *must_continue*.
        """
        journal = self._journal
        if journal is None:
            return
        try:
            if not self.is_read:
                await self._resume(journal, history)
                self.is_read = True
            elif self._is_stale or await self._has_news(journal):
                await self._follow(journal, history)
        except JournalRefused as error:
            problem = "the journal cannot be read"
            if not self.is_read:
                self._journal = self.storage = None
                problem += "; the session begins anew, and without a journal"
                self.is_read = True
            self.notices.add(f"{problem}: {safe_text(error)}")
        except StorageError as error:
            self.notices.note_failure("the journal cannot be read", error)
        else:
            if not self.unwritten:
                self.notices.note_success()
                if self.must_continue and self.is_behind:
                    raise Outdated
        touch = getattr(self._packing.text_reader, "touch", None)  # some storages record the use
        if touch is not None:
            with self.notices.of_failure("the texts cannot be marked as used", "texts"):
                await touch(self._session_id)

    async def ensure_not_deleted(self) -> None:
        """Read the journal after a turn that wrote nothing. Raises SessionDeleted."""
        if self._journal is not None:
            with suppress(StorageError):
                await copy(self._journal).read_news()

    @property
    def _is_stale(self) -> bool:
        """True if there are known entries of this branch that the timeline does not have."""
        return self.is_behind or self._refused_at is not None

    async def _has_news(self, journal: Journal) -> bool:
        """Return True if other processes have written to this branch; skip other branches."""
        entries, is_damaged = await journal.read_news()
        has_news = any(entry.branch == self._branch for entry in entries)
        self._look_for_own(entries)
        if has_news:
            self._is_shared = True
        return is_damaged or has_news

    def _look_for_own(self, entries: Sequence[Entry]) -> None:
        """Look for an entry whose writing was cancelled; its messages are no longer appended."""
        if self._journal is None or not self._journal.unanswered:
            return
        if any(entry.seal == self._journal.unanswered for entry in entries):
            self._found = self._journal.unanswered
            self._journal.unanswered = ""
            del self.appended[: self._doubtful]
            self.taken = max(0, self.taken - self._doubtful)
            self._doubtful = 0

    async def _resume(self, journal: Journal, history: list[Message]) -> None:
        """Continue the branch that has most messages in common with *history*.

        Earlier turns may have run while the journal could not be read or written. The branch
        replaces them, because *history* contains their messages. Without such a branch they are
        written.
        """
        entries, lines = await self._read_lines(journal, history)
        line = max(lines, key=lambda line: line.step.unchanged_count)
        has_begun = bool(self.unwritten)
        if line.step.unchanged_count or not (entries or has_begun):
            if line.replay.has_hidden:
                self.notices.add(REDACTED)
            if has_begun:
                self.unreported = self._first_change(line.replay.timeline)
            self._take_over(line, entries)
            if entries:
                await self._restore_files()
        elif entries:
            self.notices.add(ANOTHER_HISTORY)
            if has_begun:  # they were packed for a journal of their own
                self.unwritten = [await in_thread(self._packing.pack, self.timeline.snapshot())]
        has_news = self._seen is not None and len(entries) > self._seen
        if has_news and line.step.agreement.is_rewound:
            self.is_behind = self._is_shared = True

    async def _follow(self, journal: Journal, history: list[Message]) -> None:
        """Take over the new entries of this branch, unless *history* differs from them."""
        entries, [line, *_] = await self._read_lines(journal, history, self._branch)
        if not self._is_in(entries):
            self._base = 0
            self.unwritten = [await in_thread(self._packing.pack, self.timeline.snapshot())]
            self.notices.add(REPLACED)
            return
        is_at_end = line.base == ends_of(entries)[line.branch]
        is_longer = line.step.unchanged_count >= len(self.timeline.history)
        if (is_at_end or is_longer) and not line.step.agreement.is_rewound:
            self.unreported = self._first_change(line.replay.timeline)
            self._take_over(line, entries)
        else:
            self.is_behind = True

    def _is_in(self, entries: Sequence[Entry]) -> bool:
        """Return True if *entries* contain the last entry from which the timeline was built."""
        if not self._base:
            return True
        return len(entries) >= self._base and entries[self._base - 1].seal == self._seal

    async def _read_lines(
        self, journal: Journal, history: list[Message], branch: str | None = None
    ) -> tuple[list[Entry], list[JournalBranch]]:
        """Return all entries of *journal*, and how *history* continues *branch*, or each branch.

        A damaged journal is set aside, and its valid entries are retained.
        """
        ensure_messages(history)
        entries, is_damaged = await journal.read()
        self._look_for_own(entries)
        try:
            lines = await in_thread(
                replay_branches, self._packing, entries, history, self._new_timeline, branch
            )
        except DAMAGED:  # the seals are valid, but the entries are not
            entries = []
            is_damaged = True
            journal.restart()
            lines = replay_branches(self._packing, [], history, self._new_timeline, branch)
        if is_damaged:
            name = await journal.set_aside(entries)
            outcome = f"it is kept as {name}, and a new one begins"
            if not name:
                outcome = "another process has set it aside"
            cause = f"damaged from entry {len(entries)} on, or is of another version"
            self.notices.add(f"the journal was {cause}; {outcome}")
        return entries, lines

    def _take_over(self, line: JournalBranch, entries: Sequence[Entry]) -> None:
        """Continue from *line*, a branch of *entries*."""
        self.timeline = line.replay.timeline
        self.is_adopted = line.replay.is_adopted
        self._base = line.base
        self._branch = line.branch
        self.is_behind = line.base < ends_of(entries)[line.branch]
        self.unwritten = []
        self._found = ""
        self._state.rewind(0)
        if line.base:
            self._seal = entries[line.base - 1].seal
            path = path_to(entries, line.base)
            self._saved = load_values(self._state, path, self._saved)

    def _first_change(self, other: Timeline) -> int | None:
        """Return the index of the first message of the context that differs in *other*, or None."""
        ours, theirs = self.timeline.sent, other.sent
        same = common_prefix(ours, theirs)
        shorter = min(len(ours), len(theirs))
        while same < shorter and says_the_same(ours[same], theirs[same]):
            same += 1
        return None if same == len(ours) else same

    async def _restore_files(self) -> None:
        """Write the files again to which the context refers and which were deleted."""
        texts = self._packing.text_reader
        restored = lost = 0
        if texts is not None:
            problem = "the files that the context refers to cannot be checked"
            with self.notices.of_failure(problem, "files"):
                restored, lost = await write_lost_files(self.timeline, texts)
        outcomes = {" had gone: written again": restored, ": gone, not in the history given": lost}
        for outcome, count in outcomes.items():
            if count:
                self.notices.add(
                    f"{count_phrase(count, 'file')} that the context refers to{outcome}"
                )

    @asynccontextmanager
    async def lease(self, seconds: float) -> AsyncIterator[None]:
        """Let no other process run a turn of the session for a while, if the storage has leases.

        This only saves money: the turn also runs without a lease.
        """
        leased = AsyncExitStack()
        acquire = getattr(self.storage, "lease", None)
        if acquire is not None:
            with self.notices.of_failure("the session cannot be leased", "lease"):
                await leased.enter_async_context(acquire(self._session_id, seconds))
        try:
            yield
        finally:
            with self.notices.of_failure("the lease cannot be given back", "end of the lease"):
                await leased.aclose()

    # Writing --------------------------------------------------------------------------------------

    async def write(self, step: Step) -> bool:
        """Write *step* to the journal. Return False if another process has written an entry first.

        A failure becomes a notice, and the next entry contains what could not be written.
        """
        self._doubtful = self.taken  # if this is cancelled, the entry may still be written
        journal = self._journal
        if journal is None:
            return True
        values = values_of(self._state)
        is_news = values.attempts != self._saved.attempts
        if step.is_idle and not self.unwritten:
            has_news = is_news or values.has_learned_since(self._saved)
            if self.is_behind or not has_news:
                return True
        turns = self.unwritten
        is_large = step.exceeds_inline_limit
        journal.unanswered = ""
        try:
            if is_news or not step.is_idle:
                if is_large:
                    turn = await in_thread(self._packing.pack, step)
                else:
                    turn = self._packing.pack(step)
                if is_news:
                    turn["attempts"] = values.attempts
                turns = [*turns, turn]
            if self.notices.unavailable_store is not None:
                # Encoding the unwritten turns takes longer with each turn, so ask first.
                self.notices.unavailable_store.refuse_while_unavailable()
            if not await self._append(journal, turns, is_large=is_large or len(turns) > 1):
                return False
        except StorageError as error:
            self.unwritten = turns
            journal.unanswered = ""  # the turn is valid, whether or not its entry was written
            self.notices.note_failure("the journal cannot be written", error)
        else:
            self.unwritten = []
            self._saved = values
            self.is_read = True  # the journal was empty, or was read before
            self.notices.note_success()
        self._saved = self._saved._replace(attempts=values.attempts)
        self._refused_at = None
        return True

    async def write_first(self) -> bool:
        """Write the whole timeline to a journal without entries, if there is a journal.

        Returns False, and writes nothing, if the journal has entries. Raises StorageError if it
        cannot be read.
        """
        if self._journal is None:
            return True
        entries, is_damaged = await self._journal.read()
        if entries or is_damaged:
            return False
        self.is_read = True
        return await self.write(self.timeline.snapshot())

    async def _append(
        self, journal: Journal, turns: Sequence[dict[str, Any]], *, is_large: bool
    ) -> bool:
        """Append *turns* as one entry. Return False if entries of others must be read first."""
        begins_branch = self.is_behind and self._is_shared
        branch = self._branch
        while True:
            number = journal.count
            if begins_branch:
                branch = str(number)
            if await journal.write(self._entry(branch, turns), is_bulk=is_large):
                break
            has_news = await self._has_news(journal)
            if journal.count > number and (begins_branch or not has_news):
                continue  # the entries are of other branches
            if journal.count == number == self._refused_at:
                raise StorageError(errno.EAGAIN, REFUSED.format(number))
            self._refused_at = number
            return False
        if begins_branch:
            self.notices.add(
                f"the journal continues another history; this one is branch {branch!r}"
            )
            self._is_shared = False
        self._base = journal.count
        self._seal = journal.seal
        self._branch = branch
        self._found = ""
        self.is_behind = False
        return True

    def _entry(self, branch: str, turns: Sequence[dict[str, Any]]) -> Entry:
        windows = list(self._state.windows.items())
        samples = self._state.ledger.samples
        return Entry(self._base, branch, turns, samples, windows, self._packing.salt)

    def apply(self, step: Step) -> None:
        """Apply *step*, which is written, to the timeline."""
        if step.agreement.has_diverged:
            first = step.unchanged_count if step.undone_count else step.agreement.new_start
            notice = f"{DIVERGED}; message {first} and those after it are new"
            if step.undone_count:
                notice += f", and {UNDONE}"
            self.notices.texts.append(notice)
        if step.adopted and not self.is_adopted:
            if self._journal is None:
                self.notices.add(NOT_RESTORABLE)
            self.is_adopted = True
        self.timeline.apply(step)
        self.unreported = None
        del self.appended[: self.taken]
        self.taken = self._doubtful = 0

    def flush_when_back(self, holder: object) -> None:
        """Have ``holder.flush_missing()`` called when the store of the journal is back."""
        if self.notices.unavailable_store is not None and self.unwritten:
            self.notices.unavailable_store.call_when_back(holder)

    # The history ----------------------------------------------------------------------------------

    async def history(self, branch: str | None, known: Sequence[Message] = ()) -> list[Message]:
        """Return the whole history, as `Session.history` describes it.

        Texts of the messages *known* are not read again.
        """
        if self._journal is None:
            if self.is_adopted:
                raise StorageError(NOT_RESTORABLE)
            return list(self.timeline.history)
        if not self._packing.texts:
            raise SettingsError("the journal holds no texts: it was kept with history=False")
        entries = await self._entries()
        if branch is None and self.is_read and not self._is_in(entries):
            # The journal is missing but was not deleted: the next turn writes it again.
            return list(self.timeline.history)
        packing = copy(self._packing)  # the session itself must not change here
        try:
            replay = await in_thread(self._replay_line, packing, entries, branch, known)
        except SettingsError:
            raise
        except DAMAGED as error:
            raise StorageError(errno.EILSEQ, "the journal holds invalid entries") from error
        if packing.redact and replay.raw:
            self.notices.add("the history was redacted when it was written down")
        raw, lost = await packing.restore(replay)
        for reason in lost:
            self.notices.add(reason)
        if branch is None and not self.is_read and len(self.timeline.history) > len(raw):
            return list(self.timeline.history)  # it includes turns that could not be written
        return raw

    async def removals(self) -> list[Removal]:
        """Return what the stages have removed so far, the oldest first.

        A journal that this session has not read yet is read for that. Raises StorageError.
        """
        if self.is_read or self.timeline.turn:
            return list(self.timeline.removals)
        entries = await self._entries()
        packing = copy(self._packing)
        try:
            replay = await in_thread(self._replay_line, packing, entries, None, [])
        except DAMAGED as error:
            raise StorageError(errno.EILSEQ, "the journal holds invalid entries") from error
        return list(replay.timeline.removals)

    async def newest_history(self) -> list[Message]:
        """Return the history with the messages that other processes have added.

        Raises StorageError if the journal cannot be read and no other place has the history.
        """
        if self._journal is None:
            return self.timeline.history
        try:
            if not self.is_read:
                return await self.history(None)
            has_news = await self._has_news(copy(self._journal)) or self._is_stale
        except StorageError as error:
            # If other processes write to the session, this one may lack the newest messages.
            if self.unwritten or (self.timeline.history and not self._is_shared):
                self.notices.note_failure("the journal cannot be read", error)
                return self.timeline.history
            raise
        if not has_news or (self.unwritten and not self._found):
            return self.timeline.history
        return await self.history(self._branch, self.timeline.history)

    async def branches(self) -> list[str]:
        """Return the names of the branches, in order. Raises StorageError."""
        return _branch_names(await self._entries())

    async def lines(self) -> list[str]:
        """Return the names of the branches, and then those of the abandoned lines.

        Raises StorageError.
        """
        entries = await self._entries()
        packing = copy(self._packing)
        try:
            abandoned = await in_thread(find_abandoned_lines, packing, entries)
        except DAMAGED as error:
            raise StorageError(errno.EILSEQ, "the journal holds invalid entries") from error
        return [*_branch_names(entries), *abandoned]

    async def _entries(self) -> list[Entry]:
        if self._journal is None:
            return []
        entries, _ = await copy(self._journal).read()
        if not self.is_read:
            self._seen = len(entries)
        return entries

    def _replay_line(
        self, packing: Packing, entries: list[Entry], branch: str | None, known: Sequence[Message]
    ) -> Replay:
        """Return the history of *branch*, which may also be the name of an abandoned line.

        Without *branch* it is the history of this session, if the journal was read before, and
        otherwise the line that was written last. Raises SettingsError if there is no such branch.
        """
        if branch is not None:
            try:
                path = path_of(entries, branch)
            except KeyError:
                session = excerpt(self._session_id)
                reason = f"there is no branch {excerpt(branch)} of session {session}"
                raise SettingsError(reason) from None
        elif not self.is_read:
            path = path_to(entries, len(entries))
        else:
            seals = [entry.seal for entry in entries]
            found = self._found in seals
            path = path_to(entries, seals.index(self._found) + 1 if found else self._base)
            if not found:  # add the turns that could not be written
                path.append(self._entry(self._branch, self.unwritten))
        return packing.replay(path, known, Timeline)


def _branch_names(entries: Sequence[Entry]) -> list[str]:
    """Return the names of the branches of *entries* in order, without that of the first one."""
    return sorted((name for name in ends_of(entries) if name), key=int)
