"""The timeline of a session and its journal: a turn is in both, or it has not happened."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from copy import copy
from functools import partial
from typing import Any, NamedTuple, Protocol

from .._logs import logger
from .._text import count_phrase
from .._threads.threads import in_thread
from ..errors import SettingsError, StorageError, safe_text, storage_errors
from ..messages import Message, common_prefix, ensure_messages
from ..messages.identity import says_the_same
from ..settings import excerpt
from ..stages.compact.breaker import Attempts
from ..stages.lost_files import write_lost_files
from ..storage import JournalStorage
from ..storage.generations import Generation
from ..storage.sealed import DAMAGED, Entry, Journal, JournalRefused, chain
from ..storage.waiting import Availability, Unavailable
from ..tokens import Ledger
from .packing import Packing, Replay
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
DIVERGED = "the history differs from the known one"
UNDONE = "a summary of what has gone is undone: the context is as it was before it"
REFUSED = "entry {} is refused, though nobody is seen to have written it"
DELETED = "the conversation was deleted; what is handed in since then begins a new one"
REPLACED = "the journal was replaced; this session goes on from what it knows"
UNKNOWN = "the history that this session owns is in its journal, which cannot be read now"
BACK = "the journal is back, and what was missed is written"
NOTABLE_DRIFT = 0.01  # a smaller change of the ledger's factor is not written by itself


class JournaledState(Protocol):
    """Values of a session that a journal saves beside the messages.

    The *ledger* has the calibration of token counts, *windows* the context windows that refusals
    have shown, by model, and *memories* the records of the stages, by the stage's place.
    """

    ledger: Ledger
    windows: dict[str | None, int]
    memories: dict[int, dict[object, Any]]

    def rewind(self, length: int) -> None:
        """Make totals and records describe only the first *length* messages of the context."""
        ...


class JournalBranch(NamedTuple):
    """One branch of a journal, up to the first *base* entries.

    *replay* is the session rebuilt from these entries, *step* leads from there to the caller's
    history.
    """

    base: int
    branch: str
    replay: Replay
    step: Step


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
        self.notices: list[str] = []
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
        self._failing: set[str] = set()  # the names of failures that a notice has reported
        self._waits_for: Availability | None = None  # the store for which the unwritten turns wait
        self._seen: int | None = None  # number of entries when the caller asked for the history
        self._base = 0
        self._seal = ""  # of the entry with index base - 1
        self._branch = ""
        self.appended: list[Message] = []
        self.taken: int = 0
        self._doubtful = 0  # number of appended messages in the last entry, until it is confirmed
        self._found = ""  # the seal of such an entry that is in the journal but not in the timeline
        self.is_behind: bool = False
        """Whether the branch has entries that the history does not continue."""
        self._is_shared = False  # True if other processes write to this branch
        self._refused_at: int | None = None  # number of the entry that was refused last
        self.unwritten: list[dict[str, Any]] = []
        """Turns that could not be written yet."""
        self._saved = self._calibration()
        self._saved_attempts: dict[str, Any] = {}

    def notify(self, text: str) -> None:
        """Log *text*, and add it to the notices of the next result."""
        logger.warning("session %s: %s", self._session_id, text)
        self.notices.append(text)

    @contextmanager
    def _notify_failure(self, problem: str, *, of: str) -> Iterator[None]:
        """Turn an error of a storage into a notice of *problem*; *of* names the failure."""
        try:
            with storage_errors():
                yield
        except StorageError as error:
            self._note_failure(problem, error, of=of)
        else:
            self._failing.discard(of)

    def _note_failure(self, problem: str, error: StorageError, *, of: str = "journal") -> None:
        """Add a notice of *problem*, once until that works again.

        If the store is known to be unavailable, the log has one warning for all sessions.
        """
        is_news = of not in self._failing
        self._failing.add(of)
        text = f"{problem}: {safe_text(error)}"
        if isinstance(error, Unavailable):
            self._waits_for = error.store
            if is_news:
                self.notices.append(text)
        elif is_news:
            self.notify(text)

    def _note_success(self) -> None:
        """Add a notice if the journal had failed before."""
        if "journal" in self._failing:
            self._failing.discard("journal")
            self.notices.append(BACK)

    # Reading --------------------------------------------------------------------------------------

    async def catch_up(self, history: list[Message]) -> None:
        """Take over the entries of other processes, as far as *history* continues them.

        A journal that cannot be read now is read in a later turn.
        """
        journal = self._journal
        if journal is None:
            return
        try:
            is_stale = self.is_behind or self._refused_at is not None
            if not self.is_read:
                await self._resume(journal, history)
                self.is_read = True
            elif is_stale or await self._has_news(journal):
                await self._follow(journal, history)
        except JournalRefused as error:
            problem = "the journal cannot be read"
            if not self.is_read:
                self._journal = self.storage = None
                problem += "; the session begins anew, and without a journal"
                self.is_read = True
            self.notify(f"{problem}: {safe_text(error)}")
        except StorageError as error:
            self._note_failure("the journal cannot be read", error)
        else:
            if not self.unwritten:
                self._note_success()
        touch = getattr(self._packing.text_reader, "touch", None)  # some storages record the use
        if touch is not None:
            with self._notify_failure("the texts cannot be marked as used", of="texts"):
                await touch(self._session_id)

    async def ensure_not_deleted(self) -> None:
        """Read the journal after a turn that wrote nothing. Raises SessionDeleted."""
        if self._journal is not None:
            with suppress(StorageError):
                await copy(self._journal).read_news()

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
                self.notify(REDACTED)
            if has_begun:
                self.unreported = self._first_change(line.replay.timeline)
            self._take_over(line, entries)
            if entries:
                await self._restore_files()
        elif entries:
            self.notify(ANOTHER_HISTORY)
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
            self.notify(REPLACED)
            return
        is_at_end = line.base == _ends(entries)[line.branch]
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
            lines = await in_thread(self._replay_lines, entries, history, branch)
        except DAMAGED:  # the seals are valid, but the entries are not
            entries = []
            is_damaged = True
            journal.restart()
            lines = self._replay_lines([], history, branch)
        if is_damaged:
            name = await journal.set_aside(entries)
            outcome = f"it is kept as {name}, and a new one begins"
            if not name:
                outcome = "another process has set it aside"
            cause = f"damaged from entry {len(entries)} on, or is of another version"
            self.notify(f"the journal was {cause}; {outcome}")
        return entries, lines

    def _replay_lines(
        self, entries: Sequence[Entry], history: list[Message], branch: str | None
    ) -> list[JournalBranch]:
        """Return how *history* continues *branch*, or each branch, and each abandoned end.

        When a new process goes back, it leaves entries that no other entry continues. If the
        history returns to them, it continues them: what they have removed from the context stays
        removed.
        """
        ends: Mapping[str, int] = _ends(entries)
        if branch is not None:
            ends = {branch: ends[branch]}
        bases = {entry.base for entry in entries}
        places = list(ends.items())
        for number, entry in enumerate(entries, 1):
            if number not in bases and entry.branch in ends:
                places.append((entry.branch, number))
        return [self._line(entries, end, name, history) for name, end in dict.fromkeys(places)]

    def _line(
        self, entries: Sequence[Entry], base: int, branch: str, history: list[Message]
    ) -> JournalBranch:
        """Return *branch* up to its end, or up to the entry at which *history* has left it."""
        numbers = chain(entries, base)
        path = [entries[number] for number in numbers]
        replay = self._packing.replay(path, history, self._new_timeline)
        step = replay.timeline.begin(history)
        fits_earlier = replay.fitted > 0 and replay.fitted >= step.unchanged_count
        if step.agreement.is_rewound and fits_earlier:
            return self._line(entries, numbers[replay.fitting - 1] + 1, branch, history)
        return JournalBranch(base, branch, replay, step)

    def _take_over(self, line: JournalBranch, entries: Sequence[Entry]) -> None:
        """Continue from *line*, a branch of *entries*."""
        self.timeline = line.replay.timeline
        self.is_adopted = line.replay.is_adopted
        self._base = line.base
        self._branch = line.branch
        self.is_behind = line.base < _ends(entries)[line.branch]
        self.unwritten = []
        self._found = ""
        self._state.rewind(0)
        if line.base:
            last = entries[line.base - 1]
            self._seal = last.seal
            self._state.ledger.load(last.samples)
            self._state.windows |= dict(last.windows)
            self._saved = self._calibration()
            self._load_attempts(_path(entries, line.base))

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
            with self._notify_failure(problem, of="files"):
                restored, lost = await write_lost_files(self.timeline, texts)
        outcomes = {" had gone: written again": restored, ": gone, not in the history given": lost}
        for outcome, count in outcomes.items():
            if count:
                self.notify(f"{count_phrase(count, 'file')} that the context refers to{outcome}")

    @asynccontextmanager
    async def lease(self, seconds: float) -> AsyncIterator[None]:
        """Let no other process run a turn of the session for a while, if the storage has leases.

        This only saves money: the turn also runs without a lease.
        """
        leased = AsyncExitStack()
        acquire = getattr(self.storage, "lease", None)
        if acquire is not None:
            with self._notify_failure("the session cannot be leased", of="lease"):
                await leased.enter_async_context(acquire(self._session_id, seconds))
        try:
            yield
        finally:
            with self._notify_failure("the lease cannot be given back", of="end of the lease"):
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
        calibration, attempts = self._calibration(), self._attempts()
        is_news = attempts != self._saved_attempts
        if step.is_idle and not self.unwritten:
            has_news = is_news or self._has_learned()
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
                    turn["attempts"] = attempts
                turns = [*turns, turn]
            if self._waits_for is not None:
                # Encoding the unwritten turns takes longer with each turn, so ask first.
                self._waits_for.refuse_while_unavailable()
            if not await self._append(journal, turns, is_large=is_large or len(turns) > 1):
                return False
        except StorageError as error:
            self.unwritten = turns
            journal.unanswered = ""  # the turn is valid, whether or not its entry was written
            self._note_failure("the journal cannot be written", error)
        else:
            self.unwritten = []
            self._saved = calibration
            self.is_read = True  # the journal was empty, or was read before
            self._note_success()
        self._saved_attempts = attempts
        self._refused_at = None
        return True

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
            self.notify(f"the journal continues another history; this one is branch {branch!r}")
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

    def _calibration(self) -> tuple[float, dict[str | None, int]]:
        return self._state.ledger.factor, dict(self._state.windows)

    def _attempts(self) -> dict[str, Any]:
        """Return the stages' records of failed attempts, by the stage's place."""
        saved: dict[str, Any] = {}
        for place, memory in self._state.memories.items():
            attempts = memory.get(Attempts)
            if attempts and (values := attempts.saved()):
                saved[str(place)] = values
        return saved

    def _load_attempts(self, path: Sequence[Entry]) -> None:
        turns = [turn for entry in path for turn in entry.turns if "attempts" in turn]
        if not turns:
            return
        saved: dict[str, Any] = turns[-1]["attempts"]
        memories = self._state.memories
        for place in {*memories, *map(int, saved)}:
            memory = memories.setdefault(place, {})
            known = memory.get(Attempts)
            memory[Attempts] = attempts = Attempts.load(saved.get(str(place), {}))
            attempts.warned = bool(known and known.warned)
        self._saved_attempts = self._attempts()

    def _has_learned(self) -> bool:
        """Return True if calibration or windows differ notably from those in the journal."""
        factor, windows = self._saved
        drift = abs(self._state.ledger.factor - factor)
        return drift > NOTABLE_DRIFT * factor or self._state.windows != windows

    def apply(self, step: Step) -> None:
        """Apply *step*, which is written, to the timeline."""
        if step.agreement.has_diverged:
            first = step.unchanged_count if step.undone_count else step.agreement.new_start
            notice = f"{DIVERGED}; message {first} and those after it are new"
            if step.undone_count:
                notice += f", and {UNDONE}"
            self.notices.append(notice)
        if step.adopted and not self.is_adopted:
            if self._journal is None:
                self.notify(NOT_RESTORABLE)
            self.is_adopted = True
        self.timeline.apply(step)
        self.unreported = None
        del self.appended[: self.taken]
        self.taken = self._doubtful = 0

    def flush_when_back(self, holder: object) -> None:
        """Have ``holder.flush_missing()`` called when the store of the journal is back."""
        if self._waits_for is not None and self.unwritten:
            self._waits_for.call_when_back(holder)

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
        if branch and branch not in _ends(entries):
            session = excerpt(self._session_id)
            raise SettingsError(f"there is no branch {excerpt(branch)} of session {session}")
        packing = copy(self._packing)  # the session itself must not change here
        try:
            replay = await in_thread(self._longest, packing, entries, branch, known)
        except DAMAGED as error:
            raise StorageError(errno.EILSEQ, "the journal holds invalid entries") from error
        if packing.redact and replay.raw:
            self.notify("the history was redacted when it was written down")
        raw, lost = await packing.restore(replay)
        for reason in lost:
            self.notify(reason)
        if branch is None and not self.is_read and len(self.timeline.history) > len(raw):
            return list(self.timeline.history)  # it includes turns that could not be written
        return raw

    async def newest_history(self) -> list[Message]:
        """Return the history with the messages that other processes have added.

        Raises StorageError if the journal cannot be read and no other place has the history.
        """
        if self._journal is None:
            return self.timeline.history
        try:
            if not self.is_read:
                return await self.history(None)
            has_news = await self._has_news(copy(self._journal))
        except StorageError as error:
            # If other processes write to the session, this one may lack the newest messages.
            if self.unwritten or (self.timeline.history and not self._is_shared):
                self._note_failure("the journal cannot be read", error)
                return self.timeline.history
            raise
        if not has_news or (self.unwritten and not self._found):
            return self.timeline.history
        return await self.history(self._branch, self.timeline.history)

    async def branches(self) -> list[str]:
        """Return the names of the branches, in order. Raises StorageError."""
        return sorted(filter(None, _ends(await self._entries())), key=int)

    async def _entries(self) -> list[Entry]:
        if self._journal is None:
            return []
        entries, _ = await copy(self._journal).read()
        if not self.is_read:
            self._seen = len(entries)
        return entries

    def _longest(
        self, packing: Packing, entries: list[Entry], branch: str | None, known: Sequence[Message]
    ) -> Replay:
        """Return the longest history, or that of *branch*.

        Without *branch* it is the history of this session, if the journal was read before.
        """
        if branch is None and self.is_read:
            seals = [entry.seal for entry in entries]
            found = self._found in seals
            path = _path(entries, seals.index(self._found) + 1 if found else self._base)
            if not found:  # add the turns that could not be written
                path.append(self._entry(self._branch, self.unwritten))
            return packing.replay(path, known, Timeline)
        ends = _ends(entries)
        names = [*ends] if branch is None else [branch]
        replays = [packing.replay(_path(entries, ends[name]), known, Timeline) for name in names]
        return max(replays, key=lambda replay: len(replay.raw))


def _ends(entries: Sequence[Entry]) -> Counter[str]:
    """Return the number of *entries* up to the last one of each branch; the first branch is ""."""
    return Counter({"": 0, **{entry.branch: number for number, entry in enumerate(entries, 1)}})


def _path(entries: Sequence[Entry], base: int) -> list[Entry]:
    """Return the chain of entries that ends with entry *base* - 1, oldest first."""
    return [entries[number] for number in chain(entries, base)]
