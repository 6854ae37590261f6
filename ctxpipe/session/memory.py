"""A session's timeline and its journal, kept in step: a turn is in both, or it has not happened."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import SettingsError, StorageError, safe_text
from ..messages import common_prefix, ensure_messages, is_bulky
from ..messages.identity import says_the_same
from ..settings import excerpt
from ..threads import in_thread, in_thread_if
from ..timeline import Step, Timeline
from ..words import counted
from .journal import DAMAGED, Entry, Journal, chain
from .lost_files import write_lost_files
from .packing import Packing, Replay

if TYPE_CHECKING:
    from ..edits.diff import Edit
    from ..messages import Message
    from ..runner import Record
    from ..storage import JournalStorage

__all__ = ["Memory"]

logger = logging.getLogger("ctxpipe")

REDACTED = "messages in the journal are redacted, so a context that was sent is not known again word for word"
NOT_RESTORABLE = (
    "the context is adopted as the history and there is no journal: give the session journal=, or hand in the full "
    "history, else restore_history cannot give the raw messages back"
)
NOTABLE_DRIFT = 0.01  # of the factor that bills have shown: then the journal is told


class Line(NamedTuple):
    """One way through a journal, to the first *base* entries: what it comes to, and which *step* a
    history is then.
    """

    base: int
    branch: str
    found: Replay
    step: Step


class Memory:
    """The *timeline* of the session *session_id*, and the *journal* that another process goes on
    from.

    *record* is what the ledger has learned, which is written down with the turns. *notices* are
    what the caller should be told with the next result.

    The timeline rests on the first *base* entries. Entries that others write to the same *branch*
    are taken in where the caller's history goes on from them. Where it does not, this session goes
    another way: its next entry begins a branch.
    """

    def __init__(
        self,
        session_id: str,
        record: Record,
        journal: JournalStorage | None,
        keys: Sequence[bytes] = (),
        *,
        texts: bool = True,
        verify: bool = False,
    ) -> None:
        self.notices: list[str] = []
        self._new_timeline = partial(Timeline, verify=verify)
        self.timeline = self._new_timeline()
        self.is_adopted = (
            False  # whether the caller has ever gone on with our context as his history
        )
        self.unreported: int | None = None  # from where on another's turns have changed the context
        self._session_id = session_id
        self._record = record
        self._journal = Journal(journal, session_id, keys) if journal else None
        self._packing = Packing(journal, session_id, texts=texts)
        self._is_read = journal is None
        self._base = 0
        self._seal = ""  # of the last entry that the timeline rests on
        self._branch = ""
        self._is_behind = (
            False  # there are entries of this branch that the history does not go on from
        )
        self._has_company = False  # whether others write to this branch
        self._refused_at: int | None = (
            None  # the number of an entry that somebody else was faster with
        )
        self._unwritten: list[dict[str, Any]] = []  # turns that could not be written
        self._saved = self._learned()

    def tell(self, text: str) -> None:
        """Have the next result say *text*, and log it."""
        logger.warning("session %s: %s", self._session_id, text)
        self.notices.append(text)

    @property
    def storage(self) -> JournalStorage | None:
        """Where the journal lies, None when there is none."""
        return self._journal.storage if self._journal else None

    # Reading what others have written -------------------------------------------------------------

    async def catch_up(self, history: list[Message]) -> None:
        """Take in what the journal knows and this session does not, as far as *history* goes on
        from it.
        """
        journal = self._journal
        if journal is None:
            return
        try:
            if not self._is_read:
                await self._begin(journal, history)
            elif self._is_behind or self._refused_at is not None or await self._has_news(journal):
                await self._go_on(journal, history)
        except StorageError as error:
            told = "" if self._is_read else "; the session begins anew, and without a journal"
            self._journal = journal if self._is_read else None
            self.tell(f"the journal cannot be read{told}: {safe_text(error)}")
        self._is_read = True

    async def _has_news(self, journal: Journal) -> bool:
        """Whether others have written to this branch.

        What they have written to other ones is passed over.
        """
        entries, is_damaged = await journal.news()
        has_ours = any(entry.branch == self._branch for entry in entries)
        self._has_company = self._has_company or has_ours
        return is_damaged or has_ours

    async def _begin(self, journal: Journal, history: list[Message]) -> None:
        """Go on from the line of the journal that *history* shares most with."""
        entries, lines = await self._lines(journal, history, None)
        line = max(lines, key=lambda line: line.step.known)
        if line.found.has_hidden:
            self.tell(REDACTED)
        self._take_up(line, entries)
        if entries:
            await self._write_lost_files(journal.storage)

    async def _go_on(self, journal: Journal, history: list[Message]) -> None:
        """Take in what others have written, or go another way than they do."""
        entries, [line] = await self._lines(journal, history, self._branch)
        if self._base and (len(entries) < self._base or entries[self._base - 1].seal != self._seal):
            # It was deleted, or set aside by somebody else: what this session knows is no longer in
            # it.
            self._base, self._unwritten = (
                0,
                [await in_thread(self._packing.pack, self.timeline.snapshot())],
            )
            self.tell("the journal was replaced; this session goes on from what it knows")
            return
        is_further = line.base == _tip(entries, line.branch) or line.step.known >= len(
            self.timeline.history
        )
        if is_further and not line.step.is_cut:
            self._note_unreported(line.found.timeline)
            self._take_up(line, entries)
        else:
            self._is_behind = True

    async def _lines(
        self, journal: Journal, history: list[Message], branch: str | None
    ) -> tuple[list[Entry], list[Line]]:
        """All entries of *journal*, and how far *history* goes along *branch*, or along each when
        that is None.
        """
        ensure_messages(history)
        entries, is_damaged = await journal.read()
        try:
            lines = await in_thread(self._replayed, entries, history, branch)
        except DAMAGED:  # they were sealed by somebody who has written nonsense
            entries, is_damaged = [], True
            journal.count, journal.seal = 0, ""
            lines = self._replayed([], history, branch)
        if is_damaged:
            name = await journal.set_aside(entries)
            kept = (
                f"it is kept as {name}, and a new one begins"
                if name
                else "somebody else has set it aside"
            )
            self.tell(
                f"the journal was damaged from entry {len(entries)} on, or is of another version; {kept}"
            )
        return entries, lines

    def _replayed(
        self, entries: Sequence[Entry], history: list[Message], branch: str | None
    ) -> list[Line]:
        names = dict.fromkeys(
            ["", *(entry.branch for entry in entries)] if branch is None else [branch]
        )
        return [self._line(entries, _tip(entries, name), name, history) for name in names]

    def _line(
        self, entries: Sequence[Entry], base: int, branch: str, history: list[Message]
    ) -> Line:
        """What *branch* comes to: at its end, or where *history* left it, if that is no later."""
        numbers = chain(entries, base)
        found = self._packing.replay(
            [entries[number] for number in numbers], history, self._new_timeline
        )
        step = found.timeline.begin(history)
        if step.is_cut and found.fitted and found.fitted >= step.known:
            return self._line(entries, numbers[found.fitting - 1] + 1, branch, history)
        return Line(base, branch, found, step)

    def _take_up(self, line: Line, entries: Sequence[Entry]) -> None:
        self._base, self._branch = line.base, line.branch
        self._seal = entries[line.base - 1].seal if line.base else ""
        self._is_behind, self._unwritten = line.base < _tip(entries, line.branch), []
        self.timeline, self.is_adopted = line.found.timeline, line.found.is_adopted
        self._record.keep(0)
        if line.base:
            self._record.ledger.learn(entries[line.base - 1].bills)
            self._record.windows |= dict(entries[line.base - 1].windows)
            self._saved = self._learned()

    def _note_unreported(self, other: Timeline) -> None:
        """The first message of the context that is no longer the one this session has sent."""
        ours, theirs = self.timeline.sent, other.sent
        same = common_prefix(ours, theirs)
        while same < min(len(ours), len(theirs)) and says_the_same(ours[same], theirs[same]):
            same += 1
        if same < len(ours):
            self.unreported = same

    async def _write_lost_files(self, storage: JournalStorage) -> None:
        """Write files again that the context points to and somebody has deleted."""
        try:
            count = await write_lost_files(self.timeline, storage)
        except StorageError as error:
            self.tell(
                f"files that the context points to cannot be looked after: {safe_text(error)}"
            )
            return
        if count:
            were = "were" if count > 1 else "was"
            gone = f"{counted(count, 'file')} that the context points to {were} gone"
            self.tell(f"{gone}, and written again from the history")

    # Writing --------------------------------------------------------------------------------------

    async def write(self, step: Step) -> bool:
        """Write *step* down; False when somebody else was faster. What goes wrong is told."""
        journal = self._journal
        if journal is None or (step.is_idle and not self._unwritten and not self._has_learned()):
            return True
        if step.is_idle and self._is_behind and not self._unwritten:
            return True
        learned = self._learned()
        is_bulk = step.is_bulk is not False or bool(self._unwritten) or _is_bulky(step.edits)
        turns = self._unwritten
        try:
            if not step.is_idle:
                turns = [*turns, await in_thread_if(is_bulk, self._packing.pack, step)]
            if not await self._written(journal, turns, is_bulk=is_bulk):
                return False
        except StorageError as error:
            self._unwritten = turns
            self.tell(f"the journal cannot be written: {safe_text(error)}")
        else:
            self._unwritten, self._saved = [], learned
        self._refused_at = None
        return True

    async def _written(
        self, journal: Journal, turns: Sequence[dict[str, Any]], *, is_bulk: bool
    ) -> bool:
        """Write *turns* as the next entry.

        False when others have written one that this session has to read first.
        """
        goes_apart = self._is_behind and self._has_company
        while True:
            branch = str(journal.count) if goes_apart else self._branch
            if await journal.write(self._entry(branch, turns), is_bulk=is_bulk):
                break
            count = journal.count
            has_news = await self._has_news(journal)
            if journal.count == count or (has_news and not goes_apart):
                if self._refused_at == count == journal.count:
                    told = f"entry {count} is refused, though nobody is seen to have written it"
                    raise StorageError(errno.EAGAIN, told)
                self._refused_at = count
                return False
        if goes_apart:
            self.tell(f"the journal goes on with another history; this one is branch {branch!r}")
        self._base, self._seal, self._branch = journal.count, journal.seal, branch
        self._is_behind, self._has_company = False, self._has_company and not goes_apart
        return True

    def _entry(self, branch: str, turns: Sequence[dict[str, Any]]) -> Entry:
        record = self._record
        return Entry(
            self._base,
            branch,
            turns,
            record.ledger.bills,
            list(record.windows.items()),
            self._packing.salt,
        )

    def _learned(self) -> tuple[float, dict[str | None, int]]:
        return self._record.ledger.factor, dict(self._record.windows)

    def _has_learned(self) -> bool:
        """Whether bills and refusals have taught what the journal does not know."""
        factor, windows = self._saved
        is_drift = abs(self._record.ledger.factor - factor) > NOTABLE_DRIFT * factor
        return is_drift or self._record.windows != windows

    def apply(self, step: Step) -> None:
        """Take *step* in, once it is written."""
        if step.adopted and not self.is_adopted and self._journal is None:
            self.tell(NOT_RESTORABLE)
        self.is_adopted = self.is_adopted or step.adopted
        self.timeline.apply(step)
        self.unreported = None

    # The history ----------------------------------------------------------------------------------

    async def history(self, branch: str | None) -> list[Message]:
        """The whole history, as `Session.history` describes it."""
        if self._journal is None:
            if self.is_adopted:
                raise StorageError(NOT_RESTORABLE)
            return list(self.timeline.history)
        if not self._packing.texts:
            raise SettingsError("the journal holds no texts: it was kept with history=False")
        entries = await self._entries()
        if branch and not _tip(entries, branch):
            raise SettingsError(
                f"there is no branch {excerpt(branch)} of session {excerpt(self._session_id)}"
            )
        packing = copy(self._packing)  # what is read here is not what this session has taken up
        try:
            longest = await in_thread(self._longest, packing, entries, branch)
        except DAMAGED as error:
            raise StorageError(
                errno.EILSEQ, "the journal holds entries that make no sense"
            ) from error
        if packing.redacts and longest.raw:
            self.tell("the history was redacted when it was written down")
        return await packing.restored(longest, self._journal.storage)

    async def newest_history(self) -> list[Message]:
        """The history with what others have added to it. Raises StorageError."""
        is_current = self._journal is None or (
            self._is_read and not await self._has_news(copy(self._journal))
        )
        if is_current or self._unwritten:
            return self.timeline.history
        return await self.history(self._branch if self._is_read else None)

    async def branches(self) -> list[str]:
        """The names of the branches, in order. Raises StorageError."""
        return sorted({entry.branch for entry in await self._entries()} - {""}, key=int)

    async def _entries(self) -> list[Entry]:
        return (await copy(self._journal).read())[0] if self._journal else []

    def _longest(self, packing: Packing, entries: Sequence[Entry], branch: str | None) -> Replay:
        """What *branch* comes to.

        Without a name what this session knows, or the longest when it has read nothing.
        """
        if branch is None and self._is_read:
            own = self._entry(self._branch, self._unwritten)
            return packing.replay(
                [*(entries[number] for number in chain(entries, self._base)), own], [], Timeline
            )
        names = {entry.branch: None for entry in entries} if branch is None else {branch: None}
        lines = [
            [entries[number] for number in chain(entries, _tip(entries, name))]
            for name in names or {"": None}
        ]
        return max(
            (packing.replay(line, [], Timeline) for line in lines), key=lambda found: len(found.raw)
        )


def _is_bulky(edits: Sequence[Edit]) -> bool:
    return is_bulky([message for edit in edits for message in edit.messages])


def _tip(entries: Sequence[Entry], branch: str) -> int:
    """How many entries lead to the last one of *branch*."""
    return max(
        (number for number, entry in enumerate(entries, 1) if entry.branch == branch), default=0
    )
