"""Collapse old exchanges into one line each, with the few source lines likely to be used again.

The module `notes` explains the steps, runs and notes with an example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, cast

from ..._text import short_repr
from ..._threads.threads import in_thread
from ...errors import SettingsError, StorageError
from ...placeholders.names import content_hash, session_folder
from ...placeholders.notes import StepsNote, note_of
from ...providers.prices import PRICES, Prices
from ...settings import COUNT, NUMBER, PIN, SIZE, check_settings, instance_of
from ...storage import Archive, TextReader, TextWriter
from ...storage.records import redactor_of, storable
from ...storage.references import check_reference, reference_of, visible_folder
from ..archive import archive_record
from ..offloaded import read_offloaded
from ..protocol import Change, Skip, Turn
from ..reading.pins import Pin
from ..reading.what_applies import ApplicableIndex
from ..reports import Collapsed
from ..rewrites import first_to_leave
from . import notes
from .exchanges import ExchangeIndex
from .governing import Governing, governing
from .notes import CollapsedContext, CollapsePlan

PROTECTED = "thinking is protected, and a note would come before protected thinking"

ALPHA = 2.0
"""Times the price of a rewrite that carrying the exchanges must have cost (docs/benchmarks.md).

With 3 and 4 the measured cost and recall were about the same.
"""


@dataclass(frozen=True, slots=True, repr=False)
class Collapse:
    """Collapse old exchanges into a note: one line per tool call, and the lines worth keeping.

    An exchange is an assistant message with tool calls, and their results. It is old if the model
    has replied *keep_recent* times or more since. *Carrying* old exchanges has a cost: each call of
    the model reads them again. Removing them has a cost too, the *rewrite*: the cached context
    after them is written again. The old exchanges that leave are one of them and all later ones.
    The stage computes for each old exchange, as the first that leaves:

        (what carrying it and all later ones has cost so far) - 2 x (what the rewrite would cost)

    It chooses the exchange with the greatest difference. If that is above 0, this exchange and all
    later old ones leave completely: words, thinking, calls and results.

    Each run of exchanges between two messages that stay becomes one user message, the note. It has
    a line for each *step*, which is a call with its result: its number, the tool, what the call was
    about, the size of the result and whether it failed. It also names the files with the whole
    steps.

    A person's messages, pictures and earlier notes stay byte for byte, so later rewrites leave the
    beginning of the context alone. Exchanges with calls of server tools or of their programs stay
    too, and so do those with what governs the agent: the newest plan, the newest to-do list, and
    loaded skills, each up to 5,000 tokens and the newest up to 25,000 tokens together. Of a skill
    that is longer, the note has the beginning. *pin* chooses further exchanges that stay (see
    `Pins`).

    Two kinds of messages that are no exchanges become steps too, with their beginning: an old
    reply without calls, and a text that an agent's harness wrote on the user's side, such as the
    report of a job (``ctxpipe.providers.agent_tools.HARNESS_TEXT``); both only if they have more
    than 900 characters.

    Under the line of a call, the note has what must not be lost: up to two sentences with the
    assistant's findings, tasks that are not done, the user's answer to a question, why the call
    failed, and the id of a job that goes on running.

    Then it quotes lines of the call's input and result that are likely to be used again: those with
    *min_value* expected uses per 1,000 tokens or more, up to half of the tokens that leave. The
    expected uses are estimated without a model. They come from the names in a line (paths,
    identifiers, numbers) that no other part of the context shows.

    *prices* are those of the model. If fewer than *min_tokens* raw tokens would leave, nothing
    leaves. While the cache lives, nothing leaves before the context has *min_calls* replies of the
    model. A rewrite removes most replies from the context, so the next rewrite comes many calls
    later. If the cache has expired, the rewrite costs nothing, and everything old leaves. In a
    forced turn everything old leaves too; costs, *min_tokens* and *min_calls* do not count then. In
    a pipeline with ``thinking="protect"`` nothing leaves once there is thinking, also in a forced
    turn.

    Before anything leaves, two things are stored in *storage*: the whole text of each step, in a
    file of its own even if its result was offloaded before, and then the raw messages, in an
    archive. *storage* must write and read texts and keep records.

    What this stage saves was measured only by replays of recorded sessions
    (``benchmarks/bench_costs.py`` prints it); no live run has confirmed it yet.

    Raises SettingsError if a setting is invalid.
    """

    observers: ClassVar[tuple[str, ...]] = ("ctxpipe.diagnostics.collapse_watch:CollapseWatch",)

    storage: TextWriter
    prices: Prices = field(default_factory=Prices.relative)
    keep_recent: int = 7
    min_tokens: int = 1000
    min_calls: int = 25
    min_value: float = 3.0
    pin: Pin | None = None

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
            pin=PIN.optional,
        )
        check_reference(reference_of(self.storage))
        # Later turns recognize a note by its text. So they must be able to read one with this path.
        note = StepsNote(self._visible_folder("sample"), 1, 2)
        if note_of({"role": "user", "content": f"{note.heading}\n1\n2"}) != note:
            raise SettingsError(
                f"storage is at {note.folder!r}, where no note can point to: its path has a line "
                "break or another control character, or is longer than 4,096 characters"
            )

    async def __call__(self, turn: Turn) -> Change | Skip:
        """Replace the old exchanges by notes, if that pays.

        Raises StorageError if a step or the archive cannot be written; then nothing leaves.
        """
        prepared = await self._prepare(turn)
        if isinstance(prepared, Skip):
            return prepared
        plan, offloaded_texts, collapsed = prepared
        texts = await in_thread(notes.step_texts, plan, offloaded_texts)
        # The steps before the archive: if something fails, writing the steps again gives the same
        # files, but each archive is a new one.
        files, suffix = await self._write_steps(turn, plan, texts)
        record = archive_record(plan.leaving_messages)
        archive = await cast("Archive", self.storage).save(turn.session_id, "collapse", record)
        if suffix:
            # The notes become a little longer. If nothing is saved then, the change is refused.
            collapsed = await self._rewrite(turn, plan, offloaded_texts, suffix)
        return _change(plan, collapsed, files, archive)

    async def plan(self, turn: Turn) -> Change | Skip:
        """Return the change that this turn would make, without writing anything."""
        prepared = await self._prepare(turn)
        if isinstance(prepared, Skip):
            return prepared
        plan, _, collapsed = prepared
        files = [self.storage.location(key) for key in _keys(turn, plan, "")]
        return _change(plan, collapsed, files, None)

    async def _prepare(
        self, turn: Turn
    ) -> tuple[CollapsePlan, Mapping[str, str], CollapsedContext] | Skip:
        """Return the plan, the texts behind its placeholders, and the context with its notes."""
        plan = await self._decide(turn)
        if isinstance(plan, Skip):
            return plan
        files = await in_thread(notes.find_offloaded_files, plan)
        offloaded_texts = await read_offloaded(self.storage, turn.session_id, files)
        collapsed = await self._rewrite(turn, plan, offloaded_texts, "")
        if collapsed.freed_tokens <= 0:
            return Skip("a note would be as long as what it replaces")
        return plan, offloaded_texts, collapsed

    def _visible_folder(self, session_id: str) -> str:
        """Return the folder of the session's steps as the model sees it, ending in a separator."""
        return visible_folder(self.storage, session_folder(session_id))

    async def _decide(self, turn: Turn) -> CollapsePlan | Skip:
        """Return the exchanges that leave in this turn, or the reason why none does."""
        if turn.protected:
            return Skip(PROTECTED)
        fact_sums = await turn.fact_sums()
        if not turn.force and not turn.cache_expired and fact_sums.calls < self.min_calls:
            return Skip(f"only {fact_sums.calls} calls in the context, fewer than {self.min_calls}")
        # A note is compared with the exact tokens of what it replaces.
        turn.count_exactly()
        sums = await turn.prefix_sums()
        stop = fact_sums.recent_from(self.keep_recent)
        index = turn.recall(ExchangeIndex)
        await turn.call_from(
            index.message_count, index.extend, turn.messages, stop, sums, turn.counter
        )
        first = await self._first_to_leave(turn, index)
        if isinstance(first, str):
            return Skip(first)
        # Exchanges that govern the agent stay. They are looked up only now, because it takes time
        # and most turns end above: a rewrite that does not pay with them does not pay without.
        governs = await self._governing(turn)
        index = index.without(turn.messages, governs)
        first = await self._first_to_leave(turn, index)
        if isinstance(first, str):
            return Skip(first)
        return await in_thread(self._plan, turn, index.places[first], stop, governs)

    async def _first_to_leave(self, turn: Turn, index: ExchangeIndex) -> int | str:
        """Return the position in *index* of the first exchange that leaves, or why none does.

        In a forced turn it is the oldest one.
        """
        if not index.places:
            return "no exchange is old enough to collapse"
        if turn.force:
            return 0
        fact_sums = await turn.fact_sums()
        make_table = partial(index.table, fact_sums, keep_recent=self.keep_recent)
        first = await first_to_leave(turn, make_table, self.prices, ALPHA, self.min_tokens)
        return f"the old exchanges stay: {first}" if isinstance(first, str) else first

    async def _governing(self, turn: Turn) -> Governing:
        """Return what governs the agent at the end of the context."""
        applicable = turn.recall(ApplicableIndex)
        applicable.notes_folder = self._visible_folder(turn.session_id)
        await turn.call_from(applicable.message_count, applicable.extend, turn.messages)
        governs = await in_thread(
            governing, turn.messages, applicable.applicable(), turn.counter.text, self.pin
        )
        return replace(governs, jobs_over=applicable.jobs_over())

    def _plan(self, turn: Turn, start: int, stop: int, governs: Governing) -> CollapsePlan:
        """Return the plan for the exchanges from message *start* up to *stop*.

        Its steps are numbered on from those of the session's notes in the context.
        """
        folder = self._visible_folder(turn.session_id)
        last_numbers = [note.last for note in _own_notes(turn) if note.folder == folder]
        first_number = max(last_numbers, default=0) + 1
        return notes.plan_collapse(turn.messages, start, stop, first_number, governs)

    async def _rewrite(
        self, turn: Turn, plan: CollapsePlan, offloaded_texts: Mapping[str, str], suffix: str
    ) -> CollapsedContext:
        """Return the context in which the planned steps are replaced by notes.

        The notes name the file of each step, whose name ends in *suffix*. *offloaded_texts* are
        original texts by the placeholders for them. Nothing is written.
        """
        folder = self._visible_folder(turn.session_id)
        return await in_thread(
            notes.collapse, plan, offloaded_texts, folder, suffix, self.min_value, turn.counter
        )

    async def _write_steps(
        self, turn: Turn, plan: CollapsePlan, texts: Sequence[str]
    ) -> tuple[list[str], str]:
        """Write each step to its file; return the files, and the suffix of their names.

        The suffix is "" unless a file of that name has other content. That happens if the numbers
        are in use after a compaction, or on another branch of the history. Then the storage writes
        the text under another name, which no note could predict. So all steps are written again
        with a suffix; what the first try wrote stays in the storage, and no note names it. Raises
        StorageError if the files cannot be written under the names with the suffix either.
        """
        suffix = ""
        while True:
            keys = _keys(turn, plan, suffix)
            files = list(await self.storage.write(list(zip(keys, texts, strict=True))))
            if files == [self.storage.location(key) for key in keys]:
                return files, suffix
            if suffix:
                raise StorageError(
                    f"the files of {len(keys)} steps cannot be stored under the names in their "
                    f"note, which end in {suffix}.md"
                )
            # The hash of what is stored, text by text, so that other steps get another suffix.
            redact = redactor_of(self.storage)
            stored = [await in_thread(storable, text, redact) for text in texts]
            suffix = f"-{content_hash(chr(0).join(stored))}"


