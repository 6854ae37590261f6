"""Replace a long history by its summary, and bring the files in work back."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from ..compacted import safe_summary
from ..edits import compact
from ..edits.restore import COMMON_WRITING_TOOLS
from ..edits.views import COMMON_READING_TOOLS, READING_TOOLS
from ..errors import SettingsError, StorageError, SummaryFailed, safe_text
from ..messages import ensure_messages, has_thinking
from ..names import session_folder
from ..reports import Compacted
from ..settings import (
    COMPACT_MAX_RETRIES,
    COMPACT_OUTPUT_DIR,
    FLAG,
    FUNCTION,
    NUMBER,
    SIZE,
    SUMMARIZER,
    SUMMARY_MAX_WORDS,
    TEXT,
    check_settings,
    instance_of,
)
from ..stage import Change, Intent, Skip, Turn
from ..storage import Archive, LocalStorage
from ..storage.files import FileReader
from ..storage.protocol import ARCHIVE
from ..storage.records import Record
from ..summarizers import (
    WITHOUT_MODEL,
    AnthropicSummarizer,
    ExtractiveSummarizer,
    FinishedParts,
    PromptSummarizer,
    Retry,
    Summarizer,
    summarised,
)
from ..summarizers.protocol import summarizer_name
from ..threads import in_thread
from ..tokens import Counting, as_counter, should_compact
from .archive import archive_digest, archive_record, load_archive
from .attempts import Attempts
from .layout import (
    FileFolder,
    Fold,
    Layout,
    check_folder,
    fitted,
    folded_texts,
    indexed,
    what_holds,
)
from .pointing import check_reference, shown
from .restore import Restore, RestoredFiles, restore_files
from .source import source_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ..messages import Message
    from ..tokens import TokenCounter

__all__ = [
    "COMMON_READING_TOOLS",
    "COMMON_WRITING_TOOLS",
    "READING_TOOLS",
    "Compact",
    "CompactResult",
    "CompactStats",
    "FileFolder",
    "Restore",
    "compact_messages",
    "load_archive",
    "restore_files",
]

logger = logging.getLogger("ctxpipe")

# The function, literal to the requirements --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactStats:
    """What a compaction did. Tokens are raw, of the messages alone. Source: CR-45."""

    original_token_count: int
    compacted_token_count: int
    compaction_ratio: float
    compacted_message_count: int
    retained_message_count: int
    restored_file_count: int
    restored_token_count: int


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What `compact_messages` returns.

    Not *compacted*, *messages* is the very list given and *reason* says why.
    """

    messages: list[Message] = field(repr=False)
    compacted: bool = False
    stats: CompactStats | None = None
    original_messages_path: str | None = None
    reason: str = ""


