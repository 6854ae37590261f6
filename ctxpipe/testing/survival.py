"""Assertion that texts stay in the context of every call of a conversation, for a test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from .._text import count_phrase, one_line
from ..errors import SettingsError, StorageError
from ..messages import Message, MessageLike, ensure_messages
from ..placeholders.names import session_folder
from ..session.conversation import Conversation
from ..session.session import Session, conversation_of
from ..session.sessions import PIPELINE
from ..stages.protocol import Change, Turn
from ..stages.reports import Outcome, StageReport
from ..storage import TextReader
from ..sync import wait_for
from .whereabouts import FileIndex, WordIndex, file_keys_in, has_words, needle_of

if TYPE_CHECKING:
    from ..pipeline import ContextPipeline

SESSION_ID = "assert-survives"
"""Id of the session in which a history is replayed; its files are in the folder of this name."""

MAX_SHOWN = 5
"""Most texts that an error describes; it counts the others."""


class TextsLost(AssertionError):
    """Raised if texts are not in the context of a call that comes after them."""


def assert_survives(
    history: Sequence[MessageLike],
    pipeline: ContextPipeline,
    texts: Sequence[str],
    *,
    system: object = None,
    tools: Iterable[object] | None = None,
) -> None:
    """Check that each of *texts* stays in the context of every call that comes after it.

        def test_the_rules_stay_in_the_context():
            pipeline = ContextPipeline(presets.coding_agent(MemoryStorage(), work_dir=None))
            assert_survives(history, pipeline, texts=["Never push to main."])

    *history* is a recorded conversation: messages of the Messages API. Each of its replies is one
    call of the model. For each call the messages before it are shaped by *pipeline*, in a session
    of its own; no agent's model is called. *system* and *tools* are those of the requests. The
    lines of a text are looked for by their words, so blanks and markup do not matter.

    Raises TextsLost. Its message names each text that is missing, the first call without it, the
    stage that removed it, and the file that it is in. Also raises TextsLost if a text does not
    occur in *history* at all. Raises SettingsError for *texts* that cannot be looked for, and
    InvalidHistory if *history* is not a list of messages.

    In an async test, await `assert_survives_async`.
    """
    wait_for(assert_survives_async(history, pipeline, texts, system=system, tools=tools))


async def assert_survives_async(
    history: Sequence[MessageLike],
    pipeline: ContextPipeline,
    texts: Sequence[str],
    *,
    system: object = None,
    tools: Iterable[object] | None = None,
) -> None:
    """Check the same as `assert_survives`, in an async test.

    Raises TextsLost, SettingsError and InvalidHistory, as `assert_survives` does.
    """
    PIPELINE.check("pipeline", pipeline)
    ensure_messages(history)
    messages = cast("list[Message]", history)
    records = [_TextRecord(text, _needles(text)) for text in _texts_to_check(texts)]
    walk = _Walk(pipeline)
    tool_list = None if tools is None else list(tools)
    for call, length in enumerate(_call_lengths(messages)):
        await walk.shape(messages[:length], system, tool_list)
        for record in records:
            await walk.look(record, call, messages, length)
    absent_records = [record for record in records if record.since is None]
    if absent_records:
        names = "; ".join(repr(one_line(record.text)) for record in absent_records[:MAX_SHOWN])
        raise TextsLost(
            f"{count_phrase(len(absent_records), 'text')} not in the history at all: {names}; "
            "give the words as they are in a message"
        )
    incomplete_records = [record for record in records if record.missing_count]
    if incomplete_records:
        lines = [
            f"{len(incomplete_records)} of {count_phrase(len(records), 'text')} left the context:"
        ]
        lines += [f"- {record.describe()}" for record in incomplete_records[:MAX_SHOWN]]
        if len(incomplete_records) > MAX_SHOWN:
            lines.append(f"and {len(incomplete_records) - MAX_SHOWN:,} more")
        raise TextsLost("\n".join(lines))


def _texts_to_check(texts: object) -> list[str]:
    """Return *texts* as a list. Raises SettingsError if one of them cannot be looked for."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise SettingsError(f"texts is {type(texts).__name__}; give a list of texts: texts=[…]")
    result = list(texts)
    if not result:
        raise SettingsError("texts is empty, so nothing would be checked; give at least one text")
    for text in result:
        if not isinstance(text, str):
            raise SettingsError(f"texts holds {type(text).__name__}; give a list of texts")
        if not has_words(text):
            raise SettingsError(f"texts holds {text!r}, which has no word to look for")
    return result


def _needles(text: str) -> list[str]:
    """Return what to look for: the words of each line of *text* that has some."""
    return [needle_of(line) for line in text.splitlines() if has_words(line)]


def _call_lengths(history: Sequence[Message]) -> list[int]:
    """Return for each call the number of messages before it; the last call has no reply yet."""
    lengths = [index for index, message in enumerate(history) if message["role"] == "assistant"]
    if history and history[-1]["role"] != "assistant":
        lengths.append(len(history))
    return [length for length in lengths if length]