def _keys(turn: Turn, plan: CollapsePlan, suffix: str) -> list[str]:
    """Return the storage key of each step: the session's folder, its number, and *suffix*."""
    folder = session_folder(turn.session_id)
    return [f"{folder}/s{step.number}{suffix}.md" for step in plan.steps]


def _own_notes(turn: Turn) -> list[StepsNote]:
    """Return the notes of the context, without messages of the caller that look like one."""
    caller_texts = {message["content"] for message in turn.history or () if note_of(message)}
    own_notes: list[StepsNote] = []
    for message in turn.messages:
        note = note_of(message)
        if note is not None and message["content"] not in caller_texts:
            own_notes.append(note)
    return own_notes


def _change(
    plan: CollapsePlan, collapsed: CollapsedContext, files: Sequence[str], archive: str | None
) -> Change:
    """Return the change to the *collapsed* context, with its report.

    *files* are the locations of the steps' texts, *archive* is that of the messages.
    """
    steps = plan.steps
    detail = Collapsed(
        steps=len(steps),
        notes=collapsed.note_count,
        lines=collapsed.line_count,
        messages=len(plan.leaving_indices),
        freed_tokens=collapsed.freed_tokens,
        archive=archive,
        files=tuple(files),
        calls=tuple(step.call.id if step.call else "" for step in steps),  # "" for a text
    )
    return Change(collapsed.messages, detail)
