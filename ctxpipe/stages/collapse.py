"""Collapse old exchanges into one line each, with the few source lines likely to be used again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from .._text import short_repr
from .._threads.threads import in_thread, in_thread_if
from ..edits import collapse
from ..edits.collapse import Layout
from ..edits.exchanges import ExchangeIndex
from ..errors import SettingsError, StorageError
from ..placeholders.names import content_hash, session_folder
from ..placeholders.notes import Note, note_of
from ..providers.prices import PRICES, Prices
from ..settings import COUNT, NUMBER, SIZE, check_settings, instance_of
from ..storage import Archive, TextReader, TextWriter
from ..storage.records import redactor_of, storable
from ..storage.references import check_reference, reference_of, visible_path
from .archive import archive_record
from .gates import first_to_leave
from .offloaded import read_offloaded
from .protocol import Change, Skip, Turn
from .reports import Collapsed

PROTECTED = "thinking is protected, and a note would stand before kept thinking"

ALPHA = 2.0  # 3 and 4 cost and show about the same; docs/benchmarks.md says why they cost

_SAMPLE = "s0.md"


@dataclass(frozen=True, slots=True, repr=False)
class Collapse:
    """Collapse old exchanges into a note: one line per tool call, and the lines worth keeping.

    An exchange is an assistant message with tool calls and their results. Those that the model has
    answered *keep_recent* times or more are old. When carrying them has cost twice what a rewrite
    of the cached context costs, the old exchanges from the best place on leave, all their words,
    thinking, calls and results. Each run of exchanges between two messages that stay becomes one
    user message: where the steps are whole, then for each call its number, the tool, what it was
    about, the size of its result and whether it failed. A person's messages, pictures and earlier
    notes stay byte for byte, so that later rewrites leave the beginning alone; and so do exchanges
    with calls of server tools or their programs. A long reply without calls becomes a line with its
    beginning, and so does a long text that a harness wrote on the user's side, such as the report
    of a job (`HARNESS_TEXT`).

    Under a call stand the lines of its input and result that are likely to be used again: those
    worth *min_value* expected uses per 1,000 tokens or more, which may be half of what leaves. They
    are chosen without a model, by what they name that nothing else in the context names.

    As in `RentOrBuyGate`, nothing leaves below *min_tokens*, everything old leaves when the cache
    has expired, and *prices* are those of the model. The context must hold *min_calls* calls, which
    is also the least distance between two rewrites. With ``thinking="protect"`` nothing leaves once
    there is thinking.

    Each step is written to a file of its own in *storage*, whole, even where its result had been
    offloaded. The raw messages are archived there first: *storage* keeps and returns texts, and
    keeps records.

    No live run has confirmed it yet: the figures are those of replayed sessions.

    Raises SettingsError for settings that are invalid.
    """

    observers: ClassVar[tuple[str, ...]] = ("ctxpipe.observers.signals:CollapseWatch",)

    storage: TextWriter
    prices: Prices = field(default_factory=Prices.relative)
    keep_recent: int = 7
    min_tokens: int = 1000
    min_calls: int = 25
    min_value: float = 3.0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        words = "a storage of texts and records, such as LocalStorage('.ctxpipe')"
        for capability in (TextWriter, TextReader, Archive):
            instance_of(capability, words).check("storage", self.storage)
        check_settings(
            self,
            prices=PRICES,
            keep_recent=COUNT,
            min_tokens=SIZE,
            min_calls=SIZE,
            min_value=NUMBER,
        )
        check_reference(reference_of(self.storage))
        note = Note(self._visible_folder("sample"), 1, 2)
        if note_of({"role": "user", "content": f"{note.heading}\n1\n2"}) != note:
            raise SettingsError(
                f"storage is at {note.folder!r}, where no note can point to: its path has a line "
                "break or another control character, or is longer than 4,096 characters"
            )

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Nothing leaves that cannot be written. Raises StorageError."""
        prepared = await self._prepare(turn)
        if isinstance(prepared, Skip):
            return prepared
        layout, whole, rewritten = prepared
        texts = await in_thread(collapse.step_texts, layout, whole)
        # The steps first: what is written again after a failure has the same name, an archive not.
        files, suffix = await self._write_steps(turn, layout, texts)
        record = archive_record(collapse.leaving_messages(layout))
        archive = await cast("Archive", self.storage).save(turn.session_id, "collapse", record)
        if suffix:
            rewritten = await self._rewrite(turn, layout, whole, suffix)
        return _change(layout, rewritten, files, archive)

    async def plan(self, turn: Turn) -> Change | Skip:
        """The same decision, with no write."""
        prepared = await self._prepare(turn)
        if isinstance(prepared, Skip):
            return prepared
        layout, _, rewritten = prepared
        files = [self.storage.location(key) for key in _keys(turn, layout, "")]
        return _change(layout, rewritten, files, None)

    async def _prepare(
        self, turn: Turn
    ) -> tuple[Layout, Mapping[str, str], collapse.Rewritten] | Skip:
        """What leaves, the texts behind its placeholders, and the context with its notes."""
        layout = await self._decide(turn)
        if isinstance(layout, Skip):
            return layout
        files = await in_thread(collapse.find_offloaded_files, layout)
        whole = await read_offloaded(self.storage, turn.session_id, files)
        rewritten = await self._rewrite(turn, layout, whole, "")
        if rewritten.freed_tokens <= 0:
            return Skip("a note would be as long as what it replaces")
        return layout, whole, rewritten

    def _visible_folder(self, session_id: str) -> str:
        """The folder of the session's steps as the model sees it, ending in a separator."""
        folder = session_folder(session_id)
        location = self.storage.location(f"{folder}/{_SAMPLE}")
        return visible_path(reference_of(self.storage), folder, location).removesuffix(_SAMPLE)

    # When -----------------------------------------------------------------------------------------

    async def _decide(self, turn: Turn) -> Layout | Skip:
        """What leaves at this turn, or why nothing does."""
        if turn.protected:
            return Skip(PROTECTED)
        columns = await turn.columns()
        if not turn.force and not turn.cache_expired and columns.calls < self.min_calls:
            return Skip(f"only {columns.calls} calls in the context, fewer than {self.min_calls}")
        sums = await turn.prefix_sums()
        stop = columns.recent_from(self.keep_recent)
        index = turn.recall(ExchangeIndex)
        await in_thread_if(
            turn.is_bulky(index.known), index.extend, turn.messages, stop, sums, turn.counter
        )
        table = index.table(columns, sums, self.keep_recent)
        if not table.freed:
            return Skip("no exchange is old enough to collapse")
        start: int | str = 0
        if not turn.force:
            start = await first_to_leave(turn, table, self.prices, ALPHA, self.min_tokens)
        if isinstance(start, str):
            return Skip(f"the old exchanges stay: {start}")
        return await in_thread(self._lay_out, turn, index.places[start], stop)

    def _lay_out(self, turn: Turn, start: int, stop: int) -> Layout:
        folder = self._visible_folder(turn.session_id)
        last = max((note.last for note in _own_notes(turn) if note.folder == folder), default=0)
        return collapse.lay_out(turn.messages, start, stop, last + 1)

    # What -----------------------------------------------------------------------------------------

    async def _rewrite(
        self, turn: Turn, layout: Layout, whole: Mapping[str, str], suffix: str
    ) -> collapse.Rewritten:
        return await in_thread(
            collapse.collapse,
            layout,
            whole,
            self._visible_folder(turn.session_id),
            suffix,
            self.min_value,
            turn.counter,
        )

    async def _write_steps(
        self, turn: Turn, layout: Layout, texts: Sequence[str]
    ) -> tuple[list[str], str]:
        """Write each step to its file; the files, and what was added to their names.

        Numbers may be in use already: after a compaction, or on another branch of the history.
        """
        suffix = ""
        while True:
            keys = _keys(turn, layout, suffix)
            files = list(await self.storage.write(list(zip(keys, texts, strict=True))))
            if files == [self.storage.location(key) for key in keys]:
                return files, suffix
            if suffix:
                raise StorageError(f"the files of {len(keys)} steps cannot be named as announced")
            # By what is stored, each text apart: others under the same name would never find room.
            redact = redactor_of(self.storage)
            stored = [await in_thread(storable, text, redact) for text in texts]
            suffix = f"-{content_hash(chr(0).join(stored))}"


def _keys(turn: Turn, layout: Layout, suffix: str) -> list[str]:
    folder = session_folder(turn.session_id)
    return [f"{folder}/s{step.number}{suffix}.md" for step in layout.steps]


def _own_notes(turn: Turn) -> list[Note]:
    """The notes of the context, except those that the caller's own messages look like."""
    theirs = {message["content"] for message in turn.history or () if note_of(message)}
    notes = [(note_of(message), message["content"]) for message in turn.messages]
    return [note for note, text in notes if note is not None and text not in theirs]


def _change(
    layout: Layout, rewritten: collapse.Rewritten, files: Sequence[str], archive: str | None
) -> Change:
    steps = layout.steps
    detail = Collapsed(
        steps=len(steps),
        notes=rewritten.notes,
        lines=rewritten.lines,
        messages=len(layout.leaving),
        freed_tokens=rewritten.freed_tokens,
        archive=archive,
        files=tuple(files),
        calls=tuple(step.call.id if step.call else "" for step in steps),
    )
    return Change(rewritten.messages, detail)