@dataclass(slots=True)
class _TextRecord:
    """A text, and what was found out about it.

    *since* is the first call after the text. *missing_count* is the number of calls without it, of
    *look_count*. *first_missing* is the first of these, *stage* the stage that removed the text
    then, and *file* the file that it was in.
    """

    text: str
    needles: list[str]
    since: int | None = None
    look_count: int = 0
    missing_count: int = 0
    first_missing: int = 0
    stage: str = ""
    file: str | None = None

    def describe(self) -> str:
        """Return which text left the context, when, by which stage, and where it is."""
        where = "in no file that the context leads to"
        if self.file is not None:
            where = f"in the file {self.file}"
        return (
            f"{one_line(self.text)!r} came before call {self.since} and was gone at call "
            f"{self.first_missing}: removed by {self.stage or 'no stage'}; it is {where}; "
            f"missing at {self.missing_count:,} of {count_phrase(self.look_count, 'call')}"
        )


@dataclass(slots=True)
class _Changes:
    """The changes that stages made in one turn, recorded by a veto that refuses nothing."""

    proposals: list[tuple[Turn, Change]] = field(default_factory=list)
    accepted: list[tuple[str, Sequence[Message], Sequence[Message]]] = field(default_factory=list)

    def propose(self, turn: Turn, change: Change) -> None:
        """Record that a stage proposes *change*."""
        self.proposals.append((turn, change))

    def report(self, report: StageReport) -> None:
        """Record the last proposal as accepted, if *report* is about a change."""
        if report.outcome is Outcome.CHANGED and self.proposals:
            turn, change = self.proposals[-1]
            self.accepted.append((report.stage, turn.messages, change.messages))


class _Walk:
    """A session that shapes a history call by call, and in which texts are looked for."""

    def __init__(self, pipeline: ContextPipeline) -> None:
        memory = conversation_of(pipeline.new_session(SESSION_ID)).memory
        self._changes = _Changes()
        veto = memory.pipeline.veto
        on_report = memory.pipeline.on_report

        def record_proposal(turn: Turn, change: Change) -> bool | str:
            verdict = veto(turn, change) if veto else False
            if not verdict:
                self._changes.propose(turn, change)
            return verdict

        def record_report(report: StageReport) -> object:
            self._changes.report(report)
            return on_report(report) if on_report else None

        settings = replace(memory.pipeline, veto=record_proposal, on_report=record_report)
        self._conversation = Conversation(settings, SESSION_ID, memory.settings)
        self._words = WordIndex()
        self._folder = session_folder(SESSION_ID)
        self._context: Sequence[Message] = ()
        self._files: FileIndex | None = None  # of the newest context, once it was asked for

    async def shape(
        self, messages: list[Message], system: object, tools: Sequence[object] | None
    ) -> None:
        """Shape *messages*, the history before the next call."""
        self._changes = _Changes()
        result = await Session(self._conversation).run(messages, system=system, tools=tools)
        self._context = result.messages
        self._files = None

    async def look(
        self, record: _TextRecord, call: int, history: Sequence[Message], length: int
    ) -> None:
        """Look for *record* in the context of *call*, which *length* messages precede."""
        if record.since is None:
            if not self._has_all(record.needles, history[:length]):
                return
            record.since = call
        record.look_count += 1
        missing_needle = self._missing(record.needles, self._context)
        if missing_needle is None:
            return
        record.missing_count += 1
        if record.missing_count == 1:
            record.first_missing = call
            record.stage = self._remover(missing_needle)
            record.file = await self._file_with(missing_needle)

    def _missing(self, needles: Sequence[str], messages: Sequence[Message]) -> str | None:
        """Return the first of *needles* that is not in *messages*; None if all are."""
        for needle in needles:
            if not self._words.is_in_any(needle, messages):
                return needle
        return None

    def _has_all(self, needles: Sequence[str], messages: Sequence[Message]) -> bool:
        """Return True if *messages* contain all of *needles*."""
        return self._missing(needles, messages) is None

    def _remover(self, needle: str) -> str:
        """Return the name of the stage after whose change *needle* was gone, "" without one."""
        for stage, before, after in self._changes.accepted:
            if self._has_all([needle], before) and not self._has_all([needle], after):
                return stage
        return ""

    async def _file_with(self, needle: str) -> str | None:
        """Return the key of a file with *needle* that the context leads to; None without one."""
        if self._files is None:
            texts = await self._texts_of_files()
            self._files = FileIndex(WordIndex(), texts, self._folder)
        return self._files.file_with(needle, self._context)

    async def _texts_of_files(self) -> dict[str, str]:
        """Return the texts of the files that the context leads to, by key."""
        storages = self._conversation.memory.storages
        readers = [storage for storage in storages if isinstance(storage, TextReader)]
        texts: dict[str, str] = {}
        pending: set[str] = set()
        for message in self._context:
            pending |= file_keys_in(message, self._folder)
        read_keys: set[str] = set()
        while pending - read_keys:
            key = min(pending - read_keys)
            read_keys.add(key)
            for reader in readers:
                try:
                    page = await reader.read(key)
                except StorageError:
                    continue
                texts[key] = page.text
                pending |= file_keys_in({"role": "user", "content": page.text}, self._folder)
                break
        return texts