async def compact_messages(
    messages: list[Message],
    *,
    summarize: Summarizer | None = None,
    model: str | None = None,
    session_id: str = "default",
    output_dir: str | os.PathLike[str] | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    context_token_limit: int | None = None,
    compact_threshold_ratio: float | Decimal | None = None,
    max_retries: int | None = None,
    summary_max_words: int | None = None,
    max_restore_files: int | None = None,
    max_restore_tokens_per_file: int | None = None,
    max_restore_tokens_total: int | None = None,
    require_archive: bool = False,
    fold_unrestored: bool = False,
    counter: Counting | None = None,
    system: object = None,
    tools: Sequence[object] | None = None,
    files: FileReader | None = None,
    archive: Archive | None = None,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> CompactResult:
    """Once the context reaches its threshold, replace all of it but the leading system messages by
    a summary.

    Behind the summary the files read last come back from disk. Below *context_token_limit* x
    *compact_threshold_ratio* (200,000 x 0.92 raw tokens, *system* and *tools* included), or when no
    summary can be had after *max_retries* (2), or when the result would not be smaller, the very
    same list comes back. *messages* is not modified. Source: CR.

    The raw messages go first to ``<output_dir>/<session_id>/compact-<UTC seconds>-<n>.json``
    (*output_dir*: .compact), for `load_archive` to read back: plain messages come back equal, model
    objects of the SDK as they would be sent. A failed save is logged and does not stop the
    compaction unless *require_archive*.

    *summarize* writes the summary, by default `AnthropicSummarizer` with *model* and *summary_max_words*, which without
    credentials in the environment is `ExtractiveSummarizer`. *work_dir* and the *max_restore_…*
    limits are those of `restore_files`. With *fold_unrestored* files that are too long are reduced
    to the names they define. *files*,
    *archive* and *sleep* stand in for the disk and the clock.

    It believes what *messages* say, as `restore_files` does: files come back after calls that were
    denied, too, and a message in the form of a summary or of a restored file passes for one. The
    stage `Compact` believes none of this.

    Raises InvalidHistory when *messages* has not the shape of messages, SettingsError when a
    setting makes no sense.
    """
    ensure_messages(messages)
    counter = as_counter(counter)
    retry = Retry(max_retries=COMPACT_MAX_RETRIES(max_retries), sleep=sleep)
    if summarize is None:
        words = SUMMARY_MAX_WORDS(summary_max_words)
        summarize = AnthropicSummarizer(model=model, max_words=words, counter=counter)
    await counter.count(
        messages, system=system, tools=tools
    )  # in a worker thread; below, every text is known
    is_long = should_compact(
        messages,
        context_token_limit=context_token_limit,
        compact_threshold_ratio=compact_threshold_ratio,
        counter=counter,
        system=system,
        tools=tools,
    )
    head, rest = compact.partition(messages)
    if not is_long or not rest:
        return CompactResult(
            messages, reason="below the threshold" if rest else "nothing but system messages"
        )
    if archive is None:
        archive = await to_thread.run_sync(
            partial(LocalStorage, output_dir or COMPACT_OUTPUT_DIR(), taken="number")
        )
    path = None
    try:
        path = await _saved(archive, session_id, rest, required=require_archive)
        summary = await summarised(summarize, rest, retry)
    except (SummaryFailed, StorageError) as error:
        logger.error("the history is not compacted: %s", safe_text(error))  # noqa: TRY400  a traceback may quote anything
        return CompactResult(messages, original_messages_path=path, reason=str(error))
    restored = await restore_files(
        messages,
        work_dir=work_dir,
        max_restore_files=max_restore_files,
        max_restore_tokens_per_file=max_restore_tokens_per_file,
        max_restore_tokens_total=max_restore_tokens_total,
        files=files,
        counter=counter,
    )
    folded = await folded_texts(restored.unfit, counter) if fold_unrestored else {}
    text = safe_summary(summary.text) + compact.reminder(compact.extract_commands(rest))
    text += "".join(f"\n\n{names}" for names in folded.values())
    return await _smaller(_Original(messages, head, rest, path), text, restored, counter)


@dataclass(frozen=True, slots=True)
class _Original:
    messages: list[Message]
    head: list[Message]
    rest: list[Message]
    path: str | None


async def _smaller(
    original: _Original, text: str, restored: RestoredFiles, counter: TokenCounter
) -> CompactResult:
    """The result with as many of the restored files as leave it smaller than the original.

    Source: A-44.
    """
    before = await counter.count(original.messages)
    for number in range(len(restored.files), -1, -1):
        files = restored.files[:number]
        messages = compact.assemble(original.head, text, [file.message for file in files])
        after = await counter.count(messages)
        if after < before:
            stats = CompactStats(
                original_token_count=before,
                compacted_token_count=after,
                compaction_ratio=after / before,
                compacted_message_count=len(original.rest),
                retained_message_count=len(original.head),
                restored_file_count=number,
                restored_token_count=sum(file.tokens for file in files),
            )
            return CompactResult(messages, True, stats, original.path)
    reason = f"the compacted messages would not be smaller than {before} tokens"
    logger.warning("%s", reason)
    return CompactResult(original.messages, original_messages_path=original.path, reason=reason)


async def _saved(
    archive: Archive, session_id: str, record: Record, *, required: bool
) -> str | None:
    try:
        return await archive.save(session_id, "compact", record)
    except StorageError as error:
        if required:
            raise
        logger.error("the raw messages are not archived: %s", safe_text(error))  # noqa: TRY400  a traceback may quote anything
        return None


# The stage ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compact:
    """Near the limit, replace the history by its summary, the evidence that no model may forget,
    and the files in work.

    It begins when the calibrated estimate of the context reaches the budget's trigger (or by force)
    and aims at its target: restored files give way first, the oldest of them first, then the
    evidence; what is still above it but smaller than before is taken, and reported ``over_target``
    with what holds it. While a call waits for its result, one of a server tool included, it is put
    off; where the API itself has compacted, it is left to the API.

    What the model has not answered stays whole, pictures and results included, as long as the new
    context meets the target. Only above it the user's words are cut to *max_request_chars*, head
    and tail, and the report's warnings say what else is missing. System messages from the middle of
    the history are carried on.

    The raw messages are archived first; without an archive nothing is compacted, unless
    *require_archive* is False.
    *summarize* defaults to `AnthropicSummarizer`, and without credentials to `ExtractiveSummarizer`; the report names
    who wrote. The evidence is a list of paths of up to *evidence_tokens* and, in proportion,
    commands, identifiers and the user's requests; paths without room are listed in a file beside
    the archive. The model sees the paths of both in the form *reference*, as in `DirectOffload`.
    *pin* chooses messages to keep word for word.

    *restore* says which of the user's files may be read again; without it no file is opened, and the report says so.
    Files too long are reduced to their names by *folder* (default: by the names they define) unless
    *fold_unrestored* is off.

    After three failures in a row, and when compaction does not help or has to come back too often,
    no attempt is made for *cooldown_seconds* of *clock*.

    Nothing is believed because of what a text says: in a session the evidence comes from the
    caller's history, and elsewhere from archives of the same session whose digest is right. Texts
    that only look like ours give nothing.

    Raises SettingsError for settings that are invalid.
    """

    summarize: Summarizer | None = None
    archive: Archive | None = None
    require_archive: bool = True
    restore: Restore | None = None
    fold_unrestored: bool = True
    folder: FileFolder | None = None
    evidence_tokens: int = 2000
    max_request_chars: int = 20_000
    pin: Callable[[Message], bool] | None = None
    reference: str = "absolute"
    retry: Retry = field(default_factory=Retry)
    cooldown_seconds: float = 300.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        if self.archive is None and self.require_archive:
            raise SettingsError(
                "Compact needs an archive for the raw messages; give archive=, or require_archive=False"
            )
        instance_of(Restore, "a Restore such as Restore(work_dir='.')").optional.check(
            "restore", self.restore
        )
        check_settings(
            self,
            summarize=SUMMARIZER.optional,
            archive=ARCHIVE.optional,
            require_archive=FLAG,
            fold_unrestored=FLAG,
            evidence_tokens=SIZE,
            max_request_chars=SIZE,
            pin=FUNCTION.optional,
            reference=TEXT,
            retry=instance_of(Retry, "a Retry such as Retry(max_retries=2)"),
            cooldown_seconds=NUMBER,
            clock=FUNCTION,
        )
        check_folder(self.folder)
        check_reference(self.reference)

    async def __call__(self, turn: Turn) -> Change | Skip:
        attempts = turn.recall(Attempts)
        attempts.turns += 1
        declined = await self._declined(turn, attempts)
        if declined is not None:
            return declined
        try:
            return await self._compacted(turn, attempts)
        except Exception as error:
            attempts.failed(self._later(), safe_text(error))
            raise

    async def plan(self, turn: Turn) -> Skip | Intent:
        """What would be done; a summary cannot be known without writing it."""
        declined = await self._declined(turn, turn.recall(Attempts))
        if declined is not None:
            return declined
        rest = compact.partition(turn.messages)[1]
        return Intent(
            f"{summarizer_name(self._writer(turn))} would summarise {len(rest)} messages: "
            f"{await turn.tokens()} tokens, with a target of {turn.budget.target}"
        )

    def focused(self, focus: str) -> Compact:
        """The same stage whose summary attends to *focus*, where its summariser can be told so."""
        writer = self.summarize or AnthropicSummarizer()
        if not isinstance(writer, AnthropicSummarizer | PromptSummarizer):
            return self
        return replace(self, summarize=replace(writer, focus=focus))

    # Whether --------------------------------------------------------------------------------------

    async def _declined(self, turn: Turn, attempts: Attempts) -> Skip | None:
        tokens = await turn.tokens()
        if not turn.force and not turn.budget.reached(tokens):
            return Skip(f"{tokens} tokens, below the trigger of {turn.budget.trigger}")
        head, rest = compact.partition(turn.messages)
        obstacle = compact.obstacle(rest)
        if obstacle:
            return Skip(obstacle)
        fixed = turn.overhead + await turn.counter.count(head)
        if turn.budget.reached(turn.ledger.estimate(fixed, head)):
            reason = f"over budget: system prompt, tools and system messages hold {fixed} tokens"
        else:
            reason = attempts.refusal(self.clock(), tokens)
        if not reason:
            return None
        raw = await turn.raw_tokens() - turn.overhead
        over = turn.budget.reached(tokens)
        return Skip(reason, Compacted(raw, raw, 0, attempts=0, over_budget=over, holds=reason))

    def _later(self) -> float:
        return self.clock() + self.cooldown_seconds

    def _writer(self, turn: Turn) -> Summarizer:
        writer = self.summarize or AnthropicSummarizer()
        if isinstance(writer, AnthropicSummarizer):
            writer = writer.with_client(turn.client)
            writer = writer if writer.available else ExtractiveSummarizer(writer.max_words)
        # What the evidence says better need not stand in the summary too.
        return replace(writer, brief=True) if isinstance(writer, ExtractiveSummarizer) else writer

    def _warn_without_model(self, turn: Turn, writer: Summarizer) -> str:
        """That *writer* stands in for a model, logged once in a session; "" when it was chosen."""
        if not isinstance(writer, ExtractiveSummarizer) or isinstance(
            self.summarize, ExtractiveSummarizer
        ):
            return ""
        attempts = turn.recall(Attempts)
        if not attempts.warned:
            logger.warning("session %r: %s", turn.session_id[:40], WITHOUT_MODEL)
        attempts.warned = True
        return WITHOUT_MODEL

    # What -----------------------------------------------------------------------------------------

    async def _compacted(self, turn: Turn, attempts: Attempts) -> Change | Skip:
        head, rest = compact.partition(turn.messages)
        path = await self._archived(turn.session_id, rest)
        writer = self._writer(turn)
        no_model = self._warn_without_model(turn, writer)
        # What costs nothing is written anew: then it says the same in every process.
        finished = None if isinstance(writer, ExtractiveSummarizer) else turn.recall(FinishedParts)
        summary = await summarised(writer, rest, self.retry, finished)
        where = partial(shown, self.reference, session_folder(turn.session_id))
        source = await source_of(turn, self.archive, where)
        restored = await self._restored(source.messages, turn.counter)
        digest = (
            await archive_digest(self.archive, path) if self.archive is not None and path else None
        )
        drafts = await in_thread(
            partial(
                compact.drafts,
                head,
                rest,
                summary.text,
                source,
                archive=where(path) if path else "",
                archive_digest=digest or "",
                notes=_notes(restored),
                pin=self.pin,
                max_request_chars=self.max_request_chars,
                whole=not _is_protected(turn, rest),
            )
        )
        draft, layout = await fitted(
            turn, drafts, restored, self.evidence_tokens, self._fold_for(turn)
        )
        layout, warning = await indexed(turn, draft, layout, self.archive, where)
        detail = Compacted(
            await turn.raw_tokens() - turn.overhead,
            await turn.counter.count(layout.messages),
            len(rest),
            summarizer=summary.writer or summarizer_name(writer),
            archive=path,
            restored=tuple(file.path for file in layout.files),
            restored_tokens=sum(file.tokens for file in layout.files),
            folded=tuple(layout.folded),
            warnings=(*draft.cuts, *restored.warnings, *filter(None, [no_model, warning])),
            attempts=summary.attempts,
            input_tokens=summary.input_tokens,
            cached_tokens=summary.cached_tokens,
            output_tokens=summary.output_tokens,
        )
        return await self._judged(turn, attempts, draft, layout, detail)

    async def _archived(self, session_id: str, rest: Sequence[Message]) -> str | None:
        if self.archive is None:
            return None
        return await _saved(
            self.archive, session_id, archive_record(rest), required=self.require_archive
        )

    async def _restored(self, messages: Sequence[Message], counter: TokenCounter) -> RestoredFiles:
        if self.restore is None:
            return RestoredFiles(warnings=("no files are restored: Compact has no restore=",))
        return await self.restore.read_again(messages, counter)

    def _fold_for(self, turn: Turn) -> Fold | None:
        return (
            partial(folded_texts, counter=turn.counter, folder=self.folder)
            if self.fold_unrestored
            else None
        )

    async def _judged(
        self,
        turn: Turn,
        attempts: Attempts,
        draft: compact.Draft,
        layout: Layout,
        detail: Compacted,
    ) -> Change | Skip:
        """Whether the proposal counts, and what is to be said about it. Source: A-44, R2."""
        estimate = turn.ledger.estimate(detail.tokens_after + turn.overhead, layout.messages)
        over_budget = turn.budget.reached(estimate)
        if estimate > turn.budget.target:
            holds = await what_holds(turn, draft, layout)
            detail = replace(detail, over_target=True, over_budget=over_budget, holds=holds)
        if detail.tokens_after >= detail.tokens_before:
            attempts.stuck(self._later(), await turn.tokens())
            reason = f"a summary would hold {detail.tokens_after} tokens instead of {detail.tokens_before}"
            return Skip(
                reason, replace(detail, over_budget=turn.budget.reached(await turn.tokens()))
            )
        if attempts.succeeded(self._later()):
            detail = replace(
                detail, warnings=(*detail.warnings, f"compaction backs off: {attempts.why}")
            )
        if over_budget:
            attempts.stuck(self._later(), estimate)
        return Change(layout.messages, detail)


def _notes(restored: RestoredFiles) -> list[str]:
    changed = [file.path for file in (*restored.files, *restored.unfit) if file.changed]
    return [
        *(f"{name} is not as it was shown before" for name in changed),
        *(f"{name} was deleted since it was shown" for name in restored.deleted),
    ]


def _is_protected(turn: Turn, rest: Sequence[Message]) -> bool:
    """Whether the unanswered messages hold thinking that must not stand after a rewritten message."""
    return turn.protected > 0 and any(map(has_thinking, rest[compact.open_tail(rest) :]))
